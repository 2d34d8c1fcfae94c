"""The calibration of the look ahead: a regression that finds a known distortion, and leaves an exact look alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import LookAhead
from casal.methods.look_ahead import method as method_module
from casal.methods.look_ahead.calibration import RATIOS, calibrated, regression
from casal.methods.look_ahead.look import Moments

from .gaussian import close, diagonal, normal

LEVELS = [4.0, 1.0, 0.25]


def test_a_distorted_mean_is_found() -> None:
    """f = a + b r without noise: the shift is a, the slope b, and what is left is the variance at the end."""
    n, shift, slope = 500, torch.tensor([0.5, -2.0]), torch.tensor([0.7, 1.3])
    r = normal(1, n, 1, 2)
    means = torch.cat([r, r, (shift + slope * r)], 1)
    variances = torch.full_like(means, 1e-9)
    variances[:, 2] = 4e-9
    found = regression(LEVELS, means, variances)
    close(found[:, 0], torch.tensor(LEVELS, dtype=torch.float64).log())
    for k, level in enumerate(found[:2]):
        close(level[1:3], shift.to(torch.float64), 1e-6)
        close(level[3:5], slope.to(torch.float64), 1e-6)
        assert level[5:].tolist() == pytest.approx([4.0, 4.0], rel=1e-3), k
    close(found[2, 1:], torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64), 1e-6)


def test_a_slope_that_the_chains_cannot_tell_is_one() -> None:
    n = 500
    means = torch.cat([1e-6 * normal(1, n, 1, 1), normal(2, n, 1, 1)], 1)
    found = regression(LEVELS[:2], means, torch.ones(n, 2, 1, dtype=torch.float64))
    assert float(found[0, 2]) == pytest.approx(1.0, abs=1e-3)


def test_ratios_are_bounded() -> None:
    means = torch.cat([0.0 * normal(1, 50, 1, 1), 100.0 * normal(2, 50, 1, 1)], 1)
    small = torch.full((50, 2, 1), 1e-3, dtype=torch.float64)
    assert float(regression(LEVELS[:2], means, small)[0, 3]) == RATIOS[1]
    small[:, 1] = 1e-9
    assert float(regression(LEVELS[:2], 0 * means, small)[0, 3]) == RATIOS[0]


def test_moments_are_corrected_at_the_levels_and_between_them() -> None:
    """Linear in the logarithm of the level; the fit of an end beyond it; rows of a soft term are left alone."""
    fits = torch.tensor(
        [[math.log(4.0), 0.5, 0.8, 2.0], [math.log(1.0), 0.1, 1.2, 1.0]], dtype=torch.float64
    )  # one row: shift, slope, ratio
    root = normal(1, 3, 2, 2)
    before = Moments(normal(2, 3, 2), root @ root.mT, 0.1 * root @ root.mT, torch.ones(3, 2, dtype=torch.float64))
    for s, (shift, slope, ratio) in {
        4.0: (0.5, 0.8, 2.0),
        9.0: (0.5, 0.8, 2.0),
        2.0: (0.3, 1.0, 1.5),
        1.0: (0.1, 1.2, 1.0),
        0.1: (0.1, 1.2, 1.0),
    }.items():
        after = calibrated(before, fits, s)
        close(after.mean[:, 0], shift + slope * before.mean[:, 0])
        close(after.mean[:, 1], before.mean[:, 1])
        scale = torch.tensor([[ratio, ratio**0.5], [ratio**0.5, 1.0]], dtype=torch.float64)
        close(after.linear, scale * before.linear)
        close(after.bent, scale * before.bent)
        close(after.factor, torch.tensor([slope, 1.0], dtype=torch.float64))


@pytest.mark.statistical
def test_an_exact_look_needs_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Gaussian on two equations: slopes and ratios of one at every level, and samples of the exact mean."""
    fits = list[Tensor]()

    def kept(*args: Any) -> Tensor:
        fits.append(regression(*args))
        return fits[-1]

    monkeypatch.setattr(method_module, "regression", kept)
    d, n = 16, 400
    prior, A = diagonal(d), normal(5, 2, d)
    constraint = casal.Affine(A, A @ prior.mean + 1.0)
    gain = prior.covariance @ A.T @ torch.linalg.inv(A @ prior.covariance @ A.T)
    exact = prior.mean + gain @ torch.ones(2, dtype=torch.float64)
    spread = (prior.covariance - gain @ A @ prior.covariance).diagonal().sqrt()
    result = casal.sample(prior.target(), constraint, LookAhead(calibrate=True), n, seed=1, check=False)
    (found,) = fits
    level, off = found[:, 0].exp(), (found[:, 3:5] - 1).abs().amax(1)
    assert float(off.max()) < 0.6  # over seeds the standard deviation is 0.17 at the first level,
    assert float(off[level < 1.3].max()) < 0.2  # 0.06 at a level of 1.2,
    assert float(off[level < 0.2].max()) < 0.04  # and 0.01 at 0.2
    assert float((found[:, 5:].log()).abs().max()) < 0.3
    assert float(result.trace["least_slope"]) == float(found[:, 3:5].min())
    z = (result.samples.mean(0) - exact) / spread * n**0.5
    assert float(z.square().mean().sqrt()) < 1.6  # 1 +- 0.18 for exact draws
