"""Points or lines that move from frame to frame, as the player of the report page shows them.

A motion has panels side by side that share their axes, obstacles, backdrop and frames; a panel shows n points or lines
of one method. Beside them it may tell, frame by frame, the share of its chains in named groups and a histogram of one
coordinate, each with the exact answer. Coordinates are kept as 16-bit integers, base64, 1 / 32768 of the axis apart:
whatever lies within half an axis of the limits keeps its place, farther points end there, and those that are not finite
are not shown. Heights and shades are kept as 8-bit integers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from casal.errors import SettingError

Array = npt.NDArray[np.float64]
Marks = npt.NDArray[np.int64]
Shades = npt.NDArray[np.uint8]
Limits = tuple[float, float]

NEUTRAL, SUCCESS, FAILURE = 0, 1, 2
"""Marks of a point or line."""

UNITS, LOST = 32768, -32768
"""Integers that an axis spans, and the one for numbers that are not finite."""

TALLEST = 255
"""The integer of the top of a histogram, and of the darkest shade."""


class Group(NamedTuple):
    """A part of the plane whose share of the chains is told."""

    name: str
    exact: float  # share under the exact distribution
    at: tuple[float, float] | None = None  # where its name stands in the panels


@dataclass(frozen=True, eq=False)
class Backdrop:
    """What all panels show behind their points; a part with a label is in the legend."""

    image: Shades | None = None  # (H, W), the first row at the top: a density over the axes, 255 the darkest
    curve: Array | None = None  # (S, 2), a line: a thin set
    area: Array | None = None  # (S, 2), the outline of a filled area: the exact distribution on a thin set
    image_label: str = ""
    curve_label: str = ""
    area_label: str = ""


@dataclass(frozen=True, eq=False)
class Profile:
    """The axes of the histograms below the panels, and the exact density on them."""

    label: str  # of the coordinate
    limits: Limits
    exact: Array  # (G,), density at even places from one limit to the other
    top: float  # highest density shown


def shades(density: Array) -> Shades:
    """A density as an image of a backdrop: its largest value is the darkest."""
    return np.rint(TALLEST * density / density.max()).astype(np.uint8)


def plane(width: float, height: float, pixels: int) -> tuple[Array, Array]:
    """x and y (pixels, pixels) of an image over axes from -width to width and -height to height, the top row first."""
    places = (2 * np.arange(pixels) + 1) / pixels - 1
    x, y = np.meshgrid(width * places, -height * places)
    return x, y


def circle(radius: float) -> Array:
    """A circle about 0 as a curve of a backdrop, (181, 2)."""
    turn = np.linspace(-np.pi, np.pi, 181)
    return radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)


def ring(angle: Array, density: Array, radius: float, height: float) -> Array:
    """The outline (2 S, 2) of a ring outside a circle about 0; its thickness is the density, ``height`` at the peak."""
    turn = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return np.concatenate([turn * (radius + height * density / density.max())[:, None], radius * turn[::-1]])


@dataclass(frozen=True, eq=False)
class Panel:
    """Points (F, n, 2) or lines (F, n, S, 2) of F frames."""

    title: str
    frames: Array
    marks: Marks | None = None  # (F, n) of NEUTRAL, SUCCESS, FAILURE
    colour: str = "#333333"  # of points and lines, except failures
    ghost: Array | None = None  # lines (n, S, 2), dashed, behind all frames
    shares: Array | None = None  # (F, G), of its chains in each group of the motion
    heights: Array | None = None  # (F, B), density of its chains in even bins of the profile
    jumps: bool = False  # whether chains may become copies of others: long ways between two frames are not drawn

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
        groups: Whose shares are told below the panels.
        backdrop: What all panels show behind their points.
        profile: Axes of the histograms below the panels.
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
    groups: Sequence[Group] = ()
    backdrop: Backdrop = Backdrop()
    profile: Profile | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name):
            raise SettingError(f"the name of a motion has letters, digits, _ and -; got {self.name!r}")
        for low, high in (self.xlim, self.ylim):
            if not (np.isfinite([low, high]).all() and low < high):
                raise SettingError(f"limits of an axis must be finite and ascend, got ({low}, {high})")
        if any(len(shape) not in (3, 4) or not np.isfinite(shape).all() for shape in self.shapes):
            raise SettingError("a shape is (x0, y0, x1, y1) or (x, y, r), of finite numbers")
        self._check_backdrop()
        if not self.panels:
            raise SettingError("a motion has at least one panel")
        for panel in self.panels:
            self._check(panel)

    def _check_backdrop(self) -> None:
        back, profile = self.backdrop, self.profile
        if back.image is not None and (back.image.ndim != 2 or not back.image.size or back.image.dtype != np.uint8):
            raise SettingError(f"the image of a backdrop must be (H, W) of uint8, got {back.image.shape}")
        for name, line in (("curve", back.curve), ("area", back.area)):
            if line is not None and (line.ndim != 2 or line.shape[1] != 2 or len(line) < 2):
                raise SettingError(f"the {name} of a backdrop must be (S, 2) with S > 1, got {line.shape}")
        if profile is not None:
            numbers = np.concatenate([[*profile.limits, profile.top], profile.exact])
            if not np.isfinite(numbers).all() or profile.limits[0] >= profile.limits[1] or profile.top <= 0:
                raise SettingError("a profile has finite limits that ascend, a top > 0 and finite densities")
            if profile.exact.ndim != 1 or len(profile.exact) < 2:
                raise SettingError(f"the exact density of a profile must be (G,) with G > 1, got {profile.exact.shape}")

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
        wanted = (shape[0], len(self.groups))
        if panel.shares is not None and (panel.shares.shape != wanted or not np.isfinite(panel.shares).all()):
            raise SettingError(f"{head} shares must be {wanted} of finite numbers, got {panel.shares.shape}")
        if panel.heights is not None:
            if self.profile is None:
                raise SettingError(f"{head} heights need a profile of the motion")
            if panel.heights.ndim != 2 or len(panel.heights) != shape[0] or not np.isfinite(panel.heights).all():
                raise SettingError(f"{head} heights must be ({shape[0]}, B) and finite, got {panel.heights.shape}")
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
            "groups": [{"label": group.name, "exact": float(group.exact), "at": group.at} for group in self.groups],
            "backdrop": self._packed_backdrop(),
            "profile": None if self.profile is None else _packed_profile(self.profile),
            "panels": [
                {
                    "title": panel.title,
                    "colour": panel.colour,
                    "frames": self._pack(panel.frames),
                    "marks": None if panel.marks is None else _text(panel.marks.astype("u1")),
                    "ghost": None if panel.ghost is None else self._pack(panel.ghost),
                    "shares": None if panel.shares is None else panel.shares.round(4).tolist(),
                    "heights": self._packed_heights(panel),
                    "jumps": panel.jumps,
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
            shares = None if part.get("shares") is None else np.array(part["shares"], dtype=np.float64)
            heights = None
            if part.get("heights") is not None:
                heights = _floats(part["heights"], float(record["profile"]["top"])).reshape(len(frames), -1)
            jumps = bool(part.get("jumps"))
            panels.append(Panel(part["title"], frames, marks, part["colour"], ghost, shares, heights, jumps))
        shapes = [tuple(map(float, shape)) for shape in record["shapes"]]
        texts = [record[key] for key in ("name", "title", "caption", "xlabel", "ylabel")]
        labels = list(record["frame_labels"])
        groups = []
        for part in record.get("groups", ()):
            x, y = part["at"] or (0.0, 0.0)
            at = None if part["at"] is None else (float(x), float(y))
            groups.append(Group(part["label"], float(part["exact"]), at))
        backdrop, profile = _read_backdrop(record.get("backdrop"), xlim, ylim), _read_profile(record.get("profile"))
        texts += [backdrop.image_label, backdrop.curve_label, backdrop.area_label, *(group.name for group in groups)]
        texts += [] if profile is None else [profile.label]
        if not all(isinstance(text, str) for text in (*texts, *labels, *(panel.title for panel in panels))):
            raise TypeError("a text of a motion is of another kind than it should be")
        name, title, caption, xlabel, ylabel = texts[:5]
        equal = bool(record["equal"])
        axes = (xlim, ylim, xlabel, ylabel)
        return cls(name, title, caption, panels, *axes, shapes, labels, equal, groups, backdrop, profile)

    def _packed_backdrop(self) -> dict[str, Any]:
        back = self.backdrop
        image = back.image
        return {
            "image": None if image is None else {"shape": list(image.shape), "values": _text(image)},
            "curve": None if back.curve is None else self._pack(back.curve),
            "area": None if back.area is None else self._pack(back.area),
            "image_label": back.image_label,
            "curve_label": back.curve_label,
            "area_label": back.area_label,
        }

    def _packed_heights(self, panel: Panel) -> str | None:
        if panel.heights is None or self.profile is None:
            return None
        return _text(_bytes(panel.heights, self.profile.top))

    def _pack(self, places: Array) -> dict[str, Any]:
        """Shape without the last axis, and both coordinates; what all frames, or all lines, share is kept once."""
        packed: dict[str, Any] = {"shape": list(places.shape[:-1])}
        for axis, (key, limits) in enumerate((("x", self.xlim), ("y", self.ylim))):
            whole = _whole(places[..., axis], limits)
            while whole.ndim > 1 and (whole == whole[0]).all():
                whole = whole[0]
            packed[key] = _text(whole)
        return packed


def _whole(values: Array, limits: Limits) -> npt.NDArray[np.int16]:
    """16-bit integers, the middle of the axis at 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint((values - sum(limits) / 2) * (UNITS / (limits[1] - limits[0])))
        return np.where(np.isfinite(values), np.clip(scaled, LOST + 1, UNITS - 1), LOST).astype("<i2")


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _bytes(values: Array, top: float) -> Shades:
    return np.rint(np.clip(values / top, 0.0, 1.0) * TALLEST).astype(np.uint8)


