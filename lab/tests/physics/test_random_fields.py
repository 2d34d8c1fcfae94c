"""Random fields: their covariance against the series, and what refinement does to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from casal.errors import SettingError
from casal_lab.physics.random_fields import neumann_fields, neumann_spectrum, periodic_fields, periodic_spectrum

F64 = torch.float64


def waves(points: int, alpha: float, tau: float, most: int) -> np.ndarray:
    """Covariance (points, points) of the periodic field between a corner and all points, |k_i| <= most."""
    x = np.arange(points) / points
    k = np.arange(-most, most + 1)
    table = np.cos(2 * np.pi * np.outer(x, k))  # sines cancel between k and -k
    lam = 2 * tau ** (2 * alpha - 2) * (4 * np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + tau**2) ** -alpha
    lam[most, most] = 0.0
    return table @ lam @ table.T


def cosines(points: int, alpha: float, tau: float, modes: int) -> np.ndarray:
    """Covariance (points^2, points^2) of the field between walls, k_i < modes."""
    x = (np.arange(points) + 0.5) / points
    k = np.arange(modes)
    phi = np.where(k == 0, 1.0, math.sqrt(2)) * np.cos(np.pi * np.outer(x, k))
    lam = tau ** (2 * alpha - 2) * (np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + tau**2) ** -alpha
    lam[0, 0] = 0.0
    basis = np.einsum("ak,bl->abkl", phi, phi).reshape(points**2, modes**2)
    return (basis * lam.reshape(-1)) @ basis.T


def excess(fields: Tensor, covariance: np.ndarray) -> float:
    """Largest gap between the second moments of fields (n, d) and a covariance, in its standard errors."""
    d = np.diag(covariance)
    error = np.sqrt((np.outer(d, d) + covariance**2) / len(fields))  # of a product of two Gaussians
    moments = (fields.T @ fields / len(fields)).numpy()
    return float(np.abs((moments - covariance) / error).max())


@pytest.mark.statistical
def test_periodic_covariance() -> None:
    """An odd grid, whose waves are all |k_i| <= 3. 1225 distinct numbers: the largest is below 4.5 errors."""
    n = 7
    fields = periodic_fields(40_000, n, torch.Generator().manual_seed(0), alpha=2.5, tau=7.0).reshape(-1, n * n)
    row = waves(n, 2.5, 7.0, 3)
    i = np.arange(n)
    shift = (i[:, None] - i[None, :]) % n
    full = row[shift[:, None, :, None], shift[None, :, None, :]].reshape(n * n, n * n)
    assert excess(fields, full) < 4.5
    assert excess(fields, full * 1.1) > 8  # and it sees 10 %
    assert excess(fields, full + 0.1 * full[0, 0]) > 8  # or a constant


@pytest.mark.statistical
def test_covariance_between_walls() -> None:
    n = 6
    fields = neumann_fields(40_000, n, torch.Generator().manual_seed(1), alpha=2.0, tau=3.0).reshape(-1, n * n)
    full = cosines(n, 2.0, 3.0, n)
    assert excess(fields, full) < 4.5
    assert excess(fields, cosines(n, 2.0, 3.5, n)) > 8
    assert excess(fields, full * 2) > 8


@pytest.mark.parametrize("points", [8, 9])
def test_the_filter_is_the_spectrum(points: int) -> None:
    """The same white noise, mode by mode: exact, the highest mode of an even grid included."""
    noise = torch.randn((3, points, points), generator=torch.Generator().manual_seed(2), dtype=F64)
    fields = periodic_fields(3, points, torch.Generator().manual_seed(2), alpha=2.5, tau=7.0)
    ratio = torch.fft.fft2(fields) / torch.fft.fft2(noise) / points
    k = (torch.arange(points) - points * (2 * torch.arange(points) >= points)).to(F64)
    lam = 2 * 7.0**3 * (4 * math.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + 49.0) ** -2.5
    lam[0, 0] = 0.0
    torch.testing.assert_close(ratio.real, lam.sqrt().expand(3, -1, -1), rtol=1e-9, atol=1e-14)
    assert float(ratio.imag.abs().max()) < 1e-12


def test_refinement_settles_the_covariance() -> None:
    """The variance left out falls like points^(2 - 2 alpha): by 8 with alpha = 2.5, by 4 with alpha = 2."""
    for alpha, spectrum in ((2.5, periodic_spectrum), (2.0, neumann_spectrum)):
        whole = float(spectrum(2048, alpha, 5.0).sum())
        left = [whole - float(spectrum(points, alpha, 5.0).sum()) for points in (16, 32, 64, 128)]
        for coarse, fine in pairwise(left):
            assert 0.8 * 2 ** (2 * alpha - 2) < coarse / fine < 1.2 * 2 ** (2 * alpha - 2)
        assert left[-1] < 1e-2 * whole


def test_the_covariance_of_distant_points_is_the_same_on_finer_grids() -> None:
    """Between points 1/4 apart, against a long series."""
    reference = waves(4, 2.5, 7.0, 200)[0, 1]
    errors = []
    for points in (16, 32, 64):
        lam = periodic_spectrum(points, 2.5, 7.0)
        lag = torch.fft.ifft2(lam, norm="forward").real[0, points // 4]
        errors.append(abs(float(lag) - reference))
    assert errors[0] < 1e-3 and errors[0] > 4 * errors[1] > 16 * errors[2]


@pytest.mark.parametrize("fields", [periodic_fields, neumann_fields])
def test_fields_repeat_and_have_no_constant(fields: Callable[..., Tensor]) -> None:
    one, two = (fields(4, 12, torch.Generator().manual_seed(3), alpha=2.0, tau=3.0) for _ in range(2))
    assert torch.equal(one, two) and one.dtype == F64 and one.shape == (4, 12, 12)
    assert float(one.mean((1, 2)).abs().max()) < 1e-15
    four = fields(
        4, 12, torch.Generator().manual_seed(3), alpha=2.0, tau=3.0, scale=4 * 9.0 * (1 + (fields is periodic_fields))
    )
    torch.testing.assert_close(four, 2 * one, rtol=1e-12, atol=1e-14)


def test_bad_settings_are_named() -> None:
    with pytest.raises(SettingError, match="tau"):
        periodic_spectrum(8, 2.0, 0.0)
    with pytest.raises(SettingError, match="points"):
        neumann_spectrum(1, 2.0, 3.0)
