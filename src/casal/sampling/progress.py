"""How far a run is: a bar of one line on a terminal (by rich), a line of text every few seconds elsewhere.

Unless it is turned off, the bar appears by itself in a run on a terminal that takes longer than a few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TextIO, TypeAlias

from casal.errors import missing_extra

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""

WAIT = 5.0
"""Seconds of a run on a terminal after which a bar appears that nobody asked for."""

SHOWN = {"rho": "rho", "ess": "ess", "violation": "viol"}
"""Scalars of a run that are shown, and what they are called there."""

Draw: TypeAlias = Callable[[float, str], None]
"""Shows the share of the steps that are done, and figures."""

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
        """Model calls of each chain, time left, and what else is known."""
        more = "".join(f"  {name} {value:.3g}" for name, value in self.known.items())
        spent = f"{self.evaluations / self.chains:.0f} calls/chain  " if self.evaluations else ""
        return f"{spent}{self.left} left{more}"


class Lines(Progress):
    """A line of text every few seconds, for logs."""

    def __init__(self, total: int, label: str, chains: int, out: TextIO) -> None:
        super().__init__(total, label, chains)
        self.out, self.last = out, self.began

    def show(self) -> None:
        self.line(self.share, self.figures)

    def line(self, share: float, figures: str) -> None:
        """Print a line, if the last one is long enough ago."""
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            print(f"casal: {self.label} {100 * share:.0f} %  {figures}", file=self.out, flush=True)


class Bar(Progress):
    """One line of a terminal, from so many seconds on."""

    def __init__(self, total: int, label: str, chains: int, wait: float, start: Callable[[str], Draw]) -> None:
        super().__init__(total, label, chains)
        self._wait, self._start = wait, start
        self._draw: Draw = _nothing

    def show(self) -> None:
        if self._draw is _nothing and time.monotonic() - self.began >= self._wait:
            self._draw = self._start(self.label)
        self._draw(self.share, self.figures)


def _nothing(share: float, figures: str) -> None:
    """Draw no bar yet."""


@contextmanager
def progress_bar(
    wanted: bool | None, total: int, label: str, chains: int = 1, choice: str | None = None
) -> Iterator[Progress]:
    """What shows the progress of a run.

    Args:
        wanted: Whether to show anything; None for a bar on a terminal if the run takes longer than a few seconds.
        total: Steps of all batches.
        label: Name of the method.
        chains: Of the run.
        choice: What "auto" chose, in a sentence; it gets a line of its own.
    """
    out = sys.stderr
    terminal = out is not None and out.isatty()
    if not wanted and (wanted is not None or not terminal):
        yield Progress(total, label, chains)
        return

    def tell(sentence: str | None) -> None:
        if sentence is not None:
            print(f"casal: {sentence}", file=out, flush=True)

    if not terminal:
        tell(choice)
        yield Lines(total, label, chains, out)
        return
    with ExitStack() as open_bars:

        def start(label: str) -> Draw:
            tell(choice)
            draw = _rich_bar(label, open_bars)
            if draw is None and "rich" not in _told:
                _told.add("rich")
                tell(missing_extra("a progress bar", "progress", "rich"))
            if draw is not None:
                return draw
            lines = Lines(total, label, chains, out)
            return lambda share, figures: lines.line(share, figures)

        bar = Bar(total, label, chains, 0.0 if wanted else WAIT, start)
        if wanted:
            bar.show()
        yield bar


def _rich_bar(label: str, open_bars: ExitStack) -> Draw | None:
    """A bar of rich, closed with the stack; None if there is no rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichBar
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    bar = open_bars.enter_context(RichBar(*columns, console=Console(stderr=True), transient=True, expand=True))
    task = bar.add_task(label, total=1.0, figures="")
    return lambda share, figures: bar.update(task, completed=share, figures=figures)