def _floats(text: str, top: float) -> Array:
    return np.frombuffer(base64.b64decode(text, validate=True), "u1") * (top / TALLEST)


def _packed_profile(profile: Profile) -> dict[str, Any]:
    return {
        "label": profile.label,
        "limits": list(map(float, profile.limits)),
        "top": float(profile.top),
        "values": _text(_bytes(profile.exact, profile.top)),
    }


def _read_profile(record: Mapping[str, Any] | None) -> Profile | None:
    if record is None:
        return None
    (low, high), top = map(float, record["limits"]), float(record["top"])
    return Profile(record["label"], (low, high), _floats(record["values"], top), top)


def _read_backdrop(record: Mapping[str, Any] | None, xlim: Limits, ylim: Limits) -> Backdrop:
    if record is None:
        return Backdrop()
    image = record["image"]
    if image is not None:
        values = np.frombuffer(base64.b64decode(image["values"], validate=True), np.uint8)
        image = values.reshape(image["shape"])
    curve, area = (None if record[key] is None else _unpack(record[key], xlim, ylim) for key in ("curve", "area"))
    return Backdrop(image, curve, area, record["image_label"], record["curve_label"], record["area_label"])


def _unpack(packed: Mapping[str, Any], xlim: Limits, ylim: Limits) -> Array:
    shape = tuple(packed["shape"])
    places = np.empty((*shape, 2))
    for axis, (key, limits) in enumerate((("x", xlim), ("y", ylim))):
        whole = np.frombuffer(base64.b64decode(packed[key], validate=True), "<i2")
        known = [k for k in range(len(shape)) if whole.size == np.prod(shape[k:])]
        whole = whole.reshape(shape[known[-1] :] if known else shape)
        values = sum(limits) / 2 + whole * ((limits[1] - limits[0]) / UNITS)
        places[..., axis] = np.where(whole == LOST, np.nan, values)
    return places
