"""The threads of torch, which belong to the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_users, _lock = list[int](), Lock()
"""Threads of torch before the first of the runs that go on at present, once for each of them."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums over all chains in one fixed order: shared out among threads of torch they would round differently.

    The number belongs to the process. The last of several runs at the same time sets it back.
    """
    with _lock:
        _users.append(_users[0] if _users else torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _users.pop()
            if not _users:
                torch.set_num_threads(before)
