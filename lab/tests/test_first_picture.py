"""The first picture: its numbers against a quadrature, and the file in the docs against a new run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import torch

import casal
from casal_lab.first_picture import GATES, FirstPicture, first_picture, percent, positions, turns

FILE = Path(__file__).parents[2] / "docs" / "images" / "first.svg"


@cache
def picture() -> FirstPicture:
    return first_picture()


def test_only_the_projection_has_the_wrong_share() -> None:
    exact, projection, ours = picture().panels
    assert projection.verdict == "not promised" and ours.verdict == "trusted"
    assert abs(ours.share - exact.share) < 4 * ours.error
    assert abs(projection.share - exact.share) > 20 * projection.error  # the test above has power


def test_the_exact_share_agrees_with_other_draws() -> None:
    # Quasi-random normal numbers through their own product with the waves, and obstacles by hand.
    points = torch.quasirandom.SobolEngine(5, scramble=True, seed=3).draw(2**17, dtype=torch.float64)
    flights = torch.special.ndtri(points.clamp(1e-12, 1 - 1e-12)) @ positions()
    hit = torch.zeros(len(flights), dtype=torch.bool)
    for first, last, low, high in GATES:
        hit |= ((flights[:, first:last] > low) & (flights[:, first:last] < high)).any(1)
    share = float(turns(flights[~hit]).mean())
    assert abs(share - picture().exact.share) < 0.003


def test_every_flight_is_feasible() -> None:
    obstacles = casal.Obstacles(intervals=GATES)
    for panel in picture().panels:
        assert float(obstacles.violation(panel.flights).max()) < 1e-8


def test_the_file_in_the_docs_shows_these_numbers() -> None:
    svg = FILE.read_text(encoding="utf-8")
    assert f"<title>{picture().description}</title>" in svg
    shown = re.findall(r'<text class="share"[^>]*>([^<]*)<', svg)
    assert shown == [percent(panel.share) for panel in picture().panels]
    assert "prefers-color-scheme: dark" in svg and len(svg) < 150_000
