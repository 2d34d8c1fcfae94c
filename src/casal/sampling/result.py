"""What a run returns, and how it is saved and loaded."""

from __future__ import annotations

import platform
import shutil
import time
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from casal import __version__
from casal.constraints import Constraint, constraint_from_spec
from casal.diagnostics import (
    SHARE_OF_EVALUATIONS,
    Estimate,
    Evidence,
    Fidelity,
    Lineage,
    assess,
    other_units,
    warn_if_degenerate,
)
from casal.errors import CasalWarning, SettingError, ShapeError, StoreError
from casal.methods import Problem, Usage
from casal.sampling.certificate import Certificate, Measure, certify
from casal.sampling.export import Function, Summary, html_table, inference_data, short, summarise
from casal.sampling.loop import Job, Walk
from casal.sampling.plot import draw
from casal.sampling.prepare import Batch, Prepared
from casal.sampling.threads import one_thread
from casal.sampling.trace import Snapshots, Trace, snapshots_of
from casal.store import RunStore, make_tree, named_errors, refuse_file_name

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
        seconds: Wall-clock time of the whole call: looks before the run, its steps, certificates and checks.
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

BY_NAME = 'method="auto" chooses a method that does'
BY_AUTO = "casal.calibrate(target, family, casal.{}(), 64) checks it on this model and this kind of set"
"""What to do about a method that does not promise the distribution, named or chosen by "auto"."""

UNFINISHED = Fidelity(
    "suspect", ("the run was stopped before its distribution was checked; repeat the call that started it",), {}
)
"""Of a store whose run has not come to its end."""


