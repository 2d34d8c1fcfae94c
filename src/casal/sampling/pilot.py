"""A pilot run on a fixed density: finds its step size and its preconditioner, and looks whether given ones fit.

At most PILOT_CHAINS chains start where the run starts. In the coordinates y = D^(-1/2) x, where g is the score,

1. the largest curvature of f = -log p at the starting points, by Lanczos iterations on differences of the score,
   gives each chain a first step;
2. the chains relax by Metropolis-adjusted Langevin moves

       y' = y + tau g(y) + sqrt(2 tau) w,
       log r = f(y) - f(y') + (|y' - y - tau g(y)|^2 - |y - y' - tau g(y')|^2) / (4 tau),

   each with its own tau, which grows when a move is accepted and shrinks when it is refused, so that a start that is
   far too wide, or in a stiff region, comes to rest. Where f is not known its difference is the trapezoid of the score
   along the move: then log r = tau (|g(y)|^2 - |g(y')|^2) / 4;
3. D is one over the mean curvature of f in every coordinate, from u (H u) with random signs u, where the directions are
   scaled by D itself and D is found anew until it fits;
4. the step is tau = STEP / lambda, with lambda the largest curvature (in units of D) that the relaxed chains see, and
   that their feet on the set see along it. A few moves with it check that the spread of log r stays below SPREAD times
   the square root of the dimension. A set that is bent itself may ask for a smaller step (BEND), and a start in a stiff
   region for smaller first steps.

The acceptance of a Metropolis move falls with the dimension d at a fixed step: log r spreads like
tau^(3/2) sqrt(d / 2) on a Gaussian. The moves of the samplers here do not need acceptance, and their error in every
coordinate does not depend on d, so the spread is measured in units of sqrt(d). On a Gaussian that D makes round the
step is STEP in every dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import geometry
from casal.errors import SettingError
from casal.methods import Problem, Usage, pick
from casal.targets import Tuning

PILOT_CHAINS = 256
"""Chains of a pilot."""

STEP = 0.4
"""The step in units of one over the largest curvature; 2 is the limit of stability."""

SPREAD = 0.27
"""Largest spread of log r in units of the root of the dimension: one and a half times that of STEP on N(0, I)."""

BEND = 0.05
"""The step in units of one over the curvature of the set, (d - 1) / R^2 for a sphere: a move along it ends outside,
and the projection back takes a share tau (d - 1) / R^2 of the noise away."""

HIGH, HIGHEST = 0.9, 0.99
"""Shares of the chains that see less than the curvature that sets the step, and than the one that must stay stable."""

RELAX, SETTLE, CHECK = 20, 10, 4
"""Moves before D is found, after it was found, and for the check of the step."""

FIRST_LANCZOS, LANCZOS, SCALINGS = 6, 8, 3
"""Iterations for the largest curvature at the start and of the relaxed chains; rounds for D."""

FAST, SLOW = (1.6, 0.3), (1.2, 0.5)
"""Factors of a chain's step after an accepted and a refused move: in the first half of the moves, and then."""

DOWNHILL, LEAP = 3.0, 4.0
"""log r above which a chain counts as far from rest, and the factor of its step then."""

SET_STEP, SMOOTH = 1e-3, 0.25
"""Step of differences along the set, in units of the root of a chain's step; and the share by which second differences
over one and two of them may differ, or the foot lies on an edge, whose bend says nothing."""

STIFF, GROWTH, LONGEST_RISE = 3.0, 1.5, 0.1
"""A start is stiff if it asks for a step so many times smaller. Then the first steps grow by this factor each, or by
more if that took more than this share of all steps."""

TRIMMED = 0.05
"""Share of the chains that is left out at both ends of a mean."""

LEAST = 0.05
"""Mean curvature of a coordinate, in units of the length of its row of the Hessian, below which the spread of the
chains sets the scale of the coordinate."""

