"""Matheron's rule where x0 is restricted by more than linear equations: inequalities, soft terms, modes on curved sets.

One level of ``matheron.py`` draws x0 from N(D, S) given the equations. Here N(D, S) is restricted further:

    flat inequalities l <= G x0 <= u     f = G x0 ~ N(G D, G S G^T) between its walls, by exact orbits with reflections
                                         (``flat_flows.py``), then Matheron's rule with f as the value of the rows
    with curved equations                the draw of ``curved_draw.py``, accepted or not (Metropolis)
    soft terms and other inequalities    elliptical slices (Murray, Adams and MacKay 2010): from the x0 of the level
                                         before, along D + (x0 - D) cos a + e sin a with e ~ N(0, S), for N(D, S) times
                                         exp t(x0) inside the set

Both leave the restricted Gaussian as it is and start from the x0 of the level before, so a level is a step of a Gibbs
sampler of (x0, x). S G^T comes from differences of the network, as in ``matheron.py``; slices take no evaluations.

Separate modes are found as in ``affine_modes.py``. With mu and C of a mode, its weight is its share of the free samples
times the integral of N(mu, C) over the set:

    linear equations         N(b; A mu, A C A^T)
    flat inequalities        times P(l <= G x <= u | A x = b), coordinate after coordinate (Genz 1992)
    curved equations         times the mean over lines of the sums of ``curved_draw.py``, det(G C G^T)^(1/2) in front
    soft term                times the mean of exp t
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.constraints import Constraint, geometry, truncated_normal
from casal.devices import cholesky
from casal.errors import SettingError
from casal.methods import affine_modes
from casal.methods.affine_modes import normal, raised, solve
from casal.methods.base import gaussian
from casal.methods.baselines import noise_levels
from casal.methods.coupling import decoded_event, lift, onto
from casal.methods.curved_draw import EQUAL, conditioned, search, volume_term
from casal.methods.equations import Equations, equations_of
from casal.methods.flat_flows import flow, rounded
from casal.methods.matheron import (
    FEWEST_FREE,
    NEXT,
    POOL,
    STEP,
    Control,
    Done,
    LevelRow,
    Matheron,
    as_rows,
    denoised_rows,
    spread,
)
from casal.methods.problem import Problem

MOST_WALLS = 1024
"""Inequalities up to which G S G^T is formed, and one evaluation for n of them taken at every level."""

MOST_CUTS = 40
"""Cuts of a slice, after which a chain stays: the arc is then 1e-9 of the circle."""

INSIDE = 1e-9
"""Violation of the inequalities that counts as rounding, in units of the spread of the free samples."""

PROPOSALS = 4
"""Proposals of a level on curved equations with inequalities or a soft term, each with a search for roots."""

PROBABILITY_DRAWS = 2048
"""Draws for the probability of the inequalities in a mode: its logarithm has an error of .03 on 64 correlated ones."""

LINES = 2
"""Lines by which a mode is weighed on curved equations, for each chain and mode. A quarter of one leaves an error of .3
in the logarithm, and a TV of .13 for .04 of exact draws on four equations and a norm."""

FAR = 3.0
"""Where the second root of a line is searched from, in units of the first one's distance: beyond it on a norm, from
where Newton steps do not turn round."""

FIRST_FLOWS = 10
"""Flows that start a chain in its mode, from a point that may be far out."""


class InsideState(NamedTuple):
    """``MatheronState``, and ``kept``, the x0 of the level before; ``tilt``, the soft term there, (n,)."""

    x: Tensor
    free: Tensor
    error: Tensor
    clean: Tensor
    estimate: Tensor
    probe: Tensor
    kind: Tensor
    home: Tensor
    kept: Tensor
    tilt: Tensor


class Sides(NamedTuple):
    """Flat inequalities of the latent: rows G (k, d) of length one, low and high (1 or n, k), float64."""

    matrix: Tensor
    low: Tensor
    high: Tensor

    def of(self, chains: Tensor) -> Sides:
        """Those of some chains."""
        return self if len(self.low) == 1 else self._replace(low=self.low[chains], high=self.high[chains])


class Gauss(NamedTuple):
    """N(mean, S) as far as it is needed: means (n, d), draws of e ~ N(0, S), and S R^T as rows, R = equations, sides.

    Attributes:
        mean: (n, d) float64.
        draw: Returns e (n, d).
        across: S R^T (m, d).
    """

    mean: Tensor
    draw: Callable[[], Tensor]
    across: Tensor


@dataclass(frozen=True)
class MatheronInside(Matheron):
    """Samples a diffusion or flow model on sets with inequalities, with soft terms, and on curved sets with modes.

    ``Matheron`` with the draw of x0 restricted to all of the set, and to the soft term of the model (``casal.tilted``):
    see the formulas at the top of ``methods/matheron_inside.py``. Chains are independent. Nothing is asked of the
    network but its values.

    - Flat inequalities (bounds, half-spaces, slabs, polytopes), with linear equations or without: 3 evaluations a level
      for up to n inequalities. No sample is moved onto a bound.
    - Curved equations: as ``Matheron``, with modes that are weighed.
    - Curved equations with inequalities or a soft term: the same draws as proposals that are accepted or not.
    - Soft terms, and inequalities that are not flat: slices, 2 evaluations a level, 3 with linear equations. Take three
      times as many levels: what all chains share, the errors of the free samples, then averages out.

    The distribution is promised if the run has found the modes of the model to be Gaussian, and on curved equations one
    mode: then each level is exact but for the Monte Carlo error of S. Measured errors are in docs/methods_in_depth.md.

    Args:
        flows: Orbits between walls at a level.
        slices: Elliptical slices of a level.

    >>> import casal, torch
    >>> model = casal.edm(lambda x, sigma: x / (1 + sigma**2), casal.karras_sigmas(20), shape=8)
    >>> result = casal.sample(model, casal.Box(1.0, torch.inf), casal.MatheronInside(), 64)
    >>> bool((result.samples > 1.0).all())
    True
    """

    flows: int = 2
    slices: int = 10

    name: ClassVar[str] = "MatheronInside"
    tilts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("flows", "slices"):
            whole_number(getattr(self, name), name, 1)

    # ------------------------------------------------------------------------------------------------ the set

    def control(self, problem: Problem, n: int) -> Control:
        found, solid = equations_of(problem), _solid(problem)
        if problem.target.condition and problem.target.groups is None:
            raise SettingError("MatheronInside shares S among chains of the same condition, which are not known here")
        soft = problem.target.log_weight is not None
        if solid is not None and solid.chains is not None and (soft or sides_of(problem) is None):
            raise SettingError("inequalities beside a soft term, or not flat, need a common set, not PerChain")
        if soft and self._blind(problem):
            raise SettingError("a soft term and inequalities need a decoder that reaches every point; leave one out")
        usual = super().control(problem, n)
        return (
            usual if found.curved or self._blind(problem) else Control("shared" if len(self._rows(problem)) else "none")
        )

    def fits(self, problem: Problem) -> bool:
        """Whether it draws inside the set."""
        try:
            self.control(problem, 1)
        except SettingError:
            return False
        return not self._blind(problem)

    def _blind(self, problem: Problem) -> bool:
        """Whether inequalities act through the last projection alone, as in ``Matheron``.

        Behind a decoder that does not reach every point a point of the set has no latent to go on from.
        """
        return _solid(problem) is not None and not onto(problem)

    def evaluations(self, problem: Problem, n: int) -> int:
        """Evaluations of a chain, about: with those that weigh two modes, if they are looked for."""
        found = equations_of(problem)
        if found.curved:
            per = 2 + len(found.curved) + (-(-len(found.matrix) // n) if len(found.matrix) else 0)
        else:
            per = 2 + -(-len(self._rows(problem)) // n)
        weighed = affine_modes.LANCZOS * (2 * LINES if found.curved else 1)
        looks = 3 * affine_modes.LEVELS + weighed if self._searches(problem, n) else 0
        return len(problem.table) + self.levels * per + looks

    def promises(self, problem: Problem, control: Control) -> bool:
        """Modes that were found to be Gaussian: there the measured figures hold. On curved equations, one mode.

        With several, a mode that the search for modes missed was lost in 1 of 6 runs there, and no check saw it.
        """
        several = bool(equations_of(problem).curved) and control.modes != 1
        return bool(control.modes) and not self._blind(problem) and not several

    def _rows(self, problem: Problem) -> Tensor:
        """A and, where they are flat and there is no soft term, G."""
        sides, matrix = sides_of(problem), equations_of(problem).matrix
        walled = sides is not None and problem.target.log_weight is None
        return torch.cat([matrix, sides.matrix]) if sides is not None and walled else matrix

    def _looks(self, problem: Problem, found: Equations, n: int) -> bool:
        return False  # modes are weighed here, by all of the set

    def _searches(self, problem: Problem, n: int) -> bool:
        """Whether modes are looked for: among enough free samples, for one set, whose integrals are known."""
        more = problem.target.log_weight is not None or _solid(problem) is not None
        alone = not (equations_of(problem).curved and more) and not self._blind(problem)
        return self.modes and alone and n >= FEWEST_FREE and problem.chains is None

    # ------------------------------------------------------------------------------------------------ the levels

    def begin(self, problem: Problem, state: Any, control: Control, generator: torch.Generator) -> Done:
        """Place the levels, and start every chain in a mode, if there are some."""
        begun, control, record = super().begin(problem, state, control, generator)
        free = begun.free
        first = _into(problem, free)
        state = InsideState(*begun, kept=first, tilt=first.flatten(1)[:, 0])._replace(clean=first)
        if self._searches(problem, len(free)):
            state, control, more = self._in_modes(problem, state, control, generator)
            record = {**record, **more}
        return state, control, record

    def ask(self, gain: str, equations: Equations, problem: Problem, state: Any, row: LevelRow, noise: Tensor) -> Any:
        """As in ``Matheron``, and the soft term of x0: a store takes this step again to see whether the term is new."""
        state, term = super().ask(gain, equations, problem, state, row, noise), problem.target.log_weight
        return state if term is None else state._replace(tilt=term(state.clean).to(state.tilt))

    def choose(self, row: LevelRow, problem: Problem, state: Any, control: Control, generator: torch.Generator) -> Done:
        """Remember x0 of the level before, and what the network is asked for S R^T, R the rows of the set."""
        state, n, rows = state._replace(kept=state.clean), len(state.x), self._rows(problem)
        if equations_of(problem).curved or self._blind(problem):
            return super().choose(row, problem, state, control, generator)
        if not len(rows):
            return state, control, {"sigma": row.s}
        if problem.target.condition:  # the network answers each chain under its own condition
            away = rows.to(state.x).reshape(1, len(rows), *problem.latent)
            return state._replace(probe=state.x[:, None] + STEP * row.s * away), control, {"sigma": row.s}
        order, asked = (
            torch.randperm(n, generator=generator, device=generator.device).to(state.x.device),
            list[Tensor](),
        )
        for kind in state.kind.unique().tolist():
            mine = order[state.kind[order] == kind]
            asked.append(mine[: max(1, len(mine) // len(rows))])
        chains = torch.cat(asked)
        away = rows.to(state.x).reshape(1, len(rows), *problem.latent)
        probe = (state.x[chains][:, None] + STEP * row.s * away).flatten(0, 1)
        columns = -(-len(probe) // n)
        filler = state.x[torch.arange(columns * n - len(probe), device=state.x.device) % n]
        probe = torch.cat([probe, filler]).reshape(columns, n, *problem.latent).transpose(0, 1)
        return state._replace(probe=probe), control._replace(asked=tuple(chains.tolist())), {"sigma": row.s}

    def move(self, row: LevelRow, problem: Problem, state: Any, control: Control, generator: torch.Generator) -> Done:
        """x0 from the restricted Gaussian."""
        if self._blind(problem):
            return super().move(row, problem, state, control, generator)
        if equations_of(problem).curved:
            return self._on_curved(row, problem, state, control, generator)
        errors, mean = self._errors(state, generator), as_rows(state.estimate)
        clean = torch.empty_like(mean)
        rows = self._rows(problem)
        answers = state.probe.flatten(2).transpose(0, 1).flatten(0, 1)
        asked = torch.tensor(control.asked, device=state.x.device, dtype=torch.long)
        seen = answers[: len(asked) * len(rows)].reshape(len(asked), len(rows), mean.shape[1]).to(torch.float64)
        if problem.target.condition:
            asked, seen = torch.arange(len(mean), device=mean.device), state.probe.flatten(2).to(torch.float64)
        for kind in state.kind.unique().tolist():
            mine = torch.nonzero(state.kind == kind).flatten()
            here = state.kind[asked] == kind
            rise = (seen[here] - mean[asked[here]][:, None]).mean(0) if len(rows) else mean.new_zeros(0, mean.shape[1])
            some = errors._replace(close=errors.close[mine])
            gauss = Gauss(mean[mine], partial(some.draw, generator), rise * (row.s / STEP))
            kept = as_rows(state.kept)[mine]
            clean[mine] = self._drawn(problem, mine, gauss, kept, self.flows, generator)
        point = _into(problem, _latent(problem, clean))
        state = state._replace(clean=point, probe=state.probe[:, :0])
        return state._replace(x=point) if row.last else state, control, {}

    def _on_curved(
        self, row: LevelRow, problem: Problem, state: Any, control: Control, generator: torch.Generator
    ) -> Done:
        """The draw of ``Matheron``; with inequalities or a soft term a proposal, accepted or not, PROPOSALS times.

        It comes from N(D, S) given the equations, so the ratio is that of exp t, and zero outside the inequalities.
        """
        new, control, info = super().move(row, problem, state, control, generator)
        if _solid(problem) is None and problem.target.log_weight is None:
            return new, control, info
        kept, rounding = as_rows(state.kept), INSIDE * float(state.free.std())
        log = _log_factor(problem, rounding, kept)
        for _ in range(PROPOSALS):
            point = as_rows(_into(problem, new.clean))
            value = _log_factor(problem, rounding, point)
            chance = torch.rand(len(log), generator=generator, dtype=torch.float64, device=generator.device).to(log)
            yes = chance.log() < value - log
            kept, log = torch.where(yes[:, None], point, kept), torch.where(yes, value, log)
            new = super().move(row, problem, state, control, generator)[0]
        point = _latent(problem, kept)
        return new._replace(clean=point, x=point if row.last else new.x), control, info

    def _drawn(
        self, problem: Problem, chains: Tensor, gauss: Gauss, kept: Tensor, flows: int, generator: torch.Generator
    ) -> Tensor:
        """x0 ~ N(mean, S) restricted to the set and weighted by the soft term, (n, d)."""
        found, sides, term = equations_of(problem), sides_of(problem), problem.target.log_weight
        A, count = found.matrix, len(found.matrix)
        level = found.level if len(found.level) == 1 else found.level[chains]
        gain = solve(gauss.across[:count] @ A.T, gauss.across[:count], self.floor) if count else gauss.across[:0]
        mean = gauss.mean + (level - gauss.mean @ A.T) @ gain

        def error() -> Tensor:
            e = gauss.draw()
            return e - (e @ A.T) @ gain

        if term is None and _solid(problem) is None:
            return mean + error()
        if sides is None or term is not None:
            like = partial(_log_factor, problem, INSIDE * float(kept.std(0).max()) if len(kept) > 1 else INSIDE)
            return slices(like, mean, error, kept, self.slices, generator)
        across = gauss.across[count:] - (gauss.across[count:] @ A.T) @ gain
        mine = sides.of(chains)
        return inside(mine, mean, mean + error(), across, kept, flows, self.floor, generator)

    # ------------------------------------------------------------------------------------------------ modes

    def _in_modes(
        self, problem: Problem, state: InsideState, control: Control, generator: torch.Generator
    ) -> tuple[InsideState, Control, dict[str, float]]:
        """The chains, each started in a mode that was drawn by its weight; unchanged if there is one, or none agree."""
        free, ask = as_rows(state.free), partial(denoised_rows, problem)
        top, n = spread(problem, state.free, math.inf, generator), len(state.free)
        some = free[:POOL]
        levels = [top * 0.5**k for k in range(1, affine_modes.LEVELS + 1)]
        found, seen = affine_modes.find(ask, some, levels, generator)
        if found is None or found.kinds == 1:
            return state, control._replace(modes=0 if found is None else 1), {}
        gausses, logs = list[tuple[Gauss, Tensor]](), list[float]()
        count = LINES * n if equations_of(problem).curved else -(-n // found.kinds)
        for k in range(found.kinds):
            one = self._mode(problem, ask, found, seen, k, some, count, generator)
            if one is None:
                return state, control._replace(modes=0), {}
            gausses.append(one[:2])
            logs.append(one[2])
        label = torch.cat([found.label, affine_modes.classify(ask, found, free[POOL:], generator)])
        counts = torch.bincount(label, minlength=found.kinds).to(free)
        evidence = torch.tensor(logs).to(free)
        weights = torch.softmax(evidence + counts.log(), 0)
        if float(weights.max()) < affine_modes.DECIDED and n < POOL:
            alpha, sigma = noise_levels(problem.table)
            first, last = float((sigma / alpha).max()), found.level.s
            more = affine_modes.coarse_samples(ask, affine_modes.COUNTED * n, free.shape[1], first, last, generator)
            counts = counts + torch.bincount(affine_modes.classify(ask, found, more, generator), minlength=found.kinds)
            weights = torch.softmax(evidence + counts.log(), 0)
        mode, x = affine_modes.drawn(weights[None], n, generator), torch.empty_like(free)
        for k in mode.unique().tolist():
            mine = torch.nonzero(mode == k).flatten()
            gauss, slopes = gausses[k]
            x[mine] = self._started(problem, mine, gauss, slopes, generator)
        s = found.level.s
        point = _into(problem, _latent(problem, x)) if not equations_of(problem).curved else _latent(problem, x)
        sigmas = (s, *(v for v in control.sigmas if v < NEXT * s))
        noisy = point + s * gaussian(problem, n, generator)
        state = state._replace(x=noisy, clean=point, kept=point, kind=mode, home=label)
        record = {"modes": float(found.kinds), "first level": s}
        return state, control._replace(modes=found.kinds, sigmas=sigmas), record

    def _mode(
        self,
        problem: Problem,
        ask: affine_modes.Ask,
        clusters: affine_modes.Clusters,
        seen: list[affine_modes.Level],
        k: int,
        free: Tensor,
        count: int,
        generator: torch.Generator,
    ) -> tuple[Gauss, Tensor, float] | None:
        """A mode as a Gaussian, the gradients G of curved equations near it (k, d), and the log of its integral."""
        found, members = equations_of(problem), free[clusters.label == k]
        rows, slopes = self._rows(problem), free[:0]
        if found.curved:
            near = _into(problem, _latent(problem, members.mean(0, keepdim=True)))
            slopes = found.bent(problem, near)[0][0]
            rows = torch.cat([rows, slopes])
        if not len(rows):  # a row that only shows whether the affine model fits
            rows = torch.linalg.svd(members - members.mean(0), full_matrices=False).Vh[:1]
        mode = affine_modes.gaussian_mode(ask, clusters, seen, k, free, rows)
        if mode is None:
            return None
        half = mode.model.draw(mode.mean, normal((count, free.shape[1]), free, generator)) - mode.mean
        drawn = torch.cat([half, -half])
        A, across = found.matrix, mode.across
        log = float(affine_modes.evidence(mode._replace(across=across[: len(A)]), A, found.level)) if len(A) else 0.0
        gain = solve(across[: len(A)] @ A.T, across[: len(A)], affine_modes.LEAST_VALUE) if len(A) else across[:0]
        mean = mode.mean + ((found.level - mode.mean @ A.T) @ gain)[0]
        errors, left = drawn - (drawn @ A.T) @ gain, across[len(A) :] - (across[len(A) :] @ A.T) @ gain
        sides, term = sides_of(problem), problem.target.log_weight
        if found.curved:
            every, centre = left.expand(len(errors), -1, -1), mean.expand(len(errors), -1)
            logs = line_weights(problem, found, centre, slopes, every, errors, self.measure)
            log += _log_mean(logs) + 0.5 * float(torch.linalg.slogdet(slopes @ left.T).logabsdet)
        elif sides is not None and term is None:
            log += log_probability(sides, mean @ sides.matrix.T, left @ sides.matrix.T, generator)
        elif term is not None or _solid(problem) is not None:
            log += _log_mean(_log_factor(problem, INSIDE * float(errors.std(0).max()), mean + errors))
        return Gauss(mode.mean[None], lambda: drawn, across), slopes, log

    def _started(
        self, problem: Problem, chains: Tensor, gauss: Gauss, slopes: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Points of a mode restricted to the set, one for each of some chains."""
        found, pool, count = equations_of(problem), gauss.draw(), len(chains)

        def draw() -> Tensor:
            return pool[torch.randint(len(pool), (count,), generator=generator, device=generator.device)]

        mean = gauss.mean.expand(count, -1)
        if not found.curved:
            kept = as_rows(_into(problem, _latent(problem, mean + draw())))
            mine = Gauss(mean, draw, gauss.across[: len(self._rows(problem))])
            return self._drawn(problem, chains, mine, kept, FIRST_FLOWS, generator)
        A, across = found.matrix, gauss.across
        gain = solve(across[: len(A)] @ A.T, across[: len(A)], affine_modes.LEAST_VALUE) if len(A) else across[:0]

        def given() -> Tensor:
            e = draw()
            return e - (e @ A.T) @ gain

        mean = mean + (found.level - mean @ A.T) @ gain
        left = across[len(A) :] - (across[len(A) :] @ A.T) @ gain
        every, rows = left.expand(count, -1, -1), slopes.expand(count, -1, -1)
        return conditioned(problem, found, mean, rows, every, given, generator, self.measure, self.candidates)


