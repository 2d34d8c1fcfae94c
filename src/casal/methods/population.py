"""Populations of weighted chains: weights, resampling, ancestors, levels, the tempered start, health and estimates.

The state of a weighted method has the fields ``log_weight`` (n,) and ``ancestor`` (n,), the starting chain that each
chain descends from. Every method that weighs chains, and every result, uses the functions of this file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from casal.errors import CasalWarning, SettingError
from casal.methods.problem import Problem

State = TypeVar("State", bound=tuple[Any, ...])

# ---------------------------------------------------------------------------------------------------- weights

SMALLEST_GROUP = 16
"""Chains of the same set and condition below which resampling among them says nothing."""


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one, from their logarithms (n,)."""
    return torch.softmax(log_weight, dim=0)


def effective_size(weight: Tensor) -> Tensor:
    """1 / sum W^2 over the last dim: how many equally weighted chains the weighted ones are worth."""
    return 1.0 / weight.square().sum(-1)


def effective_ancestors(weight: Tensor, ancestor: Tensor) -> float:
    """1 / sum_g W_g^2, W_g the weight of all chains that descend from start g: independent starts they are worth."""
    family = torch.unique(ancestor, return_inverse=True)[1]
    total = torch.zeros_like(weight).index_add_(0, family, weight)
    return float(effective_size(total))


def ancestors_left(ancestor: Tensor) -> float:
    """How many starting chains have descendants."""
    return float(torch.bincount(ancestor).count_nonzero())


def equal_weights(problem: Problem, n: int) -> tuple[Tensor, Tensor]:
    """``log_weight`` and ``ancestor`` of n chains that start."""
    device = problem.like.device
    return torch.zeros(n, dtype=torch.float64, device=device), torch.arange(n, device=device) + problem.first


