"""BoundedHMC: its parts against quadrature and autograd, its law against truncated normals and exact Gibbs sampling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods import Problem, bounded_hmc
from casal.methods.bounded_hmc import (
    BoundedHMC,
    Bounds,
    Common,
    Level,
    Shared,
    bounds_of,
    draw_inside,
    measure,
    potential,
    restricted,
    shared_weights,
)
from casal.methods.population import Groups

F = torch.float64
INF = math.inf
ORTHANT = casal.Box(0.0, INF)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian_target(
    mean: Tensor, spread: Tensor, basis: Tensor | None = None, *, low: float = 0.05, dtype: torch.dtype = F
) -> casal.Target:
    """The exact denoiser of N(mean, Q diag(spread^2) Q^T)."""
    Q = torch.eye(len(mean), dtype=F) if basis is None else basis

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        gain = spread.square() / (spread.square() + float(sigma) ** 2)
        return (mean + ((x.to(F) - mean) @ Q * gain) @ Q.T).to(x.dtype)

    return casal.edm(denoise, casal.karras_sigmas(40, low, 40.0), shape=(len(mean),), dtype=dtype, time="scalar")


def problem_for(target: casal.Target, constraint: casal.Constraint, decoder: casal.Decoder | None = None) -> Problem:
    like = torch.empty((0, *target.init(1, generator(0)).shape[1:]), dtype=F)  # type: ignore[operator]
    return Problem(target, constraint, decoder or casal.Identity(), like)


def half_below(d: int) -> tuple[Tensor, Tensor]:
    """Means and deviations of independent coordinates, every other one with its mean one deviation below zero."""
    spread = 0.5 + 1.5 * torch.rand(d, generator=generator(5), dtype=F)
    return torch.where(torch.arange(d) % 2 == 0, -spread, spread), spread


def truncated_moments(mean: Tensor, spread: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of N(mean, spread^2) on [low, high], by the midpoint rule."""
    a = torch.maximum(low, mean - 9 * spread)
    b = torch.minimum(high, torch.maximum(mean, a) + 9 * spread)
    x = a + (b - a) * (torch.arange(20_000, dtype=F)[:, None] + 0.5) / 20_000
    log_weight = -0.5 * ((x - mean) / spread).square()
    weight = torch.softmax(log_weight, 0)
    centre = (weight * x).sum(0)
    return centre, (weight * (x - centre).square()).sum(0)


def errors(z: Tensor, mean: Tensor, variance: Tensor) -> tuple[float, float]:
    """z: root mean square over coordinates of the error of the mean in standard errors; mean ratio of variances."""
    z = z.flatten(1)
    off = (z.mean(0) - mean) * (len(z) / variance).sqrt()
    return float(off.square().mean().sqrt()), float((z.var(0) / variance).mean())


def check(result: casal.SampleResult, mean: Tensor, variance: Tensor, edges: tuple[float, ...] = (0.0,)) -> None:
    """The bars: feasible, nothing on a bound, z <= 1.3 (exact draws: 1 +- 0.7 / sqrt(d)), variances within 5 %."""
    z, ratio = errors(result.samples, mean, variance)
    assert float(result.certificate.violation.max()) <= 1e-12
    assert not any(bool((result.samples == edge).any()) for edge in edges)
    assert z <= 1.3
    assert abs(ratio - 1.0) <= 0.05


# ------------------------------------------------------------------------------------------------- the parts


