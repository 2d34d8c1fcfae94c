"""Fast transforms against the matrices of NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from casal.decoders import DCT, DST, Fourier, Transform
from casal.decoders.transforms import Axis
from casal.errors import DtypeError, SettingError, ShapeError

from .dense import Array, cell_sine, check_linear, cosine, fourier, normal, sine

KINDS: dict[str, tuple[Callable[..., Transform], Callable[[int, int], Array], Callable[[int], int]]] = {
    "fourier": (Fourier, fourier, lambda n: n // 2 + 1),
    "dct": (DCT, cosine, lambda n: n),
    "dst": (DST, sine, lambda n: n),
    "dst-cells": (lambda *a, **k: DST(*a, cells=True, **k), cell_sine, lambda n: n),
}
ALGORITHMS = ("fft", "product", "auto")
every_kind = pytest.mark.parametrize("kind", KINDS)
both = pytest.mark.parametrize("algorithm", ["fft", "product"])


def counts(kind: str, size: int) -> list[int]:
    """One mode, a few, half of them and one more, and all."""
    most = KINDS[kind][2](size)
    return sorted({min(most, k) for k in (1, 2, 3, size // 2, (size + 1) // 2, size // 2 + 1, most - 1, most) if k > 0})


# ------------------------------------------------------------------ one axis


@every_kind
@both
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 14, 15])
def test_one_axis_is_its_matrix(kind: str, algorithm: str, size: int) -> None:
    make, dense, _ = KINDS[kind]
    for modes in counts(kind, size):
        A = dense(modes, size)
        np.testing.assert_allclose(A.T @ A, np.eye(A.shape[1]), rtol=0, atol=1e-13)
        check_linear(make(modes, size, algorithm=algorithm), A, (A.shape[1],), (size,))


@every_kind
@both
def test_the_scale_is_a_diagonal(kind: str, algorithm: str) -> None:
    make, dense, _ = KINDS[kind]
    A = dense(4, 11)
    scale = torch.linspace(2.0, 0.1, A.shape[1], dtype=torch.float64)
    scale[1] = -0.7
    check_linear(make(4, 11, scale=scale, algorithm=algorithm), A * scale.numpy(), (A.shape[1],), (11,))
    check_linear(make(4, 11, scale=0.3, algorithm=algorithm), A * 0.3, (A.shape[1],), (11,))


def test_coefficients_without_scale_do_not_come_back() -> None:
    scale = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    check_linear(DCT(3, 7, scale=scale), cosine(3, 7) * scale.numpy(), (3,), (7,))


@every_kind
def test_large_axes_are_exact(kind: str) -> None:
    make, dense, most = KINDS[kind]
    for size, modes in ((1000, 40), (997, min(300, most(997)))):
        A = dense(modes, size)
        x, v = normal(2, A.shape[1]), normal(2, size, seed=1)
        for algorithm in ALGORITHMS:
            decoder = make(modes, size, algorithm=algorithm)
            np.testing.assert_allclose(decoder(x).numpy(), x.numpy() @ A.T, rtol=0, atol=1e-12)
            np.testing.assert_allclose(decoder.vjp(x)(v).numpy(), v.numpy() @ A, rtol=0, atol=1e-12)


def test_the_fourier_series_is_the_one_in_its_docstring() -> None:
    modes, n = 4, 10
    x = normal(1, 2 * modes - 1)
    i = torch.arange(n, dtype=torch.float64)
    z = x[0, 0] / n**0.5 + sum(
        (2 / n) ** 0.5
        * (x[0, k] * torch.cos(2 * torch.pi * k * i / n) + x[0, modes - 1 + k] * torch.sin(2 * torch.pi * k * i / n))
        for k in range(1, modes)
    )
    for algorithm in ALGORITHMS:
        assert torch.allclose(Fourier(modes, n, algorithm=algorithm)(x)[0], z, rtol=0, atol=1e-13)


def test_fourier_coefficients_are_rfft_modes() -> None:
    z = normal(3, 20)
    spectrum = torch.fft.rfft(z)[:, :6] * (2 / 20) ** 0.5
    c = Fourier(6, 20).pinv(z, (11,))
    assert torch.allclose(c[:, 1:6], spectrum.real[:, 1:], rtol=0, atol=1e-13)
    assert torch.allclose(c[:, 6:], -spectrum.imag[:, 1:], rtol=0, atol=1e-13)
    assert torch.allclose(c[:, 0], z.sum(1) / 20**0.5, rtol=0, atol=1e-13)


# ------------------------------------------------------------------ grids


@every_kind
@both
@pytest.mark.parametrize(("modes", "size"), [((3, 2), (8, 7)), ((2, 4), (5, 6)), ((1, 3), (1, 9)), ((5, 4), (8, 6))])
def test_a_grid_is_a_product_of_axes(kind: str, algorithm: str, modes: tuple[int, int], size: tuple[int, int]) -> None:
    make, dense, _ = KINDS[kind]
    first, second = dense(modes[0], size[0]), dense(modes[1], size[1])
    A, count = np.kron(first, second), first.shape[1] * second.shape[1]
    decoder = make(modes, size, algorithm=algorithm)
    check_linear(decoder, A, (count,), size)
    check_linear(decoder, A, (first.shape[1], second.shape[1]), size)


@every_kind
@both
def test_three_axes(kind: str, algorithm: str) -> None:
    make, dense, _ = KINDS[kind]
    A = np.kron(np.kron(dense(2, 4), dense(2, 3)), dense(3, 5))
    check_linear(make((2, 2, 3), (4, 3, 5), algorithm=algorithm), A, (A.shape[1],), (4, 3, 5))


def test_axes_of_different_kinds() -> None:
    """Periodic along one axis, walls along the other."""
    A = np.kron(fourier(3, 8), cosine(4, 5))
    check_linear(Transform([Axis("waves", 8, 3), Axis("cosines", 5, 4)]), A, (20,), (8, 5))


@both
@pytest.mark.parametrize(("radius", "size"), [(0, (4, 4)), (1, (5, 4)), (2.5, (8, 9)), (3, (7, 6)), (4, (8, 8))])
def test_the_disc_keeps_the_modes_inside(algorithm: str, radius: float, size: tuple[int, int]) -> None:
    reach = int(radius) + 1
    whole = Fourier(reach, size)
    inside = (whole.frequencies.double().square().sum(1).sqrt() <= radius).numpy()
    A = np.kron(fourier(reach, size[0]), fourier(reach, size[1]))[:, inside]
    decoder = Fourier.disc(radius, size, algorithm=algorithm)
    assert decoder.count == inside.sum() and isinstance(decoder, Fourier)
    assert torch.equal(decoder.frequencies, whole.frequencies[torch.as_tensor(inside)])
    check_linear(decoder, A, (decoder.count,), size)
    scale = 1.0 / (1.0 + decoder.frequencies.double().square().sum(1))
    check_linear(Fourier.disc(radius, size, scale=scale), A * scale.numpy(), (decoder.count,), size)


def test_the_disc_spans_plane_waves() -> None:
    """Every cos(k.r + phase) with |k| <= radius is decoded without loss, every other lost altogether."""
    n, radius = 12, 3.5
    decoder = Fourier.disc(radius, (n, n))
    grid = torch.arange(n, dtype=torch.float64) * (2 * torch.pi / n)
    for p in range(-5, 6):
        for q in range(-5, 6):
            wave = torch.cos(p * grid[:, None] + q * grid + 0.3)[None]
            again = decoder(decoder.pinv(wave, (decoder.count,)))
            expected = wave if p * p + q * q <= radius**2 else torch.zeros_like(wave)
            assert torch.allclose(again, expected, rtol=0, atol=1e-12), (p, q)


@pytest.mark.parametrize("latent", [(2, 12), (24,), (2, 4, 3)])
def test_channels_are_fields_side_by_side(latent: tuple[int, ...]) -> None:
    A = np.kron(cosine(4, 6), cosine(3, 5))
    nothing = np.zeros_like(A)
    both_fields = np.block([[A, nothing], [nothing, A]])
    check_linear(DCT((4, 3), (6, 5), channels=2), both_fields, latent, (2, 6, 5))
    fields = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    spread = np.repeat([0.5, 2.0], 12)
    check_linear(DCT((4, 3), (6, 5), channels=2, scale=fields), both_fields * spread, latent, (2, 6, 5))
    each = torch.linspace(0.1, 1.0, 12, dtype=torch.float64)
    check_linear(
        DCT((4, 3), (6, 5), channels=2, scale=each.reshape(4, 3)), both_fields * np.tile(each, 2), latent, (2, 6, 5)
    )
    every = torch.linspace(0.1, 1.0, 24, dtype=torch.float64).reshape(2, 4, 3)
    decoder = DCT((4, 3), (6, 5), channels=2, scale=every)
    check_linear(decoder, both_fields * every.reshape(-1).numpy(), latent, (2, 6, 5))


def test_frequencies_name_the_coefficients() -> None:
    assert Fourier(3, 8).frequencies[:, 0].tolist() == [0, 1, 2, 1, 2]
    assert Fourier(5, 8).frequencies[:, 0].tolist() == [0, 1, 2, 3, 4, 1, 2, 3]
    assert DCT(3, 8).frequencies[:, 0].tolist() == [0, 1, 2]
    assert DST(3, 8).frequencies[:, 0].tolist() == DST(3, 8, cells=True).frequencies[:, 0].tolist() == [1, 2, 3]
    assert DCT(2, (3, 3)).frequencies.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


# ------------------------------------------------------------------ properties


@settings(max_examples=150)
@given(data=st.data())
def test_the_transpose_is_the_transpose(data: st.DataObject) -> None:
    """<A x, v> = <x, A^T v>, and A^T A = scale^2."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    make, _, most = KINDS[kind]
    size = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=2)))
    modes = tuple(data.draw(st.integers(1, most(n))) for n in size)
    channels = data.draw(st.sampled_from([None, 1, 3]))
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    seed, chains = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 4))
    plain = make(modes, size, channels=channels, algorithm=algorithm)
    scale = normal(plain.count, seed=seed)
    decoder = make(modes, size, channels=channels, algorithm=algorithm, scale=scale)
    x = normal(chains, (channels or 1) * decoder.count, seed=seed + 1)
    v = normal(chains, *decoder.shape, seed=seed + 2)
    inner, outer = (decoder(x) * v).flatten(1).sum(1), (x * decoder.vjp(x)(v)).sum(1)
    assert torch.allclose(inner, outer, rtol=0, atol=1e-12 * (1 + float(v.norm() * x.norm()) * decoder.norm()))
    squares = scale.square().repeat(channels or 1)
    assert torch.allclose(decoder.vjp(x)(decoder(x)), squares * x, rtol=0, atol=1e-12 * (1 + float(squares.max())))
    assert torch.allclose(plain.vjp(x)(plain(x)), x, rtol=0, atol=1e-12)
    assert torch.allclose(plain(x).flatten(1).norm(dim=1), x.norm(dim=1), rtol=1e-12, atol=0)


