"""azula's denoisers as targets and our targets as azula's denoisers, on a Gaussian whose answers are known."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal.integrations.azula import as_azula
from casal.sampling.prepare import cut
from casal.streams import stream

denoise = pytest.importorskip("azula.denoise")
noise = pytest.importorskip("azula.noise")
samplers = pytest.importorskip("azula.sample")
covariance = pytest.importorskip("azula.linalg.covariance")

MEAN = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
VARIANCE = torch.tensor([0.5, 0.2, 1.5], dtype=torch.float64)
SCHEDULES = {
    "ve": noise.VESchedule(sigma_min=1e-2, sigma_max=20.0),
    "vp": noise.VPSchedule(alpha_min=1e-2, sigma_min=1e-2),
    "cosine": noise.CosineSchedule(alpha_min=1e-2, sigma_min=1e-2),
    "rectified": noise.RectifiedSchedule(alpha_min=1e-2, sigma_min=1e-2),
}
LINE = casal.Affine([[1.0, 1.0, 1.0]], [0.5])


def gaussian(schedule: str) -> Any:
    return denoise.GaussianDenoiser(MEAN, covariance.DiagonalCovariance(VARIANCE), SCHEDULES[schedule])


def exact(y: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | x0 + sigma noise = y]."""
    power = (sigma if sigma.ndim == 0 else sigma[:, None]).to(y) ** 2
    return MEAN.to(y) + VARIANCE.to(y) / (VARIANCE.to(y) + power) * (y - MEAN.to(y))


def start(n: int = 32, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SCHEDULES)
def test_score_and_denoiser_of_a_gaussian(name: str) -> None:
    target = casal.from_azula(gaussian(name), steps=10, shape=3, dtype=torch.float64)
    x = start()
    for t in (0.05, 0.5, 1.0):
        alpha, sigma = SCHEDULES[name](torch.tensor(t, dtype=torch.float64))
        found = target.score(x, torch.tensor(t, dtype=torch.float64))
        torch.testing.assert_close(found, (alpha * MEAN - x) / (alpha**2 * VARIANCE + sigma**2))
        assert target.denoise is not None
        torch.testing.assert_close(target.denoise(x, sigma / alpha), exact(x, sigma / alpha))
    several = torch.tensor([0.3, 1.0], dtype=torch.float64).repeat(16)
    assert target.denoise is not None
    torch.testing.assert_close(target.denoise(x, several), exact(x, several))


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_unconstrained_run_is_that_of_azula(name: str) -> None:
    alpha, sigma = SCHEDULES[name](torch.tensor(1.0, dtype=torch.float64))
    x = start(scale=float((alpha**2 + sigma**2).sqrt()))
    target = casal.from_azula(gaussian(name), steps=12, shape=3, init=x)
    ours = casal.sample(target, LINE, casal.Unconstrained(), len(x)).samples
    sampler = samplers.DDIMSampler(gaussian(name), steps=12, silent=True, dtype=torch.float64)
    torch.testing.assert_close(ours, sampler(x), rtol=0, atol=1e-10)


