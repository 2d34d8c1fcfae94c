"""The look at a denoiser before a run: whether its derivative can be a covariance."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.methods import Context
from casal.sampling.network import SYMMETRIC, asymmetry

D = 24


def turned(x: Tensor) -> Tensor:
    """K x with K^T = -K and |K x| = |x|: pairs of coordinates are turned by a right angle."""
    return torch.stack([-x[:, 1::2], x[:, ::2]], 2).flatten(1)


def model(skew: float) -> casal.Target:
    """The denoiser of N(0, I), and ``skew`` K y beside it, K a turn."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        return (y + skew * turned(y)) / (1.0 + sigma.to(y) ** 2)

    return casal.edm(denoise, casal.karras_sigmas(20, 0.02, 20.0), shape=(D,), churn=1.0, dtype=torch.float64)


def found(target: Any, n: int = 4000) -> float:
    context = Context(target, casal.Sphere(1.0), casal.Identity(), torch.zeros((0, D), dtype=torch.float64))
    stream = torch.Generator().manual_seed(0)
    return asymmetry(context, torch.randn((n, D), generator=stream, dtype=torch.float64), 1.0, stream)


def test_the_derivative_of_an_exact_denoiser_is_symmetric() -> None:
    assert found(model(0.0)) < 1e-12


def test_asymmetry_is_known_in_closed_form() -> None:
    """J ~ I + b K: u.J v - v.J u = 2 b u.K v has the rms 2 b sqrt(d), and |J u| = sqrt((1 + b^2) d); error 1.2 %."""
    for b in (0.1, 0.5):
        assert found(model(b)) == pytest.approx(2 * b / math.sqrt(1 + b**2), rel=0.05)


def test_what_autograd_cannot_see_through_has_none() -> None:
    target = model(0.0)
    assert target.denoise is not None
    inner = target.denoise
    hidden = casal.edm(
        lambda y, s: inner(y.detach(), s), casal.karras_sigmas(5, 0.02, 20.0), shape=(D,), dtype=torch.float64
    )
    assert math.isnan(found(hidden, 4))


@pytest.mark.parametrize(("skew", "name"), [(0.0, "LookAhead"), (0.5, "SplitGibbs")])
def test_auto_does_not_look_ahead_through_a_derivative_that_is_no_covariance(skew: float, name: str) -> None:
    A = torch.ones((1, D), dtype=torch.float64)
    result = casal.sample(model(skew), casal.Affine(A, [1.0]), "auto", 16, check=False)
    assert result.provenance["method"] == name and bool(result.certificate.feasible.all())
    assert (found(model(skew)) > SYMMETRIC) == (name == "SplitGibbs")
