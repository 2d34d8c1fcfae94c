"""Langevin dynamics: the rows of its table, and energies whose gradient is found by differentiation."""

from __future__ import annotations

import pytest
import torch

import casal
from casal.errors import SettingError, ShapeError
from casal.targets import Tuning, settled


def potential(x: torch.Tensor) -> torch.Tensor:
    """A double well along the first coordinate, narrow along the second."""
    return (x[:, 0].square() - 1.0).square() + 50.0 * x[:, 1].square()


def gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([4.0 * x[:, 0] * (x[:, 0].square() - 1.0), 100.0 * x[:, 1]], dim=1)


def start(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def test_langevin_rows_are_one_tau_and_root_two_tau() -> None:
    tau = 1.0 / torch.arange(1, 6, dtype=torch.float64).sqrt()
    table = casal.langevin(lambda x: x, steps=5, step_size=tau, init=torch.zeros(1, 2)).table
    torch.testing.assert_close(table.a, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(table.b, tau)
    torch.testing.assert_close(table.s, (2 * tau).sqrt())
    torch.testing.assert_close(table.tau, tau)
    assert table.static


def test_an_energy_gives_the_same_chains_as_its_gradient() -> None:
    by_autograd = casal.energy(potential, steps=100, step_size=5e-3, init=start)
    by_hand = casal.langevin(gradient, steps=100, step_size=5e-3, init=start)
    for method in (casal.Unconstrained(), casal.CASAL(10.0), casal.WeightedCASAL(50.0, temper=False)):
        a = casal.sample(by_autograd, casal.Sphere(1.5), method, 50, seed=5)
        b = casal.sample(by_hand, casal.Sphere(1.5), method, 50, seed=5)
        torch.testing.assert_close(a.samples, b.samples, atol=1e-9, rtol=0)
    assert by_autograd.potential is potential


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
    make = lambda d: casal.langevin(gradient, steps=1, step_size=0.1, init=x0, preconditioner=d)  # noqa: E731
    plain = casal.sample(make(None), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    scaled = casal.sample(make(diagonal), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    drift = -0.1 * gradient(x0)
    torch.testing.assert_close(scaled - x0, diagonal * drift + diagonal.sqrt() * (plain - x0 - drift))


def test_step_sizes_are_checked() -> None:
    for steps, size in ((0, 0.1), (2.5, 0.1), (10, 0.0), (10, float("nan"))):
        with pytest.raises(SettingError):
            casal.langevin(lambda x: x, steps=steps, step_size=size, init=torch.zeros(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one value per step"):
        casal.langevin(lambda x: x, steps=3, step_size=torch.ones(4), init=torch.zeros(1, 1))


def test_langevin_takes_the_potential_of_its_gradient() -> None:
    target = casal.langevin(gradient, steps=5, step_size=0.1, init=start, potential=potential)
    assert target.potential is potential
    with pytest.raises(SettingError, match="potential must be a function"):
        casal.langevin(gradient, steps=5, step_size=0.1, init=start, potential=3.0)  # type: ignore[arg-type]


def test_open_settings_are_marked_and_settled() -> None:
    open_step = casal.langevin(gradient, steps=5, step_size="auto", init=start, preconditioner=torch.ones(2))
    assert open_step.tune == Tuning(step_size=True, preconditioner=False)
    assert bool(open_step.table.b.isnan().all())
    settled_step = settled(open_step, step_size=0.2)
    assert settled_step.tune is None
    torch.testing.assert_close(settled_step.table.b, torch.full((5,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(settled_step.table.s, torch.full((5,), 0.4, dtype=torch.float64).sqrt())
    assert settled_step.table.preconditioner is open_step.table.preconditioner

    both = casal.energy(potential, steps=5, step_size="auto", init=start, preconditioner="auto")
    assert both.tune == Tuning(step_size=True, preconditioner=True)
    done = settled(both, step_size=0.2, preconditioner=torch.tensor([0.1, 0.01])).table
    assert done.preconditioner is not None and len(done) == 5
    with pytest.raises(SettingError, match="finite and > 0"):
        settled(both, preconditioner=torch.ones(2))
    assert casal.langevin(gradient, steps=5, step_size=0.1, init=start).tune is None


def test_words_other_than_auto_are_refused() -> None:
    with pytest.raises(SettingError, match="step_size must be 'auto'"):
        casal.langevin(gradient, steps=5, step_size="large", init=start)
    with pytest.raises(SettingError, match="preconditioner must be 'auto'"):
        casal.langevin(gradient, steps=5, step_size=0.1, init=start, preconditioner="diagonal")
    with pytest.raises(SettingError, match="not a fixed density"):
        settled(casal.ddpm(lambda x, t: x, torch.linspace(0.1, 0.2, 5), shape=2), step_size=0.1)
