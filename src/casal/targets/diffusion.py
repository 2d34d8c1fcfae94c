"""Models of noise levels: ``ddpm``, ``ddim``, ``vp_sde``, ``edm`` and ``annealed``, tables of one kind.

Each has a network on x = alpha x0 + sigma noise. They differ in the levels (alpha, sigma) that a run visits, in the
step from one level to the next, and in what the network returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from casal.checks import Init, one_of, positive, whole_number
from casal.errors import SettingError
from casal.targets.base import Table, Target, checked
from casal.targets.network import (
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
"""What a network on discrete noise levels may return."""

NEARLY_ONE, HALF = 0.9, 0.5
"""betas that begin above the first and never grow are no betas: they would leave no signal after the first step. Those
that end below the second are products of alphas, which go to zero."""

SPACINGS = ("trailing", "leading", "linspace")

Level: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""A time of the table, or a noise level sigma / alpha -> the second argument of the network, alpha and sigma there."""


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
    gain = (low + t * (high - low)) * delta
    a, b, s = 1 + gain / 2, gain, gain.sqrt()
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
    nearest = partial(_vp_level, low=low, high=high, last=last, bounds=bounds)
    start, denoise = gaussian_start(shape, 1.0, dtype), _DenoiserOfScore(network, nearest, bounds[0])
    return Target(network, table, start, denoise=denoise, finest=bounds[0], name="vp_sde", condition=checked(condition))


