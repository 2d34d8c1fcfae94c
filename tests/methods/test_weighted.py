"""WeightedCASAL, piece by piece, against closed forms and quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.constraints import Constraint
from casal.methods import Each, Problem, Together
from casal.methods.coupling import LEAST_INSIDE, Finish, choose_finish, top_for_inside, top_for_spread
from casal.methods.population import LEVELS_ALONE, Groups, allowed_growth, effective_size
from casal.methods.weighted import Control, WeightedRow, WeightedState, clean_score

from ..linear_gaussian import (
    MEAN,
    NORMAL,
    PRECISION,
    Array,
    gaussian_target,
    line,
    matrices,
    problem,
    settled_covariance,
)
from ..models import RADIUS, particle, particle_answer, particle_potential


class _Move(casal.WeightedCASAL):
    """The move of WeightedCASAL as a map of (x, noise)."""

    def stages(self, problem: Problem, n: int) -> list[Each | Together]:
        return [Each([], self.step)]

    def step(self, problem: Problem, state: Any, row: Any, noise: torch.Tensor) -> Any:
        x, last = state
        moved = super().step(problem, self.start(problem, x, torch.Generator())._replace(noise=last), row, noise)
        return moved.x, moved.noise


def stationary(p: Problem, rho: float) -> tuple[Array, Array]:
    """Mean and covariance of x under moves at one rho."""
    row = WeightedRow(p.table.b[0], p.table.t[0], torch.tensor(rho, dtype=torch.float64), torch.zeros(()))
    F, G, c = matrices(p, _Move(), row, lambda *parts: parts, (2, 2))
    return np.linalg.solve(np.eye(4) - F, c)[:2], settled_covariance(F, G)[:2, :2]


@pytest.mark.parametrize("rho", [0.0, 3.0, 400.0])
@pytest.mark.parametrize("diagonal", [None, (0.4, 0.15)])
def test_the_move_leaves_the_penalised_gaussian_exactly_invariant(
    rho: float, diagonal: tuple[float, ...] | None
) -> None:
    preconditioner = None if diagonal is None else torch.tensor(diagonal, dtype=torch.float64)
    p = problem(gaussian_target(10, 0.1, preconditioner), line())
    mean, covariance = stationary(p, rho)
    normal = NORMAL / np.linalg.norm(NORMAL)
    precision = PRECISION + rho * np.outer(normal, normal)
    exact_mean = np.linalg.solve(precision, PRECISION @ MEAN + rho * normal / np.linalg.norm(NORMAL))
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), atol=1e-10)
    np.testing.assert_allclose(mean, exact_mean, atol=1e-9)


def test_the_linear_decoder_move_is_exact_as_well() -> None:
    A = torch.tensor([[1.0, 0.5], [0.2, -0.7], [0.3, 0.3]], dtype=torch.float64)
    plane = casal.Affine(torch.tensor([[1.0, 2.0, -1.0]]), 0.5)
    p = problem(gaussian_target(10, 0.2, torch.tensor([0.5, 0.2])), plane, casal.Linear(A))
    rho = 30.0
    _, covariance = stationary(p, rho)
    a = A.T.numpy() @ np.array([1.0, 2.0, -1.0]) / np.sqrt(6.0)
    np.testing.assert_allclose(covariance, np.linalg.inv(PRECISION + rho * np.outer(a, a)), atol=1e-10)


def _polar_grid(constraint: casal.Sphere, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of an annulus and the logarithm of their area elements."""
    radius = torch.linspace(low, high, 401, dtype=torch.float64)
    angle = torch.linspace(-np.pi, np.pi, 481, dtype=torch.float64)[:-1]
    r, t = torch.meshgrid(radius, angle, indexing="ij")
    points = torch.stack([r * torch.cos(t), r * torch.sin(t)], dim=-1).reshape(-1, 2)
    return points, torch.log(r.reshape(-1))


