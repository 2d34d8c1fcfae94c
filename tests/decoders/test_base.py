"""What every decoder inherits, the identity, and the factorised Gram matrix against dense linear algebra."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import casal
from casal.decoders import DCT, Decoder, Identity, Linear, Nonlinear, Rows, Standardise
from casal.decoders.base import ThinGram, gram_of
from casal.errors import SettingError

from .dense import check_gram, cosine, diagonals, matrices, normal


@pytest.mark.parametrize(
    "decoder", [Identity(), Linear(normal(6, 6), shape=(2, 3)), Linear(normal(4, 6), shape=(2, 2))]
)
def test_vjp_agrees_with_autograd_on_fields(decoder: Decoder) -> None:
    leaf = normal(3, 2, 3, seed=4).requires_grad_()
    decoded = decoder(leaf)
    v = normal(*decoded.shape, seed=5)
    (expected,) = torch.autograd.grad(decoded, leaf, grad_outputs=v)
    assert torch.allclose(decoder.vjp(leaf.detach())(v), expected, rtol=0, atol=1e-14)


def test_identity_hands_back_what_it_gets() -> None:
    x = normal(4, 2, 3)
    assert Identity()(x) is x
    assert Identity().vjp(x)(x) is x
    assert Identity().pinv(x, (2, 3)) is x
    assert Identity().norm() == 1.0


def test_a_decoder_follows_the_dtype_of_the_run() -> None:
    decoder = Linear(normal(4, 3), shape=(2, 2)).to(torch.zeros(0, 3, dtype=torch.float32))
    assert isinstance(decoder, Linear) and decoder.A.dtype == torch.float32 and decoder.shape == (2, 2)
    assert decoder(torch.ones(2, 3)).dtype == torch.float32
    same = Identity()
    assert same.to(torch.zeros(1)) is same


def test_a_decoder_without_inverse_or_gram_says_what_to_use() -> None:
    class Doubling(Decoder):
        def __call__(self, x: Tensor) -> Tensor:
            return 2 * x

        def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda v: 2 * v

        def norm(self) -> float:
            return 2.0

    with pytest.raises(SettingError, match=r"Doubling has no pseudo-inverse; state the set in the latent"):
        Doubling().pinv(torch.ones(1, 1), (1,))
    with pytest.raises(SettingError, match=r"Doubling is not linear, .* coupling='explicit'"):
        Doubling().gram((1,), None, torch.ones(0, 1))
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.ones(4, 2, dtype=torch.float64))
    with pytest.raises(SettingError, match="explicit"):
        casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0), 4, decoder=Doubling())
    result = casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0, coupling="explicit"), 4, decoder=Doubling())
    assert bool(result.certificate.feasible.all())


def test_decoders_say_what_they_are() -> None:
    linear, series = Linear(normal(4, 3), shape=(2, 2)), DCT((2, 3), (4, 5), channels=2)
    assert [d.identity for d in (Identity(), linear, series, Rows(Identity(), [1]))] == [True, False, False, False]
    assert [d.linear for d in (Identity(), linear, Nonlinear(torch.sin), Rows(linear, [1]))] == [
        True,
        True,
        False,
        True,
    ]
    factors = Standardise([1.0, 5.0], [2.0, 3.0]).diagonal
    assert factors is not None and factors.tolist() == [2.0, 3.0] and linear.diagonal is None
    assert (linear.shape, linear.latent_size, series.shape, series.latent_size) == ((2, 2), 3, (2, 4, 5), 12)
    assert Identity().shape is None and Identity().latent_size is None and Rows(linear, [3, 1]).shape == (2,)


READABLE = {
    "identity": Identity(),
    "linear": Linear(normal(6, 6)),
    "series": DCT(6, 6),
    "composed": Linear(normal(7, 6)) @ Standardise(0.0, 2.0),
    "rows of a matrix": Rows(Linear(normal(9, 6)), [8, 1, 0, 3, 4, 6]),
    "rows of a product": Rows(Linear(normal(9, 6)) @ Standardise(0.0, 2.0), [8, 1, 0, 3, 4, 6]),
}


@pytest.mark.parametrize("decoder", READABLE.values(), ids=READABLE)
@pytest.mark.parametrize("index", [[5], [4, 0, 2], [3, 1, 5, 0, 4, 2]], ids=len)
def test_rows_of_the_matrix_are_read_off_alike(decoder: Decoder, index: list[int]) -> None:
    like, positions = torch.zeros(0, 6, dtype=torch.float64), torch.tensor(index)
    whole, some = decoder.matrix((6,), like), decoder.matrix((6,), like, positions)
    assert torch.allclose(some, whole[positions], rtol=0, atol=1e-14)
    dense = decoder._dense_rows(positions)
    assert (dense is not None) == isinstance(decoder, Linear | DCT)
    assert dense is None or torch.allclose(dense, some, rtol=0, atol=1e-14)


every_diagonal = pytest.mark.parametrize("which", range(3), ids=["plain", "number", "diagonal"])


@matrices
@every_diagonal
def test_gram_of_a_matrix(A: Tensor, which: int) -> None:
    latent = (A.shape[1],)
    diagonal = diagonals(latent)[which]
    gram = Linear(A).gram(latent, diagonal, torch.zeros(0, *latent, dtype=torch.float64))
    check_gram(gram, A.numpy(), diagonal, latent, atol=5e-13)
    root = np.eye(A.shape[1]) if diagonal is None else np.diag(np.broadcast_to(diagonal.sqrt().numpy(), latent))
    spectrum = np.linalg.eigvalsh(root @ A.numpy().T @ A.numpy() @ root)
    np.testing.assert_allclose(np.sort(gram.eigenvalues.numpy()), spectrum, rtol=0, atol=1e-12 * max(1.0, spectrum[-1]))


@every_diagonal
@pytest.mark.parametrize("latent", [(6,), (2, 3)])
def test_gram_of_the_identity_needs_no_basis(which: int, latent: tuple[int, ...]) -> None:
    diagonal = diagonals(latent)[which]
    gram = Identity().gram(latent, diagonal, torch.zeros(0, *latent, dtype=torch.float64))
    assert gram.basis is None
    check_gram(gram, np.eye(6), diagonal, latent)


@every_diagonal
def test_gram_of_a_matrix_on_fields(which: int) -> None:
    A, latent = normal(5, 6, seed=10), (2, 3)
    diagonal = diagonals(latent)[which]
    gram = Linear(A).gram(latent, diagonal, torch.zeros(0, *latent, dtype=torch.float64))
    v = normal(4, *latent, seed=11)
    solved = gram.solve(v, torch.tensor(2.0, dtype=torch.float64))
    D = np.ones(6) if diagonal is None else np.broadcast_to(diagonal.reshape(-1).numpy(), 6)
    expected = np.linalg.solve(np.eye(6) + 2.0 * D[:, None] * (A.numpy().T @ A.numpy()), v.reshape(4, 6).numpy().T).T
    np.testing.assert_allclose(solved.reshape(4, 6).numpy(), expected, rtol=0, atol=1e-12)
    back = gram.unwhiten(gram.whiten(v)).reshape(4, 6).numpy()
    np.testing.assert_allclose(back, v.reshape(4, 6).numpy() * D, rtol=0, atol=1e-12)


def test_gram_follows_the_dtype_of_the_run() -> None:
    gram = Linear(normal(4, 3)).gram((3,), None, torch.zeros(0, 3, dtype=torch.float32))
    assert gram.basis is not None
    assert {gram.root.dtype, gram.eigenvalues.dtype, gram.basis.dtype} == {torch.float32}


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (1, 9), (2, 7), (3, 9), (4, 30)])
def test_few_rows_give_a_thin_gram_matrix(rows: int, columns: int) -> None:
    A = normal(rows, columns)
    for diagonal in diagonals((columns,)):
        gram = gram_of(A, (columns,), diagonal, torch.zeros(0, dtype=torch.float64))
        assert isinstance(gram, ThinGram) and gram.basis.shape == gram.reflector.shape == (columns, rows)
        check_gram(gram, A.numpy(), diagonal, (columns,))


@pytest.mark.parametrize(
    "A",
    [
        torch.zeros(2, 7, dtype=torch.float64),
        torch.eye(2, 7, dtype=torch.float64),
        -torch.eye(2, 7, dtype=torch.float64),
        torch.eye(7, dtype=torch.float64)[[6, 1]],
        normal(1, 7).repeat(2, 1),
        torch.cat([normal(1, 7), torch.zeros(1, 7, dtype=torch.float64)]),
    ],
    ids=["zero", "first", "minus-first", "others", "repeated", "one-zero-row"],
)
def test_thin_gram_matrices_without_full_rank_or_along_axes(A: Tensor) -> None:
    for diagonal in diagonals((7,)):
        gram = gram_of(A, (7,), diagonal, torch.zeros(0, dtype=torch.float64))
        assert isinstance(gram, ThinGram)
        check_gram(gram, A.numpy(), diagonal, (7,))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 8), columns=st.integers(1, 25))
def test_every_matrix_has_an_exact_gram(seed: int, rows: int, columns: int) -> None:
    A = normal(rows, columns, seed=seed)
    gram = gram_of(A, (columns,), None, torch.zeros(0, dtype=torch.float64))
    assert isinstance(gram, ThinGram) == (3 * rows <= columns)
    check_gram(gram, A.numpy(), None, (columns,), atol=1e-11)


def test_a_thin_gram_follows_the_dtype_and_shape_of_the_run() -> None:
    A = normal(2, 12)
    gram = gram_of(A, (3, 4), None, torch.zeros(0, 3, 4, dtype=torch.float32))
    assert isinstance(gram, ThinGram)
    assert {gram.eigenvalues.dtype, gram.basis.dtype, gram.reflector.dtype} == {torch.float32}
    solved = gram.solve(normal(2, 3, 4).float(), torch.tensor(1.0, dtype=torch.float64))
    assert solved.dtype == torch.float32 and solved.shape == (2, 3, 4)


def test_orthogonal_columns_need_no_basis() -> None:
    A = torch.as_tensor(cosine(5, 9)) * torch.linspace(1.0, 0.01, 5, dtype=torch.float64)
    gram = Linear(A).gram((5,), None, torch.zeros(0, 5, dtype=torch.float64))
    assert gram.basis is None
    check_gram(gram, A.numpy(), None, (5,))
    tilted = A.clone()
    tilted[0, 0] += 1e-9
    assert Linear(tilted).gram((5,), None, torch.zeros(0, 5, dtype=torch.float64)).basis is not None


def test_thin_grams_do_not_build_square_matrices() -> None:
    """d = 20000: a (d, d) matrix would take 3.2 GB."""
    gram = Linear(normal(2, 20000)).gram((20000,), None, torch.zeros(0, 20000, dtype=torch.float64))
    v = normal(2, 20000, seed=1)
    assert torch.allclose(gram.unwhiten(gram.whiten(v)), v, rtol=0, atol=1e-12)
