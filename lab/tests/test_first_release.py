"""The first revision of the authors' code: one step written out, and its difference from the next revision."""

from __future__ import annotations

import torch

import casal
from casal_lab.first_release import FirstRelease


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