# ---------------------------------------------------------------------------------------------------- draws


def inside(
    sides: Sides,
    mean: Tensor,
    clean: Tensor,
    across: Tensor,
    kept: Tensor,
    flows: int,
    floor: float | None,
    generator: torch.Generator,
) -> Tensor:
    """x0 ~ N(mean, S) given low <= G x0 <= high, (n, d).

    G x0 = G mean + L u with L L^T = G S G^T; u ~ N(0, I) between the walls, from that of ``kept`` on.

    Args:
        sides: G, low, high.
        mean: (n, d).
        clean: Draws of N(mean, S), (n, d).
        across: S G^T as rows, (k, d).
        kept: Points inside, (n, d).
        flows: How many.
        floor: Of the eigenvalues of G S G^T, as in ``Matheron``.
        generator: Draws.
    """
    G = sides.matrix
    values, vectors = raised(across @ G.T, floor)
    root, inverse = vectors * values.sqrt(), (vectors / values.sqrt()).T
    centre = mean @ G.T
    up, down = torch.isfinite(sides.high).any(0), torch.isfinite(sides.low).any(0)
    walls = torch.cat([torch.eye(len(G)).to(G)[up], -torch.eye(len(G)).to(G)[down]])
    levels = torch.cat([sides.high[:, up], -sides.low[:, down]], 1)
    moved = flow(
        rounded(walls, levels.expand(len(mean), -1), centre, root),
        (kept @ G.T - centre) @ inverse.T,
        flows,
        True,
        generator,
    )
    f = centre + moved.point @ root.T
    return clean + (f - clean @ G.T) @ inverse.T @ inverse @ across


