"""Runs that last: batches go to a store as they end, and a run goes on from what is there.

A stored run is known by its settings, and by what it does: before it goes on, the start of its first batch, a few of
the first steps after it, and steps in the middle and at the end of the latest stage are taken again, and every bit is
compared. So another model, set, decoder, method or start is refused, whatever its code looks like.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.errors import StoreError
from casal.methods import Uncounted, Usage
from casal.sampling.certificate import Measure, certify
from casal.sampling.loop import Advanced, Job, Keeper, Walk, Watch, Whole, Work, advance
from casal.sampling.prepare import Batch, Prepared
from casal.sampling.progress import Progress
from casal.sampling.result import SampleResult, about, batch_data, set_data, snapshot_data, state_data
from casal.sampling.trace import Trace
from casal.store import CHECKPOINT, RunStore, digest, named_errors

REPLAYED = 0.006
"""Share of the steps of a run that each of three replays takes, at most; one step at least."""

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
VERSIONS = ("casal", "torch", "python")
"""Settings that may differ when a run goes on: what they change in its steps is seen in the bits."""


class StoreKeeper(Keeper):
    """Keeps the batches of a run in a store.

    Chains that never exchange anything are kept batch by batch as they end. Others are kept together, at checkpoints
    between two stages and at the end.

    Args:
        path: The folder of the store.
        prepared: The run.
        bar: Shows the progress.
        walk: How steps are taken.
    """

    def __init__(self, path: str | Path, prepared: Prepared, bar: Progress, walk: Walk) -> None:
        self.prepared, self.bar, self.walk = prepared, bar, walk
        self.independent = prepared.independent_stages() is not None
        name = prepared.method.name
        fixed = (
            None
            if self.independent
            else f"the chains of {name} exchange information, so that more chains change all of them"
        )
        self.store = RunStore(path, identity(prepared), prepared.n, prepared.batch, fixed)
        budget = int(REPLAYED * prepared.steps * len(prepared.batches))
        self._replayed: int | None = max(1, budget)
        self._proof = dict[str, tuple[dict[str, Tensor], dict[str, Any]]]()  # not yet written
        self._first, self._latest = False, -1  # whether the first steps are kept, and the latest stage that is
        self._ended: dict[str, Any] = {"trace": Trace().plain(), "usage": [0, 0]}

    def __exit__(self, *_: object) -> None:
        """Let other processes use the store."""
        self.store.close()

    # -------------------------------------------------------------------------------------------- going on

    def resume(self, job: Job) -> None:
        if not self.store.begun():
            return
        self._replay()
        with named_errors(self.store.path):
            done = self.store.done()
            if self.independent or (len(done) == len(job.taken) and "exchanges" in self.store.attributes):
                self._resume_batches(job, done)
            else:
                self._resume_checkpoint(job)
        self.bar.advance(sum(job.taken))

    def _resume_batches(self, job: Job, done: list[int]) -> None:
        prepared, batches, whole = self.prepared, self.prepared.batches, Whole(self.prepared.n, None)
        for index in done:
            arrays, record = self.store.read(index)
            if int(record["steps"]) != prepared.steps:
                raise self._misfit(f"batch {index} has taken {record['steps']} steps")
            whole.write(batches[index], self._state(record["kind"], state_data(arrays, record), len(batches[index])))
            job.taken[index] = prepared.steps
            job.usage.absorb(Usage(*map(int, record["usage"])))
            job.trace.absorb(Trace.from_plain(record["trace"]))
            for step, samples in snapshot_data(arrays, record):
                job.snapshots.setdefault(step, {})[index] = samples
        job.state = whole.state
        if not self.independent:
            self._ended = dict(self.store.attributes["exchanges"])
            self._absorb(job, self._ended)
            job.ended = True

    def _resume_checkpoint(self, job: Job) -> None:
        found = self.store.read_arrays(CHECKPOINT)
        if found is None:
            return
        arrays, record = found
        state = {name.removeprefix("state/"): part for name, part in arrays.items() if name.startswith("state/")}
        job.state = self._state(record["kind"], state, self.prepared.n)
        job.stage, job.done, job.taken = record["stage"], record["done"], record["taken"]
        job.control = self._control(record["control"])
        told = f"its checkpoint is before stage {job.stage}, after {job.taken} of {self.prepared.steps} steps"
        whole = isinstance(job.stage, int) and isinstance(job.done, int)
        if not whole or job.taken != [job.done] * len(self.prepared.batches) or job.done > self.prepared.steps:
            raise self._misfit(told)
        if job.done < self.prepared.steps and self.prepared.stage(job.control, job.stage) is None:
            raise self._misfit(told)
        for name, part in arrays.items():
            if name.startswith("snapshots/"):
                _, step, index = name.split("/")
                job.snapshots.setdefault(int(step), {})[int(index)] = part
        self._absorb(job, record)

    def _state(self, kind: str, fields: Mapping[str, Tensor], n: int) -> Any:
        """A state from its fields; ``kind`` names its class."""
        module, _, name = kind.partition(":")
        found: Any = sys.modules.get(module)
        for step in name.split("."):
            found = getattr(found, step, None)
        if not (isinstance(found, type) and getattr(found, "_fields", None) == tuple(fields)):
            raise self._misfit(f"there is no state {kind} with the fields {', '.join(fields)}")
        for field, part in fields.items():
            if part.ndim and len(part) != n:
                raise self._misfit(f"{field} has shape {tuple(part.shape)} for {n} chains")
        return found(*(part.to(self.prepared.device) if part.ndim else part for part in fields.values()))

    def _control(self, stored: Any) -> Any:
        """Shared numbers from their JSON data; None stands for the first ones."""
        first = self.prepared.control
        return first if stored is None else type(first)(*map(_tuples, stored))

    # -------------------------------------------------------------------------------------------- the proof

    def replayed(self, batch: Batch) -> int | None:
        return self._replayed if self.independent or batch.index == 0 else None

    def _replay(self) -> None:
        """Take a few steps of the first batch again, and compare every bit.

        Raises:
            StoreError: Something differs.
        """
        prepared, batch = self.prepared, self.prepared.batches[0]
        found = self.store.read_arrays("start")
        if found is not None:
            state = prepared.start(batch, Uncounted())
            self._compare("the start", found[0], state)
        for name in ("first steps", "middle steps", "last steps"):
            found = self.store.read_arrays(name)
            if found is None:
                continue
            arrays, record = found
            before = {k.removeprefix("before/"): v for k, v in arrays.items() if k.startswith("before/")}
            after = {k.removeprefix("after/"): v for k, v in arrays.items() if k.startswith("after/")}
            batch = Batch(*record["batch"])
            work = Work(
                record["stage"],
                self._control(record["control"]),
                batch,
                self._state(record["kind"], before, len(batch)),
                record["done"],
                first=record["row"],
                stop=record["stop"],
                generator=arrays["generator"],
            )
            came = advance(prepared, work, Watch(), self.walk)
            self._compare(f"the {name}", after, came.state)
            self._first = True
            if self.independent:  # what is there of them says enough
                self._replayed = None

    def _compare(self, what: str, stored: Mapping[str, Tensor], state: Any) -> None:
        fields = state._asdict()
        for name, part in stored.items():
            now = fields.get(name)
            if now is None or now.shape != part.shape or digest({"": now}) != digest({"": part}):
                apart = ""
                if now is not None and now.shape == part.shape and part.is_floating_point():
                    apart = f" (by up to {float((now.cpu().double() - part.double()).abs().max()):.3g})"
                raise StoreError(
                    f"{self.store.path} holds another run; nothing was changed. Taken again, {what} of some of its "
                    f"chains differ in {name}{apart}: model, set, decoder, method or start are not those "
                    "of the stored run, or another machine or version of torch rounds differently. Repeat the call "
                    "that began it, or choose another path"
                )

    def _keep_proof(self, job: Job, came: Advanced) -> None:
        """What the next resume compares with: steps at the beginning of the run, and of the latest stage."""
        if not came.marks or came.interrupted or job.stage == self._latest:
            return
        pairs = {name: pair for name, pair in came.marks.items() if name != "first steps" or not self._first}
        self._first, self._latest = True, job.stage
        batch = [came.batch.index, came.batch.start, came.batch.stop]
        for name, (before, after) in pairs.items():
            arrays = {f"before/{k}": v for k, v in before.state._asdict().items()}
            arrays |= {f"after/{k}": v for k, v in after.state._asdict().items()} | {"generator": before.generator}
            record = {"batch": batch, "stage": job.stage, "done": job.done, "kind": _kind(before.state)}
            record |= {"control": self._control_data(job), "row": before.row, "stop": after.row}
            self._proof[name] = arrays, record

    def _write_proof(self) -> None:
        for name, (arrays, record) in self._proof.items():
            self.store.write_arrays(name, arrays, record)
        self._proof.clear()

    def _control_data(self, job: Job) -> Any:
        return None if job.control is self.prepared.control else list(job.control)

    # -------------------------------------------------------------------------------------------- on the way

    def checkpoint(self, job: Job) -> None:
        if job.stage == 0 and job.taken[0] == 0:
            start = job.part(self.prepared.batches[0])
            self.store.write_arrays("start", start._asdict(), {})
        if self.independent or job.stage == 0 or not self.store.checkpoint_due():
            return
        arrays = {f"state/{name}": part for name, part in job.state._asdict().items()}
        for step, parts in job.snapshots.items():
            arrays.update({f"snapshots/{step}/{index}": part for index, part in parts.items()})
        position = {"stage": job.stage, "done": job.done, "taken": job.taken, "control": self._control_data(job)}
        self._write_proof()
        self.store.write_arrays(CHECKPOINT, arrays, {**position, **_together(job), "kind": _kind(job.state)})

    def keep(self, job: Job, came: Advanced) -> None:
        self._keep_proof(job, came)
        if self.independent and job.taken[came.batch.index] == self.prepared.steps:
            self._write_proof()
            came.usage.absorb(job.begun[came.batch.index])
            self._write(came.batch, came.state, came.usage, came.trace, came.snapshots)

    def end(self, job: Job) -> None:
        if self.independent:
            return
        self._write_proof()
        trace = Trace({k: v for k, v in job.trace.steps.items() if k != self.prepared.steps}, job.trace.exchanges)
        self._ended = {"trace": trace.plain(), "usage": [job.usage.scores, job.usage.projections]}
        done = self.store.done()
        for batch in self.prepared.batches:
            if batch.index not in done:
                kept = {step: parts[batch.index] for step, parts in job.snapshots.items() if batch.index in parts}
                self._write(batch, job.part(batch), Usage(), Trace(), kept)

    def on_interrupt(self, n: int, taken: Tensor, steps: int) -> str:
        return (
            f"interrupted: {len(self.store.done())} of {self.store.count} batches are in {self.store.path}; "
            "repeat the same call to go on from there"
        )

    def finish(self, result: SampleResult) -> None:
        attributes = {"run": dict(result.provenance), "cost": list(astuple(result.cost))}
        self.store.finish({**attributes, "exchanges": self._ended, "fidelity": result.fidelity.plain()})

    def _write(self, batch: Batch, state: Any, usage: Usage, trace: Trace, kept: Mapping[int, Tensor]) -> None:
        """Put a batch that took all its steps on disk."""
        prepared, options = self.prepared, self.prepared.options
        steps = sorted(kept)
        records = Trace(dict(trace.steps), list(trace.exchanges))
        records.steps.pop(prepared.steps, None)
        records.record(prepared.steps, prepared.monitor(batch, state))
        samples = prepared.samples(batch, state, Uncounted())
        certificate = certify(prepared.constraint.take(batch.chains), samples, options.tol, options.units)
        snapshots = torch.stack([kept[step] for step in steps]) if steps else None
        record = {
            "steps": prepared.steps,
            "usage": [usage.scores, usage.projections],
            "trace": records.plain(),
            "snapshots": steps,
            "kind": _kind(state),
        }
        gap = prepared.gap(state, samples)
        self.store.write(batch.index, *batch_data(state, samples, certificate, gap, record, snapshots))

    def _absorb(self, job: Job, record: Mapping[str, Any]) -> None:
        job.trace.absorb(Trace.from_plain(record["trace"]))
        job.usage.absorb(Usage(*record["usage"]))

    def _misfit(self, what: str) -> StoreError:
        return StoreError(
            f"{self.store.path} does not fit the run: {what}; nothing was changed. Restore it from a copy, or "
            "remove it to begin again"
        )


def identity(prepared: Prepared) -> dict[str, Any]:
    """The settings that a store must agree with to be continued, as JSON data."""
    options, target = prepared.options, prepared.target
    run = options.run
    settings = {name: value for name, value in about(prepared).items() if name not in VERSIONS}
    plain = {name: ADDRESS.sub("", value) if isinstance(value, str) else value for name, value in settings.items()}
    constraint = set_data(prepared.constraint)
    return {
        **plain,
        "constraint": ADDRESS.sub("", constraint) if isinstance(constraint, str) else constraint,
        **Measure.of(options.tol, options.units).plain(),
        **({"condition": digest(dict(target.condition))} if target.condition else {}),
        "compile": run.compile,
        "record_every": run.record_every,
        "snapshots": run.snapshots,
        **({} if run.run_id is None else {"run_id": run.run_id}),
    }


def _together(job: Job) -> dict[str, Any]:
    """What was used and recorded by all chains, as JSON data."""
    return {"trace": job.trace.plain(), "usage": [job.usage.scores, job.usage.projections]}


def _kind(state: Any) -> str:
    """The class of a state, by name."""
    return f"{type(state).__module__}:{type(state).__qualname__}"


def _tuples(value: Any) -> Any:
    """JSON data with tuples in place of lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
