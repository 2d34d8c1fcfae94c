"""A ladder of couplings for diffusion models: split Gibbs sampling with importance weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from casal.checks import one_of, positive, share, whole_number
from casal.constraints import geometry
from casal.errors import SettingError
from casal.methods.base import Each, Method, Together, split_records
from casal.methods.coupling import (
    CORRECTED,
    UNCORRECTED,
    Level,
    along,
    has_edge,
    levels,
    lift,
    onto,
    population_record,
    reach_rho,
    search_due,
    top_for_crossings,
    top_for_inside,
    top_for_spread,
)
from casal.methods.moves import (
    GibbsMoves,
    LevelMoves,
    MetropolisMoves,
    Moves,
    Rung,
    clean_score,
    data_floor,
    finest_level,
)
from casal.methods.population import Groups, groups_of, next_level, resample
from casal.methods.problem import Problem, few_chains

SETTLING = 8
"""Moves after the finish, in a set with an interior."""

LOOK_CHAINS = 512
"""Chains whose score is evaluated in a look."""

Done: TypeAlias = tuple[Any, Rung, Mapping[str, float]]

MOVES = ("auto", "gibbs", "metropolis", "level")

GIBBS_DIMENSION = 8
"""Up to here "auto" takes gibbs, which needs fewer evaluations on few dimensions (half the inner steps in the plane)
but forgets more of x in every sweep: in 16 dimensions it keeps half the ancestors of metropolis, in 256 one."""


@dataclass(frozen=True)
class SplitGibbs(Method[Any]):
    """Samples a diffusion model restricted to C: a ladder of couplings, climbed with importance weights.

    The levels are p(x) N(z; A x, sigma^2) 1_C(z), from sigma = infinity down (rho = 1 / sigma^2):

        weight *= Phi_sigma'(x) / Phi_sigma(x);          resample (systematic) if the effective size < ess n
        "gibbs":       z ~ N(A x, sigma'^2) restricted to C,   Phi_sigma(x) = integral of N(z; A x, sigma^2) over C
                       c = x + A^T (z - A x) / |A|^2 + (sigma' / |A|) (I - A^T A / |A|^2)^(1/2) w
                       x ~ p(x0 | x0 + (sigma' / |A|) noise = c)             (the reverse process, ``inner_steps`` long)
        "metropolis":  Phi_sigma(x) = exp(-dist(A x, C)^2 / (2 sigma^2)),   moves of ``moves.py``

    A coupling of strength rho is noise of size rho^(-1/2), so the model's own reverse process is the exact move of x
    given z: no step size, no barrier to cross. "gibbs" needs a set with closed forms (affine, box, sphere, mass and
    energy) and a linear decoder; "metropolis" needs a projection alone. Both are exact but for the discretisation of
    the reverse process. At the end a ``Finish`` (``coupling.py``) turns the chains near C into samples of p on C:
    those whose nearest point satisfies the inequalities stay, weighted for the offset from it. In a solid set
    a few metropolis moves that stay inside follow: they part the copies of the last resampling.

    The run starts with the rows of the target's table, unconstrained: the ladder starts from samples of p. After them
    it takes at most (levels x sweeps x inner_steps) evaluations, and 8 x inner_steps for the moves inside: fewer where
    the noise is below the scale of the data.

    Args:
        sigmas: The levels, decreasing; or one number, the last of ``levels`` levels which the chains place themselves,
            in equal steps of the spread of the log-weights. None: the ladder ends where the nearest points of the
            chains no longer change. With inequalities that few chains satisfy at the last level, the ladder goes on.
        inner_steps: Evaluations of the denoiser in one move, at most.
        levels: Number of levels if ``sigmas`` is a number or None.
        ess: Resample when the effective size falls below this share of the chains.
        sweeps: Moves at every level; more of them bring resampled copies apart.
        moves: "gibbs", "metropolis", "level", or "auto": gibbs where there are closed forms and few dimensions, else
            metropolis. "level" is for networks whose score is wrong at small noise (``moves.LevelMoves``).
        islands: Groups of chains that never meet, of equal size, pooled by their evidence, the mean of
            their weights along the run: no single lucky chain takes them all.
        level: Noise level of level moves, in units of the clean sample; the nearest row of the table is taken.
    """

    sigmas: float | Sequence[float] | Tensor | None = None
    inner_steps: int = 10
    levels: int = 40
    ess: float = 0.7
    sweeps: int = 1
    moves: str = "auto"
    islands: int = 1
    level: float = 0.4

    name: ClassVar[str] = "SplitGibbs"
    promises_distribution: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("inner_steps", "levels", "sweeps", "islands"):
            whole_number(getattr(self, name), name, 1)
        positive(self.level, "level")
        share(self.ess, "ess", "the chains")
        one_of(self.moves, "moves", MOVES)
        if self.sigmas is None:
            return
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64).reshape(-1)
        if not len(sigma) or not bool((torch.isfinite(sigma) & (sigma > 0)).all()) or bool((sigma.diff() >= 0).any()):
            raise SettingError(f"sigmas must be finite, > 0 and strictly decreasing, got {sigma.tolist()}")

    def control(self, problem: Problem, n: int) -> Rung:
        finest_level(problem)
        _ = groups_of(problem, n, self.islands)
        corrected = self.moves_for(problem).finish(problem, 0.0).evaluations > 0
        return Rung(has_edge(problem), corrected)

    def next(self, problem: Problem, control: Rung, stage: int) -> Each | Together | None:
        moves = self.moves_for(problem)
        if stage < moves.first_stages:
            return moves.first(problem, control, stage)
        return self.climb(problem, control, stage - moves.first_stages)

    def climb(self, problem: Problem, control: Rung, stage: int) -> Each | Together | None:
        """A stage of the ladder, from clean points on: its levels, the finish, and moves inside; None at the end."""
        moves, ladder = self.moves_for(problem), self._levels()
        level, part = divmod(stage, 1 + self.sweeps * moves.stages)
        if level < len(ladder):
            if part == 0:
                return Together(partial(self.meet, ladder[level]))
            return moves.stage(problem, control, (part - 1) % moves.stages)
        after = stage - len(ladder) * (1 + self.sweeps * moves.stages)
        if after == 0:
            return Together(self.end)
        if not (problem.constraint.solid and moves.settles) or after > 1 + SETTLING * moves.stages:
            return None
        return Together(self.settle) if after == 1 else moves.stage(problem, control, (after - 2) % moves.stages)

    def moves_for(self, problem: Problem) -> Moves:
        """The kind of moves: gibbs where it is asked for, or where there are closed forms and few dimensions."""
        if self.moves == "level":
            return LevelMoves(problem, self.level)
        able = problem.constraint.samples_near and problem.decoder.linear
        if self.moves == "gibbs" and not able:
            raise SettingError(
                f"{problem.constraint!r} behind {type(problem.decoder).__name__} has no closed forms, "
                "which moves='gibbs' needs; use moves='metropolis'"
            )
        small = math.prod(problem.latent) <= GIBBS_DIMENSION
        gibbs = able and (self.moves == "gibbs" or (self.moves == "auto" and small))
        return GibbsMoves(self.inner_steps) if gibbs else MetropolisMoves(self.inner_steps)

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Any:
        return self.moves_for(problem).start(problem, x)

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return self.moves_for(problem).samples(problem, state)

    def advice(self, state: Any, row: Any) -> str:
        rho = getattr(getattr(row, "at", row), "rho", 0.0)  # rows of the model's table have no rung
        return f"(rho = {rho:.3g}); check the denoiser at small noise, or end at a larger sigma"

    def monitor(self, problem: Problem, state: Any) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z)

    def meet(self, level: Level, problem: Problem, state: Any, control: Rung, generator: torch.Generator) -> Done:
        """Go up one level: weight all chains for the next rho, and resample where the weights are uneven."""
        moves, groups = self.moves_for(problem), groups_of(problem, len(state.x), self.islands)
        if control.floor == 0.0:
            floor, blur = data_floor(problem, state.x, generator)
            control = control._replace(floor=floor, blur=blur)
        state, control, moved = moves.arrive(problem, state, control, self.sweeps)
        rho = level.rho
        if rho is None:
            half, weight = moves.half(problem, state), groups.weights(state.log_weight)
            if search_due(level.left, every=4) or control.top == 0.0:
                control = control._replace(top=self._top(problem, state, control, half, weight, groups))
            rho = next_level(control.rho, max(control.top, control.rho), half, weight, level.left)
        state = state._replace(log_weight=state.log_weight + moves.weigh(problem, state, control.rho, rho))
        known = {**population_record(state, groups, rho), **moved}
        return resample(state, generator, groups, self.ess), control._replace(rho=rho), known

    def _top(self, problem: Problem, state: Any, control: Rung, half: Tensor, weight: Tensor, groups: Groups) -> float:
        """Where the ladder ends: at the sigma that was given, and not before the inequalities hold for most chains."""
        given = 0.0 if self.sigmas is None else float(torch.as_tensor(self.sigmas, dtype=torch.float64)) ** -2
        if given and not control.edge:
            return given
        rho, top = control.rho, given
        if control.edge:
            parts = few_chains(state.x, state.z)
            inside = torch.cat(
                [
                    geometry.nearest_on_surface(problem.constraint.take(p), problem.decode(state.x[p])).inside
                    for p in parts
                ]
            )
            top = top_for_inside(rho, half, weight, inside, groups, top)
        if not given:
            few = torch.arange(0, len(half), max(1, len(half) // LOOK_CHAINS), device=half.device)
            rise = _rise(problem.take(few), state, control.floor, few)
            spread = CORRECTED if control.corrected else UNCORRECTED
            least = top_for_crossings(problem, state.z, rho, weight, max(top, reach_rho(problem)))
            top = top_for_spread(rho, half, weight[few] / weight[few].sum(), rise, spread, least)
        if top == 0.0:  # no chain is outside: a coupling at the scale of the points themselves
            variance = float(problem.decode(state.x).to(torch.float64).var(0, correction=0).mean())
            top = 1.0 / max(variance, torch.finfo(torch.float64).tiny)
        return top

    def end(self, problem: Problem, state: Any, control: Rung, generator: torch.Generator) -> Done:
        """Resample all chains, then what the set allows to remove the error of a finite rho."""
        moves, groups = self.moves_for(problem), groups_of(problem, len(state.x), self.islands)
        _, _, moved = moves.arrive(problem, state, control, self.sweeps)
        finish = moves.finish(problem, control.floor)
        state, info = finish(problem, resample(state, generator, groups), control.rho, generator, groups)
        return state, control, {**info, **moved}

    def settle(self, problem: Problem, state: Any, control: Rung, generator: torch.Generator) -> Done:
        """Turn to moves within C itself, which part the copies of the last resampling."""
        return *self.moves_for(problem).settle(problem, state, control), {}

    def _levels(self) -> list[Level]:
        if self.sigmas is None:
            return levels(self.levels)
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64)
        return levels(self.levels) if sigma.ndim == 0 else levels(len(sigma), sigma.pow(-2))


def _rise(problem: Problem, state: Any, floor: float, few: Tensor) -> Tensor:
    """log p(x) - log p(z) + log J(A x, z) of some chains to first order, from the score at clean points."""
    x = state.x[few]
    decoded = problem.decode(x)
    at = geometry.nearest_on_surface(problem.constraint, decoded)
    offset = (decoded - at.point).to(x.dtype)
    back = lift(problem, offset) if onto(problem) else problem.decoder.vjp(x)(offset) / problem.decoder.norm() ** 2
    rise = along(clean_score(floor, problem, state, x), back)
    return rise if at.log_volume is None else rise + at.log_volume
