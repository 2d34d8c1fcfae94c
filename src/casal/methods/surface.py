"""Steps on and in a curved set {h(z) = 0, g(z) <= 0} that keep its surface measure: RATTLE, turned at walls.

With J = dh/dz and P = I - J^T (J J^T)^-1 J, a drift of length e from (z, v), v tangent, is

    z' = z + e v - J(z)^T m   with h(z') = 0,        v' = P(z') (z' - z) / e.

The multipliers m are found by chord steps: the first with J J^T, the next ones with J(z') J^T at the second point. This
matrix is renewed for chains that come nearer too slowly: derivatives cost much more than values. Every drift is taken
back from (z', -v'). A chain that does not return, or did not converge, is refused. What is left is reversible and keeps
volumes (Zappa, Holmes-Cerfon and Goodman 2018).

**Walls.** A drift that ends outside, g(z') > 0, turns v' about the tangent part of the gradient of the most violated
wall, at that point, and drifts on by e, a few times. The way back visits the same points, so a Metropolis step is
right. The density is not asked outside. A solid set without such functions (an L1 ball, a cone) is known by its
projection: v' turns about z' - P(z').

**Metric.** In the coordinates w, z = L w, the steps keep the surface measure of w. The law in the user's coordinates
stays if the density there is p sqrt(det J J^T / det J L L^T J^T).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint, IncompleteStructure, Structure, structure_of
from casal.devices import waits
from casal.errors import SettingError
from casal.linalg import log_gram
from casal.methods.scales import solve, times, transposed

TURNS, NEWTON = 8, 14
"""Turns at walls in one drift, and chord steps for the multipliers, at most."""

SLOW, GIVEN_UP = 0.2, 0.9
"""Share of the distance to the set that is left after a step, from which on the matrix is renewed; and a chain is
refused after three steps, as Newton's method then leads away."""

ON_SET, RETURNED = 1e-9, 1e-7
"""Distance to the set, and to the point where a drift began, in units of 1 + |z|, up to which it worked. What is left
of the first is not carried on, as each drift leads to the set itself, and samples are put onto it in the end."""

FEWEST_ROWS = 8
"""Equations from which on it is tried whether some of them can be differentiated together."""

NORMAL = 1e-7
"""Smallest singular value of the unit rows of J, below which equations depend on each other."""


