"""Diffusion and flow families: rows against diffusers, and against recursions written out on a Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import casal
from casal.errors import CasalError, DtypeError, SettingError, ShapeError
from casal.methods.unconstrained import PointState
from casal.targets import annealed, ddim, ddpm, edm, flow, karras_sigmas, vp_sde

from ..linear_gaussian import COVARIANCE, MEAN, Array, Moments, line, matrices, problem, propagate, rows

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
    p, method = problem(target, line()), casal.Unconstrained()
    steps = []
    for row in rows(p, method):
        F, G, c = matrices(p, method, row, PointState, (2,))
        steps.append((F, G, c))
    return steps


def law(start: Moments, steps: list[Step]) -> Moments:
    for step in steps:
        start = propagate(start, *step)
    return start


def apart(a: Moments, b: Moments) -> float:
    return float(max(np.abs(a.mean - b.mean).max(), np.abs(a.covariance - b.covariance).max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_equal_the_written_out_recursion(name: str) -> None:
    family = FAMILIES[name]
    ours, theirs = library_steps(family.make(1.0)), family.steps()
    assert len(ours) == len(theirs)
    for mine, hand in zip(ours, theirs, strict=True):
        for a, b in zip(mine, hand, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-8)
    assert apart(law(family.start, ours), law(family.start, theirs)) < 1e-8


@pytest.mark.parametrize("name", FAMILIES)
def test_the_written_out_recursion_notices_a_flipped_score(name: str) -> None:
    family = FAMILIES[name]
    flipped, right = library_steps(family.make(-1.0)), family.steps()
    assert all(np.abs(a[0] - b[0]).max() > 1e-5 for a, b in zip(flipped, right, strict=True))
    assert not apart(law(family.start, flipped), law(family.start, right)) < 1.0


@pytest.mark.parametrize("name", FAMILIES)
def test_the_start_has_the_law_it_should(name: str) -> None:
    family = FAMILIES[name]
    target = family.make(1.0)
    assert callable(target.init)
    x = target.init(7, torch.Generator().manual_seed(3))
    w = torch.randn((7, 2), generator=torch.Generator().manual_seed(3), dtype=F64)
    scale = float(np.sqrt(family.start.covariance[0, 0]))
    torch.testing.assert_close(x, torch.as_tensor(family.start.mean) + scale * w, atol=1e-12, rtol=0)


MANY: dict[str, tuple[Callable[[], casal.Target], Moments]] = {
    "ddpm": (lambda: ddpm(discrete("eps"), BETAS, shape=2), normal(1.0)),
    "ddim": (lambda: ddim(discrete("eps"), BETAS, shape=2, steps=1000), normal(1.0)),
    "vp_sde": (lambda: vp_sde(continuous(), steps=2000, shape=2), normal(1.0)),
    "vp_sde corrected": (lambda: vp_sde(continuous(), steps=500, corrector_steps=3, shape=2), normal(1.0)),
    "edm": (lambda: edm(denoiser(), karras_sigmas(1000), shape=2), normal(80.0)),
    "edm churn": (lambda: edm(denoiser(), karras_sigmas(1000), shape=2, churn=1.0), normal(80.0)),
    "flow": (lambda: flow(velocity(), steps=1000, shape=2), normal(1 - 1e-3, 1e-3)),
    "flow noise": (lambda: flow(velocity(), steps=1000, shape=2, noise=1.0), normal(1 - 1e-3, 1e-3)),
    "annealed": (
        lambda: annealed(exploding(), torch.logspace(1, -1, 20), steps_per_level=300, step_size=0.5, init=wide),
        normal(10.0),
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many_steps_lead_to_the_data_law(name: str) -> None:
    """Errors of first order in the step: 0.001 (vp_sde) to 0.021 (edm churn) on variances up to 2."""
    make, start = MANY[name]
    assert apart(law(start, library_steps(make())), Moments(MEAN, COVARIANCE)) < 0.025


# --- denoise ---------------------------------------------------------------------------------------------------


def bayes(y: torch.Tensor, sigma: float) -> torch.Tensor:
    """m + S (S + sigma^2 I)^-1 (y - m)."""
    gain = COVARIANCE @ np.linalg.inv(COVARIANCE + sigma**2 * ONE)
    return torch.as_tensor(MEAN + (y.numpy() - MEAN) @ gain.T)


def some_points(n: int = 6) -> torch.Tensor:
    return 3 * torch.randn((n, 2), generator=torch.Generator().manual_seed(1), dtype=F64)


@pytest.mark.parametrize("name", FAMILIES)
def test_denoise_is_the_posterior_mean(name: str) -> None:
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None and target.table.sigma is not None and target.table.alpha is not None
    y = some_points()
    levels = target.table.sigma / target.table.alpha
    for sigma in levels[:: len(levels) // 7]:
        torch.testing.assert_close(target.denoise(y, sigma), bayes(y, float(sigma)), atol=1e-10, rtol=0)
    # One level a chain.
    picked = levels[torch.linspace(0, len(levels) - 1, len(y)).long()]
    expected = torch.cat([bayes(y[k : k + 1], float(picked[k])) for k in range(len(y))])
    torch.testing.assert_close(target.denoise(y, picked), expected, atol=1e-10, rtol=0)
    # And float32 stays float32.
    low = target.denoise(y.float(), levels[len(levels) // 2])
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, bayes(y, float(levels[len(levels) // 2])).float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["vp_sde", "edm", "flow", "flow reverse", "annealed"])
@pytest.mark.parametrize("sigma", [0.02, 0.37, 1.0, 9.0, 60.0])
def test_continuous_families_denoise_between_their_levels(name: str, sigma: float) -> None:
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None
    y = some_points()
    torch.testing.assert_close(
        target.denoise(y, torch.tensor(sigma)), bayes(y, float(torch.tensor(sigma))), atol=1e-10, rtol=0
    )


@pytest.mark.parametrize("kind", ["eps", "x0", "v"])
def test_discrete_families_denoise_at_the_nearest_level(kind: str) -> None:
    target = ddpm(discrete(kind), BETAS, prediction=kind, shape=2)
    assert target.denoise is not None
    levels = np.sqrt(1 / ABAR - 1)
    y = some_points()
    for t in (0, 1, 500, 998):
        between = float(np.sqrt(levels[t] * levels[t + 1]))
        error = (target.denoise(y, torch.tensor(between, dtype=F64)) - bayes(y, between)).abs().max()
        assert 0 < float(error) <= float((bayes(y, levels[t + 1]) - bayes(y, levels[t])).abs().max())


@pytest.mark.parametrize("name", ["ddpm eps", "ddpm x0", "ddpm v", "vp_sde"])
def test_denoise_outside_the_levels(name: str) -> None:
    """Nothing to take away at sigma = 0, the score of the least level below it, the largest level above all."""
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None
    y = some_points()
    torch.testing.assert_close(target.denoise(y, torch.tensor(0.0)), y, atol=0, rtol=0)
    torch.testing.assert_close(target.denoise(y, torch.tensor(5e-3)), bayes(y, 5e-3), atol=1e-5, rtol=0)
    high = float(np.sqrt(1 / ABAR[-1] - 1)) if name != "vp_sde" else float(np.sqrt(np.expm1((BETA_MIN + BETA_MAX) / 2)))
    torch.testing.assert_close(target.denoise(y, torch.tensor(1e4)), bayes(y, high), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_score_is_that_of_the_level_in_the_table(name: str) -> None:
    target = FAMILIES[name].make(1.0)
    table = target.table
    assert table.alpha is not None and table.sigma is not None and not table.static
    x = some_points()
    for k in range(0, len(table), 17):
        expected = score_of(x, float(table.alpha[k]), float(table.sigma[k]))
        torch.testing.assert_close(target.score(x, table.t[k]), expected, atol=1e-8, rtol=1e-9)
        every = target.score(x, table.t[k].expand(len(x)))
        torch.testing.assert_close(every, expected, atol=1e-8, rtol=1e-9)


# --- other libraries, and other families -----------------------------------------------------------------------

NAMES = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}


def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Some network that is no score of anything."""
    return torch.sin(3 * x + 0.01 * t) + 0.1 * x


