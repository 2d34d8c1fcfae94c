"""Gaussian data whose score is known at every noise level: exact networks, and every recursion by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import casal
from casal.targets import annealed, ddim, ddpm, edm, flow, karras_sigmas, vp_sde

Array = npt.NDArray[np.float64]

MEAN = np.array([1.0, -1.0])
COVARIANCE = np.array([[2.0, 0.6], [0.6, 0.5]])


class Moments(NamedTuple):
    """Mean and covariance of a state."""

    mean: Array
    covariance: Array


F64 = torch.float64
ONE = np.eye(2)
BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=F64)
ABAR = np.cumprod(1 - BETAS.numpy())
SHORT = torch.linspace(1e-3, 0.2, 60, dtype=F64)
BETA_MIN, BETA_MAX = 0.1, 20.0
Step = tuple[Array, Array, Array]
Network = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# --- the Gaussian data law, at every noise level ---------------------------------------------------------------


def precision(alpha: float, sigma: float) -> Array:
    """Inverse covariance of alpha x0 + sigma noise."""
    return np.linalg.inv(alpha**2 * COVARIANCE + sigma**2 * ONE)


def score_of(x: torch.Tensor, alpha: float, sigma: float) -> torch.Tensor:
    return (alpha * torch.as_tensor(MEAN) - x.to(F64)).matmul(torch.as_tensor(precision(alpha, sigma))).to(x)


def clean_of(x: torch.Tensor, alpha: float, sigma: float) -> torch.Tensor:
    """E[x0 | alpha x0 + sigma noise = x] = m + alpha S K (x - alpha m): the Gaussian formula, not Tweedie's."""
    gain = torch.as_tensor(alpha * COVARIANCE @ precision(alpha, sigma))
    return (torch.as_tensor(MEAN) + (x.to(F64) - alpha * torch.as_tensor(MEAN)) @ gain.T).to(x)


def discrete(kind: str, betas: torch.Tensor = BETAS, sign: float = 1.0) -> Network:
    """The exact network of a discrete chain, predicting eps, x0 or v."""
    abar = np.cumprod(1 - betas.numpy())

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert t.dtype == torch.int64
        alpha, sigma = float(np.sqrt(abar[int(t)])), float(np.sqrt(1 - abar[int(t)]))
        x0 = clean_of(x, alpha, sigma)
        eps = sign * (x - alpha * x0) / sigma
        x0 = (x - sigma * eps) / alpha
        return {"eps": eps, "x0": x0, "v": alpha * eps - sigma * x0}[kind]

    return network


