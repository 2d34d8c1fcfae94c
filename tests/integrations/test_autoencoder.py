"""Autoencoders of diffusers as decoders: the same images, and sets of images that are stated in the latent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import casal
from casal.errors import SettingError, ShapeError
from casal.integrations.autoencoder import vae_decoder

diffusers = pytest.importorskip("diffusers")


def tiny(**settings: Any) -> Any:
    """A small autoencoder with random weights: latents (2, 4, 4), images (1, 8, 8)."""
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        in_channels=1,
        out_channels=1,
        latent_channels=2,
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=2,
        sample_size=8,
        **settings,
    )
    return vae.eval()


def latents(n: int, side: int = 4) -> torch.Tensor:
    stream = torch.Generator().manual_seed(1)
    return torch.randn((n, 2, side, side), generator=stream, dtype=torch.float64).to(torch.float32)


@torch.no_grad()
def test_it_decodes_as_a_pipeline_of_diffusers_does(tmp_path: Any) -> None:
    vae = tiny(scaling_factor=0.3, shift_factor=0.1)
    vae.save_pretrained(tmp_path)
    vae = diffusers.AutoencoderKL.from_pretrained(tmp_path)
    x = latents(5)
    expected = vae.decode(x / 0.3 + 0.1).sample
    assert torch.allclose(vae_decoder(vae)(x), expected, rtol=0, atol=1e-6)
    assert torch.allclose(vae_decoder(vae, batch=2)(x), expected, rtol=0, atol=1e-6)
    normed = tiny(scaling_factor=0.5, latents_mean=[0.1, -0.2], latents_std=[2.0, 3.0])
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in ([0.1, -0.2], [2.0, 3.0]))
    assert torch.allclose(vae_decoder(normed)(x), normed.decode(x * std / 0.5 + mean).sample, rtol=0, atol=1e-6)


def test_what_is_no_autoencoder_is_refused() -> None:
    with pytest.raises(SettingError, match="decode and config"):
        vae_decoder(torch.nn.Linear(2, 2))
    with pytest.raises(SettingError, match=r"training mode.*\.eval\(\)"):
        vae_decoder(tiny().train())
    with pytest.raises(ShapeError, match=r"latents \(n, 2, h, w\), got \(3, 4, 4, 4\)"):
        vae_decoder(tiny())(torch.zeros(3, 4, 4, 4))


def test_a_set_of_images_in_the_latent_has_no_gap() -> None:
    """The mean brightness of every image, exactly, for latents of a model in float32; slices change nothing."""
    decoder = casal.Standardise(0.5, 0.5) @ vae_decoder(tiny(scaling_factor=0.5), batch=1)
    brightness = casal.Affine(torch.full((1, 16), 1 / 16), 0.6)
    target = casal.langevin(lambda x: x, steps=2, step_size=0.05, init=latents(2, side=2))
    inside = brightness.through(decoder)
    result = casal.sample(target, inside, casal.FinalProjection(), 2)
    assert result.samples.shape == (2, 2, 2, 2) and bool(result.certificate.feasible.all())
    images = decoder.to(result.samples)(result.samples)
    assert torch.allclose(images.mean((1, 2, 3)), torch.full((2,), 0.6, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(result.gap.max()) == 0.0
    coupled = casal.sample(target, brightness, casal.FinalProjection(), 2, decoder=decoder)
    assert float(coupled.gap.min()) > 1e-3  # z is bright enough, but no image of the latent
