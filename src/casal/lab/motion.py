"""Points or lines that move from frame to frame, as the player of the report page shows them.

A motion has panels side by side that share their axes, obstacles and frames; a panel shows n points or lines of one
method. Coordinates are kept as 16-bit integers, base64, 1 / 32768 of the axis apart: whatever lies within half an axis
of the limits keeps its place, farther points end there, and those that are not finite are not shown.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from casal.errors import SettingError

Array = npt.NDArray[np.float64]
Marks = npt.NDArray[np.int64]
Limits = tuple[float, float]

NEUTRAL, SUCCESS, FAILURE = 0, 1, 2
"""Marks of a point or line."""

UNITS, LOST = 32768, -32768
"""Integers that an axis spans, and the one for numbers that are not finite."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Points (F, n, 2) or lines (F, n, S, 2) of F frames."""

    title: str
    frames: Array
    marks: Marks | None = None  # (F, n) of NEUTRAL, SUCCESS, FAILURE
    colour: str = "#333333"  # of points and lines, except failures
    ghost: Array | None = None  # lines (n, S, 2), dashed, behind all frames

    def tally(self, frame: int) -> tuple[int, int] | None:
        """How many succeed and fail in a frame; None if the panel has no marks."""
        if self.marks is None:
            return None
        return int((self.marks[frame] == SUCCESS).sum()), int((self.marks[frame] == FAILURE).sum())


@dataclass(frozen=True, eq=False)
class Motion:
    """Panels side by side that play together.

    Attributes:
        name: Of its file: letters, digits, ``_`` and ``-``.
        title: What a reader sees above it.
        caption: What is shown, for those too who cannot see it.
        panels: At least one.
        xlim, ylim: Ends of the axes.
        xlabel, ylabel: Their names.
        shapes: Obstacles in all panels and frames: rectangles (x0, y0, x1, y1) and discs (x, y, r).
        frame_labels: One for each frame.
        equal: Whether both axes have the same unit of length, so that discs are round.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    xlim: Limits
    ylim: Limits
    xlabel: str = ""
    ylabel: str = ""
    shapes: Sequence[tuple[float, ...]] = ()
    frame_labels: Sequence[str] = ()
    equal: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name):
            raise SettingError(f"the name of a motion has letters, digits, _ and -; got {self.name!r}")
        for low, high in (self.xlim, self.ylim):
            if not (np.isfinite([low, high]).all() and low < high):
                raise SettingError(f"limits of an axis must be finite and ascend, got ({low}, {high})")
        if any(len(shape) not in (3, 4) or not np.isfinite(shape).all() for shape in self.shapes):
            raise SettingError("a shape is (x0, y0, x1, y1) or (x, y, r), of finite numbers")
        if not self.panels:
            raise SettingError("a motion has at least one panel")
        for panel in self.panels:
            self._check(panel)

    def _check(self, panel: Panel) -> None:
        head, shape = f"panel {panel.title!r}:", panel.frames.shape
        if len(shape) not in (3, 4) or shape[-1] != 2 or 0 in shape:
            raise SettingError(f"{head} frames must be (F, n, 2) or (F, n, S, 2) and not empty, got {shape}")
        if shape[0] != len(self.frame_labels):
            raise SettingError(f"{head} {shape[0]} frames, but {len(self.frame_labels)} labels of frames")
        if panel.marks is not None:
            if panel.marks.shape != shape[:2]:
                raise SettingError(f"{head} marks must be {shape[:2]}, got {panel.marks.shape}")
            if not np.isin(panel.marks, (NEUTRAL, SUCCESS, FAILURE)).all():
                raise SettingError(f"{head} marks must be {NEUTRAL}, {SUCCESS} or {FAILURE}")
        if panel.ghost is not None and (panel.ghost.ndim != 3 or panel.ghost.shape[2] != 2 or not panel.ghost.size):
            raise SettingError(f"{head} the ghost must be (n, S, 2) and not empty, got {panel.ghost.shape}")
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", panel.colour):
            raise SettingError(f"{head} the colour must be #rrggbb, got {panel.colour!r}")

    def record(self) -> dict[str, Any]:
        """All of it as JSON can hold it: what the page shows, and what ``of_record`` reads."""
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "xlim": list(map(float, self.xlim)),
            "ylim": list(map(float, self.ylim)),
            "xlabel": self.xlabel,
            "ylabel": self.ylabel,
            "shapes": [list(map(float, shape)) for shape in self.shapes],
            "frame_labels": list(self.frame_labels),
            "equal": self.equal,
            "panels": [
                {
                    "title": panel.title,
                    "colour": panel.colour,
                    "frames": self._pack(panel.frames),
                    "marks": None if panel.marks is None else _text(panel.marks.astype("u1")),
                    "ghost": None if panel.ghost is None else self._pack(panel.ghost),
                }
                for panel in self.panels
            ],
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Motion:
        """What ``record`` wrote; coordinates are rounded as the module says.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: It is not what ``record`` writes.
        """
        xlim, ylim = ((float(low), float(high)) for low, high in (record["xlim"], record["ylim"]))
        panels = []
        for part in record["panels"]:
            frames = _unpack(part["frames"], xlim, ylim)
            marks = None
            if part["marks"] is not None:
                marks = np.frombuffer(base64.b64decode(part["marks"], validate=True), "u1").astype(np.int64)
                marks = marks.reshape(frames.shape[:2])
            ghost = None if part["ghost"] is None else _unpack(part["ghost"], xlim, ylim)
            panels.append(Panel(part["title"], frames, marks, part["colour"], ghost))
        shapes = [tuple(map(float, shape)) for shape in record["shapes"]]
        texts = [record[key] for key in ("name", "title", "caption", "xlabel", "ylabel")]
        labels = list(record["frame_labels"])
        if not all(isinstance(text, str) for text in (*texts, *labels, *(panel.title for panel in panels))):
            raise TypeError("a text of a motion is of another kind than it should be")
        name, title, caption, xlabel, ylabel = texts
        equal = bool(record["equal"])
        return cls(name, title, caption, panels, xlim, ylim, xlabel, ylabel, shapes, labels, equal)

    def _pack(self, places: Array) -> dict[str, Any]:
        """Shape without the last axis, and both coordinates; one that all lines share in all frames is kept once."""
        packed: dict[str, Any] = {"shape": list(places.shape[:-1])}
        for axis, (key, limits) in enumerate((("x", self.xlim), ("y", self.ylim))):
            whole = _whole(places[..., axis], limits)
            flat = whole.reshape(-1, whole.shape[-1])
            packed[key] = _text(flat[0] if (flat == flat[0]).all() else flat)
        return packed


def _whole(values: Array, limits: Limits) -> npt.NDArray[np.int16]:
    """16-bit integers, the middle of the axis at 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint((values - sum(limits) / 2) * (UNITS / (limits[1] - limits[0])))
        return np.where(np.isfinite(values), np.clip(scaled, LOST + 1, UNITS - 1), LOST).astype("<i2")


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _unpack(packed: Mapping[str, Any], xlim: Limits, ylim: Limits) -> Array:
    shape = tuple(packed["shape"])
    places = np.empty((*shape, 2))
    for axis, (key, limits) in enumerate((("x", xlim), ("y", ylim))):
        whole = np.frombuffer(base64.b64decode(packed[key], validate=True), "<i2")
        whole = whole if whole.size == shape[-1] else whole.reshape(shape)
        values = sum(limits) / 2 + whole * ((limits[1] - limits[0]) / UNITS)
        places[..., axis] = np.where(whole == LOST, np.nan, values)
    return places
