"""The structure of a Jacobian is found by itself; sparse and dense derivatives lead to the same nearest points."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import casal
from casal.constraints.solvers.rows import DENSE, SparseRows
from casal.constraints.solvers.structure import IncompleteStructure, structure_of

F = torch.float64
CELLS, WIDTH = 32, 16
SIZE = CELLS * WIDTH


def masses(z: Tensor) -> Tensor:
    """A nonlinear mass for each cell of 16 coordinates."""
    cell = z.reshape(len(z), CELLS, WIDTH)
    return cell.sum(2) + 0.1 * (cell**3).sum(2) - 1.0


def balances(z: Tensor) -> Tensor:
    """Every fourth point of a ring and its neighbours: rows that overlap."""
    return z[:, ::4] + 0.1 * z[:, ::4] ** 2 - z.roll(2, 1)[:, ::4] - z.roll(-2, 1)[:, ::4]


def points(n: int = 4) -> Tensor:
    return 0.1 * torch.randn(n, SIZE, generator=torch.Generator().manual_seed(1), dtype=F)


def dense_of(fn: casal.Implicit) -> Tensor:
    """The derivatives at the points, by the set and by torch alone."""
    y = points(2)
    return torch.stack([torch.func.jacrev(lambda x: fn.equations(x[None])[0])(one) for one in y])


def test_rows_without_a_common_coordinate_take_one_backward_pass() -> None:
    sets = casal.Implicit(masses)
    found = sets._structure((SIZE,))
    assert found is not None and isinstance(sets.algebra((SIZE,)), SparseRows)
    assert int(found.colour.max()) == 0 and found.indices.shape[1] == SIZE


def test_overlapping_rows_get_colours_of_their_own() -> None:
    sets = casal.Implicit(balances)
    found = sets._structure((SIZE,))
    assert found is not None and int(found.colour.max()) == 1
    for colour in (0, 1):
        rows = torch.nonzero(found.colour == colour).flatten()
        columns = found.indices[1, torch.isin(found.indices[0], rows)]
        assert len(torch.unique(columns)) == len(columns)


def test_the_derivatives_are_those_of_torch() -> None:
    for fn in (masses, balances):
        sets = casal.Implicit(fn)
        algebra = sets.algebra((SIZE,))
        assert isinstance(algebra, SparseRows)
        rows = sets._worked((SIZE,), lambda system: system.linearise(points(2))[1])
        assert torch.allclose(algebra.dense(rows), dense_of(sets), atol=1e-14)


def test_the_nearest_point_is_that_of_dense_derivatives() -> None:
    def jacobian(z: Tensor) -> Tensor:
        return torch.stack([torch.func.jacrev(lambda x: masses(x[None])[0])(one) for one in z])

    y = points()
    found, dense = casal.Implicit(masses).solve(y), casal.Implicit(masses, jacobian=jacobian).solve(y)
    assert bool(found.converged.all()) and bool(dense.converged.all())
    assert torch.allclose(found.point, dense.point, atol=1e-10)


def test_a_dependence_that_random_points_do_not_show_makes_the_rows_dense() -> None:
    def hidden(z: Tensor) -> Tensor:
        return masses(z) + torch.relu(z[:, -1:] - 50.0)  # every mass knows the last point, but only far out

    sets, y = casal.Implicit(hidden), points()
    assert isinstance(sets.algebra((SIZE,)), SparseRows)
    y[:, -1] = 80.0
    found = sets.solve(y)
    assert sets.algebra((SIZE,)) is DENSE
    assert bool((found.converged == (sets.violation(found.point) < 1e-8)).all())


def test_what_is_small_or_full_stays_dense() -> None:
    assert casal.Implicit(lambda z: z[:, :4] ** 2 - 1).algebra((16,)) is DENSE
    matrix = torch.randn(32, SIZE, generator=torch.Generator().manual_seed(2), dtype=F)
    assert casal.Implicit(lambda z: z @ matrix.T).algebra((SIZE,)) is DENSE


def test_a_function_that_refuses_random_points_stays_dense() -> None:
    def picky(z: Tensor) -> Tensor:
        if float(z.abs().max()) > 1.0:
            raise ValueError("out of range")
        return masses(z)

    assert casal.Implicit(picky).algebra((SIZE,)) is DENSE


def test_entries_elsewhere_are_not_passed_over() -> None:
    matrix = torch.eye(128, dtype=F).repeat_interleave(2, 1)
    found = structure_of(lambda z: matrix[None], 256)
    assert found is not None and int(found.colour.max()) == 0
    zero = torch.zeros(1, dtype=F)
    assert torch.equal(found.entries(lambda weights: weights @ matrix, 1, zero), torch.ones(1, 256, dtype=F))
    for row, column in ((0, 200), (7, 3)):  # within the coordinates of another row, too
        more = matrix.clone()
        more[row, column] += 1e-3
        with pytest.raises(IncompleteStructure):
            found.entries(lambda weights, more=more: weights @ more, 1, zero)
