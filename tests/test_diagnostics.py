"""Distances against independent implementations, their floors and their power; populations that lost diversity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy import stats
from torch import Tensor

import casal
from casal import diagnostics
from casal.diagnostics import directions
from casal.errors import CasalWarning, SettingError, ShapeError
from casal.methods.finish import WeightedState


def normal(n: int, *event: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    drawn = torch.randn((n, *event), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn + shift


def weights(n: int, seed: int = 9) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Values


@pytest.mark.parametrize("weighted", [False, True])
def test_one_dimension_against_pot_and_scipy(weighted: bool) -> None:
    x, y = normal(300), normal(200, seed=1, shift=0.3)
    a, b = (weights(300), weights(200, 8)) if weighted else (torch.ones(300).double(), torch.ones(200).double())
    found = diagnostics.wasserstein1(x, y, weights=a, reference_weights=b, repeats=2)
    mass = [(w / w.sum()).double().numpy() for w in (a, b)]
    assert found.value == pytest.approx(float(ot.wasserstein_1d(x.numpy(), y.numpy(), *mass, p=1)), rel=1e-10)
    assert found.value == pytest.approx(stats.wasserstein_distance(x, y, a, b), rel=1e-10)
    energy = diagnostics.energy_distance(x, y, weights=a, reference_weights=b, repeats=2)
    assert energy.value == pytest.approx(stats.energy_distance(x, y, a, b) ** 2, rel=1e-9)


def test_sliced_wasserstein_against_pot() -> None:
    x, y, a = normal(300, 2, 3), normal(200, 2, 3, seed=1, shift=0.2), weights(300)
    theta = directions(6, 50, torch.Generator().manual_seed(5))
    exact = ot.sliced_wasserstein_distance(
        x.flatten(1).numpy(), y.flatten(1).numpy(), (a / a.sum()).numpy(), None, p=1, projections=theta.T.numpy()
    )
    found = diagnostics.sliced_wasserstein(x, y, weights=a, projections=50, repeats=2, seed=5)
    assert found.value == pytest.approx(float(exact), rel=1e-10)


def test_energy_distance_against_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With POT's distances, and with blocks so small that there are many."""
    monkeypatch.setattr("casal.diagnostics.distances.PAIRS_AT_ONCE", 1000)
    x, y, a = normal(150, 3), normal(120, 3, seed=1, shift=0.2), weights(150)
    p, q = (a / a.sum()).numpy(), np.full(120, 1 / 120)
    between, first, second = (ot.dist(u.numpy(), v.numpy(), "euclidean") for u, v in ((x, y), (x, x), (y, y)))
    exact = 2 * p @ between @ q - p @ first @ p - q @ second @ q
    assert diagnostics.energy_distance(x, y, weights=a, repeats=2).value == pytest.approx(exact, rel=1e-9)


def test_quantile_function_as_reference() -> None:
    """Shift of a law by 1/2: W1 = 1/2; against the law itself: the known floor of n samples."""
    x = normal(2000)
    found = diagnostics.wasserstein1(x[:, None] + 0.5, torch.special.ndtri)
    assert found.value == pytest.approx(0.5, abs=0.1)
    equal = diagnostics.wasserstein1(x, torch.special.ndtri, repeats=200)
    # E W1(empirical, law) = sqrt(2 / (pi n)) int sqrt(Phi (1 - Phi)) in the limit.
    grid = np.linspace(-8, 8, 4001)
    limit = math.sqrt(2 / (math.pi * 2000)) * np.trapezoid(np.sqrt(stats.norm.cdf(grid) * stats.norm.sf(grid)), grid)
    assert equal.floor == pytest.approx(limit, rel=0.05)
    assert abs(equal.excess) < 4.0


