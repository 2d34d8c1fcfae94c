"""Random streams by key: equal for equal keys, and for no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import casal
from casal.streams import stream


def numbers(seed: int, *key: int | str, count: int = 4) -> torch.Tensor:
    return torch.randn(count, generator=stream(seed, *key), dtype=torch.float64)


def test_the_same_key_gives_the_same_numbers_and_any_other_does_not() -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (3, "pilot"), (3, "start", 0), (3, "start", 1), (2**70, 5)]
    first = [numbers(*key) for key in keys]
    assert all(torch.equal(one, numbers(*key)) for one, key in zip(first, keys, strict=True))
    assert len({tuple(one.tolist()) for one in first}) == len(keys)


def test_seeds_that_shared_their_32_bits_no_longer_share_chains() -> None:
    """torch seeds its generator with 32 bits, and these two batches had the same ones."""

    def start(n: int, generator: torch.Generator) -> torch.Tensor:
        return torch.randn((n, 2), generator=generator)

    target = casal.langevin(lambda x: x, steps=2, step_size=0.1, init=start)
    one, other = (
        casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), n, seed=seed, run=casal.Run(batch=16)).samples
        for seed, n in ((814, 48), (2357, 336))
    )
    assert not bool((one[32:48, None] == other[None]).any())


def collisions(first: list[float]) -> int:
    return len(first) - len(set(first))


def test_no_two_of_twenty_thousand_streams_begin_alike() -> None:
    """53 random bits each: a chance of 2e-8. Streams of 20 bits would have about 190 pairs."""
    first = [float(numbers(7, 3, batch, count=1)) for batch in range(20_000)]
    assert collisions(first) == 0
    few = [float(numbers(7, batch % (1 << 14), count=1)) for batch in range(0, 20_000, 2)]
    assert collisions(few) > 100  # the count sees copies


def test_words_of_the_state_come_from_the_key_alone() -> None:
    """Every word of the generator's state is that of the sequence, so that none is left from another seed."""
    words = np.random.SeedSequence(11, spawn_key=(4, 2)).generate_state(624)
    state = stream(11, 4, 2).get_state()[24 : 24 + 8 * 624].numpy().view(np.uint64)
    assert state.tolist() == words.tolist()


@pytest.mark.statistical
def test_moments_within_and_between_streams() -> None:
    """200 streams of 5000 normal numbers; a shifted mean of 1 % or a correlation of 1 % would be seen."""
    draws = torch.stack([numbers(5, 0, batch, count=5000) for batch in range(200)])
    total = draws.numel()
    for power, right, spread in ((1, 0.0, 1.0), (2, 1.0, math.sqrt(2.0)), (3, 0.0, math.sqrt(15.0))):
        assert abs(float(draws.pow(power).mean()) - right) < 4 * spread / math.sqrt(total)
    neighbours = (draws[:-1] * draws[1:]).mean()
    later = (draws[:, :-1] * draws[:, 1:]).mean()
    assert abs(float(neighbours)) < 4 / math.sqrt(total) and abs(float(later)) < 4 / math.sqrt(total)
    assert abs(float((draws + 0.01).mean())) > 4 / math.sqrt(total)
    mixed = (draws[:-1] + 0.01 * draws[1:]) * draws[1:]
    assert abs(float(mixed.mean())) > 4 / math.sqrt(total)
    within = draws.mean(1).var() * 5000  # a chi-square over its 199 degrees of freedom
    assert abs(float(within) - 1.0) < 4 * math.sqrt(2 / 199)