INTERVALS = [(-1.0, 2.0), (0.5, INF), (-INF, -0.7), (-INF, INF), (3.0, 3.001), (-0.2, 0.2), (6.0, 7.0), (-9.0, INF)]


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_a_restricted_normal_has_the_moments_of_quadrature(low: float, high: float) -> None:
    at = restricted(torch.tensor([low, low], dtype=F), torch.tensor([high, high - 0.0], dtype=F))
    one = torch.ones(1, dtype=F)
    mean, variance = truncated_moments(0 * one, one, low * one, high * one)
    mass = 0.5 * (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)))
    if mass > 1e-6:
        assert float(at.log_mass[0]) == pytest.approx(math.log(mass), abs=1e-9)
    assert float(at.shift[0]) == pytest.approx(float(mean), abs=1e-6)
    assert float(1.0 - at.narrowing[0]) == pytest.approx(float(variance), abs=1e-6)


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_each_moment_is_the_derivative_of_the_one_before(low: float, high: float) -> None:
    h = 1e-4

    def at(m: float) -> Any:
        return restricted(torch.tensor([low - m], dtype=F), torch.tensor([high - m], dtype=F))

    up, here, down = at(h), at(0.0), at(-h)
    for value, slope, sign in (("log_mass", "shift", 1.0), ("shift", "narrowing", -1.0), ("narrowing", "turn", 1.0)):
        found = float((getattr(up, value) - getattr(down, value)) / (2 * h))
        assert sign * float(getattr(here, slope)) == pytest.approx(found, abs=2e-5)


def test_far_tails_keep_their_digits() -> None:
    t = torch.tensor([30.0, 300.0, 3e4], dtype=F)
    one_sided, two_sided = restricted(t, torch.full_like(t, INF)), restricted(t, t + 1e3)
    for at in (one_sided, two_sided):
        # mean of the tail: t + 1/t - 2/t^3, variance 1/t^2 - 6/t^4
        torch.testing.assert_close(at.shift, t + 1 / t - 2 / t**3, rtol=1e-6, atol=0)
        assert bool(((1.0 - at.narrowing) < 2 / t**2 + 1e-7).all()) and bool(torch.isfinite(at.log_mass).all())


@pytest.mark.parametrize("equation", [False, True])
@pytest.mark.parametrize("high", [INF, 1.5])
def test_the_slope_is_the_gradient_of_the_potential(equation: bool, high: float) -> None:
    k, g = 6, generator(2)
    low = torch.zeros(1, k, dtype=F)
    normal = torch.rand(k, generator=g, dtype=F) - 0.3 if equation else None
    bounds = Bounds(low, torch.full_like(low, high), normal, torch.full((1, 1), 0.8, dtype=F))
    common = Common(
        0.2 + torch.rand(1, k, generator=g, dtype=F), torch.tensor(0.7, dtype=F), torch.tensor(1.3, dtype=F)
    )
    mean = torch.randn(5, k, generator=g, dtype=F)
    slope, h = potential(bounds, mean, common).slope, 1e-5
    for i in range(k):
        step = torch.zeros(k, dtype=F)
        step[i] = h
        found = (potential(bounds, mean + step, common).value - potential(bounds, mean - step, common).value) / (2 * h)
        torch.testing.assert_close(slope[:, i], found, rtol=1e-5, atol=1e-7)


