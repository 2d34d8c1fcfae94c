"""Chains inside a set: where they begin, in which metric and by which moves, and what they say of themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods import hmc, tempering, trajectories
from casal.methods.chain_memory import Drift, agreement, second_kind
from casal.methods.hmc import HMC
from casal.methods.inside_chains import Control, HMCState, Row, plain, space_of
from casal.methods.metric import given_scale, rise_at_walls
from casal.methods.problem import Problem
from casal.methods.scales import shrinkage, solve, times, transposed, wide_directions
from casal.methods.surface import Surface
from casal.methods.tempering import narrow
from casal.targets.density import fit_start

F = torch.float64


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F)


def problem_of(target: casal.Target, constraint: casal.Constraint, d: int) -> Problem:
    return Problem(target, constraint, casal.Identity(), torch.zeros((0, d), dtype=F))


def state_of(problem: Problem, y: Tensor) -> HMCState:
    zeros = torch.zeros_like(y[:, 0])
    space = space_of(problem)
    log_p = problem.log_density(space.latents(y, problem.like))
    numbers = torch.arange(len(y))
    none = torch.zeros_like(numbers)
    return HMCState(y, y, y, y, log_p, zeros, zeros, zeros, y, y, zeros, numbers, none, none)


def moments(z: Tensor) -> Tensor:
    return torch.cat([z, z.square()], 1)


def worst(seen: Tensor, right: Tensor) -> float:
    """Largest error of means in standard errors."""
    return float(((seen.mean(0) - right) / (seen.std(0) / math.sqrt(len(seen)))).abs().max())


# ------------------------------------------------------------------------------------------------- metrics


def test_a_diagonal_with_directions_is_the_matrix_that_it_stands_for() -> None:
    r, k = 9, 2
    U = torch.linalg.qr(normal(1, r, k)).Q
    m = torch.tensor([3.0, 0.5], dtype=F)
    s = normal(2, r).abs() + 0.1
    scale = torch.cat([s[:, None], U * m.sqrt()], 1)
    dense = torch.diag(s) @ (torch.eye(r, dtype=F) + U @ torch.diag(m) @ U.T)
    y = normal(3, 5, r)
    for one in (times, transposed, solve):
        torch.testing.assert_close(one(scale, y), one(dense, y))
    assert shrinkage(scale, dense) == pytest.approx(1.0)
    assert shrinkage(2.0 * dense, scale) == pytest.approx(2.0)


def test_wide_directions_are_found_with_their_width_and_noise_is_none() -> None:
    """A direction of standard deviation 6 among 300 coordinates, from 400 points."""
    n, r = 400, 300
    u = torch.nn.functional.normalize(normal(4, r), dim=0)
    y = normal(5, n, r)
    assert wide_directions(y - y.mean(0)).ndim == 1
    wide = y + (6.0 - 1.0) * (y @ u)[:, None] * u
    scale = wide_directions(wide - wide.mean(0))
    assert scale.shape == (r, 2)
    along = float(torch.linalg.vector_norm(transposed(scale, u[None])))  # sqrt(u^T L L^T u)
    assert along == pytest.approx(6.0, rel=0.1)


def test_a_matrix_is_the_metric_in_the_coordinates_of_the_set() -> None:
    d = 4
    root = torch.tril(normal(6, d, d)) + 3.0 * torch.eye(d, dtype=F)
    C = root @ root.T
    target = casal.langevin(lambda x: x.pow(3), steps=60, step_size=0.1, init=torch.zeros(d, dtype=F), preconditioner=C)
    torch.testing.assert_close(given_scale(problem_of(target, casal.Box(-1.0, 1.0), d)), root)
    plane = problem_of(target, casal.Affine([[1.0, 1.0, 1.0, 1.0]], [0.0]), d)
    flat = space_of(plane).flat
    assert flat is not None and flat.basis is not None
    found = given_scale(plane)
    assert found is not None
    torch.testing.assert_close(found @ found.T, flat.basis.T @ C @ flat.basis)
    torch.testing.assert_close(plane.diagonal, C.diagonal())
    curved = casal.sample(target, casal.Sphere(1.0), HMC(), 64, check=False)
    assert bool(curved.certificate.feasible.all())
    with pytest.raises(SettingError, match=r"covariance: symmetric .*eigenvalues > 0 \(the smallest is -1\)"):
        wrong = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F)
        target = casal.langevin(lambda x: x, steps=9, step_size=0.1, init=torch.zeros(2, dtype=F), preconditioner=wrong)
        casal.sample(target, casal.Box(-1.0, 1.0), HMC(), 20)


@pytest.mark.statistical
def test_a_given_metric_saves_the_warm_up() -> None:
    """Twelve directions of widths 1e-3 to 1, quartic, with 60 evaluations: right with the matrix, far off without."""
    d, n = 12, 400
    turn, width = torch.linalg.qr(normal(7, d, d)).Q, torch.logspace(-3, 0, d, dtype=F)

    def run(given: Tensor | None) -> Tensor:
        target = casal.langevin(
            lambda x: ((x @ turn) / width).pow(3) / width @ turn.T, steps=60, step_size=0.1, preconditioner=given,
            init=torch.zeros(d, dtype=F), potential=lambda x: ((x @ turn) / width).pow(4).sum(1) / 4,
        )  # fmt: skip
        return casal.sample(target, casal.HalfSpace([1.0] * d, 50.0), HMC(warm_up=0.5), n, check=False).samples

    line = torch.linspace(-4.0, 4.0, 4001, dtype=F)
    second = float((torch.softmax(-line.pow(4) / 4, 0) * line.square()).sum()) * torch.ones(d, dtype=F)
    C = turn @ torch.diag(width.square()) @ turn.T
    assert worst(((run(C) @ turn) / width).square(), second) < 4.5
    assert worst(((run(None) @ turn) / width).square(), second) > 10.0


# ------------------------------------------------------------------------------------------------- starts


def test_one_point_a_few_or_none() -> None:
    constraint = casal.Affine([[1.0, 1.0, 1.0]], [1.0]) & casal.Box(0.0, 1.0)

    def run(init: Any) -> Tensor:
        target = casal.energy(lambda x: x.pow(4).sum(1), init=init, steps=80)
        return casal.sample(target, constraint, HMC(), 40, check=False).samples

    point = torch.tensor([0.2, 0.3, 0.5], dtype=F)
    assert torch.equal(run(point), run(point.expand(40, -1)))
    few = torch.stack([point, point.flip(0), point.roll(1)])
    assert torch.equal(run(few), run(few[torch.arange(40) % 3]))
    assert torch.equal(run(None), run(constraint.reduction((3,)).origin))  # type: ignore[union-attr]


def test_chains_that_begin_at_one_point_take_no_metric_from_rounding() -> None:
    """A circle among units of 1 and 1e-3, from one point and what rounding makes of it: the whole circle is found."""
    width = torch.tensor([1.0, 1.0, 1e-3], dtype=F)
    ring = casal.Implicit(lambda z: torch.stack([z[:, :2].square().sum(1) - 1, z[:, 2] - width[2] * z[:, 0]], 1))
    start = torch.tensor([1.0, 0.0, 1e-3], dtype=F) + 1e-13 * normal(16, 200, 3)
    target = casal.langevin(lambda x: 0 * x, init=start, steps=200, potential=lambda x: 0 * x[:, 0])
    z = casal.sample(target, ring, HMC(), 200, check=False).samples
    assert worst(z[:, :2], torch.zeros(2, dtype=F)) < 4.0 and float(z[:, 0].std()) == pytest.approx(0.7, abs=0.1)


def test_a_density_is_never_asked_outside_wherever_the_start_lies() -> None:
    """Not even in the checks before the first step: logarithms at a start with negative coordinates."""
    asked = list[float]()

    def energy(x: Tensor) -> Tensor:
        asked.append(float(x.detach().min()))
        return (x.pow(3) - 2.0 * x.log()).sum(1)

    for start in (torch.full((3,), -4.0, dtype=F), torch.tensor([[5.0, -1.0, 0.0]], dtype=F)):
        target = casal.energy(energy, init=start, steps=100)
        result = casal.sample(target, casal.Box([0.0] * 3, [2.0] * 3), HMC(), 60)
        assert bool(torch.isfinite(result.samples).all())
    assert min(asked) > 0.0


@pytest.mark.parametrize(
    ("spread", "shift", "width", "known", "found"),
    [
        (0.3, 0.0, 1.0, True, True),
        (2.0, 0.0, 1.0, True, False),
        (1.0, 3.0, 1.0, True, False),
        (0.3, 0.0, 1.0, False, False),
    ],
    ids=["narrow", "wide", "aside", "not known"],
)
def test_a_start_is_narrow_where_the_density_falls_off_later(
    spread: float, shift: float, width: float, known: bool, found: bool
) -> None:
    """N(0, spread^2) beside N(shift, width^2): the slope of log p over log q is (spread / width)^2."""
    d = 6
    target = casal.energy(lambda x: (x - shift).square().sum(1) / (2 * width**2), init=torch.zeros(d, dtype=F))
    problem = problem_of(target, casal.Box(-100.0, 100.0), d)
    start = casal.GaussianStart(d, std=spread, dtype=F)
    if known:
        problem = problem.replace(start=fit_start(start, (d,), 1000, torch.Generator().manual_seed(1)))
    x = spread * normal(18, 1000, d)
    space = space_of(problem)
    assert space.flat is not None
    assert narrow(space, problem, space.flat.inward(x), problem.log_density(x)) == found


def test_a_start_that_is_even_on_the_set_is_not_narrow() -> None:
    d = 6
    z = torch.nn.functional.normalize(normal(19, 500, d), dim=1)
    problem = problem_of(casal.energy(lambda x: 5.0 * x[:, 0], init=z), casal.Sphere(1.0), d)
    problem = problem.replace(start=casal.GaussianStart(d, dtype=F))
    assert not narrow(space_of(problem), problem, z, problem.log_density(z))


@pytest.mark.statistical
def test_a_tempered_start_without_ancestors_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are given up: the chains begin where they began, none is lost, and the law is right."""
    d, n = 20, 300
    target = casal.energy(lambda x: -4.0 * x[:, 0], steps=300, init=casal.GaussianStart(d, dtype=F))
    monkeypatch.setattr(tempering, "FEWEST_ANCESTORS", 1e9)
    result = casal.sample(target, casal.Sphere(1.0), HMC(), n, check=False)
    assert float(result.trace["tempered"][-1]) == 0.0 and len(result.ancestors.unique()) == n
    w = (torch.arange(400_000, dtype=F) + 0.5) / 200_000 - 1.0
    weight = torch.softmax(4.0 * w + (d - 3) / 2 * torch.log1p(-w.square()), 0)
    assert worst(result.samples[:, :1], (weight @ w)[None]) < 4.0


