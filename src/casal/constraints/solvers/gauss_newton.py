"""Nearest point of a smooth set {z : c(z) = 0, or <= 0 row by row}, for many points at once.

The problem is

    minimise 1/2 |z - y|^2   subject to   c_E(z) = 0,   c_I(z) <= 0.

Linearise at z, every row scaled to length one: c(z + s) ~ c + U s. The Gauss-Newton step keeps y as its anchor and
goes to the nearest point of the linearised set,

    z + s = y - U^T (U U^T)^-1 (c + U (y - z)),

that is s = n + t with the normal step n = -U^T (U U^T)^-1 c and the tangential step t = P_T (y - z), P_T = I - U^+ U.
It knows nothing of the curvature of the set, so t is too long by the factor 1 + (distance / radius of curvature), and
the plain iteration diverges from points that are far away. Newton's step for the same problem divides by that factor:

    t = argmin 1/2 t.H t + (z - y + H n).t   over the tangent space, |t| <= radius,    H = I + sum_j lam_j Hess c_j,

with lam the multipliers of the linearised problem. It is found by conjugate gradients (Steihaug), which need products
H v only and follow a direction of negative curvature to the end of the trust region instead of to a maximum of
the distance. Bounds on single coordinates are not rows: every iterate lies within them, and coordinates at a bound
leave U. The rows of I and the bounds that take part are those of the linearised problem (``linearised.py``), so that
near the answer the active set is that of the answer.

Before it is judged, n + t is bent back to the rows, s <- s - U^T (U U^T)^-1 (c(z + s) - c - U s), so that a step along
a curved set stays on it. A step is taken if it lowers |z - y|^2 / 2 + mu |c(z)| by a share of what the model promises,
or if it halves the error of the Karush-Kuhn-Tucker conditions; otherwise the radius shrinks to where a model of c,
known from the step that failed, says the merit is least. Near a regular answer convergence is quadratic. A chain costs
the same, and ends at the same point, whatever other chains are in the batch.

References:
    Nocedal and Wright, "Numerical Optimization" (2006), Alg. 7.2 (Steihaug) and sec. 18.5 (trust-region SQP with a
    normal and a tangential step); Byrd, Gould, Nocedal and Waltz, Math. Program. 100 (2004), for active sets from a
    simpler subproblem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from casal.constraints.base import Budget, Projection
from casal.constraints.solvers.linearised import SHORT, Bounds, Linearised, face
from casal.constraints.solvers.rows import DENSE, Algebra
from casal.constraints.vectors import EPSILON, LARGEST, constant, norm, over_events
from casal.devices import check_due, chosen, on_host, seen, whole, write
from casal.linalg import conjugate_gradients

ANGLE = 1e-14
"""Sine of the angle between y - z and the normal space that counts as zero; for a loose budget, its tolerance."""
COARSE_ANGLE = 1e-6
"""The same where rounding stops all progress earlier."""
PATIENCE = (2, 10)
"""Steps without progress at a feasible point before it is taken as it is: if it is nearly normal, and if not."""
STRICT = 1e-10
"""Tolerance up to which a budget asks for the nearest point to rounding."""
BEYOND = 1e-3
"""A tolerance up to STRICT is undercut by this factor where rounding allows: one more step of Newton's method."""
FAR = 1e2
"""Size of a starting point beyond which, if it is not near the set, smaller ones on its way to the origin are tried."""
CRAWL = 100
"""Steps without progress after which a chain gives up coming nearer, and only goes to the set if it can."""
VANISHING = 1e-100
"""A gradient shorter than this, relative to c / (1 + |z|), counts as zero."""
NUDGE = 1e-3
"""Share of the first step that goes aside, so that symmetry cannot hold a chain at a maximum of the distance."""
FARTHEST = 10.0
"""Longest first step, in units of 1 + |z|: a nearly vanishing gradient must not fling a chain away."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
"""Levenberg ridges on U U^T (rows of length one) for normal steps that leave the trust region."""
SHARE = 1e-4
"""Least share of the promised decrease of the merit."""
NARROW = 1e-3
"""Relative gap below which the weight of the gap may fall again."""
FORGET = 0.6
"""Factor of that fall, per step."""
CORRECTIONS = 2
"""Evaluations of c spent on bending a step back to the set before the next Jacobian."""
INNER_STEPS = 100
"""Most conjugate gradient steps."""
BLOCKED = 3
"""How often a tangential step may run into a row that was not active, before it is cut short there."""
HALVINGS = 12
"""Most halvings of a step that failed, at once."""


class System(Protocol):
    """Rows c(z), their derivatives, and their violation; points are (n, d).

    Derivatives are tensors (n, ...) in the form that ``algebra`` reads: (n, r, d) for ``DENSE``. Inequalities need it.
    """

    @property
    def algebra(self) -> Algebra:
        """What is done with the derivatives."""

    @property
    def bounds(self) -> Bounds | None:
        """Of single coordinates, beside the rows; every point that is looked at lies within them."""

    def bounded(self, like: Tensor) -> bool:
        """Whether there are bounds, or any of the rows of ``like`` (n, r) is an inequality."""

    def inequality(self, like: Tensor) -> Tensor:
        """(r,) bool: which of the rows of ``like`` (n, r) ask for c <= 0 instead of c = 0."""

    def values(self, z: Tensor) -> Tensor:
        """c(z), (n, r)."""

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """c(z), (n, r), and its Jacobian."""

    def curvature(self, z: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """v -> (sum_j weights_j Hess c_j) v at z, weights (n, r)."""

    def violation(self, values: Tensor, rows: Tensor, z: Tensor, *, rough: bool = False) -> Tensor:
        """(n,), from c(z) and its Jacobian; ``rough`` need not ask what the rounding of c is."""


class _Point(NamedTuple):
    """A point and its linearisation; ``gap`` is c in units of the lengths of its gradients."""

    z: Tensor
    gap: Tensor
    unit: Tensor
    lengths: Tensor
    violation: Tensor
    inequality: Tensor

    def open(self, gap: Tensor) -> Tensor:
        """The part of a gap (n, r) that has to be closed."""
        return torch.where(self.inequality, gap.clamp_min(0.0), gap)

    @property
    def units(self) -> Tensor:
        """The lengths, with one for zero."""
        return torch.where(self.lengths > 0, self.lengths, 1.0)


class _Tangent(NamedTuple):
    """What the linearised problem says at a point.

    Attributes:
        active: (n, r) bool, rows that take part.
        free: (n, d) bool, coordinates that are not at a bound; (n, 1) where there are no bounds.
        rows: U over the free coordinates.
        factor: L with L L^T = U U^T over the active rows and free coordinates.
        basis: Of the normal space: L^-1 U, (n, r, d), zero for other rows, if U is dense; else U.
        normal: n, (n, d), no longer than 0.9 radii: to the bounds that are met, and along the free coordinates.
        forces: (n, r), -normal = U^T forces on the free coordinates.
        pull: (z - y) / scale, (n, d).
        slide: Its tangential part, (n, d).
        lam: Multipliers of the linearised problem, to start the next one from.
        angle: |slide| / |pull|, (n,), or the relative slack of an active row if that is larger.
        error: (n,), the larger of the angle and the relative size of the gap.
    """

    active: Tensor
    free: Tensor
    rows: Tensor
    factor: Tensor
    basis: Tensor
    normal: Tensor
    forces: Tensor
    lam: Tensor
    pull: Tensor
    slide: Tensor
    angle: Tensor
    error: Tensor


class _Chains(NamedTuple):
    """The chains at work.

    Attributes:
        chain: Number in the batch.
        y: Anchor.
        scale: 1 + |y|, the unit in which distances enter the merit.
        radius: Of the trust region.
        weight: mu, of the gap in the merit.
        best: Least error so far.
        moved: Whether the last step went anywhere.
        stale: Steps at a feasible point without a lesser error or a move.
        slow: Steps without a lesser error, wherever.
    """

    chain: Tensor
    y: Tensor
    scale: Tensor
    radius: Tensor
    weight: Tensor
    best: Tensor
    moved: Tensor
    stale: Tensor
    slow: Tensor


class _Normal(NamedTuple):
    """A face and the step to it; see ``_Tangent``."""

    active: Tensor
    free: Tensor
    rows: Tensor
    factor: Tensor
    normal: Tensor
    forces: Tensor
    lam: Tensor


class _Step(NamedTuple):
    """A step, H applied to it, and the multipliers in H."""

    step: Tensor
    bent: Tensor
    multipliers: Tensor


Parts = TypeVar("Parts", _Point, _Normal, _Tangent, _Chains, Projection)


def _take(parts: Parts, index: Tensor) -> Parts:
    """The chains ``index`` of a tuple of tensors."""
    return type(parts)(*(part[index] for part in parts))


def _choose(mask: Tensor, one: Parts, other: Parts) -> Parts:
    """``one`` where the mask of chains is true, else ``other``, part by part."""
    return type(one)(*(torch.where(over_events(mask, a), a, b) for a, b in zip(one, other, strict=True)))


def _look(system: System, z: Tensor) -> _Point:
    """Evaluate; a point where anything is not finite gets an infinite violation and harmless numbers."""
    values, rows = system.linearise(z)
    lengths = system.algebra.lengths(rows)
    finite = torch.isfinite(values).all(1) & torch.isfinite(lengths).all(1)
    values = torch.where(finite[:, None], values, torch.ones_like(values))
    lengths = torch.where(finite[:, None], lengths, torch.zeros_like(lengths))
    lengths = torch.where(lengths * (1.0 + norm(z))[:, None] > VANISHING * values.abs(), lengths, 0.0)
    safe = torch.where(lengths > 0, lengths, 1.0)
    unit = system.algebra.scaled(rows, finite[:, None] & (lengths > 0), safe)
    known = system.algebra.scaled(rows, lengths > 0, torch.ones_like(safe))
    violation = system.violation(values, known, z)
    violation = torch.where(finite & torch.isfinite(violation), violation, torch.full_like(violation, torch.inf))
    return _Point(z, values / safe, unit, lengths, violation, system.inequality(values).expand_as(values))


def aside_direction(like: Tensor) -> Tensor:
    """A fixed direction (d,) without symmetry."""
    return constant(_aside, like.shape[1], like)


def _aside(size: int, like: Tensor) -> Tensor:
    number = torch.arange(1, size + 1, dtype=like.dtype, device=like.device)
    direction = torch.cos(2.3999632297286533 * number.square()) + 0.1
    return direction / torch.linalg.vector_norm(direction)


# ------------------------------------------------------------------ the descent


def nearest(system: System, y: Tensor, start: Tensor | None, budget: Budget) -> Projection:
    """Nearest points of the set to ``y``, or the point where a chain came to a halt, flagged.

    A chain that halts early gets a second chance from a point beside its halt: the centre of a sphere, where the
    gradient vanishes, or an axis of symmetry hold a chain only if it sits there exactly.

    Args:
        system: The rows.
        y: Anchors (n, d), finite float64.
        start: Where to start (n, d), such as the nearest point of a neighbour of y; at y itself if left out, or
            where a row is not finite at ``start``.
        budget: A chain is done when its violation is within the tolerance and y - z is normal to the set; iterations
            are evaluations of c and its Jacobian.
    """
    found = _without_noise(system, y, _descend(system, y, start, budget), budget)
    halted = chosen(~found.converged & (found.iterations < budget.iterations))
    if not len(halted):
        return found
    before = _take(found, halted)
    beside = before.point + NUDGE * (1.0 + norm(before.point))[:, None] * aside_direction(y)
    left = budget.iterations - whole(before.iterations.min())
    after = _descend(system, y[halted], beside, budget._replace(iterations=left))
    better = after.converged | (after.residual < before.residual)
    after = _choose(better, after, before)
    total = (before.iterations + after.iterations).clamp_max(budget.iterations)
    after = after._replace(iterations=torch.where(better, total, before.iterations))
    for target, part in zip(found, after, strict=True):
        target[halted] = part
    return found


def _without_noise(system: System, y: Tensor, found: Projection, budget: Budget) -> Projection:
    """Coordinates that are nothing but the rounding of the steps from y become zero, where that ends a descent.

    A row such as z_j >= 0 has no size of its own: any negative number misses it, however small.
    """
    left = chosen(~found.converged & torch.isfinite(found.residual))
    if not len(left):
        return found
    z, anchor = found.point[left], y[left]
    noise = (z != 0) & (z.abs() <= 64 * EPSILON * (anchor.abs() + norm(z - anchor)[:, None]))
    some = chosen(noise.any(1))
    if not len(some):
        return found
    again = _descend(system, anchor[some], z[some].masked_fill(noise[some], 0.0), budget)
    better = chosen(again.converged)
    for target, part in zip(found, again, strict=True):
        target[left[some[better]]] = part[better]
    return found


def _descend(system: System, y: Tensor, start: Tensor | None, budget: Budget) -> Projection:
    """One descent for every chain; those that are done leave the batch at the next look, as they were when done."""
    bounds = system.bounds
    here = _look(system, y if bounds is None else bounds.clip(y))
    done = (here.violation <= _aim(budget.tolerance)) & (here.z == y).all(1)
    out = Projection(here.z.clone(), done, torch.zeros_like(done, dtype=torch.long), here.violation.clone())
    live = chosen(~done)
    if not len(live):
        return out
    here = _begin(system, _take(here, live), None if start is None else start[live])
    y = y[live]
    zero = y.new_zeros(len(y))
    scale = 1.0 + norm(y).clamp_max(LARGEST)
    chains = _Chains(live, y, scale, zero, zero, zero + torch.inf, zero == 0, 0 * live, 0 * live)
    chains = chains._replace(radius=_first_radius(here, chains))
    tangent, open_ = _tangent_at(system, here, chains), torch.ones_like(chains.moved)
    for iteration in range(budget.iterations + 1):
        chains = _progress(chains, here, tangent, budget.tolerance)
        converged, stopped = _finished(chains, here, tangent, budget.tolerance)
        if iteration == budget.iterations:
            stopped = torch.ones_like(stopped)
        gone, open_ = stopped & open_, open_ & ~stopped
        write(
            chains.chain,
            gone,
            (out.point, here.z),
            (out.converged, converged),
            (out.iterations, iteration),
            (out.residual, here.violation),
        )
        if iteration == budget.iterations:
            break
        if check_due(iteration, y):
            left = chosen(open_)
            if not len(left):
                break
            if len(left) < len(open_):
                open_ = open_[left]
                here, tangent, chains = _take(here, left), _take(tangent, left), _take(chains, left)
        move = _plan(system, here, tangent, chains, first=iteration == 0)
        here, tangent, chains = _try_step(system, here, tangent, chains, move)
    return out


def _begin(system: System, here: _Point, start: Tensor | None) -> _Point:
    """The points to start from: ``start`` where it is usable, else y, or from far away a point towards the origin."""
    y, fresh = here.z, torch.ones(len(here.z), dtype=torch.bool, device=here.z.device)
    if start is not None:
        usable = torch.isfinite(start).all(1)
        start = torch.where(usable[:, None], start, y)
        other = _look(system, start if system.bounds is None else system.bounds.clip(start))
        usable &= torch.isfinite(other.violation)
        here, fresh = _choose(usable, other, here), ~usable
    size = norm(y)
    remote = torch.isinf(here.violation) | (size > FAR) & (norm(here.gap) > 0.1 * size)
    far = chosen(fresh & remote)
    far = far[chosen(~_nearly_linear(system, _take(here, far)))] if len(far) else far
    if len(far):
        nearer = y.clone()
        nearer[far] = _on_the_ray(system, y[far])
        other = _look(system, nearer if system.bounds is None else system.bounds.clip(nearer))
        here = _choose(fresh & torch.isfinite(other.violation), other, here)
    return here


def _nearly_linear(system: System, here: _Point) -> Tensor:
    """Whether one Gauss-Newton step closes all but a hundredth of the gap, so that it can be trusted from far away."""
    algebra = system.algebra
    factor = algebra.factorise(algebra.gram(here.unit), here.lengths > 0)
    normal = -algebra.pull(here.unit, algebra.solve(factor, here.gap))
    left = system.values(here.z + normal) / here.units
    return torch.isfinite(here.violation) & (norm(left) <= 0.01 * norm(here.gap))


def _on_the_ray(system: System, y: Tensor) -> Tensor:
    """The point of {y, y / 10, y / 100, ...} where the sum of |c| is least."""
    best, least = y, y.new_full((len(y),), torch.inf)
    decades = torch.log10(y.abs().amax(1).clamp_min(1.0)).ceil() + 3
    for decade in range(whole(decades.max()) + 1):
        point = y * 10.0**-decade
        size = system.values(point).abs().sum(1)
        better = (size < least) & (decade <= decades)
        best, least = torch.where(better[:, None], point, best), torch.where(better, size, least)
    return best


def _progress(chains: _Chains, here: _Point, tangent: _Tangent, tolerance: float) -> _Chains:
    """Count the steps that brought nothing at points that are feasible."""
    slow = torch.where(tangent.error > 0.9 * chains.best, chains.slow + 1, 0)
    idle = (slow > 0) & ~chains.moved & (here.violation <= tolerance)
    stale = torch.where(idle, chains.stale + 1, 0)
    best = torch.where(slow == 0, tangent.error, chains.best)
    return chains._replace(best=best, stale=stale, slow=slow)


def _aim(tolerance: float) -> float:
    """The violation to go for."""
    return max(BEYOND * tolerance, 16 * EPSILON) if tolerance <= STRICT else tolerance


def _finished(chains: _Chains, here: _Point, tangent: _Tangent, tolerance: float) -> tuple[Tensor, Tensor]:
    """Which chains are done, and which stop (done or not)."""
    feasible = here.violation <= tolerance
    straight = ANGLE if tolerance <= STRICT else tolerance
    converged = (here.violation <= _aim(tolerance)) & (tangent.angle <= straight)
    stuck = (chains.stale >= PATIENCE[1]) | (chains.radius <= 2 * EPSILON * (1e-3 + norm(here.z)))
    stuck |= torch.isinf(here.violation) | (chains.slow >= CRAWL + torch.where(feasible, 0, PATIENCE[1]))
    settled = stuck | (chains.stale >= PATIENCE[0])
    converged |= feasible & settled & (tangent.angle <= max(COARSE_ANGLE, tolerance))
    return converged, converged | stuck


# ------------------------------------------------------------------ the linearised problem


def _first_radius(here: _Point, chains: _Chains) -> Tensor:
    """A few times the distance to the rows, one by one, but no farther than a gradient can be trusted."""
    step = norm(here.open(here.gap)) + norm(chains.y - here.z)
    return torch.minimum(2.0 * step, FARTHEST * (1.0 + norm(here.z)))


def _tangent_at(system: System, here: _Point, chains: _Chains, warm: Tensor | None = None) -> _Tangent:
    """The face of the linearised problem, its normal step, and what is left of the optimality conditions.

    Where the rows contradict each other or the bounds, or nearly do, the normal step leaves the trust region. Then they
    need not hold exactly: U U^T gets a Levenberg ridge, and at last the step is cut.
    """
    algebra, longest = system.algebra, 0.9 * chains.radius
    found = _linear_problem(system, here, chains, warm)
    for ridge in RIDGES if here.gap.shape[1] > 1 or system.bounds is not None else ():
        long = norm(found.normal) > longest
        if _looks(algebra, here.z):
            some = chosen(long)
            if not len(some):
                break
            weaker = _linear_problem(system, _take(here, some), _take(chains, some), None, ridge)
            for target, part in zip(found, weaker, strict=True):
                target[some] = part
        else:
            found = _choose(long, _linear_problem(system, here, chains, None, ridge), found)
    share = _cut_to_radius(found.normal, longest)[:, None]
    return _tangent_of(algebra, here, chains, found._replace(normal=share * found.normal, forces=share * found.forces))


def _linear_problem(system: System, here: _Point, chains: _Chains, warm: Tensor | None, ridge: float = 0.0) -> _Normal:
    """The face of the nearest point to y of the linearised set, and the step to it."""
    rows = Linearised(system.algebra, here.unit, here.gap, here.inequality, here.lengths > 0)
    active, free = rows.usable, torch.ones_like(here.z[:, :1], dtype=torch.bool)
    met = None
    if system.bounded(here.gap):
        # Towards the anchor, but not farther than the radius: the same answer once the steps are short.
        away = chains.y - here.z
        radius = torch.maximum(chains.radius, 1e-9 * (1.0 + norm(here.z)))
        met = face(rows, here.z, here.z + _cut_to_radius(away, radius)[:, None] * away, system.bounds, warm, ridge)
        active, free = met.active, met.free
    moved = None if met is None or system.bounds is None else torch.where(free, 0.0, met.point - here.z)
    found = _normal(system.algebra, here, active, free, moved, ridge)
    return found if met is None else found._replace(lam=met.lam)


def _normal(
    algebra: Algebra, here: _Point, active: Tensor, free: Tensor, moved: Tensor | None, ridge: float = 0.0
) -> _Normal:
    """The step to a face: the given one of coordinates that go to their bounds, and the shortest one of the others."""
    rows, gap = here.unit, here.gap
    if moved is not None:
        rows, gap = algebra.masked(rows, free), gap + algebra.apply(rows, moved)
        active = active & (algebra.lengths(rows) > SHORT)
    gram = algebra.gram(rows)
    factor = algebra.factorise(gram, active)
    forces = algebra.solve(algebra.factorise(gram, active, ridge) if ridge else factor, torch.where(active, gap, 0.0))
    normal = -algebra.pull(rows, forces)
    return _Normal(active, free, rows, factor, normal if moved is None else normal + moved, forces, forces)


def _tangent_of(algebra: Algebra, here: _Point, chains: _Chains, found: _Normal) -> _Tangent:
    """The tangent space of a face, the normal step there, and the error of the optimality conditions."""
    active, free, rows, factor, normal, forces, lam = found
    basis = algebra.basis(rows, factor, active)
    pull = (here.z - chains.y) / chains.scale[:, None]
    slide = algebra.tangential(basis, factor, torch.where(free, pull, 0.0))
    angle, size = norm(slide), norm(pull)
    # The rounding of z - y has a tangential part of its own.
    noise = 4 * EPSILON * here.z.shape[1] ** 0.5 * (norm(here.z) / chains.scale + 1.0)
    angle = torch.where(angle > noise, angle / size.clamp_min(1e-300), torch.zeros_like(angle))
    size = 1.0 + norm(here.z)
    loose = norm(torch.where(active & here.inequality, here.gap.clamp_max(0.0), torch.zeros_like(here.gap)))
    loose = torch.maximum(loose, norm(torch.where(free, 0.0, normal)))
    angle = torch.maximum(angle, loose / size)
    error = torch.maximum(angle, norm(here.open(here.gap)) / size)
    return _Tangent(active, free, rows, factor, basis, normal, forces, lam, pull, slide, angle, error)


def _cut_to_radius(v: Tensor, radius: Tensor) -> Tensor:
    """The factor <= 1 that brings v into the radius."""
    return (radius / norm(v).clamp_min(1e-300)).clamp_max(1.0)


# ------------------------------------------------------------------ one step


def _plan(system: System, here: _Point, tangent: _Tangent, chains: _Chains, *, first: bool) -> _Step:
    """Normal and tangential step inside the trust region."""
    algebra = system.algebra
    multipliers = -algebra.shares(tangent.basis, tangent.factor, tangent.pull)
    multipliers = here.open(multipliers + tangent.forces / chains.scale[:, None])
    multipliers = torch.where(tangent.active, multipliers, torch.zeros_like(multipliers))
    bend = system.curvature(here.z, multipliers / here.units)

    def hessian(v: Tensor) -> Tensor:
        return v / chains.scale[:, None] + torch.nan_to_num(bend(v), 0.0, 0.0, 0.0)

    for attempt in range(BLOCKED + 1):
        normal = tangent.normal
        bent = hessian(normal)
        gradient = tangent.pull + bent
        if first:
            gradient = gradient + (NUDGE * norm(normal) / chains.scale)[:, None] * aside_direction(normal)
        left = (chains.radius.square() - normal.square().sum(1)).clamp_min(0.0).sqrt()
        slide, curved = _slide(algebra, hessian, tangent, gradient, left)
        if not system.bounded(here.gap):
            break
        share, rows, coordinates = _block(system, here, tangent, normal, slide)
        blocked = rows.any(1) | coordinates.any(1)
        if attempt == BLOCKED or not seen(blocked.any()):
            slide, curved = share[:, None] * slide, share[:, None] * curved
            break
        free = tangent.free & ~coordinates
        moved = None
        if system.bounds is not None:
            end = system.bounds.clip(here.z + normal + slide)
            moved = torch.where(free, 0.0, torch.where(coordinates, end - here.z, normal))
        found = _normal(algebra, here, tangent.active | rows, free, moved)
        found = _choose(blocked, found, _Normal(*(getattr(tangent, name) for name in _Normal._fields)))
        short = _cut_to_radius(found.normal, 0.9 * chains.radius)[:, None]
        found = found._replace(normal=short * found.normal, forces=short * found.forces)
        tangent = _tangent_of(algebra, here, chains, found)
    slides = (chains.slow < CRAWL)[:, None]
    return _Step(normal + torch.where(slides, slide, 0.0), bent + torch.where(slides, curved, 0.0), multipliers)


def _slide(
    algebra: Algebra, hessian: Callable[[Tensor], Tensor], tangent: _Tangent, gradient: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor]:
    """argmin 1/2 t.H t + gradient.t over the tangent space and |t| <= radius, and H times it."""

    def project(v: Tensor) -> Tensor:
        return algebra.tangential(tangent.basis, tangent.factor, torch.where(tangent.free, v, 0.0))

    size = torch.linalg.vector_norm(project(gradient), dim=1)
    rounding = 1e-15 * torch.linalg.vector_norm(gradient, dim=1)
    aim = torch.maximum(size * tangent.angle.clamp(1e-10, 0.1), 0.1 * rounding)
    floor = torch.where(size > rounding, aim.square(), torch.inf)
    steps = min(INNER_STEPS, gradient.shape[1])
    return conjugate_gradients(hessian, -gradient, floor, steps, project=project, radius=radius, check_first=False)


def _block(
    system: System, here: _Point, tangent: _Tangent, normal: Tensor, slide: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of the tangential step up to the first row that is not active or the first bound.

    And what it meets: the first row, as a mask (n, r), and all coordinates (n, d) that would leave their bounds.
    """
    algebra, noise = system.algebra, 1e-13 * (1.0 + norm(here.z))[:, None]
    share, coordinates = torch.ones_like(normal[:, 0]), torch.zeros_like(tangent.free)
    if system.bounds is not None:
        start = here.z + normal
        end = start + slide
        coordinates = tangent.free & ((end > system.bounds.high + noise) | (end < system.bounds.low - noise))
        room = torch.where(slide > 0, system.bounds.high - start, start - system.bounds.low)
        ahead = coordinates & (room > 0) & (slide != 0)
        room = torch.where(ahead, room / torch.where(ahead, slide.abs(), 1.0), torch.inf)
        share = torch.minimum(share, room.amin(1))
    before, ahead = here.gap + algebra.apply(here.unit, normal), algebra.apply(here.unit, slide)
    meets = here.inequality & ~tangent.active & (ahead > 0) & (before + ahead > noise)
    if not here.gap.shape[1]:
        return share, meets, coordinates
    room = torch.where(meets, (-before).clamp_min(0.0) / torch.where(meets, ahead, 1.0), torch.inf)
    first, row = room.min(1)
    rows = meets & (torch.arange(room.shape[1], device=room.device) == row[:, None]) & (first < 1.0)[:, None]
    return torch.minimum(share, first), rows, coordinates


