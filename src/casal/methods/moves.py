"""How the chains of a diffusion model move at one rung of the ladder, and how the rung weighs them: three kinds.

A coupling of strength rho is noise of size rho^(-1/2), so a move adds noise of about that size to a clean point and
runs the model's reverse process back down. It takes ``inner_steps`` evaluations of the denoiser D at levels
s_0 > s_1 > ... whose seventh roots are equally spaced. With r = (s' / s)^2 and h = log(s / s') of each step,

    x' = r x + (1 - r) (D + c (D - D_before) h / (2 h_before)) + s' sqrt(1 - r) w,     the last one x' = D(x)

The last one gets noise of variance e^2 s^2 if it is at the model's finest level s: the denoising error there
(``data_floor``), which is the variance of x0.

The first step has c = 0. c = 1 is a multistep method of second order (Lu et al. 2022, SDE-DPM-Solver++ 2M). Its
difference of two estimates carries their noise, so it makes the variance too large where s is far above the scale of
the data (20 steps, s = 100 scales: 11 %), as c = 0 makes it too small everywhere (10 to 20 %: what a move misses adds
up over many). So c is chosen such that the variance of a Gaussian of the finest scale of the data is exact.

    GibbsMoves         z near x on C in closed form, then x given z by the reverse process
    MetropolisMoves    add noise, run the reverse process back down, accept or not
    LevelMoves         the same at one noise level of the model, from which its own sampler leads to clean points
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from casal.constraints import half_square
from casal.errors import SettingError
from casal.methods.base import Each, free_step, generator_of, key, table_rows, uniform
from casal.methods.baselines import noise_levels
from casal.methods.coupling import Finish, choose_finish
from casal.methods.population import equal_weights
from casal.methods.problem import Problem, move, pick

RANGE = 0.1
"""The reverse process from s ends at RANGE min(s, scale of the data), or at the model's finest level above that."""

SHORT = 7
"""Steps of the reverse process far below the scale of the data."""

READ = 512
"""Chains from which the scale of the data is read."""

LEVEL_STEP = 2.0
"""Factor from one noise level to the next on the way to the scale of the data."""

SHARES = (0.5, 1.2)
"""Bounds of c, the share of the multistep term."""

SPACING = 7.0
"""The levels are equally spaced in their power 1 / SPACING."""


class Rung(NamedTuple):
    """What all chains share at a rung of the ladder.

    Attributes:
        edge: Whether C has inequalities.
        corrected: Whether the finish corrects for the score.
        rho: Coupling that all chains are at.
        size: Size of the noise of a move in units of rho^(-1/2) / |A|, where it adapts.
        top: Where the ladder ends, as far as the chains have shown.
        floor: The noise level at which the reverse process ends and the score of the data is read (``data_floor``); 0
            before the chains are clean.
        blur: Denoising error there: the size of the last noise, in units of its level.
    """

    edge: bool
    corrected: bool
    rho: float = 0.0
    size: float = 1.0
    top: float = 0.0
    floor: float = 0.0
    blur: float = 0.0


class Reverse(NamedTuple):
    """Row ``number`` of the ``steps`` rows of the reverse process, which ends at the level ``finest`` or above."""

    number: int
    steps: int
    finest: float
    at: Rung


