"""EDM: DDIM after a change of variables, and the noise levels of diffusers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.targets import ddim, edm, karras_sigmas

from .gaussian import ABAR, BETAS, F64, model


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
