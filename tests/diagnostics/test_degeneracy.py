"""Populations that lost diversity: what is measured, and what is advised."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal import diagnostics
from casal.errors import CasalWarning

from .samples import normal, weights


class Run(NamedTuple):
    """What the diagnostics read of a result."""

    samples: Tensor
    weights: Tensor
    ancestors: Tensor
    trace: dict[str, Tensor]
    state: SimpleNamespace


def result(log_weight: Tensor, trace: dict[str, Tensor] | None = None, ancestors: int | None = None) -> Run:
    n = len(log_weight)
    share = torch.softmax(log_weight.double(), 0)
    return Run(
        normal(n, 1), share, torch.arange(n) % (ancestors or n), trace or {}, SimpleNamespace(log_weight=log_weight)
    )


ONE_CLUSTER = {
    "gaussian": lambda n: normal(n),
    "wide gaussian": lambda n: 30.0 * normal(n),
    "uniform": lambda n: 50.0 * weights(n),
    "chi-square below": lambda n: -20.0 * normal(n).square(),
    "exponential above": lambda n: -10.0 * torch.log(weights(n)),
}


@pytest.mark.parametrize("n", [50, 1000, 20_000])
@pytest.mark.parametrize("name", ONE_CLUSTER)
def test_one_cluster_of_weights_is_one(name: str, n: int) -> None:
    assert not diagnostics.population(result(ONE_CLUSTER[name](n))).split


@pytest.mark.parametrize("n", [50, 1000, 20_000])
@pytest.mark.parametrize(("share", "gap"), [(0.04, 12.0), (0.1, 8.0), (0.4, 8.0)])
def test_two_clusters_of_weights_are_found(n: int, share: float, gap: float) -> None:
    upper = torch.arange(n) < share * n
    found = diagnostics.population(result(normal(n) + gap * upper))
    assert found.split and found.clusters is not None
    assert found.clusters.chains == pytest.approx(int(upper.sum()), abs=1 + 0.001 * n)
    assert found.clusters.gap == pytest.approx(gap, abs=2.0)
    text = "; ".join(diagnostics.advice(result(normal(n) + gap * upper)))
    assert f"of {n} chains carry" in text and "inner steps" in text and "islands" in text


def test_clusters_of_special_weights() -> None:
    assert diagnostics.clusters(torch.zeros(100)) is None
    assert diagnostics.clusters(torch.tensor([0.0, 1.0, -math.inf, -math.inf])) is None
    found = diagnostics.clusters(torch.tensor([0.0] * 90 + [20.0] * 10 + [-math.inf] * 10))
    assert found is not None and found.chains == 10 and found.separation > 1e6 and found.share > 0.999
    balanced = diagnostics.population(result(normal(1000) + 8.0 * (torch.arange(1000) < 900)))
    assert not balanced.split  # most chains carry most weight: nothing is wrong


def test_advice_names_number_and_remedy() -> None:
    trace = {
        "ess": torch.tensor([900.0, 12.0, 800.0]),
        "rho": torch.tensor([1.0, 3.5, 9.0]),
        "ancestors": torch.tensor([999.0, 20.0, 3.0]),
    }
    first, second = diagnostics.advice(result(torch.zeros(1000), trace, ancestors=3))
    assert "only 3 of 1000 starting chains" in first and "more rejuvenation moves" in first and "islands" in first
    assert "fell to 12 of 1000 at rho = 3.5" in second and "more levels" in second and "inner steps" in second
    found = diagnostics.population(result(torch.zeros(1000), trace, ancestors=3))
    assert (found.ancestors, found.least_ess, found.ess) == (3, 12.0, pytest.approx(1000.0))
    with pytest.warns(CasalWarning, match="only 3 of 1000 starting chains"):
        diagnostics.warn_if_degenerate(trace, 1000)
    split = normal(1000) + 20.0 * (torch.arange(1000) < 30)
    with pytest.warns(CasalWarning, match="30 of 1000 chains carry"):
        diagnostics.warn_if_degenerate({}, 1000, split)


def test_healthy_runs_need_no_advice() -> None:
    trace = {"ess": torch.tensor([900.0, 700.0]), "ancestors": torch.tensor([999.0, 400.0])}
    assert diagnostics.advice(result(0.3 * normal(1000), trace)) == []
    diagnostics.warn_if_degenerate(trace, 1000)
    diagnostics.warn_if_degenerate({}, 1000)


def test_a_run_has_a_population() -> None:
    target = casal.langevin(lambda x: x, steps=40, step_size=0.1, init=lambda n, g: torch.randn((n, 2), generator=g))
    run = casal.sample(target, casal.Sphere(1.0), casal.WeightedCASAL(50.0), 200, seed=1)
    found = diagnostics.population(run)
    assert found.n == 200 and 0 < found.least_ess <= found.ess <= 200.0 + 1e-9 and 2 <= found.ancestors <= 200
    plain = diagnostics.population(casal.sample(target, casal.Sphere(1.0), casal.Projected(), 20, seed=1))
    assert plain.ess == pytest.approx(20.0) and plain.ancestors == 20 and plain.clusters is None
