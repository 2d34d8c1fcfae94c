"""WeightedCASAL beside unconstrained steps on the field problem, in processes of their own.

``python -m benchmarks.weighted 4096 200 9`` prints processor times of one process as JSON: nanoseconds for a chain and
step of a whole call without checks of the distribution. The cases take turns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from statistics import median

import torch

import casal
from benchmarks.field import METHODS, SIZE, SPHERE, STEPS, target
from benchmarks.timing import Table, in_new_process

CASES = ("unconstrained", "CASAL", "WeightedCASAL")


def tables(quick: bool = False) -> Iterator[Table]:
    """Ratios of minima within a process: their median over processes, and the smallest and largest."""
    for n, rounds, processes in ((4096, 3, 2),) if quick else ((4096, 9, 7), (1_000_000, 2, 3)):
        found = [in_new_process("benchmarks.weighted", n, STEPS, rounds) for _ in range(processes)]
        rows = []
        for name in CASES:
            ratios = sorted(min(each[name]) / min(each["unconstrained"]) for each in found)
            rows.append(
                {
                    "case": name,
                    "min, ns a chain and step": min(min(each[name]) for each in found),
                    "/ unconstrained, median": median(ratios),
                    "from": ratios[0],
                    "to": ratios[-1],
                }
            )
        note = f"{processes} processes of {rounds} rounds each after a first one; processor time, one thread."
        yield Table(f"WeightedCASAL, {n} chains x {SIZE}, float32, {STEPS} steps", rows, note)


def seconds_of(name: str, n: int, steps: int) -> float:
    """Processor time of one run."""
    began = time.process_time()
    casal.sample(target(steps), SPHERE, METHODS[name], n, check=False, run=casal.Run(threads=1))
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    n, steps, rounds = (int(word) for word in sys.argv[1:4])
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for k in range(rounds + 1):
        for name in CASES:
            spent = seconds_of(name, n, steps if k or n < 100_000 else 10)
            if k:
                seconds[name].append(1e9 * spent / n / steps)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
