"""Conjugate gradients against dense solves, one chain at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from casal.linalg import cholesky_solver, conjugate_gradients, row_svd

GENERATOR = torch.Generator().manual_seed(0)
ROOTS = torch.randn((7, 5, 5), generator=GENERATOR, dtype=torch.float64)
MATRICES = ROOTS @ ROOTS.mT + 0.1 * torch.eye(5, dtype=torch.float64)
RIGHT = torch.randn((7, 5), generator=GENERATOR, dtype=torch.float64)
FLOOR = torch.full((7,), 1e-28, dtype=torch.float64)


def product(matrices: Tensor, v: Tensor) -> Tensor:
    return (matrices @ v[:, :, None]).squeeze(2)


@pytest.mark.parametrize("conditioned", [False, True])
def test_it_solves_every_system(conditioned: bool) -> None:
    diagonal = MATRICES.diagonal(dim1=1, dim2=2)
    options = {"precondition": lambda r: r / diagonal} if conditioned else {}
    v, image = conjugate_gradients(lambda p: product(MATRICES, p), RIGHT, FLOOR, 40, **options)
    torch.testing.assert_close(v, torch.linalg.solve(MATRICES, RIGHT), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(image, product(MATRICES, v), rtol=1e-9, atol=1e-9)


def test_in_a_subspace_the_residual_is_normal_to_it() -> None:
    """v sums to zero, and A v - right is a constant field."""
    v, image = conjugate_gradients(
        lambda p: product(MATRICES, p), RIGHT, FLOOR, 40, project=lambda r: r - r.mean(1, keepdim=True)
    )
    torch.testing.assert_close(v.sum(1), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-10)
    left = image - RIGHT
    torch.testing.assert_close(left, left.mean(1, keepdim=True).expand(7, 5), rtol=0, atol=1e-9)


def test_within_a_radius() -> None:
    """A short radius ends on the edge, a long one at the solution; the value falls below that of steepest descent."""
    exact = torch.linalg.solve(MATRICES, RIGHT)
    radius = exact.norm(dim=1) * torch.tensor([0.1, 0.3, 0.5, 0.9, 1.1, 2.0, 10.0], dtype=torch.float64)
    v, _ = conjugate_gradients(lambda p: product(MATRICES, p), RIGHT, FLOOR, 40, radius=radius)
    torch.testing.assert_close(v[:4].norm(dim=1), radius[:4])
    inside = v.norm(dim=1) < radius * (1 - 1e-9)
    torch.testing.assert_close(v[inside], exact[inside], rtol=1e-8, atol=1e-8)
    assert bool(inside[-2:].all())

    def value(t: Tensor) -> Tensor:
        return (t * product(MATRICES, t)).sum(1) / 2 - (RIGHT * t).sum(1)

    length = RIGHT.square().sum(1) / (RIGHT * product(MATRICES, RIGHT)).sum(1)
    cauchy = RIGHT * torch.minimum(length, radius / RIGHT.norm(dim=1))[:, None]
    assert bool((value(v) <= value(cauchy) + 1e-12).all())


def test_a_direction_that_is_not_convex_leads_to_the_edge_or_ends_the_chain() -> None:
    turned = MATRICES * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None, None]
    radius = torch.full((7,), 1e3, dtype=torch.float64)
    v, _ = conjugate_gradients(lambda p: product(turned, p), RIGHT, FLOOR, 40, radius=radius)
    torch.testing.assert_close(v.norm(dim=1)[[1, 3]], radius[:2])
    free, _ = conjugate_gradients(lambda p: product(turned, p), RIGHT, FLOOR, 40)
    assert float(free[[1, 3]].abs().max()) == 0.0


@pytest.mark.parametrize("chains", [(), (6,)], ids=["one matrix", "one for each chain"])
def test_factorised_systems_are_solved_in_the_dtype_of_the_matrix(chains: tuple[int, ...]) -> None:
    stream = torch.Generator().manual_seed(3)
    root = torch.randn((*chains, 4, 4), generator=stream, dtype=torch.float64)
    A, g = root @ root.mT + 0.1 * torch.eye(4, dtype=torch.float64), torch.randn((6, 4), generator=stream)
    expected = np.linalg.solve(np.broadcast_to(A.numpy(), (6, 4, 4)), g.double().numpy()[..., None])[..., 0]
    solved = cholesky_solver(A)(g)
    assert solved.dtype == torch.float32
    np.testing.assert_allclose(solved.numpy(), expected, rtol=2e-6)
    np.testing.assert_allclose(cholesky_solver(A)(g.double()).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("count", [0, 2, 9])
def test_singular_values_of_rows_with_few_columns(count: int) -> None:
    """Columns of zeros change nothing: u s vh is the matrix, and vh has orthonormal rows."""
    rows = torch.zeros(3, 9, dtype=torch.float64)
    rows[:, :count] = torch.randn(3, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    rows = rows.flip(1)
    u, s, vh = row_svd(rows)
    torch.testing.assert_close((u * s) @ vh, rows)
    torch.testing.assert_close(vh @ vh.T, torch.eye(len(s), dtype=torch.float64))
    torch.testing.assert_close(s, torch.linalg.svdvals(rows)[: len(s)])