@dataclass(frozen=True, repr=False)
class SampleResult:
    """Samples with their certificates, and how they came about.

    Attributes:
        samples: (n, *event) in decoded space; for methods that promise feasibility this is z, in float64.
        certificate: Violation of every sample.
        trace: Scalars along the run. At recorded steps: ``step``, ``gap`` (mean of |A x - z|), ``violation`` (largest),
            ``dual_norm`` (mean). Where all chains act together: ``exchange_step``, ``rho``, ``ess``, ``ancestors``; for
            Metropolis moves ``acceptance``; at the end ``inside`` (share of chains whose nearest point satisfied the
            inequalities), ``finish_ess``, ``corrected`` (1 if the last correction was made) and, for a union,
            ``crossing`` (share of nearest points close to another piece).
        cost: Score evaluations and projections per chain, seconds.
        state: The last state of the method (x, z, multipliers, weights ...). Behind an affine decoder z = A x + c its
            decoded points are without c.
        provenance: Settings and versions.
        steps: (n,) steps each returned chain has taken.
        partial: The run was interrupted, or stopped early; ``steps`` says how far each chain came.
        fidelity: How far the distribution of the samples can be trusted: ``verdict``, ``reasons`` and ``figures``, on
            the page *Is it right?*. A partial run has not been checked and is suspect.
        constraint: The set of these chains; None where it is not known (loaded, and a set of functions).
        snapshots: Samples along the run, if ``snapshots=`` asked for them.
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
    snapshots: Snapshots | None = None
    latents: Tensor | None = None
    gap: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def __post_init__(self) -> None:
        if len(self.gap) != len(self.samples):
            object.__setattr__(self, "gap", self.samples.new_zeros(len(self.samples), dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Tensor:
        """Some of the samples, as ``result.samples[index]``."""
        return self.samples[index]

    @property
    def weights(self) -> Tensor:
        """(n,) float64 weights that sum to one; equal for methods without weights."""
        log_weight = getattr(self.state, "log_weight", None)
        if log_weight is None:
            n, device = len(self.samples), self.samples.device
            return torch.full((n,), 1.0 / max(n, 1), dtype=torch.float64, device=device)
        return torch.softmax(log_weight, dim=0)

    @property
    def ancestors(self) -> Tensor:
        """(n,) index of the starting chain each sample descends from."""
        ancestor: Tensor | None = getattr(self.state, "ancestor", None)
        return torch.arange(len(self.samples), device=self.samples.device) if ancestor is None else ancestor

    @overload
    def expect(self, f: Callable[[Tensor], Tensor]) -> Estimate: ...

    @overload
    def expect(self, f: Callable[[Tensor], Tensor], *, by: Any) -> dict[Any, Estimate]: ...

    def expect(self, f: Callable[[Tensor], Tensor], *, by: Any = None) -> Estimate | dict[Any, Estimate]:
        """The expectation of a function of the samples, with a standard error that knows of weights and copies.

        The value is sum_i W_i f(z_i). Samples of one ancestor count as one observation, see
        ``methods/population.py``; chains that exchange nothing are their own ancestors. Printed, an estimate says what
        its error bar leaves out: a distribution that is not trusted, and several sets or conditions (``PerChain``) that
        the mean mixes; ``by`` keeps them apart.

        Args:
            f: Samples (n, *event) -> (n,) or (n, k), numbers or truth values.
            by: (n,) numbers, such as the values of a ``PerChain`` parameter: one estimate for each of them.

        Returns:
            ``value`` and ``standard_error``, of shape () or (k,), float64. Errors of few effective ancestors are
            widened as Student's distribution asks, so that 1.96 of them are a 95 % interval. That of a single one is
            NaN. An event that no sample shows, or all of them (f is 0 or 1 throughout), is rarer than 3 / G with 95 %
            confidence, G the effective ancestors (the rule of three, since (1 - 3 / G)^G is about 5 %). Its standard
            error is that bound over 1.96, and at most 1/2. With ``by`` a dictionary from its numbers to such estimates.

        Raises:
            ShapeError: f returns something else.
        """
        values, n = f(self.samples), len(self.samples)
        with suppress(TypeError, ValueError, RuntimeError):  # lists and arrays of NumPy
            values = torch.as_tensor(values, device=self.samples.device)
        if not isinstance(values, Tensor) or values.ndim not in (1, 2) or len(values) != n:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"f must return a tensor ({n},) or ({n}, k) for {n} samples, got {got}")
        verdict, groups = self.fidelity.verdict, int(self.provenance.get("groups", 1))
        notes = [{"trusted": "", "too few": "too few samples"}.get(verdict, f"distribution {verdict}")]
        if by is None:
            notes.append(f"mean over {groups} different sets or conditions" if groups > 1 else "")
            return _estimate(values, Lineage(self.weights, self.ancestors), notes)
        try:
            labels = torch.as_tensor(by, device=self.samples.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ShapeError(f"by holds one number for each of the {n} samples, such as 0, 1, ...: {error}") from error
        if labels.shape != (n,):
            raise ShapeError(f"by holds one number for each of the {n} samples, got shape {tuple(labels.shape)}")
        found = dict[Any, Estimate]()
        for label in torch.unique(labels):
            of = labels == label
            found[label.item()] = _estimate(values[of], Lineage(self.weights[of], self.ancestors[of]), notes)
        return found

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the result to a new store (zarr), as ``casal.Run(store=path)`` does; ``casal.load`` reads it.

        Args:
            path: The folder, such as "run.zarr"; names of files (.pt, .npz, .csv ...) are refused.
            overwrite: Whether to replace a result that is there; another folder or file is never replaced.

        Raises:
            StoreError: The folder exists, has the name of a file, or cannot be written.
        """
        place = Path(path)
        refuse_file_name(place)
        with named_errors(place):
            taken = place.exists()
        if taken and overwrite:
            RunStore.reading(place)  # StoreError if it is something else
            shutil.rmtree(place)
        elif taken:
            raise StoreError(f"{place} exists; nothing was changed. Choose another path, or give overwrite=True")
        n, about = len(self.samples), dict(self.provenance)
        known = {} if self.constraint is None else {"constraint": set_data(self.constraint)}
        identity = {**about, **known, **certificate_data(self.certificate), "saved": True}
        usage = [round(self.cost.score_evaluations * n), round(self.cost.projections * n)]
        kept = self.snapshots
        taken_at = [] if kept is None else kept.steps.tolist()
        record = {"steps": self.steps.tolist(), "usage": usage, "trace": Trace().plain(), "snapshots": taken_at}
        series = {name: values.tolist() for name, values in self.trace.items()}
        run = {**about, "partial": self.partial, "series": series}
        with RunStore(place, identity, n, n) as store:
            try:
                along = None if kept is None else kept.samples
                store.write(0, *batch_data(self.state, self.samples, self.certificate, self.gap, record, along))
                store.finish({"run": run, "cost": list(astuple(self.cost)), "fidelity": self.fidelity.plain()})
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)  # it was not there before
                raise

    # -------------------------------------------------------------- tables, pictures, other libraries

    def summary(self, functions: Mapping[str, Function] | Sequence[Function] | None = None) -> Summary:
        """A small table: mean, standard error, standard deviation, 5 % and 95 % quantile of functions of the samples.

        Standard errors are those of ``expect``: they know of weights and shared ancestors. R-hat and ESS are there only
        where they mean something: independent chains of a fixed density with recorded draws (``snapshots=``).

        Args:
            functions: Name to function, samples (n, *event) -> (n,) or (n, k); or a list of named functions. Every
                coordinate if left out.

        Raises:
            ShapeError: A function returns something else.
        """
        draws = None if self.snapshots is None else self.snapshots.draws
        return summarise(self.samples, self.weights, self.ancestors, functions, draws)

    def plot(self) -> Any:
        """A matplotlib ``Figure``: the samples, how far they violate the set, and the trace of the run.

        Samples in two dimensions are points, more coordinates marginals or ranges; events (h, w) and (c, h, w) are
        images: mean, standard deviation and a few samples. ``figure.savefig(path)`` writes it, and ``figure.show()``
        opens a window.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return draw(self)

    def to_xarray(self) -> Any:
        """An xarray ``DataTree`` with the groups, names and dimensions of a store: posterior, sample_stats, state.

        Each of the n chains has one draw, its sample; weights are in ``sample_stats``. Snapshots are a group of their
        own. ArviZ from version 1 on takes such trees.

        Raises:
            StoreError: xarray is not installed.
        """
        along = None if self.snapshots is None else self.snapshots.samples
        record = {"steps": self.steps.tolist()}
        arrays, _ = batch_data(self.state, self.samples, self.certificate, self.gap, record, along)
        about = {name: value for name, value in self.provenance.items() if isinstance(value, str | int | float)}
        checked = {"verdict": self.fidelity.verdict, "tolerance": self.certificate.tolerance}
        attributes: dict[str, dict[str, Any]] = {"provenance": {**about, **checked, **asdict(self.cost)}}
        if self.snapshots is not None:
            attributes["snapshots"] = {"steps": self.snapshots.steps.tolist()}
        return make_tree(arrays, attributes)

    def to_arviz(self) -> Any:
        """An ``InferenceData`` of ArviZ (before version 1) with the groups posterior and sample_stats.

        Where there are draws along independent chains (``snapshots=``), these are the chains and draws. Else all
        samples are draws of one chain, resampled first if their weights differ, and ``attrs["note"]`` says so: ArviZ's
        errors know nothing of weights and ancestors, those of ``summary`` do.

        Raises:
            MissingExtraError: arviz is not installed, or a version whose containers are xarray's own.
        """
        draws = None if self.snapshots is None else self.snapshots.draws
        return inference_data(self.samples, self.weights, self.certificate, draws, self.constraint)

    def lines(self) -> list[tuple[str, str]]:
        """What ``print`` shows, as pairs of a label and a text."""
        n, cost, about = len(self.samples), self.cost, self.provenance
        requested, calls = about.get("requested"), short(cost.score_evaluations)
        chosen = ' (chosen by "auto")' if "choice" in about else ""
        more = "" if requested is None or short(requested) == calls else f" ({requested} requested)"
        checks = f", {short(cost.check_evaluations)} for checks" if cost.check_evaluations else ""
        projections = "projection" if short(cost.projections) == "1" else "projections"
        draw = getattr(self.state, "draw", None)
        chains = n if draw is None else int((draw == 0).sum())
        each = "chain" if chains == n else "sample"
        shown = [
            ("method", f"{about.get('method', '?')}{chosen}"),
            ("samples", f"{n} of shape {tuple(self.samples.shape[1:])}{' (partial run)' if self.partial else ''}"),
            ("constraint", str(self.certificate)),
            ("distribution", str(self.fidelity).removeprefix("distribution ")),
            ("model calls", f"{calls} per {each}{more}{checks}; {short(cost.projections)} {projections} per {each}"),
        ]
        if self.latents is not None:
            largest = float(self.gap.max()) if n else 0.0
            shown.append(("gap", f"samples are up to {largest:.3g} away from their decoded latents"))
        if "ess" in self.trace:
            alive, least = len(torch.unique(self.ancestors)), float(self.trace["ess"].min())
            shown.append(("ancestors", f"{alive} of {chains} starts have descendants; lowest ESS {least:.0f}"))
        return [*shown, ("seconds", f"{cost.seconds:.2f}")]

    def __str__(self) -> str:
        return "\n".join(f"{label:<14}{text}" for label, text in self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.lines(), head=False)


def _estimate(values: Tensor, lineage: Lineage, notes: Sequence[str]) -> Estimate:
    """Mean and standard error of values (n,) or (n, k), with what is to be said of them."""
    columns = values.reshape(len(values), -1)
    mean, error = lineage.estimate(columns)
    never = ((columns == columns[:1]).all(0) & ((columns[0] == 0) | (columns[0] == 1))).to(error.device)
    bound = min(1.0, 3.0 / lineage.effective)
    error = torch.where(never, min(0.5, bound / 1.96), error)
    if lineage.ancestors < 2:
        error = torch.full_like(error, torch.nan)
    elif bool(never.any()):
        notes = [*notes, f"an event that no sample shows is rarer than {bound:.2g}, with 95 % confidence"]
    note = "; ".join(filter(None, notes))
    return Estimate(mean, error, note) if values.ndim == 2 else Estimate(mean[0], error[0], note)


# ------------------------------------------------------------------------------------------------ from a run


def collect(prepared: Prepared, job: Job, threads: int, walk: Walk, began: float) -> SampleResult:
    """The chains of a run that took a step, as a result.

    Args:
        prepared: The run.
        job: How far it came.
        threads: Batches that were worked on at the same time.
        walk: How steps were taken.
        began: When the call began, by ``time.perf_counter``.

    Raises:
        KeyboardInterrupt: No chain took a step.
    """
    batches = [batch for batch in prepared.batches if job.taken[batch.index] > 0 or prepared.steps == 0]
    if job.state is None or not batches:
        raise KeyboardInterrupt("interrupted before any chain took a step; nothing to return")
    complete, last = len(batches) == len(job.taken), max(job.taken)
    samples = _samples(prepared, job, batches)
    n = len(samples)
    for batch in batches:
        job.trace.record_last(last, batch.index, prepared.monitor(batch, job.part(batch)))
    which = torch.cat([torch.arange(batch.start, batch.stop) for batch in batches])
    state = _decoded(prepared, job.state)
    if not complete:
        state = type(state)(*(part[which.to(part.device)] if part.ndim else part for part in state))
    series = job.trace.series()
    if not job.stopped:
        warn_if_degenerate(series, n, getattr(state, "log_weight", None))
    requested, groups = len(prepared.target.table), prepared.problem.groups()
    provenance = {**about(prepared), "requested": requested, "threads": threads, "compile": walk.compiles}
    if groups is not None:
        provenance["groups"] = len(torch.unique(groups))
    if walk.note is not None:
        provenance["compile_note"] = walk.note
    snapshots = _gathered(prepared, job, batches)
    if snapshots is not None:
        provenance["stationary_after"] = stationary_after(prepared)
    constraint, usage, options = prepared.constraint.take(which), job.usage, prepared.options
    result = SampleResult(
        samples=samples,
        certificate=certify(constraint, samples, options.tol, options.units),
        trace=series,
        cost=Cost(usage.scores / n + prepared.target.init_evaluations, usage.projections / n, 0.0),
        state=state,
        provenance=provenance,
        constraint=constraint,
        steps=torch.cat([torch.full((len(batch),), job.taken[batch.index]) for batch in batches]),
        partial=job.interrupted,
        snapshots=snapshots,
        latents=None if prepared.undecoded else state[0],
        gap=prepared.gap(state, samples),
    )
    spent = Usage()
    problem = prepared.problem if complete else prepared.problem.take(which)
    seen = result if prepared.offset is None else replace(result, samples=samples - prepared.offset.to(samples.device))
    promised = prepared.method.promises(problem, job.control)
    fidelity = _fidelity(prepared, seen, problem.replace(usage=spent), promised, job.stopped)
    checks = {
        "check_evaluations": spent.scores / n + prepared.checked,
        "check_projections": spent.projections / n,
    }
    cost = replace(result.cost, seconds=time.perf_counter() - began, **checks)
    return replace(result, fidelity=fidelity, cost=cost)


def about(prepared: Prepared) -> dict[str, Any]:
    """Settings and versions of a run."""
    target, options, pilot = prepared.target, prepared.options, prepared.pilot
    condition = ", ".join(f"{name} {tuple(value.shape)}" for name, value in target.condition.items())
    return {
        "casal": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "target": target.name,
        **({"condition": condition} if condition else {}),
        "constraint": repr(prepared.constraint),
        "decoder": type(options.decoder).__name__ if options.decoder is not None else "Identity",
        "method": prepared.method.name,
        "settings": repr(prepared.method),
        "n": prepared.n,
        "steps": prepared.steps,
        "seed": options.seed,
        "batch": prepared.batch,
        "dtype": str(prepared.problem.like.dtype),
        **({} if pilot is None else {"step_size": pilot.step_size, "integrable": pilot.integrable}),
        **({} if prepared.choice is None else {"choice": prepared.choice}),
    }


def _fidelity(prepared: Prepared, result: SampleResult, problem: Problem, promised: bool, stopped: str) -> Fidelity:
    """The certificate of the distribution; an interrupted run is not worth evaluations."""
    objections, check = prepared.objections, prepared.options.check
    if result.partial:
        done = int(result.steps.min())
        told = stopped or f"the run was interrupted after {done} of {prepared.steps} steps; run it to the end"
        objections += (told,)
    allowed = float(len(problem.table)) if prepared.method.adapts else 0.0  # what it leaves may be spent on checks
    with one_thread():
        asked = check and problem.identity and not result.partial  # with a decoder somebody has thought of units
        if prepared.method.strict and not promised and asked:
            evaluations = result.cost.score_evaluations * len(result)
            question = other_units(problem, result.samples, result.weights, evaluations)
            if question is not None:
                warnings.warn(question, CasalWarning, stacklevel=4)
                objections += (question,)
        return assess(
            Evidence(
                result,
                problem,
                max(result.cost.score_evaluations, allowed),
                result.cost.projections,
                SHARE_OF_EVALUATIONS if check is True else float(check),
                None if result.partial else prepared.starts,
            ),
            promised=promised,
            method=prepared.method.name,
            way_out=BY_NAME if prepared.choice is None else BY_AUTO.format(prepared.method.name),
            spend=bool(check) and not result.partial,
            notes=prepared.notes,
            objections=objections,
        )


def _samples(prepared: Prepared, job: Job, batches: Sequence[Batch]) -> Tensor:
    """The samples of some batches, batch by batch, so that no tensor is held twice."""
    first = prepared.samples(batches[0], job.part(batches[0]), job.usage)
    if len(batches) == 1:
        return first
    samples = first.new_empty((sum(len(batch) for batch in batches), *first.shape[1:]))
    done = len(first)
    samples[:done] = first
    for batch in batches[1:]:
        samples[done : done + len(batch)] = prepared.samples(batch, job.part(batch), job.usage)
        done += len(batch)
    return samples


def _decoded(prepared: Prepared, state: Any) -> Any:
    """The state as a reader expects it: in decoded space, in the dtype of the run."""
    wide = prepared.inside.lift(state)
    return type(state)(*(new.to(old.dtype) for new, old in zip(wide, state, strict=True)))


def _gathered(prepared: Prepared, job: Job, batches: Sequence[Batch]) -> Snapshots | None:
    """The snapshots of all batches, at the steps that all of them have reached; None if there are none."""
    steps = [step for step in sorted(job.snapshots) if all(batch.index in job.snapshots[step] for batch in batches)]
    if not steps:
        return None
    parts = [torch.cat([job.snapshots[step][batch.index] for batch in batches]) for step in steps]
    return snapshots_of(torch.tensor(steps), torch.stack(parts), stationary_after(prepared))


def stationary_after(prepared: Prepared) -> int | None:
    """The step after which independent chains sample one distribution, as far as the rows tell; None if never."""
    stages = prepared.independent_stages()
    if stages is None or not prepared.target.table.static:
        return None
    rows = [(stage, row) for stage in stages for row in stage.rows]
    same = next((k for k in range(len(rows), 0, -1) if not _same(rows[k - 1], rows[-1])), 0)
    return max(same, prepared.steps // 2)


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two steps of a run are taken alike; the time of a row means nothing to a fixed density."""
    (stage, row), (last_stage, last_row) = one, other
    if stage is not last_stage:
        return False
    pairs = [(getattr(row, name), getattr(last_row, name)) for name in row._fields if name != "t"]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


