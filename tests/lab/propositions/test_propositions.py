"""Every check of the propositions: what holds, what the print gets wrong; the closed forms are the library's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.lab import propositions
from casal.lab.experiment import HOLDS, PARTLY, Outcome
from casal.lab.laws import gaussian_line as gaussian
from casal.lab.propositions.line import allowed, excess, resting
from casal.lab.propositions.quadrature import first_distance
from casal.lab.propositions.setup import Check, relaxed, three_bumps, well_in_disc, well_on_interval
from casal.methods import Context
from casal.methods.casal import CASALState


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return propositions.run(True, None, lambda line: None)


@pytest.fixture(scope="module")
def checks(outcome: Outcome) -> Mapping[str, Check]:
    return outcome.data


def test_the_checks_are_numbered_in_order(checks: Mapping[str, Check]) -> None:
    assert [check.number for check in checks.values()] == list(range(1, 11))
    assert list(checks) == list(propositions.CHECKS)


@pytest.mark.parametrize(
    "name",
    [
        "information projection",
        "unattained duality",
        "penalty",
        "strong duality",
        "recovery",
        "consistency",
        "optimum",
    ],
)
def test_what_holds(checks: Mapping[str, Check], name: str) -> None:
    assert checks[name].verdict == HOLDS, checks[name].computed


@pytest.mark.parametrize("name", ["relaxation", "step size", "mixing"])
def test_what_holds_with_a_correction(checks: Mapping[str, Check], name: str) -> None:
    assert checks[name].verdict == PARTLY, checks[name].computed


def test_the_least_divergence_is_minus_log_of_the_mass_and_not_the_mass(checks: Mapping[str, Check]) -> None:
    data = checks["information projection"].data
    for values in data["curves"].values():
        assert values.min() == pytest.approx(data["least"], abs=1e-12)
        assert int(values.argmin()) == len(values) // 2
    assert abs(data["least"] - data["share"]) > 1.0


def test_a_penalty_leaves_mass_outside_at_every_weight(checks: Mapping[str, Check]) -> None:
    outside = checks["penalty"].data["curves"]["double well, interval"]["in C"]
    assert (np.diff(outside) < 0).all()
    assert outside[-1] > 1e-3
    fall = np.log(outside[-1] / outside[-21]) / np.log(100.0)
    assert fall == pytest.approx(-0.5, abs=0.05)


@pytest.mark.parametrize("case", [well_on_interval(), well_in_disc(), three_bumps()], ids=lambda case: case.name)
def test_the_saddle_point_is_one(case: Any) -> None:
    at = relaxed(case, 3.0)
    assert at.primal == pytest.approx(at.dual, abs=1e-10)
    np.testing.assert_allclose((at.x[:, None] * (case.points - at.z)).sum(0), 0.0, atol=1e-10)
    assert at.primal <= case.divergence


def test_the_coupling_of_x_and_z_is_an_optimal_transport() -> None:
    case = well_on_interval()
    at = relaxed(case, 3.0)
    levels = (np.arange(200_000) + 0.5) / 200_000
    x = np.interp(levels, np.cumsum(at.x), case.points[:, 0])
    order = np.argsort(at.z[:, 0], kind="stable")
    z = at.z[order, 0][np.searchsorted(np.cumsum(at.x[order]), levels).clip(max=len(order) - 1)]
    assert float(np.square(x - z).mean()) == pytest.approx(at.transport, rel=1e-2)


def test_both_marginals_tend_to_the_law_on_the_set(checks: Mapping[str, Check]) -> None:
    slopes = list(checks["recovery"].data["slopes"].values())
    np.testing.assert_allclose(slopes, [-0.5, -0.5, -1.0], atol=0.05)


def test_the_printed_transport_bound_fails_and_twice_of_it_holds(checks: Mapping[str, Check]) -> None:
    data = checks["relaxation"].data
    for name, curve in data["curves"].items():
        assert max(curve["divergence"]) <= 1.0 + 1e-9
        assert max(curve["transport"]) <= 2.0
        assert (max(curve["transport"]) > 1.1) == (name == three_bumps().name)


def test_other_laws_cost_at_least_their_divergence(checks: Mapping[str, Check]) -> None:
    pairs = checks["optimum"].data["pairs"]
    assert (pairs[:, 1] >= pairs[:, 0] - 1e-8).all()


def test_first_distance_of_two_points() -> None:
    assert first_distance(np.array([0.0]), np.array([1.0]), np.array([2.5]), np.array([1.0])) == pytest.approx(2.5)


def test_the_answers_of_the_gaussian_case() -> None:
    assert gaussian.first(gaussian.TANGENT) == pytest.approx(1.70270, abs=1e-5)
    assert abs(gaussian.VARIANCE / 2 - 0.17297) < 1e-5
    assert gaussian.without_dual(2.0) == pytest.approx(1.6596, abs=1e-4)


LIBRARY = {
    "Algorithm 1": casal.CASAL.algorithm1(2.0),
    "Algorithm 2": casal.CASAL.algorithm2(2.0),
    "released code": casal.CASAL.released(2.0, 0.01),
    "CASAL": casal.CASAL(2.0),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_recursions_are_steps_of_the_library(name: str) -> None:
    tau, rho = 0.02, 2.0
    precision = torch.as_tensor(gaussian.ROTATION.T @ gaussian.PRECISION @ gaussian.ROTATION)
    mean = torch.as_tensor(gaussian.ROTATION.T @ gaussian.MEAN)
    target = casal.langevin(
        lambda x: (x - mean) @ precision, steps=1, step_size=tau, init=torch.zeros((1, 2), dtype=torch.float64)
    )
    line = casal.Affine(torch.ones((1, 2), dtype=torch.float64), 1.0)
    like = torch.zeros((0, 2), dtype=torch.float64)
    context, method = Context(target, line, casal.Identity().to(like), like), LIBRARY[name]
    (stage,) = method.plan(context, 1)
    (row,) = stage.rows
    variant = gaussian.VARIANTS[name]
    state, w = np.array([0.3, -0.8, 0.5, 0.7, 0.0 if variant.full else -0.4]), np.array([0.9, -1.1])
    if variant.full:
        state[2] = state[1]  # the recursion keeps z at the foot of x

    def spread(normal: float, tangential: float) -> torch.Tensor:
        return torch.as_tensor(gaussian.ROTATION.T @ np.array([normal, tangential]))[None]

    scale = float(row.scale)  # the released code holds mu, not lambda
    lam = spread(state[3], state[4]) * (scale / rho)
    start = CASALState(spread(state[0], state[1]), spread(gaussian.LEVEL, state[2]), lam)
    x, z, lam = stage.step(context, start, row, spread(*w))
    found = np.concatenate([gaussian.ROTATION @ part[0].numpy() for part in (x, z, lam * (rho / scale))])
    F, G, c = (part[0] for part in gaussian.recursion(variant, np.array([tau]), rho))
    np.testing.assert_allclose(found[[0, 1, 3, 4, 5]], F @ state + G @ w + c, atol=1e-12)
    assert found[2] == pytest.approx(gaussian.LEVEL)


def test_only_a_full_step_with_a_common_multiplier_rests_at_the_optimum() -> None:
    rest = {name: resting(variant, 1e-6, 2.0) for name, variant in gaussian.VARIANTS.items()}
    assert rest["CASAL, common dual"] < 1e-8
    assert all(value > 1e-3 for name, value in rest.items() if name != "CASAL, common dual")


def test_the_printed_step_leaves_the_lagrangian_above_its_saddle_value() -> None:
    printed, full = gaussian.VARIANTS["Algorithm 1, common dual"], gaussian.VARIANTS["CASAL, common dual"]
    tau = allowed(2.0)
    assert excess(full, tau, 2.0) < 1e-3
    assert excess(full, tau / 100, 2.0) < 1e-2 * excess(full, tau, 2.0)
    assert excess(printed, tau / 1000, 2.0) == pytest.approx(excess(printed, tau / 100, 2.0), rel=1e-2)
    assert excess(printed, tau / 1000, 2.0) > 0.1


def test_the_averaged_iterate_collapses(checks: Mapping[str, Check]) -> None:
    curves = checks["mixing"].data["curves"]
    for curve in curves.values():
        assert curve["averaged iterate"][-1] > 1.2 * curve["averaged iterate"].min()
    assert curves["CASAL, common dual"]["averaged law"][-1] < 0.05


def test_every_check_has_a_picture(outcome: Outcome, tmp_path: Path) -> None:
    assert len(propositions.EXPERIMENT.draw(outcome, tmp_path)) == len(propositions.CHECKS)
