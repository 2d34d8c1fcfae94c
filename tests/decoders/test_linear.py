"""Dense matrices as decoders, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from casal.decoders import Linear
from casal.errors import ShapeError

from .dense import check_linear, matrices, normal


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


def test_shape_lays_out_decoded_events_row_by_row() -> None:
    decoder = Linear(torch.eye(6, dtype=torch.float64), shape=(2, 3))
    assert decoder(torch.arange(6.0, dtype=torch.float64)[None]).tolist() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]


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


@pytest.mark.parametrize("A", [[[0.1, 0.7]], np.array([[0.1, 0.7]]), ((0.1, 0.7),)], ids=["list", "numpy", "tuple"])
def test_numbers_from_python_keep_all_their_digits(A: object) -> None:
    assert Linear(A).A.tolist() == [[0.1, 0.7]]


def test_the_pseudo_inverse_of_a_rank_deficient_float32_matrix_stays_small() -> None:
    A = (normal(5, 2, seed=1) @ normal(2, 4, seed=2)).float()
    z = normal(3, 5, seed=3)
    expected = z.numpy() @ np.linalg.pinv(A.double().numpy(), rcond=1e-5).T
    np.testing.assert_allclose(Linear(A).pinv(z.float(), (4,)).numpy(), expected, rtol=0, atol=1e-5)


def test_the_pseudo_inverse_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, calls, pinv = Linear(normal(5, 3)), [], torch.linalg.pinv
    monkeypatch.setattr(torch.linalg, "pinv", lambda *a, **k: calls.append(1) or pinv(*a, **k))
    for seed in range(3):
        decoder.pinv(normal(2, 5, seed=seed), (3,))
    assert len(calls) == 1


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (3, 5), (2, 9), (4, 4)])
def test_a_matrix_is_itself(rows: int, columns: int) -> None:
    A = normal(rows, columns)
    check_linear(Linear(A), A.numpy(), (columns,), (rows,), atol=1e-11)
