"""Populations of weighted chains: the ladder of couplings, resampling, and the finish at the top of the ladder.

A ladder climbs pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2) from rho = 0. At every rung all chains meet: the next rho is
placed, the chains are weighted for it, and they are resampled where the weights have become uneven. At the top the
chains follow pi_rho, and z = P(A x) follows p on C only up to O(1/rho). A ``Finish`` does better where the set
allows it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from casal.errors import DivergedError, SettingError
from casal.methods.context import Context, few_chains

# ---------------------------------------------------------------------------------------------------- the ladder


class Rung(NamedTuple):
    """One rung of the ladder: its rho if it is given, and the number of rungs left, itself included."""

    rho: float | None
    left: int


def rungs(count: int, given: Tensor | None = None) -> list[Rung]:
    """The rungs of a ladder whose rhos are placed by the chains, or given (count,)."""
    return [Rung(None if given is None else float(given[k]), count - k) for k in range(count)]


def half_square(v: Tensor) -> Tensor:
    """|v|^2 / 2, chain by chain, in float64."""
    return torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1, dtype=torch.float64).square() / 2


def next_rho(rho: float, top: float, half: Tensor, weight: Tensor, left: int) -> float:
    """The next rho, placed so that the log-weights spread equally over the rungs that are left.

    The spread of the log-weight grows like sd(dist^2 / 2) d rho, which is c / (rho + r) for a squared distance that is
    nearly Gaussian in the normal direction, c = sqrt(1/2). Reading r off the present spread, equal steps of
    log(rho + r) up to the top are equal steps of the spread.

    Args:
        rho: Where the chains are.
        top: Where the ladder ends.
        half: dist^2 / 2 of every chain, (n,).
        weight: Weights of the chains that sum to one, (n,).
        left: Rungs that are left, this one included.
    """
    spread = float((weight * (half - (weight * half).sum()).square()).sum().sqrt())
    if left == 1 or spread == 0.0:
        return top
    base = max(math.sqrt(0.5) / spread, rho)
    return min(top, base * ((top - rho + base) / base) ** (1.0 / left) - base + rho)


# ---------------------------------------------------------------------------------------------------- the weights


class Population(Protocol):
    """What a state of weighted chains has in common: points, weights, where each chain comes from, the coupling."""

    @property
    def x(self) -> Tensor: ...
    @property
    def z(self) -> Tensor: ...
    @property
    def log_weight(self) -> Tensor: ...
    @property
    def ancestor(self) -> Tensor: ...
    @property
    def rho(self) -> Tensor: ...
    @property
    def _replace(self) -> Callable[..., Any]: ...


Weighted = TypeVar("Weighted", bound=Population)

SMALLEST_GROUP = 16
"""Chains of the same set below which resampling among them says nothing."""


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one, from their logarithms (n,)."""
    return torch.softmax(log_weight, dim=0)


def effective_size(weight: Tensor) -> Tensor:
    """1 / sum W^2: how many equally weighted chains the weighted ones are worth."""
    return 1.0 / weight.square().sum()


def equal_weights(context: Context, n: int) -> tuple[Tensor, Tensor]:
    """``log_weight`` and ``ancestor`` of n chains that start."""
    device = context.like.device
    return torch.zeros(n, dtype=torch.float64, device=device), torch.arange(n, device=device) + context.first


class Groups(NamedTuple):
    """Which chains may take each other's place.

    Attributes:
        members: Indices of the chains of each group; None if all chains are one group.
        islands: Whether the groups sample the same distribution, so that their evidence weighs them.
    """

    members: Sequence[Tensor] | None = None
    islands: bool = False

    def each(self, like: Tensor) -> Sequence[Tensor]:
        """Indices of the chains of each group, for values ``like`` (n,) of all chains."""
        return [torch.arange(len(like), device=like.device)] if self.members is None else self.members

    def by_distribution(self) -> Groups:
        """The groups that sample different distributions: islands are one."""
        return Groups() if self.islands else self

    def weights(self, log_weight: Tensor) -> Tensor:
        """Weights of all chains that sum to one; groups of different distributions share them by their size."""
        weight = torch.empty_like(log_weight)
        for some in self.by_distribution().each(log_weight):
            weight[some] = normalised(log_weight[some]) * (len(some) / len(log_weight))
        return weight


def groups_of(context: Context, n: int, islands: int | None = None) -> Groups:
    """The groups of n chains: islands of equal size, or the chains that share a set where every chain has its own.

    A chain never takes the place of a chain with another set.
    """
    labels = context.constraint.groups()
    if labels is None:
        if islands is None:
            return Groups()
        if n % islands:
            raise SettingError(f"{n} chains do not fall into {islands} islands of equal size; change n or islands")
        order = torch.arange(n, device=context.like.device)
        return Groups(order.reshape(islands, -1).unbind(), islands=True)
    if islands is not None and islands > 1:
        raise SettingError(f"islands = {islands} with a set for each chain: chains of one set are a group already")
    members = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    fewest = min(len(some) for some in members)
    if fewest < SMALLEST_GROUP:
        raise SettingError(
            f"chains are resampled among those with the same set, and of one set there are only {fewest}; repeat every "
            f"parameter at least {SMALLEST_GROUP} times, or take CASAL(dual='chain'), whose chains do not meet"
        )
    return Groups() if len(members) == 1 else Groups([some.to(context.like.device) for some in members])


