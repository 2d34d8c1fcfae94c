"""Calibration of a denoiser: one at every level for exact ones, and the level found where a wrong one goes wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal import diagnostics
from casal.diagnostics import Calibration, calibration
from casal.errors import SettingError, ShapeError

from .samples import normal, weights

MEANS = torch.tensor([[-1.0, 0.5, 0.0], [1.0, -0.5, 0.3]], dtype=torch.float64)
SHARES = torch.tensor([0.7, 0.3], dtype=torch.float64)
SPREAD = 0.35
LEVELS = [0.003, 0.01, 0.05, 0.2, 0.5, 1.0, 3.0]

Denoiser = Callable[[Tensor, Tensor], Tensor]


def mixture(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | x0 + sigma noise = y] for two Gaussians in 3-D."""
    v = SPREAD**2 + sigma**2
    away = y[:, None] - MEANS
    part = torch.softmax(torch.log(SHARES) - away.square().sum(2) / (2 * v), 1)
    return (part[..., None] * (MEANS + away * (SPREAD**2 / v))).sum(1)


def mixture_points(n: int) -> Tensor:
    return MEANS[(weights(n) > SHARES[0]).long()] + SPREAD * normal(n, 3, seed=4)


def gaussian(y: Tensor, sigma: Tensor) -> Tensor:
    """The same for N(0, 0.2^2 I)."""
    return y / (1.0 + sigma**2 / 0.04)


def model(denoiser: Denoiser) -> casal.Target:
    return casal.edm(denoiser, casal.karras_sigmas(20, 0.003, 10.0), shape=3, time="scalar", dtype=torch.float64)


def wrong_below(level: float, factor: float) -> Denoiser:
    """The mixture's denoiser, its score too steep by a factor below a level."""
    return lambda y, s: y + (factor if float(s) < level else 1.0) * (mixture(y, s) - y)


def rough(y: Tensor, s: Tensor) -> Tensor:
    """The mixture's denoiser with the error that training leaves: a smooth one of size 0.1 s, whatever s is."""
    return mixture(y, s) + 0.1 * s * torch.sin(5.0 * y)


def within(found: Calibration, sds: float = 4.0) -> bool:
    """Whether slope and ratio are one, up to some standard errors."""
    slope = (found.slope - 1).abs() <= sds * found.slope_error
    ratio = (found.ratio - 1).abs() <= sds * found.ratio_error
    return bool(slope.all() and ratio.all())


@pytest.mark.parametrize("name", ["mixture", "gaussian"])
def test_exact_denoisers_are_calibrated_at_every_level(name: str) -> None:
    denoiser, x0 = {"mixture": (mixture, mixture_points(20_000)), "gaussian": (gaussian, 0.2 * normal(20_000, 3))}[name]
    found = calibration(model(denoiser), x0, LEVELS)
    assert within(found)
    assert bool((found.slope_error < 0.015).all())
    assert found.trusted_from == LEVELS[0]
    assert found.evaluations == 2 * len(LEVELS)


def test_a_gaussian_has_the_closed_form() -> None:
    """D = c y on N(0, v I): slope -s^2 d / ((c - 1) (v + s^2) d), ratio from |D - x0|^2, whatever c is."""
    s, v, c = 0.3, 0.04, 0.6
    found = calibration(model(lambda y, _: c * y), math.sqrt(v) * normal(200_000, 3), [s])
    slope = s**2 / ((1 - c) * (v + s**2))
    ratio = ((c - 1) ** 2 * v + c**2 * s**2) / (c * s**2)
    assert float(found.slope[0]) == pytest.approx(slope, abs=4 * float(found.slope_error[0]))
    assert float(found.ratio[0]) == pytest.approx(ratio, abs=4 * float(found.ratio_error[0]))