FLAT = 1e-6
"""Curvature, in units of one over the square of the spread, below which f counts as flat."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot run found.

    Attributes:
        step_size: tau in units of D, for moves that may end on the set by a projection.
        free_step_size: The same for moves that are not projected: what the curvature of f allows, whatever the bend of
            the set. ``WeightedCASAL`` bounds its moves near the set by itself.
        first_step_size: What the curvature of f at the starting points allows, at most ``free_step_size``: smaller if
            the start is stiffer than where the chains come to rest.
        preconditioner: D, of the shape of an event: the one that was found, or the one that was given; None for 1.
        ratio: The given step size (its median, if there is one per step) over the one found; 1 if none was given, or
            if it lies between ``step_size`` and ``free_step_size``.
        acceptance: Of Metropolis moves with ``free_step_size``.
        integrable: False if the density does not seem to have a finite integral off the set: nothing holds the chains
            back in the direction in which they are pushed.
        evaluations: Evaluations of the score or the potential, each for one chain.
        outward: Whether the score pushes free chains apart, so that p grows without bound: a sign may be wrong.
        undefined: Share of the moves with ``free_step_size`` that ended where p is not known: f is not a number, or its
            gradient is not finite although f is.
    """

    step_size: float
    free_step_size: float
    first_step_size: float
    preconditioner: Tensor | None
    ratio: float
    acceptance: float
    integrable: bool
    evaluations: int
    outward: bool = False
    undefined: float = 0.0

    def step_sizes(self, steps: int, *, free: bool = False) -> Tensor:
        """The step size of every step, (steps,): that of the pilot, reached from a smaller one if the start is stiff.

        The first steps grow by a constant factor. In a steep tail the chains come down as they grow: for a potential
        like |x|^k or exp(x) the step times the curvature where a chain is stays about the same.

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
        tune: What is open; None if nothing is, and the given step size is to be looked at.
        generator: A random stream of its own.

    Raises:
        SettingError: The score is not finite at some of the starting points.
    """
    tune = tune or Tuning(step_size=False, preconditioner=False)
    model = _Model(problem)
    spread = _spread(x)
    if tune.preconditioner:
        root = torch.full_like(x[0], spread)
    else:
        root = x.new_ones(x.shape[1:]) if problem.root is None else problem.root.expand(x.shape[1:])
    state = _first_state(model, x)
    if tune.preconditioner:
        root = model.scaled(x, root, x.new_full((len(x),), 1.0), generator)
    unit = float((_deviation(x) / root).square().mean().sqrt()) or spread / float(root.square().mean().sqrt())
    length = x.new_full((len(x),), min(unit, 1.0) if tune.preconditioner else unit)
    curvature = model.largest_curvature(x, root, length, FIRST_LANCZOS, generator)
    tau = torch.where(curvature > FLAT / unit**2, STEP / curvature, unit**2)
    state, tau = model.relax(state, root, tau, RELAX, generator)
    if tune.preconditioner:
        before = root
        root = model.scaled(state.x, root, tau.sqrt(), generator)
        tau = (tau.log().mean() + 2 * (before.log() - root.log()).mean()).exp().expand(len(x))
        state, tau = model.relax(state, root, tau, SETTLE, generator)
        root = model.diagonal(state.x, x, root, tau.sqrt(), generator)
        curvature = model.largest_curvature(x, root, torch.ones_like(tau), FIRST_LANCZOS, generator)
    limit = _curvature_at_rest(model, state, root, tau, chains, generator)
    steepest = limit.free if limit.free > FLAT * limit.along else limit.along
    free = STEP / steepest if steepest > 0 else float(tau.median())
    state, free, acceptance, undefined = _check_size(model, state, root, free, generator)
    size = STEP / max(STEP / free, limit.along, STEP / BEND * limit.bend)
    return Pilot(
        step_size=size,
        free_step_size=free,
        first_step_size=min(free, STEP / max(_typical(curvature), torch.finfo(torch.float64).tiny)),
        preconditioner=root.square().to(torch.float64) if tune.preconditioner else problem.table.preconditioner,
        ratio=1.0 if tune.step_size else _ratio(float(problem.table.b.median()), size, free),
        acceptance=acceptance,
        integrable=_holds_together(state, root),
        evaluations=model.evaluations,
        outward=_pushed_apart(state, root),
        undefined=undefined,
    )


def _ratio(given: float, least: float, most: float) -> float:
    """given / least below an interval, given / most above it, 1 inside."""
    return given / min(max(given, least), most)


class _State(NamedTuple):
    """Points, their scores, and f where it is known."""

    x: Tensor
    score: Tensor
    potential: Tensor | None


