"""The images of blobs."""

from __future__ import annotations

import torch

from casal.lab.conditional.images import blobs, mass_and_energy


def test_blobs_are_images_of_unit_size() -> None:
    images = blobs(500, 1)
    assert images.shape == (500, 16, 16)
    assert 0.5 < float(images.square().mean().sqrt()) < 1.5
    mass, energy = mass_and_energy(torch.full((2, 16, 16), 0.5))
    torch.testing.assert_close(mass, torch.full((2,), 128.0))
    torch.testing.assert_close(energy, torch.full((2,), 64.0))
