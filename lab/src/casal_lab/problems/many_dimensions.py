"""Problems in many dimensions with an exact answer: mixtures and Gaussian fields on equations, norms and bounds.

Some have a soft term beside the set: an observation that is not linear, or a reward.

Each function draws a fresh instance from its seed: the modes, their spectra, the rows of the equations. Means are
placed so that the set lies about one standard deviation from each mode. Where a mode would have a weight below
``LEAST_WEIGHT`` on the set, the weights of the prior are changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy import optimize
from torch import Tensor

from casal import Affine, Box, Constraint, HalfSpace, MassEnergy, Simplex, Sphere, Target, edm, karras_sigmas
from casal.errors import SettingError
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture, Axes
from casal_lab.problems.modes import LEAST_WEIGHT, ModeDistribution
from casal_lab.problems.truncated_gaussian import nonnegative_gibbs

LEVELS, LAST = 60, 0.02
"""Noise levels of every target, and the last one."""

HEADROOM, HIGH = 5.0, 40.0
"""The first noise level: over the largest standard deviation of the data; and with bounds on all coordinates."""

FLOOR = 0.05
"""The weight of the rarest mode on the set, where the weights are changed."""

GIBBS = {"replicas": 512, "sweeps": 400, "warmup": 200}
"""Of the reference for correlated fields."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A prior with an exact denoiser, a set, and the exact distribution on it."""

    name: str
    prior: AnisotropicMixture
    constraint: Constraint
    reference: Callable[[], ModeDistribution]
    first_level: float | None = None  # of noise; None: HEADROOM times the largest standard deviation of the prior
    truth: Tensor | None = None  # a draw on the set (d,), where a posterior mean is to be compared with it
    equations: tuple[Tensor, Tensor] | None = None  # A and y, where the set is A x = y and nothing else

    @cached_property
    def exact(self) -> ModeDistribution:
        """The exact distribution on the set; made when first asked for."""
        return self.reference()

    @cached_property
    def target(self) -> Target:
        """The diffusion with the exact denoiser, ancestral, float64."""
        levels = karras_sigmas(LEVELS, LAST, self.first_level or HEADROOM * self.largest_spread)
        return edm(self.prior.denoise, levels, shape=(self.prior.dimension,), churn=1.0, dtype=torch.float64)

    @property
    def largest_spread(self) -> float:
        """The largest standard deviation of the prior along an axis of a mode, or between modes."""
        prior = self.prior
        centred = prior.means - prior.weights @ prior.means
        between = torch.linalg.matrix_norm(prior.weights.sqrt()[:, None] * centred, 2).square()
        return float((prior.variances.max() + between).sqrt())


# ------------------------------------------------------------------ four modes on equations


def four_equations(d: int, seed: int) -> Problem:
    """Four anisotropic modes on four linear equations."""
    stream = torch.Generator().manual_seed(seed)
    mixture = _four_modes(d, stream)
    A = _orthonormal_rows(4, d, stream)
    y = A @ mixture.means.mean(0)
    prior, exact = _with_all_modes(_moved(mixture, A, y, None, stream), A, y, None)
    return Problem(f"four equations, d = {d}", prior, Affine(A, y), lambda: exact, equations=(A, y))


def mass_energy(d: int, seed: int) -> Problem:
    """Four anisotropic modes of given sum and sum of squares."""
    stream = torch.Generator().manual_seed(seed)
    ones = torch.ones((1, d), dtype=torch.float64)
    mass, energy = math.sqrt(d) * float(_uniform(1.0, 2.0, stream)), float(_uniform(32.0, 40.0, stream))
    y = torch.tensor([mass], dtype=torch.float64)
    prior, exact = _with_all_modes(_moved(_four_modes(d, stream), ones, y, energy, stream), ones, y, energy)
    return Problem(f"mass + energy, d = {d}", prior, MassEnergy(mass, energy), lambda: exact)