def scheduler(kind: str, *, exact: bool = True, **settings: Any) -> Any:
    """A diffusers scheduler that clips nothing; ``exact`` gives it its own table in float64."""
    diffusers = pytest.importorskip("diffusers")
    made = getattr(diffusers, kind)(clip_sample=False, **settings)
    if exact:
        made.alphas_cumprod = torch.cumprod(1 - made.betas.to(F64), 0)
        for name in ("one", "final_alpha_cumprod"):
            if hasattr(made, name):
                setattr(made, name, torch.tensor(1.0, dtype=F64))
    return made


def furthest(target: casal.Target, theirs: Any, **settings: Any) -> float:
    """The largest difference between our rows and their steps, at the same points and under the same noise."""
    table, worst = target.table, 0.0
    assert torch.equal(table.t.long(), theirs.timesteps)
    for k, t in enumerate(theirs.timesteps):
        g, h = torch.Generator().manual_seed(k), torch.Generator().manual_seed(k)
        x = torch.randn((16, 5), generator=torch.Generator().manual_seed(10_000 + k), dtype=F64)
        after = theirs.step(model(x, t), t, x, generator=g, **settings).prev_sample
        w = torch.randn((16, 5), generator=h, dtype=F64)
        mine = table.a[k] * x + table.b[k] * target.score(x, table.t[k]) + table.s[k] * w
        worst = max(worst, float((mine - after).abs().max()))
    return worst


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    ("steps", "spacing"), [(None, "leading"), (50, "leading"), (50, "trailing"), (37, "trailing"), (30, "linspace")]
)
def test_ddpm_rows_equal_diffusers(kind: str, steps: int | None, spacing: str) -> None:
    theirs = scheduler("DDPMScheduler", prediction_type=NAMES[kind], timestep_spacing=spacing)
    theirs.set_timesteps(steps or 1000)
    target = ddpm(model, theirs.betas, shape=5, prediction=kind, steps=steps, spacing=spacing)
    # diffusers puts noise of variance 1e-20 into a last step that does not start at t = 0.
    assert furthest(target, theirs) < 1e-9
    for k, t in enumerate(theirs.timesteps):
        assert float(target.table.s[k] ** 2) == pytest.approx(float(theirs._get_variance(t)), abs=1e-12)


