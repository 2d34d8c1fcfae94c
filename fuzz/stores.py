"""Stores: runs that are killed, damaged files, two processes on one store.

killed     SIGKILL at random moments, then the same call again: the bits of a run that nobody disturbed
damaged    bits flipped in, or bytes cut off, a file of a store: ``casal.load`` returns samples of that run or
           raises StoreError; so does the call that continues it, and then with all of the samples
shared     two processes start the same run on one store: each ends with its bits or with StoreError
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.sampling.runs import METHODS, run

import casal
from casal.errors import StoreError
from casal.store import run_store
from fuzz.limits import TooLong, limit
from fuzz.report import Failure, Report

LONGEST = 60
"""Seconds after which reading or continuing a small store counts as hanging."""

DURATION = 1.5
"""Seconds that a slow run takes, about: the moments of kills are drawn from this range."""

RUNS = sorted(METHODS)


def trial(seed: int, number: int) -> Report:
    """One store: killed, damaged (most often) or shared."""
    rng, report = np.random.default_rng([seed, 2, number]), Report()
    kind = ["killed", "damaged", "damaged", "damaged", "damaged", "damaged", "damaged", "shared"][number % 8]
    name = str(rng.choice(RUNS))
    report.count("stores", kind)
    report.count("run", name)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {"killed": _killed, "damaged": _damaged, "shared": _shared}[kind](rng, name, Path(folder), report)
        for check, message in found:
            command = f"python -m fuzz --only stores --seed {seed} --trial {number}"
            report.failures.append(Failure(check, f"{kind} store", f"{name}: {message}", "", command))
    return report


# ------------------------------------------------------------------ runs


@functools.cache
def undisturbed(name: str) -> casal.SampleResult:
    """The run in memory."""
    return run(name)


def _same(result: casal.SampleResult, name: str) -> str | None:
    """What differs from the undisturbed run; None if nothing does."""
    whole = undisturbed(name)
    if not torch.equal(result.samples, whole.samples):
        return "samples"
    if not torch.equal(result.certificate.violation, whole.certificate.violation):
        return "violations"
    if not all(torch.equal(a, b) for a, b in zip(result.state, whole.state, strict=True)):
        return "state"
    if result.trace.keys() != whole.trace.keys() or not all(
        torch.equal(result.trace[key], whole.trace[key]) for key in whole.trace
    ):
        return "trace"
    if result.cost.score_evaluations != whole.cost.score_evaluations:
        return "score evaluations"
    if result.fidelity.plain() != whole.fidelity.plain():
        return "fidelity"
    return "partial" if result.partial else None


def _child(name: str, store: str, out: Connection) -> None:
    """A slow run in a process of its own; sends "same", what differs, or the error."""
    run_store.CHECKPOINT_SECONDS = 0.05
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        out.send(_same(run(name, slow=True, store=store, threads=1), name) or "same")
    except StoreError as error:
        out.send(f"StoreError: {error}")
    except BaseException:
        out.send(f"raw: {traceback.format_exc()}")


@contextlib.contextmanager
def _process(name: str, store: Path) -> Iterator[tuple[Any, Connection]]:
    """A process that runs on the store; it is gone at the end."""
    here, there = _context().Pipe(duplex=False)
    process = _context().Process(target=_child, args=(name, str(store), there), daemon=True)
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()


@functools.cache
def _context() -> Any:
    """Processes are forked from a server that has imported what they need, so that they start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zarr", "xarray", "fuzz.stores"])
    return context


# ------------------------------------------------------------------ the three kinds


def _killed(rng: np.random.Generator, name: str, folder: Path, report: Report) -> Iterator[tuple[str, str]]:
    store = folder / "run.zarr"
    for _ in range(int(rng.integers(1, 6))):
        with _process(name, store) as (process, out):
            if out.poll(float(rng.uniform(0.0, DURATION))):
                yield from _judge(_receive(out))
            else:
                process.kill()
                report.count("operation", "kill")
    yield from _continued(name, store, report, refusals=False)


