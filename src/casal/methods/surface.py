"""Steps on and in a curved set {h(z) = 0, g(z) <= 0} that keep its surface measure: RATTLE, turned at walls.

With J = dh/dz and P = I - J^T (J J^T)^-1 J, a drift of length e from (z, v), v tangent, is

    z' = z + e v - J(z)^T m   with h(z') = 0,        v' = P(z') (z' - z) / e.

The multipliers m are found by Broyden's method, which begins with J J^T and asks for values of h alone: derivatives
cost much more. Every drift is taken back from (z', -v'). A chain that does not return, or did not converge, is refused.
What is left is reversible and keeps volumes (Zappa, Holmes-Cerfon and Goodman 2018).

**Walls.** A drift that ends outside, g(z') > 0, turns v' about the tangent part of the gradient of the most violated
wall, at that point, and drifts on by e, a few times. The way back visits the same points, so a Metropolis step is
right. The density is not asked outside. A solid set without such functions (an L1 ball, a cone) is known by its
projection: v' turns about z' - P(z').

**Metric.** In the coordinates w, z = L w, the steps keep the surface measure of w. The law in the user's coordinates
stays if the density there is p sqrt(det J J^T / det J L L^T J^T). This factor hardly varies on a set (by a few per cent
for molecules, a quarter for a power grid), so trajectories are accepted by it and know nothing of its gradient.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint, IncompleteStructure, Structure, structure_of
from casal.devices import waits
from casal.errors import SettingError
from casal.linalg import log_gram, pulled, rows_of
from casal.methods.scales import solve, times, transposed

TURNS, BROYDEN = 8, 14
"""Turns at walls in one drift, and values of h for the multipliers, at most."""

GIVEN_UP = 0.9
"""Share of the distance to the set that is left after a step, from which on a chain is refused, after three steps."""

ON_SET, RETURNED = 1e-9, 1e-7
"""Distance to the set, and to the point where a drift began, in units of 1 + |z|, up to which it worked. What is left
of the first is not carried on, as each drift leads to the set itself, and samples are put onto it in the end."""

FEWEST_ROWS = 8
"""Equations from which on it is tried whether some of them can be differentiated together."""

NORMAL = 1e-7
"""Smallest singular value of the unit rows of J, below which equations depend on each other."""


class Frame(NamedTuple):
    """A point w (n, r) of the set with J (n, m, r) and (J J^T)^-1 (n, m, m).

    Products are sums of elementwise ones: for many small matrices these take a half to a fifth of the time.
    """

    w: Tensor
    J: Tensor
    inverse: Tensor

    def solved(self, h: Tensor) -> Tensor:
        """(J J^T)^-1 h, (n, m)."""
        return (self.inverse * h[:, None]).sum(2)

    def across(self, m: Tensor) -> Tensor:
        """J^T m, (n, r)."""
        return (self.J * m[..., None]).sum(1)

    def tangent(self, v: Tensor) -> Tensor:
        """P v."""
        return v - self.across(self.solved((self.J * v[:, None]).sum(2)))

    def take(self, index: Tensor) -> Frame:
        """Of some chains."""
        return Frame(*(part[index] for part in self))

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

    def derivatives(self, z: Tensor, together: bool = True) -> Tensor:
        """dh/dz (n, m, k) at points (n, *event).

        Args:
            z: The points.
            together: Whether rows that share no coordinate are differentiated together.
        """
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            h = self.constraint.equations(leaf) if self.constraint.smooth else leaf.flatten(1)[:, :0]
            count = h.shape[1]
            if not count:
                return z.new_zeros((len(z), 0, z[0].numel()))
            if not h.requires_grad:
                raise SettingError("automatic differentiation does not see through the functions of this set")
            found = self._structure(count) if together else None
            if found is not None:
                try:
                    entries = found.entries(partial(pulled, h, leaf), len(z), h)
                    J = h.new_zeros((len(z), count * found.size))
                    J = J.index_copy(1, found.indices[0] * found.size + found.indices[1], entries)
                    return J.reshape(len(z), count, -1)
                except IncompleteStructure:
                    pass
            return rows_of(h, leaf)

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
        return Frame(w, J, _inverse(J @ J.mT))

    def log_factor(self, at: Frame) -> Tensor:
        """log sqrt(det J J^T / det J L L^T J^T), (n,)."""
        if self.scale is None or not at.J.shape[1]:
            return torch.zeros_like(at.w[:, 0])
        J = self.derivatives(self.outward(at.w).reshape(-1, *self.event)).to(at.w)
        return 0.5 * (log_gram(J) - log_gram(at.J))

    @waits
    def solve(self, at: Frame, step: Tensor) -> tuple[Tensor, Tensor]:
        """w + step - J^T m on the set where it was found, else w; and where that was.

        With p = B h(w) and the step s before it, Broyden's method takes B - p s^T B / s.(p + s) for B (Kelley 1995).
        Chains that are done are set aside as soon as they are half of them: the slowest take twice as many steps.
        """
        w, found, every = at.w + step, at.w, torch.zeros(len(step), dtype=torch.bool, device=step.device)
        if not at.J.shape[1]:
            return w, ~every
        unit = ON_SET * (1.0 + at.w.abs().amax(1, keepdim=True)) * torch.linalg.vector_norm(at.J, dim=2)
        unit, before = unit.clamp_min(1e-300), torch.full_like(w[:, 0], torch.inf)
        surface, ok, live, B, s = self, every, ~every, at.inverse, torch.zeros_like(unit)
        chain: Tensor | None = None
        for k in range(BROYDEN):
            h = torch.nan_to_num(surface.equations(w), nan=1e300)
            left = (h.abs() / unit).amax(1)
            fine = left < 1.0
            ok, live = ok | (live & fine), live & ~fine if k < 3 else live & ~fine & (left < GIVEN_UP * before)
            count = int(live.sum())
            if not count:
                break
            if 2 * count <= len(live):
                found, every = _written(found, chain, torch.where(ok[:, None], w, at.w)), _written(every, chain, ok)
                kept = torch.nonzero(live).flatten()
                at, surface = at.take(kept), surface.some(kept)
                w, h, unit, left, ok, live, B, s = (part[kept] for part in (w, h, unit, left, ok, live, B, s))
                chain = kept if chain is None else chain[kept]
            before, p = left, (B * h[:, None]).sum(2)
            if k:
                size = (s * (p + s)).sum(1, keepdim=True)
                B = torch.addcmul(B, (p / size)[..., None], (s[..., None] * B).sum(1)[:, None], value=-1.0)
                p = p * (s.square().sum(1, keepdim=True) / size)
            s = -p
            w = torch.where(live[:, None], w + at.across(s), w)
        return _written(found, chain, torch.where(ok[:, None], w, at.w)), _written(every, chain, ok)

    def settled(self, w: Tensor) -> Tensor:
        """Points next to the set, moved onto it as well as rounding allows."""
        for _ in range(2):
            at = self.frame(w)
            if not at.J.shape[1]:
                return w
            near = w - at.across(at.solved(self.equations(w)))
            better = self.equations(near).abs().amax(1) < self.equations(w).abs().amax(1)
            w = torch.where((better & ~(self.walls(near) > 0.0).any(1))[:, None], near, w)
        return w

    def step(self, at: Frame, v: Tensor, e: Tensor) -> tuple[Frame, Tensor, Tensor]:
        """One drift of lengths e (n, 1) with its way back: the new point, its velocity, and where it worked."""
        w, ok = self.solve(at, e * v)
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
            some = there.take(out)
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


def _written(whole: Tensor, rows: Tensor | None, part: Tensor) -> Tensor:
    """With a part in the place of some rows, or of all."""
    return part if rows is None else whole.index_copy(0, rows, part)


def _inverse(S: Tensor) -> Tensor:
    """Of positive definite matrices (n, m, m)."""
    if S.shape[1] == 1:
        return 1.0 / S
    return torch.cholesky_solve(torch.eye(S.shape[1]).to(S), torch.linalg.cholesky_ex(S)[0])
