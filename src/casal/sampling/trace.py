"""What is recorded along a run: scalars, gathered over batches, and samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from casal.diagnostics import FEWEST_DRAWS

WORST_CASE = ("violation",)
"""Records that keep the largest chain; all others keep the mean over chains."""


@dataclass
class Trace:
    """Records of steps (combined over batches), and of stages that all chains take together."""

    steps: dict[int, dict[str, list[tuple[int, float, float]]]] = field(default_factory=dict)
    exchanges: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    _last: int | None = None

    def record(self, step: int, values: Mapping[str, Tensor]) -> None:
        """Keep mean and largest of per-chain values (n,)."""
        slot = self.steps.setdefault(step, {})
        for name, value in values.items():
            wide = value.to(torch.float64)
            slot.setdefault(name, []).append((len(wide), float(wide.mean()), float(wide.max())))

    def record_last(self, step: int, batch: int, values: Mapping[str, Tensor]) -> None:
        """The records of a batch at the last step, in place of earlier ones: chains may have been resampled since."""
        if self._last != step:
            self.steps.pop(step, None)
            self._last = step
        self.record(step, values)

    def latest(self, name: str) -> float:
        """The last record of a quantity, over all chains; not a number if there is none."""
        if not self.steps or name not in self.steps[max(self.steps)]:
            return float("nan")
        return _combined(name, self.steps[max(self.steps)][name])

    def record_exchange(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the scalars of a stage that all chains take together."""
        if values:
            self.exchanges.append((step, dict(values)))

    def absorb(self, other: Trace) -> None:
        """Take over the records of other chains."""
        for step, names in other.steps.items():
            slot = self.steps.setdefault(step, {})
            for name, parts in names.items():
                slot.setdefault(name, []).extend(parts)
        self.exchanges += other.exchanges

    def plain(self) -> dict[str, Any]:
        """As JSON data; ``from_plain`` reads it back to the same bits."""
        return {"steps": list(self.steps.items()), "exchanges": self.exchanges}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Trace:
        """What ``plain`` wrote."""
        steps = {
            int(step): {name: [tuple(p) for p in parts] for name, parts in slot.items()} for step, slot in data["steps"]
        }
        return cls(steps, [(int(step), dict(values)) for step, values in data["exchanges"]])

    def series(self) -> dict[str, Tensor]:
        """One tensor for each quantity: over the recorded steps, or over the exchanges that know it."""
        out: dict[str, list[float]] = {}
        for step in sorted(self.steps):
            out.setdefault("step", []).append(step)
            for name, parts in self.steps[step].items():
                out.setdefault(name, []).append(_combined(name, parts))
        for step, values in self.exchanges:
            out.setdefault("exchange_step", []).append(step)
            for name, value in values.items():
                out.setdefault(name, []).append(value)
        return {name: torch.tensor(series, dtype=torch.float64) for name, series in out.items()}


def _combined(name: str, parts: list[tuple[int, float, float]]) -> float:
    if name in WORST_CASE:
        return max(largest for _, _, largest in parts)
    total = math.fsum(count * mean for count, mean, _ in parts)  # the same in whatever order batches come
    return total / sum(count for count, _, _ in parts)


@dataclass(frozen=True, repr=False)
class Snapshots:
    """Samples along a run, every few steps.

    Chain i of two snapshots is the same chain only if chains exchange nothing: methods with weights resample them.

    Attributes:
        steps: (S,) after which step each was taken.
        samples: (S, n, *event), what the run would have returned there.
        first_draw: Number of the first snapshot from which on they are draws of one distribution along independent
            chains: chains exchange nothing, the density is fixed, all later steps have the same settings, and the first
            half of the run is over. None where there are not at least four of them.
    """

    steps: Tensor
    samples: Tensor
    first_draw: int | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        steps = self.steps.tolist()
        told = f"steps {steps[0]} to {steps[-1]}" if steps else "none"
        return f"Snapshots({told}, samples {tuple(self.samples.shape)})"

    @property
    def draws(self) -> Tensor | None:
        """(n, draws, *event) along independent chains; None where snapshots are no draws."""
        return None if self.first_draw is None else self.samples[self.first_draw :].transpose(0, 1)


def snapshots_of(steps: Tensor, samples: Tensor, settled: int | None) -> Snapshots:
    """Snapshots, of which those after step ``settled`` are draws."""
    first = None if settled is None else int((steps <= settled).sum())
    return Snapshots(steps, samples, first if first is not None and len(steps) - first >= FEWEST_DRAWS else None)
