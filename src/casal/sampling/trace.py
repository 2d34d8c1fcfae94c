"""Scalars along a run, gathered over tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WORST_CASE = ("violation",)
"""Records that keep the largest chain; all others keep the mean over chains."""


@dataclass
class Trace:
    """Records of steps (combined over tiles) and of meetings of all chains."""

    steps: dict[int, dict[str, list[tuple[int, float, float]]]] = field(default_factory=dict)
    meetings: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def record(self, step: int, values: Mapping[str, Tensor]) -> None:
        """Keep mean and largest of per-chain values (n,)."""
        slot = self.steps.setdefault(step, {})
        for name, value in values.items():
            wide = value.to(torch.float64)
            slot.setdefault(name, []).append((len(wide), float(wide.mean()), float(wide.max())))

    def latest(self, name: str) -> float:
        """The last record of a quantity, over all chains; not a number if there is none."""
        if not self.steps or name not in self.steps[max(self.steps)]:
            return float("nan")
        return _combined(name, self.steps[max(self.steps)][name])

    def record_meeting(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the scalars of one meeting of all chains."""
        if values:
            self.meetings.append((step, dict(values)))

    def absorb(self, other: Trace) -> None:
        """Take over the records of other chains."""
        for step, names in other.steps.items():
            slot = self.steps.setdefault(step, {})
            for name, parts in names.items():
                slot.setdefault(name, []).extend(parts)
        self.meetings += other.meetings

    def plain(self) -> dict[str, Any]:
        """As JSON data; ``from_plain`` reads it back to the same bits."""
        return {"steps": list(self.steps.items()), "exchanges": self.meetings}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Trace:
        """What ``plain`` wrote."""
        steps = {
            int(step): {name: [tuple(p) for p in parts] for name, parts in slot.items()} for step, slot in data["steps"]
        }
        return cls(steps, [(int(step), dict(values)) for step, values in data["exchanges"]])

    def series(self) -> dict[str, Tensor]:
        """One tensor for each quantity: over the recorded steps, or over the meetings that know it."""
        out: dict[str, list[float]] = {}
        for step in sorted(self.steps):
            out.setdefault("step", []).append(step)
            for name, parts in self.steps[step].items():
                out.setdefault(name, []).append(_combined(name, parts))
        for step, values in self.meetings:
            out.setdefault("exchange_step", []).append(step)
            for name, value in values.items():
                out.setdefault(name, []).append(value)
        return {name: torch.tensor(series, dtype=torch.float64) for name, series in out.items()}


def _combined(name: str, parts: list[tuple[int, float, float]]) -> float:
    if name in WORST_CASE:
        return max(largest for _, _, largest in parts)
    return sum(count * mean for count, mean, _ in parts) / sum(count for count, _, _ in parts)
