"""Dense matrices, some rows of a decoder, physical units, and decoders one after the other: against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import casal
from casal.decoders import (
    DCT,
    Composed,
    Decoder,
    Fourier,
    Gram,
    Identity,
    Linear,
    Nonlinear,
    Rows,
    Standardise,
    transforms,
)
from casal.errors import SettingError, ShapeError

from .dense import check_gram, check_linear, cosine, matrices, normal


@matrices
def test_linear_is_a_matrix_product(A: Tensor) -> None:
    x = normal(7, A.shape[1], seed=3)
    np.testing.assert_allclose(Linear(A)(x).numpy(), np.einsum("kd,nd->nk", A.numpy(), x.numpy()), rtol=0, atol=1e-14)


@settings(max_examples=200)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 7), columns=st.integers(1, 7), chains=st.integers(1, 5))
def test_vjp_is_the_transpose(seed: int, rows: int, columns: int, chains: int) -> None:
    A, x, v = (
        normal(rows, columns, seed=seed),
        normal(chains, columns, seed=seed + 1),
        normal(chains, rows, seed=seed + 2),
    )
    decoder = Linear(A)
    pulled = decoder.vjp(x)(v)
    assert pulled.shape == x.shape
    inner, outer = (decoder(x) * v).sum(1), (x * pulled).sum(1)
    assert torch.allclose(inner, outer, rtol=0, atol=1e-12 * (1 + float(inner.abs().max())))


def test_shape_lays_out_decoded_events_row_by_row() -> None:
    decoder = Linear(torch.eye(6, dtype=torch.float64), shape=(2, 3))
    assert decoder(torch.arange(6.0, dtype=torch.float64)[None]).tolist() == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]


@matrices
def test_norm_is_the_largest_singular_value(A: Tensor) -> None:
    assert Linear(A).norm() == pytest.approx(np.linalg.norm(A.numpy(), ord=2), rel=1e-14)
    assert Linear(A.to(torch.float32)).norm() == pytest.approx(np.linalg.norm(A.numpy(), ord=2), rel=1e-6)


@matrices
def test_pinv_is_the_shortest_least_squares_solution(A: Tensor) -> None:
    z = normal(7, A.shape[0], seed=6)
    expected = np.linalg.lstsq(A.numpy(), z.numpy().T, rcond=1e-12)[0].T
    np.testing.assert_allclose(Linear(A).pinv(z, (A.shape[1],)).numpy(), expected, rtol=0, atol=1e-12)


def test_pinv_restores_the_shape_of_latent_fields() -> None:
    A = normal(6, 4, seed=7)
    x = normal(5, 2, 2, seed=8)
    decoder = Linear(A, shape=(3, 2))
    assert torch.allclose(decoder.pinv(decoder(x), (2, 2)), x, rtol=0, atol=1e-12)


def test_whole_number_matrices_become_float64() -> None:
    assert Linear([[1, 2], [3, 4]])(torch.ones(1, 2, dtype=torch.float64)).tolist() == [[3.0, 7.0]]


@pytest.mark.parametrize(
    "A", [torch.ones(3), torch.ones(2, 2, 2), torch.tensor(1.0)], ids=lambda A: str(tuple(A.shape))
)
def test_linear_needs_a_matrix(A: Tensor) -> None:
    with pytest.raises(ShapeError, match="matrix"):
        Linear(A)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match=r"4 rows.*\(3, 2\)"):
        Linear(normal(4, 3), shape=(3, 2))
    with pytest.raises(ShapeError, match=r"takes 3 latent numbers, events \(2, 2\) have 4"):
        Linear(normal(4, 3))(normal(5, 2, 2))


@pytest.mark.parametrize("A", [[[0.1, 0.7]], np.array([[0.1, 0.7]]), ((0.1, 0.7),)], ids=["list", "numpy", "tuple"])
def test_numbers_from_python_keep_all_their_digits(A: object) -> None:
    assert Linear(A).A.tolist() == [[0.1, 0.7]]


def test_the_pseudo_inverse_of_a_rank_deficient_float32_matrix_stays_small() -> None:
    A = (normal(5, 2, seed=1) @ normal(2, 4, seed=2)).float()
    z = normal(3, 5, seed=3)
    expected = z.numpy() @ np.linalg.pinv(A.double().numpy(), rcond=1e-5).T
    np.testing.assert_allclose(Linear(A).pinv(z.float(), (4,)).numpy(), expected, rtol=0, atol=1e-5)


def test_the_pseudo_inverse_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, calls, pinv = Linear(normal(5, 3)), [], torch.linalg.pinv
    monkeypatch.setattr(torch.linalg, "pinv", lambda *a, **k: calls.append(1) or pinv(*a, **k))
    for seed in range(3):
        decoder.pinv(normal(2, 5, seed=seed), (3,))
    assert len(calls) == 1


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (3, 5), (2, 9), (4, 4)])
def test_a_matrix_is_itself(rows: int, columns: int) -> None:
    A = normal(rows, columns)
    check_linear(Linear(A), A.numpy(), (columns,), (rows,), atol=1e-11)


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
    with pytest.raises(ShapeError, match=r"positions 3 to 3 are requested; decoded events \(3,\)"):
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
        (
            lambda: Rows(Fourier(2, 8), [8]),
            ShapeError,
            r"positions 8 to 8 .* \(8,\) have 0 to 7",
        ),
        (lambda: Rows(Linear(torch.ones(3, 2)), [-1, 0]), ShapeError, "positions -1 to 0"),
        (lambda: Rows(Identity(), [3])(torch.ones(2, 3)), ShapeError, "positions 3 to 3"),
        (lambda: Rows(Identity(), [1, 2, 1]), SettingError, "position 1 is there more than once"),
        (lambda: Rows(Identity(), []), SettingError, "at least one position"),
        (lambda: Rows(Identity(), [True, False]), SettingError, r"mask.flatten\(\).nonzero\(\)"),
        (lambda: Rows(Identity(), [0.5]), SettingError, "integers"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


# ------------------------------------------------------------------ physical units, and chains of decoders


@pytest.mark.parametrize("shape", [(), (3, 1, 1), (3, 4, 5)], ids=["number", "channel", "pixel"])
def test_standardise_is_an_affine_map_of_images(shape: tuple[int, ...]) -> None:
    mean, std = (v.reshape(shape) for v in (3.0 + normal(math.prod(shape)), 0.5 + normal(math.prod(shape)).abs()))
    decoder = Standardise(mean, std)
    x, v = normal(7, 3, 4, 5, seed=3), normal(7, 3, 4, 5, seed=4)
    assert torch.equal(decoder(x), x * std + mean) and decoder.event(x) == (3, 4, 5)
    assert torch.equal(decoder.vjp(x)(v), v * std)
    assert torch.allclose(decoder.pinv(decoder(x), (3, 4, 5)), x, rtol=0, atol=1e-14)
    assert decoder.norm() == float(std.max())
    assert not decoder.linear
    linear, offset = decoder.centred(x)
    assert linear.linear and offset is not None and torch.equal(linear(x) + offset, decoder(x))
    check_linear(linear, np.diag(std.expand(3, 4, 5).reshape(-1).numpy()), (3, 4, 5), (3, 4, 5))


@pytest.mark.parametrize(
    ("mean", "std", "error"),
    [
        (0.0, 0.0, SettingError),
        (0.0, [1.0, -1.0], SettingError),
        (math.nan, 1.0, SettingError),
        (0.0, torch.ones(5), ShapeError),  # would broadcast along the last axis of an image without a word
        (torch.ones(2, 1, 1), 1.0, ShapeError),
    ],
)
def test_what_does_not_fit_is_refused(mean: Any, std: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Standardise(mean, std)(torch.zeros(1, 3, 5, 5))


# ------------------------------------------------------------------ one after the other


def matrix_of(decoder: Decoder, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """By its images of unit vectors, less that of zero."""
    images = decoder(torch.eye(size, dtype=torch.float64)) - decoder(torch.zeros(1, size, dtype=torch.float64))
    return images.reshape(size, -1).T.numpy()


CHAINS: dict[str, tuple[Decoder, int, type[Decoder]]] = {
    "fourier": (Standardise(1.01e5, 1e4) @ Fourier(3, 8), 5, Fourier),
    "fields": (Standardise([[1.0], [2.0]], [[3.0], [4.0]]) @ DCT(3, 6, channels=2), 6, DCT),
    "pixels": (Standardise(0.0, 1.0 + normal(8, seed=6).abs()) @ Fourier(3, 8), 5, Composed),
    "linear": (Standardise(normal(4, seed=1), 2.0 + normal(4, seed=2).abs()) @ Linear(normal(4, 3)), 3, Linear),
    "inside": (Linear(normal(4, 3)) @ Standardise(normal(3, seed=1), 2.0 + normal(3, seed=2).abs()), 3, Composed),
    "twice": (Standardise(1.0, 2.0) @ (Standardise(3.0, 4.0) @ Linear(normal(4, 3))), 3, Linear),
    "rows": (Rows(Standardise(1.01e5, 1e4) @ Fourier(3, 8), [1, 4]), 5, Rows),
    "of-rows": (Standardise([1.0, 2.0], [3.0, 4.0]) @ Rows(Linear(normal(4, 3)), [3, 0]), 3, Linear),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_decoders_is_its_matrix_and_its_offset(name: str) -> None:
    decoder, size, kind = CHAINS[name]
    A, x = matrix_of(decoder, size), normal(3, size, seed=5)
    linear, offset = decoder.centred(x)
    assert type(linear) is kind  # the cheap kind where there is one
    c = decoder(torch.zeros_like(x))
    event = tuple(c.shape[1:])
    assert torch.allclose(torch.zeros_like(c) + (0.0 if offset is None else offset), c, rtol=1e-15, atol=0)
    scale = float(np.abs(A).max())
    check_linear(linear.to(x), A, (size,), event, atol=1e-11 * max(1.0, scale**2) if scale > 100 else 1e-11)
    image = decoder(x)
    assert torch.allclose(decoder(decoder.pinv(image, (size,))), image, rtol=1e-11, atol=1e-10)


def test_composition_with_networks_and_with_nothing() -> None:
    net, x = Nonlinear(torch.sin, norm=1.0), normal(4, 3)
    outer = Standardise([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    one = casal.Identity()
    assert one @ net is net and net @ one is net
    chain = outer @ net
    assert not chain.centred(x)[0].linear and chain.norm() == 4.0
    assert torch.allclose(chain(x), outer.mean + outer.std * x.sin())
    assert torch.allclose(chain.vjp(x)(x), outer.std * x * x.cos())
    centred, offset = chain.centred(x)
    assert torch.equal(offset if offset is not None else x, outer.mean) and torch.allclose(
        centred(x), outer.std * x.sin()
    )
    inside = net @ outer
    assert inside.centred(x)[1] is None and torch.equal(inside(x), torch.sin(outer(x)))
    with pytest.raises(SettingError, match="Nonlinear"):
        _ = outer @ torch.sin  # type: ignore[operator]
