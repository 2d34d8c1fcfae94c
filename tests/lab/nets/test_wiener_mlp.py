"""The residual noise predictor: a Gaussian's at the start, of the promised form, silent where noise is all there is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from casal.errors import ShapeError
from casal.lab.nets import Gaussian, WienerMLP, compare_ddpm, signal_and_noise, train_ddpm

BETAS = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
ALPHA, SIGMA = signal_and_noise(BETAS)


def data(n: int = 400, seed: int = 0) -> Tensor:
    """Correlated points around a mean that is not zero, with a third of them far off."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator) @ torch.tensor(
        [[1.0, 0.5, 0.0, 0.2], [0.0, 0.6, 0.3, 0.0], [0.0, 0.0, 0.3, 0.0], [0.0, 0.0, 0.0, 0.8]]
    )
    x[::3] += 5.0
    return 0.4 * x + 0.7


def awake(net: WienerMLP) -> WienerMLP:
    nn.init.normal_(net.mlp.output.weight, std=0.3, generator=torch.Generator().manual_seed(1))
    return net


@pytest.mark.parametrize("t", [0, 37, 500, 999])
def test_the_untrained_network_is_the_noise_predictor_of_the_gaussian(t: int) -> None:
    x, y = data(), data(6, seed=1)
    net, gaussian = WienerMLP.fit(x, BETAS).double(), Gaussian.fit(x, dtype=torch.float64)
    expected = gaussian.eps(y.double(), float(ALPHA[t]), float(SIGMA[t]))
    torch.testing.assert_close(net(y.double(), t), expected, rtol=1e-5, atol=1e-5)


def test_in_a_subspace_what_lies_outside_is_noise() -> None:
    """Data on a plane in four dimensions: still the Gaussian's at the start, and F never leaves the plane."""
    x = data()[:, :2] @ torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]])
    net, gaussian = WienerMLP.fit(x, BETAS), Gaussian.fit(x)
    assert net.wiener.rank == 2
    y = data(6, seed=1)
    expected = gaussian.eps(y, float(ALPHA[300]), float(SIGMA[300]))
    torch.testing.assert_close(net(y, 300), expected, rtol=1e-4, atol=1e-4)
    moved = awake(net)(y, 300) - expected
    torch.testing.assert_close(moved @ gaussian.basis @ gaussian.basis.T, moved, rtol=1e-3, atol=1e-5)


def test_the_network_has_the_form_it_promises() -> None:
    x, y, t = data(), data(5, seed=1).double(), 200
    net = WienerMLP.fit(x, BETAS).double()
    lam, v = torch.linalg.eigh(torch.cov(x.double().T, correction=0))
    lam, v, mean = lam.flip(0), net.wiener.basis, x.double().mean(0)
    shown: list[Tensor] = []
    says = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def instead(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        shown.append(given[0])
        return says

    net.mlp.register_forward_hook(instead)
    a, s = ALPHA[t], SIGMA[t]
    total, along = a**2 * lam + s**2, (y - a * mean) @ v
    gain = a**2 * lam / total
    expected = (along * s / total + (gain * (1 - gain)).sqrt() * gain.max() * says) @ v.T
    torch.testing.assert_close(net(y, t), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shown[0], along / total.sqrt(), rtol=1e-4, atol=1e-4)


def test_the_correction_vanishes_with_the_noise_and_with_the_signal() -> None:
    x = data()
    net, plain = awake(WienerMLP.fit(x, BETAS)), WienerMLP.fit(x, BETAS)
    w, size = torch.randn(400, 4, generator=torch.Generator().manual_seed(3)), []
    for t in (0, 200, 999):
        y = float(ALPHA[t]) * x + float(SIGMA[t]) * w
        size.append(float((net(y, t) - plain(y, t)).abs().max().detach()))
    assert size[0] < 0.3 * size[1] and size[2] < 1e-4 * size[1]


def test_times_dtypes_and_shapes() -> None:
    net, y = awake(WienerMLP.fit(data().view(-1, 2, 2), BETAS)), data(3, seed=1).view(-1, 2, 2)
    together = net(y, torch.tensor([0, 400, 999]))
    for k, t in enumerate((0, 400, 999)):
        torch.testing.assert_close(together[k : k + 1], net(y[k : k + 1], t), rtol=1e-4, atol=1e-5)
    assert together.shape == y.shape and net(y.double(), 5.0).dtype == torch.float64
    with pytest.raises(ShapeError):
        net(torch.zeros(3, 4), 0)


def test_a_short_training_is_hardly_worse_than_the_gaussian_anywhere_and_much_better_in_the_middle() -> None:
    x, fresh = data(3000), data(3000, seed=9)
    net = WienerMLP.fit(x, BETAS, width=32, depth=2)
    train_ddpm(net, x, BETAS.float(), iterations=400, learning_rate=2e-2, held_out=fresh, progress=False)
    losses = compare_ddpm(net, Gaussian.fit(x), fresh, BETAS)
    assert float(losses.ratio.max()) < 1.05 and losses.best < 0.8
    assert float(losses.ratio[[0, 1, 2, 3, 4, 5, 6, -1]].max()) < 1 + 1e-4