def _vp_level(
    level: Tensor, *, low: float, high: float, last: float, bounds: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """At the time where sigma(t) / alpha(t) is the level, or the nearest in [last, 1]."""
    known = level.clamp(*bounds)
    passed = torch.log1p(known.square())  # the integral of beta up to that time
    at = 2 * passed / (low + (low**2 + 2 * (high - low) * passed).sqrt())
    scale = torch.exp(-passed / 2)
    return at.clamp(last, 1.0), scale, scale * known.square()


def edm(
    denoiser: Callable[..., Tensor],
    sigmas: Tensor | Sequence[float],
    *,
    shape: int | Sequence[int],
    churn: float = 0.0,
    prediction: str = "x0",
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Sampling with a denoiser, from the noise level sigmas[0] down to 0:

        x' = x + (sigma_down - sigma) (x - denoiser(x, sigma)) / sigma + sigma_up w,
        sigma_up = churn sigma' sqrt(1 - (sigma' / sigma)^2),   sigma_down^2 + sigma_up^2 = sigma'^2,

    where sigma' is the next level. With score = (denoiser(x, sigma) - x) / sigma^2 (Tweedie) this is the row

        a = 1,   b = sigma (sigma - sigma_down),   s = sigma_up.

    churn = 0 is Euler on the probability-flow ODE, churn = 1 ancestral sampling. The last row goes to noise 0 and
    returns denoiser(x, sigmas[-1]). (Heun's second evaluation is not a row: for the same cost take twice the levels.)

    Args:
        denoiser: ``denoiser(x, sigma)`` = E[x0 | x0 + sigma noise = x].
        sigmas: Noise levels, strictly decreasing, see ``karras_sigmas``; a 0 at the end is implied.
        shape: Shape of one sample.
        churn: Share of ancestral noise in [0, 1].
        prediction: What the network returns at x = x0 + sigma noise: the clean sample "x0" (or "sample"), or the noise
            "eps" (or "epsilon").
        time: How ``denoiser`` wants sigma: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points, which are sigmas[0] times standard normal.
        condition: What the network is called with besides, ``denoiser(x, sigma, **condition)``:
            names to tensors (n, ...), one row per chain; see ``docs/models.md``.

    References:
        Karras et al. (2022), Elucidating the design space of diffusion-based generative models, Algorithm 1 without
        its correction.

    >>> edm(lambda x, s: x / (1 + s**2), [2.0, 1.0], shape=(2,)).table.b
    tensor([2., 1.], dtype=torch.float64)
    """
    network = Network(denoiser, "denoiser", time=time)
    kind = prediction_of(prediction, "edm", ("x0", "eps"))
    levels = column(sigmas, "sigmas")
    sigma = _decreasing(levels[:-1] if len(levels) > 1 and float(levels[-1]) == 0.0 else levels)
    one = torch.ones_like(sigma)
    a, b, s = implicit_rows(one, sigma, one, next_values(sigma, 0.0), noise_share(churn, "churn"))
    score, denoise = _Score(network, kind, _edm_level), _Denoiser(network, kind, _edm_level)
    table = Table(a, b, s, sigma, alpha=one, sigma=sigma)
    start = gaussian_start(shape, float(sigma[0]), dtype)
    return Target(score, table, start, denoise=denoise, name="edm", condition=checked(condition))


def _edm_level(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return t, torch.ones_like(t), t


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
    levels = _decreasing(sigmas)
    sigma = levels.repeat_interleave(whole_number(steps_per_level, "steps_per_level", 1))
    tau = positive(step_size, "step_size") * sigma.square()
    b, s = tau, (2 * tau).sqrt()
    if denoise_last:
        sigma = torch.cat([sigma, levels[-1:]])
        b, s = torch.cat([b, levels[-1:].square()]), torch.cat([s, s.new_zeros(1)])
    denoise = _DenoiserOfScore(network, _annealed_level)
    one = torch.ones_like(sigma)
    table = Table(one, b, s, sigma, alpha=one, sigma=sigma)
    return Target(network, table, init, denoise=denoise, name="annealed", condition=checked(condition))


def _annealed_level(level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return level, torch.ones_like(level), level.square()


def karras_sigmas(
    count: int,
    low: float = 0.002,
    high: float = 80.0,
    rho: float = 7.0,
    *,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
) -> Tensor:
    """Noise levels that are dense near the data:

        sigma_i = (high^(1/rho) + i / (count - 1) (low^(1/rho) - high^(1/rho)))^rho,   i = 0 ... count - 1.

    Args:
        count: How many levels.
        low: The last one, > 0; a step to 0 follows it.
        high: The first one, well above the spread of the data.
        rho: 1 spaces them evenly; larger values put more of them near ``low``.
        sigma_min: ``low`` by the name that it has in the paper.
        sigma_max: ``high``, likewise.

    References:
        Karras et al. (2022), eq. 5.

    >>> karras_sigmas(3, 1.0, 4.0, rho=1)
    tensor([4.0000, 2.5000, 1.0000], dtype=torch.float64)
    """
    count = whole_number(count, "count", 1)
    low, high = low if sigma_min is None else sigma_min, high if sigma_max is None else sigma_max
    low, high, rho = positive(low, "low"), positive(high, "high"), positive(rho, "rho")
    if low >= high:
        raise SettingError(f"low = {low:g} must be below high = {high:g}")
    ramp = torch.linspace(high ** (1 / rho), low ** (1 / rho), count, dtype=torch.float64)
    return ramp**rho


def _refuse_alphas(beta: Tensor) -> None:
    """SettingError for 1 - betas or their products in place of betas: both fall from nearly one."""
    first, last = float(beta[0]), float(beta[-1])
    if len(beta) < 2 or first < NEARLY_ONE or bool((beta.diff() > 0).any()):
        return
    product = "alphas_cumprod: give 1 - abar / torch.cat([torch.ones(1), abar[:-1]])"
    meant = product if last < HALF else "alphas = 1 - betas: give 1 - alphas"
    raise SettingError(
        f"betas are the variances of the noise, small at first; these fall from {first:.4g} to {last:.4g}, as {meant}"
    )


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
        _refuse_alphas(beta)
        self.log_abar = torch.cumsum(torch.log1p(-beta), 0)
        self.levels = torch.expm1(-self.log_abar).sqrt()  # sigma / alpha
        self.borders = (self.levels[1:] * self.levels[:-1]).sqrt()

    def target(self, name: str, table: Table, start: Init, condition: Mapping[str, Any] | None) -> Target:
        """The target with these steps."""
        least = float(self.levels[0])
        score = _Score(self.network, self.prediction, self.level)
        denoise = _Denoiser(self.network, self.prediction, self.nearest, least)
        return Target(score, table, start, denoise=denoise, finest=least, name=name, condition=checked(condition))

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

    def level(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The level of a time."""
        index = t.round().long()
        return index, *self.alpha_sigma(index)

    def nearest(self, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The nearest of the T levels, in its logarithm."""
        index = torch.bucketize(level, self.borders.to(level.device))
        return index, *self.alpha_sigma(index)


@dataclass(frozen=True, eq=False)
class _Score:
    """The score of a network that predicts the noise, the clean sample or a mix of both.

    Attributes:
        network: The network on x = alpha x0 + sigma noise.
        kind: What it returns.
        level: The level of a time of the table.
    """

    network: Network
    kind: str
    level: Level

    def __call__(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        at, alpha, sigma = self.level(t)
        return score_from(self.kind, self.network(x, at, **given), x, along(alpha, x), along(sigma, x))


@dataclass(frozen=True, eq=False)
class _Denoiser:
    """The denoiser of such a network.

    Attributes:
        network: The network on x = alpha x0 + sigma noise.
        kind: What it returns.
        nearest: The level that it knows nearest to a noise level sigma / alpha.
        least: The smallest noise level that it knows; None if it knows all.
    """

    network: Network
    kind: str
    nearest: Level
    least: float | None = None

    def __call__(self, y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        level = noise_level(sigma, y)
        at, scale, size = self.nearest(level)
        alpha = along(scale, y)
        x = alpha * y
        clean = clean_from(self.kind, self.network(x, at, **given), x, alpha, along(size, y))
        return clean if self.least is None else below_least_level(level, self.least, y, clean)


@dataclass(frozen=True, eq=False)
class _DenoiserOfScore:
    """The denoiser of a network that returns the score, by Tweedie's formula.

    Attributes:
        network: The network on x = alpha x0 + sigma noise.
        nearest: A noise level sigma / alpha -> the second argument of the network, alpha, and sigma^2 / alpha there.
        least: The smallest noise level that the network knows; None if it knows all.
    """

    network: Network
    nearest: Level
    least: float | None = None

    def __call__(self, y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        level = noise_level(sigma, y)
        at, alpha, gain = self.nearest(level)
        clean = y + along(gain, y) * self.network(along(alpha, y) * y, at, **given)
        return clean if self.least is None else below_least_level(level, self.least, y, clean)


def _decreasing(sigmas: Tensor | Sequence[float]) -> Tensor:
    """Noise levels (L,) float64, finite, > 0 and strictly decreasing."""
    levels = column(sigmas, "sigmas")
    if not bool((levels > 0).all()):
        raise SettingError(f"sigmas must be > 0; the smallest is {float(levels.min()):g}")
    if not bool((levels.diff() < 0).all()):
        where = int((levels.diff() >= 0).nonzero()[0])
        raise SettingError(
            f"sigmas must decrease strictly; sigmas[{where}] = {float(levels[where]):g} is followed by "
            f"{float(levels[where + 1]):g}; sort them from noise to data"
        )
    return levels
