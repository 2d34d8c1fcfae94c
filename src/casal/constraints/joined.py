"""Sets that meet, as one set of functions and bounds: what Newton's steps work on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import Constraint
from casal.constraints.flat import Affine, Box
from casal.constraints.implicit import Implicit, SparseJacobian
from casal.constraints.parameters import over_flattened
from casal.constraints.solvers.linearised import Bounds
from casal.constraints.solvers.rows import uneven
from casal.constraints.solvers.sparse_rows import SparseMatrix


def as_functions(parts: Sequence[Constraint]) -> Implicit:
    """All parts as one set of functions and bounds: known values are bounds with equal ends, and not among the rows."""
    whole = _Joined(parts)
    sparse = sparse_jacobian(whole.others)
    out = (
        Implicit(whole.equations, whole.inequalities) if sparse is None else Implicit(whole.equations, jacobian=sparse)
    )
    if whole.sides:
        out._bounds_of = whole.bounds
    return out


class _Joined:
    """The functions of sets that meet, and their bounds."""

    def __init__(self, parts: Sequence[Constraint]) -> None:
        known = [(part, _sides(part)) for part in parts]
        self.others = [part for part, sides in known if sides is None]
        self.sides = [sides for _, sides in known if sides is not None]

    def equations(self, z: Tensor) -> Tensor:
        return torch.cat([part.equations(z) for part in self.others], dim=1)

    def inequalities(self, z: Tensor) -> Tensor:
        return torch.cat([part.inequalities(z) for part in self.others], dim=1)

    def bounds(self, event: Event) -> Bounds:
        lows, highs = zip(*([over_flattened(side, event) for side in sides] for sides in self.sides), strict=True)
        return Bounds(functools.reduce(torch.maximum, lows), functools.reduce(torch.minimum, highs))


def _sides(part: Constraint) -> tuple[Tensor, Tensor] | None:
    """Bounds on single coordinates, or equations that give the values of some, as low and high ends."""
    if type(part) is Box:
        return part._low, part._high
    if type(part) is not Affine:
        return None
    places, values = part.single_coordinates()
    if places is None:
        return None
    low = torch.full((len(values), part.A.shape[1]), -torch.inf, dtype=torch.float64)
    high = -low
    low[:, places] = high[:, places] = values
    return low, high


def sparse_jacobian(parts: Sequence[Constraint]) -> SparseJacobian | None:
    """The derivatives of all equations, where the parts are linear equations and functions with sparse Jacobians."""
    if not any(isinstance(part, Implicit) for part in parts):
        return None
    indices, functions, start = [], list[Callable[[Tensor], Tensor]](), 0
    for part in parts:
        if isinstance(part, Implicit) and isinstance(part.jacobian, SparseJacobian):
            places, count = part.jacobian.indices, int(part.jacobian.indices[0].max()) + 1
            functions.append(part.jacobian.values)
        elif isinstance(part, Affine):
            rows = part._rows if isinstance(part._rows, SparseMatrix) else SparseMatrix.from_dense(part._rows)
            places, count = torch.stack([rows.rows, rows.columns]), len(rows)
            functions.append(functools.partial(_constant, rows.values))
        else:
            return None
        indices.append(places + torch.tensor([[start], [0]]))
        start += count
    whole = torch.cat(indices, dim=1)
    if uneven(whole, start):
        return None
    return SparseJacobian(whole, lambda z: torch.cat([function(z) for function in functions], dim=1))


def _constant(values: Tensor, z: Tensor) -> Tensor:
    return values.to(z).expand(len(z), -1)
