"""Networks trained on a chain of discrete noise levels: ancestral sampling (DDPM) and its implicit form (DDIM)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import Init, one_of, whole_number
from casal.errors import SettingError
from casal.targets.base import Table, Target
from casal.targets.conditions import checked
from casal.targets.noise import (
    Network,
    along,
    below_least_level,
    clean_from,
    column,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_share,
    prediction_of,
    score_from,
)

KINDS = ("eps", "x0", "v", "flow")
"""What a network may return."""

SPACINGS = ("trailing", "leading", "linspace")


def ddpm(
    eps: Callable[..., Tensor],
    betas: Tensor | Sequence[float],
    *,
    shape: int | Sequence[int],
    prediction: str = "eps",
    steps: int | None = None,
    variance: str = "posterior",
    spacing: str = "trailing",
    times: Sequence[int] | Tensor | None = None,
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Ancestral sampling with a network on T noise levels (paper, eq. ddpm-sample):

        x' = (x - beta / sqrt(1 - abar) eps(x, t)) / sqrt(alpha) + sigma_t w,
        alpha_t = 1 - beta_t,   abar_t = alpha_1 ... alpha_t,   score = -eps / sqrt(1 - abar)   (eq. noise-score):
        a = 1 / sqrt(alpha),   b = beta / sqrt(alpha),   s = sigma_t, and 0 in the last row.

    A strided run takes fewer, longer steps: alpha = abar_t / abar_prev between the times it visits. Nothing is
    clipped. The defaults equal those of diffusers' ``DDPMScheduler`` with clip_sample=False and, for strided runs,
    timestep_spacing="trailing".

    Args:
        eps: ``eps(x, t)``, a network on x = sqrt(abar_t) x0 + sqrt(1 - abar_t) noise with t = 0 ... T - 1.
        betas: The T variances of the forward chain, in (0, 1).
        shape: Shape of one sample.
        prediction: What the network returns: the noise "eps" (or "epsilon"), the clean sample "x0" (or "sample"),
            "v" (or "v_prediction") = sqrt(abar) noise - sqrt(1 - abar) x0, or "flow" (or "flow_prediction") =
            noise - x0.
        steps: How many of the T times to visit; all if left out.
        variance: sigma_t^2 is beta times (1 - abar_prev) / (1 - abar) for "posterior", the right one if the data are
            a point; "beta" is right if they are standard normal.
        spacing: Which times a strided run visits, as diffusers names them. "trailing" starts at T - 1, where x really
            is noise; "leading" (diffusers' default) and "linspace" end at 0.
        times: The times to visit, decreasing, in place of ``steps`` and ``spacing``.
        time: How the network wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out. Always int64.
        dtype: Dtype of the starting points.
        condition: What the network is called with besides, ``eps(x, t, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Ho, Jain and Abbeel (2020), Denoising diffusion probabilistic models, Algorithm 2.

    >>> target = ddpm(lambda x, t: x, torch.linspace(1e-4, 0.02, 1000), shape=(2,), steps=4)
    >>> target.table.t
    tensor([999., 749., 499., 249.], dtype=torch.float64)
    """
    model = _Discrete(eps, betas, prediction, time)
    index = model.times(steps, spacing, times)
    log_abar = model.log_abar[index]
    log_next = next_values(log_abar, 0.0)
    beta, beta_bar, beta_bar_next = (-torch.expm1(v) for v in (log_abar - log_next, log_abar, log_next))
    a = torch.exp((log_next - log_abar) / 2)
    if one_of(variance, "variance", ("posterior", "beta")) == "posterior":
        s = (beta * beta_bar_next / beta_bar).sqrt()
    else:
        s = beta.sqrt()
        s[-1] = 0.0
    table = Table(a, beta * a, s, index.to(a), alpha=torch.exp(log_abar / 2), sigma=beta_bar.sqrt())
    start = gaussian_start(shape, 1.0, dtype)
    return model.target("ddpm", table, start, condition)


