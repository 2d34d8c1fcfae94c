"""``LookAhead``: its cost, its bits, its refusals; then its distribution, and what fails without one of its parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal import LookAhead
from casal.errors import CasalWarning, SettingError
from casal.methods.look_ahead.features import features_of
from casal.methods.look_ahead.last_draw import _wanted
from casal.methods.look_ahead.look import Ahead
from casal.methods.look_ahead.state import flat, fold
from casal.methods.population import in_order
from casal.sampling import loop

from .gaussian import Prior, close, diagonal, log_psi, looked, normal, problem_for, stream

D, N, TILE = 5, 48, 16
SHORT = LookAhead(levels=6, moves=1, path=4)
PRIOR = diagonal(D)
A = normal(5, 2, D)
LEVEL = A @ PRIOR.mean
NORM = float(PRIOR.mean.norm())
WEIGHTS = torch.linspace(0.5, 1.5, D, dtype=torch.float64)


def term(x: Tensor) -> Tensor:
    """A soft term."""
    return -(x[:, 0] - 1.0).square()


def run(constraint: casal.Constraint, method: LookAhead = SHORT, n: int = N, **options: Any) -> casal.SampleResult:
    soft, seed = options.pop("term", None), options.pop("seed", 0)
    check = options.pop("check", False)
    return casal.sample(PRIOR.target(soft), constraint, method, n, seed=seed, check=check, run=casal.Run(**options))


def same(one: casal.SampleResult, other: casal.SampleResult) -> bool:
    return torch.equal(one.samples, other.samples) and all(
        torch.equal(p, q) for p, q in zip(one.state, other.state, strict=True)
    )


SETS: dict[str, casal.Constraint] = {
    "equations": casal.Affine(A, LEVEL),
    "norm": casal.Sphere(NORM),
    "equations and norm": casal.Affine(A, LEVEL) & casal.Sphere(NORM),
    "half-space": casal.HalfSpace(A[0], float(LEVEL[0])),
    "equation and half-space": casal.Affine(A[:1], LEVEL[:1]) & casal.HalfSpace(A[1], float(LEVEL[1])),
    "general": casal.Implicit(lambda z: z.square() @ WEIGHTS[:, None] - float(WEIGHTS @ PRIOR.mean.square())),
}
every_set = pytest.mark.parametrize("constraint", SETS.values(), ids=SETS)


# ------------------------------------------------------------------ samples and cost


@every_set
def test_samples_are_in_the_set(constraint: casal.Constraint) -> None:
    result = run(constraint, record_every=2)
    assert float(result.certificate.violation.max()) < 1e-12
    assert torch.equal(result.weights, torch.full((N,), 1 / N, dtype=torch.float64))
    assert result.state.x.shape == (N, D)
    assert bool((result.ancestors >= 0).all()) and len(result.ancestors.unique()) == int(result.trace["ancestors"][-1])


COUNTED = {name: (constraint, None) for name, constraint in SETS.items() if name != "general"}
COUNTED["soft term"] = (casal.Affine(A, LEVEL), term)  # type: ignore[assignment]


@pytest.mark.parametrize("method", [SHORT, LookAhead(levels=7, moves=0, width=1, probes=3)], ids=["moves", "no moves"])
@pytest.mark.parametrize(("constraint", "soft"), COUNTED.values(), ids=COUNTED)
def test_the_evaluations_that_are_said_are_taken(constraint: casal.Constraint, soft: Any, method: LookAhead) -> None:
    said = method.evaluations(problem_for(PRIOR, constraint, term=soft))
    assert run(constraint, method, term=soft).cost.score_evaluations == said


def test_general_rows_cost_what_is_said() -> None:
    constraint = SETS["general"]
    said = SHORT.evaluations(problem_for(PRIOR, constraint))
    assert run(constraint).cost.score_evaluations <= said


def test_many_equations_cost_no_more_than_is_said() -> None:
    prior = diagonal(24)
    constraint = casal.Affine(normal(6, 16, 24), normal(6, 16, 24) @ prior.mean)
    result = casal.sample(prior.target(), constraint, LookAhead(levels=20, moves=1, path=4), N, check=False)
    assert float(result.certificate.violation.max()) < 1e-12
    said = LookAhead(levels=20, moves=1, path=4).evaluations(problem_for(prior, constraint))
    assert 0.8 * said < result.cost.score_evaluations <= said


# ------------------------------------------------------------------ bits


@every_set
def test_the_seed_decides_and_threads_do_not(constraint: casal.Constraint) -> None:
    first = run(constraint, seed=3, batch=TILE, threads=1)
    assert same(first, run(constraint, seed=3, batch=TILE, threads=2))
    assert not bool((first.samples == run(constraint, seed=4, batch=TILE).samples).all(1).any())


def stopped_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Ctrl-C at the given step."""
    count, before = 0, loop.step_once

    def step_once(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == steps:
            raise KeyboardInterrupt
        return before(*args)

    monkeypatch.setattr(loop, "step_once", step_once)


# 3 tiles; 6 steps down, one up, 3 along the paths, one to draw
WHERE = {"down, four particles": 3 * 2 + 2, "down, one particle": 3 * 5 + 2, "along the paths": 3 * 8 + 2}


@pytest.mark.parametrize("steps", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("name", ["equations", "equations and norm"])
def test_a_stopped_run_is_in_the_set_and_goes_on_from_its_store(
    name: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)
    store, constraint = tmp_path / "run.zarr", SETS[name]
    with monkeypatch.context() as patch:
        stopped_after(patch, steps)
        with pytest.warns(CasalWarning, match="repeat the same call"):
            part = run(constraint, batch=TILE, threads=1, store=store)
    assert part.partial and float(part.certificate.violation.max()) < 1e-12
    whole = run(constraint, batch=TILE)
    assert same(run(constraint, batch=TILE, store=store), whole)
    assert same(casal.load(store), whole)


@pytest.mark.parametrize("steps", WHERE.values(), ids=WHERE)
def test_a_stopped_run_returns_what_it_has(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(monkeypatch, steps)
    with pytest.warns(CasalWarning, match="interrupted"):
        result = run(SETS["equations and norm"], batch=TILE, threads=1)
    assert result.partial and result.samples.shape == (N, D)
    assert float(result.certificate.violation.max()) < 1e-12


# ------------------------------------------------------------------ a set for every chain


def test_chains_keep_their_sets_and_resample_among_those_of_the_same() -> None:
    radius = torch.tensor([0.8 * NORM, NORM, 1.2 * NORM], dtype=torch.float64).repeat_interleave(16)
    result = run(casal.Sphere(casal.PerChain(radius)), LookAhead(levels=6, moves=1, path=4, ess=1.0), batch=20)
    close(result.samples.norm(dim=1), radius)
    families = [set(some.tolist()) for some in result.ancestors.split(16)]
    assert len(set.union(*families)) == sum(len(family) for family in families) < N


def test_levels_for_every_chain_and_inequalities_for_every_chain() -> None:
    level = LEVEL + torch.tensor([-0.5, 0.0, 0.5]).repeat_interleave(16)[:, None]
    equal = run(casal.Affine(A, casal.PerChain(level)), batch=20)
    close(equal.samples @ A.T, level)
    side = run(casal.HalfSpace(A[0], casal.PerChain(level[:, 0])), batch=20)
    assert bool((side.samples @ A[0] <= level[:, 0] + 1e-12).all())


def test_too_few_chains_of_a_set_are_refused() -> None:
    with pytest.raises(SettingError, match="at least 16 chains of each PerChain value and condition, found 1"):
        run(casal.Sphere(casal.PerChain(NORM + torch.linspace(0, 1, N))))


# ------------------------------------------------------------------ refusals


def test_a_fixed_density_is_refused() -> None:
    target = casal.langevin(lambda x: x, steps=10, step_size=0.1, init=lambda n, g: torch.randn(n, D, generator=g))
    with pytest.raises(SettingError, match="has no denoiser: this method needs a diffusion or flow model"):
        casal.sample(target, casal.Sphere(1.0), SHORT, N)


def test_a_denoiser_that_hides_its_derivative_is_refused() -> None:
    def denoise(x: Tensor, s: Tensor) -> Tensor:
        return PRIOR.denoise(x.detach(), s)

    target = casal.edm(denoise, casal.karras_sigmas(20, 0.02, 20.0), shape=D, churn=1.0, dtype=torch.float64)
    with pytest.raises(SettingError, match="autograd cannot differentiate through the denoiser"):
        casal.sample(target, casal.Sphere(1.0), SHORT, N, check=False)


def test_a_union_and_too_many_rows_are_refused() -> None:
    with pytest.raises(SettingError, match="no equations or inequalities with gradients"):
        run(casal.Sphere(1.0) | casal.Sphere(2.0))
    wide = diagonal(200)
    with pytest.raises(SettingError, match="has 200; use SplitGibbs, or BoundedHMC"):
        casal.sample(wide.target(), casal.Box(0.0, 9.0), SHORT, N, check=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 4}, "levels"),
        ({"path": 2}, "path"),
        ({"probes": 0}, "probes"),
        ({"moves": -1}, "moves"),
        ({"directions": 0}, "directions"),
        ({"width": 0}, "width"),
        ({"ess": 1.5}, "ess"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        LookAhead(**options)


# ------------------------------------------------------------------ parts


def test_the_weights_start_with_psi() -> None:
    constraint = SETS["equations and norm"]
    problem, method = problem_for(PRIOR, constraint), LookAhead(width=3)
    state = method.start(problem, 20.0 * normal(1, 6, D), stream(0))
    begun, _ = method.plan(problem, 6)[0].meet(problem, state, stream(1))  # type: ignore[misc]
    exact = log_psi(looked(problem, flat(begun.x), 20.0))
    close(flat(begun.logs), exact)
    close(begun.log_weight, torch.logsumexp(begun.logs, 1))
    assert begun.lines.tolist() == torch.arange(18).reshape(6, 3).tolist()


def test_an_order_by_likeness_keeps_clusters_together() -> None:
    label = torch.randint(4, (200,), generator=stream(1))
    points = 10.0 * normal(2, 4, 30)[label] + normal(3, 200, 30)
    for some in (points, points[:, :3], points[:20]):
        order = in_order(some)
        assert torch.equal(order.sort().values, torch.arange(len(some)))
    changes = int((label[in_order(points)].diff() != 0).sum())
    assert changes <= 12  # 150 in the order they come in
    assert torch.equal(in_order(points), in_order(points.clone()))


def test_particles_are_folded() -> None:
    value = normal(1, 12, 2)
    assert torch.equal(flat(fold(value, 3)), value) and fold(value, 3).shape == (4, 3, 2)


@pytest.mark.statistical
def test_what_a_sample_shall_have_is_drawn_from_the_restricted_gaussian() -> None:
    """Equations are met, bounds are kept, and a soft term tilts: moments of 40000 draws against rejection."""
    n, soft = 40_000, Prior(torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64))
    constraint = casal.Affine([[1.0, 0.0, 0.0, 0.0]], 0.0) & casal.HalfSpace(torch.tensor([0.0, 1.0, 0.0, 0.0]), 0.3)
    features = features_of(problem_for(soft, constraint, term=lambda v: v.sum(1)), 2)
    root = normal(1, 4, 4)
    S = (root @ root.T + 0.3 * torch.eye(4, dtype=torch.float64)).expand(n, -1, -1)
    mean, tilt = normal(2, 1, 4).expand(n, -1), normal(3, 1, 2).expand(n, -1)
    stiff = torch.tensor([[0.8, 0.3], [0.3, 0.5]], dtype=torch.float64).expand(n, -1, -1)
    ahead = Ahead(S[:, :, :1], mean, 0.6 * S, 0.4 * S, torch.ones_like(mean), tilt, stiff)
    found = _wanted(ahead, features, stream(4))
    assert not bool(found[:, 0].any())
    low, high = features.low[0, 0], features.high[0, 0]
    assert bool(((found[:, 1] >= low) & (found[:, 1] <= high)).all())
    # the same by weights: draws given the equation, within the bounds, weighted by the soft term
    gain = S[0, 1:, :1] / S[0, 0, 0]
    centre, left = mean[0, 1:] - gain[:, 0] * mean[0, 0], S[0, 1:, 1:] - gain @ S[0, :1, 1:]
    draws = centre + normal(5, 400_000, 3) @ torch.linalg.cholesky(left).T
    draws = draws[(draws[:, 0] >= low) & (draws[:, 0] <= high)]
    # _wanted takes the bounds first and the soft term given them: the weight of a draw of the bounded row stays one
    given = left[1:, :1] / left[0, 0]
    inner = left[1:, 1:] - given @ left[:1, 1:]
    precise = torch.linalg.inv(inner) + stiff[0]
    for moment in (1, 2):
        close(found[:, 1].pow(moment).mean(), draws[:, 0].pow(moment).mean(), 0.03)
    at = centre[1:] + (found[:, 1:2] - centre[0]) @ given.T
    expected = torch.linalg.solve(precise, (torch.linalg.solve(inner, at.T) + tilt[:1].T)).T
    off = found[:, 2:] - expected
    close(off.mean(0), torch.zeros(2, dtype=torch.float64), 0.03)
    close(off.T @ off / n, torch.linalg.inv(precise), 0.03)


# ------------------------------------------------------------------ distributions


class Gaussians(NamedTuple):
    """Equal shares of Gaussians N(mean_k, diag(variance)), (k, d) and (d,)."""

    means: Tensor
    variance: Tensor

    def denoise(self, x: Tensor, s: Tensor) -> Tensor:
        total, away = self.variance + s**2, x[:, None] - self.means
        share = torch.softmax(-(away.square() / total).sum(2) / 2, 1)
        return (share[..., None] * (self.means + self.variance / total * away)).sum(1)

    def within(self, n: int, low: float) -> Tensor:
        """Variance ratios (d,) about their own mode of samples with x_0 = 0, which splits the modes evenly."""
        d = len(self.variance)
        sigmas = casal.karras_sigmas(20, low, 20.0 * float(self.means.abs().max() + self.variance.max().sqrt()))
        target = casal.edm(self.denoise, sigmas, shape=d, churn=1.0, dtype=torch.float64)
        result = casal.sample(target, casal.Affine(torch.eye(d)[:1], 0.0), LookAhead(), n, check=False)
        away = result.samples[:, None] - self.means
        nearest = away.square().sum(2).argmin(1)
        return away[torch.arange(n), nearest].square().mean(0)[1:] / self.variance[1:]


@pytest.mark.statistical
def test_moves_keep_the_spread_within_modes_that_are_far_apart() -> None:
    """Two modes 19 of their deviations apart. A climb beyond both of them makes the variances 1.05 times as large."""
    means = torch.ones(2, 32, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    means[:, 0] = 0.0
    ratio = Gaussians(means, torch.full((32,), 0.35, dtype=torch.float64)).within(512, 0.01)
    assert abs(float(ratio.mean()) - 1.0) < 4.0 * (2.0 / (512 * 31)) ** 0.5


@pytest.mark.statistical
def test_coordinates_far_below_the_last_level_keep_their_spread() -> None:
    """Deviations from 0.02 to 10: the last level is above the smallest, which the last draw must give."""
    spread = torch.logspace(-1.7, 1.0, 24, dtype=torch.float64)
    ratio = Gaussians(torch.zeros(1, 24, dtype=torch.float64), spread.square()).within(512, 1e-3)
    assert bool(((ratio - 1.0).abs() < 0.3).all())  # four standard errors are 0.25; it was below 0.05 for the smallest


@pytest.mark.statistical
@pytest.mark.parametrize("weighted", [True, False])
def test_a_run_from_a_low_level_starts_with_the_weight_psi(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """x2 given x1 = 2 has mean 1.6 and deviation 0.6; from exact points of the noise level 1, without the weight,
    its mean is 1.6 / 1.36 = 1.18."""
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    prior, n = Prior(torch.zeros(2, dtype=torch.float64), covariance), 1000
    root = torch.linalg.cholesky(covariance + torch.eye(2, dtype=torch.float64))

    def start(count: int, generator: torch.Generator) -> Tensor:
        return torch.randn((count, 2), generator=generator, dtype=torch.float64) @ root.T

    levels = casal.karras_sigmas(30, 0.01, 1.0)
    target = dataclasses.replace(casal.edm(prior.denoise, levels, shape=2, churn=1.0, dtype=torch.float64), init=start)
    if not weighted:
        begin = LookAhead.begin

        def unweighted(self: LookAhead, *args: Any) -> Any:
            state, record = begin(self, *args)
            return state._replace(logs=torch.zeros_like(state.logs)), record

        monkeypatch.setattr(LookAhead, "begin", unweighted)
    result = casal.sample(target, casal.Affine([[1.0, 0.0]], [2.0]), LookAhead(moves=0), n, seed=2, check=False)
    mean = float(result.samples[:, 1].mean())
    # 4 standard errors, twice as large for resampling
    assert mean == pytest.approx(1.6 if weighted else 1.6 / 1.36, abs=4 * 2 * 0.6 / n**0.5)
