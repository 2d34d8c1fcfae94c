"""WeightedCASAL: CASAL whose distribution is right, a sequential Monte Carlo over the coupling rho."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.checks import number_of, share
from casal.constraints import geometry, half_square
from casal.devices import number
from casal.errors import SettingError
from casal.methods.base import Do, Each, Method, Together, burn_in_steps, split_records
from casal.methods.coupling import (
    CORRECTED,
    DRIFT_LIMIT,
    MOVE,
    UNCORRECTED,
    choose_finish,
    density_change,
    distance_rho,
    has_edge,
    population_record,
    reach_rho,
    search_due,
    top_for_crossings,
    top_for_inside,
    top_for_spread,
)
from casal.methods.population import (
    LEVELS_ALONE,
    Groups,
    allowed_growth,
    equal_weights,
    groups_of,
    growth,
    resample,
    spread_of,
)
from casal.methods.problem import Problem, few_chains
from casal.schedules import Schedule, evaluate

BURN_IN = 0.2
"""Share of the evaluations of a burn-in before the levels."""


class WeightedState(NamedTuple):
    """A population.

    Attributes:
        x: Points.
        z: Their nearest points P(A x).
        noise: The noise of the last move, half of which enters the next one.
        half_distance2: dist(A x, C)^2 / 2, (n,); -1 in a burn-in that does not keep z.
        change: log p(x) - log p(z) to first order, from the last score that was read for it, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
    """

    x: Tensor
    z: Tensor
    noise: Tensor
    half_distance2: Tensor
    change: Tensor
    log_weight: Tensor
    ancestor: Tensor


class WeightedRow(NamedTuple):
    """One move.

    Attributes:
        b: tau.
        t: Time of the score.
        rho: The coupling.
        added: How much larger it is than that of the weights, which are brought up to it first.
        coupled: Whether the move knows of C; if not, its nearest points are not kept.
        reads: Whether to keep how much log p changes from x to z.
    """

    b: Tensor
    t: Tensor
    rho: Tensor
    added: Tensor
    coupled: bool = True
    reads: bool = False


class Control(NamedTuple):
    """What all chains share.

    Attributes:
        first: Row of the table that takes the first level.
        last: The row after that of the last level.
        levels: The coupling of every level, if it is given.
        edge: Whether the nearest points must satisfy inequalities at the top.
        corrected: Whether the finish corrects the change of log p from x to z.
        stage: The stage that wrote this record; -1 before the first one.
        row: Row of the table that comes next.
        rhos: Coupling of this row and of those after it, up to where all chains exchange again.
        rho: Coupling of the weights after these rows.
        top: Where the levels end, as far as the chains have shown; 0 before the first search for it.
        ended: Whether nothing comes any more.
    """

    first: int
    last: int
    levels: Sequence[float] = ()
    edge: bool = False
    corrected: bool = False
    stage: int = -1
    row: int = 0
    rhos: Sequence[float] = ()
    rho: float = 0.0
    top: float = 0.0
    ended: bool = False

    @property
    def after(self) -> int:
        """The row after those of ``rhos``."""
        return self.row + len(self.rhos)


Done: TypeAlias = tuple[Any, Control, Mapping[str, float]]
"""The state, the control record and what the trace keeps, after something that all chains do at once."""


@dataclass(frozen=True)
class WeightedCASAL(Method[Any]):
    """Samples p restricted to C: levels of the coupling rho, with importance weights.

    The levels are pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2), from rho = 0 up:

        weight *= exp(-(rho' - rho)/2 |A x - P(A x)|^2);   resample (systematic) if the effective size < ess n
        x' = x + S (score(x) - rho A^T (A x - P(A x))) + (S/2)^(1/2) (w + w')        (Langevin move for pi_rho')

    with S = (1/(tau D) + rho A^T A / MOVE)^-1, so that a move is stable at every rho. Half of the noise w is that of
    the move before (Leimkuhler and Matthews 2013): for every Gaussian on an affine set x then follows pi_rho exactly,
    whatever the step. The weight needs only the projection, so a score without a potential is enough. At the top, a
    ``Finish`` (``coupling.py``) removes what is left of the error of a finite rho, and z = P(A x) is returned with
    equal weights.

    Where all chains exchange, their weights are compared, the next levels are placed, and the chains are resampled if
    need be. In between they move and are weighted on their own. They exchange at every level where the weights may have
    become uneven, and at least at every eighth (``allowed_growth``). The levels start from samples of p: the first
    ``burn_in`` steps run at rho = 0, and separate modes keep the weights that the starting points gave them.
    ``casal.HMC`` weighs them, on sets that it takes.

    Args:
        rho: The last level. With None the levels end where the nearest points of the chains no longer change: the
            inequalities of C hold for most of them, and the last correction is small. A number is taken as it is, but
            for inequalities that few chains satisfy there: for them the levels go on. The levels are placed by the
            chains themselves, in equal steps of the spread of the log-weights, as far as is known at each one. A
            schedule is taken as it is.
        ess: Resample when the effective size falls below this share of the chains.
        burn_in: Steps before the levels: a number of steps, or a fraction below one. None takes 0.2 of them. 0: the
            starting points are samples of p.
        correct: Whether to remove the error of a finite rho at the top, where the set allows it.
        hold: Whether a burn-in runs at the distance that the starting points have, instead of rho = 0: for a density
            that is not integrable off the set, where nothing else holds the chains back.
    """

    rho: float | Schedule | None = None
    ess: float = 0.7
    burn_in: float | None = None
    correct: bool = True
    hold: bool = False

    name: ClassVar[str] = "WeightedCASAL"
    promises_distribution: ClassVar[bool] = True
    bounds_moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        share(self.ess, "ess", "the chains")
        given = None if callable(self.rho) else self.rho
        if given is not None and (isinstance(given, str) or not 0.0 < number_of(given, "rho") < math.inf):
            raise SettingError(f"rho, the last coupling, must be finite and > 0, or None to be found, got {given!r}")

    # ---------------------------------------------------------------------------------------------------- stages

    def control(self, problem: Problem, n: int) -> Control:
        if not problem.table.static:
            raise SettingError("WeightedCASAL needs a fixed density (langevin, energy), not a diffusion")
        _ = problem.gram, groups_of(problem, n)
        evaluations = choose_finish(problem, clean_score).evaluations if self.correct else 0
        steps = len(problem.table)
        before = BURN_IN if self.burn_in is None else self.burn_in
        first, last = burn_in_steps(before, steps), steps - evaluations
        if first >= last:
            raise SettingError(
                f"{steps} steps leave none after {first} steps of burn-in; use more steps, or a smaller burn_in"
            )
        edge = self.correct and has_edge(problem)
        at = Control(first, last, self._given(last - first), edge, evaluations > 0)
        return at if self.hold else at._replace(rhos=(0.0,) * first)

    def steps(self, problem: Problem, control: Control) -> int:
        return control.last

    def next(self, problem: Problem, control: Control, stage: int) -> Each | Together | None:
        if control.ended:
            return None
        if stage == control.stage + 1 and control.rhos:
            return Each(self._rows(problem, control), self.step)
        do: Do = self.exchange if control.after < control.last else self.finish
        if self.hold and control.stage < 0:
            do = self.hold_back
        return Together(partial(_numbered, stage, do))

    def _given(self, count: int) -> tuple[float, ...]:
        """The coupling of every level, if there is a schedule of it."""
        if not callable(self.rho):
            return ()
        given = evaluate(self.rho, range(count), "rho")
        if bool((given.diff() < 0).any()):
            raise SettingError("the schedule of rho must not decrease; use casal.geometric(low, high) or a number")
        return tuple(given.tolist())

    def start_note(self, problem: Problem) -> str | None:
        return (
            "the weights of separate modes are those of the starting points; casal.HMC() weighs them, where the "
            "potential is known and the set is one that it takes"
        )

    def _searches(self, control: Control) -> bool:
        """Whether the chains show where the levels end."""
        return self.rho is None or (not callable(self.rho) and control.edge)

    def _rows(self, problem: Problem, control: Control) -> list[WeightedRow]:
        """The rows up to the next exchange. Of a burn-in only the last two know of C."""
        first, start, stop = control.first, control.row, control.after
        table, device, searches = problem.table, problem.like.device, self._searches(control)
        rhos = torch.tensor(control.rhos, dtype=torch.float64)
        b, rho = (v.to("cpu", problem.row_dtype).unbind() for v in (table.b[start:stop], rhos))
        t, added = table.t[start:stop].to(device, problem.row_dtype).unbind(), rhos.diff(prepend=rhos[:1]).unbind()
        rows = list[WeightedRow]()
        for k, after in enumerate(range(start + 1, stop + 1)):
            due = after == first or (first < after < control.last and search_due(control.last - after))
            rows.append(WeightedRow(b[k], t[k], rho[k], added[k], self.hold or after >= first - 1, searches and due))
        return rows

    # ---------------------------------------------------------------------------------------------------- every chain

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Any:
        log_weight, ancestor = equal_weights(problem, len(x))
        decoded = problem.decode(x)
        z, unread = problem.project(decoded), torch.full_like(log_weight, torch.inf)
        return WeightedState(x, z, torch.zeros_like(x), half_square(decoded - z), unread, log_weight, ancestor)

    def step(self, problem: Problem, state: WeightedState, row: WeightedRow, noise: Tensor) -> WeightedState:
        """One Langevin move for pi_rho, or for p."""
        state = self.weigh(state, row.added)
        score = problem.score(state.x, row.t)
        if row.reads:
            state = state._replace(change=density_change(problem, state.x, state.z, score))
        x = _move(problem, state, row, noise, score)
        if not row.coupled:
            unknown = torch.full_like(state.half_distance2, -1.0)
            return state._replace(x=x, noise=noise, half_distance2=unknown)
        z, half_distance2 = problem.nearest_and_half(problem.decode(x), warm=state.z)
        return state._replace(x=x, z=z, noise=noise, half_distance2=half_distance2)

    def weigh(self, state: WeightedState, added: Tensor | float) -> WeightedState:
        """Weight chains for a rho that is larger by so much."""
        return state._replace(log_weight=state.log_weight - added * state.half_distance2)

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(problem.decode(state.x), warm=_nearest(problem, state))

    def monitor(self, problem: Problem, state: Any) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, _nearest(problem, state))

    def advice(self, state: Any, row: WeightedRow) -> str:
        tau, rho = float(row.b), float(row.rho)
        numbers = f"(tau = {tau:.3g}, rho = {rho:.3g}, tau rho = {tau * rho:.3g})"
        return f"{numbers}; use a smaller step_size or a preconditioner"

    # ---------------------------------------------------------------------------------------------------- all chains

    def hold_back(self, problem: Problem, state: WeightedState, control: Control, generator: torch.Generator) -> Done:
        """A burn-in at the rho of the distances that the starting points have."""
        rho = distance_rho(0.0, state.half_distance2, groups_of(problem, len(state.x)).weights(state.log_weight))
        return state, control._replace(rhos=(rho,) * control.first, rho=rho), {}

    def exchange(self, problem: Problem, state: WeightedState, control: Control, generator: torch.Generator) -> Done:
        """Place the next levels, weight all chains for the first of them, and resample where weights are uneven."""
        row, half_distance2, groups = control.after, state.half_distance2, groups_of(problem, len(state.x))
        weight, left, top = groups.weights(state.log_weight), control.last - row, control.top
        spread = spread_of(half_distance2, weight)
        if not control.levels and (top == 0.0 or search_due(left)):
            top = self._top(problem, state, control, weight, groups)
        end = max(top, control.rho)
        rate = growth(control.rho, end, spread, left)

        def place(rho: float, row: int) -> float:
            return control.levels[row - control.first] if control.levels else rate.next(rho, end)

        rhos = [place(control.rho, row)]
        state = self.weigh(state, rhos[0] - control.rho)
        info = population_record(state, groups, rhos[0])
        alone = allowed_growth(info["ess"] / len(state.x), self.ess, spread) if groups.members is None else 0.0
        while not self._exchanges(control, row + len(rhos)):
            rho = place(rhos[-1], row + len(rhos))
            if rho > rhos[0] + alone:
                break
            rhos.append(rho)
        state = resample(state, generator, groups, math.inf if left == 1 else self.ess)
        return state, control._replace(row=row, rhos=tuple(rhos), rho=rhos[-1], top=top), info

    def _exchanges(self, control: Control, row: int) -> bool:
        """Whether all chains exchange before a row in any case: at the end, at every eighth level, or for a search."""
        left = control.last - row
        return left <= 1 or left % LEVELS_ALONE == 0 or (self._searches(control) and search_due(left))

    def _top(self, problem: Problem, state: WeightedState, control: Control, weight: Tensor, groups: Groups) -> float:
        """Where the levels end: at the rho that was given, and not before the inequalities hold for most chains."""
        given = 0.0 if self.rho is None or callable(self.rho) else self.rho
        if given and not control.edge:
            return given
        rho, half_distance2 = control.rho, state.half_distance2
        parts = [self._correction(problem, state, some) for some in few_chains(state.x, state.z)]
        inside, change = (torch.cat(column) for column in zip(*parts, strict=True))
        top = top_for_inside(rho, half_distance2, weight, inside, groups, given)
        if given:
            return top
        least = top_for_crossings(problem, state.z, rho, weight, max(top, reach_rho(problem)))
        spread = CORRECTED if control.corrected else UNCORRECTED
        return top_for_spread(rho, half_distance2, weight, change, spread, least)

    def _correction(self, problem: Problem, state: WeightedState, some: slice) -> tuple[Tensor, Tensor]:
        """Whether the nearest points of some chains are inside, and their correction to first order."""
        at = geometry.nearest_on_surface(problem.constraint.take(some), problem.decode(state.x[some]))
        return at.inside, state.change[some] if at.log_volume is None else state.change[some] + at.log_volume

    def finish(self, problem: Problem, state: WeightedState, control: Control, generator: torch.Generator) -> Done:
        """Remove what is left of the error of a finite rho, where the set allows it."""
        groups, control = groups_of(problem, len(state.x)), control._replace(ended=True)
        if not self.correct:
            return state, control, population_record(state, groups, control.rho)
        state, info = choose_finish(problem, clean_score)(problem, state, control.rho, generator, groups)
        return state, control, info


def _numbered(stage: int, do: Do, problem: Problem, state: Any, control: Control, generator: torch.Generator) -> Done:
    """What all chains do in a stage, whose number goes into the control record."""
    state, control, info = do(problem, state, control, generator)
    return state, control._replace(stage=stage), info


def clean_score(problem: Problem, state: Any, x: Tensor) -> Tensor:
    """The score of a fixed density."""
    return problem.score(x, problem.table.t[-1].to(x.device))


def _nearest(problem: Problem, state: WeightedState) -> Tensor:
    """P(A x); a burn-in without coupling does not keep it."""
    known = bool((state.half_distance2 >= 0).all())
    return state.z if known else problem.project(problem.decode(state.x))


def _move(problem: Problem, state: WeightedState, row: WeightedRow, noise: Tensor, score: Tensor) -> Tensor:
    """x after a Langevin move for pi_rho; for p if it is not coupled."""
    x, gram = state.x, problem.gram
    if problem.identity and gram.unit:
        return _straight_move(state, row, noise, score)
    size = row.b / (1.0 + row.b * row.rho * gram.eigenvalues / MOVE)
    root = size.sqrt()
    shift = (root * gram.whiten(score)).clamp_(-DRIFT_LIMIT, DRIFT_LIMIT)
    for w in (state.noise, noise):
        shift.add_(w.reshape(shift.shape), alpha=math.sqrt(0.5))
    shift.mul_(root)
    if row.coupled:
        pull = problem.decoder.vjp(x)(problem.decode(x) - state.z)
        shift.addcmul_(gram.whiten(pull), size * row.rho, value=-1)
    return x + gram.unwhiten(shift).reshape(x.shape)


def _straight_move(state: WeightedState, row: WeightedRow, noise: Tensor, score: Tensor) -> Tensor:
    """The move where A and D are the identity: x + S rho (z - x) + S score + (S/2)^(1/2) (w + w'), S a number."""
    x, tau, rho = state.x, number(row.b), number(row.rho)
    size = tau / (1.0 + tau * rho / MOVE)
    root = size**0.5
    if isinstance(size, float):
        limit, part = min(DRIFT_LIMIT / max(root, 1e-300), torch.finfo(score.dtype).max), root * math.sqrt(0.5)
        push = score.clamp(-limit, limit)
        x = torch.lerp(x, state.z, size * rho).add_(push, alpha=size) if row.coupled else x.add(push, alpha=size)
        return x.add_(state.noise, alpha=part).add_(noise, alpha=part)
    push = (root * score).clamp(-DRIFT_LIMIT, DRIFT_LIMIT) + math.sqrt(0.5) * (state.noise + noise)
    return (x + size * rho * (state.z - x) if row.coupled else x) + root * push
