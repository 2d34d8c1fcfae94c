"""Bounds on all coordinates, with or without one linear equation: annealed Hamiltonian Monte Carlo over noise levels.

Nonnegative fields, probabilities, images in [0, 1]: l_i <= z_i <= u_i for every coordinate, and perhaps a . z = M. The
model is asked in units of the clean sample, x = x0 + s noise, with D(x) = E[x0 | x] and J = dD/dx. The covariance of x0
given x is C = s^2 J. Behind a linear decoder with A A^T = c I all of this is written for A x0, A D and A C A^T. A
decoder that multiplies each coordinate by its own number (units) moves the bounds instead.

The chains follow pi_s(x) ~ p_s(x) psi_s(x) at levels s from the largest to the smallest, equally spaced in s^(1/7):

    psi_s(x) = prod_i [Phi(t_u,i) - Phi(t_l,i)]^tau,      t_l = (l - D) / sqrt(V),   t_u = (u - D) / sqrt(V)

the probability of the bounds if x0 given x were Gaussian with independent coordinates. V and tau are common to all
chains and measured at every level. With a vector v_i = +-w_i of random signs for every chain, w_i = 1 / sqrt(V_i) from
the level before,

    V_i = mean of v_i (C v)_i / w_i^2,     tau = sum_i (w_i^2 V_i)^2 / mean |w C v|^2 <= 1.

tau is near d / sum_ij R_ij^2, R the correlations of C: one for independent coordinates, of whatever scales, and less
where they are correlated given x, so that one deviation is not counted many times. It tends to 1 as s falls. The V_i
are drawn towards their mean by the share of their variance that is noise, which is large where tau is small. With
Z = Phi(t_u) - Phi(t_l), the coordinate restricted to its bounds has

    mean  D + sqrt(V) la,   la = (phi(t_l) - phi(t_u)) / Z,
    variance  V (1 - ka),   ka = la^2 + (t_u phi(t_u) - t_l phi(t_l)) / Z.

An equation a . z = M adds one Gaussian factor to psi:

    log psi += -r^2 / (2 v) - log(v) / 2,     r = M - sum_i a_i (D_i + sqrt(V_i) la_i),
    v = q sum_i a_i^2 V_i (1 - ka_i),         q = mean(a . C a) / sum_i a_i^2 V_i.

**From s to s'** (predictor). k = (s' / s)^2, b = s'^2 (1 - k) + (1 - k)^2 V, V' = V / (1 + V (1/s'^2 - 1/s^2)),
J' = V' / s'^2, S = 1 / (1 + b tau ka J'^2 / V'). With dx = S b (J' s^2 / V) grad log psi + sqrt(b S) w,

    x' = k x + (1 - k) D + dx,
    log weight += log psi'(x') - log psi(x) + sum_i [-dx_i^2 / (2 b_i) + w_i^2 / 2 + log(S_i) / 2].

**At every level** (corrector). Two trajectories of Hamiltonian Monte Carlo, together with about ``leapfrogs`` steps of
size eps s. A single one of all these steps turns a coordinate of deviation s by pi or 2 pi, which leaves its spread as
it was. eps adapts to an acceptance of 0.8. The force is (D - x) / s^2 + J^T dlog psi / dD, with V, tau and q held
fixed. The change of log p_s in the acceptance is the integral of the score along the path, by the trapezoidal rule.

**At the end** z_i ~ N(D_i, V_i) restricted to its bounds. This is a draw: no sample is projected onto a bound. With an
equation the draw is tilted so that a . z has the mean M, shifted onto the equation, and followed by Gibbs sweeps over
random pairs of coordinates. They are exact for the Gaussian restricted to bounds and equation, and need no network.

**Weights.** Trajectories mix the chains. Where the mixing is complete, weights are noise. They matter where it is not:
for the shares of separate modes, and along the slowest directions of smooth fields. So the method keeps two of them.
The plain ones are the sums above. They are used, and the chains resampled once, if their effective size ends at ``ess``
n or more. Otherwise the shared ones are used. These are functions of the two main directions of D: at every level both
the weights before and the new factors are averaged over neighbouring chains. The variance of the error of these
averages is summed up, and the logarithms are shrunk by its share of their variance. A well-mixed population then has
nearly equal weights, and two modes keep theirs.
``result.trace`` has "plain_ess" and "weight_ess" at every level, and "plain_weights" and "final_ess" at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from casal.checks import Event, positive, whole_number
from casal.constraints import Constraint, truncated_normal
from casal.decoders import Decoder
from casal.devices import on_host, waits
from casal.errors import SettingError
from casal.methods.base import Method, Stage, generator_of, key
from casal.methods.baselines import noise_levels
from casal.methods.coupling import decoded_event
from casal.methods.moves import finest_level
from casal.methods.population import Groups, draw, equal_weights, groups_of, take_chains
from casal.methods.problem import Problem, Uncounted, few_chains, pick

SPACING = 7.0
"""The levels are equally spaced in their power 1 / SPACING."""

FEWEST_CHAINS = 16
"""Chains below which means over chains say nothing."""

ACCEPTED = 0.8
"""Share of trajectories to accept."""

FIRST_SIZE = 0.9
SIZES = (0.05, 1.6)
"""First step of a trajectory, and its bounds, in units of s."""

GAIN = 0.3
"""How fast the step follows the acceptance."""

CLEAN = 0.997
"""Mean of V / s^2 from which on x0 given x is nearly N(x, s^2): lower levels add nothing."""

LEAST_VARIANCE = (0.02, 1e-4)
"""Floor of V, in units of its median and of s^2: its estimate has noise."""

LEAST_TAU = 1e-3

SWEEPS = 60
"""Gibbs sweeps over random pairs at the end."""

NEWTON_STEPS = 30

KINDS = 4
"""One in so many chains takes another direction than the bounded coordinates, where one is needed."""

LARGEST_RATIO = 1e3
"""Bounds of q, and of 1 / q."""

DIRECTIONS, ITERATIONS = 2, 12
"""Main directions of D along which weights may differ, and the steps that find them."""

KERNEL = 0.35
"""Width of the kernel that averages weights, in units of the spread along the first of these directions."""

BETWEEN = 0.2
"""Chains are resampled between levels below this share of ``ess``: weights that later levels forget need no draw."""

REFERENCES = 2048
"""Chains over which a weight is averaged, at most."""

LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)

ORTHOGONAL = 1e-5
"""Relative error of A A^T = c I that passes for rounding."""


class Bounds(NamedTuple):
    """l <= z <= u and perhaps a . z = M, for flattened events of k numbers; n is 1 if the set is common to all chains.

    Attributes:
        low: l, (n, k); minus infinity where there is no bound.
        high: u, likewise.
        normal: a, (k,); None without an equation.
        level: M, (n, 1).
    """

    low: Tensor
    high: Tensor
    normal: Tensor | None
    level: Tensor

    @property
    def bounded(self) -> Tensor:
        """Which coordinates have a bound in some chain, (k,) bool."""
        return (torch.isfinite(self.low) | torch.isfinite(self.high)).any(0)

    def take(self, some: slice) -> Bounds:
        """Those of some chains."""
        if len(self.low) == 1:
            return self
        return self._replace(low=self.low[some], high=self.high[some], level=self.level[some])


class Interval(NamedTuple):
    """A standard normal number t around m restricted to [l, u], element by element, all in units of its deviation.

    Attributes:
        log_mass: log Z = log[Phi(u - m) - Phi(l - m)].
        shift: la, its mean minus m, which is dlog Z / dm.
        narrowing: ka, one minus its variance, which is -dla / dm.
        turn: dka / dm.
    """

    log_mass: Tensor
    shift: Tensor
    narrowing: Tensor
    turn: Tensor


class Potential(NamedTuple):
    """log psi as a function of D.

    Attributes:
        value: (n,).
        slope: dlog psi / dD, (n, k).
        curvature: tau ka, (n, k).
    """

    value: Tensor
    slope: Tensor
    curvature: Tensor


class Common(NamedTuple):
    """What is measured over all chains at a level: V (1 or n, k), tau and q (both zero-dimensional)."""

    variance: Tensor
    tau: Tensor
    ratio: Tensor


class Level(NamedTuple):
    """One noise level, and the one before (None at the first)."""

    sigma: float
    before: float | None


class BoundedState(NamedTuple):
    """Chains at one noise level. n chains, latent events, decoded events of k numbers.

    Attributes:
        x: x0 + s noise, (n, *latent).
        z: The samples, at the end, (n, *event) float64.
        estimate: D(x), (n, *latent).
        slope: Gradient of log psi in x, (n, *latent).
        variance: V, the same for all chains, (n, k).
        probed: v (C v) / w^2, (n, k).
        spread: |w C v|^2 over the bounded coordinates, (n,).
        along: a . C a, (n,).
        log_psi: log psi at x, (n,).
        paid: The part of the log-weight that the step from the level before has cost, (n,).
        plain: Sum of the log-weights of each chain, (n,).
        shared: Log-weights as functions of the main directions of D, (n,).
        noise: Variance of their error, (n,).
        log_weight: Log-weights that count, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        accepted: Share of the last trajectories that were accepted, (n,).
        tau: Exponent of psi.
        ratio: q.
        size: eps.
        leapfrogs: Steps of the next trajectories.
        done: One at a level that is the last because the data look smooth there, two after it, zero before.
    """

    x: Tensor
    z: Tensor
    estimate: Tensor
    slope: Tensor
    variance: Tensor
    probed: Tensor
    spread: Tensor
    along: Tensor
    log_psi: Tensor
    paid: Tensor
    plain: Tensor
    shared: Tensor
    noise: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor
    tau: Tensor
    ratio: Tensor
    size: Tensor
    leapfrogs: Tensor
    done: Tensor

    @property
    def common(self) -> Common:
        """What was measured over all chains."""
        return Common(self.variance, self.tau, self.ratio)


@dataclass(frozen=True)
class BoundedHMC(Method[BoundedState]):
    """Samples a diffusion model restricted to bounds on its coordinates, with or without one linear equation.

    For sets such as ``Box(0, inf)``, ``Box(low, high)``, ``Simplex(M)``, ``Box(low, high) & Affine(a, M)``, in tens to
    thousands of dimensions, where most coordinates feel their bound. The chains go down the noise levels under a
    potential that knows the probability of the bounds, with trajectories of Hamiltonian Monte Carlo at each level;
    the last step is a draw from a truncated Gaussian. The equations are at the top of this file. It costs
    about levels x (4 + 2 leapfrogs) evaluations per chain, each vector-Jacobian product counted as one.

    The distribution is exact as levels and leapfrogs grow, but for the last draw, which takes x0 given x as Gaussian
    with independent coordinates at the smallest level. Distant modes need the weights; see the top of this file. The
    denoiser must be differentiable in x.

    Args:
        levels: Noise levels.
        leapfrogs: Steps of all trajectories at a level; one more or less at random.
        sigma_max: Largest noise, in units of the clean sample; that of the target's first row if None. It must be
            several times the spread of the data.
        sigma_min: Smallest noise. None: where the data look smooth, and not below the finest level of the target.
        ess: Share of the chains to which the effective size may fall, see above. 0: ignore the weights.
        trajectories: At every level; each starts with a new momentum, and they share the steps.

    >>> import casal
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(40, 0.05, 20.0), shape=(8,))
    >>> result = casal.sample(target, casal.Simplex(6.0), casal.BoundedHMC(levels=20), 64)
    >>> bool((result.samples > 0).all()), float((result.samples.sum(1) - 6.0).abs().max()) < 1e-12
    (True, True)
    """

    levels: int = 48
    leapfrogs: int = 8
    sigma_max: float | None = None
    sigma_min: float | None = None
    ess: float = 0.5
    trajectories: int = 2

    name: ClassVar[str] = "BoundedHMC"
    promises_distribution: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number(self.levels, "levels", 2)
        whole_number(self.leapfrogs, "leapfrogs", 0)
        whole_number(self.trajectories, "trajectories", 1)
        for name in ("sigma_max", "sigma_min"):
            if getattr(self, name) is not None:
                positive(getattr(self, name), name)
        if not 0.0 <= self.ess <= 1.0:
            raise SettingError(f"ess is a share of the chains in [0, 1], got {self.ess}")

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        check_alike(problem)
        if n < FEWEST_CHAINS:
            raise SettingError(
                f"BoundedHMC measures the spread of the model over its chains and needs {FEWEST_CHAINS} of them, got "
                f"{n}; use more, or SplitGibbs"
            )
        sigmas = self._levels(problem)
        check_decoder(problem)
        bounds_of(problem)
        groups = groups_of(problem, n) if self.ess else Groups()
        stages = list[Stage]()
        for before, sigma in zip([None, *sigmas], sigmas, strict=False):
            level = Level(sigma, before)
            stages += [
                Stage([level], self.predict),
                Stage([level], self.probe),
                Stage([level], self.trajectory, partial(self.agree, groups, level), noise=key),
            ]
        return [*stages, Stage([sigmas[-1]], self.draw, partial(self.end, groups), noise=key)]

    @property
    def evaluations(self) -> int:
        """Evaluations of a chain, about; products with the derivative count as one each."""
        return self.levels * (4 + 2 * self.leapfrogs)

    def fits(self, problem: Problem) -> bool:
        """Whether the set is of bounds, with at most one equation, and the model and the decoder are what it takes."""
        one = problem.take(slice(0, 1)).replace(usage=Uncounted())
        try:
            check_alike(problem)
            check_decoder(one)
            bounds_of(one)
            Look(one, one.like.new_zeros((1, *one.latent)), _first_level(one))
        except SettingError:
            return False
        return True

    def _levels(self, problem: Problem) -> list[float]:
        """The noise levels, decreasing."""
        low = finest_level(problem)
        high = _first_level(problem)
        first, last = self.sigma_max or high, self.sigma_min or low
        if first > high * (1.0 + 1e-9):
            raise SettingError(f"sigma_max = {first:g} is above the first level {high:g} of {problem.target.name}")
        if last < low * (1.0 - 1e-9):
            raise SettingError(f"sigma_min = {last:g} is below the finest level {low:g} of {problem.target.name}")
        if last >= first:
            raise SettingError(f"sigma_min = {last:g} must be below sigma_max = {first:g}")
        ramp = torch.linspace(first ** (1 / SPACING), last ** (1 / SPACING), self.levels, dtype=torch.float64)
        return [float(v) for v in ramp**SPACING]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> BoundedState:
        alpha, _ = noise_levels(problem.table)
        first = _first_level(problem)
        x = x / float(alpha[0]) * ((self.sigma_max or first) / first)
        log_weight, ancestor = equal_weights(problem, len(x))
        z = Turned(problem).decode(x)
        flat, zeros, one = z.flatten(1), torch.zeros_like(log_weight), log_weight.new_ones(())
        return BoundedState(
            x=x,
            z=z,
            estimate=x,
            slope=torch.zeros_like(x),
            variance=torch.ones_like(flat),
            probed=torch.zeros_like(flat),
            spread=zeros,
            along=zeros,
            log_psi=zeros,
            paid=zeros,
            plain=zeros,
            shared=zeros,
            noise=zeros,
            log_weight=log_weight,
            ancestor=ancestor,
            accepted=torch.full_like(zeros, ACCEPTED),
            tau=one,
            ratio=one,
            size=FIRST_SIZE * one,
            leapfrogs=self.leapfrogs * one,
            done=0.0 * one,
        )

    # ------------------------------------------------------------------------------------------ each chain alone

    def predict(self, problem: Problem, state: BoundedState, row: Level, noise: Tensor) -> BoundedState:
        """From the level before to this one."""
        if row.before is None or float(state.done):
            return state
        decoder = Turned(problem)
        s, to = decoder.scale * row.before, decoder.scale * row.sigma
        k, event = (to / s) ** 2, decoder.event
        mean, slope, w = (decoder.decode(v).flatten(1) for v in (state.estimate, state.slope, noise))
        slope, w = slope / decoder.square, w / decoder.scale
        V = state.variance
        b = to**2 * (1.0 - k) + (1.0 - k) ** 2 * V
        ahead = V / (1.0 + V * (to**-2 - s**-2))
        gain = ahead / to**2
        curvature = potential(bounds_of(problem), mean, state.common).curvature
        shrunk = 1.0 / (1.0 + b * curvature * gain.square() / ahead)
        dx = shrunk * b * slope * (gain * s**2 / V) + (b * shrunk).sqrt() * w
        paid = (0.5 * (w.square() - dx.square() / b) + 0.5 * shrunk.log()).sum(1)
        x = k * state.x + (1.0 - k) * state.estimate + decoder.lift(dx.reshape(-1, *event)).to(state.x)
        if decoder.wide:  # directions that the decoder does not see take the plain step
            unseen = noise - decoder.lift(decoder.scale * w.reshape(-1, *event)).to(noise)
            x = x + row.sigma * math.sqrt(1.0 - k) * unseen
        return state._replace(x=x, paid=paid)

    def probe(self, problem: Problem, state: BoundedState, row: Level, noise: Tensor) -> BoundedState:
        """D, and C v for one direction v: random signs on the bounded coordinates, on the others, or a."""
        if float(state.done):
            return state
        decoder, bounds = Turned(problem), bounds_of(problem)
        kind, bounded = _kinds(problem, bounds, len(state.x))[:, None], bounds.bounded
        w = state.variance.rsqrt()
        v = torch.where(decoder.decode(noise).flatten(1) < 0.0, -w, w)
        v = torch.where((kind == FREE) == bounded, 0.0, v)
        if bounds.normal is not None:
            v = torch.where(kind == NORMAL, bounds.normal, v)
        look = Look(problem, state.x, row.sigma)
        back = look.pull(decoder.transpose(v.reshape(-1, *decoder.event)))
        moved = row.sigma**2 * decoder.decode(back).flatten(1)
        return state._replace(
            estimate=look.estimate,
            probed=v * moved * state.variance,
            spread=(w * moved * bounded).square().sum(1),
            along=(v * moved).sum(1),
        )

    def trajectory(self, problem: Problem, state: BoundedState, row: Level, noise: Tensor) -> BoundedState:
        """Trajectories of Hamiltonian Monte Carlo, one after the other."""
        if float(state.done) > 1.0:
            return state
        generator, bounds, s = generator_of(noise, state.x), bounds_of(problem), row.sigma
        here, eps = self._point(problem, bounds, state.x, s, state.common), float(state.size) * s
        steps = [(int(state.leapfrogs) + j) // self.trajectories for j in range(self.trajectories)]
        accepted = list[Tensor]()
        for count in filter(None, steps):
            start = here
            p = torch.randn(state.x.shape, generator=generator, dtype=torch.float32, device=state.x.device).to(state.x)
            energy, rise = 0.5 * _dot(p, p), torch.zeros_like(state.log_weight)
            for _ in range(count):
                half = p + 0.5 * eps * here.force
                there = self._point(problem, bounds, here.x + eps * half, s, state.common)
                rise = rise + 0.5 * _dot(here.score + there.score, there.x - here.x)
                p = half + 0.5 * eps * there.force
                here = there
            log_ratio = rise + here.log_psi - start.log_psi + energy - 0.5 * _dot(p, p)
            u = torch.rand(len(p), generator=generator, dtype=torch.float64, device=p.device)
            yes = torch.log(u) < log_ratio
            here = Point(*(pick(yes, one, other) for one, other in zip(here, start, strict=True)))
            accepted.append(yes.to(state.accepted))
        rate = torch.stack(accepted).mean(0) if accepted else torch.ones_like(state.accepted)
        return state._replace(x=here.x, estimate=here.estimate, slope=here.slope, log_psi=here.log_psi, accepted=rate)

    def _point(self, problem: Problem, bounds: Bounds, x: Tensor, s: float, common: Common) -> Point:
        """Everything at x: one evaluation and one vector-Jacobian product."""
        decoder, look = Turned(problem), Look(problem, x, s)
        at = potential(bounds, decoder.decode(look.estimate).flatten(1), common)
        slope = look.pull(decoder.transpose(at.slope.reshape(-1, *decoder.event)))
        return Point(x, look.estimate, (look.estimate - x) / s**2, slope, at.value)

    def draw(self, problem: Problem, state: BoundedState, row: float, noise: Tensor) -> BoundedState:
        """z ~ N(D, V) in the set; x is moved accordingly."""
        decoder, bounds = Turned(problem), bounds_of(problem)
        mean = decoder.decode(state.estimate).flatten(1)
        z = draw_inside(bounds, mean, state.variance, generator_of(noise, state.x)).reshape(-1, *decoder.event)
        x = state.estimate + decoder.lift(z - mean.reshape(z.shape)).to(state.x)
        return state._replace(z=z, x=x)

    # ------------------------------------------------------------------------------------------ all chains together

    def agree(
        self, groups: Groups, level: Level, problem: Problem, state: BoundedState, generator: torch.Generator
    ) -> tuple[BoundedState, Mapping[str, float]]:
        """Measure V, tau and q over all chains, weigh them, and choose the next trajectory."""
        if float(state.done):
            return state._replace(done=torch.full_like(state.done, 2.0)), {}
        decoder, bounds = Turned(problem), bounds_of(problem)
        s = decoder.scale * level.sigma
        common = measure(bounds, state, _kinds(problem, bounds, len(state.x)), s)
        clean = self.sigma_min is None and float(common.variance.mean()) > CLEAN * s**2
        mean = decoder.decode(state.estimate).flatten(1)
        log_psi = torch.cat([potential(bounds.take(some), mean[some], common).value for some in few_chains(mean)])
        rate = float(state.accepted.mean())
        size = (state.size * math.exp(GAIN * (rate - ACCEPTED))).clamp(*SIZES)
        more = int(torch.randint(-1, 2, (), generator=generator)) if self.leapfrogs > 2 else 0
        gain = log_psi - state.log_psi + state.paid
        shared = shared_weights(groups, mean, Shared(state.shared, state.noise), gain, generator)
        state = state._replace(
            variance=common.variance.expand(len(log_psi), -1),
            tau=common.tau,
            ratio=common.ratio,
            log_psi=log_psi,
            plain=state.plain + gain,
            shared=shared.value,
            noise=shared.noise,
            log_weight=shared.shrunk(groups),
            size=size,
            leapfrogs=torch.full_like(size, self.leapfrogs + more),
            done=torch.full_like(size, float(clean)),
        )
        record = {
            "sigma": level.sigma,
            "tau": float(common.tau),
            "acceptance": rate,
            "plain_ess": groups.effective_size(state.plain),
            "weight_ess": groups.effective_size(state.log_weight),
        }
        if not self.ess:
            return state, record
        state, drawn = self._resample(groups, state, generator, BETWEEN * self.ess)
        return state, record | {"resampled": float(drawn)}

    def _resample(
        self, groups: Groups, state: BoundedState, generator: torch.Generator, ess: float
    ) -> tuple[BoundedState, bool]:
        """Draw every group anew by ``log_weight`` if its effective size is below a share ``ess``; and whether so."""
        found = draw(state.log_weight, groups, generator, ess)
        if found is None:
            return state, False
        state = state._replace(
            log_weight=found.log_weight,
            plain=torch.where(found.renewed, state.plain - state.log_weight, state.plain),
            shared=torch.where(found.renewed, 0.0, state.shared),
            noise=torch.where(found.renewed, 0.0, state.noise),
        )
        return take_chains(state, found.chosen), True

    def end(
        self, groups: Groups, problem: Problem, state: BoundedState, generator: torch.Generator
    ) -> tuple[BoundedState, Mapping[str, float]]:
        """Resample all chains: by the plain weights where they are even enough, else by the shared ones."""
        if not self.ess:
            return state._replace(log_weight=torch.zeros_like(state.log_weight)), {}
        plain = groups.effective_size(state.plain)
        even = plain >= self.ess * len(state.x)
        if even:
            state = state._replace(log_weight=state.plain)
        left = groups.effective_size(state.log_weight)
        state, _ = self._resample(groups, state, generator, math.inf)
        return state, {
            "plain_weights": float(even),
            "final_ess": left,
            "ancestors": float(len(state.ancestor.unique())),
        }

    def samples(self, problem: Problem, state: BoundedState) -> Tensor:
        return problem.strict(Turned(problem).outward(state.z))

    def monitor(self, problem: Problem, state: BoundedState) -> Mapping[str, Tensor]:
        return {"violation": problem.constraint.violation(Turned(problem).outward(state.z))}

    def advice(self, state: BoundedState, row: Any) -> str:
        return f"(tau = {float(state.tau):.3g}, eps = {float(state.size):.3g}); check the denoiser at this noise level"


# ---------------------------------------------------------------------------------------------------- the model


class Point(NamedTuple):
    """A point of a trajectory: x, D, the score of p_s, the gradient of log psi, and log psi (n,)."""

    x: Tensor
    estimate: Tensor
    score: Tensor
    slope: Tensor
    log_psi: Tensor

    @property
    def force(self) -> Tensor:
        """Gradient of log pi_s."""
        return self.score + self.slope


class Look:
    """D at x with its transposed derivative; each of them counts as one evaluation per chain."""

    def __init__(self, problem: Problem, x: Tensor, s: float) -> None:
        self._context = problem
        with torch.enable_grad():
            self._leaf = x.detach().requires_grad_()
            self._clean = problem.denoise(self._leaf, s)
        if not self._clean.requires_grad:
            raise SettingError(
                f"autograd cannot differentiate through {problem.target.name}, and BoundedHMC needs the derivative of "
                "the denoiser; call the network without no_grad, or use SplitGibbs"
            )
        self.estimate = self._clean.detach()

    def pull(self, v: Tensor) -> Tensor:
        """J^T v; once."""
        self._context.usage.add_scores(len(v))
        (pulled,) = torch.autograd.grad(self._clean, self._leaf, v.to(self._clean))
        return pulled


class Turned:
    """A linear decoder with A A^T = c I, in float64 where numbers are decoded.

    A decoder that multiplies each coordinate by a number of its own (units) moves bounds and equation along: such a set
    is treated in the coordinates of x, where A = I, and ``outward`` leads back. The distribution is the same, since the
    surface of a linear equation is stretched by the same factor everywhere.

    Attributes:
        square: c.
        scale: sqrt(c).
        event: Shape of decoded events.
        wide: Whether A has more columns than rows.
        unit: The factor of each coordinate (k,), float64, where A only multiplies; else None.
        turns: Whether A is neither of that kind nor the identity.
    """

    def __init__(self, problem: Problem) -> None:
        self._context = problem
        self.event: Event = decoded_event(problem)
        self.unit = units_of(problem)
        self.turns = not problem.identity and self.unit is None
        self.square = problem.decoder.norm() ** 2 if self.turns else 1.0
        self.scale = math.sqrt(self.square)
        self.wide = math.prod(problem.latent) > math.prod(self.event)

    def decode(self, x: Tensor) -> Tensor:
        """A x, float64."""
        return self._context.decode(x).to(torch.float64) if self.turns else x.to(torch.float64)

    def outward(self, z: Tensor) -> Tensor:
        """Points z of these coordinates in decoded space."""
        return z if self.unit is None else z * self.unit.reshape(self.event)

    def transpose(self, v: Tensor) -> Tensor:
        """A^T v, in the dtype of the run."""
        like = self._context.like
        return self._context.decoder.vjp(like)(v.to(like.dtype)) if self.turns else v.to(like.dtype)

    def lift(self, v: Tensor) -> Tensor:
        """A^T v / c: the shortest x with A x = v."""
        return self.transpose(v) / self.square


def check_alike(problem: Problem) -> None:
    """SettingError for chains with conditions of their own: V is measured over all of them."""
    if problem.target.condition:
        raise SettingError(
            "BoundedHMC measures one covariance of the model over all chains, which sample different conditions here; "
            "use LookAhead or SplitGibbs, or run one condition at a time"
        )


def units_of(problem: Problem) -> Tensor | None:
    """The factors (k,) of a decoder that multiplies each coordinate by its own; None for other decoders."""
    if problem.identity or not problem.decoder.linear or problem.decoder.diagonal is None:
        return None
    one = torch.ones((1, *problem.latent), dtype=torch.float64, device=problem.like.device)
    return problem.decoder(one).flatten()


def check_decoder(problem: Problem) -> None:
    """SettingError unless the decoder is linear with A A^T = c I, up to rounding, or multiplies coordinates."""
    if problem.decoder.linear and problem.decoder.diagonal is not None:
        return
    way_out = "use LookAhead or SplitGibbs, or a model of the decoded samples"
    if not problem.decoder.linear:
        raise SettingError(f"BoundedHMC needs a linear decoder with A A^T = c I, not a nonlinear one; {way_out}")
    turned = Turned(problem)
    v = torch.randn((4, *turned.event), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v = v.to(problem.like.device)
    gap = float((turned.decode(turned.lift(v)) - v).abs().max())
    if gap > max(ORTHOGONAL, 1e3 * torch.finfo(problem.like.dtype).eps):
        raise SettingError(
            f"BoundedHMC needs a decoder with orthogonal rows of one length, A A^T = c I; this one is {gap:.2g} off "
            f"(relative to |A|^2); {way_out}"
        )


def _first_level(problem: Problem) -> float:
    """The noise of the starting points, in units of the clean sample."""
    alpha, sigma = noise_levels(problem.table)
    return float(sigma[0] / alpha[0])


def _dot(v: Tensor, w: Tensor) -> Tensor:
    """v . w, chain by chain, in float64."""
    return (v.to(torch.float64) * w.to(torch.float64)).flatten(1).sum(1)


# ---------------------------------------------------------------------------------------------------- the potential

BOUNDED, FREE, NORMAL = 0, 1, 2


def _kinds(problem: Problem, bounds: Bounds, n: int) -> Tensor:
    """Which direction each chain takes when C is measured, (n,): by its number in the run."""
    number = (torch.arange(n, device=problem.like.device) + problem.first) % KINDS
    kind = torch.full_like(number, BOUNDED)
    kind = torch.where((number == 1) & ~bounds.bounded.all(), FREE, kind)
    return kind if bounds.normal is None else torch.where(number == 2, NORMAL, kind)


def measure(bounds: Bounds, state: BoundedState, kind: Tensor, s: float) -> Common:
    """V, tau and q: means over all chains."""
    bounded = bounds.bounded
    V = state.variance[0].clone()
    for which, some in ((bounded, kind == BOUNDED), (~bounded, kind == FREE)):
        if bool(some.any()):
            V[which] = _less_noisy(state.probed[some][:, which])
    tau = (V / state.variance[0])[bounded].square().sum() / state.spread[kind == BOUNDED].mean()
    share, least = LEAST_VARIANCE
    V = torch.maximum(V, share * V.median()).clamp_min(least * s**2)[None]
    ratio = torch.ones_like(tau)
    if bounds.normal is not None:
        ratio = state.along[kind == NORMAL].mean() / (bounds.normal.square() * V).sum()
    return Common(V, tau.clamp(LEAST_TAU, 1.0), ratio.clamp(1.0 / LARGEST_RATIO, LARGEST_RATIO))


def _less_noisy(values: Tensor) -> Tensor:
    """Means of columns (n, k), drawn together by the share of their variance that is the noise of the means."""
    mean, noise = values.mean(0), (values.var(0) / len(values)).mean()
    if mean.numel() < 2:
        return mean
    spread = mean.var().clamp_min(torch.finfo(mean.dtype).tiny)
    return mean.mean() + (1.0 - noise / spread).clamp_min(0.0) * (mean - mean.mean())


def potential(bounds: Bounds, mean: Tensor, common: Common) -> Potential:
    """log psi, its slope in D, and tau ka, for D = mean (n, k)."""
    V, tau = common.variance, common.tau
    sd = V.sqrt()
    at = restricted((bounds.low - mean) / sd, (bounds.high - mean) / sd)
    value, slope = tau * at.log_mass.sum(1), tau * at.shift / sd
    a = bounds.normal
    if a is not None:
        left = (1.0 - at.narrowing).clamp_min(1e-9)
        v = common.ratio * (a.square() * V * left).sum(1, keepdim=True)
        r = bounds.level - (a * (mean + sd * at.shift)).sum(1, keepdim=True)
        value = value - (0.5 * r.square() / v + 0.5 * v.log()).squeeze(1)
        slope = (
            slope + (r / v) * a * left - (0.5 * (r.square() / v - 1.0) / v) * common.ratio * a.square() * sd * at.turn
        )
    return Potential(value, slope, tau * at.narrowing)


def restricted(low: Tensor, high: Tensor) -> Interval:
    """Mass, mean, variance of a standard normal number between low and high, and their derivatives in its mean.

    Reflected so that the interval lies more to the left, where tails of Phi keep their digits.
    """
    if on_host(low) and bool((high == torch.inf).all()):
        return _tail(-low)
    if on_host(low) and bool((low == -torch.inf).all()):
        mass, shift, narrowing, turn = _tail(high)
        return Interval(mass, -shift, narrowing, -turn)
    flip = low + high > 0.0
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    above, below = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    log_mass = above + torch.log(-torch.expm1((below - above).clamp_max(-1e-12)))
    at_a, at_b = (_density(t, log_mass) for t in (a, b))
    a, b = (torch.where(torch.isfinite(t), t, 0.0) for t in (a, b))
    shift = at_a - at_b
    narrowing = (shift.square() + b * at_b - a * at_a).clamp(0.0, 1.0)
    turn = at_b * (b.square() - 1.0 - b * shift) - at_a * (a.square() - 1.0 - a * shift) - 2.0 * shift * narrowing
    sign = torch.where(flip, -1.0, 1.0)
    return Interval(log_mass, sign * shift, narrowing, (sign * turn).clamp(-1.0, 1.0))


def _tail(t: Tensor) -> Interval:
    """The interval [-t, infinity)."""
    log_mass = torch.special.log_ndtr(t)
    shift = _density(t, log_mass)
    t = torch.where(torch.isfinite(t), t, 0.0)
    narrowing = (shift * (shift + t)).clamp(0.0, 1.0)
    return Interval(log_mass, shift, narrowing, (shift - narrowing * (2.0 * shift + t)).clamp(-1.0, 1.0))


def _density(t: Tensor, log_mass: Tensor) -> Tensor:
    """phi(t) / Z, zero at infinity."""
    return torch.exp(-0.5 * t.square() - log_mass - LOG_ROOT_TWO_PI)


# ---------------------------------------------------------------------------------------------------- the weights


class Shared(NamedTuple):
    """Log-weights that are functions of the main directions of D.

    Attributes:
        value: (n,), with mean zero in each group.
        noise: Variance of their error in the group of each chain, (n,).
    """

    value: Tensor
    noise: Tensor

    def shrunk(self, groups: Groups) -> Tensor:
        """c value, (n,), with c = 1 - noise / variance of the group, or zero: most likely what is not error."""
        out = torch.zeros_like(self.value)
        for some in groups.each(out):
            spread = self.value[some].var()
            if float(spread) > 0.0:
                out[some] = (1.0 - self.noise[some].mean() / spread).clamp_min(0.0) * self.value[some]
        return out


def shared_weights(
    groups: Groups, estimate: Tensor, before: Shared, gain: Tensor, generator: torch.Generator
) -> Shared:
    """The weights after a level, group by group: a kernel average stands for the mean over all that mixes,

        log W' = log <W> + log <exp(gain)>.

    Args:
        groups: Chains that may take each other's place.
        estimate: D, (n, k).
        before: The weights before.
        gain: Logarithms of the new factors, (n,).
        generator: Starts the search for the main directions.
    """
    value, noise = torch.zeros_like(gain), torch.zeros_like(gain)
    for some in groups.each(gain):
        average = _kernel_average(main_directions(estimate[some], generator)) if len(some) >= FEWEST_CHAINS else None
        if average is None:
            continue
        factor, error = average(torch.exp(gain[some] - gain[some].max()))
        old = before.value[some]
        kept = average(torch.exp(old - old.max()))[0].log()
        total = kept + factor.log()
        forgotten = kept.var() / old.var().clamp_min(torch.finfo(old.dtype).tiny)
        value[some] = total - total.mean()
        noise[some] = forgotten * before.noise[some].mean() + (error / factor.square()).mean()
    return Shared(value, noise)


def main_directions(points: Tensor, generator: torch.Generator) -> Tensor:
    """Coordinates (n, DIRECTIONS) of points (n, k) along the directions in which they spread most.

    By subspace iteration: where several directions are equally wide, any of them will do.
    """
    points = points - points.mean(0)
    basis = torch.randn(
        (points.shape[1], min(DIRECTIONS, points.shape[1])),
        generator=generator,
        dtype=points.dtype,
        device=points.device,
    )
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(points.T @ (points @ basis)).Q
    return points @ basis


def _kernel_average(place: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """v (n,) -> kernel average of v at every place, and its squared standard error; None if all places are one."""
    width = KERNEL * float(place.std(0).max())
    if not width > 0.0:
        return None
    few = torch.arange(0, len(place), -(-len(place) // REFERENCES), device=place.device)
    kernel = torch.exp(-0.5 * (torch.cdist(place, place[few]) / width).square())
    kernel = kernel / kernel.sum(1, keepdim=True).clamp_min(1e-300)
    own = kernel.square().sum(1)

    def average(v: Tensor) -> tuple[Tensor, Tensor]:
        mean = kernel @ v[few]
        return mean, own * (kernel @ (v - mean)[few].square())

    return average


# ---------------------------------------------------------------------------------------------------- the set


def bounds_of(problem: Problem) -> Bounds:
    """The set as bounds and at most one equation, in the coordinates of ``Turned``.

    They are read off its inequalities and equations, which are linear.

    A row of the inequalities that involves one coordinate alone gives g, g i and g r_i for the arguments (1, 1, ...),
    (1, 2, ...) and random numbers r, so that i and g are known and r confirms them.

    Raises:
        SettingError: The set is of another kind.
    """
    known = _known_bounds.setdefault(problem.constraint, [])
    where = (problem.like.device, problem.latent)
    for decoder, place, bounds in known:
        if decoder is problem.decoder and place == where:
            return bounds
    found = _read_bounds(problem)
    known.append((problem.decoder, where, found))
    return found


_known_bounds: WeakKeyDictionary[Constraint, list[tuple[Decoder, tuple[torch.device, Event], Bounds]]] = (
    WeakKeyDictionary()
)
"""What was read off a set, so that a step need not read it again."""


def _read_bounds(problem: Problem) -> Bounds:
    one, event, device = problem.constraint, decoded_event(problem), problem.like.device
    if not (one.flat_sided and one.smooth) or one.in_pieces:
        raise _refused(one, "it has no flat sides")
    n, k = one.chains or 1, math.prod(event)
    sides = one.bounds(event)
    if sides is None:
        raise _refused(one, "an inequality involves several coordinates")
    low, high = (side.to(device).expand(n, *event).reshape(n, k) for side in sides)
    if not bool((low < high).all()):
        raise _refused(one, f"bounds fix coordinate {int(torch.nonzero(~(low < high))[0, 1])}")
    if not bool((torch.isfinite(low) | torch.isfinite(high)).any()):
        raise _refused(one, "it has no bounds")
    normal, level = _equation(one, torch.zeros((n, *event), dtype=torch.float64, device=device))
    if normal is not None:
        ends = torch.stack([normal * low, normal * high])
        ends = torch.where(normal == 0, 0.0, ends)
        least, most = ends.amin(0).sum(1, keepdim=True), ends.amax(0).sum(1, keepdim=True)
        if not bool(((least < level) & (level < most)).all()):
            raise _refused(one, "its equation leaves one corner of the bounds, or nothing")
    units = units_of(problem)
    if units is not None:
        low, high = low / units, high / units
        if normal is not None:
            factor = _even(normal * units)
            normal, level = factor * normal * units, factor * level
    return Bounds(low, high, normal, level)


def _equation(one: Constraint, zero: Tensor) -> tuple[Tensor | None, Tensor]:
    """a and M of the equation a . z = M, scaled to a mean a_i^2 of one over what it involves; None if there is none."""
    with torch.enable_grad():
        leaf = zero.clone().requires_grad_()
        values = one.equations(leaf)
        if values.shape[1] == 0:
            return None, zero.new_zeros(len(zero), 1)
        if values.shape[1] > 1:
            raise _refused(one, f"it has {values.shape[1]} equations, and at most one is supported")
        (gradient,) = torch.autograd.grad(values.sum(), leaf)
    normal = gradient[0].flatten()
    scale = _even(normal)
    return scale * normal, -scale * values.detach()


def _even(normal: Tensor) -> Tensor:
    """The factor that makes the mean of a_i^2 one, over what an equation involves."""
    return (normal.count_nonzero() / normal.square().sum()).sqrt()


def _refused(one: Constraint, why: str) -> SettingError:
    return SettingError(
        f"BoundedHMC treats bounds on single coordinates with at most one equation; {one!r} is not of that kind: "
        f"{why}. Take LookAhead (few equations or half-spaces) or SplitGibbs"
    )


# ---------------------------------------------------------------------------------------------------- the last draw


@waits
def draw_inside(bounds: Bounds, mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    """z ~ N(mean, variance) with independent coordinates, restricted to the bounds and the equation, (n, k)."""
    low, high = (side.expand_as(mean) for side in (bounds.low, bounds.high))
    if bounds.normal is None:
        return between(mean, variance.sqrt(), low, high, generator)
    used = bounds.normal != 0
    out = between(mean, variance.sqrt(), low, high, generator)
    a = bounds.normal[used]
    # In the coordinates a_i z_i the equation is a sum.
    scaled_low, scaled_high = a * low[:, used], a * high[:, used]
    sides = torch.minimum(scaled_low, scaled_high), torch.maximum(scaled_low, scaled_high)
    y = _draw_with_sum(a * mean[:, used], a.square() * variance[:, used], *sides, bounds.level, generator)
    out[:, used] = y / a
    return out


def _draw_with_sum(
    mean: Tensor, variance: Tensor, low: Tensor, high: Tensor, total: Tensor, generator: torch.Generator
) -> Tensor:
    """N(mean, variance) restricted to low <= y <= high and sum y = total: a start on the set, then Gibbs sweeps."""
    sd, tilt = variance.sqrt(), torch.zeros_like(total)
    for _ in range(NEWTON_STEPS):  # the tilted mean mean + tilt variance, restricted, sums up to the total
        m = mean + tilt * variance
        at = restricted((low - m) / sd, (high - m) / sd)
        excess = (m + sd * at.shift).sum(1, keepdim=True) - total.expand(len(m), -1)
        tilt = tilt - excess / (variance * (1.0 - at.narrowing)).sum(1, keepdim=True).clamp_min(1e-12)
    y = _onto_sum(between(mean + tilt * variance, sd, low, high, generator), low, high, total)
    size = y.shape[1]
    for _ in range(SWEEPS):
        order = torch.randperm(size, generator=generator, device=generator.device)
        i, j = order[: size // 2], order[size // 2 : 2 * (size // 2)]
        both, vi, vj = y[:, i] + y[:, j], variance[:, i], variance[:, j]
        centre = (mean[:, i] * vj + (both - mean[:, j]) * vi) / (vi + vj)
        least = torch.maximum(low[:, i], both - high[:, j])
        most = torch.minimum(high[:, i], both - low[:, j])
        new = between(centre, (vi * vj / (vi + vj)).sqrt(), least, torch.maximum(least, most), generator)
        y = y.index_copy(1, i, new).index_copy(1, j, both - new)
    return y


def _onto_sum(y: Tensor, low: Tensor, high: Tensor, total: Tensor) -> Tensor:
    """Use the same share of the room of every coordinate, up or down, so that the sum is right and all stay inside."""
    gap = total - y.sum(1, keepdim=True)
    room = torch.where(gap > 0, high - y, y - low)
    infinite = torch.isinf(room)
    some = infinite.any(1, keepdim=True)
    weight = torch.where(some, infinite.to(y.dtype), torch.where(infinite, 0.0, room))
    return y + gap * weight / weight.sum(1, keepdim=True)


def between(mean: Tensor, sd: Tensor, low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """N(mean, sd^2) restricted to [low, high], element by element: an exact draw."""
    t = truncated_normal(torch.zeros_like(mean), 1.0, (low - mean) / sd, (high - mean) / sd, generator)
    return torch.minimum(torch.maximum(mean + sd * t, low), high)
