"""The paper's network: its formula, the forms of the time, shapes and dtypes, seeds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from casal.errors import SettingError, ShapeError
from casal_lab.nets import MLP, cosine_features

from .points import noise


def awake(net: MLP) -> MLP:
    """The same network with an output layer that is not zero."""
    torch.nn.init.normal_(net.output.weight, generator=torch.Generator().manual_seed(1))
    return net


def test_the_features_are_the_cosine_basis_of_the_time_axis() -> None:
    features = cosine_features(torch.tensor([[0.0], [250.0]]), features=5, horizon=1000.0)
    expected = [[1.0] * 5, [math.cos(math.pi * k / 4) for k in range(1, 6)]]
    torch.testing.assert_close(features, torch.tensor(expected)[:, None], atol=1e-6, rtol=0)
    middles = (
        torch.arange(1000, dtype=torch.float64) + 0.5
    ) / 1000  # orthogonal over the axis, each of mean square 1/2
    many = cosine_features(middles, features=32, horizon=1.0)
    torch.testing.assert_close(many.T @ many / 500, torch.eye(32, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_network_is_the_formula_in_its_docstring() -> None:
    net = awake(MLP(2, width=5, depth=2, features=3, horizon=10.0))
    x, t = noise(4, 2), 7
    h = torch.cat([x, torch.tensor([math.cos(math.pi * k * 0.7) for k in (1, 2, 3)]).expand(4, 3)], dim=1)
    for name in ("hidden.0", "hidden.2"):
        layer = net.get_submodule(name)
        h = functional.silu(h @ layer.weight.T + layer.bias)
    torch.testing.assert_close(net(x, t), h @ net.output.weight.T + net.output.bias)


def test_depth_three_and_width_128_as_in_the_paper() -> None:
    shapes = [tuple(p.shape) for p in MLP(19).parameters() if p.ndim == 2]
    assert shapes == [(128, 19 + 32), (128, 128), (128, 128), (19, 128)]


def test_the_untrained_network_says_zero() -> None:
    assert torch.equal(MLP(3)(noise(4, 3), 5), torch.zeros(4, 3))


@pytest.mark.parametrize(
    "t",
    [
        37,
        37.0,
        torch.tensor(37),
        torch.tensor(37.0, dtype=torch.float64),
        torch.full((6,), 37),
        torch.full((6,), 37.0, dtype=torch.float64),
        torch.full((6, 1), 37),
    ],
)
def test_every_form_of_the_time_is_the_same_time(t: Tensor | float) -> None:
    net, x = awake(MLP(2)), noise(6, 2)
    torch.testing.assert_close(net(x, t), net(x, torch.tensor(37)), atol=1e-6, rtol=0)
    assert not torch.allclose(net(x, 38), net(x, 37), atol=1e-6)


def test_each_chain_has_its_own_time() -> None:
    net, x = awake(MLP(2)), noise(3, 2)
    together = net(x, torch.tensor([1, 500, 999]))
    for k, t in enumerate((1, 500, 999)):
        torch.testing.assert_close(together[k : k + 1], net(x[k : k + 1], t))


def test_events_of_any_shape_and_answers_in_the_dtype_of_x() -> None:
    net = awake(MLP((2, 3)))
    x = noise(4, 2, 3)
    assert net(x, 3).shape == x.shape
    assert net(x.double(), 3).dtype == torch.float64
    torch.testing.assert_close(net(x.double(), 3).float(), net(x, 3))


def test_wrong_shapes_are_named() -> None:
    net = MLP((2, 3))
    with pytest.raises(ShapeError, match=r"\(4, 6\).*\(n, 2, 3\)"):
        net(noise(4, 6), 1)
    with pytest.raises(ShapeError, match=r"t has shape \(3,\) for 4 chains"):
        net(noise(4, 2, 3), torch.zeros(3))
    for settings in ({"width": 0}, {"depth": 1.5}, {"features": 0}, {"horizon": 0.0}):
        with pytest.raises(SettingError):
            MLP(2, **settings)


def test_weights_come_from_the_seed_and_the_global_generator_stays_put() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, again, other = MLP(2, seed=1), MLP(2, seed=1), MLP(2, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.hidden[0].weight, other.hidden[0].weight)
