"""The variance-preserving diffusion in continuous time, backwards (paper, eq. reverse-sde, predictor, corrector)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import positive, whole_number
from casal.errors import SettingError
from casal.targets.base import Table, Target
from casal.targets.conditions import checked
from casal.targets.noise import Network, along, below_least_level, gaussian_start, noise_level


def vp_sde(
    score: Callable[..., Tensor],
    *,
    steps: int,
    shape: int | Sequence[int],
    corrector_steps: int = 0,
    corrector_size: float = 0.05,
    beta_min: float = 0.1,
    beta_max: float = 20.0,
    end: float = 1e-3,
    denoise_last: bool = True,
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """The variance-preserving diffusion run backwards in steps of D, from t = 1 down to ``end``:

        x' = x + D (beta(t) x / 2 + beta(t) score(x, t)) + sqrt(beta(t) D) w.

    That is Euler-Maruyama for the reverse of dx = -beta x / 2 dt + sqrt(beta) dW with
    beta(t) = beta_min + t (beta_max - beta_min), the row

        a = 1 + beta D / 2,   b = beta D,   s = sqrt(beta D).

    (The paper prints sqrt(2 tau) for its noise, eq. predictor; the reverse diffusion has sqrt(tau).) Before each
    predictor row the same level may be corrected by Langevin steps (eq. corrector)

        x' = x + tau score(x, t) + sqrt(2 tau) w,   tau = corrector_size sigma(t)^2,

    where x = alpha(t) x0 + sigma(t) noise, alpha^2 = exp(-integral of beta) and sigma^2 = 1 - alpha^2. The last
    predictor row goes from t = ``end`` to the mean of x0 given x: (1 / alpha, sigma^2 / alpha, 0), as DDPM's last row
    does. So there are steps (1 + corrector_steps) rows, each one evaluation of the score.

    Args:
        score: ``score(x, t)``, the gradient of log p_t(x), t in [end, 1].
        steps: Predictor rows.
        shape: Shape of one sample.
        corrector_steps: Langevin rows before each predictor row.
        corrector_size: tau in units of sigma(t)^2. The default is the signal-to-noise ratio 0.16 of Song et al., whose
            tau is 2 0.16^2 sigma^2.
        beta_min: beta(0).
        beta_max: beta(1).
        end: Where the diffusion stops; its noise is 0.01 there with the default betas.
        denoise_last: Whether the last row is the step to the mean. If not, all rows are Euler-Maruyama and the samples
            keep the noise of ``end``.
        time: How ``score`` wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points.
        condition: What the network is called with besides, ``score(x, t, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Song et al. (2021), Score-based generative modeling through stochastic differential equations, Algorithm 3.

    >>> table = vp_sde(lambda x, t: -x, steps=100, corrector_steps=2, shape=(2,)).table
    >>> len(table), table.t[:4].tolist() == [1.0, 1.0, 1.0, table.t[3].item()]
    (300, True)
    """
    network = Network(score, "score", time=time)
    steps = whole_number(steps, "steps", 2 if denoise_last else 1)
    corrections = whole_number(corrector_steps, "corrector_steps", 0)
    low, high, last = positive(beta_min, "beta_min"), positive(beta_max, "beta_max"), positive(end, "end")
    if high < low or last >= 1:
        raise SettingError(f"needs beta_min <= beta_max and end < 1, got {low:g}, {high:g} and end = {last:g}")
    parts = steps - 1 if denoise_last else steps
    delta = (1 - last) / parts
    if high * delta > 4:
        need = math.ceil(high * (1 - last) / 4) + steps - parts
        raise SettingError(
            f"Euler-Maruyama is unstable: beta_max D = {high * delta:.3g} > 4 with steps = {steps}; "
            f"use at least {need} steps"
        )
    t = torch.linspace(1.0, last, parts + 1, dtype=torch.float64)[:steps]
    decay = t * (low + t * (high - low) / 2)  # the integral of beta
    alpha, variance = torch.exp(-decay / 2), -torch.expm1(-decay)
    pace = (low + t * (high - low)) * delta
    a, b, s = 1 + pace / 2, pace, pace.sqrt()
    if denoise_last:
        a[-1], b[-1], s[-1] = 1 / alpha[-1], variance[-1] / alpha[-1], 0.0

    def interleaved(predictor: Tensor, corrector: Tensor) -> Tensor:
        """Each level: all corrector rows, then the predictor row."""
        return torch.cat([corrector[:, None].expand(-1, corrections), predictor[:, None]], dim=1).flatten()

    tau = positive(corrector_size, "corrector_size") * variance
    table = Table(
        interleaved(a, torch.ones_like(a)),
        interleaved(b, tau),
        interleaved(s, (2 * tau).sqrt()),
        interleaved(t, t),
        alpha=interleaved(alpha, alpha),
        sigma=interleaved(variance.sqrt(), variance.sqrt()),
    )

    bounds = [math.sqrt(math.expm1(t * (low + t * (high - low) / 2))) for t in (last, 1.0)]

    def denoise(y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        """From x = alpha y at the time where sigma(t) / alpha(t) = sigma, the nearest in [end, 1]."""
        level = noise_level(sigma, y)
        known = level.clamp(*bounds)
        passed = torch.log1p(known.square())  # the integral of beta up to that time
        at = 2 * passed / (low + (low**2 + 2 * (high - low) * passed).sqrt())
        scale = torch.exp(-passed / 2)
        alpha, gain = along(scale, y), along(scale * known.square(), y)
        clean = y + gain * network(alpha * y, at.clamp(last, 1.0), **given)
        return below_least_level(level, bounds[0], y, clean)

    start = gaussian_start(shape, 1.0, dtype)
    return Target(network, table, start, denoise=denoise, finest=bounds[0], name="vp_sde", condition=checked(condition))
