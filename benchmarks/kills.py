"""Kill stored runs at random moments and continue them: are the bits those of an unbroken run?

python -m benchmarks.kills [COUNT]
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tests.sampling.runs import METHODS, run

import casal

PATIENCE = 0.8
"""Seconds that a run lives at most before it is killed."""

MOST = 3
"""Kills of one run; after them it is left alone."""


def broken(name: str, moments: random.Random) -> tuple[int, bool]:
    """Kill one run up to MOST times, then let it end; how often, and whether its samples are right."""
    with tempfile.TemporaryDirectory() as folder:
        store, kills = Path(folder) / "run.zarr", 0
        while True:
            process = subprocess.Popen([sys.executable, "-m", "tests.sampling.runs", name, str(store)])
            while not store.exists() and process.poll() is None:
                time.sleep(0.005)
            try:
                process.wait(moments.uniform(0.0, PATIENCE) if kills < MOST else None)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
        return kills, torch.equal(casal.load(store).samples, run(name, slow=True).samples)


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    moments, names, total, wrong = random.Random(0), list(METHODS), 0, 0
    print("| run | kills | same bits |\n|---|---:|---|")
    for k in range(wanted):
        kills, right = broken(names[k % len(names)], moments)
        total, wrong = total + kills, wrong + (not right)
        print(f"| {names[k % len(names)]} | {kills} | {'yes' if right else 'NO'} |", flush=True)
    print(f"\n{wanted} runs, {total} kills, {wrong} with other bits than an unbroken run")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
