"""What a run returns, and how it is saved and loaded."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.diagnostics import Estimate, Fidelity, Lineage
from casal.errors import ShapeError, StoreError
from casal.sampling.certificate import Certificate
from casal.sampling.trace import Trace
from casal.store import FORMAT, RunStore, named_errors, zarr_module


@dataclass(frozen=True)
class Cost:
    """What the run used.

    Attributes:
        score_evaluations: Per chain.
        projections: Per chain.
        seconds: Wall-clock time of the loop.
        check_evaluations: Score evaluations a chain, beyond these, that went into the certificate of the distribution
            and into looks before the run.
        check_projections: Projections, likewise.
    """

    score_evaluations: float
    projections: float
    seconds: float
    check_evaluations: float = 0.0
    check_projections: float = 0.0


UNFINISHED = Fidelity(
    "suspect", ("the run was stopped before its distribution was checked; repeat the call that began it",), {}
)
"""Of a store whose run has not come to its end."""


@dataclass(frozen=True)
class SampleResult:
    """Samples with their certificates, and how they came about.

    Attributes:
        samples: (n, *event) in decoded space; for methods that promise feasibility this is z, in float64.
        certificate: Violation of every sample.
        trace: Scalars along the run. At recorded steps: ``step``, ``gap`` (mean of |A x - z|), ``violation`` (largest),
            ``dual_norm`` (mean). At meetings of all chains: ``exchange_step``, ``rho``, ``ess``, ``ancestors``; on a
            ladder of Metropolis moves ``acceptance``; at the last meeting ``inside`` (share of chains whose
            foot satisfied the inequalities), ``finish_ess``, ``carried`` (1 if the last correction was made) and, for a
            union, ``crossing`` (share of feet within two slacks of another piece).
        cost: Score evaluations and projections per chain, seconds.
        state: The last state of the method (x, z, multipliers, weights ...).
        provenance: Settings and versions.
        steps: (n,) steps each returned chain has taken.
        partial: The run was interrupted; ``steps`` says how far each chain came.
        fidelity: How far the distribution of the samples can be trusted.
    """

    samples: Tensor
    certificate: Certificate
    trace: Mapping[str, Tensor]
    cost: Cost
    state: Any
    provenance: Mapping[str, Any]
    steps: Tensor
    partial: bool = False
    fidelity: Fidelity = UNFINISHED

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

    def expect(self, f: Callable[[Tensor], Tensor]) -> Estimate:
        """The expectation of a function of the samples, with a standard error that knows of weights and copies.

        The value is sum_i W_i f(z_i). Samples of one ancestor count as one observation, see
        ``diagnostics/genealogy.py``; chains that never meet are their own ancestors.

        Args:
            f: Samples (n, *event) -> (n,) or (n, k).

        Returns:
            ``value`` and ``standard_error``, of shape () or (k,), float64.

        Raises:
            ShapeError: f returns something else.
        """
        values, n = f(self.samples), len(self.samples)
        if not isinstance(values, Tensor) or values.ndim not in (1, 2) or len(values) != n:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"f must return a tensor ({n},) or ({n}, k) for {n} samples, got {got}")
        mean, error = Lineage(self.weights, self.ancestors).mean(values.reshape(n, -1))
        return Estimate(mean, error) if values.ndim == 2 else Estimate(mean[0], error[0])

    def save(self, path: str | Path) -> None:
        """Write the result to a new store (zarr), as ``casal.sample(..., store=path)`` does; ``casal.load`` reads it.

        Raises:
            StoreError: The folder exists, or cannot be written.
        """
        place = Path(path)
        with named_errors(place):
            taken = place.exists()
        if taken:
            raise StoreError(f"{place} exists; nothing was changed, choose another path")
        n, about = len(self.samples), dict(self.provenance)
        identity = {**about, "saved": True, "tol": self.certificate.tolerance, "n": n}
        usage = [round(self.cost.score_evaluations * n), round(self.cost.projections * n)]
        record = {"steps": self.steps.tolist(), "usage": usage, "trace": Trace().plain()}
        store = RunStore(place, identity, [(0, n)])
        store.write(0, *tile_data(self.state, self.samples, self.certificate.violation, record))
        series = {name: values.tolist() for name, values in self.trace.items()}
        run = {**about, "partial": self.partial, "series": series}
        store.finish({"run": run, "cost": list(astuple(self.cost)), "fidelity": self.fidelity.plain()})

    def __str__(self) -> str:
        method, n = self.provenance.get("method", "?"), len(self.samples)
        lines = [
            f"{method}: {n} samples of shape {tuple(self.samples.shape[1:])}{' (partial run)' if self.partial else ''}",
            str(self.certificate),
            str(self.fidelity),
            f"{self.cost.score_evaluations:g} score evaluations and {self.cost.projections:g} projections a chain, "
            f"{self.cost.seconds:.2f} s{self._checked()}",
        ]
        if "ess" in self.trace:
            lines.append(
                f"{len(torch.unique(self.ancestors))} of {n} ancestors survive, "
                f"smallest effective size {float(self.trace['ess'].min()):.0f}"
            )
        return "\n".join(lines)

    def _checked(self) -> str:
        spent = self.cost.check_evaluations
        return f"; {spent:.3g} evaluations for the check of the distribution" if spent else ""


def tile_data(
    state: Any, samples: Tensor, violation: Tensor, record: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays and the record of a tile in a store.

    Args:
        state: A NamedTuple of tensors; zero-dimensional ones go to the record.
        samples: (n, *event).
        violation: (n,).
        record: Steps, usage and trace.
    """
    fields: dict[str, Tensor] = state._asdict()
    arrays = {f"state/{name}": part for name, part in fields.items() if part.ndim}
    arrays["posterior/samples"] = samples[:, None]
    arrays["sample_stats/violation"] = violation[:, None]
    arrays["sample_stats/steps"] = torch.as_tensor(record["steps"]).expand(len(samples))[:, None]
    if "log_weight" in fields:
        arrays["sample_stats/log_weight"] = fields["log_weight"][:, None]
    common = {name: [str(part.dtype), part.item()] for name, part in fields.items() if not part.ndim}
    return arrays, {**record, "common": common, "fields": list(fields)}