@every_kind
@both
def test_autograd_goes_through(kind: str, algorithm: str) -> None:
    decoder = KINDS[kind][0]((2, 3), (5, 6), scale=0.7, algorithm=algorithm)
    x = normal(2, decoder.count).requires_grad_()
    v = normal(2, 5, 6, seed=1)
    (gradient,) = torch.autograd.grad(decoder(x), x, v)
    assert torch.allclose(gradient, decoder.vjp(x.detach())(v), rtol=0, atol=1e-13)


@every_kind
@both
@pytest.mark.parametrize("size", [(40,), (12, 15)])
def test_float32_stays_float32(kind: str, algorithm: str, size: tuple[int, ...]) -> None:
    make = KINDS[kind][0]
    scale = torch.linspace(0.1, 1.0, make(5, size).count, dtype=torch.float64)
    double = make(5, size, scale=scale, algorithm=algorithm)
    x, v = normal(3, double.count), normal(3, *size, seed=1)
    for single in (double, double.to(x.float())):
        z, pulled = single(x.float()), single.vjp(x.float())(v.float())
        back = single.pinv(v.float(), (double.count,))
        assert {z.dtype, pulled.dtype, back.dtype} == {torch.float32}
        assert torch.allclose(z.double(), double(x), rtol=0, atol=1e-5)
        assert torch.allclose(pulled.double(), double.vjp(x)(v), rtol=0, atol=1e-5)
        assert torch.allclose(back.double(), double.pinv(v, (double.count,)), rtol=0, atol=1e-4)
    gram = double.to(x.float()).gram((double.count,), None, x[:0].float())
    assert {gram.root.dtype, gram.eigenvalues.dtype} == {torch.float32} and gram.basis is None


