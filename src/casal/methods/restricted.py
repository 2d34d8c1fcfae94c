"""A Gaussian of x0 restricted to a set, and weighted by a soft term: draws, and integrals.

For N(D, S), of which draws of e ~ N(0, S) and products S R^T with the rows R of the set are known:

    linear equations A x = b             Matheron's rule: D and e are moved by S A^T (A S A^T)^-1 (b - A D), (- A e)
    flat inequalities l <= G x <= u      f = G x ~ N(G D, G S G^T) between its walls, by exact orbits with reflections
                                         (``flat_flows.py``), then Matheron's rule with f as the value of the rows
    soft terms and other inequalities    elliptical slices (Murray, Adams and MacKay 2010): from the x0 of the level
                                         before, along D + (x0 - D) cos a + e sin a, for N(D, S) times exp t(x0) inside
                                         the set
    curved equations                     ``curved_draw.py``; with inequalities or a soft term accepted or not
                                         (Metropolis)

All but the first and last start from the x0 of the level before and leave the restricted Gaussian as it is. So a level
is a step of a Gibbs sampler of (x0, x).

A mode N(mu, C) of the model (``affine_modes.py``) is weighed by its integral over the set:

    linear equations         N(b; A mu, A C A^T)
    flat inequalities        times P(l <= G x <= u | A x = b), coordinate after coordinate (Genz 1992)
    curved equations         times the mean over lines of the sums of ``curved_draw.py``, det(G C G^T)^(1/2) in front
    soft term                times the mean of exp t
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import Constraint, geometry, truncated_normal
from casal.devices import cholesky
from casal.methods import affine_modes
from casal.methods.affine_modes import LEAST_VALUE, Mode, Start, normal, raised, solve
from casal.methods.coupling import decoded_event, lift, onto
from casal.methods.curved_draw import Drawn, Lines, conditioned, log_integral
from casal.methods.equations import Equations, equations_of
from casal.methods.flat_flows import flow, rounded
from casal.methods.problem import Problem

MOST_WALLS = 1024
"""Inequalities up to which G S G^T is formed, and one evaluation for n of them taken at every level."""

MOST_CUTS = 40
"""Cuts of a slice, after which a chain stays: the arc is then 1e-9 of the circle."""

INSIDE = 1e-9
"""Violation of the inequalities that counts as rounding, in units of the spread of the points."""

PROPOSALS = 4
"""Proposals of a level on curved equations with inequalities or a soft term, each with a search for roots."""

PROBABILITY_DRAWS = 2048
"""Draws for the probability of the inequalities in a mode: its logarithm has an error of .03 on 64 correlated ones."""

DIRECTIONS = 4
"""Directions of the lines by which a mode is weighed on curved equations."""

WIDE, NARROW = 8, 1e-3
"""Wide directions of a mode along which its draws are drawn again, as often; and the variance along them below which
they are not, in units of the largest. On mass and energy in 256 dimensions the error of the logarithm of an integral
falls from .11 to .04."""

FIRST_FLOWS, START = 10, 4
"""Flows that start a chain in its mode, from a point that may be far out; and how many times as many lines."""


class Sides(NamedTuple):
    """Flat inequalities of the latent: rows G (k, d) of length one, low and high (1 or n, k), float64."""

    matrix: Tensor
    low: Tensor
    high: Tensor

    def of(self, chains: Tensor) -> Sides:
        """Those of some chains."""
        return self if len(self.low) == 1 else self._replace(low=self.low[chains], high=self.high[chains])


class Gauss(NamedTuple):
    """N(mean, S) as far as it is needed.

    Attributes:
        mean: (n, d) float64.
        draw: Returns e ~ N(0, S), (n, d), anew at each call.
        across: S R^T as rows (m, d), R the rows of the set.
    """

    mean: Tensor
    draw: Callable[[], Tensor]
    across: Tensor


@dataclass(frozen=True)
class Region:
    """The set of a problem, and its soft term, as they restrict Gaussians.

    Attributes:
        problem: Model, set and decoder.
        inside: Whether inequalities and the soft term count; else the equations alone.
        floor: Of the eigenvalues of A S A^T and G S G^T, as in ``Matheron``.
        flows: Orbits between walls at a level.
        slices: Elliptical slices of a level.
        measure: On curved equations.
        candidates: Lines of a draw on curved equations.
    """

    problem: Problem
    inside: bool
    floor: float | None
    flows: int
    slices: int
    measure: str
    candidates: int

    @property
    def found(self) -> Equations:
        """The equations."""
        return equations_of(self.problem)

    @property
    def sides(self) -> Sides | None:
        """The inequalities, if they are flat and there is no soft term and no curved equation."""
        alone = self.inside and self.problem.target.log_weight is None and not self.found.curved
        return sides_of(self.problem) if alone else None

    @property
    def rows(self) -> Tensor:
        """A, and G if there are sides."""
        return self.found.matrix if self.sides is None else torch.cat([self.found.matrix, self.sides.matrix])

    def into(self, x: Tensor) -> Tensor:
        """x (n, *latent) moved into the set, by the shortest way in decoded space."""
        problem = self.problem
        if problem.constraint.solid and problem.identity and not bool((problem.constraint.violation(x) > 0).any()):
            return x
        decoded = problem.decode(x)
        away = (problem.nearest(decoded, decoded) - decoded).to(x.dtype)
        return x + lift(problem, away) if onto(problem) else x

    def given(self, gauss: Gauss, chains: Tensor) -> Gauss:
        """The Gaussian of some chains given the linear equations, with S R^T of the other rows."""
        A, count = self.found.matrix, len(self.found.matrix)
        level = self.found.level if len(self.found.level) == 1 else self.found.level[chains]
        gain = solve(gauss.across[:count] @ A.T, gauss.across[:count], self.floor) if count else gauss.across[:0]

        def error() -> Tensor:
            e = gauss.draw()
            return e - (e @ A.T) @ gain

        others = gauss.across[count:]
        return Gauss(gauss.mean + (level - gauss.mean @ A.T) @ gain, error, others - (others @ A.T) @ gain)

    def draw(self, gauss: Gauss, chains: Tensor, kept: Tensor, flows: int, stream: torch.Generator) -> Tensor:
        """x0 ~ N(mean, S) in the set without curved equations, weighted by the soft term, from ``kept`` on, (n, d)."""
        given, sides = self.given(gauss, chains), self.sides
        if sides is None:
            rounding = INSIDE * (float(kept.std(0).max()) if len(kept) > 1 else 1.0)
            return slices(partial(self.log_factor, rounding), given.mean, given.draw, kept, self.slices, stream)
        clean = given.mean + given.draw()
        return inside(sides.of(chains), given.mean, clean, given.across, kept, flows, self.floor, stream)

    def on_curved(self, given: Gauss, slopes: Tensor, stream: torch.Generator) -> Drawn:
        """x0 ~ N(mean, S) on the curved equations with gradients G, S given the linear ones."""
        slopes, across = (v.expand(len(given.mean), -1, -1) for v in (slopes, given.across))
        how = given.draw, stream, self.measure, self.candidates
        return conditioned(self.problem, self.found, given.mean, slopes, across, *how)

    def accepted(self, propose: Callable[[], Drawn], kept: Tensor, stream: torch.Generator) -> Drawn:
        """Draws on curved equations, accepted or not by the soft term and the inequalities (Metropolis)."""
        if not self.inside:
            return propose()
        rounding = INSIDE * float(kept.std(0).max())
        log = self.log_factor(rounding, kept)
        for _ in range(PROPOSALS):
            drawn = propose()
            point = self.into(_latent(self.problem, drawn.points)).flatten(1).to(kept)
            value, u = self.log_factor(rounding, point), _uniform(len(log), stream, kept.device)
            yes = u.log() < value - log
            kept, log = torch.where(yes[:, None], point, kept), torch.where(yes, value, log)
        return Drawn(kept, drawn.lines)

    def log_factor(self, rounding: float, x: Tensor) -> Tensor:
        """t(x) inside the inequalities, minus infinity outside, (n,)."""
        solid, term, point = solid_part(self.problem), self.problem.target.log_weight, _latent(self.problem, x)
        found = x.new_zeros(len(x)) if term is None else term(point).to(x)
        if solid is None:
            return found
        return torch.where(solid.violation(self.problem.decode(point)).to(x) <= rounding, found, -math.inf)

    # ------------------------------------------------------------------------------------------------ modes

    def mode_rows(self, members: Tensor) -> Tensor:
        """The rows of which a mode is asked, given its free samples: those of the set, gradients near the mode, Q."""
        rows = self.rows
        if self.found.curved:
            some = torch.cat([members.mean(0, keepdim=True), members[: DIRECTIONS - 1]])
            near = self.into(_latent(self.problem, some))
            rows = torch.cat([rows, self.found.bent(self.problem, near)[0].flatten(0, 1)])
        if self.inside or self.found.curved or not len(rows):
            rows = torch.cat([rows, torch.linalg.svd(members - members.mean(0), full_matrices=False).Vh[:WIDE]])
        return rows

    def mode(self, stream: torch.Generator, mode: Mode, rows: Tensor, count: int) -> Start:
        """A mode in the set: its integral over it, and points of it.

        Args:
            stream: Draws.
            mode: The mode.
            rows: Those of ``mode_rows``.
            count: Chains of a mode, on average.
        """
        found, A, sides = self.found, self.found.matrix, self.sides
        log = affine_modes.evidence(mode, A, found.level) if len(A) else rows.new_zeros(1)
        if not self.inside and not found.curved:
            return Start(log, partial(self._moved, stream, mode))
        like, bent, own = mode.mean, len(found.curved), len(self.rows)
        half = mode.model.draw(like, normal((count, len(like)), like, stream)) - like
        pool, last = torch.cat([half, -half]), own + bent * DIRECTIONS
        wide, across = rows[last:], mode.across[:last]

        def draw(some: Tensor) -> Tensor:
            return redrawn(pool[some], wide, mode.across[last:], stream)

        every, first = torch.arange(len(pool), device=pool.device).repeat(WIDE), torch.zeros(1, dtype=torch.long)
        given = self.given(Gauss(like[None], partial(draw, every), across), first)
        if found.curved:
            parts = rows[own:last].split(bent), given.across.split(bent)
            lines = [Lines.of(G[None], U[None]) for G, U in zip(*parts, strict=True)]
            log = log + log_integral(self.problem, found, given.mean, lines, given.draw(), stream, self.measure)
        elif sides is not None:
            G = sides.matrix
            log = log + log_probability(sides, (given.mean @ G.T)[0], given.across @ G.T, stream)
        else:
            errors = given.draw()
            log = log + _log_mean(self.log_factor(INSIDE * float(errors.std(0).max()), given.mean + errors))

        def points(chains: Tensor, free: Tensor) -> Tensor:
            def fresh() -> Tensor:
                some = torch.randint(len(pool), (len(chains),), generator=stream, device=stream.device)
                return draw(some.to(pool.device))

            gauss = Gauss(like.expand(len(chains), -1), fresh, across[: own + bent])
            if found.curved:
                wider = replace(self, candidates=START * self.candidates)  # a mode is wider than x0 given x
                return wider.on_curved(self.given(gauss, chains), rows[own : own + bent], stream).points
            kept = self.into(_latent(self.problem, gauss.mean + fresh())).flatten(1).to(pool)
            x = self.draw(gauss, chains, kept, FIRST_FLOWS, stream)
            return self.into(_latent(self.problem, x)).flatten(1).to(pool)

        return Start(log, points)

    def _moved(self, stream: torch.Generator, mode: Mode, chains: Tensor, free: Tensor) -> Tensor:
        """Free samples of a mode, and draws of it where there are too few, given the linear equations."""
        extra, A, level = len(chains) - len(free), self.found.matrix, self.found.level
        if extra > 0:
            free = torch.cat([free, mode.model.draw(mode.mean, normal((extra, free.shape[1]), free, stream))])
        gap = (level if len(level) == 1 else level[chains]) - free @ A.T
        return free + solve(mode.across @ A.T, gap.T, LEAST_VALUE).T @ mode.across


# ---------------------------------------------------------------------------------------------------- draws


def inside(
    sides: Sides,
    mean: Tensor,
    clean: Tensor,
    across: Tensor,
    kept: Tensor,
    flows: int,
    floor: float | None,
    generator: torch.Generator,
) -> Tensor:
    """x0 ~ N(mean, S) given low <= G x0 <= high, (n, d).

    G x0 = G mean + L u with L L^T = G S G^T; u ~ N(0, I) between the walls, from that of ``kept`` on.

    Args:
        sides: G, low, high.
        mean: (n, d).
        clean: Draws of N(mean, S), (n, d).
        across: S G^T as rows, (k, d).
        kept: Points inside, (n, d).
        flows: How many.
        floor: Of the eigenvalues of G S G^T, as in ``Matheron``.
        generator: Draws.
    """
    G = sides.matrix
    values, vectors = raised(across @ G.T, floor)
    root, inverse = vectors * values.sqrt(), (vectors / values.sqrt()).T
    centre = mean @ G.T
    up, down = torch.isfinite(sides.high).any(0), torch.isfinite(sides.low).any(0)
    walls = torch.cat([torch.eye(len(G)).to(G)[up], -torch.eye(len(G)).to(G)[down]])
    levels = torch.cat([sides.high[:, up], -sides.low[:, down]], 1)
    moved = flow(
        rounded(walls, levels.expand(len(mean), -1), centre, root),
        (kept @ G.T - centre) @ inverse.T,
        flows,
        True,
        generator,
    )
    f = centre + moved.point[-1] @ root.T
    return clean + (f - clean @ G.T) @ inverse.T @ inverse @ across


def slices(
    log_factor: Callable[[Tensor], Tensor],
    mean: Tensor,
    error: Callable[[], Tensor],
    kept: Tensor,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """So many elliptical slices of N(mean, S) exp(log_factor), from points ``kept`` (n, d) on."""
    here, log = kept, log_factor(kept)

    uniform = partial(_uniform, stream=generator, device=mean.device)
    for _ in range(count):
        e, least = error(), log + uniform(len(here)).log()
        angle = 2 * math.pi * uniform(len(here))
        low, high = angle - 2 * math.pi, angle.clone()
        new, new_log, left = here.clone(), log.clone(), torch.arange(len(here), device=mean.device)
        for _ in range(MOST_CUTS):
            turn = angle[left, None]
            point = mean[left] + (here[left] - mean[left]) * turn.cos() + e[left] * turn.sin()
            value = log_factor(point)
            yes = value > least[left]
            new[left[yes]], new_log[left[yes]] = point[yes], value[yes]
            left = left[~yes]
            if not len(left):
                break
            at = angle[left]
            low[left], high[left] = torch.where(at < 0, at, low[left]), torch.where(at < 0, high[left], at)
            angle[left] = low[left] + (high[left] - low[left]) * uniform(len(left))
        here, log = new, new_log
    return here


def redrawn(e: Tensor, wide: Tensor, across: Tensor, stream: torch.Generator) -> Tensor:
    """Draws e ~ N(0, S), (n, d), with new values along Q (r, d): e + S Q^T (Q S Q^T)^-1 (z - Q e), z ~ N(0, Q S Q^T).

    Draws of a mode take evaluations. These take none, and the sums over a set depend most on wide directions.

    Args:
        e: The draws.
        wide: Q; directions along which S has nearly nothing are left as they are.
        across: S Q^T as rows.
        stream: Draws.
    """
    values, vectors = raised(across @ wide.T, LEAST_VALUE)
    some = vectors[:, values > NARROW * values.max()]
    values, wide, across = values[values > NARROW * values.max()], some.T @ wide, some.T @ across
    z = normal((len(e), len(values)), e, stream) * values.sqrt()
    return e + ((z - e @ wide.T) / values) @ across


def log_probability(sides: Sides, mean: Tensor, covariance: Tensor, generator: torch.Generator) -> float:
    """log P(low <= f <= high) for f ~ N(mean, covariance): every coordinate in turn, drawn between its ends."""
    values, vectors = raised(covariance, LEAST_VALUE)
    root = cholesky((vectors * values) @ vectors.T)
    total = mean.new_zeros(PROBABILITY_DRAWS)
    white = mean.new_zeros(PROBABILITY_DRAWS, len(root))
    for i in range(len(root)):
        centre = mean[i] + white[:, :i] @ root[i, :i]
        low, high = ((end[0, i] - centre) / root[i, i] for end in (sides.low, sides.high))
        flip = low + high > 0  # to the lower tail, which keeps its digits
        first, last = torch.where(flip, -high, low), torch.where(flip, -low, high)
        below, above = torch.special.log_ndtr(first), torch.special.log_ndtr(last)
        total = total + above + torch.log1p(-torch.exp(below - above).clamp_max(1.0 - 1e-12))
        white[:, i] = truncated_normal(torch.zeros_like(centre), 1.0, low, high, generator)
    return _log_mean(total)


def _log_mean(logs: Tensor) -> float:
    return float(torch.logsumexp(logs, 0)) - math.log(len(logs))


# ---------------------------------------------------------------------------------------------------- the set


def sides_of(problem: Problem) -> Sides | None:
    """The inequalities as rows of the latent; None if there are none, or they are not flat, or too many."""
    name = "identity" if problem.identity else id(problem.decoder)
    return problem.constraint._once(("sides", problem.latent, problem.like.device, name), lambda: _sides(problem))


def _sides(problem: Problem) -> Sides | None:
    solid, event = solid_part(problem), decoded_event(problem)
    rows = None if solid is None else solid.linear(event)
    if rows is None or not problem.decoder.linear or not 0 < rows.rows_and_bounds <= MOST_WALLS:
        return None
    matrix, low, high = (part.to(problem.like.device) for part in rows.written_out())
    if not problem.identity:
        origin = problem.like.new_zeros((len(matrix), *problem.latent))
        at_zero = problem.decode(origin[:1]).flatten(1).to(torch.float64) @ matrix.T  # zero unless A is affine
        matrix = problem.decoder.vjp(origin)(matrix.to(origin).reshape(len(matrix), *event)).flatten(1)
        matrix, low, high = matrix.to(torch.float64), low - at_zero, high - at_zero
    size = torch.linalg.vector_norm(matrix, dim=1)
    return Sides(matrix / size[:, None], low / size, high / size)


def draws_inside(problem: Problem) -> bool:
    """Whether there are inequalities or a soft term, and they can be part of the draw.

    Behind a decoder that does not reach every point a point of the set has no latent to go on from. Chains share S, so
    it must be known which have the same condition; and slices ask for one set.
    """
    solid, target = solid_part(problem), problem.target
    if solid is None:
        return target.log_weight is not None and (not target.condition or target.groups is not None)
    common = solid.chains is None or (target.log_weight is None and sides_of(problem) is not None)
    return common and onto(problem) and (not target.condition or target.groups is not None)


def solid_part(problem: Problem) -> Constraint | None:
    """The part of the set that is inequalities."""
    return geometry.parts(problem.constraint, decoded_event(problem)).solid


def _latent(problem: Problem, x: Tensor) -> Tensor:
    """Points (n, d) as those of the run, (n, *latent)."""
    return x.reshape(-1, *problem.latent).to(problem.like)


def _uniform(n: int, stream: torch.Generator, device: torch.device) -> Tensor:
    return torch.rand(n, generator=stream, dtype=torch.float64, device=stream.device).to(device)
