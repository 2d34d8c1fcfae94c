"""Nearest point of a polyhedron, exactly, for many points at once: the method of multipliers.

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

from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints.base import Budget
from casal.constraints.vectors import EPSILON, LARGEST, norm, relative
from casal.devices import waits
from casal.errors import ProjectionError

UNDERFLOW = 1e-290
"""Below this, rounding is absolute."""
PATIENCE = (3, 10)
"""Rounds without progress before giving up: when the tolerance is met, and when it is not."""
FAR, FARTHEST = 1e5, 1e13
"""Size of y in units of its projection beyond which y is approached in stages: if in trouble, and in any case."""
STAGE = 1e3
"""Length of a stage, in units of the set or of the point reached; how much longer the next one is on the same face."""
CERTAIN = (1e-13, 1e-11)
"""What may be left of G^T v, and must be left of -v . b, in a proof of emptiness; relative to the terms added."""
FIRST_RHO, GUESSED_RHO, LAST_RHO = 30.0, 1e6, 1e12
"""rho of the first round, without and with a guess of the active set, and the largest one."""
INNER_STEPS = 20
"""Newton steps in a round after which rho is lowered, because the active set still changes."""
TILE = 500_000
"""Numbers in one batch of small systems, to bound the memory."""


class Polyhedron(NamedTuple):
    """G x <= b (some rows with =), prepared once.

    Attributes:
        matrix: G, (m, d), rows of length one.
        bound: b, (m,), finite.
        equal: (m,) bool, rows that are equations.
        gram: G G^T, (m, m).
        source: (m,), which of the rows given to ``of`` each one comes from.
        side: (m,), -1 for lower bounds (a row that was turned round), else 1.
    """

    matrix: Tensor
    bound: Tensor
    equal: Tensor
    gram: Tensor
    source: Tensor
    side: Tensor

    @classmethod
    def of(cls, matrix: Tensor, low: Tensor, high: Tensor) -> Polyhedron:
        """low <= G x <= high, rows of G of length one; infinite bounds say nothing, equal ones make an equation."""
        equal = low == high
        upper = torch.nonzero(high < torch.inf).flatten()
        lower = torch.nonzero((low > -torch.inf) & ~equal).flatten()
        source = torch.cat([upper, lower])
        side = torch.cat([torch.ones_like(high[upper]), -torch.ones_like(low[lower])])
        turned = side[:, None] * matrix[source]
        bound = torch.cat([high[upper], -low[lower]])
        equations = torch.cat([equal[upper], torch.zeros_like(equal[lower])])
        return cls(turned, bound, equations, turned @ turned.T, source, side)

    def to(self, z: Tensor) -> Polyhedron:
        """The same on the device of ``z``."""
        return self if self.matrix.device == z.device else Polyhedron(*(part.to(z.device) for part in self))

    def signed(self, signs: Tensor) -> Tensor:
        """(n, m) bool: rows at their bounds, from signs +1 (upper), -1 (lower) and 0 of the rows given to ``of``."""
        return (signs[:, self.source] * self.side > 0) | self.equal


class Nearest(NamedTuple):
    """Nearest points and how they were found, chain by chain.

    Attributes:
        point: (n, d), the best point found.
        drift: (n, m), where the multipliers were running to at last: a Farkas certificate if the polyhedron is empty.
        converged: (n,) bool, the residual is within the tolerance.
        iterations: (n,) Newton steps.
        residual: (n,) the largest over the rows of the excess over a bound, relative to the terms of that row,
            sum_j |g_ij x_j| + |b_i|, and of the complementarity min(lam_i, b_i - g_i . x), relative to
            |y| + |x| + |b_i|.
    """

    point: Tensor
    drift: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class _State(NamedTuple):
    """The chains that are still at work; lengths in units of ``unit``.

    Attributes:
        chain: Their indices.
        unit: Size of what they are dealing with.
        size: |y|.
        bound: b, (n, m).
        x: y - G^T lam.
        lam: The multipliers.
        drift: Their last change.
        rho: Penalty of this round.
        top: Largest penalty that is presently tried.
        u: Newton iterate of this round.
        gu: G u.
        fresh: A round has just ended, and u = x.
        inner: Newton steps of this round.
        stale: Rounds without progress.
        best: Smallest residual so far.
        slip: |x - y + G^T lam|, where the steps ran out in the middle of a round.
        empty: The polyhedron has been proved to be empty.
    """

    chain: Tensor
    unit: Tensor
    size: Tensor
    bound: Tensor
    x: Tensor
    lam: Tensor
    drift: Tensor
    rho: Tensor
    top: Tensor
    u: Tensor
    gu: Tensor
    fresh: Tensor
    inner: Tensor
    stale: Tensor
    best: Tensor
    slip: Tensor
    empty: Tensor


@waits
def nearest(y: Tensor, rows: Polyhedron, budget: Budget, *, guess: Tensor | None = None) -> Nearest:
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


def touching(x: Tensor, rows: Polyhedron) -> Tensor:
    """(n, m) bool: rows at whose bounds x lies, to nine digits."""
    reach = 1e-9 * (norm(x)[:, None] + rows.bound.abs())
    return (x @ rows.matrix.T >= rows.bound - reach) | rows.equal


def contradiction(rows: Polyhedron, drift: Tensor) -> Tensor | None:
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


def _by_stages(y: Tensor, rows: Polyhedron, budget: Budget, found: Nearest, chain: Tensor) -> Nearest:
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
    y: Tensor, rows: Polyhedron, budget: Budget, guess: Tensor | None, *, patient: bool = False
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
    state = _start(y, rows, guess)
    for step in range(budget.iterations + 1):
        if step == budget.iterations or bool(state.fresh.any()):
            state, value = _measure(state, rows)
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
                state = _State(*(part[~done] for part in state))
            if not len(state.chain):
                break
        state = _newton_step(state, rows, guess if step == 0 else None, last=step + 1 == budget.iterations)
        if step == 0:
            guess = None
    return Nearest(point, drift, residual <= budget.tolerance, iterations, residual), gone


# ------------------------------------------------------------------ one Newton step


def _start(y: Tensor, rows: Polyhedron, guess: Tensor | None) -> _State:
    """All chains at y without multipliers, each in its own unit."""
    n, m = len(y), len(rows.matrix)
    peak = y.abs().amax(1).clamp_min(1e-100 * float(rows.bound.abs().amax()))
    unit = torch.where(peak > 0, peak, torch.ones_like(peak))
    x, zero, nothing = y / unit[:, None], y.new_zeros(n), y.new_zeros(n, m)
    count = torch.zeros(n, dtype=torch.long, device=y.device)
    return _State(
        chain=torch.arange(n, device=y.device),
        unit=unit,
        size=torch.linalg.vector_norm(x, dim=1),
        bound=rows.bound / unit[:, None],
        x=x,
        lam=nothing,
        drift=nothing,
        rho=zero + (FIRST_RHO if guess is None else GUESSED_RHO),
        top=zero + LAST_RHO,
        u=x,
        gu=nothing,
        fresh=count == 0,
        inner=count,
        stale=count,
        best=zero + torch.inf,
        slip=zero,
        empty=count > 0,
    )


def _measure(s: _State, rows: Polyhedron) -> tuple[_State, Tensor]:
    """Residuals of the chains whose round has ended (infinity for the others), and their new units."""
    gx = s.x @ rows.matrix.T
    excess = torch.where(rows.equal, (gx - s.bound).abs(), gx - s.bound)
    peak = torch.maximum(s.x.abs().amax(1), excess.amax(1))
    factor = torch.where(s.fresh & (peak > 0), peak, torch.ones_like(peak))
    each = factor[:, None]
    unit, x, bound, excess = s.unit * factor, s.x / each, rows.bound / (s.unit * factor)[:, None], excess / each
    lam, size = (s.lam / each).clamp(-1e300, 1e300), (s.size / factor).clamp_max(1e300)
    length = torch.linalg.vector_norm(x, dim=1)
    # A row that is not active has lam = 0, one that is active has no slack.
    loose = relative(torch.minimum(lam, -excess), (length + size)[:, None] + bound.abs()).amax(1)
    missed = relative(excess, _reach(x, bound, rows)).amax(1)
    x, missed = _without_noise(x, lam, bound, missed, rows)
    value = torch.maximum(torch.maximum(missed, loose), s.slip)

    # Zero, if it is in the set, stands for what is zero up to the rounding of y, and for what underflows.
    if bool(((rows.bound >= 0) & ((rows.bound == 0) | ~rows.equal)).all()):
        least = torch.where(rows.bound == 0, torch.inf, rows.bound.abs()).amin() / unit
        tiny = (length <= 8 * EPSILON * torch.minimum(size, least)) | (value > 4 * EPSILON) & (unit < UNDERFLOW)
        tiny &= s.fresh
        x, value = x.masked_fill(tiny[:, None], 0.0), value.masked_fill(tiny, 0.0)
    value = torch.where(s.fresh, value, torch.inf)
    progress = (value < 0.9 * s.best) | (factor < 0.5)
    stale = torch.where(s.fresh, torch.where(progress, torch.zeros_like(s.stale), s.stale + 1), s.stale)
    fresh = s.fresh[:, None]
    updated = s._replace(
        unit=unit,
        size=size,
        bound=bound,
        x=x,
        lam=lam,
        u=torch.where(fresh, x, s.u),
        gu=torch.where(fresh, gx / each, s.gu),
        stale=stale,
    )
    return updated, value


def _reach(x: Tensor, bound: Tensor, rows: Polyhedron) -> Tensor:
    """sum_j |g_ij x_j| + |b_i|, the terms of every row."""
    return x.abs() @ rows.matrix.abs().T + bound.abs()


def _without_noise(x: Tensor, lam: Tensor, bound: Tensor, missed: Tensor, rows: Polyhedron) -> tuple[Tensor, Tensor]:
    """Coordinates that are nothing but the rounding of x = y - G^T lam become zero, where that is nearer to the set.

    Only coordinates that are small beside the levels that they could reach.
    """
    left = torch.nonzero(missed > 4 * EPSILON).flatten()
    if not len(left):
        return x, missed
    part, pull = x[left], lam[left]
    terms = (part + pull @ rows.matrix).abs() + pull.abs() @ rows.matrix.abs()
    rounding = 8 * EPSILON * terms
    touched = (rows.matrix != 0) & (rows.bound != 0)[:, None]
    level = torch.where(touched, bound[left].abs()[:, :, None] / rows.matrix.abs(), torch.inf).amin(1)
    noise = part.abs() <= torch.minimum(rounding, 1e-9 * level)
    cleaned = part.masked_fill(noise, 0.0)
    gap = cleaned @ rows.matrix.T - bound[left]
    excess = torch.where(rows.equal, gap.abs(), gap)
    less = relative(excess, _reach(cleaned, bound[left], rows)).amax(1)
    better = less < missed[left]
    x, missed = x.clone(), missed.clone()
    x[left[better]], missed[left[better]] = cleaned[better], less[better]
    return x, missed


def _newton_step(s: _State, rows: Polyhedron, guess: Tensor | None, last: bool) -> _State:
    """One Newton step for every chain; a round ends where the active set is right."""
    rho, length = s.rho[:, None], torch.linalg.vector_norm(s.x, dim=1)
    pushed, rounding = s.lam > 0, 4 * EPSILON * _reach(s.x, s.bound, rows)
    shift = s.lam / rho - s.bound

    def outside(gu: Tensor) -> Tensor:
        """Polyhedron beyond their bounds; those without multiplier by more than rounding."""
        t = gu + shift
        return (t > 0) & (pushed | (t > rounding))

    active = (outside(s.gu) if guess is None else guess[s.chain]) | rows.equal
    base = s.x + s.lam.masked_fill(active, 0.0) @ rows.matrix
    gap = (base @ rows.matrix.T - s.bound).masked_fill(~active, 0.0)
    stalled = bool((s.stale > 0).any())
    delta, free, failed = _multipliers(gap, active, s.rho, rows, stalled)
    u = base - delta @ rows.matrix
    gu = u @ rows.matrix.T
    lam = (s.lam + delta).masked_fill(~active, 0.0)
    changed = ((lam < 0) & ~rows.equal | outside(gu) & ~active).any(1)
    right = ~changed & ~failed
    x, slip, empty, stuck = u, s.slip, s.empty, torch.zeros_like(right)

    if guess is None and not bool(right.all()):
        u, gu = u.clone(), gu.clone()
        search = torch.nonzero(~right & ~failed).flatten()
        part = _State(*(value[search] for value in s))
        share = _line_search(part, u[search] - part.u, gu[search] - part.gu, rows.equal)
        u[search] = torch.lerp(part.u, u[search], share[:, None])
        gu[search] = torch.lerp(part.gu, gu[search], share[:, None])
        stuck[search] = share <= EPSILON
    if stalled:
        share, empty = _pivot(lam, free, 4 * rounding, s.rho, rows)
        pivot, empty = right & (share > 0), right & empty
        step = torch.where(pivot, share, torch.zeros_like(share))[:, None] * free
        lam = torch.where(rows.equal, lam + step, (lam + step).clamp_min(0.0))
    if last:  # the point reached, and how far it is from y - G^T lam
        pulled = rho * (gu + shift)
        lam = torch.where(right[:, None], lam, torch.where(rows.equal, pulled, pulled.clamp_min(0.0)))
        x = torch.where(right[:, None], x, u)
        slip = torch.linalg.vector_norm(x - s.x + (lam - s.lam) @ rows.matrix, dim=1) / (length + s.size)
        slip = slip.masked_fill(right, 0.0)

    settled = right | last
    # rho too large for the rounding of the systems, or for the active set to settle: go back, and grow slowly again.
    retreat = (stuck | failed | (s.inner >= INNER_STEPS)) & ~settled
    growth = torch.where(s.inner == 0, 100.0, torch.where(s.inner <= 4, 10.0, 3.0)).to(s.rho)
    growth = torch.where(settled, growth, 1.0).masked_fill(retreat, 0.1)
    top = torch.where(retreat, growth * s.rho, torch.where(settled, 10 * s.top, s.top)).clamp_max(LAST_RHO)
    pick, change = settled[:, None], lam - s.lam
    if stalled:
        change = torch.where(empty[:, None], free, change)
    return s._replace(
        x=torch.where(pick, x, s.x),
        lam=torch.where(pick, lam, s.lam),
        drift=torch.where(pick, change, s.drift),
        rho=torch.minimum(growth * s.rho, top),
        top=top,
        u=torch.where(failed[:, None], s.u, u),
        gu=torch.where(failed[:, None], s.gu, gu),
        fresh=settled,
        inner=torch.where(settled | retreat, 0, s.inner + 1),
        slip=slip,
        empty=empty,
    )


def _pivot(lam: Tensor, free: Tensor, rounding: Tensor, rho: Tensor, rows: Polyhedron) -> tuple[Tensor, Tensor]:
    """How far the multipliers can go along dependent rows before one vanishes; whether nothing stops them.

    The dual function rises all the way, by what the rows there are violated, and x stays as it is.
    """
    size = free.abs().sum(1)
    useful = (free.abs() > rho[:, None] * rounding).any(1)
    useful &= torch.linalg.vector_norm(free @ rows.matrix, dim=1) <= 64 * EPSILON * size
    falling = (free < -1e-12 * size[:, None]) & ~rows.equal
    share = torch.where(falling, -lam / torch.where(falling, free, -1.0), torch.inf).amin(1)
    return torch.where(useful & (share < torch.inf), share, 0.0), useful & (share == torch.inf)


def _multipliers(
    gap: Tensor, active: Tensor, rho: Tensor, rows: Polyhedron, want_free: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """delta with (G_A G_A^T + I / rho) delta_A = gap_A, zero elsewhere; its part along dependent rows; what failed."""
    delta = torch.zeros_like(gap)
    free = torch.zeros_like(gap) if want_free else gap
    failed = torch.zeros(len(gap), dtype=torch.bool, device=gap.device)
    most, d = int(active.sum(1).max()), rows.matrix.shape[1]
    if most == 0:
        return delta, delta, failed
    solve, numbers = (_by_gram, most * most) if most <= d else (_by_normal, d * len(rows.matrix))
    for tile in torch.arange(len(gap), device=gap.device).split(max(1, TILE // numbers)):
        delta[tile], part, failed[tile] = solve(gap[tile], active[tile], rho[tile], rows, want_free)
        if want_free:
            free[tile] = part
    return delta, free, failed


def _by_gram(
    gap: Tensor, active: Tensor, rho: Tensor, rows: Polyhedron, want_free: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Few active rows: systems of their number."""
    most = int(active.sum(1).max())
    index = torch.argsort(active.to(torch.int8), dim=1, descending=True, stable=True)[:, :most]
    valid = active.gather(1, index)
    system = rows.gram[index[:, :, None], index[:, None, :]]
    system = system * (valid[:, :, None] & valid[:, None, :])
    system.diagonal(dim1=1, dim2=2).add_(torch.where(valid, 1 / rho[:, None], 1.0))
    factor, info = torch.linalg.cholesky_ex(system)
    lost = ~valid | (info > 0)[:, None]

    def spread(values: Tensor) -> Tensor:
        return torch.zeros_like(gap).scatter_(1, index, values.squeeze(2).masked_fill(lost, 0.0))

    part = torch.cholesky_solve(gap.gather(1, index)[:, :, None], factor)
    free = spread(torch.cholesky_solve(part, factor) / rho[:, None, None]) if want_free else gap
    return spread(part), free, info > 0