def four_equations_and_norm(d: int, seed: int) -> Problem:
    """Four anisotropic modes on four linear equations and a sphere."""
    stream = torch.Generator().manual_seed(seed)
    mixture = _four_modes(d, stream)
    A = _orthonormal_rows(4, d, stream)
    y, square = A @ mixture.means.mean(0), float(_uniform(32.0, 40.0, stream))
    prior, exact = _with_all_modes(_moved(mixture, A, y, square, stream), A, y, square)
    return Problem(f"four equations + norm, d = {d}", prior, Affine(A, y) & Sphere(math.sqrt(square)), lambda: exact)


def _with_all_modes(
    mixture: AnisotropicMixture, A: Tensor, y: Tensor, square: float | None
) -> tuple[AnisotropicMixture, ModeDistribution]:
    """The mixture and its exact distribution on the set, every mode with a weight of at least LEAST_WEIGHT there.

    If one has less, the weights W on the set become W^p / sum W^p with p < 1 such that the least is FLOOR, and the
    prior follows: w_k ~ W_k / (mass of mode k on the set).
    """
    exact = mixture.restricted_to(A, y, square)
    if float(exact.weights.min()) >= LEAST_WEIGHT:
        return mixture, exact

    def least(p: float) -> float:
        return float(torch.softmax(p * exact.log_masses, dim=0).min()) - FLOOR

    power = optimize.brentq(least, 0.0, 1.0)
    odds = torch.softmax((power - 1) * exact.log_masses + mixture.weights.log(), dim=0)
    prior = AnisotropicMixture(odds, mixture.means, mixture.axes, mixture.variances)
    masses = exact.log_masses - mixture.weights.log() + prior.weights.log()
    return prior, replace(exact, log_masses=masses, responsibilities=prior.responsibilities)


def _four_modes(d: int, stream: torch.Generator) -> AnisotropicMixture:
    """Spectra top^2 i^-p, p from 0.8 to 1.6 and top from 1 to 1.6, and means of length 4 to 5.5, in random order."""
    powers = torch.tensor([0.8, 1.0, 1.3, 1.6], dtype=torch.float64)[torch.randperm(4, generator=stream)]
    tops = torch.tensor([1.0, 1.2, 1.4, 1.6], dtype=torch.float64)[torch.randperm(4, generator=stream)]
    lengths = torch.tensor([4.0, 4.5, 5.0, 5.5], dtype=torch.float64)[torch.randperm(4, generator=stream)]
    directions = torch.randn((4, d), generator=stream, dtype=torch.float64)
    means = directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]
    return AnisotropicMixture(
        torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64)[torch.randperm(4, generator=stream)],
        means,
        [_reflections(d, stream) for _ in range(4)],
        torch.stack([_power_law(d, float(p), float(top)) for p, top in zip(powers, tops, strict=True)]),
    )


def _moved(
    mixture: AnisotropicMixture, A: Tensor, y: Tensor, square: float | None, stream: torch.Generator
) -> AnisotropicMixture:
    """The mixture with its means moved, so that A x = y is 0.5 to 1.5 standard deviations off in every mode.

    With ``square``, the part of each mean along {A x = 0} is rescaled, so that |x|^2 is within 1.5 of its own.
    """
    onto = torch.linalg.solve(A @ A.T, A)
    means = []
    for k, mean in enumerate(mixture.means):
        factor = torch.linalg.cholesky(A @ mixture.covariance(k) @ A.T)
        direction = torch.randn(len(y), generator=stream, dtype=torch.float64)
        off = factor @ (direction / direction.norm() * _uniform(0.5, 1.5, stream))
        across, along = (y + off) @ onto, mean - (A @ mean) @ onto
        if square is not None:
            variance, axes = mixture.variances[k], mixture.axes[k]
            coordinates = across + along if axes is None else (across + along) @ axes
            spread = (2 * variance.square().sum() + 4 * (variance * coordinates.square()).sum()).sqrt()
            wanted = square - variance.sum() - across.square().sum() + _uniform(-1.5, 1.5, stream) * spread
            along = along / along.norm() * wanted.clamp_min(1.0).sqrt()
        means.append(across + along)
    return AnisotropicMixture(mixture.weights, torch.stack(means), mixture.axes, mixture.variances)


