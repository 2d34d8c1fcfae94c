"""A fixed density restricted to bounds, with or without one linear equation: Hamiltonian Monte Carlo with reflections.

The chains live inside the set l_i <= z_i <= u_i, and perhaps a . z = M. In the units s_i of the coordinates a
trajectory has a velocity v ~ N(0, I), projected by G onto the complement of c ~ a s, and L leapfrogs

    v <- v + (eps/2) G s grad log p(z);    (z / s, v) <- drift for the time eps;    v <- v + (eps/2) G s grad log p(z)

**Drift.** Straight motion that is reflected at the walls. Without an equation each coordinate is folded on its own: it
moves on a line that is laid back into [l, u], and its velocity changes sign with every fold. With an equation a
wall turns all coordinates, so that c . v stays zero: at wall i

    v <- v - 2 v_i / (1 - c_i^2) (e_i - c_i c),        |c| = 1,

one wall after the other. Either drift keeps volumes, and with the velocity turned round it leads back. So the step

    accept with probability min(1, p(z') exp(-|v'|^2 / 2) / (p(z) exp(-|v|^2 / 2)))

leaves p on the set as it is, whatever eps, L and s. Where the potential is not known, log p(z') - log p(z) is the sum
over the leapfrogs of

    (g + g') . (z' - z) / 2      or      (g + 4 g_m + g') . (z' - z) / 6,   g_m halfway between z and z'.

The first is exact for Gaussians. The second, which takes two evaluations per leapfrog, is taken where they differ.

**Budget.** A chain has as many evaluations as the target has rows. In the first ``warm_up`` of them all chains meet
after every trajectory: eps follows the share of accepted ones, s is the spread of the chains, and eps L is a quarter of
the period of their widest direction. After that nothing is adapted.

**Start.** Points are folded into the bounds and moved onto the equation. With a potential and starting points of a
known density, the start is tempered: the chains begin at exact draws of a Gaussian q with independent coordinates,
with the moments of the starting points, restricted to the set. In the first TEMPERED of the adaptation they go
through q^(1-b) p^b, b = 0 ... 1, with weights (p / q)^(b' - b), and are resampled where these are uneven. So separate
modes get their right weights. Otherwise they keep those of the starting points. If b cannot come to 1 in time without
weights that leave few chains, the chains go on without weights. Then ``trace["tempered"]`` is 0, as it is if they
descend from few of the draws: their modes have weights that mean nothing. A mode that is narrow, and becomes heavy only
near b = 1, can be lost on this way. So at its end a few scouts run from the folded starting points under p itself.
``trace["lost"]`` counts those that come to rest at a log p that no chain has.

The state holds ``anchor``, where the chains were when adaptation ended. What they still remember of it at the end is
measured (``diagnostics/fidelity.py``): chains that stay in their mode, or move too slowly, are found out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method, Stage, generator_of, key, no_step
from casal.methods.bounded_hmc import Bounds, Turned, bounds_of, draw_inside, main_directions
from casal.methods.population import Groups, effective_ancestors, equal_weights, groups_of, normalised, resample, temper
from casal.methods.problem import Problem, Uncounted, pick

ACCEPTED = 0.65
"""Share of trajectories to accept. A wall in the middle of a leapfrog costs an error of order eps, with random sign, so
that eps falls like d^(-1/2), and large steps pay."""

GAINS = (1.0, 0.4)
"""How fast log eps follows the acceptance: in the first half of the adaptation, and then."""

REFUSED, CUT = 0.15, 0.4
"""Acceptance below which eps is cut, and by what factor."""

SIZES = (1e-4, 2.0)
"""Bounds of eps, in units of the spread of the chains."""

LENGTHS = (0.5, 1.3)
"""Trajectories have between these shares of L leapfrogs, in a fixed order that fills the interval evenly."""

PACES = 0.1
"""Each chain takes eps (1 +- PACES) in a trajectory, at random."""

GOLDEN = 0.6180339887498949

FEWEST_TRAJECTORIES = 8
"""A trajectory takes at most one in so many of the evaluations that are left for it."""

FEWEST_CHAINS = 16
"""Chains below which their spread says nothing: the units stay those of the target's preconditioner."""

MOST_REFERENCES = 2048
"""Chains from which the widest direction is read."""

HITS_A_COORDINATE = 40
"""Walls a chain may hit in one drift, for each coordinate; a trajectory with more is refused, in both directions."""

WARM_UP, WARM_UP_TEMPERED = 0.4, 0.5
"""Share of the evaluations in which the chains adapt; and where the start is tempered."""

