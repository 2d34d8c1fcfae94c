"""Populations: resampling, standard errors with shared ancestors, and what is said of lost diversity."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal import diagnostics
from casal.diagnostics import Lineage
from casal.errors import CasalWarning
from casal.methods.population import Groups, draw, systematic

from ..diagnostics.samples import normal, weights

# ---------------------------------------------------------------------------------------------------- resampling


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_systematic_resampling_draws_each_chain_n_w_times_up_to_rounding() -> None:
    weight = torch.softmax(normal(500), 0)
    for seed in range(20):
        chosen = systematic(weight, generator(seed))
        count = torch.bincount(chosen, minlength=500)
        assert bool(((count - 500 * weight).abs() < 1.0).all())
        assert bool((chosen.diff() >= 0).all())


def test_groups_are_drawn_where_their_weights_are_uneven_and_islands_keep_their_evidence() -> None:
    log_weight = torch.cat([5.0 * normal(40), torch.full((40,), 1.0, dtype=torch.float64)])
    members = [torch.arange(0, 40), torch.arange(40, 80)]
    for islands in (False, True):
        found = draw(log_weight, Groups(members, islands), generator(0), 0.5)
        assert found is not None
        assert found.renewed.tolist() == [True] * 40 + [False] * 40
        assert int(found.chosen[:40].max()) < 40 and torch.equal(found.chosen[40:], members[1])
        evidence = float(log_weight[:40].exp().mean().log()) if islands else 0.0
        torch.testing.assert_close(found.log_weight[:40], torch.full_like(log_weight[:40], evidence))
        assert torch.equal(found.log_weight[40:], log_weight[40:])
    assert draw(torch.zeros(80, dtype=torch.float64), Groups(members), generator(0), 0.5) is None


def test_particles_of_chains_are_drawn_among_all_and_may_become_fewer() -> None:
    """(n, w) weights: particle k of chain i is number i w + k; it is drawn n w' W times, rounded."""
    log_weight, points = normal(30, 4), normal(120, 3, seed=1)
    found = draw(log_weight, Groups(), generator(0), points=points, width=1)
    assert found is not None and found.chosen.shape == (30, 1)
    count = torch.bincount(found.chosen.reshape(-1), minlength=120)
    assert bool(((count - 30 * torch.softmax(log_weight.reshape(-1), 0)).abs() < 1.0).all())


# ---------------------------------------------------------------------------------------------------- estimates


def equal(n: int) -> Tensor:
    return torch.full((n,), 1.0 / n, dtype=torch.float64)


def test_independent_samples_have_the_usual_error() -> None:
    values = torch.randn((50, 2), generator=generator(0), dtype=torch.float64)
    lineage = Lineage(equal(50), torch.arange(50))
    mean, error = lineage.mean(values)
    assert lineage.effective == pytest.approx(50.0) and lineage.ancestors == 50
    torch.testing.assert_close(mean, values.mean(0))
    torch.testing.assert_close(error, values.std(0) / 50**0.5)


def test_copies_count_once() -> None:
    """Four copies of each of 25 samples say as much as the 25."""
    values = torch.randn((25, 1), generator=generator(1), dtype=torch.float64)
    index = torch.arange(25).repeat_interleave(4)
    lineage = Lineage(equal(100), index)
    assert lineage.effective == pytest.approx(25.0)
    torch.testing.assert_close(lineage.mean(values[index]).standard_error, values.std(0) / 5.0)
    assert lineage.inflation(values[index]) == pytest.approx(4.0 * 25.0 / 24.0)


def test_weights_by_hand() -> None:
    """Weights (1/2, 1/4, 1/4), the last two of one ancestor, values (0, 4, 8): mean 3, both groups off by 1.5."""
    lineage = Lineage(torch.tensor([2.0, 1.0, 1.0]), torch.tensor([7, 3, 3]))
    mean, error = lineage.mean(torch.tensor([[0.0], [4.0], [8.0]]))
    assert (float(mean), lineage.effective) == pytest.approx((3.0, 2.0))
    assert float(error) == pytest.approx((2.0 * (1.5**2 + 1.5**2)) ** 0.5)


