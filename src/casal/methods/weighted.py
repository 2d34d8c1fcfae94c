"""WeightedCASAL: CASAL whose law is right, a sequential Monte Carlo over the coupling rho."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import share
from casal.constraints import geometry, half_square
from casal.devices import number
from casal.errors import SettingError
from casal.methods.adjusted import (
    AdjustedState,
    adjusted_noise,
    adjusted_step,
    begin,
    start_stiffness,
    warm,
)
from casal.methods.base import Method, Stage, burn_in_steps, no_step, split_records, table_rows
from casal.methods.context import Context, few_chains
from casal.methods.coupling import (
    CORRECTED,
    DRIFT_LIMIT,
    MOVE,
    UNCORRECTED,
    Level,
    choose_finish,
    density_change,
    distance_rho,
    has_edge,
    levels,
    population_record,
    reach_rho,
    search_due,
    top_for_crossings,
    top_for_inside,
    top_for_spread,
)
from casal.methods.population import (
    Groups,
    Growth,
    allowed_growth,
    equal_weights,
    groups_of,
    growth,
    resample,
    spread_of,
)
from casal.schedules import Schedule, evaluate

BURN_IN, TEMPERED = 0.2, 0.4
"""Share of the evaluations before the ladder: of a burn-in, and of a tempered start."""


class LangevinRow(NamedTuple):
    """A row of the table of a fixed density, and its b in host memory: reading that one waits for no device."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    host: Tensor


class WeightedState(NamedTuple):
    """A population.

    Attributes:
        x: Points.
        z: Their feet P(A x).
        noise: The noise of the last move, half of which enters the next one.
        half: dist(A x, C)^2 / 2, (n,).
        rise: log p(x) - log p(z) to first order, from the last score that was read for it, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        rho: The rung all chains are at.
        top: Where the ladder ends, as far as the chains have shown.
        r: Offset of the pace from rung to rung (``Growth``), of the last meeting.
        q: Factor of the pace.
        room: The largest rho that chains may climb to before they meet again.
    """

    x: Tensor
    z: Tensor
    noise: Tensor
    half: Tensor
    rise: Tensor
    log_weight: Tensor
    ancestor: Tensor
    rho: Tensor
    top: Tensor
    r: Tensor
    q: Tensor
    room: Tensor


