"""Moves of chains inside a set: exact flows, leapfrogs turned at flat walls, leapfrogs on curved sets, and slices.

A slice move takes a line through y, finds where it leaves the set, draws a level below log p(y), and points of the line
at random until one is above the level; each that is not cuts the line off there (Neal 2003). It asks for no gradient,
so it suits densities that are infinite at a wall, where leapfrogs end far off and are refused.

Every chain moves on its own. The density of a row is q^(1-b) p^b, q that of the starting points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.methods.flat_flows import drift, flow, fold, rounded
from casal.methods.inside_chains import INSIDE, HMCState, Row, Space
from casal.methods.problem import Problem, pick
from casal.methods.scales import solve, times, transposed
from casal.methods.surface import Surface

ACCEPTED, GAINS = 0.75, (1.0, 0.4)
"""Share of trajectories to accept, and the share of the way there that log eps goes after a row: in the first half of a
warm-up, and then."""

CUT = 0.4
"""Smallest factor of eps from one row to the next; the largest is 1 / CUT."""

PACES = 0.1
"""Each chain takes eps (1 +- PACES)."""

CUTS = 24
"""Cuts of a line, at most, after which the chain stays. The line is then 1e-7 of its length."""

LINE = 20.0
"""Length of a line in an unbounded set, in spreads."""


def pace(rate: float, gain: float) -> float:
    """The factor by which eps follows the share of accepted trajectories.

    The energy that leapfrogs lose has a spread of about eps^2, so of them erfc(c eps^2) are accepted, whatever c is.

    >>> round(pace(0.9, 1.0), 2), round(pace(0.5, 1.0), 2)
    (1.59, 0.69)
    """
    asked, seen = (-float(torch.special.ndtri(torch.tensor(0.5 * part))) for part in (ACCEPTED, min(rate, 1.0 - 1e-9)))
    return min(max((asked / max(seen, 1e-9)) ** (0.5 * gain), CUT), 1.0 / CUT)


def flows(space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator) -> list[HMCState]:
    """Draws by flows of a constant or a Gaussian density."""
    assert space.flat is not None
    walls = rounded(space.flat.walls, space.flat.room, row.centre, row.scale)
    u = solve(row.scale, state.y - row.centre)
    found = flow(walls, u, len(row.lengths), row.kind == "orbit", generator, row.draws)
    still = state._replace(accepted=1.0 - found.refused, refused=found.refused)
    return [still._replace(y=space.inside_walls(row.centre + times(row.scale, one))) for one in found.point]


def leapfrogs(space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator) -> HMCState:
    """Trajectories of leapfrogs between flat walls."""
    flat, known = space.flat, problem.target.potential is not None
    assert flat is not None
    folds = space.bounds if row.scale.ndim == 1 else None
    walls = None if folds else rounded(flat.walls, flat.room, row.centre, row.scale)
    accepted, refused, worst = (torch.zeros_like(state.log_p) for _ in range(3))
    for k, length in enumerate(row.lengths):
        v, eps, decide = _drawn(state.y, row, k, generator)
        y, score, start = state.y, state.score, log_start(space, problem, state.y, row)
        rise, gap, energy = torch.zeros_like(state.log_p), torch.zeros_like(state.log_p), 0.5 * v.square().sum(1)
        force = force_at(space, problem, y, score, row)
        for _ in range(length):
            v = v + 0.5 * eps * transposed(row.scale, force)
            if folds is not None:
                end, sign = fold(y + eps * row.scale * v, *folds)
                v = sign * v
            else:
                assert walls is not None
                u, v = drift(walls, solve(row.scale, y - row.centre), v, eps[:, 0])
                end = flat.drawn_in(row.centre + times(row.scale, u), INSIDE)
            lost = ~torch.isfinite(end).all(1)
            end, v = pick(lost, y, end), pick(lost, torch.full_like(v, torch.nan), v)
            new = score_at(space, problem, end, row)
            step = 0.5 * ((score + new) * (end - y)).sum(1)
            if row.fine:
                halfway = score_at(space, problem, 0.5 * (y + end), row)
                gap = gap + (2.0 * (halfway * (end - y)).sum(1) - 2.0 * step) / 3.0
            rise, y, score = rise + step, end, new
            force = force_at(space, problem, y, score, row)
            v = v + 0.5 * eps * transposed(row.scale, force)
        log_p = problem.log_density(space.latents(y, problem.like)) if known else state.log_p + rise + gap
        ratio = row.share * _minus(log_p, state.log_p) + log_start(space, problem, y, row) - start
        ratio = ratio + energy - 0.5 * v.square().sum(1)
        refused = refused + (~torch.isfinite(v).all(1)).to(refused) / len(row.lengths)
        state, chance = _decided(state, y, score, log_p, ratio, decide)
        accepted, worst = accepted + chance / len(row.lengths), torch.maximum(worst, (gap * (chance > 0.01)).abs())
    return state._replace(accepted=accepted, refused=refused, gap=worst)


def rattle(space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator) -> HMCState:
    """Trajectories of leapfrogs on a curved set; without a force (a blind row) they are a random walk."""
    known, scale = problem.target.potential is not None, row.scale if row.scale.numel() else None
    surface = Surface(problem.constraint, space.event, scale)
    here = surface.frame(surface.inward(state.y))
    factor = surface.log_factor(here)
    accepted, refused = torch.zeros_like(state.log_p), torch.zeros_like(state.log_p)
    for k, length in enumerate(row.lengths):
        v, eps, decide = _drawn(state.y, row, k, generator)
        at, v, y, score = here, here.tangent(v), state.y, state.score
        start, energy = log_start(space, problem, y, row) + factor, 0.5 * v.square().sum(1)
        rise, ok = torch.zeros_like(state.log_p), torch.ones(len(y), dtype=torch.bool, device=y.device)
        force = force_at(space, problem, y, score, row)
        for _ in range(length):
            v = v + 0.5 * eps * at.tangent(surface.pull(force))
            at, v, fine = surface.drift(at, v, eps)
            ok = ok & fine & torch.isfinite(v).all(1)
            end = surface.outward(at.w)
            new = score if row.blind else score_at(space, problem, end, row)
            rise, y, score = rise + 0.5 * ((score + new) * (end - y)).sum(1), end, new
            force = force_at(space, problem, y, score, row)
            v = v + 0.5 * eps * at.tangent(surface.pull(force))
        end_factor = surface.log_factor(at)
        log_p = problem.log_density(space.latents(y, problem.like)) if known else state.log_p + rise
        ratio = row.share * _minus(log_p, state.log_p) + log_start(space, problem, y, row) + end_factor - start
        ratio = torch.where(ok, ratio + energy - 0.5 * v.square().sum(1), -torch.inf)
        refused = refused + (~ok).to(refused) / len(row.lengths)
        state, chance = _decided(state, y, score, log_p, ratio, decide)
        yes = (state.y == y).all(1)
        here, factor = at.pick(yes, here), pick(yes, end_factor, factor)
        accepted = accepted + chance / len(row.lengths)
    return state._replace(accepted=accepted, refused=refused)


def slices(space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator) -> HMCState:
    """Slice moves between flat walls, along random directions and along such that lead past few walls.

    The latter are C^+ (e_i - e_j) for walls i, j: on a simplex they move two coordinates, in a box too.
    """
    flat = space.flat
    assert flat is not None
    y, log_p, refused, asked = state.y, state.log_p, torch.zeros_like(state.log_p), torch.zeros_like(state.log_p)
    count, walls = len(flat.walls), transposed(row.scale, flat.walls)
    across, slack = solve(row.scale, torch.linalg.pinv(flat.walls).T), flat.room - y @ flat.walls.T

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=y.dtype, device=y.device)

    moves = sum(row.lengths)
    for _ in range(moves):
        v = torch.randn(y.shape, generator=generator, dtype=y.dtype, device=y.device)
        if count > 1:
            pair = torch.randint(count, (2, len(y)), generator=generator, device=y.device)
            few = across[pair[0]] - across[pair[1]]
            size = torch.linalg.vector_norm(few, dim=1, keepdim=True)
            straight = (uniform(len(y)) < 0.5) & (size[:, 0] > 1e-9 * float(across.abs().max()))
            v = pick(straight, few / size.clamp_min(1e-300), v)
        speed, v = v @ walls.T, times(row.scale, v)
        u = uniform(2, len(y))
        low, high = -LINE * u[0], LINE * (1.0 - u[0])
        if count:
            ahead = torch.where(speed.abs() > 1e-300, slack.clamp_min(0.0) / speed, torch.inf)
            high = torch.minimum(high, torch.where(speed > 0, ahead, torch.inf).amin(1))
            low = torch.maximum(low, torch.where(speed < 0, ahead, -torch.inf).amax(1))
        level, left = log_p + torch.log(u[1]), torch.arange(len(y), device=y.device)
        at, y, log_p, went = y, y.clone(), log_p.clone(), torch.zeros_like(log_p)
        for _ in range(CUTS):
            t = low[left] + (high - low)[left] * uniform(len(left))
            here = space.take(left)
            there = here.inside_walls(at[left] + t[:, None] * v[left])
            found = problem.take(left).log_density(here.latents(there, problem.like))
            good = found >= level[left]
            asked[left] += 1.0
            y[left[good]], log_p[left[good]], went[left[good]] = there[good], found[good], t[good]
            bad = left[~good]
            before = t[~good] < 0
            low[bad], high[bad] = torch.where(before, t[~good], low[bad]), torch.where(before, high[bad], t[~good])
            left = bad
            if not len(left):
                break
        refused[left] += 1.0 / moves
        slack = slack - went[:, None] * speed
    return state._replace(y=y, log_p=log_p, accepted=1.0 - refused, refused=refused, gap=asked)


def score_at(space: Space, problem: Problem, y: Tensor, row: Row) -> Tensor:
    """Gradient of log p in y."""
    return space.pull(problem.score(space.latents(y, problem.like), row.t))


def force_at(space: Space, problem: Problem, y: Tensor, score: Tensor, row: Row) -> Tensor:
    """Gradient of log(q^(1-b) p^b) in y."""
    if row.blind:
        return torch.zeros_like(score)
    if row.share == 1.0:
        return score
    if row.reference is not None:
        return row.share * score + (1.0 - row.share) * row.reference.score(y)
    assert problem.start is not None
    return row.share * score + (1.0 - row.share) * space.pull(problem.start.score(space.latents(y, problem.like)))


def log_start(space: Space, problem: Problem, y: Tensor, row: Row) -> Tensor:
    """(1 - b) log q, (n,)."""
    if row.share == 1.0:
        return torch.zeros_like(y[:, 0])
    if row.reference is not None:
        return (1.0 - row.share) * row.reference.log_density(y)
    assert problem.start is not None
    return (1.0 - row.share) * problem.start.log_density(space.latents(y, problem.like)).to(y)


def _drawn(y: Tensor, row: Row, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Of trajectory k: v, the size of a leapfrog (n, 1), and the logarithm of a uniform number that decides (n,)."""
    v = torch.randn(y.shape, generator=generator, dtype=torch.float32, device=y.device).to(y)
    u = torch.rand((2, len(y)), generator=generator, dtype=y.dtype, device=y.device)
    eps = row.eps * (1.0 + PACES * (2.0 * u[0] - 1.0))[:, None]
    if row.decades and k % row.every == row.every - 1:
        wide = torch.rand((len(y), 1), generator=generator, dtype=y.dtype, device=y.device)
        eps = eps * 10.0 ** (-row.decades * wide)
    return v, eps, torch.log(u[1])


def _minus(one: Tensor, other: Tensor) -> Tensor:
    """one - other, where both may be minus infinity."""
    return torch.where(one == other, 0.0, one - other)


def _decided(
    state: HMCState, y: Tensor, score: Tensor, log_p: Tensor, ratio: Tensor, decide: Tensor
) -> tuple[HMCState, Tensor]:
    """Accept the end of a trajectory, or stay; and the probability of that (n,)."""
    ratio = torch.where(torch.isnan(ratio), -torch.inf, ratio)
    yes = decide < ratio
    new = state._replace(
        y=pick(yes, y, state.y), score=pick(yes, score, state.score), log_p=pick(yes, log_p, state.log_p)
    )
    return new, torch.exp(ratio.clamp_max(0.0))
