"""The gallery: the motions that experiments bring (``Experiment.moving``), on one page of its own.

    casal gallery --out docs/gallery.html

The page is one file and asks nothing of the network. In a frame of a page of the same site it takes the height that it
needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import torch

import casal
from casal.store import write_whole
from casal_lab.experiment import Experiment, Tell
from casal_lab.report.page import environment


def write_gallery(registry: Mapping[str, Experiment], path: Path, tell: Tell = lambda line: None) -> Path:
    """Make the motions of all experiments that bring some, write the page, and return its path."""
    parts = []
    for name, experiment in registry.items():
        if experiment.moving is not None:
            tell(name)
            parts.append((experiment, experiment.moving()))
    made = {"date": date.today().isoformat(), "casal": casal.__version__, "torch": str(torch.__version__)}
    text = environment().get_template("gallery.html.jinja").render(parts=parts, made=made)
    write_whole(path, lambda file: file.write(text.encode()))
    return path
