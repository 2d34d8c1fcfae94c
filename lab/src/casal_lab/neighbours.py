"""The model's own samples near a set: a reference for constrained samples that needs no constrained method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.checks import positive
from casal.constraints import Constraint
from casal.decoders import Decoder
from casal.errors import SettingError, ShapeError
from casal.methods import effective_size, few_chains

WANTED = 200.0
"""Effective size that the width is chosen for if none is given."""

CUT = 4.0
"""Distance, in widths, beyond which samples are left out; the kernel is below 4e-4 there."""

HALVINGS = 60


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

    where J is the volume factor of the set (``constraint.log_tube_factor``: one for a flat set, (|x| / R)^(d-1) for a
    sphere; left out where it is unknown). Weighted by it, the feet z follow the distribution on the set up to an error
    of order width^2. Compare any statistic of a constrained run with the same statistic here: the model's own samples
    know nothing of levels, slacks or moves. It is the check to make on a trained network, whose score at small noise
    may not fit its own samples (``calibration``).

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
            foot, inside, tube = constraint.take(some).landing(x)
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
