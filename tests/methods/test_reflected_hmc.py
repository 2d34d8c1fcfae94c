"""ReflectedHMC: its drift is exact, its law that of closed forms and quadrature, and it says what it does not know."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, SettingError
from casal.methods import Problem, memory, reflected_hmc
from casal.methods.base import generator_of
from casal.methods.bounded_hmc import Bounds
from casal.methods.population import Groups, largest_share
from casal.methods.reflected_hmc import (
    LEAST_ESS,
    PACES,
    ReflectedHMC,
    Row,
    along_equation,
    drift,
    fold,
    inside_bounds,
    onto_equation,
    unit_normal,
    widest,
)

F = torch.float64
INF = math.inf
ORTHANT = casal.Box(0.0, INF)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=F)


def box(low: Any, high: Any, equation: Tensor | None = None, level: float = 0.0) -> Bounds:
    low, high = torch.broadcast_tensors(torch.as_tensor(low, dtype=F), torch.as_tensor(high, dtype=F))
    return Bounds(low.reshape(1, -1), high.reshape(1, -1), equation, torch.full((1, 1), level, dtype=F))


MIXED = box([0.0, -1.0, -INF, -INF], [0.7, INF, 2.0, INF])
SUM = box(
    torch.zeros(5), torch.tensor([0.9, 0.6, INF, INF, 0.8]), torch.tensor([1.0, -0.5, 2.0, 0.7, 0.0], dtype=F), 1.3
)


def inside(bounds: Bounds, seed: int, n: int) -> Tensor:
    """Points of the set, not on its edge."""
    k = bounds.low.shape[1]
    z, _ = fold(0.3 + 0.5 * normal(seed, n, k), bounds.low, bounds.high)
    return onto_equation(bounds, z)


# ------------------------------------------------------------------------------------------------- the drift


def test_folding_is_a_triangular_wave() -> None:
    z = torch.linspace(-20.0, 20.0, 4001, dtype=F)[:, None]
    low, high = torch.tensor([[-0.3]], dtype=F), torch.tensor([[1.1]], dtype=F)
    y, sign = fold(z, low, high)
    wave = 0.4 - 1.4 / math.pi * torch.asin(torch.cos(math.pi * (z + 0.3) / 1.4))
    torch.testing.assert_close(y, wave, rtol=0, atol=1e-9)
    slope = (y[2:] - y[:-2]) / (z[2:] - z[:-2])
    straight = slope.abs() > 0.999
    assert torch.equal(sign[1:-1][straight], slope[straight].sign())


@pytest.mark.parametrize("side", ["low", "high"])
def test_one_wall_is_a_mirror(side: str) -> None:
    z = normal(1, 100, 1)
    wall = torch.full((1, 1), 0.2, dtype=F)
    none = torch.full((1, 1), INF, dtype=F)
    y, sign = fold(z, wall, none) if side == "low" else fold(z, -none, wall)
    expected = 0.2 + (z - 0.2).abs() if side == "low" else 0.2 - (z - 0.2).abs()
    torch.testing.assert_close(y, expected)
    assert torch.equal(sign, torch.where(y == z, 1.0, -1.0).to(F))


@pytest.mark.parametrize("bounds", [MIXED, SUM], ids=["box", "equation"])
def test_a_drift_leads_back_and_stays_in_the_set(bounds: Bounds) -> None:
    n, k = 200, bounds.low.shape[1]
    z, scale = inside(bounds, 2, n), (0.3 + torch.rand(1, k, generator=generator(3), dtype=F)).expand(n, k)
    v = along_equation(bounds, scale, normal(4, n, k))
    time = 4.0 * torch.rand(n, generator=generator(5), dtype=F)
    y, w = drift(bounds, scale, z, v, time)
    assert bool(((y >= bounds.low) & (y <= bounds.high)).all())
    torch.testing.assert_close(w.square().sum(1), v.square().sum(1))
    assert float((w.abs() != v.abs()).to(F).mean()) > 0.2 or bounds.normal is None
    if bounds.normal is not None:
        torch.testing.assert_close((bounds.normal * y).sum(1), torch.full((n,), 1.3, dtype=F))
        assert float((unit_normal(bounds, scale) * w).sum(1).abs().max()) < 1e-12
    back, turned = drift(bounds, scale, y, -w, time)
    torch.testing.assert_close(back, z, rtol=0, atol=1e-10)
    torch.testing.assert_close(-turned, v, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bounds", [MIXED, SUM], ids=["box", "equation"])
def test_a_drift_keeps_volumes(bounds: Bounds) -> None:
    """The determinant of d(z', v') / d(z, v) in coordinates along the set, by central differences, is +-1."""
    k = bounds.low.shape[1]
    scale = 0.3 + torch.rand(1, k, generator=generator(6), dtype=F)
    basis = torch.eye(k, dtype=F)
    if bounds.normal is not None:
        basis = torch.linalg.svd(unit_normal(bounds, scale)).Vh[1:].T
    m = basis.shape[1]
    for seed in range(5):
        z, v = inside(bounds, 10 + seed, 1), along_equation(bounds, scale, normal(20 + seed, 1, k))

        def flow(at: Tensor, z: Tensor = z, v: Tensor = v) -> Tensor:
            y, w = drift(
                bounds, scale, z + scale * (basis @ at[:m]), v + basis @ at[m:], torch.full((1,), 2.5, dtype=F)
            )
            return torch.cat([basis.T @ ((y - z) / scale)[0], basis.T @ w[0]])

        h = 1e-6
        steps = h * torch.eye(2 * m, dtype=F)
        jacobian = torch.stack([(flow(step) - flow(-step)) / (2 * h) for step in steps], dim=1)
        assert abs(float(torch.linalg.det(jacobian))) == pytest.approx(1.0, abs=1e-5)


def test_two_coordinates_with_a_sum_move_like_one_in_an_interval() -> None:
    bounds = box(torch.zeros(2), torch.full((2,), INF), torch.ones(2, dtype=F), 1.0)
    one = torch.rand(50, 1, generator=generator(7), dtype=F)
    v = normal(8, 50, 1)
    time, scale = torch.full((50,), 3.0, dtype=F), torch.ones(1, 2, dtype=F)
    y, w = drift(bounds, scale, torch.cat([one, 1 - one], 1), torch.cat([v, -v], 1), time)
    expected, sign = fold(one + 3.0 * v, torch.zeros(1, 1, dtype=F), torch.ones(1, 1, dtype=F))
    torch.testing.assert_close(y, torch.cat([expected, 1 - expected], 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(w, torch.cat([sign * v, -sign * v], 1), rtol=0, atol=1e-12)


def test_a_chain_that_hits_too_many_walls_is_refused() -> None:
    bounds = box(torch.zeros(2), torch.full((2,), INF), torch.ones(2, dtype=F), 1.0)
    z, v = torch.tensor([[0.5, 0.5]], dtype=F), torch.tensor([[1.0, -1.0]], dtype=F)
    y, w = drift(bounds, torch.ones(1, 2, dtype=F), z, v, torch.full((1,), 1e4, dtype=F))
    assert bool(torch.isnan(y).all() and torch.isnan(w).all())


def test_points_are_moved_onto_the_equation_inside() -> None:
    z, _ = fold(3.0 * normal(9, 300, 5), SUM.low, SUM.high)
    moved = onto_equation(SUM, z)
    assert SUM.normal is not None
    torch.testing.assert_close((SUM.normal * moved).sum(1), torch.full((300,), 1.3, dtype=F))
    assert bool(((moved > SUM.low) & (moved < SUM.high)).all())
    assert torch.equal(moved[:, 4], z[:, 4])


# ------------------------------------------------------------------------------------------------- one step


def problem_for(target: casal.Target, constraint: casal.Constraint, d: int, **more: Any) -> Problem:
    return Problem(target, constraint, casal.Identity(), torch.zeros(0, d, dtype=F), **more)


def quartic(x: Tensor) -> Tensor:
    return (x - 0.4).pow(4).sum(1) + x[:, 0] * x[:, 1]


def quartic_gradient(x: Tensor) -> Tensor:
    return 4 * (x - 0.4).pow(3) + torch.cat([x[:, 1:2], x[:, :1], 0 * x[:, 2:]], 1)


@pytest.mark.parametrize("known", [True, False], ids=["potential", "score"])
def test_one_trajectory_written_out(known: bool) -> None:
    """Two leapfrogs on a box, and the decision, against the equations."""
    start, eps = normal(11, 6, 2).abs(), 0.5
    potential = quartic if known else None
    target = casal.langevin(
        quartic_gradient,
        steps=20,
        step_size=eps**2 / 2,
        init=start,
        potential=potential,
        preconditioner=torch.tensor([4.0, 1.0]),
    )
    problem, method = problem_for(target, ORTHANT, 2), ReflectedHMC(warm_up=0.0)
    bounds = inside_bounds(problem)
    state = method.start(problem, start, generator(0))
    row, keys = Row(torch.tensor(0.0), 20), [torch.tensor(k) for k in (5, 6, 7, 8)]
    state = method.step(bounds, problem, state, row, keys[0])._replace(length=torch.tensor(4.0, dtype=F))
    torch.testing.assert_close(state.score, -quartic_gradient(start))
    if known:
        state = method.step(bounds, problem, state, row, keys[1])  # the row that the potential took
    for at in (2, 3):
        state = method.step(bounds, problem, state, row, keys[at])

    g = generator_of(keys[2], start)
    v = torch.randn(6, 2, generator=g, dtype=torch.float32).to(F)
    h = (eps * (1 + PACES * (2 * torch.rand(6, generator=g, dtype=F) - 1)))[:, None]
    s, z, before, rise = torch.tensor([2.0, 1.0], dtype=F), start, v, torch.zeros(6, dtype=F)
    for _ in range(2):
        v = v - h / 2 * s * quartic_gradient(z)
        to = z + h * s * v
        y, v = to.abs(), torch.where(to < 0, -v, v)
        v = v - h / 2 * s * quartic_gradient(y)
        rise = rise - ((quartic_gradient(z) + quartic_gradient(y)) / 2 * (y - z)).sum(1)
        z = y
    gain = quartic(start) - quartic(z) if known else rise
    ratio = torch.exp(gain + before.square().sum(1) / 2 - v.square().sum(1) / 2)
    u = torch.rand(6, generator=generator_of(keys[3] + 1, start), dtype=F)
    torch.testing.assert_close(state.z, torch.where((u < ratio)[:, None], z, start), rtol=0, atol=1e-10)
    torch.testing.assert_close(state.accepted, ratio.clamp_max(1.0), rtol=1e-9, atol=0)
    assert float(state.owed) == float(known)
    assert bool((u < ratio).any()) and bool((to < 0).any())


# ------------------------------------------------------------------------------------------------- the law


def moved(target: casal.Target, constraint: casal.Constraint, start: Tensor, trajectories: int, eps: float) -> Any:
    """Exact draws after some trajectories of three leapfrogs that are far too coarse; acceptance of the last."""
    problem, method = problem_for(target, constraint, start.shape[1]), ReflectedHMC(warm_up=0.0)
    bounds = inside_bounds(problem)
    state = method.start(problem, start, generator(0))._replace(size=torch.tensor(eps, dtype=F))
    state = method.step(bounds, problem, state, Row(torch.tensor(0.0), 9), torch.tensor(0))
    state = state._replace(length=torch.tensor(3.0, dtype=F), owed=torch.zeros((), dtype=F))
    k = 0
    while float(state.trajectories) < trajectories or float(state.left) > 0:
        state = method.step(bounds, problem, state, Row(torch.tensor(0.0), 99), torch.tensor(k))
        state, k = state._replace(owed=torch.zeros((), dtype=F)), k + 1
    return state


def grid_law(constraint: str) -> tuple[Tensor, Tensor]:
    """Points (m, d) on a fine grid of the set, and the probabilities of quartic on them."""
    line = (torch.arange(600, dtype=F) + 0.5) / 600
    a, b = torch.meshgrid(line, line, indexing="ij")
    if constraint == "box":
        points = torch.stack([a.flatten(), 3.0 * b.flatten()], 1)
    else:
        points = torch.stack([1.5 * a.flatten(), 1.5 * b.flatten()], 1)
        points = torch.cat([points, 1.5 - points.sum(1, keepdim=True)], 1)[points.sum(1) < 1.5]
    return points, torch.softmax(-2.0 * quartic(points), 0)


def deviations(z: Tensor, points: Tensor, weight: Tensor) -> Tensor:
    """Errors of first and second moments, in standard errors."""

    def features(x: Tensor) -> Tensor:
        return torch.cat([x, x.square(), x[:, :1] * x[:, 1:2]], 1)

    right = weight @ features(points)
    spread = (weight @ (features(points) - right).square()).sqrt()
    return (features(z).mean(0) - right) / spread * math.sqrt(len(z))


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["box", "equation"])
def test_coarse_trajectories_leave_the_density_as_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws by quadrature stay draws; they do not if all trajectories are accepted, which shows the power."""
    n = 20_000
    points, weight = grid_law(kind)
    start = points[torch.multinomial(weight, n, replacement=True, generator=generator(1))]
    constraint = casal.Box([0.0, 0.0], [1.0, 3.0]) if kind == "box" else casal.Simplex(1.5)
    target = casal.langevin(
        lambda x: 2.0 * quartic_gradient(x), steps=9, step_size=0.1, init=start, potential=lambda x: 2.0 * quartic(x)
    )
    state = moved(target, constraint, start, 5, 0.6)
    assert 0.3 < float(state.accepted.mean()) < 0.9
    assert float((state.z - start).abs().mean()) > 0.1
    assert float(deviations(state.z, points, weight).abs().max()) < 4.0
    decide = ReflectedHMC._decide

    def accept(self: ReflectedHMC, problem: Problem, state: Any, log_p: Tensor, noise: Tensor) -> Any:
        return decide(self, problem, state._replace(energy=torch.full_like(state.energy, INF)), log_p, noise)

    monkeypatch.setattr(ReflectedHMC, "_decide", accept)
    assert float(deviations(moved(target, constraint, start, 5, 0.6).z, points, weight).abs().max()) > 6.0


