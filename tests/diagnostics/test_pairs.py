"""The test of pairs: its p-value by enumeration, its size exactly, its power on a Gaussian."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from casal.diagnostics.pairs import Features, directions, exchangeable, signs, smallest
from casal.errors import SettingError, ShapeError

F64 = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=F64)


def test_few_pairs_take_all_signs_and_many_take_random_ones() -> None:
    every = signs(3, 7, seeded(0))
    assert sorted(map(tuple, every.tolist())) == sorted(itertools.product((-1.0, 1.0), repeat=3))
    assert every[0].tolist() == [1.0, 1.0, 1.0]
    some = signs(3, 6, seeded(0))
    assert some.shape == (7, 3) and some[0].tolist() == [1.0, 1.0, 1.0] and set(some.flatten().tolist()) == {-1.0, 1.0}


def test_the_p_value_of_two_statistics_by_hand() -> None:
    """The first column has p = 2/4 and 1/4; the smaller one, 1/4, is reached by two of four columns."""
    assert smallest(torch.tensor([[2.0, 3.0, 1.0, 0.0], [9.0, 1.0, 2.0, 3.0]])) == pytest.approx(2 / 4)
    assert smallest(torch.tensor([[0.0, 3.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]])) == 1.0


def by_hand(x: Tensor, y: Tensor, fit: Tensor, seed: int) -> float:
    """The p-value from the definition, every choice of signs written out."""
    values = directions(torch.cat([x, y]), fit, seeded(seed)).values
    gap = (values[: len(x)] - values[len(x) :]).tolist()
    columns = list(zip(*gap, strict=True))
    found = []
    for sign in itertools.product((1, -1), repeat=len(x)):
        t = [sum(s * g for s, g in zip(sign, c, strict=True)) / math.sqrt(sum(g * g for g in c)) for c in columns]
        found.append((max(map(abs, t)), sum(v * v for v in t) / len(t)))
    shares = [[sum(o[j] >= own[j] - 1e-7 for o in found) for j in (0, 1)] for own in found]
    return sum(min(share) <= min(shares[0]) for share in shares) / len(found)


@pytest.mark.parametrize("seed", range(3))
def test_the_p_value_is_that_of_the_enumeration(seed: int) -> None:
    x, y, fit = normal(5, 3, seed=seed) + seed, normal(5, 3, seed=10 + seed), normal(9, 3, seed=20 + seed)
    assert exchangeable(x, y, fit, generator=seeded(3)).p == pytest.approx(by_hand(x, y, fit, 3))


def test_the_level_is_exact_for_any_pairs() -> None:
    """Of the 2^7 ways to swap pairs, all equally likely under exchangeability, at most a share a has p <= a."""
    x, y, fit = normal(7, 30, seed=1) ** 3 + 1, normal(7, 30, seed=2), normal(12, 30, seed=3)
    found = []
    for swap in itertools.product((False, True), repeat=7):
        at = torch.tensor(swap)[:, None]
        found.append(exchangeable(torch.where(at, y, x), torch.where(at, x, y), fit, generator=seeded(0)).p)
    p = torch.tensor(found).sort().values
    assert bool((p >= torch.arange(1, 129) / 128 - 1e-9).all())
    assert float(p[0]) < 0.05  # and it can object at all


D, ROWS, PAIRS = 60, 6, 64


def conditioned(y: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Draws of N(0, diag(v)) with the values A y, exact at temperature one."""
    v = torch.logspace(0, -4, D, dtype=F64)
    A = normal(ROWS, D, seed=99)
    x = (temperature * v).sqrt() * torch.randn(y.shape, generator=generator, dtype=F64)
    return x + ((y - x) @ A.T) @ torch.linalg.solve((A * v) @ A.T, A * v)


@pytest.mark.statistical
def test_size_and_power_on_a_gaussian() -> None:
    """100 checks of exact draws, of half the temperature and of a projection: 5 %, and nearly all."""
    v, A = torch.logspace(0, -4, D, dtype=F64).sqrt(), normal(ROWS, D, seed=99)
    alarms = {"exact": 0, "half": 0, "projected": 0}
    for seed in range(100):
        g = seeded(1000 + seed)
        y, fit, free = (v * torch.randn(PAIRS, D, generator=g, dtype=F64) for _ in range(3))
        made = {
            "exact": conditioned(y, 1.0, g),
            "half": conditioned(y, 0.5, g),
            "projected": free + ((y - free) @ A.T) @ torch.linalg.pinv(A).T,
        }
        for kind, x in made.items():
            alarms[kind] += exchangeable(x, y, fit, flips=199, generator=g).p < 0.05
    assert alarms["exact"] <= 5 + 4 * math.sqrt(100 * 0.05 * 0.95)
    assert alarms["half"] >= 95 and alarms["projected"] >= 95


def test_features_that_the_pair_shares_are_left_out() -> None:
    x, y, fit = normal(40, 5, seed=1), normal(40, 5, seed=2), normal(40, 5, seed=3)
    own = Features(["shared", "other"], torch.ones(80, 2, dtype=F64))

    def more(points: Tensor) -> Features:
        shared = normal(40, 1, seed=7).repeat(2, 1)
        return Features(["shared", "other"], torch.cat([shared, points[:, :1]], 1))

    found = exchangeable(x, y, fit, more=more, generator=seeded(0))
    assert "shared" not in found.statistics and "other" in found.statistics
    with pytest.raises(SettingError, match="fixes every feature"):
        exchangeable(x, x, fit, more=lambda points: own, generator=seeded(0))


def test_the_objection_names_what_is_wrong_and_the_power_is_stated() -> None:
    x, y, fit = normal(100, 4, seed=1), normal(100, 4, seed=2), normal(100, 4, seed=3)
    right = exchangeable(x, y, fit, generator=seeded(0))
    assert right.passed and repr(right).startswith("SelfCheck passed")
    x[:, 2] += 1.3 * right.detectable
    found = exchangeable(x, y, fit, more=lambda p: Features(["third"], p[:, 2:3]), generator=seeded(0))
    assert not found.passed and "third" in found.objection and "too large" in found.objection
    assert 0.4 < right.detectable < 0.9 and "power" in repr(found) and "failed" in repr(found)
    few = exchangeable(x[:8], y[:8], fit, generator=seeded(0))
    assert few.detectable == math.inf and "too few pairs" in repr(few)


def test_shapes_and_numbers_are_checked() -> None:
    x = normal(8, 3, seed=1)
    with pytest.raises(ShapeError, match="got"):
        exchangeable(x, x[:4], x, generator=seeded(0))
    with pytest.raises(SettingError, match="size of nothing is not finite"):
        nan = Features(["size of nothing"], torch.full((16, 1), math.nan, dtype=F64))
        exchangeable(x, x + 1, x, more=lambda p: nan, generator=seeded(0))
