"""Derivatives and linear systems of many chains at once, each chain its own: factorised, or by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.devices import check_due, seen

VECTORISED = 2**20
"""Numbers in a Jacobian up to which all rows are differentiated at once; beyond, row after row is faster."""


def cholesky_solver(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """g -> A^-1 g for rows g (n, m), of one A (m, m) or one for each chain (n, m, m), positive definite.

    Worked out in the dtype of A; the result is in that of g.
    """
    root = torch.linalg.cholesky(matrix)
    if matrix.ndim == 2:
        return lambda g: torch.cholesky_solve(g.to(root).T, root).T.to(g.dtype)
    return lambda g: torch.cholesky_solve(g.to(root)[..., None], root)[..., 0].to(g.dtype)


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """df/dx (n, m, d) and f (n, m), of a function that treats the points (n, *event) one by one."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        f = function(leaf)
        return rows_of(f, leaf), f.detach()


def pulled(values: Tensor, leaf: Tensor, weights: Tensor, *, create_graph: bool = False) -> Tensor:
    """Gradient of weights . values, chain by chain, (n, d)."""
    if not values.requires_grad:
        return torch.zeros_like(leaf).flatten(1)
    (out,) = torch.autograd.grad(
        values, leaf, weights, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return out.flatten(1)


def rows_of(values: Tensor, leaf: Tensor) -> Tensor:
    """(n, r, d): a backward pass for every row of values (n, r), all at once where torch can and that is faster."""
    n, r, d = *values.shape, leaf[:1].numel()
    if r == 1:
        return pulled(values, leaf, torch.ones_like(values))[:, None]
    if not r or not values.requires_grad:
        return leaf.new_zeros((n, r, d))
    basis = torch.eye(r, dtype=values.dtype, device=values.device)[:, None].expand(r, n, r)
    if n * r * d <= VECTORISED:
        try:
            (out,) = torch.autograd.grad(
                values, leaf, basis, retain_graph=True, is_grads_batched=True, allow_unused=True, materialize_grads=True
            )
            return out.flatten(2).transpose(0, 1)
        except RuntimeError:  # an operation that cannot be vectorised
            pass
    return torch.stack([pulled(values, leaf, weights) for weights in basis], dim=1)


def log_gram(J: Tensor) -> Tensor:
    """log det J J^T of matrices (n, m, d), (n,)."""
    return J.square().sum((1, 2)).log() if J.shape[1] == 1 else torch.linalg.slogdet(J @ J.mT).logabsdet


def _same(v: Tensor) -> Tensor:
    return v


def row_svd(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, s, vh of rows (m, d), in the columns that are not zero: some known values of a large field are few of them."""
    used = torch.nonzero(rows.any(0)).flatten()
    used = used if len(used) else torch.arange(rows.shape[1], device=rows.device)
    u, s, part = torch.linalg.svd(rows[:, used], full_matrices=False)
    return u, s, part.new_zeros(len(s), rows.shape[1]).index_copy_(1, used, part)


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    right: Tensor,
    tolerance: Tensor,
    steps: int,
    *,
    precondition: Callable[[Tensor], Tensor] = _same,
    project: Callable[[Tensor], Tensor] = _same,
    radius: Tensor | None = None,
    check_first: bool = True,
) -> tuple[Tensor, Tensor]:
    """argmin v . A v / 2 - right . v, chain by chain: the solution of A v = right if A is positive definite.

    With a radius, over |v| <= radius: a chain stops where it reaches the edge, or goes there along a direction in which
    A is not convex (Steihaug 1983, The conjugate gradient method and trust regions in large scale optimization).

    Args:
        apply: v -> A v for rows v (n, d); A is symmetric.
        right: (n, d).
        tolerance: (n,) a chain is done where r . M r is not above it, r the residual and M the preconditioner.
        steps: Largest number of iterations.
        precondition: r -> M r.
        project: Onto the subspace in which v is sought.
        radius: (n,); None for no bound.
        check_first: Whether to check before the first iteration, off the host, if there is anything to do at all.

    Returns:
        v, and A v.
    """
    tiny, epsilon = torch.finfo(right.dtype).tiny, torch.finfo(right.dtype).eps
    unbounded = 0.0 if radius is None else torch.inf  # how far to go where A is not convex
    v, image_of_v = torch.zeros_like(right), torch.zeros_like(right)
    r = project(right)
    p = precondition(r)
    size = (r * p).sum(1)
    live = size > tolerance if radius is None else (size > tolerance) & (radius > 0)
    for iteration in range(steps):
        if ((check_first and iteration == 0) or check_due(iteration, right)) and not seen(live.any()):
            break
        p = torch.where(live[:, None], p, torch.zeros_like(p))
        image = apply(p)
        curvature, length = (p * image).sum(1), p.square().sum(1)
        convex = curvature > epsilon * (length * image.square().sum(1)).sqrt()
        share, ends = torch.where(convex, size / torch.where(convex, curvature, 1.0), unbounded), ~convex
        if radius is not None:
            cross, left = (v * p).sum(1), (radius.square() - v.square().sum(1)).clamp_min(0.0)
            long = torch.where(length > 0, length, 1.0)
            edge = left / (cross + (cross.square() + long * left).sqrt()).clamp_min(1e-300)
            share, ends = torch.minimum(share, edge), share >= edge
        share = torch.where(live, share, 0.0)[:, None]
        v, image_of_v = v + share * p, image_of_v + share * image
        r = torch.where(live[:, None], project(r - share * image), r)
        conditioned = precondition(r)
        new = (r * conditioned).sum(1)
        p = conditioned + (new / size.clamp_min(tiny))[:, None] * p
        live, size = live & ~ends & (new > tolerance), new
    return v, image_of_v
