"""The yardstick against linear algebra written out, and against its own theory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from casal.errors import CasalWarning, SettingError, ShapeError
from casal.lab.nets import Gaussian, compare_ddpm, compare_denoiser

N = 20_000


def correlated(n: int = N, d: int = 6, rank: int = 6, seed: int = 0) -> Tensor:
    """Gaussian points with a spectrum that falls from 4, in a subspace if rank < d."""
    generator = torch.Generator().manual_seed(seed)
    directions, _ = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64))
    z = torch.randn(n, rank, generator=generator, dtype=torch.float64) * 2.0 ** (1 - torch.arange(rank))
    return z @ directions[:, :rank].T + torch.arange(d)


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


@pytest.mark.statistical
def test_on_gaussian_data_the_held_out_loss_is_the_theoretical_error() -> None:
    model = Gaussian.fit(correlated(200_000), dtype=torch.float64)
    fresh = correlated(seed=1)
    losses = compare_denoiser(model, model, fresh, levels=[0.03, 0.3, 3.0])
    lam = 4.0 * 4.0 ** -torch.arange(6, dtype=torch.float64)
    for sigma, loss in zip((0.03, 0.3, 3.0), losses.gaussian, strict=True):
        errors = (
            lam * sigma**2 / (lam + sigma**2)
        )  # of a point: the mean of squares of six normals with these variances
        standard_error = (2 * errors.square().sum()).sqrt() / 6 / N**0.5
        assert abs(float(loss) - float(errors.mean())) < 4 * float(standard_error)
        assert float(model.mse(sigma)) == pytest.approx(float(errors.mean()), rel=0.02)
        wrong = errors.mean() * 1.05  # power: five per cent would be seen
        assert abs(float(loss) - float(wrong)) > 4 * float(standard_error)
    assert torch.equal(losses.ratio, torch.ones(3, dtype=torch.float64))
    assert not losses.learned


@pytest.mark.statistical
def test_the_same_for_the_noise_of_a_ddpm() -> None:
    model = Gaussian.fit(correlated(200_000), dtype=torch.float64)
    betas = torch.linspace(1e-4, 0.02, 1000)
    abar = torch.cumprod(1 - betas.double(), 0)
    losses = compare_ddpm(lambda x, t: torch.zeros_like(x), model, correlated(seed=1), betas, levels=[0, 100, 500])
    lam = 4.0 * 4.0 ** -torch.arange(6, dtype=torch.float64)
    for t, loss, nothing in zip((0, 100, 500), losses.gaussian, losses.network, strict=True):
        errors = abar[t] * lam / (abar[t] * lam + 1 - abar[t])
        assert abs(float(loss - errors.mean())) < 4 * float((2 * errors.square().sum()).sqrt() / 6 / N**0.5)
        assert float(nothing) == pytest.approx(1.0, abs=4 * (2 / 6 / N) ** 0.5)


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


def test_levels_that_make_no_sense_are_refused() -> None:
    model, points = Gaussian(2), torch.zeros(3, 2)
    with pytest.raises(SettingError, match="between 0 and 9"):
        compare_ddpm(lambda x, t: x, model, points, torch.full((10,), 0.1), levels=[10])
    with pytest.raises(SettingError, match="betas"):
        compare_ddpm(lambda x, t: x, model, points, torch.tensor([0.1, 1.0]))
    with pytest.raises(SettingError, match="0 < low < high"):
        compare_denoiser(model, model, points, sigmas=(1.0, 0.1))
    with pytest.raises(SettingError, match="no held-out points"):
        compare_denoiser(model, model, points[:0])
