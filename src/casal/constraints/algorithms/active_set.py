"""Nearest point of a polyhedron, exactly, for many points at once.

The problem is the strictly convex quadratic programme

    minimise 1/2 |x - y|^2   subject to   G x <= b  (some rows with = instead of <=),     rows of G of length one,

whose solution is x = y - G^T lam with multipliers lam >= 0 that vanish where G x < b. The method of multipliers
solves it by a sequence of smoother problems,

    x+ = argmin_u 1/2 |u - y|^2 + rho/2 |(G u - b + lam / rho)_+|^2,     lam+ = (lam + rho (G x+ - b))_+,

each piecewise quadratic in u, so that Newton's method with an exact line search ends after finitely many steps. A
Newton step is one equality-constrained problem: with A the rows in the positive part,

    (G_A G_A^T + I / rho) delta_A = G_A x - b_A,     x+ = x - G_A^T delta_A,     lam+ = lam + delta.

Once A is right, every further round is iterative refinement of the Karush-Kuhn-Tucker system of that active set, by
factors of rho, down to rounding. The shift I / rho keeps redundant and dependent rows harmless. Along dependent rows
(G_A^T v = 0) the multipliers may have far to go, which rho would do in many rounds; there they go at once until one of
them vanishes, a pivot of the dual simplex method. If none ever does, v proves that the polyhedron is empty.

References:
    Rockafellar, "Augmented Lagrangians and applications of the proximal point algorithm in convex programming",
    Math. Oper. Res. 1 (1976); Li, Sun and Toh, "On the efficient computation of a generalized Jacobian of the projector
    over the Birkhoff polytope", Math. Program. 179 (2020), for Newton's method inside it; Goldfarb and Idnani, "A
    numerically stable dual method for solving strictly convex quadratic programs", Math. Program. 27 (1983), for the
    pivot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints.algorithms.active_set_newton import measure, newton_step, start_state
from casal.constraints.algorithms.active_set_state import EPSILON, LARGEST, Nearest, Rows, State
from casal.constraints.base import Budget, norm
from casal.errors import ProjectionError

__all__ = ["Nearest", "Rows", "contradiction", "nearest", "touching"]

PATIENCE = (3, 10)
"""Rounds without progress before giving up: when the tolerance is met, and when it is not."""
FAR, FARTHEST = 1e5, 1e13
"""Size of y in units of its projection beyond which y is approached in stages: if in trouble, and in any case."""
STAGE = 1e3
"""Length of a stage, in units of the set or of the point reached; how much longer the next one is on the same face."""
CERTAIN = (1e-13, 1e-11)
"""What may be left of G^T v, and must be left of -v . b, in a proof of emptiness; relative to the terms added."""


def nearest(y: Tensor, rows: Rows, budget: Budget, *, guess: Tensor | None = None) -> Nearest:
    """Nearest points of the polyhedron to ``y``.

    A point within a few roundings of the set is returned as it is. Every chain is worked on in its own unit. A point so
    far away that the set is lost in the rounding of y (the problem is then close to a linear programme) is approached
    by x <- P(x + tau (y - x) / |y - x|) with growing tau, whose fixed point is P(y).

    Args:
        y: (n, d) finite float64.
        rows: The polyhedron.
        budget: Tolerance on ``residual``, and the largest number of Newton steps. The refinement goes on beyond the
            tolerance, to a thousandth of it or to rounding, as long as it makes progress.
        guess: (n, m) bool, rows presumably at their bounds (``touching``); decides nothing but the speed.

    Raises:
        ProjectionError: A point is longer than 1e300.
    """
    length = norm(y)
    if bool((length > LARGEST).any()):
        raise ProjectionError(
            f"points of length {float(length.max()):.3g} overflow in a projection; rescale them to below {LARGEST:g}",
            chains=torch.nonzero(length > LARGEST).flatten().tolist(),
        )
    found, far = _direct(y, rows, budget, guess)
    return _by_stages(y, rows, budget, found, torch.nonzero(far).flatten()) if bool(far.any()) else found


def touching(x: Tensor, rows: Rows) -> Tensor:
    """(n, m) bool: rows at whose bounds x lies, to nine digits."""
    reach = 1e-9 * (norm(x)[:, None] + rows.bound.abs())
    return (x @ rows.matrix.T >= rows.bound - reach) | rows.equal


def contradiction(rows: Rows, drift: Tensor) -> Tensor | None:
    """The rows that prove the polyhedron empty, as indices, or None if nothing is proved.

    Farkas: v >= 0 (of any sign for equations) with G^T v = 0 and b . v < 0 contradicts v . (G x - b) <= 0. Both are
    required up to rounding in G and b.

    Args:
        rows: The polyhedron.
        drift: (m,), ``Nearest.drift`` of a projection that did not converge.
    """
    v = torch.where(rows.equal, drift, drift.clamp_min(0.0))
    total = v.abs().sum()
    if not bool(total > 0):
        return None
    v = v / total
    pull, gain = norm((v @ rows.matrix)[None])[0], -(v * rows.bound).sum()
    if bool((pull <= CERTAIN[0]) & (gain > CERTAIN[1] * (v * rows.bound).abs().sum())):
        return torch.nonzero(v.abs() > 1e-6 * v.abs().amax()).flatten()
    return None


def _by_stages(y: Tensor, rows: Rows, budget: Budget, found: Nearest, chain: Tensor) -> Nearest:
    """Approach the points ``chain``, which are far away, and put the outcome into ``found``."""
    reference, _ = _direct(torch.zeros_like(y[:1]), rows, budget, None)
    if not bool(reference.converged[0]):
        found.drift[chain] = reference.drift
        return found
    scale = torch.maximum(norm(reference.point), rows.bound[rows.bound != 0].abs().amin())
    x = reference.point.expand(len(chain), -1)
    face = touching(x, rows)
    ratio, failures = torch.full_like(x[:, 0], STAGE), torch.zeros_like(chain)
    while len(chain):
        away = y[chain] - x
        distance = norm(away)
        tau = torch.minimum(ratio * torch.maximum(scale, norm(x)), distance)
        left = Budget(budget.tolerance, budget.iterations - int(found.iterations[chain].max()))
        part, _ = _direct(x + (tau / distance)[:, None] * away, rows, left, face, patient=True)
        found.iterations[chain] += part.iterations
        moved = norm(part.point - x)
        there = part.converged & ((tau >= distance) | (moved <= 4 * EPSILON * tau))
        failures = failures + (~part.converged).long()
        last = there | (found.iterations[chain] >= budget.iterations) | (failures > 3)
        # Given up before the last stage: the point may be in the set, but nothing says that it is the nearest.
        missing = torch.where(there, part.residual, torch.maximum(part.residual, moved / tau))
        found.point[chain[last]], found.residual[chain[last]] = part.point[last], missing[last]
        found.converged[chain[last]], found.drift[chain[last]] = there[last], part.drift[last]
        # The same face again: a longer stage. Another face: as at first. Not found: a shorter stage from the same x.
        reached = touching(part.point, rows)
        same = (reached == face).all(1)
        ratio = torch.where(part.converged, torch.where(same, STAGE * ratio, STAGE), ratio / 30)
        x = torch.where(part.converged[:, None], part.point, x)
        face = torch.where(part.converged[:, None], reached, face)
        chain, x, face, ratio, failures = (value[~last] for value in (chain, x, face, ratio, failures))
    return found


def _direct(
    y: Tensor, rows: Rows, budget: Budget, guess: Tensor | None, *, patient: bool = False
) -> tuple[Nearest, Tensor]:
    """The method of multipliers; chains that turn out to be too far away are given up unless ``patient``."""
    n, m = len(y), len(rows.matrix)
    point, drift = y.clone(), y.new_zeros(n, m)
    residual, iterations = y.new_zeros(n), torch.zeros(n, dtype=torch.long, device=y.device)
    gone = iterations > 0
    if n == 0 or m == 0:
        return Nearest(point, drift, residual == 0, iterations, residual), gone
    residual.fill_(torch.inf)
    cone = not bool(rows.bound.any())
    aim = max(1e-3 * budget.tolerance, 4 * EPSILON)
    state = start_state(y, rows, guess)
    for step in range(budget.iterations + 1):
        if step == budget.iterations or bool(state.fresh.any()):
            state, value = measure(state, rows)
            improved = value <= state.best
            state = state._replace(best=torch.minimum(state.best, value))
            chosen = state.chain[improved]
            point[chosen], residual[chosen] = (state.unit[:, None] * state.x)[improved], value[improved]
            done = (value <= aim) | (state.stale >= PATIENCE[0]) & (state.best <= budget.tolerance)
            done |= (state.stale >= PATIENCE[1]) | state.empty | (step == budget.iterations)
            if not (patient or cone):
                far = state.fresh & ~done & (state.size > FAR) & ((state.stale >= 2) | (state.size > FARTHEST))
                gone[state.chain[far]] = True
                done |= far
            if bool(done.any()):
                iterations[state.chain[done]] = step
                drift[state.chain[done]] = state.drift[done]
                state = State(*(part[~done] for part in state))
            if not len(state.chain):
                break
        state = newton_step(state, rows, guess if step == 0 else None, last=step + 1 == budget.iterations)
        if step == 0:
            guess = None
    return Nearest(point, drift, residual <= budget.tolerance, iterations, residual), gone
