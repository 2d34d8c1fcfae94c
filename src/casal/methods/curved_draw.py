"""A draw from N(D, S) restricted to curved equations h(x) = 0: candidates on lines through the Gaussian, weighted.

With G the gradients of h at any point and U = S G^T, the points D + e + U lambda, e ~ N(0, S), are the line (for m
equations the m-dimensional plane) of a candidate e. On it c = G (x - D) and what is left of e are independent, so the
roots x of h on the line of a candidate represent the Gaussian restricted to the surface with the weights

    w(x) = exp(-c^T (G S G^T)^-1 c / 2) v(x) / |det(dh/dx U)|,         v = sqrt(det(h' h'^T)): surface measure
                                                                       v = 1: co-area measure, x given the value of h

One of all roots of all candidates is drawn by these weights. If few lines carry all weight the draw does not follow the
restricted Gaussian (``Drawn.lines``). G must know nothing of the point that the chain, or another one, had before:
draws would then keep to its direction. Only S G^T is needed of S: the inverse of S cancels. On a flat set there is one
root a line, all weights are equal, and this is Matheron's rule. Linear equations are met before: D, S and all lines are
those given them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from casal.linalg import log_gram
from casal.methods.affine_modes import normal, raised
from casal.methods.equations import Equations
from casal.methods.problem import Problem

FEWEST = 4
"""Lines after which the search ends if their weights hardly differ."""

EVEN = 0.2
"""Standard deviation of the log-weights of a chain's candidates up to which they count as equal."""

STARTS, FAR = 3, 3.0
"""Searches for roots on a line: from the candidate, from so many times the first root's distance on the other side of
the centre (beyond it on a norm, from where Newton steps do not turn round), and from random points of the line."""

NEWTON, MOST_MOVE = 12, 0.5
"""Steps of a search, and how far one may go, in units of the length of the point."""

ROOT, MET, EQUAL = 1e-6, 1e-3, 1e-2
"""Where a search ends, what a root may miss, and how near two roots are one, in standard deviations of the Gaussian
along the equations."""

NEGLIGIBLE = 1e-4
"""What other roots may add to the logarithm of the weight of a line: then they are not searched for."""

MEASURES = ("surface", "co-area")


class Drawn(NamedTuple):
    """Points (n, d), and how many lines carry the weight, (sum w)^2 / sum w^2, (n,); all, where weights are even."""

    points: Tensor
    lines: Tensor


def conditioned(
    problem: Problem,
    found: Equations,
    centre: Tensor,
    slopes: Tensor,
    across: Tensor,
    draw: Callable[[], Tensor],
    stream: torch.Generator,
    measure: str,
    candidates: int,
) -> Drawn:
    """x ~ N(D, S) restricted to the equations, float64.

    A chain for which no line meets the set gets the end of its first search, and no lines.

    Args:
        problem: Model, set and decoder.
        found: The equations; D, S and e are given the linear ones.
        centre: D, (n, d).
        slopes: G, (n, k, d), of the curved equations.
        across: S G^T as rows, (n, k, d).
        draw: Returns e ~ N(0, S), (n, d), anew at each call.
        stream: Draws.
        measure: One of MEASURES.
        candidates: Lines that are tried.
    """
    lines = Lines.of(slopes, across)
    total = centre.new_full((len(centre),), -math.inf)
    chosen: Tensor | None = None
    starts, seen, even = STARTS, list[Tensor](), False
    for _ in range(candidates):
        ends = list[Tensor]()
        for x, rows, new in line_roots(problem, found, centre, lines, draw(), stream, starts):
            logs = lines.log_weight(x - centre, rows) + volume_term(problem, found, x, rows, measure)
            logs = torch.where(new & torch.isfinite(logs), logs, -math.inf)
            chosen, total = x if chosen is None else chosen, torch.logaddexp(total, logs)
            u = torch.rand(len(x), generator=stream, dtype=torch.float64, device=stream.device).to(x.device)
            chosen = torch.where((u.log() < logs - total)[:, None], x, chosen)
            ends.append(logs)
        seen.append(torch.logsumexp(torch.stack(ends), 0))
        if len(seen) == 1 and not bool((seen[0] > ends[0] + NEGLIGIBLE).any()):
            starts = 1  # one root a line
        if len(seen) >= FEWEST:
            logs = torch.stack(seen, 1)
            even = bool(torch.isfinite(logs).all()) and float(logs.std(1).median()) < EVEN
            if even:
                break
    assert chosen is not None
    logs = torch.stack(seen, 1)
    weights = torch.exp(logs - logs.amax(1, keepdim=True).clamp_min(-1e300))
    effective = weights.sum(1).square() / weights.square().sum(1).clamp_min(1e-300)
    return Drawn(chosen, torch.full_like(total, candidates) if even else effective)


