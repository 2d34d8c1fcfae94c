"""The UNet and its Wiener residual: exact at the start, of the promised form, periodic where it says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from casal.errors import CasalWarning, SettingError, ShapeError
from casal.lab.nets import Gaussian, UNet, WienerUNet

SMALL = (8, 12, 16)


def fields(n: int = 400, shape: tuple[int, ...] = (8, 8), seed: int = 0) -> Tensor:
    """Smooth random fields of unit size."""
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
    x = x + x.roll(1, -1) + x.roll(1, -2)
    return x / x.square().mean().sqrt()


def awake(net: nn.Module) -> nn.Module:
    """All weights drawn anew, zeros included."""
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():
        nn.init.normal_(p, std=0.3, generator=generator)
    return net


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


def test_the_untrained_unet_is_zero_and_keeps_the_grid() -> None:
    h = torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    out = UNet(3, 2, (12, 20), widths=SMALL)(h, 0.5)
    assert torch.equal(out, torch.zeros(2, 2, 12, 20))


def test_circular_padding_commutes_with_shifts_and_zero_padding_does_not() -> None:
    h = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    for padding, commutes in (("circular", True), ("zeros", False)):
        net = awake(UNet(1, 1, (16, 16), widths=SMALL, padding=padding))  # type: ignore[arg-type]
        shifted = net(h.roll((4, 8), (-2, -1)), 0.5)  # a multiple of 4: the coarsest cells
        assert torch.allclose(shifted, net(h, 0.5).roll((4, 8), (-2, -1)), atol=1e-3, rtol=1e-3) is commutes


def test_positions_tell_the_network_where_it_is() -> None:
    h = torch.zeros(1, 1, 8, 8)
    blind = awake(UNet(1, 1, (8, 8), widths=SMALL, padding="circular"))(h, 0.5).detach()
    seeing = awake(UNet(1, 1, (8, 8), widths=SMALL, padding="circular", positions=2))(h, 0.5).detach()
    assert float(blind.std()) < 1e-4 < float(seeing.std())


def test_outside_its_range_the_noise_level_is_taken_for_the_nearer_end() -> None:
    net, h = awake(UNet(1, 1, (8, 8), widths=SMALL, sigmas=(0.1, 2.0))), torch.ones(1, 1, 8, 8)
    assert torch.equal(net(h, 50.0), net(h, 2.0))
    assert torch.equal(net(h, 0.0), net(h, 0.1))
    assert not torch.equal(net(h, 1.0), net(h, 2.0))


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


def test_wrong_settings_are_named() -> None:
    data = fields()
    with pytest.raises(ShapeError, match="divisible by 4"):
        UNet(1, 1, (10, 8))
    with pytest.raises(SettingError, match="padding"):
        UNet(1, 1, (8, 8), padding="mirror")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="low < high"):
        UNet(1, 1, (8, 8), sigmas=(3.0, 0.01))
    with pytest.raises(SettingError, match="widths is empty"):
        UNet(1, 1, (8, 8), widths=())
    with pytest.raises(ShapeError, match="made for"):
        UNet(1, 1, (8, 8))(torch.zeros(1, 2, 8, 8), 1.0)
    with pytest.raises(ShapeError, match="grid= and lift="):
        WienerUNet.fit(data.flatten(1))
    with pytest.raises(ShapeError, match="64 numbers and the grid"):
        WienerUNet.fit(data, grid=(1, 16, 16))
    with pytest.raises(ShapeError, match="not orthonormal"):
        WienerUNet.fit(data.flatten(1), grid=(1, 8, 8), lift=2 * torch.eye(64))
    with pytest.raises(ShapeError, match="lift has shape"):
        WienerUNet.fit(data.flatten(1), grid=(1, 8, 8), lift=torch.eye(64)[:, :10])
    with pytest.warns(CasalWarning, match=r"size 100 \(root mean square\)"):
        WienerUNet.fit(100 * data)
