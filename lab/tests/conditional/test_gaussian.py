"""The correlated Gaussian: its network and the distance to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal_lab.conditional.gaussian import MEAN, SPREAD, eps_network, transport
from casal_lab.problems.families import BETAS


def test_the_network_of_a_gaussian_is_exact() -> None:
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    x, t = torch.tensor([[0.3, -1.2]], dtype=torch.float64), torch.tensor(400)
    kept = torch.prod(1 - BETAS[:401])
    noisy = kept * covariance + (1 - kept) * torch.eye(2, dtype=torch.float64)
    expected = (1 - kept).sqrt() * torch.linalg.solve(noisy, x.T).T
    torch.testing.assert_close(eps_network(covariance)(x, t), expected)


def test_transport_to_the_conditional_gaussian() -> None:
    z = np.random.default_rng(0).standard_normal(200_000)
    assert transport(MEAN + SPREAD * z) < 0.01
    assert transport(MEAN + 0.1 + SPREAD * z) == pytest.approx(0.1, abs=0.01)