def slices(
    log_factor: Callable[[Tensor], Tensor],
    mean: Tensor,
    error: Callable[[], Tensor],
    kept: Tensor,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """So many elliptical slices of N(mean, S) exp(log_factor), from points ``kept`` (n, d) on."""
    here, log = kept, log_factor(kept)

    def uniform(n: int) -> Tensor:
        return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device).to(mean.device)

    for _ in range(count):
        e, least = error(), log + uniform(len(here)).log()
        angle = 2 * math.pi * uniform(len(here))
        low, high = angle - 2 * math.pi, angle.clone()
        new, new_log, left = here.clone(), log.clone(), torch.arange(len(here), device=mean.device)
        for _ in range(MOST_CUTS):
            turn = angle[left, None]
            point = mean[left] + (here[left] - mean[left]) * turn.cos() + e[left] * turn.sin()
            value = log_factor(point)
            yes = value > least[left]
            new[left[yes]], new_log[left[yes]] = point[yes], value[yes]
            left = left[~yes]
            if not len(left):
                break
            at = angle[left]
            low[left], high[left] = torch.where(at < 0, at, low[left]), torch.where(at < 0, high[left], at)
            angle[left] = low[left] + (high[left] - low[left]) * uniform(len(left))
        here, log = new, new_log
    return here


