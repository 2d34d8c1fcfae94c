"""Steps on and in a curved set {h(z) = 0, g(z) <= 0} that keep its surface measure: RATTLE, turned at walls.

With J = dh/dz and P = I - J^T (J J^T)^-1 J, a drift of length e from (z, v), v tangent, is

    z' = z + e v - J(z)^T m   with h(z') = 0,        v' = P(z') (z' - z) / e.

The multipliers m are found by Newton's method: one step with J J^T, which is factorised already, then J(z') J^T for the
chains that are left. Every drift is taken back from (z', -v'). A chain that does not return, or did not converge, is
refused. What is left is reversible and keeps volumes (Zappa, Holmes-Cerfon and Goodman 2018).

**Walls.** A drift that ends outside, g(z') > 0, turns v' about the tangent part of the gradient of the most violated
wall, at that point, and drifts on by e, a few times. The way back visits the same points, so a Metropolis step is
right. The density is not asked outside.

**Metric.** In the coordinates w, z = L w, the steps keep the surface measure of w. The law in the user's coordinates
stays if the density there is p sqrt(det J J^T / det J L L^T J^T).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.devices import waits
from casal.methods.reduction import differentiate

TURNS, NEWTON = 8, 14
"""Turns at walls in one drift, and Newton steps for the multipliers, at most."""

ON_SET, RETURNED = 1e-11, 1e-7
"""Distance to the set, and to the point where a drift began, in units of 1 + |z|, up to which it worked."""

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
        scale: L (r, r), or its diagonal (r,); None for the identity.
    """

    def __init__(self, constraint: Constraint, event: tuple[int, ...], scale: Tensor | None = None) -> None:
        self.constraint, self.event, self.scale = constraint, event, scale

    def some(self, index: Tensor) -> Surface:
        """Of some of these chains."""
        return self if self.constraint.chains is None else Surface(self.constraint.take(index), self.event, self.scale)

    def outward(self, w: Tensor) -> Tensor:
        """L w, (n, r)."""
        return w if self.scale is None else w * self.scale if self.scale.ndim == 1 else w @ self.scale.T

    def inward(self, z: Tensor) -> Tensor:
        """L^-1 z."""
        if self.scale is None or self.scale.ndim == 1:
            return z if self.scale is None else z / self.scale
        return torch.linalg.solve_triangular(self.scale, z.T, upper=False).T

    def pull(self, gradient: Tensor) -> Tensor:
        """L^T g for gradients (..., r)."""
        if self.scale is None:
            return gradient
        return gradient * self.scale if self.scale.ndim == 1 else gradient @ self.scale

    def equations(self, w: Tensor) -> Tensor:
        """h (n, m)."""
        return self.constraint.equations(self.outward(w).reshape(-1, *self.event)).to(w)

    def walls(self, w: Tensor) -> Tensor:
        """g (n, k)."""
        return self.constraint.inequalities(self.outward(w).reshape(-1, *self.event)).to(w)

    def slopes(self, w: Tensor) -> Tensor:
        """J (n, m, r)."""
        z = self.outward(w).reshape(-1, *self.event)
        return self.pull(differentiate(self.constraint.equations, z)[1].flatten(2).to(w))

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
            J = differentiate(self.constraint.equations, z, graph=True)[1].flatten(2).to(w)
            scaled = self.pull(J)
            value = 0.5 * (_log_volume(J) - _log_volume(scaled))
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
        unit = (1.0 + at.w.abs().amax(1, keepdim=True)) * at.root.new_tensor(ON_SET)
        lengths = torch.linalg.vector_norm(at.J, dim=2).clamp_min(1e-300)
        here, J, root = self, at.J, at.root
        h = here.equations(w)
        for k in range(NEWTON + 2):
            fine = (h.abs() / lengths < unit).all(1)
            if bool(fine.any()):
                out[todo[fine]], ok[todo[fine]] = w[fine], True
                left = ~fine
                todo, w, h, J, root, lengths, unit = (v[left] for v in (todo, w, h, J, root, lengths, unit))
                if not len(todo):
                    break
                here = self.some(todo)
            if k > NEWTON:
                break
            m = _solved(root, h) if k == 0 else _general(here.slopes(w) @ J.mT, h)
            w = w - (J.mT @ m)[..., 0]
            h = torch.nan_to_num(here.equations(w), nan=1e300)
        return out, ok

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
        """The gradient (n, r) of the most violated wall."""
        z = self.outward(w).reshape(-1, *self.event)
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


def _log_volume(J: Tensor) -> Tensor:
    """log det J J^T."""
    return J.square().sum((1, 2)).log() if J.shape[1] == 1 else torch.logdet(J @ J.mT)


def _root(S: Tensor) -> Tensor:
    return S.sqrt() if S.shape[-1] == 1 else torch.linalg.cholesky_ex(S)[0]


def _solved(root: Tensor, h: Tensor) -> Tensor:
    return h[..., None] / root.square() if root.shape[-1] == 1 else torch.cholesky_solve(h[..., None], root)


def _general(S: Tensor, h: Tensor) -> Tensor:
    return h[..., None] / S if S.shape[-1] == 1 else torch.linalg.solve_ex(S, h[..., None])[0]
