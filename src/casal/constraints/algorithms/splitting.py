"""Nearest x with A x in C, by splitting x and z = A x (ADMM), for many points at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.constraints.base import Budget, Projection


def behind_matrix(
    y: Tensor,
    A: Tensor,
    project: Callable[[Tensor], Tensor],
    violation: Callable[[Tensor], Tensor],
    budget: Budget,
) -> Projection:
    """min 1/2 |x - y|^2 subject to A x in C:

        x = (I + rho A^T A)^-1 (y + rho A^T (z - u)),    z = P_C(A x + u),    u = u + A x - z.

    rho = 1 / |A|^2 balances the two sides; A^T A is factorised once. A chain is done when its violation is within the
    tolerance and x no longer moves; it flags what does not get there.

    Args:
        y: Points (n, d).
        A: Matrix (k, d).
        project: P_C on (n, k).
        violation: Violation of x, (n, d) -> (n,).
        budget: Tolerance and iterations.
    """
    values, basis = torch.linalg.eigh(A.T @ A)
    rho = 1.0 / float(values[-1].clamp_min(torch.finfo(A.dtype).tiny))
    inverse = (basis / (1.0 + rho * values.clamp_min(0.0))) @ basis.T
    n = len(y)
    out = Projection(
        y.clone(),
        torch.zeros(n, dtype=torch.bool, device=y.device),
        torch.full((n,), budget.iterations, device=y.device),
        violation(y),
    )
    chain = torch.arange(n, device=y.device)
    x, anchor, z = y, y, project(y @ A.T)
    u = torch.zeros_like(z)
    for iteration in range(1, budget.iterations + 1):
        new = (anchor + rho * (z - u) @ A) @ inverse
        image = new @ A.T
        z = project(image + u)
        u = u + image - z
        moved = (new - x).abs().amax(1) / (1.0 + new.abs().amax(1))
        x = new
        left = violation(x)
        done = (left <= budget.tolerance) & (moved <= budget.tolerance)
        out.point[chain], out.residual[chain] = x, left
        out.converged[chain[done]] = True
        out.iterations[chain[done]] = iteration
        if bool(done.all()):
            break
        if bool(done.any()):
            keep = ~done
            chain, x, anchor, z, u = chain[keep], x[keep], anchor[keep], z[keep], u[keep]
    return out