TEMPERED = 0.8
"""Share of the adaptation that a tempered start takes."""

LEAST_ESS = 0.5
"""Resample a tempered start when the effective size falls below this share of the chains; no step of b goes below."""

HEATED = 3.0
"""Leapfrogs of a trajectory of a tempered start, at most: many steps of b count for more than long trajectories."""

SAME = 0.2
"""Difference of the two rules for log p(z') - log p(z) over a trajectory, up to which the first is taken."""

MOST_BOUNDED = 0.5
"""Share of bounded coordinates from which on ``fits`` says yes."""

ORTHOGONAL = 1e-5
"""Relative error of A A^T = c I that passes for rounding."""

FEWEST_ANCESTORS = 20.0
"""Effective draws from which the chains descend at the end of a tempered start, so that it says something of modes."""

SCOUTS, SCOUTING, SCOUT_SHARE = 64, (20, 60), 0.04
"""Scouts; the fewest and the most evaluations of each; and the share of all evaluations that they may take."""

ABOVE = 3.0
"""How far log p of a scout lies above that of all chains if it has found a mode of less volume, which they have not."""

UNTRIED = -1
"""Before the second rule for log p(z') - log p(z) was tried; as many evaluations as with the first."""

NEW, BEGIN = -1, 0
"""What the next row does, where ``left`` is not a number of leapfrogs: ask for score and potential at the start, begin
a trajectory."""


class Row(NamedTuple):
    """One evaluation.

    Attributes:
        t: The second argument of the score.
        left: Rows left, this one included.
        tempering: Rows left of a tempered start; 0 after it.
        late: Whether the adaptation is in its second half.
    """

    t: Tensor
    left: int
    tempering: int = 0
    late: bool = False


class ReflectedState(NamedTuple):
    """Chains in the set, and the trajectories they are on. n chains, decoded events of k numbers.

    Attributes:
        x: The samples in latent space, (n, *latent).
        z: The samples, (n, *event) float64.
        score: Gradient of log p at z, (n, k).
        log_p: log p at z, where there is a potential, (n,).
        y: The moving point, (n, k).
        velocity: v, (n, k).
        slope: Gradient of log p at y, (n, k).
        rise: log p(y) - log p(z) by the first rule, (n,).
        gap: What the second rule adds to it, (n,).
        energy: |v|^2 / 2 at the beginning of the trajectory, (n,).
        pace: The chain's own factor of eps, (n,).
        accepted: Probability with which the last trajectory was accepted, (n,).
        scale: s, the same for all chains, (n, k).
        anchor: z when adaptation ended, (n, k); the folded starting points before b = 1.
        centre: Mean of q, the same for all chains, (n, k); (n, 1) if the start is not tempered.
        width: Deviations of q, likewise.
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        share: b.
        size: eps.
        length: L.
        trajectories: How many there were so far.
        left: Leapfrogs left of this trajectory, or NEW, or BEGIN.
        owed: Evaluations that were taken in advance: so many rows are left out.
        fine: 1 where a leapfrog takes two evaluations, 0 where it takes one, UNTRIED before that was looked at.
    """

    x: Tensor
    z: Tensor
    score: Tensor
    log_p: Tensor
    y: Tensor
    velocity: Tensor
    slope: Tensor
    rise: Tensor
    gap: Tensor
    energy: Tensor
    pace: Tensor
    accepted: Tensor
    scale: Tensor
    anchor: Tensor
    centre: Tensor
    width: Tensor
    log_weight: Tensor
    ancestor: Tensor
    share: Tensor
    size: Tensor
    length: Tensor
    trajectories: Tensor
    left: Tensor
    owed: Tensor
    fine: Tensor


