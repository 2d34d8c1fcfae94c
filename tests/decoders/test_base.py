"""What every decoder inherits, and the identity."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.decoders import DCT, Decoder, Identity, Linear, Nonlinear, Rows
from casal.errors import SettingError

from .dense import normal


@pytest.mark.parametrize(
    "decoder", [Identity(), Linear(normal(6, 6), shape=(2, 3)), Linear(normal(4, 6), shape=(2, 2))]
)
def test_vjp_agrees_with_autograd_on_fields(decoder: Decoder) -> None:
    leaf = normal(3, 2, 3, seed=4).requires_grad_()
    decoded = decoder(leaf)
    v = normal(*decoded.shape, seed=5)
    (expected,) = torch.autograd.grad(decoded, leaf, grad_outputs=v)
    assert torch.allclose(decoder.vjp(leaf.detach())(v), expected, rtol=0, atol=1e-14)


def test_identity_hands_back_what_it_gets() -> None:
    x = normal(4, 2, 3)
    assert Identity()(x) is x
    assert Identity().vjp(x)(x) is x
    assert Identity().pinv(x, (2, 3)) is x
    assert Identity().norm() == 1.0


def test_a_decoder_follows_the_dtype_of_the_run() -> None:
    decoder = Linear(normal(4, 3), shape=(2, 2)).to(torch.zeros(0, 3, dtype=torch.float32))
    assert isinstance(decoder, Linear) and decoder.A.dtype == torch.float32 and decoder.shape == (2, 2)
    assert decoder(torch.ones(2, 3)).dtype == torch.float32
    same = Identity()
    assert same.to(torch.zeros(1)) is same


def test_a_decoder_without_inverse_or_gram_says_what_to_use() -> None:
    class Doubling(Decoder):
        def __call__(self, x: Tensor) -> Tensor:
            return 2 * x

        def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda v: 2 * v

        def norm(self) -> float:
            return 2.0

    with pytest.raises(SettingError, match=r"Doubling has no pseudo-inverse; state the set in the latent"):
        Doubling().pinv(torch.ones(1, 1), (1,))
    with pytest.raises(SettingError, match=r"Doubling is not linear, .* coupling='explicit'"):
        Doubling().gram((1,), None, torch.ones(0, 1))
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.ones(4, 2, dtype=torch.float64))
    with pytest.raises(SettingError, match="explicit"):
        casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0), 4, decoder=Doubling())
    result = casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0, coupling="explicit"), 4, decoder=Doubling())
    assert bool(result.certificate.feasible.all())


def test_decoders_say_what_they_are() -> None:
    linear, series = Linear(normal(4, 3), shape=(2, 2)), DCT((2, 3), (4, 5), channels=2)
    assert [d.identity for d in (Identity(), linear, series, Rows(Identity(), [1]))] == [True, False, False, False]
    assert [d.linear for d in (Identity(), linear, Nonlinear(torch.sin), Rows(linear, [1]))] == [
        True,
        True,
        False,
        True,
    ]
    assert (linear.shape, linear.latent_size, series.shape, series.latent_size) == ((2, 2), 3, (2, 4, 5), 12)
    assert Identity().shape is None and Identity().latent_size is None and Rows(linear, [3, 1]).shape == (2,)


@pytest.mark.parametrize("decoder", [Identity(), Linear(normal(6, 6)), DCT(6, 6)], ids=["identity", "linear", "series"])
@pytest.mark.parametrize("index", [[5], [4, 0, 2], [3, 1, 5, 0, 4, 2]], ids=len)
def test_rows_of_the_matrix_are_read_off_alike(decoder: Decoder, index: list[int]) -> None:
    like, positions = torch.zeros(0, 6, dtype=torch.float64), torch.tensor(index)
    whole, some = decoder.matrix((6,), like), decoder.matrix_rows(positions, (6,), like)
    assert torch.allclose(some, whole[positions], rtol=0, atol=1e-14)
    dense = decoder.dense_rows(positions)
    assert decoder.identity if dense is None else torch.allclose(dense, some, rtol=0, atol=1e-14)