# ------------------------------------------------------------------------------------------------ on disk


def batch_data(
    state: Any,
    samples: Tensor,
    certificate: Certificate,
    gap: Tensor,
    record: Mapping[str, Any],
    snapshots: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays and the record of a batch in a store.

    Args:
        state: A NamedTuple of tensors; zero-dimensional ones go to the record.
        samples: (n, *event).
        certificate: Of these samples.
        gap: Their distances to what their latents decode to, (n,).
        record: Steps, usage and trace; with snapshots also after which steps they were taken.
        snapshots: (S, n, *event), if there are any.
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
    if snapshots is not None:
        arrays["snapshots/samples"] = snapshots.transpose(0, 1)
    common = {name: [str(part.dtype), part.item()] for name, part in fields.items() if not part.ndim}
    return arrays, {**record, "common": common, "fields": list(fields)}


def state_data(arrays: Mapping[str, Tensor], record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fields of a state from what ``batch_data`` made of it."""
    common = {
        name: torch.tensor(value, dtype=getattr(torch, dtype.removeprefix("torch.")))
        for name, (dtype, value) in record["common"].items()
    }
    return {name: common[name] if name in common else arrays[f"state/{name}"] for name in record["fields"]}


def snapshot_data(arrays: Mapping[str, Tensor], record: Mapping[str, Any]) -> Iterator[tuple[int, Tensor]]:
    """Step and samples of every snapshot of a batch."""
    if "snapshots/samples" in arrays:
        yield from zip(map(int, record["snapshots"]), arrays["snapshots/samples"].unbind(1), strict=True)


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
    """Read a result back: a finished run, or the batches that are there of one that was stopped (``partial``).

    The samples are checked against their checksums. The certificate is computed again from the set that the store
    holds. Where it holds none (a set of functions), the violations are the stored ones; ``certificate.note`` says so.

    Raises:
        StoreError: There is no store, it is damaged, or it was written by another version of the format.
    """
    store = RunStore.reading(path)
    done = store.done()
    if not done:
        raise StoreError(f"no batch of {store.path} is finished yet; repeat the call that began it to go on")
    pieces = [store.read(index) for index in done]
    with named_errors(store.path):
        result = _together(store, done, pieces)
    chains = torch.cat([torch.arange(*store.bounds(index)) for index in done])
    return _certified_again(result, store.attributes["identity"].get("constraint"), store.chains, chains)


def _together(store: RunStore, done: list[int], pieces: list[tuple[dict[str, Tensor], dict[str, Any]]]) -> SampleResult:
    """The result that some batches make, with the stored certificate."""

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
        snapshots=_snapshots(pieces, run),
        latents=None if identity.get("decoder", "Identity") == "Identity" else next(iter(fields.values())),
        gap=all_chains("sample_stats/gap")[:, 0] if "sample_stats/gap" in pieces[0][0] else torch.zeros(0),
    )


def _snapshots(pieces: list[tuple[dict[str, Tensor], dict[str, Any]]], run: Mapping[str, Any]) -> Snapshots | None:
    """The snapshots of all batches."""
    batches = [dict(snapshot_data(arrays, record)) for arrays, record in pieces]
    steps = sorted(set.intersection(*(set(batch) for batch in batches)))
    if not steps:
        return None
    samples = torch.stack([torch.cat([batch[step] for batch in batches]) for step in steps])
    settled = run.get("stationary_after")
    return snapshots_of(torch.tensor(steps), samples, None if settled is None else int(settled))


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
