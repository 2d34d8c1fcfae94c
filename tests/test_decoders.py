"""Decoders against dense linear algebra in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import casal
from casal.decoders import Decoder, Gram, Identity, Linear
from casal.errors import SettingError, ShapeError

SHAPES = [(1, 1), (4, 4), (6, 3), (3, 6), (5, 1), (1, 5)]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def deficient() -> Tensor:
    """A 5 x 4 matrix of rank 2."""
    return normal(5, 2, seed=1) @ normal(2, 4, seed=2)


matrices = pytest.mark.parametrize(
    "A", [normal(*shape) for shape in SHAPES] + [deficient()], ids=lambda A: str(tuple(A.shape))
)


def diagonals(size: int) -> list[Tensor | None]:
    return [None, torch.tensor(2.5, dtype=torch.float64), torch.linspace(0.1, 7.0, size, dtype=torch.float64)]


# ------------------------------------------------------------------ decoding and its transpose


@matrices
def test_linear_is_a_matrix_product(A: Tensor) -> None:
    x = normal(7, A.shape[1], seed=3)
    np.testing.assert_allclose(Linear(A)(x).numpy(), np.einsum("kd,nd->nk", A.numpy(), x.numpy()), rtol=0, atol=1e-14)


@settings(max_examples=200)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 7), columns=st.integers(1, 7), chains=st.integers(1, 5))
def test_vjp_is_the_transpose(seed: int, rows: int, columns: int, chains: int) -> None:
    A, x, v = (
        normal(rows, columns, seed=seed),
        normal(chains, columns, seed=seed + 1),
        normal(chains, rows, seed=seed + 2),
    )
    decoder = Linear(A)
    pulled = decoder.vjp(x)(v)
    assert pulled.shape == x.shape
    inner, outer = (decoder(x) * v).sum(1), (x * pulled).sum(1)
    assert torch.allclose(inner, outer, rtol=0, atol=1e-12 * (1 + float(inner.abs().max())))


@pytest.mark.parametrize(
    "decoder", [Identity(), Linear(normal(6, 6), shape=(2, 3)), Linear(normal(4, 6), shape=(2, 2))]
)
def test_vjp_agrees_with_autograd_on_fields(decoder: Decoder) -> None:
    leaf = normal(3, 2, 3, seed=4).requires_grad_()
    decoded = decoder(leaf)
    v = normal(*decoded.shape, seed=5)
    (expected,) = torch.autograd.grad(decoded, leaf, grad_outputs=v)
    assert torch.allclose(decoder.vjp(leaf.detach())(v), expected, rtol=0, atol=1e-14)


def test_shape_lays_out_decoded_events_row_by_row() -> None:
    decoder = Linear(torch.eye(6, dtype=torch.float64), shape=(2, 3))
    assert decoder(torch.arange(6.0, dtype=torch.float64)[None]).tolist() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]


def test_identity_hands_back_what_it_gets() -> None:
    x = normal(4, 2, 3)
    assert Identity()(x) is x
    assert Identity().vjp(x)(x) is x
    assert Identity().pinv(x, (2, 3)) is x
    assert Identity().norm() == 1.0


# ------------------------------------------------------------------ norm and pseudo-inverse


@matrices
def test_norm_is_the_largest_singular_value(A: Tensor) -> None:
    assert Linear(A).norm() == pytest.approx(np.linalg.norm(A.numpy(), ord=2), rel=1e-14)
    assert Linear(A.to(torch.float32)).norm() == pytest.approx(np.linalg.norm(A.numpy(), ord=2), rel=1e-6)


@matrices
def test_pinv_is_the_shortest_least_squares_solution(A: Tensor) -> None:
    z = normal(7, A.shape[0], seed=6)
    expected = np.linalg.lstsq(A.numpy(), z.numpy().T, rcond=1e-12)[0].T
    np.testing.assert_allclose(Linear(A).pinv(z, (A.shape[1],)).numpy(), expected, rtol=0, atol=1e-12)


def test_pinv_restores_the_shape_of_latent_fields() -> None:
    A = normal(6, 4, seed=7)
    x = normal(5, 2, 2, seed=8)
    decoder = Linear(A, shape=(3, 2))
    assert torch.allclose(decoder.pinv(decoder(x), (2, 2)), x, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ the factorised Gram matrix


def dense(A: Tensor, diagonal: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """D and A^T A as matrices."""
    size = A.shape[1]
    D = np.eye(size) if diagonal is None else np.diag(np.broadcast_to(diagonal.numpy(), size))
    return D, A.numpy().T @ A.numpy()


def check_gram(gram: Gram, A: Tensor, diagonal: Tensor | None, latent: tuple[int, ...]) -> None:
    size = math.prod(latent)
    D, G = dense(A, diagonal)
    v = normal(6, *latent, seed=9)
    rows = v.reshape(6, size).numpy()
    for strength in (0.0, 0.3, 1e3):
        solved = gram.solve(v, torch.tensor(strength, dtype=torch.float64))
        expected = np.linalg.solve(np.eye(size) + strength * D @ G, rows.T).T
        assert solved.shape == v.shape
        np.testing.assert_allclose(solved.reshape(6, size).numpy(), expected, rtol=0, atol=1e-11)
    # S = W W^T for the map W = unwhiten: its square is D, and it turns D^(1/2) G D^(1/2) into the eigenvalues.
    W = (
        gram.unwhiten(torch.eye(size, dtype=torch.float64).reshape(size, *gram.whiten(v).shape[1:]))
        .reshape(size, size)
        .T.numpy()
    )
    np.testing.assert_allclose(W @ W.T, D, rtol=0, atol=1e-12)
    eigenvalues = np.broadcast_to(gram.eigenvalues.numpy().reshape(-1), size)
    np.testing.assert_allclose(W.T @ G @ W, np.diag(eigenvalues), rtol=0, atol=1e-11)
    np.testing.assert_allclose(gram.whiten(v).reshape(6, size).numpy(), rows @ W, rtol=0, atol=1e-12)


@matrices
@pytest.mark.parametrize("which", range(3), ids=["plain", "number", "diagonal"])
def test_gram_of_a_matrix(A: Tensor, which: int) -> None:
    diagonal = diagonals(A.shape[1])[which]
    gram = Linear(A).gram((A.shape[1],), diagonal, torch.zeros(0, A.shape[1], dtype=torch.float64))
    check_gram(gram, A, diagonal, (A.shape[1],))
    D, G = dense(A, diagonal)
    spectrum = np.linalg.eigvalsh(np.sqrt(D) @ G @ np.sqrt(D))
    np.testing.assert_allclose(np.sort(gram.eigenvalues.numpy()), spectrum, rtol=0, atol=1e-12 * max(1.0, spectrum[-1]))
    assert bool((gram.eigenvalues >= 0).all())


@pytest.mark.parametrize("which", range(3), ids=["plain", "number", "diagonal"])
@pytest.mark.parametrize("latent", [(6,), (2, 3)])
def test_gram_of_the_identity_needs_no_basis(which: int, latent: tuple[int, ...]) -> None:
    diagonal = diagonals(6)[which]
    shaped = diagonal if diagonal is None or diagonal.ndim == 0 else diagonal.reshape(latent)
    gram = Identity().gram(latent, shaped, torch.zeros(0, *latent, dtype=torch.float64))
    assert gram.basis is None
    check_gram(gram, torch.eye(6, dtype=torch.float64), diagonal, latent)


@pytest.mark.parametrize("which", range(3), ids=["plain", "number", "diagonal"])
def test_gram_of_a_matrix_on_fields(which: int) -> None:
    A, diagonal = normal(5, 6, seed=10), diagonals(6)[which]
    shaped = diagonal if diagonal is None or diagonal.ndim == 0 else diagonal.reshape(2, 3)
    gram = Linear(A).gram((2, 3), shaped, torch.zeros(0, 2, 3, dtype=torch.float64))
    D, G = dense(A, diagonal)
    v = normal(4, 2, 3, seed=11)
    solved = gram.solve(v, torch.tensor(2.0, dtype=torch.float64))
    expected = np.linalg.solve(np.eye(6) + 2.0 * D @ G, v.reshape(4, 6).numpy().T).T
    np.testing.assert_allclose(solved.reshape(4, 6).numpy(), expected, rtol=0, atol=1e-12)
    back = gram.unwhiten(gram.whiten(v)).reshape(4, 6).numpy()
    np.testing.assert_allclose(back, v.reshape(4, 6).numpy() @ D, rtol=0, atol=1e-12)


def test_gram_follows_the_dtype_of_the_run() -> None:
    gram = Linear(normal(4, 3)).gram((3,), None, torch.zeros(0, 3, dtype=torch.float32))
    assert gram.basis is not None
    assert {gram.root.dtype, gram.eigenvalues.dtype, gram.basis.dtype} == {torch.float32}


# ------------------------------------------------------------------ dtypes and mistakes


def test_a_decoder_follows_the_dtype_of_the_run() -> None:
    decoder = Linear(normal(4, 3), shape=(2, 2)).to(torch.zeros(0, 3, dtype=torch.float32))
    assert isinstance(decoder, Linear) and decoder.A.dtype == torch.float32 and decoder.shape == (2, 2)
    assert decoder(torch.ones(2, 3)).dtype == torch.float32
    same = Identity()
    assert same.to(torch.zeros(1)) is same


def test_whole_number_matrices_become_float64() -> None:
    assert Linear([[1, 2], [3, 4]])(torch.ones(1, 2, dtype=torch.float64)).tolist() == [[3.0, 7.0]]


@pytest.mark.parametrize(
    "A", [torch.ones(3), torch.ones(2, 2, 2), torch.tensor(1.0)], ids=lambda A: str(tuple(A.shape))
)
def test_linear_needs_a_matrix(A: Tensor) -> None:
    with pytest.raises(ShapeError, match="matrix"):
        Linear(A)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"4 rows.*\(3, 2\)"):
        Linear(normal(4, 3), shape=(3, 2))
    with pytest.raises(ShapeError, match=r"takes 3 latent numbers, events \(2, 2\) have 4"):
        Linear(normal(4, 3))(normal(5, 2, 2))


def test_a_decoder_without_inverse_or_gram_says_what_to_use() -> None:
    class Doubling(Decoder):
        def __call__(self, x: Tensor) -> Tensor:
            return 2 * x

        def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda v: 2 * v

        def norm(self) -> float:
            return 2.0

    with pytest.raises(SettingError, match=r"Doubling has no pseudo-inverse; use CASAL"):
        Doubling().pinv(torch.ones(1, 1), (1,))
    with pytest.raises(SettingError, match=r"Doubling is not linear: use coupling='explicit'"):
        Doubling().gram((1,), None, torch.ones(0, 1))
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.ones(4, 2, dtype=torch.float64))
    with pytest.raises(SettingError, match="explicit"):
        casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0), 4, decoder=Doubling())
    result = casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0, coupling="explicit"), 4, decoder=Doubling())
    assert bool(result.certificate.feasible.all())
