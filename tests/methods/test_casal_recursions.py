"""Gaussian potential, affine set: every CASAL variant is a linear recursion, so its law is known without sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.methods import Each
from casal.methods.casal import CASALState

from ..linear_gaussian import (
    CONDITIONAL_COVARIANCE,
    CONDITIONAL_MEAN,
    LEVEL,
    MEAN,
    NORMAL,
    PRECISION,
    Array,
    Moments,
    first_coordinate,
    gaussian_target,
    line,
    matrices,
    problem,
    propagate,
    reduced,
    rows,
    stationary,
)

ONE, NIL = np.eye(2), np.zeros((2, 2))
FLAT = ONE - np.outer(NORMAL, NORMAL) / (NORMAL @ NORMAL)
FOOT = NORMAL * LEVEL / (NORMAL @ NORMAL)
"""P(y) = FLAT y + FOOT."""

Recursion = tuple[Array, Array, Array]
MEAN_Z, VARIANCE_Z = CONDITIONAL_MEAN[0], CONDITIONAL_COVARIANCE[0, 0]


def by_hand(
    tau: float, rho: float, eta: float, *, full: bool, implicit: bool = False, coupling_sign: float = 1.0
) -> Recursion:
    """(x, z, lam) -> (x', z', lam') written out from the equations, independently of the library."""
    k = tau * rho * coupling_sign
    free_x, free_c = ONE - tau * PRECISION, tau * PRECISION @ MEAN
    shake = np.sqrt(2 * tau) * ONE
    if implicit:  # z* = P(m + mu), x' = (m + k (z* - mu)) / (1 + k), with m the free step
        mix = (ONE + k * FLAT) / (1 + k)
        x_row = [mix @ free_x, NIL, (k * FLAT - k * ONE) / (1 + k) / rho]
        x_noise, x_c = mix @ shake, mix @ free_c + k * FOOT / (1 + k)
    else:
        x_row = [free_x - k * ONE, k * ONE, -k * ONE / rho]
        x_noise, x_c = shake, free_c
    X = np.hstack(x_row)
    Z_old, LAM = np.hstack([NIL, ONE, NIL]), np.hstack([NIL, NIL, ONE])
    damping = 1.0 if full else tau * rho
    Z = FLAT @ ((1 - damping) * Z_old + damping * (X + LAM / rho))
    z_noise, z_c = damping * FLAT @ x_noise, damping * FLAT @ x_c + FOOT
    L = LAM + rho * eta * (X - Z)
    l_noise, l_c = rho * eta * (x_noise - z_noise), rho * eta * (x_c - z_c)
    return np.vstack([X, Z, L]), np.vstack([x_noise, z_noise, l_noise]), np.concatenate([x_c, z_c, l_c])


VARIANTS: dict[str, tuple[Callable[[float], casal.Method[Any]], Callable[[float, float], Recursion]]] = {
    "algorithm1": (casal.CASAL.algorithm1, lambda tau, rho: by_hand(tau, rho, tau / rho, full=False)),
    "algorithm2": (casal.CASAL.algorithm2, lambda tau, rho: by_hand(tau, rho, tau, full=False)),
    "full, explicit": (
        lambda rho: casal.CASAL(rho, dual_step=0.02, coupling="explicit"),
        lambda tau, rho: by_hand(tau, rho, 0.02, full=True),
    ),
    "default (implicit)": (casal.CASAL, lambda tau, rho: by_hand(tau, rho, tau, full=True, implicit=True)),
    "admm (implicit)": (
        lambda rho: casal.CASAL(rho, dual_step="admm"),
        lambda tau, rho: by_hand(tau, rho, 1.0, full=True, implicit=True),
    ),
    "no dual": (
        lambda rho: casal.CASAL(rho, dual_step=0.0),
        lambda tau, rho: by_hand(tau, rho, 0.0, full=True, implicit=True),
    ),
}


def of_library(method: casal.Method[Any], tau: float) -> Recursion:
    p = problem(gaussian_target(1, tau), line())
    F, G, c = matrices(p, method, rows(p, method)[0], CASALState, (2, 2, 2))
    return F, G, c


def law(method: casal.Method[Any], tau: float) -> Moments:
    return stationary(*reduced(*of_library(method, tau)))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("tau", "rho"), [(1e-3, 100.0), (1e-2, 2.0)])
def test_moments_of_200_steps_equal_the_written_out_recursion(name: str, tau: float, rho: float) -> None:
    make, hand = VARIANTS[name]
    ours, theirs = of_library(make(rho), tau), hand(tau, rho)
    start = Moments(np.concatenate([[0.3, -0.4], FLAT @ [0.3, -0.4] + FOOT, [0.0, 0.0]]), np.diag([1.0, 2, 0, 0, 0, 0]))
    a = b = start
    for _ in range(200):
        a, b = propagate(a, *ours), propagate(b, *theirs)
    if name in ("algorithm1", "algorithm2"):  # whose state has mu = lam / rho
        unit = np.array([1.0, 1, 1, 1, rho, rho])
        a = Moments(unit * a.mean, unit[:, None] * a.covariance * unit)
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-10)
    np.testing.assert_allclose(a.covariance, b.covariance, atol=1e-10)


