"""Observations, decoded observations and soft terms: against closed forms of a Gaussian and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.targets import Target, slope

from .gaussian import BETAS_3, COVARIANCE_3, MEAN_3, Moments, eps_3, library_steps
from .gaussian import law as law_after

# ------------------------------------------------------------------ exact observations: the law is that of kriging

F64 = torch.float64
COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=F64)
H, SEEN = torch.tensor([[1.0, 0.0]], dtype=F64), torch.tensor([1.0], dtype=F64)
LINE = casal.Affine(H, SEEN)


def mean_of_clean(x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | alpha x0 + sigma noise = x] of the Gaussian."""
    spread = alpha**2 * COVARIANCE + sigma**2 * torch.eye(2, dtype=F64)
    return alpha * x @ torch.linalg.solve(spread, COVARIANCE)


def betas(steps: int) -> Tensor:
    """Those of the usual 1000 steps, with the same total."""
    return (torch.linspace(0.1, 20.0, steps, dtype=F64) / steps).clamp(max=0.999)


def ddpm(steps: int, maker: Callable[..., casal.Target] = casal.ddpm) -> casal.Target:
    beta = betas(steps)
    abar = (1 - beta).cumprod(0)

    def x0(x: Tensor, t: Tensor) -> Tensor:
        return mean_of_clean(x, abar[t].sqrt(), (1 - abar[t]).sqrt())

    return maker(x0, beta, shape=2, steps=steps, prediction="x0", dtype=F64)


def vp_sde(steps: int) -> casal.Target:
    def score(x: Tensor, t: Tensor) -> Tensor:
        decay = t * (0.1 + t * 19.9 / 2)
        alpha, sigma = torch.exp(-decay / 2), (-torch.expm1(-decay)).sqrt()
        return (alpha * mean_of_clean(x, alpha, sigma) - x) / sigma**2

    return casal.vp_sde(score, steps=steps, shape=2, dtype=F64)


def edm(steps: int, churn: float = 0.0) -> casal.Target:
    one = torch.ones((), dtype=F64)
    return casal.edm(
        lambda x, s: mean_of_clean(x, one, s), casal.karras_sigmas(steps, 0.002, 80.0), shape=2, churn=churn, dtype=F64
    )


def flow(steps: int) -> casal.Target:
    return casal.flow(lambda x, t: (mean_of_clean(x, t, 1 - t) - x) / (1 - t), steps=steps, shape=2, dtype=F64)


FAMILIES: dict[str, tuple[Callable[[int], casal.Target], Callable[[int], float]]] = {
    "ddpm": (ddpm, lambda steps: 1.0),
    "ddim": (lambda steps: ddpm(steps, casal.ddim), lambda steps: 1.0),
    "vp_sde": (vp_sde, lambda steps: 1.0),
    "edm": (edm, lambda steps: 80.0),
    "edm churn": (lambda steps: edm(steps, 1.0), lambda steps: 80.0),
    "flow": (flow, lambda steps: 1 - 1 / steps),
}


def gaps(name: str, steps: int, way: str = "moment") -> tuple[float, float]:
    """Errors of the mean 0.8 and the standard deviation 0.6 of x2 given x1 = 1."""
    make, start = FAMILIES[name]
    target = casal.posterior(make(steps), H, SEEN, 0.0, way=way, iterations=1)
    moments = law_after(Moments(np.zeros(2), start(steps) ** 2 * np.eye(2)), library_steps(target))
    assert moments.mean[0] == pytest.approx(1.0, abs=1e-8)
    assert moments.covariance[0, 0] < 1e-12
    return abs(moments.mean[1] - 0.8), abs(moments.covariance[1, 1] ** 0.5 - 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_law_is_that_of_kriging_as_the_steps_grow(name: str) -> None:
    (_, few), (mean, many) = (gaps(name, steps) for steps in (100, 400))
    assert mean < 0.007  # what is left is the start, which knows nothing of y: 0.48 / 80 for edm
    assert many < 0.3 * few  # first order in the step
    assert many < 0.01


def test_the_test_of_the_law_has_power() -> None:
    """Without the covariance of the model the observation is not carried over to x2 as it should."""
    mean, deviation = gaps("ddpm", 400, way="flat")
    assert max(mean, deviation) > 0.03


def test_samples_obey_the_observation_and_follow_the_conditional_law() -> None:
    target = casal.posterior(ddpm(250), H, SEEN, 0.0, iterations=1)
    result = casal.sample(target, LINE, casal.FinalProjection(), 4000, seed=0, tol=1e-14)
    assert bool(result.certificate.feasible.all())
    assert float((result.state.x[:, 0] - 1).abs().max()) < 1e-9  # the projection moves nothing but rounding
    assert float(result.samples[:, 1].mean()) == pytest.approx(0.80, abs=4 * 0.6 / 4000**0.5)
    assert float(result.samples[:, 1].std()) == pytest.approx(0.60, abs=4 * 0.6 / 8000**0.5 + 0.015)


# ------------------------------------------------------------------ the estimate at any noise level

TWO = torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]], dtype=F64)
BOTH = torch.tensor([0.7, -1.4], dtype=F64)


