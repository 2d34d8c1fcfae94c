"""Nearest points of flat sets, many points at once: a semismooth Newton method on the dual problem.

The set is {z : r_low <= R z <= r_high, low <= z <= high}, rows of R of length one; equal ends make an equation. A slack
s for each row, with a small weight delta, makes the dual problem smooth:

    minimise 1/2 |z - y|^2 + delta/2 |s - s_0|^2   subject to   R z = s,   z and s within their ends.

One multiplier lam for each row gives all of it,

    z = clip(y - R^T lam, low, high),     s = clip(s_0 + lam / delta, r_low, r_high),     g = R z - s,

and g is the gradient of a concave, piecewise quadratic function of lam. A Newton step is

    (R D R^T + F / delta + ridge) p = g,     lam += t p,

D the coordinates and F the slacks that are strictly within their ends; rows of F are eliminated. Along p the slope
p . g falls piecewise linearly, so t is found exactly. Once g is small, the equations of the ends that were reached are
solved without slacks; if they are not those of the answer, s_0 moves to s, delta falls, and the search goes on. z is a
clip, so bounds hold exactly. It moves by -t R^T p from where it is, so that rows hold to the rounding of z, not of y.
In an empty set the multipliers run away along rows that depend on each other: a proof by Farkas.

References:
    Qi and Sun, "A nonsmooth version of Newton's method", Math. Program. 58 (1993); Li, Sun and Toh, "On the efficient
    computation of a generalized Jacobian of the projector over the Birkhoff polytope", Math. Program. 179 (2020);
    Rockafellar, "Augmented Lagrangians and applications of the proximal point algorithm in convex programming", Math.
    Oper. Res. 1 (1976), for s_0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import Budget, Projection, Rows, at_once
from casal.constraints.parameters import over
from casal.constraints.solvers.banded import Bands, bands_for_many
from casal.constraints.solvers.sparse_rows import MOST_DENSE, SparseMatrix, across, back
from casal.constraints.vectors import EPSILON, LARGEST, ROUNDING, flat, norm, over_events, relative
from casal.devices import placed, waits
from casal.errors import ProjectionError

UNDERFLOW = 1e-290
"""Below this, rounding is absolute."""
DELTAS = (1e-4, 1e-8)
"""Weight of the slacks, at first and at least."""
RIDGES = (1e-12, 1e-9, 1e-6)
"""Least ridge, the least for systems of the size of a point, and the largest; it falls with g."""
SETTLED = 1e-6
"""Relative size of g from which on the ends that were reached may be those of the answer."""
CORRECTIONS = 2
"""Solutions for the ends that a chain is at: the second takes away the rounding of the first."""
SUSPICIOUS, RUNAWAY = 3, 1e8
"""A proof that there is no point is looked for every so many steps without progress, and from this multiplier on."""
PATIENCE = (3, 60)
"""Steps without progress before giving up: when the tolerance is met, and when it is not."""
CERTAIN = (1e-13, 1e-11)
"""What may be left of R^T v, and must be left of the gain, in a proof of emptiness; relative to the terms added."""
FAR, FARTHEST, STAGE = 1e3, 1e13, 1e3
"""Size of y beyond which it is approached in stages: in units of the set, if in trouble, and of the point found, in any
case; and the length of a stage in units of the point reached, which grows by this factor."""
TOUCHING = 1e-9
"""Relative distance of a point from an end of a row at which it counts as there."""
PARALLEL = 12
"""Decimals to which parallel rows agree."""
TILE = 2**20
"""Numbers in one batch of systems, to bound the memory."""
FEW = 0.8
"""Share of active rows up to which systems of their number are made."""
SPARSE = (256, 0.05)
"""Rows from which on, and share of entries up to which, a matrix is kept sparse."""
MOST_PRODUCTS = 2**24
"""Numbers in the table of all products of two rows, coordinate by coordinate."""


class Nearest(NamedTuple):
    """Nearest points and how they were found, chain by chain.

    Attributes:
        point: (n, d), the best point found.
        drift: (n, m), where the multipliers of dependent rows were running to at last: a proof if the set is empty.
        converged: (n,) bool, the residual is within the tolerance.
        iterations: (n,) Newton steps.
        residual: (n,) the largest of: the excess of a row over its end, relative to sum_j |r_ij z_j| + |end_i|; its
            distance from the end in that unit, or its multiplier relative to |y| + |z|, whichever is smaller; and the
            gap between the distance of z from y and its lower bound, |lam . (end - R z)| / (|y - z| (|y| + |z|)).
    """

    point: Tensor
    drift: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class _Chains(NamedTuple):
    """The chains at work; lengths in units of ``unit``, all tensors (n, ...).

    Attributes:
        chain: Their indices.
        unit: Size of what they are dealing with.
        y: The points to project.
        low, high: Bounds.
        row_low, row_high: Ends of the rows.
        lam: Multipliers.
        w: y - R^T lam, up to the rounding of y; z is its clip.
        origin: s_0.
        delta: Weight of the slacks, (n, 1).
        stale: Steps without progress.
        best: Least residual so far.
        least: Least |g| so far.
    """

    chain: Tensor
    unit: Tensor
    y: Tensor
    low: Tensor
    high: Tensor
    row_low: Tensor
    row_high: Tensor
    lam: Tensor
    w: Tensor
    origin: Tensor
    delta: Tensor
    stale: Tensor
    best: Tensor
    least: Tensor

    def take(self, index: Tensor) -> _Chains:
        return _Chains(*(part[index] for part in self))

    @property
    def z(self) -> Tensor:
        return _clip(self.w, self.low, self.high)

    @property
    def slack(self) -> Tensor:
        """s before it is clipped."""
        return self.origin + self.lam / self.delta


class FlatSet:
    """A flat set, tidied up once.

    Args:
        rows: The set; ends and bounds may be those of n chains.
        tidy: Whether rows on single coordinates become bounds, fixed coordinates leave the rows, and parallel rows
            become one. Without it, ``drift`` is about the rows that were given.

    Attributes:
        rows: What is left.
        found: What was tidied up, in words.
        crossed: (1 or n,), by how much ends contradict each other that were met on the way, relative to their size.
    """

    def __init__(self, rows: Rows, *, tidy: bool = True) -> None:
        self.found: list[str] = []
        self.crossed = torch.zeros(rows.chains, dtype=torch.float64)
        self.rows = _tidied(self, rows) if tidy else rows
        matrix = self.rows.matrix
        self.count, self.size = matrix.shape
        if isinstance(matrix, Tensor) and self.count > SPARSE[0]:
            if float((matrix != 0).to(torch.float64).mean()) <= SPARSE[1]:
                matrix = SparseMatrix.from_dense(matrix)
        elif isinstance(matrix, SparseMatrix) and self.count <= SPARSE[0]:
            matrix = matrix.to_dense()
        self._matrix = matrix
        self._sizes = matrix.abs() if isinstance(matrix, Tensor) else matrix.absolute
        self._solver = _System(matrix, self.rows)

    def project(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        """Nearest points to events (n, *event), as a set returns them."""
        if not self.count and not bool(self.crossed.any()):  # a box
            return at_once(
                torch.clamp(flat(z), over(self.rows.below, flat(z)), over(self.rows.above, flat(z))).reshape(z.shape)
            )
        found = self.nearest(flat(z), budget, warm=None if warm is None else flat(warm))
        return Projection(found.point.reshape(z.shape), found.converged, found.iterations, found.residual)

    @waits
    def nearest(self, y: Tensor, budget: Budget, *, warm: Tensor | None = None) -> Nearest:
        """Nearest points to ``y``.

        A point within a few roundings of the set is returned as it is. Every chain is worked on in its own unit. A
        point so far away that the set is lost in the rounding of y (the problem is then close to a linear programme) is
        approached by x <- P(x + tau (y - x) / |y - x|) with growing tau, whose fixed point is P(y).

        Args:
            y: (n, d) finite float64.
            budget: Tolerance on ``residual``, and the largest number of Newton steps. They go on beyond the tolerance,
                to a thousandth of it or to rounding, as long as they make progress.
            warm: Points (n, d) near the answers; what ends they touch is where the search starts.

        Raises:
            ProjectionError: A point is longer than 1e300.
        """
        length = norm(y)
        if bool((length > LARGEST).any()):
            raise ProjectionError(
                f"points of length {float(length.max()):.3g} overflow in a projection; rescale them to below "
                f"{LARGEST:g}",
                chains=torch.nonzero(length > LARGEST).flatten().tolist(),
            )
        n = len(y)
        zeros = y.new_zeros(n)
        out = Nearest(y.clone(), y.new_zeros(n, self.count), zeros > 0, zeros.long(), zeros + torch.inf)
        for tile in torch.arange(n, device=y.device).split(
            max(1, TILE // (self._solver.numbers + 4 * (self.size + self.count) + 1))
        ):
            self._direct(tile, y, budget, warm, out)
        if not bool(out.converged.all()):
            left = torch.nonzero(~out.converged & (out.iterations < budget.iterations)).flatten()
            if len(left):
                self._by_stages(left, y, budget, out)
        if bool(self.crossed.any()):
            residual = torch.maximum(out.residual, self.crossed.to(y))
            out = out._replace(residual=residual, converged=residual <= budget.tolerance)
        return out

    def _ends(self, y: Tensor, chain: Tensor) -> list[Tensor]:
        """low, high, row_low, row_high (n, ...) of these chains."""
        ends = (placed(end, y) for end in (self.rows.below, self.rows.above, self.rows.low, self.rows.high))
        return [end[chain] if len(end) > 1 else end.expand(len(chain), -1) for end in ends]

    def close(self, low: Tensor, high: Tensor, terms: Tensor | float = 0.0) -> Tensor:
        """Low ends (1 or n, k), brought down to the high ones that they exceed by the rounding of such terms."""
        size, beyond = low.abs() + high.abs() + terms, (low - high).clamp_min(0.0)
        self.cross(beyond, size)
        return torch.where((beyond > 0) & (beyond <= ROUNDING * size), high, low)

    def cross(self, amount: Tensor, size: Tensor) -> None:
        """Take note of ends that contradict each other by (1 or n, k)."""
        share = relative(amount, size)
        self.crossed = torch.maximum(self.crossed, torch.where(share > ROUNDING, share, 0.0).amax(1))

    # -------------------------------------------------------------- the search

    def _direct(self, chain: Tensor, y: Tensor, budget: Budget, warm: Tensor | None, out: Nearest) -> None:
        """Newton steps for the chains ``chain``, written into ``out``."""
        if not len(chain):
            return
        aim = max(1e-3 * budget.tolerance, 4 * EPSILON)
        c = self._start(chain, y)
        left = budget.iterations
        if warm is not None and self.count and left:
            c = self._guessed(c, warm[chain] / c.unit[:, None])
            left -= 1
        calm = max(SETTLED, 0.1 * budget.tolerance)
        for step in range(left + 1):
            slack, gap, share = self._gap(c)
            point, size = c.z, gap.abs().amax(1) if self.count else share
            value = torch.full_like(share, torch.inf)
            if step in (0, left) or bool((c.stale + 1 >= PATIENCE[1]).any()):
                value = self._residual(c, point)
            near = torch.nonzero((share <= calm) & (value > aim)).flatten() if self.count else value[:0].long()
            if len(near):
                part, there, less = self._settled(c.take(near), slack[near])
                c = _Chains(*(whole.index_copy(0, near, new) for whole, new in zip(c, part, strict=True)))
                point, value = point.index_copy(0, near, there), value.index_copy(0, near, less)
            better = (value <= c.best) & (value < torch.inf)
            chosen = c.chain[better]
            out.point[chosen], out.residual[chosen] = (c.unit[:, None] * point)[better], value[better]
            stale = torch.where((value < 0.9 * c.best) | (size < 0.9 * c.least), 0, c.stale + 1)
            c = c._replace(stale=stale, best=torch.minimum(c.best, value), least=torch.minimum(c.least, size))
            done = (value <= aim) | (stale >= PATIENCE[0]) & (c.best <= budget.tolerance) | (stale >= PATIENCE[1])
            done |= (c.best > budget.tolerance) & (stale > 1) & (norm(c.y) > FARTHEST * norm(point))
            if step == left:
                done = torch.ones_like(done)
            if bool(done.any()):
                out.iterations[c.chain[done]] += step + budget.iterations - left
                keep = torch.nonzero(~done).flatten()
                c, slack, gap, share = c.take(keep), slack[keep], gap[keep], share[keep]
                if not len(keep):
                    break
            if len(near):
                slack, gap, share = self._gap(c)
            c = self._step(c, slack, gap, share, out)
        mine = out.residual[chain]
        out.converged[chain] = mine <= budget.tolerance

    def _start(self, chain: Tensor, y: Tensor) -> _Chains:
        """All chains at y without multipliers, each in its own unit: the size of the clip, or of what it misses."""
        low, high, row_low, row_high = self._ends(y, chain)
        y = y[chain]
        z = _clip(y, low, high)
        rz = across(z, self._matrix)
        missed = (rz - _clip(rz, row_low, row_high)).abs()
        unit = torch.cat([z.abs(), missed], 1).amax(1)
        largest = torch.cat(
            [side.abs().masked_fill(torch.isinf(side), 0.0) for side in (low, high, row_low, row_high)], 1
        )
        unit = torch.maximum(unit, 1e-100 * largest.amax(1))
        unit = torch.where(unit > 0, unit, 1.0)
        unit = torch.ldexp(torch.ones_like(unit), torch.frexp(unit).exponent - 1)  # a power of two does not round
        each = unit[:, None]
        y, low, high, row_low, row_high, z, rz = (v / each for v in (y, low, high, row_low, row_high, z, rz))
        zero = torch.zeros_like(unit)
        return _Chains(
            chain=chain,
            unit=unit,
            y=y,
            low=low,
            high=high,
            row_low=row_low,
            row_high=row_high,
            lam=torch.zeros_like(rz),
            w=y,
            origin=_clip(rz, row_low, row_high),
            delta=torch.full_like(each, DELTAS[0]),
            stale=zero.long(),
            best=zero + torch.inf,
            least=zero + torch.inf,
        )

    def _guessed(self, c: _Chains, x: Tensor) -> _Chains:
        """Multipliers for the ends that x touches, those of the wrong sign left out; none where they make no sense."""
        rx, size = across(x, self._matrix), norm(x)[:, None]
        above = (rx - c.row_high).abs() <= TOUCHING * (size + c.row_high.abs())
        below = (rx - c.row_low).abs() <= TOUCHING * (size + c.row_low.abs())
        above, below = above & torch.isfinite(c.row_high), below & torch.isfinite(c.row_low)
        free = (x > c.low) & (x < c.high)
        level = torch.where(above, c.row_high, torch.where(below, c.row_low, 0.0))
        gap = across(torch.where(free, c.y, _clip(x, c.low, c.high)), self._matrix) - level
        lam = self._solver.factorised(free, above | below, torch.full_like(size, RIDGES[0]))(gap)
        lam = torch.where((c.row_low == c.row_high) | ((lam > 0) == above), lam, 0.0)
        w = c.y - back(lam, self._matrix)
        z, start = _clip(w, c.low, c.high), _clip(c.y, c.low, c.high)
        rz, end = across(z, self._matrix), torch.where(lam > 0, c.row_high, c.row_low)
        rise = 0.5 * ((z - c.y).square().sum(1) - (start - c.y).square().sum(1))
        rise = rise + torch.where(lam == 0, 0.0, lam * (rz - end)).sum(1)
        good = (rise >= -(x - c.y).square().sum(1))[:, None]  # of the dual function: a bad guess is worse by far
        origin = torch.where(good, _clip(rz, c.row_low, c.row_high), c.origin)
        return c._replace(lam=torch.where(good, lam, c.lam), w=torch.where(good, w, c.w), origin=origin)

    def _gap(self, c: _Chains) -> tuple[Tensor, Tensor, Tensor]:
        """s before its clip, g, and |g| relative to the numbers that it was computed from, (n,)."""
        z, slack = c.z, c.slack
        if not self.count:
            return slack, slack, torch.zeros_like(c.unit)
        s = _clip(slack, c.row_low, c.row_high)
        gap = across(z, self._matrix) - s
        size = across(c.y.abs() + (c.y - c.w).abs(), self._sizes) + s.abs()
        return slack, gap, relative(gap.abs().amax(1), size.amax(1))

    def _settled(self, c: _Chains, slack: Tensor) -> tuple[_Chains, Tensor, Tensor]:
        """Chains whose g is small, solved on the ends that they are at; their points, cleaned, and residuals."""
        active = (slack <= c.row_low) | (slack >= c.row_high)
        level = torch.where(active, _clip(slack, c.row_low, c.row_high), 0.0)
        free = (c.w > c.low) & (c.w < c.high)
        solve = self._solver.factorised(free, active, torch.full_like(c.delta, RIDGES[0]))
        lam = torch.where(active, c.lam, 0.0)
        w, z = c.w + back(c.lam - lam, self._matrix), c.z
        start = c._replace(
            lam=lam, w=w, origin=_clip(slack, c.row_low, c.row_high), delta=(0.1 * c.delta).clamp_min(DELTAS[1])
        )
        for _ in range(CORRECTIONS):
            p = solve(across(torch.where(free, w, z), self._matrix) - level)
            lam, w = lam + p, w - back(p, self._matrix)
        z = _clip(w, c.low, c.high)
        rz = across(z, self._matrix)
        c = start._replace(lam=lam, w=w, origin=_clip(rz, c.row_low, c.row_high))
        value = self._residual(c, z)
        left = torch.nonzero((value > 4 * EPSILON) & (value < torch.inf)).flatten()
        if len(left):
            part, some = c.take(left), z[left]
            noise = 32 * EPSILON * (part.y.abs() + back(part.lam.abs(), self._sizes))
            zero = (part.low <= 0) & (part.high >= 0)
            for _ in range(CORRECTIONS + 1):
                tiny = zero & (some.abs() <= noise)
                some = some.masked_fill(tiny, 0.0)
                less = self._residual(part, some)
                better = less < value[left]
                z[left[better]], value[left[better]] = some[better], less[better]
                moving = ~tiny & (some > part.low) & (some < part.high)
                solve = self._solver.factorised(moving, active[left], torch.full_like(part.delta, RIDGES[0]))
                p = solve(across(some, self._matrix) - level[left])
                some = _clip(some - back(p, self._matrix) * moving, part.low, part.high)
        # Where these were not the ends of the answer, the search goes on from where it was.
        wrong = self._gap(c)[2] > SETTLED
        c = _Chains(*(torch.where(over_events(wrong, a), a, b) for a, b in zip(start, c, strict=True)))
        return c, z, value

    def _residual(self, c: _Chains, z: Tensor) -> Tensor:
        """(n,), see ``Nearest``."""
        if not self.count:
            return torch.zeros_like(c.unit)
        rz = across(z, self._matrix)
        near = _clip(rz, c.row_low, c.row_high)
        end = torch.where(c.lam > 0, c.row_high, c.row_low)
        known = torch.where(torch.isinf(end), 0.0, end.abs())
        terms, size = across(z.abs(), self._sizes), norm(c.y) + norm(z)
        missed = relative((rz - near).abs(), terms + near.abs()).amax(1)
        loose = torch.minimum(relative(c.lam.abs(), size[:, None] + known), relative((end - rz).abs(), terms + known))
        room = torch.where((c.lam != 0) & torch.isfinite(end), c.lam * (end - rz), 0.0)
        gap = relative(room.sum(1).abs(), norm(c.y - z) * size)
        return torch.maximum(torch.maximum(missed, loose.amax(1)), gap)

    def _step(self, c: _Chains, slack: Tensor, gap: Tensor, share: Tensor, out: Nearest) -> _Chains:
        """One Newton step with an exact line search."""
        free = (c.w > c.low) & (c.w < c.high)
        active = (slack <= c.row_low) | (slack >= c.row_high)
        ridge = (RIDGES[-1] * share).clamp(RIDGES[0], RIDGES[-1])[:, None]
        solve = self._solver.factorised(free, active, ridge)
        p = solve(gap)
        self._look_for_proof(c, p, solve, out)
        if not bool(active.all()):
            rest = gap - across(back(p, self._matrix) * free, self._matrix)
            p = torch.where(active, p, c.delta * rest)
        q = back(p, self._matrix)
        t = _exact(c, slack, gap, p, q)[:, None]
        return c._replace(lam=c.lam + t * p, w=c.w - t * q)

    # -------------------------------------------------------------- empty sets

    def _look_for_proof(self, c: _Chains, p: Tensor, solve: Callable[[Tensor], Tensor], out: Nearest) -> None:
        """Chains without progress stop if their multipliers, or where these run to, prove that there is no point.

        They run along dependent rows: that part of p is left when (R D R^T + ridge)^-1 is applied again and again.
        """
        late = (c.stale >= SUSPICIOUS) & (c.stale % SUSPICIOUS == 0) | (c.lam.abs().amax(1) > RUNAWAY)
        if not bool(late.any()):
            return
        for _ in range(3):
            p = p / p.abs().amax(1, keepdim=True).clamp_min(1e-300)
            p = solve(p)
        for drift in (c.lam, p):
            proved = late & self.proves_empty(drift, c.chain).any(1)
            out.drift[c.chain[proved]] = drift[proved]
            c.stale[proved] = PATIENCE[1]

    def proves_empty(self, drift: Tensor, chain: Tensor) -> Tensor:
        """Rows (n, m) of those that prove the sets of chains empty; none if a proof is not one.

        Farkas: the least value of (R^T v) . z within the bounds exceeds the largest of v . s within the ends, although
        R z = s. Up to rounding in R and the ends.

        Args:
            drift: v, (n, m).
            chain: Whose set it is, (n,).
        """
        low, high, row_low, row_high = self._ends(drift, chain)
        end = torch.where(drift > 0, row_high, row_low)
        v = torch.where(torch.isinf(end), 0.0, drift)
        total = v.abs().sum(1, keepdim=True)
        v = v / torch.where(total > 0, total, 1.0)
        q = back(v, self._matrix)
        side = torch.where(q > 0, low, high)
        pull = norm(torch.where(torch.isinf(side), q, 0.0))
        parts = torch.cat([torch.where(torch.isinf(side), 0.0, q * side), -torch.where(v == 0, 0.0, v * end)], 1)
        sure = (pull <= CERTAIN[0]) & (parts.sum(1) > CERTAIN[1] * parts.abs().sum(1)) & (total.squeeze(1) > 0)
        return sure[:, None] & (v.abs() > 1e-6 * v.abs().amax(1, keepdim=True))

    # -------------------------------------------------------------- points far away

    def _by_stages(self, chain: Tensor, y: Tensor, budget: Budget, out: Nearest) -> None:
        """Approach those of the points ``chain`` that are far away, and put the outcome into ``out``."""
        near = Nearest(*(part.clone() for part in out))
        near.iterations[chain], near.residual[chain] = 0, torch.inf
        self._direct(chain, torch.zeros_like(y), budget, None, near)
        fine = near.converged[chain]
        out.drift[chain[~fine]] = near.drift[chain[~fine]]
        ends = torch.cat(self._ends(y, chain), 1).abs()
        least = torch.where((ends > 0) & torch.isfinite(ends), ends, torch.inf).amin(1)
        scale = torch.maximum(norm(near.point[chain]), torch.where(torch.isinf(least), 0.0, least))
        fine &= (scale > 0) & (norm(y[chain]) > FAR * scale)  # without a scale the set is a cone
        chain, scale = chain[fine], scale[fine]
        x = near.point[chain]
        ratio, failures = torch.full_like(scale, STAGE), torch.zeros_like(chain)
        while len(chain):
            away = y[chain] - x
            distance = norm(away)
            tau = torch.minimum(ratio * torch.maximum(scale, norm(x)), distance)
            target, warm = y.clone(), torch.zeros_like(y)
            target[chain], warm[chain] = x + (tau / distance)[:, None] * away, x
            left = Budget(budget.tolerance, budget.iterations - int(out.iterations[chain].max()))
            before = out.iterations[chain].clone()
            near.iterations[chain], near.residual[chain] = 0, torch.inf
            self._direct(chain, target, left, warm, near)
            out.iterations[chain] = before + near.iterations[chain]
            there, residual, good = near.point[chain], near.residual[chain], near.converged[chain]
            moved = norm(there - x)
            # A point that stays where it is is the nearest one to all points of the ray from it.
            arrived = good & ((tau >= distance) | (moved <= 64 * EPSILON * torch.maximum(scale, norm(there))))
            failures = failures + (~good).long()
            last = arrived | (out.iterations[chain] >= budget.iterations) | (failures > 3)
            # Given up before the last stage: the point may be in the set, but nothing says that it is the nearest.
            missing = torch.where(arrived, residual, torch.maximum(residual, moved / tau))
            out.point[chain[last]], out.residual[chain[last]] = there[last], missing[last]
            out.converged[chain[last]] = arrived[last]
            # Found: a longer stage from there. Not found: a shorter one from the same x.
            ratio, x = torch.where(good, STAGE * ratio, ratio / 30), torch.where(good[:, None], there, x)
            chain, x, ratio, failures, scale = (v[~last] for v in (chain, x, ratio, failures, scale))


def _clip(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(v, low), high)


def _exact(c: _Chains, slack: Tensor, gap: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The t > 0 at which the slope along p vanishes, (n,); where it never does, one beyond all kinks.

    The slope at t is q . clip(w - t q) - p . clip(slack + t p / delta). t = 1 will do where that halves it; elsewhere
    the two kinks around the root are found by bisection.
    """
    first = (p * gap).sum(1)
    out = torch.ones_like(first)
    noise = 64 * EPSILON * ((q * c.z).abs().sum(1) + (p * _clip(slack, c.row_low, c.row_high)).abs().sum(1))
    bad = torch.nonzero(~(_slope(c, slack, p, q, out).abs() <= 0.5 * first + noise)).flatten()
    if not len(bad):
        return out
    c, slack, p, q = c.take(bad), slack[bad], p[bad], q[bad]
    rise = p / c.delta
    ends = ((c.w, c.low, -q), (c.w, c.high, -q), (slack, c.row_low, rise), (slack, c.row_high, rise))
    met = [(end - at) / by for at, end, by in ends if not bool(torch.isinf(end).all())]
    if not met:
        return out
    kinks = torch.cat(met, 1)
    kinks = torch.where((kinks > 0) & torch.isfinite(kinks), kinks, torch.inf).sort(1).values
    count = torch.isfinite(kinks).sum(1)
    kinks = torch.nn.functional.pad(kinks, (1, 0))
    begin, end = torch.zeros_like(count), count + 1  # the slope is positive at kink ``begin``, and not at ``end``
    while bool((end - begin > 1).any()):
        middle = (begin + end) // 2
        above = _slope(c, slack, p, q, kinks.gather(1, middle[:, None]).squeeze(1)) > 0
        wide = end - begin > 1
        begin, end = torch.where(wide & above, middle, begin), torch.where(wide & ~above, middle, end)
    left = kinks.gather(1, begin[:, None]).squeeze(1)
    beyond = left + left.clamp_min(1.0)
    right = torch.where(end > count, beyond, kinks.gather(1, end.clamp_max(kinks.shape[1] - 1)[:, None]).squeeze(1))
    at_left = _slope(c, slack, p, q, left)
    fall = at_left - _slope(c, slack, p, q, right)
    t = left + (right - left) * torch.where(fall > 0, at_left / fall.clamp_min(1e-300), 1.0)
    out[bad] = torch.where(torch.isfinite(t) & (t >= 0), t, 0.0)
    return out


