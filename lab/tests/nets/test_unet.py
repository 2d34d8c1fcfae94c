"""The UNet: zero at the start, periodic where it says so; and the settings that it and its residual form refuse."""

from __future__ import annotations

import pytest
import torch

from casal.errors import CasalWarning, SettingError, ShapeError
from casal_lab.nets import UNet, WienerUNet

from .points import SMALL, awake, fields


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