# ------------------------------------------------------------------ one Gaussian


def norm(d: int, seed: int, deviations: float) -> Problem:
    """A Gaussian given |x|^2, ``deviations`` standard deviations above its mean; below it if negative.

    |x|^2 can be far below its mean only if many coordinates share it. So the spectrum i^-p is steep, p from 1.3 to
    1.7, if it is above, and flatter, p from 0.7 to 0.9, if it is below.
    """
    stream = torch.Generator().manual_seed(seed)
    steep = float(_uniform(1.3, 1.7, stream)) if deviations >= 0 else float(_uniform(0.7, 0.9, stream))
    prior = _gaussian(d, steep, stream)
    square = _square(prior.means[0] @ prior.turns[0].matrix(d), prior.variances[0], deviations)
    name = f"norm {deviations:+g} sd, d = {d}"
    return Problem(name, prior, Sphere(math.sqrt(square)), lambda: prior.restricted_to(square=square))


def half_space(d: int, seed: int) -> Problem:
    """A Gaussian on a half-space a.x >= b of probability 0.0062, 2.5 standard deviations out."""
    stream = torch.Generator().manual_seed(seed)
    prior = _gaussian(d, float(_uniform(1.3, 1.7, stream)), stream)
    decay = torch.arange(1, d + 1, dtype=torch.float64) ** -0.5
    a = prior.turns[0].back(decay * torch.randn((1, d), generator=stream, dtype=torch.float64))[0]
    a = a / a.norm()
    level = float(a @ prior.means[0] + 2.5 * (a @ prior.covariance(0) @ a).sqrt())
    name = f"half-space of probability 0.006, d = {d}"
    return Problem(name, prior, HalfSpace(-a, -level), lambda: prior.restricted_to_slabs(a, level, math.inf))


