"""Flights: what succeeds is certified by its rollout, and methods by name, object and recipe are the same."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError
from casal_lab.physics.quadrotor import tilt_inputs
from casal_lab.quadrotor import METHODS, Prior, Recipe, distinct, repair, scene, solve
from casal_lab.quadrotor.paths import ABLATION, GRIDS, batches_of, named, start
from casal_lab.quadrotor.setup import FLIGHTS, TRAINING_SEED, flights

F64 = torch.float64
EASY = scene("random", seed=9)


def test_a_success_is_a_flight(brief: Prior) -> None:
    paths = solve(EASY, "CASAL", n=12, seed=1, model=brief)
    assert paths.inputs.shape == paths.positions.shape == (12, 200)
    assert float(paths.inputs.abs().max()) <= 0.5
    rolled = EASY.vehicle.dynamics.rollout(paths.inputs[:, :, None])[..., :1]
    torch.testing.assert_close(rolled[..., 0], paths.positions, atol=1e-12, rtol=0)
    assert torch.equal(paths.success, EASY.depth(rolled) <= 0.01)
    assert torch.equal(paths.classes, EASY.classes(rolled))
    assert int(paths.success.sum()) > 0 and paths.evaluations == 1000
    assert f"{int(paths.success.sum())} of 12 succeed" in repr(paths)


def test_free_flights_stay_and_others_are_repaired_or_said_to_fail() -> None:
    """Starts that are free keep their path; ADMM helps more of the others than alternating projections."""
    paths = flights()[:400]
    machine = EASY.vehicle
    events = machine.decode(machine.encode(tilt_inputs(FLIGHTS, TRAINING_SEED)[:400, :, None]))
    free = EASY.depth(paths) <= 0.0
    counts = {}
    for solver in ("admm", "alternating", "dykstra"):
        found, iterations = repair(EASY, events, solver=solver)
        y = machine.dynamics.physical(found)[0]
        counts[solver] = int((EASY.depth(y) <= 0.01).sum())
        assert counts[solver] > int(free.sum())
        assert int(iterations.max()) <= 100
    assert counts["admm"] >= counts["alternating"]


def test_by_name_object_and_recipe(brief: Prior) -> None:
    a = solve(EASY, "unconstrained", n=4, seed=2, model=brief)
    b = solve(EASY, casal.Unconstrained(), n=4, seed=2, model=brief)
    c = solve(EASY, Recipe(casal.Unconstrained()), n=4, seed=2, model=brief)
    assert torch.equal(a.positions, b.positions) and torch.equal(b.positions, c.positions)
    assert named("algorithm2")[0] == "Algorithm 2" and named("TWISTED")[0] == "Twisted"
    with pytest.raises(SettingError, match="no method 'casual'; there are: zero, noise"):
        solve(EASY, "casual")
    with pytest.raises(SettingError, match="for the planar vehicle, the model for the tilting"):
        solve(scene("discs"), "unconstrained", n=2, model=brief)


def test_units_do_not_matter_to_a_method_without_a_scale(brief: Prior) -> None:
    """A decoder of norm one, and the set scaled with it: the same starts."""
    method = casal.Projected(repeats=2)
    one, other = (
        start(EASY, Recipe(method, steps=20, rows=False, unit_norm=unit), 6, 0, brief)[0] for unit in (False, True)
    )
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_strict_methods_hand_over_clear_numbers(brief: Prior) -> None:
    for recipe in (Recipe(casal.CASAL(100.0), steps=50), Recipe(casal.Projected(repeats=2), steps=50, rows=False)):
        events, _ = start(EASY, recipe, 8, 0, brief)
        assert float(EASY.obstacles.violation(events).max()) <= 1e-12


def test_batches_and_starts_without_a_model() -> None:
    assert batches_of(1000, 400) == [334, 333, 333] and batches_of(10, None) == [10]
    place = scene("hard")
    zero, noise = (start(place, METHODS[label], 3, 0)[0] for label in ("zero", "noise"))
    assert float(zero.abs().max()) == 0.0 and 0.9 < float(noise.std()) < 1.1


def test_distinct_paths() -> None:
    base = torch.zeros(200, dtype=F64)
    paths = torch.stack([base, base + 0.04, base + 0.06, base + 1.0])
    assert distinct(paths) == 3 and distinct(paths[:0]) == 0
    assert distinct(torch.stack([paths, paths], dim=2)) == 3


def test_every_grid_has_twenty_settings() -> None:
    assert all(len(grid) >= 20 for grid in GRIDS.values())
    steps = {name.split(",")[0] for name in ABLATION}
    assert {"dual tau/rho", "dual tau", "dual 0.1", "dual 0.3", "dual 1"} <= steps
