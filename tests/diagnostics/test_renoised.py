"""Samples that are noised and found again: closed forms of a Gaussian model, right and broken samples."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.renoised import ROUGHER, Group, Renoised, details, found_again, price_of, spaced

D, M, N = 24, 3, 64
F64 = torch.float64


@cache
def model() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A Gaussian with widths .1 to 3: covariance, orthonormal rows, values, and its exact gain (D, M)."""
    stream = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(D, D, generator=stream, dtype=F64))[0]
    cov = (turn * torch.logspace(-1, 0.5, D, dtype=F64) ** 2) @ turn.T
    A = torch.linalg.qr(torch.randn(D, M, generator=stream, dtype=F64))[0].T
    b = torch.randn(M, generator=stream, dtype=F64)
    return cov, A, b, torch.linalg.solve(A @ cov @ A.T, A @ cov).T


def ask(y: Tensor, s: float) -> Tensor:
    cov = model()[0]
    return torch.linalg.solve(cov + s**2 * torch.eye(D, dtype=F64), cov @ y.T).T


def draws(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n draws of the model, and n given A x = b."""
    cov, A, b, gain = model()
    x = torch.randn(2 * n, D, generator=torch.Generator().manual_seed(seed), dtype=F64) @ torch.linalg.cholesky(cov).T
    return x[:n], x[n:] + (b - x[n:] @ A.T) @ gain.T


def look(x: Tensor, free: Tensor, s: float, seed: int = 5, finest: float = 0.0) -> Renoised:
    _cov, A, b, _gain = model()
    kind = torch.zeros(len(x), dtype=torch.long)
    groups = Group(x, b.expand(len(x), -1), kind), Group(free, free @ A.T, kind[: len(free)])
    return found_again(ask, *groups, A, s, finest, torch.Generator().manual_seed(seed))


def largest(found: Renoised) -> float:
    columns = found.samples
    return float((columns.mean(0) / (columns.std(0) / math.sqrt(len(columns)))).abs().max())


def test_what_is_missed_of_a_gaussian_sample_is_known_without_noise() -> None:
    """With both signs of w the noise cancels: positions are those of x - D(x) - K (b - A D(x)) along unit vectors."""
    cov, A, b, _gain = model()
    (free, x), s = draws(N, 1), 0.5
    found = look(x, free, s)
    S = s**2 * torch.linalg.solve(cov + s**2 * torch.eye(D, dtype=F64), cov)
    u = x - ask(x, s) - (b - ask(x, s) @ A.T) @ torch.linalg.solve(A @ S @ A.T, A @ S)
    axes = torch.linalg.lstsq(u, found.samples[:, :8], driver="gelsd").solution
    torch.testing.assert_close(u @ axes, found.samples[:, :8], atol=1e-9, rtol=0)
    torch.testing.assert_close(axes.T @ axes, torch.eye(8, dtype=F64), atol=1e-6, rtol=0)
    assert found.follows > 0.8


@pytest.mark.statistical
def test_right_samples_leave_columns_of_mean_zero_and_broken_ones_do_not() -> None:
    _cov, A, b, gain = model()
    t = list[float]()
    for seed in range(12):
        free, x = draws(N, 10 + seed)
        t += [largest(look(x, free, s, seed)) for s in (0.1, 0.6)]
    assert max(t) < 4.5  # of 24 x 11 columns
    free, x = draws(N, 40)
    mean = b @ gain.T
    shifted = x + 1.2 * torch.linalg.eigh(torch.cov(x.T)).eigenvectors[:, -1] * x.std(0).norm()
    half = mean + (x - mean) * 0.5**0.5
    projected = free + (b - free @ A.T) @ A
    noisy = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    noisy = noisy + (b - noisy @ A.T) @ A
    for broken in (shifted, half, projected, noisy):
        assert max(largest(look(broken, free, s)) for s in (0.1, 0.6)) > 5.0


def test_errors_that_samples_of_one_value_share_are_measured_at_the_models_own() -> None:
    """What positions of u vary by beside the place; chains with values of their own share nothing."""
    free, x = draws(N, 2)
    exact = look(x, free, 0.5)
    assert float((exact.local[:8] / exact.free[:, :8].std(0)).max()) < 0.8  # directions are not those of the model
    A = model()[1]
    own = Group(free, free @ A.T, torch.zeros(N, dtype=torch.long))
    apart = found_again(ask, own, own, A, 0.5, 0.0, torch.Generator().manual_seed(0))
    assert not bool(apart.local.any())  # chains with values of their own share nothing
    assert apart.finds(6.0) == pytest.approx(6.0 / math.sqrt(N) / apart.follows)
    assert look(x, free, 0.5, finest=0.1).allowed[-1] == pytest.approx(0.1)


def test_levels_and_price() -> None:
    assert spaced(8.0, 0.5, 2) == pytest.approx([1.0, 4.0])
    kinds = torch.tensor([0] * 10 + [2] * 6)
    assert price_of(3, kinds) == 4 * 16 + 10 + 6
    assert price_of(8, kinds) == 4 * 16 + 10 + 8


@pytest.mark.statistical
def test_a_right_run_is_trusted_and_the_check_is_in_its_figures() -> None:
    target = casal.edm(
        lambda x, s: ask(x.to(F64), float(s)).to(x),
        casal.karras_sigmas(30, 0.02, 20.0),
        shape=(D,),
        time="scalar",
        dtype=F64,
    )
    _cov, A, b, _gain = model()
    found = casal.sample(target, casal.Affine(A, b), casal.Matheron(), 48, seed=1).fidelity
    assert found.verdict == "trusted", found.reasons
    assert found.figures["found_again_p"] > 0.003
    assert found.figures["detectable"] < 1.5
    unseen = casal.sample(target, casal.Affine(A, b), casal.Matheron(), 48, seed=1, check=False).fidelity
    assert unseen.verdict == "unchecked"


WIDE, THIN, FIELD = 8, 1e-3, 64


@cache
def sheet() -> Tensor:
    """Directions of a Gaussian of 64 dimensions with widths of 1 along eight of them, the first rows, and .001 else."""
    stream = torch.Generator().manual_seed(7)
    return torch.linalg.qr(torch.randn(FIELD, FIELD, generator=stream, dtype=F64))[0]


def on_sheet(n: int, seed: int) -> Tensor:
    width = torch.full((FIELD,), THIN, dtype=F64)
    width[:WIDE] = 1.0
    return (torch.randn(n, FIELD, generator=torch.Generator().manual_seed(seed), dtype=F64) * width) @ sheet()


def ask_sheet(y: Tensor, s: float, turn: float = 0.0) -> Tensor:
    """The denoiser; turned within the wide directions it is no covariance."""
    width = torch.full((FIELD,), THIN, dtype=F64)
    width[:WIDE] = 1.0
    left = (y @ sheet().T) * (width**2 / (width**2 + s**2))
    left[:, :WIDE] += turn * (left[:, : WIDE // 2].repeat(1, 2) - left[:, WIDE // 2 : WIDE].repeat(1, 2))
    return left @ sheet()


@pytest.mark.statistical
def test_details_outside_the_directions_of_errors_are_seen_and_those_of_the_model_are_not() -> None:
    t = list[float]()
    for seed in range(12):
        free, x = on_sheet(N, 100 + seed), on_sheet(N, 200 + seed)
        for points in (x, x + 0.03 * torch.eye(FIELD, dtype=F64)[:1]):  # .03 in one coordinate
            own, other = details(ask_sheet, points, free, 0.05, torch.Generator().manual_seed(seed))
            gap = own.mean() - other.mean()
            t.append(float(gap / (own.var() / len(own) + other.var() / len(other)).sqrt()))
            assert points is x or math.exp(float(gap)) > ROUGHER
    assert max(map(abs, t[::2])) < 4.0
    assert min(t[1::2]) > 8.0


@pytest.mark.statistical
@pytest.mark.parametrize("off", [0.0, 0.05])
def test_values_that_the_network_cannot_produce_make_a_run_suspect(off: float) -> None:
    """Values of draws of the model pass; values off its sheet are met by the last projection alone."""
    target = casal.edm(
        lambda x, s: ask_sheet(x.to(F64), float(s), 0.1).to(x),
        casal.karras_sigmas(40, 0.02, 20.0),
        shape=(FIELD,),
        time="scalar",
        dtype=F64,
    )
    free = casal.sample(target, None, "auto", 32, seed=5, check=False).samples
    known = free[:, :12] + off * torch.randn(32, 12, generator=torch.Generator().manual_seed(1), dtype=F64)
    values = casal.Affine(torch.eye(FIELD, dtype=F64)[:12], casal.PerChain(known))
    found = casal.sample(target, values, casal.Matheron(), 32, seed=2).fidelity
    assert (found.figures["rougher"] > ROUGHER) == bool(off)
    assert any("details" in reason for reason in found.reasons) == bool(off)
    assert found.verdict == ("suspect" if off else "unchecked")
    assert off or "casal.calibrate" in found.reasons[0]
