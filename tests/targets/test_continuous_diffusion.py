"""The variance-preserving diffusion in continuous time: its rows, and DDPM as its limit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import casal
from casal.targets import ddpm, vp_sde

from .gaussian import BETA_MAX, BETA_MIN, F64, apart, continuous, discrete, law, library_steps, model, normal


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