@pytest.mark.statistical
def test_a_warm_up_ends_where_chains_forget_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform on a sphere: as right as after all rows, for fewer evaluations."""
    target = casal.energy(lambda x: 0 * x[:, 0], steps=300, init=casal.GaussianStart(6, dtype=F))

    def run() -> casal.SampleResult:
        return casal.sample(target, casal.Sphere(1.0), HMC(temper=False), 300, check=False)

    soon = run()
    assert worst(moments(soon.samples), torch.tensor([0.0] * 6 + [1 / 6] * 6, dtype=F)) < 4.0
    monkeypatch.setattr(HMC, "_settled", lambda self, problem, state, control: (state, control))
    assert soon.cost.score_evaluations < 0.9 * run().cost.score_evaluations


# ------------------------------------------------------------------------------------------------- slices


def dirichlet(a: float, d: int, known: bool = True, steps: int = 800) -> casal.Target:
    return casal.langevin(
        lambda x: -(a - 1) / x, init=torch.full((d,), 1.0 / d, dtype=F), steps=steps, step_size=0.1,
        potential=(lambda x: -(a - 1) * x.log().sum(1)) if known else None,
    )  # fmt: skip


def test_a_density_that_is_infinite_at_a_wall_is_seen() -> None:
    """The exponent itself; not for zeros at the wall, nor for a steep density that is finite there."""

    def rise(grad: Any, constraint: casal.Constraint, d: int) -> float:
        problem = problem_of(casal.langevin(grad, init=torch.zeros(d, dtype=F)), constraint, d)
        return rise_at_walls(space_of(problem), lambda x: problem.score(x, problem.table.t[0]), problem.like)

    assert rise(lambda x: 0.5 / x, casal.Simplex(1.0), 5) == pytest.approx(0.5, abs=0.05)
    assert rise(lambda x: -1.0 / x, casal.Simplex(1.0), 5) == 0.0
    assert rise(lambda x: torch.full_like(x, 3e3), casal.Box([0.0] * 3, [1.0] * 3), 3) == 0.0


@pytest.mark.statistical
def test_slices_keep_a_dirichlet_density_and_a_level_that_is_not_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """From exact draws; then every point of the line is taken, which leads to the uniform distribution."""
    a, d, n = 0.5, 5, 4000
    problem = problem_of(dirichlet(a, d), casal.Simplex(1.0), d)
    gamma = torch._standard_gamma(torch.full((n, d), a, dtype=F), generator=torch.Generator().manual_seed(8))
    flat = space_of(problem).flat
    assert flat is not None
    y = flat.inward(gamma / gamma.sum(1, keepdim=True))
    scale = torch.linalg.cholesky(torch.cov(y.T))
    row = Row("slice", problem.table.t[0], (1,) * 6, scale=scale)
    m = 1.0 / d
    right = torch.tensor([m] * d + [m * (a + 1) / (d * a + 1)] * d, dtype=F)

    def off() -> float:
        found = trajectories.slices(
            space_of(problem), problem, state_of(problem, y), row, torch.Generator().manual_seed(9)
        )
        z = flat.outward(found.y)
        assert float(found.refused.max()) == 0.0
        return worst(torch.cat([z, z.square()], 1), right)

    assert off() < 4.5
    monkeypatch.setattr(Problem, "log_density", lambda self, x: torch.zeros(len(x), dtype=F))
    assert off() > 6.0


@pytest.mark.statistical
def test_a_dirichlet_density_below_one_is_right_with_a_potential_and_suspect_without() -> None:
    a, d = 0.5, 6
    result = casal.sample(dirichlet(a, d), casal.Simplex(1.0), HMC(), 400, seed=3)
    m = 1.0 / d
    right = torch.tensor([m] * d + [m * (a + 1) / (d * a + 1)] * d, dtype=F)
    assert worst(torch.cat([result.samples, result.samples.square()], 1), right) < 4.0
    assert result.fidelity.verdict == "trusted" and result.cost.score_evaluations <= 800
    blind = casal.sample(dirichlet(a, d, known=False, steps=60), casal.Simplex(1.0), HMC(), 100)
    assert blind.fidelity.verdict == "suspect"
    assert any("infinite at a wall of the set (like distance^-0.5)" in reason for reason in blind.fidelity.reasons)


# ------------------------------------------------------------------------------------------------- certificates


def test_r_hat_has_an_edge_that_chance_does_not_pass() -> None:
    for seed in range(20):
        found = agreement(list(normal(100 + seed, 3, 200, 8)))
        assert found is not None and found.value < found.edge
    own = normal(200, 200, 8)
    stuck = agreement([0.7 * own + 0.7 * part for part in normal(201, 3, 200, 8)])
    assert stuck is not None and stuck.value > stuck.edge + 0.05
    assert agreement(list(normal(202, 3, 8, 2))) is None


@pytest.mark.statistical
def test_rounds_go_on_while_the_means_of_all_chains_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform on a sphere from one point: the chains have nothing to remember. If nobody looks, the end is suspect."""
    d, n = 8, 300
    start = torch.eye(d, dtype=F)[:1] + 0.03 * normal(17, n, d)
    target = casal.energy(lambda x: 0 * x[:, 0], steps=300, init=start)

    def run(seed: int) -> tuple[float, str]:
        result = casal.sample(target, casal.Sphere(1.0), HMC(warm_up=0.05, temper=False), n, seed=seed)
        return float(result.samples[:, 0].mean()) * math.sqrt(n * d), result.fidelity.verdict

    for seed in (1, 2):
        z, verdict = run(seed)
        assert abs(z) < 3.0 and verdict == "trusted"
    monkeypatch.setattr(hmc, "drift", lambda *places: Drift(0.0, 0.0, 0.0, 0.0))
    assert run(2)[1] == "suspect"