def half_below(d: int) -> tuple[Tensor, Tensor]:
    """Means and deviations of independent coordinates, every other one with its mean one deviation below zero."""
    spread = 0.5 + 1.5 * torch.rand(d, generator=generator(5), dtype=F)
    return torch.where(torch.arange(d) % 2 == 0, -spread, spread), spread


def truncated_moments(mean: Tensor, spread: Tensor, low: float = 0.0, high: float = INF) -> tuple[Tensor, Tensor]:
    """Mean and variance of N(mean, spread^2) on [low, high], by the midpoint rule."""
    a = torch.full_like(mean, low)
    b = torch.minimum(torch.full_like(mean, high), torch.maximum(mean, a) + 9 * spread)
    x = a + (b - a) * (torch.arange(20_000, dtype=F)[:, None] + 0.5) / 20_000
    weight = torch.softmax(-0.5 * ((x - mean) / spread).square(), 0)
    centre = (weight * x).sum(0)
    return centre, (weight * (x - centre).square()).sum(0)


def errors(z: Tensor, mean: Tensor, variance: Tensor) -> tuple[float, float]:
    """z: root mean square over coordinates of the error of the mean in standard errors; mean ratio of variances."""
    off = (z.mean(0) - mean) * (len(z) / variance).sqrt()
    return float(off.square().mean().sqrt()), float((z.var(0) / variance).mean())


