"""Interleaved repeats: every case once, then every case again, so that a noisy machine disturbs all alike."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def interleaved(cases: Mapping[str, Callable[[], object]], repeats: int = 5) -> dict[str, tuple[float, float]]:
    """Seconds (minimum, median) of each case over interleaved repeats, after one warm-up."""
    for case in cases.values():
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - began)
    return {name: (min(values), median(values)) for name, values in seconds.items()}


def machine() -> str:
    """What the figures were measured on."""
    return f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"


def markdown(title: str, seconds: Mapping[str, tuple[float, float]], base: str, unit: float, unit_name: str) -> str:
    """A table with ratios to the case ``base``."""
    header = f"| case | min, {unit_name} | median, {unit_name} | ratio to {base} |"
    lines = [f"### {title}", "", header, "|---|---:|---:|---:|"]
    for name, (low, mid) in seconds.items():
        lines.append(f"| {name} | {low / unit:.3g} | {mid / unit:.3g} | {low / seconds[base][0]:.2f} |")
    return "\n".join([*lines, "", machine(), ""])
