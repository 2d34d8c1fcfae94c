"""The first revision of the authors' code: one step written out, and its difference from the next revision."""

from __future__ import annotations

import numpy as np
import torch

import casal
from casal.streams import stream
from casal_lab.authors import FirstRelease, ScriptPrimalDual


def test_one_step_and_its_difference_from_the_next_revision() -> None:
    tau, rho, eta = 0.01, 3.0, 0.2
    start = torch.randn((5, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = casal.langevin(lambda x: x**3, steps=2, step_size=tau, init=start)
    states = {
        name: casal.sample(target, casal.Sphere(1.0), method, 5, seed=1).state
        for name, method in {
            "first": FirstRelease.of(rho, eta),
            "next": casal.CASAL.released(rho, eta),
            "free": casal.Unconstrained(),
        }.items()
    }
    # The noise of two steps, from one free step after the other.
    one = casal.langevin(lambda x: x**3, steps=1, step_size=tau, init=start)
    w1 = casal.sample(one, casal.Sphere(1.0), casal.Unconstrained(), 5, seed=1).state.x - start + tau * start**3
    y = start - tau * start**3 + w1
    w2 = states["free"].x - y + tau * y**3

    def sphere(z: torch.Tensor) -> torch.Tensor:
        return z / z.norm(dim=1, keepdim=True)

    for name, power in (("first", 2), ("next", 0)):
        x, z, mu = start, sphere(start), torch.zeros_like(start)
        for w in (w1, w2):
            gap = x - z + mu
            x = x - tau * (x**3 + rho * gap.norm(dim=1, keepdim=True) ** power * gap) + w
            z = sphere(x + mu)
            mu = mu + eta * (x - z)
        for found, expected in zip((states[name].x, states[name].z, states[name].lam), (x, z, mu), strict=True):
            torch.testing.assert_close(found, expected)


def test_primal_dual_of_the_script_has_a_multiplier_a_chain_and_takes_h_before_the_step() -> None:
    """x' = x - tau (grad + lam x) + noise and lam' = lam + eta (|x|^2 - E), line by line, on the same noise."""
    steps, n, tau, eta, energy = 40, 6, 1e-2, 5e-3, 4.0
    start = torch.randn((n, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = casal.langevin(lambda x: x**3, steps=steps, step_size=tau, init=start)
    result = casal.sample(target, casal.Sphere(energy**0.5), ScriptPrimalDual(eta), n, seed=1, check=False)
    x, lam, noise = start.numpy(), np.zeros((n, 1)), stream(1, 0, 1)
    for _ in range(steps):
        w = torch.randn((n, 3), generator=noise).double().numpy()
        h = (x**2).sum(1, keepdims=True) - energy
        x = x - tau * (x**3 + lam * x) + np.sqrt(2 * tau) * w
        lam = lam + eta * h
    np.testing.assert_allclose(result.state.x.numpy(), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.state.lam.numpy(), lam, rtol=0, atol=1e-12)
    averaged = casal.sample(target, casal.Sphere(energy**0.5), casal.PrimalDual(eta), n, seed=1, check=False).state
    assert float((averaged.x - torch.as_tensor(x)).abs().max()) > 1e-3
