"""Run every experiment whose outcome is not on disk yet."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from casal_lab.experiment import Experiment, Tell
from casal_lab.report.cache import load, save


class OutOfTime(BaseException):
    """The time given was used up; like Ctrl-C, no experiment may take it for a failure of its own."""


@contextmanager
def deadline(moment: float | None) -> Iterator[None]:
    """Raise OutOfTime inside the block once the monotonic clock shows ``moment``, where the system has timers."""
    if moment is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(moment - time.monotonic(), 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Ran:
    """What became of each experiment: seconds of those run, reasons of those not."""

    done: dict[str, float] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        """Experiments without an outcome, and why."""
        return {**dict.fromkeys(self.late, "left out: the time given was used up"), **self.failed}


def reproduce(
    registry: Mapping[str, Experiment],
    out: Path,
    *,
    quick: bool = False,
    only: Iterable[str] = (),
    minutes: float | None = None,
    say: Tell = lambda line: None,
    tell: Tell = lambda line: None,
    ran: Ran | None = None,
) -> Ran:
    """Run what is missing, one experiment after another; each is on disk before the next begins.

    Args:
        registry: The experiments.
        out: Folder of outcomes.
        quick: Fewer chains and seeds.
        only: Names to run; none means all.
        minutes: When to stop. The experiment that is running then is left out; the next call runs it.
        say: Told when an experiment ends.
        tell: Told each part of an experiment as it begins.
        ran: Filled as it goes, for whoever wants to know after an interruption.
    """
    ran = ran if ran is not None else Ran()
    end = None if minutes is None else time.monotonic() + 60 * minutes
    chosen = [registry[name] for name in only] or list(registry.values())

    for place, experiment in enumerate(chosen, start=1):
        name, head = experiment.name, f"[{place}/{len(chosen)}] {experiment.name}"

        def part(line: str, head: str = head) -> None:
            if end is not None and time.monotonic() > end:
                raise OutOfTime
            tell(f"{head}: {line}")

        found = load(out, name, quick, experiment)
        if found and found.current:
            ran.kept.append(name)
            say(f"{head}: on disk, nothing to run")
            continue
        try:
            with deadline(end):
                part("starting")
                outcome = experiment.run(quick, None, part)
            record = save(out, experiment, quick, outcome)
        except OutOfTime:
            ran.late.append(name)
            say(f"{head}: left out, {minutes:g} minutes are over")
        except Exception as error:  # one broken experiment must not cost the others
            ran.failed[name] = f"failed: {type(error).__name__}: {error}"
            say(f"{head}: {ran.failed[name]}")
        else:
            ran.done[name] = record.outcome.seconds
            say(f"{head}: {record.outcome.seconds:.1f} s")
    return ran