@pytest.mark.statistical
@pytest.mark.parametrize("curved", [False, True], ids=["slices", "walk"])
def test_a_second_kind_of_move_leaves_right_samples_alone_and_shifts_others(curved: bool) -> None:
    """Exact draws, uniform in a box and on a sphere; and the same draws under another density."""
    d, n = 4, 300
    if curved:
        constraint: casal.Constraint = casal.Sphere(1.0)
        z = torch.nn.functional.normalize(normal(10, n, d), dim=1)
    else:
        constraint, z = casal.Box([-1.0] * d, [1.0] * d), torch.erf(normal(11, n, d) / math.sqrt(2.0))

    def t_and_edge(slope: float) -> tuple[float, float]:
        target = casal.langevin(lambda x: 0 * x, potential=lambda x: slope * x[:, 0], init=z, steps=1000)
        problem = problem_of(target, constraint, d)
        space = space_of(problem)
        y = z if space.flat is None else space.flat.inward(z)
        scale = torch.zeros(0) if curved else torch.eye(d, dtype=F)
        control = Control(10, n, n, n, eps=0.5, centre=plain(torch.zeros(d)), scale=plain(scale))
        found = second_kind(space, problem, state_of(problem, y), control, torch.Generator().manual_seed(12))
        return found["second_t"], found["second_edge"]

    t, edge = t_and_edge(0.0)
    assert t < edge
    t, edge = t_and_edge(2.0)
    assert t > 1.5 * edge


