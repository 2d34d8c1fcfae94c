"""What a run returns, and how it is saved and loaded."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.constraints import Constraint, constraint_from_spec
from casal.diagnostics import Estimate, Fidelity, Lineage
from casal.errors import SettingError, ShapeError, StoreError
from casal.sampling.certificate import Certificate, Measure, certify
from casal.sampling.trace import Trace
from casal.store import RunStore, named_errors

SAME_VIOLATION = 0.01
"""Share of the tolerance by which a violation may change when it is computed again, beside rounding."""

ROUNDING = 1e-12
"""What rounding may change in a violation, relative to one and to the violation."""


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


JUDGED = ("violation", "row", "excess")
"""What a store keeps of a certificate for every sample."""

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
        state: The last state of the method (x, z, multipliers, weights ...). Behind an affine decoder z = A x + c its
            decoded points are without c.
        provenance: Settings and versions.
        steps: (n,) steps each returned chain has taken.
        partial: The run was interrupted; ``steps`` says how far each chain came.
        fidelity: How far the distribution of the samples can be trusted.
        constraint: The set of these chains; None where it is not known (loaded, and a set of functions).
        latents: The latent x of each sample, (n, *latent); None without a decoder.
        gap: |z - decode(x)| of each sample z and its latent x in decoded space, (n,) float64; zero without a decoder.
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
    constraint: Constraint | None = None
    latents: Tensor | None = None
    gap: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def __post_init__(self) -> None:
        if len(self.gap) != len(self.samples):
            object.__setattr__(self, "gap", torch.zeros(len(self.samples), dtype=torch.float64))

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
        known = {} if self.constraint is None else {"constraint": set_data(self.constraint)}
        identity = {**about, **known, **certificate_data(self.certificate), "saved": True}
        usage = [round(self.cost.score_evaluations * n), round(self.cost.projections * n)]
        record = {"steps": self.steps.tolist(), "usage": usage, "trace": Trace().plain()}
        series = {name: values.tolist() for name, values in self.trace.items()}
        run = {**about, "partial": self.partial, "series": series}
        with RunStore(place, identity, n, n) as store:
            try:
                store.write(0, *tile_data(self.state, self.samples, self.certificate, self.gap, record))
                store.finish({"run": run, "cost": list(astuple(self.cost)), "fidelity": self.fidelity.plain()})
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)  # it was not there before
                raise

    def __str__(self) -> str:
        method, n = self.provenance.get("method", "?"), len(self.samples)
        lines = [
            f"{method}: {n} samples of shape {tuple(self.samples.shape[1:])}{' (partial run)' if self.partial else ''}",
            str(self.certificate),
            str(self.fidelity),
            f"{self.cost.score_evaluations:g} score evaluations and {self.cost.projections:g} projections a chain, "
            f"{self.cost.seconds:.2f} s{self._checked()}",
        ]
        if self.latents is not None:
            lines.append(f"gap to the decoder, |z - decode(x)|: largest {float(self.gap.max()):.2e} (result.gap)")
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
    state: Any, samples: Tensor, certificate: Certificate, gap: Tensor, record: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays and the record of a tile in a store.

    Args:
        state: A NamedTuple of tensors; zero-dimensional ones go to the record.
        samples: (n, *event).
        certificate: Of these samples.
        gap: Their distances to what their latents decode to, (n,).
        record: Steps, usage and trace.
    """
    fields: dict[str, Tensor] = state._asdict()
    arrays = {f"state/{name}": part for name, part in fields.items() if part.ndim}
    arrays["posterior/samples"] = samples[:, None]
    for name in JUDGED:
        arrays[f"sample_stats/{name}"] = getattr(certificate, name)[:, None]
    arrays["sample_stats/gap"] = gap[:, None]
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


def set_data(constraint: Constraint) -> Any:
    """A set as JSON data, or its name if it cannot be written as data: a set of functions."""
    try:
        return constraint.spec()
    except SettingError:
        return repr(constraint)


def certificate_data(certificate: Certificate) -> dict[str, Any]:
    """What a store keeps of a certificate beside the violations, as JSON data."""
    return Measure(certificate.tolerance, certificate.units).plain()


def load(path: str | Path) -> SampleResult:
    """Read a result back: a finished run, or the tiles that are there of one that was stopped (``partial``).

    The samples are checked against their checksums. The certificate is computed again from the set that the store
    holds. Where it holds none (a set of functions), the violations are the stored ones; ``certificate.note`` says so.

    Raises:
        StoreError: There is no store, it is damaged, or it was written by another version of the format.
    """
    store = RunStore.reading(path)
    done = store.done()
    if not done:
        raise StoreError(f"no tile of {store.path} is finished yet; repeat the call that began it to go on")
    pieces = [store.read(index) for index in done]
    with named_errors(store.path):
        result = _together(store, done, pieces)
    chains = torch.cat([torch.arange(*store.bounds(index)) for index in done])
    return _certified_again(result, store.attributes["identity"].get("constraint"), store.chains, chains)