def state_data(arrays: Mapping[str, Tensor], record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fields of a state from what ``tile_data`` made of it."""
    common = {
        name: torch.tensor(value, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for name, (dtype, value) in record["common"].items()
    }
    return {name: common[name] if name in common else arrays[f"state/{name}"] for name in record["fields"]}


def load(path: str | Path) -> SampleResult:
    """Read a result back: a finished run, or the tiles that are there of one that was stopped (``partial``).

    The samples are checked against their checksums; the certificate is the stored one, of the same samples.

    Raises:
        StoreError: There is no store, it is damaged, or it was written by another version of the format.
    """
    place = Path(path)
    if not (place / "zarr.json").exists():
        raise StoreError(f"there is no store at {place}")
    with named_errors(place):
        root = zarr_module().open_group(place, mode="r")
        if "provenance" not in root or "identity" not in root["provenance"].attrs:
            raise StoreError(f"{place} is a zarr store, but not of a casal run")
        about = dict(root["provenance"].attrs)
    identity: dict[str, Any] = dict(about["identity"])
    if identity.get("format") != FORMAT:
        raise StoreError(f"{place} has format {identity.get('format')}; this version of casal reads format {FORMAT}")
    count, n = int(root["provenance/tiles"].shape[0]), int(identity["n"])
    size = n if count == 1 else int(identity["tile"])
    bounds = [(k * size, min((k + 1) * size, n)) for k in range(count)]
    store = RunStore(place, {k: v for k, v in identity.items() if k != "format"}, bounds, mode="r")
    done = store.done()
    if not done:
        raise StoreError(f"no tile of {place} is finished yet; repeat the call that began it to go on")
    pieces = [store.read(index) for index in done]

    def all_chains(name: str) -> Tensor:
        return torch.cat([arrays[name] for arrays, _ in pieces])

    run, trace = dict(about.get("run", {})), Trace()
    for record in (about.get("exchanges", {"trace": Trace().plain()}), *(record for _, record in pieces)):
        trace.absorb(Trace.from_plain(record["trace"]))
    partial = bool(run.pop("partial", len(done) < count))
    series = {name: torch.tensor(v, dtype=torch.float64) for name, v in dict(run.pop("series", {})).items()}
    samples = all_chains("posterior/samples")[:, 0]
    used = [sum(record["usage"][k] for _, record in pieces) / len(samples) for k in (0, 1)]
    fields = state_data({name: all_chains(name) for name in pieces[0][0]}, pieces[0][1])
    return SampleResult(
        samples=samples,
        certificate=Certificate(all_chains("sample_stats/violation")[:, 0], float(identity["tol"])),
        trace=series or trace.series(),
        fidelity=Fidelity.from_plain(about["fidelity"]) if "fidelity" in about and len(done) == count else UNFINISHED,
        cost=Cost(*about.get("cost", [*used, 0.0])),
        state=namedtuple("State", fields)(**fields),
        provenance=run or identity,
        steps=all_chains("sample_stats/steps")[:, 0],
        partial=partial,
    )
