"""Models on the small problem: both samplers follow the Gaussian, and a network knows where it was trained."""

from __future__ import annotations

import pytest
import torch

import casal
from casal_lab.nets import WienerUNet
from casal_lab.pde.models import TRAINED, gaussian_model, loss_table, losses, network_model
from casal_lab.pde.prior import Prior, fit_prior
from casal_lab.report.tables import markdown

from .small import prior

F64 = torch.float64


@pytest.fixture(scope="module")
def known() -> Prior:
    return prior()


@pytest.mark.statistical
def test_both_samplers_follow_the_gaussian(known: Prior) -> None:
    model, n = gaussian_model(known), 4000
    free = casal.ObservedMassEnergy([], [])
    C = known.covariance
    for target, lost in ((model.ancestral(1000), 0.06), (model.flow(200, 1.0), 0.06), (model.flow(200), 0.04)):
        x = casal.sample(target, free, casal.Unconstrained(), n, seed=1, check=False).samples
        # standard error of a variance: sqrt(2 / n); the steps leave a few per cent
        ratio = x.var(0) / C.diagonal()
        assert float((ratio - 1).abs().max()) < 4 * (2 / n) ** 0.5 + lost
        assert float((ratio / 2 - 1).abs().min()) > 4 * (2 / n) ** 0.5 + lost  # power: half the variance is told apart


def field_prior() -> Prior:
    """Gaussian coefficients of 4 x 4 cosines."""

    def draw(n: int, generator: torch.Generator) -> torch.Tensor:
        return casal.DCT(8, (8, 8))(torch.randn((n, 64), generator=generator, dtype=F64))

    return fit_prior("field", draw, lambda scale: casal.DCT(4, (8, 8), scale=scale), fields=400, residuals=50)


def test_above_its_levels_a_network_stands_back() -> None:
    known = field_prior()
    lift = casal.DCT(4, (4, 4)).matrix((16,), torch.empty(0, dtype=F64)).float()
    net = WienerUNet.fit(known.latents.float(), grid=(1, 4, 4), lift=lift, widths=(4,))
    for parameter in net.unet.head.parameters():
        torch.nn.init.constant_(parameter, 0.1)  # no longer the filter
    model = network_model(known, net)
    x = torch.randn((3, 16), generator=torch.Generator().manual_seed(0))
    low, high = torch.tensor(0.5), torch.tensor(2 * TRAINED[1])
    assert torch.equal(model.denoiser(x, low), net(x, low))
    assert not torch.allclose(model.denoiser(x, low), net.wiener(x, low))
    assert torch.equal(model.denoiser(x, high), net.wiener(x, high))
    mixed = model.denoiser(x, torch.tensor([0.5, 2 * TRAINED[1], 0.5]))
    assert torch.allclose(mixed[1], net.wiener(x, high)[1], atol=1e-5)
    assert torch.allclose(mixed[0], net(x, low)[0], atol=1e-5)


def test_an_untrained_network_is_as_good_as_the_gaussian() -> None:
    known = field_prior()
    lift = casal.DCT(4, (4, 4)).matrix((16,), torch.empty(0, dtype=F64)).float()
    net = WienerUNet.fit(known.latents.float(), grid=(1, 4, 4), lift=lift, widths=(4,))
    found = losses(known, net, levels=3)
    assert torch.allclose(found.ratio, torch.ones(3, dtype=F64), atol=1e-4)
    assert "network / Gaussian" in markdown(loss_table(found, "losses"))
