"""Targets: the table of Langevin rows, and energies whose gradient is found by differentiation."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError, ShapeError
from casal.lab.laws import double_well
from casal.lab.particle import setup as particle


def test_langevin_rows_are_one_tau_and_root_two_tau() -> None:
    tau = 1.0 / torch.arange(1, 6, dtype=torch.float64).sqrt()
    table = casal.langevin(lambda x: x, steps=5, step_size=tau, init=torch.zeros(1, 2)).table
    torch.testing.assert_close(table.a, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(table.b, tau)
    torch.testing.assert_close(table.s, (2 * tau).sqrt())
    torch.testing.assert_close(table.tau, tau)
    assert table.static


def test_an_energy_gives_the_same_chains_as_its_gradient() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return double_well.potential(x[:, 0]) + 0.5 * (x[:, 1] / particle.SIGMA_Y) ** 2

    by_autograd = casal.energy(f, steps=100, step_size=1e-2, init=particle.start)
    for method in (casal.Unconstrained(), casal.CASAL(10.0), casal.WeightedCASAL(50.0)):
        a = casal.sample(by_autograd, casal.Sphere(3.0), method, 50, seed=5)
        b = casal.sample(particle.plain(100), casal.Sphere(3.0), method, 50, seed=5)
        torch.testing.assert_close(a.samples, b.samples, atol=1e-9, rtol=0)
    assert by_autograd.potential is f


def test_an_energy_model_that_is_a_network() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))

    def f(x: torch.Tensor) -> torch.Tensor:
        return net(x).squeeze(1) + 0.5 * x.square().sum(1)

    target = casal.energy(f, steps=50, step_size=1e-2, init=lambda n, g: torch.randn(n, 3, generator=g))
    result = casal.sample(target, casal.MassEnergy(0.5, 2.0), casal.CASAL(20.0), 64, seed=0)
    assert float(result.certificate.violation.max()) < 1e-12
    assert not result.samples.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_preconditioner_scales_drift_and_noise() -> None:
    diagonal = torch.tensor([0.5, 0.01], dtype=torch.float64)
    x0 = torch.randn((4, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    make = lambda d: casal.langevin(particle.gradient, steps=1, step_size=0.1, init=x0, preconditioner=d)  # noqa: E731
    plain = casal.sample(make(None), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    scaled = casal.sample(make(diagonal), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    drift = -0.1 * particle.gradient(x0)
    torch.testing.assert_close(scaled - x0, diagonal * drift + diagonal.sqrt() * (plain - x0 - drift))


def test_step_sizes_are_checked() -> None:
    for steps, size in ((0, 0.1), (2.5, 0.1), (10, 0.0), (10, float("nan"))):
        with pytest.raises(SettingError):
            casal.langevin(lambda x: x, steps=steps, step_size=size, init=torch.zeros(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one value per step"):
        casal.langevin(lambda x: x, steps=3, step_size=torch.ones(4), init=torch.zeros(1, 1))
