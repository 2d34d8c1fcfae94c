"""Peak memory of a piece of work, as the operating system counts it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What Linux wants written to ``RESET``."""


def with_peak(work: Callable[[], Result]) -> tuple[Result, float | None]:
    """What ``work`` returns, and by how many megabytes (2^20 bytes) memory grew at most meanwhile; None but on Linux.

    Freed memory is given back to the system first, where the C library can. Pages count, not bytes: below a megabyte
    the number says nothing.
    """
    try:
        with suppress(OSError, AttributeError):  # glibc alone has it
            ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text(FORGET_PEAK)
        before = _kilobytes("VmRSS")
    except (OSError, KeyError):
        return work(), None
    result = work()
    return result, max(0.0, _kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> float:
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return float(lines[name].split()[0])
