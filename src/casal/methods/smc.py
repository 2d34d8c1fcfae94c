"""Populations of weighted chains: the ladder of couplings, resampling, and the finish at the top of the ladder.

A ladder climbs pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2) from rho = 0. Where all chains meet, the next rungs are
placed, the chains are weighted, and they are resampled if the weights have become uneven. At the top the
chains follow pi_rho, and z = P(A x) follows p on C only up to O(1/rho). A ``Finish`` does better where the set
allows it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Constraint, Parts, half_square
from casal.errors import DivergedError, SettingError
from casal.methods.context import Context, few_chains

# ---------------------------------------------------------------------------------------------------- the ladder

MOVE = 0.2
"""Share of its distance to C that a chain may relax in one Langevin move; bounds the step by MOVE / rho."""

DRIFT_LIMIT = 10.0
"""Largest drift of one Langevin move, in units of the square root of its step: a steep tail cannot fling a chain away.
A stable step on a Gaussian stays below it up to ten standard deviations."""


class Rung(NamedTuple):
    """One rung of the ladder: its rho if it is given, and the number of rungs left, itself included."""

    rho: float | None
    left: int


def rungs(count: int, given: Tensor | None = None) -> list[Rung]:
    """The rungs of a ladder whose rhos are placed by the chains, or given (count,)."""
    return [Rung(None if given is None else float(given[k]), count - k) for k in range(count)]


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
    return pace(rho, top, spread_of(half, weight), left).next(rho, top)


def spread_of(half: Tensor, weight: Tensor) -> float:
    """Standard deviation of dist^2 / 2 (n,) under weights that sum to one."""
    return float((weight * (half - (weight * half).sum()).square()).sum().sqrt())


class Pace(NamedTuple):
    """Rungs in equal steps of log(rho + r): rho' + r = q (rho + r)."""

    r: float
    q: float

    def next(self, rho: float, top: float) -> float:
        """The rung after rho."""
        base = rho + self.r
        return min(top, base * self.q - base + rho)


def pace(rho: float, top: float, spread: float, left: int) -> Pace:
    """The pace of ``next_rho`` from rho to the top in ``left`` rungs, for a present spread sd(dist^2 / 2)."""
    if left == 1 or spread == 0.0:
        return Pace(0.0 if rho else 1.0, math.inf)
    base = max(math.sqrt(0.5) / spread, rho)
    return Pace(base - rho, ((top - rho + base) / base) ** (1.0 / left))


RUNGS_ALONE = 8
"""Rungs from one meeting to the next, at most."""


