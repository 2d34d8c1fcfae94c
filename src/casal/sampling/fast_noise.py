"""What ``normal_`` draws from torch's CPU generator, about four times as fast: the noise of compiled steps.

The numbers are the same bit for bit, and the generator is left in the same state, so a stream does not depend on who
draws from it. The work is done by ``fast_noise.cpp``, which is compiled at its first use (half a second).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("fast_noise.cpp")

COMPILERS = ("g++", "clang++", "c++")

OPTIONS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
)
"""No errno and no traps, so that loops with roots and comparisons become vector instructions; and only those products
and sums are joined that the source joins, which is what makes the bits those of torch."""

SMALLEST = 16
"""Numbers in a page, at least; fewer are drawn otherwise by ``normal_``."""

COMPARED = (1 << 16, 50)
"""Numbers in the pages that are compared with ``normal_``."""

STATE_BYTES = 8 * 627
"""What the source reads of a state: the seed, where the generator is, and its 624 words, each in 8 bytes."""

Fill = Callable[[Tensor, torch.Generator], None]
"""``fill(pages, generator)``: pages (k, *shape) of normal float32 numbers, each as ``normal_`` would fill it."""

_lock = Lock()
_found: list[Fill | None] = []


def fast_normal(page_numbers: int, device: torch.device) -> Fill | None:
    """The function that fills pages of so many numbers on a device; None where ``normal_`` has to do it.

    That is so off the host, for pages of fewer than SMALLEST numbers, without a C++ compiler, and where torch's own
    numbers are others (a processor without AVX2): they are compared once.
    """
    if device.type != "cpu" or page_numbers < SMALLEST:
        return None
    with _lock:
        if not _found:
            fill = _compiled()
            _found.append(fill if fill is not None and _agrees(fill) else None)
    return _found[0]


def _compiled() -> Fill | None:
    """``fill_normal`` of the C++ source, for the processor of this machine; None if that does not work."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="casal", ignore_cleanup_errors=True) as folder:
        library = Path(folder) / "fast_noise.so"
        command = [compiler, *OPTIONS, "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            function = ctypes.CDLL(str(library)).fill_normal
        except (OSError, subprocess.SubprocessError):
            return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    function.restype = None

    def fill(pages: Tensor, generator: torch.Generator) -> None:
        state = generator.get_state()
        function(state.data_ptr(), pages.data_ptr(), pages[0].numel(), len(pages))
        generator.set_state(state)

    return fill


def _agrees(fill: Fill) -> bool:
    """Whether pages, and the state they leave behind, are those of ``normal_``, bit for bit."""
    for numbers in COMPARED:
        mine, other = (torch.Generator("cpu").manual_seed(numbers) for _ in range(2))
        if mine.get_state().numel() < STATE_BYTES:
            return False
        pages, wanted = (torch.empty(2, numbers, dtype=torch.float32, device="cpu") for _ in range(2))
        fill(pages, mine)
        for page in wanted:
            page.normal_(generator=other)
        if not (torch.equal(pages, wanted) and torch.equal(mine.get_state(), other.get_state())):
            return False
    return True
