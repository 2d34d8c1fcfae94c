"""Around its peaks a density has a mass, and right samples have that share there."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import Lineage
from casal.diagnostics.peaks import Misplaced, Region, around, climb, find_peaks, misplaced, weigh, with_bulk

from .populations import generator

CENTRES = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
SPREADS = torch.tensor([1.0, 0.05], dtype=torch.float64)
SHARES = torch.tensor([0.6, 0.4], dtype=torch.float64)
"""A narrow mode inside a wide one."""


def log_density(x: Tensor) -> Tensor:
    square = (x[:, None] - CENTRES).square().sum(2) / SPREADS**2
    return torch.logsumexp(SHARES.log() - 2 * SPREADS.log() - square / 2, 1)


def score(x: Tensor) -> Tensor:
    square = (x[:, None] - CENTRES).square().sum(2) / SPREADS**2
    part = torch.softmax(SHARES.log() - 2 * SPREADS.log() - square / 2, 1) / SPREADS**2
    return part @ CENTRES - x * part.sum(1, keepdim=True)


def draws(n: int, seed: int, shares: Tensor = SHARES) -> Tensor:
    stream = generator(seed)
    which = torch.multinomial(shares, n, replacement=True, generator=stream)
    return CENTRES[which] + SPREADS[which][:, None] * torch.randn((n, 2), generator=stream, dtype=torch.float64)


def below(x: Tensor) -> Tensor:
    """A half-space with all of the narrow mode, and most of the wide one."""
    return x[:, 0] < 1.5


def everywhere(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool)


def regions(z: Tensor) -> list[Region]:
    highest = z[log_density(z).argsort(descending=True)[:32]]
    x, g, way = climb(torch.cat([highest, z[:32], around(z, below, 32)]), score, below)
    return with_bulk(find_peaks(x, g, way, log_density(x).argsort(descending=True), score, below), 2)


def test_climbs_end_on_the_peaks() -> None:
    x, g, way = climb(draws(200, seed=0), score, everywhere)
    nearest = torch.cdist(x, CENTRES).amin(1)
    assert float(nearest.max()) < 0.01 and float(g.norm(dim=1).max()) < 1e-3 and torch.equal(g, way)


def test_climbs_slide_along_walls_and_stay_inside() -> None:
    """A Gaussian whose peak is behind two walls: the climb ends on the nearer one, where the slope is its normal."""
    wall = torch.tensor([0.6, 0.8], dtype=torch.float64)
    asked = list[Tensor]()

    def inside(x: Tensor) -> Tensor:
        return x @ wall <= -1.0

    def slope(x: Tensor) -> Tensor:
        asked.append(x[inside(x)])
        return torch.where(inside(x)[:, None], -x / torch.tensor([4.0, 1.0]).double(), math.nan)

    start = draws(100, seed=5) - 4.0 * wall
    x, g, way = climb(start[inside(start)], slope, inside, lambda x: -wall.expand_as(x))
    exact = -torch.linalg.solve(torch.diag(torch.tensor([0.25, 1.0]).double()), wall)
    exact = exact / -(exact @ wall)
    assert bool(inside(x).all()) and float((x - exact).abs().max()) < 0.01
    assert float(way.norm(dim=1).max()) < 0.02 < 0.3 < float(g.norm(dim=1).min())
    order = (x @ wall).argsort(descending=True)
    (found,) = find_peaks(x, g, way, order, slope, inside)
    assert torch.allclose(
        (found.root @ found.root.T).inverse(),
        torch.diag(torch.tensor([0.25, 1.0]).double()) + torch.outer(g[0], g[0]),
        atol=0.02,
    )


def test_points_around_are_in_the_set_and_far_away() -> None:
    found = around(draws(100, seed=1), below, 40)
    assert len(found) == 40 and bool(below(found).all()) and float(found.norm(dim=1).max()) > 30.0


def found(z: Tensor) -> list[Region]:
    return weigh(regions(z), z, Lineage(torch.ones(len(z)), torch.arange(len(z))), lambda _, y: log_density(y), below)


def test_masses_are_those_of_the_mixture() -> None:
    """In the narrow region, radius sqrt(4/3) standard deviations, are 1 - exp(-2/3) of its weight."""
    z = draws(2000, seed=2)
    narrow, bulk = sorted(found(z[below(z)]), key=lambda region: float(region.root.det().abs()))
    inside = torch.linalg.vector_norm(draws(400_000, seed=3), dim=1)
    exact = draws(400_000, seed=3)
    away = torch.linalg.vector_norm(exact - CENTRES[1], dim=1) / SPREADS[1]
    share = ((inside <= math.sqrt(4 / 3)) & (away >= math.sqrt(4 / 3) + 3.0) & below(exact)).double().mean()
    ratio = 0.4 * (1 - math.exp(-2 / 3)) / float(share)
    assert abs(narrow.log_mass - bulk.log_mass - math.log(ratio)) < 4 * math.hypot(narrow.error, bulk.error) + 0.03
    assert narrow.error < 0.1 and bulk.error < 0.15


def test_right_samples_raise_no_alarm_and_a_missed_mode_does() -> None:
    few = torch.tensor([0.98, 0.02], dtype=torch.float64)
    right, wrong = list[float](), list[Misplaced]()
    for seed in range(20):
        for shares, kept in ((SHARES, right), (few, wrong)):
            z = draws(500, 10 + seed, shares)
            z = z[below(z)]
            worst = misplaced(found(z), float(len(z)))
            assert worst is not None
            kept.append(abs(worst.t) if kept is right else worst)  # type: ignore[arg-type]
    assert max(right) < 4.5
    assert all(one.t < -5.0 and one.share < 0.05 and one.expected > 0.1 for one in wrong)


def test_regions_of_which_little_is_known_are_left_out() -> None:
    """Along a ridge that is bent a Gaussian says nothing."""

    def ring(x: Tensor) -> Tensor:
        return -((x.norm(dim=1) - 3.0) ** 2) / (2 * 0.02**2)

    angle = 6.28 * torch.rand(500, generator=generator(4), dtype=torch.float64)
    z = 3.0 * torch.stack([angle.cos(), angle.sin()], 1)
    wide = Region(torch.zeros(2, dtype=torch.float64), 2.0 * torch.eye(2, dtype=torch.float64))
    lineage = Lineage(torch.ones(500), torch.arange(500))
    assert not weigh([wide], z, lineage, lambda _, y: ring(y), lambda y: torch.ones(len(y), dtype=torch.bool))


@pytest.mark.parametrize("known", [True, False])
def test_a_mode_without_samples_is_seen(known: bool) -> None:
    """Two modes 20 standard deviations apart, all chains in one: by the potential, and by the score alone."""
    centre = torch.tensor([3.0, 0.0], dtype=torch.float64)

    def energy(x: Tensor) -> Tensor:
        parts = [-(x - side * centre).square().sum(1) / (2 * 0.3**2) for side in (-1.0, 1.0)]
        return -torch.logsumexp(torch.stack(parts), 0)

    def gradient(x: Tensor) -> Tensor:
        parts = torch.stack([-(x - side * centre).square().sum(1) / (2 * 0.3**2) for side in (-1.0, 1.0)], 1)
        return (x - (torch.softmax(parts, 1) @ torch.stack([-centre, centre]))) / 0.3**2

    def start(n: int, stream: torch.Generator) -> Tensor:
        return -centre + 0.3 * torch.randn((n, 2), generator=stream, dtype=torch.float64)

    target = casal.energy(energy, steps=60, init=start) if known else casal.langevin(gradient, steps=100, init=start)
    result = casal.sample(target, casal.HalfSpace([0.0, 1.0], 0.5), casal.HMC(), n=200, seed=0, check=0.6)
    assert result.fidelity.verdict == "suspect"
    assert any("around a peak" in reason for reason in result.fidelity.reasons), result.fidelity.reasons