def test_mode_weights() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    assert diagnostics.mode_weights_tv(labels, [0.6, 0.2, 0.2]).value == pytest.approx(0.1)
    assert diagnostics.mode_weights_tv(labels, [5, 3, 2]).value == pytest.approx(0.0, abs=1e-12)
    centers = torch.tensor([[-5.0, 0.0], [5.0, 0.0]])
    samples = torch.cat([normal(30, 2) + centers[0], normal(10, 2) + centers[1]])
    share = torch.cat([torch.full((30,), 1.0), torch.full((10,), 3.0)])
    assert diagnostics.mode_weights_tv(samples, [0.5, 0.5], centers=centers).value == pytest.approx(0.25)
    assert diagnostics.mode_weights_tv(samples, [0.5, 0.5], centers=centers, weights=share).value == pytest.approx(0.0)


def test_multinomial_floor() -> None:
    """Two modes: TV = |p - q|, so the floor is the mean deviation of a binomial."""
    found = diagnostics.mode_weights_tv(torch.arange(400) % 2, [0.3, 0.7], repeats=20_000)
    k = np.arange(401)
    exact = float(np.sum(stats.binom.pmf(k, 400, 0.3) * np.abs(k / 400 - 0.3)))
    assert found.floor == pytest.approx(exact, rel=0.02)
    empty = diagnostics.mode_weights_tv(torch.zeros(10, dtype=torch.long), [1.0, 0.0])
    assert empty.value == pytest.approx(0.0, abs=1e-15) and empty.floor == empty.excess == 0.0


# Floors, power, invariances

DISTANCES: dict[str, Any] = {
    "sliced": lambda x, y, **k: diagnostics.sliced_wasserstein(x, y, projections=40, **k),
    "energy": diagnostics.energy_distance,
    "accuracy": diagnostics.classifier_test,
    "auc": lambda x, y, **k: diagnostics.classifier_test(x, y, score="auc", **k),
    "w1": lambda x, y, **k: diagnostics.wasserstein1(x[:, 0], y[:, 0], **k),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_laws_are_within_the_floor_and_shifted_ones_above(name: str) -> None:
    measure, excesses = DISTANCES[name], []
    for seed in range(6):
        x, y = normal(600, 3, seed=2 * seed), normal(500, 3, seed=2 * seed + 1)
        excesses.append(measure(x, y, seed=seed).excess)
    assert max(map(abs, excesses)) < 4.0
    assert abs(np.mean(excesses)) < 2.0  # the floor is the mean, not an upper bound
    x, y = normal(600, 3, shift=0.4), normal(500, 3, seed=1)
    assert measure(x, y).excess > 6.0
    assert measure(x, y).value > measure(normal(600, 3, shift=0.2), y).value


def test_weighted_samples_have_a_higher_floor_and_the_right_value() -> None:
    """Importance weights from N(0.5, I) to N(0, I): within the floor with weights, far above without."""
    x, y = normal(1500, 2, shift=0.5), normal(1500, 2, seed=1)
    w = torch.exp(-0.5 * x.sum(1))
    for name in ("sliced", "energy", "auc"):
        good, bad = DISTANCES[name](x, y, weights=w), DISTANCES[name](x, y)
        assert good.excess < 4.0 < 8.0 < bad.excess, name
        assert good.floor > bad.floor or name == "auc"


def test_the_classifier_sees_what_means_and_variances_do_not() -> None:
    """Two clusters at +-0.9, sd 0.436: mean 0, variance 1, as the normal law."""
    sign = torch.sign(normal(1500, 1, seed=3))
    x = 0.9 * sign + math.sqrt(1 - 0.81) * normal(1500, 1, seed=4)
    assert diagnostics.classifier_test(x, normal(1500, 1, seed=5)).excess > 6.0


@pytest.mark.parametrize("name", ["sliced", "energy", "w1"])
def test_standard_error_is_the_spread_over_repetitions(name: str) -> None:
    found = [DISTANCES[name](normal(300, 2, seed=s, shift=1.0), normal(300, 2, seed=100 + s)) for s in range(30)]
    spread = np.std([f.value for f in found], ddof=1)
    assert np.mean([f.standard_error for f in found]) == pytest.approx(spread, rel=0.4)


@pytest.mark.parametrize("name", DISTANCES)
def test_invariances(name: str) -> None:
    """The order of samples does not matter, nor the scale of the weights; the same seed gives the same bits."""
    measure, x, y = DISTANCES[name], normal(100, 2), normal(80, 2, seed=1, shift=0.5)
    w = weights(100)
    first = measure(x, y, weights=w)
    assert measure(x, y, weights=w) == first
    assert measure(x, y, weights=5.0 * w).value == pytest.approx(first.value, rel=1e-9)
    if name in ("sliced", "energy", "w1"):
        assert measure(x.flip(0), y, weights=w.flip(0)).value == pytest.approx(first.value, rel=1e-9)
        assert measure(y, x, reference_weights=w).value == pytest.approx(first.value, rel=1e-9)
        assert measure(x + 7.0, y + 7.0, weights=w).value == pytest.approx(first.value, rel=1e-9)
        assert measure(3.0 * x, 3.0 * y, weights=w).value == pytest.approx(3.0 * first.value, rel=1e-9)
        assert measure(x, x, repeats=2).value == pytest.approx(0.0, abs=1e-12)
    doubled = measure(torch.cat([x, x]), y, weights=torch.cat([w, w])).value
    assert name in ("accuracy", "auc") or doubled == pytest.approx(first.value, rel=1e-9)


def test_floor_from_fresh_exact_draws() -> None:
    x, y, fresh = normal(400, 2), normal(400, 2, seed=1), normal(4000, 2, seed=2)
    assert diagnostics.sliced_wasserstein(x, y, exact=fresh).excess < 4.0
    assert diagnostics.energy_distance(x + 1.0, y, exact=fresh).excess > 8.0


def test_distances_print_with_as_many_digits_as_they_have() -> None:
    found = diagnostics.Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015)
    assert str(found) == "0.034 ± 0.002 (floor 0.028)"
    assert float(found) == 0.03412 and found.excess == pytest.approx(3.88)
    assert str(diagnostics.Distance(12.3, 4.0, floor=3.0, floor_sd=1.0)) == "12 ± 4 (floor 3)"
    assert str(diagnostics.Distance(0.0, 0.0, floor=0.0, floor_sd=0.0)).startswith("0.0")


