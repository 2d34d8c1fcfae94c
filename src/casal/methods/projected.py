"""Projected Langevin (Bubeck et al. 2015; for diffusion, Christopher et al. 2024): project after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import one_of
from casal.constraints import Constraint, Through
from casal.errors import CasalError, SettingError
from casal.methods.base import Method, Stage, burn_in_steps, table_rows
from casal.methods.context import Context, move
from casal.methods.unconstrained import PointState

LATENT = ("pinv", "exact")
REACHED = 1e-10
"""Violation up to which a latent projection counts as well posed."""
FAR = 1e8
"""Size of an image, in units of the point and its foot in decoded space, beyond which it is rounding blown up."""
WAY_OUT = "use latent='pinv'"


class ProjectedRow(NamedTuple):
    """A plain row, whether its result is projected, and the set of latents if it is projected there."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    project: bool
    latents: Constraint | None = None


@dataclass(frozen=True)
class Projected(Method[PointState]):
    """x' = A^+ P(A (a x + b score(x) + s w)) (paper, example projected). Feasible; stays where it starts.

    Where A does not reach every z, A A^+ P(z) may leave C again: the chain is then only near it, and the samples are
    made strict at the end. "exact" takes the nearest latent whose image is in C instead,

        x' = P_L(a x + b score(x) + s w),   L = {x : A x in C},

    in closed form if A A^T = c I or C is affine, else by the ways of ``constraint.through(A)``.

    Args:
        burn_in: First steps without a projection: a number of steps, or a fraction of the run below one.
        latent: "pinv" or "exact", for linear decoders. The same for the identity.
    """

    burn_in: float = 0
    latent: str = "pinv"

    name: ClassVar[str] = "projected"

    def __post_init__(self) -> None:
        one_of(self.latent, "latent", LATENT)

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        first = burn_in_steps(self.burn_in, len(context.table))
        plain = table_rows(context)
        rows = [ProjectedRow(row.a, row.b, row.s, row.t, step >= first) for step, row in enumerate(plain)]
        if self.latent == "exact" and not context.identity:
            latents = _latents(context)
            rows = [row._replace(latents=latents) for row in rows]
        return [Stage(rows, self.step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        return PointState(x)

    def step(self, context: Context, state: PointState, row: ProjectedRow, noise: Tensor) -> PointState:
        x = move(context, state.x, context.score(state.x, row.t), row, noise)
        if row.project:
            if row.latents is None:
                x = context.decoder.pinv(context.project(context.decode(x)), context.latent)
            else:
                context.usage.projected(len(x))
                x = row.latents.project(x, budget=context.budget, warm=state.x)
        return PointState(x)

    def decoded_parts(self) -> tuple[str, ...] | None:
        return ()

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.strict(context.decode(state.x))


def _latents(context: Context) -> Constraint:
    """{x : A x in C}, tried on two points: a set that A cannot reach is refused before the first step."""
    decoder, constraint = context.decoder, context.constraint
    if not decoder.linear:
        raise SettingError(f"latent='exact' needs a linear decoder, got {type(decoder).__name__}; use CASAL")
    A = decoder.matrix(context.latent, context.like)
    points = 1.0 + torch.eye(2, A.shape[1], dtype=torch.float64, device=A.device)
    event = decoder.event(points.to(context.like).reshape(2, *context.latent))
    try:
        latents = Through(constraint, A, shape=event)
        found = latents.project(points)
        worst = float(latents.violation(found).max())
    except CasalError as error:
        raise SettingError(f"{constraint!r} has no projection behind the decoder ({error}); {WAY_OUT}") from error
    size, near = (float((z @ A.T).abs().max()) for z in (found, points))
    size /= near + float(constraint.project((points @ A.T).reshape(2, *event)).abs().max())
    if not worst <= REACHED or not size <= FAR:
        raise SettingError(
            f"the decoder does not reach the set: by {latents.explain()}, the violation is {worst:.3g} (at most "
            f"{REACHED:g}) {size:.3g} times as far out as need be (at most {FAR:g}); {WAY_OUT}"
        )
    return latents