@pytest.mark.parametrize("rho", [8.0, 100.0])
def test_the_final_weight_is_exact_at_every_rho(rho: float) -> None:
    """Quadrature of pi_rho times the final weight over an annulus gives the moments on the circle."""
    circle = casal.Sphere(RADIUS)
    p = problem(particle(1), circle)
    x, log_area = _polar_grid(circle, 0.2, 7.0)
    z = circle.project(x)
    log_pi = -particle_potential(x) - rho / 2 * (x - z).square().sum(1) + log_area
    exact = particle_answer()

    def moments(log_weight: torch.Tensor) -> tuple[float, float]:
        w = torch.softmax(log_weight, dim=0)
        return float((w * z[:, 0]).sum()), float((w * z[:, 1].square()).sum().sqrt())

    start = casal.WeightedCASAL(rho).start(p, x, torch.Generator())
    inside, change = Finish(clean_score).correction(p, start, rho, slice(None))
    assert bool(inside.all())
    corrected = moments(log_pi + change)
    assert corrected[0] == pytest.approx(exact["mean_x"], abs=2e-5)
    assert corrected[1] == pytest.approx(exact["sd_y"], abs=2e-5)
    # The test can tell: without the weight the spread is off by far more.
    assert abs(moments(log_pi)[1] - exact["sd_y"]) > 1e-3


@pytest.mark.parametrize(
    ("constraint", "evaluations"),
    [
        (casal.Sphere(1.0), 2),
        (line(), 2),
        (casal.MassEnergy(0.5, 1.0), 2),
        (casal.Simplex(1.0), 2),
        (casal.Ball(1.0), 0),
        (casal.Box(-1.0, 1.0), 0),
        (casal.FromProjection(lambda z: z, lambda z: z.new_zeros(len(z))), 0),
    ],
)
def test_the_finish_fits_the_set(constraint: Constraint, evaluations: int) -> None:
    assert choose_finish(problem(gaussian_target(10, 0.1), constraint), clean_score).evaluations == evaluations


@pytest.mark.parametrize("rho", [8.0, 100.0])
def test_the_final_weight_judges_the_nearest_point_on_the_equations(rho: float) -> None:
    """Quadrature of pi_rho near a segment: with the weight z is right, and no mass is on the ends."""
    segment = casal.Simplex(1.0)
    p = problem(gaussian_target(1, 0.1), segment)
    grid = torch.linspace(-3.0, 4.0, 701, dtype=torch.float64)
    shifted = grid + 0.005  # half a cell: feet on the ends of the segment lie midway between points
    x = torch.stack(torch.meshgrid(shifted, grid, indexing="ij"), dim=-1).reshape(-1, 2)
    z = segment.project(x)
    offset = x - torch.as_tensor(MEAN)
    log_pi = -0.5 * ((offset @ torch.as_tensor(PRECISION)) * offset).sum(1) - rho / 2 * (x - z).square().sum(1)
    chains = casal.WeightedCASAL(rho).start(p, x, torch.Generator())
    inside, change = Finish(clean_score).correction(p, chains, rho, slice(None))
    w = torch.softmax(torch.where(inside, log_pi + change, -torch.inf), 0)
    along = torch.linspace(0.0, 1.0, 20001, dtype=torch.float64)
    on = torch.stack([along, 1.0 - along], dim=1) - torch.as_tensor(MEAN)
    right = torch.softmax(-0.5 * ((on @ torch.as_tensor(PRECISION)) * on).sum(1), 0)
    assert float((w * z[:, 0]).sum()) == pytest.approx(float((right * along).sum()), abs=2e-3)
    assert float((w * z[:, 0].square()).sum()) == pytest.approx(float((right * along.square()).sum()), abs=2e-3)
    # The test can tell: projecting all of pi_rho puts mass on the ends.
    assert float(torch.softmax(log_pi, 0)[(z <= 0).any(1)].sum()) > 0.05


def test_the_levels_that_chains_place_go_up_to_the_top() -> None:
    for ess in (0.7, 1.0):
        result = casal.sample(gaussian_target(200, 0.1), line(), casal.WeightedCASAL(250.0, ess=ess), 300, seed=0)
        rho, at = result.trace["rho"].numpy(), result.trace["exchange_step"].numpy()
        assert (np.diff(rho[:-1]) > 0).all()
        assert rho[-1] == 250.0
        assert at[0] == 40 and at[-1] == 198 and np.diff(at).max() <= LEVELS_ALONE
    assert len(rho) == 200 - 40 - 2 + 1, "with ess = 1 chains exchange at every level"


def test_given_levels_are_taken_as_they_are() -> None:
    expected = casal.geometric(0.1, 50.0)(range(78)).numpy()
    for ess in (0.7, 1.0):
        method = casal.WeightedCASAL(casal.geometric(0.1, 50.0), ess=ess)
        result = casal.sample(gaussian_target(100, 0.1), line(), method, 300, seed=0)
        levels = (result.trace["exchange_step"][:-1] - 20).to(torch.int64).numpy()
        np.testing.assert_allclose(result.trace["rho"].numpy()[:-1], expected[levels], rtol=1e-12)
    assert len(levels) == 78


