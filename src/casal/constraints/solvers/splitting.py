"""Nearest or common points of several sets known only through their projections, and two relatives.

``dykstra`` finds the nearest point of an intersection of convex sets, ``alternating``, ``dykstra_anywhere`` and
``admm`` some point of any intersection, ``behind_matrix`` the nearest x with A x in a set, and ``on_box`` minimises a
quadratic function on a box.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.constraints.base import Budget, Projection
from casal.constraints.vectors import EPSILON, flat, norm, over_events, relative
from casal.devices import DEVICE_NUMBERS, check_due, chosen, eigh, number, on_host, seen, write

Map: TypeAlias = Callable[[Tensor], Tensor]
"""Points (n, *event) to points of the same shape, or to one number each (n,)."""
Near: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""Points and guesses of the answer, both (n, *event) or no guess, to points of the same shape."""

STILL = 16 * EPSILON
"""What a sweep moves by rounding alone."""
BEYOND, MEETING = 1e6, 1e-10
"""Sets are apart if they have no common point within BEYOND sizes of the chain; within MEETING sizes they meet."""
FEW = 10
"""Iterations up to which a quadratic function is minimised without a look at the residual in between."""
AT_ONCE = 400_000
"""Coordinates of the chains that are moved at a time: few enough to stay in the cache of a processor."""
AFAR = 30.0
"""Distance of z, in units of the point reached, from which on the other algorithm takes over."""
BALANCED, BALANCE_EVERY, BALANCE_UNTIL = 10.0, 10, 300
"""Ratio of the two residuals that rho is adapted to, how often, and for how long."""


class Members(NamedTuple):
    """The sets of an iteration, as it sees them.

    Attributes:
        projections: P_1, ..., P_K, each (n, *event) -> (n, *event).
        violation: (n, *event) -> (n,), the largest violation of a member.
        take: The members of some chains (k,), where they differ from chain to chain; None if they do not. Chains that
            are done leave an iteration, and the others keep their sets.
        near: The projections again, each with a guess of its answer, the point of the iteration before. They may be
            less accurate than ``projections``, as long as they improve the guess. ``projections`` if left out.
        each: (n, *event) -> (n,), the violations of the members one by one; what a point of one member has left are
            those of the others. Only ``violation`` is asked if they are left out.
    """

    projections: Sequence[Map]
    violation: Map
    take: Callable[[Tensor], Members] | None = None
    near: Sequence[Near] | None = None
    each: Sequence[Map] | None = None

    def of(self, chains: Tensor) -> Members:
        """The members of these chains."""
        return self if self.take is None else self.take(chains)

    def onto(self, which: int, y: Tensor, guess: Tensor | None) -> Tensor:
        """The projection of y onto one of the members. A point that is not finite stays where it was."""
        x = self.projections[which](y) if self.near is None else self.near[which](y, guess)
        if on_host(x) and bool(torch.isfinite(x.sum())):
            return x
        finite = torch.isfinite(x).flatten(1).all(1)
        return torch.where(over_events(finite, x), x, y if guess is None else guess)

    def left(self, which: int, x: Tensor, tolerance: float) -> Tensor:
        """Violations (n,) of points of one member: of the others, and of all members where the others are satisfied."""
        if self.each is None:
            return self.violation(x)
        found = torch.stack([violation(x) for i, violation in enumerate(self.each) if i != which]).amax(0)
        if not on_host(x):
            return torch.where(found <= tolerance, self.violation(x), found)
        done = torch.nonzero(found <= tolerance).flatten()
        return found.index_copy(0, done, self.of(done).violation(x[done])) if len(done) else found


