"""Coupling some rows of a decoder only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.decoders import DCT, Decoder, Fourier, Gram, Identity, Linear, Nonlinear, Rows, transforms
from casal.errors import SettingError, ShapeError

from .dense import check_gram, check_linear, cosine, normal


class Doubling(Decoder):
    """A decoder from outside the library that says it is linear."""

    linear = True

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([2 * x, x.flip(1)], dim=1)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: 2 * v[:, : x.shape[1]] + v[:, x.shape[1] :].flip(1)

    def norm(self) -> float:
        return 5**0.5


# ------------------------------------------------------------------ rows of anything linear

INDEX = [7, 0, 3]


@pytest.mark.parametrize("index", [[0], [7, 0, 3], list(range(8))[::-1]], ids=["one", "some", "all"])
@pytest.mark.parametrize("columns", [3, 8, 24])
def test_rows_of_a_matrix(index: list[int], columns: int) -> None:
    A = normal(8, columns)
    decoder = Rows(Linear(A, shape=(2, 4)), index)
    check_linear(decoder, A.numpy()[index], (columns,), (len(index),), atol=1e-11)
    like = torch.zeros(0, columns, dtype=torch.float64)
    assert torch.equal(decoder(normal(3, columns)), Linear(A[index])(normal(3, columns)))
    assert torch.equal(
        decoder.gram((columns,), None, like).eigenvalues, Linear(A[index]).gram((columns,), None, like).eigenvalues
    )


@pytest.mark.parametrize("small", [0, 10**9], ids=["scatter", "matrix"])
@pytest.mark.parametrize("algorithm", ["fft", "product"])
@pytest.mark.parametrize("index", [[2], [29, 0, 13], list(range(30))], ids=["one", "some", "all"])
def test_rows_of_a_transform(monkeypatch: pytest.MonkeyPatch, small: int, algorithm: str, index: list[int]) -> None:
    monkeypatch.setattr(transforms, "SMALL_MATRIX", small)
    A = np.kron(cosine(4, 6), cosine(3, 5))[index]
    whole = DCT((4, 3), (6, 5), algorithm=algorithm)
    for latent in ((12,), (4, 3)):
        check_linear(Rows(whole, index), A, latent, (len(index),))
    scale = torch.linspace(0.1, 2.0, 12, dtype=torch.float64)
    scaled = DCT((4, 3), (6, 5), scale=scale, algorithm=algorithm)
    check_linear(Rows(scaled, index), A * scale.numpy(), (12,), (len(index),), atol=1e-11)


def test_few_rows_of_a_transform_are_a_small_matrix_and_many_are_not() -> None:
    whole = DCT((16, 16), (32, 32))
    assert Rows(whole, list(range(100)))._small is not None
    assert Rows(whole, list(range(1000)))._small is None


def test_rows_of_several_fields() -> None:
    whole = DCT((2, 2), (4, 5), channels=2)
    A = whole.matrix((8,), torch.zeros(0, 8, dtype=torch.float64)).numpy()
    check_linear(Rows(whole, [39, 3]), A[[39, 3]], (2, 4), (2,))


@pytest.mark.parametrize("latent", [(6,), (2, 3)])
def test_rows_of_the_identity_are_coordinates(latent: tuple[int, ...]) -> None:
    decoder = Rows(Identity(), [4, 1])
    check_linear(decoder, np.eye(6)[[4, 1]], latent, (2,))
    assert decoder.gram(latent, None, torch.zeros(0, *latent, dtype=torch.float64)).basis is None


@pytest.mark.parametrize("index", [[1], [6, 0, 3], list(range(8))])
def test_rows_of_a_linear_decoder_from_outside(index: list[int]) -> None:
    A = np.concatenate([2 * np.eye(4), np.eye(4)[::-1]])
    decoder = Rows(Doubling(), index)
    x, like = normal(3, 4), torch.zeros(0, 4, dtype=torch.float64)
    np.testing.assert_allclose(decoder(x).numpy(), x.numpy() @ A[index].T, rtol=0, atol=1e-14)
    np.testing.assert_allclose(decoder.matrix((4,), like).numpy(), A[index], rtol=0, atol=0)
    check_gram(decoder.gram((4,), None, like), A[index], None, (4,))
    assert decoder.norm() >= np.linalg.norm(A[index], ord=2) - 1e-12
    z = normal(3, len(index), seed=1)
    np.testing.assert_allclose(
        decoder.pinv(z, (4,)).numpy(), z.numpy() @ np.linalg.pinv(A[index]).T, rtol=0, atol=1e-12
    )
    check_gram(Doubling().gram((4,), None, like), A, None, (4,))


def test_rows_of_rows_are_rows() -> None:
    A = normal(8, 3)
    twice = Rows(Rows(Linear(A), INDEX), [2, 0])
    assert twice.index.tolist() == [3, 7] and isinstance(twice.inner, Linear)
    check_linear(twice, A.numpy()[[3, 7]], (3,), (2,))
    with pytest.raises(ShapeError, match=r"rows 3 to 3 are asked of decoded events \(3,\)"):
        Rows(Rows(Linear(A), INDEX), [3])


@pytest.mark.parametrize("small", [0, 10**9], ids=["scatter", "matrix"])
def test_rows_follow_the_dtype_of_the_run(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(transforms, "SMALL_MATRIX", small)
    like = torch.zeros(0, 5, dtype=torch.float32)
    for inner in (Fourier(3, 8), Linear(normal(8, 5)), Fourier(3, 8, scale=0.5)):
        decoder = Rows(inner, INDEX).to(like)
        x = normal(2, 5).float()
        parts = [decoder(x), decoder.vjp(x)(decoder(x)), decoder.pinv(decoder(x), (5,))]
        assert {part.dtype for part in parts} == {torch.float32}
        gram = decoder.gram((5,), None, like)
        assert isinstance(gram, Gram) and gram.eigenvalues.dtype == torch.float32


# ------------------------------------------------------------------ rows of what is not linear


def test_rows_of_a_network() -> None:
    decoder = Rows(Nonlinear(lambda x: torch.stack([x.sin(), x.cos()], dim=1), norm=1.0), [5, 0])
    x, v = normal(4, 3), normal(4, 2, seed=1)
    assert torch.equal(decoder(x), torch.stack([x[:, 2].cos(), x[:, 0].sin()], dim=1))
    expected = torch.zeros_like(x)
    expected[:, 0], expected[:, 2] = v[:, 1] * x[:, 0].cos(), -v[:, 0] * x[:, 2].sin()
    assert torch.allclose(decoder.vjp(x)(v), expected, rtol=0, atol=1e-15)
    assert decoder.norm() == 1.0 and decoder.event(x) == (2,)
    with pytest.raises(SettingError, match="explicit"):
        decoder.gram((3,), None, x)
    with pytest.raises(SettingError, match="no pseudo-inverse"):
        decoder.pinv(v, (3,))


# ------------------------------------------------------------------ runs


def target(size: int, steps: int = 20) -> casal.Target:
    precision = torch.linspace(0.5, 1.5, size, dtype=torch.float64)
    init = normal(50, size, seed=5)
    return casal.langevin(lambda x: precision.to(x) * x, steps=steps, step_size=0.1, init=init)


@pytest.mark.parametrize(
    "method",
    [
        casal.CASAL(30.0),
        casal.CASAL(2.0, coupling="explicit"),
        casal.Projected(),
        casal.Penalty(0.02),
        casal.WeightedCASAL(30.0),
    ],
    ids=["implicit", "explicit", "projected", "penalty", "weighted"],
)
def test_rows_of_a_matrix_run_like_the_small_matrix(method: Any) -> None:
    A = normal(9, 6) / 5
    index = [8, 2, 4]
    run = [
        casal.sample(target(6), casal.Sphere(1.0), method, 50, decoder=decoder)
        for decoder in (Rows(Linear(A), index), Linear(A[index]))
    ]
    assert torch.equal(run[0].samples, run[1].samples)
    assert torch.equal(run[0].state[0], run[1].state[0])


@pytest.mark.parametrize("small", [0, 10**9], ids=["scatter", "matrix"])
def test_rows_of_a_transform_run_like_the_small_matrix(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(transforms, "SMALL_MATRIX", small)
    index = [0, 5, 11, 17]
    whole = Fourier(5, 20, scale=torch.linspace(1.0, 0.2, 9, dtype=torch.float64))
    A = whole.matrix((9,), torch.zeros(0, 9, dtype=torch.float64))
    values = torch.tensor([0.3, -0.1, 0.2, 0.4], dtype=torch.float64)
    known = casal.Affine(torch.eye(4, dtype=torch.float64), values)
    for method in (casal.CASAL(30.0), casal.CASAL(1.0, coupling="explicit"), casal.Projected()):
        fast = casal.sample(target(9), known, method, 50, decoder=Rows(whole, index))
        slow = casal.sample(target(9), known, method, 50, decoder=Linear(A[index]))
        assert torch.allclose(fast.samples, slow.samples, rtol=0, atol=1e-9)
        assert torch.allclose(fast.state[0], slow.state[0], rtol=0, atol=1e-9)
        assert bool(fast.certificate.feasible.all())


def test_coupling_only_observed_rows_reaches_the_observations() -> None:
    """With all rows coupled the free ones hold x back; with the observed rows alone the chains go to the data."""
    index, size = [0, 7], 20
    decoder = Fourier(4, size)
    values = torch.tensor([1.0, -1.0], dtype=torch.float64)
    start = target(7, steps=15)
    rows = casal.sample(start, casal.Affine(torch.eye(2), values), casal.CASAL(50.0), 50, decoder=Rows(decoder, index))
    picks = torch.eye(size, dtype=torch.float64)[index]
    full = casal.sample(start, casal.Affine(picks, values), casal.CASAL(50.0), 50, decoder=decoder)

    def misfit(x: Tensor) -> float:
        return float((decoder(x)[:, index] - values).norm(dim=1).mean())

    assert bool(rows.certificate.feasible.all()) and bool(full.certificate.feasible.all())
    assert misfit(rows.state.x) < 0.5 * misfit(full.state.x)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Rows(Fourier(2, 8), [8]), ShapeError, r"rows 8 to 8 are asked of decoded events \(8,\), .* 0 to 7"),
        (lambda: Rows(Linear(torch.ones(3, 2)), [-1, 0]), ShapeError, "rows -1 to 0"),
        (lambda: Rows(Identity(), [3])(torch.ones(2, 3)), ShapeError, "rows 3 to 3"),
        (lambda: Rows(Identity(), [1, 2, 1]), SettingError, "position 1 is there more than once"),
        (lambda: Rows(Identity(), []), SettingError, "at least one position"),
        (lambda: Rows(Identity(), [True, False]), SettingError, r"mask.flatten\(\).nonzero\(\)"),
        (lambda: Rows(Identity(), [0.5]), SettingError, "integers"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
