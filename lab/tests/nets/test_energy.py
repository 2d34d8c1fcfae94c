"""The energy-based model: its formula, its training and its file."""

from __future__ import annotations

from pathlib import Path

import torch

from casal_lab.nets import EnergyMLP, load, save, train_energy


def test_the_energy_is_that_of_the_reference_minus_the_ratio() -> None:
    net = EnergyMLP(2, spread=1.5, width=8, depth=2)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x), x.square().sum(1) / 4.5 - net.ratio(x))
    assert net(x.double()).dtype == torch.float64 and net(x).shape == (5,)


def test_training_finds_the_log_ratio_of_two_gaussians() -> None:
    """Data N(0.5, 0.5^2), reference N(0, 2^2): differences of the energy are those of (x - 0.5)^2 / 0.5."""
    data = 0.5 + 0.5 * torch.randn(20_000, 1, generator=torch.Generator().manual_seed(1))
    net = EnergyMLP(1, width=16, depth=2)
    x = torch.linspace(-0.6, 1.6, 23)[:, None]
    want = (x[:, 0] - 0.5).square() / 0.5

    def error() -> float:
        with torch.no_grad():
            off = net(x) - want
        return float((off - off.mean()).abs().mean())

    before = error()
    losses = train_energy(net, data, iterations=300, batch_size=512, learning_rate=0.01)
    assert len(losses) == 300 and before > 0.5
    assert error() < 0.1


def test_a_file_brings_it_back(tmp_path: Path) -> None:
    net, x = EnergyMLP(2, width=8, depth=2, seed=3), torch.ones(4, 2)
    save(net, tmp_path / "energy.safetensors")
    again = load(tmp_path / "energy.safetensors", classes=[EnergyMLP])
    torch.testing.assert_close(again(x), net(x))
