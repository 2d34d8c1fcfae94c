"""Rectified flow and other linear stochastic interpolants, through their denoiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.targets.base import Table, Target
from casal.targets.noise import Network, along, gaussian_start, implicit_rows, next_values, noise_level, noise_share

FINEST = 1e-3
"""Noise at which a velocity may be asked; it is trained on all times up to t = 1."""


def flow(
    velocity: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    shape: int | Sequence[int],
    noise: float = 0.0,
    reverse: bool = False,
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
) -> Target:
    """Euler steps along a velocity, from noise (t = 0) to data (t = 1):

        x' = x + velocity(x, t) / steps,   t = 0, 1 / steps, ...

    On x_t = t x1 + (1 - t) noise the velocity is E[x1 - noise | x_t], so x1_hat = x + (1 - t) velocity and

        score(x, t) = -noise_hat / (1 - t) = -(x - t velocity(x, t)) / (1 - t).

    Euler's step to t' is t' x1_hat + (1 - t') noise_hat, the row

        a = t' / t,   b = (1 - t) (t' - t) / t,   s = 0,

    and ``noise`` replaces that share of noise_hat by fresh noise, as eta does in DDIM:
    s = noise (1 - t') sqrt(1 - (t (1 - t') / (t' (1 - t)))^2) with b = a (1 - t)^2 - (1 - t) sqrt((1 - t')^2 - s^2).

    At t = 0 the state is noise alone, its score -x says nothing of the data, and no row can hold the step. So
    the first Euler step, x + velocity(x, 0) / steps with x standard normal, is taken by ``init``, and the table has
    steps - 1 rows, from t = 1 / steps on. ``init_evaluations`` = 1 says so to those who count.

    Args:
        velocity: ``velocity(x, t)``, t from 0 (noise) to 1 (data).
        steps: Euler steps, the first one included; at least 2.
        shape: Shape of one sample.
        noise: Share of ancestral noise in [0, 1].
        reverse: The other convention: x_t = (1 - t) x1 + t noise with velocity = E[noise - x1 | x_t], so that t runs
            from 1 (noise) to 0 (data), as in diffusers' flow-matching models (whose networks may want 1000 t).
        time: How ``velocity`` wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points, and of the first evaluation of ``velocity``.

    References:
        Liu, Gong and Liu (2023), Flow straight and fast; Albergo, Boffi and Vanden-Eijnden (2023), Stochastic
        interpolants.

    >>> target = flow(lambda x, t: -x, steps=4, shape=(2,))
    >>> target.table.a
    tensor([2.0000, 1.5000, 1.3333], dtype=torch.float64)
    """
    network = Network(velocity, "velocity", time=time)
    steps = whole_number(steps, "steps", 2)
    clean = torch.arange(1, steps, dtype=torch.float64) / steps
    noisy = 1 - clean
    rows = implicit_rows(clean, noisy, next_values(clean, 1.0), next_values(noisy, 0.0), noise_share(noise, "noise"))
    start = gaussian_start(shape, 1.0, dtype)

    def forward(x: Tensor, t: Tensor) -> Tensor:
        """The velocity towards the data at t = scale of the data."""
        return -network(x, 1 - t) if reverse else network(x, t)

    def init(n: int, generator: torch.Generator) -> Tensor:
        x = start(n, generator)
        with torch.no_grad():
            return x + forward(x, torch.zeros((), dtype=torch.float64, device=x.device)) / steps

    def score(x: Tensor, t: Tensor) -> Tensor:
        t = 1 - t if reverse else t
        at = along(t, x)
        return (at * forward(x, t) - x) / (1 - at)

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        """From x = t y at the time where (1 - t) / t = sigma."""
        t = 1 / (1 + noise_level(sigma, y))
        at = along(t, y)
        x = at * y
        return x + (1 - at) * forward(x, t)

    table = Table(*rows, noisy if reverse else clean, alpha=clean, sigma=noisy)
    return Target(score, table, init, denoise=denoise, finest=FINEST, name="flow", init_evaluations=1)
