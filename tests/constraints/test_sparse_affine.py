"""Sparse equations."""

from __future__ import annotations

import scipy.sparse
import torch

from casal.constraints import Affine


def test_sparse_matrices_of_torch_and_scipy_are_taken() -> None:
    A = torch.tensor([[1.0, 0.0, 0.0, -1.0], [0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    z = torch.arange(8, dtype=torch.float64).reshape(2, 4)
    expected = Affine(A, [0.5, 1.0]).project(z)
    for sparse in (A.to_sparse(), A.to_sparse_coo(), scipy.sparse.csr_array(A.numpy())):
        assert torch.equal(Affine(sparse, [0.5, 1.0]).project(z), expected)
