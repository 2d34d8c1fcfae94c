"""Split soft penalty (Zhang et al. 2025): splitting as in CASAL, but a penalty where CASAL projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.devices import solve
from casal.errors import SettingError
from casal.methods.base import Method, Stage, split_records, step_advice, table_rows
from casal.methods.context import Context, move
from casal.schedules import Schedule, evaluate


class DecoupledState(NamedTuple):
    """The point x, its penalised copy z, the multiplier lam of x = z, the penalty weight (n, 1)."""

    x: Tensor
    z: Tensor
    lam: Tensor
    weight: Tensor


class DecoupledRow(NamedTuple):
    """A plain row, the coupling, and its product with the step."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    rho: Tensor
    kappa: Tensor


@dataclass(frozen=True)
class Decoupled(Method[DecoupledState]):
    """The split soft penalty whose weight is a dual variable (the penalty baseline of the paper's field context).

        x' = (I + b rho A^T A)^-1 (a x + b score(x) + s w + b rho A^T (z - lam/rho))
        z' = argmin_z  weight |h(z)|^2 + rho/2 |z - (A x' + lam/rho)|^2     (one Gauss-Newton step)
        lam' = lam + rho dual_step (A x' - z'),      weight' = weight + weight_step |h(z')|^2

    z satisfies the constraint only approximately, however large the weight grows; the certificate flags such samples.

    Args:
        rho: Coupling of x and z: a number, or a schedule.
        dual_step: Step of the multiplier of A x = z, in units of rho.
        weight: Initial weight of the penalty.
        weight_step: Step of the weight.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=200, step_size=0.05, init=torch.ones(100, 2))
    >>> result = casal.sample(target, casal.Sphere(1.0), casal.Decoupled(rho=10.0), n=100)
    >>> int(result.certificate.feasible.sum())
    0
    """

    rho: float | Schedule
    dual_step: float = 0.01
    weight: float = 1.0
    weight_step: float = 0.01

    name: ClassVar[str] = "decoupled"
    strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.weight > 0 or self.weight_step < 0 or self.dual_step < 0:
            raise SettingError("Decoupled needs weight > 0, weight_step >= 0 and dual_step >= 0")

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        rho = evaluate(self.rho, context.table, "rho")
        return [Stage(table_rows(context, DecoupledRow, rho=rho, kappa=rho * context.table.b), self.step)]

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> DecoupledState:
        context.check_smooth(x)
        z = context.decode(x)
        return DecoupledState(x, z, torch.zeros_like(z), torch.full_like(z.reshape(len(z), -1)[:, :1], self.weight))

    def step(self, context: Context, state: DecoupledState, row: DecoupledRow, noise: Tensor) -> DecoupledState:
        x, z, lam, weight = state
        pull = context.decoder.vjp(x)
        free = move(context, x, context.score(x, row.t), row, noise)
        x = context.gram.solve(free + row.kappa * context.precondition(pull(z - lam / row.rho)), row.kappa)
        decoded = context.decode(x)
        z, h = _penalised(context, z, decoded + lam / row.rho, row.rho / (2 * weight))
        lam = lam + row.rho * self.dual_step * (decoded - z)
        return DecoupledState(x, z, lam, weight + self.weight_step * h.square().sum(1, keepdim=True))

    def output(self, context: Context, state: DecoupledState) -> Tensor:
        return state.z

    def advice(self, state: DecoupledState, row: DecoupledRow) -> str:
        return step_advice(row)

    def monitor(self, context: Context, state: DecoupledState) -> Mapping[str, Tensor]:
        return split_records(context, state.x, state.z, state.lam)


def _penalised(context: Context, z: Tensor, centre: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """One Gauss-Newton step for min |h(z)|^2 + ridge |z - centre|^2 from z, and the residual where it lands."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        h = context.residual(leaf)
        rows = [torch.autograd.grad(h[:, k].sum(), leaf, retain_graph=True)[0] for k in range(h.shape[1])]
    jacobian = torch.stack([row.reshape(len(z), -1) for row in rows], dim=1)
    offset = (centre - z).reshape(len(z), -1, 1)
    system = jacobian @ jacobian.mT + ridge[:, :, None] * torch.eye(h.shape[1], dtype=z.dtype, device=z.device)
    multiplier = solve(system, h.detach()[:, :, None] + jacobian @ offset)
    landed = centre - (jacobian.mT @ multiplier).reshape(z.shape)
    return landed, context.residual(landed)
