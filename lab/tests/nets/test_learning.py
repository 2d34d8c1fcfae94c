"""Networks that learn: within five per cent of the exact score, and far beyond a Gaussian on fields."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from casal_lab.nets import MLP, Gaussian, WienerUNet, compare_ddpm, random_flips, split, train_ddpm, train_denoiser

from .mixture import BETAS, draw, exact_eps


@pytest.mark.slow
@pytest.mark.statistical
def test_a_trained_mlp_is_within_five_per_cent_of_the_exact_score() -> None:
    data, fresh = draw(20_000, 1), draw(4_000, 2)
    net = MLP(2)
    report = train_ddpm(net, data, BETAS, iterations=2000, batch_size=256, learning_rate=3e-3)
    gaussian, levels = Gaussian.fit(data), list(range(0, 1000, 40))
    learned = compare_ddpm(net, gaussian, fresh, BETAS, levels=levels, seed=1)
    exact = compare_ddpm(exact_eps, gaussian, fresh, BETAS, levels=levels, seed=1)  # the same points and noise
    excess = float(learned.network.mean() / exact.network.mean())
    assert 1.0 - 0.005 < excess < 1.05
    assert report.learned and report.best < 0.7
    assert float(exact.gaussian.mean() / exact.network.mean()) > 1.2  # power: a Gaussian is not within five per cent


def blobs(n: int, seed: int, size: int = 16) -> Tensor:
    """Fields with one to three bumps of either sign: anything but Gaussian."""
    u = torch.rand(n, 3, 4, generator=torch.Generator().manual_seed(seed))
    pixel = (torch.arange(size) + 0.5) / size
    distance = (pixel[:, None] - u[..., 0, None, None]).square() + (pixel - u[..., 1, None, None]).square()
    there = (u[..., 2] < torch.tensor([1.0, 0.6, 0.3])) * torch.where(u[..., 3] < 0.5, -1.0, 1.0)
    field = (there[..., None, None] * torch.exp(-distance / 0.02)).sum(1)
    return field / field.square().mean().sqrt()


@pytest.mark.slow
@pytest.mark.statistical
def test_a_unet_learns_what_a_gaussian_cannot_know() -> None:
    train, test = split(blobs(4000, 0), 0.05)
    net = WienerUNet.fit(train, positions=4)
    report = train_denoiser(
        net, train, held_out=test, iterations=60, batch_size=24, levels=5, augment=random_flips(-1, -2)
    )
    assert report.learned and report.best < 0.8
    assert float((report.ratio - report.ratio_error * 4).max()) < 1.05  # and nowhere much worse

    dead = WienerUNet.fit(train, positions=4)
    still = train_denoiser(dead, train, held_out=test, iterations=1, batch_size=8, learning_rate=0.0, levels=5)
    assert torch.equal(still.ratio, torch.ones(5, dtype=torch.float64)) and not still.learned
