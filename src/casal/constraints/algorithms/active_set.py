"""Nearest point of a polyhedron, exactly, for many points at once.

The problem is the strictly convex quadratic programme

    minimise 1/2 |x - y|^2   subject to   low <= G x <= high,        rows of G of length one,

whose solution is x = y - G^T lam with multipliers lam (positive at an upper bound, negative at a lower one, zero
between). The method of multipliers solves it by a sequence of smoother problems,

    x+ = argmin_u 1/2 |u - y|^2 + rho/2 dist(G u + lam / rho, [low, high])^2,
    lam+ = rho (t - clip(t, low, high)),     t = G x+ + lam / rho,

each piecewise quadratic in u, so that Newton's method with an exact line search ends after finitely many steps. A
Newton step is one equality-constrained problem: with A the rows that are outside their bounds c_A,

    (G_A G_A^T + I / rho) delta_A = G_A x - c_A,     x+ = x - G_A^T delta_A,     lam+ = lam + delta.

Once A is right, every further round is iterative refinement of the Karush-Kuhn-Tucker system of that active set, by
factors of rho, down to rounding. The shift I / rho keeps redundant, dependent and contradictory rows harmless; for an
empty polyhedron the multipliers run off along a Farkas certificate while x settles at the point that violates the
bounds least in the mean square.

References:
    Rockafellar, "Augmented Lagrangians and applications of the proximal point algorithm in convex programming",
    Math. Oper. Res. 1 (1976); Li, Sun and Toh, "On the efficient computation of a generalized Jacobian of the projector
    over the Birkhoff polytope", Math. Program. 179 (2020), for Newton's method inside it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import Budget, norm, relative
from casal.errors import ProjectionError

EPSILON = torch.finfo(torch.float64).eps
FIRST_RHO, GUESSED_RHO = 30.0, 1e6
LAST_RHO = 1e12
INNER_STEPS = 20
"""Newton steps after which rho is lowered, because the active set still changes."""
PATIENCE = (3, 10)
"""Updates without progress before giving up: when the tolerance is met, and when it is not."""
UNDERFLOW, LARGEST = 1e-290, 1e300
"""Below the one, rounding is absolute; above the other, sums of squares overflow even after scaling."""
FAR = 1e5
"""Size of y in units of its projection beyond which y is approached in stages."""
LAST_RATIO = 1e4
CERTAIN = (1e-13, 1e-11)
"""What may be left of G^T v, and must be left of -v . bound, in a proof of emptiness; relative to the terms added."""
TILE = 500_000
"""Numbers in one batch of small systems, to bound the memory."""


class Rows(NamedTuple):
    """low <= G x <= high, prepared once.

    Attributes:
        matrix: G, (m, d), rows of length one.
        low: (m,), minus infinity where there is no lower bound.
        high: (m,), plus infinity where there is no upper bound; equal to ``low`` for an equation.
        gram: G G^T, (m, m).
    """

    matrix: Tensor
    low: Tensor
    high: Tensor
    gram: Tensor

    @classmethod
    def of(cls, matrix: Tensor, low: Tensor, high: Tensor) -> Rows:
        """Prepare rows that already have length one."""
        return cls(matrix, low, high, matrix @ matrix.T)

    def to(self, z: Tensor) -> Rows:
        """The same on the device of ``z``."""
        return Rows(*(part.to(z) for part in self))


class Nearest(NamedTuple):
    """Nearest points and how they were found, chain by chain.

    Attributes:
        point: (n, d), the best point found.
        drift: (n, m), last change of the multipliers, a Farkas certificate if the polyhedron is empty.
        converged: (n,) bool, the residual is within the tolerance.
        iterations: (n,) Newton steps.
        residual: (n,) larger of the violation of a bound, relative to |x| + |bound|, and of the complementarity
            min(|lam|, slack), relative to |y| + |x| + |bound|.
    """

    point: Tensor
    drift: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class _State(NamedTuple):
    """The chains that are still at work, in units of ``unit``; x = y - G^T lam."""

    chain: Tensor
    unit: Tensor
    size: Tensor
    x: Tensor
    lam: Tensor
    drift: Tensor
    rho: Tensor
    top: Tensor
    u: Tensor
    gu: Tensor
    guess: Tensor
    fresh: Tensor
    inner: Tensor
    stale: Tensor
    best: Tensor
    slip: Tensor


def nearest(y: Tensor, rows: Rows, budget: Budget, *, guess: Tensor | None = None) -> Nearest:
    """Nearest points of {x : low <= G x <= high} to ``y``.

    A point within a few roundings of the set is returned as it is. Numbers of any size are welcome: every chain is
    worked on in its own unit. A point so far away that the set is lost in the rounding of y (the problem is then
    close to a linear programme) is approached by x <- P(x + tau (y - x) / |y - x|) with growing tau, whose
    fixed point is P(y).

    Args:
        y: (n, d) finite float64.
        rows: The polyhedron.
        budget: Tolerance on ``residual``, and the largest number of Newton steps. The refinement goes on beyond the
            tolerance, to a thousandth of it or to rounding, as long as it makes progress.
        guess: (n, m) signs: rows presumably at their upper (+1) or lower (-1) bound; decides nothing but the speed.

    Raises:
        ProjectionError: A point is longer than 1e300.
    """
    too_large = norm(y) > LARGEST
    if bool(too_large.any()):
        raise ProjectionError(
            f"points of length {float(norm(y).max()):.3g} overflow in a projection; rescale them to below {LARGEST:g}",
            chains=torch.nonzero(too_large).flatten().tolist(),
        )
    found, far = _direct(y, rows, budget, guess)
    if not bool(far.any()):
        return found
    chain = torch.nonzero(far).flatten()
    sizes = torch.cat([rows.low, rows.high]).abs()
    sizes = sizes[(sizes > 0) & (sizes < torch.inf)]
    reference, _ = _direct(torch.zeros_like(y[:1]), rows, budget, None)
    scale = torch.maximum(norm(reference.point), sizes.amin())
    x, ratio = reference.point.expand(len(chain), -1), 1e3
    while len(chain):
        away = y[chain] - x
        distance = norm(away)
        tau = ratio * torch.maximum(scale, norm(x))
        share = (tau / distance).clamp_max(1.0)
        left = Budget(budget.tolerance, budget.iterations - int(found.iterations[chain].max()))
        part, _ = _direct(x + share[:, None] * away, rows, left, touching(x, rows), patient=True)
        moved = norm(part.point - x)
        found.point[chain], found.residual[chain], found.drift[chain] = part.point, part.residual, part.drift
        found.converged[chain] = part.converged
        found.iterations[chain] += part.iterations
        onwards = part.converged & (share < 1.0) & (moved > 4 * EPSILON * tau)
        # Out of steps before the last stage: the point is in the set, but nothing says that it is the nearest.
        short = onwards & (found.iterations[chain] >= budget.iterations)
        found.converged[chain[short]] = False
        found.residual[chain[short]] = torch.maximum(part.residual, relative(moved, distance))[short]
        onwards &= ~short
        chain, x, ratio = chain[onwards], part.point[onwards], min(10 * ratio, LAST_RATIO)
    return found


def contradiction(rows: Rows, drift: Tensor) -> Tensor | None:
    """The rows that prove the polyhedron empty, as indices, or None if nothing is proved.

    Farkas: multipliers v, positive at upper and negative at lower bounds, with G^T v = 0 and v . bound < 0 contradict
    v . G x <= v . bound. Both are required up to rounding in G and in the bounds.

    Args:
        rows: The polyhedron.
        drift: (m,), where the multipliers of an unsuccessful projection were running to.
    """
    bound = torch.where(drift > 0, rows.high, rows.low)
    v = torch.where(bound.abs() < torch.inf, drift, torch.zeros_like(drift))
    bound = torch.where(v != 0, bound, torch.zeros_like(bound))
    total = v.abs().sum()
    if not bool(total > 0):
        return None
    v = v / total
    pull, gain = norm((v @ rows.matrix)[None])[0], -(v * bound).sum()
    if bool((pull <= CERTAIN[0]) & (gain > CERTAIN[1] * (v * bound).abs().sum())):
        return torch.nonzero(v.abs() > 1e-6 * v.abs().amax()).flatten()
    return None


def touching(x: Tensor, rows: Rows) -> Tensor:
    """Signs of the rows at whose bounds x lies."""
    gx, reach = x @ rows.matrix.T, 1e-9 * norm(x)[:, None]
    above = rows.high - gx <= reach + 1e-9 * rows.high.abs()
    below = gx - rows.low <= reach + 1e-9 * rows.low.abs()
    return (above & (rows.high < torch.inf)).to(torch.int8) - (below & (rows.low > -torch.inf)).to(torch.int8)


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
    finite = torch.cat([rows.low, rows.high])
    cone = bool((finite[finite.abs() < torch.inf] == 0).all())
    has_zero = bool(((rows.low <= 0) & (rows.high >= 0)).all())
    aim = max(1e-3 * budget.tolerance, 4 * EPSILON)
    state, step = _start(y, rows, guess), 0
    while len(state.chain):
        state, value, improved = _measure(state, rows, has_zero)
        chain = state.chain[improved]
        point[chain], residual[chain] = (state.unit[:, None] * state.x)[improved], value[improved]
        done = state.fresh & (value <= aim)
        done |= (state.stale >= PATIENCE[0]) & (state.best <= budget.tolerance) | (state.stale >= PATIENCE[1])
        if not (patient or cone):
            far = state.fresh & ~done & (state.size > FAR)
            gone[state.chain[far]] = True
            done |= far
        if step >= budget.iterations:
            done |= True
        iterations[state.chain[done]] = step
        drift[state.chain[done]] = state.drift[done]
        if bool(done.any()):
            state = _State(*(part[~done] for part in state))
        if len(state.chain):
            state = _newton(state, rows, last=step + 1 >= budget.iterations)
        step += 1
    gone &= iterations < budget.iterations
    return Nearest(point, drift, residual <= budget.tolerance, iterations, residual), gone


def _start(y: Tensor, rows: Rows, guess: Tensor | None) -> _State:
    n, m = len(y), len(rows.matrix)
    bounds = torch.cat([rows.low, rows.high]).abs()
    least = 1e-100 * float(bounds[bounds < torch.inf].amax()) if bool((bounds < torch.inf).any()) else 0.0
    peak = y.abs().amax(1).clamp_min(least)
    unit = torch.where(peak > 0, peak, torch.ones_like(peak))
    x, zero = y / unit[:, None], y.new_zeros(n)
    count = torch.zeros(n, dtype=torch.long, device=y.device)
    return _State(
        chain=torch.arange(n, device=y.device),
        unit=unit,
        size=torch.linalg.vector_norm(x, dim=1),
        x=x,
        lam=y.new_zeros(n, m),
        drift=y.new_zeros(n, m),
        rho=zero + (FIRST_RHO if guess is None else GUESSED_RHO),
        top=zero + LAST_RHO,
        u=x,
        gu=x @ rows.matrix.T,
        guess=torch.zeros(n, m, dtype=torch.int8, device=y.device) if guess is None else guess.to(torch.int8),
        fresh=count == 0,
        inner=count,
        stale=count,
        best=zero + torch.inf,
        slip=zero,
    )


def _measure(s: _State, rows: Rows, has_zero: bool) -> tuple[_State, Tensor, Tensor]:
    """Residuals at the chains whose multipliers have just changed, and their new units."""
    gx = s.x @ rows.matrix.T
    low, high = rows.low / s.unit[:, None], rows.high / s.unit[:, None]
    gap = torch.maximum(gx - high, low - gx).clamp_min(0.0).amax(1)
    peak = torch.maximum(s.x.abs().amax(1), gap)
    factor = torch.where(s.fresh & (peak > 0), peak, torch.ones_like(peak))
    each = factor[:, None]
    x, gx = s.x / each, gx / each
    lam = (s.lam / each).clamp(-1e300, 1e300)
    size = (s.size / factor).clamp_max(1e300)
    low, high = low / each, high / each
    length = torch.linalg.vector_norm(x, dim=1)
    bounds = torch.cat([low.abs(), high.abs()], dim=1)
    nonzero = torch.where(bounds > 0, bounds, torch.full_like(bounds, torch.inf)).amin(1)
    tiny = s.fresh & has_zero & (length <= 8 * EPSILON * torch.minimum(size, nonzero))

    reach = length[:, None]
    broken = torch.maximum(relative(gx - high, reach + high.abs()), relative(low - gx, reach + low.abs()))
    upper = torch.minimum(lam, high - gx)
    lower = torch.minimum(-lam, gx - low)
    reach = (length + size)[:, None]
    loose = torch.maximum(relative(upper, reach + high.abs()), relative(lower, reach + low.abs()))
    value = torch.maximum(torch.maximum(broken, loose).amax(1), s.slip)
    # Where rounding is absolute, no point but zero can meet a relative tolerance.
    tiny |= s.fresh & has_zero & (value > 4 * EPSILON) & (s.unit * factor < UNDERFLOW)
    value = value.masked_fill(tiny, 0.0)
    value = torch.where(s.fresh, value, torch.full_like(value, torch.inf))
    improved = s.fresh & (value <= s.best)
    progress = (value < 0.9 * s.best) | (factor < 0.5)
    stale = torch.where(s.fresh, torch.where(progress, torch.zeros_like(s.stale), s.stale + 1), s.stale)
    fresh = s.fresh[:, None]
    x = x.masked_fill(tiny[:, None], 0.0)
    updated = s._replace(
        unit=s.unit * factor,
        size=size,
        x=x,
        lam=lam,
        u=torch.where(fresh, x, s.u),
        gu=torch.where(fresh, gx, s.gu),
        stale=stale,
        best=torch.minimum(s.best, value),
    )
    return updated, value, improved


def _sides(t: Tensor, lam: Tensor, low: Tensor, high: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Rows above and below their bounds; a row without multiplier must be outside by more than rounding."""
    slack = 4 * EPSILON * length[:, None]
    above = (t > high) & ((lam > 0) | (t - high > slack + 4 * EPSILON * high.abs()))
    below = (t < low) & ((lam < 0) | (low - t > slack + 4 * EPSILON * low.abs()))
    return above, below