@dataclass(frozen=True)
class WeightedCASAL(Method[Any]):
    """Samples p restricted to C: a ladder of couplings, climbed with importance weights.

    The rungs are pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2), from rho = 0 up:

        weight *= exp(-(rho' - rho)/2 |A x - P(A x)|^2);   resample (systematic) if the effective size < ess n
        x' = x + S (score(x) - rho A^T (A x - P(A x))) + (S/2)^(1/2) (w + w')        (Langevin move for pi_rho')

    with S = (1/(tau D) + rho A^T A / MOVE)^-1, so that a move is stable at every rho. Half of the noise w is that of
    the move before (Leimkuhler and Matthews 2013): for every Gaussian on an affine set the law of x is then exactly
    pi_rho, whatever the step. The weight needs only the projection, so a score without a potential is enough. At
    the top, a ``Finish`` (``coupling.py``) removes what is left of the error of a finite rho, and z = P(A x) is
    returned with equal weights.

    At a meeting all chains are looked at: their weights, the next rungs, and whether to resample. Between meetings
    chains move and climb on their own. They meet at every rung where the weights may have become uneven, and at least
    at every eighth (``allowed_growth``). The ladder starts from samples of p.
    Where the density of the starting points and the potential of p are known, a tempered start (``adjusted.py``)
    leads there, and the modes get their right weights from any start that covers them. Otherwise the first ``burn_in``
    steps run at rho = 0, and the modes keep the weights that the starting points gave them.

    Args:
        rho: Top of the ladder. With None it ends where the feet of the chains no longer change: the inequalities of C
            hold for most of them, and the last correction is small. A number is taken as it is, but for inequalities
            that few chains satisfy there: for them the ladder goes on. The rungs are placed by the chains themselves,
            in equal steps of the spread of the log-weights, as far as is known at each rung. A schedule is taken as it
            is.
        ess: Resample when the effective size falls below this share of the chains.
        burn_in: Steps before the ladder: a number of steps, or a fraction below one. None takes 0.2 of them, or 0.4
            for a tempered start, whose rungs take two evaluations each. 0: the starting points are samples of p.
        correct: Whether to remove the error of a finite rho at the top, where the set allows it.
        temper: Whether to weigh the start where its density and the potential are known.
        hold: Whether a burn-in runs at the slack that the starting points have, instead of rho = 0: for a density that
            is not integrable off the set, where nothing else holds the chains back.
    """

    rho: float | Schedule | None = None
    ess: float = 0.7
    burn_in: float | None = None
    correct: bool = True
    temper: bool = True
    hold: bool = False

    name: ClassVar[str] = "WeightedCASAL"
    promises_distribution: ClassVar[bool] = True
    bounds_moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        share(self.ess, "ess", "the chains")
        if self.rho is not None and not callable(self.rho) and not 0.0 < self.rho < math.inf:
            raise SettingError(f"rho, the top of the ladder, must be finite and > 0, got {self.rho}")

    def plan(self, context: Context, n: int) -> Sequence[Stage]:
        if not context.table.static:
            raise SettingError("WeightedCASAL needs a fixed density (langevin, energy), not a diffusion")
        _ = context.gram
        rows = table_rows(context, LangevinRow, context.table.b.to("cpu", context.row_dtype).unbind())
        groups = groups_of(context, n)
        finish = choose_finish(context, clean_score) if self.correct else None
        tempered = self._tempered(context)
        before = (TEMPERED if tempered else BURN_IN) if self.burn_in is None else self.burn_in
        evaluations = finish.evaluations if finish is not None else 0
        first, last = burn_in_steps(before, len(rows)), len(rows) - evaluations
        climb = rows[first:last]
        if not climb:
            raise SettingError(f"{len(rows)} steps leave none for the ladder after {first} of burn-in; take more")
        early = rows[: max(first - 2, 0) : 2] if tempered else rows[:first]  # an adjusted move takes two evaluations
        edge = self.correct and has_edge(context)
        given = self.rho is not None and (callable(self.rho) or not edge)  # then there is no top to look for
        stages = self._begin(context, early, tempered, given, groups)
        stages += self._climb(climb, groups, edge, given, CORRECTED if evaluations else UNCORRECTED)
        return [*stages, Stage([], no_step, partial(finish or self.report, groups=groups))]

    def _tempered(self, context: Context) -> bool:
        """Whether the start is weighed."""
        known = context.start is not None and context.target.potential is not None
        return self.temper and known and self.burn_in != 0

    def start_note(self, context: Context) -> str | None:
        if self._tempered(context):
            return None
        why = "the potential is not known; give langevin(potential=...) or take energy"
        if context.target.potential is not None:
            why = "the density of the starting points is not known; start with casal.GaussianStart"
            if context.start is not None:
                why = "the start is not weighed (temper=False or burn_in=0)"
        return f"the weights of separate modes are those of the starting points: {why}"

    def _begin(self, context: Context, rows: Sequence[Any], tempered: bool, given: bool, groups: Groups) -> list[Stage]:
        """The stages before the ladder."""
        if tempered:
            left = range(len(rows), 0, -1)
            meets = [partial(warm, k, self.ess, groups) for k in left]
            step = partial(adjusted_step, stiffness=start_stiffness(context))
            stages = [Stage([row], step, m, adjusted_noise) for row, m in zip(rows, meets, strict=True)]
            return [*stages, Stage([], no_step, self.land)]
        slack = [Stage([], no_step, partial(self.take_slack, groups))] if self.hold else []
        free = Stage(rows[:-2], self.step if self.hold else self.free_step)
        last = Stage(rows[-1:], self.step if given else self.reading_step)
        return [*slack, free, Stage(rows[-2:-1], self.step), last] if rows else slack

    def _climb(self, rows: Sequence[Any], groups: Groups, edge: bool, given: bool, spread: float) -> list[Stage]:
        """The stages of the ladder."""
        stages, ladder = list[Stage](), self._rungs(len(rows))
        for k, (rung, row) in enumerate(zip(ladder, rows, strict=True)):
            meet = partial(self.meet, rung, groups, edge, spread)
            read = not given and k + 1 < len(ladder) and search_due(ladder[k + 1].left)
            step = self.reading_step if read else self.step
            stages.append(Stage([row], step, meet))
        return stages

    def init(self, context: Context, x: Tensor, generator: torch.Generator) -> Any:
        if self._tempered(context):
            return begin(context, x)
        log_weight, ancestor = equal_weights(context, len(x))
        decoded, zero = context.decode(x), log_weight.new_zeros(())
        z, unread = context.project(decoded), torch.full_like(log_weight, torch.inf)
        half, none = half_square(decoded - z), torch.zeros_like(x)
        return WeightedState(x, z, none, half, unread, log_weight, ancestor, zero, zero, zero, zero, zero)

    def land(
        self, context: Context, state: AdjustedState, generator: torch.Generator
    ) -> tuple[Any, Mapping[str, float]]:
        """The chains at the end of a tempered start become those of the ladder."""
        x, none = state.x, torch.zeros_like(state.top)
        rise = density_change(context, state.x, state.z, state.score)
        start, ladder = (x, state.z, torch.zeros_like(x), state.half), (state.rho, none, none, none, none)
        return WeightedState(*start, rise, state.log_weight, state.ancestor, *ladder), {}

    def report(
        self, context: Context, state: Any, generator: torch.Generator, groups: Groups
    ) -> tuple[Any, Mapping[str, float]]:
        """The last record of a run without a correction."""
        return state, population_record(state, groups)

    def take_slack(
        self, groups: Groups, context: Context, state: Any, generator: torch.Generator
    ) -> tuple[Any, Mapping[str, float]]:
        """The rho of the slack that the starting points have."""
        rho = distance_rho(0.0, state.half, groups.weights(state.log_weight))
        return state._replace(rho=torch.full_like(state.rho, rho)), {}

    def free_step(self, context: Context, state: WeightedState, row: LangevinRow, noise: Tensor) -> WeightedState:
        """One Langevin move for p, without feet: ``z`` and ``half`` stay those of an earlier x."""
        score = context.score(state.x, row.t)
        return state._replace(x=_move(context, state, row, noise, score, coupled=False), noise=noise)

    def step(self, context: Context, state: WeightedState, row: LangevinRow, noise: Tensor) -> WeightedState:
        """One Langevin move for pi_rho."""
        return self._landed(context, state, row, noise, context.score(state.x, row.t))

    def reading_step(self, context: Context, state: WeightedState, row: LangevinRow, noise: Tensor) -> WeightedState:
        """The same, and how much log p changes from x to its foot."""
        score = context.score(state.x, row.t)
        rise = density_change(context, state.x, state.z, score)
        return self._landed(context, state._replace(rise=rise), row, noise, score)

    def _landed(
        self, context: Context, state: WeightedState, row: LangevinRow, noise: Tensor, score: Tensor
    ) -> WeightedState:
        """The chains after a move, with their feet."""
        x = _move(context, state, row, noise, score)
        z, half = context.foot_and_half(context.decode(x), warm=state.z)
        return state._replace(x=x, z=z, noise=noise, half=half)

    def meet(
        self,
        rung: Level,
        groups: Groups,
        edge: bool,
        spread: float,
        context: Context,
        state: Any,
        generator: torch.Generator,
    ) -> tuple[Any, Mapping[str, float]]:
        """Climb one rung: weight all chains for the next rho, and resample where the weights are uneven."""
        half, weight, now = state.half, groups.weights(state.log_weight), float(state.rho)
        rho, spread_now = rung.rho, spread_of(half, weight)
        if rho is None:
            if search_due(rung.left) or float(state.top) == 0.0:
                top = self._top(context, state, half, weight, groups, edge, spread)
                state = state._replace(top=torch.full_like(state.rho, top))
            top = max(float(state.top), now)
            steps = growth(now, top, spread_now, rung.left)
            rho = steps.next(now, top)
            r, q = (torch.full_like(state.rho, number) for number in steps)
            state = state._replace(r=r, q=q)
        state = self.climb(state, rho)
        info = population_record(state, groups)
        room = rho + allowed_growth(info["ess"] / len(half), self.ess, spread_now) if groups.members is None else rho
        state = state._replace(room=torch.full_like(state.rho, room))
        ess = math.inf if rung.left == 1 else self.ess
        return resample(state, generator, groups, ess), info

    def climb(self, state: Any, rho: float) -> Any:
        """Weight the chains for the next rho."""
        log_weight = state.log_weight.sub(state.half, alpha=rho - float(state.rho))
        return state._replace(rho=torch.full_like(state.rho, rho), log_weight=log_weight)

    def climb_alone(self, rung: Level, context: Context, state: WeightedState) -> WeightedState | None:
        """Weight the chains of a tile for the next rho; None if the weights may have become uneven by then."""
        rho, now = rung.rho, float(state.rho)
        if rho is None:
            rho = Growth(float(state.r), float(state.q)).next(now, max(float(state.top), now))
        return self.climb(state, rho) if rho <= float(state.room) else None

    def _top(
        self,
        context: Context,
        state: Any,
        half: Tensor,
        weight: Tensor,
        groups: Groups,
        edge: bool,
        spread: float,
    ) -> float:
        """Where the ladder ends: at the rho that was given, and not before the inequalities hold for most chains."""
        given = None if callable(self.rho) else self.rho
        if given and not edge:
            return given
        parts = [self._look(context, state, some) for some in few_chains(state.x, state.z)]
        inside, rise = (torch.cat(column) for column in zip(*parts, strict=True))
        top = top_for_inside(float(state.rho), half, weight, inside, groups, given or 0.0)
        least = top_for_crossings(context, state.z, float(state.rho), weight, max(top, reach_rho(context)))
        return top if given else top_for_spread(float(state.rho), half, weight, rise, spread, least)

    def _look(self, context: Context, state: Any, some: slice) -> tuple[Tensor, Tensor]:
        at = geometry.nearest_on_surface(context.constraint.take(some), context.decode(state.x[some]))
        return at.inside, state.rise[some] if at.log_volume is None else state.rise[some] + at.log_volume

    def output(self, context: Context, state: Any) -> Tensor:
        return context.strict(context.decode(state.x), warm=self._feet(context, state))

    def monitor(self, context: Context, state: Any) -> Mapping[str, Tensor]:
        return split_records(context, state.x, self._feet(context, state))

    def _feet(self, context: Context, state: Any) -> Tensor:
        """P(A x); a burn-in without coupling does not keep it."""
        return state.z if float(state.rho) else context.project(context.decode(state.x))

    def advice(self, state: Any, row: LangevinRow) -> str:
        tau, rho = float(row.b), float(state.rho)
        numbers = f"(tau = {tau:.3g}, rho = {rho:.3g}, tau rho = {tau * rho:.3g})"
        return f"{numbers}; take a smaller step_size or a preconditioner"

    def _rungs(self, count: int) -> list[Level]:
        if not callable(self.rho):
            return levels(count)
        ladder = evaluate(self.rho, range(count), "rho")
        if bool((ladder.diff() < 0).any()):
            raise SettingError("the ladder of rho must not descend; use geometric(low, high) or a number")
        return levels(count, ladder)


