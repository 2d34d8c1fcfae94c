"""What a run returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.certificate import Certificate


@dataclass(frozen=True)
class Cost:
    """What the run used.

    Attributes:
        score_evaluations: Per chain.
        projections: Per chain.
        seconds: Wall-clock time of the loop.
    """

    score_evaluations: float
    projections: float
    seconds: float


@dataclass(frozen=True)
class SampleResult:
    """Samples with their certificate, and how they came about.

    Attributes:
        samples: (n, *event) in decoded space; for methods that promise feasibility this is z, in float64.
        certificate: Violation of every sample.
        trace: Scalars along the run. At recorded steps: ``step``, ``gap`` (mean of |A x - z|), ``violation`` (largest),
            ``dual_norm`` (mean). At exchanges, for methods whose chains meet: ``exchange_step``, ``rho``, ``ess``,
            ``ancestors``, and at the last one ``boundary_mass`` or ``finish_ess``.
        cost: Score evaluations and projections per chain, seconds.
        state: The last state of the method (x, z, multipliers, weights ...).
        provenance: Settings and versions.
        steps: (n,) steps each returned chain has taken.
        partial: The run was interrupted; ``steps`` says how far each chain came.
    """

    samples: Tensor
    certificate: Certificate
    trace: Mapping[str, Tensor]
    cost: Cost
    state: Any
    provenance: Mapping[str, Any]
    steps: Tensor
    partial: bool = False

    @property
    def weights(self) -> Tensor:
        """(n,) float64 weights that sum to one; equal for methods without weights."""
        log_weight = getattr(self.state, "log_weight", None)
        if log_weight is None:
            return torch.full((len(self.samples),), 1.0 / max(len(self.samples), 1), dtype=torch.float64)
        return torch.softmax(log_weight, dim=0)

    @property
    def ancestors(self) -> Tensor:
        """(n,) index of the starting chain each sample descends from."""
        ancestor: Tensor | None = getattr(self.state, "ancestor", None)
        return torch.arange(len(self.samples)) if ancestor is None else ancestor

    def save(self, path: str | Path) -> None:
        """Write the result to a new store (zarr); ``casal.load`` reads it back."""
        from casal.store import save

        save(self, path)

    def __str__(self) -> str:
        method, n = self.provenance.get("method", "?"), len(self.samples)
        lines = [
            f"{method}: {n} samples of shape {tuple(self.samples.shape[1:])}{' (partial run)' if self.partial else ''}",
            str(self.certificate),
            f"{self.cost.score_evaluations:g} score evaluations and {self.cost.projections:g} projections a chain, "
            f"{self.cost.seconds:.2f} s",
        ]
        if "ess" in self.trace:
            lines.append(
                f"{len(torch.unique(self.ancestors))} of {n} ancestors survive, "
                f"smallest effective size {float(self.trace['ess'].min()):.0f}"
            )
        return "\n".join(lines)
