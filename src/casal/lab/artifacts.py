"""What takes minutes to make, kept in a folder: trained networks and their unconditional samples.

The folder is ``CASAL_CACHE`` in the environment, else ``~/.cache/casal``. A file is named after all that went into it;
delete it to have it made anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from casal.lab.nets import load, require_safetensors, save
from casal.store import write_whole


def folder() -> Path:
    """Where the files are; made if it is not there."""
    path = Path(os.environ.get("CASAL_CACHE") or Path.home() / ".cache" / "casal")
    path.mkdir(parents=True, exist_ok=True)
    return path


def network(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    """The trained network of this name, trained now if there is none."""
    require_safetensors()
    path = folder() / f"{name}.safetensors"
    if not path.exists():
        save(make(), path)
    return load(path)


def points(name: str, make: Callable[[], Tensor]) -> Tensor:
    """The samples of this name, float64, drawn now if there are none."""
    path = folder() / f"{name}.npy"
    if not path.exists():
        drawn = make().to(torch.float32).numpy()
        write_whole(path, lambda file: np.save(file, drawn))
    return torch.from_numpy(np.load(path, allow_pickle=False)).to(torch.float64)
