"""The images of blobs, the model's own samples, and the reference made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from casal import FinalProjection, MassEnergy, Unconstrained, sample
from casal_lab.conditional.images import (
    ENERGY,
    MASS,
    RANGE,
    SHELL,
    SIZE,
    Problem,
    Scale,
    blobs,
    draws,
    mass_and_energy,
    model,
    reference,
)

PIXEL = 0.9
"""Standard deviation of a pixel of white noise with about the wanted energy."""


class White(nn.Module):
    """The exact denoiser of independent pixels of one standard deviation."""

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        return x * PIXEL**2 / (PIXEL**2 + sigma**2)


def test_blobs_are_images_of_unit_size() -> None:
    images = blobs(500, 1)
    assert images.shape == (500, 16, 16)
    assert 0.5 < float(images.square().mean().sqrt()) < 1.5
    mass, energy = mass_and_energy(torch.full((2, 16, 16), 0.5))
    torch.testing.assert_close(mass, torch.full((2,), 128.0))
    torch.testing.assert_close(energy, torch.full((2,), 64.0))


def test_noise_levels_reach_several_times_the_scale_of_the_data() -> None:
    largest = float(torch.linalg.eigvalsh(torch.cov(blobs(2000, 1).flatten(1).T))[-1].sqrt())
    assert 4.0 < largest < 4.6
    assert RANGE[1] > 8 * largest


def test_draws_of_an_exact_denoiser_have_its_variance() -> None:
    """250 x 256 numbers: the standard error of the variance is 0.6 %. Steps of first order miss more than 5 % of it."""
    x = draws(White(), 250, 60, seed=0)
    assert x.shape == (250, SIZE, SIZE)
    assert abs(float(x.var()) / PIXEL**2 - 1) < 0.02
    plain = sample(model(White(), 60), MassEnergy(MASS, ENERGY), Unconstrained(), 250, seed=0).samples
    assert float(plain.var()) / PIXEL**2 < 0.95


def test_the_reference_lies_on_the_set_and_comes_from_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASAL_CACHE", str(tmp_path))
    wanted = (20.0, 200.0)  # where white noise has samples
    constraint = MassEnergy(*wanted)
    scale = Scale(0, 300, 2.0, 10, 8, 4, 1, 2, 2)
    found = reference(White(), scale, constraint)
    (file,) = tmp_path.glob("*.npz")
    assert "_300_0" in file.name
    free = draws(White(), 300, 60, 123)
    mass, energy = mass_and_energy(free)
    near = ((mass - wanted[0]).abs() < 2 * SHELL[0]) & ((energy - wanted[1]).abs() < 2 * SHELL[1])
    assert len(found) == int(near.sum()) > 0
    assert float(constraint.violation(found).max()) < 1e-8


def test_evaluate_runs_every_seed_and_sees_a_wrong_distribution() -> None:
    constraint = MassEnergy(MASS, ENERGY)
    noise = torch.randn(300, SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = constraint.project(PIXEL * noise)
    case = Problem(model(White(), 30), constraint, exact)
    right = case.evaluate(FinalProjection(), 40, range(3))
    assert len(right.results) == len(right.values) == 3
    assert max(right.values) < 1.1 * right.floor  # rotations about the axis of the mass keep white noise on the set
    wrong = case._replace(exact=constraint.project(blobs(300, 0).double()))
    assert min(wrong.evaluate(FinalProjection(), 40, range(3)).values) > max(right.values) + 0.05
