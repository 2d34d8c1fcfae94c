"""The linearised problem of a Gauss-Newton step: which rows take part, their multipliers, their tangent space."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints.algorithms.gauss_newton_state import EPSILON, Chains, Point, Tangent, open_part
from casal.constraints.base import norm

FARTHEST = 10.0
"""Longest first step, in units of 1 + |z|: a nearly vanishing gradient must not fling a chain away."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
"""Levenberg ridges on U U^T (rows of length one) for normal steps that leave the trust region."""


def first_radius(here: Point, chains: Chains, one_sided: Tensor) -> Tensor:
    """A few times the distance to the rows, one by one, but no farther than a gradient can be trusted."""
    step = norm(open_part(here.gap, one_sided)) + norm(chains.y - here.z)
    return torch.minimum(2.0 * step, FARTHEST * (1.0 + norm(here.z)))


def tangent_at(here: Point, chains: Chains, one_sided: Tensor) -> Tangent:
    """The active rows of the linearised problem, its normal step, and what is left of the optimality conditions.

    Where the rows contradict each other, or nearly do, the normal step leaves the trust region. Then they need not
    hold exactly: U U^T gets a Levenberg ridge, and at last the step is cut.
    """
    gram = here.unit @ here.unit.mT
    longest = 0.9 * chains.radius
    active, forces = _linearised(here, chains, gram, one_sided, 0.0)
    normal = -pull_back(here.unit, forces)
    for ridge in RIDGES if here.gap.shape[1] > 1 else ():
        long = norm(normal) > longest
        if not bool(long.any()):
            break
        other, weaker = _linearised(here, chains, gram, one_sided, ridge)
        active, forces = torch.where(long[:, None], other, active), torch.where(long[:, None], weaker, forces)
        normal = -pull_back(here.unit, forces)
    share = cut_to_radius(normal, longest)[:, None]
    return tangent_of(here, chains, gram, active, one_sided, share * forces)


def _linearised(here: Point, chains: Chains, gram: Tensor, one_sided: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Active rows, and the forces f of the normal step -U^T f: (U U^T + ridge) f = gap over those rows."""
    active = here.lengths > 0
    if bool(one_sided.any()):
        # Towards the anchor, but not farther than the radius: the same answer once the steps are short.
        away = chains.y - here.z
        radius = torch.maximum(chains.radius, 1e-9 * (1.0 + norm(here.z)))
        reach = here.gap + apply_rows(here.unit, cut_to_radius(away, radius)[:, None] * away)
        active = _active_rows(gram, reach, active, one_sided, ridge)
    gap = torch.where(active, here.gap, torch.zeros_like(here.gap))
    return active, torch.cholesky_solve(gap[:, :, None], factorise(gram, active, ridge)).squeeze(2)


def tangent_of(here: Point, chains: Chains, gram: Tensor, active: Tensor, one_sided: Tensor, forces: Tensor) -> Tangent:
    """The tangent space of the active rows, the normal step there, and the error of the optimality conditions."""
    factor = factorise(gram, active)
    basis = torch.linalg.solve_triangular(factor, here.unit * active[:, :, None], upper=False)
    normal = -pull_back(here.unit, forces)
    pull = (here.z - chains.y) / chains.scale[:, None]
    slide = tangential(basis, pull)
    angle, size = norm(slide), norm(pull)
    # The rounding of z - y has a tangential part of its own.
    noise = 4 * EPSILON * here.z.shape[1] ** 0.5 * (norm(here.z) / chains.scale + 1.0)
    angle = torch.where(angle > noise, angle / size.clamp_min(1e-300), torch.zeros_like(angle))
    size = 1.0 + norm(here.z)
    loose = norm(torch.where(active & one_sided, here.gap.clamp_max(0.0), torch.zeros_like(here.gap)))
    angle = torch.maximum(angle, loose / size)
    error = torch.maximum(angle, norm(open_part(here.gap, one_sided)) / size)
    return Tangent(active, factor, basis, normal, forces, pull, slide, angle, error)


def factorise(gram: Tensor, active: Tensor, ridge: float = 0.0) -> Tensor:
    """Cholesky factor of U U^T + ridge over the active rows (one elsewhere), with more of it if it does not exist."""
    both = active[:, :, None] & active[:, None, :]
    matrix = torch.where(both, gram, torch.zeros_like(gram))
    ridge = max(ridge, EPSILON * 4 * gram.shape[1])
    diagonal = torch.where(active, torch.full_like(gram[:, 0], ridge), torch.ones_like(gram[:, 0]))
    factor, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(diagonal))
    while bool((info > 0).any()):
        ridge *= 100.0
        again, info_again = torch.linalg.cholesky_ex(matrix + torch.diag_embed(diagonal.clamp_min(ridge)))
        failed = info > 0
        factor = torch.where(failed[:, None, None], again, factor)
        info = torch.where(failed, info_again, torch.zeros_like(info))
    return factor


def _active_rows(gram: Tensor, reach: Tensor, usable: Tensor, one_sided: Tensor, ridge: float) -> Tensor:
    """Rows with a multiplier in min 1/2 m.(U U^T + ridge) m - reach.m, m >= 0 where one-sided.

    By block principal pivoting: all wrong rows change sides at once as long as that lowers their number; after three
    failures only the last wrong one does, which ends after finitely many steps.
    """
    active = usable & (~one_sided | (reach > 0))
    rows = reach.shape[1]
    number = torch.arange(rows, device=reach.device)
    fewest = torch.full_like(number[:1].expand(len(reach)), rows + 1)
    chances = torch.full_like(fewest, 3)
    for _ in range(20 + 4 * rows):
        rhs = torch.where(active, reach, torch.zeros_like(reach))
        multipliers = torch.cholesky_solve(rhs[:, :, None], factorise(gram, active, ridge)).squeeze(2)
        multipliers = torch.where(active, multipliers, torch.zeros_like(multipliers))
        slack = apply_rows(gram, multipliers) - reach
        noise = 1e-13 * (multipliers.abs().amax(1) + reach.abs().amax(1))[:, None]
        wrong = one_sided & usable & torch.where(active, multipliers < -noise, slack < -noise)
        count = wrong.sum(1)
        if not bool(count.any()):
            break
        better = count < fewest
        fewest = torch.where(better, count, fewest)
        chances = torch.where(better, torch.full_like(chances, 3), chances - 1)
        last = torch.where(wrong, number, torch.full_like(number, -1)).amax(1)
        single = wrong & (number == last[:, None])
        active = active ^ torch.where((chances >= 0)[:, None], wrong, single)
    return active


def apply_rows(matrix: Tensor, v: Tensor) -> Tensor:
    """(n, r, d) times (n, d); not by a matrix product, whose rounding depends on the number of chains."""
    return (matrix * v[:, None, :]).sum(2)


def pull_back(matrix: Tensor, v: Tensor) -> Tensor:
    """Transpose of (n, r, d) times (n, r)."""
    return (matrix * v[:, :, None]).sum(1)


def row_length(v: Tensor) -> Tensor:
    """Norm of each row, for numbers of ordinary size."""
    return torch.linalg.vector_norm(v, dim=1)


def tangential(basis: Tensor, v: Tensor) -> Tensor:
    """P_T v; the second pass removes what the rounding of the basis left."""
    v = v - pull_back(basis, apply_rows(basis, v))
    return v - pull_back(basis, apply_rows(basis, v))


def cut_to_radius(v: Tensor, radius: Tensor) -> Tensor:
    """The factor <= 1 that brings v into the radius."""
    return (radius / norm(v).clamp_min(1e-300)).clamp_max(1.0)