def denoiser(x: Tensor, s: Tensor) -> Tensor:
    gain = torch.linalg.solve(COVARIANCE_3 + s.to(F64) ** 2 * torch.eye(3, dtype=F64), COVARIANCE_3)
    return (MEAN_3 + (x.to(F64) - MEAN_3) @ gain).to(x.dtype)


def prior(dtype: torch.dtype = F64) -> casal.Target:
    return casal.edm(denoiser, casal.karras_sigmas(12, 0.01, 20.0), shape=3, dtype=dtype)


def conditional(y: Tensor, sigma: float, matrix: Tensor, values: Tensor, noise: Tensor) -> Tensor:
    """E[x0 | x0 + sigma noise = y, H x0 + noise = values] of the Gaussian, all observations stacked."""
    eye = torch.eye(3, dtype=F64)
    stacked = torch.cat([eye, matrix])
    system = stacked @ COVARIANCE_3 @ stacked.T + torch.diag(
        torch.cat([torch.full((3,), sigma**2, dtype=F64), noise**2])
    )
    right = torch.cat([y - MEAN_3, (values - matrix @ MEAN_3).expand(len(y), -1)], 1)
    return MEAN_3 + torch.linalg.lstsq(system, right.T, driver="gelsd").solution.T @ stacked @ COVARIANCE_3


def points(n: int = 6) -> Tensor:
    return torch.randn((n, 3), generator=torch.Generator().manual_seed(3), dtype=F64)


@pytest.mark.parametrize("noise", [(0.3, 0.5), (0.0, 0.0), (0.0, 0.5)], ids=str)
@pytest.mark.parametrize("sigma", [0.013, 0.5, 3.7, 61.0])
def test_denoise_is_the_conditional_mean_at_any_level(sigma: float, noise: tuple[float, float]) -> None:
    """Between, below and above the levels of the table."""
    spread = torch.tensor(noise, dtype=F64)
    given = casal.posterior(prior(), TWO, BOTH, spread, iterations=2)
    assert given.denoise is not None
    ours = given.denoise(points(), torch.tensor(sigma, dtype=F64))
    torch.testing.assert_close(ours, conditional(points(), sigma, TWO, BOTH, spread), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("way", ["moment", "pigdm", "dps", "flat"])
@pytest.mark.parametrize("noise", [0.3, 0.0])
def test_levels_may_differ_between_chains(way: str, noise: float) -> None:
    given = casal.posterior(prior(), TWO, BOTH, noise, way=way)
    assert given.denoise is not None
    sigma = torch.tensor([0.02, 0.5, 0.5, 2.0, 9.0, 40.0], dtype=F64)
    every = given.denoise(points(), sigma)
    for k in range(6):
        torch.testing.assert_close(
            every[k : k + 1], given.denoise(points()[k : k + 1], sigma[k]), atol=1e-10, rtol=1e-9
        )
    with pytest.raises(ShapeError, match=r"one per chain \(6,\)"):
        given.denoise(points(), sigma[:2])


@pytest.mark.parametrize("way", ["moment", "pigdm", "dps", "flat"])
@pytest.mark.parametrize("noise", [0.3, 0.0])
def test_score_and_denoise_are_one_formula(way: str, noise: float) -> None:
    target = casal.posterior(prior(), TWO, BOTH, noise, way=way)
    table = target.table
    assert target.denoise is not None and table.sigma is not None
    for k in (0, 5, 11):
        sigma = table.sigma[k]
        tweedie = points() + sigma**2 * target.score(points(), table.t[k])
        torch.testing.assert_close(tweedie, target.denoise(points(), sigma), atol=1e-9, rtol=1e-9)
    several = target.score(points(2), table.t[[0, 5]])
    torch.testing.assert_close(several[1:], target.score(points(2)[1:], table.t[5]), atol=1e-9, rtol=1e-9)


def test_a_model_without_denoiser_keeps_its_score() -> None:
    bare = casal.Target(prior().score, prior().table, prior().init)
    given = casal.posterior(bare, TWO, BOTH, 0.1)
    assert given.denoise is None
    whole = casal.posterior(prior(), TWO, BOTH, 0.1)
    assert torch.equal(given.score(points(), bare.table.t[4]), whole.score(points(), bare.table.t[4]))


def test_without_noise_nothing_is_left_to_denoise_but_the_observation() -> None:
    """sigma = 0: the nearest point of the exact observation, or y itself if the observation is noisy."""
    exact, noisy = (casal.posterior(prior(), TWO, BOTH, noise).denoise for noise in (0.0, 0.3))
    assert exact is not None and noisy is not None
    zero = torch.tensor(0.0)
    torch.testing.assert_close(exact(points(), zero), casal.Affine(TWO, BOTH).project(points()), atol=1e-9, rtol=0)
    torch.testing.assert_close(noisy(points(), zero), points(), atol=1e-9, rtol=0)


def test_exactness_is_the_limit_of_small_noise() -> None:
    exact = casal.posterior(prior(), TWO, BOTH, 0.0, iterations=2).score(points(), prior().table.t[5])
    last = torch.inf
    for noise in (1e-1, 1e-2, 1e-3, 1e-4):
        near = casal.posterior(prior(), TWO, BOTH, noise, iterations=2).score(points(), prior().table.t[5])
        gap = float((near - exact).abs().max())
        assert gap < 0.1 * last or gap < 1e-6
        last = gap
    assert last < 1e-6


def test_dependent_rows_do_no_harm_and_contradictions_are_refused() -> None:
    more, values = torch.cat([TWO, TWO[:1] + 3e4 * TWO[1:]]), torch.cat([BOTH, BOTH[:1] + 3e4 * BOTH[1:]])
    few, many = (casal.posterior(prior(), *given, 0.0).denoise for given in ((TWO, BOTH), (more, values)))
    assert few is not None and many is not None
    torch.testing.assert_close(few(points(), 0.7), many(points(), 0.7), atol=1e-8, rtol=0)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleSet, match=r"contradict each other: least-squares residual .*noise > 0"):
        casal.posterior(prior(), more, values + torch.tensor([0.0, 0.0, 1e5]), 0.0)
    with pytest.raises(ShapeError, match="H has 2 columns"):
        casal.posterior(prior(), [[1.0, 1.0]], [1.0], 0.0).score(points(), prior().table.t[0])