def _slope(c: _Chains, slack: Tensor, p: Tensor, q: Tensor, t: Tensor) -> Tensor:
    t = t[:, None]
    s = _clip(slack + t * p / c.delta, c.row_low, c.row_high)
    return (q * _clip(c.w - t * q, c.low, c.high)).sum(1) - (p * s).sum(1)


class _System:
    """(R_A D R_A^T + ridge) p_A = g_A for rows A that are active and coordinates D that are free, chain by chain.

    R D R^T is linear in D, so one product with a table of all pairs of rows makes those of all chains; without bounds
    it is part of R R^T. Large sparse R: factorised in bands.
    """

    def __init__(self, matrix: Tensor | SparseMatrix, rows: Rows) -> None:
        self._matrix = matrix
        self._bands: Bands | None = None
        m, d = matrix.shape
        self._bounded = bool((torch.isfinite(rows.below) | torch.isfinite(rows.above)).any())
        self.numbers = min(m, d) ** 2
        if isinstance(matrix, SparseMatrix):
            self._bands = bands_for_many(matrix.rows, matrix.columns, m)
            self.numbers = self._bands.numbers
        elif not self._bounded:
            self._gram = matrix @ matrix.T
        else:
            self._one, self._other = torch.tril_indices(m, m)
            used = (matrix != 0).to(torch.float64)
            some = (used @ used.T)[self._one, self._other] > 0
            self._one, self._other = self._one[some], self._other[some]
            table = len(self._one) * d <= MOST_PRODUCTS
            self._table = (matrix[self._one] * matrix[self._other]).T.contiguous() if table else None

    def factorised(self, free: Tensor, active: Tensor, ridge: Tensor) -> Callable[[Tensor], Tensor]:
        """g (n, m) -> p (n, m), zero in rows that are not active; ridge (n, 1)."""
        if self._bands is not None:
            return self._in_bands(free, active, ridge)
        most = int(active.sum(1).max())
        if most == 0:
            return torch.zeros_like
        if not self._bounded and most > 2 * free.shape[1]:
            return self._by_coordinates(active, ridge)
        index, some = None, active
        if most <= FEW * active.shape[1]:
            index = torch.argsort(active.to(torch.int8), dim=1, descending=True, stable=True)[:, :most]
            some = active.gather(1, index)
        system = self._product(free, index)
        if not bool(some.all()):
            system = system * (some[:, :, None] & some[:, None, :])
        system.diagonal(dim1=1, dim2=2).add_(torch.where(some, ridge, 1.0))
        factor, failed = torch.linalg.cholesky_ex(system)
        lost = torch.nonzero(failed).flatten()
        if len(lost):
            system = system[lost]
            system.diagonal(dim1=1, dim2=2).add_(RIDGES[-1])
            factor[lost] = torch.linalg.cholesky_ex(system)[0]

        def solve(right: Tensor) -> Tensor:
            mine = right if index is None else right.gather(1, index)
            p = torch.cholesky_solve(torch.where(some, mine, 0.0)[:, :, None], factor).squeeze(2)
            p = torch.where(some, p, 0.0)
            return p if index is None else torch.zeros_like(right).scatter_(1, index, p)

        return solve

    def _by_coordinates(self, active: Tensor, ridge: Tensor) -> Callable[[Tensor], Tensor]:
        """Many more active rows than coordinates: (R R^T + e)^-1 = (I - R (R^T R + e)^-1 R^T) / e."""
        assert isinstance(self._matrix, Tensor)
        matrix, ridge = placed(self._matrix, ridge), ridge.clamp_min(RIDGES[1])
        system = (matrix.T * active[:, None, :]) @ matrix
        system.diagonal(dim1=1, dim2=2).add_(ridge)
        factor = torch.linalg.cholesky_ex(system)[0]

        def solve(right: Tensor) -> Tensor:
            mine = torch.where(active, right, 0.0)
            part = torch.cholesky_solve((mine @ matrix)[:, :, None], factor).squeeze(2)
            return torch.where(active, (mine - part @ matrix.T) / ridge, 0.0)

        return solve

    def _product(self, free: Tensor, index: Tensor | None) -> Tensor:
        """R D R^T (n, k, k), of all rows or of those of ``index`` (n, k); at least up to the diagonal."""
        matrix = self._matrix
        assert isinstance(matrix, Tensor)
        like = matrix.new_zeros(0, device=free.device)
        matrix = placed(matrix, like)
        if not self._bounded:
            gram = placed(self._gram, like)
            if index is None:
                return gram.expand(len(free), -1, -1).clone()
            return gram[index[:, :, None], index[:, None, :]]
        if index is not None:
            rows = matrix[index]
            return (rows * free[:, None, :]) @ rows.mT
        n, m = len(free), len(matrix)
        if self._table is None:
            return (matrix * free[:, None, :]) @ matrix.T
        out, spots = matrix.new_zeros(n, m * m), (self._one * m + self._other).to(free.device)
        return out.index_copy_(1, spots, free.to(matrix) @ placed(self._table, like)).reshape(n, m, m)

    def _in_bands(self, free: Tensor, active: Tensor, ridge: Tensor) -> Callable[[Tensor], Tensor]:
        matrix, bands = self._matrix, self._bands
        assert isinstance(matrix, SparseMatrix) and bands is not None
        own = active.cpu()
        gram = bands.gram(matrix.values * (free.cpu()[:, matrix.columns] & own[:, matrix.rows]))
        factor, good = bands.factorise(gram, ridge.squeeze(1).cpu(), own)
        lost = torch.nonzero(~good).flatten()
        if len(lost):
            factor[lost] = bands.factorise(gram[lost], RIDGES[-1], own[lost])[0]
        return lambda right: torch.where(active, bands.solve(factor, right.cpu()).to(right), 0.0)