def systematic(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Indices (n,) of the chains that live on: chain i is drawn n W_i times, rounded up or down.

    One uniform number decides for all chains, and the order of chains is kept, so the result depends on the
    generator alone, never on threads. The cost is one cumulative sum and one binary search a chain: O(n log n).
    """
    n = len(weight)
    edges = torch.cumsum(weight, dim=0)
    shift = torch.rand((), generator=generator, dtype=weight.dtype, device=weight.device)
    points = (torch.arange(n, dtype=weight.dtype, device=weight.device) + shift) / n * edges[-1]
    return torch.searchsorted(edges, points, right=True).clamp_max(n - 1)


def take_chains(state: Weighted, index: Tensor) -> Weighted:
    """The chains with the given indices; parts without a chain dimension are common to all."""
    parts: tuple[Tensor, ...] = tuple(state)  # type: ignore[arg-type]
    return type(state)(*(part[index] if part.ndim else part for part in parts))


def resample(state: Weighted, generator: torch.Generator, groups: Groups, ess: float = math.inf) -> Weighted:
    """Draw every group anew by its weights if its effective size is below a share ``ess`` of its chains.

    After the draw the weights of a group are equal. Islands keep their evidence: their chains carry the mean of the
    weights before.
    """
    old, drawn = state.log_weight, False
    index, log_weight = torch.arange(len(old), device=old.device), old.clone()
    for some in groups.each(old):
        weight = normalised(old[some])
        if float(effective_size(weight)) < ess * len(some):
            index[some], drawn = some[systematic(weight, generator)], True
            log_weight[some] = torch.logsumexp(old[some], 0) - math.log(len(some)) if groups.islands else 0.0
    if not drawn:
        return state
    renewed: Weighted = take_chains(state, index)._replace(log_weight=log_weight)
    return renewed


def population_record(state: Population, groups: Groups) -> dict[str, float]:
    """What the trace keeps of every meeting: rho, effective size, and how many ancestors are alive."""
    return {
        "rho": float(state.rho),
        "ess": float(effective_size(groups.weights(state.log_weight))),
        "ancestors": float(torch.bincount(state.ancestor).count_nonzero()),
    }


# ---------------------------------------------------------------------------------------------------- the finish

LEAST_INSIDE = 0.1
"""Share of chains inside C below which ``Confined`` projects the others instead of replacing them."""

GAUSS_POINTS = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))


class Finish(ABC):
    """What happens after the last rung."""

    evaluations: int = 0
    """How many of the table's score evaluations it uses."""

    @abstractmethod
    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        """Reweight and resample the population."""


class Plain(Finish):
    """z = P(A x), with an error O(1/rho): what is left for other sets, and for a decoder with a thin set."""

    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        return state, population_record(state, groups)


class Reweighted(Finish):
    """weight = p(z) / (p(x) J(x, z)): exact for every rho, at two more score evaluations.

    For a sphere, an affine set, mass and energy: x is a foot z and a normal offset, of density
    p(x) exp(-rho/2 |x - z|^2) J(x, z) in these coordinates. The weight turns it into p(z) times a Gaussian offset.
    log p(x) - log p(z) is the line integral of the score, by two Gauss points.
    """

    evaluations = len(GAUSS_POINTS)

    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        state = state._replace(log_weight=state.log_weight + self.log_weights(context, state.x, state.z))
        lost = torch.nonzero(~torch.isfinite(state.log_weight)).flatten().tolist()
        if lost:
            steps = len(context.table)
            raise DivergedError(
                f"{len(lost)} of {len(state.x)} chains have no finite score in the last correction, after step {steps}",
                step=steps,
                steps=steps,
                chains=lost,
            )
        info = population_record(state, groups)
        return resample(state, generator, groups), {**info, "finish_ess": info["ess"]}

    def log_weights(self, context: Context, x: Tensor, z: Tensor) -> Tensor:
        """log p(z) - log p(x) - log J(x, z), from the score alone."""
        t, parts = context.table.t[-1].to(context.like.device), []
        for some in few_chains(x, z):
            offset = x[some] - z[some]
            scores = torch.stack([context.score(z[some] + share * offset, t) for share in GAUSS_POINTS]).mean(0)
            rise = (scores * offset).reshape(len(offset), -1).sum(1).to(torch.float64)
            wide = x[some].to(torch.float64), z[some].to(torch.float64)
            tube = context.constraint.take(some).log_tube_factor(*wide)
            assert tube is not None, "choose_finish takes Reweighted only for sets with a tube factor"
            parts.append(-rise - tube)
        return torch.cat(parts)


class Confined(Finish):
    """weight = 1 inside C, 0 outside: given that x is inside a set with an interior, it follows p on C exactly.

    Chains outside (the boundary mass, reported) give way to copies of chains inside. If fewer than LEAST_INSIDE are
    inside, too few would be left, and the others are projected.
    """

    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        inside = torch.cat([self._inside(context, state.x, some) for some in few_chains(state.x)])
        outside, apart = 1.0 - float(inside.to(torch.float64).mean()), groups.by_distribution()
        if min(float(inside[some].to(torch.float64).mean()) for some in apart.each(inside)) < LEAST_INSIDE:
            return state, {**population_record(state, groups), "boundary_mass": outside}
        state = state._replace(log_weight=torch.where(inside, state.log_weight, -torch.inf))
        return resample(state, generator, apart), {**population_record(state, groups), "boundary_mass": outside}

    def _inside(self, context: Context, x: Tensor, some: slice) -> Tensor:
        return context.constraint.take(some).violation(context.decode(x[some])) == 0.0


def choose_finish(context: Context, correct: bool) -> Finish:
    """The best finish that the set and the decoder allow."""
    if correct and context.constraint.solid:
        return Confined()
    one = context.constraint.take(slice(0, 1))
    probe = torch.ones((1, *context.latent), dtype=torch.float64, device=context.like.device)
    if correct and context.identity and one.log_tube_factor(probe, probe) is not None:
        return Reweighted()
    return Plain()
