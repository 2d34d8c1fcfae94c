"""One step of a Gauss-Newton descent: planned in the tangent space, bent back to the rows, judged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.constraints.algorithms.gauss_newton_rows import (
    apply_rows,
    cut_to_radius,
    factorise,
    pull_back,
    row_length,
    tangent_at,
    tangent_of,
    tangential,
)
from casal.constraints.algorithms.gauss_newton_state import (
    CRAWL,
    EPSILON,
    NUDGE,
    Chains,
    Point,
    Step,
    System,
    Tangent,
    aside_direction,
    choose,
    look,
    open_part,
    take,
)
from casal.constraints.base import norm

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


def plan(system: System, here: Point, tangent: Tangent, chains: Chains, one_sided: Tensor, *, first: bool) -> Step:
    """Normal and tangential step inside the trust region."""
    along = -apply_rows(tangent.basis, tangent.pull)
    multipliers = torch.linalg.solve_triangular(tangent.factor.mT, along[:, :, None], upper=True).squeeze(2)
    multipliers = open_part(multipliers + tangent.forces / chains.scale[:, None], one_sided)
    multipliers = torch.where(tangent.active, multipliers, torch.zeros_like(multipliers))
    bend = system.curvature(here.z, multipliers / torch.where(here.lengths > 0, here.lengths, 1.0))

    def hessian(v: Tensor) -> Tensor:
        return v / chains.scale[:, None] + torch.nan_to_num(bend(v), 0.0, 0.0, 0.0)

    for attempt in range(BLOCKED + 1):
        normal = tangent.normal
        bent = hessian(normal)
        gradient = tangent.pull + bent
        if first:
            gradient = gradient + (NUDGE * norm(normal) / chains.scale)[:, None] * aside_direction(normal)
        left = (chains.radius.square() - normal.square().sum(1)).clamp_min(0.0).sqrt()
        slide, curved = _conjugate_gradients(hessian, tangent.basis, gradient, tangent.angle, left)
        if not bool(one_sided.any()):
            break
        share, blocking = _blocked(here, tangent, one_sided, normal, slide)
        if attempt == BLOCKED or not bool(blocking.any()):
            slide, curved = share[:, None] * slide, share[:, None] * curved
            break
        gram, active = here.unit @ here.unit.mT, tangent.active | blocking
        gap = torch.where(active, here.gap, torch.zeros_like(here.gap))
        forces = torch.cholesky_solve(gap[:, :, None], factorise(gram, active)).squeeze(2)
        forces = torch.where(blocking.any(1, keepdim=True), forces, tangent.forces)
        forces = forces * cut_to_radius(pull_back(here.unit, forces), 0.9 * chains.radius)[:, None]
        tangent = tangent_of(here, chains, gram, active, one_sided, forces)
    slides = (chains.slow < CRAWL)[:, None]
    return Step(normal + torch.where(slides, slide, 0.0), bent + torch.where(slides, curved, 0.0), multipliers)


def _conjugate_gradients(
    hessian: Callable[[Tensor], Tensor], basis: Tensor, gradient: Tensor, angle: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor]:
    """argmin 1/2 t.H t + gradient.t over the tangent space and |t| <= radius, and H times it."""
    t, bent = torch.zeros_like(gradient), torch.zeros_like(gradient)
    r = tangential(basis, gradient)
    size, rounding = row_length(r), 1e-15 * row_length(gradient)
    aim = torch.maximum(size * angle.clamp(1e-10, 0.1), 0.1 * rounding)
    p, live = -r, (size > rounding) & (radius > 0)
    for _ in range(min(INNER_STEPS, r.shape[1])):
        if not bool(live.any()):
            break
        p = torch.where(live[:, None], p, torch.zeros_like(p))
        hp = hessian(p)
        squared, curvature = r.square().sum(1), (p * hp).sum(1)
        length = p.square().sum(1)
        convex = curvature > EPSILON * length.sqrt() * row_length(hp)
        share = torch.where(convex, squared / torch.where(convex, curvature, 1.0), torch.inf)
        cross, room = (t * p).sum(1), (radius.square() - t.square().sum(1)).clamp_min(0.0)
        safe = torch.where(length > 0, length, 1.0)
        edge = room / (cross + (cross.square() + safe * room).sqrt()).clamp_min(1e-300)
        ends = share >= edge
        share = torch.where(live, torch.minimum(share, edge), 0.0)[:, None]
        t, bent = t + share * p, bent + share * hp
        r = torch.where(live[:, None], tangential(basis, r + share * hp), r)
        live = live & ~ends & (row_length(r) > aim)
        p = -r + (r.square().sum(1) / torch.where(squared > 0, squared, 1.0))[:, None] * p
    return t, bent


def _blocked(here: Point, tangent: Tangent, one_sided: Tensor, normal: Tensor, slide: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the tangential step up to the first row that is not active, and that row (one-hot)."""
    before = here.gap + apply_rows(here.unit, normal)
    ahead = apply_rows(here.unit, slide)
    meets = one_sided & ~tangent.active & (ahead > 0) & (before + ahead > 1e-13 * (1.0 + norm(here.z))[:, None])
    room = torch.where(meets, (-before).clamp_min(0.0) / torch.where(meets, ahead, 1.0), torch.inf)
    share, row = room.min(1)
    blocking = meets & (torch.arange(room.shape[1], device=room.device) == row[:, None]) & (share < 1.0)[:, None]
    return share.clamp_max(1.0), blocking


