"""The decoder of a diffusers autoencoder (``AutoencoderKL`` and its like), as a casal decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from casal.decoders import Nonlinear
from casal.errors import SettingError, ShapeError


class _Decode(nn.Module):
    """z = vae.decode(x std / scaling_factor + shift).sample, the latents as a latent diffusion model has them."""

    vae: Any
    scale: Tensor
    shift: Tensor

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae
        config = vae.config
        scaling = _setting(config, "scaling_factor", 1.0)
        mean, std = _setting(config, "latents_mean", None), _setting(config, "latents_std", None)
        scale = torch.as_tensor(1.0 if std is None else std, dtype=torch.float64) / scaling
        shift = torch.as_tensor(_setting(config, "shift_factor", 0.0) if mean is None else mean, dtype=torch.float64)
        like = next(vae.parameters())
        for name, value in (("scale", scale), ("shift", shift)):
            shaped = value if value.ndim == 0 else value.reshape(-1, 1, 1)
            self.register_buffer(name, shaped.to(dtype=like.dtype, device=like.device), persistent=False)
        self.channels = int(_setting(config, "latent_channels", 0))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 4 or (self.channels and x.shape[1] != self.channels):
            raise ShapeError(f"the autoencoder takes latents (n, {self.channels or 'c'}, h, w), got {tuple(x.shape)}")
        image: Tensor = self.vae.decode(x * self.scale + self.shift, return_dict=False)[0]
        return image


def _setting(config: Any, name: str, otherwise: Any) -> Any:
    """A setting of a diffusers configuration; None counts as left out."""
    value = getattr(config, name, None)
    return otherwise if value is None else value


def vae_decoder(vae: Any, *, batch: int | None = None, norm: float | None = None, points: Any = None) -> Nonlinear:
    """The decoder of an autoencoder, from the latents of a latent diffusion model to images:

        z = vae.decode(x / scaling_factor + shift_factor).sample

    A configuration with ``latents_mean`` and ``latents_std`` is undone with these. Images are as the autoencoder gives
    them, about -1 to 1: add ``casal.Standardise(0.5, 0.5) @`` in front for values from 0 to 1.

    State a set of images in the latent: ``constraint.through(vae_decoder(vae, batch=4))``.

    Args:
        vae: A ``diffusers.AutoencoderKL``, or any module with ``decode`` and ``config``, in evaluation mode.
        batch: Most chains that are decoded at once.
        norm: An upper bound of the spectral norm of the Jacobian, see ``casal.Nonlinear``.
        points: Latents at which it is estimated.
    """
    if not isinstance(vae, nn.Module) or not hasattr(vae, "decode") or not hasattr(vae, "config"):
        raise SettingError(f"vae_decoder needs an autoencoder with decode and config, got {type(vae).__name__}")
    decode = _Decode(vae)
    decode.train(vae.training)
    return Nonlinear(decode, batch=batch, norm=norm, points=points)
