"""What a dense matrix promises beyond tests/test_decoders.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.decoders import Linear

from .dense import check_linear, normal


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