def _newton(s: _State, rows: Rows, last: bool) -> _State:
    """One Newton step for every chain; chains whose active set is right update their multipliers."""
    low, high = rows.low / s.unit[:, None], rows.high / s.unit[:, None]
    equal = rows.low == rows.high
    rho = s.rho[:, None]
    length = torch.linalg.vector_norm(s.x, dim=1)
    above, below = _sides(s.gu + s.lam / rho, s.lam, low, high, length)
    guessed = (s.guess != 0).any(1)
    if bool(guessed.any()):
        above = torch.where(guessed[:, None], (s.guess > 0) & (high < torch.inf), above)
        below = torch.where(guessed[:, None], (s.guess < 0) & (low > -torch.inf), below)
    active = above | below | equal
    bound = torch.where(above, high, low)
    base = s.x + s.lam.masked_fill(active, 0.0) @ rows.matrix
    gap = torch.where(active, base @ rows.matrix.T - bound, torch.zeros_like(bound))
    delta, failed = _multipliers(gap, active, s.rho, rows)
    pull = delta @ rows.matrix
    u = base - pull
    gu = u @ rows.matrix.T

    lam = torch.where(active, s.lam + delta, torch.zeros_like(delta))
    wrong = (above & (lam < 0) | below & (lam > 0)) & ~equal
    more_above, more_below = _sides(gu + s.lam / rho, s.lam, low, high, length)
    changed = (wrong | (more_above | more_below) & ~active).any(1)
    right = ~changed & ~failed
    x, slip = u.clone(), torch.zeros_like(s.slip)

    search = torch.nonzero(~right & ~guessed & ~failed).flatten()
    stuck = torch.zeros_like(right)
    if len(search):
        part = _State(*(value[search] for value in s))
        share = _line_search(part, u[search] - part.u, gu[search] - part.gu, low[search], high[search])
        u[search] = torch.lerp(part.u, u[search], share[:, None])
        gu[search] = torch.lerp(part.gu, gu[search], share[:, None])
        stuck[search] = share <= EPSILON
    if last:  # the point reached, and how far it is from y - G^T lam
        shifted = gu + s.lam / rho
        lam = torch.where(right[:, None], lam, rho * (shifted - shifted.clamp(low, high)))
        x = torch.where(right[:, None], x, u)
        slip = torch.linalg.vector_norm(x - s.x + (lam - s.lam) @ rows.matrix, dim=1) / (length + s.size)
        slip = slip.masked_fill(right, 0.0)
    settled = right | last
    # rho too large for the rounding of the systems, or for the active set to settle: less, and never more again.
    retreat = (stuck | failed | (s.inner >= INNER_STEPS)) & ~settled
    growth = torch.where(s.inner == 0, 100.0, torch.where(s.inner <= 4, 10.0, 3.0)).to(s.rho)
    growth = torch.where(settled, growth, torch.ones_like(growth)).masked_fill(retreat, 0.1)
    top = torch.where(retreat, torch.minimum(s.top, growth * s.rho), s.top)
    pick = settled[:, None]
    return s._replace(
        x=torch.where(pick, x, s.x),
        lam=torch.where(pick, lam, s.lam),
        drift=torch.where(pick, lam - s.lam, s.drift),
        rho=torch.minimum(growth * s.rho, top),
        top=top,
        u=torch.where(failed[:, None], s.u, u),
        gu=torch.where(failed[:, None], s.gu, gu),
        guess=torch.zeros_like(s.guess),
        fresh=settled,
        inner=torch.where(settled | retreat, torch.zeros_like(s.inner), s.inner + 1),
        slip=slip,
    )


