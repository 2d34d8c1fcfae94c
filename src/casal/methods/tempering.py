"""The weights of separate modes: a tempered start of chains inside a set, and scouts.

The chains first follow q, the density of the starting points, on the set, then q^(1-b) p^b, b = 0 ... 1, with weights
(p / q)^(b' - b), and are resampled where these are uneven.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.methods.chain_memory import memory
from casal.methods.inside_chains import Control, Done, HMCState, Row, Space, labels_of, plain, space_of
from casal.methods.metric import curved_scale, first_eps, first_scale, linear_score, root_of
from casal.methods.population import effective_ancestors, groups_of, normalised, resample, temper
from casal.methods.problem import Problem
from casal.methods.trajectories import GAINS, leapfrogs, log_start, pace, rattle, score_at

TEMPER_ROWS, DRAW_ROWS = 100, 10
"""Rows of a tempering, at most, and of what leads to q on a curved set."""

RENEWED = 8
"""Rows of a tempering on a curved set from one metric to the next."""

HEATED, LEAST_ESS = 3, 0.5
"""Leapfrogs of a trajectory of a tempered start, at most; resample below this share of the chains."""

FEWEST_ANCESTORS = 20.0
"""Effective draws from which the chains descend at the end of a tempered start, so that it says something of modes."""

SCOUTS, SCOUTING, SCOUT_SHARE = 64, (5, 15), 0.04
"""Scouts; the fewest and the most trajectories of each; and the share of all evaluations that they may take."""

ABOVE = 3.0
"""How far log p of a scout lies above that of all chains if it has found a mode of less volume, which they have not;
above their mean, if it is also FAR times as far from all of them as any of them is from its neighbour."""

FAR = 2.0


def begin(space: Space, problem: Problem, control: Control, y: Tensor, limit: float) -> Control:
    """The chains begin to follow q; the tempering ends at so many evaluations of a chain."""
    control = control._replace(phase="draw", left=1 if space.flat is not None else DRAW_ROWS, limit=limit, share=0.0)
    if space.flat is None or problem.start is None:
        return control
    start = problem.start
    found = linear_score(space, lambda x: start.score(x), y, problem.like)
    if found is None or found[0] != "gaussian":
        return control._replace(phase="temper", left=_levels(problem, control))
    return control._replace(centre=plain(found[1]), scale=plain(found[2]))


def _levels(problem: Problem, control: Control) -> int:
    """Rows of the tempering."""
    return max(1, min(TEMPER_ROWS, len(problem.table), int((control.limit - control.spent) / (HEATED + 1))))


def leave_start(problem: Problem, state: HMCState, control: Control, flowed: bool) -> tuple[HMCState, Control]:
    """The chains follow q, and the tempering begins; flows do not ask p."""
    space, t = space_of(problem), problem.table.t[0].to(state.x.device)
    score, log_p = state.score, state.log_p
    if flowed:
        score, log_p = score_at(space, problem, state.y, Row("rest", t)), problem.log_density(state.x)
        scale = first_scale(space, problem, state.y)
        control = control._replace(spent=control.spent + 2.0, scale=plain(scale), eps=first_eps(state.y, scale))
        control = control._replace(centre=plain(torch.zeros_like(state.y[0])))
    kept = memory(state.anchor, state.y, labels_of(problem, len(state.y)))
    crossed = flowed or (kept is not None and kept.value <= kept.limit)
    control = control._replace(crossed=crossed, trajectories=0)
    control = control._replace(phase="temper", left=_levels(problem, control))
    return state._replace(score=score, log_p=log_p), control


def heat(
    problem: Problem, state: HMCState, control: Control, record: dict[str, float], generator: torch.Generator
) -> Done:
    """The next b of a tempered start; at b = 1 scouts run."""
    groups, space = groups_of(problem, len(state.y)), space_of(problem)
    log_q = log_start(space, problem, state.y, Row("rest", problem.table.t[0], share=0.0))
    left = max(control.left, 1)
    b, log_weight = temper(control.share, state.log_weight, state.log_p - log_q, groups, left, LEAST_ESS)
    record |= {"share": b, "ess": groups.effective_size(log_weight)}
    if b < 1.0 and control.left <= 0:  # it does not come to an end
        b, log_weight, record["tempered"] = 1.0, torch.zeros_like(log_weight), 0.0
    elif b == 1.0:
        record["tempered"] = 1.0
    start = state.anchor  # where the chains began, whatever became of them
    state = resample(state._replace(log_weight=log_weight), generator, groups, LEAST_ESS if b < 1.0 else math.inf)
    state, control = state._replace(anchor=start), control._replace(share=b)
    if space.flat is not None:
        control = control._replace(scale=plain(first_scale(space, problem, state.y)))
    elif control.left % RENEWED == 0:
        control = control._replace(scale=plain(curved_scale(problem, state.y)))
    if b == 1.0:
        worth = effective_ancestors(normalised(state.log_weight), state.ancestor)
        record["tempered_ancestors"] = worth
        record["tempered"] *= worth >= FEWEST_ANCESTORS and control.crossed
        if problem.chains is None:
            lost, spent = _scout(space, problem, state, control, generator)
            record, control = record | lost, control._replace(spent=control.spent + spent)
        state = state._replace(anchor=state.y, before=state.y)
    return state, control, record | {"ancestors": float(len(state.ancestor.unique()))}


def _scout(
    space: Space, problem: Problem, state: HMCState, control: Control, generator: torch.Generator
) -> tuple[dict[str, float], float]:
    """Follow some starting points under p, count those that come to rest at a log p that no chain has."""
    n = len(state.y)
    m = min(SCOUTS, n)
    moves = min(SCOUTING[1], int(SCOUT_SHARE * len(problem.table) * n / m / (HEATED + 1)))
    if moves < SCOUTING[0]:
        return {}, 0.0
    some, used = torch.arange(m, device=state.y.device) * n // m, problem.usage.scores
    t, y = problem.table.t[0].to(state.x.device), state.anchor[some]
    centre, scale = (torch.tensor(v, dtype=y.dtype, device=y.device) for v in (control.centre, control.scale))
    row = Row("leapfrog", t, (HEATED,), centre=centre, scale=scale)
    scouts = HMCState(*(part[some] for part in state))._replace(y=y, score=score_at(space, problem, y, row))
    scouts = scouts._replace(log_p=problem.log_density(space.latents(y, problem.like)))
    move, eps = leapfrogs if space.flat is not None else rattle, control.eps
    for _ in range(moves):
        scouts = move(space, problem, scouts, row._replace(eps=eps), generator)
        rate = float(scouts.accepted.mean())
        eps *= pace(rate, GAINS[0])
    higher = scouts.log_p > state.log_p.max() + ABOVE
    apart = _apart(scouts.y, state.y) & (scouts.log_p > state.log_p.mean() + ABOVE)
    return {"lost": float((higher | apart).sum())}, (problem.usage.scores - used) / n


def _apart(points: Tensor, chains: Tensor) -> Tensor:
    """Which points (m, r) are far from all chains (n, r), in units of their spread, (m,) bool."""
    root = root_of(chains - chains.mean(0))
    if root is None or len(chains) <= 2 * chains.shape[1]:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    few = chains[:: max(1, len(chains) // 1024)]
    u, v = (torch.linalg.solve_triangular(root, w.T, upper=False).T for w in (points, few))
    own = torch.cdist(v, v)
    own.fill_diagonal_(torch.inf)
    return torch.cdist(u, v).amin(1) > FAR * own.amin(1).max()