def line_weights(
    problem: Problem, found: Equations, mean: Tensor, slopes: Tensor, across: Tensor, errors: Tensor, measure: str
) -> Tensor:
    """Logarithms of the sums of weights of the roots on the lines mean + e + U lambda (``curved_draw.py``), (n,).

    Two roots a line, at most: one that is found from the candidate, and one from FAR times its c on the other side.
    """
    gram = slopes @ across[0].T
    values, vectors = raised(gram, None)
    total, first = mean.new_full((len(mean),), -math.inf), mean + errors
    before: Tensor | None = None
    for _ in range(2):
        x, rows, met = search(problem, found, first, across, values.expand(len(mean), -1))
        c = (x - mean) @ slopes.T
        white = (c @ vectors) / values.sqrt()
        logs = -0.5 * white.square().sum(1) - torch.linalg.slogdet(rows @ across.mT).logabsdet
        logs = logs + volume_term(problem, found, x, rows, measure)
        new = met if before is None else met & ((white - before).abs().amax(1) > EQUAL)
        total = torch.logaddexp(total, torch.where(new & torch.isfinite(logs), logs, -math.inf))
        first, before = x - (1.0 + FAR) * solve(gram, c.T, None).T @ across[0], white
    return total


def log_probability(sides: Sides, mean: Tensor, covariance: Tensor, generator: torch.Generator) -> float:
    """log P(low <= f <= high) for f ~ N(mean, covariance): every coordinate in turn, drawn between its ends."""
    values, vectors = raised(covariance, affine_modes.LEAST_VALUE)
    root = cholesky((vectors * values) @ vectors.T)
    total = mean.new_zeros(PROBABILITY_DRAWS)
    white = mean.new_zeros(PROBABILITY_DRAWS, len(root))
    for i in range(len(root)):
        centre = mean[i] + white[:, :i] @ root[i, :i]
        low, high = ((end[0, i] - centre) / root[i, i] for end in (sides.low, sides.high))
        flip = low + high > 0  # to the lower tail, which keeps its digits
        first, last = torch.where(flip, -high, low), torch.where(flip, -low, high)
        below, above = torch.special.log_ndtr(first), torch.special.log_ndtr(last)
        total = total + above + torch.log1p(-torch.exp(below - above).clamp_max(1.0 - 1e-12))
        white[:, i] = truncated_normal(torch.zeros_like(centre), 1.0, low, high, generator)
    return _log_mean(total)


