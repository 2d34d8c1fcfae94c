"""Darcy: the balance of every cell, its derivatives, the order of the solution, and the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal_lab.physics import darcy

F64 = torch.float64


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def positive_pair(n: int, cells: int) -> tuple[Tensor, Tensor]:
    """Rough fields that solve nothing."""
    noise = torch.randn((2, n, cells, cells), generator=seed(0), dtype=F64)
    return torch.exp(noise[0]), noise[1]


def balance(a: np.ndarray, u: np.ndarray) -> np.ndarray:
    """-div(a grad u) of one field, cell by cell and face by face."""
    m = len(a)
    total = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            for k, o in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                if 0 <= k < m and 0 <= o < m:
                    total[i, j] += (a[i, j] + a[k, o]) / 2 * (u[i, j] - u[k, o]) * m * m
                else:
                    total[i, j] += a[i, j] * u[i, j] / (1 / (2 * m)) * m
    return total


def test_the_residual_is_the_balance_of_the_cells() -> None:
    a, u = positive_pair(2, 5)
    expected = np.stack([balance(*pair) for pair in zip(a.numpy(), u.numpy(), strict=True)]) - 0.3
    np.testing.assert_allclose(darcy.residual(a, u, 0.3).numpy(), expected, rtol=1e-12, atol=1e-10)


def test_the_residual_vanishes_on_the_data() -> None:
    a, u = darcy.random_pairs(8, seed(1))
    rounding = 2.0**-52 * 4 * 12 * 32**2 * float(u.abs().max())  # of the terms of one cell
    assert float(darcy.residual(a, u).abs().max()) < 20 * rounding < 1e-10
    assert float(u.min()) > 0  # f > 0: no cell below the walls
    outflow = 2 * 32 * (a * u)  # per area of a wall
    total = outflow[:, 0].sum(1) + outflow[:, -1].sum(1) + outflow[:, :, 0].sum(1) + outflow[:, :, -1].sum(1)
    torch.testing.assert_close(total / 32, torch.ones(8, dtype=F64), rtol=1e-11, atol=0)  # what f puts in leaves


def test_second_order() -> None:
    """a = 2 + sin(2 x + y), u = sin(pi x) sin(2 pi y) e^x: f by hand, a halved h quarters the error."""
    errors = []
    for cells in (16, 32, 64):
        line = (torch.arange(cells, dtype=F64) + 0.5) / cells
        x, y = torch.meshgrid(line, line, indexing="ij")
        a, ax, ay = 2 + torch.sin(2 * x + y), 2 * torch.cos(2 * x + y), torch.cos(2 * x + y)
        p, q = torch.sin(math.pi * x) * torch.exp(x), torch.sin(2 * math.pi * y)
        px = (math.pi * torch.cos(math.pi * x) + torch.sin(math.pi * x)) * torch.exp(x)
        pxx = (2 * math.pi * torch.cos(math.pi * x) + (1 - math.pi**2) * torch.sin(math.pi * x)) * torch.exp(x)
        qy, qyy = 2 * math.pi * torch.cos(2 * math.pi * y), -4 * math.pi**2 * q
        source = -(ax * px * q + ay * p * qy + a * (pxx * q + p * qyy))
        errors.append(float((darcy.solve(a[None], source)[0] - p * q).abs().max()))
    assert 3.7 < errors[0] / errors[1] < 4.3 and 3.7 < errors[1] / errors[2] < 4.3 and errors[2] < 5e-3


def dense(values: Tensor, cells: int) -> Tensor:
    matrix = torch.zeros((len(values), cells**2, 2 * cells**2), dtype=F64)
    rows, columns = darcy.jacobian_pattern(cells)
    matrix[:, rows, columns] = values
    return matrix


@pytest.mark.parametrize("cells", [2, 5])
@pytest.mark.parametrize(
    ("by", "closed"), [(lambda a: a, darcy.jacobian), (darcy.from_log, darcy.log_jacobian)], ids=["a", "s"]
)
def test_the_jacobian_is_that_of_autograd(
    cells: int, by: Callable[[Tensor], Tensor], closed: Callable[[Tensor, Tensor], Tensor]
) -> None:
    first, u = positive_pair(3, cells)
    found = dense(closed(by(first), u), cells)
    for i in range(3):

        def one(row: Tensor) -> Tensor:
            p, q = row.reshape(2, 1, cells, cells)
            return darcy.residual(by(p), q).flatten()

        expected = torch.autograd.functional.jacobian(one, torch.cat([first[i].flatten(), u[i].flatten()]))
        torch.testing.assert_close(found[i], expected, rtol=1e-12, atol=1e-10)


def test_the_pattern_names_each_place_once() -> None:
    pattern = darcy.jacobian_pattern(6)
    assert len(torch.unique(pattern, dim=1).T) == pattern.shape[1] == 2 * (36 + 4 * 30)
    assert int(pattern[0].max()) == 35 and int(pattern[1].max()) == 71


def test_a_newton_step_in_u_alone_solves() -> None:
    """The block of u is the matrix of the equation: from any u one step ends at the solution."""
    a, u = positive_pair(2, 6)
    block = dense(darcy.jacobian(a, u), 6)[:, :, 36:]
    step = torch.linalg.solve(block, darcy.residual(a, u).flatten(1))
    torch.testing.assert_close(u - step.reshape(2, 6, 6), darcy.solve(a), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(block, block.mT)


def test_logarithms() -> None:
    torch.testing.assert_close(darcy.to_log(torch.tensor([3.0, 6.0, 12.0])), torch.tensor([-1.0, 0.0, 1.0]))
    s = torch.linspace(-3, 3, 7, dtype=F64)
    torch.testing.assert_close(darcy.to_log(darcy.from_log(s)), s)


@pytest.mark.statistical
def test_coefficients_are_two_materials_in_equal_parts() -> None:
    """Either sign of the field is as likely; the sign of neighbours follows the arcsine law of their correlation."""
    a = darcy.random_coefficients(4000, seed(2))
    assert a.unique().tolist() == [3.0, 12.0]
    sign = darcy.to_log(a)
    assert abs(float(sign[:, 5, 9].mean())) < 4 / math.sqrt(4000)
    x, k = (np.array([5, 9, 8, 20]) + 0.5) / 32, np.arange(32)
    phi = np.where(k == 0, 1.0, math.sqrt(2)) * np.cos(np.pi * np.outer(x, k))
    lam = (np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + 9.0) ** -2.0
    lam[0, 0] = 0.0

    def covariance(i: int, j: int, m: int, o: int) -> float:
        return float(np.einsum("k,l,k,l,kl", phi[i], phi[j], phi[m], phi[o], lam))

    correlation = covariance(0, 1, 2, 3) / math.sqrt(covariance(0, 1, 0, 1) * covariance(2, 3, 2, 3))
    expected = 2 / math.pi * math.asin(correlation)
    found = float((sign[:, 5, 9] * sign[:, 8, 20]).mean())
    assert abs(found - expected) < 4 / math.sqrt(4000) < abs(found + expected)


def test_data_repeat() -> None:
    one, two = (torch.stack(darcy.random_pairs(2, seed(3), 8)) for _ in range(2))
    assert torch.equal(one, two)


def test_bad_input_is_named() -> None:
    with pytest.raises(SettingError, match="smallest value is -1"):
        darcy.solve(-torch.ones(1, 4, 4))
    with pytest.raises(ShapeError, match=r"\(1, 4, 4\) and \(1, 4, 5\)"):
        darcy.residual(torch.ones(1, 4, 4), torch.ones(1, 4, 5))