class _Model:
    """The density of a run, its evaluations counted."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.replace(usage=Usage())
        self.asked = self.undefined = 0

    @property
    def evaluations(self) -> int:
        return self.problem.usage.scores

    def score(self, x: Tensor) -> Tensor:
        return self.problem.score(x, self.problem.table.t[0].to(x.device))

    def state(self, x: Tensor) -> _State:
        if self.problem.target.potential is None:
            return _State(x, self.score(x), None)
        return _State(x, self.score(x), -self.problem.log_density(x).detach())

    def curved(self, x: Tensor, root: Tensor, length: Tensor, u: Tensor) -> Tensor:
        """D^(1/2) H D^(1/2) u by central differences over a small share of ``length`` (m,), for |u_i| about one."""
        step = _along(torch.finfo(x.dtype).eps ** 0.25 * length, x)
        ahead, behind = x + step * root * u, x - step * root * u
        both = self.score(torch.cat([behind, ahead]))
        return root * (both[: len(x)] - both[len(x) :]) / (2 * step)

    def largest_curvature(
        self, x: Tensor, root: Tensor, length: Tensor, iterations: int, generator: torch.Generator
    ) -> Tensor:
        """The largest eigenvalue of D^(1/2) H D^(1/2) at every point, (m,), by Lanczos iterations; >= 0."""
        m, d = len(x), x[0].numel()
        iterations = min(iterations, d)
        v = _normal(x, generator).reshape(m, d)
        v = v / torch.linalg.vector_norm(v, dim=1, keepdim=True)
        basis = [v]
        tridiagonal = x.new_zeros((m, iterations, iterations), dtype=torch.float64)
        for k in range(iterations):
            scale = math.sqrt(d)  # so that the coordinates of the direction are about one
            w = self.curved(x, root, length, scale * basis[k].reshape(x.shape)).reshape(m, d) / scale
            tridiagonal[:, k, k] = (w * basis[k]).sum(1)
            for _ in range(2):
                for other in basis:
                    w = w - (w * other).sum(1, keepdim=True) * other
            size = torch.linalg.vector_norm(w, dim=1)
            if k + 1 < iterations:
                tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = size
                basis.append(w / size.clamp_min(torch.finfo(x.dtype).tiny)[:, None])
        finite = torch.isfinite(tridiagonal).flatten(1).all(1)
        tridiagonal[~finite] = 0.0
        return torch.linalg.eigvalsh(tridiagonal)[:, -1].clamp_min(0.0).to(x.dtype)

    def scaled(self, x: Tensor, root: Tensor, length: Tensor, generator: torch.Generator) -> Tensor:
        """D^(1/2) such that the rows of D^(1/2) H D^(1/2) have length one in the mean over the points.

        The length of a row is never less than its diagonal element and never negative, so that this works far from
        the right D and where f is not convex; each round is measured in the scale of the one before.
        """
        for _ in range(SCALINGS):
            u = _signs(x, generator)
            rows = _trimmed_mean(self.curved(x, root, length, u).square()).sqrt()
            root = _filled(root / rows.sqrt(), x)
            length = torch.ones_like(length)
        return root

    def diagonal(self, x: Tensor, first: Tensor, root: Tensor, length: Tensor, generator: torch.Generator) -> Tensor:
        """D^(1/2) from the mean diagonal of the Hessian.

        Where that is not positive the spread of the chains takes its place, or that of their starting points
        ``first`` if it is smaller: nothing may hold the chains back there.
        """
        root = self.scaled(x, root, length, generator)
        products = []
        for _ in range(min(8, max(2, 64 // len(x)))):
            u = _signs(x, generator)
            products.append(u * self.curved(x, root, torch.ones_like(length), u))
        share = _trimmed_mean(torch.cat(products))
        spread, before = _deviation(x), _deviation(first)
        spread = torch.where(before > 0, torch.minimum(before, spread), spread)
        return torch.where(share > LEAST, root / share.clamp_min(LEAST).sqrt(), _filled(spread, x))

    def relax(
        self, state: _State, root: Tensor, tau: Tensor, moves: int, generator: torch.Generator
    ) -> tuple[_State, Tensor]:
        """Metropolis-adjusted moves, each chain with a step of its own that it adapts."""
        for k in range(moves):
            state, log_ratio, accepted = self.move(state, root, tau, generator)
            grow, shrink = FAST if 2 * k < moves else SLOW
            grown = torch.where(log_ratio > DOWNHILL, LEAP, grow)
            tau = tau * torch.where(accepted, grown, shrink).to(tau)
        return state, tau

    def move(
        self, state: _State, root: Tensor, tau: Tensor, generator: torch.Generator
    ) -> tuple[_State, Tensor, Tensor]:
        """One move of all chains: where they are, log r (m,) float64, and who has moved."""
        step = _along(tau, state.x)
        push = root * state.score
        shift = step * push + (2 * step).sqrt() * _normal(state.x, generator)
        there = self.state(state.x + root * shift)
        known = torch.isfinite(there.score).reshape(len(there.x), -1).all(1)
        if there.potential is not None:
            known = (known & ~there.potential.isnan()) | (there.potential == math.inf)
        self.asked, self.undefined = self.asked + len(known), self.undefined + int((~known).sum())
        back = root * there.score
        forward, backward = _squares(shift - step * push), _squares(shift + step * back)
        if state.potential is None or there.potential is None:
            fall = _products(shift, push + back) / 2
        else:
            fall = state.potential - there.potential
        log_ratio = fall + (forward - backward) / (4 * tau.to(torch.float64))
        log_ratio = torch.where(torch.isfinite(back).reshape(len(back), -1).all(1), log_ratio, -math.inf)
        log_ratio = log_ratio.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        chance = torch.rand(len(tau), generator=generator, dtype=torch.float64, device=tau.device)
        accepted = chance.log() < log_ratio
        x, score = pick(accepted, there.x, state.x), pick(accepted, there.score, state.score)
        if state.potential is None or there.potential is None:
            return _State(x, score, None), log_ratio, accepted
        return _State(x, score, pick(accepted, there.potential, state.potential)), log_ratio, accepted


def _first_state(model: _Model, x: Tensor) -> _State:
    state = model.state(x)
    lost = int((~torch.isfinite(state.score).reshape(len(x), -1).all(1)).sum())
    if lost:
        raise SettingError(
            f"no step size can be found: the gradient of {model.problem.target.name} is not finite at {lost} of the "
            f"{len(x)} starting points tried; start where the density is positive, or give step_size a number"
        )
    return state


class _Limit(NamedTuple):
    """The curvatures that limit a step, in units of D; 0 for what is flat.

    At a foot z, a line z + r u along the set bends away from it by r^2 a / 2, and f grows along it by
    r^2 (u H u + grad f . a) / 2.

    Attributes:
        free: Of f, at the chains and at their feet: the largest eigenvalue of H.
        along: Of f along the set: the same and the mean of grad f . a.
        bend: Of the set: the mean square of a.
    """

    free: float
    along: float = 0.0
    bend: float = 0.0


def _curvature_at_rest(
    model: _Model, state: _State, root: Tensor, tau: Tensor, chains: Tensor, generator: torch.Generator
) -> _Limit:
    """What limits the step where the chains have come to rest, and at their feet on the set."""
    x, length = state.x, tau.sqrt()
    whole, event = model.problem.constraint.take(chains), tuple(x.shape[1:])
    surface = None
    if model.problem.identity:  # a union has no surface of its own, but a projection
        surface = whole if whole.in_pieces else geometry.parts(whole, event).surface
    if surface is None:
        return _Limit(_typical(model.largest_curvature(x, root, length, LANCZOS, generator)))
    wide, z = root.to(torch.float64), surface.project(x.to(torch.float64))
    step = SET_STEP * _along(length, x).to(torch.float64)

    def both_ways(wave: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of P(z + r wave) in r at 0."""
        ahead, behind = surface.project(z + step * wave), surface.project(z - step * wave)
        return (ahead - behind) / (2 * step), (ahead + behind - 2 * z) / step.square()

    tangent, _ = both_ways(wide * _normal(z, generator), step)
    along, away = both_ways(tangent, step)
    _, twice = both_ways(tangent, 2 * step)
    smooth = _squares((away - twice) / wide) < SMOOTH**2 * _squares(away / wide)  # at an edge twice is half of away
    away = torch.where(_along(smooth, away), away, 0.0)
    moved = _squares(along / wide).clamp_min(torch.finfo(torch.float64).tiny)
    foot = z.to(x.dtype)
    score = model.score(foot)
    pull = -_products(score, away) / moved
    bent = _squares(away / wide) / moved.square() * moved.mean()
    weight = _even_weights(_products(score + state.score, z - x) / 2)  # log p(z) - log p(x), by the trapezoid
    some = slice(0, None, 2)
    points, lengths = torch.cat([x[some], foot[some]]), torch.cat([length[some], length[some]])
    both = model.largest_curvature(points, root, lengths, LANCZOS, generator)
    here, feet = both[: len(x[some])], both[len(x[some]) :]
    along_set = feet + pull[some].nan_to_num(0.0).clamp_min(0.0).to(feet)
    return _Limit(
        free=max(_typical(here), _typical(feet, weight[some])),
        along=_typical(along_set, weight[some]),
        bend=float(bent.nan_to_num(0.0).median()),
    )