def _shared(rng: np.random.Generator, name: str, folder: Path, report: Report) -> Iterator[tuple[str, str]]:
    store = folder / "run.zarr"
    with _process(name, store) as (_, first):
        first.poll(float(rng.choice([0.0, rng.uniform(0.0, DURATION)])))
        with _process(name, store) as (_, second):
            report.count("operation", "two processes")
            messages = [_receive(out) if out.poll(LONGEST) else "raw: no answer" for out in (first, second)]
    for message in messages:
        report.count("operation", "one of two: " + message.split(":")[0])
        yield from _judge(message)
    if all(message.startswith("StoreError") for message in messages):
        yield "both refused", messages[0]
    yield from _continued(name, store, report, refusals=False)


def _receive(out: Connection) -> str:
    try:
        return str(out.recv())
    except EOFError:
        return "raw: the process died"


def _judge(message: str) -> Iterator[tuple[str, str]]:
    if message.startswith("raw"):
        yield f"raw {message.splitlines()[-1].split(':')[0]}", message.splitlines()[-1]
    elif message != "same" and not message.startswith("StoreError"):
        yield "other bits", f"{message} differ"


@functools.cache
def _template(name: str, finished: bool) -> Path:
    """A store to damage: of a whole run, or of one that was killed on its way."""
    store = Path(_templates().name) / f"{name} {finished}.zarr"
    if finished:
        run(name, slow=True, store=store, threads=1)
        return store
    for moment in (0.6, 0.9, 1.2):
        with _process(name, store) as (_, out):
            out.poll(moment)
        if store.exists():
            break
    return store


@functools.cache
def _templates() -> tempfile.TemporaryDirectory[str]:
    """Where they are, until the end."""
    return tempfile.TemporaryDirectory()


def _damaged(rng: np.random.Generator, name: str, folder: Path, report: Report) -> Iterator[tuple[str, str]]:
    store = folder / "run.zarr"
    template = _template(name, bool(rng.random() < 0.7))
    shutil.copytree(template, store)
    files = sorted(path for path in store.rglob("*") if path.is_file())
    target = files[int(rng.integers(len(files)))]
    how = str(rng.choice(list(DAMAGE), p=[0.7, 0.1, 0.1, 0.1]))
    place = f"{how} {target.relative_to(store)}"
    report.count("operation", f"store file: {how}")
    DAMAGE[how](target, rng)
    rows = {row.numpy().tobytes() for row in undisturbed(name).samples}
    try:
        with limit(LONGEST):
            loaded = casal.load(store)
        report.count("operation", "load accepted")
        if not {row.numpy().tobytes() for row in loaded.samples} <= rows:
            yield "load returns other samples", place
        elif not loaded.partial and _same(loaded, name):
            yield "load returns another run", f"{_same(loaded, name)} differ: {place}"
    except StoreError:
        report.count("operation", "load refused")
    except (Exception, TooLong) as error:
        yield f"load: raw {type(error).__name__}", f"{error} ({place})"
    for check, message in _continued(name, store, report, refusals=True):
        yield check, f"{message} ({place})"


def _continued(name: str, store: Path, report: Report, *, refusals: bool) -> Iterator[tuple[str, str]]:
    """The same call again."""
    report.count("operation", "continue")
    try:
        with limit(LONGEST):
            differs = _same(run(name, slow=True, store=store, threads=1), name)
        if differs:
            yield "continue: other bits", f"{differs} differ"
    except StoreError as error:
        report.count("operation", "continue refused")
        if not refusals:
            yield "continue: refused", str(error)
    except (Exception, TooLong) as error:
        yield f"continue: raw {type(error).__name__}", str(error)


# ------------------------------------------------------------------ damage


def _flip(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    if data:
        for _ in range(int(rng.choice([1, 1, 1, 3]))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)


def _cut(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(rng.integers(len(data) + 1))])


def _garbage(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(rng.bytes(int(rng.integers(200))))


def _remove(path: Path, rng: np.random.Generator) -> None:
    path.unlink()


DAMAGE: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "flip": _flip,
    "cut": _cut,
    "garbage": _garbage,
    "remove": _remove,
}
