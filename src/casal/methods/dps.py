"""Guidance on the denoised estimate: diffusion posterior sampling (Chung et al. 2023) for a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.methods.base import Method, Recall, Stage, advance, table_rows
from casal.methods.context import Context
from casal.methods.denoised import noise_levels
from casal.methods.unconstrained import PointState, points
from casal.schedules import Schedule, evaluate


class DPSRow(NamedTuple):
    """A plain row, the scale and noise of x, and the weight."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    alpha: Tensor
    sigma: Tensor
    weight: Tensor
    recall: Recall | None = None


@dataclass(frozen=True)
class DPS(Method[PointState]):
    """Guides the denoised estimate D(x) = (x + sigma^2 score(x)) / alpha towards the set (Chung et al. 2023):

        x' = a x + b (score(x) - weight grad_x |h(A D(x))|^2) + s w

    The gradient goes through the network. The samples are close to the set, not on it:
    ``FinalProjection(DPS(weight))`` makes them strict. The best weight is narrow; tune it.

    Args:
        weight: Strength >= 0: a number, or a schedule.

    >>> import casal
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(20), shape=(2,))
    >>> result = casal.sample(target, casal.Sphere(2.0), casal.FinalProjection(casal.DPS(weight=0.5)), n=50)
    >>> bool(result.certificate.feasible.all())
    True
    """

    weight: float | Schedule

    name: ClassVar[str] = "DPS"
    strict: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        alpha, sigma = noise_levels(context.table)
        weight = evaluate(self.weight, context.table, "weight", positive=False)
        return [Stage(table_rows(context, DPSRow, alpha=alpha, sigma=sigma, weight=weight), self.step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> PointState:
        context.check_smooth(x)
        return points(context, x)

    def step(self, context: Context, state: PointState, row: DPSRow, noise: Tensor) -> PointState:
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            score = context.score(leaf, row.t)
            cost = context.residual(context.decode((leaf + row.sigma**2 * score) / row.alpha)).square().sum()
            (gradient,) = torch.autograd.grad(cost, leaf)
        return advance(context, state, score.detach() - row.weight * gradient, row, noise)

    def output(self, context: Context, state: PointState) -> Tensor:
        return context.decode(state.x)

    def advice(self, state: PointState, row: DPSRow) -> str:
        return f"(weight = {float(row.weight):.3g}); use a smaller weight"