def test_sets_are_read_off_their_rows() -> None:
    target = gaussian_target(torch.zeros(3, dtype=F), torch.ones(3, dtype=F))

    def read(constraint: casal.Constraint) -> Bounds:
        return bounds_of(problem_for(target, constraint))

    box = read(casal.Box(torch.tensor([0.1, -INF, -1e8], dtype=F), torch.tensor([INF, 2.0, 3.0])))
    assert box.low.tolist() == [[0.1, -INF, -1e8]] and box.high.tolist() == [[INF, 2.0, 3.0]] and box.normal is None
    simplex = read(casal.Simplex(2.0))
    assert simplex.low.tolist() == [[0.0] * 3] and simplex.normal is not None
    assert simplex.normal.tolist() == pytest.approx([1.0] * 3) and float(simplex.level) == pytest.approx(2.0)
    both = read(casal.Box(0.0, 1.0) & casal.Affine([[1.0, 2.0, 0.0]], [1.5]))
    assert both.normal is not None and float(both.normal[1] / both.normal[0]) == pytest.approx(2.0)
    assert float(both.level / both.normal[0]) == pytest.approx(1.5)
    assert read(casal.HalfSpace([0.0, -2.0, 0.0], 3.0)).low.tolist() == [[-INF, -1.5, -INF]]
    own = read(casal.Simplex(casal.PerChain([1.0, 2.0])))
    assert own.level.flatten().tolist() == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    "constraint",
    [
        casal.Sphere(1.0),
        casal.Monotone(),
        casal.HalfSpace([1.0, 1.0, 0.0], 1.0),
        casal.Affine([[1.0, 1.0, 1.0]], [1.0]),
        casal.Box(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])),
        casal.Box(0.0, 1.0) & casal.Affine([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], [1.0, 1.0]),
        casal.Union(casal.Box(0.0, 1.0), casal.Box(2.0, 3.0)),
    ],
    ids=str,
)
def test_other_sets_are_refused_with_the_way_out(constraint: casal.Constraint) -> None:
    target = gaussian_target(torch.zeros(3, dtype=F), torch.ones(3, dtype=F))
    with pytest.raises(SettingError, match=r"LookAhead .* or SplitGibbs"):
        casal.sample(target, constraint, BoundedHMC(), 32)


def test_settings_and_models_that_cannot_work_are_refused() -> None:
    target = gaussian_target(torch.zeros(3, dtype=F), torch.ones(3, dtype=F))
    for settings in (
        {"levels": 1},
        {"leapfrogs": -1},
        {"trajectories": 0},
        {"ess": 1.5},
        {"sigma_max": 0.0},
    ):
        with pytest.raises(SettingError):
            BoundedHMC(**settings)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="16"):
        casal.sample(target, ORTHANT, BoundedHMC(), 8)
    for method in (BoundedHMC(sigma_max=100.0), BoundedHMC(sigma_min=0.01), BoundedHMC(sigma_max=1.0, sigma_min=2.0)):
        with pytest.raises(SettingError, match="sigma"):
            casal.sample(target, ORTHANT, method, 32)
    with pytest.raises(SettingError, match="denoiser"):
        casal.sample(
            casal.langevin(lambda x: -x, steps=10, step_size=0.1, init=torch.zeros(32, 3)), ORTHANT, BoundedHMC(), 32
        )
    with pytest.raises(SettingError, match="A A\\^T = c I"):
        casal.sample(target, ORTHANT, BoundedHMC(), 32, decoder=casal.Linear(torch.randn(3, 3, generator=generator(0))))
    blind = casal.edm(lambda x, s: (x / (1 + s**2)).detach(), [4.0, 1.0, 0.1], shape=(3,), dtype=F, time="scalar")
    with pytest.raises(SettingError, match="autograd"):
        casal.sample(blind, ORTHANT, BoundedHMC(), 32)


