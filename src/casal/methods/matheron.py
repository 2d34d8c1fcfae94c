"""Independent chains of a diffusion or flow model on equations: Matheron's rule at every noise level.

With noisy points x = x0 + s w, D(x) = E[x0 | x] and S = Cov[x0 | x] = s^2 dD/dx, one level is

    clean = D(x) + e                                      e: the error f - D(f + s w) of a free sample f, random sign
    x0    = clean + S A^T (A S A^T)^-1 (b - A clean)      Matheron: clean ~ N(D, S)  ->  x0 ~ N(D, S) given A x0 = b
    x'    = x0 + s' w                                     high levels: what was wrong is forgotten
    x'    = k x + (1 - k) x0 + s' (1 - k)^(1/2) w,  k = (s' / s)^2       low levels: the reverse process, given x0

If x follows p_s(. | C) and x0 follows p(x0 | x, C), x' follows p_s'(. | C) for any s'. So all error is in the draw
of x0: the posterior counts as Gaussian with the covariance of the network itself. S is never formed. S a is a
difference of the network, s^2 (D(x + t a) - D(x)) / t, and what is needed are the products with the rows of A:

    "shared"   at a few chains' own points, their mean for all chains:     max(1, m / n) evaluations a level
    "own"      at every chain's own point:                                 m evaluations
    "cg"       conjugate gradients for (A S A^T) u = b - A clean:          ``iterations`` evaluations, any m

A Euclidean projection in place of this moves every error along the rows, whatever the model knows about them. On a
mixture of heat fields with 32 equations its mean is off by 600 times the error of exact draws, here by 0.8 times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.devices import eigh
from casal.errors import SettingError
from casal.methods.base import Each, Method, Together, free_step, gaussian, table_rows
from casal.methods.baselines import noise_levels
from casal.methods.chain_memory import centred
from casal.methods.equations import Equations, equations_of
from casal.methods.moves import finest_level
from casal.methods.problem import Problem

FIRST = 4.0
"""The first level, in units of the largest standard deviation of the free samples in any direction. There p_s(. | C) is
nearly p_s: noise of 4 sd leaves 6 % of what is known of that direction."""

BRIDGE = 0.15
"""In the same units, where full noise ends. Full noise to the end makes samples of trained networks too smooth."""

POOL = 1024
"""Free samples whose errors are drawn from, at most."""

STEP = 0.1
"""t of a difference over s. Steps of .01 to .1, one-sided or two-sided, gave the same figures."""

OWN_LINEAR, OWN_CURVED, SHARED = 2, 8, 3
"""Linear and curved equations up to which every chain has its own gain, and linear ones in units of n up to which it
is shared: above, conjugate gradients take fewer evaluations."""

NEWTON, MOST_MOVE = 12, 0.5
"""Newton steps in the multipliers of curved equations, and how far one may go, in units of the length of the point."""

REPEATS = 3
"""Times that the first level is taken again where the table ends below it."""

FEW = 8
"""Chains below which their own length stands for the standard deviation, which it is never below."""

GAINS = ("auto", "shared", "own", "cg")


Done: TypeAlias = tuple["MatheronState", "Control", Mapping[str, float]]


class MatheronState(NamedTuple):
    """Independent chains.

    Attributes:
        x: The noisy point; the clean sample at the end.
        free: f, a sample of the model without the set.
        error: f - D(f + s w).
        clean: D(x), then clean, then x0.
        estimate: D(x).
        probe: Points at which the network is asked for the shared gain, then its answers, (n, r, *latent).
    """

    x: Tensor
    free: Tensor
    error: Tensor
    clean: Tensor
    estimate: Tensor
    probe: Tensor


class Control(NamedTuple):
    """What all chains share.

    Attributes:
        gain: How S A^T is found.
        columns: Evaluations of a chain for the shared gain of a level.
        sigmas: The levels; empty before the free samples are known.
        bridge: The level up to which the reverse process is used.
        asked: Chains at whose points the shared gain of this level is taken.
    """

    gain: str
    columns: int
    sigmas: tuple[float, ...] = ()
    bridge: float = 0.0
    asked: tuple[int, ...] = ()


class LevelRow(NamedTuple):
    """A level s, the next one (0 after the last), and whether the chains keep some of their noise on the way."""

    s: float
    to: float
    kept: bool


class ProbeRow(NamedTuple):
    """Column ``at`` of the probes, at level s."""

    s: float
    at: int


@dataclass(frozen=True)
class Matheron(Method[MatheronState]):
    """Samples a diffusion or flow model given equations: independent chains, Matheron's rule at every noise level.

    See the formulas at the top of ``methods/matheron.py``. Chains are independent but for the gain and the errors that
    they share: nothing is resampled, and every chain may have its own value or set (``casal.PerChain``) and condition.
    The run takes the rows of the model's table for n free samples, then ``levels`` levels from 4 times their
    largest standard deviation down to the last level of the table; at the end the Euclidean projection, which moves the
    samples by less than the last level. With m equations and n chains a level takes 2 evaluations a chain and those of
    the gain: 1 for m <= n, m / n above; 30 levels of 16 equations and 64 chains 90 in all, after the free samples.

    Measured error, exact networks: one bed of 1024 dimensions with four modes, 4 to 63 linear equations, 64 chains, 120
    evaluations: variance inside a mode .94 to .99 of the exact one, no chain in a wrong mode. Curved equations are met
    by Newton steps along S grad h at the clean draw, which is right only where the set is flat over the width of
    the posterior: on an ellipse three times as long as wide E cos^2 is .37 where the surface measure has .23. So the
    distribution is not promised. Where two modes survive stiff equations their weights may be wrong.

    Inequalities act through the last projection alone. Memory: (5 + m / n) n d numbers and m d; nothing is d x d.

    Args:
        levels: Noise levels.
        gain: "shared", "own", "cg", or "auto": own for at most 2 equations or 8 curved ones, shared up to 3 n linear
            ones, else cg.
        iterations: Conjugate gradients of a level, where they are used.
        near: An error is drawn from those of the ``near`` free samples whose estimates are nearest.
        floor: Eigenvalues of A S A^T below this share of the largest are raised to it: what a network that is not exact
            says of such directions is noise. 0.02 for a trained network.
        ridge: Added to A S A^T in conjugate gradients, in units of s^2. 0.05 for a trained network.

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
    floor: float = 1e-9
    ridge: float = 0.001

    name: ClassVar[str] = "Matheron"
    promises_distribution: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("levels", "iterations", "near"):
            whole_number(getattr(self, name), name, 1)
        one_of(self.gain, "gain", GAINS)
        if not 0.0 <= self.floor < 1.0:
            raise SettingError(f"floor = {self.floor:g} is a share of the largest eigenvalue: from 0 to below 1")

    # ------------------------------------------------------------------------------------------------ the stages

    def control(self, problem: Problem, n: int) -> Control:
        finest_level(problem)
        found, apart = equations_of(problem), bool(problem.target.condition)
        if self.gain == "shared" and (found.curved or apart):
            raise SettingError("gain='shared' needs linear equations and no condition; use gain='cg' or gain='own'")
        gain = self.gain
        if gain == "auto":
            few = OWN_CURVED if found.curved or apart else OWN_LINEAR
            shares = not found.curved and not apart and found.count <= SHARED * n
            gain = "own" if found.count <= few else "shared" if shares else "cg"
        return Control(gain, -(-found.count // n) if gain == "shared" else 0)

    def steps(self, problem: Problem, control: Control) -> int:
        return len(problem.table) + self.levels * (2 + control.columns)

    def next(self, problem: Problem, control: Control, stage: int) -> Each | Together | None:
        if stage < 2:
            return Each(table_rows(problem), free_step) if stage == 0 else Together(self.begin)
        phases = ("look", "choose", "ask", "move", "step") if control.columns else ("look", "choose", "step")
        level, at = divmod(stage - 2, len(phases))
        if level >= self.levels:
            return None
        s, phase = control.sigmas[level], phases[at]
        to = control.sigmas[level + 1] if level + 1 < self.levels else 0.0
        row, found = LevelRow(s, to, s <= control.bridge), equations_of(problem)
        if phase == "look":
            return Each([row], self.look)
        if phase == "choose":
            return Together(partial(self.choose, row, found))
        if phase == "ask":
            return Each([ProbeRow(s, k) for k in range(control.columns)], self.ask)
        if phase == "move":
            return Together(partial(self.move, row, found))
        return Each([row], partial(self.step, control.gain, found))

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> MatheronState:
        return MatheronState(x, x, x, x, x, x[:, None][:, :0])

    def samples(self, problem: Problem, state: MatheronState) -> Tensor:
        return problem.strict(problem.decode(state.x))

    def advice(self, state: MatheronState, row: Any) -> str:
        level = f" (sigma = {row.s:.3g})" if isinstance(row, LevelRow | ProbeRow) else ""
        return f"with these settings{level}; use a larger floor=, such as 0.02 for a trained network, or more levels"

    # ------------------------------------------------------------------------------------------------ the levels

    def begin(self, problem: Problem, state: MatheronState, control: Control, generator: torch.Generator) -> Done:
        """Place the levels, and add the noise of the first one to the free samples."""
        free, (alpha, sigma) = state.x, noise_levels(problem.table)
        known = sigma / alpha
        top = _widest(free, problem.target.groups)
        first, last = min(FIRST * top, float(known.max())), float(known.min())
        again = min(self.levels - 1, REPEATS) if first < FIRST * top else 0
        first = max(first, last)
        ramp = torch.linspace(first ** (1 / 7), last ** (1 / 7), self.levels - again, dtype=torch.float64) ** 7
        sigmas = (first,) * again + tuple(ramp.tolist())
        noise = gaussian(problem, len(free), generator)
        state = state._replace(x=free + first * noise, free=free)
        return state, control._replace(sigmas=sigmas, bridge=BRIDGE * top), {"first level": first, "last level": last}

    def look(self, problem: Problem, state: MatheronState, row: LevelRow, noise: Tensor) -> MatheronState:
        """D(x), and the error of a free sample at the same level."""
        clean = problem.denoise(state.x, row.s)
        error = state.free - problem.denoise(state.free + row.s * noise, row.s)
        return state._replace(estimate=clean, error=error)

    def choose(
        self,
        row: LevelRow,
        found: Equations,
        problem: Problem,
        state: MatheronState,
        control: Control,
        generator: torch.Generator,
    ) -> Done:
        """clean = D(x) + e, e from a free sample whose estimate is like D(x); and the points of the shared gain."""
        n, device = len(state.x), state.x.device
        order = torch.randperm(n, generator=generator, device=device)
        pool, seen = order[:POOL], (state.free - state.error)
        distance = torch.cdist(state.estimate.flatten(1), seen[pool].flatten(1))
        labels = problem.target.groups
        if labels is not None:  # errors of the same condition first
            labels = labels.to(device)
            distance = distance + 1e3 * distance.max() * (labels[:, None] != labels[pool])
        close = distance.topk(min(self.near, len(pool)), largest=False).indices
        drawn = torch.randint(close.shape[1], (n, 1), generator=generator, device=device)
        sign = 2.0 * torch.randint(2, (n,), generator=generator, device=device).to(state.x.dtype) - 1.0
        error = state.error[pool[close.gather(1, drawn)[:, 0]]]
        state = state._replace(clean=state.estimate + sign.reshape(-1, *[1] * (error.ndim - 1)) * error)
        if not control.columns:
            return state, control, {"sigma": row.s}
        count = found.count
        asked = order[: n * control.columns // count]
        at = torch.arange(n * control.columns, device=device) % (len(asked) * count)
        away = found.matrix.to(state.x).reshape(count, *problem.latent)[at % count]
        probe = (state.x[asked[at // count]] + STEP * row.s * away).reshape(control.columns, n, *problem.latent)
        control = control._replace(asked=tuple(asked.tolist()))
        return state._replace(probe=probe.transpose(0, 1)), control, {"sigma": row.s}

    def ask(self, problem: Problem, state: MatheronState, row: ProbeRow, noise: Tensor) -> MatheronState:
        """The network at the points of the shared gain."""
        probe = state.probe.clone()
        probe[:, row.at] = problem.denoise(state.probe[:, row.at].contiguous(), row.s)
        return state._replace(probe=probe)

    def move(
        self,
        row: LevelRow,
        found: Equations,
        problem: Problem,
        state: MatheronState,
        control: Control,
        generator: torch.Generator,
    ) -> Done:
        """Matheron with one gain for all chains."""
        asked = torch.tensor(control.asked, device=state.x.device)
        answers = state.probe.transpose(0, 1).flatten(0, 1)[: len(asked) * found.count]
        rise = answers.reshape(len(asked), found.count, -1) - state.estimate[asked].flatten(1)[:, None]
        spread = rise.mean(0).to(torch.float64) * (row.s / STEP)
        rows, gap = found.linear(problem, state.clean)
        shift = self._solve(spread @ rows[0].T, gap.T).T @ spread
        return state._replace(clean=_moved(state.clean, shift), probe=state.probe[:, :0]), control, {}

    def step(
        self,
        gain: str,
        equations: Equations,
        problem: Problem,
        state: MatheronState,
        row: LevelRow,
        noise: Tensor,
    ) -> MatheronState:
        """Matheron with the gain of every chain, where it is not shared; then the noise of the next level."""
        found, clean = equations.take(problem.first, len(state.x)), state.clean
        if found.count and gain == "own":
            clean = self._own(problem, state, found, row.s)
        elif found.count and gain == "cg":
            clean = self._conjugate(problem, state, found, row.s)
        kept = (row.to / row.s) ** 2 if row.kept else 0.0
        x = kept * state.x + (1.0 - kept) * clean + row.to * math.sqrt(1.0 - kept) * noise
        return state._replace(x=x, clean=clean)

    # ------------------------------------------------------------------------------------------------ the gain

    def _product(self, problem: Problem, state: MatheronState, s: float, v: Tensor) -> Tensor:
        """S v for every chain, v (n, d) float64, by one evaluation."""
        size = torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(1e-300)
        away = _moved(state.x, STEP * s * v / size)
        rise = (problem.denoise(away, s) - state.estimate).flatten(1).to(torch.float64)
        return rise * (s / STEP) * size

    def _own(self, problem: Problem, state: MatheronState, found: Equations, s: float) -> Tensor:
        """Newton along S J^T, J the rows at the clean draw: x0 = clean + S J^T u with J u ... = 0 up to rounding."""
        rows, gap = found.linear(problem, state.clean)
        every = rows.expand(len(state.x), -1, -1)
        spread = torch.stack([self._product(problem, state, s, every[:, i]) for i in range(found.count)], 1)
        clean = state.clean
        for _ in range(NEWTON if found.curved else 1):
            shift = (spread.mT @ self._solve(rows @ spread.mT, gap[..., None]))[..., 0]
            most = MOST_MOVE * torch.linalg.vector_norm(clean.flatten(1).to(torch.float64), dim=1, keepdim=True)
            if found.curved:
                shift = shift * (
                    most / torch.linalg.vector_norm(shift, dim=1, keepdim=True).clamp_min(1e-300)
                ).clamp_max(1.0)
            clean = _moved(clean, shift)
            rows, gap = found.linear(problem, clean)
        return clean

    def _conjugate(self, problem: Problem, state: MatheronState, found: Equations, s: float) -> Tensor:
        """x0 = clean + S J^T u with (J S J^T + ridge s^2) u = gap by conjugate gradients.

        The derivative of a network is neither symmetric nor positive. A chain stops where it meets a curvature below
        the ridge.
        """
        rows, residual = found.linear(problem, state.clean)
        shift, p = torch.zeros_like(state.clean.flatten(1), dtype=torch.float64), residual
        square = residual.square().sum(1, keepdim=True)
        on = torch.ones_like(square)
        for _ in range(min(self.iterations, found.count)):
            along = (p[:, None] @ rows)[:, 0]
            product = self._product(problem, state, s, along)
            least = self.ridge * s**2 * p.square().sum(1, keepdim=True)
            image = (rows @ product[..., None])[..., 0] + self.ridge * s**2 * p
            curve = (p * image).sum(1, keepdim=True)
            on = on * (curve > least)
            length = on * square / curve.clamp_min(1e-300)
            shift, residual = shift + length * product, residual - length * image
            after = residual.square().sum(1, keepdim=True)
            p, square = residual + after / square.clamp_min(1e-300) * p, after
        return _moved(state.clean, shift)

    def _solve(self, gram: Tensor, right: Tensor) -> Tensor:
        """(A S A^T)^-1 right, symmetrised, small eigenvalues raised to ``floor`` times the largest."""
        values, vectors = eigh((gram + gram.mT) / 2)
        values = torch.maximum(values, self.floor * values.amax(-1, keepdim=True)).clamp_min(1e-300)
        return vectors @ ((vectors.mT @ right) / values[..., None])


def _moved(x: Tensor, shift: Tensor) -> Tensor:
    """x + shift (n, d), in the shape and dtype of x; added in float64."""
    return (x.flatten(1).to(torch.float64) + shift).reshape(x.shape).to(x.dtype)


def _widest(free: Tensor, labels: Tensor | None) -> float:
    """Largest standard deviation of points in any direction, within groups of the same condition where these repeat."""
    flat = free.flatten(1).to(torch.float64)[:POOL]
    if len(flat) < FEW:
        return float(flat.square().sum(1).mean().sqrt())
    if labels is not None and len(labels.unique()) <= len(flat) // 2:
        flat = centred(flat, labels[:POOL].to(flat.device))
    flat = flat - flat.mean(0)
    gram = flat @ flat.T if len(flat) <= flat.shape[1] else flat.T @ flat
    return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0.0) / (len(flat) - 1)) ** 0.5