def _try_step(
    system: System, here: _Point, tangent: _Tangent, chains: _Chains, move: _Step
) -> tuple[_Point, _Tangent, _Chains]:
    """Evaluate the step, take it or not, and adapt the radius."""
    step, power = _correct(system, here, tangent, move.step)
    there = _look(system, here.z + step if system.bounds is None else system.bounds.clip(here.z + step))
    step = step if system.bounds is None else there.z - here.z
    length = norm(step)
    finite = torch.isfinite(there.violation)
    trial = torch.where(finite[:, None], there.gap * (there.units / here.units), torch.zeros_like(there.gap))
    linear = here.gap + system.algebra.apply(here.unit, move.step)
    theta, modelled, reached = (norm(here.open(gap)) for gap in (here.gap, linear, trial))

    slope = (tangent.pull * step).sum(1)
    rise = (tangent.pull * move.step).sum(1) + 0.5 * (move.step * move.bent).sum(1)
    closed = theta - modelled
    helps = closed > 1e-8 * theta
    needed = torch.where(helps, 2.0 * torch.maximum(rise, slope) / torch.where(helps, closed, 1.0), 0.0)
    kept = torch.where(theta <= NARROW * (1.0 + norm(here.z)), FORGET * chains.weight, chains.weight)
    weight = torch.stack([kept, needed, 2.0 * norm(move.multipliers)]).amax(0)
    promised = weight * closed - rise
    gained = weight * (theta - reached) - slope - 0.5 * step.square().sum(1) / chains.scale
    rounding = 4 * EPSILON * weight * (1.0 + norm(here.z))
    lower = finite & (gained >= SHARE * promised - rounding) & (promised > 0)

    chains = chains._replace(weight=weight)
    tangent_there = _tangent_at(system, there, chains, tangent.lam)
    taken = lower | (finite & (tangent_there.error <= 0.5 * chains.best))

    error = torch.where(finite[:, None], trial - linear, torch.zeros_like(trial))
    shorter = torch.full_like(length, 0.1)
    if not (on_host(taken) and bool(taken.all())):
        shorter = torch.where(finite, _shorter(system.algebra, here, error, power, step, slope, chains), shorter)
    longer = torch.where(gained > 0.99 * promised, 10.0, 3.0) * length
    grown = torch.where(gained > 0.7 * promised, torch.maximum(chains.radius, longer), chains.radius)
    grown = torch.where(lower & (gained < 0.1 * promised), 0.5 * length, grown)
    radius = torch.where(taken, grown, shorter * length)
    # A step may widen the gap to come nearer to y, but not again and again.
    left = norm(there.open(there.gap))
    wider = taken & (left > 0.9 * theta) & (left > NARROW * (1.0 + norm(there.z)))
    moved = taken & (length > 1e-9 * (1.0 + norm(there.z)))
    chains = chains._replace(radius=radius, weight=torch.where(wider, 2.0 * weight, weight), moved=moved)
    here, tangent = _choose(taken, there, here), _choose(taken, tangent_there, tangent)
    anew = ~taken | (norm(tangent.normal) > 0.9 * radius)
    if not _looks(system.algebra, here.z):
        return here, _choose(anew, _tangent_at(system, here, chains, tangent.lam), tangent), chains
    again = chosen(anew)
    if len(again):
        parts = _tangent_at(system, _take(here, again), _take(chains, again), tangent.lam[again])
        for target, part in zip(tangent, parts, strict=True):
            target[again] = part
    return here, tangent, chains


