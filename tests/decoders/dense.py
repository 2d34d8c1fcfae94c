"""The matrices of the transforms from NumPy and SciPy, and what any linear decoder must satisfy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.fft
import torch
from torch import Tensor

from casal.decoders import Decoder, Gram

Array = npt.NDArray[np.float64]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def deficient() -> Tensor:
    """A 5 x 4 matrix of rank 2."""
    return normal(5, 2, seed=1) @ normal(2, 4, seed=2)


matrices = pytest.mark.parametrize(
    "A",
    [normal(*shape) for shape in [(1, 1), (4, 4), (6, 3), (3, 6), (5, 1), (1, 5)]] + [deficient()],
    ids=lambda A: str(tuple(A.shape)),
)


def fourier(modes: int, size: int) -> Array:
    """Columns: the inverse rfft of a one in the real parts of the modes, then in their imaginary parts, normalised."""
    columns = []
    for unit, first in ((1.0, 0), (-1j, 1)):
        for mode in range(first, modes):
            spectrum = np.zeros(size // 2 + 1, dtype=complex)
            spectrum[mode] = unit
            column = np.fft.irfft(spectrum, n=size)
            if unit == 1.0 or 2 * mode != size:
                columns.append(column / np.linalg.norm(column))
    return np.stack(columns, axis=1)


def cosine(modes: int, size: int) -> Array:
    return np.asarray(scipy.fft.dct(np.eye(size), type=2, norm="ortho", axis=0)[:modes].T)


def sine(modes: int, size: int) -> Array:
    return np.asarray(scipy.fft.dst(np.eye(size), type=1, norm="ortho", axis=0)[:modes].T)


def cell_sine(modes: int, size: int) -> Array:
    return np.asarray(scipy.fft.dst(np.eye(size), type=2, norm="ortho", axis=0)[:modes].T)


def check_linear(
    decoder: Decoder, A: Array, latent: tuple[int, ...], event: tuple[int, ...], atol: float = 1e-12
) -> None:
    """Forward, transpose, pseudo-inverse, norm and Gram of a decoder against those of its matrix."""
    x, v = normal(3, *latent, seed=1), normal(3, *event, seed=2)
    rows, image = x.reshape(3, -1).numpy(), v.reshape(3, -1).numpy()
    assert decoder(x).shape == (3, *event) and decoder.event(x) == event
    np.testing.assert_allclose(decoder(x).reshape(3, -1).numpy(), rows @ A.T, rtol=0, atol=atol)
    assert decoder.vjp(x)(v).shape == x.shape
    np.testing.assert_allclose(decoder.vjp(x)(v).reshape(3, -1).numpy(), image @ A, rtol=0, atol=atol)
    back = decoder.pinv(v, latent)
    assert back.shape == x.shape
    expected = image @ np.linalg.pinv(A, rcond=1e-12).T
    np.testing.assert_allclose(back.reshape(3, -1).numpy(), expected, rtol=0, atol=atol * (1 + abs(expected).max()))
    assert math.isclose(decoder.norm(), float(np.linalg.norm(A, ord=2)), rel_tol=1e-12)
    like = torch.zeros(0, *latent, dtype=torch.float64)
    np.testing.assert_allclose(decoder.matrix(latent, like).numpy(), A, rtol=0, atol=atol)
    for diagonal in diagonals(latent):
        check_gram(decoder.gram(latent, diagonal, like), A, diagonal, latent, atol)


def diagonals(latent: tuple[int, ...]) -> list[Tensor | None]:
    size = math.prod(latent)
    ramp = torch.linspace(0.2, 3.0, size, dtype=torch.float64).reshape(latent)
    return [None, torch.tensor(2.5, dtype=torch.float64), ramp]


def check_gram(gram: Gram, A: Array, diagonal: Tensor | None, latent: tuple[int, ...], atol: float = 1e-12) -> None:
    """solve, whiten and unwhiten, each against dense linear algebra."""
    size = math.prod(latent)
    D = np.ones(size) if diagonal is None else np.broadcast_to(diagonal.reshape(-1).numpy(), size)
    G = A.T @ A
    v = normal(4, *latent, seed=3)
    rows = v.reshape(4, size).numpy()
    for strength in (0.0, 0.3, 50.0, 1e3):
        solved = gram.solve(v, torch.tensor(strength, dtype=torch.float64))
        expected = np.linalg.solve(np.eye(size) + strength * D[:, None] * G, rows.T).T
        assert solved.shape == v.shape
        off = atol * max(1.0, strength / 50)
        np.testing.assert_allclose(solved.reshape(4, size).numpy(), expected, rtol=0, atol=off)
    white = gram.whiten(v)
    units = torch.eye(size, dtype=torch.float64).reshape(size, *white.shape[1:])
    W = gram.unwhiten(units).reshape(size, size).T.numpy()  # D^(1/2) U
    spectrum = np.broadcast_to(gram.eigenvalues.numpy().reshape(-1), size)
    scale = 1 + spectrum.max()
    np.testing.assert_allclose(W @ W.T, np.diag(D), rtol=0, atol=atol)
    np.testing.assert_allclose(W.T @ G @ W, np.diag(spectrum), rtol=0, atol=atol * scale)
    np.testing.assert_allclose(white.reshape(4, size).numpy(), rows @ W, rtol=0, atol=atol)
    assert spectrum.min() >= 0.0