def _log_mean(logs: Tensor) -> float:
    return float(torch.logsumexp(logs, 0)) - math.log(len(logs))


# ---------------------------------------------------------------------------------------------------- the set


def sides_of(problem: Problem) -> Sides | None:
    """The inequalities as rows of the latent; None if there are none, or they are not flat, or too many."""
    name = "identity" if problem.identity else id(problem.decoder)
    return problem.constraint._once(("sides", problem.latent, problem.like.device, name), lambda: _sides(problem))


def _sides(problem: Problem) -> Sides | None:
    solid, event = _solid(problem), decoded_event(problem)
    rows = None if solid is None else solid.linear(event)
    if rows is None or not problem.decoder.linear or not 0 < rows.rows_and_bounds <= MOST_WALLS:
        return None
    matrix, low, high = (part.to(problem.like.device) for part in rows.written_out())
    if not problem.identity:
        origin = problem.like.new_zeros((len(matrix), *problem.latent))
        at_zero = problem.decode(origin[:1]).flatten(1).to(torch.float64) @ matrix.T  # zero unless A is affine
        matrix = problem.decoder.vjp(origin)(matrix.to(origin).reshape(len(matrix), *event)).flatten(1)
        matrix, low, high = matrix.to(torch.float64), low - at_zero, high - at_zero
    size = torch.linalg.vector_norm(matrix, dim=1)
    return Sides(matrix / size[:, None], low / size, high / size)


def _solid(problem: Problem) -> Constraint | None:
    """The part of the set that is inequalities."""
    return geometry.parts(problem.constraint, decoded_event(problem)).solid


def _log_factor(problem: Problem, rounding: float, x: Tensor) -> Tensor:
    """t(x) inside the inequalities, minus infinity outside, (n,)."""
    solid, term, point = _solid(problem), problem.target.log_weight, _latent(problem, x)
    found = x.new_zeros(len(x)) if term is None else term(point).to(x)
    if solid is None:
        return found
    return torch.where(solid.violation(problem.decode(point)).to(x) <= rounding, found, -math.inf)


def _latent(problem: Problem, x: Tensor) -> Tensor:
    """Points (n, d) as those of the run, (n, *latent)."""
    return x.reshape(-1, *problem.latent).to(problem.like)


def _into(problem: Problem, x: Tensor) -> Tensor:
    """x moved into the set, by the shortest way in decoded space."""
    if problem.constraint.solid and problem.identity and not bool((problem.constraint.violation(x) > 0).any()):
        return x
    decoded = problem.decode(x)
    return x + lift(problem, (problem.nearest(decoded, decoded) - decoded).to(x.dtype)) if onto(problem) else x