def dykstra(z: Tensor, members: Members, budget: Budget) -> Projection:
    """Nearest points of the intersection of convex sets C_1, ..., C_K. One sweep takes every set in turn:

        x' = P_i(x + p_i),     p_i' = x + p_i - x',     from x = z and p_i = 0.

    The increments p_i are what plain alternating projections lack; they make the limit the nearest point. A sweep
    that changes x but little may still be far from the limit (the algorithm can stall), so a chain is done only if

        max( violation(x), sqrt(sum_i |p_i' - p_i|^2) / (|z| + |x|) ) <= tolerance,

    and this maximum is the residual that is returned. The rate is linear for polyhedra and may be slow where sets meet
    at small angles. In an empty intersection the increments grow without end; the chains are then flagged.

    A sweep changes the increments by no more than what the sets are violated, so points far away would need as many
    sweeps as they are far. They are left to the method of multipliers, whose step grows with the distance:

        x_i = P_i(v - w_i),   v = (z + rho sum_i (x_i + w_i)) / (1 + rho K),   w_i += x_i - v,   rho ~ |z - x| / |x|;

    the residual is then the largest of violation(x_K), |x_i - v| and |v' - v|, relative to |v| + sum_i |w_i|.

    Args:
        z: (n, *event) finite float64.
        members: Convex sets, their projections exact.
        budget: Tolerance on the residual, and the largest number of sweeps.

    References:
        Boyle and Dykstra, "A method for finding projections onto the intersection of convex sets in Hilbert spaces"
        (1986); Birgin and Raydan, "Robust stopping criteria for Dykstra's algorithm", SIAM J. Sci. Comput. 26 (2005);
        Boyd et al., "Distributed optimization and statistical learning via the alternating direction method of
        multipliers" (2011), sections 3.4.1 and 5.1.
    """
    inside = members.violation(z) <= min(budget.tolerance, STILL)
    nothing = torch.zeros_like(inside, dtype=z.dtype)
    found = Projection(z.clone(), inside, nothing.long(), nothing)
    left = chosen(~inside)
    if budget.iterations < 1 or not len(left):
        return found._replace(residual=torch.where(inside, 0.0, torch.inf))
    rough = z[left]
    for project in members.of(left).projections:
        rough = project(rough)
    far = _length(z[left] - rough) > AFAR * _length(rough)
    for chains, search in ((left[chosen(~far)], _sweeps), (left[chosen(far)], _from_afar)):
        if len(chains):
            for whole, part in zip(found, search(z[chains], members.of(chains), budget), strict=True):
                whole[chains] = part
    return found


def _sweeps(z: Tensor, members: Members, budget: Budget) -> Projection:
    """Dykstra's algorithm proper."""
    record, tiny = Record(z, budget.tolerance), max(budget.tolerance, STILL)
    x, size, now, increments = z, _length(z), members, [torch.zeros_like(z) for _ in members.projections]
    for step in range(1, budget.iterations + 1):
        moved = torch.zeros_like(size)
        for i, project in enumerate(now.projections):
            target = x + increments[i]
            x = project(target)
            before, increments[i] = increments[i], target - x
            moved = torch.hypot(moved, _length(increments[i] - before))
        moved = relative(moved, size + _length(x))
        record.add(x, torch.maximum(now.violation(x), torch.where(moved <= tiny, 0.0, moved)), step)
        left = record.left(step)
        if left is not None:
            x, size, *increments = (part[left] for part in (x, size, *increments))
            if not len(x):
                break
            now = members.of(record.chain)
    return record.projection()


