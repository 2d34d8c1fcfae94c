"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        asked: It was.
    """

    asked = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if there was one."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def patient_interrupt() -> Iterator[Interrupt]:
    """The first Ctrl-C inside only sets ``asked``, for the loop to see between two steps; a second one stops at once.

    Outside the main thread, where signals do not arrive, nothing changes.
    """
    state = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else already looks after it
        yield state
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if state.asked:
            signal.default_int_handler(number, frame)
        state.asked = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)