class Moves(ABC):
    """One kind of moves. Its states have these fields, and its own:

        x             the point that moves; clean at the end of a move
        z             a point of C: the nearest point P(A x) of the clean point, unless the state says otherwise
        log_weight    logarithms of the weights, (n,)
        ancestor      the starting chain that each chain descends from, (n,)

    Args:
        inner_steps: Evaluations of the denoiser in one move.

    Attributes:
        first_stages: Stages of the way from starting points to clean points of the model.
        stages: Stages of one move.
        settles: Whether moves can go on within a set that has an interior, after the finish.
    """

    stages: ClassVar[int]
    settles: ClassVar[bool] = False

    def __init__(self, inner_steps: int) -> None:
        self.inner_steps, self.first_stages = inner_steps, 1

    @property
    def evaluations(self) -> int:
        """Evaluations of the network in one move."""
        return self.inner_steps

    def start(self, problem: Problem, x: Tensor) -> Any:
        """The state of chains with equal weights at x."""
        return self.from_clean(x, problem.project(problem.decode(x)), *equal_weights(problem, len(x)))

    @abstractmethod
    def from_clean(self, x: Tensor, z: Tensor, log_weight: Tensor, ancestor: Tensor) -> Any:
        """The state of points that have not moved yet, with their weights."""

    def first(self, problem: Problem, at: Rung, number: int) -> Each:
        """A stage of the way from starting points to clean points of the model: its table, unconstrained."""
        return Each(table_rows(problem), free_step)

    @abstractmethod
    def stage(self, problem: Problem, at: Rung, number: int) -> Each:
        """A stage of one move."""

    @abstractmethod
    def arrive(self, problem: Problem, state: Any, at: Rung, moves: int) -> tuple[Any, Rung, Mapping[str, float]]:
        """State and rung as the next rung needs them, after some moves at the one before, and what the trace keeps."""

    @abstractmethod
    def weigh(self, problem: Problem, state: Any, before: float, rho: float) -> Tensor:
        """log Phi_rho(x) - log Phi_before(x) for the next rho, (n,)."""

    @abstractmethod
    def half(self, problem: Problem, state: Any) -> Tensor:
        """dist(A x, C)^2 / 2 of every chain, (n,)."""

    def finish(self, problem: Problem, floor: float) -> Finish:
        """What the chains do together after the last rung."""
        return choose_finish(problem, partial(clean_score, floor))

    def settle(self, problem: Problem, state: Any, at: Rung) -> tuple[Any, Rung]:
        """State and rung for moves within C itself, after the finish; where ``settles``."""
        raise NotImplementedError

    def samples(self, problem: Problem, state: Any) -> Tensor:
        """The samples."""
        return problem.strict(problem.decode(state.x), warm=state.z)

    @abstractmethod
    def level(self, problem: Problem, at: Rung) -> float:
        """s: the noise of a move in the latent."""

    def reverse_stage(self, problem: Problem, at: Rung) -> Each:
        """The reverse process from the level s down to a clean point."""
        finest = finest_level(problem)
        return Each([Reverse(j, self.inner_steps, finest, at) for j in range(self.inner_steps)], self.reverse)

    def reverse(self, problem: Problem, state: Any, row: Reverse, noise: Tensor) -> Any:
        """One step of the reverse process."""
        s, floor = self.level(problem, row.at), row.at.floor
        levels = reverse_levels(s, floor, row.finest, row.steps)
        k = row.number - (row.steps - len(levels))
        if k < 0:
            return state  # near the data fewer steps do
        here = levels[k]
        clean = problem.denoise(state.x, here)
        if k == len(levels) - 1:
            left = row.at.blur * here if here <= row.finest else 0.0
            return state._replace(x=clean + left * noise)
        there, ahead = levels[k + 1], clean
        if k > 0:
            share = multistep_share(levels, floor / RANGE, levels[-1] <= row.finest)
            ahead = clean + share * _ratio(levels, k) * (clean - state.estimate)
        kept = (there / here) ** 2
        x = kept * state.x + (1.0 - kept) * ahead + there * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x, estimate=clean)


@lru_cache(maxsize=4096)
def reverse_levels(s: float, floor: float, finest: float, steps: int) -> tuple[float, ...]:
    """The levels of the reverse process from s down to the floor, or to RANGE s if that is lower.

    There are ``steps`` of them from the scale of the data on, fewer below it (down to SHORT), and one at the model's
    finest level and below.
    """
    end = max(finest, min(floor, RANGE * s))
    if s <= end or steps == 1:
        return (s,)
    share = min(1.0, max(0.0, 1.0 + math.log10(RANGE * s / floor)))
    count = min(steps, SHORT + math.ceil(share * max(0, steps - SHORT)))
    first, last = s ** (1 / SPACING), end ** (1 / SPACING)
    return tuple(float((first + k / (count - 1) * (last - first)) ** SPACING) for k in range(count))


