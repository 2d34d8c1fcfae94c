"""``python -m fuzz --minutes 20 --seed 0 [--only sets,specs,stores,workers] [--trial N]``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable

import torch

from fuzz import sets, specs, stores, workers
from fuzz.report import Report

PARTS: dict[str, tuple[Callable[[int, int], Report], float]] = {
    "sets": (sets.trial, 0.5),
    "specs": (specs.trial, 0.1),
    "stores": (stores.trial, 0.25),
    "workers": (workers.trial, 0.15),
}
"""The trials of each part, by seed and number, and its share of the time."""


def main(arguments: list[str] | None = None) -> int:
    """Run trials until the time is over; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for all parts together")
    parser.add_argument("--seed", type=int, default=0, help="trials are determined by it and their number")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--trial", type=int, help="this trial alone")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    unknown = sorted(set(names) - set(PARTS))
    if unknown or not given.minutes > 0:
        parser.error(f"there is no part {', '.join(unknown)}" if unknown else "--minutes must be more than zero")
    torch.set_num_threads(1)
    whole, total = Report(), sum(PARTS[name][1] for name in names)
    for name in names:
        trial, share = PARTS[name]
        end = time.monotonic() + 60.0 * given.minutes * share / total
        for number in itertools.count() if given.trial is None else [given.trial]:
            if time.monotonic() > end:
                break
            whole.add(trial(given.seed, number))
        print(f"{name}: done, {len(whole.failures)} failures so far", flush=True)
    print(whole.text())
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
