"""Rectified flow and other linear stochastic interpolants, through their denoiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError
from casal.targets.base import Table, Target, checked
from casal.targets.network import (
    Network,
    along,
    column,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_share,
    prediction_of,
)

FINEST = 1e-3
"""Noise at which a velocity may be asked; it is trained on all times up to t = 1."""

FARTHEST_START = 0.1
"""Scale of the data at which chains may start from noise alone."""


def flow(
    velocity: Callable[..., Tensor],
    *,
    shape: int | Sequence[int],
    steps: int | None = None,
    times: Tensor | Sequence[float] | None = None,
    noise: float = 0.0,
    reverse: bool = False,
    prediction: str = "flow",
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
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
        shape: Shape of one sample.
        steps: Euler steps of equal length, the first one included; at least 2.
        times: The times of a grid of your own instead of ``steps``, from noise to data, in the network's own direction:
            increasing from 0, or decreasing from 1 if ``reverse``. The end at the data is implied. A grid may begin up
            to 0.1 away from noise; its chains then start there from standard normal points, which is not exact.
        noise: Share of ancestral noise in [0, 1].
        reverse: The other convention: x_t = (1 - t) x1 + t noise with velocity = E[noise - x1 | x_t], so that t runs
            from 1 (noise) to 0 (data), as in diffusers' flow-matching models (whose networks may want 1000 t).
        prediction: What the network returns: the velocity "flow" (or "flow_prediction"), or the clean sample "x0" (or
            "sample").
        time: How ``velocity`` wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points, and of the first evaluation of ``velocity``.
        condition: What the network is called with besides, ``velocity(x, t, **condition)``: names to tensors (n, ...),
            one row per chain; see ``docs/models.md``.

    References:
        Liu, Gong and Liu (2023), Flow straight and fast; Albergo, Boffi and Vanden-Eijnden (2023), Stochastic
        interpolants.

    >>> target = flow(lambda x, t: -x, steps=4, shape=(2,))
    >>> target.table.a
    tensor([2.0000, 1.5000, 1.3333], dtype=torch.float64)
    """
    network = Network(velocity, "velocity", time=time)
    kind = prediction_of(prediction, "flow", ("flow", "x0"))
    grid = _grid(steps, times, reverse)
    jump = float(grid[1]) if float(grid[0]) == 0.0 else 0.0
    clean = grid[1:] if jump else grid
    noisy = 1 - clean
    rows = implicit_rows(clean, noisy, next_values(clean, 1.0), next_values(noisy, 0.0), noise_share(noise, "noise"))
    start = gaussian_start(shape, 1.0, dtype)
    model = _Flow(network, kind, reverse, start, jump)
    return Target(
        model.score,
        Table(*rows, noisy if reverse else clean, alpha=clean, sigma=noisy),
        model.init if jump else start,
        denoise=model.denoise,
        finest=FINEST,
        name="flow",
        init_evaluations=1 if jump else 0,
        condition=checked(condition),
        conditional_init=bool(jump),
    )


@dataclass(frozen=True, eq=False)
class _Flow:
    """The functions of a flow.

    Attributes:
        network: The network that was given.
        kind: What it returns: "flow" or "x0".
        reverse: Whether its time runs from 1 (noise) to 0 (data).
        start: (n, generator) -> noise.
        jump: Length of the first Euler step, from noise alone.
    """

    network: Network
    kind: str
    reverse: bool
    start: Callable[[int, torch.Generator], Tensor]
    jump: float

    def forward(self, x: Tensor, t: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """The velocity towards the data at t = scale of the data."""
        out = self.network(x, 1 - t if self.reverse else t, **given)
        if self.kind == "x0":
            return (out - x) / along(1 - t, x)
        return -out if self.reverse else out

    def init(self, n: int, generator: torch.Generator, /, **given: Tensor) -> Tensor:
        x = self.start(n, generator)
        with torch.no_grad():
            return x + self.forward(x, torch.zeros((), dtype=torch.float64, device=x.device), given) * self.jump

    def score(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        t = 1 - t if self.reverse else t
        at = along(t, x)
        return (at * self.forward(x, t, given) - x) / (1 - at)

    def denoise(self, y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        """From x = t y at the time where (1 - t) / t = sigma."""
        t = 1 / (1 + noise_level(sigma, y))
        at = along(t, y)
        x = at * y
        return x + (1 - at) * self.forward(x, t, given)


def _grid(steps: int | None, times: Tensor | Sequence[float] | None, reverse: bool) -> Tensor:
    """Scales of the data before every step, increasing and below 1; the first is 0 if the start is noise alone."""
    if times is None:
        if steps is None:
            raise SettingError("give the number of Euler steps, steps=50, or the times of your own grid, times=")
        steps = whole_number(steps, "steps", 2)
        return torch.arange(0, steps, dtype=torch.float64) / steps
    given = column(times, "times")
    grid = 1 - given if reverse else given
    grid = grid[:-1] if float(grid[-1]) == 1.0 else grid
    if steps not in (None, len(grid)):
        raise SettingError(f"steps = {steps}, but times has {len(grid)} steps; leave out steps=")
    way = "decrease from 1 (noise) to 0 (data)" if reverse else "increase from 0 (noise) to 1 (data)"
    if len(grid) < 2 or not bool((grid.diff() > 0).all()) or float(grid[0]) < 0.0 or float(grid[-1]) >= 1.0:
        raise SettingError(
            f"times must {way} in at least two steps, got {len(given)} from {float(given[0]):g} to "
            f"{float(given[-1]):g}; the other direction is reverse={not reverse}"
        )
    if float(grid[0]) > FARTHEST_START:
        raise SettingError(
            f"times begin {float(grid[0]):.3g} away from noise, but chains start at noise; begin at "
            f"{1 if reverse else 0}, or at most {FARTHEST_START} away"
        )
    return grid