def _from_afar(z: Tensor, members: Members, budget: Budget) -> Projection:
    """The method of multipliers, alternating over the members; rho is adapted to balance |x_i - v| and |v' - v|."""
    record, count, now, v = Record(z, budget.tolerance), len(members.projections), members, z
    for project in now.projections:
        v = project(v)
    spread = torch.stack([_length(project(v) - v) for project in now.projections]).amax(0)
    rho = (_length(z - v) / (_length(v) + spread).clamp_min(torch.finfo(torch.float64).tiny)).clamp(1.0, 1e300)
    w = [(z - v) / over_events(count * rho, z) for _ in range(count)]
    for step in range(1, budget.iterations + 1):
        points = [project(v - offset) for project, offset in zip(now.projections, w, strict=True)]
        total = torch.stack([x + offset for x, offset in zip(points, w, strict=True)]).sum(0)
        share = over_events(1 / (1 / rho + count), z)
        before, v = v, share * (z / over_events(rho, z) + total)
        w = [offset + (x - v) for x, offset in zip(points, w, strict=True)]
        apart = torch.stack([_length(x - v) for x in points]).amax(0)
        moved = _length(v - before)
        size = _length(v) + torch.stack([_length(offset) for offset in w]).sum(0)
        broken = torch.maximum(now.violation(points[-1]), relative(torch.maximum(apart, moved), size))
        if step % BALANCE_EVERY == 0 and step <= BALANCE_UNTIL:
            factor = torch.where(apart > BALANCED * moved, 2.0, torch.where(moved > BALANCED * apart, 0.5, 1.0)).to(z)
            rho, w = rho * factor, [offset / over_events(factor, z) for offset in w]
        record.add(points[-1], broken, step)
        left = record.left(step)
        if left is not None:
            z, v, rho, *w = (part[left] for part in (z, v, rho, *w))
            if not len(z):
                break
            now = members.of(record.chain)
    return record.projection()


def _length(z: Tensor) -> Tensor:
    """Norm of every event."""
    return norm(flat(z))


def alternating(z: Tensor, members: Members, budget: Budget, warm: Tensor | None = None) -> Projection:
    """x <- P_K(... P_2(P_1(x))), from x = z: alternating (cyclic) projections, for sets that need not be convex.

    It ends at a common point near z, in general not the nearest, and nothing guarantees that it does: the flags say
    which chains made it. Local linear convergence where the sets meet at an angle; the last set is met exactly at all
    times. A start that misses the sets by less than all that follows is kept. Projections start from their last
    answers, as in ``admm``.

    Args:
        z: (n, *event) finite float64.
        members: The sets; their largest violation is the residual.
        budget: Tolerance on the violation, and the largest number of sweeps.
        warm: A point near the answer, from which the first projection onto the last set starts.

    References:
        Lewis, Luke and Malick, "Local linear convergence for alternating and averaged nonconvex projections", Found.
        Comput. Math. 9 (2009).
    """
    return _in_groups(functools.partial(_cycles, corrected=False), z, members, budget, warm)


def dykstra_anywhere(z: Tensor, members: Members, budget: Budget, warm: Tensor | None = None) -> Projection:
    """The sweeps of ``dykstra`` for sets that need not be convex; a chain is done at its first common point.

    In general that is not the nearest one, and nothing guarantees that there is one: the flags say which chains made
    it. Otherwise, and in its arguments, as ``alternating``.
    """
    return _in_groups(functools.partial(_cycles, corrected=True), z, members, budget, warm)


def _cycles(z: Tensor, members: Members, budget: Budget, warm: Tensor | None, *, corrected: bool) -> Projection:
    """Projections in turn, with the increments of Dykstra's algorithm or without."""
    record, now, x, count = Record(z, budget.tolerance), members, z, len(members.projections)
    record.add(z, members.violation(z), 0)
    guesses: list[Tensor | None] = [*[None] * (count - 1), warm]
    increments = [torch.zeros_like(z) for _ in range(count if corrected else 0)]
    for step in range(1, budget.iterations + 1):
        left = record.left(step - 1)
        if left is not None:
            x, *increments = (part[left] for part in (x, *increments))
            guesses = [None if guess is None else guess[left] for guess in guesses]
            if not len(x):
                break
            now = members.of(record.chain)
        for i in range(count):
            target = x + increments[i] if corrected else x
            x = guesses[i] = now.onto(i, target, guesses[i])
            if corrected:
                increments[i] = target - x
        record.add(x, now.left(count - 1, x, budget.tolerance), step)
    return _honest(record.projection(), members)