# ------------------------------------------------------------------ tidying up


def _tidied(owner: FlatSet, rows: Rows) -> Rows:
    """Rows on single coordinates become bounds, fixed coordinates leave the rows, parallel rows become one."""
    matrix = rows.matrix if isinstance(rows.matrix, SparseMatrix) else SparseMatrix.from_dense(rows.matrix)
    row, column, value = matrix.rows, matrix.columns, matrix.values
    m, d = matrix.shape
    low, high, below, above = rows.low, rows.high, rows.below, rows.above
    kept, singles, gone = torch.arange(m), 0, 0
    taken = torch.where(torch.isinf(low), 0.0, low.abs()) + torch.where(torch.isinf(high), 0.0, high.abs())
    fixed = torch.zeros(d, dtype=torch.bool)
    while m:
        now = (below == above).all(0) & ~fixed
        fixed |= now
        if bool(now[column].any()):
            away = now[column]
            part = below[:, column[away]] * value[away]
            zero = part.new_zeros(len(part), m)
            shift = zero.index_add(1, row[away], part)
            taken = taken + zero.index_add(1, row[away], part.abs())
            low, high = low - shift, high - shift
            row, column, value = row[~away], column[~away], value[~away]
        entries = torch.bincount(row, minlength=m)
        gone += int((entries == 0)[kept].sum())
        empty = torch.zeros(m, dtype=torch.bool)
        empty[kept] = entries[kept] == 0
        if bool(empty.any()):
            # 0 within [low, high], up to the rounding of the numbers that were taken off
            missed = torch.maximum(low, -high)[:, empty].clamp_min(0.0)
            owner.cross(missed, taken[:, empty])
        single = torch.zeros(m, dtype=torch.bool)
        single[kept] = entries[kept] == 1
        if bool(single.any()):
            singles += int(single.sum())
            here = single[row]
            at, place, size = row[here], column[here], value[here]
            ends = torch.stack([low[:, at] / size, high[:, at] / size])
            one, other, size = ends.amin(0), ends.amax(0), taken[:, at] / size.abs()
            wide = max(len(one), len(below), len(above), len(size))
            one, other, size, place = (part.expand(wide, -1) for part in (one, other, size, place[None]))
            below = below.expand(wide, -1).scatter_reduce(1, place, one, "amax")
            above = above.expand(wide, -1).scatter_reduce(1, place, other, "amin")
            below = owner.close(below, above, torch.zeros_like(below).scatter_reduce(1, place, size, "amax"))
        kept = kept[~(single | empty)[kept]]
        stay = ~(single | empty)[row]
        row, column, value = row[stay], column[stay], value[stay]
        if not bool(single.any()):
            break
    number = torch.full((m,), -1, dtype=torch.long)
    number[kept] = torch.arange(len(kept))
    matrix = SparseMatrix(number[row], column, value, (len(kept), d))
    low, high = low[:, kept], high[:, kept]
    matrix, low, high, repeated = _without_parallel(owner, matrix, low, high)
    lengths = matrix.lengths
    matrix = matrix.some_rows(torch.arange(len(matrix)), lengths.reciprocal())
    words = (
        (singles, "rows on one coordinate are bounds"),
        (int(fixed.sum()), "coordinates fixed"),
        (repeated, "duplicate rows removed"),
        (gone, "rows of fixed coordinates removed"),
    )
    owner.found += [f"{number} {what}" for number, what in words if number]
    whole = matrix if matrix.shape.numel() > MOST_DENSE else matrix.to_dense()
    return Rows(whole, low / lengths, high / lengths, below, above)