@dataclass(frozen=True)
class ReflectedHMC(Method[ReflectedState]):
    """Samples a fixed density restricted to bounds on its coordinates, with or without one linear equation.

    For sets such as ``Box(0, inf)``, ``Box(low, high)``, ``Simplex(M)``, ``Box(low, high) & Affine(a, M)``, in tens to
    thousands of dimensions. Hamiltonian Monte Carlo inside the set, reflected at the bounds, each trajectory accepted
    or refused; the equations are at the top of this file. No sample is projected onto a bound. The chains do not
    take each other's place, so n chains give n independent samples once they have forgotten their start. The cost
    is that of the target: one evaluation per row.

    The distribution is exact as the number of steps grows. Without a potential the acceptance takes the difference of
    log p from the score along the path, which is exact for Gaussians. Separate modes have their right weights
    if the start is tempered, which takes a potential and a start of known density; the result says what is the case.

    Args:
        warm_up: Share of the evaluations in which step, units and length of trajectories adapt. None takes 0.4, or 0.5
            for a tempered start.
        temper: Whether to temper the start where potential and density of the start are known.

    >>> import casal, torch
    >>> target = casal.langevin(lambda x: x + 1.0, steps=60, step_size=0.3, init=torch.zeros(64, 8))
    >>> result = casal.sample(target, casal.Simplex(2.0), casal.ReflectedHMC(), 64)
    >>> bool((result.samples > 0).all()), float((result.samples.sum(1) - 2.0).abs().max()) < 1e-12
    (True, True)
    """

    warm_up: float | None = None
    temper: bool = True

    name: ClassVar[str] = "ReflectedHMC"
    promises_distribution: ClassVar[bool] = True
    bounds_moves: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.warm_up is not None and not 0.0 <= self.warm_up < 1.0:
            raise SettingError(f"warm_up is a share of the evaluations in [0, 1), got {self.warm_up}")

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        if not problem.table.static:
            raise SettingError("ReflectedHMC needs a fixed density (langevin, energy); use BoundedHMC for a diffusion")
        check_square(problem)
        bounds, rows = inside_bounds(problem), len(problem.table)
        tempered = self._tempered(problem, n)
        usual = WARM_UP_TEMPERED if tempered else WARM_UP
        warm = math.ceil((usual if self.warm_up is None else self.warm_up) * rows)
        hot = math.ceil(TEMPERED * warm) if tempered else 0
        t = problem.table.t[0].to(problem.like.device)
        every = [Row(t, rows - k, max(hot - k, 0), 2 * k > warm) for k in range(rows)]
        step, labels = partial(self.step, bounds), problem.groups()
        adapt = partial(self.adapt, bounds, _groups(problem, n))
        stages = [Stage([], no_step, partial(self.spread_out, bounds))] if tempered else []
        stages += [Stage([row], step, partial(adapt, row), noise=key) for row in every[:warm]]
        last = Stage([], no_step, partial(self.end, labels))
        return [*stages, Stage(every[warm:], step, noise=key), last]

    def fits(self, problem: Problem) -> bool:
        """Whether the set bounds most coordinates, with at most one equation, and the decoder only turns them."""
        one = problem.take(slice(0, 1)).replace(usage=Uncounted())
        try:
            check_square(one)
            bounded = inside_bounds(one).bounded
        except SettingError:
            return False
        return float(bounded.to(torch.float64).mean()) >= MOST_BOUNDED

    def _tempered(self, problem: Problem, n: int) -> bool:
        """Whether the start is tempered."""
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

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> ReflectedState:
        bounds, turned = inside_bounds(problem), Turned(problem)
        z = onto_equation(bounds, fold(turned.decode(x).flatten(1), bounds.low, bounds.high)[0])
        log_weight, ancestor = equal_weights(problem, len(z))
        zeros, one = torch.zeros_like(log_weight), log_weight.new_ones(())
        diagonal = torch.ones(problem.latent, dtype=torch.float64, device=z.device)
        if problem.root is not None:
            diagonal = diagonal * problem.root
        scale = diagonal.reshape(1, -1)  # behind a decoder, which mixes coordinates, their mean
        if turned.turns:
            scale = torch.full_like(z[:1], turned.scale * float(diagonal.square().mean().sqrt()))
        return ReflectedState(
            x=_latent(turned, z, x),
            z=z.reshape(-1, *turned.event),
            score=torch.zeros_like(z),
            log_p=torch.full_like(zeros, -torch.inf),
            y=z,
            velocity=torch.zeros_like(z),
            slope=torch.zeros_like(z),
            rise=zeros,
            gap=zeros,
            energy=zeros,
            pace=torch.ones_like(zeros),
            accepted=torch.full_like(zeros, ACCEPTED),
            scale=scale.expand_as(z),
            anchor=z,
            centre=z[:, :1],
            width=torch.ones_like(z[:, :1]),
            log_weight=log_weight,
            ancestor=ancestor,
            share=one,
            size=one * float((2.0 * problem.table.b[0]).sqrt()),
            length=one,
            trajectories=0.0 * one,
            left=NEW * one,
            owed=0.0 * one,
            fine=UNTRIED * one,
        )

    # ------------------------------------------------------------------------------------------ each chain alone

    def step(self, bounds: Bounds, problem: Problem, state: ReflectedState, row: Row, noise: Tensor) -> ReflectedState:
        """One evaluation: a leapfrog, or the potential at the end of a trajectory, or the score at the start."""
        if float(state.owed) > 0:
            return state._replace(owed=state.owed - 1.0)
        known = problem.target.potential is not None
        if float(state.left) == NEW:
            slope = self._score(problem, state.y, row)
            log_p = problem.log_density(_latent(Turned(problem), state.y, state.x)) if known else state.log_p
            ready = state.left - NEW
            return state._replace(score=slope, slope=slope, log_p=log_p, left=ready, owed=ready + known)
        bounds = bounds.take(slice(problem.first, problem.first + len(state.y)))
        if float(state.left) == BEGIN:
            most = (row.left - known) // (1 + int(state.fine > 0))
            if most < 1:
                return state
            state = self._begin(bounds, state, most, noise)
        state = self._leapfrog(bounds, problem, state, row)
        if float(state.left) > 0:
            return state
        if not known:
            return self._decide(problem, state, state.rise + state.gap, noise)
        state = state._replace(owed=state.owed + 1.0)
        return self._decide(problem, state, problem.log_density(_latent(Turned(problem), state.y, state.x)), noise)

    def _begin(self, bounds: Bounds, state: ReflectedState, most: int, noise: Tensor) -> ReflectedState:
        """A velocity, and how many leapfrogs there will be."""
        generator, z = generator_of(noise, state.z), state.z.flatten(1)
        v = torch.randn(z.shape, generator=generator, dtype=torch.float32, device=z.device).to(z)
        v = along_equation(bounds, state.scale, v)
        pace = 1.0 + PACES * (2.0 * torch.rand(len(z), generator=generator, dtype=z.dtype, device=z.device) - 1.0)
        part = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * (float(state.trajectories) * GOLDEN % 1.0)
        left = min(most, max(1, round(float(state.length) * part)))
        return state._replace(
            y=z,
            velocity=v,
            slope=state.score,
            rise=torch.zeros_like(state.rise),
            gap=torch.zeros_like(state.gap),
            energy=0.5 * v.square().sum(1),
            pace=pace,
            trajectories=state.trajectories + 1.0,
            left=torch.full_like(state.left, left),
        )

    def _leapfrog(self, bounds: Bounds, problem: Problem, state: ReflectedState, row: Row) -> ReflectedState:
        """v + eps/2 force, reflected drift, v + eps/2 force."""
        eps = state.size * state.pace
        v = state.velocity + 0.5 * eps[:, None] * self._force(bounds, state, state.y, state.slope)
        y, v = drift(bounds, state.scale, state.y, v, eps)
        slope = self._score(problem, y, row)
        v = v + 0.5 * eps[:, None] * self._force(bounds, state, y, slope)
        rise, gap = 0.5 * ((state.slope + slope) * (y - state.y)).sum(1), torch.zeros_like(state.gap)
        fine = float(state.fine) > 0
        if fine:
            halfway = self._score(problem, 0.5 * (y + state.y), row)
            gap = (2.0 * (halfway * (y - state.y)).sum(1) - 2.0 * rise) / 3.0
        return state._replace(
            y=y,
            velocity=v,
            slope=slope,
            rise=state.rise + rise,
            gap=state.gap + gap,
            left=state.left - 1.0,
            owed=state.owed + fine,
        )

    def _force(self, bounds: Bounds, state: ReflectedState, y: Tensor, slope: Tensor) -> Tensor:
        """G s grad log(q^(1-b) p^b)."""
        if float(state.share) < 1.0:
            slope = state.share * slope + (1.0 - state.share) * (state.centre - y) / state.width.square()
        return along_equation(bounds, state.scale, state.scale * slope)

    def _decide(self, problem: Problem, state: ReflectedState, log_p: Tensor, noise: Tensor) -> ReflectedState:
        """Accept the end of the trajectory, or stay where it began; log p at the end is measured as that at z is."""
        generator = generator_of(noise + 1, state.z)
        z = state.z.flatten(1)
        before = state.log_p if problem.target.potential is not None else torch.zeros_like(log_p)
        log_ratio = log_p - before
        if float(state.share) < 1.0:
            log_ratio = state.share * log_ratio
            log_ratio = log_ratio + (1.0 - state.share) * (_log_q(state, state.y) - _log_q(state, z))
        log_ratio = log_ratio + state.energy - 0.5 * state.velocity.square().sum(1)
        log_ratio = torch.where(torch.isnan(log_ratio), -torch.inf, log_ratio)
        u = torch.rand(len(z), generator=generator, dtype=torch.float64, device=z.device)
        yes = (torch.log(u) < log_ratio) & torch.isfinite(state.y).all(1)
        new = pick(yes, state.y, z)
        return state._replace(
            x=_latent(Turned(problem), new, state.x),
            z=new.reshape(state.z.shape),
            score=pick(yes, state.slope, state.score),
            log_p=pick(yes, log_p, state.log_p),
            y=new,
            accepted=torch.exp(log_ratio.clamp_max(0.0)),
            left=torch.full_like(state.left, BEGIN),
        )

    def _score(self, problem: Problem, y: Tensor, row: Row) -> Tensor:
        """Gradient of log p in decoded space, (n, k): A grad log p(x) / c at x = A^T y / c."""
        turned = Turned(problem)
        at = _latent(turned, y, problem.like)
        return turned.decode(problem.score(at, row.t)).flatten(1) / turned.square

    # ------------------------------------------------------------------------------------------ all chains together

    def spread_out(
        self, bounds: Bounds, problem: Problem, state: ReflectedState, generator: torch.Generator
    ) -> tuple[ReflectedState, Mapping[str, float]]:
        """Begin a tempered start: draws from q in the set."""
        turned = Turned(problem)
        points = turned.decode(state.x).flatten(1)
        centre, width = points.mean(0, keepdim=True), points.std(0, keepdim=True)
        width = torch.where(width > 0, width, state.scale[:1]).expand_as(points)
        z = draw_inside(bounds, centre.expand_as(points), width.square(), generator)
        return state._replace(
            x=_latent(turned, z, state.x),
            z=z.reshape(state.z.shape),
            y=z,
            scale=_spread(z, None, state.scale).expand_as(z),
            centre=centre.expand_as(z),
            width=width,
            share=torch.zeros_like(state.share),
            size=torch.full_like(state.size, 0.5),
        ), {}

    def adapt(
        self,
        bounds: Bounds,
        groups: Groups | None,
        row: Row,
        problem: Problem,
        state: ReflectedState,
        generator: torch.Generator,
    ) -> tuple[ReflectedState, Mapping[str, float]]:
        """After a trajectory: the next b and the weights, eps, the units, and the length of trajectories."""
        if float(state.left) != BEGIN:
            return state, {}
        record = dict[str, float]()
        if float(state.share) < 1.0 and groups is not None:
            state, record = self._heat(groups, row, problem, state, generator)
            if "tempered" in record and problem.chains is None:
                state, lost = self._scout(bounds, row, problem, state, generator)
                record |= lost
        z, rate = state.z.flatten(1), float(state.accepted.mean())
        known = problem.target.potential is not None
        if float(state.share) == 1.0:
            state = state._replace(anchor=z)
        if float(state.trajectories) < 1.0:
            return state, record
        factor = CUT if rate < REFUSED else math.exp(GAINS[row.late] * (rate - ACCEPTED))
        size = (state.size * factor).clamp(*SIZES)
        if len(z) >= FEWEST_CHAINS:
            scale = _spread(z, problem.groups(), state.scale)
            if float(state.share) == 1.0:  # as long as the chains come to rest, eps s is what the acceptance has shown
                size = (size * (state.scale[0].log() - scale[0].log()).mean().exp()).clamp(*SIZES)
            state = state._replace(scale=scale.expand_as(z))
        period = 0.5 * math.pi * math.sqrt(widest(z, state.scale[:1], generator))
        fine = float(state.fine)
        if row.late and not known and fine:  # try the second rule, then see whether it makes a difference
            moved = state.accepted > 0.01
            seen = fine > 0 and bool(moved.any())
            fine = float(not seen or float(state.gap[moved].abs().max()) > SAME)
        most = (row.left / FEWEST_TRAJECTORIES - known) / (1.0 + max(fine, 0.0))
        most = max(
            1.0, min(most, 2.0 * float(state.trajectories) + 1.0, HEATED if float(state.share) < 1.0 else math.inf)
        )
        length = (period / size).clamp(1.0, most)
        record |= {"acceptance": rate, "size": float(size), "leapfrogs": float(length)}
        return state._replace(size=size, length=length, fine=torch.full_like(state.fine, fine)), record

    def _heat(
        self, groups: Groups, row: Row, problem: Problem, state: ReflectedState, generator: torch.Generator
    ) -> tuple[ReflectedState, dict[str, float]]:
        """The next b of a tempered start."""
        gain = state.log_p - _log_q(state, state.z.flatten(1))
        left = max(row.tempering // (2 + int(state.length)), 1)
        b, log_weight = temper(float(state.share), state.log_weight, gain, groups, left, LEAST_ESS)
        record = {"share": b, "ess": groups.effective_size(log_weight)}
        if b < 1.0 and row.tempering == 0:  # it does not come to an end
            b, log_weight, record["tempered"] = 1.0, torch.zeros_like(log_weight), 0.0
        elif b == 1.0:
            record["tempered"] = 1.0
        state = state._replace(log_weight=log_weight, share=torch.full_like(state.share, b))
        start = state.anchor
        state = resample(state, generator, groups, LEAST_ESS if b < 1.0 else math.inf)._replace(anchor=start)
        if b == 1.0:
            worth = effective_ancestors(normalised(state.log_weight), state.ancestor)
            record["tempered_ancestors"] = worth
            record["tempered"] *= worth >= FEWEST_ANCESTORS
        return state, record | {"ancestors": float(len(state.ancestor.unique()))}

    def _scout(
        self, bounds: Bounds, row: Row, problem: Problem, state: ReflectedState, generator: torch.Generator
    ) -> tuple[ReflectedState, dict[str, float]]:
        """Follow some starting points under p, and count those that come to rest at a log p that no chain has."""
        n = len(state.x)
        m = min(SCOUTS, n)
        each = min(SCOUTING[1], int(SCOUT_SHARE * len(problem.table) * n / m))
        if each < SCOUTING[0]:
            return state, {}
        some = torch.arange(m, device=state.x.device) * n // m
        one, z = torch.ones_like(state.size), state.anchor[some]
        scouts = ReflectedState(*(part[some] if part.ndim else part for part in state))._replace(
            z=z.reshape(m, *state.z.shape[1:]), y=z, length=one, trajectories=0.0 * one, left=NEW * one, owed=0.0 * one
        )
        for left in range(each, 0, -1):
            drawn = torch.randint(1 << 62, (), generator=generator, device=generator.device)
            scouts = self.step(bounds, problem, scouts, row._replace(left=left), drawn)
            if float(scouts.left) == BEGIN and float(scouts.trajectories) and not float(scouts.owed) > 1.0:
                rate = float(scouts.accepted.mean())
                factor = CUT if rate < REFUSED else math.exp(GAINS[0] * (rate - ACCEPTED))
                scouts = scouts._replace(size=(scouts.size * factor).clamp(*SIZES), length=HEATED * one)
        lost = int((scouts.log_p > state.log_p.max() + ABOVE).sum())
        return state._replace(owed=state.owed + math.ceil(m * each / n)), {"lost": float(lost)}

    def end(
        self, labels: Tensor | None, problem: Problem, state: ReflectedState, generator: torch.Generator
    ) -> tuple[ReflectedState, Mapping[str, float]]:
        """What the chains remember; chains that remember nothing are their own ancestors."""
        left = memory(state.anchor, state.z.flatten(1), labels)
        if left is None:
            return state, {}
        if left.value <= left.limit:
            state = state._replace(ancestor=torch.arange(len(state.x), device=state.x.device))
        return state, {"memory": left.value}

    def samples(self, problem: Problem, state: ReflectedState) -> Tensor:
        return problem.strict(Turned(problem).outward(state.z))

    def monitor(self, problem: Problem, state: ReflectedState) -> Mapping[str, Tensor]:
        return {"violation": problem.constraint.violation(Turned(problem).outward(state.z))}

    def advice(self, state: ReflectedState, row: Any) -> str:
        return f"(eps = {float(state.size):.3g}); check the score near the bounds, or use a smaller step_size"


def _groups(problem: Problem, n: int) -> Groups | None:
    """Chains that may take each other's place; None where there are too few of one set and condition."""
    try:
        return groups_of(problem, n)
    except SettingError:
        return None


def _latent(turned: Turned, y: Tensor, like: Tensor) -> Tensor:
    """x = A^T y / c in the dtype of the run, (n, *latent)."""
    return turned.lift(y.reshape(-1, *turned.event)).to(like.dtype)


def _log_q(state: ReflectedState, y: Tensor) -> Tensor:
    """log q up to a constant, (n,)."""
    return -0.5 * ((y - state.centre) / state.width).square().sum(1)


# ---------------------------------------------------------------------------------------------------- the set


def inside_bounds(problem: Problem) -> Bounds:
    """The set as bounds and at most one equation.

    Raises:
        SettingError: The set is of another kind.
    """
    try:
        return bounds_of(problem)
    except SettingError as error:
        raise SettingError(
            "ReflectedHMC treats bounds on single coordinates with at most one equation, and "
            f"{problem.constraint!r} is not of that kind; use WeightedCASAL"
        ) from error


def check_square(problem: Problem) -> None:
    """SettingError unless the decoder multiplies coordinates, or is square with A A^T = c I, up to rounding."""
    if problem.decoder.linear and problem.decoder.diagonal is not None:
        return
    way_out = "use WeightedCASAL"
    if not problem.decoder.linear:
        raise SettingError(f"ReflectedHMC needs a linear decoder with A A^T = c I, not a nonlinear one; {way_out}")
    turned, columns = Turned(problem), math.prod(problem.latent)
    rows = math.prod(turned.event)
    if rows != columns:
        raise SettingError(f"ReflectedHMC needs a square decoder, this one is {rows} x {columns}; {way_out}")
    v = torch.randn((4, *turned.event), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = v.to(problem.like.device)
    gap = float((turned.decode(turned.lift(v)) - v).abs().max())
    if gap > max(ORTHOGONAL, 1e3 * torch.finfo(problem.like.dtype).eps):
        raise SettingError(f"ReflectedHMC needs a decoder with A A^T = c I, this one is {gap:.2g} off; {way_out}")


def onto_equation(bounds: Bounds, z: Tensor) -> Tensor:
    """Points of the bounds moved onto the equation: each coordinate gives the same share of its room."""
    a = bounds.normal
    if a is None:
        return z
    gap = bounds.level - (a * z).sum(1, keepdim=True)
    room = torch.where(gap * a > 0, bounds.high - z, z - bounds.low) * a.abs()
    room = torch.where(a == 0, 0.0, room)
    infinite = torch.isinf(room)
    some = infinite.any(1, keepdim=True)
    weight = torch.where(some, (infinite * a.abs()).to(z), torch.where(infinite, 0.0, room))
    return z + gap * weight / weight.sum(1, keepdim=True) / torch.where(a == 0, 1.0, a)


def along_equation(bounds: Bounds, scale: Tensor, v: Tensor) -> Tensor:
    """G v = v - c (c . v), in the units ``scale``; v without an equation."""
    if bounds.normal is None:
        return v
    c = unit_normal(bounds, scale)
    return v - c * (c * v).sum(1, keepdim=True)


def unit_normal(bounds: Bounds, scale: Tensor) -> Tensor:
    """c = a s / |a s|, (1, k)."""
    assert bounds.normal is not None
    c = bounds.normal * scale[:1]
    return c / torch.linalg.vector_norm(c)


# ---------------------------------------------------------------------------------------------------- the drift


def drift(bounds: Bounds, scale: Tensor, z: Tensor, v: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Straight motion from z with the velocity s v for the times (n,), reflected at the walls: the new z and v."""
    if bounds.normal is not None:
        return slide(bounds, scale, z, v, time)
    y, sign = fold(z + time[:, None] * scale * v, bounds.low, bounds.high)
    return y, sign * v


def fold(z: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates laid back into [low, high], and the signs that their velocities take."""
    width = high - low
    finite = torch.isfinite(width)
    width = torch.where(finite, width, 1.0)
    u = torch.remainder(z - torch.where(finite, low, 0.0), 2.0 * width)
    back = finite & (u > width)
    between = low + torch.where(back, 2.0 * width - u, u)
    under, over = ~finite & (z < low), ~finite & (z > high)
    y = torch.where(finite, between, torch.where(under, 2.0 * low - z, torch.where(over, 2.0 * high - z, z)))
    sign = torch.where(back | under | over, -1.0, 1.0).to(z.dtype)
    return torch.minimum(torch.maximum(y, low), high), sign


def slide(bounds: Bounds, scale: Tensor, z: Tensor, v: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The same on the equation, one wall after the other; nan for chains that hit too many."""
    end, turned = torch.full_like(z, torch.nan), torch.full_like(v, torch.nan)
    c, s = unit_normal(bounds, scale), scale[:1]
    low, high = (side.expand_as(z) for side in (bounds.low, bounds.high))
    who, left, z, v = torch.arange(len(z), device=z.device), time.clone(), z.clone(), v.clone()
    for _ in range(HITS_A_COORDINATE * z.shape[1]):
        speed = s * v
        speed += 1e-300  # never zero
        wall = torch.where(speed > 0, high, low)
        first, i = (wall - z).div_(speed).min(1)
        first = first.clamp_min(0.0)
        hits = first < left
        z.addcmul_(torch.where(hits, first, left)[:, None], speed)
        left = torch.where(hits, left - first, 0.0)
        at = i[:, None]
        normal, along = c[0][at], v.gather(1, at)
        turn = torch.where(hits[:, None], 2.0 * along / (1.0 - normal.square()), 0.0)
        v.addcmul_(turn * normal, c)
        v.scatter_(1, at, torch.where(hits[:, None], -along, along))
        z.scatter_(1, at, torch.where(hits[:, None], wall.gather(1, at), z.gather(1, at)))
        count = int(hits.sum())
        if 2 * count <= len(hits):  # the others are done
            end[who[~hits]], turned[who[~hits]] = z[~hits], v[~hits]
            if count == 0:
                break
            who, z, v, left, low, high = (part[hits] for part in (who, z, v, left, low, high))
    return torch.minimum(torch.maximum(end, bounds.low), bounds.high), turned


# ---------------------------------------------------------------------------------------------------- the population


def _spread(z: Tensor, labels: Tensor | None, before: Tensor) -> Tensor:
    """Standard deviation of every coordinate over the chains, within their sets, (1, k); as before where it is zero."""
    spread = centred(z, labels).square().mean(0, keepdim=True).sqrt()
    return torch.where(torch.isfinite(spread) & (spread > 0), spread, before[:1])


def centred(z: Tensor, labels: Tensor | None) -> Tensor:
    """Points minus the mean of their group."""
    if labels is None:
        return z - z.mean(0)
    count = torch.bincount(labels).clamp_min(1).to(z)
    total = torch.zeros((len(count), z.shape[1]), dtype=z.dtype, device=z.device).index_add(0, labels, z)
    return z - (total / count[:, None])[labels]


def widest(z: Tensor, scale: Tensor, generator: torch.Generator) -> float:
    """The largest variance of the chains along a direction, in the units ``scale``; at least 1.

    With g = d / n, noise alone shows up to (1 + sqrt(g))^2, and a variance l beyond it as l (1 + g / (l - 1)), which is
    solved for l.
    """
    some = z[:: -(-len(z) // MOST_REFERENCES)] / scale
    if len(some) < FEWEST_CHAINS:
        return 1.0
    seen, ratio = float(main_directions(some, generator).var(0).max()), z.shape[1] / len(some)
    if seen <= (1.0 + math.sqrt(ratio)) ** 2:
        return 1.0
    middle = 0.5 * (seen + 1.0 - ratio)
    return max(1.0, middle + math.sqrt(max(middle**2 - seen, 0.0)))


class Memory(NamedTuple):
    """The largest correlation over chains between an earlier state and a later one, and what is no objection yet."""

    value: float
    limit: float


MOST_MEMORY, ERRORS = 0.15, 4.5
"""Correlation with the state at the end of the adaptation that is let pass, beyond so many standard errors."""


def memory(before: Tensor, after: Tensor, labels: Tensor | None = None) -> Memory | None:
    """What points (n, k) still know of what they were: over coordinates and the main directions of both.

    Args:
        before: Earlier points.
        after: Later points of the same chains.
        labels: Groups within which they are compared, (n,).

    Returns:
        None for fewer than FEWEST_CHAINS chains beyond the groups.
    """
    n = len(before)
    free = n - (1 if labels is None else len(labels.unique()))
    if free < FEWEST_CHAINS:
        return None
    one, other = centred(before, labels), centred(after, labels)
    scale = other.square().mean(0, keepdim=True).sqrt().clamp_min(1e-300)
    one, other = one / scale, other / scale
    stream = torch.Generator(before.device).manual_seed(0)
    directions = torch.cat([_directions(part, stream) for part in (one, other)], dim=1)
    found = torch.cat([_correlations(one, other), _correlations(one @ directions, other @ directions)])
    return Memory(float(found.max()), MOST_MEMORY + ERRORS / math.sqrt(free))


def _directions(points: Tensor, generator: torch.Generator) -> Tensor:
    """The main directions of points (n, k), as columns."""
    place = main_directions(points, generator)
    axes = points.T @ (place - place.mean(0))
    return axes / torch.linalg.vector_norm(axes, dim=0).clamp_min(1e-300)


def _correlations(one: Tensor, other: Tensor) -> Tensor:
    """Correlations of the columns; zero for constant ones."""
    size = (one.square().mean(0) * other.square().mean(0)).sqrt()
    return torch.where(size > 1e-20, (one * other).mean(0) / size.clamp_min(1e-300), 0.0)
