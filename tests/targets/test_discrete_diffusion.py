"""DDPM and DDIM: rows against the schedulers of diffusers, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.targets import ddim, ddpm

from .gaussian import ABAR, BETAS, F64, bayes, discrete, model, some_points

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
