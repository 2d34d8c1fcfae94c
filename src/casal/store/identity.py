"""What makes two runs the same run: a store continues only the run that began it."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.errors import SettingError, StoreError
from casal.methods import Problem

LONGEST = 80
"""Characters of a setting that a message shows."""


def set_of(constraint: Constraint) -> Any:
    """The set as data; of sets that hold functions, their description."""
    try:
        return constraint.spec()
    except SettingError:
        return repr(constraint)


def fingerprint(problem: Problem, x: Tensor) -> str:
    """A checksum of the model: its table, its score and its decoder at a few points, and where those points are."""
    table = problem.table
    columns = [v for v in (table.a, table.b, table.s, table.t, table.preconditioner) if v is not None]
    seen = [x, problem.target.score(x, table.t[0].to(x.device)), problem.decode(x)]
    total = hashlib.sha256()
    for part in (*columns, *seen):
        total.update(np.ascontiguousarray(part.detach().cpu().to(torch.float64).numpy()).tobytes())
    return total.hexdigest()[:16]


def plain_repr(value: Any) -> str:
    """repr without addresses in memory, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def rows_digest(segments: Sequence[Any]) -> str:
    """A checksum of all numbers of a plan: what functions among the settings came to."""
    total = hashlib.sha256()
    for segment in segments:
        for row in segment.rows:
            total.update(type(row).__name__.encode())
            for part in row:
                total.update(repr(part.item() if isinstance(part, Tensor) and part.ndim == 0 else part).encode())
    return total.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """Where the run took place."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "revision": _revision(),
    }


def refuse_other(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise StoreError if the store belongs to another run, with what differs."""
    names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
    if not names:
        return
    lines = [f"  {name}: {_short(stored.get(name))} in the store, {_short(wanted.get(name))} now" for name in names]
    raise StoreError(
        f"{path} holds another run; nothing was changed. What differs:\n" + "\n".join(lines) + "\nChoose another path, "
        "remove the store, or repeat the call that began it."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _revision() -> str | None:
    """The git revision of the folder the process runs in, where there is one."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
