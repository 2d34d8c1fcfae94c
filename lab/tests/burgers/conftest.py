"""What the tests of the Burgers experiment share: truths, the spectrum of the data, a model without training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from casal_lab.burgers.setup import BETAS, DIMENSION, MODES, SETUPS, Model, Truth, climatology, truths
from casal_lab.nets import MLP, Gaussian, compare_ddpm


@pytest.fixture(scope="module", autouse=True)
def cache(own_cache: None) -> None:
    """Nothing of the user's cache is read or written, in any test."""


@pytest.fixture(scope="module")
def sigma() -> Tensor:
    """Sizes of the coefficients in set-up A."""
    return climatology(SETUPS["A"], 20, 1).square().mean(0).sqrt()


@pytest.fixture(scope="module")
def truth() -> Truth:
    return truths(SETUPS["B"], 4, 5)


@pytest.fixture(scope="module")
def model() -> Model:
    """An untrained network on a latent with a steep spectrum: what must hold holds for every network."""
    sigma = 0.1 * torch.tensor([1, *range(1, MODES), *range(1, MODES)], dtype=torch.float64).pow(-1.0)
    net = MLP(DIMENSION)
    points = torch.randn((64, DIMENSION), generator=torch.Generator().manual_seed(0))
    return Model(SETUPS["B"], sigma, sigma, net.eval(), compare_ddpm(net, Gaussian.fit(points), points, BETAS))