@pytest.mark.statistical
def test_a_step_of_the_energy_that_the_score_does_not_see() -> None:
    """x^2 / 2 + 2 (x_0 > 0) with x_1 >= 0: the share of x_0 > 0 is e^-2 / (1 + e^-2)."""
    target = casal.energy(
        lambda x: x.square().sum(1) / 2 + 2.0 * (x[:, 0] > 0), init=casal.GaussianStart(2, dtype=F), steps=300
    )
    result = casal.sample(target, casal.HalfSpace([0.0, -1.0], 0.0), HMC(), 500)
    share, right = (result.samples[:, 0] > 0).to(F), 1.0 / (1.0 + math.exp(2.0))
    assert abs(float(share.mean()) - right) < 4.0 * math.sqrt(right * (1 - right) / 500)


# ------------------------------------------------------------------------------------------------- curved sets


def test_rows_that_share_no_coordinate_are_differentiated_together() -> None:
    """A chain of 20 atoms: the derivatives are u_i and -u_i, exactly, from two colours."""

    def rods(z: Tensor) -> Tensor:
        X = z.view(-1, 20, 3)
        return ((X[:, 1:] - X[:, :-1]).square().sum(2) - 1) / 2

    surface = Surface(casal.Implicit(rods), (60,))
    z = normal(13, 7, 60)
    u = z.view(-1, 20, 3)[:, 1:] - z.view(-1, 20, 3)[:, :-1]
    right = torch.zeros(7, 19, 20, 3, dtype=F)
    k = torch.arange(19)
    right[:, k, k], right[:, k, k + 1] = -u, u
    found = surface._structure(19)
    assert found is not None and int(found.colour.max()) == 1
    torch.testing.assert_close(surface.derivatives(z), right.flatten(2))
    torch.testing.assert_close(surface.derivatives(z, together=False), right.flatten(2))