class Groups(NamedTuple):
    """Which chains may take each other's place.

    Attributes:
        members: Indices of the chains of each group; None if all chains are one group.
        islands: Whether the groups sample the same distribution, so that their evidence weighs them.
    """

    members: Sequence[Tensor] | None = None
    islands: bool = False

    def each(self, like: Tensor) -> Sequence[Tensor]:
        """Indices of the chains of each group, for values ``like`` (n, ...) of all chains."""
        return [torch.arange(len(like), device=like.device)] if self.members is None else self.members

    def by_distribution(self) -> Groups:
        """The groups that sample different distributions: islands are one."""
        return Groups() if self.islands else self

    def side_by_side(self, log_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the chains, and their weights that sum to one, in one row (m,) for each group.

        Rows of smaller groups end in the number n and weights of zero.
        """
        n, members = len(log_weight), list(self.each(log_weight))
        index = members[0][None] if len(members) == 1 else pad_sequence(members, batch_first=True, padding_value=n)
        padded = torch.cat([log_weight, log_weight.new_full((1,), -torch.inf)])
        return index, torch.softmax(padded[index], dim=1)

    def weights(self, log_weight: Tensor) -> Tensor:
        """Weights of all chains that sum to one; groups of different distributions share them by their size."""
        apart, n = self.by_distribution(), len(log_weight)
        if apart.members is None:
            return normalised(log_weight)
        index, rows = apart.side_by_side(log_weight)
        shared = rows * ((index < n).sum(1, keepdim=True) / n)
        return log_weight.new_empty(n + 1).index_put_((index,), shared)[:n]

    def effective_size(self, log_weight: Tensor) -> float:
        """How many equally weighted chains all chains are worth."""
        return float(effective_size(self.weights(log_weight)))


def groups_of(problem: Problem, n: int, islands: int | None = None) -> Groups:
    """The groups of n chains: islands of equal size, or the chains that share set and condition where they differ.

    A chain never takes the place of a chain with another set or another condition.
    """
    labels = problem.groups()
    if labels is None:
        if islands is None:
            return Groups()
        if n % islands:
            raise SettingError(f"{n} chains cannot be split into {islands} islands of equal size; change n or islands")
        order = torch.arange(n, device=problem.like.device)
        return Groups(order.reshape(islands, -1).unbind(), islands=True)
    if islands is not None and islands > 1:
        raise SettingError(
            f"islands = {islands} with a set or a condition for each chain: chains of one set and condition are "
            "resampled among themselves already; leave out islands="
        )
    sizes = torch.unique(labels, return_counts=True)[1].tolist()
    members = labels.argsort(stable=True).split(sizes)
    fewest = min(len(some) for some in members)
    if fewest < SMALLEST_GROUP:
        raise SettingError(
            f"the method needs at least {SMALLEST_GROUP} chains of each PerChain value and condition, found {fewest}: "
            f"repeat every value, values.repeat_interleave({SMALLEST_GROUP}, 0), with as many chains; or use "
            "method=casal.CASAL(rho=casal.constant_gain(1.0)), which does not promise the distribution"
        )
    return Groups() if len(members) == 1 else Groups([some.to(problem.like.device) for some in members])


# ---------------------------------------------------------------------------------------------------- resampling


class Draw(NamedTuple):
    """What resampling decides.

    Attributes:
        chosen: Number of the chain that takes each place: (n,), or (n, w) numbers of particles.
        log_weight: Logarithms of the weights afterwards, of the same shape.
        renewed: Whether the group of each chain was drawn anew, (n,).
    """

    chosen: Tensor
    log_weight: Tensor
    renewed: Tensor


def systematic(weight: Tensor, generator: torch.Generator, count: int | None = None) -> Tensor:
    """Indices (n,) of the chains that live on: chain i is drawn n W_i times, rounded up or down.

    One uniform number decides for all chains, and the order of chains is kept, so the result depends on the
    generator alone, never on threads. The cost is one cumulative sum and one binary search a chain: O(n log n).
    With ``count`` as many indices are drawn instead of n.
    """
    n = len(weight) if count is None else count
    edges = torch.cumsum(weight, dim=0)
    shift = torch.rand((), generator=generator, dtype=weight.dtype, device=weight.device)
    points = (torch.arange(n, dtype=weight.dtype, device=weight.device) + shift) / n * edges[-1]
    return torch.searchsorted(edges, points, right=True).clamp_max(len(weight) - 1)


def draw(
    log_weight: Tensor,
    groups: Groups,
    generator: torch.Generator,
    ess: float = math.inf,
    *,
    points: Tensor | None = None,
    width: int | None = None,
) -> Draw | None:
    """Draw every group anew by its weights if its effective size is below a share ``ess`` of its chains.

    After the draw the weights of a group are equal. Islands keep their evidence: their chains carry the mean of the
    weights before.

    Args:
        log_weight: (n,), or (n, w) where each chain is w particles.
        groups: Which chains may take each other's place.
        generator: For the draw.
        ess: The share.
        points: Points (n w, ...) by which particles are put in order before they are drawn, and shuffled after; without
            them the order of the chains is kept.
        width: Particles of a chain afterwards, if all groups are drawn; else w.

    Returns:
        None if no group was drawn.
    """
    before, device = log_weight.reshape(len(log_weight), -1).shape[1], log_weight.device
    after, old, each = width or before, log_weight.reshape(-1), groups.each(log_weight)
    numbers = torch.arange(before, device=device)
    particles = each if before == 1 else [(chains[:, None] * before + numbers).reshape(-1) for chains in each]
    rows = Groups(particles).side_by_side(old)[1]
    index = torch.arange(len(old), device=device).reshape(-1, before)[:, :after].clone()
    new = old.reshape(-1, before)[:, :after].clone()
    renewed, drawn = torch.zeros(len(log_weight), dtype=torch.bool, device=device), False
    for chains, some, row, size in zip(each, particles, rows, effective_size(rows).tolist(), strict=True):
        if size >= ess * len(some):
            continue
        weight, count = row[: len(some)], len(chains) * after
        if points is None:
            found = systematic(weight, generator, count)
        else:
            order = in_order(points[some])
            kept = systematic(weight[order], generator, count)
            found = order[kept[torch.randperm(count, generator=generator, device=generator.device).to(device)]]
        index[chains] = some[found].reshape(-1, after)
        new[chains] = torch.logsumexp(old[some], 0) - math.log(len(some)) if groups.islands else 0.0
        renewed[chains], drawn = True, True
    shape = (-1,) if log_weight.ndim == 1 else (-1, after)
    return Draw(index.reshape(shape), new.reshape(shape), renewed) if drawn else None


def take_chains(state: State, index: Tensor) -> State:
    """The chains with the given indices; parts without a chain dimension are common to all."""
    return type(state)(*(part[index] if part.ndim else part for part in state))


def resample(state: Any, generator: torch.Generator, groups: Groups, ess: float = math.inf) -> Any:
    """The state after ``draw``."""
    found = draw(state.log_weight, groups, generator, ess)
    return state if found is None else take_chains(state, found.chosen)._replace(log_weight=found.log_weight)


def in_order(points: Tensor, leaf: int = 4, axes: int = 4) -> Tensor:
    """An order (n,) of points (n, ...) in which neighbours are alike: halved again and again along their widest axis.

    Systematic resampling in this order draws every region, and so every mode, in proportion to its weight, rounded.

    Args:
        points: The points.
        leaf: Points that are not halved any more.
        axes: Leading principal directions along which they are halved.
    """
    x = points.flatten(1).to(torch.float64)
    x = x - x.mean(0)
    count = min(axes, *x.shape)
    gram = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    values, directions = torch.linalg.eigh(gram)
    leading = directions[:, -count:]
    flat = x @ leading if x.shape[1] <= len(x) else leading * values[-count:].clamp_min(0.0).sqrt()
    order, open_parts = list[Tensor](), [torch.arange(len(x), device=x.device)]
    while open_parts:
        part = open_parts.pop()
        if len(part) <= leaf:
            order.append(part)
            continue
        here = flat[part]
        part = part[here[:, here.var(0).argmax()].argsort(stable=True)]
        middle = len(part) // 2
        open_parts += [part[middle:], part[:middle]]
    return torch.cat(order)


# ---------------------------------------------------------------------------------------------------- levels

LEVELS_ALONE = 8
"""Levels from one exchange of the chains to the next, at most."""


class Growth(NamedTuple):
    """Levels in equal steps of log(rho + r): rho' + r = q (rho + r)."""

    r: float
    q: float

    def next(self, rho: float, top: float) -> float:
        """The level after rho."""
        base = rho + self.r
        return min(top, base * self.q - base + rho)


def growth(rho: float, top: float, spread: float, left: int) -> Growth:
    """The growth from rho to the top in ``left`` levels, such that the log-weights spread equally over them.

    Weights exp(-(rho' - rho) h), h = dist^2 / 2, spread by sd(h) d rho, which is c / (rho + r) d rho for a squared
    distance that is nearly Gaussian in the normal direction, c = sqrt(1/2). Reading r off the present spread, equal
    steps of log(rho + r) up to the top are equal steps of the spread.

    Args:
        rho: Where the chains are.
        top: Where the levels end.
        spread: sd(h) at present.
        left: Levels that are left, the next one included.
    """
    if left == 1 or spread == 0.0:
        return Growth(0.0 if rho else 1.0, math.inf)
    base = max(math.sqrt(0.5) / spread, rho)
    return Growth(base - rho, ((top - rho + base) / base) ** (1.0 / left))


def next_level(rho: float, top: float, half_distance2: Tensor, weight: Tensor, left: int) -> float:
    """The next rho of chains with dist^2 / 2 (n,) and weights (n,) that sum to one, by ``growth``."""
    return growth(rho, top, spread_of(half_distance2, weight), left).next(rho, top)


def spread_of(values: Tensor, weight: Tensor) -> float:
    """Standard deviation of values (n,) under weights that sum to one."""
    unit = max(1.0, float(values.abs().amax()) / 1e150)  # so that squares of huge numbers stay finite
    off = values / unit
    return unit * float((weight * (off - (weight * off).sum()).square()).sum().sqrt())


def allowed_growth(now: float, ess: float, spread: float) -> float:
    """By how much rho may grow until the effective size may have fallen below a share ``ess`` of the chains.

    Log-weights that spread by v make the effective size exp(-v^2) of the chains, as for a normal distribution. A growth
    by d rho adds at most d rho sd(dist^2 / 2) to v: distances shrink on the way, and change.

    Args:
        now: The effective size, a share of the chains. Below ``ess`` they are resampled, and it is one.
        ess: The share at which chains are resampled.
        spread: sd(dist^2 / 2) at present.
    """
    spent = 0.0 if now < ess else math.sqrt(max(0.0, -math.log(now)))
    return max(0.0, math.sqrt(-math.log(ess)) - spent) / spread if spread else math.inf


# ---------------------------------------------------------------------------------------------------- tempered start


def temper(
    share: float, log_weight: Tensor, gain: Tensor, groups: Groups, left: int, least_ess: float | None, pace: float
) -> tuple[float, Tensor]:
    """The next level of a tempered start, from chains that follow q^(1-b) p^b:

        weight *= (p(x) / q(x))^(b' - b)

    With b = 0 ... 1 and moves that keep each level, chains that began as draws of q follow p, and separate modes of p
    have their weights wherever the chains came from. The levels are placed by ``growth``, and no nearer to each other
    than where log-weights spread by ``pace``: a way that is short takes few of them.

    Args:
        share: b, where the chains are.
        log_weight: Logarithms of their weights, (n,).
        gain: log p - log q of every chain, (n,). Where p or q is zero it counts as the least that is finite.
        groups: Chains that sample different distributions.
        left: Levels that are left, the next one included.
        least_ess: No level leaves the new weights of a group less than this share of its chains; None if it may.
        pace: Standard deviation of what a level adds to the log-weights, at least.

    Returns:
        b' and the logarithms of the weights there.
    """
    possible = torch.isfinite(gain)  # a start may lie where p is zero
    gain = torch.where(possible, gain, gain[possible].amin() if bool(possible.any()) else 0.0)
    weight = groups.weights(log_weight)
    b = next_level(share, 1.0, -gain, weight, left)
    b = min(1.0, max(b, share + pace / max(spread_of(gain, weight), 1e-300)))
    if least_ess is not None:
        b = min(b, largest_share(groups, share, gain, least_ess))
    return b, log_weight + (b - share) * gain


def largest_share(groups: Groups, b: float, gain: Tensor, least_ess: float) -> float:
    """The largest b' <= 1 at which weights exp((b' - b) gain) leave a share ``least_ess`` of every group."""

    def leaves_enough(step: float) -> bool:
        index, rows = groups.side_by_side(step * gain)
        return float((effective_size(rows) / (index < len(gain)).sum(1)).min()) >= least_ess

    low, high = 0.0, 1.0 - b
    if leaves_enough(high):
        return 1.0
    for _ in range(60):  # bisection; steps may be smaller than 1e-6
        middle = 0.5 * (low + high)
        low, high = (middle, high) if leaves_enough(middle) else (low, middle)
    return b + low


# ---------------------------------------------------------------------------------------------------- estimates


def student_quantile(p: float, degrees: float) -> float:
    """The t with P(|T| > t) = p for Student's T, by Wallace's normal approximation (1959) in closed form.

    >>> round(student_quantile(0.05, 20.0), 3)
    2.086
    """
    v = max(degrees, 1.0)
    z = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(1.0 - p, dtype=torch.float64))) * (8 * v + 3) / (8 * v + 1)
    return math.sqrt(v * math.expm1(z**2 / v))