def continuous(sign: float = 1.0) -> Network:
    """The exact score of the variance-preserving diffusion in continuous time."""

    def score(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        alpha = float(np.exp(-float(t) * (BETA_MIN + float(t) * (BETA_MAX - BETA_MIN) / 2) / 2))
        return sign * score_of(x, alpha, float(np.sqrt(1 - alpha**2)))

    return score


def exploding(sign: float = 1.0) -> Network:
    return lambda x, sigma: sign * score_of(x, 1.0, float(sigma))


def denoiser(sign: float = 1.0) -> Network:
    return lambda x, sigma: x + sign * (clean_of(x, 1.0, float(sigma)) - x)


def velocity(sign: float = 1.0) -> Network:
    """E[x1 - noise | t x1 + (1 - t) noise = x], from the joint Gaussian."""

    def field(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        at = float(t)
        gain = torch.as_tensor((at * COVARIANCE - (1 - at) * ONE) @ precision(at, 1 - at))
        mean = torch.as_tensor(MEAN)
        forward = mean + (x.to(F64) - at * mean) @ gain.T
        if sign > 0:
            return forward.to(x)
        return ((2 * x.to(F64) - at * forward) / at if at else forward).to(x)  # the score's sign turned round

    return field


# --- every family's recursion by hand --------------------------------------------------------------------------


def affine(F: Array, c: Array, s: float) -> Step:
    return F, s * ONE, c


def posterior(alpha: float, sigma: float) -> tuple[Array, Array]:
    """(D, d) of E[x0 | x] = D x + d."""
    D = alpha * COVARIANCE @ precision(alpha, sigma)
    return D, MEAN - alpha * D @ MEAN


def hand_ddpm(index: Array, betas: Array, variance: str = "posterior") -> list[Step]:
    """x' = (x - (1 - alpha) / sqrt(1 - abar) eps) / sqrt(alpha) + sigma w (paper, eq. ddpm-sample)."""
    bar = np.cumprod(1 - betas)
    steps = []
    for k, t in enumerate(index):
        abar, before = bar[t], bar[index[k + 1]] if k + 1 < len(index) else 1.0
        alpha = abar / before
        D, d = posterior(np.sqrt(abar), np.sqrt(1 - abar))
        E, e = (ONE - np.sqrt(abar) * D) / np.sqrt(1 - abar), -np.sqrt(abar) * d / np.sqrt(1 - abar)
        gain = (1 - alpha) / np.sqrt(1 - abar)
        var = (1 - alpha) * ((1 - before) / (1 - abar) if variance == "posterior" else 1.0)
        s = 0.0 if k + 1 == len(index) else np.sqrt(var)
        steps.append(affine((ONE - gain * E) / np.sqrt(alpha), -gain * e / np.sqrt(alpha), s))
    return steps


def hand_ddim(index: Array, betas: Array, eta: float) -> list[Step]:
    """x' = sqrt(abar') x0 + sqrt(1 - abar' - s^2) eps + s w."""
    bar = np.cumprod(1 - betas)
    steps = []
    for k, t in enumerate(index):
        abar, before = bar[t], bar[index[k + 1]] if k + 1 < len(index) else 1.0
        D, d = posterior(np.sqrt(abar), np.sqrt(1 - abar))
        E, e = (ONE - np.sqrt(abar) * D) / np.sqrt(1 - abar), -np.sqrt(abar) * d / np.sqrt(1 - abar)
        s = eta * np.sqrt((1 - before) / (1 - abar) * (1 - abar / before))
        rest = np.sqrt(max(0.0, 1 - before - s**2))
        steps.append(affine(np.sqrt(before) * D + rest * E, np.sqrt(before) * d + rest * e, s))
    return steps


def hand_vp(steps: int, corrector_steps: int, size: float, end: float, denoise_last: bool) -> list[Step]:
    """Euler-Maruyama of the reverse diffusion, each step after some Langevin steps at its own time."""
    parts = steps - 1 if denoise_last else steps
    delta = (1 - end) / parts
    out = []
    for k in range(steps):
        t = 1 - k * delta
        beta = BETA_MIN + t * (BETA_MAX - BETA_MIN)
        alpha = np.exp(-(BETA_MIN * t + (BETA_MAX - BETA_MIN) * t**2 / 2) / 2)
        variance = 1 - alpha**2
        K = precision(alpha, np.sqrt(variance))
        tau = size * variance
        out += [affine(ONE - tau * K, tau * alpha * K @ MEAN, np.sqrt(2 * tau))] * corrector_steps
        if denoise_last and k == steps - 1:
            out.append(affine(*posterior(alpha, np.sqrt(variance)), 0.0))
        else:
            drift, offset = beta / 2 * ONE - beta * K, beta * alpha * K @ MEAN
            out.append(affine(ONE + delta * drift, delta * offset, np.sqrt(beta * delta)))
    return out


def hand_edm(sigmas: Array, churn: float) -> list[Step]:
    """x' = x + (sigma_down - sigma) (x - D(x)) / sigma + sigma_up w."""
    out = []
    for sigma, then in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        up = churn * np.sqrt(then**2 * (sigma**2 - then**2) / sigma**2)
        down = np.sqrt(then**2 - up**2)
        D, d = posterior(1.0, sigma)
        rate = (down - sigma) / sigma
        out.append(affine(ONE + rate * (ONE - D), -rate * d, up))
    return out


def hand_flow(steps: int, noise: float) -> list[Step]:
    """x' = x + v / steps, or with noise t' x1 + sqrt((1 - t')^2 - s^2) e + s w. The first step belongs to the start."""
    out = []
    for k in range(1, steps):
        t, then = k / steps, (k + 1) / steps
        D, d = posterior(t, 1 - t)
        V, v = (D - ONE) / (1 - t), d / (1 - t)
        if not noise:
            out.append(affine(ONE + V / steps, v / steps, 0.0))
            continue
        s = noise * (1 - then) * np.sqrt(max(0.0, 1 - (t * (1 - then) / (then * (1 - t))) ** 2))
        rest = np.sqrt(max(0.0, (1 - then) ** 2 - s**2))
        out.append(affine(then * D + rest * (ONE - t * V), then * d - rest * t * v, s))
    return out


def hand_annealed(sigmas: Array, per_level: int, size: float, denoise_last: bool) -> list[Step]:
    out = []
    for sigma in sigmas:
        K, tau = precision(1.0, sigma), size * sigma**2
        out += [affine(ONE - tau * K, tau * K @ MEAN, np.sqrt(2 * tau))] * per_level
    return [*out, affine(*posterior(1.0, sigmas[-1]), 0.0)] if denoise_last else out


class Family(NamedTuple):
    """A target whose user function has the given sign, its recursion by hand, and the law of its start."""

    make: Callable[[float], casal.Target]
    steps: Callable[[], list[Step]]
    start: Moments


def normal(scale: float, mean: float = 0.0) -> Moments:
    return Moments(mean * MEAN, scale**2 * ONE)


def wide(n: int, generator: torch.Generator) -> torch.Tensor:
    return 10.0 * torch.randn((n, 2), generator=generator, dtype=F64)


EVERY = np.arange(999, -1, -1)
SIGMAS = karras_sigmas(40, 0.01, 20.0)
LEVELS = torch.logspace(1, -1.5, 12, dtype=F64)
PLANE: dict[str, Any] = {"shape": (2,), "dtype": F64}
FAMILIES: dict[str, Family] = {
    **{
        f"ddpm {kind}": Family(
            lambda sign, kind=kind: ddpm(discrete(kind, sign=sign), BETAS, prediction=kind, shape=2, dtype=F64),  # type: ignore[misc]
            lambda: hand_ddpm(EVERY, BETAS.numpy()),
            normal(1.0),
        )
        for kind in ("eps", "x0", "v")
    },
    "ddpm strided": Family(
        lambda sign: ddpm(discrete("eps", sign=sign), BETAS, shape=2, steps=50, dtype=F64),
        lambda: hand_ddpm(np.arange(999, 0, -20), BETAS.numpy()),
        normal(1.0),
    ),
    "ddpm beta": Family(
        lambda sign: ddpm(discrete("eps", SHORT, sign), SHORT, shape=2, variance="beta", dtype=F64),
        lambda: hand_ddpm(np.arange(59, -1, -1), SHORT.numpy(), "beta"),
        normal(1.0),
    ),
    "ddim": Family(
        lambda sign: ddim(discrete("eps", sign=sign), BETAS, shape=2, steps=100, dtype=F64),
        lambda: hand_ddim(np.arange(999, 0, -10), BETAS.numpy(), 0.0),
        normal(1.0),
    ),
    "ddim eta": Family(
        lambda sign: ddim(
            discrete("v", sign=sign), BETAS, shape=2, steps=100, eta=0.6, prediction="v", spacing="leading", dtype=F64
        ),
        lambda: hand_ddim(np.arange(990, -1, -10), BETAS.numpy(), 0.6),
        normal(1.0),
    ),
    "vp_sde": Family(
        lambda sign: vp_sde(continuous(sign), steps=200, **PLANE),
        lambda: hand_vp(200, 0, 0.0, 1e-3, True),
        normal(1.0),
    ),
    "vp_sde corrected": Family(
        lambda sign: vp_sde(
            continuous(sign), steps=60, corrector_steps=2, corrector_size=0.1, end=0.01, denoise_last=False, **PLANE
        ),
        lambda: hand_vp(60, 2, 0.1, 0.01, False),
        normal(1.0),
    ),
    "edm": Family(
        lambda sign: edm(denoiser(sign), SIGMAS, **PLANE), lambda: hand_edm(SIGMAS.numpy(), 0.0), normal(20.0)
    ),
    "edm churn": Family(
        lambda sign: edm(denoiser(sign), SIGMAS, churn=0.8, **PLANE),
        lambda: hand_edm(SIGMAS.numpy(), 0.8),
        normal(20.0),
    ),
    "flow": Family(
        lambda sign: flow(velocity(sign), steps=50, **PLANE), lambda: hand_flow(50, 0.0), normal(1 - 1 / 50, 1 / 50)
    ),
    "flow noise": Family(
        lambda sign: flow(velocity(sign), steps=50, noise=0.7, **PLANE),
        lambda: hand_flow(50, 0.7),
        normal(1 - 1 / 50, 1 / 50),
    ),
    "flow reverse": Family(
        lambda sign: flow(lambda x, t: -velocity(sign)(x, 1 - t), steps=50, reverse=True, **PLANE),
        lambda: hand_flow(50, 0.0),
        normal(1 - 1 / 50, 1 / 50),
    ),
    "annealed": Family(
        lambda sign: annealed(exploding(sign), LEVELS, steps_per_level=8, step_size=0.3, init=wide),
        lambda: hand_annealed(LEVELS.numpy(), 8, 0.3, False),
        normal(10.0),
    ),
    "annealed denoised": Family(
        lambda sign: annealed(exploding(sign), LEVELS, steps_per_level=8, step_size=0.3, init=wide, denoise_last=True),
        lambda: hand_annealed(LEVELS.numpy(), 8, 0.3, True),
        normal(10.0),
    ),
}


def library_steps(target: casal.Target) -> list[Step]:
    """(F, G, c) of x' = F x + G w + c for every row, from the score at the origin and at unit vectors."""
    table, origin = target.table, torch.zeros((1, 2), dtype=F64)
    steps = []
    for a, b, s, t in zip(table.a, table.b, table.s, table.t, strict=True):
        x = torch.cat([origin, torch.eye(2, dtype=F64)])
        after = (a * x + b * target.score(x, t)).numpy()
        steps.append(((after[1:] - after[0]).T, float(s) * ONE, after[0]))
    return steps


def law(start: Moments, steps: list[Step]) -> Moments:
    """Mean and covariance after all steps, exactly."""
    for F, G, c in steps:
        start = Moments(F @ start.mean + c, F @ start.covariance @ F.T + G @ G.T)
    return start


def apart(a: Moments, b: Moments) -> float:
    return float(max(np.abs(a.mean - b.mean).max(), np.abs(a.covariance - b.covariance).max()))


def bayes(y: torch.Tensor, sigma: float) -> torch.Tensor:
    """m + S (S + sigma^2 I)^-1 (y - m)."""
    gain = COVARIANCE @ np.linalg.inv(COVARIANCE + sigma**2 * ONE)
    return torch.as_tensor(MEAN + (y.numpy() - MEAN) @ gain.T)


def some_points(n: int = 6) -> torch.Tensor:
    return 3 * torch.randn((n, 2), generator=torch.Generator().manual_seed(1), dtype=F64)


def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Some network that is no score of anything."""
    return torch.sin(3 * x + 0.01 * t) + 0.1 * x


# --- a Gaussian in three dimensions, and the exact noise prediction of its DDPM -----------------------------------

MEAN_3 = torch.tensor([0.5, -1.0, 0.2], dtype=F64)
_ROOT_3 = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.2, 0.5]], dtype=F64)
COVARIANCE_3 = _ROOT_3 @ _ROOT_3.T
BETAS_3 = torch.linspace(1e-4, 0.05, 200, dtype=F64)
ABAR_3 = (1 - BETAS_3).cumprod(0)


def eps_3(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    a = ABAR_3[t]
    spread = a * COVARIANCE_3 + (1 - a) * torch.eye(3, dtype=F64)
    return (1 - a).sqrt() * torch.linalg.solve(spread, (x - a.sqrt() * MEAN_3).T).T
