"""Distances between samples and a distribution, each with its error and the sampling error of exact draws.

``near_set`` gives a reference that needs no constrained method: the model's own samples near a set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import positive
from casal.constraints import Constraint, geometry
from casal.decoders import Decoder
from casal.errors import SettingError, ShapeError
from casal.methods import effective_size, few_chains

ROUNDING = 1e-12

WANTED = 200.0
"""Effective size that the width is chosen for if none is given."""

CUT = 4.0
"""Distance, in widths, beyond which samples are left out; the kernel is below 4e-4 there."""

HALVINGS = 60
"""Bisections of the width: all digits of a double."""


@dataclass(frozen=True)
class Distance:
    """A distance between samples and a distribution, with its error and the floor of exact samples.

    Attributes:
        value: The distance.
        standard_error: Standard deviation of ``value`` over repetitions of the samples.
        floor: Mean of the same statistic between two independent exact sets of the same (effective) sizes.
        floor_sd: Its standard deviation.

    >>> print(Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015))
    0.034 ± 0.002 (floor 0.028)
    """

    value: float
    standard_error: float
    floor: float
    floor_sd: float

    @property
    def excess(self) -> float:
        """(value - floor) / floor_sd: below about 4, exact samples could have given this value."""
        above = self.value - self.floor
        if self.floor_sd > 0:
            return above / self.floor_sd
        return math.copysign(math.inf, above) if abs(above) > ROUNDING else 0.0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        size = self.standard_error if self.standard_error > 0 else max(abs(self.value), 1e-12) / 100
        digits = max(0, -math.floor(math.log10(size)))
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f} (floor {self.floor:.{digits}f})"


def directions(dimension: int, count: int, generator: torch.Generator) -> Tensor:
    """Uniform unit vectors (count, d)."""
    theta = torch.randn((count, dimension), generator=generator, dtype=torch.float64, device=generator.device)
    return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


def mode_weights_tv(
    samples: Tensor,
    exact_weights: Any,
    *,
    centers: Tensor | None = None,
    weights: Tensor | None = None,
    repeats: int = 2000,
    seed: int = 0,
) -> Distance:
    """Total variation of the weights of modes: TV = 1/2 sum_k |p_k - q_k|, p_k the share of samples in mode k.

    The floor is multinomial: what as many exact samples as these are worth would give.

    Args:
        samples: Labels (n,) of an integer dtype; or samples (n, *event), which take the nearest centre.
        exact_weights: The exact shares q (K,), positive numbers; normalised.
        centers: (K, *event), needed for samples that are not labels.
        weights: Weights of the samples; equal if left out.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.

    >>> import torch
    >>> from casal_lab.distances import mode_weights_tv
    >>> labels = torch.tensor([0] * 60 + [1] * 40)
    >>> round(mode_weights_tv(labels, [0.5, 0.5]).value, 3)
    0.1
    """
    exact = torch.as_tensor(exact_weights, dtype=torch.float64).reshape(-1).to(samples.device)
    exact = _probabilities(exact, exact)
    labels = _labels(samples, centers)
    if bool(((labels < 0) | (labels >= len(exact))).any()):
        raise SettingError(f"labels must lie in 0 ... {len(exact) - 1}, got {int(labels.min())} to {int(labels.max())}")
    w = _probabilities(weights, labels)
    share = torch.zeros_like(exact).scatter_add_(0, labels, w)
    size, generator = max(1, round(float(effective_size(w)))), _generator(seed, labels)
    floor = _variation(_multinomial(exact, size, repeats, generator), exact)
    again = _variation(_multinomial(share, size, repeats, generator), exact)
    return Distance(float(_variation(share, exact)), float(again.std()), float(floor.mean()), float(floor.std()))


def _variation(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (p - q).abs().sum(-1)


def _labels(samples: Tensor, centers: Tensor | None) -> Tensor:
    if centers is not None:
        return torch.cdist(_points(samples, "samples"), _points(centers, "centers")).argmin(1)
    if samples.ndim != 1 or samples.is_floating_point():
        raise ShapeError(
            f"without centers the samples must be integer labels (n,), got {samples.dtype} {tuple(samples.shape)}; "
            "pass centers=(K, *event) to label samples by the nearest one"
        )
    return samples.long()


def _multinomial(p: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """Shares (repeats, K) of ``size`` draws: one binomial after the other, so the cost does not grow with size."""
    left = torch.full((repeats,), float(size), dtype=p.dtype, device=p.device)
    remaining = p.flip(0).cumsum(0).flip(0)
    found = []
    for mass, rest in zip(p, remaining, strict=True):
        chance = (mass / rest).clamp(0.0, 1.0) if float(rest) > 0 else torch.zeros_like(mass)
        count = torch.binomial(left, chance.expand_as(left).contiguous(), generator=generator)
        found.append(count)
        left = left - count
    return torch.stack(found, dim=1) / size


def _points(x: Tensor, name: str) -> Tensor:
    """(n, *event) -> (n, d) in float64, or ShapeError."""
    rows = torch.as_tensor(x).detach().to(torch.float64)
    if rows.ndim == 0 or len(rows) < 2:
        raise ShapeError(f"{name} must hold at least two samples (n, *event), got shape {tuple(rows.shape)}")
    rows = rows.reshape(len(rows), -1)
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise ShapeError(f"{bad} of {len(rows)} samples of {name} are not finite; leave them out, and say so")
    return rows


def _probabilities(weights: Tensor | None, x: Tensor) -> Tensor:
    """Weights (n,) that sum to one."""
    if weights is None:
        return torch.full((len(x),), 1.0 / len(x), dtype=torch.float64, device=x.device)
    w = torch.as_tensor(weights).detach().to(torch.float64).to(x.device)
    if tuple(w.shape) != (len(x),):
        raise ShapeError(f"{len(x)} samples need as many weights, got shape {tuple(w.shape)}")
    if not bool((w >= 0).all()) or not 0.0 < float(w.sum()) < math.inf:
        raise SettingError("weights must be finite, >= 0 and not all zero")
    return w / w.sum()


def _generator(seed: int, x: Tensor) -> torch.Generator:
    """A generator on the device of x."""
    return torch.Generator(device=x.device).manual_seed(seed)


class NearEstimate(NamedTuple):
    """An expectation from the samples near a set.

    Attributes:
        value: The weighted mean.
        standard_error: Its standard error.
        bias: Estimate of the error that comes from the width, which is of second order in it.
    """

    value: float
    standard_error: float
    bias: float


@dataclass(frozen=True)
class NearSet:
    """Samples of a model near a set, moved onto it, with weights.

    Attributes:
        feet: Their nearest points on the set, (m, *event).
        weights: They sum to one, (m,).
        distances: Distances to the set, (m,).
        index: Which of the samples they are, (m,).
        width: Width of the kernel.
        n: Samples that were looked at.
    """

    feet: Tensor
    weights: Tensor
    distances: Tensor
    index: Tensor
    width: float
    n: int

    @property
    def effective_size(self) -> float:
        """1 / sum W^2: how many equally weighted samples these are worth; 0 if there are none."""
        return float(effective_size(self.weights)) if len(self.weights) else 0.0

    def mean(self, values: Tensor) -> NearEstimate:
        """Expectation of a statistic on the set, from its values at ``feet``, (m,).

        The bias is twice the change from the width to width / sqrt(2), for an error that grows like width^2. It has
        about the standard error of the value itself.
        """
        if tuple(values.shape) != tuple(self.weights.shape):
            raise ShapeError(f"values has shape {tuple(values.shape)}; give one for each of the {len(self.feet)} feet")
        if not len(values):
            raise SettingError(f"no sample is within {CUT * self.width:.3g} of the set; use more, or a larger width")
        v = values.to(torch.float64)
        value = (self.weights * v).sum()
        error = (self.weights * (v - value)).square().sum().sqrt()
        narrow = self.weights * torch.exp(-self.distances.square() / (2 * self.width**2))
        bias = 2 * (value - (narrow * v).sum() / narrow.sum())
        return NearEstimate(float(value), float(error), float(bias))


def near_set(
    samples: Tensor, constraint: Constraint, width: float | None = None, *, decoder: Decoder | None = None
) -> NearSet:
    """Keep the samples of an unconstrained run that lie near a set, and weight them by their distance to it:

        weight = exp(-|x - z|^2 / (2 width^2)) / J(x, z),      z = P(x),

    where J is the volume factor of the set (``casal.constraints.log_volume_factor``: one for a flat set,
    (|x| / R)^(d-1) for a sphere; left out where it is unknown). Weighted by it, the nearest points z follow the
    distribution on the set up to an error of order width^2. Compare any statistic of a constrained run with the same
    statistic here: the model's own samples know nothing of levels, slacks or moves. It is the check to make on a
    trained network, whose score at small noise may not fit its own samples (``calibration``).

    The equations of the set count for the distance. Its inequalities must hold at the foot; samples where they do not
    have no weight. So for a set with an interior these are the samples inside, and there is no error of the width.

    The share of samples near a set of codimension k falls like width^k. So the check is for one or two equations, or
    for many samples.

    Args:
        samples: Samples of the model (n, *latent), as ``casal.sample(target, C, Unconstrained(), n).samples``.
        constraint: The set C, in decoded space.
        width: Width of the kernel; if left out, the smallest one with an effective size of WANTED.
        decoder: A, if the samples are not decoded yet.

    Returns:
        Feet and weights; ``near.mean(values)`` is an expectation with its standard error and bias.

    >>> import casal
    >>> x = torch.randn((4000, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> near = near_set(x, casal.Affine([[1.0, 0.0]], [0.5]), width=0.2)
    >>> [round(v, 1) for v in near.mean(near.feet[:, 1] ** 2)[:2]]
    [0.9, 0.0]
    """
    if samples.ndim < 2 or not len(samples):
        raise ShapeError(f"samples has shape {tuple(samples.shape)}; give at least one sample (n, *event)")
    feet, far, tubes, holds = [], [], [], []
    with torch.no_grad():
        for some in few_chains(samples):
            x = (samples[some] if decoder is None else decoder(samples[some])).to(torch.float64)
            foot, inside, tube = geometry.nearest_on_surface(constraint.take(some), x)
            feet.append(foot.to(torch.float64))
            far.append(torch.linalg.vector_norm((x - foot).reshape(len(x), -1), dim=1))
            tubes.append(torch.zeros(len(x), dtype=torch.float64, device=x.device) if tube is None else tube)
            holds.append(inside)
    distance, tube, inside = torch.cat(far), torch.cat(tubes), torch.cat(holds)
    size = _width(distance[inside], tube[inside]) if width is None else positive(width, "width")
    kept = torch.nonzero(inside & (distance <= CUT * size)).flatten()
    weights = torch.softmax(_log_kernel(distance[kept], tube[kept], size), 0)
    return NearSet(torch.cat(feet)[kept], weights, distance[kept], kept, size, len(samples))


def _log_kernel(distance: Tensor, tube: Tensor, width: float) -> Tensor:
    return -distance.square() / (2 * width**2) - tube


def _width(distance: Tensor, tube: Tensor) -> float:
    """The smallest width whose effective size is WANTED, or half the samples where there are fewer."""
    if not len(distance):
        raise SettingError("no sample satisfies the inequalities of the set at its foot; use more samples")
    high = float(distance.max())
    if high == 0.0:
        return 1.0
    wanted, low = min(WANTED, len(distance) / 2), 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = float(effective_size(torch.softmax(_log_kernel(distance, tube, middle), 0))) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high
