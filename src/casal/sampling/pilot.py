"""A pilot run on a fixed density: the step size and the scales of the coordinates, from curvatures.

For methods that do not adapt their own steps. At most PILOT_CHAINS chains start where the run starts and relax by
Metropolis-adjusted Langevin moves. In the coordinates y = D^(-1/2) x, where g is the score,

    y' = y + tau g(y) + sqrt(2 tau) w,
    log r = f(y) - f(y') + (|y' - y - tau g(y)|^2 - |y - y' - tau g(y')|^2) / (4 tau),

each with a tau of its own, which grows when a move is accepted and shrinks when it is refused, so that a start that is
far too wide, or in a stiff region, comes to rest. Where f is not known its difference is the trapezoid of the score
along the move. The step is then tau = STEP / lambda, lambda the largest curvature of f (Lanczos iterations on
differences of the score) at the chains and at their nearest points on the set; BEND makes it smaller for moves that end
on a curved set by a projection. D makes the rows of D^(1/2) H D^(1/2) have length one on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint, geometry
from casal.errors import SettingError
from casal.methods import Problem, Usage, pick
from casal.targets import Tuning

PILOT_CHAINS, MOVES = 256, 30
"""Chains of a pilot, and their moves."""

STEP = 0.4
"""The step in units of one over the largest curvature; 2 is the limit of stability."""

BEND = 0.05
"""The step in units of one over the curvature of the set, (d - 1) / R^2 for a sphere: a move along it ends outside,
and the projection back takes a share tau (d - 1) / R^2 of the noise away."""

LANCZOS, SCALINGS = 6, 3
"""Iterations for the largest curvature, and rounds for D, each in the scale of the one before."""

FAST, SLOW, LEAP = (1.6, 0.3), (1.2, 0.5), (3.0, 4.0)
"""Factors of a chain's step after an accepted and a refused move: in the first half of the moves, and then. And log r
above which a chain counts as far from rest, with the factor of its step then."""

SET_STEP, SMOOTH = 1e-3, 0.25
"""Step of differences along the set, in units of the root of a chain's step; and the share by which second differences
over one and two of them may differ, or the point lies on an edge, whose bend says nothing."""

STIFF, GROWTH, LONGEST_RISE = 3.0, 1.5, 0.1
"""A start is stiff if it asks for a step so many times smaller. Then the first steps grow by this factor each, or by
more if that took more than this share of all steps."""

FLAT = 1e-6
"""Curvature, in units of one over the square of the spread, below which f counts as flat."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot run found.

    Attributes:
        step_size: tau in units of D, for moves that may end on the set by a projection.
        free_step_size: The same for moves that are not projected, or bounded near the set by their method.
        first_step_size: What the curvature of f at the starting points allows, at most ``free_step_size``.
        preconditioner: D, of the shape of an event: the one that was found, or the one that was given; None for 1.
        ratio: The given step size (its median, if there is one per step) over the one found; 1 if none was given, or
            if it lies between ``step_size`` and ``free_step_size``.
        integrable: False if the density does not seem to have a finite integral off the set: nothing holds the chains
            back in the direction in which they are pushed.
        evaluations: Evaluations of the score, each for one chain.
        outward: Whether the score pushes free chains apart, so that p grows without bound: a sign may be wrong.
        undefined: Share of the moves that ended where p is not known: f or its gradient is not a number.
    """

    step_size: float
    free_step_size: float
    first_step_size: float
    preconditioner: Tensor | None
    ratio: float
    integrable: bool
    evaluations: int
    outward: bool
    undefined: float

    def step_sizes(self, steps: int, *, free: bool = False) -> Tensor:
        """The step size of every step, (steps,): the found one, reached from smaller ones if the start is stiff.

        Where f is steep the chains come down as the steps grow.

        Args:
            steps: How many.
            free: Whether to take ``free_step_size``, for methods that bound their moves near the set.
        """
        size, first = self.free_step_size if free else self.step_size, self.first_step_size
        if first >= size / STIFF:
            return torch.full((steps,), size, dtype=torch.float64)
        factor = max(GROWTH, (size / first) ** (1.0 / max(1.0, LONGEST_RISE * steps)))
        return (first * factor ** torch.arange(steps, dtype=torch.float64)).clamp_max(size)


def run_pilot(problem: Problem, x: Tensor, chains: Tensor, tune: Tuning | None, generator: torch.Generator) -> Pilot:
    """Find the settings that are open, and compare those that are given with what would be found.

    Args:
        problem: Model, set and decoder of the run.
        x: Starting points (m, *event).
        chains: Numbers (m,) of these chains in the run.
        tune: What is open; None if nothing is, and the given step size is to be checked.
        generator: A random stream of its own.

    Raises:
        SettingError: The score is not finite at some of the starting points.
    """
    tune = tune or Tuning(step_size=False, preconditioner=False)
    model, spread = _Model(problem, generator), _spread(x)
    state = model.state(x)
    if lost := int((~_finite(state.score)).sum()):
        raise SettingError(
            f"no step size can be found: the gradient of {problem.target.name} is not finite at {lost} of the "
            f"{len(x)} starting points tried; start where the density is positive, or give step_size a number"
        )
    deviation = x.std(0, unbiased=False)
    widest = torch.where(deviation > 0, deviation, spread)
    if tune.preconditioner:
        root = model.scaled(x, torch.full_like(x[0], spread), x.new_ones(len(x)), widest)
    else:
        root = x.new_ones(x.shape[1:]) if problem.root is None else problem.root.expand(x.shape[1:])
    unit = float((deviation / root).square().mean().sqrt()) or spread / float(root.square().mean().sqrt())
    length = x.new_full((len(x),), min(unit, 1.0) if tune.preconditioner else unit)
    curvature = model.largest_curvature(x, root, length)
    tau = torch.where(curvature > FLAT / unit**2, STEP / curvature, unit**2)
    state, tau = model.relax(state, root, tau)
    if tune.preconditioner:
        before, root = root, model.scaled(state.x, root, tau.sqrt(), widest)
        tau = tau * (2 * (before.log() - root.log()).mean()).exp()
    surface = _surface(problem, chains, tuple(x.shape[1:]))
    bend = None if surface is None else _bend(model, surface, state, root, tau.sqrt())
    points = torch.cat([x, state.x] + ([] if bend is None else [bend.points]))
    seen = model.largest_curvature(points, root, tau.sqrt().repeat(len(points) // len(x))).split(len(x))
    first, free, along = _typical(seen[0]), _typical(seen[1]), 0.0
    if bend is not None:
        free, along = max(free, _typical(seen[2], bend.weight)), _typical(seen[2] + bend.pull, bend.weight)
        free = free if free > FLAT * along else along
    size = STEP / free if free > 0 else float(tau.median())
    least = STEP / max(STEP / size, along, 0.0 if bend is None else STEP / BEND * bend.size)
    given = float(problem.table.b.median())
    return Pilot(
        step_size=least,
        free_step_size=size,
        first_step_size=min(size, STEP / max(first, torch.finfo(torch.float64).tiny)),
        preconditioner=root.square().to(torch.float64) if tune.preconditioner else problem.table.preconditioner,
        ratio=1.0 if tune.step_size else given / min(max(given, least), size),
        integrable=_holds_together(state, root),
        evaluations=model.problem.usage.scores,
        outward=_pushed_apart(state),
        undefined=model.undefined / max(model.asked, 1),
    )


class _State(NamedTuple):
    """Points, their scores, and f, or zeros where it is not known."""

    x: Tensor
    score: Tensor
    potential: Tensor


class _Model:
    """The density of a run, its evaluations counted."""

    def __init__(self, problem: Problem, generator: torch.Generator) -> None:
        self.problem, self.generator = problem.replace(usage=Usage()), generator
        self.weighs = problem.target.potential is not None
        self.asked = self.undefined = 0

    def score(self, x: Tensor) -> Tensor:
        return self.problem.score(x, self.problem.table.t[0].to(x.device))

    def state(self, x: Tensor) -> _State:
        return _State(x, self.score(x), -self.problem.log_density(x).detach() if self.weighs else x.new_zeros(len(x)))

    def normal(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self.generator, dtype=x.dtype, device=x.device)

    def curved(self, x: Tensor, root: Tensor, length: Tensor, u: Tensor) -> Tensor:
        """D^(1/2) H D^(1/2) u by central differences over a small share of ``length`` (m,), for |u_i| about one."""
        step = _along(torch.finfo(x.dtype).eps ** 0.25 * length, x)
        behind, ahead = self.score(torch.cat([x - step * root * u, x + step * root * u])).chunk(2)
        return root * (behind - ahead) / (2 * step)

    def largest_curvature(self, x: Tensor, root: Tensor, length: Tensor) -> Tensor:
        """The largest eigenvalue of D^(1/2) H D^(1/2) at every point, (m,), by Lanczos iterations; >= 0."""
        m, d = len(x), x[0].numel()
        iterations, scale = min(LANCZOS, d), math.sqrt(d)  # coordinates of a direction are about one
        v = self.normal(x).reshape(m, d)
        basis = [v / torch.linalg.vector_norm(v, dim=1, keepdim=True)]
        tridiagonal = x.new_zeros((m, iterations, iterations), dtype=torch.float64)
        for k in range(iterations):
            w = self.curved(x, root, length, scale * basis[k].reshape(x.shape)).reshape(m, d) / scale
            tridiagonal[:, k, k] = (w * basis[k]).sum(1)
            for _ in range(2):
                for other in basis:
                    w = w - (w * other).sum(1, keepdim=True) * other
            size = torch.linalg.vector_norm(w, dim=1)
            if k + 1 < iterations:
                tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = size
                basis.append(w / size.clamp_min(torch.finfo(x.dtype).tiny)[:, None])
        tridiagonal[~_finite(tridiagonal)] = 0.0
        return torch.linalg.eigvalsh(tridiagonal)[:, -1].clamp_min(0.0).to(x.dtype)

    def scaled(self, x: Tensor, root: Tensor, length: Tensor, widest: Tensor) -> Tensor:
        """D^(1/2) such that the rows of D^(1/2) H D^(1/2) have length one in the mean over the points.

        The length of a row is positive even where f is not convex. Coordinates in which f is flat take ``widest``.
        """
        for _ in range(SCALINGS):
            rows = self.curved(x, root, length, self.normal(x).sign()).square()
            found = root / _trimmed_mean(rows).sqrt().sqrt()
            root = torch.where(torch.isfinite(found) & (found > 0), found, widest)
            length = torch.ones_like(length)
        return root

    def relax(self, state: _State, root: Tensor, tau: Tensor) -> tuple[_State, Tensor]:
        """Metropolis-adjusted moves, each chain with a step of its own that it adapts."""
        for k in range(MOVES):
            state, log_ratio, accepted = self.move(state, root, tau)
            grow, shrink = FAST if 2 * k < MOVES else SLOW
            tau = tau * torch.where(accepted, torch.where(log_ratio > LEAP[0], LEAP[1], grow), shrink).to(tau)
        return state, tau

    def move(self, state: _State, root: Tensor, tau: Tensor) -> tuple[_State, Tensor, Tensor]:
        """One move of all chains: where they are, log r (m,) float64, and who has moved."""
        step, push = _along(tau, state.x), root * state.score
        shift = step * push + (2 * step).sqrt() * self.normal(state.x)
        there = self.state(state.x + root * shift)
        known, back = _finite(there.score), root * there.score
        fall = _products(shift, push + back) / 2
        if self.weighs:
            fall = state.potential - there.potential
            known = (known & ~there.potential.isnan()) | (there.potential == math.inf)
        self.asked, self.undefined = self.asked + len(known), self.undefined + int((~known).sum())
        forward, backward = shift - step * push, shift + step * back
        log_ratio = fall + (_products(forward, forward) - _products(backward, backward)) / (4 * tau.to(torch.float64))
        log_ratio = torch.where(_finite(back), log_ratio, -math.inf).nan_to_num(-math.inf, math.inf, -math.inf)
        chance = torch.rand(len(tau), generator=self.generator, dtype=torch.float64, device=tau.device)
        accepted = chance.log() < log_ratio
        kept = _State(*(pick(accepted, new, old) for new, old in zip(there, state, strict=True)))
        return kept, log_ratio, accepted


class _Bend(NamedTuple):
    """The set at the nearest points z of the chains: a line z + r u along it bends away by r^2 a / 2.

    Attributes:
        points: z, in the dtype of the chains.
        pull: grad f . a, (m,), by which f is more curved along the set than H says; at least 0.
        size: The typical |a|^2 in units of D.
        weight: p there over p at the chains, evened out: points where p is small do not limit a step.
    """

    points: Tensor
    pull: Tensor
    size: float
    weight: Tensor


def _surface(problem: Problem, chains: Tensor, event: tuple[int, ...]) -> Constraint | None:
    """What the chains are projected on; a union has no surface of its own, but a projection."""
    if not problem.identity:
        return None
    whole = problem.constraint.take(chains)
    return whole if whole.in_pieces else geometry.parts(whole, event).surface


def _bend(model: _Model, surface: Constraint, state: _State, root: Tensor, length: Tensor) -> _Bend:
    """By first and second differences of the projection along random directions; nothing where they meet an edge."""
    x = state.x
    wide, z = root.to(torch.float64), surface.project(x.to(torch.float64))
    step = SET_STEP * _along(length, x).to(torch.float64)

    def both_ways(wave: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of P(z + r wave) in r at 0."""
        ahead, behind = surface.project(z + step * wave), surface.project(z - step * wave)
        return (ahead - behind) / (2 * step), (ahead + behind - 2 * z) / step.square()

    tangent, _ = both_ways(wide * model.normal(z), step)
    along, away = both_ways(tangent, step)
    _, twice = both_ways(tangent, 2 * step)
    gap, along, scaled = (away - twice) / wide, along / wide, away / wide
    smooth = _products(gap, gap) < SMOOTH**2 * _products(scaled, scaled)  # at an edge twice is half of away
    moved = _products(along, along).clamp_min(torch.finfo(torch.float64).tiny)
    points = z.to(x.dtype)
    score = model.score(points)
    pull = torch.where(smooth, -_products(score, away) / moved, 0.0).nan_to_num(0.0).clamp_min(0.0)
    bent = torch.where(smooth, _products(scaled, scaled) / moved.square() * moved.mean(), 0.0)
    weight = _even_weights(_products(score + state.score, z - state.x) / 2)  # log p(z) - log p(x), by the trapezoid
    return _Bend(points, pull.to(x.dtype), float(bent.nan_to_num(0.0).median()), weight)


