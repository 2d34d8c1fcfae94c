"""Poisson: the discrete equation holds, its solution converges, and the data are what they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from scipy.sparse.linalg import spsolve

from casal.errors import SettingError, ShapeError
from casal_lab.physics import poisson

F64 = torch.float64


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


@pytest.mark.parametrize("points", [3, 8, 17])
def test_the_solution_is_that_of_the_sparse_system(points: int) -> None:
    """The matrix of the five-point formula is put together here, point by point."""
    boundary, source = poisson.random_boundaries(2, seed(0), points), poisson.random_sources(2, seed(1), points)
    frame, h, m = poisson.on_the_frame(boundary).numpy(), 1 / (points - 1), points - 2
    line = sparse.diags_array([-np.ones(m - 1), 2 * np.ones(m), -np.ones(m - 1)], offsets=[-1, 0, 1]) / h**2
    matrix = sparse.kron(line, sparse.eye_array(m)) + sparse.kron(sparse.eye_array(m), line)
    found = poisson.solve(boundary, source).numpy()
    for u, g, f in zip(found, frame, source.numpy(), strict=True):
        right = f[1:-1, 1:-1].copy()
        right[0] += g[0, 1:-1] / h**2
        right[-1] += g[-1, 1:-1] / h**2
        right[:, 0] += g[1:-1, 0] / h**2
        right[:, -1] += g[1:-1, -1] / h**2
        expected = spsolve(sparse.csc_array(matrix), right.reshape(-1)).reshape(m, m)
        np.testing.assert_allclose(u[1:-1, 1:-1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("blobs", [False, True])
def test_the_residual_vanishes_on_the_data(blobs: bool) -> None:
    boundary = poisson.random_boundaries(6, seed(2))
    source = poisson.random_sources(6, seed(3)) if blobs else poisson.central_source()
    u = poisson.solve(boundary, source)
    rounding = 2.0**-52 * 99**2 * float(u.abs().max())  # of one term of the residual
    assert float(poisson.residual(u, source).abs().max()) < 100 * rounding < 1e-8
    assert torch.equal(poisson.boundary_of(u), boundary)
    u[:, 50, 50] += 1e-6
    assert float(poisson.residual(u, source).abs().max()) > 0.03  # 4e-6 / h^2


def test_second_order() -> None:
    """u = sin(2 x) e^y + x^2 y solves -Laplacian u = 3 sin(2 x) e^y - 2 y; a halved h quarters the error."""
    errors = []
    for points in (17, 33, 65):
        x, y = poisson.grid(points)
        u = torch.sin(2 * x) * torch.exp(y) + x.square() * y
        source = 3 * torch.sin(2 * x) * torch.exp(y) - 2 * y
        errors.append(float((poisson.solve(poisson.boundary_of(u[None]), source) - u).abs().max()))
    assert 3.9 < errors[0] / errors[1] < 4.1 and 3.9 < errors[1] / errors[2] < 4.1 and errors[2] < 1e-4


def test_without_a_source_the_boundary_bounds_the_field() -> None:
    boundary = poisson.random_boundaries(20, seed(4), 30)
    u = poisson.solve(boundary, torch.zeros(30, 30, dtype=F64))
    inner = u[:, 1:-1, 1:-1].flatten(1)
    assert bool((inner.amax(1) <= boundary.amax(1) + 1e-12).all())
    assert bool((inner.amin(1) >= boundary.amin(1) - 1e-12).all())
    constant = torch.full((1, 116), 0.7, dtype=F64)
    torch.testing.assert_close(poisson.solve(constant, torch.zeros(30, 30)), torch.full((1, 30, 30), 0.7, dtype=F64))


def test_the_way_round() -> None:
    u = torch.tensor([[[0, 1, 2], [7, -1, 3], [6, 5, 4]]], dtype=F64)
    assert poisson.boundary_of(u).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    u[0, 1, 1] = 0
    assert torch.equal(poisson.on_the_frame(torch.arange(8)[None]), u)


def test_mass_is_the_sum() -> None:
    u = torch.arange(18, dtype=F64).reshape(2, 3, 3)
    assert poisson.mass(u).tolist() == [36, 117]


def test_the_central_source() -> None:
    """A peak of 10 at the centre, of integral 10 * 0.02 pi."""
    source = poisson.central_source(101)
    assert float(source[50, 50]) == 10.0
    assert math.isclose(float(source[60, 50]), 10 * math.exp(-0.5), rel_tol=1e-12)
    assert math.isclose(float(source.sum()) / 100**2, 0.2 * math.pi, rel_tol=1e-4)


def test_boundaries_have_two_to_six_pieces() -> None:
    boundary = poisson.random_boundaries(4000, seed(5))
    pieces = (boundary != boundary.roll(1, 1)).sum(1)  # jumps on the way round
    assert int(pieces.max()) == 6
    share = torch.bincount(pieces, minlength=7) / 4000
    assert bool((share[2:] > 0.15).all())  # 1/5 each, but for ends that fall on one point
    assert float(share[:2].sum()) < 0.01
    assert float(boundary.amax(1).sub(boundary.amin(1)).max()) <= 2.0


@pytest.mark.statistical
def test_boundary_values_have_the_right_variance() -> None:
    """At one point U(-1, 1) + 0.5 N(0, 1): variance 1/3 + 1/4. Far points share the offset and at times the piece."""
    values = poisson.random_boundaries(40_000, seed(6), 20)[:, 31]
    fourth = 1 / 5 + 6 * (1 / 3) * (1 / 4) + 3 / 16
    error = math.sqrt((fourth - (7 / 12) ** 2) / 40_000)
    assert abs(float(values.square().mean()) - 7 / 12) < 4 * error < 0.02
    assert abs(float(values.mean())) < 4 * math.sqrt(7 / 12 / 40_000)


@pytest.mark.statistical
def test_sources_have_one_to_three_blobs() -> None:
    """A blob of strength s has the integral 0.02 pi s (its tails stay inside to 1 %); count and s are independent."""
    total = poisson.random_sources(20_000, seed(7), 26).sum((1, 2)) / 25**2 / (0.02 * math.pi)
    variance = 2 * 100**2 / 3  # the mean count is two
    error = float(total.square().std()) / math.sqrt(20_000)
    assert abs(float(total.square().mean()) - variance) < 4 * error + 0.01 * variance < 0.06 * variance
    assert abs(float(total.mean())) < 4 * math.sqrt(variance / 20_000)


def test_data_repeat() -> None:
    one, two = (poisson.random_solutions(3, seed(8), 20, blobs=True) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, poisson.random_solutions(3, seed(9), 20, blobs=True))
    boundary = poisson.random_boundaries(3, seed(8), 20)
    assert torch.equal(poisson.random_solutions(3, seed(8), 20), poisson.solve(boundary, poisson.central_source(20)))


def test_fields_do_not_see_each_other() -> None:
    boundary, source = poisson.random_boundaries(35, seed(10), 12), poisson.random_sources(35, seed(11), 12)
    together = poisson.solve(boundary, source)
    for i in (0, 15, 16, 34):
        alone = poisson.solve(boundary[i : i + 1], source[i])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-14)


def test_bad_input_is_named() -> None:
    with pytest.raises(ShapeError, match=r"4 \(points - 1\) values, points >= 3, got 10"):
        poisson.on_the_frame(torch.zeros(1, 10))
    with pytest.raises(ShapeError, match=r"the source is \(5, 5\), .* fields \(1, 4, 4\)"):
        poisson.solve(torch.zeros(1, 12), torch.zeros(5, 5))
    with pytest.raises(SettingError, match="points"):
        poisson.random_boundaries(1, seed(0), 2)
