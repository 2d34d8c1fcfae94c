"""A progress bar where there is a terminal and rich is installed, silence elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Something that can be told how many steps were taken, and what is known on the way."""

    def advance(self, steps: int) -> None:
        """Count ``steps`` more."""

    def tell(self, name: str, value: float) -> None:
        """Show the latest value of a quantity, such as the largest violation."""


class Silent:
    """No bar."""

    def advance(self, steps: int) -> None:
        """Nothing."""

    def tell(self, name: str, value: float) -> None:
        """Nothing."""


@contextmanager
def progress_bar(wanted: bool, total: int, label: str) -> Iterator[Progress]:
    """A bar over ``total`` steps with the time left, or silence."""
    if not wanted:
        yield Silent()
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield Silent()
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[known]}"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total, known="")
        known: dict[str, float] = {}

        class Shown:
            def advance(self, steps: int) -> None:
                bar.advance(task, steps)

            def tell(self, name: str, value: float) -> None:
                known[name] = value
                bar.update(task, known="  ".join(f"{key} {number:.3g}" for key, number in known.items()))

        yield Shown()