def _looks(algebra: Algebra, x: Tensor) -> bool:
    """Whether it is worth a look which chains need more work: off the host small dense systems are solved for all."""
    return on_host(x) or algebra is not DENSE


def _correct(system: System, here: _Point, tangent: _Tangent, step: Tensor) -> tuple[Tensor, Tensor]:
    """The step, bent back to the linearised rows, and the order of what it still leaves.

    A step along a curved set leaves it to second order, and would be refused for that (the Maratos effect).
    """
    algebra = system.algebra
    linear, lengths = here.gap + algebra.apply(here.unit, step), here.units
    bent, longest, small = step, 0.5 * norm(step), torch.ones_like(step[:, 0], dtype=torch.bool)
    for _ in range(CORRECTIONS):
        error = system.values(here.z + bent) / lengths - linear
        usable = small & torch.isfinite(error).all(1)
        error = torch.where(tangent.active & usable[:, None], error, 0.0)
        bent = bent - algebra.pull(tangent.rows, algebra.solve(tangent.factor, error))
        bent = bent if system.bounds is None else system.bounds.clip(here.z + bent) - here.z
        small = usable & (norm(bent - step) <= longest)
        bent = torch.where(small[:, None], bent, step)
    return bent, torch.where(small, 2.0 + CORRECTIONS, 2.0).to(step)


def _shorter(
    algebra: Algebra, here: _Point, error: Tensor, power: Tensor, step: Tensor, slope: Tensor, chains: _Chains
) -> Tensor:
    """The share of a failed step where the merit is least, with c + share U s + share^power error for its rows."""
    share = (0.5 ** torch.arange(1, HALVINGS + 1, dtype=step.dtype, device=step.device))[:, None]
    ahead = algebra.apply(here.unit, step)[:, None]
    gap = here.gap[:, None] + share * ahead + share ** power[:, None, None] * error[:, None]
    theta = torch.linalg.vector_norm(torch.where(here.inequality[:, None], gap.clamp_min(0.0), gap), dim=2)
    half = 0.5 * step.square().sum(1) / chains.scale
    share = share.squeeze(1)
    merit = chains.weight[:, None] * theta + share * slope[:, None] + share.square() * half[:, None]
    return share[merit.argmin(1)]
