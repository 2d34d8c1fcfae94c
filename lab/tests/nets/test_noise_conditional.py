"""The noise-conditional score network: its formula, its training and its file."""

from __future__ import annotations

from pathlib import Path

import torch

from casal_lab.nets import NoiseConditionalMLP, load, save, train_denoiser


def test_untrained_it_is_the_denoiser_of_a_gaussian() -> None:
    """F starts at zero: D = size^2 y / (size^2 + sigma^2), the mean of x ~ N(0, size^2 I) given y."""
    net, y = NoiseConditionalMLP(2, size=1.5), torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    sigma = torch.tensor([0.1, 4.0])
    total = 2.25 + sigma.square()[:, None]
    torch.testing.assert_close(net(y, sigma), 2.25 * y / total)
    torch.testing.assert_close(net.score(y, sigma), -y / total)
    torch.testing.assert_close(net.score(y, 0.1)[0], net.score(y, sigma)[0])


def test_training_finds_two_modes() -> None:
    """Data at -1 and 1: the mean given y at noise 0.5 is tanh(y / 0.25); the Gaussian's is y / 1.25."""
    data = torch.where(torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)
    net = NoiseConditionalMLP(1, sigmas=(0.2, 2.0), width=16, depth=2)
    y = torch.linspace(-1.5, 1.5, 31)[:, None]
    want = torch.tanh(y / 0.25)
    before = float((net(y, 0.5).detach() - want).abs().mean())
    train_denoiser(net, data, (0.2, 2.0), iterations=250, learning_rate=0.03, batch_size=256, progress=False)
    assert before > 0.3 and float((net(y, 0.5).detach() - want).abs().mean()) < 0.1


def test_a_file_brings_it_back(tmp_path: Path) -> None:
    net, y = NoiseConditionalMLP(2, width=8, depth=2, seed=3), torch.ones(4, 2)
    torch.nn.init.normal_(net.inner.output.weight, generator=torch.Generator().manual_seed(0))
    save(net, tmp_path / "score.safetensors")
    again = load(tmp_path / "score.safetensors", classes=[NoiseConditionalMLP])
    torch.testing.assert_close(again(y, 0.3), net(y, 0.3))