def _without_parallel(
    owner: FlatSet, matrix: SparseMatrix, low: Tensor, high: Tensor
) -> tuple[SparseMatrix, Tensor, Tensor, int]:
    """Parallel and opposite rows as one, with the tightest ends."""
    m, d = matrix.shape
    if m < 2:
        return matrix, low, high, 0
    probe = torch.randn(d, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = matrix.lengths
    seen = matrix.times_dense(probe) / lengths[:, None]
    sign = torch.where(seen[:, :1] < 0, -1.0, 1.0)
    key = (seen * sign).round(decimals=PARALLEL) + 0.0
    _, which = torch.unique(key, dim=0, return_inverse=True)
    count = int(which.max()) + 1
    if count == m:
        return matrix, low, high, 0
    lead = torch.full((count,), m).scatter_reduce(0, which, torch.arange(m), "amin")
    first = lead[which]
    ratio = (sign.squeeze(1) * lengths) / (sign.squeeze(1) * lengths)[first]
    ends = torch.stack([low / ratio, high / ratio])
    index = which.expand(low.shape[0], -1)
    tight = torch.full((len(low), count), -torch.inf, dtype=torch.float64)
    one = tight.scatter_reduce(1, index, ends.amin(0), "amax")
    other = (-tight).scatter_reduce(1, index, ends.amax(0), "amin")
    return matrix.some_rows(lead), owner.close(one, other), other, m - count