def _pushed_apart(state: _State) -> bool:
    """Whether E[(x - mean) . score], which is -d for a density, is clearly positive."""
    products = _products(state.x - state.x.mean(0), state.score)
    few = len(products) < 8
    return not few and float(products.mean()) > max(0.5, 3 * float(products.std()) / math.sqrt(len(products)))


def _holds_together(state: _State, root: Tensor) -> bool:
    """Whether the chains seem to follow a density with a finite integral.

    For such a density E[(x - mean) . score] = -d and E[score] = 0. Chains that are still on their way obey neither, but
    are held: the first is clearly negative, and along the mean score the score falls. A linear potential has neither.
    A coordinate of the score that is the same for all chains holds nobody.
    """
    x = (state.x.to(torch.float64) / root.to(torch.float64)).reshape(len(state.x), -1)
    g = (state.score.to(torch.float64) * root.to(torch.float64)).reshape(len(x), -1)
    if len(x) < 8:
        return True
    centred, rounding = x - x.mean(0), 100 * torch.finfo(state.x.dtype).eps
    constant = g.amax(0) - g.amin(0) <= rounding * g.abs().amax(0)
    if bool(constant.any()) or float((centred * g).sum(1).mean()) > -0.5:
        return False
    mean, noise = g.mean(0), float((g.var(0).sum() / len(g)).sqrt())
    size = float(torch.linalg.vector_norm(mean))
    if size <= 5 * noise:
        return True
    push, place = g @ mean / size, centred @ mean / size
    products = place * (push - push.mean())
    return float(products.mean()) < -3 * float(products.std()) / math.sqrt(len(products))


