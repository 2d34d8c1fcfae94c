"""Runs that are stopped from outside, by Ctrl-C or by the clock: what is done is kept, what was cut is not.

``casal.sample`` answers KeyboardInterrupt with its chains as far as they are. In an experiment that would be one row
among others, of chains that were cut, and the run would go on. So inside ``stops`` Ctrl-C raises ``Stopped``, which is
no KeyboardInterrupt and which nothing catches before ``perform``. It looks for the rows that were finished in the local
variables of the functions that were running: tables, and lists of rows. An experiment needs no code of its own for it.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from casal_lab.experiment import Column, Experiment, Outcome, Partial, ResultTable, Tell, made_now

CTRL_C, TIME_UP = "Ctrl-C", "time limit"
"""Reasons to stop."""

DEPTH = 3
"""How deep in lists and dictionaries rows are looked for."""


class Stopped(BaseException):
    """Somebody or the clock stopped the run; like Ctrl-C, no experiment may take it for a failure of its own."""


@contextmanager
def stops(until: float | None = None) -> Iterator[None]:
    """Raise Stopped inside the block after Ctrl-C, and once the monotonic clock shows ``until``.

    Signals arrive in the main thread alone, so elsewhere nothing changes; nor does the clock stop a system without
    timers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stopped(number: int, frame: FrameType | None) -> None:
        raise Stopped(CTRL_C if number == signal.SIGINT else TIME_UP)

    before = {}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, raise_stopped)
    timed = until is not None and hasattr(signal, "setitimer")
    if timed and until is not None:
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, raise_stopped)
        signal.setitimer(signal.ITIMER_REAL, max(until - time.monotonic(), 1e-3))
    try:
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C inside the block waits for its end, a second one does not: for the seconds that writing takes."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    asked = False

    def wait(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def perform(
    experiment: Experiment, run: Callable[[Tell], Outcome], tell: Tell = lambda line: None, until: float | None = None
) -> Outcome:
    """What ``run(tell)`` returns; if it is stopped, the rows that it had finished, marked as partial.

    Args:
        experiment: Whose run it is.
        run: Called with a ``tell``.
        tell: Told each part as it begins.
        until: When to stop, by the monotonic clock.
    """
    part, began = "the start", time.perf_counter()

    def told(line: str) -> None:
        nonlocal part
        if until is not None and time.monotonic() > until:
            raise Stopped(TIME_UP)
        part = line
        tell(line)

    try:
        with stops(until):
            told("starting")
            return run(told)
    except (Stopped, KeyboardInterrupt) as error:
        reason = TIME_UP if str(error) == TIME_UP else CTRL_C
        tables = finished(error.__traceback__, experiment.module.partition(".")[0])
    seconds = time.perf_counter() - began
    return Outcome(experiment.name, tables, settings=made_now(), seconds=seconds, partial=Partial(reason, part))


# ------------------------------------------------------------------ what a run had in its hands


def finished(trace: TracebackType | None, package: str) -> list[ResultTable]:
    """Tables and rows in the local variables of the functions of a package that an exception went through.

    A row that lacks a part of what the first one of its list has is still being filled, and one without a number has
    not begun: neither is kept.
    """
    frames = [frame for frame, _ in traceback.walk_tb(trace)][1:]  # the first is that of ``perform``
    mine = [frame for frame in frames if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package]
    found = [
        entry for frame in mine for name, value in frame.f_locals.items() for entry in _entries(value, name, DEPTH)
    ]
    tables, known = list[ResultTable](), set[int]()
    for _, whole in found:
        if isinstance(whole, ResultTable) and whole.rows and id(whole) not in known:
            known |= {id(whole), *map(id, whole.rows)}
            tables.append(whole)
    for name, rows in found:
        if not isinstance(rows, ResultTable):
            fresh = [_plain(row) for row in rows if id(row) not in known]
            known |= set(map(id, rows))
            if kept := [row for row in fresh if _is_whole(row, fresh[0])]:
                tables.append(_table(name, kept))
    return tables


def _entries(value: Any, name: str, depth: int) -> Iterator[tuple[str, ResultTable | Sequence[Mapping[str, Any]]]]:
    """Tables and lists of rows in a variable, each with a name."""
    row_list = type(value) in (list, tuple) and value and all(type(item) is dict for item in value)
    if isinstance(value, ResultTable) or row_list:
        yield name, value
    elif depth and type(value) is dict:
        for key, part in value.items():
            yield from _entries(part, f"{name}, {key}", depth - 1)
    elif depth and type(value) in (list, tuple):
        for part in value:
            yield from _entries(part, name, depth - 1)
    elif depth and isinstance(tables := getattr(value, "__dict__", {}).get("tables"), list | tuple):
        for table in tables:
            yield from _entries(table, name, 0)


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The numbers and words of a row."""
    values = {str(key): value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
    return {key: value for key, value in values.items() if value is None or isinstance(value, str | int | float)}


def _is_whole(row: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    number = any(isinstance(value, int | float) and math.isfinite(value) for value in row.values())
    return number and not row.keys() < first.keys()


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> ResultTable:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = [Column(key, key) for key in keys if not (key.endswith("_se") and key[:-3] in keys)]
    return ResultTable(f"Finished rows: {name}", columns, rows)
