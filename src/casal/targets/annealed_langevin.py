"""Annealed Langevin dynamics on noisy versions of the data (NCSN; paper, eq. ALD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import Init, positive, whole_number
from casal.targets.base import Table, Target
from casal.targets.conditions import checked
from casal.targets.noise import Network, along, noise_level, noise_levels


def annealed(
    score: Callable[..., Tensor],
    sigmas: Tensor | Sequence[float],
    *,
    steps_per_level: int,
    step_size: float,
    init: Init,
    denoise_last: bool = False,
    time: str = "auto",
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Annealed Langevin dynamics on a score for every noise level, several steps per level:

        x' = x + tau_i score(x, sigma_i) + sqrt(2 tau_i) w,   tau_i = step_size sigma_i^2.

    The density at level i is that of x0 + sigma_i noise. Its -log p never curves more than 1 / sigma_i^2, so that
    step_size < 2 is stable at every level. The samples keep the noise of the last level; ``denoise_last`` adds the
    row x' = x + sigma^2 score(x, sigma), which goes to the mean of x0 given x.

    Song and Ermon write alpha_i = epsilon sigma_i^2 / sigma_L^2 and x' = x + alpha_i / 2 score + sqrt(alpha_i) w: their
    epsilon is 2 step_size sigma_L^2 here.

    Args:
        score: ``score(x, sigma)``, the gradient of log p(x; sigma).
        sigmas: Noise levels, strictly decreasing and > 0.
        steps_per_level: Langevin steps at each level.
        step_size: tau in units of sigma^2.
        init: Starting points, or a callable (n, generator) -> points; usually sigmas[0] times standard normal.
        denoise_last: Whether to end with one step to the mean of x0 given x.
        time: How ``score`` wants sigma: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        condition: What the network is called with besides, ``score(x, sigma, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Song and Ermon (2019), Generative modeling by estimating gradients of the data distribution, Algorithm 1.

    >>> target = annealed(lambda x, s: -x / (1 + s**2), [4.0, 2.0, 1.0], steps_per_level=5, step_size=0.1,
    ...                   init=torch.zeros(3, 2))
    >>> target.table.b[::5]
    tensor([1.6000, 0.4000, 0.1000], dtype=torch.float64)
    """
    network = Network(score, "score", time=time)
    levels = noise_levels(sigmas)
    sigma = levels.repeat_interleave(whole_number(steps_per_level, "steps_per_level", 1))
    tau = positive(step_size, "step_size") * sigma.square()
    b, s = tau, (2 * tau).sqrt()
    if denoise_last:
        sigma = torch.cat([sigma, levels[-1:]])
        b, s = torch.cat([b, levels[-1:].square()]), torch.cat([s, s.new_zeros(1)])

    def denoise(y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        level = noise_level(sigma, y)
        return y + along(level.square(), y) * network(y, level, **given)

    one = torch.ones_like(sigma)
    table = Table(one, b, s, sigma, alpha=one, sigma=sigma)
    return Target(network, table, init, denoise=denoise, name="annealed", condition=checked(condition))
