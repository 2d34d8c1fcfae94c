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
the distance. The rows of I that take part are those of the linearised problem, a quadratic programme with as many
unknowns as rows (block principal pivoting), so that near the answer the active set is that of the answer.

Before it is judged, n + t is bent back to the rows, s <- s - U^T (U U^T)^-1 (c(z + s) - c - U s), so that a step along
a curved set stays on it. A step is taken if it lowers |z - y|^2 / 2 + mu |c(z)| by a share of what the model promises,
or if it halves the error of the Karush-Kuhn-Tucker conditions; otherwise the radius shrinks to where a model of c,
known from the step that failed, says the merit is least. Near a regular answer convergence is quadratic. A chain costs
the same, and ends at the same point, whatever other chains are in the batch.

References:
    Nocedal and Wright, "Numerical Optimization" (2006), Alg. 7.2 (Steihaug) and sec. 18.5 (trust-region SQP with a
    normal and a tangential step); Byrd, Gould, Nocedal and Waltz, Math. Program. 100 (2004), for active sets from a
    simpler subproblem; Judice and Pires, Comput. Oper. Res. 21 (1994), for block principal pivoting.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints.algorithms.gauss_newton_rows import factorise, first_radius, pull_back, tangent_at
from casal.constraints.algorithms.gauss_newton_state import (
    CRAWL,
    EPSILON,
    NUDGE,
    Chains,
    Point,
    System,
    Tangent,
    aside_direction,
    choose,
    look,
    take,
)
from casal.constraints.algorithms.gauss_newton_step import plan, try_step
from casal.constraints.base import Budget, Projection, norm

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
LARGEST = 1e300
"""Cap on |y| where it is a unit, so that nothing overflows."""


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
    found = _descend(system, y, start, budget)
    halted = torch.nonzero(~found.converged & (found.iterations < budget.iterations)).flatten()
    if not len(halted):
        return found
    before = take(found, halted)
    beside = before.point + NUDGE * (1.0 + norm(before.point))[:, None] * aside_direction(y)
    left = budget.iterations - int(before.iterations.min())
    after = _descend(system, y[halted], beside, budget._replace(iterations=left))
    better = after.converged | (after.residual < before.residual)
    after = choose(better, after, before)
    total = (before.iterations + after.iterations).clamp_max(budget.iterations)
    after = after._replace(iterations=torch.where(better, total, before.iterations))
    for whole, part in zip(found, after, strict=True):
        whole[halted] = part
    return found


def _descend(system: System, y: Tensor, start: Tensor | None, budget: Budget) -> Projection:
    """One descent for every chain; only those not yet done are worked on."""
    n = len(y)
    out = Projection(
        y.clone(),
        torch.zeros(n, dtype=torch.bool, device=y.device),
        torch.zeros(n, dtype=torch.long, device=y.device),
        torch.full((n,), torch.inf, dtype=y.dtype, device=y.device),
    )
    here = look(system, y)
    done = here.violation <= _aim(budget.tolerance)
    out.converged[done], out.residual[:] = True, here.violation
    live = torch.nonzero(~done).flatten()
    if not len(live):
        return out
    here = _begin(system, take(here, live), None if start is None else start[live])
    y = y[live]
    zero = y.new_zeros(len(y))
    scale = 1.0 + norm(y).clamp_max(LARGEST)
    chains = Chains(live, y, scale, zero, zero, zero + torch.inf, zero == 0, 0 * live, 0 * live)
    one_sided = system.one_sided(here.gap)
    chains = chains._replace(radius=first_radius(here, chains, one_sided))
    tangent = tangent_at(here, chains, one_sided)
    for iteration in range(budget.iterations + 1):
        chains = _progress(chains, here, tangent, budget.tolerance)
        converged, stopped = _finished(chains, here, tangent, budget.tolerance)
        if iteration == budget.iterations:
            stopped = torch.ones_like(stopped)
        if bool(stopped.any()):
            gone = chains.chain[stopped]
            out.point[gone], out.converged[gone] = here.z[stopped], converged[stopped]
            out.iterations[gone], out.residual[gone] = iteration, here.violation[stopped]
            left = torch.nonzero(~stopped).flatten()
            here, tangent, chains = take(here, left), take(tangent, left), take(chains, left)
        if not len(chains.chain):
            break
        move = plan(system, here, tangent, chains, one_sided, first=iteration == 0)
        here, tangent, chains = try_step(system, here, tangent, chains, one_sided, move)
    return out


