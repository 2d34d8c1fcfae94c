"""What several tests of the store share."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