class Frame(NamedTuple):
    """A point w (n, r) of the set with J (n, m, r) and the Cholesky factor of J J^T."""

    w: Tensor
    J: Tensor
    root: Tensor

    def tangent(self, v: Tensor) -> Tensor:
        """P v."""
        if self.J.shape[1] == 0:
            return v
        if self.J.shape[1] == 1:
            j = self.J[:, 0]
            return v - (j * v).sum(1, keepdim=True) / self.root[:, 0].square() * j
        return v - (self.J.mT @ torch.cholesky_solve(self.J @ v[..., None], self.root))[..., 0]

    def pick(self, yes: Tensor, other: Frame) -> Frame:
        """This one for chains that say yes, the other for the rest."""
        return Frame(*(torch.where(yes.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(self, other, strict=True)))


class Surface:
    """The set of some chains in coordinates w, z = L w.

    Args:
        constraint: With equations and inequalities that automatic differentiation sees through.
        event: Shape of a point.
        scale: L (``scales.py``); None for the identity.
    """

    def __init__(self, constraint: Constraint, event: tuple[int, ...], scale: Tensor | None = None) -> None:
        self.constraint, self.event, self.scale = constraint, event, scale

    def some(self, index: Tensor) -> Surface:
        """Of some of these chains."""
        return self if self.constraint.chains is None else Surface(self.constraint.take(index), self.event, self.scale)

    def outward(self, w: Tensor) -> Tensor:
        """L w, (n, r)."""
        return w if self.scale is None else times(self.scale, w)

    def inward(self, z: Tensor) -> Tensor:
        """L^-1 z."""
        return z if self.scale is None else solve(self.scale, z)

    def pull(self, gradient: Tensor) -> Tensor:
        """L^T g for gradients (..., r)."""
        return gradient if self.scale is None else transposed(self.scale, gradient)

    def equations(self, w: Tensor) -> Tensor:
        """h (n, m)."""
        if not self.constraint.smooth:
            return w[:, :0]
        return self.constraint.equations(self.outward(w).reshape(-1, *self.event)).to(w)

    def walls(self, w: Tensor) -> Tensor:
        """g (n, k); for a set that is known by its projection alone the distance, which is zero inside."""
        if not self.constraint.smooth:
            return self.constraint.violation(self.outward(w).reshape(-1, *self.event))[:, None].to(w)
        return self.constraint.inequalities(self.outward(w).reshape(-1, *self.event)).to(w)

    def slopes(self, w: Tensor) -> Tensor:
        """J (n, m, r)."""
        return self.pull(self.derivatives(self.outward(w).reshape(-1, *self.event)).to(w))

    def derivatives(self, z: Tensor, graph: bool = False, together: bool = True) -> Tensor:
        """dh/dz (n, m, k) at points (n, *event).

        Args:
            z: The points.
            graph: Whether it will be differentiated again.
            together: Whether rows that share no coordinate are differentiated together.
        """
        with torch.enable_grad():
            leaf = z if graph and z.requires_grad else z.detach().requires_grad_()
            h = self.constraint.equations(leaf) if self.constraint.smooth else leaf.flatten(1)[:, :0]
            if not h.shape[1]:
                return z.new_zeros((len(z), 0, z[0].numel()))
            if not h.requires_grad:
                raise SettingError("automatic differentiation does not see through the functions of this set")

            def pulled(weights: Tensor) -> Tensor:
                (row,) = torch.autograd.grad(
                    h, leaf, weights, retain_graph=True, create_graph=graph, materialize_grads=True, allow_unused=True
                )
                return row.flatten(1)

            count = h.shape[1]
            found = self._structure(count) if together else None
            if found is not None:
                try:
                    entries = found.entries(pulled, len(z), h)
                    J = h.new_zeros((len(z), count * found.size))
                    J = J.index_copy(1, found.indices[0] * found.size + found.indices[1], entries)
                    return J.reshape(len(z), count, -1)
                except IncompleteStructure:
                    pass
            rows = torch.eye(count, dtype=h.dtype, device=h.device)
            return torch.stack([pulled(row.expand_as(h)) for row in rows], 1)

    def _structure(self, rows: int) -> Structure | None:
        """Which rows may be differentiated together, found once at random points."""
        if rows < FEWEST_ROWS or self.constraint.chains is not None:
            return None

        def dense(x: Tensor) -> Tensor:
            return self.derivatives(x.reshape(-1, *self.event), together=False)

        def found() -> Structure | None:
            return structure_of(dense, math.prod(self.event), worth=1)

        return self.constraint._once(("rows together", self.event), found)

    def frame(self, w: Tensor) -> Frame:
        """A point with its derivatives."""
        J = self.slopes(w)
        return Frame(w, J, _root(J @ J.mT))

    def log_factor(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """log sqrt(det J J^T / det J L L^T J^T), (n,), and its gradient in w."""
        if self.scale is None or not self.equations(w[:1]).shape[1]:
            return torch.zeros_like(w[:, 0]), torch.zeros_like(w)
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            z = self.outward(leaf).reshape(-1, *self.event)
            J = self.derivatives(z, graph=True).to(w)
            scaled = self.pull(J)
            value = 0.5 * (log_gram(J) - log_gram(scaled))
            (gradient,) = torch.autograd.grad(value.sum(), leaf) if value.requires_grad else (torch.zeros_like(w),)
        return value.detach(), gradient

    @waits
    def solve(self, at: Frame, step: Tensor) -> tuple[Tensor, Tensor]:
        """w + step - J^T m on the set, and where it was found."""
        w = at.w + step
        ok = torch.ones(len(w), dtype=torch.bool, device=w.device)
        if not at.J.shape[1]:
            return w, ok
        out, ok, todo = w.clone(), ~ok, torch.arange(len(w), device=w.device)
        unit = (1.0 + at.w.abs().amax(1)) * ON_SET
        lengths = torch.linalg.vector_norm(at.J, dim=2).clamp_min(1e-300)
        here, J, (S, order) = self, at.J, _factors(at.root @ at.root.mT)
        left = torch.full_like(unit, torch.inf)
        for k in range(NEWTON):
            h = torch.nan_to_num(here.equations(w), nan=1e300)
            before, left = left, (h.abs() / lengths).amax(1)
            fine = left < unit
            out[todo[fine]], ok[todo[fine]] = w[fine], True
            go = ~fine & (left < (GIVEN_UP * before if k > 2 else torch.inf))
            if not bool(go.all()):
                todo, w, h, J, S, order, lengths, unit, before, left = (
                    v[go] for v in (todo, w, h, J, S, order, lengths, unit, before, left)
                )
                if not len(todo):
                    break
                here = self.some(todo) if self.constraint.chains is not None else self
            slow = torch.nonzero(left > SLOW * before).flatten() if k > 1 else torch.arange(len(todo) * (k == 1))
            if len(slow):  # chains whose matrix is too old
                S[slow], order[slow] = _factors(here.some(slow).slopes(w[slow]) @ J[slow].mT)
            w = w - (J.mT @ _solved(S, order, h))[..., 0]
        return out, ok

    def settled(self, w: Tensor) -> Tensor:
        """Points next to the set, moved onto it as well as rounding allows."""
        for _ in range(2):
            at = self.frame(w)
            if not at.J.shape[1]:
                return w
            near = w - (at.J.mT @ _solved(*_factors(at.root @ at.root.mT), self.equations(w)))[..., 0]
            better = self.equations(near).abs().amax(1) < self.equations(w).abs().amax(1)
            w = torch.where((better & ~(self.walls(near) > 0.0).any(1))[:, None], near, w)
        return w

    def step(self, at: Frame, v: Tensor, e: Tensor) -> tuple[Frame, Tensor, Tensor]:
        """One drift of lengths e (n, 1) with its way back: the new point, its velocity, and where it worked."""
        w, ok = self.solve(at, e * v)
        w = torch.where(ok[:, None], w, at.w)
        there = self.frame(w)
        turned = there.tangent((w - at.w) / e)
        if not at.J.shape[1]:
            return there, v, ok
        back, found = self.solve(there, -e * turned)
        same = (back - at.w).abs().amax(1) < RETURNED * (1.0 + at.w.abs().amax(1))
        return there, turned, ok & found & same

    @waits
    def drift(self, at: Frame, v: Tensor, e: Tensor) -> tuple[Frame, Tensor, Tensor]:
        """A step, turned at walls; the point where it began for chains that are refused."""
        there, turned, ok = self.step(at, v, e)
        if not self.walls(at.w[:1] if self.constraint.chains is None else at.w).shape[1]:
            return there, turned, ok
        for _ in range(TURNS):
            out = torch.nonzero(ok & (self.walls(there.w) > 0.0).any(1)).flatten()
            if not len(out):
                break
            here = self.some(out)
            some = Frame(*(part[out] for part in there))
            normal = some.tangent(here.steepest(some.w))
            size = normal.square().sum(1, keepdim=True).clamp_min(1e-300)
            v_out = turned[out] - 2.0 * (normal * turned[out]).sum(1, keepdim=True) / size * normal
            some, v_out, fine = here.step(some, v_out, e[out])
            there, turned, ok = Frame(*(part.clone() for part in there)), turned.clone(), ok.clone()
            for whole, part in zip(there, some, strict=True):
                whole[out] = part
            turned[out], ok[out] = v_out, fine
        ok = ok & (self.walls(there.w) <= 0.0).all(1)
        return there.pick(ok, at), turned, ok

    def steepest(self, w: Tensor) -> Tensor:
        """The gradient (n, r) of the most violated wall; of the distance, up to a factor, where there are none."""
        z = self.outward(w).reshape(-1, *self.event)
        if not self.constraint.smooth:
            return self.pull((z - self.constraint.project(z)).flatten(1).to(w))
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            g = self.constraint.inequalities(leaf)
            (slope,) = torch.autograd.grad(g.gather(1, g.argmax(1, keepdim=True)).sum(), leaf)
        return self.pull(slope.flatten(1).to(w))

    def regular(self, w: Tensor) -> bool:
        """Whether the equations are independent at points of the set."""
        J = self.slopes(w)
        if not J.shape[1]:
            return True
        unit = J / torch.linalg.vector_norm(J, dim=2, keepdim=True).clamp_min(1e-300)
        return J.shape[1] < J.shape[2] and bool((torch.linalg.svdvals(unit)[:, -1] > NORMAL).all())


def _root(S: Tensor) -> Tensor:
    return S.sqrt() if S.shape[-1] == 1 else torch.linalg.cholesky_ex(S)[0]


def _factors(S: Tensor) -> tuple[Tensor, Tensor]:
    """Of matrices (n, m, m), with the order of their rows."""
    if S.shape[-1] == 1:
        return S.clone(), torch.ones_like(S[..., 0], dtype=torch.int32)
    factors, order, _ = torch.linalg.lu_factor_ex(S)
    return factors, order


def _solved(factors: Tensor, order: Tensor, h: Tensor) -> Tensor:
    """S^-1 h, (n, m, 1)."""
    return h[..., None] / factors if factors.shape[-1] == 1 else torch.linalg.lu_solve(factors, order, h[..., None])
