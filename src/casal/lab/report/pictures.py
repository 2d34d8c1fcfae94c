"""Pictures as data, so that the page is one file: vector where that is small, else crisp raster."""

from __future__ import annotations

import base64
import re
import struct
from pathlib import Path
from typing import NamedTuple

LARGEST = 600_000
"""Bytes above which a drawing (tens of thousands of points) goes in as PNG."""

POINT = 4 / 3
"""CSS pixels of a point."""

DPI_SCALE = 96 / 160
"""CSS pixels of a pixel of the PNG files, which are drawn at 160 dots per inch."""


class Picture(NamedTuple):
    """Data URI and size in CSS pixels."""

    source: str
    width: int
    height: int


def slim(svg: str) -> str:
    """A drawing without its metadata and with coordinates to a hundredth of a point."""
    svg = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)


def picture(png: Path) -> Picture:
    """The picture whose PNG this is, from the SVG beside it where that is small enough."""
    drawing = png.with_suffix(".svg")
    if drawing.exists():
        svg = slim(drawing.read_text(encoding="utf-8"))
        size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg)
        if size and len(svg.encode()) <= LARGEST:
            width, height = (round(POINT * float(part)) for part in size.groups())
            return Picture(_uri("image/svg+xml", svg.encode()), width, height)
    data = png.read_bytes()
    width, height = (round(DPI_SCALE * part) for part in struct.unpack(">II", data[16:24]))
    return Picture(_uri("image/png", data), width, height)


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
