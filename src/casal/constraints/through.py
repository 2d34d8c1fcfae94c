"""A set seen through a matrix: the x whose image A x lies in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.affine import Affine, HalfSpace, tangent
from casal.constraints.algorithms.splitting import behind_matrix
from casal.constraints.base import Budget, Constraint, Projection, flat
from casal.constraints.box import Box
from casal.constraints.implicit import Implicit
from casal.constraints.intersection import has_residual
from casal.constraints.polytope import Polytope
from casal.errors import ShapeError
from casal.typing import Event

ORTHOGONAL = 1e-12


class Through(Constraint):
    """{x : A x in C}. How P is found depends on A and C; ``explain()`` says which way was taken:

    - A A^T = c I: closed form, P(x) = x + A^T (P_C(A x) - A x) / c;
    - C of equations, half-spaces, bounds or a polytope: the same kind of set again, with A in its rows;
    - C smooth: Newton steps on its residual of A x;
    - otherwise splitting (ADMM) between x and A x, which finds the nearest point for a convex C.

    The violation is that of A x.

    Args:
        inner: C.
        A: Matrix (k, d) from flattened x to the flattened events of C.
        shape: Shape of the events of C; (k,) if left out.
    """

    def __init__(self, inner: Constraint, A: Any, *, shape: Event | None = None) -> None:
        self.inner = inner
        self.A = torch.as_tensor(A, dtype=torch.float64)
        if self.A.ndim != 2:
            raise ShapeError(f"through needs a matrix (k, d), got shape {tuple(self.A.shape)}")
        self.shape: Event = (len(self.A),) if shape is None else tuple(shape)
        inner.validate(self.shape)
        self.convex, self.one_sided = inner.convex, inner.one_sided
        gram = self.A @ self.A.T
        self._square = float(gram.diagonal().mean())
        eye = self._square * torch.eye(len(gram), dtype=torch.float64)
        self._same: Constraint | None = _with_rows(inner, self.A)
        self.exact = False
        if self._square > 0 and float((gram - eye).abs().max()) <= ORTHOGONAL * self._square:
            self.way, self.exact, self._same = "closed form, A A^T is a multiple of I", inner.exact, None
        elif self._same is not None:
            self.way, self.exact = f"as {self._same!r}", self._same.exact
        elif has_residual(inner) and not inner.convex:
            self._same = Implicit(lambda x: inner.residual(self._image(x)))
            self.way = "Newton steps on the residual of A x"
        else:
            self.way = "splitting between x and A x"
        self.solid = inner.solid and (self._same is None or self._same.solid)

    def __repr__(self) -> str:
        return f"{self.inner!r}.through({len(self.A)} x {self.A.shape[1]})"

    def explain(self) -> str:
        return f"{self!r}: {self.way}"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if size != self.A.shape[1]:
            raise ShapeError(f"A takes {self.A.shape[1]} numbers, events {event} have {size}")

    def residual(self, z: Tensor) -> Tensor:
        return self.inner.residual(self._image(z))

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self._same is not None:
            return self._same._solve(z, budget, warm)
        if self.way.startswith("closed form"):
            found = self.inner._solve(self._image(z), budget, None)
            rows = self.A.to(z) / self._square**0.5
            point = tangent(flat(z), rows) + flat(found.point) @ rows / self._square**0.5
            return found._replace(point=point.reshape(z.shape))
        found = behind_matrix(
            flat(z),
            self.A.to(z),
            lambda y: flat(self.inner._project(y.reshape(-1, *self.shape))),
            lambda x: self._violation(x),
            budget,
        )
        return found._replace(point=found.point.reshape(z.shape))

    def _violation(self, z: Tensor) -> Tensor:
        return self.inner._violation(self._image(z))

    def _image(self, x: Tensor) -> Tensor:
        return (flat(x) @ self.A.to(x).T).reshape(len(x), *self.shape)

    def _arguments(self) -> dict[str, Any]:
        return {"inner": self.inner, "A": self.A, "shape": list(self.shape)}


def _with_rows(inner: Constraint, A: Tensor) -> Constraint | None:
    """The set of x itself, where C is made of linear rows."""
    if isinstance(inner, Affine):
        return Affine(inner.A @ A, inner.b)
    if isinstance(inner, HalfSpace) and bool((inner.a @ A != 0).any()):
        return HalfSpace(inner.a @ A, inner.b)
    if isinstance(inner, Polytope):
        return Polytope(inner.G @ A, inner.h)
    if isinstance(inner, Box):
        low, high = (bound.reshape(-1).expand(len(A)) for bound in (inner.low, inner.high))
        rows = torch.cat([A[high < torch.inf], -A[low > -torch.inf]])
        return Polytope(rows, torch.cat([high[high < torch.inf], -low[low > -torch.inf]])) if len(rows) else None
    return None
