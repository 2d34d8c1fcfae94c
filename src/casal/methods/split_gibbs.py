"""A ladder of couplings for diffusion models: split Gibbs sampling with importance weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from casal.checks import one_of, share, whole_number
from casal.errors import SettingError
from casal.methods.base import Method, Stage, free_step, no_step, split_records, table_rows
from casal.methods.context import Context
from casal.methods.gibbs_moves import GibbsMoves
from casal.methods.metropolis_moves import MetropolisMoves
from casal.methods.moves import Moves
from casal.methods.smc import Finish, Groups, Rung, groups_of, next_rho, population_record, resample, rungs

MOVES = ("auto", "gibbs", "metropolis")

GIBBS_DIMENSION = 16
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
        "metropolis":  Phi_sigma(x) = exp(-dist(A x, C)^2 / (2 sigma^2)),   moves of ``metropolis_moves.py``

    A coupling of strength rho is noise of size rho^(-1/2), so the model's own reverse process is the exact move of x
    given z: no step size, no barrier to cross. "gibbs" needs a set with closed forms (affine, box, sphere, mass and
    energy) and a linear decoder; "metropolis" needs a projection alone. Both are exact but for the discretisation of
    the reverse process and the last sigma: z follows p smoothed by sigma (gibbs), or the foot of x (metropolis), and
    the error vanishes with sigma. In a set with an interior, "metropolis" ends like ``WeightedCASAL``: chains that are
    inside give copies in place of those outside.

    The run starts with the rows of the target's table, unconstrained: the ladder starts from samples of p. After them
    it takes (levels x sweeps x inner_steps) evaluations.

    Args:
        sigmas: The levels, decreasing; or one number, the last of ``levels`` levels which the chains place themselves,
            in equal steps of the spread of the log-weights.
        inner_steps: Evaluations of the denoiser in one move.
        levels: Number of levels if ``sigmas`` is a number.
        ess: Resample when the effective size falls below this share of the chains.
        sweeps: Moves at every level; more of them bring resampled copies apart.
        moves: "gibbs", "metropolis", or "auto": gibbs where there are closed forms and few dimensions.
        islands: Groups of chains that never meet, of equal size, pooled by their evidence (see ``Twisted``).
    """

    sigmas: float | Sequence[float] | Tensor
    inner_steps: int = 10
    levels: int = 40
    ess: float = 0.7
    sweeps: int = 1
    moves: str = "auto"
    islands: int = 1

    name: ClassVar[str] = "SplitGibbs"
    promises_distribution: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("inner_steps", "levels", "sweeps", "islands"):
            whole_number(getattr(self, name), name, 1)
        share(self.ess, "ess", "the chains")
        one_of(self.moves, "moves", MOVES)
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64).reshape(-1)
        if not len(sigma) or not bool((torch.isfinite(sigma) & (sigma > 0)).all()) or bool((sigma.diff() >= 0).any()):
            raise SettingError(f"sigmas must be finite, > 0 and strictly decreasing, got {sigma.tolist()}")

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        return [Stage(table_rows(context), free_step), *self.climb(context, n)]

    def climb(self, context: Context, n: int) -> list[Stage]:
        """The ladder, from clean points on."""
        moves, groups = self.moves_for(context), groups_of(context, n, self.islands)
        stages = list[Stage]()
        for rung in self._rungs():
            first, *rest = moves.sweep(context) * self.sweeps
            stages += [first._replace(meet=partial(self.meet, moves, rung, groups)), *rest]
        finish, after = moves.finish(context)
        return [*stages, Stage([], no_step, partial(self.end, moves, finish, groups)), *after]

    def moves_for(self, context: Context) -> Moves:
        """The kind of moves: gibbs where it is asked for, or where there are closed forms and few dimensions."""
        able = context.constraint.samples_near and context.decoder.linear
        if self.moves == "gibbs" and not able:
            raise SettingError(
                f"{context.constraint!r} behind {type(context.decoder).__name__} has no closed forms, "
                "which moves='gibbs' needs; take moves='metropolis'"
            )
        small = math.prod(context.latent) <= GIBBS_DIMENSION
        gibbs = able and (self.moves == "gibbs" or (self.moves == "auto" and small))
        return GibbsMoves(self.inner_steps) if gibbs else MetropolisMoves(self.inner_steps)

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> Any:
        return self.moves_for(context).start(context, x)

    def output(self, context: Context, state: Any) -> Tensor:
        return self.moves_for(context).output(context, state)

    def advice(self, state: Any, row: Any) -> str:
        return f"(rho = {float(state.rho):.3g}); check the denoiser at small noise, or end at a larger sigma"

    def monitor(self, context: Context, state: Any) -> Mapping[str, Tensor]:
        return split_records(context, state.x, state.z)

    def meet(
        self, moves: Moves, rung: Rung, groups: Groups, context: Context, state: Any, generator: torch.Generator
    ) -> tuple[Any, Mapping[str, float]]:
        """Climb one rung: weight all chains for the next rho, and resample where the weights are uneven."""
        state, moved = moves.arrive(context, state, self.sweeps)
        rho = rung.rho
        if rho is None:
            top = float(torch.as_tensor(self.sigmas, dtype=torch.float64)) ** -2
            weight = groups.weights(state.log_weight)
            rho = next_rho(float(state.rho), top, moves.half(context, state), weight, rung.left)
        log_weight = state.log_weight + moves.weigh(context, state, rho)
        state = state._replace(rho=torch.full_like(state.rho, rho), log_weight=log_weight)
        return resample(state, generator, groups, self.ess), {**population_record(state, groups), **moved}

    def end(
        self, moves: Moves, finish: Finish, groups: Groups, context: Context, state: Any, generator: torch.Generator
    ) -> tuple[Any, Mapping[str, float]]:
        """Resample all chains, then what the set allows to remove the error of a finite rho."""
        _, moved = moves.arrive(context, state, self.sweeps)
        state, info = finish(context, resample(state, generator, groups), generator, groups)
        return state, {**info, **moved}

    def _rungs(self) -> list[Rung]:
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64)
        return rungs(self.levels) if sigma.ndim == 0 else rungs(len(sigma), sigma.pow(-2))