def _together(store: RunStore, done: list[int], pieces: list[tuple[dict[str, Tensor], dict[str, Any]]]) -> SampleResult:
    """The result that some tiles make, with the stored certificate."""

    def all_chains(name: str) -> Tensor:
        return torch.cat([arrays[name] for arrays, _ in pieces])

    about, trace = store.attributes, Trace()
    identity: dict[str, Any] = dict(about["identity"])
    run = dict(about.get("run", {}))
    for record in (about.get("exchanges", {"trace": Trace().plain()}), *(record for _, record in pieces)):
        trace.absorb(Trace.from_plain(record["trace"]))
    partial = bool(run.pop("partial", len(done) < store.count))
    series = {name: torch.tensor(v, dtype=torch.float64) for name, v in dict(run.pop("series", {})).items()}
    samples = all_chains("posterior/samples")[:, 0]
    violation, row, excess, steps = (all_chains(f"sample_stats/{name}")[:, 0] for name in (*JUDGED, "steps"))
    if samples.ndim < 2 or {violation.shape, row.shape, excess.shape, steps.shape} != {samples.shape[:1]}:
        shapes = f"{tuple(samples.shape)}, {tuple(violation.shape)} and {tuple(steps.shape)}"
        raise StoreError(f"samples, violations and steps in {store.path} have shapes {shapes}; restore it from a copy")
    used = [sum(int(record["usage"][k]) for _, record in pieces) / len(samples) for k in (0, 1)]
    fields = state_data({name: all_chains(name) for name in pieces[0][0]}, pieces[0][1])
    whole = "fidelity" in about and len(done) == store.count
    measure = Measure.of(float(identity["tol"]), identity.get("units"))
    return SampleResult(
        samples=samples,
        certificate=Certificate(
            violation.to(torch.float64), measure.tolerance, row.long(), excess.to(torch.float64), units=measure.units
        ),
        trace=series or trace.series(),
        fidelity=Fidelity.from_plain(about["fidelity"]) if whole else UNFINISHED,
        cost=Cost(*map(float, about.get("cost", [*used, 0.0]))),
        state=namedtuple("State", fields)(**fields),
        provenance=run or identity,
        steps=steps,
        partial=partial,
        latents=None if identity.get("decoder", "Identity") == "Identity" else next(iter(fields.values())),
        gap=all_chains("sample_stats/gap")[:, 0] if "sample_stats/gap" in pieces[0][0] else torch.zeros(0),
    )


def _certified_again(result: SampleResult, data: Any, n: int, chains: Tensor) -> SampleResult:
    """The result with a certificate computed from the set in the store, or with a note that says why it is not.

    Args:
        result: As it was stored.
        data: What the store holds of the set.
        n: Chains of the whole run.
        chains: Numbers of those that are there.
    """
    stored, name = result.certificate, data if isinstance(data, str) else "the set"
    if not isinstance(data, Mapping):
        return _noted(result, f"{name} is not in the store as data: it holds functions")
    try:
        constraint = constraint_from_spec(data)
        if constraint.chains not in (None, n):
            raise ShapeError(f"it has parameters for {constraint.chains} chains, the run has {n}")
        constraint = constraint.take(chains)
        fresh = certify(constraint, result.samples, stored.tolerance, stored.units)
    except Exception as error:  # a set of the user's own may raise anything, and may not be known in this process
        return _noted(result, f"the set in the store could not be used ({type(error).__name__}: {error})")
    before, now = stored.violation, fresh.violation
    slack = ROUNDING + SAME_VIOLATION * stored.tolerance + ROUNDING * torch.minimum(before.abs(), now.abs())
    off = ~((before == now) | ((before - now).abs() <= slack))
    note = ""
    if bool(off.any()):
        note = (
            f"computed again from the set in the store; the stored violations of {int(off.sum())} samples differ "
            f"(largest {float(before[off].max()):.2e}): the set was defined differently when they were written"
        )
    return replace(result, certificate=replace(fresh, note=note), constraint=constraint)


def _noted(result: SampleResult, why: str) -> SampleResult:
    """The result with its stored certificate, and why it was not computed again."""
    note = f"as stored, not computed again: {why}; check with constraint.violation(result.samples)"
    return replace(result, certificate=replace(result.certificate, note=note))