def admm(z: Tensor, members: Members, budget: Budget, warm: Tensor | None = None) -> Projection:
    """A common point of two sets that need not be convex, from a given z and w = 0, by the method of multipliers:

        x = P_1(z - w),     z = P_2(x + w),     w += x - z.

    The same as the Douglas-Rachford iteration for z + w. For convex sets that meet it converges to a common point, for
    affine sets to the one nearest to the start. For other sets nothing is guaranteed, and the flags say which chains
    made it; but the multiplier w grows for as long as a set is missed, which leads out of many points where
    ``alternating`` gets stuck. More than two sets are one in the product space, with the diagonal as the second:

        x_i = P_i(v - w_i),     v = mean_i(x_i + w_i),     w_i += x_i - v,     from v = z and w_i = 0.

    **The point is x, of the first set**: that set is met as well as its projection meets it, and the violation of the
    others is the residual. So the first set should be the one that a point never meets by chance, such as a set with
    equations; for trajectories of a system among obstacles, what is returned is a trajectory of the system. Of all
    iterations the point with the smallest residual is kept.

    Projections start from their last answers (``Members.near``), so iterative ones need only a few steps each.

    Args:
        z: (n, *event) finite float64.
        members: The sets, the one to be met exactly first.
        budget: Tolerance on the violation, and the largest number of iterations.
        warm: A point near the answer, from which the first projection onto the first set starts.

    References:
        Boyd et al., "Distributed optimization and statistical learning via the alternating direction method of
        multipliers" (2011), section 5.1; Bauschke, Combettes and Luke, "Phase retrieval, error reduction algorithm, and
        Fienup variants: a view from convex optimization", J. Opt. Soc. Am. A 19 (2002).
    """
    return _in_groups(_admm, z, members, budget, warm)