def test_the_float32_tables_of_diffusers_round_and_we_do_not() -> None:
    """As it comes, its scheduler is off by its own rounding of 1 - abar (2e-4 at the small times) and no more."""
    stock, better = scheduler("DDPMScheduler", exact=False), scheduler("DDPMScheduler")
    worst = 0.0
    for t in stock.timesteps:
        x = torch.randn((16, 5), generator=torch.Generator().manual_seed(10_000 + 999 - int(t)), dtype=F64)
        both = (
            s.step(model(x, t), t, x, generator=torch.Generator().manual_seed(0)).prev_sample for s in (stock, better)
        )
        worst = max(worst, float((next(both) - next(both)).abs().max()))
    gap = furthest(ddpm(model, stock.betas, shape=5), stock)
    assert gap < 2 * worst
    assert gap < 1e-3


def test_ddpm_with_the_larger_variance_equals_diffusers() -> None:
    theirs = scheduler("DDPMScheduler", variance_type="fixed_large", beta_schedule="squaredcos_cap_v2")
    theirs.set_timesteps(100)
    target = ddpm(model, theirs.betas, shape=5, steps=100, variance="beta", spacing="leading")
    assert furthest(target, theirs) < 1e-9


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("steps", "spacing"), [(50, "leading"), (20, "trailing"), (250, "leading")])
def test_ddim_rows_equal_diffusers(kind: str, eta: float, steps: int, spacing: str) -> None:
    theirs = scheduler("DDIMScheduler", prediction_type=NAMES[kind], timestep_spacing=spacing)
    theirs.set_timesteps(steps)
    target = ddim(model, theirs.betas, shape=5, steps=steps, eta=eta, prediction=kind, spacing=spacing)
    assert furthest(target, theirs, eta=eta) < 1e-9