def test_a_denoiser_without_derivative_is_refused() -> None:
    frozen = casal.edm(torch.no_grad()(denoiser), [2.0, 1.0], shape=3, dtype=F64)
    deep, flat = (casal.posterior(frozen, TWO, BOTH, 0.1, way=way).denoise for way in ("moment", "flat"))
    assert deep is not None and flat is not None
    with pytest.raises(SettingError, match=r"autograd cannot differentiate through edm; .*way='flat'"):
        deep(points(), torch.tensor(1.0))
    assert flat(points(), torch.tensor(1.0)).shape == (6, 3)


def test_float32_chains_stay_float32_and_obey() -> None:
    target = casal.posterior(prior(torch.float32), TWO, BOTH, 0.0)
    result = casal.sample(target, casal.Affine(TWO, BOTH), casal.FinalProjection(), 20, seed=0)
    assert result.state.x.dtype == torch.float32
    assert float((result.state.x.double() @ TWO.T - BOTH).abs().max()) < 1e-4
    assert float(result.certificate.violation.max()) < 1e-14


@pytest.mark.parametrize("way", ["moment", "flat"])
def test_chains_may_have_observations_of_their_own(way: str) -> None:
    """Row i of the values belongs to chain i, also where only some chains are asked for."""
    values = torch.tensor([[0.7, -1.4], [0.0, 0.3], [2.0, 1.0], [-0.5, 0.1]], dtype=F64)
    together, x = casal.posterior(prior(), TWO, values, 0.2, way=way), points(4)
    some, t = torch.tensor([3, 1]), together.table.t[4]
    part = together.take(some)
    for i, target in enumerate([casal.posterior(prior(), TWO, y, 0.2, way=way) for y in values]):
        one = x[i : i + 1]
        torch.testing.assert_close(together.score(x, t, **together.condition)[i : i + 1], target.score(one, t))
        assert target.denoise is not None and together.denoise is not None
        clean = together.denoise(x, torch.tensor(0.5), **together.condition)
        torch.testing.assert_close(clean[i : i + 1], target.denoise(one, torch.tensor(0.5)))
    torch.testing.assert_close(
        part.score(x[some], t, **part.condition), together.score(x, t, **together.condition)[some]
    )
    assert together.chains == 4 and part.chains == 2


