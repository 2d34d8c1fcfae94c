"""What the C library does with memory that tensors let go: kept for the next step, given back after a large field.

Both are about glibc, the C library of Linux. Elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from contextlib import suppress

KEPT_BYTES, KEPT_IN_ALL = 4 << 20, 32 << 20
"""Size of blocks that are kept when they are freed, and of all that is kept, about. With blocks of 0.4 MB (a field of a
tile) steps of WeightedCASAL are a tenth faster; a million chains have no higher peak."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of ``malloc.h``."""


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep what steps free for the next step, instead of giving it back to the system each time.

    glibc asks the system for blocks above a threshold, gives them back when they are freed, and so faults their pages
    in again in every step. Its thresholds grow by themselves, up to 32 MB, in a program that frees a larger block.
    Where the environment sets them, they stay.
    """
    if sys.platform == "linux" and not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with suppress(AttributeError, OSError):  # another C library
            library = ctypes.CDLL(None)
            library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
            library.mallopt(M_TRIM_THRESHOLD, KEPT_IN_ALL)


def give_back() -> None:
    """Give the memory of tensors that were let go back to the system.

    The C library of Linux (glibc) keeps it for tensors of their size: a million chains in tiles leave a gigabyte.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