class _Pair(NamedTuple):
    value: Tensor
    standard_error: Tensor


class Estimate(_Pair):
    """An expectation under the sampled distribution: a pair, ``value, error = estimate``.

    Attributes:
        value: The weighted mean: () or (k,) float64.
        standard_error: Its standard error, of the same shape, with shared ancestors counted; for few of them widened
            as Student's distribution asks, so that 1.96 of it give a 95 % interval.
        note: What the standard error does not say, such as "distribution not promised"; printed in brackets.

    >>> print(Estimate(torch.tensor(0.5), torch.tensor(0.02)))
    0.5 ± 0.02
    """

    note: str

    def __new__(cls, value: Tensor, standard_error: Tensor, note: str = "") -> Estimate:
        pair = super().__new__(cls, value, standard_error)
        pair.note = note
        return pair

    def __str__(self) -> str:
        pairs = zip(self.value.reshape(-1).tolist(), self.standard_error.reshape(-1).tolist(), strict=True)
        shown = ", ".join(f"{value:.4g} ± {error:.2g}" for value, error in pairs)
        return f"{shown} ({self.note})" if self.note else shown

    __repr__ = __str__


NORMAL = 1.96
"""Standard errors on either side of a 95 % interval."""


class Lineage:
    """The weights of samples and the starting chains they descend from.

    Two samples of one ancestor are not independent, two of different ancestors are. With weights W_i that sum to one
    and f_i = f(z_i),

        mean             = sum_i W_i f_i
        standard error^2 = K / (K - 1) sum_g (sum_{i in g} W_i (f_i - mean))^2        (g runs over the K ancestors)
        G                = 1 / sum_g (sum_{i in g} W_i)^2                             (effective ancestors)

    The standard error is at least that of independent samples. Chains that are never resampled are their own ancestors.

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

    def estimate(self, values: Tensor) -> Estimate:
        """The same for a reader: errors of few ancestors are widened, so that value +- 1.96 errors is a 95 % interval.

        Their spread is not known well: the interval is Student's, with G - 1 degrees of freedom.
        """
        value, error = self.mean(values)
        return Estimate(value, error * (student_quantile(0.05, self.effective - 1.0) / NORMAL))

    def skewness(self, values: Tensor) -> Tensor:
        """Third over the 3/2 power of the second moment of the means of (n, k), (k,), from those of the families."""
        parts = self._per_ancestor(self.weights[:, None] * (values.to(self.weights) - self.weights @ values))
        return parts.pow(3).sum(0) / parts.square().sum(0).pow(1.5).clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def halves(self) -> Tensor:
        """0 or 1 for each sample, (n,): two halves of about equal weight, each of whole families."""
        order = self._per_ancestor(self.weights[:, None])[:, 0].argsort(descending=True, stable=True)
        place = torch.arange(self.ancestors, device=order.device)
        half = torch.empty_like(order).index_copy_(0, order, (place + 1) // 2 % 2)  # 0 1 1 0 0 1 1 ...
        return half[self._group]

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


# ---------------------------------------------------------------------------------------------------- health

FEWEST_ANCESTORS = 0.02
"""Share of starting chains that must have descendants."""

LEAST_ESS = 0.1
"""Effective size, as a share of the chains, below which one exchange has thrown too much away."""

SEPARATION = 4.5
"""Distance of two clusters of log-weights, in their own standard deviations, from which they are two.