def test_a_run_cuts_observations_with_its_chains() -> None:
    """Whatever the batch, chain i obeys row i, also where the first step of a flow asks for the condition."""
    level = torch.linspace(-1.0, 1.0, 10, dtype=F64)[:, None]
    for model in (prior(), casal.flow(lambda x, t: -x, steps=8, shape=3, dtype=F64)):
        given = casal.posterior(model, TWO[:1], level, 0.0)
        samples = [
            casal.sample(given, casal.Ball(99.0), casal.Unconstrained(), 10, run=casal.Run(batch=batch)).samples
            for batch in (3, 10)
        ]
        for found in samples:
            torch.testing.assert_close(found @ TWO[:1].T, level, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ observations with noise

NOISE = torch.tensor([0.3, 0.5], dtype=F64)


def chain() -> casal.Target:
    return casal.ddpm(eps_3, BETAS_3, shape=(3,), dtype=F64)


def clean_mean(target: casal.Target, x: Tensor, row: int) -> Tensor:
    table = target.table
    assert table.alpha is not None and table.sigma is not None
    return (x + table.sigma[row] ** 2 * target.score(x, table.t[row])) / table.alpha[row]


@pytest.mark.parametrize("row", [0, 60, 150, 198])
def test_moment_matching_is_exact_for_a_gaussian(row: int) -> None:
    x = torch.randn((5, 3), generator=torch.Generator().manual_seed(row), dtype=F64)
    target = chain()
    alpha, sigma = target.table.alpha[row], target.table.sigma[row]  # type: ignore[index]
    eye = torch.eye(3, dtype=F64)
    precision = torch.linalg.inv(COVARIANCE_3) + (alpha / sigma) ** 2 * eye + TWO.T @ torch.diag(NOISE**-2) @ TWO
    pull = torch.linalg.solve(COVARIANCE_3, MEAN_3) + (alpha / sigma**2) * x + (TWO.T @ (BOTH / NOISE**2))
    expected = torch.linalg.solve(precision, pull.T).T
    ours = clean_mean(casal.posterior(target, TWO, BOTH, NOISE, iterations=2), x, row)
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)
    # The other ways are approximations: the comparison can tell.
    for way in ("pigdm", "flat", "dps"):
        other = clean_mean(casal.posterior(target, TWO, BOTH, NOISE, way=way), x, row)
        assert bool(torch.isfinite(other).all())
        if row == 60:
            assert float((other - expected).abs().max()) > 1e-3


def test_samples_follow_the_posterior() -> None:
    target = casal.posterior(chain(), TWO, BOTH, NOISE, iterations=2)
    free = casal.FromProjection(lambda z: z, lambda z: z.new_zeros(len(z)))
    samples = casal.sample(target, free, casal.Unconstrained(), 4000, seed=0).samples
    precision = torch.linalg.inv(COVARIANCE_3) + TWO.T @ torch.diag(NOISE**-2) @ TWO
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (torch.linalg.solve(COVARIANCE_3, MEAN_3) + TWO.T @ (BOTH / NOISE**2))
    error = covariance.diagonal().sqrt() / 4000**0.5
    assert bool(((samples.mean(0) - mean).abs() < 4 * error + 0.02).all())
    assert bool(((samples.var(0) / covariance.diagonal() - 1).abs() < 0.15).all())


def test_a_fixed_density_and_negative_noise_are_refused_with_the_way_out() -> None:
    static = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=torch.zeros(2, 3))
    with pytest.raises(SettingError, match="add the gradient of the likelihood"):
        casal.posterior(static, TWO, BOTH, NOISE)
    with pytest.raises(SettingError, match=r">= 0 \(0 for exact observations\), got -0\.5"):
        casal.posterior(chain(), TWO, BOTH, -0.5)


@pytest.mark.parametrize("way", ["moment", "pigdm", "dps", "flat"])
def test_a_posterior_can_be_differentiated(way: str) -> None:
    """By finite differences, on a network that is not linear: ``DPS`` on a posterior goes through it."""
    weights = torch.randn((3, 3), generator=torch.Generator().manual_seed(0), dtype=F64)
    target = casal.ddpm(lambda x, t: torch.tanh(x @ weights), BETAS_3, shape=(3,), dtype=F64)
    given = casal.posterior(target, TWO, BOTH, NOISE, way=way, iterations=2)
    x = torch.randn((2, 3), generator=torch.Generator().manual_seed(1), dtype=F64)
    t = given.table.t[120]
    assert torch.autograd.gradcheck(lambda leaf: given.score(leaf, t), (x.clone().requires_grad_(),))
    assert not given.score(x, t).requires_grad


