"""The health of a weighted population: whether it still represents the distribution, and what to change if not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from casal.errors import CasalWarning
from casal.methods import effective_size, normalised

FEWEST_ANCESTORS = 0.02
"""Share of starting chains that must have descendants."""

LEAST_ESS = 0.1
"""Effective size, as a share of the chains, below which one meeting has thrown too much away."""

SEPARATION = 4.5
"""Distance of two clusters of log-weights, in their own standard deviations, from which they are two.

Cut in two at the best place, one Gaussian gives 2.6, a uniform distribution 3.5, an exponential tail 3.0.
"""

SMALL_GROUP = 0.5
NEARLY_ALL = 0.9


class WeightedRun(Protocol):
    """The part of a result that is needed here; ``casal.SampleResult`` has all of it."""

    @property
    def samples(self) -> Tensor: ...

    @property
    def weights(self) -> Tensor: ...

    @property
    def ancestors(self) -> Tensor: ...

    @property
    def trace(self) -> Mapping[str, Tensor]: ...

    @property
    def state(self) -> Any: ...


class Clusters(NamedTuple):
    """Log-weights cut in two where the variance within the parts is least.

    Attributes:
        separation: Distance of the two means over the standard deviation within.
        gap: Distance of the two means, in log-weight.
        chains: How many chains are in the upper part.
        share: The share of all weight they carry.
    """

    separation: float
    gap: float
    chains: int
    share: float


class Population(NamedTuple):
    """What is known of the diversity of a population.

    Attributes:
        n: Chains.
        ess: Effective size of the final weights.
        least_ess: Smallest effective size along the run.
        ancestors: Starting chains with descendants among the samples.
        clusters: Of the final log-weights; None where the weights are equal.
    """

    n: int
    ess: float
    least_ess: float
    ancestors: int
    clusters: Clusters | None

    @property
    def split(self) -> bool:
        """A small group of chains carries nearly all weight, and the log-weights fall into two clusters."""
        return self.clusters is not None and _is_split(self.clusters, self.n)


def population(result: WeightedRun) -> Population:
    """Effective sizes, surviving ancestors and clusters of weights of a run.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=100, step_size=0.1, init=torch.zeros(200, 2))
    >>> result = casal.sample(target, casal.Sphere(1.0), casal.WeightedCASAL(rho=100.0), n=200)
    >>> 1 < casal.diagnostics.population(result).ancestors <= 200
    True
    """
    weights = result.weights
    ess = float(effective_size(weights))
    recorded = result.trace.get("ess")
    least = ess if recorded is None or not len(recorded) else min(ess, float(recorded.min()))
    log_weight = getattr(result.state, "log_weight", None)
    found = None if log_weight is None else clusters(log_weight)
    return Population(len(weights), ess, least, len(torch.unique(result.ancestors)), found)


def clusters(log_weight: Tensor) -> Clusters | None:
    """Cut log-weights in two where the variance between the parts is largest (Fisher's discriminant), in O(n log n).

    The separation, and not the largest gap, is the statistic: the largest gap of a sorted sample lies in its tail,
    and grows with n and with the tails although there is only one cluster. A separation is free of the scale of the
    weights, so one wide cluster (a ladder too steep) is told from two (modes that found unequal luck). None for equal
    or fewer than four finite weights.
    """
    finite = log_weight[torch.isfinite(log_weight)].to(torch.float64)
    if len(finite) < 4 or float(finite.max() - finite.min()) <= 1e-12 * (1.0 + float(finite.abs().max())):
        return None
    v = finite.sort().values
    v = v - v.mean()
    n = len(v)
    count = torch.arange(1, n, dtype=v.dtype, device=v.device)
    lower = v.cumsum(0)[:-1]
    between = lower.square() / count + lower.square() / (n - count)
    cut = int(between.argmax()) + 1
    gap = float(v[cut:].mean() - v[:cut].mean())
    within = max(float(v.square().sum() - between[cut - 1]) / n, 1e-24 * gap**2)
    weight = normalised(v)
    return Clusters(gap / within**0.5, gap, n - cut, float(weight[cut:].sum()))


def _is_split(found: Clusters, n: int) -> bool:
    """Whether there are two clusters, the upper one a minority of at least two chains with nearly all weight."""
    minority = 2 <= found.chains <= SMALL_GROUP * n
    return minority and found.share >= NEARLY_ALL and found.separation >= SEPARATION


def advice(result: WeightedRun) -> list[str]:
    """List problems with the diversity of a run, each with its number and a remedy; empty if there are none.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=100, step_size=0.1, init=torch.zeros(200, 2))
    >>> result = casal.sample(target, casal.Sphere(1.0), casal.WeightedCASAL(rho=100.0), n=200)
    >>> casal.diagnostics.advice(result)
    []
    """
    return _advice(result.trace, len(result.samples), getattr(result.state, "log_weight", None))


def warn_if_degenerate(trace: Mapping[str, Tensor], n: int, log_weight: Tensor | None = None) -> None:
    """Warn if the samples descend from too few starting chains, or if few chains carry nearly all weight."""
    found = None if log_weight is None else clusters(log_weight)
    if _few_ancestors(trace, n) or (found is not None and _is_split(found, n)):
        warnings.warn("; ".join(_advice(trace, n, log_weight)), CasalWarning, stacklevel=4)


def _few_ancestors(trace: Mapping[str, Tensor], n: int) -> bool:
    return "ancestors" in trace and int(trace["ancestors"][-1]) < max(2.0, FEWEST_ANCESTORS * n)


def _advice(trace: Mapping[str, Tensor], n: int, log_weight: Tensor | None) -> list[str]:
    sentences = []
    if _few_ancestors(trace, n):
        least = f" (smallest effective size {float(trace['ess'].min()):.0f})" if "ess" in trace else ""
        sentences.append(
            f"only {int(trace['ancestors'][-1])} of {n} starting chains have descendants among the samples{least}: "
            "use more rejuvenation moves or inner steps per level, a preconditioner, more chains, or several islands "
            "whose samples are pooled"
        )
    if "ess" in trace and float(trace["ess"].min()) < LEAST_ESS * n:
        worst = int(trace["ess"].argmin())
        where = f" at rho = {float(trace['rho'][worst]):.3g}" if "rho" in trace else f" at meeting {worst + 1}"
        sentences.append(
            f"the effective size fell to {float(trace['ess'][worst]):.0f} of {n}{where}: use more levels there "
            "(a slower ladder), or more inner steps per level"
        )
    found = None if log_weight is None else clusters(log_weight)
    if found is not None and _is_split(found, n):
        sentences.append(
            f"{found.chains} of {n} chains carry {100 * found.share:.1f} % of the weight, {found.gap:.1f} above the "
            "others in log-weight: the chains sit in two groups that do not mix; use more inner steps or rejuvenation "
            "moves per level, more levels, or several islands"
        )
    return sentences
