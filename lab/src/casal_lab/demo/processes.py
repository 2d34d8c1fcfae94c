"""Cards in processes of their own, a few at a time: one that dies costs its card, and all end with the caller."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from casal_lab.demo.cards import Card, blank, card
from casal_lab.experiment import Tell

START = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
"""A server imports torch once; without one, every process does."""


def cards(
    modules: Sequence[str],
    tell: Callable[[str, str], None] = lambda name, line: None,
    processes: int = 2,
    n: int | None = None,
) -> Generator[Card, None, None]:
    """The cards of problems, each as soon as it is done.

    Args:
        modules: Of the problems.
        tell: Told the name of a problem and what it is doing.
        processes: How many at a time, each with one thread.
        n: Samples of each method; those of the problem if left out.
    """
    context: Any = get_context(START)
    if START == "forkserver":
        context.set_forkserver_preload([__name__])
    waiting, running = list(modules), dict[Any, tuple[str, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                module = waiting.pop(0)
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(module, there, n), daemon=True)
                process.start()
                there.close()  # only the process holds it, so that its end is seen here
                running[here] = module, process
            ready: list[Any] = list(wait(list(running)))
            for pipe in ready:  # those with a message, or whose process has ended
                module, process = running[pipe]
                try:
                    message = pipe.recv()
                except EOFError:
                    process.join()
                    message = replace(blank(module), failure=f"its process ended with code {process.exitcode}")
                if isinstance(message, Card):
                    del running[pipe]
                    yield message
                else:
                    tell(blank(module).name, message)
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _work(module: str, pipe: Connection[Any, Any], n: int | None) -> None:
    """In the process: Ctrl-C is for the caller, who ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr = io.StringIO()  # bars and warnings of two processes would run into the line of the caller
    torch.set_num_threads(1)
    say: Tell = pipe.send
    pipe.send(card(module, say, n))
