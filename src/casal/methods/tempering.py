"""The weights of separate modes: a tempered start that finds them, and a second pass that weighs them.

**First pass.** The chains follow q, the density of the starting points, on the set, then q^(1-b) p^b, b = 0 ... 1, with
weights (p / q)^(b' - b), and are resampled where these are uneven. It finds modes from any start that covers them.

**Second pass**, at the end of the warm-up. Scouts, some of the starting points, run under p alone: a mode that is narrow,
and becomes heavy only near b = 1, may have been lost on the way, and points that a user gave are not forgotten. Chains and
scouts give a mixture g of Gaussians around the modes, and n fresh draws of it go from g to p in the same way
(``mode_weights.py``). It is left out where the chains cross between its parts by themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.methods.chain_memory import centred, memory
from casal.methods.inside_chains import LENGTH, Control, Done, HMCState, Row, Space, labels_of, plain, solve, space_of
from casal.methods.metric import DENSE, curved_scale, first_eps, first_scale, linear_score, root_of, volume
from casal.methods.mode_weights import Drawn, Mixture, covers, first_weights, fresh
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

WEIGH_ROWS, WEIGHED = 20, 0.2
"""Rows of the second pass, at most, and its share of all evaluations."""

SCOUTS, SCOUTING, SCOUT_SHARE = 128, (5, 20), 0.05
"""Scouts; the fewest and the most trajectories of each; and the share of all evaluations that they may take."""

FEWEST_IN_PART = 8
"""Chains of a part of the mixture, and outside it, below which its ancestors say nothing."""

CROSSED = 0.5
"""Largest correlation of any two functions of the part of the mixture in which a chain is, at the beginning and at the
end of the second half of the warm-up, up to which chains cross by themselves: the rounds after it are longer."""


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
    """The next b on the way from q to p, or from the mixture to p."""
    groups, space, weighing = groups_of(problem, len(state.y)), space_of(problem), control.phase == "weigh"
    mixture = mixture_of(control, state.y)
    row = Row("rest", problem.table.t[0], share=0.0, reference=mixture)
    gain, left = state.log_p - log_start(space, problem, state.y, row), max(control.left, 1)
    least = None if weighing and left == 1 else LEAST_ESS
    b, log_weight = temper(control.share, state.log_weight, gain, groups, left, least)
    record |= {"share": b, "ess": groups.effective_size(log_weight)}
    if b < 1.0 and control.left <= 0:  # it does not come to an end
        b, log_weight, record["tempered"] = 1.0, torch.zeros_like(log_weight), 0.0
    elif b == 1.0 and not weighing:
        record["tempered"] = 1.0
    start = state.anchor  # where the chains began, whatever became of them
    state = resample(state._replace(log_weight=log_weight), generator, groups, LEAST_ESS if b < 1.0 else math.inf)
    state, control = state._replace(anchor=start), control._replace(share=b)
    worth = effective_ancestors(normalised(state.log_weight), state.ancestor)
    if not weighing and space.flat is not None:
        control = control._replace(scale=plain(first_scale(space, problem, state.y)))
    elif not weighing and control.left % RENEWED == 0:
        control = control._replace(scale=plain(curved_scale(problem, state.y)))
    if b == 1.0 and weighing:
        assert mixture is not None
        state, control = state._replace(part=mixture.label(state.y)), control._replace(weighed=True)
        record |= {"weighed": 1.0} | mode_errors(state.part, state.ancestor)
    elif b == 1.0:
        record["tempered_ancestors"] = worth
        record["tempered"] *= worth >= FEWEST_ANCESTORS and control.crossed
    return state, control, record | {"ancestors": float(len(state.ancestor.unique()))}


# ---------------------------------------------------------------------------------------------------- the second pass


def may_weigh(problem: Problem, n: int) -> bool:
    """Whether there can be a second pass: log p is known, and all chains follow it on one set."""
    return problem.target.potential is not None and problem.chains is None and problem.groups() is None


def mixture_of(control: Control, like: Tensor) -> Mixture | None:
    """The mixture of the second pass; None outside of it."""
    return Mixture.of(control.reference, like) if control.phase == "weigh" else None


def weigh(problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
    """Begin the second pass; not where the chains cross by themselves, or there is one mode."""
    space, n, used = space_of(problem), len(state.y), problem.usage.scores
    t = problem.table.t[0].to(state.x.device)
    scouts = _scouts(space, problem, state, control, generator)
    y, log_p = torch.cat([state.y, scouts.y]), torch.cat([state.log_p, scouts.log_p])
    good = torch.isfinite(log_p)
    drawn = fresh(space, problem, y[good], n, generator) if y.shape[1] <= DENSE else None
    if drawn is None or _crossing(drawn.mixture, state, scouts.y):
        return state, control._replace(spent=control.spent + (problem.usage.scores - used) / n), {}
    x = space.latents(drawn.y, problem.like)
    new, score = problem.log_density(x), score_at(space, problem, drawn.y, Row("rest", t))
    weight = first_weights(drawn)
    declined = weight is None or not covers(new - drawn.log_g, log_p[good] - drawn.at(y[good]))
    control = control._replace(spent=control.spent + (problem.usage.scores - used) / n)
    if declined:
        return state, control, {"weighed": 0.0}
    assert weight is not None
    control = _within(space, problem, control, drawn, state.y)
    state = state._replace(
        x=x, z=space.decoded(problem, drawn.y), y=drawn.y, score=score, log_p=new, log_weight=weight,
        ancestor=torch.arange(n, device=x.device),
    )  # fmt: skip
    return heat(problem, state, control, {}, generator)


def _within(space: Space, problem: Problem, control: Control, drawn: Drawn, y: Tensor) -> Control:
    """The phase of the second pass: metric and length of trajectories from the spread within the modes."""
    label = drawn.mixture.label(y)
    away = centred(y, label)
    scale = torch.tensor(control.scale, dtype=y.dtype, device=y.device)
    if space.flat is not None and (root := root_of(away)) is not None:
        control = control._replace(scale=plain(root), eps=min(control.eps * volume(scale, root), 1.0), length=LENGTH)
    elif scale.numel() or len(away) > 1:
        u = solve(scale, away) if scale.numel() else away
        control = control._replace(length=LENGTH * max(math.sqrt(float(u.var(0).amax())), 1e-12))
    budget = WEIGHED * len(problem.table)
    left, numbers = int(budget / (HEATED + 1)), tuple(plain(part) for part in drawn.mixture)
    control = control._replace(phase="weigh", left=max(1, min(WEIGH_ROWS, left)), share=0.0, reference=numbers)
    return control._replace(limit=control.spent + budget)


def _crossing(mixture: Mixture, state: HMCState, scouts: Tensor) -> bool:
    """Whether chains went from part to part of the mixture since the middle of the warm-up, and scouts are with them."""
    then, now, found = (mixture.label(y) for y in (state.before, state.y, scouts))
    count = len(mixture.share)
    if bool((torch.bincount(found, minlength=count)[torch.bincount(now, minlength=count) == 0] > 0).any()):
        return False
    joint = torch.bincount(then * count + now, minlength=count * count).reshape(count, count).to(state.y) / len(now)
    size = joint.sum(1, keepdim=True) * joint.sum(0)
    scaled = torch.where(size > 0, joint / size.clamp_min(1e-300).sqrt(), 0.0)
    return float(torch.linalg.svdvals(scaled)[1]) <= CROSSED


def mode_errors(part: Tensor, ancestor: Tensor) -> dict[str, float]:
    """The error of the weights of modes, from the draws that their chains descend from.

    A part with a share w of the chains, which descend from a_1 effective draws, and the rest from a_2, has the error
    w (1 - w) sqrt(1 / a_1 + 1 / a_2). ``mode_error`` is the largest, and ``mode_draws`` the fewest independent draws
    that would have such an error, w (1 - w) / error^2; parts with few chains say nothing.
    """
    worst, fewest, n = 0.0, math.inf, len(part)
    for k in part.unique().tolist():
        own = part == k
        w = float(own.sum()) / n
        if not FEWEST_IN_PART <= w * n <= n - FEWEST_IN_PART:
            continue
        one, other = (effective_ancestors(torch.ones_like(a, dtype=torch.float64) / len(a), a) for a in (ancestor[own], ancestor[~own]))
        error = w * (1.0 - w) * math.sqrt(1.0 / one + 1.0 / other)
        worst, fewest = max(worst, error), min(fewest, w * (1.0 - w) / error**2)
    return {"mode_error": worst, "mode_draws": fewest if math.isfinite(fewest) else float(n)}


def slowest(mixture: Mixture, state: HMCState) -> float:
    """The smallest acceptance of all parts of the mixture that hold a share of the chains."""
    own = torch.nn.functional.one_hot(mixture.label(state.y), len(mixture.share)).to(state.accepted)
    size = own.sum(0)
    some = size >= max(8.0, 0.02 * len(state.y))
    rates = (state.accepted @ own)[some] / size[some]
    return float(rates.amin()) if bool(some.any()) else float(state.accepted.mean())


def _scouts(space: Space, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> HMCState:
    """Some starting points, after a few trajectories under p; none if they would take too long."""
    n = len(state.y)
    m = min(SCOUTS, n)
    moves = min(SCOUTING[1], int(SCOUT_SHARE * len(problem.table) * n / m / (HEATED + 1)))
    some = torch.arange(m if moves >= SCOUTING[0] else 0, device=state.y.device) * n // m
    t, y = problem.table.t[0].to(state.x.device), state.anchor[some]
    scouts = HMCState(*(part[some] for part in state))._replace(y=y)
    if not len(some):
        return scouts
    centre, scale = (torch.tensor(v, dtype=y.dtype, device=y.device) for v in (control.centre, control.scale))
    row = Row("leapfrog", t, (HEATED,), centre=centre, scale=scale)
    log_p = problem.log_density(space.latents(y, problem.like))
    scouts = scouts._replace(score=score_at(space, problem, y, row), log_p=log_p)
    move, eps = leapfrogs if space.flat is not None else rattle, control.eps
    for _ in range(moves):
        scouts = move(space, problem, scouts, row._replace(eps=eps), generator)
        eps *= pace(float(scouts.accepted.mean()), GAINS[0])
    return scouts