class Lines(NamedTuple):
    """Lines through N(D, S): G (n, k, d), U^T = S G^T as rows, and eigenvalues and vectors of G S G^T."""

    slopes: Tensor
    across: Tensor
    values: Tensor
    vectors: Tensor

    @staticmethod
    def of(slopes: Tensor, across: Tensor) -> Lines:
        """From G and S G^T."""
        return Lines(slopes, across, *raised(slopes @ across.mT, None))

    def white(self, away: Tensor) -> Tensor:
        """c of points D + away in units of its standard deviations, (n, k)."""
        return _times(self.vectors, _times(self.slopes.mT, away)) / self.values.sqrt()

    def log_weight(self, away: Tensor, rows: Tensor) -> Tensor:
        """log det(G S G^T)^(1/2) exp(-c^T (G S G^T)^-1 c / 2) / |det(dh/dx U)| at roots D + away, (n,)."""
        size = self.values.log().sum(1) - self.white(away).square().sum(1)
        return 0.5 * size - torch.linalg.slogdet(rows @ self.across.mT).logabsdet


def log_integral(
    problem: Problem,
    found: Equations,
    centre: Tensor,
    lines: list[Lines],
    errors: Tensor,
    stream: torch.Generator,
    measure: str,
) -> float:
    """Logarithm of the integral of N(D, S) over the equations, up to (2 pi)^(-m / 2).

    A line that touches the surface has any weight: its mean has no variance. So lines of several directions share the
    candidates, and a root weighs J / sum of 1 / w_j, what it would have if its direction had been drawn, too (the
    balance heuristic of Veach and Guibas 1995): it is large only where the lines of all directions touch the surface.

    Args:
        problem: Model, set and decoder.
        found: The equations; D, S and e are given the linear ones.
        centre: D, (1, d).
        lines: Of J directions.
        errors: Candidates e, (n, d), of which each direction takes its share.
        stream: Draws.
        measure: One of MEASURES.
    """
    logs = list[Tensor]()
    for j, own in enumerate(lines):
        for x, rows, new in line_roots(problem, found, centre, own, errors[j :: len(lines)], stream, 2):
            every = torch.stack([-other.log_weight(x - centre, rows) for other in lines])
            mixed = math.log(len(lines)) - torch.logsumexp(every, 0) + volume_term(problem, found, x, rows, measure)
            logs.append(mixed[new & torch.isfinite(mixed)])
    return float(torch.logsumexp(torch.cat(logs), 0)) - math.log(len(errors))


def line_roots(
    problem: Problem,
    found: Equations,
    centre: Tensor,
    lines: Lines,
    e: Tensor,
    stream: torch.Generator,
    starts: int,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Where so many searches on the lines of e end, (n, d), the gradients there, and whether that is a new root, (n,).

    The first begins at the candidate, the second on the other side of the centre, others anywhere.
    """
    own, roots = lines.white(e), list[Tensor]()
    goal, values = own, lines.values.expand(len(e), -1)
    for start in range(starts):
        goal = normal(own.shape, own, stream) if start > 1 else goal
        first = centre + e + _times(lines.across, _times(lines.vectors.mT, (goal - own) / lines.values.sqrt()))
        x, rows, new = search(problem, found, first, lines.across, values)
        scaled = lines.white(x - centre)
        for other in roots:
            new = new & ((scaled - other).abs().amax(1) > EQUAL)
        goal = -FAR * scaled
        roots.append(torch.where(new[:, None], scaled, torch.inf))
        yield x, rows, new


def search(
    problem: Problem, found: Equations, x: Tensor, across: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A root on the line of x by Newton steps: the point, its gradients of length one (n, m, d), and whether it is one.

    A step whose matrix is singular is left out.
    """
    scale = values.amax(1, keepdim=True).sqrt()
    rows, gap = found.bent(problem, x.reshape(-1, *problem.latent).to(problem.like))
    for _ in range(NEWTON):
        if bool((gap.abs() <= ROOT * scale).all()):
            break
        step, _ = torch.linalg.solve_ex(rows @ across.mT, gap[..., None])
        shift = torch.nan_to_num(_times(across, step[..., 0]), 0.0, 0.0, 0.0)
        most = MOST_MOVE * torch.linalg.vector_norm(x, dim=1, keepdim=True)
        size = torch.linalg.vector_norm(shift, dim=1, keepdim=True).clamp_min(1e-300)
        x = x + shift * (most / size).clamp_max(1.0)
        rows, gap = found.bent(problem, x.reshape(-1, *problem.latent).to(problem.like))
    return x, rows, (gap.abs() <= MET * scale).all(1)


def _times(across: Tensor, u: Tensor) -> Tensor:
    """U lambda, for U^T as rows."""
    return (across.mT @ u[..., None])[..., 0]


def volume_term(problem: Problem, found: Equations, x: Tensor, rows: Tensor, measure: str) -> Tensor:
    """What v and the lengths that were taken out of the gradients add to the logarithm."""
    if measure == "surface" and problem.identity:
        return 0.5 * log_gram(rows)
    point = x.reshape(-1, *problem.latent).to(problem.like)
    lengths = found.log_lengths(problem, point)
    return found.log_volume(problem, point) - lengths if measure == "surface" else -lengths
