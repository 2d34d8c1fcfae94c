"""Projected Langevin (Bubeck et al. 2015; for diffusion, Christopher et al. 2024): project after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.constraints import Constraint, Through
from casal.errors import CasalError, SettingError
from casal.methods.base import Method, Stage, Step, TableRow, burn_in_steps, free_step, step_advice, table_rows
from casal.methods.context import Context
from casal.methods.unconstrained import PointState, points

LATENT = ("pinv", "exact")
REACHED = 1e-10
"""Violation up to which a latent projection counts as well posed."""
FAR = 1e8
"""Size of an image, in units of the point and its foot in decoded space, beyond which it is rounding blown up."""
WAY_OUT = "use latent='pinv'"


@dataclass(frozen=True)
class Projected(Method[PointState]):
    """Projects after every step (paper, example projected). Feasible; stays where it starts.

        x' = A^+ P(A (a x + b score(x) + s w))

    Where A does not reach every z, A A^+ P(z) may leave C again: the chain is then only near it, and the samples are
    made strict at the end. "exact" takes the nearest latent whose image is in C instead,

        x' = P_L(a x + b score(x) + s w),   L = {x : A x in C},

    in closed form if A A^T = c I or C is affine, else by the ways of ``constraint.through(A)``. Between the two,
    ``repeats`` applies x <- A^+ P(A x) several times after every step: alternating projections between C and the range
    of A, as in latent projected diffusion (Zampini et al. 2025).

    Args:
        burn_in: First steps without a projection: a number of steps, or a fraction of the run below one.
        latent: "pinv" or "exact", for linear decoders. The same for the identity.
        repeats: Projections after a step, with latent="pinv".
    """

    burn_in: float = 0
    latent: str = "pinv"
    repeats: int = 1

    name: ClassVar[str] = "projected"
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of(self.latent, "latent", LATENT)
        whole_number(self.repeats, "repeats", 1)
        if self.repeats > 1 and self.latent == "exact":
            raise SettingError(f"repeats = {self.repeats} is for latent='pinv'; one exact projection is enough")

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        first, rows = burn_in_steps(self.burn_in, len(context.table)), table_rows(context)
        exact = self.latent == "exact" and not context.identity
        step: Step = partial(self.latent_step, _latents(context)) if exact else self.step
        burn_in = [Stage(rows[:first], free_step)] if first else []
        return [*burn_in, Stage(rows[first:], step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        return points(context, x)

    def step(self, context: Context, state: PointState, row: TableRow, noise: Tensor) -> PointState:
        """x' = A^+ P(A y), y the free step, ``repeats`` times."""
        state = free_step(context, state, row, noise)
        x = state.x
        for _ in range(1 if context.identity else self.repeats):
            x = context.decoder.pinv(context.project(context.decode(x)), context.latent)
        return state._replace(x=x)

    def latent_step(
        self, latents: Constraint, context: Context, state: PointState, row: TableRow, noise: Tensor
    ) -> PointState:
        """x' = P_L(y)."""
        warm, state = state.x, free_step(context, state, row, noise)
        context.usage.add_projections(len(warm))
        own = latents.take(slice(context.first, context.first + len(warm)))
        return state._replace(x=own.project(state.x, budget=context.budget, warm=warm))

    def advice(self, state: PointState, row: TableRow) -> str:
        return step_advice(row)

    @property
    def follows_sets(self) -> bool:
        return self.latent == "pinv"

    def decoded_parts(self) -> tuple[str, ...] | None:
        return ()

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.strict(context.decode(state.x))


def _latents(context: Context) -> Constraint:
    """{x : A x in C}, tried on two points: a set that A cannot reach is refused before the first step."""
    decoder, constraint = context.decoder, context.constraint
    if not decoder.linear:
        raise SettingError(
            f"latent='exact' needs a linear decoder, got {type(decoder).__name__}; behind others state the set in the "
            "latent: constraint.through(decoder), without decoder="
        )
    A = decoder.matrix(context.latent, context.like)
    count = min(2, constraint.chains or 2)
    points = 1.0 + torch.eye(count, A.shape[1], dtype=torch.float64, device=A.device)
    event = decoder.event(points.to(context.like).reshape(count, *context.latent))
    try:
        latents = Through(constraint, A, shape=event)
        few = latents.take(slice(0, count))
        found = few.project(points)
        worst = float(few.violation(found).max())
    except CasalError as error:
        raise SettingError(f"{constraint!r} has no projection behind the decoder ({error}); {WAY_OUT}") from error
    size, near = (float((z @ A.T).abs().max()) for z in (found, points))
    feet = constraint.take(slice(0, count)).project((points @ A.T).reshape(count, *event))
    size /= near + float(feet.abs().max())
    if not worst <= REACHED or not size <= FAR:
        raise SettingError(
            f"the decoder does not reach the set: the projection in the latent ({latents.explain()}) leaves a "
            f"violation of {worst:.3g} (limit {REACHED:g}) and is {size:.3g} times as large as necessary "
            f"(limit {FAR:g}); {WAY_OUT}"
        )
    return latents