def smooth_field(d: int, power: float) -> tuple[Tensor, Tensor]:
    """Deviations and basis of a stationary field on a ring with the spectrum (1 + f)^-power and variance one."""
    j, f = torch.arange(d, dtype=F)[:, None], torch.arange(1, d // 2, dtype=F)
    waves = [torch.ones(d, 1, dtype=F) / math.sqrt(d)]
    angle = 2 * math.pi * j * f / d
    waves += [torch.cos(angle) * math.sqrt(2 / d), torch.sin(angle) * math.sqrt(2 / d)]
    waves.append(torch.cos(math.pi * j) / math.sqrt(d))
    frequency = torch.cat([torch.zeros(1, dtype=F), f, f, torch.tensor([d / 2], dtype=F)])
    variance = (1 + frequency) ** -power
    return (variance * d / variance.sum()).sqrt(), torch.cat(waves, 1)


def test_variance_and_participation_are_measured() -> None:
    """tau = (tr C)^2 / (d tr C^2), q = 1 . C 1 / sum V."""
    d, n, s = 16, 4000, 1.0
    spread, Q = smooth_field(d, 1.0)
    target = gaussian_target(torch.zeros(d, dtype=F), spread, Q)
    problem = problem_for(target, casal.Simplex(4.0))
    method, g = BoundedHMC(), generator(3)
    state = method.start(problem, torch.randn(n, d, generator=g, dtype=F), g)
    state = method.probe(problem, state, Level(s, None), torch.randn(n, d, generator=g, dtype=F))
    common = measure(bounds_of(problem), state, bounded_hmc._kinds(problem, bounds_of(problem), n), s)
    eigenvalues = spread.square() * s**2 / (spread.square() + s**2)
    assert float(common.tau) == pytest.approx(
        float(eigenvalues.sum() ** 2 / (d * eigenvalues.square().sum())), rel=0.03
    )
    assert float(common.variance.mean()) == pytest.approx(float(eigenvalues.mean()), rel=0.03)
    assert float(common.ratio) == pytest.approx(float(eigenvalues[0] * d / eigenvalues.sum()), rel=0.03)


class Exact:
    """Independent coordinates, where psi is exact: x0 truncated, plus noise, follows pi_s."""

    def __init__(self, s: float, n: int, d: int = 8) -> None:
        mean, spread = half_below(d)
        self.problem = problem_for(gaussian_target(mean, spread), ORTHANT)
        self.method, g = BoundedHMC(), generator(7)
        low = torch.zeros(1, d, dtype=F)
        bounds = Bounds(low, torch.full_like(low, INF), None, torch.zeros(1, 1, dtype=F))
        self.clean = draw_inside(bounds, mean.expand(n, d), spread.square().expand(n, d), g)
        x = self.clean + s * torch.randn(n, d, generator=g, dtype=F)
        state = self.method.start(self.problem, x, g)
        state = self.method.probe(self.problem, state, Level(s, None), torch.randn(n, d, generator=g, dtype=F))
        state, _ = self.method.agree(Groups(), Level(s, None), self.problem, state, g)
        self.state, self.generator, self.moments = state, g, truncated_moments(mean, spread, low[0], low[0] + INF)


@pytest.mark.parametrize("s", [0.3, 2.0])
def test_trajectories_leave_the_distribution_of_a_level_unchanged(s: float) -> None:
    exact = Exact(s, n := 4000)
    state = exact.state._replace(leapfrogs=torch.tensor(6.0, dtype=F), size=torch.tensor(0.9, dtype=F))
    before = state.x
    for _ in range(4):
        state = exact.method.trajectory(
            exact.problem, state, Level(s, None), torch.randint(1 << 62, (), generator=exact.generator)
        )
    assert 0.5 < float(state.accepted.mean()) < 1.0
    assert float((state.x - before).square().mean()) > 0.5 * s**2
    z, ratio = errors(state.x, exact.moments[0], exact.moments[1] + s**2)
    assert z < 1.6 and abs(ratio - 1.0) < 4 / math.sqrt(n)


def test_the_step_between_levels_is_paid_by_weights() -> None:
    """For independent coordinates P(C) is the same at all levels, so the weights have mean one."""
    s, to, n = 1.0, 0.7, 4000
    exact = Exact(s, n)
    state = exact.state._replace(leapfrogs=torch.tensor(0.0, dtype=F))
    state = exact.method.trajectory(exact.problem, state, Level(s, None), torch.tensor(1))  # the gradient at x
    state = exact.method.predict(
        exact.problem, state, Level(to, s), torch.randn(n, 8, generator=exact.generator, dtype=F)
    )
    state = exact.method.probe(
        exact.problem, state, Level(to, s), torch.randn(n, 8, generator=exact.generator, dtype=F)
    )
    new, _ = exact.method.agree(Groups(), Level(to, s), exact.problem, state, exact.generator)
    weight = torch.exp(new.plain - state.plain)
    error = float(weight.std()) / math.sqrt(n)
    assert abs(float(weight.mean()) - 1.0) < 4 * error
    assert error < 0.02
    mean = (weight[:, None] * new.x).mean(0) / weight.mean()
    off = (mean - exact.moments[0]) * (n / (exact.moments[1] + to**2)).sqrt()
    assert float(off.square().mean().sqrt()) < 1.6


def test_the_last_draw_has_the_moments_of_quadrature() -> None:
    """Three coordinates with a . z = 1: the plane is integrated over a fine grid."""
    a = torch.tensor([1.0, 2.0, -0.5], dtype=F)
    mean, variance = torch.tensor([-0.3, 0.4, 0.2], dtype=F), torch.tensor([0.5, 0.3, 0.8], dtype=F)
    low, high = torch.zeros(1, 3, dtype=F), torch.tensor([[INF, 0.9, 1.0]], dtype=F)
    bounds = Bounds(low, high, a, torch.ones(1, 1, dtype=F))
    n = 20_000
    z = draw_inside(bounds, mean.expand(n, 3), variance.expand(n, 3), generator(1))
    assert float((z @ a - 1.0).abs().max()) < 1e-12
    assert bool((z > low).all()) and bool((z < high).all())
    y, x = torch.meshgrid(
        (torch.arange(800, dtype=F) + 0.5) / 800 * 0.9, (torch.arange(800, dtype=F) + 0.5) / 800, indexing="ij"
    )
    first = 1.0 - a[1] * y - a[2] * x
    points = torch.stack([first, y, x], -1).reshape(-1, 3)
    points = points[points[:, 0] > 0]
    weight = torch.softmax((-0.5 * (points - mean).square() / variance).sum(1), 0)
    centre = weight @ points
    spread = weight @ (points - centre).square()
    off = (z.mean(0) - centre) * (n / spread).sqrt()
    assert float(off.abs().max()) < 4.0
    torch.testing.assert_close(z.var(0), spread, rtol=0.05, atol=0)


def test_shared_weights_keep_what_separates_and_forget_the_rest() -> None:
    n, g, all_chains = 1000, generator(4), Groups()
    mode = (torch.arange(n) % 2).to(F)
    mixed = torch.randn(n, 5, generator=g, dtype=F)
    apart = mixed + 12.0 * mode[:, None] * torch.eye(5, dtype=F)[0]
    noise = 0.7 * torch.randn(n, generator=g, dtype=F)
    start = Shared(0 * noise, 0 * noise)
    found = shared_weights(all_chains, apart, start, noise + mode, g)
    value = found.shrunk(all_chains)
    limit = 4 * 0.7 * math.sqrt(4 / n)
    assert float(value[mode == 1].mean() - value[mode == 0].mean()) == pytest.approx(1.0, abs=limit)
    assert float(value[mode == 0].std()) < 0.15
    kept = shared_weights(all_chains, apart, Shared(mode, 0 * mode), 0 * noise, g).shrunk(all_chains)
    assert float(kept[mode == 1].mean() - kept[mode == 0].mean()) == pytest.approx(1.0, abs=1e-3)
    alone = shared_weights(all_chains, mixed, start, noise, g)
    assert float(alone.shrunk(all_chains).std()) < 0.1 * 0.7 < float(alone.value.std())
    forgotten = shared_weights(all_chains, mixed, Shared(mode, 0 * mode), 0 * noise, g)  # mode says nothing any more
    assert float(forgotten.value.std()) < 0.3 * float(mode.std())


# ------------------------------------------------------------------------------------------------- the distribution


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_independent_coordinates_far_from_the_prior(dtype: torch.dtype) -> None:
    """Half the means lie one deviation outside; P(C) = 1e-31."""
    mean, spread = half_below(64)
    zero = torch.zeros_like(mean)
    result = casal.sample(gaussian_target(mean, spread, dtype=dtype), ORTHANT, BoundedHMC(levels=50), 400, seed=1)
    check(result, *truncated_moments(mean, spread, zero, zero + INF))
    assert result.cost.score_evaluations == pytest.approx(50 * (4 + 2 * 8), rel=0.03)
    assert int(result.trace["ancestors"][-1]) > 300
    assert result.samples.dtype == F and result.fidelity.verdict == "trusted"


@pytest.mark.statistical
def test_bounds_far_out_in_the_tail() -> None:
    """What is left there is narrow. One long trajectory a level made it 1.3 times as wide.

    The narrowest quarter of 64 coordinates, 512 chains: the mean variance ratio has a standard error of 0.02.
    """
    d, stream = 64, generator(7)
    mean = torch.randn(d, generator=stream, dtype=torch.float64)
    spread = torch.exp(0.4 * torch.randn(d, generator=stream, dtype=torch.float64))
    low, high = torch.full_like(mean, 3.0), torch.full_like(mean, 4.0)
    expected, variance = truncated_moments(mean, spread, low, high)
    result = casal.sample(gaussian_target(mean, spread, low=0.02), casal.Box(3.0, 4.0), BoundedHMC(), 512, seed=1)
    check(result, expected, variance, (3.0, 4.0))
    narrow = variance.argsort()[: d // 4]
    assert abs(float((result.samples.var(0) / variance)[narrow].mean()) - 1.0) < 0.08


@pytest.mark.statistical
def test_bounds_on_both_sides_one_side_and_none() -> None:
    mean, spread = half_below(32)
    place = torch.arange(32)
    low = torch.where(place % 4 == 0, -INF, 0.1).to(F)
    high = torch.where(place % 2 == 0, 0.8, INF).to(F)
    low[5], high[5] = -INF, INF
    result = casal.sample(gaussian_target(mean, spread), casal.Box(low, high), BoundedHMC(levels=40), 400, seed=2)
    check(result, *truncated_moments(mean, spread, low, high), edges=(0.1, 0.8))


def truncated_draw(mean: Tensor, spread: float, low: Tensor, high: Tensor, g: torch.Generator) -> Tensor:
    """N(mean, spread^2) on [low, high], by inversion; good to a few deviations outside."""
    a, b = (torch.special.ndtr((side - mean) / spread) for side in (low, high))
    u = a + (b - a) * torch.rand(mean.shape, generator=g, dtype=F)
    return torch.clamp(mean + spread * torch.special.ndtri(u.clamp(1e-300, 1 - 1e-16)), low, high)


def gibbs_moments(mean: Tensor, precision: Tensor, total: float | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of N(mean, precision^-1) on z >= 0 (and sum z = total), by Gibbs sampling of many chains."""
    d, n, g = len(mean), 1000, generator(9)
    z = torch.rand(n, d, generator=g, dtype=F) + 0.2
    z = z if total is None else z * total / z.sum(1, keepdim=True)
    first, second, kept = torch.zeros(d, dtype=F), torch.zeros(d, dtype=F), 0
    for sweep in range(160):
        for i in range(d):
            j = int(torch.randint(d - 1, (), generator=g))
            j += j >= i
            way = torch.zeros(d, dtype=F)
            way[i] = 1.0
            if total is not None:
                way[j] = -1.0
            along = precision @ way
            spread = float(way @ along) ** -0.5
            centre = -((z - mean) @ along) * spread**2
            high = torch.full((n,), INF, dtype=F) if total is None else z[:, j].clone()
            z = z + truncated_draw(centre, spread, -z[:, i], high, g)[:, None] * way
        if sweep >= 40:
            first, second, kept = first + z.mean(0), second + z.square().mean(0), kept + 1
    return first / kept, second / kept - (first / kept).square()


@pytest.mark.statistical
@pytest.mark.parametrize("total", [None, 10.0], ids=["free", "fixed sum"])
def test_a_correlated_field_against_exact_gibbs_sampling(total: float | None) -> None:
    spread, Q = smooth_field(d := 16, 1.0)  # few directions are wide: over seeds z is 1.3 +- 0.3
    mean, precision = torch.zeros(d, dtype=F), Q / spread.square() @ Q.T
    constraint = ORTHANT if total is None else casal.Simplex(total)
    result = casal.sample(gaussian_target(mean, spread, Q), constraint, BoundedHMC(levels=40), 400, seed=2)
    check(result, *gibbs_moments(mean, precision, total))
    if total is not None:
        assert float((result.samples.sum(1) - total).abs().max()) < 1e-12 * total


@pytest.mark.statistical
def test_without_trajectories_the_distribution_is_wrong() -> None:
    """Power: the bars of ``check`` are missed without Hamiltonian Monte Carlo."""
    spread, Q = smooth_field(d := 16, 1.0)  # few directions are wide: over seeds z is 1.3 +- 0.3
    mean, precision = torch.zeros(d, dtype=F), Q / spread.square() @ Q.T
    method = BoundedHMC(levels=40, leapfrogs=0, ess=0.0)
    result = casal.sample(gaussian_target(mean, spread, Q), ORTHANT, method, 400, seed=3)
    z, ratio = errors(result.samples, *gibbs_moments(mean, precision, None))
    assert z > 1.3 or abs(ratio - 1.0) > 0.05


@pytest.mark.statistical
def test_without_tau_the_weights_of_a_smooth_field_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: the participation ratio is what keeps the plain weights of correlated coordinates even."""
    spread, Q = smooth_field(32, 2.0)
    target, method = gaussian_target(torch.full((32,), 0.5, dtype=F), spread, Q), BoundedHMC(levels=40)
    even = casal.sample(target, ORTHANT, method, 400, seed=4, check=False)
    assert float(even.trace["plain_ess"][-1]) > 200 and bool(even.trace["plain_weights"][-1])
    monkeypatch.setattr(bounded_hmc, "measure", lambda *v: measure(*v)._replace(tau=torch.ones((), dtype=F)))
    uneven = casal.sample(target, ORTHANT, method, 400, seed=4, check=False)
    assert float(uneven.trace["plain_ess"][-1]) < 100


class TwoModes:
    """Two Gaussian modes with independent coordinates: .97 and .03 of the prior, .6 and .4 of it on z >= 0."""

    def __init__(self, d: int = 48) -> None:
        g = generator(5)
        self.spread = 0.5 + torch.rand(2, d, generator=g, dtype=F)
        height = 0.3 * torch.randn(2, d, generator=g, dtype=F)
        quarter = d // 4
        height[0, :quarter], height[1, :quarter] = 1.5, 0.0
        height[1, quarter : 2 * quarter], height[0, quarter : 2 * quarter] = 1.5, 0.0
        low, high = -2.0, 2.0
        for _ in range(60):
            middle = (low + high) / 2
            gain = torch.special.log_ndtr(height[1] + middle).sum() - torch.special.log_ndtr(height[0]).sum()
            low, high = (low, middle) if float(gain) > 3.0 else (middle, high)
        height[1] += low
        self.mean, self.wanted = height * self.spread, torch.tensor([0.6, 0.4], dtype=F)
        self.log_weight = self.wanted.log() - torch.special.log_ndtr(height).sum(1)

    def logits(self, x: Tensor, s: float) -> Tensor:
        variance = self.spread.square() + s**2
        return self.log_weight - 0.5 * ((x[:, None] - self.mean).square() / variance + variance.log()).sum(2)

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        s = float(sigma)
        gain = self.spread.square() / (self.spread.square() + s**2)
        clean = self.mean + (x[:, None] - self.mean) * gain
        return (torch.softmax(self.logits(x, s), 1)[:, :, None] * clean).sum(1)

    def target(self) -> casal.Target:
        levels = casal.karras_sigmas(40, 0.05, 40.0)
        return casal.edm(self.denoise, levels, shape=(self.mean.shape[1],), dtype=F, time="scalar")

    def error(self, z: Tensor) -> float:
        share = torch.bincount(self.logits(z, 0.0).argmax(1), minlength=2) / len(z)
        return float((share - self.wanted).abs().sum()) / 2


@pytest.mark.statistical
def test_two_modes_have_their_weights() -> None:
    """The floor is 0.022 at n = 500; without weights the same chains are off (power)."""
    modes = TwoModes()
    result = casal.sample(modes.target(), ORTHANT, BoundedHMC(levels=50, leapfrogs=5), 500, seed=5, check=False)
    assert modes.error(result.samples) < 0.06
    assert int(result.trace["ancestors"][-1]) > 250
    ignored = BoundedHMC(levels=50, leapfrogs=5, ess=0.0)
    assert modes.error(casal.sample(modes.target(), ORTHANT, ignored, 500, seed=5, check=False).samples) > 0.06


@pytest.mark.statistical
@pytest.mark.parametrize("rows", [16, 6])
def test_behind_a_decoder_with_orthogonal_rows(rows: int) -> None:
    """z = A x, A A^T = 4 I, square or wide: the decoded coordinates are independent with known moments."""
    mean, spread = half_below(16)
    A = 2.0 * torch.linalg.qr(torch.randn(16, 16, generator=generator(6), dtype=F)).Q
    whole = gaussian_target(mean @ A / 4, spread / 2, A.T / 2, low=0.02)
    decoder = casal.Linear(A[:rows])
    result = casal.sample(whole, ORTHANT, BoundedHMC(levels=40), 400, seed=6, decoder=decoder)
    zero = torch.zeros(rows, dtype=F)
    z, ratio = errors(result.samples, *truncated_moments(mean[:rows], spread[:rows], zero, zero + INF))
    assert float(result.certificate.violation.max()) == 0.0
    assert z <= 1.5 and abs(ratio - 1.0) <= 0.08  # six coordinates: wider limits
    torch.testing.assert_close(decoder(result.state.x), result.samples)


@pytest.mark.statistical
def test_every_chain_may_have_its_own_bounds() -> None:
    mean, spread = half_below(16)
    low = torch.where(torch.arange(800) % 2 == 0, 0.0, 0.5)
    constraint = casal.Box(casal.PerChain(low), casal.PerChain(torch.full((800,), INF)))
    result = casal.sample(
        gaussian_target(mean, spread), constraint, BoundedHMC(levels=40), 800, seed=7, run=casal.Run(batch=300)
    )
    assert float(result.certificate.violation.max()) == 0.0
    for first, bound in ((0, 0.0), (1, 0.5)):
        side = torch.full((16,), bound, dtype=F)
        z, ratio = errors(result.samples[first::2], *truncated_moments(mean, spread, side, side + INF))
        assert z <= 1.4 and abs(ratio - 1.0) <= 0.06


@pytest.mark.statistical
def test_levels_below_the_scale_of_the_data_are_left_out() -> None:
    mean, spread = half_below(16)
    zero = torch.zeros_like(mean)
    target = gaussian_target(mean, spread, low=1e-4)
    result = casal.sample(target, ORTHANT, BoundedHMC(levels=50), 400, seed=8)
    check(result, *truncated_moments(mean, spread, zero, zero + INF))
    assert 0.005 < float(result.trace["sigma"][-1]) < 0.1
    to_the_end = casal.sample(target, ORTHANT, BoundedHMC(levels=6, sigma_min=1e-3, sigma_max=10.0), 16, seed=8)
    assert to_the_end.trace["sigma"].tolist()[0] == pytest.approx(10.0)
    assert to_the_end.trace["sigma"].tolist()[-1] == pytest.approx(1e-3)
