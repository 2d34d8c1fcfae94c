"""``casal.calibrate``: passes what is exact, finds what is not, and pairs what belongs together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.sampling.self_check import _inside, _log_root

F64 = torch.float64
D = 12
EVEN, UNEVEN = torch.ones(D, dtype=F64), torch.logspace(1, -2, D, dtype=F64)
A = torch.randn(2, D, generator=torch.Generator().manual_seed(3), dtype=F64)


def gaussian(variance: Tensor) -> casal.Target:
    """N(0, diag(variance)), its exact denoiser; ancestral, since 40 Euler steps of the flow are less accurate."""
    return casal.edm(
        lambda x, sigma: x * variance.to(x) / (variance.to(x) + sigma**2),
        casal.karras_sigmas(60, 0.01, 40.0),
        churn=1.0,
        shape=len(variance),
        dtype=F64,
    )


def values(y: Tensor) -> casal.Constraint:
    return casal.Affine(A, casal.PerChain(y @ A.T))


@pytest.mark.statistical
def test_one_projection_is_right_on_an_even_gaussian_and_wrong_on_another() -> None:
    """N(0, I) given A x is its projection; the size is that of 30 checks, at most 4 standard errors above 5 %."""

    def alarms(variance: Tensor, checks: int) -> int:
        target, method = gaussian(variance), casal.FinalProjection()
        found = [casal.calibrate(target, values, method, 64, flips=199, seed=seed) for seed in range(checks)]
        return sum(not check.passed for check in found)

    assert alarms(EVEN, 30) <= 30 * 0.05 + 4 * math.sqrt(30 * 0.05 * 0.95) and alarms(UNEVEN, 5) == 5


def test_an_exact_sampler_in_the_place_of_the_run_and_what_is_told() -> None:
    free = UNEVEN.sqrt() * torch.randn(200, D, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = casal.calibrate(gaussian(UNEVEN), values, casal.FinalProjection(), 100, free=free)
    assert not found.passed and found.pairs == 100 and found.evaluations == 60.0
    assert "standard deviations too" in found.objection
    with pytest.raises(SettingError, match="8 more are needed"):
        casal.calibrate(gaussian(UNEVEN), values, casal.FinalProjection(), 195, free=free)


def test_the_same_seed_gives_the_same_check_and_another_one_another() -> None:
    first, again, other = (casal.calibrate(gaussian(EVEN), values, casal.Projected(), 20, seed=s) for s in (1, 1, 2))
    assert first.statistics == again.statistics and first.statistics != other.statistics


def test_features_of_your_own_and_residuals_join() -> None:
    peak = {"peak": lambda x: x.abs().amax(1)}
    found = casal.calibrate(gaussian(UNEVEN), values, casal.FinalProjection(), 40, features=peak, residuals=2)
    assert "peak" in found.statistics and sum("denoiser" in name for name in found.statistics) == 2


def test_methods_that_resample_get_several_chains_for_each_set() -> None:
    found = casal.calibrate(gaussian(EVEN), values, casal.SplitGibbs(0.3, levels=5), 6, repeats=16)
    assert found.pairs == 6 and found.evaluations > 16


def test_a_condition_stays_with_its_chain() -> None:
    """The mean of chain i is its condition: a pair whose rows were mixed up would be 100 apart."""
    mean = 100.0 * torch.arange(20, dtype=F64)[:, None]

    def denoiser(x: Tensor, sigma: Tensor, *, mean: Tensor) -> Tensor:
        return mean + (x - mean) / (1 + sigma**2)

    target = casal.edm(
        denoiser, casal.karras_sigmas(30, 0.01, 40.0), churn=1.0, shape=D, dtype=F64, condition={"mean": mean}
    )
    checks = [casal.calibrate(target, values, casal.FinalProjection(), 20, seed=seed) for seed in range(4)]
    assert max(check.p for check in checks) > 0.05
    assert all(abs(check.statistics["position, wide direction 1"]) < 4 for check in checks)


def test_samples_outside_the_inequalities_are_not_taken() -> None:
    y = torch.randn(400, D, generator=torch.Generator().manual_seed(0), dtype=F64)
    kept = _inside(y, lambda y: values(y) & casal.Box(-2.0, 2.0), "surface", torch.Generator())
    assert kept.tolist() == torch.nonzero((y.abs() <= 2).all(1))[:, 0].tolist()
    with pytest.raises(SettingError, match="free="):
        casal.calibrate(gaussian(EVEN), lambda y: casal.Box(5.0, 6.0), casal.Projected(), 8)
    with pytest.raises(SettingError, match="must return a set"):
        casal.calibrate(gaussian(EVEN), lambda y: y, casal.Projected(), 8)  # type: ignore[arg-type, return-value]


@pytest.mark.statistical
def test_the_surface_measure_keeps_points_by_the_length_of_the_gradient() -> None:
    """h = x1^2 + 4 x2^2: |grad h| = 2 (x1^2 + 16 x2^2)^(1/2), closed form; kept points are weighted by it."""
    y = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    ellipse = casal.Implicit(lambda z: z[:, :1] ** 2 + 4 * z[:, 1:] ** 2 - 1)
    length = 2 * (y[:, 0] ** 2 + 16 * y[:, 1] ** 2).sqrt()
    found = _log_root(ellipse, y)
    assert found is not None
    torch.testing.assert_close(found.exp(), length)
    assert _log_root(values(y[:1].repeat(1, 6)), y[:1].repeat(1, 6)) is None
    on = y / (y[:, :1] ** 2 + 4 * y[:, 1:] ** 2).sqrt()
    kept = on[_inside(on, lambda y: ellipse, "surface", torch.Generator().manual_seed(1))]
    every = _inside(on, lambda y: ellipse, "value", torch.Generator())
    weight = (on[:, 0] ** 2 + 16 * on[:, 1] ** 2).sqrt()
    exact = float((weight * on[:, 0] ** 2).sum() / weight.sum())
    error = float((kept[:, 0] ** 2).std()) / math.sqrt(len(kept))
    assert len(every) == 4000 and len(kept) == pytest.approx(4000 * float((weight / weight.max()).mean()), rel=0.1)
    assert abs(float((kept[:, 0] ** 2).mean()) - exact) < 4 * error
    assert abs(float((on[:, 0] ** 2).mean()) - exact) > 8 * error  # without weights it is another mean