def test_bad_input_is_named() -> None:
    x, y = normal(10, 2), normal(10, 3)
    with pytest.raises(ShapeError, match="x has 2 coordinates a sample, y has 3"):
        diagnostics.energy_distance(x, y)
    with pytest.raises(ShapeError, match="one coordinate"):
        diagnostics.wasserstein1(x, x)
    with pytest.raises(ShapeError, match="1 of 10 samples of x are not finite"):
        diagnostics.sliced_wasserstein(torch.where(torch.arange(10)[:, None] == 3, torch.nan, x), x)
    with pytest.raises(ShapeError, match="as many weights"):
        diagnostics.energy_distance(x, x, weights=torch.ones(3))
    with pytest.raises(SettingError, match="not all zero"):
        diagnostics.energy_distance(x, x, weights=torch.zeros(10))
    with pytest.raises(SettingError, match="accuracy"):
        diagnostics.classifier_test(x, x, score="f1")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="integer labels"):
        diagnostics.mode_weights_tv(x, [0.5, 0.5])
    with pytest.raises(SettingError, match="labels must lie"):
        diagnostics.mode_weights_tv(torch.tensor([0, 2]), [0.5, 0.5])


# Populations


def result(log_weight: Tensor, trace: dict[str, Tensor] | None = None, ancestors: int | None = None) -> Any:
    n = len(log_weight)
    x = normal(n, 1)
    ancestor = torch.arange(n) % (ancestors or n)
    state = WeightedState(x, x, x, log_weight, ancestor, torch.tensor(1.0))
    violation = torch.zeros(n, dtype=torch.float64)
    return casal.SampleResult(
        x,
        casal.Certificate(violation, 1e-8),
        trace or {},
        None,
        state,
        {},
        torch.ones(n),  # type: ignore[arg-type]
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