# ------------------------------------------------------------------ a known covariance as a preconditioner


def stiff_case() -> tuple[casal.Target, Tensor, Tensor, Tensor]:
    """A Gaussian in 12 dimensions with variances over six decades, its covariance, nine rows and their values."""
    generator = torch.Generator().manual_seed(3)
    axes = torch.linalg.qr(torch.randn((12, 12), generator=generator, dtype=F64)).Q
    variances = torch.logspace(2, -4, 12, dtype=F64)
    rows = torch.randn((9, 12), generator=generator, dtype=F64)
    values = torch.randn((5, 9), generator=generator, dtype=F64)

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return ((x @ axes.to(x)) * (variances / (variances + sigma.square())).to(x)) @ axes.T.to(x)

    prior = casal.edm(denoiser, [10.0, 1.0], shape=12, dtype=F64)
    return prior, (axes * variances) @ axes.T, rows, values


@pytest.mark.parametrize("sigma", [0.01, 1.0, 30.0])
def test_one_iteration_is_exact_with_the_covariance_of_the_data(sigma: float) -> None:
    prior, covariance, rows, values = stiff_case()
    noise = torch.tensor([0.0] + [0.1] * 8, dtype=F64)
    x = torch.randn((5, 12), generator=torch.Generator().manual_seed(4), dtype=F64)
    gain = covariance @ torch.linalg.inv(covariance + sigma**2 * torch.eye(12, dtype=F64))
    mean, V = x @ gain.T, sigma**2 * gain
    K = V @ rows.T @ torch.linalg.inv(rows @ V @ rows.T + torch.diag(noise.square()))
    exact = mean + (values - mean @ rows.T) @ K.T
    for way in ("moment", "gaussian"):
        given = casal.posterior(prior, rows, values, noise, way=way, iterations=1, covariance=covariance)
        assert given.denoise is not None
        assert torch.allclose(given.denoise(x, torch.tensor(sigma)), exact, rtol=1e-6, atol=1e-8)
    plain = casal.posterior(prior, rows, values, noise, iterations=1)
    assert plain.denoise is not None
    assert not torch.allclose(plain.denoise(x, torch.tensor(sigma)), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["moment", "gaussian"])
def test_the_covariance_serves_float32_chains_and_a_level_for_each(way: str) -> None:
    prior, covariance, rows, values = stiff_case()
    given = casal.posterior(prior, rows, values, 0.1, way=way, iterations=2, covariance=covariance)
    assert given.denoise is not None
    x = torch.randn((5, 12), generator=torch.Generator().manual_seed(5), dtype=F64)
    levels = torch.tensor([0.5, 1, 2, 4, 8])
    single = given.denoise(x.float(), levels.float())
    assert single.dtype == torch.float32
    one_by_one = [
        casal.posterior(prior, rows, values[k], 0.1, iterations=2, covariance=covariance).denoise for k in range(5)
    ]
    for k, denoise in enumerate(one_by_one):
        assert denoise is not None
        assert torch.allclose(single[k].double(), denoise(x[k : k + 1], levels[k].double())[0], rtol=1e-3, atol=1e-3)


def test_a_covariance_of_another_size_is_refused() -> None:
    prior, _, rows, values = stiff_case()
    with pytest.raises(ShapeError, match="covariance"):
        casal.posterior(prior, rows, values, 0.1, covariance=torch.eye(3))
    with pytest.raises(SettingError, match="needs covariance="):
        casal.posterior(prior, rows, values, 0.1, way="gaussian")


# --------------------------------------------------------------------------- decoded observations


DECODER = torch.tensor(
    [[1.0, 0.2, 0.0], [0.3, -1.0, 0.5], [0.0, 0.4, 0.9], [0.7, 0.0, -0.3], [0.1, 0.6, 0.2]], dtype=F64
)
LINEAR = casal.Linear(DECODER)
ROWS = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.5, 0.0, 1.0, 0.0]], dtype=F64)
CODE = torch.tensor([[0.4, -0.8, 0.3]], dtype=F64)
VALUES = (CODE @ DECODER.T @ ROWS.T)[0]
ROWS_MET = casal.Affine(ROWS, VALUES)


def encoded(z: Tensor) -> Tensor:
    return LINEAR.pinv(z, (3,))


def curved(x: Tensor) -> Tensor:
    return torch.tanh(x @ DECODER.T)


def learned(z: Tensor) -> Tensor:
    """Some encoder that inverts nothing exactly."""
    return torch.sin(z) @ DECODER


