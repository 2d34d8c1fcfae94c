"""The metric of chains inside a set, and densities whose flows are known: constant and Gaussian ones on flat sets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints import Reduction, analytic_centre
from casal.methods.chain_memory import centred
from casal.methods.flat_flows import rounded
from casal.methods.inside_chains import Space, labels_of, space_of
from casal.methods.problem import Problem
from casal.methods.scales import FEWEST_CHAINS, shrunk, solve, times, wide_directions
from casal.methods.surface import Surface

DENSE, ROUND, LOOKED_AT = 256, 4.0, 16
"""Dimensions up to which the metric is dense; ratio of spreads along a curved set from which on it has a metric, and
chains at which that is measured."""

AT_ONE_POINT = 1e-6
"""Spread of chains, in units of where they are, below which they begin at one point: it is rounding, and no metric."""

CROWDED = 3.0
"""Walls that an orbit of a Gaussian may meet for every dimension, by an estimate; beyond it leapfrogs are taken."""

STARTS, TESTED, STRAIGHT = 512, 64, 1e-8
"""Starting points and others at which a score is compared with a linear one, and the relative difference let pass."""


def some_starts(y: Tensor) -> Tensor:
    """At most STARTS of points, evenly."""
    return y[torch.linspace(0, len(y) - 1, min(len(y), STARTS), device=y.device).round().long()]


RAYS, DISTANCES, LEAST_RISE = 128, (1e-3, 1e-5), 0.05
"""Rays on which a density is followed to a wall, the shares of the way that are left, and the smallest exponent that
counts: for smaller ones leapfrogs are right, as hardly any mass is where they are refused."""


def first_eps(y: Tensor, scale: Tensor) -> float:
    """The first size of a leapfrog."""
    size = (
        1.0 if scale.numel() else max(float(y.std(0).max()) if len(y) > 1 else 0.0, 1e-3 * (1.0 + float(y.abs().max())))
    )
    return 0.5 * size / y.shape[1] ** 0.25


def root_of(u: Tensor) -> Tensor | None:
    """The Cholesky factor of the covariance of centred points (n, r), shrunk towards its diagonal; None if it fails."""
    root, failed = torch.linalg.cholesky_ex(shrunk(u.T @ u / max(len(u) - 1, 1), len(u)))
    return None if int(failed) else root


def curved_scale(problem: Problem, y: Tensor) -> Tensor:
    """A metric for a curved set, where the spread of the chains differs much along it; else none.

    Directions across the set, in which chains hardly spread, count as a share of the widest. They are no reason for a
    metric: coordinates that depend on others may have any unit.
    """
    given, none = given_scale(problem), torch.zeros(0, dtype=y.dtype, device=y.device)
    if given is not None:
        return given
    u = centred(y, labels_of(problem, len(y)))
    if float(u.abs().max()) < AT_ONE_POINT * (1.0 + float(y.abs().max())):
        return none
    if y.shape[1] > DENSE:
        scale = wide_directions(u, 1e-3) if len(y) >= FEWEST_CHAINS else none
        return scale if scale.ndim == 2 and 1.0 + float(scale[:, 1:].square().sum(0).max()) > ROUND else none
    if len(y) <= 2 * y.shape[1]:
        return none
    covariance = u.T @ u / len(u)
    if _unequal(problem, y, covariance) <= ROUND:
        return none
    values, vectors = torch.linalg.eigh(covariance)
    spread = (vectors * values.clamp_min(1e-6 * float(values[-1]))) @ vectors.T
    return torch.linalg.cholesky(shrunk(spread, len(u)))


def _unequal(problem: Problem, y: Tensor, covariance: Tensor) -> float:
    """The ratio of the widest spread to the narrowest along the set, a median over some chains."""
    some = torch.arange(min(len(y), LOOKED_AT), device=y.device) * len(y) // min(len(y), LOOKED_AT)
    J = Surface(problem.take(some).constraint, space_of(problem).event).slopes(y[some])
    along = torch.linalg.qr(J.mT, mode="complete").Q[:, :, J.shape[1] :]
    values = torch.linalg.eigvalsh(along.mT @ covariance @ along)
    if not values.shape[1]:
        return 1.0
    return float((values[:, -1] / values[:, 0].clamp_min(1e-10 * float(values.max()))).sqrt().median())


def given_scale(problem: Problem) -> Tensor | None:
    """L of the matrix that the user gave, in the coordinates y; None where there is none."""
    if problem.metric is None:
        return None
    space, C = space_of(problem), problem.metric.to(torch.float64)
    if space.flat is not None:
        C = C if space.flat.basis is None else space.flat.basis.T @ C @ space.flat.basis
    elif space.inverse is not None:  # x = A^-1 z
        A = torch.diag(1.0 / space.inverse) if space.inverse.ndim == 1 else torch.linalg.inv(space.inverse)
        C = A @ C @ A.T
    return torch.linalg.cholesky(C)


def renewed_scale(space: Space, problem: Problem, y: Tensor, scale: Tensor) -> Tensor | None:
    """L of a flat set from the chains, by way of the one before; None where it stays."""
    if problem.metric is not None:
        return None
    away = centred(y, labels_of(problem, len(y)))
    if y.shape[1] > DENSE:
        if scale.ndim == 2 and len(scale) == scale.shape[1]:  # the ellipsoid of the walls, corrected
            return scale @ times(wide_directions(solve(scale, away)), torch.eye(len(scale)).to(scale)).T
        if space.bounds is None:
            return wide_directions(away)
        spread = away.square().mean(0).sqrt()  # between bounds alone a drift is a fold, if L is diagonal
        return torch.where(spread > 0, spread, scale)
    root = root_of(solve(scale, away))
    if root is None:
        return None
    return torch.diag(scale) @ root if scale.ndim == 1 else scale @ root


def first_scale(space: Space, problem: Problem, y: Tensor) -> Tensor:
    """A metric before the warm-up: the spread of the chains, or the room between the walls where that is less."""
    flat, given = space.flat, given_scale(problem)
    assert flat is not None
    if given is not None:
        return given
    spread = y.std(0) if len(y) >= FEWEST_CHAINS else torch.zeros_like(y[0])
    least = flat.room.amin(0)
    room = torch.full_like(y[0], torch.inf)
    if len(least):
        room = (least[:, None] / flat.walls.abs().clamp_min(1e-12)).amin(0)
    apart = spread > AT_ONE_POINT * room.clamp_max(1.0)
    spread = torch.where(apart, spread, room.clamp_max(1.0))
    if y.shape[1] > DENSE:
        return spread
    if len(y) > 2 * y.shape[1] and bool(apart.all()):  # chains at one point differ by rounding alone
        root = root_of(centred(y, labels_of(problem, len(y))) / spread)
        if root is not None:
            return spread[:, None] * root
    return torch.diag(spread)


def barrier(flat: Reduction | None) -> tuple[Tensor, Tensor]:
    """Centre and ellipsoid of the logarithmic barrier of the walls."""
    assert flat is not None
    found = analytic_centre(flat.walls, flat.room[0], torch.zeros_like(flat.walls[0]), 1e-8)
    return (torch.zeros_like(flat.walls[0]), torch.eye(flat.dimension).to(flat.walls)) if found is None else found


def crowded(flat: Reduction | None, centre: Tensor, scale: Tensor) -> tuple[Tensor, Tensor] | None:
    """Centre and scale for leapfrogs where a Gaussian is so wide beside the set that its orbits meet too many walls.

    From the barrier of the walls plus the Gaussian; None where orbits will do.
    """
    assert flat is not None
    walls = rounded(flat.walls, flat.room, centre, scale)
    if not len(flat.walls):
        return None
    found = analytic_centre(walls.normals, walls.levels[0], solve(scale, -centre[None])[0], 1.0)
    if found is None or float((1.0 / (walls.levels[0] - walls.normals @ found.y)).sum()) < CROWDED * flat.dimension:
        return None
    return centre + times(scale, found.y[None])[0], scale @ found.scale


def rise_at_walls(space: Space, score: Any, like: Tensor) -> float:
    """a, if log p rises like -a log(distance) towards a wall of a flat set; zero for a density that is finite there.

    Along rays from the interior point to a wall, at the shares 1 - d of the way, d (g . y) is a for such a density,
    whatever d is, and for others proportional to d.
    """
    flat = space.flat
    assert flat is not None
    if not len(flat.walls) or len(flat.room) > 1:
        return 0.0
    generator = torch.Generator(like.device).manual_seed(0)
    rays = torch.randn((RAYS, flat.dimension), generator=generator, dtype=torch.float64, device=like.device)
    reach = ((rays @ flat.walls.T) / flat.room).amax(1, keepdim=True)
    ends = rays[reach[:, 0] > 0] / reach[reach[:, 0] > 0]
    if not len(ends):
        return 0.0
    far, near = (d * (space.pull(score(space.latents((1.0 - d) * ends, like))) * ends).sum(1) for d in DISTANCES)
    steady = (near > LEAST_RISE) & ((near - far).abs() < 0.3 * near)
    return float(near[steady].max()) if bool(steady.any()) else 0.0


def linear_score(
    space: Space, score: Any, y: Tensor, like: Tensor, log_p: Any = None
) -> tuple[str, Tensor, Tensor] | None:
    """Constant or Gaussian densities on a flat set, with centre and scale of the Gaussian; None for others.

    Also None where chains have sets of their own. The score at 2 r points around the interior point gives the
    precision. It has to be linear at the points y, and at points in all directions at up to a hundred
    spreads from the centre of the Gaussian; log p, if it is known, has to be quadratic there.
    """
    flat = space.flat
    assert flat is not None
    if len(flat.room) > 1:
        return None
    r, device = flat.dimension, y.device
    generator = torch.Generator(device).manual_seed(0)
    h = 0.5 * float(flat.room.min().clamp_max(1e3)) if len(flat.walls) else 1.0
    eye = torch.eye(r, dtype=y.dtype, device=device)
    points = torch.cat([torch.zeros_like(eye[:1]), h * eye, -h * eye])
    g = space.pull(score(space.latents(points, like)))
    slope = (g[1 + r :] - g[1 : 1 + r]) / (2.0 * h)  # rows: derivatives of -g
    precision = 0.5 * (slope + slope.T)
    root, failed = torch.linalg.cholesky_ex(precision)
    constant = float(g.abs().max()) == 0.0
    units = torch.ones_like(g[0]) if constant else precision.diagonal().sqrt()  # of the score along each coordinate
    if not constant and (int(failed) or not bool((root.diagonal() > 1e-6 * units).all())):
        return None
    centre = torch.zeros_like(g[0]) if constant else torch.cholesky_solve(g[0][:, None], root)[:, 0]
    scale = eye if constant else torch.linalg.inv(root).T
    far = torch.randn((TESTED, r), generator=generator, dtype=y.dtype, device=device)
    size = torch.logspace(-1, 2, TESTED, dtype=y.dtype, device=device)[:, None]
    tested = torch.cat([y, flat.drawn_in(centre + size * times(scale, far), 0.999)])
    told = space.pull(score(space.latents(tested, like)))
    off, most = ((part / units).abs().amax() for part in (g[0] - tested @ precision - told, torch.cat([told, g])))
    rounding = max(STRAIGHT, 1e3 * torch.finfo(like.dtype).eps)
    if float(off) > rounding * float(most):
        return None
    if log_p is not None:  # a step of the potential, which the score does not see
        seen = log_p(space.latents(tested, like)).to(y) - (tested * (g[0] - 0.5 * tested @ precision)).sum(1)
        terms = float((tested * (g[0].abs() + (tested @ precision).abs())).abs().sum(1).max())
        if not float((seen - seen.median()).abs().max()) <= max(1e-6, rounding * terms):
            return None
    return "constant" if constant else "gaussian", centre, scale