def test_no_chains_give_no_events() -> None:
    decoder = DCT((2, 2), (4, 5), channels=2)
    x = torch.zeros(0, 8, dtype=torch.float64)
    assert decoder(x).shape == (0, 2, 4, 5)
    assert decoder.vjp(x)(torch.zeros(0, 2, 4, 5, dtype=torch.float64)).shape == (0, 8)


def test_the_gram_matrix_needs_no_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Tensor:
        raise AssertionError("eigh or svd of a diagonal matrix")

    monkeypatch.setattr(torch.linalg, "eigh", refuse)
    monkeypatch.setattr(torch.linalg, "svd", refuse)
    decoder = Fourier((40, 40), (100, 100), scale=2.0)
    diagonal = torch.rand(decoder.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    gram = decoder.gram((decoder.count,), diagonal, torch.zeros(0, decoder.count, dtype=torch.float64))
    assert gram.basis is None and torch.allclose(gram.eigenvalues, 4 * diagonal, rtol=1e-15, atol=0)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Fourier(7, 10), SettingError, "at most 6 modes on 10 points, got modes = 7"),
        (lambda: DCT(11, 10), SettingError, "at most 10 modes on 10 points"),
        (lambda: DST((3, 9), (4, 8)), SettingError, "at most 8 modes on 8 points"),
        (lambda: DCT(0, 10), SettingError, "modes must be a whole number >= 1, got 0"),
        (lambda: DCT(2.5, 10), SettingError, "modes must be a whole number >= 1, got 2.5"),
        (lambda: Fourier(1, 0), SettingError, "size must be a whole number >= 1"),
        (lambda: DCT((2, 2), 10), ShapeError, "2 numbers of modes for a grid of 1 axes"),
        (lambda: Fourier.disc(5, (8, 20)), SettingError, r"radius must lie in \[0, 4\] on a grid \(8, 20\), got 5"),
        (lambda: DCT(3, 10, scale=[1.0, 2.0]), ShapeError, r"scale \(2,\) does not fit 1 x 3 coefficients"),
        (lambda: DCT(3, 10, scale=float("nan")), SettingError, "scale must be finite"),
        (lambda: DCT(3, 10, channels=0), SettingError, "channels must be a whole number >= 1"),
        (lambda: DCT(3, 10, algorithm="slow"), SettingError, "algorithm must be one of"),
        (lambda: DCT(3, 10)(torch.ones(2, 4)), ShapeError, r"DCT takes 3 latent numbers, events \(4,\) have 4"),
        (lambda: DCT(3, 10, channels=2)(torch.ones(2, 3)), ShapeError, "takes 6 latent numbers"),
        (lambda: DCT(3, 10).to(torch.ones(1, dtype=torch.float16)), DtypeError, "float32 or float64"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
