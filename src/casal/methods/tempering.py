"""The weights of separate modes: a tempered start that finds them, and a second pass that weighs them.

**First pass.** The chains follow q on the set, then q^(1-b) p^b, b = 0 ... 1, with weights (p / q)^(b' - b), and are
resampled where these are uneven. In few dimensions, on a bounded set that is not much wider than the start, q is
constant, and the pass finds modes wherever the chains began. Else it is the density of the starting points, where that
is known, and finds modes that these cover.

**Second pass**, at the end of the warm-up. After a tempered start scouts run under p alone: some of the starting
points, since points that a user gave are not forgotten, and local maxima among many points all over the set, since a
mode that is narrow, and becomes heavy only near b = 1, may have been lost on the way. Chains and scouts give a mixture
g of Gaussians around the modes, and fresh draws of it, one for every sample, go from g to p in the same way
(``mode_weights.py``). It is left out where the chains cross between its parts by themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.constraints import Centre, Reduction, analytic_centre
from casal.methods.chain_memory import centred, memory
from casal.methods.flat_flows import flow, rounded
from casal.methods.inside_chains import (
    INSIDE,
    LENGTH,
    Control,
    Done,
    HMCState,
    Reference,
    Row,
    Space,
    Uniform,
    labels_of,
    plain,
    space_of,
)
from casal.methods.metric import (
    DENSE,
    barrier,
    curved_scale,
    first_eps,
    first_scale,
    linear_score,
    root_of,
    some_starts,
)
from casal.methods.mode_weights import Mixture, clusters, covers, first_weights, fit
from casal.methods.population import effective_ancestors, equal_weights, groups_of, normalised, resample, temper
from casal.methods.problem import Problem
from casal.methods.scales import shrinkage, solve, times
from casal.methods.trajectories import ACCEPTED, GAINS, leapfrogs, log_start, pace, rattle, score_at

TEMPER_ROWS, DRAW_ROWS, SETTLED = 100, 40, 10
"""Rows of a tempering, and of what leads to q on a curved set, at most; and after how many of the latter to look
whether the chains still spread."""

DECADES = 1.5
"""Every second row of a tempering, and every fourth of a warm-up, takes steps of sizes over so many decades: a narrow
mode froze without them."""

RENEWED = 8
"""Rows of a tempering on a curved set from one metric to the next."""

HEATED, LEAST_ESS, PACE = 3, 0.5, 0.2
"""Leapfrogs of a trajectory of a tempered start, at most; resample below this share of the chains; and what a level
adds to the spread of the log-weights, at least: three levels leave 0.7 of the chains effective."""

FEW_DIMENSIONS, WIDEST = 16, 10.0
"""Dimensions up to which a tempered start may begin from a constant density, and how many times as wide as the starting
points, in a mean over the directions, a bounded set may be for that: more chains would miss all modes."""

NARROW, EVEN = 0.5, 0.1
"""Slope of log p over log q among the starting points below which the density is wider than these: for Gaussians 1.4
times. On the way from q to p, chains then have to spread, and most ancestors are lost for nothing. And the variance of
log q, half the number of directions for a Gaussian, up to which q is about constant on the set."""

FEWEST_TO_EXPLORE = 200
"""Evaluations of a chain from which on there are enough for a tempered start whatever the starting points are."""

SPREADING = 1.3
"""Growth of the spread of chains that follow a constant density, over the second half of their moves, from which on the
set passes for unbounded."""

SPREAD_FLOWS = 8
"""Flows from one point after which chains are about uniform."""

FEWEST_ANCESTORS = 20.0
"""Effective draws from which the chains descend at the end of a tempered start, so that it says something of modes."""

WEIGH_ROWS, WEIGHED = 20, 0.2
"""Rows of the second pass, at most, and its share of all evaluations."""

SCOUTS, SCOUTING, SCOUT_SHARE = 128, (5, 20), 0.05
"""Scouts; the fewest and the most trajectories of each; and the share of all evaluations that they may take."""

POOL, AT_ONCE = 8192, 1024
"""Points all over a bounded set of which the highest of their surroundings become scouts, at most: a mode whose
surroundings take one part in 2000 of the set has several. And how many are compared with all others at once."""

STOPS, VALLEY, MISSED_SHARE = 8, 3.0, 0.01
"""Points on the way from a scout to the nearest chain; how far log p has to fall there below both ends, or to lie above
that of all chains; and the share of the chains above which the scout must be: then it is in a mode without chains."""

FEWEST_IN_PART, SMALLEST_MODE = 8, 0.1
"""Chains of a part of the mixture below which their acceptance says nothing; and the share of all below which the error
of its weight is small anyway, and that of the error large."""

CHANCE = 2.0
"""Standard errors by which the acceptance in a part of the mixture may be low by chance."""

CROSSED, CHANGED = 0.5, 3.5
"""Largest correlation of any two functions of the part of the mixture in which a chain is, at the beginning and at the
end of the second half of the warm-up, up to which chains cross by themselves, apart from chance: the rounds after it
are longer. And the change of a share, in standard errors, beyond which they still flow from one to another."""


def explores(problem: Problem) -> bool:
    """Whether q may be constant: few dimensions, many steps; a flat set has to be bounded, and that of all chains."""
    space = space_of(problem)
    if len(problem.table) < FEWEST_TO_EXPLORE:
        return False
    flat = space.flat
    if flat is None:
        return math.prod(space.event) <= FEW_DIMENSIONS
    alone = problem.chains is None and problem.groups() is None
    return alone and flat.dimension <= FEW_DIMENSIONS and _ellipsoid(flat) is not None


def spread_over(problem: Problem, count: int) -> Tensor:
    """Points (count, r) of a bounded flat set, about uniform; none if it is large or unbounded."""
    flat = space_of(problem).flat
    assert flat is not None
    found = _ellipsoid(flat) if explores(problem) else None
    y = torch.zeros((count, flat.dimension), dtype=torch.float64, device=problem.like.device)
    if found is None:
        return y[:0]
    walls, generator = rounded(flat.walls, flat.room, found.y, found.scale), torch.Generator(y.device).manual_seed(0)
    y = found.y + times(found.scale, flow(walls, y, SPREAD_FLOWS, False, generator).point[-1])
    return flat.drawn_in(y, INSIDE)


def _ellipsoid(flat: Reduction) -> Centre | None:
    """Centre and ellipsoid of the walls; None for an unbounded set."""
    return analytic_centre(flat.walls, flat.room[0], torch.zeros_like(flat.walls[0])) if len(flat.walls) else None


def narrow(space: Space, problem: Problem, y: Tensor, log_p: Tensor) -> bool:
    """Whether the density of the starting points y is known and narrower than p."""
    if problem.start is None:
        return False
    log_q = problem.start.log_density(space.latents(y, problem.like)).to(log_p)
    known = torch.isfinite(log_q) & torch.isfinite(log_p)
    both = torch.cov(torch.stack([log_q[known], log_p[known]])) if int(known.sum()) > 1 else torch.zeros(2, 2)
    return float(both[0, 0]) > EVEN and float(both[0, 1]) < NARROW * float(both[0, 0])


def begin(space: Space, problem: Problem, control: Control, state: HMCState, limit: float) -> Control:
    """The chains begin to follow q; the tempering ends at so many evaluations of a chain. b = 1 if there is none."""
    flat, start, y = space.flat, problem.start, state.y
    control = control._replace(phase="draw", left=1 if flat is not None else SETTLED, limit=limit, share=0.0)
    uniform = explores(problem)
    if not uniform and narrow(space, problem, y, state.log_p):
        return control._replace(share=1.0)
    if flat is None:
        return control._replace(reference="uniform" if uniform else ())
    if uniform:
        centre, scale = barrier(flat)
        root = root_of(y - y.mean(0))
        if start is None or (root is not None and shrinkage(scale, root) < WIDEST):
            return control._replace(reference="uniform", centre=plain(centre), scale=plain(scale))
    found = None if start is None else linear_score(space, start.score, some_starts(y), problem.like)
    if found is None or found[0] != "gaussian":
        return control._replace(phase="temper", left=_levels(problem, control))
    return control._replace(centre=plain(found[1]), scale=plain(found[2]))


def _levels(problem: Problem, control: Control) -> int:
    """Rows of the tempering."""
    return max(1, min(TEMPER_ROWS, len(problem.table), int((control.limit - control.spent) / (HEATED + 1))))


def too_wide(problem: Problem, state: HMCState, control: Control) -> bool:
    """Whether a constant density on a curved set has carried the chains much further than they began."""
    if control.reference != "uniform" or problem.start is None or space_of(problem).flat is not None:
        return False
    first, last = (float(y.var(0).sum().sqrt()) for y in (state.anchor, state.y))
    return last > WIDEST * first


def leave_start(problem: Problem, state: HMCState, control: Control, flowed: bool) -> tuple[HMCState, Control]:
    """The chains follow q, and the tempering begins; flows do not ask p.

    Chains that a constant density on a curved set carries further and further, or much further than they began, follow
    the density of the start instead. If that is not known, there is no tempering, b = 1.
    """
    space, t = space_of(problem), problem.table.t[0].to(state.x.device)
    score, log_p = state.score, state.log_p
    if control.reference == "uniform" and not flowed:
        middle, last = (float(y.var(0).sum().sqrt()) for y in (state.before, state.y))
        wide = too_wide(problem, state, control)
        if not wide and last > SPREADING * middle and control.row + SETTLED <= DRAW_ROWS - SETTLED:
            return state, control._replace(left=SETTLED)
        if wide or last > SPREADING * middle:
            state = at_start(space, problem, state)
            none = problem.start is None or narrow(space, problem, state.y, state.log_p)
            back = control._replace(reference=(), left=SETTLED, share=float(none), spent=control.spent + 2.0)
            return state, back._replace(eps=first_eps(state.y, torch.zeros(0)))
    if flowed:
        score, log_p = score_at(space, problem, state.y, Row("rest", t)), problem.log_density(state.x)
        scale = first_scale(space, problem, state.y)
        control = control._replace(spent=control.spent + 2.0, scale=plain(scale), eps=first_eps(state.y, scale))
        control = control._replace(centre=plain(torch.zeros_like(state.y[0])))
    kept = memory(state.anchor, state.y, labels_of(problem, len(state.y)))
    crossed = flowed or (kept is not None and kept.value <= kept.limit)
    control = control._replace(crossed=crossed, phase="temper", left=_levels(problem, control))
    return state._replace(score=score, log_p=log_p), control


def at_start(space: Space, problem: Problem, state: HMCState) -> HMCState:
    """The chains where they began, each its own ancestor: two evaluations each."""
    y, (log_weight, ancestor) = state.anchor, equal_weights(problem, len(state.y))
    score, log_p = (
        score_at(space, problem, y, Row("rest", problem.table.t[0].to(y.device))),
        problem.log_density(space.latents(y, problem.like)),
    )
    return state._replace(y=y, before=y, score=score, log_p=log_p, log_weight=log_weight, ancestor=ancestor)


def heat(
    problem: Problem, state: HMCState, control: Control, record: dict[str, float], generator: torch.Generator
) -> Done:
    """The next b on the way from q to p, or from the mixture to p."""
    groups, space, weighing = groups_of(problem, len(state.y)), space_of(problem), control.phase == "weigh"
    row = Row("rest", problem.table.t[0], share=0.0, reference=reference_of(control, state.y))
    gain, left = state.log_p - log_start(space, problem, state.y, row), max(control.left, 1)
    least = None if weighing and left == 1 else LEAST_ESS
    b, log_weight = temper(control.share, state.log_weight, gain, groups, left, least, PACE)
    record |= {"share": b, "ess": groups.effective_size(log_weight) * control.n / len(state.y)}
    if b < 1.0 and control.left <= 0:  # it does not come to an end
        b, log_weight, record["tempered"] = 1.0, torch.zeros_like(log_weight), 0.0
    elif b == 1.0 and not weighing:
        record["tempered"] = 1.0
    start = state.anchor  # where the chains began, whatever became of them
    state = resample(state._replace(log_weight=log_weight), generator, groups, LEAST_ESS if b < 1.0 else math.inf)
    state, control = state._replace(anchor=start), control._replace(share=b)
    worth = effective_ancestors(normalised(state.log_weight), state.ancestor)
    if not weighing and b < 1.0 and worth < FEWEST_ANCESTORS:  # it says nothing of modes, and copies are slow to part
        state, b, record["tempered"] = at_start(space, problem, state), 1.0, 0.0
        control = control._replace(share=b, spent=control.spent + 2.0)
    if not weighing and (space.flat is not None or control.left % RENEWED == 0 or "tempered" in record):
        scale = curved_scale(problem, state.y) if space.flat is None else first_scale(space, problem, state.y)
        control = control._replace(scale=plain(scale))
        if record.get("tempered") == 0.0:
            control = control._replace(eps=first_eps(state.y, scale))
    if b == 1.0 and weighing:
        state, control = state._replace(part=clusters(state.y, generator)), control._replace(weighed=True)
        record |= {"weighed": 1.0} | mode_errors(state.part, state.ancestor)
    elif b == 1.0:
        record["tempered_ancestors"] = worth
        record["tempered"] *= worth >= FEWEST_ANCESTORS and control.crossed
    return state, control, record | {"ancestors": float(len(state.ancestor.unique()))}


# ---------------------------------------------------------------------------------------------------- the second pass


def may_weigh(problem: Problem) -> bool:
    """Whether there can be a second pass: log p is known, and all chains follow it on one set."""
    return problem.target.potential is not None and problem.chains is None and problem.groups() is None


def mixture_of(control: Control, like: Tensor) -> Mixture | None:
    """The mixture of the second pass; None outside of it."""
    return Mixture.of(control.reference, like) if control.phase == "weigh" else None


def reference_of(control: Control, like: Tensor) -> Reference | None:
    """The density from which the weights lead to p; None for that of the starting points."""
    return Uniform() if control.reference == "uniform" else mixture_of(control, like)


def weigh(problem: Problem, state: HMCState, control: Control, generator: torch.Generator, tempered: bool) -> Done:
    """Begin the second pass; not where the chains cross by themselves, or there is one mode.

    Without a tempered start the chains themselves have followed p from the starting points, and need no scouts.
    """
    space, n, used = space_of(problem), len(state.y), problem.usage.scores
    scouts = _scouts(space, problem, state, control, generator) if tempered else state.rows(slice(0))
    y, log_p = torch.cat([state.y, scouts.y]), torch.cat([state.log_p, scouts.log_p])
    good = torch.isfinite(log_p)
    most = int(good[:n].sum())
    found = fit(space, problem, y[good], log_p[good], most, generator) if y.shape[1] <= DENSE else None
    control = control._replace(spent=control.spent + (problem.usage.scores - used) / n)
    if found is None:
        return state, control, {}
    if not found.alone and _crossing(found.mixture, state):
        return state, control, {}
    record = {"weighed": 0.0, "alone": float(found.alone)}
    drawn = None if found.dropped else found.draw(control.n)
    if drawn is None:
        return state, control, record
    t, x, log_g = problem.table.t[0].to(state.x.device), space.latents(drawn, problem.like), found.at(drawn)
    new, score = problem.log_density(x), score_at(space, problem, drawn, Row("rest", t))
    weight, control = first_weights(found.mixture, drawn, log_g), control._replace(spent=control.spent + 2.0)
    if weight is None or not covers(new - log_g, log_p[good] - found.at(y[good])):
        return state, control, record
    control = _within(space, problem, control._replace(stride=1), found.mixture, state.y)
    every = torch.arange(control.n, device=x.device)
    state = state.rows(every % n)._replace(
        x=x, z=space.decoded(problem, drawn), y=drawn, score=score, log_p=new, log_weight=weight, ancestor=every
    )
    return heat(problem, state, control, {}, generator)


def _within(space: Space, problem: Problem, control: Control, mixture: Mixture, y: Tensor) -> Control:
    """The phase of the second pass: metric and length of trajectories from the spread within the modes."""
    away = centred(y, mixture.label(y))
    scale = torch.tensor(control.scale, dtype=y.dtype, device=y.device)
    if space.flat is not None and (root := root_of(away)) is not None:
        control = control._replace(scale=plain(root), eps=min(control.eps * shrinkage(scale, root), 1.0), length=LENGTH)
    elif scale.numel() or len(away) > 1:
        u = solve(scale, away) if scale.numel() else away
        control = control._replace(length=LENGTH * max(math.sqrt(float(u.var(0).amax())), 1e-12))
    budget = WEIGHED * len(problem.table)
    left, numbers = int(budget / (HEATED + 1)), tuple(plain(part) for part in mixture)
    control = control._replace(phase="weigh", left=max(1, min(WEIGH_ROWS, left)), share=0.0, reference=numbers)
    return control._replace(limit=control.spent + budget)


def _crossing(mixture: Mixture, state: HMCState) -> bool:
    """Whether chains cross between the parts of the mixture, since the middle of the warm-up, both ways.

    k parts of n chains that forget where they were still show a correlation of 2 sqrt((k - 1) / n), the largest
    singular value of a matrix (k - 1, k - 1) of independent numbers of variance 1 / n.
    """
    (then, now), count, n = (mixture.label(y) for y in (state.before, state.y)), len(mixture.share), len(state.y)
    joint = torch.bincount(then * count + now, minlength=count * count).reshape(count, count).to(state.y) / n
    before, after = joint.sum(1), joint.sum(0)
    if bool(((before - after).abs() > CHANGED * ((before + after) / n).sqrt()).any()):
        return False
    size = before[:, None] * after
    scaled = torch.where(size > 0, joint / size.clamp_min(1e-300).sqrt(), 0.0)
    return float(torch.linalg.svdvals(scaled)[1]) <= math.sqrt(CROSSED**2 + 4.0 * (count - 1) / n)


def mode_errors(part: Tensor, ancestor: Tensor) -> dict[str, float]:
    """The error of the weights of modes, from the draws that their chains descend from.

    A part with a share w of the chains, which descend from a_1 effective draws, and the rest from a_2, has the error
    w (1 - w) sqrt(1 / a_1 + 1 / a_2). ``mode_error`` is the largest, and ``mode_draws`` the fewest independent draws
    that would have such an error, w (1 - w) / error^2; smaller parts than SMALLEST_MODE are left out.
    """
    worst, fewest, n = 0.0, math.inf, len(part)
    for k in part.unique().tolist():
        own = part == k
        w = float(own.sum()) / n
        if not SMALLEST_MODE <= w <= 1.0 - SMALLEST_MODE:
            continue
        one, other = (_equal_ancestors(ancestor[some]) for some in (own, ~own))
        error = w * (1.0 - w) * math.sqrt(1.0 / one + 1.0 / other)
        worst, fewest = max(worst, error), min(fewest, w * (1.0 - w) / error**2)
    return {"mode_error": worst, "mode_draws": fewest if math.isfinite(fewest) else float(n)}


def _equal_ancestors(ancestor: Tensor) -> float:
    """Effective ancestors of chains with equal weights."""
    return effective_ancestors(torch.full((len(ancestor),), 1.0 / len(ancestor), dtype=torch.float64), ancestor.cpu())


def slowest(mixture: Mixture, state: HMCState) -> float:
    """The smallest acceptance of all parts of the mixture, apart from chance in those with few chains."""
    own = torch.nn.functional.one_hot(mixture.label(state.y), len(mixture.share)).to(state.accepted)
    size = own.sum(0)
    chance = CHANCE * state.accepted.std() / size.clamp_min(1.0).sqrt()
    rates = (state.accepted @ own) / size.clamp_min(1.0) + chance
    some = size >= max(FEWEST_IN_PART, 0.5 * SMALLEST_MODE * len(state.y))
    return min(float(rates[some].amin()), 1.0) if bool(some.any()) else ACCEPTED


def _scouts(space: Space, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> HMCState:
    """Points after a few trajectories under p: starting points, and the highest of their surroundings all over the set.

    Where one of the latter ends in a place without chains, as high as these are, copies of it find out how wide that
    is. Modes may be narrow: the latter, and the copies, take steps of all sizes in every second trajectory.
    """
    n, budget = len(state.y), SCOUT_SHARE * len(problem.table) * len(state.y)
    peaks = _peaks(space, problem, SCOUTS // 2, int(0.5 * budget))
    m = min(SCOUTS - len(peaks), n)
    moves = min(SCOUTING[1], int(budget / (m + len(peaks)) / (HEATED + 1)))
    if moves < SCOUTING[0]:
        return state.rows(slice(0))
    y, move = (
        state.anchor[torch.arange(m, device=state.y.device) * n // m],
        leapfrogs if space.flat is not None else rattle,
    )
    centre, scale = (torch.tensor(v, dtype=y.dtype, device=y.device) for v in (control.centre, control.scale))
    row = Row("leapfrog", problem.table.t[0].to(y.device), (HEATED,), centre=centre, scale=scale)

    def followed(y: Tensor, decades: float) -> HMCState:
        log_p, some = problem.log_density(space.latents(y, problem.like)), torch.arange(len(y), device=y.device) % n
        scouts = state.rows(some)._replace(y=y, score=score_at(space, problem, y, row), log_p=log_p)
        eps = control.eps
        for k in range(moves):
            scouts = move(space, problem, scouts, row._replace(eps=eps, decades=decades * (k % 2)), generator)
            if not decades or not k % 2:
                eps *= pace(float(scouts.accepted.mean()), GAINS[0])
        return scouts

    scouts = [followed(y, 0.0)]
    if len(peaks):
        scouts.append(followed(peaks, DECADES))
        apart = torch.nonzero(_apart(space, problem, scale, state, scouts[1])).flatten()
        if len(apart):
            copies = scouts[1].y[apart[torch.arange(SCOUTS, device=y.device) % len(apart)]]
            scouts.append(followed(copies, DECADES))
    return HMCState(*(torch.cat(parts) for parts in zip(*scouts, strict=True)))


def _peaks(space: Space, problem: Problem, count: int, most: int) -> Tensor:
    """Those of at most ``most`` points all over a bounded flat set from which a higher one is farthest, (count, r).

    A mode whose surroundings hold a few of the points is among them, however narrow it is: it need not be heavy at any
    b on the way from q to p.
    """
    if space.flat is None:
        return problem.like[:0]
    pool = spread_over(problem, min(POOL, most))
    if len(pool) < 2 * count:
        return pool[:0]
    log_p = torch.nan_to_num(problem.log_density(space.latents(pool, problem.like)), nan=-torch.inf)
    pool = pool[torch.argsort(log_p, descending=True)]
    u = solve(barrier(space.flat)[1], pool)
    nearest = list[Tensor]()
    for first in range(0, len(u), AT_ONCE):
        some = torch.cdist(u[first : first + AT_ONCE], u[: first + AT_ONCE])
        lower = torch.ones_like(some, dtype=torch.bool).triu(first)
        nearest.append(some.masked_fill_(lower, torch.inf).amin(1))
    return pool[torch.argsort(torch.cat(nearest), descending=True)[:count]]


def _apart(space: Space, problem: Problem, scale: Tensor, state: HMCState, scouts: HMCState) -> Tensor:
    """Scouts far above all chains, or as high as these and beyond a valley of log p on the way to the nearest, (m,)."""
    u, chains = (solve(scale, y) if scale.numel() else y for y in (scouts.y, state.y))
    nearest = torch.cdist(u, chains).argmin(1)
    way = torch.arange(1, STOPS + 1, dtype=u.dtype, device=u.device)[:, None, None] / (STOPS + 1)
    between = (scouts.y + way * (state.y[nearest] - scouts.y)).flatten(0, 1)
    lowest = problem.log_density(space.latents(between, problem.like)).reshape(STOPS, -1).amin(0)
    deep = torch.minimum(scouts.log_p, state.log_p[nearest]) - lowest > VALLEY
    above = scouts.log_p > state.log_p.amax() + VALLEY
    return above | (deep & (scouts.log_p >= torch.quantile(state.log_p, MISSED_SHARE)))