def box_on_four(d: int, seed: int) -> Problem:
    """A Gaussian with bounds on four coordinates, one in each quarter, of probability 2e-4.

    The bounds are one standard deviation apart, m_i + t sd_i to m_i + (t + 1) sd_i, with t > 0 from the probability.
    """
    stream = torch.Generator().manual_seed(seed)
    prior = _gaussian(d, float(_uniform(1.3, 1.7, stream)), stream)
    bounded = torch.arange(4) * (d // 4) + torch.randint(d // 4, (4,), generator=stream)
    rows = torch.eye(d, dtype=torch.float64)[bounded]
    centre, spread = prior.means[0, bounded], prior.covariance(0).diagonal()[bounded].sqrt()

    def exact(t: float) -> ModeDistribution:
        return prior.restricted_to_slabs(rows, centre + t * spread, centre + (t + 1) * spread)

    t = optimize.brentq(lambda t: exact(t).log_probability - math.log(2e-4), 0.0, 4.0, xtol=1e-6)
    low, high = torch.full((d,), -math.inf, dtype=torch.float64), torch.full((d,), math.inf, dtype=torch.float64)
    low[bounded], high[bounded] = centre + t * spread, centre + (t + 1) * spread
    return Problem(f"box on four coordinates of probability 2e-4, d = {d}", prior, Box(low, high), lambda: exact(t))


def observed_and_norm(d: int, seed: int, deviations: float) -> Problem:
    """A Gaussian field on a square grid, 64 of its values, and its norm.

    The spectrum is (1 + |k|^2)^-p over products of cosines, p from 1 to 1.5, with unit mean variance. The values are
    those of a draw of the field at random points. |x|^2 is ``deviations`` standard deviations above its mean given
    these values. ``truth`` is a draw given both.
    """
    side = math.isqrt(d)
    if side**2 != d:
        raise SettingError(f"a field on a square grid needs a square number of points, got {d}; 1024 is 32 x 32")
    stream = torch.Generator().manual_seed(seed)
    cosines, k = _cosines(side), torch.arange(side, dtype=torch.float64)
    variance = (1 + k[:, None].square() + k.square()).pow(-float(_uniform(1.0, 1.5, stream))).reshape(-1)
    prior = _one_mode(torch.zeros(d, dtype=torch.float64), (cosines, cosines), variance / variance.mean())
    seen = torch.randperm(d, generator=stream)[:64]
    A, y = torch.eye(d, dtype=torch.float64)[seen], prior.sample(1, stream)[0, seen]
    given = prior.restricted_to(A, y)
    square = _square(given.means[0], given.variances[0], deviations)
    exact = prior.restricted_to(A, y, square)
    name = f"64 values + norm {deviations:+g} sd, d = {d}"
    truth = exact.draw(1, stream)[0]
    return Problem(name, prior, Affine(A, y) & Sphere(math.sqrt(square)), lambda: exact, truth=truth)


def _gaussian(d: int, power: float, stream: torch.Generator) -> AnisotropicMixture:
    """Spectrum 4 i^-power, and a mean of 0.7 standard deviations in random directions."""
    Q, variance = _reflections(d, stream), _power_law(d, power, 2.0)
    mean = Q @ (0.7 * variance.sqrt() * torch.randn(d, generator=stream, dtype=torch.float64))
    return _one_mode(mean, Q, variance)


def _one_mode(mean: Tensor, axes: Axes, variance: Tensor) -> AnisotropicMixture:
    return AnisotropicMixture(torch.ones(1, dtype=torch.float64), mean[None], [axes], variance[None])


def _square(means: Tensor, variances: Tensor, deviations: float) -> float:
    """A value of |x|^2 that many standard deviations above its mean, for independent Gaussian coordinates."""
    mean = float((variances + means.square()).sum())
    spread = float((2 * variances.square() + 4 * variances * means.square()).sum().sqrt())
    if mean + deviations * spread <= 0:
        raise SettingError(f"|x|^2 is {mean:.3g} +- {spread:.3g}: nothing is {-deviations:g} deviations below its mean")
    return mean + deviations * spread


# ------------------------------------------------------------------ bounds on all coordinates


def nonnegative(d: int, seed: int) -> Problem:
    """Independent coordinates, half of them with a mean of 1 and half of -1 standard deviations, given x >= 0."""
    stream = torch.Generator().manual_seed(seed)
    spread = 0.5 + 1.5 * torch.rand(d, generator=stream, dtype=torch.float64)
    sign = torch.where(torch.arange(d) < d // 2, -1.0, 1.0)[torch.randperm(d, generator=stream)]
    prior = _one_mode(sign * spread, None, spread.square())
    name = f"nonnegative, independent, d = {d}"
    return Problem(name, prior, Box(0.0, math.inf), lambda: prior.restricted_to_box(0.0, math.inf), first_level=HIGH)


def nonnegative_field(d: int, seed: int, total: bool) -> Problem:
    """A rough stationary field on a ring given x >= 0, and its sum if ``total``; the reference is a Gibbs sampler.

    The spectrum is (1 + frequency)^-p, p from 0.9 to 1.1, with unit variance; the mean is within 0.2 of zero. A given
    sum is 0.75 to 1 times d, about 0.6 of what it is otherwise.
    """
    stream = torch.Generator().manual_seed(seed)
    Q, frequency = _ring(d)
    variance = (1 + frequency).pow(-float(_uniform(0.9, 1.1, stream)))
    variance = variance / variance.mean()
    mean = float(_uniform(-0.2, 0.2, stream)) * torch.ones(d, dtype=torch.float64)
    level = d * float(_uniform(0.75, 1.0, stream))
    prior = _one_mode(mean, Q, variance)

    def exact() -> ModeDistribution:
        found = nonnegative_gibbs(mean, (Q / variance) @ Q.T, level if total else None, seed=seed, **GIBBS)
        centre, spread, error = found.stationary()

        def draw(k: int, count: int, generator: torch.Generator) -> Tensor:
            if count > len(found.points):
                raise SettingError(f"the Gibbs sampler has {len(found.points)} independent points, {count} are asked")
            return found.points[torch.randperm(len(found.points), generator=generator)[:count]]

        return ModeDistribution(
            log_masses=torch.zeros(1, dtype=torch.float64),
            bases=[None],
            means=torch.full((1, d), centre, dtype=torch.float64),
            variances=torch.full((1, d), spread, dtype=torch.float64),
            responsibilities=prior.responsibilities,
            draw_mode=draw,
            most_coordinates=d,
            error=error,
        )

    name = f"nonnegative field{' of given sum' if total else ''}, d = {d}"
    return Problem(name, prior, Simplex(level) if total else Box(0.0, math.inf), exact, first_level=HIGH)


def nonnegative_modes(d: int, seed: int) -> Problem:
    """Two modes of independent coordinates given x >= 0, a common one that violates it more and a rare one.

    The prior odds are exp(3) times the odds given x >= 0, which are from 1 to 2: about .97 to .03 before.
    """
    stream = torch.Generator().manual_seed(seed)
    spread = 0.5 + torch.rand((2, d), generator=stream, dtype=torch.float64)
    t = 0.3 * torch.randn((2, d), generator=stream, dtype=torch.float64)  # means in standard deviations
    places = torch.randperm(d, generator=stream)
    first, second = places[: d // 4], places[d // 4 : d // 2]  # where the modes differ
    t[0, first], t[1, first], t[0, second], t[1, second] = 1.5, 0.0, 0.0, 1.5

    def gain(shift: float) -> float:
        return float((torch.special.log_ndtr(t[1] + shift) - torch.special.log_ndtr(t[0])).sum()) - 3.0

    t[1] += optimize.brentq(gain, -3.0, 3.0, xtol=1e-12)
    odds = float(_uniform(1.0, 2.0, stream)) * math.exp(3.0)
    weights = torch.tensor([odds, 1.0], dtype=torch.float64)
    prior = AnisotropicMixture(weights, t * spread, [None, None], spread.square())
    name = f"nonnegative, two modes, d = {d}"
    return Problem(name, prior, Box(0.0, math.inf), lambda: prior.restricted_to_box(0.0, math.inf), first_level=HIGH)


# ------------------------------------------------------------------ spectra and axes


def _uniform(low: float, high: float, stream: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand((), generator=stream, dtype=torch.float64)


def _power_law(d: int, power: float, top: float) -> Tensor:
    """top^2 i^-power, i = 1 ... d."""
    return top**2 * torch.arange(1, d + 1, dtype=torch.float64) ** -power


def _reflections(d: int, stream: torch.Generator, count: int = 4) -> Tensor:
    """A product of reflections in random directions."""
    Q = torch.eye(d, dtype=torch.float64)
    for _ in range(count):
        v = torch.randn(d, generator=stream, dtype=torch.float64)
        v = v / v.norm()
        Q = Q - 2 * (Q @ v)[:, None] * v
    return Q


def _orthonormal_rows(count: int, d: int, stream: torch.Generator) -> Tensor:
    rows = torch.randn((d, count), generator=stream, dtype=torch.float64)
    return torch.linalg.qr(rows)[0].T.contiguous()


def _cosines(size: int) -> Tensor:
    """Orthonormal cosines of rising frequency, in columns."""
    place = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi * (place[:, None] + 0.5) * place / size) * math.sqrt(2 / size)
    waves[:, 0] = math.sqrt(1 / size)
    return waves


def _ring(d: int) -> tuple[Tensor, Tensor]:
    """Orthonormal cosines and sines on a ring of d points, d even, in columns, and their frequencies (d,)."""
    order = torch.arange(d)
    frequency = ((order + 1) // 2).double()  # 0, 1, 1, 2, 2, ..., d/2
    angle = 2 * math.pi / d * torch.arange(d, dtype=torch.float64)[:, None] * frequency
    waves = torch.where(order % 2 == 1, torch.cos(angle), torch.sin(angle))
    waves[:, 0] = 1.0
    return waves / waves.norm(dim=0), frequency
