"""Means over samples that share ancestors: their standard errors, and how many independent ancestors they are worth.

Samples of a resampled population descend from starting chains. Two samples of one ancestor are not independent, two of
different ancestors are. With weights W_i that sum to one and f_i = f(z_i),

    mean             = sum_i W_i f_i
    standard error^2 = K / (K - 1) sum_g (sum_{i in g} W_i (f_i - mean))^2        (g runs over the K ancestors)
    G                = 1 / sum_g (sum_{i in g} W_i)^2                             (effective ancestors)

The standard error is at least that of independent samples. Chains that never meet are their own ancestors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.methods import effective_ancestors


class Estimate(NamedTuple):
    """An expectation under the sampled distribution.

    Attributes:
        value: The weighted mean: () or (k,) float64.
        standard_error: Its standard error, of the same shape, with shared ancestors counted.

    >>> print(Estimate(torch.tensor(0.5), torch.tensor(0.02)))
    0.5 ± 0.02
    """

    value: Tensor
    standard_error: Tensor

    def __str__(self) -> str:
        pairs = zip(self.value.reshape(-1).tolist(), self.standard_error.reshape(-1).tolist(), strict=True)
        return ", ".join(f"{value:.4g} ± {error:.2g}" for value, error in pairs)


class Lineage:
    """The weights of samples and the starting chains they descend from.

    Args:
        weights: (n,), >= 0; scaled to sum to one.
        ancestors: (n,) whole numbers, equal where two samples descend from one starting chain.
    """

    def __init__(self, weights: Tensor, ancestors: Tensor) -> None:
        self.weights = weights.to(torch.float64) / weights.sum()
        labels, self._group = torch.unique(ancestors, return_inverse=True)
        self.ancestors = len(labels)

    @property
    def effective(self) -> float:
        """G: how many ancestors with equal shares these are worth."""
        return effective_ancestors(self.weights, self._group)

    def mean(self, values: Tensor) -> Estimate:
        """Mean and standard error of each column of (n, k)."""
        values = values.to(self.weights)
        mean = self.weights @ values
        parts = self.weights[:, None] * (values - mean)
        shared = self._per_ancestor(parts).square().sum(0) * (self.ancestors / max(self.ancestors - 1, 1))
        return Estimate(mean, torch.maximum(shared, parts.square().sum(0)).sqrt())

    def mean_of_others(self, values: Tensor) -> Tensor:
        """For each sample, the mean of (n, k) over the samples of other ancestors: independent of the sample."""
        own = self._per_ancestor(self.weights[:, None] * values)[self._group]
        share = self._per_ancestor(self.weights[:, None])[self._group]
        return (self.weights @ values - own) / (1.0 - share)

    def inflation(self, values: Tensor) -> float:
        """Largest squared standard error of a column of (n, k), in units of that of n independent samples."""
        mean, error = self.mean(values)
        independent = self.weights @ (values.to(mean) - mean).square() / len(values)
        told = independent > 0
        return float((error[told].square() / independent[told]).max()) if bool(told.any()) else 1.0

    def some(self, index: Tensor) -> Lineage:
        """Of the samples with these numbers."""
        return Lineage(self.weights[index], self._group[index])

    def _per_ancestor(self, values: Tensor) -> Tensor:
        return values.new_zeros((self.ancestors, values.shape[1])).index_add_(0, self._group, values)


def two_sided_p(t: Tensor, degrees: float) -> Tensor:
    """P(|T| > |t|) for Student's T, by Wallace's normal approximation (1959), good to 1 % from 10 degrees on:

        z = (8 v + 1) / (8 v + 3) sqrt(v log(1 + t^2 / v)).

    >>> [round(float(two_sided_p(torch.tensor(t), 20.0)), 4) for t in (2.086, 3.850)]
    [0.05, 0.001]
    """
    v = max(degrees, 1.0)
    z = (8 * v + 1) / (8 * v + 3) * (v * torch.log1p(t.to(torch.float64).square() / v)).sqrt()
    return torch.erfc(z / math.sqrt(2.0))
