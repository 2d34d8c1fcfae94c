"""A fixed density on and in a set: Hamiltonian Monte Carlo whose chains never leave it.

**Flat sets** {A z = b, l <= z <= u, G z <= h} are reduced once to walls around an interior point
(``constraints/reduction.py``). The chains move in coordinates u in which the density is about round (``scales.py``),
and are turned at walls exactly (``flat_flows.py``):

    constant density      straight flows
    Gaussian              orbits y cos t + v sin t
    any other             leapfrogs: v += (eps/2) grad log p;  drift, turned at walls;  v += (eps/2) grad log p
    infinite at a wall    slices of lines through the set (``trajectories.py``), with a potential

**Curved sets** {h(z) = 0, g(z) <= 0} take the same leapfrogs with drifts on the set (``surface.py``).

Leapfrogs are accepted or refused by Metropolis' rule, so eps, their number and the metric change no distribution.
Where the potential is not known, log p(y') - log p(y) is the sum over the leapfrogs of

    (g + g') . (y' - y) / 2      or      (g + 4 g_m + g') . (y' - y) / 6,   g_m halfway between y and y'.

The first is exact for Gaussians. The second, which takes two evaluations per leapfrog, is taken on flat sets where they
differ. The density is asked inside the set only.

**Budget.** The steps of the target are the most evaluations a chain may take. The first part of them is a warm-up: eps
follows the acceptance, the metric is the covariance of the chains, shrunk towards its diagonal in the coordinates of
the metric before, and trajectories are 1.5 spreads long. After that nothing is adapted. Rounds of trajectories follow,
each as long as all before it together. When the chains have forgotten where they were at the end of the warm-up, there
is one more round.

**Draws.** Chains that have forgotten their start may go on, and give several samples each, so far apart that their
correlation is about 0.2 or less. All draws of a chain have one ancestor, so standard errors count them as what they
are. Modes between which chains do not cross would get the error of so few draws: where they are weighed, all rows of
the state become chains.

**Modes.** Chains keep to their modes, and to components of the set. With a potential, a tempered start finds them, and
a second pass weighs them by fresh draws around all that was found (``tempering.py``, ``mode_weights.py``). Constant and
Gaussian densities on flat sets have one mode and need neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from casal.constraints import Budget
from casal.errors import CasalError, SettingError
from casal.methods.base import Each, Method, Together, generator_of, key
from casal.methods.chain_memory import (
    ALLOWED_R_HAT,
    LARGEST_SHIFT,
    SECOND_SHARE,
    agreement,
    centred,
    drift,
    memory,
    second_kind,
)
from casal.methods.coupling import decoded_event
from casal.methods.inside_chains import (
    LENGTH,
    Control,
    Done,
    HMCState,
    Row,
    Space,
    features,
    labels_of,
    may_exchange,
    onto,
    plain,
    space_of,
)
from casal.methods.metric import (
    RAYS,
    STARTS,
    TESTED,
    barrier,
    crowded,
    curved_scale,
    first_eps,
    first_scale,
    linear_score,
    renewed_scale,
    rise_at_walls,
    some_starts,
)
from casal.methods.population import ancestors_left, equal_weights
from casal.methods.problem import Problem, Uncounted
from casal.methods.scales import FEWEST_CHAINS, main_directions, shrinkage, solve, times
from casal.methods.surface import Surface
from casal.methods.tempering import (
    DECADES,
    DRAW_ROWS,
    FEW_DIMENSIONS,
    HEATED,
    SETTLED,
    TEMPER_ROWS,
    WEIGH_ROWS,
    begin,
    explores,
    heat,
    leave_start,
    may_weigh,
    mixture_of,
    reference_of,
    slowest,
    spread_over,
    too_wide,
    weigh,
)
from casal.methods.trajectories import ACCEPTED, GAINS, flows, leapfrogs, pace, rattle, score_at, slices

SIZES = (1e-5, 2.0)
"""Bounds of eps, in units of the spread of the chains."""

LOST = (0.01, 0.02)
"""Probability below which a trajectory has lost nearly all, and the share of them in a row of the warm-up above which
parts of the set are narrower than the steps, as the neck of a funnel; of a Gaussian it is about .002. Then every second
trajectory takes a size over DECADES: no one size is right for all parts, and a mean of acceptances does not show it."""

LONGEST = 64
"""Leapfrogs of a trajectory, at most."""

LENGTHS, GOLDEN = (0.7, 1.3), 0.6180339887498949
"""Trajectories have between these shares of the leapfrogs, in a fixed order."""

WARM_UP, WARM_UP_TEMPERED, TEMPERED = 0.4, 0.5, 0.7
"""Share of the evaluations of a warm-up; where the start is tempered; and what of it the tempering takes."""

WARM_ROWS, MAIN_ROWS = 32, 8
"""Rows of the phases, at most: warm-up and rounds."""

MARKS = (0.25, 0.5, 0.75)
"""Shares of the warm-up after which the metric is renewed."""

CHAINS, PER_DIMENSION, MOST_DRAWS = (256, 1024), 4, (16, 64)
"""Chains from which several draws each are taken, at least, in all and for every dimension of the set: enough for what
is measured of them (memory, R-hat, metric), which has errors like 1 / sqrt(chains). And draws of a chain: at most 16
before there are 1024 chains, beyond which more at a time hardly cost less each, and at most 64."""

LOOKING = 4
"""Times as many chains as that look for modes in a tempered start, at most: few chains lose narrow ones."""

APART = 0.2
"""Correlation of two draws of a chain, at most: draws are then worth two thirds of independent ones, and fewer of them
would be worth less for the same work."""

FIRST_FLOWS = (8, 6, 6, 6)
"""Flows of the rows of a warm-up by flows."""

SPREAD, SPREAD_SHARE = 2048, 8
"""Points all over a bounded set at which a density is asked whether it is constant or Gaussian, at most, and for every
chain: it may have a narrow mode far from all starting points."""

SAME = 0.2
"""Difference of the two rules for log p(y') - log p(y) over a trajectory, up to which the first is taken."""

FORGOTTEN = (0.05, 3.0)
"""Correlation with the end of the warm-up, and standard errors beside it, below which the chains have forgotten it.
There are more of these in many dimensions, where the largest of as many correlations by chance is larger."""

ROUNDED = 1e-10
"""Violation beyond which samples are projected. Below, it is rounding in a row whose terms are small, and a projection
would put samples onto walls."""

POLISH = Budget(ROUNDED, 8)
"""What a projection of such samples may take: they are within rounding of the set. On sets with thousands of equations
all digits of rows with small terms would take hundreds of iterations a sample."""

LARGEST_JACOBIAN = 1 << 15
"""Numbers of the derivatives of the equations of a curved set, up to which ``fits`` says yes: each step takes several,
row by row."""


@dataclass(frozen=True)
class HMC(Method[HMCState]):
    """Samples a fixed density restricted to a set, by Hamiltonian Monte Carlo whose chains never leave it.

    For flat sets (``Box``, ``Simplex``, ``Polytope``, ``Monotone``, ``Affine & Box`` ...) and for sets of smooth
    equations and inequalities (``Sphere``, ``Implicit``, ``MassEnergy``, ``Ball`` ...), in up to some hundred
    dimensions, thousands for bounds. The equations are at the top of this file. Chains give samples once they have
    forgotten their start; the run takes at most as many evaluations a sample as the target has steps. Its step size is
    not used.

    The distribution is exact as the number of steps grows. Separate modes and components of a set that are found have
    their right weights where the potential is known; the result says what is the case.

    Args:
        warm_up: Share of the evaluations in which step, metric and length of trajectories adapt. None takes 0.4, or 0.5
            for a tempered start.
        temper: Whether to look for modes by a tempered start and to weigh them, where the potential is known.
        draws: Samples of one chain. "auto" takes one up to 512 samples, and wherever chains have sets or conditions of
            their own; else as many as leave 256 chains, or four for every dimension, and at most 64. Samples of one
            chain have one ancestor: ``result.expect`` knows that they are not independent.

    >>> import casal, torch
    >>> target = casal.langevin(lambda x: x + 1.0, steps=60, step_size=0.3, init=torch.zeros(64, 8))
    >>> result = casal.sample(target, casal.Simplex(2.0), casal.HMC(), 64)
    >>> bool((result.samples > 0).all()), float((result.samples.sum(1) - 2.0).abs().max()) < 1e-12
    (True, True)
    """

    warm_up: float | None = None
    temper: bool = True
    draws: int | str = "auto"

    name: ClassVar[str] = "HMC"
    promises_distribution: ClassVar[bool] = True
    bounds_moves: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.warm_up is not None and not 0.0 <= self.warm_up < 1.0:
            raise SettingError(f"warm_up is a share of the evaluations in [0, 1), got {self.warm_up}")
        if self.draws != "auto" and (not isinstance(self.draws, int) or self.draws < 1):
            raise SettingError(f'draws is a whole number of samples of one chain, or "auto", got {self.draws!r}')

    # ---------------------------------------------------------------------------------------------------- stages

    def control(self, problem: Problem, n: int) -> Control:
        if not problem.table.static:
            raise SettingError("HMC needs a fixed density (langevin, energy); use Matheron or SplitGibbs for a model")
        space, budget = space_of(problem), len(problem.table)
        draws = stride = self._draws(problem, space, n)
        rows = MAIN_ROWS + min(WARM_ROWS, budget) + draws - 1
        if self._tempered(problem, -(-n // draws)):
            rows, stride = rows + DRAW_ROWS + min(TEMPER_ROWS, budget), draws // math.gcd(draws, LOOKING)
        rows += WEIGH_ROWS if self._weighs(problem, -(-n // draws)) else 0
        return Control(rows, n, draws, stride)

    def _draws(self, problem: Problem, space: Space, n: int) -> int:
        """Draws of each chain."""
        if self.draws == "auto":
            size, few = (math.prod(space.event), CHAINS[0]) if space.flat is None else (space.flat.dimension, 0)
            chains = max(CHAINS[0], PER_DIMENSION * size, min(CHAINS[1], n // MOST_DRAWS[0]))
            # on curved sets in few dimensions a step of more chains costs as much
            chains = max(chains, few * FEW_DIMENSIONS // size)
            return min(1 if problem.chains is not None else MOST_DRAWS[1], max(1, n // chains))
        if int(self.draws) > 1 and problem.chains is not None:
            raise SettingError(
                f"draws = {self.draws}, but every chain has a set or a condition of its own; use draws=1"
            )
        return min(int(self.draws), n)

    def steps(self, problem: Problem, control: Control) -> int:
        return control.rows

    def next(self, problem: Problem, control: Control, stage: int) -> Each | Together | None:
        step = partial(self.step, space_of(problem))
        if control.phase == "end":
            rest = [Row("rest", problem.table.t[0])] * (control.rows - control.row)
            return Each(rest, step, key) if rest and stage % 2 else None
        if stage % 2:
            return Each([self._row(problem, control)], step, key)
        return Together(self.look if stage == 0 else self.after)

    def _row(self, problem: Problem, control: Control) -> Row:
        """What the chains do next."""
        known, device = problem.target.potential is not None, problem.like.device
        t = problem.table.t[0].to(device)
        centre, scale = (torch.tensor(v, dtype=torch.float64, device=device) for v in (control.centre, control.scale))
        phase, space, limit = control.phase, space_of(problem), control.limit
        gathers, first = phase == "gather", control.stride - control.left
        price = 1 + (control.fine != 0 and space.flat is not None and not known)
        uneven = (phase in ("temper", "weigh") and control.left % 2) or (
            phase == "warm" and known and control.left % 4 == 2
        )
        narrow = control.narrow and phase in ("main", "gather")
        row = Row(
            "rest", t, (), control.eps, control.share, price > 1, centre, scale,
            reference=reference_of(control, centre), decades=DECADES if uneven or narrow else 0.0, every=1 + narrow,
            stride=control.stride, draw=first if gathers else 0,
        )  # fmt: skip
        if control.flows or (phase == "draw" and space.flat is not None):
            count, left = FIRST_FLOWS[min(len(FIRST_FLOWS) - 1, control.row)], len(problem.table) - control.spent
            if phase == "main":
                count = 1 << (MAIN_ROWS - control.left)
            if gathers:  # all draws in one row, where chains do not wait for each other
                left = self._left(problem, control)
                count, row = round(min(control.gap, left)), row._replace(draws=control.left)
            straight = control.law == "constant" or (phase == "draw" and control.reference == "uniform")
            return row._replace(kind="flow" if straight else "orbit", lengths=(1,) * max(1, min(count, int(left))))
        allowance = (limit - control.spent) / ((1 << control.left) - 1 if phase == "main" else max(control.left, 1))
        if gathers:
            allowance = min(control.gap, self._left(problem, control))
            limit = control.spent + allowance
        if control.law == "infinite":
            left = min(limit - control.spent, allowance)
            count = math.ceil(left / control.price) if gathers else int(left / control.price)
            return row._replace(kind="slice" if count else "rest", lengths=(1,) * count)
        wanted = min(LONGEST, max(1, round(control.length / control.eps)))
        if phase in ("temper", "draw"):
            wanted = min(wanted, HEATED if phase == "temper" else 4 * HEATED)
        wanted = max(1, min(wanted, int((allowance - known) / price)))
        count = int(allowance / (wanted * price + known)) if phase in ("main", "gather") else 1
        lengths, left = list[int](), limit - control.spent
        for k in range(max(1, count)):
            share = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * ((control.row + k) * GOLDEN % 1.0)
            length = max(1, min(round(wanted * share), int((left - known) / price)))
            if left < length * price + known:
                break
            lengths.append(length)
            left -= length * price + known
        return row._replace(kind="leapfrog" if lengths else "rest", lengths=tuple(lengths))

    def _left(self, problem: Problem, control: Control) -> float:
        """What a chain may spend on one more draw: all samples together have a budget."""
        return (len(problem.table) * control.stride - control.spent) / max(control.left, 1)

    def fits(self, problem: Problem) -> bool:
        """Whether the density is fixed, and the set and the decoder are of a kind that it takes."""
        if not problem.table.static:
            return False
        one = problem.take(slice(0, 1)).replace(usage=Uncounted())
        try:
            space = space_of(problem)
            if space.flat is not None:
                return True
            origin = torch.zeros((1, *space.event), dtype=torch.float64, device=problem.like.device)
            if one.constraint.smooth and one.constraint.equations(origin).shape[1] * origin.numel() > LARGEST_JACOBIAN:
                return False
            start = origin + torch.linspace(0.5, 1.5, origin.numel()).reshape(origin.shape)
            start = one.constraint.project(start, quick=True)
            return Surface(one.constraint, space.event).regular(start.flatten(1))
        except (CasalError, RuntimeError, NotImplementedError):
            return False

    def one_mode(self, problem: Problem, x: Tensor) -> bool:
        """Whether the set is flat and the density on it constant or Gaussian, by its score at starting points x."""
        space = space_of(problem)
        return space.flat is not None and problem.chains is None and self._law(problem, space.inside(x)) is not None

    def first_points(self, problem: Problem, x: Tensor) -> Tensor:
        if not self.fits(problem):
            return x
        space = space_of(problem)
        if space.flat is not None:
            return space.latents(space.take(slice(problem.first, problem.first + len(x))).inside(x), problem.like)
        return space.latents(onto(problem, problem.decode(x)), problem.like)

    def told(self, problem: Problem) -> str:
        """The dimensions of the set in words."""
        flat, size = space_of(problem).flat, math.prod(problem.latent)
        return f"{size} dimensions" if flat is None or flat.dimension == size else flat.told()

    def _tempered(self, problem: Problem, n: int) -> bool:
        """Whether the start is tempered, unless the density has one mode."""
        known = problem.target.potential is not None and (problem.start is not None or explores(problem))
        return (
            self.temper and known and n >= FEWEST_CHAINS and self.warm_up != 0 and may_exchange(problem, n) is not None
        )

    def _weighs(self, problem: Problem, n: int) -> bool:
        """Whether a second pass weighs the modes, if there are several."""
        return self.temper and n >= FEWEST_CHAINS and self.warm_up != 0 and may_weigh(problem)

    def start_note(self, problem: Problem) -> str | None:
        n = problem.chains or FEWEST_CHAINS
        if self._tempered(problem, n) or self._weighs(problem, n):
            return None
        why = "the potential is not known; use casal.langevin(..., potential=...) or casal.energy"
        if problem.target.potential is not None:
            why = "they are not weighed (temper=False, warm_up=0, or too few chains of each set and condition)"
        return f"separate modes between which chains do not cross keep the weights of the starting points: {why}"

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> HMCState:
        log_weight, ancestor = equal_weights(problem, len(x))
        y, zeros = x.flatten(1).to(torch.float64), torch.zeros_like(log_weight)
        z = torch.zeros((len(x), *decoded_event(problem)), dtype=torch.float64, device=x.device)
        none = 0 * ancestor
        return HMCState(x, z, y, y, zeros, zeros + ACCEPTED, zeros, zeros, y, y, log_weight, ancestor, none, none)

    # ---------------------------------------------------------------------------------------------- each chain alone

    def step(self, space: Space, problem: Problem, state: HMCState, row: Row, noise: Tensor) -> HMCState:
        """The trajectories of a row."""
        if row.kind == "rest" and not row.draw:
            return state
        generator = generator_of(noise, state.y)
        space = space.take(slice(problem.first, problem.first + len(state.y)))
        chains = state.rows(slice(max(row.draw - 1, 0), None, row.stride))
        if row.kind in ("flow", "orbit"):
            found = flows(space, problem, chains, row, generator)
        else:
            move = slices if row.kind == "slice" else rattle if space.flat is None else leapfrogs
            found = [chains if row.kind == "rest" else move(space, problem, chains, row, generator)]
        found = [one._replace(x=space.latents(one.y, problem.like), z=space.decoded(problem, one.y)) for one in found]
        if row.draw:
            found = [one._replace(draw=torch.full_like(one.draw, row.draw + k)) for k, one in enumerate(found)]
        return state.placed(chains, found, row.stride, row.draw)

    def look(self, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
        """Put the chains into the set, and look what kind of density it is."""
        chains = state.rows(slice(None, None, control.stride))
        found, after, record = self._look(problem, chains, control, generator)
        return state.placed(state, [found], after.stride).begun(after.stride), after, record

    def _look(self, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
        """The same for the chains that move."""
        n = len(state.x)
        space, used = space_of(problem), problem.usage.scores
        t = problem.table.t[0].to(state.x.device)
        if space.flat is not None:
            y = space.inside(state.x)
            tested = 2 * space.flat.dimension + STARTS + TESTED
            law = self._law(problem, y) if problem.chains is None and tested <= self._few(problem, n) else None
        else:
            y, law = onto(problem, problem.decode(state.x)), None
        row = Row("rest", t)
        name, centre, scale = law or ("smooth", torch.zeros_like(y[0]), torch.zeros(0, dtype=y.dtype))
        if law is None:
            scale = first_scale(space, problem, y) if space.flat is not None else curved_scale(problem, y)
        record = {} if law is None else {"one_mode": 1.0}
        if name == "constant":
            centre, scale = barrier(space.flat)
        elif name == "gaussian" and (rounder := crowded(space.flat, centre, scale)) is not None:
            name, (centre, scale) = "smooth", rounder  # one mode: chains may begin in the ellipsoid of its barrier
            v = torch.randn(y.shape, generator=generator, dtype=y.dtype, device=y.device)
            y = space.inside_walls(centre + times(scale, v / torch.linalg.vector_norm(v, dim=1, keepdim=True)))
        if name == "smooth" and space.flat is not None and problem.chains is None and self._few(problem, n) >= 2 * RAYS:
            rise = rise_at_walls(space, lambda x: problem.score(x, t), problem.like)
            if rise > 0.0 and problem.target.potential is not None:
                name = "infinite"
            elif rise > 0.0:
                record["infinite"] = rise
        score = state.score if name != "smooth" else score_at(space, problem, y, row)
        log_p = state.log_p
        if name in ("smooth", "infinite") and problem.target.potential is not None:
            log_p = problem.log_density(space.latents(y, problem.like))
        state = state._replace(
            x=space.latents(y, problem.like), z=space.decoded(problem, y), y=y, score=score, log_p=log_p, anchor=y,
            before=y,
        )  # fmt: skip
        spent, budget = (problem.usage.scores - used) / n, float(len(problem.table))
        control = control._replace(
            law=name, one_mode=law is not None, spent=spent, centre=plain(centre), scale=plain(scale)
        )
        if name == "smooth":
            control = control._replace(eps=first_eps(y, scale), length=self._length(problem, y, control, generator))
            if self._tempered(problem, n) and law is None:  # else there is one mode
                limit = TEMPERED * (WARM_UP_TEMPERED if self.warm_up is None else self.warm_up) * budget
                control = begin(space, problem, control, state, limit)
                if control.share < 1.0:
                    return state, control, record
        return *_fewer(state, self._warm(problem, control, WARM_UP, budget)), record

    def _warm(self, problem: Problem, control: Control, usual: float, budget: float) -> Control:
        """The warm-up begins."""
        if control.flows:
            rows = len(FIRST_FLOWS) if control.law == "constant" else 1  # a Gaussian has its metric
            return control._replace(phase="warm", left=rows, share=1.0, spent=0.0)
        limit = max(control.spent, (usual if self.warm_up is None else self.warm_up) * budget)
        kept = MAIN_ROWS + control.draws - 1
        rows = min(WARM_ROWS, int((limit - control.spent) / 3), control.rows - control.row - kept)
        if rows < 1:
            return control._replace(phase="main", left=MAIN_ROWS, limit=_of_rounds(problem), share=1.0)
        return control._replace(phase="warm", left=rows, limit=limit, share=1.0)

    def _few(self, problem: Problem, n: int) -> float:
        """Evaluations of all chains that may be spent on a look at the density."""
        return 0.2 * n * len(problem.table)

    def _law(self, problem: Problem, y: Tensor) -> tuple[str, Tensor, Tensor] | None:
        """Whether p is constant or Gaussian on a flat set, as its score at points y and all over it says."""
        space, t = space_of(problem), problem.table.t[0].to(problem.like.device)
        log_p = None if problem.target.potential is None else problem.log_density
        tested = torch.cat([some_starts(y), spread_over(problem, min(SPREAD, SPREAD_SHARE * len(y)))])
        return linear_score(space, lambda x: problem.score(x, t), tested, problem.like, log_p)

    def after(self, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
        """After a row: adapt, and see what comes next."""
        row = self._row(problem, control)
        last = row.draw + row.draws - 1 if row.draw else 0
        chains = state.rows(slice(last, None, control.stride))
        moved, after, record = self._after(problem, chains, control, row, generator)
        state = state if last else state.placed(chains, [moved], after.stride)
        return state if after.stride == control.stride else state.begun(after.stride), after, record

    def _after(self, problem: Problem, state: HMCState, control: Control, row: Row, generator: torch.Generator) -> Done:
        """The same for the chains that move."""
        flowed, known = row.kind in ("flow", "orbit"), problem.target.potential is not None
        spent = float(sum(row.lengths) * (1 + row.fine) + known * len(row.lengths))
        if flowed:
            spent = float(len(row.lengths) * row.draws * control.flows)
        if row.kind == "slice":
            spent = float(state.gap.mean())
            control = control._replace(price=max(1.0, spent / len(row.lengths)))
        rate = float(state.accepted.mean())
        control = control._replace(row=control.row + 1, left=control.left - row.draws, spent=control.spent + spent)
        record = {"acceptance": rate, "refused": float(state.refused.mean()), "size": control.eps}
        record["leapfrogs"] = 0.0 if flowed else sum(row.lengths) / max(len(row.lengths), 1)
        if control.phase == "main":
            return self._round(problem, state, control, record, generator)
        if control.phase == "gather":
            return state, control._replace(phase="gather" if control.left else "end"), record
        if control.law == "smooth" and not flowed and not row.decades:
            control = self._adapt(problem, state, control, rate, generator)
        if control.phase == "draw" and (control.left == 0 or too_wide(problem, state, control)):
            state, control = leave_start(problem, state, control, flowed)
            if control.share == 1.0:
                state, control = _fewer(state, self._warm(problem, control, WARM_UP, float(len(problem.table))))
            return state, control, record
        if control.phase == "temper":
            state, control, found = heat(problem, state, control, record, generator)
            if control.share == 1.0:
                state, control = _fewer(state, self._warm(problem, control, WARM_UP_TEMPERED, len(problem.table)))
                state = state._replace(before=state.y)
            return state, control, found
        if control.phase == "weigh":
            state, control, found = heat(problem, state, control, record, generator)
            return *self._begin_rounds(problem, state, control), found
        if control.phase != "warm":
            return (state._replace(before=state.y) if control.left == SETTLED // 2 else state), control, record
        state, control = self._settled(problem, *self._renew(problem, state, control))
        if control.left == 0:
            if control.law == "smooth" and not control.one_mode and self._weighs(problem, len(state.y)):
                tempered = self._tempered(problem, len(state.y))
                state, control, found = weigh(problem, state, control, generator, tempered)
                record |= found
            state, control = self._begin_rounds(problem, state, control)
        return state, control, record

    def _begin_rounds(self, problem: Problem, state: HMCState, control: Control) -> tuple[HMCState, Control]:
        """The adaptation has ended, unless the modes are being weighed."""
        if control.phase == "weigh" and control.share < 1.0:
            return state, control
        control = control._replace(phase="main", left=MAIN_ROWS, limit=_of_rounds(problem), share=1.0)
        return state._replace(anchor=state.y, before=state.y), control._replace(began=control.spent)

    def _adapt(
        self, problem: Problem, state: HMCState, control: Control, rate: float, generator: torch.Generator
    ) -> Control:
        """eps, the length of trajectories, and the rule for log p' - log p."""
        if (mixture := mixture_of(control, state.y)) is not None:
            return control._replace(eps=control.eps * pace(slowest(mixture, state), GAINS[1]))
        late = control.phase == "warm" and control.left <= 2
        factor = pace(rate, GAINS[control.phase == "warm" and control.left <= WARM_ROWS // 2])
        length = self._length(problem, state.y, control, generator)
        widest = length / LENGTH
        eps = min(max(control.eps * factor, SIZES[0] * widest), SIZES[1] * widest)
        fine = control.fine
        if fine < 0 and late and problem.target.potential is None and space_of(problem).flat is not None:
            fine = int(float(state.gap.max()) > SAME)
        lost = float(((state.accepted < LOST[0]) & (state.refused == 0.0)).to(torch.float64).mean())
        narrow = control.phase == "warm" and space_of(problem).flat is not None and lost > LOST[1]
        return control._replace(eps=eps, length=length, fine=fine, narrow=control.narrow or narrow)

    def _length(self, problem: Problem, y: Tensor, control: Control, generator: torch.Generator) -> float:
        """Length of a trajectory in the coordinates u: so many spreads of the widest direction."""
        if len(y) < FEWEST_CHAINS:
            return LENGTH
        scale = torch.tensor(control.scale, dtype=y.dtype, device=y.device)
        u = solve(scale, centred(y, labels_of(problem, len(y)))) if scale.numel() else centred(y, None)
        widest = math.sqrt(float(main_directions(u, generator).var(0).max())) / (1.0 + math.sqrt(u.shape[1] / len(u)))
        least = 0.5 if scale.numel() else 0.05 * float(y.square().mean().sqrt())  # chains that begin at one point
        return LENGTH * max(widest, least, 1e-12)

    def _renew(self, problem: Problem, state: HMCState, control: Control) -> tuple[HMCState, Control]:
        """The metric from the chains, at marks of the warm-up."""
        n, space = len(state.y), space_of(problem)
        flat, rows = space.flat, len(FIRST_FLOWS) if control.law == "constant" else WARM_ROWS
        due = control.law == "constant" or any(control.left == round((1.0 - mark) * rows) for mark in MARKS)
        if control.law == "gaussian" or not due or n < FEWEST_CHAINS // 2:
            return state, control
        scale = torch.tensor(control.scale, dtype=state.y.dtype, device=state.y.device)
        centre = torch.tensor(control.centre, dtype=state.y.dtype, device=state.y.device)
        y = state.y
        if flat is None:
            turned = curved_scale(problem, state.y)
            return state, control._replace(scale=plain(turned), eps=control.eps * shrinkage(scale, turned))
        new = renewed_scale(space, problem, y, scale)
        if new is None:
            return state, control
        if problem.chains is None:
            middle = y.mean(0)
            centre = middle if bool((flat.room - middle @ flat.walls.T > 0).all()) else centre
        eps = min(max(control.eps * shrinkage(scale, new), SIZES[0]), 1.0) if control.law == "smooth" else control.eps
        return state, control._replace(centre=plain(centre), scale=plain(new), eps=eps, length=LENGTH)

    def _settled(self, problem: Problem, state: HMCState, control: Control) -> tuple[HMCState, Control]:
        """The warm-up ends soon where, from one mark to the next, chains forget where they were.

        Then the metric is from chains that follow the density, and steps need a few rows more.
        """
        marks = [round((1.0 - mark) * WARM_ROWS) for mark in MARKS]
        if control.law != "smooth" or control.left not in marks:
            return state, control
        kept = memory(features(state.before), features(state.y), labels_of(problem, len(state.y)))
        forgotten = kept is not None and kept.value <= FORGOTTEN[0] + _chance(state.y)
        moving = drift(*(features(part) for part in (state.anchor, state.before, state.y))).left
        if control.left < marks[0] and forgotten and moving <= LARGEST_SHIFT:
            return state, control._replace(left=min(control.left, WARM_ROWS // 8))
        return state if control.left == marks[-1] else state._replace(before=state.y), control

    def _round(
        self, problem: Problem, state: HMCState, control: Control, record: dict[str, float], generator: torch.Generator
    ) -> Done:
        """After a round: whether the chains have forgotten the end of the warm-up, within modes that are weighed."""
        labels = state.part if control.weighed else labels_of(problem, len(state.y))
        kept = memory(features(state.anchor), features(state.y), labels)
        if kept is not None:
            record["memory"] = kept.value
            control = control._replace(gap=min(control.gap, _apart(control, kept.value)))
        forgotten = kept is not None and kept.value <= FORGOTTEN[0] + _chance(state.y)
        rounds = MAIN_ROWS - control.left
        agree = agreement([features(part) for part in (state.anchor, state.before, state.y)], labels)
        forgotten = forgotten and agree is not None and agree.value <= agree.edge + 0.5 * ALLOWED_R_HAT
        moving = drift(state.anchor, state.before, state.y).left
        forgotten = forgotten and moving <= LARGEST_SHIFT
        if (control.ending and moving <= LARGEST_SHIFT) or control.left == 0:
            whole = memory(features(state.anchor), features(state.y)) if control.weighed else kept
            if whole is not None and whole.value <= whole.limit:
                state = state._replace(ancestor=torch.arange(len(state.x), device=state.x.device))
            if agree is not None:
                record |= {"r_hat": agree.value, "r_hat_edge": agree.edge}
            second = second_kind(space_of(problem), problem, state, control, generator)
            control = control._replace(phase="gather" if control.stride > 1 else "end", left=control.stride - 1)
            ancestors = ancestors_left(state.ancestor) * control.n / len(state.y)  # as if each sample were a chain
            return state, control, record | second | {"ancestors": ancestors}
        return (
            state._replace(before=state.y),
            control._replace(ending=control.ending or (forgotten and rounds >= 2)),
            record,
        )

    # ---------------------------------------------------------------------------------------------------- what is left

    def samples(self, problem: Problem, state: HMCState) -> Tensor:
        rows = torch.arange(len(state.z), device=state.z.device)
        space, z = space_of(problem), state.z[torch.where(state.draw < 0, 0, rows).cummax(0).values]
        if space.flat is None:
            surface = Surface(problem.constraint, space.event)
            z = surface.settled(z.flatten(1)).reshape(z.shape)
        elif problem.identity:
            z = space.flat.equations.settled(z.flatten(1)).reshape(z.shape)
        if (sides := problem.constraint.bounds(space.event)) is not None:
            z = torch.minimum(torch.maximum(z, sides[0].to(z)), sides[1].to(z))
        if space.flat is not None and problem.identity:
            return z
        off = torch.nonzero(problem.constraint.violation(z) > ROUNDED).flatten()
        if len(off):
            few = problem.take(off)
            problem.usage.add_projections(len(off))
            found = few.constraint.solve(z[off], budget=POLISH, warm=z[off]).point
            better = few.constraint.violation(found) < few.constraint.violation(z[off])
            z[off[better]] = found[better]
        return z

    def monitor(self, problem: Problem, state: HMCState) -> Mapping[str, Tensor]:
        some = torch.nonzero(state.draw == 0).flatten()
        return {"violation": problem.constraint.take(some).violation(state.z[some])}

    def advice(self, state: HMCState, row: Any) -> str:
        return f"(eps = {row.eps:.3g}); check the score near the edge of the set"


def _chance(y: Tensor) -> float:
    """The largest correlation of features of chains that have forgotten where they were."""
    return max(FORGOTTEN[1], math.sqrt(2.0 * math.log(4.0 * y.shape[1]))) / math.sqrt(len(y))


def _apart(control: Control, memory: float) -> float:
    """Evaluations of a chain, or flows, after which its memory is APART, if it decays as since the rounds began."""
    return (control.spent - control.began) * math.log(APART) / math.log(min(max(memory, 1e-9), 1.0 - 1e-9))


def _fewer(state: HMCState, control: Control) -> tuple[HMCState, Control]:
    """The chains that go on after a tempered start, evenly from all: copies are neighbours."""
    return state.rows(slice(None, None, control.draws // control.stride)), control._replace(stride=control.draws)


def _of_rounds(problem: Problem) -> float:
    """Evaluations at which the rounds end: those of the second kind of move are kept back."""
    return len(problem.table) * (1.0 if problem.target.potential is None else 1.0 - SECOND_SHARE)