@pytest.mark.parametrize("kind", ["flow", "ddim"])
def test_every_family_with_a_denoiser(kind: str) -> None:
    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return (mixture(x / t, (1 - t) / t) - x) / (1 - t)

    betas = torch.linspace(1e-4, 0.05, 200, dtype=torch.float64)
    kept = torch.cumprod(1 - betas, 0)

    def eps(x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = kept[t].sqrt(), (1 - kept[t]).sqrt()
        return (x - alpha * mixture(x / alpha, sigma / alpha)) / sigma

    target = {
        "flow": lambda: casal.flow(velocity, steps=50, shape=3, time="scalar", dtype=torch.float64),
        "ddim": lambda: casal.ddim(eps, betas, steps=20, shape=3, time="scalar", dtype=torch.float64),
    }[kind]()
    # Between its levels a discrete model answers for the nearest one: take its own.
    known = (target.table.sigma / target.table.alpha)[::4]
    found = calibration(target, mixture_points(8000), known[known < 4.0])
    assert within(found)
    assert bool((found.levels.diff() > 0).all())


@pytest.mark.parametrize("factor", [1.4, 0.7])
def test_the_level_below_which_a_denoiser_is_wrong_is_found(factor: float) -> None:
    found = calibration(model(wrong_below(0.1, factor)), mixture_points(4000), LEVELS)
    assert found.trusted_from == 0.2
    assert bool((found.slope[:3] - 1 / factor).abs().max() < 0.1)
    assert found.calibrated.tolist() == [False] * 3 + [True] * 4
    assert found.erroneous.tolist() == [factor > 1] * 3 + [False] * 4


def test_an_error_relative_to_the_noise_spoils_small_levels_alone() -> None:
    found = calibration(model(rough), mixture_points(4000), LEVELS)
    assert found.trusted_from is not None
    assert 0.05 < found.trusted_from <= 1.0
    assert float(found.slope[0]) < 0.1
    # The mean squared error cannot tell: 0.01 s^2 beside s^2.
    assert abs(float(found.ratio[0]) - 1) < 0.1


def test_a_wrong_level_in_the_middle_ends_the_trust_there() -> None:
    found = Calibration(
        torch.tensor([0.1, 0.2, 0.4, 0.8]),
        torch.tensor([1.0, 1.3, 1.0, 0.97]),
        torch.full((4,), 0.02),
        torch.ones(4),
        torch.full((4,), 0.02),
        evaluations=8,
    )
    assert found.trusted_from == pytest.approx(0.4)
    assert "calibrated from sigma = 0.4" in str(found)


def test_a_denoiser_that_is_wrong_everywhere_is_never_trusted() -> None:
    found = calibration(model(lambda y, s: y - 2.0 * (y - mixture(y, s))), mixture_points(1000), LEVELS)
    assert found.trusted_from is None
    assert "no level" in str(found)


def test_a_denoiser_that_does_nothing_is_not_trusted() -> None:
    found = calibration(model(lambda y, s: y), mixture_points(100), [0.1])
    assert found.trusted_from is None
    assert bool(found.erroneous.all())


def test_points_narrower_than_the_model_give_a_slope_above_one() -> None:
    """Half the spread: a quarter of the variance, so the score is four times too flat at small noise."""
    found = calibration(model(gaussian), 0.1 * normal(20_000, 3), [0.003, 0.01])
    assert found.trusted_from is None
    assert not bool(found.erroneous.any())
    assert bool((found.slope - 4.0).abs().max() < 0.1)


def test_a_weight_looks_at_one_place() -> None:
    """Wrong in the tail alone: seen there, hardly in the mean over all samples."""

    def tail(y: Tensor, s: Tensor) -> Tensor:
        return y + torch.where(y[:, :1] > 1.6, 2.0, 1.0) * (mixture(y, s) - y)

    def there(y: Tensor) -> Tensor:
        return torch.exp(-((y[:, 0] - 1.8) ** 2) / (2 * 0.1**2))

    x0 = mixture_points(20_000)
    assert calibration(model(tail), x0, [0.05]).trusted_from == 0.05
    assert calibration(model(tail), x0, [0.05], weight=there).trusted_from is None
    assert within(calibration(model(mixture), x0, [0.05, 0.2], weight=there))


def test_levels_by_default_are_those_of_the_model_and_the_data() -> None:
    found = calibration(model(mixture), mixture_points(500))
    assert float(found.levels[0]) == pytest.approx(0.003)
    assert 1.0 < float(found.levels[-1]) < 3.0
    assert within(found)
    few = casal.edm(mixture, [0.5], shape=3, time="scalar", dtype=torch.float64)
    assert calibration(few, mixture_points(500)).levels.tolist() == [0.5]


def test_many_points_are_noised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casal.diagnostics.denoiser_calibration.NUMBERS_AT_ONCE", 1000)
    found = calibration(model(mixture), mixture_points(4000), [0.01, 0.1])
    assert within(found)
    assert bool((found.slope_error < 0.05).all())


def test_the_seed_decides_and_points_in_single_precision_are_fine() -> None:
    target, x0 = model(mixture), mixture_points(2000)
    assert torch.equal(calibration(target, x0, [0.1], 3).slope, calibration(target, x0, [0.1], 3).slope)
    assert not torch.equal(calibration(target, x0, [0.1], 3).slope, calibration(target, x0, [0.1], 4).slope)

    def single(y: Tensor, s: Tensor) -> Tensor:
        return mixture(y.double(), s.double()).float()

    assert within(calibration(model(single), x0.float(), [0.01, 0.1]))


def test_refusals() -> None:
    density = casal.langevin(lambda x: -x, steps=2, step_size=0.1, init=normal(4, 3))
    with pytest.raises(SettingError, match="no denoiser"):
        calibration(density, mixture_points(100))
    with pytest.raises(ShapeError, match="at least 16"):
        calibration(model(mixture), mixture_points(3))
    with pytest.raises(SettingError, match="> 0"):
        calibration(model(mixture), mixture_points(100), [0.1, 0.0])
    assert diagnostics.calibration is calibration