def ddim(
    eps: Callable[..., Tensor],
    betas: Tensor | Sequence[float],
    *,
    shape: int | Sequence[int],
    steps: int | None = None,
    eta: float = 0.0,
    prediction: str = "eps",
    spacing: str = "trailing",
    times: Sequence[int] | Tensor | None = None,
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Implicit sampling with a network on T noise levels, which needs fewer steps than ``ddpm``:

        x' = sqrt(abar') x0_hat + sqrt(1 - abar' - s^2) eps(x, t) + s w,

    where x0_hat = (x - sqrt(1 - abar) eps(x, t)) / sqrt(abar) and abar' belongs to the time visited next. With
    score = -eps / sqrt(1 - abar) this is the row

        a = sqrt(abar' / abar),   b = a (1 - abar) - sqrt(1 - abar) sqrt(1 - abar' - s^2),
        s = eta sqrt((1 - abar') / (1 - abar)) sqrt(1 - abar / abar').

    eta = 0 is the probability-flow ODE: all randomness is in the starting point. eta = 1 is ``ddpm``. Equal to
    diffusers' ``DDIMScheduler`` with clip_sample=False and the same spacing, wherever steps divides T.

    Args:
        eps: As in ``ddpm``.
        betas: The T variances of the forward chain, in (0, 1).
        shape: Shape of one sample.
        steps: How many of the T times to visit; all if left out.
        eta: Share of ancestral noise in [0, 1].
        prediction: "eps", "x0", "v" or "flow", or one of diffusers' names, as in ``ddpm``.
        spacing: Which times to visit: "trailing", "leading" or "linspace".
        times: The times to visit, decreasing, in place of ``steps`` and ``spacing``.
        time: How the network wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out. Always int64.
        dtype: Dtype of the starting points.
        condition: What the network is called with besides, ``eps(x, t, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Song, Meng and Ermon (2021), Denoising diffusion implicit models, eq. 12 and 16.

    >>> ddim(lambda x, t: x, torch.linspace(1e-4, 0.02, 1000), shape=(2,), steps=5).table.s.max().item()
    0.0
    """
    model = _Discrete(eps, betas, prediction, time)
    index = model.times(steps, spacing, times)
    alpha, sigma = model.alpha_sigma(index)
    a, b, s = implicit_rows(alpha, sigma, next_values(alpha, 1.0), next_values(sigma, 0.0), noise_share(eta, "eta"))
    table = Table(a, b, s, index.to(a), alpha=alpha, sigma=sigma)
    start = gaussian_start(shape, 1.0, dtype)
    return model.target("ddim", table, start, condition)


class _Discrete:
    """A network on T noise levels: x = sqrt(abar_t) x0 + sqrt(1 - abar_t) noise, t = 0 ... T - 1."""

    def __init__(
        self,
        eps: Callable[..., Tensor],
        betas: Tensor | Sequence[float],
        prediction: str,
        time: str,
    ) -> None:
        self.network = Network(eps, "eps", time=time, integer=True)
        self.prediction = prediction_of(prediction, "a network on discrete noise levels", KINDS)
        beta = column(betas, "betas")
        if not bool(((beta > 0) & (beta < 1)).all()):
            raise SettingError(
                f"betas must lie in (0, 1), got values from {float(beta.min()):g} to {float(beta.max()):g}; "
                "a last beta of 1 (no signal left) must be capped, say at 0.999"
            )
        self.log_abar = torch.cumsum(torch.log1p(-beta), 0)
        self.levels = torch.expm1(-self.log_abar).sqrt()  # sigma / alpha
        self.borders = (self.levels[1:] * self.levels[:-1]).sqrt()

    def target(self, name: str, table: Table, start: Init, condition: Mapping[str, Any] | None) -> Target:
        """The target with these steps."""
        finest = float(self.levels[0])
        return Target(
            self.score, table, start, denoise=self.denoise, finest=finest, name=name, condition=checked(condition)
        )

    def times(self, steps: int | None, spacing: str, given: Sequence[int] | Tensor | None = None) -> Tensor:
        """The times of a strided run, last first."""
        total = len(self.log_abar)
        if given is not None:
            return self._given_times(given, steps)
        steps = total if steps is None else whole_number(steps, "steps", 1)
        if steps > total:
            raise SettingError(f"steps = {steps} is more than the {total} times of betas; use at most {total}")
        one_of(spacing, "spacing", SPACINGS)
        k = torch.arange(steps, dtype=torch.float64)
        if spacing == "trailing":
            return (total - k * total / steps).round().long() - 1
        if spacing == "leading":
            return (k * (total // steps)).long().flip(0)
        return torch.linspace(0, total - 1, steps, dtype=torch.float64).round().long().flip(0)

    def _given_times(self, given: Sequence[int] | Tensor, steps: int | None) -> Tensor:
        total, times = len(self.log_abar), column(given, "times")
        if steps not in (None, len(times)):
            raise SettingError(f"steps = {steps}, but times has {len(times)}; leave out steps=")
        index = times.round().long()
        if not bool((index == times).all()) or not bool(((index >= 0) & (index < total)).all()):
            raise SettingError(
                f"times are whole numbers from {total - 1} (noise) to 0 (data) for {total} betas, got values from "
                f"{float(times.min()):g} to {float(times.max()):g}"
            )
        if not bool((index.diff() < 0).all()):
            raise SettingError("times must decrease strictly, from noise to data; times.flip(0) reverses a tensor")
        return index

    def alpha_sigma(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(abar) and sqrt(1 - abar)."""
        log_abar = self.log_abar.to(index.device).index_select(0, index.reshape(-1)).reshape(index.shape)
        return torch.exp(log_abar / 2), (-torch.expm1(log_abar)).sqrt()

    def score(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        """-noise_hat / sigma."""
        index = t.round().long()
        alpha, sigma = (along(v, x) for v in self.alpha_sigma(index))
        return score_from(self.prediction, self.network(x, index, **given), x, alpha, sigma)

    def denoise(self, y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        """E[x0 | x0 + sigma noise = y] at the nearest of the T levels (in its logarithm), from x = sqrt(abar) y."""
        level = noise_level(sigma, y)
        index = torch.bucketize(level, self.borders.to(level.device))
        alpha, size = (along(v, y) for v in self.alpha_sigma(index))
        x = alpha * y
        clean = clean_from(self.prediction, self.network(x, index, **given), x, alpha, size)
        return below_least_level(level, float(self.levels[0]), y, clean)