def bent(x: Tensor, s: Tensor) -> Tensor:
    """Some denoiser."""
    return torch.tanh(x / (1 + s**2)) + 0.1 * x / (1 + s**2)


def latent_prior(steps: int = 30) -> casal.Target:
    return casal.edm(bent, casal.karras_sigmas(steps, 0.02, 10.0), shape=3, churn=1.0, dtype=F64)


def latents(n: int = 4) -> Tensor:
    return torch.randn((n, 3), generator=torch.Generator().manual_seed(1), dtype=F64)


@pytest.mark.parametrize("pair", [(LINEAR, encoded), (curved, learned)], ids=["linear", "curved"])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (3.0, 0.4)], ids=str)
def test_the_score_is_the_gradient_of_what_is_printed(
    pair: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], weights: tuple[float, float]
) -> None:
    decode, encode = pair
    weight, gluing = weights
    target, sigma = latent_prior(), float(latent_prior().table.t[12])
    inverse = ROWS.T @ torch.linalg.inv(ROWS @ ROWS.T)

    def cost(x: Tensor) -> Tensor:
        clean = bent(x, torch.tensor(sigma, dtype=F64))
        z = decode(clean)
        gap = VALUES - z @ ROWS.T
        return weight * gap.norm(dim=1) + gluing * (clean - encode(z + gap @ inverse.T)).norm(dim=1)

    given = casal.latent_posterior(target, decode, encode, ROWS, VALUES, weight=weight, gluing=gluing)
    slope = target.score(latents(), target.table.t[12]) - given.score(latents(), target.table.t[12])
    for k in range(3):
        step = 1e-6 * torch.eye(3, dtype=F64)[k]
        numeric = (cost(latents() + step) - cost(latents() - step)) / 2e-6
        torch.testing.assert_close(slope[:, k], numeric, atol=1e-7, rtol=1e-6)
    assert given.denoise is not None
    tweedie = latents() + sigma**2 * given.score(latents(), target.table.t[12])
    torch.testing.assert_close(tweedie, given.denoise(latents(), torch.tensor(sigma, dtype=F64)), atol=1e-9, rtol=1e-9)


def test_without_gluing_and_decoder_it_is_dps() -> None:
    matrix, values = ROWS[:, :3], VALUES
    latent = casal.latent_posterior(latent_prior(), lambda x: x, lambda z: z, matrix, values, weight=2.0, gluing=0.0)
    plain = casal.posterior(latent_prior(), matrix, values, 1.0, way="dps", weight=2.0)
    for t in latent_prior().table.t[::7]:
        torch.testing.assert_close(latent.score(latents(), t), plain.score(latents(), t), atol=1e-9, rtol=1e-9)


def test_the_weight_of_dps_may_depend_on_the_noise_level() -> None:
    """w / s at level s is the number w / s there; latent_prior() is an EDM, whose times are its levels."""
    matrix, values = ROWS[:, :3], VALUES
    falling = casal.posterior(latent_prior(), matrix, values, 1.0, way="dps", weight=lambda s: 2.0 / s)
    assert falling.denoise is not None
    for t in latent_prior().table.t[::7]:
        number = casal.posterior(latent_prior(), matrix, values, 1.0, way="dps", weight=2.0 / float(t))
        torch.testing.assert_close(falling.score(latents(), t), number.score(latents(), t), atol=1e-9, rtol=1e-9)
    several = torch.linspace(0.5, 2.0, len(latents()), dtype=F64)  # one level a chain
    one_by_one = [falling.denoise(latents()[k : k + 1], several[k]) for k in range(len(several))]
    torch.testing.assert_close(falling.denoise(latents(), several), torch.cat(one_by_one))


def test_a_code_that_fits_is_left_alone() -> None:
    """D = the code itself: the observation holds, and it is a fixed point of encode and decode."""
    known = casal.edm(lambda x, s: CODE + 0 * x, [2.0, 1.0], shape=3, dtype=F64)
    given = casal.latent_posterior(known, LINEAR, encoded, ROWS, VALUES, weight=1.0, gluing=1.0)
    torch.testing.assert_close(given.score(latents(), known.table.t[0]), known.score(latents(), known.table.t[0]))


