"""How far a run is: a bar of one line on a terminal (by rich), a line of text every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from casal.errors import missing_extra

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

SHOWN = {"rho": "rho", "ess": "ess", "violation": "viol."}
"""Scalars of a run that are shown, and what they are called there."""

_told = set[str]()


class Progress:
    """How far a run is. This one shows nothing.

    Args:
        total: Steps of all batches.
        label: Name of the method.
        chains: Of the run.
    """

    def __init__(self, total: int, label: str, chains: int) -> None:
        self.total, self.label, self.chains = max(1, total), label, chains
        self.steps, self.evaluations = 0, 0
        self.known: dict[str, float] = {}
        self.began = time.monotonic()

    def advance(self, steps: int, evaluations: int = 0) -> None:
        """So many steps more were taken by a batch, with so many evaluations of single chains."""
        self.steps, self.evaluations = self.steps + steps, self.evaluations + evaluations
        self.show()

    def tell(self, known: Mapping[str, float]) -> None:
        """Scalars of the run, such as the largest violation."""
        self.known |= {SHOWN[name]: value for name, value in known.items() if name in SHOWN}
        self.show()

    def show(self) -> None:
        """Show it where it is shown."""

    @property
    def share(self) -> float:
        """Of the steps, in [0, 1]."""
        return min(1.0, self.steps / self.total)

    @property
    def left(self) -> str:
        """Time that is left, at the pace so far."""
        if not self.steps:
            return "-:--"
        seconds = (time.monotonic() - self.began) * (1.0 - self.share) / self.share
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

    @property
    def figures(self) -> str:
        """Evaluations of each chain, time left, and what else is known."""
        more = "".join(f"  {name} {value:.3g}" for name, value in self.known.items())
        spent = f"{self.evaluations / self.chains:.0f} eval/chain  " if self.evaluations else ""
        return f"{spent}{self.left} left{more}"


class Lines(Progress):
    """A line of text every few seconds, for logs."""

    def __init__(self, total: int, label: str, chains: int, out: TextIO) -> None:
        super().__init__(total, label, chains)
        self.out, self.last = out, self.began

    def show(self) -> None:
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            print(f"casal: {self.label} {100 * self.share:.0f} %  {self.figures}", file=self.out, flush=True)


class Bar(Progress):
    """One line of a terminal."""

    def __init__(self, total: int, label: str, chains: int, draw: Callable[[float, str], None]) -> None:
        super().__init__(total, label, chains)
        self._draw = draw

    def show(self) -> None:
        self._draw(self.share, self.figures)


@contextmanager
def progress_bar(
    wanted: bool, total: int, label: str, chains: int = 1, choice: str | None = None
) -> Iterator[Progress]:
    """What shows the progress of a run.

    Args:
        wanted: Whether to show anything.
        total: Steps of all batches.
        label: Name of the method.
        chains: Of the run.
        choice: What "auto" chose, in a sentence; it gets a line of its own.
    """
    if not wanted:
        yield Progress(total, label, chains)
        return
    out = sys.stderr
    if choice is not None:
        print(f"casal: {choice}", file=out, flush=True)
    if not out.isatty():
        yield Lines(total, label, chains, out)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichBar
    except ImportError:
        if "rich" not in _told:
            _told.add("rich")
            print(f"casal: {missing_extra('a progress bar', 'progress', 'rich')}", file=out, flush=True)
        yield Lines(total, label, chains, out)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with RichBar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task(label, total=1.0, figures="")
        yield Bar(total, label, chains, lambda share, figures: bar.update(task, completed=share, figures=figures))
