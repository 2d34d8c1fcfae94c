"""Monotone sequences: isotonic regression."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.checks import Event, one_of
from casal.constraints.base import Constraint, Excess, Rows, register
from casal.constraints.solvers.sparse_rows import SparseMatrix
from casal.constraints.vectors import flat
from casal.devices import check_due, chosen, seen

ROUNDS = 12
LARGE = 1e290
SHRINK = 2.0**-40


@register
class Monotone(Constraint):
    """Increasing sequences, or decreasing ones if ``increasing`` is false.

    C = {z : z_1 <= z_2 <= ... <= z_d} along the flattened event.

    P(y) is isotonic regression: y is cut into blocks, each replaced by its mean, such that the means increase;

        P(y)_i = max over j <= i of  min over k >= i of  mean(y_j, ..., y_k).

    It is found by pooling adjacent violators: neighbouring blocks whose means fall are merged until none fall.
    All falling runs of all chains are merged at once in a first few rounds; chains that need more go through the
    classical left-to-right sweep, 2 d steps for any input. The means are compared as they are returned, so the
    result is monotone exactly, not only to rounding, and a monotone sequence comes back unchanged. The nearest
    point is unique everywhere. The violation is the largest fall z_i - z_{i+1}, relative to |z_i| + |z_{i+1}|.

    Args:
        increasing: Whether the sequence rises (never falls) or falls (never rises).

    >>> Monotone().project(torch.tensor([[1.0, 3.0, 2.0, 4.0], [3.0, 2.0, 1.0, 0.0]]))
    tensor([[1.0000, 2.5000, 2.5000, 4.0000],
            [1.5000, 1.5000, 1.5000, 1.5000]])
    """

    convex = True
    solid = True
    _equation_count = 0

    def __init__(self, increasing: bool = True) -> None:
        self.increasing = bool(one_of(increasing, "increasing", (True, False)))

    def __repr__(self) -> str:
        return f"Monotone(increasing={self.increasing})"

    def inequalities(self, z: Tensor) -> Tensor:
        y = self._rising(z)
        return y[:, :-1] - y[:, 1:]

    def linear(self, event: Event) -> Rows | None:
        size = torch.Size(event).numel()
        first, half = torch.arange(size - 1), torch.full((size - 1,), 0.5**0.5, dtype=torch.float64)
        sign = 1.0 if self.increasing else -1.0
        places = torch.cat([first, first]), torch.cat([first, first + 1])
        falls = SparseMatrix(*places, sign * torch.cat([half, -half]), (size - 1, size))
        zero = torch.zeros_like(half)
        return Rows.of(falls, torch.full_like(zero, -torch.inf), zero)

    def _rising(self, z: Tensor) -> Tensor:
        return flat(z) if self.increasing else flat(z).flip(1)

    def _project(self, z: Tensor) -> Tensor:
        y = _isotonic(self._rising(z))
        return (y if self.increasing else y.flip(1)).reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        y = self._rising(z)
        size = y.abs() if lost is None else y.abs() + self._rising(lost)
        # Halves, so that numbers near the largest float have a finite difference.
        return Excess(
            (0.5 * y[:, :-1] - 0.5 * y[:, 1:]).clamp_min(0.0), 0.5 * size[:, :-1] + 0.5 * size[:, 1:], scale=2.0
        )

    def component_name(self, event: Event, row: int) -> str:
        if self.increasing:
            return f"z[{row}] <= z[{row + 1}]"
        last = torch.Size(event).numel() - 1
        return f"z[{last - row - 1}] >= z[{last - row}]"


def _isotonic(y: Tensor) -> Tensor:
    """Isotonic regression of every row. Rows that do not fall any more stay as they are while others are merged."""
    # A power of two keeps sums of numbers near the largest float finite and all others as they are.
    shrink = torch.where(y.abs().amax(1, keepdim=True) > LARGE, SHRINK, 1.0)
    rows = y * shrink
    fit, starts, falls = rows, torch.ones_like(rows, dtype=torch.bool), _falls(y)
    moved = falls[:, None]
    for iteration in range(ROUNDS):
        fit, starts = _merge_falling_runs(rows, fit, starts)
        falls = _falls(fit)
        if check_due(iteration, y) and not seen(falls.any()):
            return torch.where(moved, fit / shrink, y)
    left = chosen(falls)
    fit[left] = _sweep(rows[left])
    return torch.where(moved, fit / shrink, y)


def _falls(y: Tensor) -> Tensor:
    """Rows (n,) that are not monotone."""
    return (y[:, 1:] < y[:, :-1]).any(1)


def _merge_falling_runs(y: Tensor, fit: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Merge every maximal run of blocks with falling means; ``starts`` marks the first coordinate of a block."""
    starts = starts.clone()
    starts[:, 1:] &= fit[:, 1:] >= fit[:, :-1]
    block = starts.cumsum(1) - 1
    total = torch.zeros_like(y).scatter_add_(1, block, y)
    count = torch.zeros_like(y).scatter_add_(1, block, torch.ones_like(y))
    return (total / count.clamp_min(1.0)).gather(1, block), starts


def _sweep(y: Tensor) -> Tensor:
    """Pool adjacent violators from left to right, all rows in step: each step merges two blocks or reads a number."""
    n, d = y.shape
    # One stack of finished blocks per row; slot 0 holds a mean below everything, so nothing merges with it.
    mean = torch.full((n, d + 2), -torch.inf, dtype=y.dtype, device=y.device)
    total, count = torch.zeros_like(mean), torch.ones_like(mean)
    supply = torch.cat([y, torch.full_like(y[:, :1], torch.inf)], dim=1)
    top = torch.zeros(n, 1, dtype=torch.long, device=y.device)
    read = torch.zeros_like(top)
    open_mean, open_total, open_count = y[:, :1], y[:, :1], torch.ones_like(y[:, :1])
    for _ in range(2 * d):
        fall = mean.gather(1, top) > open_mean
        under_total, under_count = total.gather(1, top), count.gather(1, top)
        # Put the open block on the stack; where it is merged instead, the slot above the top means nothing.
        slot = top + 1
        mean.scatter_(1, slot, open_mean)
        total.scatter_(1, slot, open_total)
        count.scatter_(1, slot, open_count)
        top = torch.where(fall, top - 1, torch.where(read < d, slot, top))
        read = torch.where(fall, read, (read + 1).clamp_max(d))
        fresh = supply.gather(1, read)
        open_total = torch.where(fall, open_total + under_total, fresh)
        open_count = torch.where(fall, open_count + under_count, torch.ones_like(open_count))
        open_mean = torch.where(fall, open_total / open_count, fresh)
    live = torch.arange(1, d + 1, device=y.device) <= top
    ends = torch.where(live, count[:, 1 : d + 1], 0.0).cumsum(1)
    position = torch.arange(d, dtype=y.dtype, device=y.device).expand(n, d).contiguous()
    return mean.gather(1, 1 + torch.searchsorted(ends, position, right=True))
