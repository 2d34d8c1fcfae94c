"""What every test shares: one thread, and Hypothesis without clocks or luck."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)

collect_ignore = ["stranger"]  # a package of its own, for test_stranger.py

# Examples are derived from the test itself: a failure comes back on every run and on every machine.
settings.register_profile("casal", deadline=None, derandomize=True, database=None)
settings.load_profile("casal")
