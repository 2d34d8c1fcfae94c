"""A progress bar where there is a terminal and rich is installed, silence elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Something that can be told how many steps were taken."""

    def advance(self, steps: int) -> None:
        """Count ``steps`` more."""


class _Silent:
    def advance(self, steps: int) -> None:
        return


@contextmanager
def progress_bar(wanted: bool, total: int, label: str) -> Iterator[Progress]:
    """A bar over ``total`` steps, or silence."""
    if not wanted:
        yield _Silent()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        yield _Silent()
        return
    console = Console(stderr=True)
    with Bar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total)

        class Shown:
            def advance(self, steps: int) -> None:
                bar.advance(task, steps)

        yield Shown()