def _in_groups(
    search: Callable[[Tensor, Members, Budget, Tensor | None], Projection],
    z: Tensor,
    members: Members,
    budget: Budget,
    warm: Tensor | None,
) -> Projection:
    """Some chains after the others: what is at work stays in the cache, and memory does not grow with the batch."""
    at_once = AT_ONCE if on_host(z) else DEVICE_NUMBERS
    groups = torch.arange(len(z), device=z.device).split(max(1, at_once // max(1, z[:1].numel())))
    if len(groups) == 1:
        return search(z, members, budget, warm)
    found = [search(z[chains], members.of(chains), budget, None if warm is None else warm[chains]) for chains in groups]
    return Projection(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _admm(z: Tensor, members: Members, budget: Budget, warm: Tensor | None) -> Projection:
    record, now, count = Record(z, budget.tolerance), members, len(members.projections)
    missed = members.violation(z)  # a start that is not done is never the answer: it is in no set
    record.add(z, torch.where(missed <= budget.tolerance, missed, torch.inf), 0)
    guesses: list[Tensor | None] = [warm, *[None] * (count - 1)]
    v, offsets = z, [torch.zeros_like(z) for _ in range(1 if count == 2 else count)]
    for step in range(1, budget.iterations + 1):
        left = record.left(step - 1)
        if left is not None:
            v, *offsets = (part[left] for part in (v, *offsets))
            guesses = [None if guess is None else guess[left] for guess in guesses]
            if not len(v):
                break
            now = members.of(record.chain)
        if count == 2:
            x = guesses[0] = now.onto(0, v - offsets[0], guesses[0])
            v = guesses[1] = now.onto(1, x + offsets[0], guesses[1])
            offsets = [offsets[0] + x - v]
        else:
            guesses = [now.onto(i, v - w, guess) for i, (w, guess) in enumerate(zip(offsets, guesses, strict=True))]
            points = [guess for guess in guesses if guess is not None]
            x = points[0]
            v = torch.stack([point + w for point, w in zip(points, offsets, strict=True)]).mean(0)
            offsets = [w + point - v for point, w in zip(points, offsets, strict=True)]
        record.add(x, now.left(0, x, budget.tolerance), step)
    return _honest(record.projection(), members)


def _honest(found: Projection, members: Members) -> Projection:
    """With the residuals of chains that are not done raised to the violation of all members."""
    lost = chosen(~found.converged)
    if len(lost):
        found.residual[lost] = torch.maximum(found.residual[lost], members.of(lost).violation(found.point[lost]))
    return found


class Separation(NamedTuple):
    """How far convex sets stay apart, chain by chain.

    Attributes:
        gap: (n,), largest distance between their points nearest to x.
        clear: (n,), distance from x within which there is no common point.
        proved: (n,) bool, whether that is BEYOND times the size of all numbers here.
    """

    gap: Tensor
    clear: Tensor
    proved: Tensor


def separate(z: Tensor, members: Members, steps: int) -> Separation:
    """Whether convex sets C_1, ..., C_K have no common point. With p_i = P_i(x), a common point w satisfies

        (x - p_i) . (w - p_i) <= 0 for all i,    so    |w - x| >= sum_i |x - p_i|^2 / |sum_i (x - p_i)|.

    The numerator is twice f(x) = 1/2 sum_i |x - p_i|^2 and the denominator is |grad f(x)|: at a minimum of f above zero
    the bound is infinite, and the planes through p_i across x - p_i separate the sets. f is minimised by Nesterov's
    steps with restarts, until the bound is large or the sets meet.

    Args:
        z: Points (n, *event) to start from.
        members: Convex sets, their projections exact.
        steps: Largest number of steps.

    References:
        Bauschke and Borwein, "On projection algorithms for solving convex feasibility problems", SIAM Rev. 38 (1996);
        O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes", Found. Comput. Math. 15 (2015).
    """
    count, x, y = len(members.projections), z, z
    momentum = torch.ones_like(_length(z))
    gap, clear = torch.zeros_like(momentum), torch.zeros_like(momentum)
    proved = torch.zeros_like(momentum, dtype=torch.bool)
    over = torch.zeros((), dtype=torch.bool, device=z.device)  # nothing changes any more
    for step in range(steps):
        nearest = torch.stack([project(y) for project in members.projections])
        offsets = y - nearest
        pull, size = offsets.sum(0), _length(y) + _length(z)
        lengths = torch.stack([_length(offset) for offset in offsets])
        square = lengths.square().sum(0)
        bound = square / (_length(pull) + 64 * count * EPSILON * (size + lengths.amax(0))).clamp_min(1e-300)
        better = (bound > clear) & ~over
        widest = torch.stack([_length(one - other) for one, other in itertools.combinations(nearest, 2)]).amax(0)
        gap, clear = torch.where(better, widest, gap), torch.where(better, bound, clear)
        proved |= (bound > BEYOND * (size + lengths.amax(0))) & ~over
        over |= (proved | (lengths.amax(0) <= MEETING * size)).all()
        if check_due(step, z) and seen(over):
            break
        new = y - pull / count
        restart = (flat(pull) * flat(new - x)).sum(1) > 0
        momentum = torch.where(restart, 1.0, momentum)
        faster = 0.5 * (1.0 + (1.0 + 4.0 * momentum.square()).sqrt())
        x, y = new, new + over_events((momentum - 1.0) / faster, new) * (new - x)
        momentum = faster
    return Separation(gap, clear, proved)


def behind_matrix(
    y: Tensor, A: Tensor, project: Callable[[Tensor], Tensor], violation: Callable[[Tensor], Tensor], budget: Budget
) -> Projection:
    """min 1/2 |x - y|^2 subject to A x in C:

        x = (I + rho A^T A)^-1 (y + rho A^T (z - u)),    z = P_C(A x + u),    u = u + A x - z.

    rho = 1 / |A|^2 balances the two sides; A^T A is factorised once. A chain is done when its violation is within the
    tolerance and x no longer moves; it flags what does not get there.

    Args:
        y: Points (n, d).
        A: Matrix (k, d).
        project: P_C on (n, k).
        violation: Violation of x, (n, d) -> (n,).
        budget: Tolerance and iterations.
    """
    values, basis = eigh(A.T @ A)
    rho = 1.0 / number(values[-1].clamp_min(torch.finfo(A.dtype).tiny))
    inverse = (basis / (1.0 + rho * values.clamp_min(0.0))) @ basis.T
    n = len(y)
    out = Projection(
        y.clone(),
        torch.zeros(n, dtype=torch.bool, device=y.device),
        torch.full((n,), budget.iterations, device=y.device),
        violation(y),
    )
    chain, open_ = torch.arange(n, device=y.device), torch.ones_like(out.converged)
    x, anchor, z = y, y, project(y @ A.T)
    u = torch.zeros_like(z)
    for iteration in range(1, budget.iterations + 1):
        new = (anchor + rho * (z - u) @ A) @ inverse
        image = new @ A.T
        z = project(image + u)
        u = u + image - z
        moved = (new - x).abs().amax(1) / (1.0 + new.abs().amax(1))
        x = new
        left = violation(x)
        done = open_ & (left <= budget.tolerance) & (moved <= budget.tolerance)
        write(chain, open_, (out.point, x), (out.residual, left))
        write(chain, done, (out.converged, True), (out.iterations, iteration))
        open_ = open_ & ~done
        if check_due(iteration - 1, y):
            keep = chosen(open_)
            if not len(keep):
                break
            if len(keep) < len(chain):
                chain, open_, x, anchor, z, u = (part[keep] for part in (chain, open_, x, anchor, z, u))
    return out


class Quadratic(NamedTuple):
    """1/2 u . H u with its extreme curvatures, prepared once.

    Attributes:
        hessian: H, (d, d), symmetric and positive definite.
        least: Smallest eigenvalue of H.
        most: Largest eigenvalue of H.
        descent: I - H / most: where a step down the gradient leads, apart from f / most.
    """

    hessian: Tensor
    least: float
    most: float
    descent: Tensor

    @classmethod
    def of(cls, hessian: Tensor) -> Quadratic:
        """Find the extreme curvatures."""
        values = torch.linalg.eigvalsh(hessian)
        least, most = float(values[0]), float(values[-1])
        return cls(hessian, least, most, torch.eye(len(hessian)).to(hessian) - hessian / most)

    def to(self, like: Tensor) -> Quadratic:
        """On the device and in the dtype of a tensor."""
        return self._replace(hessian=self.hessian.to(like), descent=self.descent.to(like))

    @property
    def condition(self) -> float:
        """Largest over smallest curvature."""
        return self.most / self.least if self.least > 0 else math.inf


def on_box(
    f: Tensor,
    quadratic: Quadratic,
    limit: Tensor,
    budget: Budget,
    *,
    size: Tensor,
    start: Tensor | None = None,
    extra: int = 0,
) -> Projection:
    """Minimise 1/2 u . H u - f . u over |u| <= limit, by Nesterov's method for strongly convex functions.

        u' = clip(v - (H v - f) / L),     v' = u' + beta (u' - u),     beta = (sqrt(L) - sqrt(l)) / (sqrt(L) + sqrt(l)),

    with l and L the extreme curvatures. The error falls by about 1 - sqrt(l / L) in each iteration, one product with
    H. The residual is sqrt(L) |u - clip(u - (H u - f) / L)|, relative to ``size``: a projected gradient step, at most
    as long as that in the norm of H. A budget of no more than FEW iterations is spent without a look at the residual in
    between; it is then that of v before the last step, and the cost is one product for each iteration.

    Args:
        f: (n, d).
        quadratic: H and its curvatures.
        limit: (d,), infinity where there is no bound.
        budget: Tolerance on the residual, and the largest number of iterations.
        size: (n,), size of the numbers that f was computed from.
        start: (n, d), a point near the answer.
        extra: Iterations that a chain takes after it has reached the tolerance; near rounding they make the answer
            independent of the iteration at which that happened.

    References:
        Nesterov, "Introductory lectures on convex optimization" (2004), section 2.2.
    """
    H, root = quadratic.hessian, math.sqrt(quadratic.condition)
    beta, step, reach = (root - 1) / (root + 1), 1 / quadratic.most, math.sqrt(quadratic.most)
    u = torch.zeros_like(f) if start is None else start.clamp(-limit, limit)
    if 1 <= budget.iterations <= FEW:
        towards, v, last = step * f, u, u
        for _ in range(budget.iterations):
            before, last = u, v
            u = torch.addmm(towards, v, quadratic.descent).clamp(-limit, limit)
            v = torch.lerp(before, u, 1.0 + beta)
        residual = relative(reach * norm(u - last), size)
        taken = torch.full((len(u),), budget.iterations, device=u.device)
        return Projection(u, residual <= budget.tolerance, taken, residual)
    record = Record(u, budget.tolerance)
    v, at_u, quiet = u, u @ H, torch.zeros(len(u), dtype=torch.long, device=u.device)
    at_v = at_u
    for count in range(budget.iterations + 1):
        residual = relative(reach * norm(u - (u - step * (at_u - f)).clamp(-limit, limit)), size)
        quiet = quiet + ((residual <= budget.tolerance) | (quiet > 0)).long()
        record.add(u, residual, count, (quiet > extra) | (residual == 0))
        left = record.left(count)
        if left is not None:
            u, v, f, size, at_u, at_v, quiet = (part[left] for part in (u, v, f, size, at_u, at_v, quiet))
        if not len(u) or count == budget.iterations:
            break
        before, at_before = u, at_u
        u = (v - step * (at_v - f)).clamp(-limit, limit)
        at_u = u @ H
        v, at_v = u + beta * (u - before), at_u + beta * (at_u - at_before)
    return record.projection()


class Record:
    """Best points of a batch, and the chains that are still at work.

    A chain that is done stays at work until somebody looks (``left``), but nothing of it is written any more.

    Args:
        z: Starting points (n, *event).
        tolerance: Residual at which a chain is done.
    """

    def __init__(self, z: Tensor, tolerance: float) -> None:
        self.point, self.tolerance = z.clone(), tolerance
        self.residual = torch.full((len(z),), torch.inf, dtype=z.dtype, device=z.device)
        self.iterations = torch.zeros(len(z), dtype=torch.long, device=z.device)
        self.chain = torch.arange(len(z), device=z.device)
        self.open = torch.ones_like(self.chain, dtype=torch.bool)

    def add(self, x: Tensor, residual: Tensor, step: int, done: Tensor | None = None) -> None:
        """Keep what is better, of the chains at work that are not done; no number is read.

        Args:
            x: Points of the chains at work.
            residual: Their residuals (n,).
            step: How many steps they have taken.
            done: Which of them are done; those within the tolerance if left out.
        """
        residual = residual.to(self.residual)
        better = self.open & (residual < self.residual[self.chain])
        write(self.chain, better, (self.point, x), (self.residual, residual))
        write(self.chain, self.open, (self.iterations, step))
        self.open = self.open & ~(residual <= self.tolerance if done is None else done)

    def left(self, step: int) -> Tensor | None:
        """Which of the chains at work (k,) have to go on, the others are set aside; None to go on with all of them.

        Looks before the first step, and then as ``check_due`` says.
        """
        if step and not check_due(step - 1, self.point):
            return None
        some = chosen(self.open)
        if len(some) == len(self.chain):
            return None
        self.chain, self.open = self.chain[some], self.open[some]
        return some

    def projection(self) -> Projection:
        """The outcome."""
        return Projection(self.point, self.residual <= self.tolerance, self.iterations, self.residual)