Cut in two at the best place, one Gaussian gives 2.6, a uniform distribution 3.5, an exponential tail 3.0.
"""

SMALL_GROUP, NEARLY_ALL = 0.5, 0.9
"""Share of the chains that is a minority, and share of the weight that is nearly all of it."""


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
    return "ancestors" in trace and int(trace["ancestors"][-1]) < min(n, max(2.0, FEWEST_ANCESTORS * n))


def _advice(trace: Mapping[str, Tensor], n: int, log_weight: Tensor | None) -> list[str]:
    sentences = []
    if _few_ancestors(trace, n):
        least = f" (lowest ESS {float(trace['ess'].min()):.0f})" if "ess" in trace else ""
        sentences.append(
            f"only {int(trace['ancestors'][-1])} of {n} starts have descendants among the samples{least}: use more "
            "chains, more steps or levels, or a preconditioner"
        )
    if "ess" in trace and float(trace["ess"].min()) < LEAST_ESS * n:
        worst = int(trace["ess"].argmin())
        where = f" at rho = {float(trace['rho'][worst]):.3g}" if "rho" in trace else f" at resampling {worst + 1}"
        sentences.append(f"the ESS fell to {float(trace['ess'][worst]):.0f} of {n}{where}: use more steps or levels")
    found = None if log_weight is None else clusters(log_weight)
    if found is not None and _is_split(found, n):
        sentences.append(
            f"{found.chains} of {n} chains carry {100 * found.share:.1f} % of the weight (log-weights {found.gap:.1f} "
            "above the others): the chains are in two groups that do not mix; use more steps or levels"
        )
    return sentences
