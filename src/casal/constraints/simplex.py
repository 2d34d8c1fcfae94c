"""Simplex and l1 ball: a fixed, or a bounded, sum of absolute values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import Constraint, Excess, Geometry, Parts, Rows, register
from casal.constraints.flat import Affine, Box, BoxHyperplane, points_where_zero
from casal.constraints.geometry import geometry
from casal.constraints.parameters import argument, common_chains, first_failure, one_number, over, parameter, show
from casal.constraints.vectors import EPSILON, GRANTED, LARGEST, flat, over_events
from casal.errors import InfeasibleSet


@register
class Simplex(Constraint):
    """Nonnegative numbers with a given sum.

    C = {z : z >= 0, sum z = M}; P(y) = max(y - tau, 0) with tau such that the sum is M.

    tau follows from sorting: with y sorted downwards, tau = (y_1 + ... + y_k - M) / k for the last k at which
    y_k > tau. Shifting y by a constant does not change P(y), so the largest coordinate is moved to zero first,
    and what lies more than M below it ends at zero whatever it is. The nearest point is unique everywhere.
    The violation is the larger of |sum z - M| and -min z, relative to M.

    The equation is sum z - M, the inequalities are -z.

    Args:
        total: M >= 0; may be PerChain.

    >>> Simplex().project(torch.tensor([[0.5, 1.0, -3.0]]))
    tensor([[0.2500, 0.7500, 0.0000]])
    """

    convex = True
    _equation_count = 1
    per_chain = ("total",)

    def __init__(self, total: Any = 1.0) -> None:
        self.total = _size("Simplex", "total", total)
        self.chains = common_chains(total=self.total)
        self._total = parameter(self.total)

    def __repr__(self) -> str:
        return f"Simplex(total={self.total:g})"

    def equations(self, z: Tensor) -> Tensor:
        return flat(z).sum(1, keepdim=True) - over(self._total, flat(z))

    def inequalities(self, z: Tensor) -> Tensor:
        return -flat(z)

    def linear(self, event: Event) -> Rows | None:
        size = torch.Size(event).numel()
        level, zero = self._total[:, None] * size**-0.5, torch.zeros(1, size, dtype=torch.float64)
        ones = torch.full((1, size), size**-0.5, dtype=torch.float64)
        return Rows(ones, level, level, zero, torch.full_like(zero, torch.inf))

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return Box(0.0, torch.inf).bounds(event)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return torch.zeros(1, *event, dtype=torch.float64), self._total

    def _geometry(self, event: Event) -> Geometry:
        """One equation and an orthant; the origin where M = 0."""
        ones = torch.ones(torch.Size(event).numel(), dtype=torch.float64)
        if first_failure(self._total > 0) is not None:
            return Geometry(geometry(BoxHyperplane(0.0, torch.inf, ones, self.total), event).parts)
        level = argument(self._total[:, None], self.chains is not None)
        return Geometry(Parts(Affine(ones, level), Box(0.0, torch.inf)))

    def _project(self, z: Tensor) -> Tensor:
        return onto_simplex(flat(z), over(self._total, flat(z))).reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """The sum, then the coordinates, all in units of M."""
        y, total = flat(z), over(self._total, flat(z)).expand(len(z), 1)
        rounding: Tensor | float = 0.0
        if lost is not None:
            rounding = GRANTED * EPSILON * torch.cat([flat(lost).sum(1, keepdim=True), flat(lost)], dim=1)
        amount = torch.cat([(_sum(y)[:, None] - total).abs(), (-y).clamp_min(0.0)], dim=1)
        return Excess(amount.clamp_max(torch.finfo(z.dtype).max), total.expand_as(amount), rounding)

    def component_name(self, event: Event, row: int) -> str:
        total = f"{self.total:g}" if self.chains is None else "M"
        return f"sum z = {total}" if row == 0 else f"z[{row - 1}] >= 0"


@register
class L1Ball(Constraint):
    """Points whose 1-norm is bounded.

    C = {z : |z_1| + ... + |z_d| <= R}; outside, P(y) = sign(y) max(|y| - tau, 0) with tau such that the sum is R.

    tau is that of the simplex for |y|. The violation is max(0, sum |z| - R) / R. The set has corners wherever a
    coordinate is zero, so there is no smooth residual.

    Args:
        radius: R >= 0; may be PerChain.

    >>> L1Ball(1.0).project(torch.tensor([[0.5, -1.0, 0.0], [0.5, -0.25, 0.0]]))
    tensor([[ 0.2500, -0.7500,  0.0000],
            [ 0.5000, -0.2500,  0.0000]])
    """

    convex = True
    per_chain = ("radius",)

    def __init__(self, radius: Any) -> None:
        self.radius = _size("L1Ball", "radius", radius)
        self.chains = common_chains(radius=self.radius)
        self._radius = parameter(self.radius)
        self.solid = first_failure(self._radius > 0) is None

    def __repr__(self) -> str:
        return f"L1Ball(radius={self.radius:g})"

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return torch.zeros(1, *event, dtype=torch.float64), self._radius

    def _geometry(self, event: Event) -> Geometry:
        """The origin where R = 0."""
        if self.solid:
            return Geometry(Parts(None, self))
        only_points = first_failure(self._radius == 0) is None
        return Geometry(Parts(points_where_zero(self._radius, None, event), None if only_points else self))

    def _project(self, z: Tensor) -> Tensor:
        y = flat(z)
        surface = torch.copysign(onto_simplex(y.abs(), over(self._radius, y)), y).reshape(z.shape)
        total = _sum(y.abs())
        return torch.where(over_events(total > over(self._radius, total), z), surface, z)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        radius = over(self._radius, flat(z)).expand(len(z), 1)
        amount = (_sum(flat(z).abs())[:, None] - radius).clamp(0.0, torch.finfo(z.dtype).max)
        rounding = 0.0 if lost is None else GRANTED * EPSILON * flat(lost).sum(1, keepdim=True)
        return Excess(amount, radius, rounding)

    def component_name(self, event: Event, row: int) -> str:
        return f"sum |z| <= {self.radius:g}" if self.chains is None else "sum |z| <= R"


def onto_simplex(y: Tensor, total: Tensor) -> Tensor:
    """Nearest points of {sum = total, >= 0} to the rows of y, which may be huge."""
    y = (y - y.amax(1, keepdim=True)).clamp_min(-total)
    down = y.sort(1, descending=True).values
    count = torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
    tau = (down.cumsum(1) - total) / count
    last = (down > tau).sum(1, keepdim=True).clamp_min(1) - 1
    kept = (y - tau.gather(1, last)).clamp_min(0.0)
    # A second pass over the coordinates that stay positive removes the rounding of the cumulated sums.
    positive = kept > 0
    gap = (kept.sum(1, keepdim=True) - total) / positive.sum(1, keepdim=True).clamp_min(1)
    return torch.where(positive, kept - gap, kept).clamp_min(0.0)


def _sum(y: Tensor) -> Tensor:
    """Sums of rows; opposite numbers near the largest float give a finite sum or an infinity, never a NaN."""
    peak = y.abs().amax(1)
    scale = torch.where(peak > 0, peak, torch.ones_like(peak))
    return torch.where(peak > LARGEST, scale * (y / scale[:, None]).sum(1), y.sum(1))


def _size(name: str, label: str, value: Any) -> Any:
    size = one_number(value, label)
    values = parameter(size)
    bad = first_failure((values >= 0) & (values <= LARGEST))
    if bad is not None:
        raise InfeasibleSet(f"{name} needs a {label} between 0 and {LARGEST:g}, got {show(values, bad)}")
    return size