def _ratio(levels: Sequence[float], k: int) -> float:
    """h / (2 h_before) of step k."""
    return 0.5 * math.log(levels[k] / levels[k + 1]) / math.log(levels[k - 1] / levels[k])


@lru_cache(maxsize=4096)
def multistep_share(levels: tuple[float, ...], scale: float, noisy: bool) -> float:
    """c: with it the reverse process has the exact variance s^2 l^2 / (s^2 + l^2) on a Gaussian of scale l.

    By halving the interval SHARES: the variance rises with c.
    """
    exact = levels[0] ** 2 * scale**2 / (levels[0] ** 2 + scale**2)
    low, high = SHARES
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _variance(levels, scale, middle, noisy) < exact else (low, middle)
    return 0.5 * (low + high)


def _variance(levels: Sequence[float], scale: float, share: float, noisy: bool) -> float:
    """Variance of the last point given the first, in the reverse process on a Gaussian of this scale.

    x and the estimate before are linear in all noise; their covariance is carried along.
    """
    xx = xd = dd = 0.0  # of x, of x with the estimate before, of the estimate before
    for k, here in enumerate(levels):
        gain = scale**2 / (scale**2 + here**2)
        if k == len(levels) - 1:
            return gain**2 * xx + (gain * here**2 if noisy else 0.0)
        kept = (levels[k + 1] / here) ** 2
        more = share * _ratio(levels, k) if k > 0 else 0.0
        mine, other = kept + (1.0 - kept) * gain * (1.0 + more), -(1.0 - kept) * more
        fresh = levels[k + 1] ** 2 * (1.0 - kept)
        xx, xd, dd = (
            mine**2 * xx + 2.0 * mine * other * xd + other**2 * dd + fresh,
            gain * (mine * xx + other * xd),
            gain**2 * xx,
        )
    return xx


