"""Sparse linear equations against the dense ones, and the factor of U U^T against torch's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from casal import Affine, Box, PerChain, Sphere, constraint_from_spec
from casal.constraints import geometry
from casal.constraints.base import Way
from casal.constraints.solvers.banded import Bands, LapackBands
from casal.constraints.solvers.sparse_rows import SparseMatrix
from casal.errors import InfeasibleSet, SettingError, ShapeError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def laplacian(side: int) -> scipy.sparse.coo_array:
    """Five points, zero beyond the edge."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    eye = scipy.sparse.eye_array(side)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocoo()


def some_equations(side: int = 6) -> tuple[Any, Tensor]:
    """Two rows of three of the Laplacian, as a sparse matrix of SciPy."""
    rows = [i for i in range(side**2) if i % 3]
    return laplacian(side).tocsr()[rows], normal(len(rows), seed=1)


# ------------------------------------------------------------------ the factor


@pytest.mark.parametrize("total", [False, True], ids=["bands", "border"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_the_factor_solves_and_has_the_determinant(total: bool, shuffled: bool) -> None:
    side, chains = 14, 3
    matrix = laplacian(side).tocsr()[: side * (side - 1)].tocoo()
    rows, columns = torch.tensor(matrix.row).long(), torch.tensor(matrix.col).long()
    size = matrix.shape[0]
    if shuffled:
        rows = torch.randperm(size, generator=torch.Generator().manual_seed(3))[rows]
    if total:
        rows = torch.cat([rows, torch.full((side**2,), size)])
        columns, size = torch.cat([columns, torch.arange(side**2)]), size + 1
    entries = 1.0 + 0.3 * normal(chains, len(rows), seed=4)
    dense = torch.zeros(chains, size, side**2, dtype=torch.float64)
    dense[:, rows, columns] = entries
    gram = dense @ dense.mT
    bands = Bands(rows, columns, size)
    assert bands.bandwidth <= 3 * side and bands.border == int(total)
    factor, good = bands.factorise(bands.gram(entries), 0.1)
    assert bool(good.all()) and factor.shape == (chains, bands.numbers)
    right = normal(chains, size, seed=5)
    ridged = gram + 0.1 * torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(bands.solve(factor, right), torch.linalg.solve(ridged, right), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(bands.log_determinant(factor), torch.logdet(ridged), rtol=1e-12, atol=0)
    alone, _ = bands.factorise(bands.gram(entries[1:2]), 0.1)
    torch.testing.assert_close(bands.solve(alone, right[1:2])[0], bands.solve(factor, right)[1], rtol=1e-14, atol=1e-14)
    active = normal(chains, size, seed=6) > -1.0
    both = torch.where(active[:, :, None] & active[:, None], gram, 0.0)
    cut = both + torch.diag_embed(1.0 - 0.9 * active.double())
    for kind in (Bands, LapackBands):
        other = kind(rows, columns, size)
        sides = other.gram(entries * active[:, rows])
        found, good = other.solve_once(sides, right, 0.1, active)
        assert bool(good.all())
        torch.testing.assert_close(found, torch.linalg.solve(cut, right), rtol=1e-11, atol=1e-11)
    several = bands.solve(alone, right)  # one factor for all
    torch.testing.assert_close(several, torch.linalg.solve(ridged[1], right.T).T, rtol=1e-11, atol=1e-11)


def test_a_factor_that_does_not_exist_is_flagged_in_its_chain_only() -> None:
    rows, columns = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    bands = Bands(rows, columns, 2)
    entries = torch.tensor([[1.0, 2.0, 0.0, 1.0], [1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    factor, good = bands.factorise(bands.gram(entries), torch.tensor([0.0, -1e-9], dtype=torch.float64))
    assert good.tolist() == [True, False]
    assert bool(torch.isfinite(factor).all())
    again = LapackBands(rows, columns, 2)
    ridge, right = torch.tensor([0.0, -1e-9], dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    found, good = again.solve_once(again.gram(entries), right, ridge)
    assert good.tolist() == [True, False]
    matrix = entries[0].reshape(2, 2)
    torch.testing.assert_close(found[0], torch.linalg.solve(matrix @ matrix.T, right[0]))


# ------------------------------------------------------------------ the set


def test_a_sparse_matrix_stays_sparse_and_gives_the_answers_of_the_dense_one() -> None:
    A, b = some_equations()
    dense, z = Affine(A.toarray(), b), normal(5, 36, seed=2)
    layouts = [A, A.tocoo(), torch.tensor(A.toarray()).to_sparse()]
    for given in layouts:
        sparse = Affine(given, b)
        assert isinstance(sparse.A, SparseMatrix) and "sparse 24 x 36, rank 24" in repr(sparse)
        foot = sparse.project(z)
        torch.testing.assert_close(foot, dense.project(z), rtol=0, atol=1e-14)
        torch.testing.assert_close(sparse.project(z.float(), quick=True).double(), foot, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(sparse.violation(z), dense.violation(z), rtol=1e-14, atol=0)
        torch.testing.assert_close(sparse.equations(z), dense.equations(z), rtol=0, atol=1e-14)
        torch.testing.assert_close(sparse.log_normaliser(z, 0.3), dense.log_normaliser(z, 0.3), rtol=1e-13, atol=0)
        weights = normal(5, 24, seed=3)
        torch.testing.assert_close(
            geometry.residual_pull(sparse, z, weights), geometry.residual_pull(dense, z, weights), rtol=0, atol=1e-14
        )
        assert float(sparse.violation(foot).max()) <= 1e-15
        assert geometry.codimension(sparse, (36,)) == 24 and sparse.component_name((36,), 3) == dense.component_name(
            (36,), 3
        )


def test_residuals_of_sparse_equations_can_be_differentiated() -> None:
    A, b = some_equations()
    sparse, z = Affine(A, b), normal(2, 36, seed=2).requires_grad_()
    geometry.residual(sparse, z).square().sum().backward()
    pulled = geometry.residual_pull(sparse, z.detach(), 2.0 * geometry.residual(sparse, z.detach()))
    torch.testing.assert_close(z.grad, pulled, rtol=1e-13, atol=1e-13)


def test_each_chain_has_its_own_right_hand_side_and_one_factor() -> None:
    A, _ = some_equations()
    b = normal(4, 24, seed=6)
    sparse, z = Affine(A, PerChain(b)), normal(4, 36, seed=7)
    foot = sparse.project(z)
    for chain in range(4):
        alone = Affine(A, b[chain])
        torch.testing.assert_close(foot[chain], alone.project(z[chain : chain + 1])[0], rtol=0, atol=1e-14)
    part = sparse.take(slice(1, 3))
    assert isinstance(part, Affine) and part._system is sparse._system
    torch.testing.assert_close(part.project(z[1:3]), foot[1:3], rtol=0, atol=1e-14)


def test_dependent_rows_do_no_harm_and_contradictions_are_named() -> None:
    A, b = some_equations()
    rows = torch.tensor(A.toarray())
    more = torch.cat([rows, 2.0 * rows[3:5], rows[:1] + rows[7:8], torch.zeros(1, 36)]).to_sparse()
    level = torch.cat([b, 2.0 * b[3:5], b[:1] + b[7:8], torch.zeros(1)])
    sparse, z = Affine(more, level), normal(3, 36, seed=2)
    assert geometry.codimension(sparse, (36,)) == 24 and sparse._count_equations() == 27
    torch.testing.assert_close(sparse.project(z), Affine(A, b).project(z), rtol=0, atol=1e-13)
    wrong = level.clone()
    wrong[26] += 1.0
    with pytest.raises(InfeasibleSet, match=r"rank 24 of 27 rows; row (0|7|26) is a combination of others"):
        Affine(more, wrong)
    with pytest.raises(InfeasibleSet, match="in chain 1"):
        Affine(more, PerChain(torch.stack([level, wrong])))
    wrong[27] = 1.0
    with pytest.raises(InfeasibleSet, match="row 27 of A is zero"):
        Affine(more, wrong)
    with pytest.raises(InfeasibleSet, match="non-finite"):
        Affine(torch.tensor([[1.0, torch.inf]]).to_sparse(), 0.0)
    nearly = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-8, 0.0]], dtype=torch.float64)
    with pytest.raises(SettingError, match=r"row 1 of the sparse equations .* within 1.0e-08 .* dense matrix"):
        Affine(nearly.to_sparse(), 1.0)
    close = Affine(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-5, 0.0]], dtype=torch.float64).to_sparse(), [1.0, 2.0])
    expected = torch.tensor([[1.0, 1e5, 7.0]], dtype=torch.float64)
    torch.testing.assert_close(close.project(torch.full((1, 3), 7.0).double()), expected, rtol=1e-9, atol=0)


def test_specs_keep_it_sparse() -> None:
    sparse, z = Affine(*some_equations()), normal(3, 36, seed=2)
    text = json.dumps(sparse.spec())
    assert len(text) < 8000  # 24 x 36 zeros and numbers would be longer
    again = constraint_from_spec(text)
    assert isinstance(again, Affine) and isinstance(again.A, SparseMatrix)
    assert torch.equal(again.project(z), sparse.project(z))


def test_sparse_equations_meet_other_sets() -> None:
    A, b = some_equations()
    sparse, dense, z = Affine(A, b), Affine(A.toarray(), b), normal(3, 36, seed=2)
    total = Affine(torch.ones(1, 36), 3.0)
    for first, second in (
        (sparse & total, dense & total),
        (sparse & Sphere(10.0), dense & Sphere(10.0)),
        (sparse & total & Sphere(10.0), dense & total & Sphere(10.0)),
        (sparse.shifted(torch.ones(36)), dense.shifted(torch.ones(36))),
        (sparse.scaled(2.0), dense.scaled(2.0)),
        (sparse.through(torch.eye(36).roll(1, 0)), dense.through(torch.eye(36).roll(1, 0))),
    ):
        assert first.exact
        torch.testing.assert_close(first.project(z), second.project(z), rtol=0, atol=1e-13)
        event = (36,)
        assert geometry.codimension(first, event) == geometry.codimension(second, event)
    both = (sparse & total)._parts[0]
    assert isinstance(both, Affine) and isinstance(both.A, SparseMatrix)
    box = Box(-1.5, 1.5)
    assert (sparse & box).way is Way.QUADRATIC_PROGRAMME
    torch.testing.assert_close((sparse & box).project(z), (dense & box).project(z), rtol=0, atol=1e-10)


def test_through_a_sparse_matrix_stays_sparse_and_a_large_dense_one_is_refused() -> None:
    A, b = some_equations()
    T = scipy.sparse.random_array((36, 50), density=0.1, rng=0)
    sparse = Affine(A, b).through(T)
    assert isinstance(sparse, Affine) and isinstance(sparse.A, SparseMatrix)
    torch.testing.assert_close(sparse.A.to_dense(), torch.tensor(A.toarray() @ T.toarray()))
    with pytest.raises(ShapeError, match="36 coordinates"):
        Affine(A, b).through(T.T)
    large = Affine(laplacian(70), 0.0)
    with pytest.raises(SettingError, match="give a sparse matrix"):
        large.through(torch.eye(4900))
    with pytest.raises(SettingError, match="written out"):
        SparseMatrix.of(laplacian(70)).to_dense()  # type: ignore[union-attr]


@pytest.mark.parametrize("rows", [4, 1], ids=["every fourth", "all"])
def test_a_large_laplacian(rows: int) -> None:
    """4096 unknowns: the foot satisfies the equations to rounding, and z - P(z) = A^T w for some w."""
    A = laplacian(64).tocsr()[::rows]
    sparse, z = Affine(A, normal(A.shape[0], seed=8)), normal(3, 4096, seed=9)
    foot = sparse.project(z)
    assert float(sparse.violation(foot).max()) <= 1e-15
    if rows > 1:
        step, turned = (z - foot).numpy(), A.T.tocsc()
        weights = scipy.sparse.linalg.spsolve((A @ turned).tocsc(), (A @ step.T))
        assert abs(turned @ weights - step.T).max() <= 1e-12
    rows = sparse.linear((4096,))
    assert rows is not None and isinstance(rows.matrix, SparseMatrix) and rows.matrix.shape == A.shape


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ShapeError, match="outside"):
        SparseMatrix([0], [3], [1.0], (1, 3))
    with pytest.raises(ShapeError, match="2 places but 1 values"):
        SparseMatrix([0, 0], [0, 1], [1.0], (1, 3))
    with pytest.raises(ShapeError, match="b 3 values"):
        Affine(laplacian(2), [1.0, 2.0, 3.0])
