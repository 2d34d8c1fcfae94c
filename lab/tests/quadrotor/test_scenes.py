"""Scenes: depths and classes by hand, margins against certificates, random scenes that can be flown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.errors import SettingError
from casal_lab.quadrotor.setup import LEAST_MARGIN, LEAST_PASSING, Disc, Scene, Wall, flights, scene

F64 = torch.float64


def level(*heights: float) -> torch.Tensor:
    return torch.tensor(heights, dtype=F64)[:, None, None].expand(-1, 200, 1)


def test_depths_and_classes_of_walls() -> None:
    place = Scene("two", (Wall(50, 55, -0.2, 0.4), Wall(100, 105, -4.0, 0.3)))
    depth = place.depth(level(1.0, 0.35, 0.1, -5.0))
    torch.testing.assert_close(depth, torch.tensor([-0.6, 0.05, 0.3, -1.0], dtype=F64))  # -1 m: below the first is 4.8
    assert place.classes(level(1.0, 0.35, -0.3, -5.0)).tolist() == [3, 3, 1, 0]


def test_depths_and_sides_of_discs() -> None:
    place = Scene("one", discs=(Disc(1.0, 0.0, 0.5),))
    time = torch.linspace(0, 2, 200, dtype=F64)
    above, below = (torch.stack([time, side * 0.3 * time * (2 - time)], dim=1) for side in (1.0, -1.0))
    paths = torch.stack([above, below])
    torch.testing.assert_close(place.depth(paths), torch.full((2,), 0.2, dtype=F64), atol=1e-4, rtol=0)
    assert place.classes(paths).tolist() == [0, 1]  # clockwise above, counterclockwise below


def test_the_sets_say_the_same_as_the_depth() -> None:
    """Whole flights, and the numbers that walls see: free if and only if the depth is at most zero."""
    place = scene("hard", r=0.8)
    machine = place.vehicle
    paths = flights()[:3000]
    events = torch.zeros((len(paths), *machine.event), dtype=F64)
    events[:, :, 0] = paths[:, :, 0] / machine.scales[0]
    free = place.depth(paths) <= 0.0
    assert 5 < int(free.sum()) < 200
    for constraint, z in ((place.obstacles, events), (place.seen, events.reshape(len(paths), -1)[:, place.rows])):
        assert torch.equal(constraint.violation(z) <= 0.0, free)
    discs = scene("discs")
    places = flights("planar")[:500]
    seen = places[:, :, :2] / discs.vehicle.scales[0]
    assert torch.equal(discs.seen.violation(seen) <= 0.0, discs.depth(places) <= 1e-12)


def test_margins_are_reached_and_not_passed() -> None:
    """A class with room has a flight in it: full tilt up clears three walls whose margin it is; none does better."""
    place = scene("hard", r=0.8)
    margins = place.margins()
    assert margins[7] == pytest.approx(0.33, abs=0.01) and margins[0] < -1.0 and margins[4] < -1.0
    paths = flights()
    free = place.depth(paths) <= 0.0
    room = -place.depth(paths[free])
    for label, best in margins.items():
        mine = room[place.classes(paths[free]) == label]
        assert best >= (float(mine.max()) if len(mine) else -np.inf) - 1e-9
    assert scene("hard", r=1.3).margin(6) > 0 > scene("hard", r=1.8).margin(6)
    assert place.margin(7, u_max=0.4) < margins[7]


def test_random_scenes_are_drawn_by_their_seed_and_can_be_flown() -> None:
    one, again, other = (scene("random", seed=seed) for seed in (7, 7, 8))
    assert one == again and one.walls != other.walls
    for place in (one, other):
        assert float((place.depth(flights()) <= 0).double().mean()) >= LEAST_PASSING
        assert max(place.margins().values()) >= LEAST_MARGIN


def test_other_scenes() -> None:
    assert scene("slalom").walls[1].low == -0.8 and scene("hard").walls[1].low == -4.0
    with pytest.raises(SettingError, match="hard, slalom, random, discs; got 'easy'"):
        scene("easy")
    with pytest.raises(SettingError, match="r must be > 0"):
        scene("hard", r=-1.0)
    with pytest.raises(SettingError, match="walls or discs"):
        Scene("empty")
