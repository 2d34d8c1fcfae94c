"""Independent chains of a diffusion or flow model on a set: Matheron's rule at every noise level.

With noisy points x = x0 + s w, D(x) = E[x0 | x] and S = Cov[x0 | x] = s^2 dD/dx, one level is

    clean = D(x) + e                                      e: the error f - D(f + s w) of a free sample f, random sign;
                                                          none at the last level of a network that is not exact
    x0    = clean + S A^T (A S A^T)^-1 (b - A clean)      Matheron: clean ~ N(D, S)  ->  x0 ~ N(D, S) given A x0 = b
    x'    = x0 + s' w                                     high levels: what was wrong is forgotten
    x'    = k x + (1 - k) x0 + s' (1 - k)^(1/2) w,  k = (s' / s)^2       low levels: the reverse process, given x0
    x'    = x + x0 - D(x)                                 the last level again, of a network that is not exact

If x follows p_s(. | C) and x0 follows p(x0 | x, C), x' follows p_s'(. | C) for any s'. So all error is in the draw
of x0: the posterior counts as Gaussian with the covariance of the network itself. S is never formed. S a is a
difference of the network, s^2 (D(x + t a) - D(x)) / t, and what is needed are the products with the rows of A:

    "shared"   at a few chains' own points, their mean for all chains:     max(1, m / n) evaluations a level
    "own"      at every chain's own point:                                 m evaluations
    "cg"       conjugate gradients for (A S A^T) u = b - A clean:          ``iterations`` evaluations, any m

Separate modes are found and weighed before the first level (``affine_modes.py``). Given curved equations, inequalities
or a soft term x0 is drawn from N(D, S) restricted to them (``restricted.py``), S G^T found in the first two ways.

A Euclidean projection in place of this moves every error along the rows, whatever the model knows about them. On a
mixture of heat fields with 32 equations its mean is off by 600 times the error of exact draws, here by 0.8 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.devices import seen
from casal.errors import SettingError
from casal.methods import affine_modes
from casal.methods.affine_modes import STEP
from casal.methods.base import Each, Method, Together, free_step, gaussian, no_step, table_rows
from casal.methods.baselines import noise_levels, points
from casal.methods.coupling import has_edge
from casal.methods.curved_draw import MEASURES, Drawn
from casal.methods.equations import Equations, equations_of
from casal.methods.moves import finest_level
from casal.methods.problem import Problem
from casal.methods.restricted import Gauss, Region, draws_inside

FIRST = 4.0
"""The first level, in units of the largest standard deviation of the model in any direction (``spread``). There
p_s(. | C) is nearly p_s: noise of 4 sd leaves 6 % of what is known of that direction."""

ENDS = 4
"""Times that the last level is taken again for a network that is not exact, its noise kept: chains are moved until the
estimate, with which they end, meets the equations itself. What S A^T and the last projection add to it is no sample of
the model. On networks of heat and Burgers fields it then misses a twentieth to a thirtieth of what it missed."""

BRIDGE = 0.15
"""In the same units, where full noise ends. Full noise to the end makes samples of trained networks too smooth."""

LASTS = 0.2
"""In the same units, the level below which errors of the draws on curved equations last: a draw at s forgets what was
wrong before it by a factor v / (v + s^2) along a direction of variance v, which is .04 at the first of full noise."""

POOL = 1024
"""Free samples whose errors are drawn from, at most."""

OWN_LINEAR, OWN_CURVED, SHARED = 2, 8, 6
"""Linear equations, and curved ones or linear ones with values of each chain, up to which every chain has its own gain;
and linear ones in units of n up to which it is shared: above, conjugate gradients take fewer evaluations. With 128
known values of 16,384 and 32 chains these have a mean error of 7.6 times that of exact draws, the shared gain one of
.9. Chains with values of their own are at places whose S differs."""

MET = 0.01
"""Share of the gap at which conjugate gradients end. At low levels S is nearly a multiple of the identity, and one or
two iterations do. With 512 known values of 16,384 and 8 iterations that saves 65 of 363 evaluations, at a squared
error of the mean of 1.45 times that of exact draws instead of 1.43; 30 iterations and .001 have 1.28, for 457."""

REPEATS = 3
"""Times that the first level is taken again where the table ends below it."""

FEWEST_FREE = 16
"""Free samples from which on modes are looked for: each needs three."""

WEIGHED = 2
"""Equations, in units of n, up to which modes are weighed: their evidence takes some 10 evaluations a mode and
equation, for all chains together."""

NEXT = 0.9
"""The level after the start in a mode, over that of the start, at most."""

CALIBRATED, SURE = 0.8, 4.0
"""Slope of the noise that was added to free samples on the noise that the network predicts, below which a level is the
last, and how many standard errors the test of it takes. On Gaussian models with a rough error of .03 and .06 the slope
at the last level .02 is .01, and narrow directions have 1.7 and 2.6 times their variance; at the finest level with a
slope of .8, 1.05."""

FEW = 8
"""Chains below which their spread says too little."""

MOST = 0.9
"""S over s^2, where it is read, at most: it is below 1, but errors of few free samples may not be."""

RARE = 3.09
"""Standard normal quantile of .999."""

SYMMETRIC = 0.05
"""Asymmetry of the derivative up to which a network counts as exact: mixtures had at most .005 by differences, trained
networks .12 to .21, half way (in ratios) from the last level to the first."""

GAINS = ("auto", "shared", "own", "cg")


Done: TypeAlias = tuple["MatheronState", "Control", Mapping[str, float]]


class MatheronState(NamedTuple):
    """Independent chains.

    Attributes:
        x: The noisy point.
        free: f, a sample of the model without the set.
        error: f - D(f + s w).
        clean: D(x) + e, then x0.
        estimate: D(x).
        probe: Points at which the network is asked for the shared gain, then its answers; or S G^T: (n, r, *latent).
        kind: Mode or condition of the chain, (n,).
        home: That of the free sample, (n,).
        kept: x0 of the level before.
        tilt: The soft term of ``clean``, (n,): a store takes a step again to see whether the term is another.
        slack: s w.(y - D) - CALIBRATED |y - D|^2 of the noisy free sample y = f + s w, (n,).
    """

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
    slack: Tensor


class Control(NamedTuple):
    """What all chains share.

    Attributes:
        gain: How S A^T is found.
        levels: The levels; empty before the free samples are known.
        bridge: The level up to which the reverse process is used.
        asked: Chains at whose points the shared gain of this level is taken.
        modes: Modes that were found; 0 where the network's affine models do not agree, None where none were looked for.
        exact: Whether the derivative of the network is symmetric, as a covariance is.
    """

    gain: str
    sigmas: tuple[float, ...] = ()
    bridge: float = 0.0
    asked: tuple[int, ...] = ()
    modes: int | None = None
    exact: bool = True

    def ends(self, row: LevelRow) -> bool:
        """Whether chains end at this level with D(x), as the sampler of a network that is not exact does."""
        return not self.exact and self.sigmas[-1:] == (row.s,)


class NearErrors(NamedTuple):
    """Errors e of free samples (k, d) float64, and the numbers of those that are near each chain (n, near)."""

    every: Tensor
    close: Tensor

    def draw(self, generator: torch.Generator) -> Tensor:
        """One for each chain, with a random sign, (n, d)."""
        n, device = len(self.close), self.close.device
        drawn = torch.randint(self.close.shape[1], (n, 1), generator=generator, device=device)
        sign = 2.0 * torch.randint(2, (n, 1), generator=generator, device=device).to(torch.float64) - 1.0
        return sign * self.every[self.close.gather(1, drawn)[:, 0]]

    def least(self, rows: Tensor) -> Tensor:
        """Lower bound of G S G^T for rows G of the chains (1 or n, m, d): (n, m, m).

        The mean of k squares of errors along a direction is S times chi^2 / k, which is above its quantile RARE once in
        a thousand times (Wilson and Hilferty's formula). An exact network is not below the bound; a trained one, whose
        derivative is rough, may say anything.
        """
        along = (rows @ self.every.T).expand(len(self.close), -1, -1)  # (n, m, k)
        near = along.gather(2, self.close[:, None].expand(-1, along.shape[1], -1))
        k = near.shape[2]
        return near @ near.mT / k / (1.0 - 2.0 / (9.0 * k) + RARE * math.sqrt(2.0 / (9.0 * k))) ** 3


class LevelRow(NamedTuple):
    """A level s, the one before (None for the first), whether chains keep some noise on the way, and the last level."""

    s: float
    before: float | None
    kept: bool
    last: bool


@dataclass(frozen=True)
class Matheron(Method[Any]):
    """Samples a diffusion or flow model on a set: independent chains, Matheron's rule at every noise level.

    See the formulas at the top of ``methods/matheron.py``. Chains are independent but for the gain and the errors that
    they share: nothing is resampled, and every chain may have its own value or set (``casal.PerChain``) and condition.
    The run takes the rows of the model's table for n free samples, then ``levels`` levels from 4 times the largest
    standard deviation that the network has, given a chain's condition (``spread``), down to the last level of the
    table, or to the first one at which the network's score is mostly error (``CALIBRATED``); at the end the Euclidean
    projection, which moves the samples by less than the last level. A level takes

    - given m linear equations and n chains 2 evaluations a chain and those of the gain: 1 for m <= n, m / n above; 30
      levels of 16 equations and 64 chains 90 in all, after the free samples;
    - the same with m counting flat inequalities (bounds, half-spaces, polytopes). No sample is moved onto a bound;
    - given curved equations one more for each; inequalities and a soft term then accept the draws or not;
    - given a soft term (``casal.tilted``) or inequalities that are not flat 2, 3 with linear equations. Take three
      times as many levels: what all chains share, the errors of the free samples, then averages out.

    Measured error on exact networks that no setting was tuned on (docs/methods_in_depth.md), 64 chains, 115 to 165
    evaluations, 576 and 1024 dimensions, 2 to 8 modes, 4 to 63 linear equations: squared error of the mean .3 to 1.3
    times that of exact draws, variance inside a mode .92 to 1.07 of the exact one (standard error .03), no chain in a
    mode of probability below .001, mode weights as good as those of exact draws. Inside sets: error over floor .9 to
    1.4 on ten problems of the benchmark. So the distribution is promised if the run has found the modes of the model to
    be Gaussian, and on curved equations one mode. It is not where inequalities act through the last projection alone:
    with ``flows=0``, behind decoders that do not reach every point, and for those that are not flat where each chain
    has its own. For a network that is not exact it is promised on linear equations alone, where a check objects if it
    is wrong (``diagnostics/renoised.py``). Memory: some 30 n d numbers, of which the search for modes has 18, and m d;
    nothing is d x d.

    Args:
        levels: Noise levels.
        gain: "shared", "own", "cg", or "auto": own for at most 2 equations, or 8 that are curved or have values of each
            chain, shared up to 6 n linear ones, else cg.
        iterations: Conjugate gradients of a level, where they are used, at most: they end at 1 % of the gap.
        near: An error is drawn from those of the ``near`` free samples whose estimates are nearest.
        floor: Eigenvalues of A S A^T below this share of the largest are raised to it. None: below the norm of its
            antisymmetric part, which is zero for an exact network: smaller ones are noise. And where every chain has
            its own gain, below what the errors of free samples along the rows show at least (``NearErrors``).
        modes: Whether separate modes are looked for, and weighed by the set (``methods/affine_modes.py``): 27
            evaluations a chain, and about 20 more where there are some. For one condition, a network whose derivative
            is symmetric, and but for linear equations for one set.
        measure: On curved equations: "surface", or "co-area" for the model given the value of h.
        candidates: On curved equations: lines of which x0 is drawn by their weights. Where x0 given x covers a whole
            circle, 12 leave an error of .04 in E cos^2 (.63), 50 one of .02; on sets that are nearly flat 4 do. Where
            few lines meet the set the verdict says so.
        flows: Orbits between flat walls at a level; 0: inequalities act through the last projection alone.
        slices: Elliptical slices of a level.

    References:
        Journel and Huijbregts (1978), Mining Geostatistics, ch. VII (conditioning by kriging).

    >>> import casal, torch
    >>> C = torch.tensor([4.0, 1.0, 0.25])  # a Gaussian with these variances, as a diffusion model
    >>> model = casal.edm(lambda x, sigma: x * C / (C + sigma**2), casal.karras_sigmas(20), shape=3)
    >>> result = casal.sample(model, casal.Affine(torch.ones(1, 3), torch.ones(1)), casal.Matheron(), 64)
    >>> float((result.samples.sum(1) - 1.0).abs().max()) < 1e-12
    True
    """

    levels: int = 30
    gain: str = "auto"
    iterations: int = 8
    near: int = 16
    floor: float | None = None
    modes: bool = True
    measure: str = "surface"
    candidates: int = 36
    flows: int = 2
    slices: int = 10

    name: ClassVar[str] = "Matheron"
    promises_distribution: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    tilts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("levels", "iterations", "near", "candidates", "slices"):
            whole_number(getattr(self, name), name, 1)
        whole_number(self.flows, "flows", 0)
        one_of(self.gain, "gain", GAINS)
        one_of(self.measure, "measure", MEASURES)
        if self.floor is not None and not 0.0 <= self.floor < 1.0:
            raise SettingError(f"floor = {self.floor:g} is a share of the largest eigenvalue: from 0 to below 1")

    # ------------------------------------------------------------------------------------------------ the stages

    def control(self, problem: Problem, n: int) -> Control:
        finest_level(problem)
        region, apart = self._region(problem), bool(problem.target.condition)
        found = region.found
        if problem.target.log_weight is not None and not region.inside:
            raise SettingError(
                "a soft term needs chains of known conditions, inequalities that all chains share, and with these a "
                "decoder that reaches every point; leave one out"
            )
        if self.gain == "shared" and apart:
            raise SettingError("gain='shared' needs chains of one condition; use gain='cg' or gain='own'")
        bent, flat, gain = len(found.curved), len(found.matrix), self.gain
        if bent > OWN_CURVED:
            raise SettingError(
                f"{bent} curved equations: every one takes an evaluation a chain and level, so at most {OWN_CURVED} "
                "are taken; use SplitGibbs, which needs a projection alone"
            )
        if region.inside and not bent:
            return Control("shared" if len(region.rows) else "none")
        if gain == "auto":
            few = OWN_CURVED if bent or apart or len(found.level) > 1 else OWN_LINEAR
            shares = bent or (not apart and flat <= SHARED * n)
            gain = "own" if found.count <= few or (apart and bent) else "shared" if shares else "cg"
        if bent and gain != "own":
            gain = "own" if apart or not flat else "shared"
        return Control(gain if found.count else "none")

    def equations(self, problem: Problem) -> Equations | None:
        """The equations of the set, if it takes them; else None."""
        try:
            self.control(problem, 1)
        except SettingError:
            return None
        return equations_of(problem)

    def evaluations(self, problem: Problem, n: int) -> int:
        """Evaluations of a chain, about: with those that weigh two modes, if they are looked for."""
        region, control = self._region(problem), self.control(problem, n)
        rows, bent = len(region.rows), len(region.found.curved)
        gain = {"own": rows, "shared": max(1, -(-rows // n)), "cg": min(self.iterations, rows)}.get(control.gain, 0)
        looks = 0
        if self._looks(region, n):
            drawn = bool(bent) or region.inside
            looks = 3 * affine_modes.LEVELS + 20 * rows // n + drawn * affine_modes.LANCZOS
        return len(problem.table) + self.levels * (2 + gain + bent) + looks

    def steps(self, problem: Problem, control: Control) -> int:
        return len(problem.table) + 2 * self.levels

    def next(self, problem: Problem, control: Control, stage: int) -> Each | Together | None:
        if stage < 2:
            return Each(table_rows(problem), free_step) if stage == 0 else Together(self.begin)
        level, phase = divmod(stage - 2, 4)
        if level >= len(control.sigmas):
            left = 2 * (self.levels - level)
            return Each([()] * left, no_step) if phase == 0 and left else None
        s = control.sigmas[level]
        before = control.sigmas[level - 1] if level else None
        kept, last = before is not None and before <= control.bridge, level + 1 == len(control.sigmas)
        row = LevelRow(s, before, kept, last)
        if phase % 2:
            return Together(partial(self.choose if phase == 1 else self.move, row))
        if phase == 0:
            return Each([row], self.look, _two)
        return Each([row], partial(self.ask, control.gain, equations_of(problem)))

    def promises(self, problem: Problem, control: Control) -> bool:
        """All of the set is in the draw of x0, and what the draw takes for granted was found by the run or is checked:

        - of an exact network that its modes are Gaussian, and on curved equations that there is one: with several, a
          mode of which 256 free samples show less than five may be lost;
        - of another one nothing, but samples on equations are flat enough for the check of ``renoised.py``.
        """
        region, edge = self._region(problem), has_edge(problem)
        flat, whole = not region.found.curved, region.inside or not edge
        if not control.exact:
            return flat and not edge and region.found.count > 0
        return whole and (control.modes == 1 or (flat and bool(control.modes)))

    def _region(self, problem: Problem) -> Region:
        how = self.floor, self.flows, self.slices, self.measure, self.candidates
        return Region(problem, self.flows > 0 and draws_inside(problem), *how)

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Any:
        return points(problem, x)

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(problem.decode(getattr(state, "clean", state.x)))

    def advice(self, state: Any, row: Any) -> str:
        level = f" (sigma = {row.s:.3g})" if isinstance(row, LevelRow) else ""
        return f"with these settings{level}; use floor=0.02, or more levels"

    # ------------------------------------------------------------------------------------------------ the levels

    def begin(self, problem: Problem, state: Any, control: Control, generator: torch.Generator) -> Done:
        """Place the levels, look for modes, and add the noise of the first level to the free samples."""
        free, (alpha, sigma), labels = state.x, noise_levels(problem.table), problem.target.groups
        known = sigma / alpha
        top = spread(problem, free, float(known.max()), generator)
        first, last = min(FIRST * top, float(known.max())), float(known.min())
        again = min(self.levels - 1, REPEATS) if first < FIRST * top else 0
        uneven = asymmetry(problem, free, top, generator)
        control = control._replace(exact=uneven <= SYMMETRIC)
        ends = min(self.levels - again - 1, ENDS) if self._again(problem, control) else 0
        first = max(first, last)
        ramp = torch.linspace(first ** (1 / 7), last ** (1 / 7), self.levels - again - ends, dtype=torch.float64) ** 7
        sigmas = (first,) * again + tuple(ramp.tolist())
        record = {"first level": first, "last level": last, "asymmetry": uneven}
        kind = (
            torch.zeros(len(free), dtype=torch.long, device=free.device) if labels is None else labels.to(free.device)
        )
        x, home, region = free, kind, self._region(problem)
        if control.exact and self._looks(region, len(free)):
            begun = affine_modes.begin(
                partial(denoised_rows, problem), as_rows(free), region.mode_rows, partial(region.mode, generator), top,
                float(known.max()), POOL, generator,
            )  # fmt: skip
            control = control._replace(modes=0 if begun is None else len(begun.weights))
            if begun is not None and len(begun.weights) > 1:
                x, kind, home = begun.x.reshape(free.shape).to(free), begun.mode, begun.label
                sigmas = (begun.level, *(s for s in sigmas if s < NEXT * begun.level))
                record |= {"modes": float(len(begun.weights)), "mode_error": begun.error, "first level": begun.level}
        clean = region.into(x) if region.inside else x
        if region.found.curved:
            h = region.found.functions(problem, free)
            record |= {"apart": float((h.mean(0).abs() / h.std(0).clamp_min(1e-300)).max()) if len(h) > 1 else 0.0}
        x = x + sigmas[0] * gaussian(problem, len(free), generator)
        probe, tilt = free[:, None][:, :0], free.flatten(1)[:, 0]
        state = MatheronState(x, free, free, clean, free, probe, kind, home, clean, tilt, tilt)
        return state, control._replace(sigmas=sigmas, bridge=BRIDGE * top), record

    def _again(self, problem: Problem, control: Control) -> bool:
        """Whether the last level is taken again: for a network that is not exact, on equations."""
        return not control.exact and control.gain != "none" and not self._region(problem).inside

    def _looks(self, region: Region, n: int) -> bool:
        """Whether modes are looked for: among enough free samples of one condition, for sets with known integrals.

        These are few linear equations; and with curved equations, or with all else, one set for all chains.
        """
        if not self.modes or n < FEWEST_FREE or region.problem.target.condition:
            return False
        bent = bool(region.found.curved)
        if not bent and not region.inside:
            return 0 < region.found.count <= WEIGHED * n
        return (
            region.problem.chains is None and not (bent and has_edge(region.problem)) and not (bent and region.inside)
        )

    def look(self, problem: Problem, state: MatheronState, row: LevelRow, noise: Tensor) -> MatheronState:
        """The noise of the level; D(x), and the error of a free sample at the same level."""
        x, noise, other = state.x, noise[:, 0], noise[:, 1]
        if row.before is not None:
            kept = (row.s / row.before) ** 2 if row.kept else 0.0
            again = state.clean - state.estimate if kept == 1.0 else 0.0
            x = kept * x + (1.0 - kept) * state.clean + row.s * math.sqrt(1.0 - kept) * noise + again
        estimate = problem.denoise(x, row.s)
        error = state.free - problem.denoise(state.free + row.s * other, row.s)
        removed = (row.s * other + error).flatten(1)
        slack = ((row.s * other).flatten(1) - CALIBRATED * removed) * removed
        return state._replace(x=x, estimate=estimate, error=error, slack=slack.sum(1))

    def choose(
        self, row: LevelRow, problem: Problem, state: MatheronState, control: Control, generator: torch.Generator
    ) -> Done:
        """clean = D(x) + e, e from a free sample whose estimate is like D(x); and what the network is asked next.

        Without e at the last level of a network that is not exact (``asymmetry``): its own sampler ends with D(x).
        Where draws go on from x0 of the level before, ``move`` draws e. A level at which the network's score is mostly
        error is the last.
        """
        region, record = self._region(problem), {"sigma": row.s}
        found, rows, n, device = region.found, region.rows, len(state.x), state.x.device
        state = state._replace(kept=state.clean)
        early = row.kept and n >= FEWEST_FREE
        early = early and bool(state.slack.mean() + SURE * state.slack.std() / math.sqrt(n) < 0.0)
        repeated = row.kept and row.s == row.before
        if (early or row.last) and not repeated:
            sigmas = tuple(s for s in control.sigmas if s >= row.s)
            ends = min(ENDS, self.levels - len(sigmas)) if self._again(problem, control) else 0
            control = control._replace(sigmas=sigmas + (row.s,) * ends)
        if found.curved or not region.inside:
            e = self._errors(state, control, generator).draw(generator)
            state = state._replace(clean=state.estimate + _like(e * (not control.ends(row)), state.x))
        bent, count = len(found.curved), len(rows)
        if control.gain != "shared":
            room = found.count if control.gain == "own" else 0
            return state._replace(probe=torch.stack([state.x] * room, 1) if room else state.probe), control, record
        away = STEP * row.s * rows.to(state.x).reshape(1, count, *problem.latent)
        if problem.target.condition:  # the network answers each chain under its own condition
            return state._replace(probe=state.x[:, None] + away), control, record
        order = torch.randperm(n, generator=generator, device=device)
        asked = list[Tensor]()
        for kind in state.kind.unique().tolist():
            mine = order[state.kind[order] == kind]
            asked.append(mine[: max(1, len(mine) // count)])
        chains = torch.cat(asked)
        probe = (state.x[chains][:, None] + away).flatten(0, 1)
        columns = -(-len(probe) // n)
        filler = state.x[torch.arange(columns * n - len(probe), device=device) % n]
        probe = (
            torch.cat([probe, filler, *[state.x] * bent]).reshape(columns + bent, n, *problem.latent).transpose(0, 1)
        )
        return state._replace(probe=probe), control._replace(asked=tuple(chains.tolist())), record

    def _errors(self, state: MatheronState, control: Control, generator: torch.Generator) -> NearErrors:
        """For every chain the errors of free samples of the same kind: draws of N(0, S).

        In modes that were found to be Gaussian S is the same everywhere, and all of them serve; else those with near
        estimates.
        """
        n, device = len(state.x), state.x.device
        pool = torch.randperm(n, generator=generator, device=device)[:POOL]
        other, near = state.kind[:, None] != state.home[pool], min(self.near, len(pool))
        if control.modes:
            distance, near = other.to(state.x), max(near, int((~other).sum(1).min()))
        else:
            distance = torch.cdist(state.estimate.flatten(1), (state.free - state.error)[pool].flatten(1))
            distance = distance + 1e3 * distance.max() * other
        return NearErrors(as_rows(state.error[pool]), distance.topk(near, largest=False).indices)

    def ask(
        self, gain: str, equations: Equations, problem: Problem, state: MatheronState, row: LevelRow, noise: Tensor
    ) -> MatheronState:
        """The network at the points of the shared gain; or S G^T of every chain; or all of Matheron by iterations."""
        found = equations.take(problem.first, len(state.x))
        if problem.target.log_weight is not None:
            state = state._replace(tilt=problem.target.log_weight(state.clean).to(state.tilt))
        if gain == "shared":
            asked = state.probe[:, : state.probe.shape[1] - len(found.curved)].unbind(1)
            answers = [problem.denoise(at.contiguous(), row.s) for at in asked]
            slopes = found.bent(problem, state.clean)[0].unbind(1) if found.curved else ()
            bent = [self._product(problem, state, row.s, part) for part in slopes]
            return state._replace(probe=torch.stack([*answers, *(_like(part, state.x) for part in bent)], 1))
        if gain == "own":
            rows = found.linear(problem, state.clean)[0].expand(len(state.x), -1, -1)
            parts = [self._product(problem, state, row.s, part) for part in rows.unbind(1)]
            return state._replace(probe=torch.stack([_like(part, state.x) for part in parts], 1))
        return state._replace(clean=self._conjugate(problem, state, found, row.s)) if gain == "cg" else state

    def move(
        self, row: LevelRow, problem: Problem, state: MatheronState, control: Control, generator: torch.Generator
    ) -> Done:
        """x0: Matheron's rule with one gain for all chains of a kind, or with that of every chain; or ``Region``."""
        region, clean, record = self._region(problem), as_rows(state.clean), dict[str, float]()
        if region.inside and not region.found.curved:
            errors, mean, kept = self._errors(state, control, generator), as_rows(state.estimate), as_rows(state.kept)
            clean = torch.empty_like(mean)
            for mine, across in self._shared(row.s, len(region.rows), state, control, state.probe.flatten(2)):
                some = errors._replace(close=errors.close[mine])
                gauss = Gauss(mean[mine], partial(some.draw, generator), across)
                clean[mine] = region.draw(gauss, mine, kept[mine], self.flows, generator)
            clean = as_rows(region.into(_like(clean, state.x)))
        elif control.gain in ("own", "shared"):
            propose = self._proposal(row, region, state, control, generator)
            clean, lines = region.accepted(propose, as_rows(state.kept), generator)
            if region.found.curved and row.s < LASTS / BRIDGE * control.bridge:
                record["lines"] = float(lines.median())
        state = state._replace(clean=_like(clean, state.x), probe=state.probe[:, :0])
        return state._replace(x=state.clean) if row.last else state, control, record

    def _proposal(
        self, row: LevelRow, region: Region, state: MatheronState, control: Control, generator: torch.Generator
    ) -> Callable[[], Drawn]:
        """x0 given the equations, anew at each call where they are curved."""
        found, probe, clean = region.found, state.probe.flatten(2), as_rows(state.clean)
        A, flat = found.matrix, probe.shape[1] - len(found.curved)
        errors = self._errors(state, control, generator) if control.gain == "own" or found.curved else None
        pull = partial(_pulled, self._gains(row.s, found, state, control, probe[:, :flat], errors))
        if not found.curved or errors is None:
            return lambda: Drawn(clean + pull(clean, found.gap(clean)), clean[:, 0])

        def draw() -> Tensor:
            e = errors.draw(generator) * (not control.ends(row))
            return e - pull(e, e @ A.T)

        centre = as_rows(state.estimate)
        centre, slopes = centre + pull(centre, found.gap(centre)), found.bent(region.problem, state.clean)[0]
        across = [part - pull(part, part @ A.T) for part in probe[:, flat:].to(torch.float64).unbind(1)]
        lines = self._filled(slopes, torch.stack(across, 1), errors)[0]
        return partial(region.on_curved, Gauss(centre, draw, lines), slopes, generator)

    # ------------------------------------------------------------------------------------------------ the gain

    def _gains(
        self,
        s: float,
        found: Equations,
        state: MatheronState,
        control: Control,
        answers: Tensor,
        errors: NearErrors | None,
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Chains, S A^T as rows and (A S A^T)^-1: one of each for every kind of chains, or for every chain."""
        A = found.matrix
        if control.gain == "own" and errors is not None:
            every = torch.arange(len(answers), device=answers.device)
            return [(every, *self._filled(A, answers.to(torch.float64), errors))] if len(A) else []
        shared = self._shared(s, len(A), state, control, answers)
        inverse = partial(affine_modes.solve, right=torch.eye(len(A)).to(A), floor=self.floor)
        return [(mine, across, inverse(across @ A.T)) for mine, across in shared]

    def _shared(
        self, s: float, count: int, state: MatheronState, control: Control, answers: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Chains of every kind, and S R^T for them as rows (count, d): its mean over the chains that were asked."""
        seen, asked = answers, torch.arange(len(answers), device=answers.device)
        if control.asked:
            asked = torch.tensor(control.asked, device=answers.device)
            seen = answers.transpose(0, 1).flatten(0, 1)[: len(asked) * count].reshape(len(asked), count, -1)
        rise = seen - state.estimate[asked].flatten(1)[:, None]
        for kind in state.kind.unique().tolist():
            across = rise[state.kind[asked] == kind].mean(0).to(torch.float64) * (s / STEP)
            yield torch.nonzero(state.kind == kind).flatten(), across

    def _filled(self, rows: Tensor, across: Tensor, errors: NearErrors) -> tuple[Tensor, Tensor]:
        """S' G^T as rows and (G S' G^T)^-1 for rows G and S G^T of every chain, S' = S + G^T R G.

        R raises the eigenvalues of G S G^T to what the errors of the network along the rows show at least.
        """
        gram = rows @ across.mT
        values, vectors = affine_modes.raised(gram, self.floor, errors.least(rows))
        more = (vectors * values[..., None, :]) @ vectors.mT - (gram + gram.mT) / 2
        return across + more @ rows, (vectors / values[..., None, :]) @ vectors.mT

    def _product(self, problem: Problem, state: MatheronState, s: float, v: Tensor) -> Tensor:
        """S v for every chain, v (n, d) float64, by one evaluation."""
        size = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-300)
        away = _like(as_rows(state.x) + STEP * s * v / size, state.x)
        rise = (problem.denoise(away, s) - state.estimate).flatten(1).to(torch.float64)
        return rise * (s / STEP) * size

    def _conjugate(self, problem: Problem, state: MatheronState, found: Equations, s: float) -> Tensor:
        """x0 = clean + S A^T u, A S A^T u = gap in the space of gap, A S A^T gap, (A S A^T)^2 gap ..., for every chain.

        There A S A^T is a small matrix, of which eigenvalues below its antisymmetric part are raised as everywhere. It
        ends where all chains miss less than MET of the gap.
        """
        gap = found.gap(state.clean)  # curved equations have other gains: see ``control``
        size = torch.linalg.vector_norm(gap, dim=1, keepdim=True).clamp_min(1e-300)
        basis, images, products = [gap / size], list[Tensor](), list[Tensor]()
        for _ in range(min(self.iterations, found.count)):
            products.append(self._product(problem, state, s, found.back(basis[-1])))
            images.append(found.times(products[-1]))
            Q, image = torch.stack(basis, 1), torch.stack(images, 1)
            values, vectors = affine_modes.raised(Q @ image.mT, self.floor)
            u = size[:, :, None] * (vectors / values[:, None]) @ vectors[:, :1].mT
            missed = torch.linalg.vector_norm(gap - (u.mT @ image)[:, 0], dim=1, keepdim=True) / size
            if not seen((missed > MET).any()):
                break
            q = images[-1]
            for _ in range(2):
                q = q - ((q[:, None] @ Q.mT) @ Q)[:, 0]
            basis.append(q / torch.linalg.vector_norm(q, dim=1, keepdim=True).clamp_min(1e-300))
        return _like(as_rows(state.clean) + (u.mT @ torch.stack(products, 1))[:, 0], state.x)


def _two(problem: Problem, n: int, generator: torch.Generator, out: Tensor | None = None) -> Tensor:
    """Standard normal numbers for a chain and its free sample, (n, 2, *latent)."""
    return gaussian(problem, 2 * n, generator).reshape(n, 2, *problem.latent)


def as_rows(x: Tensor) -> Tensor:
    """(n, d) float64."""
    return x.flatten(1).to(torch.float64)


def _like(part: Tensor, x: Tensor) -> Tensor:
    """In the shape and dtype of x."""
    return part.reshape(x.shape).to(x)


def _pulled(parts: list[tuple[Tensor, Tensor, Tensor]], like: Tensor, gap: Tensor) -> Tensor:
    """S A^T (A S A^T)^-1 gap, shaped like (n, d), gap (n, m), for the gains of some chains each."""
    shift = torch.zeros_like(like)
    for mine, across, inverse in parts:
        shift[mine] = (gap[mine][:, None] @ inverse @ across)[:, 0]
    return shift


def denoised_rows(problem: Problem, x: Tensor, s: float) -> Tensor:
    """The denoiser at any number of points (k, d)."""
    return as_rows(problem.denoise_all(x.reshape(-1, *problem.latent).to(problem.like), s))


def spread(problem: Problem, free: Tensor, level: float, generator: torch.Generator) -> float:
    """Largest standard deviation in any direction of what a chain may sample, given its own condition.

    That of the free samples, if all have one condition. Else what the network itself says, if that is less: errors
    e = f - D(f + s w) of free samples have the covariance S, and along the widest direction of a Gaussian
    S = v s^2 / (v + s^2), so v = S s^2 / (s^2 - S). At levels far above v a trained network is rough, so v is looked at
    again at the first level that follows from it, until that no longer falls.
    """
    total = _widest(free - free.mean(0)) * math.sqrt(len(free) / max(1, len(free) - 1))
    if len(free) >= FEW and not problem.target.condition:
        return total
    found = total if len(free) >= FEW else math.inf
    level = min(level, FIRST * found)
    while True:
        noisy = free + level * gaussian(problem, len(free), generator)
        size = _widest(free - problem.denoise_all(noisy, level)) / level
        found = min(found, level * size / math.sqrt(1.0 - min(size**2, MOST)))
        if not FIRST * found < NEXT * level:
            return found
        level = FIRST * found


def asymmetry(problem: Problem, free: Tensor, top: float, generator: torch.Generator) -> float:
    """Size of u.Jv - v.Ju over that of u.Jv + v.Ju, J the derivative of the denoiser at noisy samples, random u and v.

    By differences of the network, half way (in ratios) from its last level to ``top``. Zero for an exact one, whose
    s^2 J is a covariance.
    """
    alpha, sigma = noise_levels(problem.table)
    s = math.sqrt(float((sigma / alpha).min()) * top)
    y = free + s * gaussian(problem, len(free), generator)
    clean, (u, v) = problem.denoise_all(y, s), (gaussian(problem, len(free), generator) for _ in range(2))
    size = STEP * s / math.sqrt(free[0].numel())
    rise = [as_rows(problem.denoise_all(y + size * t, s) - clean) for t in (u, v)]
    one, two = ((as_rows(a) * part).sum(1) for a, part in zip((v, u), rise, strict=True))
    return float((one - two).norm() / (one + two).norm().clamp_min(1e-300))


def _widest(points: Tensor) -> float:
    """Largest root mean square of points in any direction."""
    flat = as_rows(points)[:POOL]
    gram = flat @ flat.T if len(flat) <= flat.shape[1] else flat.T @ flat
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[-1])) / len(flat))
