"""Points for the tests of sets, and how to measure them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Constraint


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard Gaussian numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def length(v: Tensor) -> Tensor:
    """Norm of each event, whatever its size."""
    rows = v.reshape(len(v), math.prod(v.shape[1:]))
    peak = rows.abs().amax(1).clamp_min(1e-320)
    return peak * (rows / peak[:, None]).square().sum(1).sqrt()


def one(constraint: Constraint, point: Any) -> np.ndarray:
    """The foot of a single point."""
    return constraint.project(torch.as_tensor(point, dtype=torch.float64)[None])[0].numpy()