def test_chains_that_are_set_aside_end_where_they_end_alone() -> None:
    """Drifts of very different lengths on a chain of atoms, all at once and one by one; some lead nowhere."""

    def rods(z: Tensor) -> Tensor:
        X = z.view(-1, 5, 3)
        return ((X[:, 1:] - X[:, :-1]).square().sum(2) - 1) / 2

    surface = Surface(casal.Implicit(rods), (15,))
    u = torch.nn.functional.normalize(normal(30, 40, 4, 3), dim=2)
    at = surface.frame(torch.cat([torch.zeros(40, 1, 3, dtype=F), u.cumsum(1)], 1).flatten(1))
    step = at.tangent(normal(31, 40, 15)) * torch.logspace(-3, 0.3, 40, dtype=F)[:, None]
    w, ok = surface.solve(at, step)
    assert 5 < int(ok.sum()) < 40 and torch.equal(w[~ok], at.w[~ok])
    assert float(rods(w[ok]).abs().max()) < 1e-8
    for k in range(0, 40, 3):
        one = torch.tensor([k])
        alone, fine = surface.solve(at.take(one), step[one])
        assert bool(fine) == bool(ok[k])
        torch.testing.assert_close(alone[0], w[k], rtol=0, atol=1e-13)


def test_points_next_to_a_set_are_settled_on_it() -> None:
    surface = Surface(casal.Sphere(2.0), (5,))
    z = 2.0 * torch.nn.functional.normalize(normal(14, 50, 5), dim=1)
    found = surface.settled(z + 1e-7 * normal(15, 50, 5))
    assert float((found.square().sum(1) - 4.0).abs().max()) < 1e-14 * 40