def test_flow_equals_euler_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    theirs.set_timesteps(sigmas=[1 - k / 20 for k in range(20)])
    target = flow(model, steps=20, shape=5, reverse=True, dtype=F64)
    assert callable(target.init)
    x = torch.randn((8, 5), generator=torch.Generator().manual_seed(0), dtype=F64)
    mine = target.init(8, torch.Generator().manual_seed(0))
    for k, t in enumerate(theirs.timesteps):
        at = torch.tensor(1 - k / 20, dtype=F64)
        x = theirs.step(model(x, at), t, x).prev_sample.to(F64)
        if k:
            mine = target.table.a[k - 1] * mine + target.table.b[k - 1] * target.score(mine, target.table.t[k - 1])
    torch.testing.assert_close(mine, x, atol=1e-5, rtol=0)  # theirs keeps its sigmas in float32


@pytest.mark.parametrize("reverse", [False, True])
def test_flow_equals_plain_euler_on_the_velocity(reverse: bool) -> None:
    target = flow(model, steps=25, shape=5, reverse=reverse, dtype=F64)
    samples = casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 9, seed=4).samples
    from casal.sampling.tiles import cut

    (tile,) = cut(9, 4096, 4, torch.device("cpu"))
    x = torch.randn((9, 5), generator=tile.generator, dtype=F64)
    for k in range(25):
        t = torch.tensor(k / 25, dtype=F64)
        x = x + (-model(x, 1 - t) if reverse else model(x, t)) / 25
    torch.testing.assert_close(samples, x, atol=1e-11, rtol=0)