def _begin(system: System, here: Point, start: Tensor | None) -> Point:
    """The points to start from: ``start`` where it is usable, else y, or from far away a point towards the origin."""
    y, fresh = here.z, torch.ones(len(here.z), dtype=torch.bool, device=here.z.device)
    if start is not None:
        usable = torch.isfinite(start).all(1)
        other = look(system, torch.where(usable[:, None], start, y))
        usable &= torch.isfinite(other.violation)
        here, fresh = choose(usable, other, here), ~usable
    size = norm(y)
    remote = torch.isinf(here.violation) | (size > FAR) & (norm(here.gap) > 0.1 * size)
    far = torch.nonzero(fresh & remote).flatten()
    far = far[~_nearly_linear(system, take(here, far))] if len(far) else far
    if len(far):
        nearer = y.clone()
        nearer[far] = _on_the_ray(system, y[far])
        other = look(system, nearer)
        here = choose(fresh & torch.isfinite(other.violation), other, here)
    return here


def _nearly_linear(system: System, here: Point) -> Tensor:
    """Whether one Gauss-Newton step closes all but a hundredth of the gap, so that it can be trusted from far away."""
    gram, active = here.unit @ here.unit.mT, here.lengths > 0
    normal = -pull_back(here.unit, torch.cholesky_solve(here.gap[:, :, None], factorise(gram, active)).squeeze(2))
    left = system.values(here.z + normal) / torch.where(here.lengths > 0, here.lengths, 1.0)
    return torch.isfinite(here.violation) & (norm(left) <= 0.01 * norm(here.gap))


def _on_the_ray(system: System, y: Tensor) -> Tensor:
    """The point of {y, y / 10, y / 100, ...} where the sum of |c| is least."""
    best, least = y, y.new_full((len(y),), torch.inf)
    decades = torch.log10(y.abs().amax(1).clamp_min(1.0)).ceil() + 3
    for decade in range(int(decades.max()) + 1):
        point = y * 10.0**-decade
        size = system.values(point).abs().sum(1)
        better = (size < least) & (decade <= decades)
        best, least = torch.where(better[:, None], point, best), torch.where(better, size, least)
    return best


def _progress(chains: Chains, here: Point, tangent: Tangent, tolerance: float) -> Chains:
    """Count the steps that brought nothing at points that are feasible."""
    slow = torch.where(tangent.error > 0.9 * chains.best, chains.slow + 1, 0)
    idle = (slow > 0) & ~chains.moved & (here.violation <= tolerance)
    stale = torch.where(idle, chains.stale + 1, 0)
    best = torch.where(slow == 0, tangent.error, chains.best)
    return chains._replace(best=best, stale=stale, slow=slow)


def _aim(tolerance: float) -> float:
    """The violation to go for."""
    return max(BEYOND * tolerance, 4 * EPSILON) if tolerance <= STRICT else tolerance


def _finished(chains: Chains, here: Point, tangent: Tangent, tolerance: float) -> tuple[Tensor, Tensor]:
    """Which chains are done, and which stop (done or not)."""
    feasible = here.violation <= tolerance
    straight = ANGLE if tolerance <= STRICT else tolerance
    converged = (here.violation <= _aim(tolerance)) & (tangent.angle <= straight)
    stuck = (chains.stale >= PATIENCE[1]) | (chains.radius <= 2 * EPSILON * (1e-3 + norm(here.z)))
    stuck |= torch.isinf(here.violation) | (chains.slow >= CRAWL + torch.where(feasible, 0, PATIENCE[1]))
    settled = stuck | (chains.stale >= PATIENCE[0])
    converged |= feasible & settled & (tangent.angle <= max(COARSE_ANGLE, tolerance))
    return converged, converged | stuck
