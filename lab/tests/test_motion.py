"""Motions as data: nothing is lost on the way to the page and back but what rounding takes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from casal.errors import SettingError
from casal_lab.motion import LOST, UNITS, Backdrop, Group, Motion, Panel, Profile, ring, shades

LABELS = ("a", "b", "c")


def lines(seed: int = 0) -> Any:
    """Lines (3, 4, 7, 2) within the limits of ``made``, on the same times."""
    rng = np.random.default_rng(seed)
    frames = rng.uniform((0, -2), (5, 3), (3, 4, 7, 2))
    frames[..., 0] = np.linspace(0, 5, 7)
    return frames


def made(*panels: Panel, **changes: Any) -> Motion:
    motion = Motion("rise", "T", "C", panels, (0, 5), (-2, 3), "x", "y", [(0, 0, 1, 1), (2, 1, 0.5)], LABELS)
    return replace(motion, **changes)


def there_and_back(motion: Motion) -> Motion:
    return Motion.of_record(json.loads(json.dumps(motion.record())))


def test_a_motion_comes_back_to_a_32768th_of_its_axes() -> None:
    frames, rng = lines(), np.random.default_rng(1)
    marks = rng.integers(0, 3, (3, 4))
    points = rng.uniform((0, -2), (5, 3), (3, 9, 2))
    before = made(Panel("lines", frames, marks, "#44AA99", frames[0]), Panel("points", points), equal=True)
    after = there_and_back(before)
    for old, new in zip(before.panels, after.panels, strict=True):
        assert old.frames.shape == new.frames.shape
        assert (np.abs(old.frames - new.frames) <= 0.5001 * 5 / UNITS).all()
        assert (old.title, old.colour) == (new.title, new.colour)
    first, second = after.panels
    assert first.marks is not None
    assert first.ghost is not None
    assert (first.marks == marks).all()
    assert (np.abs(first.ghost - frames[0]) <= 0.5001 * 5 / UNITS).all()
    assert second.marks is None
    assert second.ghost is None
    kept = ("name", "title", "caption", "xlim", "ylim", "xlabel", "ylabel", "equal")
    assert all(getattr(before, key) == getattr(after, key) for key in kept)
    assert list(after.shapes) == [(0, 0, 1, 1), (2, 1, 0.5)]
    assert list(after.frame_labels) == list(LABELS)


def test_what_is_read_is_written_the_same() -> None:
    record = made(Panel("lines", lines())).record()
    assert Motion.of_record(record).record() == record


def test_what_is_behind_and_beside_comes_back() -> None:
    rng = np.random.default_rng(2)
    image, line = rng.integers(0, 256, (4, 5)).astype(np.uint8), rng.uniform((0, -2), (5, 3), (6, 2))
    shares, heights = rng.dirichlet((1, 1), 3), rng.uniform(0, 3, (3, 8))
    before = replace(
        made(Panel("p", lines())),
        panels=[Panel("p", lines(), shares=shares, heights=heights, jumps=True)],
        groups=[Group("low", 0.25, (1.0, 2.0)), Group("high", 0.75)],
        backdrop=Backdrop(image, line, line[::-1], "i", "c", "a"),
        profile=Profile("height", (-1.0, 1.0), np.array([0.0, 1.0, 4.0]), 2.0),
    )
    after = there_and_back(before)
    assert after.record() == before.record()
    (panel,) = after.panels
    assert panel.jumps
    assert panel.shares is not None and np.abs(panel.shares - shares).max() <= 5e-5
    assert panel.heights is not None and np.abs(panel.heights - np.minimum(heights, 2.0)).max() <= 2 / 255 / 2 + 1e-12
    assert list(after.groups) == list(before.groups)
    back = after.backdrop
    assert back.image is not None and (back.image == image).all()
    assert back.curve is not None and np.abs(back.curve - line).max() <= 0.5001 * 5 / UNITS
    assert back.area is not None and np.abs(back.area - line[::-1]).max() <= 0.5001 * 5 / UNITS
    assert after.profile is not None and after.profile.exact.tolist() == pytest.approx([0, 1, 2], abs=2 / 255)


def test_a_ring_is_as_thick_as_the_density_and_shades_are_dark_at_the_peak() -> None:
    angle = np.array([0.0, np.pi / 2, np.pi])
    outline = ring(angle, np.array([1.0, 4.0, 2.0]), 3.0, 0.8)
    assert np.linalg.norm(outline, axis=1) == pytest.approx([3.2, 3.8, 3.4, 3, 3, 3])
    assert outline[1] == pytest.approx([0, 3.8])
    assert outline[-1] == pytest.approx([3, 0])
    assert shades(np.array([[0.0, 1.0], [2.0, 4.0]])).tolist() == [[0, 64], [128, 255]]


def test_frames_that_are_all_alike_are_kept_once() -> None:
    still = np.broadcast_to(lines()[:1], (3, 4, 7, 2))
    motion = made(Panel("still", still))
    assert len(motion.record()["panels"][0]["frames"]["y"]) == -(-4 * 7 * 2 // 3) * 4
    assert np.abs(there_and_back(motion).panels[0].frames - still).max() <= 0.5001 * 5 / UNITS


def test_a_coordinate_that_all_lines_share_is_kept_once() -> None:
    packed = made(Panel("lines", lines())).record()["panels"][0]["frames"]
    assert len(packed["x"]) == 20  # 7 numbers of 2 bytes, base64
    assert len(packed["y"]) == 4 * 3 * 4 * 7 * 2 // 3


def test_points_beyond_the_axes_keep_their_place_for_half_an_axis_and_lost_ones_stay_lost() -> None:
    frames = lines()
    frames[0, 0, :4, 1] = (5.4, 1e300, -np.inf, np.nan)
    back = there_and_back(made(Panel("lines", frames))).panels[0].frames[0, 0, :, 1]
    assert back[0] == pytest.approx(5.4, abs=1e-4)
    assert back[1] == pytest.approx(5.5, abs=1e-3)
    assert np.isnan(back[2:4]).all()
    assert np.isfinite(back[4:]).all()


def test_the_page_reads_the_integers_as_this_file_writes_them() -> None:
    """The middle of the axis is 0, its ends 16384 away: what motion.js draws by."""
    corners = np.array([[[0, -2], [2.5, 0.5], [5, 3], [np.nan, np.nan]]] * 3)
    packed = made(Panel("points", corners)).record()["panels"][0]["frames"]
    found = [np.frombuffer(base64.b64decode(packed[key]), "<i2").tolist() for key in "xy"]
    assert found == [[-16384, 0, 16384, LOST]] * 2


def test_a_tally_counts_marks() -> None:
    panel = Panel("lines", lines(), np.array([[0, 1, 1, 2]] * 3))
    assert panel.tally(0) == (2, 1)
    assert Panel("lines", lines()).tally(0) is None


@pytest.mark.parametrize(
    ("panels", "changes", "message"),
    [
        ([], {}, "at least one panel"),
        ([Panel("p", np.zeros((3, 2)))], {}, r"\(F, n, 2\) or \(F, n, S, 2\) and not empty, got \(3, 2\)"),
        ([Panel("p", np.zeros((3, 0, 2)))], {}, "not empty"),
        ([Panel("p", np.zeros((2, 4, 2)))], {}, "2 frames, but 3 labels"),
        ([Panel("p", lines(), np.zeros((3, 5), dtype=int))], {}, r"marks must be \(3, 4\), got \(3, 5\)"),
        ([Panel("p", lines(), np.full((3, 4), 3))], {}, "marks must be 0, 1 or 2"),
        ([Panel("p", lines(), ghost=np.zeros((4, 2)))], {}, "ghost must be"),
        ([Panel("p", lines(), colour="red;x:url(y)")], {}, "#rrggbb"),
        ([Panel("p", lines(), shares=np.zeros((3, 1)))], {}, r"shares must be \(3, 0\)"),
        ([Panel("p", lines(), heights=np.zeros((3, 1)))], {}, "heights need a profile"),
        ([Panel("p", lines())], {"backdrop": Backdrop(np.zeros((2, 2)))}, "uint8"),
        ([Panel("p", lines())], {"backdrop": Backdrop(curve=np.zeros((1, 2)))}, r"curve .* got \(1, 2\)"),
        ([Panel("p", lines())], {"profile": Profile("y", (1.0, 0.0), np.ones(3), 1.0)}, "limits that ascend"),
        ([Panel("p", lines())], {"profile": Profile("y", (0.0, 1.0), np.ones(1), 1.0)}, r"G > 1, got \(1,\)"),
        ([Panel("p", lines())], {"name": "../x"}, "letters, digits"),
        ([Panel("p", lines())], {"xlim": (1.0, 1.0)}, r"ascend, got \(1.0, 1.0\)"),
        ([Panel("p", lines())], {"ylim": (0.0, np.inf)}, "finite"),
        ([Panel("p", lines())], {"shapes": [(0.0, 1.0)]}, "a shape is"),
        ([Panel("p", lines())], {"shapes": [(0.0, 1.0, np.inf)]}, "finite numbers"),
    ],
)
def test_what_cannot_be_shown_is_refused(panels: list[Panel], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace(made(Panel("p", lines())), panels=panels, **changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("panels"),
        lambda record: record.update(title=3),
        lambda record: record.update(xlim=[0]),
        lambda record: record.update(frame_labels=[1, 2, 3]),
        lambda record: record["panels"][0]["frames"].update(shape=[3, 4, 6]),
        lambda record: record["panels"][0]["frames"].update(y="?"),
        lambda record: record["panels"][0].update(marks="AAAA"),
        lambda record: record["panels"][0].update(title=None),
    ],
)
def test_a_damaged_record_is_refused(damage: Any) -> None:
    record = made(Panel("lines", lines(), np.ones((3, 4), dtype=int))).record()
    damage(record)
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Motion.of_record(record)