def test_ddim_with_all_its_noise_is_ddpm() -> None:
    a = ddim(model, BETAS, shape=2, steps=77, eta=1.0).table
    b = ddpm(model, BETAS, shape=2, steps=77).table
    for name in ("a", "b", "s", "t", "alpha", "sigma"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("eta", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["eps", "v"])
def test_edm_equals_ddim_after_the_change_of_variables(eta: float, kind: str) -> None:
    """y = x / sqrt(abar), sigma = sqrt(1 / abar - 1): the same chains under the same noise, step by step."""
    implicit = ddim(model, BETAS, shape=5, steps=40, eta=eta, prediction=kind, dtype=F64)
    t = implicit.table.t.long()
    scale, sigma = np.sqrt(ABAR[t]), np.sqrt(1 / ABAR[t] - 1)

    def D(y: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        k = int(np.abs(sigma - float(level)).argmin())
        x = scale[k] * y
        out = model(x, t[k])
        noise = np.sqrt(1 - ABAR[t[k]])
        return (x - noise * out) / scale[k] if kind == "eps" else scale[k] * x - noise * out

    exploding = edm(D, sigma, shape=5, churn=eta)
    x = torch.randn((6, 5), generator=torch.Generator().manual_seed(0), dtype=F64)
    y = x / scale[0]
    for k in range(40):
        torch.testing.assert_close(x, scale[k] * y, atol=1e-11, rtol=1e-10)
        w = torch.randn((6, 5), generator=torch.Generator().manual_seed(k), dtype=F64)
        a, b = implicit.table, exploding.table
        x = a.a[k] * x + a.b[k] * implicit.score(x, a.t[k]) + a.s[k] * w
        y = b.a[k] * y + b.b[k] * exploding.score(y, b.t[k]) + b.s[k] * w
    torch.testing.assert_close(x, y, atol=1e-10, rtol=1e-10)


def test_vp_sde_converges_to_ddpm_as_steps_grow() -> None:
    def gap(steps: int) -> float:
        t = torch.arange(1, steps + 1, dtype=F64) / steps
        betas = (BETA_MIN + t * (BETA_MAX - BETA_MIN)) / steps
        a = law(normal(1.0), library_steps(ddpm(discrete("eps", betas), betas, shape=2)))
        b = law(normal(1.0), library_steps(vp_sde(continuous(), steps=steps, end=1 / steps, shape=2)))
        return apart(a, b)

    gaps = [gap(steps) for steps in (100, 200, 400, 800)]
    assert gaps[-1] < 0.03
    for before, after in pairwise(gaps):
        assert after < 0.65 * before  # first order in the step


def test_predictor_corrector_without_corrector_is_the_predictor() -> None:
    plain = vp_sde(model, steps=30, shape=2)
    none = vp_sde(model, steps=30, shape=2, corrector_steps=0, corrector_size=0.3)
    some = vp_sde(model, steps=30, shape=2, corrector_steps=3, corrector_size=0.3)
    predictor = torch.arange(120) % 4 == 3
    for name in ("a", "b", "s", "t", "alpha", "sigma"):
        assert torch.equal(getattr(plain.table, name), getattr(none.table, name))
        assert torch.equal(getattr(plain.table, name), getattr(some.table, name)[predictor])
    assert some.table.sigma is not None
    tau = 0.3 * some.table.sigma[~predictor] ** 2
    assert torch.equal(some.table.a[~predictor], torch.ones(90, dtype=F64))
    torch.testing.assert_close(some.table.b[~predictor], tau)
    torch.testing.assert_close(some.table.s[~predictor], (2 * tau).sqrt())
    a, b = (casal.sample(t, casal.Sphere(1.0), casal.CASAL(5.0), 4, seed=1).samples for t in (plain, none))
    assert torch.equal(a, b)


def test_predictor_rows_are_euler_maruyama() -> None:
    table = vp_sde(model, steps=50, shape=2, denoise_last=False).table
    delta = (1 - 1e-3) / 50
    beta = BETA_MIN + table.t * (BETA_MAX - BETA_MIN)
    torch.testing.assert_close(table.a, 1 + beta * delta / 2)
    torch.testing.assert_close(table.b, beta * delta)
    torch.testing.assert_close(table.s**2, beta * delta)  # not 2 beta D, as the paper prints it
    assert float(table.t[-1]) == pytest.approx(1e-3 + delta)


def test_annealed_rows() -> None:
    table = annealed(model, [2.0, 0.5], steps_per_level=3, step_size=0.1, init=torch.zeros(1, 2)).table
    assert table.t.tolist() == [2.0] * 3 + [0.5] * 3
    torch.testing.assert_close(table.b, torch.tensor([0.4] * 3 + [0.025] * 3, dtype=F64))
    torch.testing.assert_close(table.s**2, 2 * table.b)
    assert table.a.tolist() == [1.0] * 6


def test_karras_sigmas_equal_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0)
    theirs.set_timesteps(18)
    np.testing.assert_allclose(karras_sigmas(18).numpy(), theirs.sigmas[:-1].numpy(), rtol=1e-5)
    assert float(theirs.sigmas[-1]) == 0.0
    assert torch.equal(edm(model, [3.0, 1.0, 0.0], shape=2).table.b, edm(model, [3.0, 1.0], shape=2).table.b)


# --- the form of the time argument -----------------------------------------------------------------------------


def makers(network: Network, time: str) -> dict[str, casal.Target]:
    start = torch.randn((4, 3), generator=torch.Generator().manual_seed(0))
    return {
        "annealed": annealed(network, [2.0, 1.0], steps_per_level=2, step_size=0.1, init=start, time=time),
        "ddpm": ddpm(network, SHORT, shape=3, time=time),
        "ddim": ddim(network, SHORT, shape=3, steps=10, time=time),
        "vp_sde": vp_sde(network, steps=10, shape=3, time=time),
        "edm": edm(network, [2.0, 1.0], shape=3, time=time),
        "flow": flow(network, steps=10, shape=3, time=time),
    }


class Recorder:
    """A network that takes t in one form only, and counts what it was given."""

    def __init__(self, form: str, wrong: str) -> None:
        self.form, self.wrong, self.shapes, self.dtypes = form, wrong, [], []  # type: ignore[var-annotated]

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(t.shape))
        self.dtypes.append(t.dtype)
        fits = t.ndim == 0 if self.form == "scalar" else tuple(t.shape) == (len(x),)
        if not fits:
            if self.wrong == "shape":
                return x[:, :1]
            raise IndexError("too many indices for tensor of dimension 0")
        at = t.to(x) if self.form == "scalar" else t.to(x)[:, None]
        return -x / (1 + at)


