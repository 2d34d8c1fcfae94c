"""A fixed density on and in a set: Hamiltonian Monte Carlo whose chains never leave it.

**Flat sets** {A z = b, l <= z <= u, G z <= h} are reduced once to walls around an interior point (``reduction.py``).
The chains move in coordinates u in which the density is about round, and are turned at walls exactly
(``flat_flows.py``):

    constant density      straight flows
    Gaussian              orbits y cos t + v sin t
    any other             leapfrogs: v += (eps/2) grad log p;  drift, turned at walls;  v += (eps/2) grad log p

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
is one more round, and the run ends.

**Modes.** Chains keep to their modes. With a potential and starting points of a known density q, the start is tempered:
the chains first follow q on the set, then q^(1-b) p^b, b = 0 ... 1, with weights (p / q)^(b' - b), and are resampled
where these are uneven. So separate modes get their right weights from any start that covers them. Constant and
Gaussian densities on flat sets have one mode and need no tempering. A mode that is narrow, and becomes heavy only near
b = 1, can be lost on this way. So at its end a few scouts run from the starting points under p itself, and
``trace["lost"]`` counts those that come to rest at a log p that no chain has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.errors import CasalError, SettingError
from casal.methods.base import Each, Method, Together, generator_of, key
from casal.methods.bounded_hmc import FEWEST_CHAINS, main_directions, units_of
from casal.methods.chain_memory import centred, memory
from casal.methods.coupling import decoded_event
from casal.methods.flat_flows import drift, flow, fold, rounded
from casal.methods.population import Groups, effective_ancestors, equal_weights, groups_of, normalised, resample, temper
from casal.methods.problem import Problem, Uncounted, pick
from casal.methods.reduction import Reduction, reduction
from casal.methods.surface import Surface

ACCEPTED, GAINS = 0.75, (1.0, 0.4)
"""Share of trajectories to accept, and how fast log eps follows it: in the first half of a warm-up, and then."""

REFUSED, CUT = 0.15, 0.4
"""Acceptance below which eps is cut, and by what factor."""

SIZES = (1e-5, 2.0)
"""Bounds of eps, in units of the spread of the chains."""

LENGTH, LONGEST = 1.5, 64
"""Length of a trajectory in spreads of the widest direction, and its leapfrogs, at most."""

PACES, LENGTHS, GOLDEN = 0.1, (0.7, 1.3), 0.6180339887498949
"""Each chain takes eps (1 +- PACES); trajectories have between these shares of the leapfrogs, in a fixed order."""

WARM_UP, WARM_UP_TEMPERED, TEMPERED = 0.4, 0.5, 0.7
"""Share of the evaluations of a warm-up; where the start is tempered; and what of it the tempering takes."""

WARM_ROWS, TEMPER_ROWS, MAIN_ROWS, DRAW_ROWS = 32, 100, 8, 10
"""Rows of the phases, at most: warm-up, tempering, rounds, and those that lead to q on a curved set."""

MARKS = (0.25, 0.5, 0.75)
"""Shares of the warm-up after which the metric is renewed."""

FLOWS, FIRST_FLOWS = 2, (8, 6, 6, 6)
"""Flows of the first round, and of the rows of a warm-up by flows."""

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

SAME = 0.2
"""Difference of the two rules for log p(y') - log p(y) over a trajectory, up to which the first is taken."""

DENSE, ROUND = 256, 4.0
"""Dimensions up to which the metric is dense; ratio of spreads on a curved set from which on it has a metric."""

INWARD, INSIDE = 0.95, 1.0 - 1e-13
"""Starting points outside are moved to this share of the way from the interior point to the first wall; and points that
rounding has put onto a wall to that one."""

FORGOTTEN = (0.05, 3.0)
"""Correlation with the end of the warm-up, and standard errors beside it, below which the chains have forgotten it.
There are more of these in many dimensions, where the largest of as many correlations by chance is larger."""

ROUNDED = (1e-14, 1e-10)
"""Violation beyond which samples are projected, on curved sets and on flat ones. On these it is rounding in a row whose
terms are small, and a projection would put samples onto walls."""

LARGEST_JACOBIAN = 1 << 15
"""Numbers of the derivatives of the equations of a curved set, up to which ``fits`` says yes: each step takes several,
row by row."""

LARGEST_DECODER = 1024
"""Rows of a decoder that is inverted, at most."""

CROWDED = 3.0
"""Walls that an orbit of a Gaussian may meet for every dimension, by an estimate; beyond it leapfrogs are taken."""

STARTS, TESTED, STRAIGHT = 256, 64, 1e-8
"""Starting points and others at which a score is compared with a linear one, and the relative difference let pass."""


class Row(NamedTuple):
    """Some trajectories.

    Attributes:
        kind: "flow", "orbit" (N(0, I) in the coordinates u), "leapfrog", or "rest".
        t: The second argument of the score.
        lengths: Leapfrogs of each trajectory; only their number counts for flows.
        eps: Size of a leapfrog.
        share: b.
        fine: Whether log p' - log p is found by the second rule.
        centre: y = centre + L u, (r,).
        scale: L (r, r), or its diagonal (r,).
    """

    kind: str
    t: Tensor
    lengths: tuple[int, ...] = ()
    eps: float = 1.0
    share: float = 1.0
    fine: bool = False
    centre: Tensor = torch.zeros(0)
    scale: Tensor = torch.zeros(0)


class HMCState(NamedTuple):
    """Chains in the set. n chains, r coordinates of the set.

    Attributes:
        x: The samples in latent space, (n, *latent).
        z: The samples, (n, *event) float64.
        y: Their coordinates, (n, r) float64.
        score: Gradient of log p in these coordinates, (n, r).
        log_p: log p, where there is a potential, (n,).
        accepted: Mean probability with which the trajectories of the last row were accepted, (n,).
        refused: Share of them that met too many walls, or could not be taken back, (n,).
        gap: What the second rule adds to log p' - log p, the largest of the last row, (n,).
        anchor: y at the end of the warm-up, (n, r).
        before: y at the beginning of the last round, (n, r).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
    """

    x: Tensor
    z: Tensor
    y: Tensor
    score: Tensor
    log_p: Tensor
    accepted: Tensor
    refused: Tensor
    gap: Tensor
    anchor: Tensor
    before: Tensor
    log_weight: Tensor
    ancestor: Tensor


class Control(NamedTuple):
    """What all chains share.

    Attributes:
        rows: Rows of the whole run.
        row: Rows taken.
        phase: "look", "draw", "temper", "warm", "main" or "end".
        left: Rows left of the phase.
        law: "constant", "gaussian" or "smooth".
        limit: Evaluations of a chain at which the phase ends.
        spent: Evaluations of a chain so far.
        trajectories: How many there were.
        eps: Size of a leapfrog.
        length: Length of a trajectory.
        share: b.
        fine: 1 where the second rule for log p' - log p is taken, 0 where it is not, -1 before it was tried.
        centre: Of the coordinates u.
        scale: L.
        ending: Whether this round is the last.
        crossed: Whether the chains have forgotten their start under q. If not, the set has components, or they are
            slow.
    """

    rows: int
    row: int = 0
    phase: str = "look"
    left: int = 0
    law: str = "smooth"
    limit: float = 0.0
    spent: float = 0.0
    trajectories: int = 0
    eps: float = 0.5
    length: float = LENGTH
    share: float = 1.0
    fine: int = -1
    centre: Any = ()
    scale: Any = ()
    ending: bool = False
    crossed: bool = True


Done: TypeAlias = tuple[HMCState, Control, Mapping[str, float]]


class Space(NamedTuple):
    """Coordinates y of a set: those of the reduction of a flat one, else the points z themselves.

    Attributes:
        flat: The reduction, of latents; None for a curved set.
        event: Shape of a decoded point.
        latent: Shape of a latent.
        inverse: A^-1 (k, k) on a curved set behind a square decoder, or its diagonal (k,); None for z = x.
        bounds: Low and high (1 or n, r), where a flat set has nothing else.
    """

    flat: Reduction | None
    event: tuple[int, ...]
    latent: tuple[int, ...]
    inverse: Tensor | None
    bounds: tuple[Tensor, Tensor] | None

    def take(self, some: slice) -> Space:
        """Of some chains."""
        if self.flat is None or len(self.flat.room) == 1:
            return self
        sides = None if self.bounds is None else (self.bounds[0][some], self.bounds[1][some])
        return self._replace(flat=self.flat.take(some), bounds=sides)

    def inside(self, x: Tensor) -> Tensor:
        """Latents as points inside a flat set: laid back into bounds, else moved towards the interior point."""
        assert self.flat is not None
        y = self.flat.inward(x.flatten(1).to(torch.float64))
        if self.bounds is not None:
            y = fold(y, *self.bounds)[0]
        return self.flat.drawn_in(y, INWARD if self.bounds is None else INSIDE)

    def latents(self, y: Tensor, like: Tensor) -> Tensor:
        """x, in the dtype of the run."""
        x = self.flat.outward(y) if self.flat is not None else y if self.inverse is None else _times(self.inverse, y)
        return x.reshape(-1, *self.latent).to(like.dtype)

    def pull(self, score: Tensor) -> Tensor:
        """The gradient in y, from that in x; zero where it is not a number."""
        g = torch.nan_to_num(score.flatten(1).to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return (
            self.flat.pull(g) if self.flat is not None else g if self.inverse is None else _transposed(self.inverse, g)
        )

    def decoded(self, problem: Problem, y: Tensor) -> Tensor:
        """z, (n, *event) float64."""
        if self.flat is None:
            return y.reshape(-1, *self.event)
        if problem.identity:
            return self.flat.outward(y).reshape(-1, *self.event)
        return problem.decode(self.latents(y, problem.like)).to(torch.float64)


def space_of(problem: Problem) -> Space:
    """The coordinates of a set, made once.

    Raises:
        SettingError: The set is neither flat nor given by smooth functions, or the decoder does not allow for it.
    """
    name = "identity" if problem.identity else id(problem.decoder)
    return problem.constraint._once(("space", problem.latent, problem.like.device, name), lambda: _space(problem))


def _space(problem: Problem) -> Space:
    constraint, event = problem.constraint, decoded_event(problem)
    found = reduction(problem)
    if found is not None:
        return Space(found, event, problem.latent, None, found.bounds() if found.aligned else None)
    way_out = "use WeightedCASAL"
    if constraint.in_pieces or not constraint.smooth:
        raise SettingError(f"HMC needs a set with flat sides or smooth functions, not {constraint!r}; {way_out}")
    return Space(None, event, problem.latent, None if problem.identity else _inverse(problem, way_out), None)


def _inverse(problem: Problem, way_out: str) -> Tensor:
    """A^-1 of a square decoder (k, k), or its diagonal (k,)."""
    unit = units_of(problem)
    if unit is not None:
        return 1.0 / unit
    rows, columns = math.prod(decoded_event(problem)), math.prod(problem.latent)
    if not problem.decoder.linear or rows != columns or rows > LARGEST_DECODER:
        raise SettingError(
            f"HMC on a curved set takes a linear and square decoder of at most {LARGEST_DECODER} rows, not "
            f"{problem.decoder!r} ({rows} x {columns}); {way_out}"
        )
    matrix = problem.decoder.matrix(problem.latent, problem.like)
    if float(torch.linalg.cond(matrix)) > 1e6:
        raise SettingError(f"HMC on a curved set takes a decoder that can be inverted; {way_out}")
    return torch.linalg.inv(matrix)


@dataclass(frozen=True)
class HMC(Method[HMCState]):
    """Samples a fixed density restricted to a set, by Hamiltonian Monte Carlo whose chains never leave it.

    For flat sets (``Box``, ``Simplex``, ``Polytope``, ``Monotone``, ``Affine & Box`` ...) and for sets of smooth
    equations and inequalities (``Sphere``, ``Implicit``, ``MassEnergy``, ``Ball`` ...), in up to some hundred
    dimensions, thousands for bounds. The equations are at the top of this file. n chains give n independent
    samples once they have forgotten their start; the run ends when they have, and takes at most as many evaluations a
    chain as the target has steps. Its step size is not used.

    The distribution is exact as the number of steps grows. Separate modes have their right weights if the start is
    tempered, which takes a potential and a start of known density; the result says what is the case. Chains do not
    cross from one component of a set to another.

    Args:
        warm_up: Share of the evaluations in which step, metric and length of trajectories adapt. None takes 0.4, or 0.5
            for a tempered start.
        temper: Whether to temper the start where potential and density of the start are known.

    >>> import casal, torch
    >>> target = casal.langevin(lambda x: x + 1.0, steps=60, step_size=0.3, init=torch.zeros(64, 8))
    >>> result = casal.sample(target, casal.Simplex(2.0), casal.HMC(), 64)
    >>> bool((result.samples > 0).all()), float((result.samples.sum(1) - 2.0).abs().max()) < 1e-12
    (True, True)
    """

    warm_up: float | None = None
    temper: bool = True

    name: ClassVar[str] = "HMC"
    promises_distribution: ClassVar[bool] = True
    bounds_moves: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.warm_up is not None and not 0.0 <= self.warm_up < 1.0:
            raise SettingError(f"warm_up is a share of the evaluations in [0, 1), got {self.warm_up}")

    # ---------------------------------------------------------------------------------------------------- stages

    def control(self, problem: Problem, n: int) -> Control:
        if not problem.table.static:
            raise SettingError("HMC needs a fixed density (langevin, energy); use BoundedHMC or LookAhead for a model")
        space_of(problem)
        budget = len(problem.table)
        rows = MAIN_ROWS + min(WARM_ROWS, budget)
        rows += DRAW_ROWS + min(TEMPER_ROWS, budget) if self._tempered(problem, n) else 0
        return Control(rows)

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
        shared = (control.eps, control.share, control.fine > 0, centre, scale)
        phase, space = control.phase, space_of(problem)
        if control.law != "smooth" or (phase == "draw" and space.flat is not None):
            count = FLOWS << (MAIN_ROWS - control.left)
            if phase != "main":
                count = FIRST_FLOWS[min(len(FIRST_FLOWS) - 1, control.row)]
            count = max(1, min(count, len(problem.table) - control.trajectories))
            return Row("flow" if control.law == "constant" else "orbit", t, (1,) * count, *shared)
        price, allowance = (
            1 + (control.fine != 0 and space.flat is not None and not known),
            control.limit - control.spent,
        )
        allowance /= (1 << control.left) - 1 if phase == "main" else max(control.left, 1)
        wanted = min(LONGEST, max(1, round(control.length / control.eps)))
        if phase == "temper":
            wanted = min(wanted, HEATED)
        wanted = max(1, min(wanted, int((allowance - known) / price)))
        count = int(allowance / (wanted * price + known)) if phase == "main" else 1
        if control.limit - control.spent < price + known:
            return Row("rest", t)
        lengths, left = list[int](), control.limit - control.spent
        for k in range(max(1, count)):
            share = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * ((control.trajectories + k) * GOLDEN % 1.0)
            length = max(1, min(round(wanted * share), int((left - known) / price)))
            if left < length * price + known:
                break
            lengths.append(length)
            left -= length * price + known
        return Row("leapfrog", t, tuple(lengths), control.eps, control.share, price > 1, centre, scale)

    def fits(self, problem: Problem) -> bool:
        """Whether the set and the decoder are of a kind that it takes."""
        one = problem.take(slice(0, 1)).replace(usage=Uncounted())
        try:
            space = space_of(problem)
            if space.flat is not None:
                return True
            origin = torch.zeros((1, *space.event), dtype=torch.float64, device=problem.like.device)
            if one.constraint.equations(origin).shape[1] * origin.numel() > LARGEST_JACOBIAN:
                return False
            start = one.constraint.project(origin + torch.linspace(0.5, 1.5, origin.numel()).reshape(origin.shape))
            return Surface(one.constraint, space.event).regular(start.flatten(1))
        except (CasalError, RuntimeError, NotImplementedError):
            return False

    def one_mode(self, problem: Problem, x: Tensor) -> bool:
        """Whether the set is flat and the density on it constant or Gaussian, by its score at starting points x."""
        space, t = space_of(problem), problem.table.t[0].to(problem.like.device)
        if space.flat is None or problem.chains is not None:
            return False
        return _linear(space, lambda x: problem.score(x, t), space.inside(x), problem.like) is not None

    def told(self, problem: Problem) -> str:
        """The dimensions of the set in words."""
        flat, size = space_of(problem).flat, math.prod(problem.latent)
        if flat is None or flat.dimension == size:
            return f"{size} dimensions"
        fixed = f", {flat.fixed} coordinates fixed by the others" if flat.fixed else ""
        return f"{flat.dimension} of {size} dimensions{fixed}, {len(flat.walls)} walls"

    def keeps_start_weights(self, problem: Problem, n: int) -> bool:
        """Whether modes keep the weights of the starting points: on a curved set, if the start is not tempered."""
        return space_of(problem).flat is None and not self._tempered(problem, n)

    def _tempered(self, problem: Problem, n: int) -> bool:
        """Whether the start is tempered, unless the density has one mode."""
        known = problem.start is not None and problem.target.potential is not None
        return self.temper and known and n >= FEWEST_CHAINS and self.warm_up != 0 and _groups(problem, n) is not None

    def start_note(self, problem: Problem) -> str | None:
        if self._tempered(problem, problem.chains or FEWEST_CHAINS):
            return None
        why = "the potential is not known; use casal.langevin(..., potential=...) or casal.energy"
        if problem.target.potential is not None:
            why = "the density of the starting points is not known; start with casal.GaussianStart"
            if problem.start is not None:
                why = "the start is not tempered (temper=False, warm_up=0, or too few chains of each set and condition)"
        return f"separate modes between which chains do not cross keep the weights of the starting points: {why}"

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> HMCState:
        log_weight, ancestor = equal_weights(problem, len(x))
        y, zeros = x.flatten(1).to(torch.float64), torch.zeros_like(log_weight)
        z = torch.zeros((len(x), *decoded_event(problem)), dtype=torch.float64, device=x.device)
        return HMCState(x, z, y, y, zeros, zeros + ACCEPTED, zeros, zeros, y, y, log_weight, ancestor)

    # ---------------------------------------------------------------------------------------------- each chain alone

    def step(self, space: Space, problem: Problem, state: HMCState, row: Row, noise: Tensor) -> HMCState:
        """The trajectories of a row."""
        if row.kind == "rest":
            return state
        generator = generator_of(noise, state.y)
        space = space.take(slice(problem.first, problem.first + len(state.y)))
        move = self._flow if row.kind != "leapfrog" else self._leapfrogs if space.flat is not None else self._rattle
        state = move(space, problem, state, row, generator)
        return state._replace(x=space.latents(state.y, problem.like), z=space.decoded(problem, state.y))

    def _flow(self, space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator) -> HMCState:
        """Flows of a constant or a Gaussian density."""
        assert space.flat is not None
        walls = rounded(space.flat.walls, space.flat.room, row.centre, row.scale)
        u = _solve(row.scale, state.y - row.centre)
        found = flow(walls, u, len(row.lengths), row.kind == "orbit", generator)
        y = space.flat.drawn_in(row.centre + _times(row.scale, found.point), INSIDE)
        return state._replace(y=y, accepted=1.0 - found.refused, refused=found.refused)

    def _leapfrogs(
        self, space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator
    ) -> HMCState:
        """Trajectories of leapfrogs between flat walls."""
        flat, known = space.flat, problem.target.potential is not None
        assert flat is not None
        folds = space.bounds if row.scale.ndim == 1 else None
        walls = None if folds else rounded(flat.walls, flat.room, row.centre, row.scale)
        accepted, refused, worst = (torch.zeros_like(state.log_p) for _ in range(3))
        for length in row.lengths:
            v, eps, decide = _drawn(state.y, row, generator)
            y, score, start = state.y, state.score, self._log_q(space, problem, state.y, row)
            rise, gap, energy = torch.zeros_like(state.log_p), torch.zeros_like(state.log_p), 0.5 * v.square().sum(1)
            force = self._force(space, problem, y, score, row)
            for _ in range(length):
                v = v + 0.5 * eps * _transposed(row.scale, force)
                if folds is not None:
                    end, sign = fold(y + eps * row.scale * v, *folds)
                    v = sign * v
                else:
                    assert walls is not None
                    u, v = drift(walls, _solve(row.scale, y - row.centre), v, eps[:, 0])
                    end = flat.drawn_in(row.centre + _times(row.scale, u), INSIDE)
                lost = ~torch.isfinite(end).all(1)
                end, v = pick(lost, y, end), pick(lost, torch.full_like(v, torch.nan), v)
                new = self._score(space, problem, end, row)
                step = 0.5 * ((score + new) * (end - y)).sum(1)
                if row.fine:
                    halfway = self._score(space, problem, 0.5 * (y + end), row)
                    gap = gap + (2.0 * (halfway * (end - y)).sum(1) - 2.0 * step) / 3.0
                rise, y, score = rise + step, end, new
                force = self._force(space, problem, y, score, row)
                v = v + 0.5 * eps * _transposed(row.scale, force)
            log_p = problem.log_density(space.latents(y, problem.like)) if known else state.log_p + rise + gap
            ratio = row.share * _minus(log_p, state.log_p) + self._log_q(space, problem, y, row) - start
            ratio = ratio + energy - 0.5 * v.square().sum(1)
            refused = refused + (~torch.isfinite(v).all(1)).to(refused) / len(row.lengths)
            state, chance = _decided(state, y, score, log_p, ratio, decide)
            accepted, worst = accepted + chance / len(row.lengths), torch.maximum(worst, (gap * (chance > 0.01)).abs())
        return state._replace(accepted=accepted, refused=refused, gap=worst)

    def _rattle(
        self, space: Space, problem: Problem, state: HMCState, row: Row, generator: torch.Generator
    ) -> HMCState:
        """Trajectories of leapfrogs on a curved set."""
        known, scale = problem.target.potential is not None, row.scale if row.scale.numel() else None
        surface = Surface(problem.constraint, space.event, scale)
        here = surface.frame(surface.inward(state.y))
        factor, tilt = surface.log_factor(here.w)
        accepted, refused = torch.zeros_like(state.log_p), torch.zeros_like(state.log_p)
        for length in row.lengths:
            v, eps, decide = _drawn(state.y, row, generator)
            at, v, y, score = here, here.tangent(v), state.y, state.score
            start, energy = self._log_q(space, problem, y, row) + factor, 0.5 * v.square().sum(1)
            rise, ok = torch.zeros_like(state.log_p), torch.ones(len(y), dtype=torch.bool, device=y.device)
            force, end_factor, end_tilt = self._force(space, problem, y, score, row), factor, tilt
            for _ in range(length):
                v = v + 0.5 * eps * at.tangent(surface.pull(force) + end_tilt)
                at, v, fine = surface.drift(at, v, eps)
                ok = ok & fine & torch.isfinite(v).all(1)
                end = surface.outward(at.w)
                new = self._score(space, problem, end, row)
                rise, y, score = rise + 0.5 * ((score + new) * (end - y)).sum(1), end, new
                end_factor, end_tilt = surface.log_factor(at.w)
                force = self._force(space, problem, y, score, row)
                v = v + 0.5 * eps * at.tangent(surface.pull(force) + end_tilt)
            log_p = problem.log_density(space.latents(y, problem.like)) if known else state.log_p + rise
            ratio = row.share * _minus(log_p, state.log_p) + self._log_q(space, problem, y, row) + end_factor - start
            ratio = torch.where(ok, ratio + energy - 0.5 * v.square().sum(1), -torch.inf)
            refused = refused + (~ok).to(refused) / len(row.lengths)
            state, chance = _decided(state, y, score, log_p, ratio, decide)
            yes = (state.y == y).all(1)
            here, factor, tilt = at.pick(yes, here), pick(yes, end_factor, factor), pick(yes, end_tilt, tilt)
            accepted = accepted + chance / len(row.lengths)
        return state._replace(accepted=accepted, refused=refused)

    def _score(self, space: Space, problem: Problem, y: Tensor, row: Row) -> Tensor:
        """Gradient of log p in y."""
        return space.pull(problem.score(space.latents(y, problem.like), row.t))

    def _force(self, space: Space, problem: Problem, y: Tensor, score: Tensor, row: Row) -> Tensor:
        """Gradient of log(q^(1-b) p^b) in y."""
        if row.share == 1.0:
            return score
        assert problem.start is not None
        return row.share * score + (1.0 - row.share) * space.pull(problem.start.score(space.latents(y, problem.like)))

    def _log_q(self, space: Space, problem: Problem, y: Tensor, row: Row) -> Tensor:
        """(1 - b) log q, (n,)."""
        if row.share == 1.0:
            return torch.zeros_like(y[:, 0])
        assert problem.start is not None
        return (1.0 - row.share) * problem.start.log_density(space.latents(y, problem.like)).to(y)

    # ------------------------------------------------------------------------------------------ all chains together

    def look(self, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
        """Put the chains into the set, and look what kind of density it is."""
        space, n, used = space_of(problem), len(state.x), problem.usage.scores
        t = problem.table.t[0].to(state.x.device)
        if space.flat is not None:
            y = space.inside(state.x)
            law = self._law(space, problem, y, t, generator)
        else:
            y, law = _onto(problem, problem.decode(state.x)), None
        row = Row("rest", t)
        name, centre, scale = law or ("smooth", torch.zeros_like(y[0]), torch.zeros(0, dtype=y.dtype))
        if law is None:
            scale = _first_scale(space, problem, y) if space.flat is not None else _curved_scale(problem, y)
        one_mode = law is not None
        if name == "constant":
            centre, scale = _barrier(space.flat)
        elif name == "gaussian" and (rounder := _crowded(space.flat, centre, scale)) is not None:
            name, (centre, scale) = "smooth", rounder
        score = state.score if name != "smooth" else self._score(space, problem, y, row)
        log_p = state.log_p
        if name == "smooth" and problem.target.potential is not None:
            log_p = problem.log_density(space.latents(y, problem.like))
        state = state._replace(
            x=space.latents(y, problem.like), z=space.decoded(problem, y), y=y, score=score, log_p=log_p, anchor=y,
            before=y,
        )  # fmt: skip
        spent, budget = (problem.usage.scores - used) / n, float(len(problem.table))
        control = control._replace(law=name, spent=spent, centre=_plain(centre), scale=_plain(scale))
        if name == "smooth":
            control = control._replace(eps=_first_eps(y, scale), length=self._length(problem, y, control, generator))
            if self._tempered(problem, n) and not one_mode:
                return state, self._draw(space, problem, control, y, budget), {}
        return state, self._warm(problem, control, WARM_UP, budget), {}

    def _warm(self, problem: Problem, control: Control, usual: float, budget: float) -> Control:
        """The warm-up begins."""
        if control.law != "smooth":
            return control._replace(phase="warm", left=len(FIRST_FLOWS), share=1.0)
        limit = max(control.spent, (usual if self.warm_up is None else self.warm_up) * budget)
        rows = min(WARM_ROWS, int((limit - control.spent) / 3), control.rows - control.row - MAIN_ROWS)
        if rows < 1:
            return control._replace(phase="main", left=MAIN_ROWS, limit=budget, share=1.0)
        return control._replace(phase="warm", left=rows, limit=limit, share=1.0)

    def _draw(self, space: Space, problem: Problem, control: Control, y: Tensor, budget: float) -> Control:
        """The chains begin to follow q."""
        limit = TEMPERED * (WARM_UP_TEMPERED if self.warm_up is None else self.warm_up) * budget
        control = control._replace(
            phase="draw", left=1 if space.flat is not None else DRAW_ROWS, limit=limit, share=0.0
        )
        if space.flat is None or problem.start is None:
            return control
        start = problem.start
        found = _linear(space, lambda x: start.score(x), y, problem.like)
        if found is None or found[0] != "gaussian":
            return control._replace(phase="temper", left=self._levels(problem, control))
        return control._replace(centre=_plain(found[1]), scale=_plain(found[2]))

    def _levels(self, problem: Problem, control: Control) -> int:
        """Rows of the tempering."""
        return max(1, min(TEMPER_ROWS, len(problem.table), int((control.limit - control.spent) / (HEATED + 1))))

    def _law(
        self, space: Space, problem: Problem, y: Tensor, t: Tensor, generator: torch.Generator
    ) -> tuple[str, Tensor, Tensor] | None:
        """Whether p is constant or Gaussian on the set: its score is linear."""
        assert space.flat is not None
        affordable = 2 * space.flat.dimension + STARTS + TESTED <= 0.2 * len(y) * len(problem.table)
        if problem.chains is not None or not affordable:
            return None
        return _linear(space, lambda x: problem.score(x, t), y, problem.like)

    def after(self, problem: Problem, state: HMCState, control: Control, generator: torch.Generator) -> Done:
        """After a row: adapt, and see what comes next."""
        row, n = self._row(problem, control), len(state.y)
        flows = row.kind in ("flow", "orbit")
        price = 1 + row.fine
        known = problem.target.potential is not None
        spent = 0.0 if flows or row.kind == "rest" else float(sum(row.lengths) * price + known * len(row.lengths))
        rate = float(state.accepted.mean())
        control = control._replace(
            row=control.row + 1, left=control.left - 1, spent=control.spent + spent,
            trajectories=control.trajectories + len(row.lengths),
        )  # fmt: skip
        record = {"acceptance": rate, "refused": float(state.refused.mean()), "size": control.eps}
        record["leapfrogs"] = 0.0 if flows else sum(row.lengths) / max(len(row.lengths), 1)
        if control.phase == "main":
            return self._round(problem, state, control, record)
        if control.law == "smooth" and not flows:
            control = self._adapt(problem, state, control, rate, generator)
        if control.phase == "draw" and control.left == 0:
            space, t = space_of(problem), problem.table.t[0].to(state.x.device)
            score, log_p = state.score, state.log_p
            if flows:  # they do not ask p
                score, log_p = self._score(space, problem, state.y, Row("rest", t)), problem.log_density(state.x)
                scale = _first_scale(space, problem, state.y)
                control = control._replace(
                    spent=control.spent + 2.0, scale=_plain(scale), eps=_first_eps(state.y, scale)
                )
                control = control._replace(centre=_plain(torch.zeros_like(state.y[0])))
            kept = memory(state.anchor, state.y, _labels(problem, n))
            crossed = flows or (kept is not None and kept.value <= kept.limit)
            control = control._replace(crossed=crossed, trajectories=0)
            control = control._replace(phase="temper", left=self._levels(problem, control))
            return state._replace(score=score, log_p=log_p), control, record
        if control.phase == "temper":
            return self._heat(problem, state, control, record, generator)
        if control.phase == "warm":
            state, control = self._renew(problem, state, control)
            if control.left == 0:
                budget = float(len(problem.table))
                control = control._replace(phase="main", left=MAIN_ROWS, limit=budget, trajectories=0)
                state = state._replace(anchor=state.y, before=state.y)
        return state, control, record

    def _adapt(
        self, problem: Problem, state: HMCState, control: Control, rate: float, generator: torch.Generator
    ) -> Control:
        """eps, the length of trajectories, and the rule for log p' - log p."""
        factor = CUT if rate < REFUSED else math.exp(GAINS[control.row > WARM_ROWS // 2] * (rate - ACCEPTED))
        widest = control.length / LENGTH
        eps = min(max(control.eps * factor, SIZES[0] * widest), SIZES[1] * widest)
        fine = control.fine
        late = control.phase == "warm" and control.left <= 2
        if fine < 0 and late and problem.target.potential is None and space_of(problem).flat is not None:
            fine = int(float(state.gap.max()) > SAME)
        return control._replace(eps=eps, length=self._length(problem, state.y, control, generator), fine=fine)

    def _length(self, problem: Problem, y: Tensor, control: Control, generator: torch.Generator) -> float:
        """Length of a trajectory in the coordinates u: so many spreads of the widest direction."""
        if len(y) < FEWEST_CHAINS:
            return LENGTH
        scale = torch.tensor(control.scale, dtype=y.dtype, device=y.device)
        u = _solve(scale, centred(y, _labels(problem, len(y)))) if scale.numel() else centred(y, None)
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
        away = centred(state.y, _labels(problem, n))
        if flat is None:
            new = _curved_scale(problem, state.y)
            return state, control._replace(scale=_plain(new), eps=control.eps * _volume(scale, new))
        u = _solve(scale, away)
        if u.shape[1] > DENSE:
            spread = u.square().mean(0).sqrt()
            new = scale * torch.where(spread > 0, spread, 1.0)
        else:
            root = _root(u)
            if root is None:
                return state, control
            new = torch.diag(scale) @ root if scale.ndim == 1 else scale @ root
        if problem.chains is None:
            middle = state.y.mean(0)
            centre = middle if bool((flat.room - middle @ flat.walls.T > 0).all()) else centre
        eps = min(max(control.eps * _volume(scale, new), SIZES[0]), 1.0) if control.law == "smooth" else control.eps
        return state, control._replace(centre=_plain(centre), scale=_plain(new), eps=eps, length=LENGTH)

    def _heat(
        self, problem: Problem, state: HMCState, control: Control, record: dict[str, float], generator: torch.Generator
    ) -> Done:
        """The next b of a tempered start."""
        groups, space = groups_of(problem, len(state.y)), space_of(problem)
        log_q = self._log_q(space, problem, state.y, Row("rest", problem.table.t[0], share=0.0))
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
            control = control._replace(scale=_plain(_first_scale(space, problem, state.y)))
        elif control.left % RENEWED == 0:
            control = control._replace(scale=_plain(_curved_scale(problem, state.y)))
        if b == 1.0:
            worth = effective_ancestors(normalised(state.log_weight), state.ancestor)
            record["tempered_ancestors"] = worth
            record["tempered"] *= worth >= FEWEST_ANCESTORS and control.crossed
            if problem.chains is None:
                lost, spent = self._scout(space, problem, state, control, generator)
                record, control = record | lost, control._replace(spent=control.spent + spent)
            control = self._warm(problem, control, WARM_UP_TEMPERED, float(len(problem.table)))
            state = state._replace(anchor=state.y, before=state.y)
        return state, control, record | {"ancestors": float(len(state.ancestor.unique()))}

    def _scout(
        self, space: Space, problem: Problem, state: HMCState, control: Control, generator: torch.Generator
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
        scouts = HMCState(*(part[some] for part in state))._replace(y=y, score=self._score(space, problem, y, row))
        scouts = scouts._replace(log_p=problem.log_density(space.latents(y, problem.like)))
        move, eps = self._leapfrogs if space.flat is not None else self._rattle, control.eps
        for _ in range(moves):
            scouts = move(space, problem, scouts, row._replace(eps=eps), generator)
            rate = float(scouts.accepted.mean())
            eps *= CUT if rate < REFUSED else math.exp(GAINS[0] * (rate - ACCEPTED))
        higher = scouts.log_p > state.log_p.max() + ABOVE
        apart = _apart(scouts.y, state.y) & (scouts.log_p > state.log_p.mean() + ABOVE)
        return {"lost": float((higher | apart).sum())}, (problem.usage.scores - used) / n

    def _round(self, problem: Problem, state: HMCState, control: Control, record: dict[str, float]) -> Done:
        """After a round: whether the chains have forgotten the end of the warm-up."""
        labels = _labels(problem, len(state.y))
        kept = memory(features(state.anchor), features(state.y), labels)
        if kept is not None:
            record["memory"] = kept.value
        chance = max(FORGOTTEN[1], math.sqrt(2.0 * math.log(4.0 * state.y.shape[1]))) / math.sqrt(len(state.y))
        forgotten = kept is not None and kept.value <= FORGOTTEN[0] + chance
        rounds = MAIN_ROWS - control.left
        if control.ending or control.left == 0:
            if kept is not None and kept.value <= kept.limit:
                state = state._replace(ancestor=torch.arange(len(state.x), device=state.x.device))
            return state, control._replace(phase="end"), record
        return state._replace(before=state.y), control._replace(ending=forgotten and rounds >= 2), record

    # ---------------------------------------------------------------------------------------------------- what is left

    def samples(self, problem: Problem, state: HMCState) -> Tensor:
        z, sides = state.z.clone(), problem.constraint.bounds(tuple(state.z.shape[1:]))
        if sides is not None:  # a coordinate that the others fix at its bound is off by rounding
            z = torch.minimum(torch.maximum(z, sides[0].to(z)), sides[1].to(z))
        near = ROUNDED[problem.constraint.flat_sided]
        off = torch.nonzero(problem.constraint.violation(z) > near).flatten()
        if len(off):
            z[off] = problem.take(off).strict(z[off], warm=z[off])
        return z

    def monitor(self, problem: Problem, state: HMCState) -> Mapping[str, Tensor]:
        return {"violation": problem.constraint.violation(state.z)}

    def advice(self, state: HMCState, row: Any) -> str:
        return f"(eps = {row.eps:.3g}); check the score near the edge of the set"


def _groups(problem: Problem, n: int) -> Groups | None:
    """Chains that may take each other's place; None where there are too few of one set and condition."""
    try:
        return groups_of(problem, n)
    except SettingError:
        return None


def _labels(problem: Problem, n: int) -> Tensor | None:
    """Groups of chains with one distribution, where they are large enough to be compared within."""
    labels = problem.groups()
    return None if labels is None or 2 * len(labels.unique()) > n else labels


def features(y: Tensor) -> Tensor:
    """Coordinates and squared distances from the mean: what chains may remember."""
    away = y - y.mean(0)
    return torch.cat([y, away.square()], 1)


def _drawn(y: Tensor, row: Row, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A velocity, the size of a leapfrog (n, 1), and the logarithm of a uniform number that decides (n,)."""
    v = torch.randn(y.shape, generator=generator, dtype=torch.float32, device=y.device).to(y)
    u = torch.rand((2, len(y)), generator=generator, dtype=y.dtype, device=y.device)
    return v, row.eps * (1.0 + PACES * (2.0 * u[0] - 1.0))[:, None], torch.log(u[1])


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


def _times(scale: Tensor, u: Tensor) -> Tensor:
    """L u."""
    return u * scale if scale.ndim == 1 else u @ scale.T


def _transposed(scale: Tensor, g: Tensor) -> Tensor:
    """L^T g."""
    return g * scale if scale.ndim == 1 else g @ scale


def _solve(scale: Tensor, y: Tensor) -> Tensor:
    """L^-1 y."""
    return y / scale if scale.ndim == 1 else torch.linalg.solve(scale, y.T).T


def _plain(values: Tensor) -> Any:
    """As nested tuples of numbers, to the bit."""
    return tuple(map(tuple, values.tolist())) if values.ndim == 2 else tuple(values.tolist())


def _first_eps(y: Tensor, scale: Tensor) -> float:
    """The first size of a leapfrog."""
    size = (
        1.0 if scale.numel() else max(float(y.std(0).max()) if len(y) > 1 else 0.0, 1e-3 * (1.0 + float(y.abs().max())))
    )
    return 0.5 * size / y.shape[1] ** 0.25


def _apart(points: Tensor, chains: Tensor) -> Tensor:
    """Which points (m, r) are far from all chains (n, r), in units of their spread, (m,) bool."""
    root = _root(chains - chains.mean(0))
    if root is None or len(chains) <= 2 * chains.shape[1]:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    few = chains[:: max(1, len(chains) // 1024)]
    u, v = (torch.linalg.solve_triangular(root, w.T, upper=False).T for w in (points, few))
    own = torch.cdist(v, v)
    own.fill_diagonal_(torch.inf)
    return torch.cdist(u, v).amin(1) > FAR * own.amin(1).max()


def _volume(old: Tensor, new: Tensor) -> float:
    """How much shorter a unit is in one metric than in another, as a mean over the directions; 1 where one has none."""
    if not old.numel() or not new.numel():
        return 1.0
    one, other = (torch.linalg.slogdet(v)[1] if v.ndim == 2 else v.log().sum() for v in (old, new))
    return math.exp(float(one - other) / len(old))


def _root(u: Tensor) -> Tensor | None:
    """The Cholesky factor of the covariance of centred points (n, r), shrunk towards its diagonal; None if it fails."""
    covariance, kept = u.T @ u / max(len(u) - 1, 1), min(0.5, u.shape[1] / len(u))
    covariance = (1.0 - kept) * covariance + kept * torch.diag(covariance.diagonal())
    root, failed = torch.linalg.cholesky_ex(covariance)
    return None if int(failed) else root


def _curved_scale(problem: Problem, y: Tensor) -> Tensor:
    """A metric for a curved set, where the spread of the chains differs much from direction to direction; else none.

    Directions across the set, in which chains hardly spread, count as a share of the widest.
    """
    none = torch.zeros(0, dtype=y.dtype, device=y.device)
    if len(y) <= 2 * y.shape[1] or y.shape[1] > DENSE:
        return none
    u = centred(y, _labels(problem, len(y)))
    values, vectors = torch.linalg.eigh(u.T @ u / len(u))
    some = values[values > 1e-10 * values[-1]]
    if not len(some) or float((some[-1] / some[0]).sqrt()) <= ROUND:
        return none
    spread = (vectors * values.clamp_min(1e-6 * float(values[-1]))) @ vectors.T
    kept = min(0.5, u.shape[1] / len(u))
    return torch.linalg.cholesky((1.0 - kept) * spread + kept * torch.diag(spread.diagonal()))


def _first_scale(space: Space, problem: Problem, y: Tensor) -> Tensor:
    """A metric before the warm-up: the spread of the chains, or the room between the walls where that is less."""
    flat = space.flat
    assert flat is not None
    spread = y.std(0) if len(y) >= FEWEST_CHAINS else torch.zeros_like(y[0])
    least = flat.room.amin(0)
    room = torch.full_like(y[0], torch.inf)
    if len(least):
        room = (least[:, None] / flat.walls.abs().clamp_min(1e-12)).amin(0)
    spread = torch.where(spread > 1e-9 * room.clamp_max(1.0), spread, room.clamp_max(1.0))
    if y.shape[1] > DENSE:
        return spread
    if len(y) > 2 * y.shape[1]:
        root = _root(centred(y, _labels(problem, len(y))) / spread)
        if root is not None:
            return spread[:, None] * root
    return torch.diag(spread)


def _barrier(flat: Reduction | None) -> tuple[Tensor, Tensor]:
    """Centre and ellipsoid of the logarithmic barrier of the walls."""
    assert flat is not None
    y, H = _newton(flat.walls, flat.room[0], torch.zeros_like(flat.walls[0]), 1e-8)
    return y, torch.linalg.inv(torch.linalg.cholesky(H)).T * math.sqrt(flat.dimension)


def _crowded(flat: Reduction | None, centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor] | None:
    """Centre and scale for leapfrogs where a Gaussian is so wide beside the set that its orbits meet too many walls.

    From the barrier of the walls plus the Gaussian; None where orbits will do.
    """
    assert flat is not None
    walls = rounded(flat.walls, flat.room, centre, scale)
    if not len(flat.walls):
        return None
    u, H = _newton(walls.normals, walls.levels[0], _solve(scale, -centre[None])[0], 1.0)
    if float((1.0 / (walls.levels[0] - walls.normals @ u)).sum()) < CROWDED * flat.dimension:
        return None
    return centre + _times(scale, u[None])[0], scale @ torch.linalg.inv(torch.linalg.cholesky(H)).T


def _newton(C: Tensor, c: Tensor, y: Tensor, ridge: float, steps: int = 100) -> tuple[Tensor, Tensor]:
    """The least of -sum log(c - C y) + ridge |y|^2 / 2 and its second derivative, by damped Newton steps from y."""
    eye = ridge * torch.eye(len(y), dtype=C.dtype, device=C.device)
    for _ in range(steps):
        s = c - C @ y
        g, H = C.T @ (1.0 / s) + ridge * y, C.T @ (C / s[:, None].square()) + eye
        step = torch.linalg.solve(H, g)
        size = float((g @ step).clamp_min(0.0).sqrt())
        y = y - step / (1.0 + size if size > 0.25 else 1.0)
        if size < 1e-6:
            break
    s = c - C @ y
    return y, C.T @ (C / s[:, None].square()) + eye


def _linear(space: Space, score: Any, y: Tensor, like: Tensor) -> tuple[str, Tensor, Tensor] | None:
    """Constant or Gaussian densities on a flat set, with centre and scale of the Gaussian; None for others.

    The score at 2 r points around the interior point gives the precision. It has to be linear at some points of the
    chains, and at points in all directions at up to a hundred spreads from the centre of the Gaussian.
    """
    flat = space.flat
    assert flat is not None and len(flat.room) == 1
    r, device = flat.dimension, y.device
    generator = torch.Generator(device).manual_seed(0)
    h = 0.5 * float(flat.room.min().clamp_max(1e3)) if len(flat.walls) else 1.0
    eye = torch.eye(r, dtype=y.dtype, device=device)
    points = torch.cat([torch.zeros_like(eye[:1]), h * eye, -h * eye])
    g = space.pull(score(space.latents(points, like)))
    slope = (g[1 + r :] - g[1 : 1 + r]) / (2.0 * h)  # rows: derivatives of -g
    precision = 0.5 * (slope + slope.T)
    root, failed = torch.linalg.cholesky_ex(precision)
    constant = float(g.abs().max()) == 0.0
    if not constant and (int(failed) or not float(root.diagonal().min()) > 1e-6 * float(root.diagonal().max())):
        return None
    centre = torch.zeros_like(g[0]) if constant else torch.cholesky_solve(g[0][:, None], root)[:, 0]
    scale = eye if constant else torch.linalg.inv(root).T
    some = y[torch.linspace(0, len(y) - 1, min(len(y), STARTS), device=device).round().long()]
    far = torch.randn((TESTED, r), generator=generator, dtype=y.dtype, device=device)
    size = torch.logspace(-1, 2, TESTED, dtype=y.dtype, device=device)[:, None]
    tested = torch.cat([some, flat.drawn_in(centre + size * _times(scale, far), 0.999)])
    told = space.pull(score(space.latents(tested, like)))
    off = float((g[0] - tested @ precision - told).abs().amax())
    rounding = max(STRAIGHT, 1e3 * torch.finfo(like.dtype).eps)
    if off > rounding * float(torch.maximum(told.abs().amax(), g.abs().amax())):
        return None
    return "constant" if constant else "gaussian", centre, scale


def _onto(problem: Problem, z: Tensor) -> Tensor:
    """Points on a curved set, (n, k); chains whose projection fails begin where others do."""
    problem.usage.add_projections(len(z))
    found = problem.constraint.solve(z.to(torch.float64))
    good = found.converged | (problem.constraint.violation(found.point) <= 1e-9)
    y = found.point.flatten(1)
    if not bool(good.any()):
        raise SettingError("no starting point could be projected onto the set; start nearer to it")
    if problem.constraint.chains is None and not bool(good.all()):
        own, others = torch.nonzero(~good).flatten(), torch.nonzero(good).flatten()
        y[own] = y[others[own % len(others)]]
    return y