def rungs_alone(now: float, ess: float, spread: float) -> float:
    """By how much rho may grow until the effective size may have fallen below a share ``ess`` of the chains.

    Log-weights that spread by v make the effective size exp(-v^2) of the chains, as for a normal distribution. A climb
    by d rho adds at most d rho sd(dist^2 / 2) to v: distances shrink on the way, and change.

    Args:
        now: The effective size, a share of the chains. Below ``ess`` they are resampled, and it is one.
        ess: The share at which chains are resampled.
        spread: sd(dist^2 / 2) at present.
    """
    spent = 0.0 if now < ess else math.sqrt(max(0.0, -math.log(now)))
    return max(0.0, math.sqrt(-math.log(ess)) - spent) / spread if spread else math.inf


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
"""Chains of the same set and condition below which resampling among them says nothing."""


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one, from their logarithms (n,)."""
    return torch.softmax(log_weight, dim=0)


def effective_size(weight: Tensor) -> Tensor:
    """1 / sum W^2: how many equally weighted chains the weighted ones are worth."""
    return 1.0 / weight.square().sum()


def effective_ancestors(weight: Tensor, ancestor: Tensor) -> float:
    """1 / sum_g W_g^2, W_g the weight of all chains that descend from start g: independent starts they are worth."""
    family = torch.unique(ancestor, return_inverse=True)[1]
    total = torch.zeros_like(weight).index_add_(0, family, weight)
    return float(effective_size(total))


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
        if self.by_distribution().members is None:
            return normalised(log_weight)
        weight = torch.empty_like(log_weight)
        for some in self.by_distribution().each(log_weight):
            weight[some] = normalised(log_weight[some]) * (len(some) / len(log_weight))
        return weight


def groups_of(context: Context, n: int, islands: int | None = None) -> Groups:
    """The groups of n chains: islands of equal size, or the chains that share set and condition where they differ.

    A chain never takes the place of a chain with another set or another condition.
    """
    labels = context.groups()
    if labels is None:
        if islands is None:
            return Groups()
        if n % islands:
            raise SettingError(f"{n} chains do not fall into {islands} islands of equal size; change n or islands")
        order = torch.arange(n, device=context.like.device)
        return Groups(order.reshape(islands, -1).unbind(), islands=True)
    if islands is not None and islands > 1:
        raise SettingError(
            f"islands = {islands} with a set or a condition for each chain: chains of one set and condition are a "
            "group already"
        )
    members = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    fewest = min(len(some) for some in members)
    if fewest < SMALLEST_GROUP:
        raise SettingError(
            f"chains are resampled among those with the same set and condition, and of one kind there are only "
            f"{fewest}; repeat every parameter at least {SMALLEST_GROUP} times, and every condition, or take "
            "CASAL(dual='chain'), whose chains do not meet"
        )
    return Groups() if len(members) == 1 else Groups([some.to(context.like.device) for some in members])


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


def take_chains(state: Weighted, index: Tensor) -> Weighted:
    """The chains with the given indices; parts without a chain dimension are common to all."""
    parts: tuple[Tensor, ...] = tuple(state)  # type: ignore[arg-type]
    return type(state)(*(part[index] if part.ndim else part for part in parts))


def resample(
    state: Weighted, generator: torch.Generator, groups: Groups, ess: float = math.inf, size: float = 0.0
) -> Weighted:
    """Draw every group anew by its weights if its effective size is below a share ``ess`` of its chains.

    After the draw the weights of a group are equal. Islands keep their evidence: their chains carry the mean of the
    weights before.

    Args:
        state: The chains.
        generator: For the draw.
        groups: Which chains may take each other's place.
        ess: The share.
        size: The effective size where it is known already; it counts if all chains are one group.
    """
    old, renewed = state.log_weight, state
    if groups.members is None:
        found = None if size >= ess * len(old) else _drawn(old, generator, ess)
        if found is not None:
            renewed = take_chains(state, found)._replace(log_weight=torch.zeros_like(old))
        return renewed
    index, log_weight, drawn = torch.arange(len(old), device=old.device), old.clone(), False
    for some in groups.members:
        found = _drawn(old[some], generator, ess)
        if found is not None:
            index[some], drawn = some[found], True
            log_weight[some] = torch.logsumexp(old[some], 0) - math.log(len(some)) if groups.islands else 0.0
    return take_chains(state, index)._replace(log_weight=log_weight) if drawn else state


def _drawn(log_weight: Tensor, generator: torch.Generator, ess: float) -> Tensor | None:
    """Numbers of the chains that are drawn; None if the effective size is not below a share ``ess`` of them."""
    weight = normalised(log_weight)
    return systematic(weight, generator) if float(effective_size(weight)) < ess * len(weight) else None


def population_record(state: Population, groups: Groups) -> dict[str, float]:
    """What the trace keeps of every meeting: rho, effective size, and how many ancestors are alive."""
    return {
        "rho": float(state.rho),
        "ess": float(effective_size(groups.weights(state.log_weight))),
        "ancestors": float(torch.bincount(state.ancestor).count_nonzero()),
    }


# ------------------------------------------------------------------------------------------- the top of the ladder

LEAST_INSIDE = 0.75
"""Share of chains whose foot satisfies the inequalities, from which on the ladder may end."""

CARRIED, LEFT = 0.3, 0.1
"""Spread of the log-weights of the last correction from which on the ladder may end: where there is a correction, and
where there is none and exp of it is what is left of the error."""

WITHIN_REACH = 4.0
"""How many times the slack at the top of the ladder fits into the reach of the set."""

LOOKS = 10
"""Rungs from one look at the chains to the next; the last ones look every time."""

WIDEST_STEP = 100.0
"""Factor of rho beyond which nothing is extrapolated."""


def look_due(rung: Rung) -> bool:
    """Whether the chains are looked at on this rung to find the top of the ladder."""
    return rung.left % LOOKS == 0 or rung.left < LOOKS


def slack_rho(rho: float, half: Tensor, weight: Tensor) -> float:
    """The rho of a slack as large as the distances of the chains are now."""
    mean = float((weight * half).sum())
    return max(rho, 0.5 / mean) if mean > 0.0 else rho


def top_for_inside(
    rho: float, half: Tensor, weight: Tensor, inside: Tensor, groups: Groups, least: float = 0.0
) -> float:
    """The rho at which the feet of LEAST_INSIDE of the chains satisfy the inequalities.

    Chains outside are at most a slack of size rho^(-1/2) away, so -log of the share inside shrinks like rho^(-1/2).

    Args:
        rho: Where the chains are.
        half: dist(A x, C)^2 / 2 of every chain, (n,).
        weight: Weights that sum to one, (n,).
        inside: Whether the foot satisfies the inequalities, (n,) bool.
        groups: Chains that sample different distributions; the one that needs most decides.
        least: The ladder does not end below this rho.
    """
    here, top = slack_rho(rho, half, weight), max(rho, least)
    for some in groups.by_distribution().each(half):
        share = float((weight[some] * inside[some]).sum() / weight[some].sum())
        if share < LEAST_INSIDE:
            lost = math.log(max(share, 0.5 / len(some))) / math.log(LEAST_INSIDE)
            top = max(top, here * min(lost**2, WIDEST_STEP))
    return top


def top_for_spread(rho: float, half: Tensor, weight: Tensor, rise: Tensor, spread: float, least: float = 0.0) -> float:
    """The rho at which the correction from x to its foot z spreads by no more than ``spread``.

    The correction log p(x) - log p(z) + log J(x, z) is of the size of the slack, rho^(-1/2). It is read off the model's
    own score along the normals of the set, so no scale of the data is assumed.

    Args:
        rho: Where the chains are.
        half: dist(A x, C)^2 / 2 of the chains, (n,).
        weight: Weights that sum to one, of all chains or of the few whose correction is known.
        rise: The correction of these chains to first order.
        spread: Standard deviation that it must reach.
        least: The ladder does not end below this rho.
    """
    change = (rise - rise.median()).clamp(-MOST_RISE, MOST_RISE)
    off = float((weight * (change - (weight * change).sum()).square()).sum().sqrt())
    off = off if math.isfinite(off) else 1.0  # nothing was read yet
    here = slack_rho(rho, half, torch.full_like(half, 1.0 / len(half)) if len(half) != len(weight) else weight)
    return max(rho, least, here * min((off / spread) ** 2, WIDEST_STEP))


def crossing_share(context: Context, z: Tensor, rho: float, weight: Tensor) -> float:
    """Share of chains whose foot lies within two slacks of another piece of a union of thin sets; else zero.

    There the tubes of two pieces overlap, and a chain counts for the nearer one alone: around a crossing a gap of the
    size of the slack is left.
    """
    whole, event = context.constraint, tuple(z.shape[1:])
    if not whole.in_pieces or rho <= 0.0 or whole.codimension(event) == 0:
        return 0.0
    second = torch.cat([_second_nearest(whole.take(some).pieces(event), z[some]) for some in few_chains(z)])
    return float((weight * (second < 2.0 / rho)).sum())


def _second_nearest(pieces: Sequence[Constraint], z: Tensor) -> Tensor:
    """Half the squared distance to the second nearest piece, (n,); infinite if there is one piece alone."""
    wide = z.to(torch.float64)
    squares = [half_square(wide - piece.project(wide)) for piece in pieces]
    alone = torch.full_like(squares[0], torch.inf)
    return torch.stack([*squares, alone]).kthvalue(2, dim=0).values


def top_for_crossings(context: Context, z: Tensor, rho: float, weight: Tensor, least: float) -> float:
    """The rho at which few feet of a union lie near a crossing: their share shrinks like rho^(-1/2)."""
    return max(least, rho * min((crossing_share(context, z, rho, weight) / CROSSING) ** 2, WIDEST_STEP))


CROSSING = 0.007
"""Share of chains near a crossing of two pieces from which on the ladder may end."""

MOST_RISE = 20.0
"""How far corrections may lie from their median, so that one chain far out does not decide alone."""


# ---------------------------------------------------------------------------------------------------- the finish

FEWEST_INSIDE = 16
"""Chains inside below which the finish leaves the others where they are: their samples lie on the boundary."""

FEWEST_CARRIED = 50
"""Effective size after the last correction, or half of all chains, below which it is left out."""

GAUSS_POINTS = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))

Score: TypeAlias = Callable[[Context, Any, Tensor], Tensor]
"""``score(context, state, x)``: the gradient of log p at clean points."""


Coupling: TypeAlias = Callable[[Context, Tensor, float], Tensor]
"""``log_coupling(context, decoded, rho)``: log Phi_rho of decoded points, (n,)."""


class Finish(ABC):
    """What happens after the last rung."""

    evaluations: int = 0
    """How many score evaluations it uses."""

    @abstractmethod
    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        """Reweight and resample the population."""


class Plain(Finish):
    """z = P(A x), with an error of order rho^(-1/2) at edges and 1/rho elsewhere."""

    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        return state, population_record(state, groups)


class Landed(Finish):
    """Turns chains near C into samples of p on C, by weights:

        weight = 1 if the foot z satisfies the inequalities, else 0;   times   p(x - o) / (p(x) J(A x, z))

    z is the foot of A x on the surface part of C and o the offset A x - z seen in the latent, A o = A x - z. In the
    coordinates (z, offset, what A does not see) x has the density p(x) exp(-rho/2 |A x - z|^2) J(A x, z) where z is in
    C, so the weight is exact for every rho as long as the slack is below the reach of the surface. log p(x) -
    log p(x - o) is the line integral of the score, by two Gauss points. The second factor needs a tube factor and a
    linear decoder that reaches all of decoded space; without them an error of order 1 / rho is left. A set with an
    interior has z = A x, and the first factor alone is exact.

    Where fewer than FEWEST_INSIDE chains are inside, the others stay and their samples lie on the boundary; the trace
    says so by ``inside``. Where the second factor would leave an effective size below FEWEST_CARRIED, the slack is too
    wide for it, or the score is wrong. Then it is left out, and ``carried`` is 0.

    Args:
        score: The score at clean points; None leaves out the second factor.
        log_coupling: log Phi of the last rung at a chain, where it is not -rho/2 dist(A x, C)^2.
    """

    def __init__(self, score: Score | None, log_coupling: Coupling | None = None) -> None:
        self.score, self.log_coupling = score, log_coupling
        self.evaluations = 0 if score is None else len(GAUSS_POINTS)

    def __call__(
        self, context: Context, state: Weighted, generator: torch.Generator, groups: Groups
    ) -> tuple[Weighted, Mapping[str, float]]:
        parts = [self._look(context, state, some) for some in few_chains(state.x, state.z)]
        inside, change = (torch.cat(column) for column in zip(*parts, strict=True))
        lost = torch.nonzero(~torch.isfinite(change)).flatten().tolist()
        if lost:
            steps = len(context.table)
            raise DivergedError(
                f"{len(lost)} of {len(state.x)} chains have no finite score in the last correction, after step {steps}",
                step=steps,
                steps=steps,
                chains=lost,
            )
        apart, carried = groups.by_distribution(), True
        if self.score is not None:
            left = effective_size(groups.weights(torch.where(inside, state.log_weight + change, state.log_weight)))
            carried = float(left) >= min(FEWEST_CARRIED, len(inside) / 2)
            change = change if carried else torch.zeros_like(change)
        enough = min(int(inside[some].sum()) for some in apart.each(inside)) >= min(FEWEST_INSIDE, len(inside))
        log_weight = state.log_weight + change
        share = float(inside.to(torch.float64).mean())
        state = state._replace(log_weight=torch.where(inside, log_weight, -torch.inf) if enough else log_weight)
        info = population_record(state, groups)
        known = {"finish_ess": info["ess"], "inside": share, "carried": float(carried)}
        if context.constraint.in_pieces:
            known["crossing"] = crossing_share(context, state.z, float(state.rho), groups.weights(state.log_weight))
        return resample(state, generator, apart), {**info, **known}

    def _look(self, context: Context, state: Weighted, some: slice) -> tuple[Tensor, Tensor]:
        """Whether the feet of some chains are inside, and the logarithm of the second factor."""
        x = state.x[some]
        decoded = context.decode(x)
        local = context.take(some)
        at = local.constraint.landing(decoded)
        change = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if self.log_coupling is not None:
            rho = float(state.rho)
            change = -rho * half_square(decoded - at.foot) - self.log_coupling(local, decoded, rho)
        if self.score is not None:
            assert at.log_tube is not None, "choose_finish hands out a score only for sets with a tube factor"
            offset = lift(context, (decoded - at.foot).to(x.dtype))
            scores = [self.score(local, state, x - (1.0 - share) * offset) for share in GAUSS_POINTS]
            change = change - along(torch.stack(scores).mean(0), offset) - at.log_tube
        return at.inside, torch.where(at.inside, change, torch.zeros_like(change))


def along(v: Tensor, w: Tensor) -> Tensor:
    """v . w, chain by chain, in float64."""
    return (v.to(torch.float64) * w.to(torch.float64)).reshape(len(v), -1).sum(1)


def lift(context: Context, offset: Tensor) -> Tensor:
    """A displacement o of the latent with A o = offset: D A^T (A D A^T)^-1 offset for a linear A that is onto."""
    if context.identity:
        return offset
    gram = context.gram
    turned = gram.whiten(context.decoder.vjp(context.like)(offset))
    floor = ONTO * gram.eigenvalues.max()
    back = torch.where(gram.eigenvalues > floor, 1.0 / gram.eigenvalues.clamp_min(floor), 0.0)
    return gram.unwhiten(turned * back).reshape(len(offset), *context.latent)


def read_rise(context: Context, x: Tensor, z: Tensor, score: Tensor) -> Tensor:
    """log p(x) - log p(z) of every chain to first order, from the score at x."""
    return along(score, lift(context, (context.decode(x) - z).to(x.dtype)))


ONTO = 1e-10
"""Eigenvalues of A^T A that count as zero, relative to the largest."""


def onto(context: Context) -> bool:
    """Whether the decoder is linear and reaches all of decoded space."""
    if context.identity:
        return True
    if not context.decoder.linear:
        return False
    e = context.gram.eigenvalues
    rank = int((e > ONTO * e.max()).expand(context.latent if e.ndim != 1 else e.shape).sum())
    return rank == context.decode(context.like.new_zeros(1, *context.latent)).numel()


def decoded_event(context: Context) -> Event:
    """Shape of an event in decoded space."""
    return tuple(context.decode(context.like.new_zeros(1, *context.latent)).shape[1:])


def all_parts(context: Context) -> list[Parts]:
    """Equations and inequalities of C, of each piece if it is a union."""
    event, one = decoded_event(context), context.constraint.take(slice(0, 1))
    return [piece.parts(event) for piece in (one.pieces(event) if one.in_pieces else (one,))]


def has_edge(context: Context) -> bool:
    """Whether C has inequalities."""
    return any(part.solid is not None for part in all_parts(context))


def reach_rho(context: Context) -> float:
    """The rho of a slack that is small beside the reach of C: beyond it a point has no single nearest foot."""
    reach = context.constraint.reach(decoded_event(context))
    return 0.0 if reach is None or math.isinf(reach) or reach <= 0.0 else (WITHIN_REACH / reach) ** 2


def choose_finish(context: Context, score: Score, log_coupling: Coupling | None = None) -> Landed:
    """The best finish that the set and the decoder allow."""
    probe = context.decode(torch.ones((1, *context.latent), dtype=context.like.dtype, device=context.like.device))
    thin = any(part.surface is not None for part in all_parts(context))
    known = thin and onto(context) and context.constraint.take(slice(0, 1)).landing(probe).log_tube is not None
    return Landed(score if known else None, log_coupling)
