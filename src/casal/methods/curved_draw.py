"""A draw from N(D, S) restricted to curved equations h(x) = 0: candidates on lines through the Gaussian, weighted.

With G the gradients of h at any fixed point and U = S G^T, the points D + e + U lambda, e ~ N(0, S), are the line (for
m equations the m-dimensional plane) of a candidate e. On it c = G (x - D) and what is left of e are independent, so the
roots x of h on the line of a candidate represent the Gaussian restricted to the surface with the weights

    w(x) = exp(-c^T (G S G^T)^-1 c / 2) v(x) / |det(dh/dx U)|,         v = sqrt(det(h' h'^T)): surface measure
                                                                       v = 1: co-area measure, x given the value of h

One of all roots of all candidates is drawn by these weights. Only S G^T is needed of S: the inverse of S cancels. On a
flat set there is one root a line, all weights are equal, and this is Matheron's rule. Linear equations are met before:
D, S and all lines are those given them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

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
) -> Tensor:
    """x ~ N(D, S) restricted to the equations, (n, d) float64.

    A chain for which no line meets the set gets the end of its first search.

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
    gram = raised(slopes @ across.mT, None)
    total = centre.new_full((len(centre),), -math.inf)
    chosen: Tensor | None = None
    starts, seen = STARTS, list[Tensor]()
    for _ in range(candidates):
        ends = list[Tensor]()
        for x, logs in line_roots(problem, found, centre, slopes, across, gram, draw(), stream, measure, starts):
            chosen, total = x if chosen is None else chosen, torch.logaddexp(total, logs)
            u = torch.rand(len(x), generator=stream, dtype=torch.float64, device=stream.device).to(x.device)
            chosen = torch.where((u.log() < logs - total)[:, None], x, chosen)
            ends.append(logs)
        seen.append(torch.logsumexp(torch.stack(ends), 0))
        if len(seen) == 1 and not bool((seen[0] > ends[0] + NEGLIGIBLE).any()):
            starts = 1  # one root a line
        if len(seen) >= FEWEST:
            spread = torch.stack(seen, 1)
            if bool(torch.isfinite(spread).all()) and float(spread.std(1).median()) < EVEN:
                break
    assert chosen is not None
    return chosen


def log_sums(
    problem: Problem,
    found: Equations,
    centre: Tensor,
    slopes: Tensor,
    across: Tensor,
    errors: Tensor,
    stream: torch.Generator,
    measure: str,
) -> Tensor:
    """Logarithms of the sums of weights on the lines of errors (n, d), for two roots a line at most, (n,)."""
    n, gram = len(errors), raised(slopes @ across.mT, None)
    lines = slopes.expand(n, -1, -1), across.expand(n, -1, -1), (gram[0].expand(n, -1), gram[1].expand(n, -1, -1))
    roots = line_roots(problem, found, centre.expand(n, -1), *lines, errors, stream, measure, 2)
    return torch.logsumexp(torch.stack([logs for _, logs in roots]), 0)


def line_roots(
    problem: Problem,
    found: Equations,
    centre: Tensor,
    slopes: Tensor,
    across: Tensor,
    gram: tuple[Tensor, Tensor],
    e: Tensor,
    stream: torch.Generator,
    measure: str,
    starts: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Where so many searches on the lines of e end, (n, d), and log w, minus infinity where that is no new root, (n,).

    The first begins at the candidate, the second on the other side of the centre, others anywhere.
    """
    values, vectors = gram

    def white(x: Tensor) -> Tensor:
        """c in units of its standard deviation."""
        return _times(vectors, _times(slopes.mT, x)) / values.sqrt()

    own, roots = white(e), list[Tensor]()
    goal = own
    for start in range(starts):
        goal = normal(own.shape, own, stream) if start > 1 else goal
        first = centre + e + _times(across, _times(vectors.mT, (goal - own) / values.sqrt()))
        x, rows, new = search(problem, found, first, across, values)
        scaled = white(x - centre)
        logs = -0.5 * scaled.square().sum(1) - torch.linalg.slogdet(rows @ across.mT).logabsdet
        logs = logs + volume_term(problem, found, x, rows, measure)
        for other in roots:
            new = new & ((scaled - other).abs().amax(1) > EQUAL)
        new, goal = new & torch.isfinite(logs), -FAR * scaled
        roots.append(torch.where(new[:, None], scaled, torch.inf))
        yield x, torch.where(new, logs, -math.inf)


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
