"""Intersections: what merges, what is empty, budgets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

import casal
from casal.constraints import (
    Affine,
    Ball,
    Box,
    Budget,
    Constraint,
    Ellipsoid,
    FromProjection,
    Intersection,
    LinearDynamics,
    MassEnergy,
    Obstacles,
    PerChain,
    Sphere,
    Union,
    constraint_from_spec,
    geometry,
    tightening,
)
from casal.errors import InfeasibleSet, SettingError

from .points import normal
from .small_sets import BALL, BOX, POINTS, SPHERE, SUM


@pytest.mark.slow
def test_closed_form_equals_the_iteration_it_replaces() -> None:
    for closed, parts in ((SUM & SPHERE, (SUM, SPHERE)), (MassEnergy(0.5, 4.0), (SUM, SPHERE))):
        y = POINTS
        for _ in range(3000):
            y = parts[1].project(parts[0].project(y))
        torch.testing.assert_close(closed.project(POINTS), y, atol=1e-10, rtol=0)


def test_equation_and_sphere_is_the_mass_energy_set() -> None:
    torch.testing.assert_close((SUM & SPHERE).project(POINTS), MassEnergy(0.5, 4.0).project(POINTS), atol=1e-12, rtol=0)
    x = POINTS
    ours, theirs = (geometry.log_volume_factor(c, x, c.project(x)) for c in (SUM & SPHERE, MassEnergy(0.5, 4.0)))
    assert ours is not None and theirs is not None
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Sphere(1.0) & Affine([[1.0, 0.0]], 2.0), "2 away from the centre, beyond the radius 1"),
        (lambda: Ball(1.0) & Affine([[1.0, 0.0]], 2.0), "beyond the radius"),
        (lambda: Box(0, 1) & Box(2, 3), "low = 2, high = 1"),
        (lambda: Ball(1.0) & Ball(1.0, [3.0, 0.0]), "centres 3 apart"),
        (lambda: Sphere(1.0) & Sphere(2.0), "strictly inside"),
        (lambda: Affine([[1.0, 0.0]], 0.0) & Affine([[2.0, 0.0]], 1.0), "no solution"),
        (lambda: Box(0.0, 1.0) & Affine([[1.0, 1.0]], 3.0), "3"),
    ],
)
def test_empty_intersections_that_can_be_proved_empty_are_refused(build: Callable[[], Constraint], says: str) -> None:
    with pytest.raises(InfeasibleSet, match=says):
        build()


@pytest.mark.slow
def test_empty_intersections_that_cannot_be_proved_empty_flag_every_chain() -> None:
    apart = Ellipsoid([1.0, 1.0]) & FromProjection(
        lambda z: Ball(1.0, [3.0, 0.0]).project(z),
        lambda z: Ball(1.0, [3.0, 0.0]).violation(z),
        convex=True,
        exact=False,
    )
    found = apart.solve(torch.randn((5, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert not bool(found.converged.any())
    assert bool((found.residual > 0.05).all()) and bool((found.residual < 1.5).all())


def test_a_loose_budget_is_loose_and_says_so() -> None:
    pair = BALL & BOX
    rough, fine = pair.solve(POINTS, budget=Budget(1e-12, 2)), pair.solve(POINTS)
    assert not bool(rough.converged.all()) and bool(fine.converged.all())
    assert int(rough.iterations.max()) <= 2 < int(fine.iterations.max())


@pytest.mark.slow
def test_loose_projections_inside_the_loop_still_end_in_strict_samples() -> None:
    calls: list[int] = []

    def counted(z: torch.Tensor) -> torch.Tensor:
        calls.append(len(z))
        return BOX.project(z)

    pair = BALL & FromProjection(counted, BOX.violation, convex=True)
    target = casal.langevin(lambda x: x - 1.0, steps=60, step_size=0.02, init=POINTS)
    used = {}
    for name, budget in (("full", None), ("loose", tightening(1e-1, 1e-6)), ("three", Budget(1e-12, 3))):
        calls.clear()
        result = casal.sample(target, pair, casal.CASAL(20.0), len(POINTS), seed=0, run=casal.Run(budget=budget))
        assert float(result.certificate.violation.max()) <= 1e-10
        used[name] = sum(calls)
    assert used["loose"] < 0.7 * used["full"]
    assert used["three"] < 0.7 * used["full"]


# ------------------------------------------------------------------ searches by name

GATES = Obstacles(intervals=[(0, 4, -0.3, 0.6)])
NAMES = {"newton": "Newton steps", "admm": "ADMM", "alternating": "alternating projections", "dykstra": "Dykstra"}


@pytest.mark.parametrize("way", ["newton", "alternating", "admm", "dykstra"])
def test_every_search_finds_points_of_a_sphere_outside_of_intervals(way: str) -> None:
    both = Intersection(Sphere(2.0), GATES, way=way)
    found = both.solve(POINTS)
    # The increments of Dykstra's algorithm are made for convex sets: here they drive some chains in circles.
    assert float(found.converged.double().mean()) >= (0.5 if way == "dykstra" else 0.9)
    met = found.point[found.converged]
    assert float((met.norm(dim=1) - 2.0).abs().max()) <= 1e-11
    assert not bool(((met > -0.3 + 1e-9) & (met < 0.6 - 1e-9)).any())
    assert both.way.value == NAMES[way]


@pytest.mark.parametrize("way", ["newton", "alternating", "admm", "dykstra"])
def test_the_way_is_kept_by_json_and_by_the_algebra(way: str) -> None:
    both = Intersection(Sphere(2.0), GATES, way=way)
    assert both.spec()["way"] == way and "way" not in (Sphere(2.0) & GATES).spec()
    again = constraint_from_spec(json.dumps(both.spec()))
    assert again.way is both.way and torch.equal(again.project(POINTS), both.project(POINTS))
    more = both & Box(-1.9, 1.9)
    assert isinstance(more, Intersection) and len(more.members) == 3
    assert more.way is both.way and more.spec()["way"] == way
    assert (Box(-1.9, 1.9) & both).way is both.way
    pieces = (both & Union(Box(0.0, 2.0), Box(-2.0, -0.1))).pieces((4,))
    assert {piece.way for piece in pieces} == {both.way}
    chains = Intersection(Sphere(PerChain([1.0, 2.0])), GATES, way=way)
    assert chains.way is both.way and chains.take(torch.tensor([1])).way is both.way


def test_ways_that_do_not_fit_are_refused() -> None:
    boxes = Obstacles(boxes=[([-0.5] * 4, [0.5] * 4)])
    with pytest.raises(SettingError, match="one of newton, alternating, admm, dykstra or None, got 'gauss'"):
        Intersection(SPHERE, GATES, way="gauss")
    with pytest.raises(SettingError, match="needs residuals, which Obstacles"):
        Intersection(SPHERE, boxes, way="newton")
    with pytest.raises(SettingError, match="not convex"):
        Intersection(BALL, BOX, way="newton")
    with pytest.raises(SettingError, match="admm and newton are combined"):
        Intersection(SPHERE, GATES, way="admm") & Intersection(Ball(3.0), GATES, way="newton")
    mixed = Intersection(SPHERE, GATES, way="admm"), Intersection(Ball(3.0), GATES, way="newton")
    assert Intersection(*mixed, way="alternating").way.value == "alternating projections"


def test_named_searches_of_convex_sets_find_a_point_but_promise_no_nearest_one() -> None:
    nearest = BALL & BOX
    for way in ("dykstra", "alternating", "admm"):
        both = Intersection(BALL, BOX, way=way)
        found = both.solve(POINTS)
        assert bool(found.converged.all()) and float(both.violation(found.point).max()) <= 1e-12
        assert ("nearest point" in both.explain()) == (way == "dykstra")
        longer = (found.point - POINTS).norm(dim=1) - (nearest.project(POINTS) - POINTS).norm(dim=1)
        assert float(longer.min()) >= -1e-9
    # A closed form needs no search.
    assert Intersection(SUM, SPHERE, way="admm").way is (SUM & SPHERE).way


def test_admm_with_parameters_for_each_chain_is_each_chain_alone() -> None:
    radius = torch.linspace(1.5, 3.0, len(POINTS), dtype=torch.float64)
    both = Intersection(Sphere(PerChain(radius)), GATES, way="admm")
    found = both.solve(POINTS)
    assert len(set(found.iterations.tolist())) >= 3
    for i, start in enumerate(POINTS):
        alone = Intersection(Sphere(float(radius[i])), GATES, way="admm").solve(start[None])
        assert torch.allclose(alone.point[0], found.point[i], rtol=0, atol=1e-12)
        assert bool(alone.converged[0]) == bool(found.converged[i])


# ------------------------------------------------------------------ trajectories among obstacles

STEPS, UNIT = 200, 0.698
ROWS = [(57, 62, -0.1, 0.5), (107, 112, -0.8, 0.3), (157, 162, -0.3, 1.3)]


def quadrotor() -> LinearDynamics:
    return LinearDynamics.double_integrator(9.81, steps=STEPS, dt=0.01, u_max=0.5, scale_y=UNIT, scale_u=0.181)


def slalom() -> Obstacles:
    rows = [(start, stop, low / UNIT, high / UNIT) for start, stop, low, high in ROWS]
    return Obstacles(intervals=rows, channels=0)


def swaying(n: int, seed: int) -> torch.Tensor:
    """Trajectories of smooth inputs: two sines of random phase and strength."""
    time = torch.linspace(0.0, 4.0 * torch.pi, STEPS, dtype=torch.float64)
    weights = normal(n, 4, 1, seed=seed)
    waves = torch.stack([time.sin(), time.cos(), (time / 2).sin(), (time / 2).cos()])
    u = (weights * waves).sum(1)
    return quadrotor().trajectory((0.45 * u / u.abs().amax(1, keepdim=True))[..., None])


def test_many_equations_choose_admm_and_few_choose_newton() -> None:
    assert (quadrotor() & slalom()).way.value == "ADMM"
    few = LinearDynamics.double_integrator(9.81, steps=6, dt=0.15, u_max=0.5)
    assert (few & Obstacles(intervals=[(2, 4, -0.1, 0.2)], channels=0)).way.value == "Newton steps"
    assert (Sphere(2.0) & GATES).way.value == "Newton steps"


@pytest.mark.parametrize("way", ["admm", "alternating", "dykstra"])
def test_trajectories_among_obstacles_are_exact_rollouts(way: str) -> None:
    """Whether the search succeeds or not; and where it says so, no sample is inside, by the positions themselves."""
    dynamics, both = quadrotor(), Intersection(quadrotor(), slalom(), way=way)
    found = both.solve(torch.cat([swaying(60, seed=3), normal(5, STEPS, 2, seed=4)]), budget=Budget(1e-12, 300))
    y, u = dynamics.physical(found.point)
    assert float(u.abs().max()) <= 0.5
    assert float((dynamics.rollout(u)[..., :1] - y).abs().max()) <= 1e-13
    depth = torch.zeros(len(y), dtype=torch.float64)
    for start, stop, low, high in ROWS:
        inside = torch.minimum(y[:, start:stop, 0] - low, high - y[:, start:stop, 0]).amax(1)
        depth = torch.maximum(depth, inside / (high - low))
    assert torch.allclose(both.violation(found.point), depth, rtol=1e-6, atol=1e-12)
    assert torch.equal(found.converged, depth <= 1e-12)
    assert 5 <= int(found.converged.sum()) <= 55


def test_admm_finds_more_than_alternating_projections_and_moves_no_path_that_is_free() -> None:
    z = swaying(60, seed=3)
    by_admm, plain = (Intersection(quadrotor(), slalom(), way=way).solve(z, budget=Budget(1e-12, 100)) for way in WAYS)
    assert int(by_admm.converged.sum()) > int(plain.converged.sum())
    free = slalom().violation(z) == 0
    assert 0 < int(free.sum()) < 60
    assert torch.equal(by_admm.point[free], z[free]) and by_admm.iterations[free].tolist() == [0] * int(free.sum())


WAYS = ("admm", "alternating")


def test_a_path_does_not_depend_on_the_others_in_its_batch() -> None:
    both, z = quadrotor() & slalom(), swaying(12, seed=5)
    together = both.solve(z, budget=Budget(1e-12, 60))
    for some in (slice(0, 1), slice(3, 8), slice(11, 12)):
        found = both.solve(z[some], budget=Budget(1e-12, 60))
        assert torch.allclose(found.point, together.point[some], rtol=0, atol=1e-9)
        assert torch.equal(found.converged, together.converged[some])
    assert both.solve(z[:0]).point.shape == (0, STEPS, 2)


def test_a_disc_in_the_plane_of_a_planar_model() -> None:
    """Two double integrators, x and z: the disc stands in the first two channels, the inputs are the last two."""
    zero, one = [0.0] * 4, [0.0, 0.0, 1.0, 0.0]
    A = [one, [0.0, 0.0, 0.0, 1.0], zero, zero]
    B = [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    flight = LinearDynamics(A, B, 40, 0.1, 1.0, outputs=(0, 1))
    both = flight & Obstacles(discs=[([2.0, 1.9], 0.6)], channels=(0, 1))
    assert both.way.value == "ADMM"
    u = torch.full((1, 40, 2), 0.8, dtype=torch.float64)
    z = flight.trajectory(u)
    assert float(both.violation(z)) > 0.1
    found = both.solve(z)
    assert bool(found.converged)
    away = (found.point[0, :, :2] - torch.tensor([2.0, 1.9], dtype=torch.float64)).norm(dim=1)
    assert float(away.min()) >= 0.6 - 1e-9 and float(found.point[..., 2:].abs().max()) <= 1.0
    assert torch.allclose(flight.trajectory(found.point[..., 2:]), found.point, rtol=0, atol=1e-12)
    assert torch.equal(constraint_from_spec(json.dumps(both.spec())).project(z), both.project(z))


def test_a_penalty_on_trajectories_among_obstacles_has_slopes() -> None:
    both = quadrotor() & slalom()
    z = swaying(3, seed=6).requires_grad_()
    residual = geometry.positive_part(both, geometry.residual(both, z))
    assert residual.shape == (3, 200 + 400 + 15)
    (slope,) = torch.autograd.grad(residual.square().sum(), z)
    assert bool(torch.isfinite(slope).all()) and bool(slope[:, 57:62, 0].any())
