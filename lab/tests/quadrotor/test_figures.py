"""Pictures of the quadrotor: one for each part of the data, with the right crosses and names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Annotation

from casal_lab.drawing import colour, styled, writer
from casal_lab.experiment import Outcome
from casal_lab.quadrotor.figures import FAILED, figures

WALLS = [(57, 62, -0.1, 0.5), (107, 112, -4.0, 0.3)]


def curve(*rates: float) -> dict[str, list[float]]:
    return {"r": [0.3, 0.8, 1.8][: len(rates)], "success": list(rates), "se": [0.01] * len(rates)}


def level(*heights: float) -> Any:
    """Flights at these heights."""
    return np.repeat(np.array(heights)[:, None], 200, axis=1)


def whole() -> dict[str, Any]:
    heights, passed = level(1.0, 0.1, -0.5), np.array([True, False, False])
    plane = np.stack([np.linspace(0, 2, 200)[None] * np.array([[1], [-1]]), np.zeros((2, 200))], axis=2)
    return {
        "curves": {
            "CASAL": curve(0.9, 0.9, 0.3),
            "CASAL, dual tau": curve(0.8),
            "Twisted": curve(1, 1, 1),
            "zero": curve(),
        },
        "impossible": 1.6,
        "flights": {(0.8, "CASAL"): (heights, heights, passed), (1.8, "Twisted"): (heights, heights, passed)},
        "walls": {0.8: WALLS},
        "ablation": {"dual 1": curve(0.9, 0.9), "dual tau": curve(0.5)},
        "random": {"CASAL": [0.9, 0.95], "Twisted": [1.0], "penalty": []},
        "planar": {"CASAL": (plane, plane, np.array([False, True]))},
        "discs": [(1.0, 0.0, 0.3)],
    }


@pytest.fixture
def drawn() -> Iterator[dict[str, Any]]:
    with styled():
        yield figures(Outcome("quadrotor", [], data=whole()))


def words(axis: Any) -> list[str]:
    return [child.get_text() for child in axis.get_children() if isinstance(child, Annotation)]


def crosses(axis: Any) -> list[tuple[float, float]]:
    marks = [line for line in axis.lines if line.get_marker() == "x"]
    assert all(line.get_color() == FAILED for line in marks)
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in marks]


def test_every_part_has_its_picture_and_is_written(tmp_path: Path) -> None:
    paths = writer(figures)(Outcome("quadrotor", [], data=whole()), tmp_path)
    names = ("figure_4", "flights", "ablation", "random", "planar")
    assert [path.name for path in paths] == [f"quadrotor_{name}.png" for name in names]
    assert all(path.exists() and path.with_suffix(".svg").exists() for path in paths)


@pytest.mark.parametrize("key", ["curves", "flights", "walls", "ablation", "random", "planar", "discs", "impossible"])
def test_a_part_that_was_not_run_is_left_out(key: str) -> None:
    data = whole()
    del data[key]
    with styled():
        left = figures(Outcome("quadrotor", [], data=data))
        assert len(left) == (5 if key in ("walls", "discs", "impossible") else 4)
        assert figures(Outcome("quadrotor", [])) == {}


def test_lines_have_the_colours_of_their_methods_and_their_names_at_the_end(drawn: dict[str, Any]) -> None:
    axis = drawn["quadrotor_figure_4"].axes[1]
    found = {note.get_text(): note for note in axis.get_children() if isinstance(note, Annotation)}
    assert found["Twisted"].get_color() == colour("Twisted")
    assert found["CASAL (ours)"].get_color() == found["CASAL, dual tau"].get_color() == colour("CASAL")
    assert "zero" not in found  # nothing was run of it
    assert any("impossible for r > 1.60 m" in text for text in found)
    heights = sorted(found[name].xy[1] for name in ("CASAL (ours)", "CASAL, dual tau", "Twisted"))
    assert min(np.diff(heights)) >= 0.055 - 1e-9


def test_a_cross_is_where_a_flight_hits(drawn: dict[str, Any]) -> None:
    first, missing, unwalled, _ = (drawn["quadrotor_flights"].axes[k] for k in (0, 1, 3, 2))
    assert np.allclose(crosses(first), [(0.58, 0.1), (1.08, -0.5)])
    assert "1 of 3 pass" in words(first)
    assert words(missing) == ["not run"]
    assert np.allclose(crosses(unwalled), [(2.0, 0.1), (2.0, -0.5)])  # no wall known: at the end
    (place,) = crosses(drawn["quadrotor_planar"].axes[0])
    assert place == pytest.approx((0.71, 0.0), abs=0.011)


def test_random_scenes_are_ordered_by_their_mean(drawn: dict[str, Any]) -> None:
    axis = drawn["quadrotor_random"].axes[0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["CASAL", "Twisted"]
    assert "mean 0.925, least 0.900" in words(axis)
