"""Noise of compiled steps: the stream of ``normal_`` bit for bit, and the distribution that it must have."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from casal.sampling import fast_noise
from casal.sampling.fast_noise import Fill, fast_normal
from casal.sampling.tiles import generator

CPU = torch.device("cpu")
DRAWS = 1 << 24
STREAMS = 8


@pytest.fixture(scope="module")
def fill() -> Fill:
    found = fast_normal(1000, CPU)
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.mark.parametrize("numbers", [16, 17, 31, 32, 50, 623, 624, 625, 1000, 2047, 2048, 2064, 2049, 4100])
@pytest.mark.parametrize("before", [0, 1, 5, 623, 624, 700])
def test_pages_and_state_are_those_of_normal(fill: Fill, numbers: int, before: int) -> None:
    streams = [torch.Generator().manual_seed(7) for _ in range(2)]
    for stream in streams:
        torch.empty(before).uniform_(generator=stream)
    pages, wanted = torch.empty(3, numbers), torch.empty(3, numbers)
    fill(pages, streams[0])
    for page in wanted:
        page.normal_(generator=streams[1])
    assert torch.equal(pages, wanted)
    assert torch.equal(streams[0].get_state(), streams[1].get_state())


def test_a_million_numbers_have_the_same_bits_and_are_near_box_and_muller_in_float64(fill: Fill) -> None:
    numbers = 1 << 20
    streams = [torch.Generator().manual_seed(3) for _ in range(3)]
    page = torch.empty(1, numbers)
    fill(page, streams[0])
    assert torch.equal(page[0].view(torch.int32), torch.empty(numbers).normal_(generator=streams[1]).view(torch.int32))
    first, second = torch.rand(numbers, generator=streams[2]).double().reshape(-1, 2, 8).unbind(1)
    radius, angle = (-2 * torch.log1p(-first)).sqrt(), 2 * math.pi * second
    exact = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()
    assert float((page[0].double() - exact).abs().max()) < 3e-6


def moments_off(numbers: Tensor) -> float:
    """The largest error of the moments 1 to 8, in standard errors. Of w^k it is the root of (2k-1)!! - E[w^k]^2."""
    worst = 0.0
    power = torch.ones_like(numbers)
    for k in range(1, 9):
        power = power * numbers
        wanted = 0.0 if k % 2 else float(math.prod(range(1, k, 2)))
        error = math.sqrt((math.prod(range(1, 2 * k, 2)) - wanted**2) / numbers.numel())
        worst = max(worst, abs(float(power.mean(dtype=torch.float64)) - wanted) / error)
    return worst


def tails_off(numbers: Tensor) -> float:
    """The largest error of the counts beyond 1, 2, ..., 5 and 5.5 on either side, in standard deviations of a count."""
    worst = 0.0
    for edge in (1.0, 2.0, 3.0, 4.0, 5.0, 5.5):
        for side in (1, -1):
            wanted = numbers.numel() * math.erfc(edge / math.sqrt(2)) / 2
            count = int((side * numbers > edge).sum())
            worst = max(worst, abs(count - wanted) / math.sqrt(max(wanted, 1.0)))
    return worst


def streams_off(streams: Tensor) -> float:
    """The largest correlation of rows, of their squares, and of a row with its next numbers, in standard errors."""
    count = streams.shape[1]
    unit = torch.stack([streams, (streams**2 - 1) / math.sqrt(2)], 1).flatten(0, 1).double()
    between = (unit @ unit.T) / math.sqrt(count)
    worst = float((between - torch.diag(torch.diag(between))).abs().max())
    for lag in (1, 2, 8, 16, 397, 624):
        for series in (unit[0::2], unit[1::2]):
            own = (series[:, lag:] * series[:, :-lag]).sum(1) / math.sqrt(count - lag)
            worst = max(worst, float(own.abs().max()))
    return worst


@pytest.fixture(scope="module")
def drawn(fill: Fill) -> Tensor:
    """Streams (8, 2^21) of neighbouring tiles of one run, as ``casal.sampling.tiles.generator`` makes them."""
    pages = torch.empty(STREAMS, DRAWS // STREAMS)
    for k, page in enumerate(pages):
        fill(page[None], generator(0, k + 1, CPU))
    return pages


def test_moments_to_order_eight_tails_and_streams(drawn: Tensor) -> None:
    """Of 8, 12 and about 200 standard normal numbers the largest; beyond 5 is one in a million, for 200 in 10,000."""
    assert moments_off(drawn.flatten()) < 5
    assert tails_off(drawn.flatten()) < 5
    assert streams_off(drawn[:, : 1 << 19]) < 5


def test_the_largest_numbers_are_what_24_bits_allow(drawn: Tensor) -> None:
    """Uniform numbers of 24 bits end the tail at sqrt(48 log 2) = 5.77, as they do in ``normal_``: 8e-9 is beyond."""
    assert 5.0 < float(drawn.abs().max()) <= math.sqrt(48 * math.log(2)) + 1e-5


def test_broken_sources_are_found(drawn: Tensor) -> None:
    """A power check: what moments, tails and correlations find."""
    flat = drawn.flatten()
    assert moments_off(flat * 1.001) > 5
    assert moments_off(torch.where(flat.abs() > 4, 0.0, flat)) > 5
    assert tails_off(flat.clamp(-3.9, 3.9)) > 5
    assert tails_off(torch.where(flat > 4, -flat, flat)) > 5
    some = drawn[:, : 1 << 19].clone()
    some[1] = 0.99 * some[1] + math.sqrt(1 - 0.99**2) * some[0]
    assert streams_off(some) > 5
    again = drawn[:, : 1 << 19].clone()
    again[:, 624:] = again[:, 624:] * 0.9999 + again[:, :-624] * 0.01
    assert streams_off(again) > 5


def test_none_where_normal_has_to_do_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert fast_normal(15, CPU) is None
    assert fast_normal(1000, torch.device("meta")) is None
    monkeypatch.setattr(fast_noise, "_found", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fast_normal(1000, CPU) is None


def test_a_source_that_does_not_agree_is_not_used(monkeypatch: pytest.MonkeyPatch, fill: Fill) -> None:
    def other(pages: Tensor, generator: torch.Generator) -> None:
        fill(pages, generator)
        pages[-1, -1] += 1e-6

    def forgetful(pages: Tensor, generator: torch.Generator) -> None:
        state = generator.get_state()
        fill(pages, generator)
        generator.set_state(state)

    for wrong in (other, forgetful):
        monkeypatch.setattr(fast_noise, "_found", [])
        monkeypatch.setattr(fast_noise, "_compiled", lambda wrong=wrong: wrong)
        assert fast_normal(1000, CPU) is None


def test_it_is_found_whatever_the_default_dtype_is(monkeypatch: pytest.MonkeyPatch, fill: Fill) -> None:
    monkeypatch.setattr(fast_noise, "_found", [])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert fast_normal(1000, CPU) is not None
    finally:
        torch.set_default_dtype(before)
