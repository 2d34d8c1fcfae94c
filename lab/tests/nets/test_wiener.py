"""Networks that correct a Gaussian: its answer at first, of the promised form, silent where noise is all there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from casal.errors import ShapeError
from casal_lab.nets import Gaussian, WienerMLP, WienerUNet, compare_ddpm, signal_and_noise, train_ddpm

from .points import SMALL, awake, fields

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


def with_output(net: WienerMLP) -> WienerMLP:
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
    moved = with_output(net)(y, 300) - expected
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
    net, plain = with_output(WienerMLP.fit(x, BETAS)), WienerMLP.fit(x, BETAS)
    w, size = torch.randn(400, 4, generator=torch.Generator().manual_seed(3)), []
    for t in (0, 200, 999):
        y = float(ALPHA[t]) * x + float(SIGMA[t]) * w
        size.append(float((net(y, t) - plain(y, t)).abs().max().detach()))
    assert size[0] < 0.3 * size[1] and size[2] < 1e-4 * size[1]


def test_times_dtypes_and_shapes() -> None:
    net, y = with_output(WienerMLP.fit(data().view(-1, 2, 2), BETAS)), data(3, seed=1).view(-1, 2, 2)
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


@pytest.mark.parametrize("settings", [{}, {"padding": "circular"}, {"positions": 4}])
@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 12)])
def test_the_untrained_denoiser_is_the_wiener_filter_bit_by_bit(shape: tuple[int, ...], settings: Any) -> None:
    data = fields(shape=shape)
    net, wiener = WienerUNet.fit(data, widths=SMALL, **settings), Gaussian.fit(data)
    y = fields(5, shape, seed=1)
    for sigma in (0.01, 0.5, 80.0, torch.tensor([0.01, 0.1, 1.0, 3.0, 10.0])):
        assert torch.equal(net(y, sigma), wiener(y, sigma))


def test_the_denoiser_has_the_form_it_promises() -> None:
    """D = W + V diag(sigma sqrt(lam / (lam + sigma^2))) V^T F, with F fed the three fields of the docstring."""
    data = fields()
    net = WienerUNet.fit(data, widths=SMALL).double()
    x = data.flatten(1).double()
    lam, v = torch.linalg.eigh(torch.cov(x.T, correction=0))
    y, sigma, mean = fields(4, seed=1).double(), 0.7, x.mean(0)
    shown: list[Tensor] = []
    says = fields(4, (1, 8, 8), seed=2).double()
    net.unet.register_forward_hook(lambda module, given, out: (shown.append(given[0]), says)[1])
    out = net(y, sigma)
    centred = y.flatten(1) - mean
    filtered = mean + centred @ v @ torch.diag(lam / (lam + sigma**2)) @ v.T
    spread = v @ torch.diag(sigma * (lam / (lam + sigma**2)).sqrt()) @ v.T
    torch.testing.assert_close(out.flatten(1), filtered + says.flatten(1) @ spread, atol=1e-5, rtol=1e-5)
    whitened = centred @ v @ torch.diag((lam + sigma**2) ** -0.5) @ v.T
    expected = torch.stack([whitened, filtered, y.flatten(1) / (1 + sigma**2) ** 0.5], dim=1).view(4, 3, 8, 8)
    torch.testing.assert_close(shown[0], expected, atol=1e-5, rtol=1e-5)


def test_each_chain_has_its_own_noise_level() -> None:
    net = awake(WienerUNet.fit(fields(), widths=SMALL))
    y = fields(3, seed=1)
    together = net(y, torch.tensor([0.1, 1.0, 2.5]))
    for k, sigma in enumerate((0.1, 1.0, 2.5)):
        torch.testing.assert_close(together[k : k + 1], net(y[k : k + 1], sigma), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(net.unet(torch.zeros(1, 3, 8, 8), 0.1), net.unet(torch.zeros(1, 3, 8, 8), 1.0), atol=1e-3)
    assert net(y.double(), 1.0).dtype == torch.float64


def test_coefficients_are_lifted_to_a_grid() -> None:
    """A vector of 10 coefficients, shown to the UNet as an 8 x 8 field; its answer comes back through the transpose."""
    generator = torch.Generator().manual_seed(3)
    lift, _ = torch.linalg.qr(torch.randn(64, 10, generator=generator))
    data = torch.randn(500, 10, generator=generator) * torch.linspace(1.5, 0.5, 10)
    net = WienerUNet.fit(data, grid=(1, 8, 8), lift=lift, widths=SMALL)
    plain = Gaussian.fit(data)
    y = data[:4] + 0.3
    assert torch.equal(net(y, 0.4), plain(y, 0.4))
    says = torch.randn(4, 1, 8, 8, generator=generator)
    shown: list[Tensor] = []
    net.unet.register_forward_hook(lambda module, given, out: (shown.append(given[0]), says)[1])
    out = net(y, 0.4)
    torch.testing.assert_close(shown[0][:, 1].flatten(1), plain(y, 0.4) @ lift.T)
    lam, v = plain.variances, plain.basis
    expected = plain(y, 0.4) + says.flatten(1) @ lift @ v @ torch.diag(0.4 * (lam / (lam + 0.16)).sqrt()) @ v.T
    torch.testing.assert_close(out, expected)


def test_directions_without_data_stay_at_the_mean() -> None:
    data = fields()
    data[:, :, 4:] = 0.0
    net = awake(WienerUNet.fit(data, widths=SMALL))
    assert net.wiener.rank == 32
    assert float(net(fields(4, seed=1), 0.5).detach()[:, :, 4:].abs().max()) < 1e-5


def test_a_subclass_adds_fields_of_its_own() -> None:
    class Slopes(WienerUNet):
        extra_channels = 1

        def extra(self, wiener: Tensor) -> Tensor:
            return wiener.roll(-1, -1) - wiener

    data = fields()
    net = Slopes.fit(data, widths=SMALL)
    assert net.unet.inputs == 4
    assert torch.equal(net(data[:3], 0.5), Gaussian.fit(data)(data[:3], 0.5))

    class Forgetful(WienerUNet):
        extra_channels = 1

    with pytest.raises(NotImplementedError, match="extra"):
        Forgetful.fit(data, widths=SMALL)(data[:3], 0.5)


def test_autocast_leaves_the_filter_its_digits() -> None:
    data = fields()
    net, wiener = WienerUNet.fit(data, widths=SMALL), Gaussian.fit(data)
    y = data[:3]
    expected, score = wiener(y, 0.01), wiener.score(y, 0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(net(y, 0.01), expected)
        assert torch.equal(wiener(y, 0.01), expected)
        assert torch.equal(wiener.score(y, 0.01), score)
        assert awake(net)(y, 0.01).dtype == torch.float32