@pytest.mark.parametrize("form", ["scalar", "batch"])
@pytest.mark.parametrize("wrong", ["raise", "shape"])
@pytest.mark.parametrize("family", makers(model, "auto"))
def test_the_form_of_the_time_is_found_out_once(form: str, wrong: str, family: str) -> None:
    network, plain = Recorder(form, wrong), Recorder(form, wrong)
    target, told = makers(network, "auto")[family], makers(plain, form)[family]
    x = torch.randn((4, 3), generator=torch.Generator().manual_seed(2))
    for k in (0, 1, 0):
        out = target.score(x, target.table.t[k])
        assert out.dtype == torch.float32
        assert torch.equal(out, told.score(x, told.table.t[k]))
    odd = [shape for shape in network.shapes if (shape == ()) != (form == "scalar")]
    assert len(odd) == (form == "batch")
    assert set(network.dtypes) == {torch.int64 if family in ("ddpm", "ddim") else torch.float32}
    # Levels that differ between chains agree with one chain at a time, whatever the form.
    assert target.denoise is not None
    sigma = torch.tensor([0.4, 1.0, 1.0, 3.0])
    single = torch.cat([target.denoise(x[k : k + 1], sigma[k]) for k in range(4)])
    torch.testing.assert_close(target.denoise(x, sigma), single, atol=1e-6, rtol=0)


def test_the_form_may_be_found_out_by_times_that_differ() -> None:
    for form in ("scalar", "batch"):
        target = makers(Recorder(form, "raise"), "auto")["edm"]
        told = makers(Recorder(form, "raise"), form)["edm"]
        assert target.denoise is not None and told.denoise is not None
        x, sigma = torch.randn(5, 3), torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0])
        assert torch.equal(target.denoise(x, sigma), told.denoise(x, sigma))


def test_one_chain_does_not_settle_the_form() -> None:
    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, t.view(-1, 1)], dim=1)[:, :3]  # takes (n,), and by luck a number if n = 1

    target = edm(network, [2.0, 1.0], shape=3)
    for n in (1, 5, 1):
        assert target.score(torch.zeros(n, 3), torch.tensor(1.0)).shape == (n, 3)


def test_a_network_that_fails_both_ways_is_reported_with_both_reasons() -> None:
    def broken(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no luck with {t.ndim} dimensions")

    target = edm(broken, [2.0, 1.0], shape=3)
    with pytest.raises(SettingError, match=r"no luck with 0 .*no luck with 1"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="no luck with 0"):
        edm(broken, [2.0, 1.0], shape=3, time="scalar").score(torch.zeros(4, 3), torch.tensor(1.0))
    target = edm(lambda x, t: x[:, :1], [2.0, 1.0], shape=3)
    with pytest.raises(ShapeError, match=r"\(4, 1\)"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))
    target = edm(lambda x, t: (x,), [2.0, 1.0], shape=3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ShapeError, match="tuple"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))


def test_gradients_pass_through_denoise() -> None:
    for name in ("ddpm eps", "vp_sde", "edm", "flow", "annealed"):
        target = FAMILIES[name].make(1.0)
        assert target.denoise is not None
        y = some_points().requires_grad_()
        sigma = torch.tensor(float(np.sqrt(1 / ABAR[400] - 1)), dtype=F64)
        (gradient,) = torch.autograd.grad(target.denoise(y, sigma)[:, 0].sum(), y)
        gain = COVARIANCE @ np.linalg.inv(COVARIANCE + float(sigma) ** 2 * ONE)
        np.testing.assert_allclose(gradient.numpy(), np.tile(gain[0], (6, 1)), atol=1e-9)


# --- through the loop, and what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("family", makers(model, "auto"))
def test_every_family_runs_under_a_constraint(family: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.SiLU(), torch.nn.Linear(16, 3))

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return net(torch.cat([x, t.to(x)[:, None]], dim=1))

    result = casal.sample(makers(network, "auto")[family], casal.MassEnergy(0.5, 2.0), casal.CASAL(20.0), 4, seed=0)
    assert result.samples.shape == (4, 3)
    assert float(result.certificate.violation.max()) < 1e-12
    assert result.provenance["target"] == family
    assert not result.samples.requires_grad


