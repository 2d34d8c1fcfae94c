"""Mode weights against their definition and their floor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from casal.errors import SettingError, ShapeError
from casal_lab.distances import Distance, mode_weights_tv

from .samples import normal

# Values


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


def test_distances_print_with_as_many_digits_as_they_have() -> None:
    found = Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015)
    assert str(found) == "0.034 ± 0.002 (floor 0.028)"
    assert float(found) == 0.03412 and found.excess == pytest.approx(3.88)
    assert str(Distance(12.3, 4.0, floor=3.0, floor_sd=1.0)) == "12 ± 4 (floor 3)"
    assert str(Distance(0.0, 0.0, floor=0.0, floor_sd=0.0)).startswith("0.0")


def test_bad_input_is_named() -> None:
    x, labels = normal(10, 2), torch.arange(10) % 2
    with pytest.raises(ShapeError, match="1 of 10 samples of samples are not finite"):
        mode_weights_tv(torch.where(torch.arange(10)[:, None] == 3, torch.nan, x), [1, 1], centers=x[:2])
    with pytest.raises(ShapeError, match="as many weights"):
        mode_weights_tv(labels, [1, 1], weights=torch.ones(3))
    with pytest.raises(SettingError, match="not all zero"):
        mode_weights_tv(labels, [1, 1], weights=torch.zeros(10))
    with pytest.raises(ShapeError, match="integer labels"):
        mode_weights_tv(x, [0.5, 0.5])
    with pytest.raises(SettingError, match="labels must lie"):
        mode_weights_tv(torch.tensor([0, 2]), [0.5, 0.5])
