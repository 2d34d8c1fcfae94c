"""Distances against independent implementations, their floors and their power."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy import stats

from casal.errors import SettingError, ShapeError
from casal_lab.distances import Distance, energy_distance, mode_weights_tv

from .samples import normal, weights

# Values


@pytest.mark.parametrize("weighted", [False, True])
def test_one_dimension_against_scipy(weighted: bool) -> None:
    x, y = normal(300), normal(200, seed=1, shift=0.3)
    a, b = (weights(300), weights(200, 8)) if weighted else (torch.ones(300).double(), torch.ones(200).double())
    energy = energy_distance(x, y, weights=a, reference_weights=b, repeats=2)
    assert energy.value == pytest.approx(stats.energy_distance(x, y, a, b) ** 2, rel=1e-9)


def test_energy_distance_against_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With POT's distances, and with blocks so small that there are many."""
    monkeypatch.setattr("casal_lab.distances.PAIRS_AT_ONCE", 1000)
    x, y, a = normal(150, 3), normal(120, 3, seed=1, shift=0.2), weights(150)
    p, q = (a / a.sum()).numpy(), np.full(120, 1 / 120)
    between, first, second = (ot.dist(u.numpy(), v.numpy(), "euclidean") for u, v in ((x, y), (x, x), (y, y)))
    exact = 2 * p @ between @ q - p @ first @ p - q @ second @ q
    assert energy_distance(x, y, weights=a, repeats=2).value == pytest.approx(exact, rel=1e-9)


def test_mode_weights() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    assert mode_weights_tv(labels, [0.6, 0.2, 0.2]).value == pytest.approx(0.1)
    assert mode_weights_tv(labels, [5, 3, 2]).value == pytest.approx(0.0, abs=1e-12)
    centers = torch.tensor([[-5.0, 0.0], [5.0, 0.0]])
    samples = torch.cat([normal(30, 2) + centers[0], normal(10, 2) + centers[1]])
    share = torch.cat([torch.full((30,), 1.0), torch.full((10,), 3.0)])
    assert mode_weights_tv(samples, [0.5, 0.5], centers=centers).value == pytest.approx(0.25)
    assert mode_weights_tv(samples, [0.5, 0.5], centers=centers, weights=share).value == pytest.approx(0.0)


def test_multinomial_floor() -> None:
    """Two modes: TV = |p - q|, so the floor is the mean deviation of a binomial."""
    found = mode_weights_tv(torch.arange(400) % 2, [0.3, 0.7], repeats=20_000)
    k = np.arange(401)
    exact = float(np.sum(stats.binom.pmf(k, 400, 0.3) * np.abs(k / 400 - 0.3)))
    assert found.floor == pytest.approx(exact, rel=0.02)
    empty = mode_weights_tv(torch.zeros(10, dtype=torch.long), [1.0, 0.0])
    assert empty.value == pytest.approx(0.0, abs=1e-15) and empty.floor == empty.excess == 0.0


# Floors, power, invariances


def test_equal_distributions_are_within_the_floor_and_shifted_ones_above() -> None:
    measure, excesses = energy_distance, []
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
    good, bad = energy_distance(x, y, weights=w), energy_distance(x, y)
    assert good.excess < 4.0 < 8.0 < bad.excess
    assert good.floor > bad.floor


def test_standard_error_is_the_spread_over_repetitions() -> None:
    found = [energy_distance(normal(300, 2, seed=s, shift=1.0), normal(300, 2, seed=100 + s)) for s in range(30)]
    spread = np.std([f.value for f in found], ddof=1)
    assert np.mean([f.standard_error for f in found]) == pytest.approx(spread, rel=0.4)


def test_invariances() -> None:
    """The order of samples does not matter, nor the scale of the weights; the same seed gives the same bits."""
    measure, x, y = energy_distance, normal(100, 2), normal(80, 2, seed=1, shift=0.5)
    w = weights(100)
    first = measure(x, y, weights=w)
    assert measure(x, y, weights=w) == first
    assert measure(x, y, weights=5.0 * w).value == pytest.approx(first.value, rel=1e-9)
    assert measure(x.flip(0), y, weights=w.flip(0)).value == pytest.approx(first.value, rel=1e-9)
    assert measure(y, x, reference_weights=w).value == pytest.approx(first.value, rel=1e-9)
    assert measure(x + 7.0, y + 7.0, weights=w).value == pytest.approx(first.value, rel=1e-9)
    assert measure(3.0 * x, 3.0 * y, weights=w).value == pytest.approx(3.0 * first.value, rel=1e-9)
    assert measure(x, x, repeats=2).value == pytest.approx(0.0, abs=1e-12)
    assert measure(torch.cat([x, x]), y, weights=torch.cat([w, w])).value == pytest.approx(first.value, rel=1e-9)


def test_floor_from_fresh_exact_draws() -> None:
    x, y, fresh = normal(400, 2), normal(400, 2, seed=1), normal(4000, 2, seed=2)
    assert energy_distance(x, y, exact=fresh).excess < 4.0
    assert energy_distance(x + 1.0, y, exact=fresh).excess > 8.0


def test_distances_print_with_as_many_digits_as_they_have() -> None:
    found = Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015)
    assert str(found) == "0.034 ± 0.002 (floor 0.028)"
    assert float(found) == 0.03412 and found.excess == pytest.approx(3.88)
    assert str(Distance(12.3, 4.0, floor=3.0, floor_sd=1.0)) == "12 ± 4 (floor 3)"
    assert str(Distance(0.0, 0.0, floor=0.0, floor_sd=0.0)).startswith("0.0")


def test_bad_input_is_named() -> None:
    x, y = normal(10, 2), normal(10, 3)
    with pytest.raises(ShapeError, match="x has 2 coordinates per sample, y has 3"):
        energy_distance(x, y)
    with pytest.raises(ShapeError, match="1 of 10 samples of x are not finite"):
        energy_distance(torch.where(torch.arange(10)[:, None] == 3, torch.nan, x), x)
    with pytest.raises(ShapeError, match="as many weights"):
        energy_distance(x, x, weights=torch.ones(3))
    with pytest.raises(SettingError, match="not all zero"):
        energy_distance(x, x, weights=torch.zeros(10))
    with pytest.raises(ShapeError, match="integer labels"):
        mode_weights_tv(x, [0.5, 0.5])
    with pytest.raises(SettingError, match="labels must lie"):
        mode_weights_tv(torch.tensor([0, 2]), [0.5, 0.5])