def test_chains_may_go_up_until_their_weights_become_uneven() -> None:
    """Normal log-weights of spread v are worth exp(-v^2) of their chains."""
    half = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    limit = allowed_growth(1.0, 0.7, float(half.std()))
    for rho, share in ((limit, 0.7), (limit / 2, 0.7**0.25)):
        assert float(effective_size(torch.softmax(-rho * half, 0))) / len(half) == pytest.approx(share, rel=0.02)
    assert allowed_growth(0.7**0.25, 0.7, 1.0) == pytest.approx(allowed_growth(1.0, 0.7, 1.0) / 2)
    assert allowed_growth(0.69, 0.7, 1.0) == allowed_growth(1.0, 0.7, 1.0), "below the share chains are resampled"
    assert allowed_growth(1.0, 1.0, 1.0) == 0.0


def test_the_weight_of_a_level_is_the_ratio_of_the_penalties() -> None:
    """At an exchange, and in a step on the way to the next one."""
    p = problem(gaussian_target(10, 0.1), line())
    method = casal.WeightedCASAL(casal.geometric(1.0, 10.0), ess=1e-9)
    x = torch.tensor([[0.0, 0.0], [2.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    state = method.start(p, x, torch.Generator())
    assert isinstance(state, WeightedState)
    control = Control(2, 8, (1.0, 1.5, 4.0, 4.5, 9.0, 10.0), row=3, rhos=(1.5,), rho=1.5)
    new, control, info = method.exchange(p, state, control, torch.Generator())
    distance = (x.sum(1) - 1.0).abs() / 2**0.5
    torch.testing.assert_close(new.log_weight, -(4.0 - 1.5) / 2 * distance.square())
    w = torch.softmax(new.log_weight, 0)
    assert info["ess"] == pytest.approx(float(1 / w.square().sum()))
    assert (control.row, control.top) == (4, 0.0) and tuple(control.rhos)[:2] == (4.0, 4.5)
    stage = method.next(p, control, 0)
    assert not isinstance(stage, Together) and stage is not None
    assert [float(row.rho) for row in stage.rows] == list(control.rhos)
    assert float(stage.rows[0].added) == 0.0
    on = method.step(p, new, stage.rows[1], torch.zeros_like(x))
    torch.testing.assert_close(on.log_weight, -(4.5 - 1.5) / 2 * distance.square())


class _Often(casal.WeightedCASAL):
    """The same with an exchange at every level."""

    def _exchanges(self, control: Control, row: int) -> bool:
        return True


def played(method: casal.WeightedCASAL, p: Problem, x: torch.Tensor) -> tuple[WeightedState, int]:
    """All stages with the noise of each row drawn in turn; and the number of exchanges."""
    moves, draws = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    control, state, stage, exchanges = method.control(p, len(x)), method.start(p, x, moves), 0, 0
    while (now := method.next(p, control, stage)) is not None:
        if isinstance(now, Together):
            state, control, _ = now.do(p, state, control, draws)
            exchanges += 1
        else:
            for row in now.rows:
                state = now.step(p, state, row, now.noise(p, len(x), moves))
        stage += 1
    assert isinstance(state, WeightedState)
    return state, exchanges


def test_chains_that_go_up_on_their_own_go_where_they_would_go_together() -> None:
    p, given = problem(gaussian_target(200, 0.1), line()), casal.geometric(0.1, 50.0)
    x = torch.randn((300, 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    first, few = played(casal.WeightedCASAL(given), p, x)
    other, many = played(_Often(given), p, x)
    for part, same in zip(first, other, strict=True):
        torch.testing.assert_close(part, same, rtol=0, atol=1e-12)
    assert len(torch.unique(first.ancestor)) < 200, "nothing was resampled, so the test shows nothing"
    assert few < 100 < many == 160 - 2 + 1


def test_chains_outside_a_solid_set_give_way_to_chains_inside() -> None:
    p = problem(gaussian_target(10, 0.1), casal.Ball(1.0))
    x = torch.tensor([[0.1, 0.2], [3.0, 0.0]], dtype=torch.float64).repeat(16, 1)
    state = casal.WeightedCASAL(10.0).start(p, x, torch.Generator())
    new, info = Finish(None)(p, state, 10.0, torch.Generator().manual_seed(0), Groups())
    assert info["inside"] == 0.5
    assert sorted(new.ancestor.tolist()) == sorted([*range(0, 32, 2)] * 2)


def test_the_finish_says_how_few_chains_are_inside() -> None:
    p = problem(gaussian_target(10, 0.1), casal.Ball(1.0))
    x = torch.tensor([[0.1, 0.2], *[[3.0, 0.0]] * 31], dtype=torch.float64)
    state = casal.WeightedCASAL(10.0).start(p, x, torch.Generator())
    new, info = Finish(None)(p, state, 10.0, torch.Generator().manual_seed(0), Groups())
    assert info["inside"] == 1 / 32
    assert len(new.ancestor.unique()) == 32


def test_the_top_follows_the_share_inside() -> None:
    """-log(inside) shrinks like rho^(-1/2): from a share of LEAST_INSIDE^2 the distance must be halved."""
    half, weight = torch.full((400,), 0.005, dtype=torch.float64), torch.full((400,), 1 / 400, dtype=torch.float64)
    inside = torch.arange(400) < round(400 * LEAST_INSIDE**2)
    assert top_for_inside(200.0, half, weight, inside, Groups()) == pytest.approx(800.0, rel=0.01)
    assert top_for_inside(200.0, half, weight, torch.arange(400) < 320, Groups()) == 200.0
    assert top_for_inside(200.0, half, weight, torch.arange(400) < 320, Groups(), 300.0) == 300.0
    groups = Groups([torch.arange(200), torch.arange(200, 400)])
    assert top_for_inside(200.0, half, weight, torch.arange(400) >= 100, groups) > 200.0


def test_the_top_follows_the_spread_of_the_correction() -> None:
    half, weight = torch.full((1000,), 0.005, dtype=torch.float64), torch.full((1000,), 1e-3, dtype=torch.float64)
    change = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = float(change.std(correction=0))
    assert top_for_spread(100.0, half, weight, change, spread / 2) == pytest.approx(400.0, rel=1e-6)
    assert top_for_spread(100.0, half, weight, change, spread * 2) == 100.0
    assert top_for_spread(100.0, half, weight, change + 1e6, spread / 2) == pytest.approx(400.0, rel=1e-6)
    unread = torch.full_like(change, torch.inf)
    assert top_for_spread(100.0, half, weight, unread, 0.5) == pytest.approx(400.0)


@pytest.mark.parametrize("scale", [0.02, 1.0, 50.0])
def test_levels_without_an_end_read_the_scale_of_the_density(scale: float) -> None:
    """N(0, scale^2 I) on x0 + x1 = scale: the top is a number of precisions, whatever the unit."""
    target = casal.energy(
        lambda x: (x / scale).square().sum(1) / 2,
        steps=200,
        step_size=0.2 * scale**2,
        init=casal.GaussianStart(2, std=scale, dtype=torch.float64),
    )
    result = casal.sample(target, casal.Affine([[1.0, 1.0]], [scale]), casal.WeightedCASAL(), 1000, seed=0)
    assert 2.0 < float(result.trace["rho"][-1]) * scale**2 < 60.0
    along = (result.samples[:, 0] - result.samples[:, 1]).square().mean() / (2 * scale**2)
    assert float(along) == pytest.approx(1.0, abs=4 * (2 / 1000) ** 0.5)


def crossing_lines(rho: float | None) -> tuple[casal.SampleResult, float, float]:
    """N(0, I) on both axes of the plane: the share within 0.2 of the origin, and its standard error."""
    axes = casal.Affine([[0.0, 1.0]], [0.0]) | casal.Affine([[1.0, 0.0]], [0.0])
    target = casal.langevin(
        lambda x: x,
        steps=300,
        step_size=0.1,
        init=lambda n, g: torch.randn((n, 2), generator=g, dtype=torch.float64),
    )
    result = casal.sample(target, axes, casal.WeightedCASAL(rho), 2000, seed=0)
    value, error = result.expect(lambda z: (z.norm(dim=1) < 0.2).double())
    return result, float(value), float(error)


def test_levels_on_crossing_pieces_end_where_they_are_told_apart() -> None:
    right = float(torch.erf(torch.tensor(0.2 / 2**0.5)))
    result, value, error = crossing_lines(None)
    assert abs(value - right) < 3.5 * error
    assert float(result.trace["crossing"][-1]) < 0.012
    wide, value, error = crossing_lines(30.0)
    assert value < right - 4 * error, "the test has no power"
    assert wide.fidelity.verdict == "suspect" and any("another piece" in reason for reason in wide.fidelity.reasons)