def _check_size(
    model: _Model, state: _State, root: Tensor, size: float, generator: torch.Generator
) -> tuple[_State, float, float, float]:
    """Moves with one step for all chains, which is made smaller as long as log r spreads too much.

    Returns where the chains are, the step, its acceptance, and the share of its moves to where p is not known.

    The spread is that from the median down to the quantile of one standard deviation: chains that are still on their
    way have a large log r, which says nothing against the step.
    """
    scale = math.sqrt(state.x[0].numel())
    acceptance = 1.0
    for attempt in range(4):
        tau, ratios = state.x.new_full((len(state.x),), size), []
        model.asked = model.undefined = 0
        for _ in range(CHECK):
            state, log_ratio, _ = model.move(state, root, tau, generator)
            ratios.append(log_ratio)
        low, middle = (float(torch.cat(ratios).quantile(q)) for q in (0.1587, 0.5))
        spread = (min(middle, 0.0) - low) / scale
        acceptance = float(torch.cat(ratios).clamp_max(0.0).exp().mean())
        if spread <= SPREAD or attempt == 3:
            break
        size *= max((SPREAD / spread) ** (2 / 3) * 0.9, 0.1) if math.isfinite(spread) else 0.1
    return state, size, acceptance, model.undefined / max(model.asked, 1)