def gaussian(mean: Tensor, spread: Tensor, steps: int, **more: Any) -> casal.Target:
    d = len(mean)
    more.setdefault("init", lambda n, stream: 2.0 * torch.randn(n, d, generator=stream, dtype=F))
    return casal.langevin(lambda x: (x - mean.to(x)) / spread.to(x).square(), steps=steps, step_size=0.1, **more)


@pytest.mark.statistical
@pytest.mark.parametrize("high", [INF, 1.0], ids=["orthant", "two-sided"])
def test_independent_coordinates_in_fifty_dimensions(high: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """z = 1 +- 0.1 for exact draws; clamped instead of reflected the same run is far off."""
    mean, spread = half_below(50)
    right = truncated_moments(mean, spread, 0.0, high)
    target, box_ = gaussian(mean, spread, 250), casal.Box(0.0, high)
    result = casal.sample(target, box_, ReflectedHMC(), 400)
    z, ratio = errors(result.samples, *right)
    assert z < 1.4 and abs(ratio - 1.0) < 0.04
    assert result.fidelity.verdict == "trusted" and result.fidelity.figures["memory"] < 0.375
    assert result.cost.score_evaluations <= 250 + 1
    assert not bool(((result.samples <= 0.0) | (result.samples >= high)).any())

    def clamped(z: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return torch.minimum(torch.maximum(z, low), high), torch.ones_like(z)

    monkeypatch.setattr(reflected_hmc, "fold", clamped)
    wrong = casal.sample(target, box_, ReflectedHMC(), 400, check=False)
    assert errors(wrong.samples, *right)[0] > 2.0


@pytest.mark.statistical
def test_a_dirichlet_density_that_is_known_on_the_simplex_alone() -> None:
    """Mean a / A and variance m (1 - m) / (A + 1); the logarithms are not defined off the set."""
    a = torch.linspace(2.0, 6.0, 12, dtype=F)
    start = torch.rand(400, 12, generator=generator(3), dtype=F) + 0.1
    target = casal.langevin(
        lambda x: -(a - 1) / x,
        steps=400,
        step_size=1e-3,
        init=start / start.sum(1, keepdim=True),
        potential=lambda x: -((a - 1) * x.log()).sum(1),
    )
    result = casal.sample(target, casal.Simplex(1.0), ReflectedHMC(), 400)
    mean = a / a.sum()
    z, ratio = errors(result.samples, mean, mean * (1 - mean) / (a.sum() + 1))
    assert z < 1.8 and abs(ratio - 1.0) < 0.1  # 11 free coordinates: z = 1 +- 0.2
    assert float((result.samples.sum(1) - 1.0).abs().max()) < 1e-12 and bool((result.samples > 0).all())


@pytest.mark.statistical
def test_a_turned_density_behind_an_orthogonal_decoder() -> None:
    """A x with A A^T = 4 I: the law of z is that of the density of A^T z / 4."""
    d = 20
    turn = torch.linalg.qr(normal(31, d, d)).Q
    mean, spread = half_below(d)

    def grad(x: Tensor) -> Tensor:  # z = 2 Q x is N(mean, spread^2)
        return 2.0 * (((2.0 * x @ turn.T) - mean) / spread.square()) @ turn

    init = casal.GaussianStart(d, std=0.7, dtype=F)
    target = casal.langevin(grad, steps=200, step_size=0.02, init=init)
    decoder = casal.Linear(2.0 * turn)
    result = casal.sample(target, ORTHANT, ReflectedHMC(), 400, decoder=decoder)
    z, ratio = errors(result.samples, *truncated_moments(mean, spread))
    assert z < 1.5 and abs(ratio - 1.0) < 0.06
    torch.testing.assert_close(2.0 * result.state.x @ turn.T, result.samples)


@pytest.mark.statistical
def test_chains_with_bounds_of_their_own() -> None:
    """Every chain on [0, c_i] with its own c: no resampling, so no two need the same set."""
    n, d = 600, 4
    top = torch.linspace(0.5, 2.0, n, dtype=F)[:, None].expand(n, d)
    target = gaussian(torch.zeros(d, dtype=F), torch.ones(d, dtype=F), 120)
    result = casal.sample(target, casal.Box(0.0, casal.PerChain(top)), ReflectedHMC(), n, run=casal.Run(batch=200))
    mean, variance = truncated_moments(torch.zeros(n, dtype=F), torch.ones(n, dtype=F), 0.0, INF)
    line = (torch.arange(4000, dtype=F)[:, None] + 0.5) / 4000 * top[:, 0]
    weight = torch.softmax(-0.5 * line.square(), 0)
    mean = (weight * line).sum(0)
    variance = (weight * (line - mean).square()).sum(0)
    off = (result.samples - mean[:, None]) / variance.sqrt()[:, None]
    assert bool((result.samples < top).all())
    assert float(off.mean().abs()) < 4.0 / math.sqrt(n * d)
    assert float(off.square().mean()) == pytest.approx(1.0, abs=4.0 * math.sqrt(2.0 / (n * d)))


# ------------------------------------------------------------------------------------------------- modes


def two_modes(d: int, far: float) -> tuple[Any, Any, float]:
    """Potential and gradient of two Gaussians in the orthant with the weights .7 and .3, and where one ends."""
    a, b = torch.full((d,), 1.0, dtype=F), torch.full((d,), 1.0 + far, dtype=F)
    mass = [d * math.log(0.5 * (1 + math.erf(float(m[0]) / math.sqrt(2)))) for m in (a, b)]
    log_weight = torch.tensor([math.log(0.7) - mass[0], math.log(0.3) - mass[1]], dtype=F)

    def logs(x: Tensor) -> Tensor:
        return torch.stack([log_weight[k] - (x - m).square().sum(1) / 2 for k, m in enumerate((a, b))])

    def grad(x: Tensor) -> Tensor:
        weight = torch.softmax(logs(x), 0)
        return weight[0][:, None] * (x - a) + weight[1][:, None] * (x - b)

    return (lambda x: -torch.logsumexp(logs(x), 0)), grad, 1.0 + far / 2


@pytest.mark.statistical
def test_a_tempered_start_weighs_the_modes_and_another_says_that_it_does_not() -> None:
    f, grad, middle = two_modes(8, 4.0)
    start = casal.GaussianStart(8, std=2.0, mean=4.0, dtype=F)
    target = casal.langevin(grad, steps=500, step_size=0.2, init=start, potential=f)
    result = casal.sample(target, ORTHANT, ReflectedHMC(), 2000)
    share = result.expect(lambda z: (z.mean(1) > middle).to(F))
    assert float(result.trace["tempered"]) == 1.0
    assert abs(float(share.value) - 0.3) < 4.0 * float(share.standard_error)
    assert 0.005 < float(share.standard_error) < 0.08
    free = casal.sample(target, ORTHANT, ReflectedHMC(temper=False), 2000)
    wrong = float((free.samples.mean(1) > middle).to(F).mean())
    assert abs(wrong - 0.3) > 0.1
    assert free.fidelity.verdict == "suspect" and "not forgotten" in free.fidelity.reasons[0]
    assert any("keep the weights of the starting points" in reason for reason in free.fidelity.reasons)


def test_the_second_rule_is_taken_where_it_makes_a_difference() -> None:
    _, grad, _ = two_modes(8, 1.5)
    mixture = casal.langevin(grad, steps=200, step_size=0.3, init=lambda n, g: torch.rand(n, 8, generator=g, dtype=F))
    assert float(casal.sample(mixture, ORTHANT, ReflectedHMC(), 200, check=False).state.fine) == 1.0
    one = gaussian(torch.zeros(8, dtype=F), torch.ones(8, dtype=F), 200)
    result = casal.sample(one, ORTHANT, ReflectedHMC(), 200, check=False)
    assert float(result.state.fine) == 0.0


def test_a_tempered_start_that_cannot_end_is_given_up() -> None:
    """A start a thousand times too wide and 20 evaluations: chains go on without weights, and the result says so."""
    d = 20
    target = casal.energy(
        lambda x: x.square().sum(1) / 2, steps=20, step_size=0.3, init=casal.GaussianStart(d, std=1e3, dtype=F)
    )
    result = casal.sample(target, ORTHANT, ReflectedHMC(), 200)
    assert float(result.trace["tempered"]) == 0.0
    assert len(result.ancestors.unique()) > 5
    assert result.fidelity.verdict == "suspect"
    assert any("tempered start failed" in reason for reason in result.fidelity.reasons)


# ------------------------------------------------------------------------------------------------- the population


def test_the_next_share_leaves_enough_chains() -> None:
    """A quarter of the chains with gain 7, the others 0: the effective share is (w + 3)^2 / (4 (w^2 + 3))."""
    gain = torch.zeros(400, dtype=F)
    gain[:100] = 7.0
    b = largest_share(Groups(), 0.2, gain, LEAST_ESS)
    w = math.exp(7.0 * (b - 0.2))
    assert (w + 3) ** 2 / (4 * (w**2 + 3)) == pytest.approx(LEAST_ESS, abs=1e-9)
    assert largest_share(Groups(), 0.9, gain, LEAST_ESS) == 1.0


def test_the_widest_direction_is_that_of_the_population_not_of_noise() -> None:
    n, d = 400, 200
    z = normal(41, n, d)
    assert widest(z, torch.ones(1, d, dtype=F), generator(0)) == 1.0
    direction = torch.full((d,), d**-0.5, dtype=F)
    z = z + 3.0 * normal(42, n, 1) * direction
    assert widest(z, torch.ones(1, d, dtype=F), generator(0)) == pytest.approx(10.0, rel=4 * math.sqrt(2 / n))


def test_memory_is_a_correlation() -> None:
    n, d = 1000, 10
    before, fresh = normal(51, n, d), normal(52, n, d)
    found = memory(before, before)
    assert found is not None and found.value == pytest.approx(1.0)
    found = memory(before, fresh)
    assert found is not None and found.value < found.limit
    kept = fresh.clone()
    kept[:, 3] = 0.6 * before[:, 3] + 0.8 * fresh[:, 3]
    found = memory(before, kept)
    assert found is not None and found.value == pytest.approx(0.6, abs=0.1) and found.value > found.limit
    label = (torch.arange(n) % 2).long()
    shift = 10.0 * label[:, None]
    apart, within = memory(before + shift, fresh + shift), memory(before + shift, fresh + shift, label)
    assert apart is not None and within is not None and apart.value > 0.9 and within.value < within.limit
    assert memory(before[:10], fresh[:10]) is None


# ------------------------------------------------------------------------------------------------- what is refused


def test_what_it_cannot_do_is_refused_with_a_way_out() -> None:
    target = gaussian(torch.zeros(4, dtype=F), torch.ones(4, dtype=F), 30)
    with pytest.raises(SettingError, match=r"single coordinates.*WeightedCASAL"):
        casal.sample(target, casal.Sphere(1.0), ReflectedHMC(), 20)
    with pytest.raises(SettingError, match=r"square decoder, this one is 6 x 4"):
        decoder = casal.Linear(torch.linalg.qr(normal(61, 6, 4)).Q)
        casal.sample(target, ORTHANT, ReflectedHMC(), 20, decoder=decoder)
    with pytest.raises(SettingError, match=r"A A\^T = c I, this one is .* off; use WeightedCASAL"):
        casal.sample(target, ORTHANT, ReflectedHMC(), 20, decoder=casal.Linear(torch.diag(torch.arange(1.0, 5.0))))
    diffusion = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(9, 0.1, 5.0), shape=(4,))
    with pytest.raises(SettingError, match="BoundedHMC for a diffusion"):
        casal.sample(diffusion, ORTHANT, ReflectedHMC(), 20)
    with pytest.raises(SettingError, match=r"warm_up .* got 1.5"):
        ReflectedHMC(warm_up=1.5)


def test_few_chains_and_steps_still_run() -> None:
    for n, steps in ((1, 1), (3, 7), (20, 2)):
        target = gaussian(torch.zeros(4, dtype=F), torch.ones(4, dtype=F), steps)
        result = casal.sample(target, casal.Simplex(1.0), ReflectedHMC(), n)
        assert bool(result.certificate.feasible.all()) and result.cost.score_evaluations <= steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_stay_inside_in_single_precision(dtype: torch.dtype) -> None:
    target = gaussian(torch.full((6,), -2.0), torch.ones(6), 60, init=torch.zeros(50, 6))
    result = casal.sample(target, casal.Box(0.0, 0.01), ReflectedHMC(), 50, run=casal.Run(dtype=dtype))
    assert result.samples.dtype == F and result.state.x.dtype == dtype
    assert float(result.certificate.violation.max()) == 0.0
    assert float(result.samples.mean()) == pytest.approx(0.005, abs=4 * 0.01 / math.sqrt(12 * 300))


def test_auto_takes_it_for_bounds_on_most_coordinates_of_a_density_in_many_dimensions() -> None:
    def chosen(d: int, constraint: casal.Constraint) -> str:
        target = gaussian(torch.zeros(d, dtype=F), torch.ones(d, dtype=F), 60)
        return str(casal.sample(target, constraint, "auto", 50, check=False).provenance["method"])

    few = torch.full((20,), -INF, dtype=F)
    few[:5] = 0.0
    assert chosen(20, ORTHANT) == chosen(20, casal.Simplex(5.0)) == "ReflectedHMC"
    assert chosen(4, ORTHANT) == chosen(20, casal.Sphere(4.0)) == chosen(20, casal.Box(few, INF)) == "WeightedCASAL"


def test_compiling_is_said_to_have_no_effect() -> None:
    target = gaussian(torch.zeros(4, dtype=F), torch.ones(4, dtype=F), 20)
    eager = casal.sample(target, ORTHANT, ReflectedHMC(), 40)
    with pytest.warns(CasalWarning, match="compile=True has no effect on steps of ReflectedHMC"):
        compiled = casal.sample(target, ORTHANT, ReflectedHMC(), 40, run=casal.Run(compile=True))
    assert torch.equal(compiled.samples, eager.samples)


def test_a_step_that_does_not_fit_is_no_doubt_because_it_adapts() -> None:
    """A start of step a thousand times too small or too large, and a density that has no integral off the set."""
    for step in (1e-6, 1e3):
        target = casal.energy(
            lambda x: -2.0 * x.sum(1),
            steps=200,
            step_size=step,
            init=lambda n, g: torch.randn(n, 16, generator=g, dtype=F),
        )
        for method in (ReflectedHMC(), "auto"):
            result = casal.sample(target, casal.Box(0.0, 1.0), method, 400)
            right = 1 / (1 - math.exp(-2.0)) - 0.5
            assert float(result.samples.mean()) == pytest.approx(right, abs=4 * 0.27 / math.sqrt(400 * 16))
            assert result.fidelity.verdict == "trusted"
            assert not any("integral" in reason or "step_size" in reason for reason in result.fidelity.reasons)


@pytest.mark.statistical
def test_a_mode_that_a_tempered_start_loses_is_missed_by_its_scouts() -> None:
    """A narrow mode of weight .7 in 50 dimensions, which becomes heavy only near b = 1; the starting points find it."""
    d, narrow, broad = 50, 0.3, 2.3
    log_mass = [d * math.log(0.5 * (1 + math.erf(m / math.sqrt(2)))) for m in (narrow, broad)]
    heights = (math.log(0.7) - log_mass[0], math.log(0.3) - log_mass[1])

    def logs(x: Tensor) -> Tensor:
        parts = zip(heights, (narrow, broad), strict=True)
        return torch.stack([height - (x - m).square().sum(1) / 2 for height, m in parts])

    start = casal.GaussianStart(d, std=2.0, mean=1.0, dtype=F)
    target = casal.energy(lambda x: -torch.logsumexp(logs(x), 0), steps=500, step_size=0.2, init=start)
    result = casal.sample(target, ORTHANT, ReflectedHMC(), 400)
    assert float((result.samples.mean(1) > 1.9).to(F).mean()) > 0.99
    assert float(result.trace["lost"]) >= 2
    assert result.fidelity.verdict == "suspect" and "end in a mode" in result.fidelity.reasons[0]
    one = casal.langevin(
        lambda x: x - 0.5, steps=300, step_size=0.1, init=start, potential=lambda x: (x - 0.5).square().sum(1) / 2
    )
    right = casal.sample(one, ORTHANT, ReflectedHMC(), 400)
    assert float(right.trace["lost"]) == 0 and right.fidelity.verdict == "trusted"
