"""``LookAhead``: weighted chains that are guided by the probability that they will meet the constraint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import share, whole_number
from casal.errors import SettingError
from casal.methods.base import Method, Stage, gaussian, generator_of, key, no_step
from casal.methods.look_ahead.features import Features, features_of
from casal.methods.look_ahead.last_draw import last_draw
from casal.methods.look_ahead.levels import Levels, scales, span
from casal.methods.look_ahead.look import ROOT_STEPS, Derivative, look, probes, quadratic
from casal.methods.look_ahead.population import health, resampled, settled
from casal.methods.look_ahead.proposal import multistep, propose
from casal.methods.look_ahead.state import (
    PARTICLES,
    AheadState,
    Clean,
    ahead_of,
    columns,
    flat,
    fold,
    trusted,
    widened,
    with_pair,
)
from casal.methods.population import Groups, groups_of
from casal.methods.problem import Problem, Uncounted

UPPER, LOWER = 35, 23
"""Steps above and below the level at which the modes are decided."""

SEVERAL = 4
"""Equations from which on mode weights vary more, if one of them bends: of 256 chains with 4 particles each, 60 to 180
ancestors are left where the modes are decided. So there are more particles, and more moves for their copies."""

FEW_INEQUALITIES = 16
"""Inequalities up to which the look ahead is recommended: it takes them as independent given the equations."""


class Row(NamedTuple):
    """Number of a step."""

    k: int


@dataclass(frozen=True)
class LookAhead(Method[Any]):
    """Samples a diffusion model restricted to C in many dimensions, with few chains.

    Twisted sequential Monte Carlo over the noise levels. At every level the model's own derivative says how the
    functions f that define C will come out (``look.py``): their mean and covariance, bends included, and from them
    psi, the probability that C is met (``potential.py``). A step of the reverse process is tilted by psi, with its
    noise reduced along the slopes of f (``proposal.py``), and weighted:

        weight = psi(x_T) at the start;     weight *= psi(x') / psi(x) x bare(x') / proposal(x')

    and the chains are resampled (systematic) when the effective size falls below a share ``ess``. Whatever psi is, the
    weighted chains follow p given f at the last level: a poor look costs effective size, not the distribution.

    ``moves`` guided-path moves follow: noise up to a level within a mode, a guided path back, accepted by the ratio of
    the path weights against the path it came from. At the end x0 is drawn given x and f(x0) in C, to first order in
    the last noise level, and projected over what is left.

    For sets of few equations and inequalities that have gradients, in any combination: linear rows, norms, mass and
    energy, ``Implicit``; for each chain if ``PerChain``; behind linear and nonlinear decoders. A look costs one
    evaluation of the network, one product with its derivative for each row and, where rows bend, one for each probe;
    each counts as one evaluation.

    On curved sets the mode weights vary most while the modes are decided, so up to there every chain is ``width``
    particles.

    Args:
        levels: Steps down the noise levels; three fifths of them above the level where modes are decided.
        ess: Resample when the effective size falls below this share of the particles.
        probes: Random directions for the traces.
        moves: Guided-path moves at the end; None: 2, or 4 if a row bends and there are four equations or more.
        path: Levels of such a path.
        width: Particles of a chain until the modes are decided; None: 2 if all rows are linear, 4 if a row bends or
            there is a soft term, 8 if a row bends and there are four equations or more.
        directions: In which a soft term of the target is looked at, one product with the derivative each.

    >>> import casal
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(30), shape=(3,), churn=1.0)
    >>> result = casal.sample(target, casal.Affine([[1.0, 1.0, 1.0]], [2.0]), casal.LookAhead(), n=100, seed=0)
    >>> bool(result.certificate.feasible.all())
    True
    """

    levels: int = UPPER + LOWER
    ess: float = 0.5
    probes: int = 2
    moves: int | None = None
    path: int = 10
    width: int | None = None
    directions: int = 6

    name: ClassVar[str] = "LookAhead"
    promises_distribution: ClassVar[bool] = True
    tilts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number(self.levels, "levels", 5)
        whole_number(self.path, "path", 3)
        whole_number(self.probes, "probes", 1)
        whole_number(self.directions, "directions", 1)
        share(self.ess, "ess", "the particles")
        if self.width is not None:
            whole_number(self.width, "width", 1)
        if self.moves is not None:
            whole_number(self.moves, "moves", 0)

    @property
    def upper(self) -> int:
        """Steps above the level where modes are decided."""
        return round(self.levels * UPPER / (UPPER + LOWER))

    def particles(self, features: Features) -> int:
        """Particles of a chain at the start."""
        if self.width is not None:
            return self.width
        if features.curved and features.equal >= SEVERAL:
            return 8
        return 4 if features.curved or features.rank else 2

    def move_count(self, features: Features) -> int:
        """Guided-path moves at the end."""
        if self.moves is not None:
            return self.moves
        return 4 if features.curved and features.equal >= SEVERAL else 2

    def features(self, problem: Problem) -> Features:
        """The rows that are looked at."""
        return features_of(problem, self.directions)

    # ------------------------------------------------------------------------------------------------------- plan

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        span(problem)  # refuses a model without noise levels
        one = problem.take(slice(0, 1))
        features, groups = self.features(one), groups_of(problem, n)
        width = self.particles(features)
        stages = list[Stage]()
        moved = self.move_count(features) * [
            Stage([Row(0)], self.climb, self.part, partial(_several, self.path - 1)),
            *(Stage([Row(k)], self.walk, partial(self.settle_path, k)) for k in range(self.path - 1)),
            Stage([], no_step, self.accept),
        ]
        for k in range(self.levels):
            meet = self.begin if k == 0 else partial(self.meet, groups, k)
            if k == self.upper:
                stages.append(Stage([], no_step, partial(self.narrow, groups, k)))
            drawn = partial(_several, width if k < self.upper else 1)
            stages.append(Stage([Row(k)], self.step, None if k == self.upper else meet, drawn))
        stages.append(Stage([], no_step, partial(self.arrive, groups)))
        stages += [*moved, Stage([Row(0)], self.draw, None, key), Stage([], no_step, self.finish)]
        return stages

    def evaluations(self, problem: Problem) -> int:
        """Evaluations of a chain, products with the derivative counted as one each.

        Behind a decoder a norm is counted as a general row that bends, though it costs less if A^T A = c I.
        """
        features = self.features(problem.take(slice(0, 1)))
        width, one = self.particles(features), 1 + features.count + features.rank
        if features.curved:
            round_rows = 1 if features.norm is not None and problem.identity else 0
            one += self.probes * (1 + sum(b.count for b in features.blocks if b.curved) - round_rows)
        down = width * (self.upper + 1) + self.levels - self.upper
        moves = self.move_count(features)
        more = moves * (2 * self.path - 2)
        scales = width * (1 + self.probes)
        return one * (down + more) + scales + 2 + min(ROOT_STEPS, math.prod(problem.latent))

    def fits(self, problem: Problem) -> bool:
        """Whether the set is of few rows with gradients, few of them inequalities, and the denoiser differentiable."""
        one = problem.take(slice(0, 1)).replace(usage=Uncounted())
        try:
            features = self.features(one)
            Derivative(one, one.like.new_zeros((1, *one.latent)), span(one).first)
        except SettingError:
            return False
        return features.count - features.equal <= FEW_INEQUALITIES

    def placed(self, problem: Problem, state: AheadState) -> Levels:
        """The noise levels, from the scales of the data."""
        model = span(problem)
        return Levels(
            model.first,
            model.finest,
            self.upper,
            self.levels - self.upper,
            float(state.wide),
            float(state.grain),
            float(state.inner),
        )

    # ------------------------------------------------------------------------------------------------------- start

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> AheadState:
        """Chains of several particles at the first level, and their first look."""
        width = self.particles(self.features(problem))
        alpha, first, _ = span(problem)
        n = len(x)
        features = self.features(problem)
        target, known = problem.target, not callable(problem.target.init)
        more = [x] + [
            (alpha * first * gaussian(problem, n, generator) if known else target.draw(n, generator)).to(x)
            for _ in range(width - 1)
        ]
        points = torch.stack(more, 1) / alpha
        wide = widened(problem, width)
        seen = look(wide, self.features(wide), flat(points), first, probes(self.probes, problem))
        lines = (torch.arange(n, device=x.device) + problem.first)[:, None] * width
        zeros = points.new_zeros((n, width), dtype=torch.float64)
        rows = features.count + features.rank
        trace, square = self._traces(wide, flat(points), first)
        none = zeros.new_zeros(())
        return AheadState(
            x=points,
            before=points,
            **{name: fold(value, width) for name, value in seen._asdict().items()},
            mean=zeros.new_zeros(n, width, rows),
            covariance=zeros.new_zeros(n, width, rows, rows),
            rest=zeros.new_zeros(n, width, rows, rows),
            factor=zeros.new_ones(n, width, rows),
            log_psi=fold(trace, width),
            paid=fold(square, width),
            logs=zeros,
            lines=lines + torch.arange(width, device=x.device),
            path=points[:, :0],
            log_weight=zeros[:, 0],
            ancestor=lines[:, 0],
            wide=none,
            grain=none,
            inner=none,
            even=none,
        )

    def _traces(self, problem: Problem, x: Tensor, s: float) -> tuple[Tensor, Tensor]:
        """tr C and tr C^2 at the first level, (n,) each."""
        model = Derivative(problem, x, s)
        signs = probes(self.probes, problem)
        spread = torch.stack([s**2 * model.pull(u) for u in signs])
        return (spread * signs[:, None]).sum(2).mean(0), spread.square().sum(2).mean(0)

    def begin(
        self, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """Read the scales of the data off the first look, and weigh by psi(x_T)."""
        size = torch.Size(problem.latent).numel()
        wide, grain = scales(state.log_psi, state.paid, size, span(problem).first)
        zeros = torch.zeros_like(state.logs)
        state = state._replace(
            wide=torch.full_like(state.wide, wide),
            grain=torch.full_like(state.grain, grain),
            even=torch.full_like(state.even, float(self._is_even(problem, state, wide))),
            log_psi=zeros,
            paid=zeros,
        )
        state = self._weighed(problem, state, 0)
        return state, health(state)

    # ------------------------------------------------------------------------------------------------------- down

    def step(self, problem: Problem, state: AheadState, row: Row, noise: Tensor) -> AheadState:
        """One guided step, and the look from where it leads."""
        width = state.x.shape[1]
        wide, levels = widened(problem, width), self.placed(problem, state)
        features, here, there = self.features(wide), levels[row.k], levels[row.k + 1]
        x, clean, before = (flat(v).flatten(1).to(torch.float64) for v in (state.x, state.estimate, state.before))
        known = row.k > 0
        extra = multistep(clean, before if known else None, here, there, levels[row.k - 1] if row.k else here)
        plan = propose(x, clean, extra, ahead_of(state, features), features, here, there)
        point, paid = plan.draw(flat(noise).flatten(1).to(torch.float64))
        point = point.reshape(-1, *problem.latent).to(state.x.dtype)
        seen = look(wide, features, point, there, probes(self.probes, problem))
        return state._replace(
            x=fold(point, width),
            before=state.estimate,
            paid=fold(paid, width),
            **{name: fold(value, width) for name, value in seen._asdict().items()},
        )

    def meet(
        self, groups: Groups, k: int, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """Weigh the chains, and resample where the weights are uneven."""
        state = self._weighed(problem, state, k)
        record = health(state)
        return resampled(state, generator, groups, self.ess), record

    def narrow(
        self, groups: Groups, k: int, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """From here on every chain is one particle; the starting particles that are left are counted anew."""
        if state.x.shape[1] == 1:
            return self.meet(groups, k, problem, state, generator)
        state = self._weighed(problem, state, k)
        record = health(state)
        state = resampled(state, generator, groups, math.inf, width=1)
        lines = state.lines.unique(return_inverse=True)[1]
        return state._replace(lines=lines, ancestor=lines[:, 0]), record

    def arrive(
        self, groups: Groups, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """The end of the noise levels: equal weights."""
        state = self._weighed(problem, state, self.levels)
        record = health(state)
        state = resampled(state, generator, groups, math.inf)
        return state, {**record, "ancestors": float(len(state.ancestor.unique()))}

    def _weighed(self, problem: Problem, state: AheadState, k: int) -> AheadState:
        """The state with what all chains make of the look at level k, and the weights of the step to it."""
        level = self.placed(problem, state)[k]
        settled, logs = self._settled(problem, state, level), state.logs
        if k >= self.upper and trusted(state, level) < 0.5 and not state.tilt.shape[2]:  # a soft term parts modes
            settled = settled._replace(inner=torch.full_like(state.inner, level))
        logs = logs + settled.log_psi - state.log_psi + state.paid
        return settled._replace(logs=logs, log_weight=torch.logsumexp(logs, 1), ancestor=state.lines[:, 0])

    def _settled(self, problem: Problem, state: AheadState, level: float) -> AheadState:
        """The state with the moments of f and log psi at a level, as all particles agree on them."""
        features = self.features(widened(problem, state.x.shape[1]))
        return settled(state, features, level, self.placed(problem, state).middle)

    def _is_even(self, problem: Problem, state: AheadState, wide: float) -> bool:
        """Whether the soft term is quadratic, seen from a few points around the first estimate."""
        term = problem.target.log_weight
        if term is None:
            return False
        stream = torch.Generator().manual_seed(4245)
        away = torch.randn((4, *problem.latent), generator=stream, dtype=torch.float64).to(state.x)
        return quadratic(term, state.estimate[0, 0] + wide * away)

    # ------------------------------------------------------------------------------------------------------- moves

    def part(
        self, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """Three particles for every chain: the one that stays, and one for each path of a move."""
        three = {name: getattr(state, name).repeat_interleave(3, 1) for name in PARTICLES}
        return state._replace(**three, path=state.x.repeat_interleave(self.path, 1)), {}

    def climb(self, problem: Problem, state: AheadState, row: Row, noise: Tensor) -> AheadState:
        """Noise the chains up, and look from there: both paths of a move start there."""
        levels, count = self.placed(problem, state), self.path - 1
        points = [state.x[:, 0]]
        for k in range(count):
            low, high = levels.climb(k, count), levels.climb(k + 1, count)
            points.append(points[-1] + math.sqrt(high**2 - low**2) * noise[:, k])
        features, top = self.features(problem), points[-1]
        level = levels.climb(count, count)
        seen = look(problem, features, top, level, probes(self.probes, problem))
        return state._replace(
            x=with_pair(state.x, top),
            before=with_pair(state.before, top),
            **{name: with_pair(getattr(state, name), value) for name, value in seen._asdict().items()},
            paid=torch.zeros_like(state.paid),
            path=torch.stack(points[::-1], 1),
        )

    def settle_path(
        self, k: int, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """What all chains make of the looks from both paths; the point that a move starts from stays as it is."""
        level = self.placed(problem, state).climb(self.path - 1 - k, self.path - 1)
        pair = self._settled(problem, columns(state, slice(1, 3)), level)
        names = ("mean", "covariance", "rest", "factor", "log_psi")
        parts = {name: torch.cat([getattr(state, name)[:, :1], getattr(pair, name)], 1) for name in names}
        return state._replace(**parts), {}

    def walk(self, problem: Problem, state: AheadState, row: Row, noise: Tensor) -> AheadState:
        """One step of both paths: the old one to its next point, the new one to a guided draw."""
        levels, count = self.placed(problem, state), self.path - 1
        earlier, here, there = (levels.climb(min(count, count - row.k - j), count) for j in (-1, 0, 1))
        wide = widened(problem, 2)
        features, pair = self.features(wide), columns(state, slice(1, 3))
        x, clean, before = (flat(v).flatten(1).to(torch.float64) for v in (pair.x, pair.estimate, pair.before))
        extra = multistep(clean, before if row.k else None, here, there, earlier)
        plan = propose(x, clean, extra, ahead_of(pair, features), features, here, there)
        drawn, paid = plan.draw(noise.flatten(1).to(torch.float64).repeat_interleave(2, 0))
        old = state.path[:, row.k + 1]
        new = fold(drawn, 2)[:, 1].reshape(old.shape).to(old)
        follow = torch.stack([old, new], 1)
        paid = torch.stack(
            [fold(plan.cost(flat(follow).flatten(1).to(torch.float64)), 2)[:, 0], fold(paid, 2)[:, 1]], 1
        )
        if row.k == count - 1:  # the old path ends where the move started, and that look is known
            one = look(problem, self.features(problem), new, there, probes(self.probes, problem))
            seen = {
                name: torch.cat([getattr(state, name)[:, :1], value[:, None]], 1)
                for name, value in one._asdict().items()
            }
        else:
            both = look(wide, features, flat(follow), there, probes(self.probes, problem))
            seen = {name: fold(value, 2) for name, value in both._asdict().items()}
        parts = {name: torch.cat([getattr(state, name)[:, :1], value], 1) for name, value in seen.items()}
        return state._replace(
            **parts,
            x=torch.cat([state.x[:, :1], follow], 1),
            before=torch.cat([state.before[:, :1], pair.estimate], 1),
            paid=torch.cat([state.paid[:, :1], pair.paid + paid], 1),
        )

    def accept(
        self, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[AheadState, Mapping[str, float]]:
        """Keep the end of the new path, or the point that the move started from."""
        end = self.placed(problem, state).climb(0, self.path - 1)
        new = self._settled(problem, columns(state, slice(2, 3)), end)
        ratio = new.paid[:, 0] + new.log_psi[:, 0] - state.paid[:, 1] - state.log_psi[:, 0]
        chance = torch.rand(len(ratio), generator=generator, dtype=ratio.dtype, device=ratio.device)
        yes = chance.log() < ratio
        old = columns(state, slice(0, 1))
        taken = {
            name: torch.where(_over(yes, getattr(new, name)), getattr(new, name), getattr(old, name))
            for name in PARTICLES
        }
        return state._replace(**taken, path=state.path[:, :0]), {"acceptance": float(yes.to(torch.float64).mean())}

    # ------------------------------------------------------------------------------------------------------- end

    def draw(self, problem: Problem, state: AheadState, row: Row, noise: Tensor) -> AheadState:
        """x0 given x and f(x0) in C, to first order."""
        s, features = self.placed(problem, state)[self.levels], self.features(problem)
        return state._replace(estimate=last_draw(problem, state, features, s, generator_of(noise, state.x))[:, None])

    def finish(
        self, problem: Problem, state: AheadState, generator: torch.Generator
    ) -> tuple[Clean, Mapping[str, float]]:
        """Of all that was seen, the samples are left."""
        return Clean(state.clean, state.log_weight, state.ancestor), {}

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(problem.decode(state.clean))

    def advice(self, state: Any, row: Any) -> str:
        return "on the way down the noise levels; check the denoiser and its derivative at all of them"


def _over(yes: Tensor, like: Tensor) -> Tensor:
    return yes.reshape(-1, *[1] * (like.ndim - 1))


def _several(width: int, problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """Standard normal numbers for ``width`` particles of every chain, (n, width, *latent)."""
    return fold(gaussian(problem, n * width, generator), width)
