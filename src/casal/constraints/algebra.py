"""Sets made of sets: unions, products, shifts and scalings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Budget, Constraint, Projection, flat, gaussian, norm
from casal.constraints.intersection import flattened
from casal.errors import SettingError, ShapeError
from casal.typing import Event


class Union(Constraint):
    """C = union of the members; P(z) is the nearest of the members' projections.

    The violation is the smallest of the members'.

    Args:
        members: Two or more sets.
    """

    def __init__(self, *members: Constraint) -> None:
        self.members = flattened(Union, members)
        self.exact = all(member.exact for member in self.members)
        self.solid = any(member.solid for member in self.members)

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.members))})"

    def explain(self) -> str:
        return f"nearest of {len(self.members)} members: " + "; ".join(member.explain() for member in self.members)

    def validate(self, event: Event) -> None:
        for member in self.members:
            member.validate(event)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        tried = [member._solve(z, budget, warm) for member in self.members]
        distance = torch.stack([norm(flat(found.point) - flat(z)) for found in tried])
        # A member whose projection did not converge is taken only if none did.
        distance = torch.where(torch.stack([found.converged for found in tried]), distance, distance + 1e300)
        nearest = distance.argmin(0)
        chain = torch.arange(len(z), device=z.device)
        return Projection(*(torch.stack(parts)[nearest, chain] for parts in zip(*tried, strict=True)))

    def _violation(self, z: Tensor) -> Tensor:
        return torch.stack([member._violation(z) for member in self.members]).amin(0)

    def _arguments(self) -> dict[str, Any]:
        return {"members": list(self.members)}


class Product(Constraint):
    """C = {z : block k of z lies in member k}, the event flattened and cut into consecutive blocks.

    Projection and certificate go block by block, so they are exact where the members' are. The violation is the
    largest of the blocks'.

    Args:
        members: One set a block; None leaves a block free.
        sizes: Coordinates in each block; they must fill the event.
    """

    def __init__(self, *members: Constraint | None, sizes: Sequence[int]) -> None:
        self.members, self.sizes = members, tuple(int(size) for size in sizes)
        if len(self.members) != len(self.sizes) or not members or min(self.sizes) < 1:
            raise ShapeError(f"{len(members)} members need as many sizes >= 1, got {self.sizes}")
        given = [member for member in members if member is not None]
        self.exact = all(member.exact for member in given)
        self.convex = all(member.convex for member in given)
        self.solid = all(member.solid for member in given)
        self.samples_near = all(member.samples_near for member in given)

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.members))}, sizes={self.sizes})"

    def explain(self) -> str:
        inner = "; ".join("free" if member is None else member.explain() for member in self.members)
        return f"block by block {self.sizes}: {inner}"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if size != sum(self.sizes):
            raise ShapeError(f"blocks {self.sizes} hold {sum(self.sizes)} coordinates, events {event} have {size}")
        for member, block in zip(self.members, self.sizes, strict=True):
            if member is not None:
                member.validate((block,))

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        zeros = torch.zeros(len(z), dtype=z.dtype, device=z.device)
        starts = [None] * len(self.sizes) if warm is None else flat(warm).split(self.sizes, dim=1)
        found = []
        for member, block, start in zip(self.members, flat(z).split(self.sizes, dim=1), starts, strict=True):
            free = Projection(block, zeros == 0, zeros.long(), zeros)
            found.append(free if member is None else member._solve(block, budget, start))
        points, converged, iterations, residual = zip(*found, strict=True)
        return Projection(
            torch.cat(points, dim=1).reshape(z.shape),
            torch.stack(converged).all(0),
            torch.stack(iterations).amax(0),
            torch.stack(residual).amax(0),
        )

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """Block by block; a free block is y + sigma xi."""
        drawn = []
        for member, block in zip(self.members, flat(y).split(self.sizes, dim=1), strict=True):
            if member is None:
                drawn.append(block + sigma * gaussian(block, generator))
            else:
                drawn.append(member._sample_near(block, sigma, generator))
        return torch.cat(drawn, dim=1).reshape(y.shape)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Sum over the blocks; a free block adds nothing."""
        blocks = zip(self.members, flat(y).split(self.sizes, dim=1), strict=True)
        parts = [member._log_normaliser(block, sigma) for member, block in blocks if member is not None]
        return torch.stack(parts).sum(0) if parts else torch.zeros(len(y), dtype=y.dtype, device=y.device)

    def _violation(self, z: Tensor) -> Tensor:
        blocks = zip(self.members, flat(z).split(self.sizes, dim=1), strict=True)
        parts = [member._violation(block) for member, block in blocks if member is not None]
        return torch.stack(parts).amax(0) if parts else torch.zeros(len(z), dtype=z.dtype, device=z.device)

    def _arguments(self) -> dict[str, Any]:
        return {"members": list(self.members), "sizes": list(self.sizes)}


class _Moved(Constraint):
    """A set in other coordinates, its flags and its projection those of the set it is made of."""

    inner: Constraint
    _stretch: float = 1.0

    def _adopt(self, inner: Constraint) -> None:
        self.inner = inner
        self.exact, self.convex, self.solid, self.one_sided = inner.exact, inner.convex, inner.solid, inner.one_sided
        self.samples_near = inner.samples_near

    def explain(self) -> str:
        return f"{type(self).__name__.lower()}: {self.inner.explain()}"

    def validate(self, event: Event) -> None:
        self.inner.validate(event)

    def residual(self, z: Tensor) -> Tensor:
        return self.inner.residual(self._back(z))

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        return self.inner.log_tube_factor(self._back(x), self._back(z))

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        found = self.inner._solve(self._back(z), budget, None if warm is None else self._back(warm))
        return found._replace(point=self._forth(found.point))

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        return self._forth(self.inner._sample_near(self._back(y), sigma / self._stretch, generator))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        return self.inner._log_normaliser(self._back(y), sigma / self._stretch)

    def _violation(self, z: Tensor) -> Tensor:
        return self.inner._violation(self._back(z))

    def _back(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _forth(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class Shifted(_Moved):
    """C + t = {z + t : z in C}; P(z) = t + P_C(z - t). The violation is that of z - t.

    Args:
        inner: C.
        by: t, broadcastable to an event.
    """

    def __init__(self, inner: Constraint, by: Any) -> None:
        self._adopt(inner)
        self.by = torch.as_tensor(by, dtype=torch.float64)
        if not bool(torch.isfinite(self.by).all()):
            raise SettingError("a shift must be finite")

    def __repr__(self) -> str:
        return f"{self.inner!r}.shifted(...)"

    def _back(self, z: Tensor) -> Tensor:
        return z - self.by.to(z)

    def _forth(self, z: Tensor) -> Tensor:
        return z + self.by.to(z)

    def _arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "by": self.by}


class Scaled(_Moved):
    """s C = {s z : z in C}, s > 0; P(z) = s P_C(z / s). The violation is that of z / s.

    Args:
        inner: C.
        by: s > 0.
    """

    def __init__(self, inner: Constraint, by: float) -> None:
        self._adopt(inner)
        self.by = self._stretch = float(by)
        if not 0.0 < self.by < float("inf"):
            raise SettingError(f"a set is scaled by a finite number > 0, got {by}")

    def __repr__(self) -> str:
        return f"{self.inner!r}.scaled({self.by:g})"

    def _back(self, z: Tensor) -> Tensor:
        return z / self.by

    def _forth(self, z: Tensor) -> Tensor:
        return z * self.by

    def _arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "by": self.by}
