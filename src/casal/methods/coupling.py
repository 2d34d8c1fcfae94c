"""Levels of the coupling rho, where they end, and the correction at the last one.

The levels are pi_rho(x) ~ p(x) exp(-rho/2 dist(A x, C)^2), from rho = 0 up. Where all chains exchange, the next levels
are placed and the chains are weighted and resampled (``population.py``). At the top the chains follow pi_rho, and
z = P(A x) follows p on C only up to O(1/rho). A ``Finish`` does better where the set allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Constraint, Parts, geometry, half_square, squarable
from casal.errors import DivergedError, SettingError
from casal.methods.population import Groups, ancestors_left, resample, spread_of
from casal.methods.problem import Problem, few_chains

MOVE = 0.2
"""Share of its distance to C that a chain may relax in one Langevin move; bounds the step by MOVE / rho."""

DRIFT_LIMIT = 10.0
"""Largest drift of one Langevin move, in units of the square root of its step: a steep tail cannot fling a chain away.
A stable step on a Gaussian stays below it up to ten standard deviations."""


class Level(NamedTuple):
    """One level of the coupling: its rho if it is given, and the number of levels left, itself included."""

    rho: float | None
    left: int


def levels(count: int, given: Tensor | None = None) -> list[Level]:
    """Levels whose rhos are placed by the chains, or given (count,)."""
    return [Level(None if given is None else float(given[k]), count - k) for k in range(count)]


def population_record(state: Any, groups: Groups, rho: float) -> dict[str, float]:
    """What the trace keeps of every exchange: rho, effective size, and how many ancestors are left."""
    return {
        "rho": rho,
        "ess": groups.effective_size(state.log_weight),
        "ancestors": ancestors_left(state.ancestor),
    }


# ---------------------------------------------------------------------------------------------------- the top

LEAST_INSIDE = 0.75
"""Share of chains whose nearest point satisfies the inequalities, from which on the levels may end."""

CORRECTED, UNCORRECTED = 0.3, 0.1
"""Spread of the log-weights of the last correction from which on the levels may end: where there is a correction, and
where there is none and exp of it is what is left of the error."""

WITHIN_REACH = 4.0
"""How many times the distance left at the top fits into the reach of the set."""

WIDEST_STEP = 100.0
"""Factor of rho beyond which nothing is extrapolated."""

CROSSING = 0.007
"""Share of chains near a crossing of two pieces from which on the levels may end."""

MOST_CHANGE = 20.0
"""How far corrections may lie from their median, so that one chain far out does not decide alone."""


def search_due(left: int, every: int = 10) -> bool:
    """Whether the chains are searched for the top, ``left`` levels before the end: then and when, and at the last."""
    return left % every == 0 or left < every


def distance_rho(rho: float, half_distance2: Tensor, weight: Tensor) -> float:
    """The rho that leaves distances as large as those of the chains are now, E dist^2 = 1 / rho."""
    mean = float((weight * half_distance2).sum())
    return max(rho, 0.5 / mean) if mean > 0.0 else rho


def top_for_inside(
    rho: float, half_distance2: Tensor, weight: Tensor, inside: Tensor, groups: Groups, least: float = 0.0
) -> float:
    """The rho at which the nearest points of LEAST_INSIDE of the chains satisfy the inequalities.

    Chains outside are at most a distance of size rho^(-1/2) away, so -log of the share inside shrinks like rho^(-1/2).

    Args:
        rho: Where the chains are.
        half_distance2: dist(A x, C)^2 / 2 of every chain, (n,).
        weight: Weights that sum to one, (n,).
        inside: Whether the nearest point on the surface satisfies the inequalities, (n,) bool.
        groups: Chains that sample different distributions; the one that needs most decides.
        least: The levels do not end below this rho.
    """
    here, top = distance_rho(rho, half_distance2, weight), max(rho, least)
    for some in groups.by_distribution().each(half_distance2):
        share = float((weight[some] * inside[some]).sum() / weight[some].sum())
        if share < LEAST_INSIDE:
            lost = math.log(max(share, 0.5 / len(some))) / math.log(LEAST_INSIDE)
            top = max(top, here * min(lost**2, WIDEST_STEP))
    return top


def top_for_spread(
    rho: float, half_distance2: Tensor, weight: Tensor, change: Tensor, spread: float, least: float = 0.0
) -> float:
    """The rho at which the correction from x to its nearest point z spreads by no more than ``spread``.

    The correction log p(x) - log p(z) + log J(x, z) is of the size of the distance left, rho^(-1/2). It is read off the
    model's own score along the normals of the set, so no scale of the data is assumed.

    Args:
        rho: Where the chains are.
        half_distance2: dist(A x, C)^2 / 2 of the chains, (n,).
        weight: Weights that sum to one, of all chains or of the few whose correction is known.
        change: The correction of these chains to first order.
        spread: Standard deviation that it must reach.
        least: The levels do not end below this rho.
    """
    off = spread_of((change - change.median()).clamp(-MOST_CHANGE, MOST_CHANGE), weight)
    off = off if math.isfinite(off) else 1.0  # nothing was read yet
    n = len(half_distance2)
    here = distance_rho(rho, half_distance2, torch.full_like(half_distance2, 1.0 / n) if n != len(weight) else weight)
    return max(rho, least, here * min((off / spread) ** 2, WIDEST_STEP))


def top_for_crossings(problem: Problem, z: Tensor, rho: float, weight: Tensor, least: float) -> float:
    """The rho at which few chains of a union lie near a crossing: their share shrinks like rho^(-1/2)."""
    return max(least, rho * min((crossing_share(problem, z, rho, weight) / CROSSING) ** 2, WIDEST_STEP))


def crossing_share(problem: Problem, z: Tensor, rho: float, weight: Tensor) -> float:
    """Share of chains whose z lies within two distances left of another piece of a union of thin sets; else zero.

    There the neighbourhoods of two pieces overlap, and a chain counts for the nearer one alone: around a crossing a gap
    of the size of the distance left remains.
    """
    constraint, event = problem.constraint, tuple(z.shape[1:])
    if not constraint.in_pieces or rho <= 0.0 or geometry.codimension(constraint, event) == 0:
        return 0.0
    second = torch.cat([_second_nearest(constraint.take(some).pieces(event), z[some]) for some in few_chains(z)])
    return float((weight * (second < 2.0 / rho)).sum())


def _second_nearest(pieces: Sequence[Constraint], z: Tensor) -> Tensor:
    """Half the squared distance to the second nearest piece, (n,); infinite if there is one piece alone."""
    wide = z.to(torch.float64)
    squares = [half_square(wide - piece.project(wide)) for piece in pieces]
    alone = torch.full_like(squares[0], torch.inf)
    return torch.stack([*squares, alone]).kthvalue(2, dim=0).values


def reach_rho(problem: Problem) -> float:
    """The rho of a distance that is small beside the reach of C: beyond it a point has no single nearest point."""
    distance = geometry.reach(problem.constraint, decoded_event(problem))
    if distance is None or math.isinf(distance) or distance <= 0.0:
        return 0.0
    least = WITHIN_REACH / squarable(problem.like.dtype)
    if distance < least:
        raise SettingError(
            f"{problem.constraint!r} is curved on a length of {distance:.3g}, and the rho that resolves it, 1 / "
            "length^2, is out "
            f"of the range of {problem.like.dtype} (least length {least:.1e}): write model and set in a smaller unit, "
            "constraint.scaled(1 / unit)"
        )
    return (WITHIN_REACH / distance) ** 2


# ---------------------------------------------------------------------------------------------------- the finish

FEWEST_INSIDE = 16
"""Chains inside below which the finish leaves the others where they are: their samples lie on the boundary."""

FEWEST_CORRECTED = 50
"""Effective size after the last correction, or half of all chains, below which it is left out."""

GAUSS_POINTS = (0.5 - 0.5 / math.sqrt(3.0), 0.5 + 0.5 / math.sqrt(3.0))

Score: TypeAlias = Callable[[Problem, Any, Tensor], Tensor]
"""``score(problem, state, x)``: the gradient of log p at clean points."""

Coupling: TypeAlias = Callable[[Problem, Tensor, float], Tensor]
"""``log_coupling(problem, decoded, rho)``: log Phi_rho of decoded points, (n,)."""


class Finish:
    """Turns chains near C into samples of p on C, by weights:

        weight = 1 if z satisfies the inequalities, else 0;   times   p(x - o) / (p(x) J(A x, z))

    z is the nearest point of A x on the surface part of C and o the offset A x - z seen in the latent, A o = A x - z.
    In the coordinates (z, offset, what A does not see) x has the density p(x) exp(-rho/2 |A x - z|^2) J(A x, z) where z
    is in C, so the weight is exact for every rho as long as the distance left is below the reach of the surface.
    log p(x) - log p(x - o) is the line integral of the score, by two Gauss points. The second factor needs a volume
    factor J and a linear decoder that reaches all of decoded space; without them an error of order 1 / rho is left. A
    set with an interior has z = A x, and the first factor alone is exact.

    Where fewer than FEWEST_INSIDE chains are inside, the others stay and their samples lie on the boundary; the trace
    says so by ``inside``. Where the second factor would leave an effective size below FEWEST_CORRECTED, the distance
    left is too wide for it, or the score is wrong. Then it is left out, and ``corrected`` is 0.

    Args:
        score: The score at clean points; None leaves out the second factor.
        log_coupling: log Phi of the last level at a chain, where it is not -rho/2 dist(A x, C)^2.
    """

    def __init__(self, score: Score | None, log_coupling: Coupling | None = None) -> None:
        self.score, self.log_coupling = score, log_coupling
        self.evaluations = 0 if score is None else len(GAUSS_POINTS)

    def __call__(
        self, problem: Problem, state: Any, rho: float, generator: torch.Generator, groups: Groups
    ) -> tuple[Any, Mapping[str, float]]:
        """Reweight and resample the population, which is at rho."""
        parts = [self.correction(problem, state, rho, some) for some in few_chains(state.x, state.z)]
        inside, change = (torch.cat(column) for column in zip(*parts, strict=True))
        lost = torch.nonzero(~torch.isfinite(change)).flatten().tolist()
        if lost:
            steps = len(problem.table)
            raise DivergedError(
                f"{len(lost)} of {len(state.x)} chains have no finite score in the last correction, after step {steps}",
                step=steps,
                steps=steps,
                chains=lost,
            )
        apart, corrected = groups.by_distribution(), True
        if self.score is not None:
            left = groups.effective_size(torch.where(inside, state.log_weight + change, state.log_weight))
            corrected = left >= min(FEWEST_CORRECTED, len(inside) / 2)
            change = change if corrected else torch.zeros_like(change)
        enough = min(int(inside[some].sum()) for some in apart.each(inside)) >= min(FEWEST_INSIDE, len(inside))
        log_weight = state.log_weight + change
        share = float(inside.to(torch.float64).mean())
        state = state._replace(log_weight=torch.where(inside, log_weight, -torch.inf) if enough else log_weight)
        info = population_record(state, groups, rho)
        known = {"finish_ess": info["ess"], "inside": share, "corrected": float(corrected)}
        if problem.constraint.in_pieces:
            known["crossing"] = crossing_share(problem, state.z, rho, groups.weights(state.log_weight))
        return resample(state, generator, apart), {**info, **known}

    def correction(self, problem: Problem, state: Any, rho: float, some: slice) -> tuple[Tensor, Tensor]:
        """Whether the nearest points of some chains are inside, and the logarithm of the second factor."""
        x = state.x[some]
        decoded = problem.decode(x)
        local = problem.take(some)
        at = geometry.nearest_on_surface(local.constraint, decoded)
        change = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if self.log_coupling is not None:
            change = -rho * half_square(decoded - at.point) - self.log_coupling(local, decoded, rho)
        if self.score is not None:
            assert at.log_volume is not None, "choose_finish hands out a score only for sets with a volume factor"
            offset = lift(problem, (decoded - at.point).to(x.dtype))
            scores = [self.score(local, state, x - (1.0 - share) * offset) for share in GAUSS_POINTS]
            change = change - along(torch.stack(scores).mean(0), offset) - at.log_volume
        return at.inside, torch.where(at.inside, change, torch.zeros_like(change))


def choose_finish(problem: Problem, score: Score, log_coupling: Coupling | None = None) -> Finish:
    """The best finish that the set and the decoder allow."""
    probe = problem.decode(torch.ones((1, *problem.latent), dtype=problem.like.dtype, device=problem.like.device))
    thin = any(part.surface is not None for part in all_parts(problem))
    known = (
        thin
        and onto(problem)
        and geometry.nearest_on_surface(problem.constraint.take(slice(0, 1)), probe).log_volume is not None
    )
    return Finish(score if known else None, log_coupling)


# ---------------------------------------------------------------------------------------------------- geometry

ONTO = 1e-10
"""Eigenvalues of A^T A that count as zero, relative to the largest."""


def along(v: Tensor, w: Tensor) -> Tensor:
    """v . w, chain by chain, in float64."""
    return (v.to(torch.float64) * w.to(torch.float64)).reshape(len(v), -1).sum(1)


def lift(problem: Problem, offset: Tensor) -> Tensor:
    """A displacement o of the latent with A o = offset: D A^T (A D A^T)^-1 offset for a linear A that is onto."""
    if problem.identity:
        return offset
    gram = problem.gram
    turned = gram.whiten(problem.decoder.vjp(problem.like)(offset))
    least = ONTO * gram.eigenvalues.max()
    back = torch.where(gram.eigenvalues > least, 1.0 / gram.eigenvalues.clamp_min(least), 0.0)
    return gram.unwhiten(turned * back).reshape(len(offset), *problem.latent)


def density_change(problem: Problem, x: Tensor, z: Tensor, score: Tensor) -> Tensor:
    """log p(x) - log p(z) of every chain to first order, from the score at x."""
    return along(score, lift(problem, (problem.decode(x) - z).to(x.dtype)))


def onto(problem: Problem) -> bool:
    """Whether the decoder is linear and reaches all of decoded space."""
    if problem.identity:
        return True
    if not problem.decoder.linear:
        return False
    e = problem.gram.eigenvalues
    rank = int((e > ONTO * e.max()).expand(problem.latent if e.ndim != 1 else e.shape).sum())
    return rank == math.prod(decoded_event(problem))


def decoded_event(problem: Problem) -> Event:
    """Shape of an event in decoded space."""
    return tuple(problem.decode(problem.like.new_zeros(1, *problem.latent)).shape[1:])


def all_parts(problem: Problem) -> list[Parts]:
    """Equations and inequalities of C, of each piece if it is a union."""
    event, one = decoded_event(problem), problem.constraint.take(slice(0, 1))
    return [geometry.parts(piece, event) for piece in (one.pieces(event) if one.in_pieces else (one,))]


def has_edge(problem: Problem) -> bool:
    """Whether C has inequalities."""
    return any(part.solid is not None for part in all_parts(problem))
