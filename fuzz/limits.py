"""A limit of time for code that may hang."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class TooLong(BaseException):
    """The time is over; no ``except Exception`` on the way takes it for an error of the code."""


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise TooLong after so many seconds; for the main thread."""

    def stop(*_: Any) -> None:
        raise TooLong(f"busy for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
