"""Kriging, whitening and least squares against dense linear algebra."""

from __future__ import annotations

import pytest
import torch

from casal_lab.nets import Gaussian
from casal_lab.pde.task import krige, least_squares, whitened

F64 = torch.float64
D = 6


def problem(m: int, seed: int = 0) -> tuple[Gaussian, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A Gaussian in 6 dimensions, rows H (m, 6), mean and covariance of the noise, and one row that is known."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn((400, D), generator=generator, dtype=F64) @ torch.randn((D, D), generator=generator, dtype=F64)
    H = torch.randn((m, D), generator=generator, dtype=F64)
    root = torch.randn((m, m + 2), generator=generator, dtype=F64)
    mean = torch.randn(m, generator=generator, dtype=F64)
    known = torch.randn((1, D), generator=generator, dtype=F64)
    return Gaussian.fit(data + 0.5, dtype=F64), H, mean, root @ root.T / m, known


@pytest.mark.parametrize("m", [3, 9])
def test_kriging_is_the_conditional_gaussian(m: int) -> None:
    gaussian, H, mean, S, known = problem(m)
    C = (gaussian.basis * gaussian.variances) @ gaussian.basis.T
    y, level = torch.randn((4, m), dtype=F64), torch.randn((4, 1), dtype=F64)
    rows = torch.cat([known, H])
    R = torch.zeros((m + 1, m + 1), dtype=F64)
    R[1:, 1:] = S
    gain = C @ rows.T @ torch.linalg.inv(rows @ C @ rows.T + R)
    exact = gaussian.mean + (torch.cat([level, y - mean], 1) - gaussian.mean @ rows.T) @ gain.T
    white = whitened(H, mean, S, known)
    found = krige(gaussian, white, white.values(y, level))
    assert torch.allclose(found.mean, exact, atol=1e-9)
    assert torch.allclose(found.covariance, C - gain @ rows @ C, atol=1e-9)
    assert torch.allclose(found.mean @ known.T, level, atol=1e-9)
    assert len(white.matrix) == 1 + min(m, D)  # more rows than latents are compressed without loss


def test_whitened_rows_have_unit_noise() -> None:
    _, H, mean, S, known = problem(9)
    white = whitened(H, mean, S, known)
    assert torch.allclose(white.map @ S @ white.map.T, torch.eye(D, dtype=F64), atol=1e-9)
    assert torch.allclose(white.map @ H, white.matrix[1:], atol=1e-9)
    assert white.noise.tolist() == [0.0] + [1.0] * D


def test_least_squares_solves_the_normal_equations_with_the_known_row_exact() -> None:
    _, H, mean, S, known = problem(9)
    white = whitened(H, mean, S, known)
    y, level = torch.randn((3, 9), dtype=F64), torch.randn((3, 1), dtype=F64)
    found = least_squares(white, y, level)
    assert found is not None
    system = torch.zeros((D + 1, D + 1), dtype=F64)
    system[:D, :D], system[:D, D:], system[D:, :D] = H.T @ H, known.T, known
    exact = torch.linalg.solve(system, torch.cat([y @ H, level], 1).T).T[:, :D]
    assert torch.allclose(found, exact, atol=1e-9)
    few = whitened(H[:2], mean[:2], S[:2, :2], known)
    assert least_squares(few, y[:, :2], level) is None


@pytest.mark.statistical
def test_draws_follow_the_conditional_gaussian() -> None:
    gaussian, H, mean, S, known = problem(3)
    white, n = whitened(H, mean, S, known), 4000
    y, level = torch.randn((2, 3), dtype=F64), torch.randn((2, 1), dtype=F64)
    exact = krige(gaussian, white, white.values(y, level))
    x = exact.draw(n, torch.Generator().manual_seed(0)).reshape(2, n, D)
    size = exact.covariance.diagonal().sqrt()
    assert float(((x.mean(1) - exact.mean).abs() / size).max()) < 4.5 / n**0.5
    assert torch.allclose(x @ known.T, level[:, None], atol=1e-6)  # what is known holds in every draw
    scaled = torch.stack([torch.cov(part.T) for part in x]) / (size[:, None] * size)
    off = (scaled - exact.covariance / (size[:, None] * size)).abs().max()
    assert float(off) < 4.5 * (2 / n) ** 0.5
    assert float((2 * scaled - exact.covariance / (size[:, None] * size)).abs().max()) > 4.5 * (2 / n) ** 0.5  # power