@pytest.mark.statistical
def test_an_l1_ball_is_known_by_its_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform with radius R in d dimensions: E |z_i| = R / (d + 1), E z_i^2 = 2 R^2 / ((d + 1) (d + 2))."""
    d, R, n = 5, 2.0, 1000
    target = casal.langevin(lambda x: 0 * x, init=torch.zeros(d, dtype=F), steps=300, potential=lambda x: 0 * x[:, 0])
    right = torch.tensor([R / (d + 1)] * d + [2 * R**2 / ((d + 1) * (d + 2))] * d, dtype=F)

    def off() -> float:
        z = casal.sample(target, casal.L1Ball(R), HMC(), n, check=False).samples
        assert float(z.abs().sum(1).max()) <= R * (1 + 1e-12)
        return worst(torch.cat([z.abs(), z.square()], 1), right)

    assert off() < 4.0
    monkeypatch.setattr(Surface, "walls", lambda self, w: torch.zeros_like(w[:, :1]))
    assert off() > 8.0  # chains leave the ball, and are projected in the end


@pytest.mark.statistical
def test_a_gaussian_with_one_mode_begins_where_the_set_is_whatever_its_starting_points_are() -> None:
    """N(0, I) in increasing order from hundreds of standard deviations away: sorted draws."""
    d = 30
    target = casal.langevin(
        lambda x: x, potential=lambda x: x.square().sum(1) / 2, init=20.0 * torch.arange(d, dtype=F)
    )
    result = casal.sample(target, casal.Monotone(), casal.HMC(), 400)
    draws = torch.randn(100_000, d, dtype=F, generator=torch.Generator().manual_seed(1)).sort(1).values
    found = result.expect(lambda z: z)
    assert float(((found.value - draws.mean(0)) / found.standard_error).abs().max()) < 4.0
    assert result.fidelity.verdict == "trusted" and "weighed" not in result.trace
