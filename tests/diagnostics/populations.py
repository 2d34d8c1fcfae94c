"""Samples dressed up as the result of a run, with exact draws or broken ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import casal
from casal.diagnostics import Evidence
from casal.methods import Problem

CENTRE = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
"""Mean of the round Gaussian of spread one that the tests restrict to sets."""


def score(x: Tensor) -> Tensor:
    """Of that Gaussian."""
    return CENTRE.to(x) - x


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(constraint: casal.Constraint, n: int, seed: int, temperature: float = 1.0) -> Tensor:
    """Exact and independent, on a set with a closed form for them."""
    drawn = constraint.sample_near(CENTRE.expand(n, 3), temperature**0.5, generator(seed))
    assert drawn is not None
    return drawn


def gaussian(n: int, seed: int) -> Tensor:
    """Unconstrained draws."""
    return CENTRE + torch.randn((n, 3), generator=generator(seed), dtype=torch.float64)


def evidence(
    samples: Tensor,
    constraint: casal.Constraint,
    *,
    grad_log_p: Callable[[Tensor], Tensor] = score,
    ancestors: Tensor | None = None,
    weights: Tensor | None = None,
    state: Any = None,
    trace: dict[str, Tensor] | None = None,
    decoder: casal.Decoder | None = None,
    target: casal.Target | None = None,
    evaluations: float = 500.0,
    starts: Tensor | None = None,
) -> Evidence:
    """What the checks see of a run with these samples."""
    n = len(samples)
    found = target or casal.langevin(lambda x: -grad_log_p(x), steps=10, step_size=0.1, init=samples)
    like = torch.zeros((0, *samples.shape[1:]), dtype=torch.float64) if state is None else state.x[:0]
    problem = Problem(found, constraint, decoder or casal.Identity(), like)
    run = SimpleNamespace(
        samples=samples,
        weights=torch.full((n,), 1.0 / n, dtype=torch.float64) if weights is None else weights,
        ancestors=torch.arange(n) if ancestors is None else ancestors,
        trace=trace or {},
        state=state or SimpleNamespace(),
    )
    known = None if starts is None else starts.__getitem__
    return Evidence(run, problem, evaluations, evaluations, starts=known)
