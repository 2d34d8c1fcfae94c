"""Models of noise levels: rows against the schedulers of diffusers, by hand, and against each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.errors import SettingError
from casal.targets import annealed, ddim, ddpm, edm, karras_sigmas, vp_sde

from .gaussian import (
    ABAR,
    BETA_MAX,
    BETA_MIN,
    BETAS,
    F64,
    apart,
    bayes,
    continuous,
    discrete,
    law,
    library_steps,
    model,
    normal,
    some_points,
)

NAMES = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}


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


@pytest.mark.slow
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


def test_ddim_with_all_its_noise_is_ddpm() -> None:
    a = ddim(model, BETAS, shape=2, steps=77, eta=1.0).table
    b = ddpm(model, BETAS, shape=2, steps=77).table
    for name in ("a", "b", "s", "t", "alpha", "sigma"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=1e-12, rtol=1e-10)


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


SHORT_BETAS = torch.linspace(1e-3, 0.2, 40, dtype=F64)


def test_times_of_discrete_levels() -> None:
    target = casal.ddim(lambda x, t: x, SHORT_BETAS, shape=2, times=[39, 20, 3])
    same = casal.ddim(lambda x, t: x, SHORT_BETAS, shape=2, times=torch.tensor([39.0, 20.0, 3.0]), steps=3)
    assert target.table.t.tolist() == [39.0, 20.0, 3.0] and torch.equal(target.table.b, same.table.b)
    with pytest.raises(SettingError, match="decrease strictly"):
        casal.ddpm(lambda x, t: x, SHORT_BETAS, shape=2, times=[3, 20])
    with pytest.raises(SettingError, match="from 39"):
        casal.ddpm(lambda x, t: x, SHORT_BETAS, shape=2, times=[40, 3])
    with pytest.raises(SettingError, match="'eps', 'epsilon', 'x0', 'sample', 'v', 'v_prediction', 'flow'"):
        casal.ddpm(lambda x, t: x, SHORT_BETAS, shape=2, prediction="noise")


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


def test_karras_sigmas_equal_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0)
    theirs.set_timesteps(18)
    np.testing.assert_allclose(karras_sigmas(18).numpy(), theirs.sigmas[:-1].numpy(), rtol=1e-5)
    assert float(theirs.sigmas[-1]) == 0.0
    assert torch.equal(edm(model, [3.0, 1.0, 0.0], shape=2).table.b, edm(model, [3.0, 1.0], shape=2).table.b)


def test_annealed_rows() -> None:
    table = annealed(model, [2.0, 0.5], steps_per_level=3, step_size=0.1, init=torch.zeros(1, 2)).table
    assert table.t.tolist() == [2.0] * 3 + [0.5] * 3
    torch.testing.assert_close(table.b, torch.tensor([0.4] * 3 + [0.025] * 3, dtype=F64))
    torch.testing.assert_close(table.s**2, 2 * table.b)
    assert table.a.tolist() == [1.0] * 6