def _multipliers(gap: Tensor, active: Tensor, rho: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """delta with (G_A G_A^T + I / rho) delta_A = gap_A, zero elsewhere, and the chains where that failed."""
    delta, failed = torch.zeros_like(gap), torch.zeros(len(gap), dtype=torch.bool, device=gap.device)
    count = active.sum(1)
    most, d = int(count.max()), rows.matrix.shape[1]
    if most == 0:
        return delta, failed
    small = most <= d
    per_chain = most * most if small else max(d, 1) * len(rows.matrix)
    solve = _by_gram if small else _by_normal
    for tile in torch.arange(len(gap), device=gap.device).split(max(1, TILE // per_chain)):
        delta[tile], failed[tile] = solve(gap[tile], active[tile], rho[tile], rows)
    return delta, failed


def _by_gram(gap: Tensor, active: Tensor, rho: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Few active rows: systems of their number."""
    most = int(active.sum(1).max())
    index = torch.argsort(active.to(torch.int8), dim=1, descending=True, stable=True)[:, :most]
    valid = active.gather(1, index)
    system = rows.gram[index[:, :, None], index[:, None, :]]
    system = system * (valid[:, :, None] & valid[:, None, :])
    system.diagonal(dim1=1, dim2=2).add_(torch.where(valid, 1 / rho[:, None], torch.ones_like(gap[:, :most])))
    factor, info = torch.linalg.cholesky_ex(system)
    part = torch.cholesky_solve(gap.gather(1, index)[:, :, None], factor).squeeze(2)
    failed = info > 0
    part = torch.where(valid & ~failed[:, None], part, torch.zeros_like(part))
    return torch.zeros_like(gap).scatter_(1, index, part), failed


def _by_normal(gap: Tensor, active: Tensor, rho: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """More active rows than coordinates: delta = rho (gap - G p), (G_A^T G_A + I / rho) p = G_A^T gap."""
    G = rows.matrix
    system = (G.T * active[:, None, :]) @ G
    system.diagonal(dim1=1, dim2=2).add_(1 / rho[:, None])
    factor, info = torch.linalg.cholesky_ex(system)
    move = torch.cholesky_solve((gap @ G)[:, :, None], factor).squeeze(2)
    failed = info > 0
    delta = rho[:, None] * (gap - move @ G.T)
    return torch.where(active & ~failed[:, None], delta, torch.zeros_like(delta)), failed


def _line_search(s: _State, p: Tensor, gp: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The t >= 0 that minimises the augmented Lagrangian at u + t p, exactly: its slope is piecewise linear in t."""
    rho = s.rho[:, None]
    shifted = s.gu + s.lam / rho
    outside = (shifted > high) | (shifted < low)
    delta = torch.where(outside, rho * (s.gu - shifted.clamp(low, high)), -s.lam)
    # slope(t) = (u + t p - x) . p + sum_i gp_i delta_i(t)
    slope = ((s.u - s.x) * p).sum(1) + (gp * delta).sum(1)
    weight = rho * gp.square()
    moving = gp != 0
    ahead = torch.where(moving, gp, torch.ones_like(gp))
    # Moving up, a row stops pulling at its lower bound and starts at its upper one; moving down the other way round.
    stop = torch.where(gp > 0, low - shifted, high - shifted) / ahead
    start = torch.where(gp > 0, high - shifted, low - shifted) / ahead
    curvature = p.square().sum(1) + (weight * (moving & ((stop > 0) | (start <= 0)))).sum(1)
    kinks = torch.cat([stop, start], dim=1)
    change = torch.cat([-weight, weight], dim=1)
    usable = torch.cat([moving, moving], dim=1) & (kinks > 0) & (kinks < torch.inf)
    kinks = torch.where(usable, kinks, torch.full_like(kinks, torch.inf))
    kinks, order = kinks.sort(1)
    change = torch.where(usable, change, torch.zeros_like(change)).gather(1, order)
    finite = torch.where(kinks < torch.inf, kinks, torch.zeros_like(kinks))
    # slope at t within the piece after kink j: a_j + b_j t
    a = slope[:, None] - (change * finite).cumsum(1)
    b = curvature[:, None] + change.cumsum(1)
    a, b = torch.cat([slope[:, None], a], dim=1), torch.cat([curvature[:, None], b], dim=1)
    end = torch.cat([kinks, torch.full_like(kinks[:, :1], torch.inf)], dim=1)
    root = -a / b.clamp_min(1e-300)
    piece = (root <= end).to(torch.int8).argmax(1, keepdim=True)
    best = root.gather(1, piece).squeeze(1)
    return torch.where((slope < 0) & torch.isfinite(best), best.clamp_min(0.0), torch.zeros_like(best))
