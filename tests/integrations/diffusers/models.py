"""Small networks and schedulers of diffusers, and its own loop."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import Tensor

import casal
from casal.methods import Problem

MEAN, VARIANCE = 0.3, 0.25


@functools.cache
def unet(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A UNet for 8 x 8 fields of one channel, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = diffusers.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(4, 8),
            layers_per_block=1,
            norm_num_groups=2,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
            add_attention=False,
            **settings,
        )
    return made.eval().to(dtype)


V = {"prediction_type": "v_prediction"}
NINE: dict[str, tuple[str, dict[str, Any]]] = {
    "DDPM": ("DDPMScheduler", {"clip_sample": False, **V}),
    "DDIM": ("DDIMScheduler", {"clip_sample": False, **V}),
    "Euler": ("EulerDiscreteScheduler", V),
    "Euler ancestral": ("EulerAncestralDiscreteScheduler", V),
    "Heun": ("HeunDiscreteScheduler", V),
    "DPM-Solver++": ("DPMSolverMultistepScheduler", V),
    "UniPC": ("UniPCMultistepScheduler", V),
    "EDM": ("EDMEulerScheduler", {}),
    "flow": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
}


def one_of_nine(name: str) -> Any:
    """One of the nine kinds of schedulers."""
    kind, settings = NINE[name]
    return getattr(diffusers, kind)(**settings)


def prepared(scheduler: Any, steps: int) -> Any:
    """A copy, set to so many steps."""
    made = copy.deepcopy(scheduler)
    made.set_timesteps(steps)
    return made


def start(scheduler: Any, n: int, steps: int, dtype: torch.dtype = torch.float32, size: int = 8) -> Tensor:
    """Starting noise as diffusers draws it."""
    stream = torch.Generator().manual_seed(3)
    scale = float(getattr(prepared(scheduler, steps), "init_noise_sigma", 1.0))
    return scale * torch.randn((n, 1, size, size), generator=stream, dtype=dtype)


def their_loop(model: Callable[..., Any], scheduler: Any, steps: int, x: Tensor, **options: Any) -> Tensor:
    """The loop of a pipeline of diffusers."""
    scheduler = prepared(scheduler, steps)
    with torch.no_grad():
        for t in scheduler.timesteps:
            shown = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
            x = scheduler.step(model(shown, t), t, x, **options).prev_sample
    return x


def our_loop(target: casal.Target, x: Tensor, noise: Callable[[], Tensor]) -> Tensor:
    """Unconstrained rows on given noise."""
    method, box = casal.Unconstrained(), casal.Box(-1e9, 1e9)
    problem = Problem(target, box, casal.Identity(), x[:0])
    (stage,) = method.stages(problem, len(x))
    state: Any = method.start(problem, x, torch.Generator())
    with torch.no_grad():
        for row in stage.rows:
            drawn = noise() if float(row.s) else torch.zeros_like(x)
            state = stage.step(problem, state, row, drawn)
    return method.samples(problem, state)


def denoised(x: Tensor, alpha: Any, sigma: Any) -> Tensor:
    """E[x0 | alpha x0 + sigma noise = x] for data N(MEAN, VARIANCE)."""
    return MEAN + alpha * VARIANCE / (alpha**2 * VARIANCE + sigma**2) * (x - alpha * MEAN)
