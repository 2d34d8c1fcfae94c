"""The references themselves, on a circle and on a line, against quadrature and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

import casal

from ..references import constrained_hmc, gaussian_on_affine, shell_rejection

pytestmark = pytest.mark.statistical

MEAN = torch.tensor([0.5, 0.3], dtype=torch.float64)
PRECISION = torch.tensor([[1.0, 0.4], [0.4, 0.8]], dtype=torch.float64)
CIRCLE = casal.Sphere(1.5)


def potential(x: Tensor) -> Tensor:
    return 0.5 * (((x - MEAN) @ PRECISION) * (x - MEAN)).sum(-1)


def draw(n: int, generator: torch.Generator) -> Tensor:
    factor = torch.linalg.cholesky(torch.linalg.inv(PRECISION))
    return MEAN + torch.randn((n, 2), generator=generator, dtype=torch.float64) @ factor.T


def angle(z: Tensor) -> Tensor:
    return torch.atan2(z[..., 1], z[..., 0])


def p_value(angles: Tensor) -> float:
    """Kolmogorov-Smirnov test of angles against exp(-potential) on the circle, by quadrature."""
    edges = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)
    middle = 0.5 * (edges[1:] + edges[:-1])
    density = torch.exp(-potential(1.5 * torch.stack([middle.cos(), middle.sin()], dim=1)))
    cdf = np.concatenate([[0.0], np.cumsum(density.numpy())])
    return float(kstest(angles.numpy(), lambda at: np.interp(at, edges.numpy(), cdf / cdf[-1])).pvalue)


def test_shell_rejection_on_the_circle() -> None:
    """A thin shell with the tube factor, or any shell with the density; a thick one alone is wrong."""
    generator = torch.Generator().manual_seed(0)
    thin = shell_rejection(draw, CIRCLE, 0.05, 4000, generator)
    assert len(thin) == 4000 and float(CIRCLE.violation(thin).max()) < 1e-12
    assert p_value(angle(thin)) > 1e-3
    dense = shell_rejection(draw, CIRCLE, 0.9, 4000, generator, log_density=lambda x: -potential(x))
    assert p_value(angle(dense)) > 1e-3
    thick = shell_rejection(draw, CIRCLE, 1.4, 20_000, generator)
    assert p_value(angle(thick)) < 1e-9


def test_constrained_hmc_on_the_circle() -> None:
    """4 chains of 80 draws; draws of one chain are nearly independent, thinned by 2 to be safe."""
    starts = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    z = constrained_hmc(potential, CIRCLE, starts, 80, warm_up=10, step_size=0.5, seed=3)
    assert z.shape == (4, 80, 2)
    assert float(CIRCLE.violation(z.flatten(0, 1)).max()) < 1e-7
    found = angle(z[:, ::2].flatten(0, 1))
    assert p_value(found) > 1e-3
    flat = torch.rand(len(found), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert p_value(2 * math.pi * (flat - 0.5)) < 1e-6


def test_kriging() -> None:
    mean, covariance = gaussian_on_affine([1.0, -1.0], [[2.0, 0.6], [0.6, 0.5]], [[1.0, 1.0], [2.0, 2.0]], [1.0, 2.0])
    assert mean.tolist() == pytest.approx([1.70270, -0.70270], abs=1e-5)
    assert float(covariance[0, 0]) == pytest.approx(0.17297, abs=1e-5)
    assert torch.allclose(covariance.sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-12)


def test_inequalities_have_no_constrained_dynamics() -> None:
    with pytest.raises(ValueError, match="not a set of equations"):
        constrained_hmc(potential, casal.Ball(1.0), torch.zeros(1, 2), 1)