def test_samples_come_nearer_to_the_observation_and_stay_codes() -> None:
    free = casal.sample(latent_prior(), ROWS_MET, casal.Unconstrained(), 200, seed=0, decoder=LINEAR)
    given = casal.latent_posterior(latent_prior(), LINEAR, encoded, ROWS, VALUES, weight=5.0, gluing=1.0)
    guided = casal.sample(given, ROWS_MET, casal.Unconstrained(), 200, seed=0, decoder=LINEAR)
    misfit = [float((r.samples @ ROWS.T - VALUES).norm(dim=1).mean()) for r in (free, guided)]
    assert misfit[1] < 0.3 * misfit[0]
    strict = casal.sample(given, ROWS_MET, casal.FinalProjection(), 200, seed=0, decoder=LINEAR, tol=1e-12)
    assert bool(strict.certificate.feasible.all())

    def apart(z: Tensor) -> float:
        """How far the strict samples are from being decoded codes."""
        return float((z - LINEAR(encoded(z))).norm(dim=1).mean())

    loose = casal.sample(latent_prior(), ROWS_MET, casal.FinalProjection(), 200, seed=0, decoder=LINEAR)
    assert apart(strict.samples) < 0.3 * apart(loose.samples)


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match=r"gluing must be finite and >= 0, got -1"):
        casal.latent_posterior(latent_prior(), LINEAR, encoded, ROWS, VALUES, gluing=-1.0)
    with pytest.raises(ShapeError, match=r"encode returned \(4, 5\) for latents \(4, 3\)"):
        casal.latent_posterior(latent_prior(), LINEAR, lambda z: z, ROWS, VALUES).score(
            latents(), latent_prior().table.t[0]
        )
    with pytest.raises(ShapeError, match=r"H has 5 columns, events \(3,\) have 3"):
        casal.latent_posterior(latent_prior(), lambda x: x, encoded, ROWS, VALUES).score(
            latents(), latent_prior().table.t[0]
        )
    static = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=torch.zeros(2, 3))
    with pytest.raises(SettingError, match="no noise levels"):
        casal.latent_posterior(static, LINEAR, encoded, ROWS, VALUES)


# ------------------------------------------------------------------------------------- soft terms


TIME = torch.tensor(0.0, dtype=torch.float64)
CENTRE = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
SPREAD = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


def potential(x: Tensor) -> Tensor:
    return ((x - CENTRE.to(x)) / SPREAD.to(x)).square().sum(1) / 2


def quadratic(x: Tensor) -> Tensor:
    return 3.0 * x[:, 0] - x.square().sum(1)


def fixed(**options: Any) -> Target:
    settings: dict[str, Any] = {"steps": 20, "step_size": 0.05, "init": torch.zeros(8, 3, dtype=torch.float64)}
    return casal.energy(potential, **settings | options)


def noisy() -> Target:
    return casal.edm(lambda x, s: x / (1 + s**2), [20.0, 1.0, 0.1], shape=(3,), churn=1.0, dtype=torch.float64)


def clean_points(n: int = 5) -> Tensor:
    return torch.randn((n, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ------------------------------------------------------------------------------------------- fixed densities


def test_a_fixed_density_has_the_term_in_score_and_potential() -> None:
    """N(m, s^2) exp(3 x_1 - |x|^2) is Gaussian, of precision 1/s^2 + 2 and known mean."""
    target, x = casal.tilted(fixed(), quadratic), clean_points()
    precision = SPREAD**-2 + 2.0
    mean = (CENTRE / SPREAD**2 + torch.tensor([3.0, 0.0, 0.0])) / precision
    torch.testing.assert_close(target.score(x, TIME), -precision * (x - mean), rtol=1e-13, atol=1e-13)
    assert target.potential is not None and target.log_weight is None
    found = target.potential(x) - (precision * (x - mean).square()).sum(1) / 2
    assert float((found - found[0]).abs().max()) < 1e-12  # the same up to a constant


def test_a_gradient_alone_will_do() -> None:
    prior = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=clean_points())
    target = casal.tilted(prior, lambda x: x.sin().sum(1))
    torch.testing.assert_close(target.score(clean_points(), TIME), clean_points().cos() - clean_points())
    assert target.potential is None


def test_open_settings_stay_open_and_every_method_works() -> None:
    prior = fixed(step_size="auto", preconditioner="auto", init=torch.randn((64, 3), dtype=torch.float64))
    target = casal.tilted(prior, quadratic, name="mine")
    assert target.tune == prior.tune and target.tune is not None and target.name == "mine"
    for method in (casal.CASAL(10.0), casal.WeightedCASAL(30.0)):
        result = casal.sample(target, casal.Sphere(1.0), method, 64)
        assert bool(result.certificate.feasible.all())


def test_float32_stays_float32() -> None:
    target = casal.tilted(fixed(init=torch.zeros(8, 3)), quadratic)
    assert target.score(clean_points().float(), TIME).dtype == torch.float32


def test_a_tilted_score_can_be_differentiated() -> None:
    prior = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=clean_points())
    target, x = casal.tilted(prior, quadratic), clean_points().requires_grad_()
    (found,) = torch.autograd.grad(target.score(x, TIME).sum(), x)
    torch.testing.assert_close(found, torch.full_like(found, -3.0))


