"""What every test shares: one thread, and Hypothesis without clocks or luck."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

collect_ignore = ["stranger"]  # a package of its own, for test_stranger.py


SLOW = (
    "contracts/test_sets.py",
    "contracts/test_families.py",
    "constraints/test_chains.py",
    "constraints/test_implicit.py",
    "constraints/test_obstacles.py",
    "constraints/test_sample_near.py",
    "sampling/test_workers_dask.py",
    "test_stranger.py",
)
"""Files whose tests `make check` leaves out, beside those that are marked."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Monte Carlo tests and whole suites are slow; `make check` runs the rest."""
    for item in items:
        if item.get_closest_marker("statistical") or any(f"/tests/{place}" in item.path.as_posix() for place in SLOW):
            item.add_marker(pytest.mark.slow)


# Examples are derived from the test itself: a failure comes back on every run and on every machine.
settings.register_profile("casal", deadline=None, derandomize=True, database=None, max_examples=20)
# `make fuzz`: other examples every time, and a line that brings a failure back.
settings.register_profile("random", deadline=None, derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("casal")