def test_the_written_out_recursion_notices_a_flipped_sign() -> None:
    ours = of_library(casal.CASAL(2.0, dual_step=0.02, coupling="explicit"), 1e-2)
    flipped = by_hand(1e-2, 2.0, 0.02, full=True, coupling_sign=-1.0)
    assert np.abs(ours[0] - flipped[0]).max() > 1e-3


def test_a_sign_flipped_coupling_does_not_settle_on_the_conditional_mean() -> None:
    class Backwards(casal.Identity):
        def vjp(self, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda v: -v

    method = casal.CASAL(2.0, dual_step=0.02, coupling="explicit")
    p = problem(gaussian_target(1, 1e-2), line(), Backwards())
    recursion = reduced(*matrices(p, method, rows(p, method)[0], CASALState, (2, 2, 2)))
    assert np.abs(np.linalg.eigvals(recursion[0])).max() > 1.0


@pytest.mark.parametrize("name", ["algorithm1", "algorithm2"])
def test_the_printed_z_step_halves_the_variance(name: str) -> None:
    make, _ = VARIANTS[name]
    assert first_coordinate(law(make(100.0), 1e-3))[1] == pytest.approx(0.0905, abs=5e-4)  # where 0.173 is right
    # With strong coupling x and z drift as one body whose temperature is 1 / (2 - tau rho): one half for small steps.
    for tau in (1e-7, 1e-6, 1e-5, 5e-5):
        assert first_coordinate(law(make(1e4), tau))[1] == pytest.approx(VARIANCE_Z / (2 - tau * 1e4), rel=2e-3)


@pytest.mark.parametrize("name", ["full, explicit", "default (implicit)", "admm (implicit)"])
def test_the_full_z_step_has_the_right_variance_in_the_limit(name: str) -> None:
    make, _ = VARIANTS[name]
    assert first_coordinate(law(make(1e4), 1e-5))[1] == pytest.approx(VARIANCE_Z, rel=2e-3)


def test_the_full_explicit_step_at_rho_100() -> None:
    method = casal.CASAL(100.0, dual_step="tau/rho", coupling="explicit")
    assert first_coordinate(law(method, 1e-3))[1] == pytest.approx(VARIANCE_Z, rel=0.01)


@pytest.mark.parametrize(
    "name", ["algorithm1", "algorithm2", "full, explicit", "default (implicit)", "admm (implicit)"]
)
@pytest.mark.parametrize("rho", [2.0, 20.0])
def test_the_dual_removes_the_bias_of_the_mean(name: str, rho: float) -> None:
    make, _ = VARIANTS[name]
    moments = law(make(rho), 1e-2)
    normal = NORMAL / np.linalg.norm(NORMAL)
    assert first_coordinate(moments)[0] == pytest.approx(MEAN_Z, abs=1e-9)
    # E x = E z as well (paper, proposition Gaussian_consistency): the normal part of x is on the line.
    assert moments.mean[0] == pytest.approx(normal @ FOOT, abs=1e-9)


def test_without_the_dual_the_mean_is_biased() -> None:
    p = problem(gaussian_target(1, 1e-2), line())
    method = casal.CASAL(2.0, dual_step=0.0, coupling="explicit")
    F, G, c = reduced(*matrices(p, method, rows(p, method)[0], CASALState, (2, 2, 2)))
    # The dual stays where it started; leave it out of the fixed point.
    mean = stationary(F[:3, :3], G[:3], c[:3])
    # q* without a multiplier is p exp(-rho/2 dist^2): its mean is a Gaussian update with variance 1/rho.
    normal = NORMAL / np.linalg.norm(NORMAL)
    precision = PRECISION + 2.0 * np.outer(normal, normal)
    x = np.linalg.solve(precision, PRECISION @ MEAN + 2.0 * normal * LEVEL / np.linalg.norm(NORMAL))
    expected = (FLAT @ x + FOOT)[0]
    assert first_coordinate(Moments(np.append(mean.mean, 0), np.pad(mean.covariance, (0, 1))))[0] == pytest.approx(
        expected, abs=1e-9
    )
    assert expected == pytest.approx(1.6596, abs=1e-4)
    assert abs(expected - MEAN_Z) > 0.04


@pytest.mark.parametrize("rho", [0.5, 10.0, 1e4])
def test_as_rho_grows_the_implicit_step_leads_from_free_to_projected_langevin(rho: float) -> None:
    target, w = gaussian_target(1, 1e-2), torch.tensor([[0.7, -1.3]], dtype=torch.float64)
    x = torch.tensor([[0.2, 0.9]], dtype=torch.float64)
    p = problem(target, line())

    def one(method: casal.Method[Any], *state: torch.Tensor) -> torch.Tensor:
        start = CASALState(*state) if len(state) == 3 else method.start(p, *state, torch.Generator())
        stage = method.stages(p, 2)[0]
        assert isinstance(stage, Each)
        return stage.step(p, start, stage.rows[0], w)[0]

    z = line().project(x)
    ours = one(casal.CASAL(rho), x, z, torch.zeros_like(x))
    free, onto = one(casal.Unconstrained(), x), one(casal.Projected(), x)
    share = 1e-2 * rho / (1 + 1e-2 * rho)
    torch.testing.assert_close(ours, (1 - share) * free + share * onto, atol=1e-12, rtol=0)