def test_terms_of_a_fixed_density_add() -> None:
    once = casal.tilted(fixed(), lambda x: quadratic(x) + x.sin().sum(1))
    twice = casal.tilted(casal.tilted(fixed(), quadratic), lambda x: x.sin().sum(1))
    torch.testing.assert_close(once.score(clean_points(), TIME), twice.score(clean_points(), TIME))


# ------------------------------------------------------------------------------------------- models under noise


def test_a_model_under_noise_hands_the_term_on() -> None:
    prior = noisy()
    target = casal.tilted(prior, quadratic)
    assert target.log_weight is quadratic and target.name == "tilted edm"
    assert target.score is prior.score and target.denoise is prior.denoise


def test_terms_of_a_model_under_noise_add() -> None:
    target = casal.tilted(casal.tilted(noisy(), quadratic), lambda x: x.sin().sum(1))
    assert target.log_weight is not None
    torch.testing.assert_close(
        target.log_weight(clean_points()), quadratic(clean_points()) + clean_points().sin().sum(1)
    )


def test_observations_keep_the_term() -> None:
    target = casal.tilted(noisy(), quadratic)
    H, y = torch.eye(3, dtype=torch.float64)[:1], torch.ones(1, dtype=torch.float64)
    assert casal.posterior(target, H, y, 0.1).log_weight is quadratic
    assert casal.latent_posterior(target, lambda x: x, lambda z: z, H, y).log_weight is quadratic
    assert casal.tilted(casal.posterior(noisy(), H, y, 0.1), quadratic).log_weight is quadratic


def test_the_term_is_tried_at_a_clean_sample_and_not_at_noise() -> None:
    """At the first noise level a point is 20 away from zero, and the square root has no value there."""
    target = casal.tilted(noisy(), lambda x: (4.0 - x.square().sum(1)).sqrt())
    assert target.log_weight is not None


def test_slope_is_the_gradient() -> None:
    torch.testing.assert_close(
        slope(quadratic, clean_points()), torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64) - 2 * clean_points()
    )


# ------------------------------------------------------------------------------------------- what is refused


class Once(torch.autograd.Function):
    """A sum of squares that can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g[:, None] * ctx.saved_tensors[0]


def once(x: Tensor) -> Tensor:
    found: Tensor = Once.apply(x)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("make", [fixed, noisy])
@pytest.mark.parametrize(
    ("term", "kind", "message"),
    [
        (3.0, SettingError, "must be a function"),
        (lambda x: x, ShapeError, r"returned \(1, 3\) .* sum over all other dimensions"),
        (lambda x: x.sum(), ShapeError, r"one number per row \(1,\)"),
        (lambda x: 1.0, ShapeError, "returned float"),
        (lambda x: x.detach().sum(1), SettingError, "cannot differentiate through log_weight; .* without no_grad"),
        (lambda x: (x.sum(1) * 0.0).log(), SettingError, "log_weight is not finite"),
        (lambda x: (0.0 * x).norm(dim=1).sqrt(), SettingError, "gradient of log_weight is not finite"),
    ],
)
def test_terms_that_cannot_work_are_refused_with_the_way_out(make: Any, term: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        casal.tilted(make(), term)


def test_one_derivative_is_enough() -> None:
    assert casal.tilted(noisy(), once).log_weight is not None
    found = casal.tilted(fixed(), once).score(clean_points(), TIME)
    torch.testing.assert_close(found, fixed().score(clean_points(), TIME) + 2 * clean_points())


def test_methods_that_do_not_see_the_term_are_refused() -> None:
    target, constraint = casal.tilted(noisy(), quadratic), casal.Affine([[1.0, 1.0, 1.0]], [0.5])
    for method in (casal.FinalProjection(), casal.SplitGibbs(0.2), casal.CASAL(10.0)):
        with pytest.raises(SettingError, match=f"{method.name} ignores the soft term .* use casal.Matheron"):
            casal.sample(target, constraint, method, 8)


def test_auto_takes_the_method_that_does() -> None:
    target = casal.tilted(noisy(), quadratic)
    result = casal.sample(target, casal.Affine([[1.0, 1.0, 1.0]], [0.5]), "auto", 16)
    assert bool(result.certificate.feasible.all())
    assert result.provenance["method"] == "Matheron" and "soft term" in result.provenance["choice"]