def _by_normal(
    gap: Tensor, active: Tensor, rho: Tensor, rows: Polyhedron, want_free: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """More active rows than coordinates: (G G^T + I / rho)^-1 v = rho (v - G (G^T G + I / rho)^-1 G^T v)."""
    G = rows.matrix
    system = (G.T * active[:, None, :]) @ G
    system.diagonal(dim1=1, dim2=2).add_(1 / rho[:, None])
    factor, info = torch.linalg.cholesky_ex(system)
    lost = ~active | (info > 0)[:, None]

    def along_dependent_rows(v: Tensor) -> Tensor:
        rest = v - torch.cholesky_solve((v @ G)[:, :, None], factor).squeeze(2) @ G.T
        return rest.masked_fill(lost, 0.0)

    delta = rho[:, None] * along_dependent_rows(gap)
    return delta, along_dependent_rows(delta) if want_free else gap, info > 0


def _line_search(s: _State, p: Tensor, gp: Tensor, equal: Tensor) -> Tensor:
    """The t >= 0 that minimises the augmented Lagrangian at u + t p, exactly: its slope is piecewise linear in t."""
    rho = s.rho[:, None]
    shifted = s.gu + s.lam / rho - s.bound
    pulling = (shifted > 0) | equal
    delta = torch.where(pulling, rho * (s.gu - s.bound), -s.lam)
    slope = ((s.u - s.x) * p).sum(1) + (gp * delta).sum(1)
    weight = rho * gp.square()
    curvature = p.square().sum(1) + weight.masked_fill(~(pulling | (shifted == 0) & (gp > 0)), 0.0).sum(1)
    # A row that moves up starts to pull when it meets its bound; one that moves down stops.
    kinks = -shifted / gp
    usable = (kinks > 0) & (kinks < torch.inf) & ~equal
    kinks, order = torch.where(usable, kinks, torch.inf).sort(1)
    change = torch.where(usable, weight * gp.sign(), 0.0).gather(1, order)
    # slope at t within the piece after kink j: a_j + b_j t
    a = slope[:, None] - (change * torch.where(kinks < torch.inf, kinks, 0.0)).cumsum(1)
    b = curvature[:, None] + change.cumsum(1)
    a, b = torch.cat([slope[:, None], a], dim=1), torch.cat([curvature[:, None], b], dim=1)
    root = -a / b.clamp_min(1e-300)
    end = torch.nn.functional.pad(kinks, (0, 1), value=torch.inf)
    piece = (root <= end).to(torch.int8).argmax(1, keepdim=True)
    best = root.gather(1, piece).squeeze(1)
    return torch.where((slope < 0) & torch.isfinite(best), best.clamp_min(0.0), 0.0)