def try_step(
    system: System, here: Point, tangent: Tangent, chains: Chains, one_sided: Tensor, move: Step
) -> tuple[Point, Tangent, Chains]:
    """Evaluate the step, take it or not, and adapt the radius."""
    step, power = _corrected(system, here, tangent, move.step)
    length = norm(step)
    there = look(system, here.z + step)
    finite = torch.isfinite(there.violation)
    trial = torch.where(finite[:, None], there.gap * _ratio(there.lengths, here.lengths), torch.zeros_like(there.gap))
    linear = here.gap + apply_rows(here.unit, move.step)
    theta, modelled, reached = (norm(open_part(gap, one_sided)) for gap in (here.gap, linear, trial))

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
    tangent_there = tangent_at(there, chains, one_sided)
    taken = lower | (finite & (tangent_there.error <= 0.5 * chains.best))

    error = torch.where(finite[:, None], trial - linear, torch.zeros_like(trial))
    shorter = torch.full_like(length, 0.1)
    if not bool(taken.all()):
        shorter = torch.where(finite, _shorter(here, error, power, step, slope, chains, one_sided), shorter)
    longer = torch.where(gained > 0.99 * promised, 10.0, 3.0) * length
    grown = torch.where(gained > 0.7 * promised, torch.maximum(chains.radius, longer), chains.radius)
    grown = torch.where(lower & (gained < 0.1 * promised), 0.5 * length, grown)
    radius = torch.where(taken, grown, shorter * length)
    # A step may widen the gap to come nearer to y, but not again and again.
    left = norm(open_part(there.gap, one_sided))
    wider = taken & (left > 0.9 * theta) & (left > NARROW * (1.0 + norm(there.z)))
    moved = taken & (length > 1e-9 * (1.0 + norm(there.z)))
    chains = chains._replace(radius=radius, weight=torch.where(wider, 2.0 * weight, weight), moved=moved)
    here, tangent = choose(taken, there, here), choose(taken, tangent_there, tangent)
    again = torch.nonzero(~taken | (norm(tangent.normal) > 0.9 * radius)).flatten()
    if len(again):
        for whole, part in zip(tangent, tangent_at(take(here, again), take(chains, again), one_sided), strict=True):
            whole[again] = part
    return here, tangent, chains


def _corrected(system: System, here: Point, tangent: Tangent, step: Tensor) -> tuple[Tensor, Tensor]:
    """The step, bent back to the linearised rows, and the order of what it still leaves.

    A step along a curved set leaves it to second order, and would be refused for that (the Maratos effect).
    """
    linear, lengths = here.gap + apply_rows(here.unit, step), torch.where(here.lengths > 0, here.lengths, 1.0)
    bent, longest, small = step, 0.5 * norm(step), torch.ones_like(step[:, 0], dtype=torch.bool)
    for _ in range(CORRECTIONS):
        error = system.values(here.z + bent) / lengths - linear
        usable = small & torch.isfinite(error).all(1)
        error = torch.where(tangent.active & usable[:, None], error, 0.0)
        bent = bent - pull_back(here.unit, torch.cholesky_solve(error[:, :, None], tangent.factor).squeeze(2))
        small = usable & (norm(bent - step) <= longest)
        bent = torch.where(small[:, None], bent, step)
    return bent, torch.where(small, 2.0 + CORRECTIONS, 2.0).to(step)


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    """The factor from units of the new lengths to units of the old ones; a length of zero counts as one."""
    return torch.where(new > 0, new, 1.0) / torch.where(old > 0, old, 1.0)


def _shorter(
    here: Point, error: Tensor, power: Tensor, step: Tensor, slope: Tensor, chains: Chains, one_sided: Tensor
) -> Tensor:
    """The share of a failed step where the merit is least, with c + share U s + share^power error for its rows."""
    share = (0.5 ** torch.arange(1, HALVINGS + 1, dtype=step.dtype, device=step.device))[:, None]
    ahead = apply_rows(here.unit, step)[:, None]
    gap = here.gap[:, None] + share * ahead + share ** power[:, None, None] * error[:, None]
    theta = torch.linalg.vector_norm(open_part(gap, one_sided), dim=2)
    half = 0.5 * step.square().sum(1) / chains.scale
    share = share.squeeze(1)
    merit = chains.weight[:, None] * theta + share * slope[:, None] + share.square() * half[:, None]
    return share[merit.argmin(1)]
