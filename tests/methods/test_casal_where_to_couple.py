"""The table of docs/models.md: what the place of the coupling does to two modes on a sphere, along EDM from 80."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL

pytestmark = pytest.mark.statistical

F64 = torch.float64
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
CENTRES = torch.zeros((2, 8), dtype=F64)
CENTRES[:, 0] = torch.tensor([1.0, -1.0], dtype=F64)
SHARES, VARIANCE = torch.tensor([0.7, 0.3], dtype=F64), 0.09
SPHERE = casal.Sphere(1.5)


def denoiser(x: Tensor, s: Tensor) -> Tensor:
    spread = VARIANCE + s**2
    logits = SHARES.log() - (x[:, None] - CENTRES).square().sum(-1) / (2 * spread)
    return (logits.softmax(1)[..., None] * (CENTRES + VARIANCE / spread * (x[:, None] - CENTRES))).sum(1)


def seen(method: casal.Method[Any], churn: float = 0.0) -> tuple[float, float, float]:
    """Share of the first mode, mean of |x1|, deviation of |x1|."""
    target = casal.edm(denoiser, casal.karras_sigmas(100, 0.002, 80.0), shape=8, churn=churn, dtype=F64)
    first = casal.sample(target, SPHERE, method, 4000, seed=0).samples[:, 0]
    return float((first > 0).double().mean()), float(first.abs().mean()), float(first.abs().std())


def exact() -> tuple[float, float, float]:
    """By quadrature: u = x1 / 1.5 has the density (1 - u^2)^(5/2) on the sphere, times that of the mixture."""
    u = torch.linspace(-1, 1, 20001, dtype=F64)[1:-1]
    logs = torch.logsumexp(SHARES.log() + 1.5 * u[:, None] * CENTRES[:, 0] / VARIANCE, 1) + 2.5 * torch.log1p(-(u**2))
    p = logs.softmax(0)
    size = 1.5 * u.abs()
    mean = float((p * size).sum())
    return float(p[u > 0].sum()), mean, float((p * (size - mean) ** 2).sum() ** 0.5)


METHODS: dict[str, tuple[casal.Method[Any], float]] = {
    'ODE, `"state"`, ρ = 10': (CASAL(10.0, couple="state"), 0.0),
    'ODE, `"denoised"`, ρ = 10': (CASAL(10.0, couple="denoised"), 0.0),
    'ODE, `"denoised"`, `inverse_variance(1)`': (CASAL(casal.inverse_variance(1.0)), 0.0),
    "ODE, projected at every step": (casal.Projected(), 0.0),
    "ODE, one final projection": (casal.FinalProjection(), 0.0),
    'with noise, `"state"`, `inverse_variance(1)`': (CASAL(casal.inverse_variance(1.0)), 1.0),
    'with noise, `"denoised"`, `inverse_variance(1)`': (CASAL(casal.inverse_variance(1.0), couple="denoised"), 1.0),
}


def printed(row: str) -> list[float]:
    """The numbers of a row of the page."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [float(number.strip(" *")) for number in found.split("|")]


@pytest.mark.parametrize("row", METHODS)
def test_the_table_is_what_is_measured(row: str) -> None:
    assert seen(*METHODS[row]) == pytest.approx(printed(row), abs=0.03)


def test_the_right_answer_is_right() -> None:
    assert exact() == pytest.approx(printed("right answer"), abs=6e-4)