def _pushed_apart(state: _State, root: Tensor) -> bool:
    """Whether E[(x - mean) . score], which is -d for a density, is clearly positive."""
    if len(state.x) < 8:
        return False
    x, g = state.x.to(torch.float64), state.score.to(torch.float64)
    products = _products(x - x.mean(0), g)
    return float(products.mean()) > max(0.5, 3 * float(products.std()) / math.sqrt(len(products)))


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
    mean = g.mean(0)
    size = float(torch.linalg.vector_norm(mean))
    noise = float((g.var(0).sum() / len(g)).sqrt())
    if size <= 5 * noise:
        return True
    push, place = g @ mean / size, centred @ mean / size
    products = place * (push - push.mean())
    return float(products.mean()) < -3 * float(products.std()) / math.sqrt(len(products))


# ----------------------------------------------------------------------------------------------- small things


def _spread(x: Tensor) -> float:
    """The standard deviation of a coordinate, its size if all chains are at one point, else 1."""
    return float(_deviation(x).square().mean().sqrt()) or float(x.square().mean().sqrt()) or 1.0


def _deviation(x: Tensor) -> Tensor:
    """The standard deviation of every coordinate over the chains; 0 for one chain."""
    return x.std(0, unbiased=False)


def _typical(curvature: Tensor, weight: Tensor | None = None) -> float:
    """What most chains see; a quarter of what the worst see, so that none is unstable."""
    values, order = curvature.to(torch.float64).sort()
    share = (torch.ones_like(values) if weight is None else weight[order]).cumsum(0)
    at = torch.searchsorted(share / share[-1], share.new_tensor([HIGH, HIGHEST])).clamp_max(len(values) - 1)
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


def _filled(root: Tensor, x: Tensor) -> Tensor:
    """Entries that are not finite numbers > 0 replaced by the spread of the chains, or by the mean of the others."""
    good = torch.isfinite(root) & (root > 0)
    if bool(good.all()):
        return root
    spread = _deviation(x)
    other = root[good].log().mean().exp() if bool(good.any()) else root.new_tensor(_spread(x))
    return torch.where(good, root, torch.where(spread > 0, spread, other))


def _trimmed_mean(values: Tensor) -> Tensor:
    """The mean over dim 0 without the smallest and the largest."""
    cut = int(TRIMMED * len(values))
    return values.sort(0).values[cut : len(values) - cut].mean(0)


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)


def _signs(x: Tensor, generator: torch.Generator) -> Tensor:
    return 1.0 - 2.0 * torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype)


def _squares(v: Tensor) -> Tensor:
    """|v|^2, chain by chain, in float64."""
    return v.to(torch.float64).square().reshape(len(v), -1).sum(1)


def _products(v: Tensor, w: Tensor) -> Tensor:
    """v . w, chain by chain, in float64."""
    return (v.to(torch.float64) * w.to(torch.float64)).reshape(len(v), -1).sum(1)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Numbers (m,) that multiply points."""
    return values.reshape(-1, *[1] * (x.ndim - 1))