def test_events_of_any_shape_and_dtype() -> None:
    for dtype in (torch.float32, F64):
        for target in (
            ddpm(model, SHORT, shape=(2, 3, 4), dtype=dtype),
            edm(model, [2.0, 1.0], shape=(2, 3, 4), dtype=dtype),
            flow(model, steps=5, shape=(2, 3, 4), dtype=dtype),
        ):
            result = casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 5, seed=0)
            assert result.samples.shape == (5, 2, 3, 4)
            assert result.samples.dtype == dtype


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ddpm(model, [0.1, 1.0], shape=2), SettingError, "from 0.1 to 1"),
        (lambda: ddpm(model, [0.0, 0.1], shape=2), SettingError, r"\(0, 1\)"),
        (lambda: ddpm(model, [0.1, float("nan")], shape=2), SettingError, "1 of 2 are not"),
        (lambda: ddpm(model, [[0.1]], shape=2), ShapeError, r"\(1, 1\)"),  # type: ignore[list-item]
        (lambda: ddpm(model, "linear", shape=2), SettingError, "str"),  # type: ignore[arg-type]
        (lambda: ddpm(model, SHORT, shape=2, steps=61), SettingError, "61 is more than the 60"),
        (lambda: ddpm(model, SHORT, shape=2, steps=0), SettingError, "steps"),
        (lambda: ddpm(model, SHORT, shape=2, prediction="x"), SettingError, "'x'"),
        (lambda: ddpm(model, SHORT, shape=2, variance="learned"), SettingError, "'learned'"),
        (lambda: ddpm(model, SHORT, shape=2, spacing="odd"), SettingError, "'odd'"),
        (lambda: ddpm(model, SHORT, shape=2, time="vector"), SettingError, "'vector'"),
        (lambda: ddpm(model, SHORT, shape=()), ShapeError, "whole numbers"),
        (lambda: ddpm(model, SHORT, shape=(3, 0)), ShapeError, r"\(3, 0\)"),
        (lambda: ddpm(model, SHORT, shape=2.5), ShapeError, "2.5"),  # type: ignore[arg-type]
        (lambda: ddpm(model, SHORT, shape=2, dtype=torch.int64), DtypeError, "int64"),
        (lambda: ddpm(None, SHORT, shape=2), SettingError, "NoneType"),  # type: ignore[arg-type]
        (lambda: ddim(model, SHORT, shape=2, steps=10, eta=1.5), SettingError, "1.5"),
        (lambda: ddim(model, SHORT, shape=2, steps=100), SettingError, "at most 60"),
        (lambda: vp_sde(model, steps=1, shape=2), SettingError, "steps"),
        (lambda: vp_sde(model, steps=4, shape=2), SettingError, "at least 6 steps"),
        (lambda: vp_sde(model, steps=10, shape=2, corrector_steps=-1), SettingError, "corrector_steps"),
        (lambda: vp_sde(model, steps=10, shape=2, corrector_size=0.0), SettingError, "corrector_size"),
        (lambda: vp_sde(model, steps=10, shape=2, beta_min=30.0), SettingError, "beta_min <= beta_max"),
        (lambda: vp_sde(model, steps=10, shape=2, end=1.0), SettingError, "end < 1"),
        (lambda: edm(model, [1.0, 2.0], shape=2), SettingError, r"sigmas\[0\] = 1 is followed by 2"),
        (lambda: edm(model, [1.0, -2.0], shape=2), SettingError, "-2"),
        (lambda: edm(model, [0.0], shape=2), SettingError, "> 0"),
        (lambda: edm(model, [], shape=2), ShapeError, "at least one"),
        (lambda: edm(model, [2.0, 1.0], shape=2, churn=-0.1), SettingError, "-0.1"),
        (lambda: karras_sigmas(0), SettingError, "count"),
        (lambda: karras_sigmas(5, 3.0, 2.0), SettingError, "low = 3"),
        (lambda: flow(model, steps=1, shape=2), SettingError, "steps"),
        (lambda: flow(model, steps=5, shape=2, noise=2.0), SettingError, "noise"),
        (
            lambda: annealed(model, [1.0, 1.0], steps_per_level=1, step_size=0.1, init=torch.zeros(1, 2)),
            SettingError,
            "strictly",
        ),
        (
            lambda: annealed(model, [1.0], steps_per_level=0, step_size=0.1, init=torch.zeros(1, 2)),
            SettingError,
            "steps_per_level",
        ),
        (
            lambda: annealed(model, [1.0], steps_per_level=1, step_size=-1.0, init=torch.zeros(1, 2)),
            SettingError,
            "step_size",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(make: Callable[[], Any], error: type[CasalError], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_denoise_refuses_levels_that_fit_no_chain() -> None:
    target = edm(model, [2.0, 1.0], shape=2)
    assert target.denoise is not None
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        target.denoise(torch.zeros(4, 2), torch.ones(3))
