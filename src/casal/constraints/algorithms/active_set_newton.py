"""One Newton step of the method of multipliers, and how far it has come."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints.algorithms.active_set_state import EPSILON, UNDERFLOW, Rows, State
from casal.constraints.base import relative

FIRST_RHO, GUESSED_RHO, LAST_RHO = 30.0, 1e6, 1e12
"""rho of the first round, without and with a guess of the active set, and the largest one."""
INNER_STEPS = 20
"""Newton steps in a round after which rho is lowered, because the active set still changes."""
TILE = 500_000
"""Numbers in one batch of small systems, to bound the memory."""


def start_state(y: Tensor, rows: Rows, guess: Tensor | None) -> State:
    """All chains at y without multipliers, each in its own unit."""
    n, m = len(y), len(rows.matrix)
    peak = y.abs().amax(1).clamp_min(1e-100 * float(rows.bound.abs().amax()))
    unit = torch.where(peak > 0, peak, torch.ones_like(peak))
    x, zero, nothing = y / unit[:, None], y.new_zeros(n), y.new_zeros(n, m)
    count = torch.zeros(n, dtype=torch.long, device=y.device)
    return State(
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


def measure(s: State, rows: Rows) -> tuple[State, Tensor]:
    """Residuals of the chains whose round has ended (infinity for the others), and their new units."""
    gx = s.x @ rows.matrix.T
    excess = torch.where(rows.equal, (gx - s.bound).abs(), gx - s.bound)
    peak = torch.maximum(s.x.abs().amax(1), excess.amax(1))
    factor = torch.where(s.fresh & (peak > 0), peak, torch.ones_like(peak))
    each = factor[:, None]
    unit, x, bound, excess = s.unit * factor, s.x / each, rows.bound / (s.unit * factor)[:, None], excess / each
    lam, size = (s.lam / each).clamp(-1e300, 1e300), (s.size / factor).clamp_max(1e300)
    length = torch.linalg.vector_norm(x, dim=1)
    reach = length[:, None] + bound.abs()
    # A row that is not active has lam = 0, one that is active has no slack.
    loose = relative(torch.minimum(lam, -excess), reach + size[:, None])
    value = torch.maximum(torch.maximum(relative(excess, reach), loose).amax(1), s.slip)

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


def newton_step(s: State, rows: Rows, guess: Tensor | None, last: bool) -> State:
    """One Newton step for every chain; a round ends where the active set is right."""
    rho, length = s.rho[:, None], torch.linalg.vector_norm(s.x, dim=1)
    pushed, rounding = s.lam > 0, 4 * EPSILON * (length[:, None] + s.bound.abs())
    shift = s.lam / rho - s.bound

    def outside(gu: Tensor) -> Tensor:
        """Rows beyond their bounds; those without multiplier by more than rounding."""
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
        part = State(*(value[search] for value in s))
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


def _pivot(lam: Tensor, free: Tensor, rounding: Tensor, rho: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
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
    gap: Tensor, active: Tensor, rho: Tensor, rows: Rows, want_free: bool
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


def _by_gram(gap: Tensor, active: Tensor, rho: Tensor, rows: Rows, want_free: bool) -> tuple[Tensor, Tensor, Tensor]:
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


def _by_normal(gap: Tensor, active: Tensor, rho: Tensor, rows: Rows, want_free: bool) -> tuple[Tensor, Tensor, Tensor]:
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


def _line_search(s: State, p: Tensor, gp: Tensor, equal: Tensor) -> Tensor:
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