class Backbone(torch.nn.Module):
    """A small network of x and t."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.layer(torch.cat([x, t.reshape(-1, 1).expand(len(x), 1)], 1)))
        return out


@pytest.mark.parametrize("kind", ["SimpleDenoiser", "KarrasDenoiser"])
def test_a_network_in_single_precision_runs_as_in_azula(kind: str) -> None:
    denoiser = getattr(denoise, kind)(Backbone(), SCHEDULES["rectified"])
    x = start().float()
    ours = casal.sample(
        casal.from_azula(denoiser, steps=16, shape=3, init=x), LINE, casal.Unconstrained(), len(x)
    ).samples
    theirs = samplers.DDIMSampler(denoiser, steps=16, silent=True)(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_ancestral_noise_has_azulas_size() -> None:
    for eta in (0.3, 1.0):
        table = casal.from_azula(gaussian("vp"), steps=5, shape=3, eta=eta).table
        alpha, sigma = SCHEDULES["vp"](torch.linspace(1.0, 0.0, 6, dtype=torch.float64))
        tau = 1 - (alpha[:-1] / alpha[1:] * sigma[1:] / sigma[:-1]) ** 2
        torch.testing.assert_close(table.s, sigma[1:] * (eta * tau).sqrt())


def test_the_distribution_on_a_set() -> None:
    target = casal.from_azula(gaussian("vp"), steps=25, shape=3, eta=1.0, dtype=torch.float64)
    result = casal.sample(target, LINE, casal.SplitGibbs(0.03, levels=15), 300)
    gain = VARIANCE / VARIANCE.sum()
    mean, variance = MEAN + gain * (0.5 - MEAN.sum()), VARIANCE * (1 - gain)
    error = (variance / len(result.ancestors.unique())).sqrt()
    assert bool(((result.samples.mean(0) - mean).abs() < 5 * error).all())
    assert bool(((MEAN - mean).abs() > 8 * error).any())  # without the constraint it would show
    assert bool(((result.samples.var(0) / variance - 1).abs() < 0.5).all())


class Labelled(denoise.Denoiser):  # type: ignore[misc]
    """A mean for every label."""

    def __init__(self, schedule: Any) -> None:
        super().__init__()
        self.schedule = schedule

    def forward(self, x_t: Tensor, t: Tensor, label: Tensor) -> Any:
        alpha, sigma = self.schedule(t)
        centre = label[:, None].to(x_t)
        return denoise.DiracPosterior(mean=centre + alpha / (alpha**2 + sigma**2) * (x_t - alpha * centre))


def test_conditions_go_both_ways() -> None:
    label = torch.arange(20) % 3
    target = casal.from_azula(
        Labelled(SCHEDULES["vp"]), steps=20, shape=3, dtype=torch.float64, condition={"label": label}
    )
    found = casal.sample(target, casal.Ball(99.0), casal.Unconstrained(), 20, run=casal.Run(batch=7))
    noisy = torch.cat([target.draw(len(batch), stream(0, "start", batch.index)) for batch in cut(20, 7)])
    back = as_azula(target)
    sampler = samplers.DDIMSampler(back, steps=19, silent=True, dtype=torch.float64)
    by_azula = sampler(noisy)
    others = sampler(noisy, label=label.roll(1))
    assert not torch.allclose(others, by_azula, atol=0.1)
    reached = samplers.DDIMSampler(Labelled(SCHEDULES["vp"]), steps=20, silent=True, dtype=torch.float64)(
        noisy, label=label
    )
    torch.testing.assert_close(found.samples, reached)
    with pytest.raises(ShapeError, match="label has 20 rows for 7 points"):
        sampler(noisy[:7])


SIGMAS = casal.karras_sigmas(33, 0.02, 10.0)


def ours(**options: Any) -> casal.Target:
    return casal.edm(exact, SIGMAS, shape=3, dtype=torch.float64, **options)


def test_our_target_run_by_azula_is_our_run() -> None:
    x = start(scale=10.0)
    target = casal.edm(exact, SIGMAS, shape=3)
    here = casal.sample(
        casal.Target(target.score, target.table, x, denoise=target.denoise), LINE, casal.Unconstrained(), len(x)
    )
    denoiser = as_azula(target)
    sampler = samplers.DDIMSampler(denoiser, steps=len(SIGMAS) - 1, silent=True, dtype=torch.float64)
    torch.testing.assert_close(denoiser.finish(sampler(x)), here.samples, rtol=0, atol=1e-9)


def test_solvers_of_azula_reach_the_gaussian() -> None:
    """The probability-flow ODE maps x to mean + sqrt(V / (V + sigma^2)) (x - mean)."""
    x, denoiser = start(scale=10.0), as_azula(ours())
    wanted = MEAN + (VARIANCE / (VARIANCE + SIGMAS[0] ** 2)).sqrt() * (x - MEAN)
    for kind, within in ((samplers.HeunSampler, 0.01), (samplers.EulerSampler, 0.08), (samplers.zABSampler, 0.03)):
        found = denoiser.finish(kind(denoiser, steps=96, silent=True, dtype=torch.float64)(x))
        assert float((found - wanted).abs().max()) < within


SOLVERS = ["DDPMSampler", "DDIMSampler", "EulerSampler", "HeunSampler", "ItoSampler", "zABSampler", "xEABSampler"]


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_solver_ends_in_the_set(name: str, dtype: torch.dtype) -> None:
    constraint = casal.Affine([[1.0, 1.0, 1.0]], [0.5]) & casal.Box(-2.0, 2.0)
    denoiser = as_azula(ours(), constraint)
    sampler = getattr(samplers, name)(denoiser, steps=8, silent=True)
    z = denoiser.finish(sampler(start(16, 10.0).to(dtype)))
    assert z.dtype == torch.float64
    assert float(constraint.violation(z).max()) < 1e-8
    assert float(z.std(0).min()) > 0.01  # they are not all one point


def test_what_azula_cannot_run_is_refused() -> None:
    static = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.zeros(2, 3))
    with pytest.raises(SettingError, match="no noise levels"):
        as_azula(static)
    with pytest.raises(SettingError, match="soft term"):
        as_azula(casal.tilted(ours(), lambda x: -x.square().sum(1)))
    with pytest.raises(SettingError, match="two noise levels"):
        as_azula(casal.edm(exact, [1.0], shape=3))
    with pytest.raises(SettingError, match="has a schedule"):
        casal.from_azula(lambda x, t: x, steps=5, shape=3)
    with pytest.raises(SettingError, match="must fall"):
        casal.from_azula(gaussian("vp"), steps=5, shape=3, start=0.0, stop=1.0)


def test_a_target_from_azula_pickles() -> None:
    target = casal.from_azula(gaussian("vp"), steps=5, shape=3, init=start(4))
    again = pickle.loads(pickle.dumps(target))
    x, t = start(4), torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(again.score(x, t), target.score(x, t))