def clean_score(context: Context, state: Any, x: Tensor) -> Tensor:
    """The score of a fixed density."""
    return context.score(x, context.table.t[-1].to(x.device))


def _move(
    context: Context, state: WeightedState, row: LangevinRow, noise: Tensor, score: Tensor, coupled: bool = True
) -> Tensor:
    """x after a Langevin move for pi_rho; for p if it is not coupled."""
    x, gram = state.x, context.gram
    if context.identity and gram.unit:
        return _straight_move(state, number(row.host), score, noise, coupled)
    size = row.b / (1.0 + row.b * state.rho * gram.eigenvalues / MOVE)
    root = size.sqrt()
    shift = (root * gram.whiten(score)).clamp_(-DRIFT_LIMIT, DRIFT_LIMIT)
    for w in (state.noise, noise):
        shift.add_(w.reshape(shift.shape), alpha=math.sqrt(0.5))
    shift.mul_(root)
    if coupled:
        pull = context.decoder.vjp(x)(context.decode(x) - state.z)
        shift.addcmul_(gram.whiten(pull), size * state.rho, value=-1)
    return x + gram.unwhiten(shift).reshape(x.shape)


def _straight_move(state: WeightedState, tau: Any, score: Tensor, noise: Tensor, coupled: bool) -> Tensor:
    """The move where A and D are the identity: x + S rho (z - x) + S score + (S/2)^(1/2) (w + w'), S a number."""
    x, rho = state.x, number(state.rho)
    size = tau / (1.0 + tau * rho / MOVE)
    root = size**0.5
    if isinstance(size, float):
        limit, part = DRIFT_LIMIT / root, root * math.sqrt(0.5)
        push = score.clamp(-limit, limit)
        x = torch.lerp(x, state.z, size * rho).add_(push, alpha=size) if coupled else x.add(push, alpha=size)
        return x.add_(state.noise, alpha=part).add_(noise, alpha=part)
    push = (root * score).clamp(-DRIFT_LIMIT, DRIFT_LIMIT) + math.sqrt(0.5) * (state.noise + noise)
    return (x + size * rho * (state.z - x) if coupled else x) + root * push