# ----------------------------------------------------------------------------------------------- small things


def _spread(x: Tensor) -> float:
    """The standard deviation of a coordinate, its size if all chains are at one point, else 1."""
    return float(x.std(0, unbiased=False).square().mean().sqrt()) or float(x.square().mean().sqrt()) or 1.0


def _typical(curvature: Tensor, weight: Tensor | None = None) -> float:
    """What nine chains in ten see at most; or a quarter of what the worst see, so that none is unstable."""
    values, order = curvature.to(torch.float64).sort()
    share = (torch.ones_like(values) if weight is None else weight[order]).cumsum(0)
    at = torch.searchsorted(share / share[-1], share.new_tensor([0.9, 0.99])).clamp_max(len(values) - 1)
    high, highest = values[at].tolist()
    return max(high, highest / 4)


def _even_weights(log_weight: Tensor) -> Tensor:
    """Weights that sum to one, their logarithms halved until they are worth at least a tenth of the chains."""
    log_weight = log_weight.nan_to_num(nan=-math.inf, posinf=-math.inf)
    log_weight = log_weight.clamp_min(float(log_weight.max()) - 700.0)
    while True:
        weight = torch.softmax(log_weight, 0)
        if 10.0 / float(weight.square().sum()) >= len(weight):
            return weight
        log_weight = log_weight / 2


def _trimmed_mean(values: Tensor) -> Tensor:
    """The mean over dim 0 without the twentieth at both ends."""
    cut = len(values) // 20
    return values.sort(0).values[cut : len(values) - cut].mean(0)


def _finite(values: Tensor) -> Tensor:
    """(m,): whether all numbers of a chain are finite."""
    return torch.isfinite(values).flatten(1).all(1)


def _products(v: Tensor, w: Tensor) -> Tensor:
    """v . w, chain by chain, in float64."""
    return (v.to(torch.float64) * w.to(torch.float64)).flatten(1).sum(1)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Numbers (m,) that multiply points."""
    return values.reshape(-1, *[1] * (x.ndim - 1))
