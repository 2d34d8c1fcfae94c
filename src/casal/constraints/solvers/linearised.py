"""Nearest points of a linearised set, {x : c + U (x - z) = 0, or <= 0 row by row, low <= x <= high}, rows by chain.

The problem of a step of Newton's method, for many chains at once: minimise 1/2 |x - a|^2 over that set. One multiplier
for each row gives all of it. An inequality has a slack s <= 0 with a small weight delta, which makes the dual smooth,

    x = clip(a - U^T lam, low, high),     s = min(s_0 + lam / delta, 0),     g = c + U (x - z) - s - ridge lam,

and g is the gradient of a concave, piecewise quadratic function of lam. A Newton step is (U D U^T + ridge) p = g over
the rows without slack, D the coordinates strictly within their bounds; a full one in most cases, else as long as the
slope p . g says. Without bounds and inequalities one step is the answer. Bounds cost no rows, and hold exactly.

References:
    Qi and Sun, "A nonsmooth version of Newton's method", Math. Program. 58 (1993).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.solvers.rows import Algebra
from casal.constraints.vectors import EPSILON, dots, norm
from casal.devices import chosen, seen

DELTA = 1e-6
"""Weight of the slacks."""

STEPS, LINE = 40, 24
"""Most Newton steps, and most trials along one of them."""

FLATTER = 0.5
"""Share of the slope at which a step along p ends."""

DAMPING = 1e-2
"""Ridge on U D U^T, in units of what is left of g: where few coordinates are free, rows depend on each other."""

RUNAWAY = 1e8
"""Multipliers larger than this, in units of the problem, say that rows and bounds contradict each other."""

SHORT = 1e-9
"""A row whose part over the free coordinates is shorter than this takes no part."""


class Bounds(NamedTuple):
    """low <= x <= high, (1 or n, d), infinite where there is none."""

    low: Tensor
    high: Tensor

    def clip(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def free(self, x: Tensor) -> Tensor:
        """Which coordinates are strictly within their bounds."""
        return (x > self.low) & (x < self.high)


class Linearised(NamedTuple):
    """Rows at z: U of length one, c in that unit, which of them ask for <= 0, and which are usable (all (n, r))."""

    algebra: Algebra
    unit: Tensor
    gap: Tensor
    inequality: Tensor
    usable: Tensor

    def take(self, index: Tensor) -> Linearised:
        return Linearised(self.algebra, *(part[index] for part in self[1:]))


class Face(NamedTuple):
    """What holds with equality at the answer.

    Attributes:
        active: Rows, (n, r).
        free: Coordinates that are not at a bound, (n, d), or (n, 1) without bounds.
        point: The answer, (n, d).
        lam: Multipliers (n, r), for the next problem like this one.
    """

    active: Tensor
    free: Tensor
    point: Tensor
    lam: Tensor


def face(
    rows: Linearised, z: Tensor, a: Tensor, bounds: Bounds | None, warm: Tensor | None = None, ridge: float = 0.0
) -> Face:
    """Active rows and free coordinates of the point nearest to ``a``; chains that are done leave the batch.

    Args:
        rows: At z.
        z: Points (n, d), within the bounds.
        a: (n, d).
        bounds: Of the coordinates.
        warm: Multipliers to start from, where they are better than none.
        ridge: Larger ones let rows that contradict each other, or the bounds, hold in part.
    """
    n, loose = len(z), rows.inequality & rows.usable
    free = torch.ones(n, 1, dtype=torch.bool, device=z.device) if bounds is None else bounds.free(a)
    start, lam, w = a if bounds is None else bounds.clip(a), torch.zeros_like(rows.gap), a
    out = Face(rows.usable & ~loose, free, start.clone(), lam.clone())
    if bounds is None and not seen(loose.any()):
        return out
    chain = torch.arange(n, device=z.device)
    origin = torch.where(loose, (rows.gap + rows.algebra.apply(rows.unit, start - z)).clamp_max(0.0), 0.0)
    if warm is not None:
        other = a - rows.algebra.pull(rows.unit, warm)
        there = other if bounds is None else bounds.clip(other)
        before = norm(_gradient(rows, z, start, origin, lam, ridge, loose))
        good = (norm(_gradient(rows, z, there, origin + warm / DELTA, warm, ridge, loose)) < before)[:, None]
        lam, w = torch.where(good, warm, lam), torch.where(good, other, w)
    for step in range(STEPS):
        loose = rows.inequality & rows.usable
        x = w if bounds is None else bounds.clip(w)
        free = out.free[chain] if bounds is None else bounds.free(w)
        slack = origin + lam / DELTA
        active = rows.usable & ~(loose & (slack < 0.0))
        g = _gradient(rows, z, x, slack, lam, ridge, loose)
        size = norm(a[chain]) + norm(x - z) + norm(rows.gap)
        share = g.abs().amax(1) / size.clamp_min(1e-300)
        left = chosen((share > 16 * EPSILON) & (norm(lam) <= RUNAWAY * size)) if step + 1 < STEPS else chain[:0]
        if len(left) < len(chain):
            for target, part in zip(out, (active, free, x, lam), strict=True):
                target[chain] = part
        if not len(left):
            break
        if len(left) < len(chain):
            chain, rows = chain[left], rows.take(left)
            z, w, x, lam, g, share = z[left], w[left], x[left], lam[left], g[left], share[left]
            origin, slack, active, free, loose = origin[left], slack[left], active[left], free[left], loose[left]
        algebra = rows.algebra
        masked = rows.unit if bounds is None else algebra.masked(rows.unit, free)
        factor = algebra.factorise(
            algebra.gram(masked), active, (DAMPING * share[:, None]).clamp(max(ridge, 1e-12), 1.0)
        )
        p = algebra.solve(factor, torch.where(active, g, 0.0))
        if loose.shape[1] and seen(loose.any()):
            rest = g - algebra.apply(masked, algebra.pull(masked, p))
            p = torch.where(active, p, torch.where(loose, DELTA * rest, 0.0))
        q = algebra.pull(rows.unit, p)
        t = _length(rows, z, w, lam, origin, p, q, g, bounds, ridge, loose)
        lam, w = lam + t * p, w - t * q
    return out


def _gradient(
    rows: Linearised, z: Tensor, x: Tensor, slack: Tensor, lam: Tensor, ridge: float, loose: Tensor
) -> Tensor:
    g = rows.gap + rows.algebra.apply(rows.unit, x - z) - ridge * lam
    return torch.where(rows.usable, g - torch.where(loose, slack.clamp_max(0.0), 0.0), 0.0)


def _length(
    rows: Linearised,
    z: Tensor,
    w: Tensor,
    lam: Tensor,
    origin: Tensor,
    p: Tensor,
    q: Tensor,
    g: Tensor,
    bounds: Bounds | None,
    ridge: float,
    loose: Tensor,
) -> Tensor:
    """t (n, 1) where the slope has fallen to a share of what it is at zero: one in most cases, else by halving."""
    steep = dots(p, g)
    at_z = dots(p, rows.gap) - dots(q, z)

    def slope(t: Tensor) -> Tensor:
        x = w - t * q
        x = x if bounds is None else bounds.clip(x)
        s = torch.where(loose, (origin + (lam + t * p) / DELTA).clamp_max(0.0), 0.0)
        return at_z + dots(q, x) - dots(p, s + ridge * (lam + t * p))

    t, now = torch.ones_like(steep), slope(torch.ones_like(steep)[:, None])
    low, high, below, above = 0.0 * t, t + torch.inf, steep, now
    for _ in range(LINE):
        far, near = now < -FLATTER * steep, now > FLATTER * steep
        if not seen((far | near).any()):
            break
        high, above = torch.where(far, t, high), torch.where(far, now, above)
        low, below = torch.where(near, t, low), torch.where(near, now, below)
        share = (below / (below - above)).clamp(0.01, 0.99)  # the slope is piecewise linear
        middle = torch.where(torch.isinf(high), 8.0 * t, low + share * (high - low))
        t = torch.where(far | near, middle, t)
        now = slope(t[:, None])
    return t[:, None]