def data_floor(problem: Problem, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """The noise level s at which the reverse process may end, RANGE times the finest scale of the data, and e there.

    A coordinate of scale l has the denoising error E (D_i(x + s w) - x_i)^2 = s^2 l^2 / (l^2 + s^2), so it is half of
    s^2 at s = l. Clean points of the model itself are noised at rising levels, from its finest on, until the
    error of one coordinate falls below half: that coordinate tells the scale. e^2 is the error at the floor over s^2.

    Args:
        problem: Model, set and decoder.
        x: Clean points of the model, (n, *latent).
        generator: Draws the noise.
    """
    some = torch.arange(0, len(x), max(1, len(x) // READ), device=x.device)[:READ]
    few, problem = x[some], problem.take(some)

    def error(s: float) -> Tensor:
        noise = torch.randn(few.shape, generator=generator, dtype=torch.float32, device=few.device).to(few.dtype)
        return (problem.denoise(few + s * noise, s) - few).to(torch.float64).square().mean(0) / s**2

    finest = s = finest_level(problem)
    scale = widest = float(few.std(0).max()) if len(few) > 1 else 1.0
    while s < widest:
        least = float(error(s).min())
        if least < 0.5:
            scale = s * math.sqrt(least / (1.0 - least))
            break
        s *= LEVEL_STEP
    floor = max(finest, RANGE * scale)
    return floor, math.sqrt(min(1.0, float(error(floor).mean())))


def clean_score(floor: float, problem: Problem, state: Any, x: Tensor) -> Tensor:
    """(D(x, s) - x) / s^2 at the floor s: the score of the data, smoothed by less than its own scale."""
    return (problem.denoise(x, floor) - x) / floor**2


def finest_level(problem: Problem) -> float:
    """The smallest noise at which the model may be asked, in units of the clean sample."""
    table = problem.table
    if table.alpha is None or table.sigma is None or problem.target.denoise is None:
        raise SettingError(
            f"{problem.target.name} has no denoiser: this method needs a diffusion or flow model "
            "(ddpm, vp_sde, edm, flow); for a fixed density use WeightedCASAL"
        )
    finest = problem.target.finest
    return float((table.sigma / table.alpha).min()) if finest is None else finest


# --------------------------------------------------------------------------------------- gibbs moves


class GibbsState(NamedTuple):
    """A population that draws z given x and x given z: the fields that ``Moves`` tells, and its own.

    Attributes:
        z: The last draw from N(A x, 1 / rho) restricted to C; P(A x) before the first draw.
        estimate: The denoised estimate of the step before.
    """

    x: Tensor
    z: Tensor
    estimate: Tensor
    log_weight: Tensor
    ancestor: Tensor


class GibbsMoves(Moves):
    """Draw z near x on the set in closed form, then x given z by the model's reverse process.

        z ~ N(A x, sigma^2) restricted to C,                       sigma = rho^(-1/2)
        c = x + A^T (z - A x) / |A|^2 + (sigma / |A|) (I - A^T A / |A|^2)^(1/2) w
        x ~ p(x0 | x0 + (sigma / |A|) noise = c)                   (the reverse process)

    This is exact for p(x) N(z; A x, sigma^2) 1_C(z), but for the discretisation of the reverse process. A rung weighs
    by Phi_sigma(x), the integral of N(z; A x, sigma^2) over C. It needs a set with closed forms (affine, box, sphere,
    mass and energy) and a linear decoder.
    """

    stages = 3

    def from_clean(self, x: Tensor, z: Tensor, log_weight: Tensor, ancestor: Tensor) -> GibbsState:
        return GibbsState(x, z, x, log_weight, ancestor)

    def stage(self, problem: Problem, at: Rung, number: int) -> Each:
        _ = problem.gram
        if number == 2:
            return self.reverse_stage(problem, at)
        return Each([at], self.draw, key) if number == 0 else Each([at], self.centre)

    def arrive(
        self, problem: Problem, state: GibbsState, at: Rung, moves: int
    ) -> tuple[GibbsState, Rung, Mapping[str, float]]:
        if at.rho > 0.0:
            return state, at, {}
        return state._replace(z=problem.nearest(problem.decode(state.x), warm=state.z)), at, {}

    def weigh(self, problem: Problem, state: GibbsState, before: float, rho: float) -> Tensor:
        decoded = problem.decode(state.x)
        return _log_mass(problem, decoded, rho) - _log_mass(problem, decoded, before)

    def half(self, problem: Problem, state: GibbsState) -> Tensor:
        decoded = problem.decode(state.x)
        return half_square(decoded - problem.nearest(decoded, warm=state.z))

    def finish(self, problem: Problem, floor: float) -> Finish:
        return choose_finish(problem, partial(clean_score, floor), _log_mass)

    def level(self, problem: Problem, at: Rung) -> float:
        return 1.0 / (at.rho**0.5 * problem.decoder.norm())

    def draw(self, problem: Problem, state: GibbsState, row: Rung, noise: Tensor) -> GibbsState:
        """z ~ N(A x, 1 / rho) restricted to C."""
        near = problem.decode(state.x)
        drawn = problem.constraint.sample_near(near, row.rho**-0.5, generator_of(noise, near))
        assert drawn is not None, "SplitGibbs takes these moves only where the set has closed forms"
        return state._replace(z=drawn.to(state.z.dtype))

    def centre(self, problem: Problem, state: GibbsState, row: Rung, noise: Tensor) -> GibbsState:
        """c: the point whose noise of size sigma / |A| stands for both z and what A does not see of x."""
        x, gram, stiffness = state.x, problem.gram, problem.decoder.norm() ** 2
        blind = (1.0 - gram.eigenvalues / stiffness).clamp_min(0.0).sqrt()
        spread = gram.unwhiten((blind * noise.reshape(len(x), *blind.shape)) if blind.ndim else blind * noise)
        pull = problem.decoder.vjp(x)((state.z - problem.decode(x)).to(x.dtype)) / stiffness
        c = x + pull + self.level(problem, row) * spread.reshape(x.shape)
        return state._replace(x=c, estimate=c)


def _log_mass(problem: Problem, decoded: Tensor, rho: float) -> Tensor:
    """log Phi, zero at rho = 0."""
    if rho == 0.0:
        return torch.zeros(len(decoded), dtype=torch.float64, device=decoded.device)
    value = problem.constraint.log_normaliser(decoded, rho**-0.5)
    assert value is not None, "SplitGibbs takes these moves only where the set has closed forms"
    return value


# -------------------------------------------------------------------- moves that are accepted or not

TOWARDS = 0.75
"""Share of the way to C that g goes when the noise is as large as the slack rho^(-1/2)."""

WIDE, WANTED_INSIDE = 0.7, 0.45
"""In a set with an interior: largest noise of a move, in units of the spread of the chains, and share to accept."""

HARD = 1e16
"""Coupling at which a move out of C is never accepted, in units of the last rung's."""


class MetropolisState(NamedTuple):
    """A population between a clean point and the next: the fields that ``AcceptedMoves`` tells, and its own.

    Attributes:
        start: y of the present move.
        estimate: The denoised estimate of the step before.
    """

    x: Tensor
    z: Tensor
    clean: Tensor
    start: Tensor
    estimate: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor


class AcceptedMoves(Moves):
    """Moves that propose a clean point and accept it or not. Their states also have these fields:

        clean       the clean point that the present move started from
        half        V = dist(A x, C)^2 / 2 of the clean point, (n,)
        accepted    how many proposals each chain has accepted since the last rung, (n,)

    Attributes:
        wanted: Share of proposals to accept; the size of the noise adapts to it between two rungs.
        sizes: Bounds of the size of the noise in units of rho^(-1/2) / |A|.
    """

    wanted: ClassVar[float]
    sizes: ClassVar[tuple[float, float]]

    def arrive(self, problem: Problem, state: Any, at: Rung, moves: int) -> tuple[Any, Rung, Mapping[str, float]]:
        if at.rho == 0.0:
            return with_nearest(problem, state), at, {"acceptance": 1.0}
        rate = float(state.accepted.mean()) / moves
        least, most = self.sizes
        widest = self.widest(problem, state, at)
        wanted = WANTED_INSIDE if widest else self.wanted
        size = min(max(at.size * math.exp(rate - wanted), least), max(most, widest))
        return state._replace(accepted=torch.zeros_like(state.accepted)), at._replace(size=size), {"acceptance": rate}

    def widest(self, problem: Problem, state: Any, at: Rung) -> float:
        """Size of the noise up to which a move may go, if the set allows more than ``sizes``."""
        return 0.0

    def weigh(self, problem: Problem, state: Any, before: float, rho: float) -> Tensor:
        return (before - rho) * cast(Tensor, state.half)

    def half(self, problem: Problem, state: Any) -> Tensor:
        return cast(Tensor, state.half)

    def decide(self, problem: Problem, state: Any, at: Rung, noise: Tensor) -> tuple[Any, Tensor]:
        """Keep the proposal, or go back to the clean point the move started from; and who kept it, (n,) bool."""
        new = with_nearest(problem, state)
        yes = torch.log(noise) < self.log_ratio(problem, state, new, at)
        kept = state._replace(
            x=pick(yes, state.x, state.clean),
            z=pick(yes, new.z, state.z),
            half=torch.where(yes, new.half, state.half),
            accepted=state.accepted + yes.to(state.accepted),
        )
        return kept, yes

    @abstractmethod
    def log_ratio(self, problem: Problem, old: Any, new: Any, at: Rung) -> Tensor:
        """Logarithm of the acceptance ratio, (n,); the old clean point is ``old.clean``, the new one ``new.x``."""


class MetropolisMoves(AcceptedMoves):
    """Add noise, run the model's reverse process back down, accept or not.

        y  = x + g(x) + s w                                       (w ~ N(0, I); g leads towards C)
        x' ~ p(x0 | x0 + s noise = y)                             (the reverse process from the level s down)
        accept with probability min(1, exp(-rho (V(x') - V(x))) T(x') / T(x))

    with V(x) = dist(A x, C)^2 / 2, g(x) = c A^T (P(A x) - A x) and T(x) = N(y; x + g(x), s^2) / N(y; x, s^2). Two clean
    points that share a noisy one are exchangeable under p: p(x) N(y; x) p(x' | y) is symmetric in x and x'. So without
    g and V the move leaves p as it is; T pays for g, and the factor of V makes pi_rho(x) ~ p(x) exp(-rho V(x)) the
    distribution that stays. Nothing is asked of the set but its projection, nothing of the decoder but its derivative.
    A rung weighs by Phi_rho(x) = exp(-rho V(x)).
    """

    stages = 3
    wanted = 0.65
    sizes = (0.05, 2.0)
    settles = True

    def from_clean(self, x: Tensor, z: Tensor, log_weight: Tensor, ancestor: Tensor) -> MetropolisState:
        zeros = torch.zeros_like(log_weight)
        return MetropolisState(x, z, x, x, x, zeros, log_weight, ancestor, zeros)

    def widest(self, problem: Problem, state: Any, at: Rung) -> float:
        """In a set with an interior, where a chain has room, noise nearly as large as the spread of the chains."""
        if not problem.constraint.solid or len(state.x) < 2:
            return 0.0
        spread = float(state.x.to(torch.float64).var(0).mean().sqrt())
        return WIDE * spread * at.rho**0.5 * problem.decoder.norm()

    def settle(self, problem: Problem, state: MetropolisState, at: Rung) -> tuple[MetropolisState, Rung]:
        """The same noise, and every move out of C is refused."""
        return with_nearest(problem, state), at._replace(rho=HARD * at.rho, size=HARD**0.5 * at.size)

    def stage(self, problem: Problem, at: Rung, number: int) -> Each:
        if number == 1:
            return self.reverse_stage(problem, at)
        return Each([at], self.renoise) if number == 0 else Each([at], self.accept, uniform)

    def level(self, problem: Problem, at: Rung) -> float:
        return at.size / (at.rho**0.5 * problem.decoder.norm())

    def renoise(self, problem: Problem, state: MetropolisState, row: Rung, noise: Tensor) -> MetropolisState:
        """y = x + g(x) + s w."""
        s = self.level(problem, row)
        y = state.x + guide(problem, state.x, state.z, s, row.rho) + s * noise
        return state._replace(x=y, start=y, clean=state.x, estimate=y)

    def accept(self, problem: Problem, state: MetropolisState, row: Rung, noise: Tensor) -> MetropolisState:
        """Keep the proposal, or go back."""
        kept: MetropolisState = self.decide(problem, state, row, noise)[0]
        return kept

    def log_ratio(self, problem: Problem, old: MetropolisState, new: MetropolisState, at: Rung) -> Tensor:
        """log of exp(-rho (V(x') - V(x))) T(x') / T(x)."""
        s = self.level(problem, at)

        def tilt(x: Tensor, z: Tensor) -> Tensor:
            """log T(x) = log N(y; x + g(x), s^2) - log N(y; x, s^2) = (g . (y - x) - |g|^2 / 2) / s^2."""
            g = guide(problem, x, z, s, at.rho).reshape(len(x), -1).to(torch.float64)
            away = (old.start - x).reshape(len(x), -1).to(torch.float64)
            return ((g * away).sum(1) - g.square().sum(1) / 2) / s**2

        return tilt(new.x, new.z) - tilt(old.clean, old.z) - at.rho * (new.half - old.half)


def with_nearest(problem: Problem, state: Any) -> Any:
    """The state with the nearest point of every clean point and its distance."""
    decoded = problem.decode(state.x)
    z = problem.nearest(decoded, warm=state.z)
    return state._replace(z=z, half=half_square(decoded - z))


def guide(problem: Problem, x: Tensor, z: Tensor, s: float, rho: float) -> Tensor:
    """g(x) = c A^T (z - A x) with c |A|^2 = min(1, (s |A|)^2 rho) TOWARDS."""
    stiffness = problem.decoder.norm() ** 2
    share = TOWARDS * min(1.0, s**2 * stiffness * rho) / stiffness
    return share * problem.decoder.vjp(x)(z - problem.decode(x))


# --------------------------------------------------------------------------------------- level moves

BACK_STEPS = 2
"""Steps of the reverse process from the noisy point y down to s*."""

LARGEST_NOISE = 0.5
"""The noise h of a level move over s*, at most. Above it two steps of the reverse process are too coarse: 2 moved
the means of both modes of an exact model by .1."""


class LevelState(NamedTuple):
    """A population between a clean point and the next: the fields that ``AcceptedMoves`` tells, and its own.

    Attributes:
        held: u, where the clean point comes from, in units of the clean sample.
        held_noise: e, the noise of the rows on its way, (n, rows, *latent); no rows if they have no noise.
        proposed: u'.
        proposed_noise: e'.
    """

    x: Tensor
    z: Tensor
    clean: Tensor
    held: Tensor
    held_noise: Tensor
    proposed: Tensor
    proposed_noise: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor


class OwnRow(NamedTuple):
    """A row of the model's table below s*, and its number among them."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    number: int
    at: Rung


class LevelMoves(AcceptedMoves):
    """The chains live at one noise level of the model, and its own sampler leads from there to clean points.

        x  = G(u, e): the rows of the model's own table from the level s* down to a clean point, e their noise
        y  = u + h w                                                    (w ~ N(0, I))
        u' ~ p(u | u + h noise = y)                                     (BACK_STEPS of the reverse process, down to s*)
        x' = G(u', e'),   e' = (1 - b^2)^(1/2) e + b w,   b = min(1, h / s*)
        accept with probability min(1, exp(-rho (V(x') - V(x)))),      V(x) = dist(A x, C)^2 / 2

    The other moves add noise to clean points and ask the denoiser at small noise, where networks are worst: a trained
    network is then drawn away from its own samples. Here the denoiser is asked at s* and above alone. Below s* the
    network is used as the model's own sampler uses it, so the chains keep the distribution of the model's own samples.

    Share of the smaller mode on one equation, flow networks in the plane, sigma = .02, 20 levels, 723 evaluations (own
    samples near the set; these moves; gibbs moves): well trained .113; .107; .011. Short training: .279; .243; .240,
    with less than half of the right spread. Exact velocity: .060; .051 (standard error .008); .060.

    Args:
        problem: Model, set and decoder.
        level: s* in units of the clean sample; the nearest row of the table is taken.

    """

    stages = 5
    wanted = 0.4
    sizes = (0.05, 10.0)

    def __init__(self, problem: Problem, level: float) -> None:
        super().__init__(BACK_STEPS)
        alpha, sigma = noise_levels(problem.table)
        levels = sigma / alpha
        self.above = int((levels.log() - math.log(level)).abs().argmin())
        self.below = len(levels) - self.above
        self.s, self.scale = float(levels[self.above]), float(alpha[self.above])
        self.noisy = bool(problem.table.s[self.above :].any())
        self.first_stages = 4 if self.above else 3

    @property
    def evaluations(self) -> int:
        return BACK_STEPS + self.below

    def from_clean(self, x: Tensor, z: Tensor, log_weight: Tensor, ancestor: Tensor) -> LevelState:
        zero = torch.zeros_like(log_weight)
        noise = x.new_zeros((len(x), self.below if self.noisy else 0, *x.shape[1:]))
        return LevelState(x, z, x, x, noise, x, noise, zero, log_weight, ancestor, zero)

    def first(self, problem: Problem, at: Rung, number: int) -> Each:
        """The rows of the table, unconstrained: they leave u and e behind."""
        left = self.first_stages - number
        if left == 4:
            return Each(table_rows(problem)[: self.above], free_step)
        return self._rows_below(problem, at) if left == 2 else Each([at], self.hold if left == 3 else self.keep)

    def stage(self, problem: Problem, at: Rung, number: int) -> Each:
        if number == 1:
            return Each([Reverse(j, BACK_STEPS, self.s, at) for j in range(BACK_STEPS)], self.back)
        if number == 3:
            return self._rows_below(problem, at)
        return Each([at], self.accept, uniform) if number == 4 else Each([at], self.release if number else self.renoise)

    def _rows_below(self, problem: Problem, at: Rung) -> Each:
        """G: the rows of the model's own table below s*."""
        rows = table_rows(problem)[self.above :]
        return Each([OwnRow(row.a, row.b, row.s, row.t, j, at) for j, row in enumerate(rows)], self.down)

    def level(self, problem: Problem, at: Rung) -> float:
        """h: the noise of a move in the latent."""
        return min(LARGEST_NOISE * self.s, at.size / (math.sqrt(at.rho) * problem.decoder.norm()))

    def hold(self, problem: Problem, state: LevelState, row: Rung, noise: Tensor) -> LevelState:
        """Remember u on the way down."""
        return state._replace(held=state.x / self.scale)

    def keep(self, problem: Problem, state: LevelState, row: Rung, noise: Tensor) -> LevelState:
        """Remember e at the end of the first way down."""
        return state._replace(held_noise=state.proposed_noise)

    def renoise(self, problem: Problem, state: LevelState, row: Rung, noise: Tensor) -> LevelState:
        """y = u + h w."""
        return state._replace(x=state.held + self.level(problem, row) * noise, clean=state.x)

    def back(self, problem: Problem, state: LevelState, row: Reverse, noise: Tensor) -> LevelState:
        """One step of the reverse process from (s*^2 + h^2)^(1/2) down to s*, in equal ratios."""
        top = math.hypot(self.s, self.level(problem, row.at))
        here, there = (float(top * (self.s / top) ** (k / row.steps)) for k in (row.number, row.number + 1))
        kept = (there / here) ** 2
        x = kept * state.x + (1.0 - kept) * problem.denoise(state.x, here) + there * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x)

    def release(self, problem: Problem, state: LevelState, row: Rung, noise: Tensor) -> LevelState:
        """u' takes the model's own scale, for the rows of its table."""
        return state._replace(proposed=state.x, x=state.x * self.scale)

    def down(self, problem: Problem, state: LevelState, row: OwnRow, noise: Tensor) -> LevelState:
        """One row of the model's own table, with noise near that of the present clean point."""
        if self.noisy:
            fresh = 1.0 if row.at.rho == 0.0 else min(1.0, self.level(problem, row.at) / self.s)
            noise = math.sqrt(1.0 - fresh**2) * state.held_noise[:, row.number] + fresh * noise
            parts = state.proposed_noise[:, : row.number], noise[:, None], state.proposed_noise[:, row.number + 1 :]
            state = state._replace(proposed_noise=torch.cat(parts, 1))
        return state._replace(x=move(problem, state.x, problem.score(state.x, row.t), row, noise))

    def accept(self, problem: Problem, state: LevelState, row: Rung, noise: Tensor) -> LevelState:
        """Keep the proposal with its u and e, or go back."""
        kept, yes = self.decide(problem, state, row, noise)
        new: LevelState = kept._replace(
            held=pick(yes, state.proposed, state.held),
            held_noise=pick(yes, state.proposed_noise, state.held_noise),
        )
        return new

    def log_ratio(self, problem: Problem, old: LevelState, new: LevelState, at: Rung) -> Tensor:
        """log of exp(-rho (V(x') - V(x)))."""
        return -at.rho * (new.half - old.half)