def test_opposite_siblings_do_not_lower_the_error() -> None:
    """Siblings that lie on opposite sides of the mean cancel; the error stays that of independent samples."""
    values = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(10, 1)
    error = Lineage(equal(20), torch.arange(10).repeat_interleave(2)).mean(values).standard_error
    assert float(error) == pytest.approx(20**-0.5)


def test_halves_are_whole_families_of_about_equal_weight() -> None:
    weights = torch.tensor([4.0, 1.0, 1.0, 3.0, 1.0, 2.0])
    ancestors = torch.tensor([7, 3, 3, 5, 9, 9])
    half = Lineage(weights, ancestors).halves
    assert half.tolist() == [0, 0, 0, 1, 1, 1]  # families of 4, 3, 3 and 2: the first and the last, the two between
    many = Lineage(torch.ones(1000), torch.arange(1000) // 2).halves
    assert int(many.sum()) == 500 and bool((many[::2] == many[1::2]).all())


def test_skewness_is_that_of_the_mean() -> None:
    values = torch.tensor([[0.0], [0.0], [3.0], [1.0]], dtype=torch.float64)
    alone = Lineage(torch.ones(4), torch.arange(4)).skewness(values)
    deviations = values - 1.0
    assert float(alone) == pytest.approx(float((deviations**3).sum() / (deviations**2).sum() ** 1.5))
    shared = Lineage(torch.ones(4), torch.tensor([0, 0, 1, 1])).skewness(values)
    assert float(shared) == pytest.approx(0.0)  # two families are symmetric about their mean


def resampled(seed: int, n: int = 400) -> tuple[Tensor, Lineage]:
    """N(0, 1) weighted to N(1, 1/3) and resampled, then moved a little in a way that keeps the distribution."""
    stream = generator(seed)
    x = torch.randn(n, generator=stream, dtype=torch.float64)
    index = systematic(torch.softmax(-(x - 1.5).square(), 0), stream)
    noise = torch.randn(n, generator=stream, dtype=torch.float64)
    return 1.0 + 0.9 * (x[index] - 1.0) + (0.19 / 3.0) ** 0.5 * noise, Lineage(equal(n), index)


def covered(naive: bool) -> float:
    """Share of 95 % intervals of the mean and the second moment that hold the exact ones."""
    hits = []
    for seed in range(200):
        z, lineage = resampled(seed)
        estimated = (Lineage(equal(len(z)), torch.arange(len(z))) if naive else lineage).mean(
            torch.stack([z, z.square()], dim=1)
        )
        off = (estimated.value - torch.tensor([1.0, 4.0 / 3.0], dtype=torch.float64)).abs()
        hits.append(off < 1.96 * estimated.standard_error)
    return float(torch.stack(hits).to(torch.float64).mean())


def test_intervals_cover() -> None:
    assert 0.92 < covered(naive=False) < 0.98
    assert covered(naive=True) < 0.9  # the test can tell


# ---------------------------------------------------------------------------------------------------- health


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
    assert f"of {n} chains carry" in text and "use more steps or levels" in text


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
    assert "only 3 of 1000 starts have descendants" in first and "more chains, more steps" in first
    assert "ESS fell to 12 of 1000 at rho = 3.5" in second and "more steps or levels" in second
    found = diagnostics.population(result(torch.zeros(1000), trace, ancestors=3))
    assert (found.ancestors, found.least_ess, found.ess) == (3, 12.0, pytest.approx(1000.0))
    with pytest.warns(CasalWarning, match="only 3 of 1000 starts"):
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


@pytest.mark.parametrize("n", [6, 12, 40])
def test_intervals_of_few_ancestors_are_those_of_student(n: int) -> None:
    """1.96 errors of ``estimate`` hold the mean of Gaussian samples 95 times in 100; those of ``mean`` less often."""
    values = torch.randn((n, 20_000), generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    lineage = Lineage(torch.ones(n), torch.arange(n))
    share, plain = (
        float((found.value.abs() <= 1.96 * found.standard_error).double().mean())
        for found in (lineage.estimate(values), lineage.mean(values))
    )
    assert abs(share - 0.95) < 4 * (0.05 * 0.95 / 20_000) ** 0.5 + 0.002
    assert plain < share - 0.005
