"""The yardstick against linear algebra written out, and against its own theory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from casal.errors import CasalWarning, SettingError, ShapeError
from casal_lab.nets import Gaussian

from .points import correlated


def moments(data: Tensor) -> tuple[Tensor, Tensor]:
    return data.mean(0), torch.cov(data.T, correction=0)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
def test_denoiser_and_score_solve_the_normal_equations(sigma: float) -> None:
    data = correlated()
    mean, covariance = moments(data)
    model = Gaussian.fit(data, dtype=torch.float64)
    y = correlated(10, seed=1)
    noisy = covariance + sigma**2 * torch.eye(6, dtype=torch.float64)
    score = -torch.linalg.solve(noisy, (y - mean).T).T
    torch.testing.assert_close(model.score(y, sigma), score)
    torch.testing.assert_close(model(y, sigma), mean + (covariance @ torch.linalg.solve(noisy, (y - mean).T)).T)
    torch.testing.assert_close(model(y, sigma), y + sigma**2 * score)  # Tweedie
    each = torch.linspace(0.5, 1.5, 10, dtype=torch.float64) * sigma
    torch.testing.assert_close(model(y, each)[3:4], model(y[3:4], each[3]))


def test_data_in_a_subspace() -> None:
    data = correlated(rank=2)
    mean, covariance = moments(data)
    model = Gaussian.fit(data, dtype=torch.float64)
    assert model.rank == 2
    y = correlated(10, seed=1)
    noisy = covariance + 0.25 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(model.score(y, 0.5), -torch.linalg.solve(noisy, (y - mean).T).T)
    torch.testing.assert_close(model(y, 0.5), y + 0.25 * model.score(y, 0.5))


def test_the_noise_predicted_in_a_scaled_point() -> None:
    data = correlated()
    mean, covariance = moments(data)
    model = Gaussian.fit(data, dtype=torch.float64)
    alpha, sigma = 0.6, 0.8
    x = alpha * correlated(10, seed=1)
    noisy = alpha**2 * covariance + sigma**2 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(model.eps(x, alpha, sigma), sigma * torch.linalg.solve(noisy, (x - alpha * mean).T).T)


def test_the_error_has_the_shape_of_sigma() -> None:
    model = Gaussian(3)
    torch.testing.assert_close(model.mse(1.0), torch.tensor(0.5))
    torch.testing.assert_close(model.mse(torch.tensor([0.0, 1.0, 2.0])), torch.tensor([0.0, 0.5, 0.8]))


def test_bad_data_are_refused_and_few_data_warned_about() -> None:
    with pytest.raises(SettingError, match="all 5 points of the data are the same"):
        Gaussian.fit(torch.ones(5, 2))
    with pytest.raises(SettingError, match="not finite"):
        Gaussian.fit(torch.tensor([[1.0], [float("nan")], [2.0]]))
    with pytest.raises(ShapeError, match="n >= 2"):
        Gaussian.fit(torch.ones(1, 2))
    with pytest.raises(ShapeError, match=r"\(n, 3\)"):
        Gaussian(3)(torch.zeros(2, 4), 1.0)
    with pytest.raises(SettingError, match="rank 4"):
        Gaussian(3, rank=4)
    with pytest.warns(CasalWarning, match="30 points in 20 dimensions"):
        Gaussian.fit(torch.randn(30, 20, generator=torch.Generator().manual_seed(0)))
