"""Samples along a run, and which of them are draws of one distribution along independent chains."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from casal.diagnostics import FEWEST_DRAWS


@dataclass(frozen=True, repr=False)
class Snapshots:
    """Samples along a run, every few steps.

    Chain i of two snapshots is the same chain only if chains never meet: methods with weights resample them.

    Attributes:
        steps: (S,) after which step each was taken.
        samples: (S, n, *event), what the run would have returned there.
        first_draw: Number of the first snapshot from which on they are draws of one distribution along independent
            chains: chains never meet, the density is fixed, all later steps have the same settings, and the first half
            of the run is over. None where there are not at least four of them.
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
