"""A run on disk is the run: same bits after saving, stopping, killing; other runs and damage are refused.

Another run is known by replaying: a few steps are taken again and every bit is compared.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, StoreError
from casal.methods import Each, Method, Problem, Together, table_rows
from casal.methods.base import free_step
from casal.store import RunStore
from casal.store.files import sealed
from casal.store.run_store import CHECKPOINT, JOURNAL

from .runs import BATCH, METHODS, N, denoiser, gradient, run, start

zarr = pytest.importorskip("zarr")

every_run = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def checkpoints_at_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)


def same(one: casal.SampleResult, other: casal.SampleResult) -> None:
    assert torch.equal(one.samples, other.samples)
    assert torch.equal(one.certificate.violation, other.certificate.violation)
    assert torch.equal(one.steps, other.steps) and one.partial == other.partial
    assert one.cost.score_evaluations == other.cost.score_evaluations
    assert one.cost.projections == other.cost.projections
    assert one.cost.check_evaluations == other.cost.check_evaluations
    assert one.fidelity.plain() == other.fidelity.plain()
    assert all(torch.equal(a, b) for a, b in zip(one.state, other.state, strict=True))
    assert one.trace.keys() == other.trace.keys()
    assert all(torch.equal(one.trace[key], other.trace[key]) for key in one.trace)


def record(store: Path, index: int) -> Path:
    return store / JOURNAL / f"batch-{index:06d}.json"


def stopped_after(monkeypatch: pytest.MonkeyPatch, steps: int, what: type[BaseException] = KeyboardInterrupt) -> None:
    """Ctrl-C at the given step of the run; another exception stands for a kill."""
    module = importlib.import_module("casal.sampling.loop")
    count, before = 0, module.step_once

    def step_once(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == steps:
            raise what
        return before(*args)

    monkeypatch.setattr(module, "step_once", step_once)


class Killed(BaseException):
    """Nothing is written after it."""


@every_run
def test_a_stored_run_equals_one_in_memory_and_is_read_back(name: str, tmp_path: Path) -> None:
    plain, stored = run(name), run(name, store=tmp_path / "run.zarr")
    same(plain, stored)
    same(plain, casal.load(tmp_path / "run.zarr"))
    same(plain, run(name, store=tmp_path / "run.zarr"))  # finished: nothing is run again
    plain.save(tmp_path / "saved.zarr")
    loaded = casal.load(tmp_path / "saved.zarr")
    same(plain, loaded)
    assert loaded.provenance["method"] == plain.provenance["method"]
    with pytest.raises(StoreError, match="exists; nothing was changed"):
        plain.save(tmp_path / "saved.zarr")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    run("final projection", dtype=dtype, store=tmp_path / "a.zarr")
    assert casal.load(tmp_path / "a.zarr").state.x.dtype == dtype


@pytest.mark.parametrize("missing", [[0], [4], [1, 3], [0, 1, 2, 3, 4]])
def test_missing_batches_are_run_again(missing: list[int], tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    whole = run("casal", store=store)
    for index in missing:
        record(store, index).unlink()
    if len(missing) < 5:
        part = casal.load(store)
        assert part.fidelity.verdict == "suspect"  # what is there of a run has not been checked
        assert part.partial and len(part.samples) == N - sum(10 if k == 4 else BATCH for k in missing)
    else:
        with pytest.raises(StoreError, match=r"no batch .* finished"):
            casal.load(store)
    same(whole, run("casal", store=store))


@every_run
@pytest.mark.parametrize("what", [KeyboardInterrupt, Killed])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    name: str, what: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        stopped_after(patch, 110, what)
        if what is Killed:
            with pytest.raises(Killed):
                run(name, store=store, threads=1)
        else:
            with pytest.warns(CasalWarning, match="repeat the same call"):
                assert run(name, store=store, threads=1).partial
    same(run(name), run(name, store=store))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["casal", "weighted", "split"])
def test_killed_runs_continue_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """SIGKILL at random moments, again and again, until the run is through."""
    store, script = (
        tmp_path / "run.zarr",
        [sys.executable, "-m", "tests.sampling.runs", name, str(tmp_path / "run.zarr")],
    )
    moments, kills = random.Random(7), 0
    for _ in range(40):
        process = subprocess.Popen(script, cwd=Path(__file__).parents[2])
        while not store.exists() and process.poll() is None:
            time.sleep(0.01)
        try:
            process.wait(moments.uniform(0.05, 0.5))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if kills == 6:
                subprocess.run(script, cwd=Path(__file__).parents[2], check=True)
                break
    whole = casal.load(store)
    plain = run(name, slow=True)
    assert torch.equal(plain.samples, whole.samples)
    assert torch.equal(plain.trace["violation"], whole.trace["violation"])
    assert kills >= 2


def test_a_wrapped_method_with_two_kinds_of_states_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matheron has one state for the free samples and another for the levels, also inside FinalProjection."""
    target = casal.edm(
        lambda y, sigma: y / (1 + sigma.to(y) ** 2),
        casal.karras_sigmas(10, 0.05, 5.0),
        shape=3,
        churn=1.0,
        dtype=torch.float64,
    )
    method = casal.FinalProjection(casal.Matheron(8))

    def sampled(**options: Any) -> casal.SampleResult:
        return casal.sample(target, casal.Sphere(1.0), method, 60, seed=2, run=casal.Run(threads=1, **options))

    for steps in (6, 20):
        store = tmp_path / f"{steps}.zarr"
        with monkeypatch.context() as patch, pytest.warns(CasalWarning, match="repeat the same call"):
            stopped_after(patch, steps)
            sampled(store=store)
        same(sampled(), sampled(store=store))


def test_a_saved_partial_run_keeps_the_steps_of_every_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stopped_after(patch, 60)
        with pytest.warns(CasalWarning, match="interrupted"):
            partial = run("casal", threads=1)
    assert len(partial.steps.unique()) == 2
    partial.save(tmp_path / "partial.zarr")
    assert torch.equal(casal.load(tmp_path / "partial.zarr").steps, partial.steps)


# ------------------------------------------------------------------------------------------- other runs


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    whole = run("casal", store=store)
    for change, message in (
        ({"seed": 4}, "seed: 3 in the store, 4 now"),
        ({"n": 89}, "n: 90 in the store, 89 now"),
        ({"batch": 30}, "batch: 20 in the store, 30 now"),
        ({"snapshots": 5}, "snapshots: 0 in the store, 5 now"),
        ({"run_id": "mine"}, "run_id: None in the store, 'mine' now"),
        ({"dtype": torch.float32}, "dtype"),
    ):
        with pytest.raises(StoreError, match=message):
            run("casal", store=store, **change)
    with pytest.raises(StoreError, match="method"):
        run("final projection", store=store)
    run("final projection", store=tmp_path / "named.zarr", run_id="first")
    with pytest.raises(StoreError, match="run_id: 'first' in the store, 'second' now"):
        run("final projection", store=tmp_path / "named.zarr", run_id="second")
    run("final projection", store=tmp_path / "named.zarr", run_id="first")
    same(whole, casal.load(store))


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("casal", store=store)
    about = store / "provenance" / "zarr.json"
    document = json.loads(about.read_text())
    document["attributes"]["identity"]["format"] = 99
    document["attributes"] = sealed(document["attributes"])
    about.write_text(json.dumps(document))
    for way in (lambda: run("casal", store=store), lambda: casal.load(store)):
        with pytest.raises(StoreError, match="format 99"):
            way()


# ------------------------------------------------------------------------------------------- proof by replay


class Setup(NamedTuple):
    """A run whose parts can each be changed by the value of a closure, which no setting shows."""

    method: Method[Any] = METHODS["casal"]
    score: float = 1.0
    init: float = 1.0
    radius: float = 1.5
    stretch: float = 1.0
    preconditioner: float = 1.0

    def sample(self, store: Path | None, calls: list[int] | None = None, **how: Any) -> casal.SampleResult:
        def grad(x: Tensor) -> Tensor:
            if calls is not None:
                calls.append(len(x))
            return self.score * gradient(x)

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            return self.score * denoiser(x, sigma)

        diagonal = torch.tensor([1.0, 1.0, self.preconditioner], dtype=torch.float64)
        if isinstance(self.method, casal.SplitGibbs):
            sigmas = casal.karras_sigmas(20, 0.05, 10.0)
            target = casal.edm(denoise, sigmas, shape=3, churn=1.0, dtype=torch.float64)
        else:
            target = casal.langevin(
                grad,
                steps=40,
                step_size=0.05,
                init=lambda n, generator: self.init * start(n, generator),
                preconditioner=diagonal,
            )
        constraint: casal.Constraint = casal.Sphere(1.5)
        if self.radius != 1.5 or self.method == FREE:
            constraint = casal.Implicit(lambda z: (z.square().sum(1) - self.radius**2)[:, None])
        decoder = (
            casal.Nonlinear(lambda x: x + (1.0 - self.stretch) * x.flip(1), norm=1.1) if self.method == BEHIND else None
        )
        options = {"batch": BATCH, "threads": 1, "store": store, **how}
        return casal.sample(target, constraint, self.method, N, seed=3, decoder=decoder, run=casal.Run(**options))


FREE, BEHIND = casal.Projected(), casal.CASAL(10.0, coupling="explicit")
OTHERS: dict[str, tuple[Method[Any], dict[str, float]]] = {
    "score": (METHODS["casal"], {"score": 1.0 + 1e-7}),
    "score, weighted": (METHODS["weighted"], {"score": 1.0 + 1e-7}),
    "score, split": (METHODS["split"], {"score": 1.0 + 1e-7}),
    "score, shared multiplier": (METHODS["mean dual"], {"score": 1.0 + 1e-7}),
    "init": (METHODS["casal"], {"init": 1.0 + 1e-7}),
    "init, weighted": (METHODS["weighted"], {"init": 1.0 + 1e-7}),
    "set": (FREE, {"radius": 1.5 + 1e-7}),
    "decoder": (BEHIND, {"stretch": 1.0 - 1e-7}),
    "preconditioner": (METHODS["casal"], {"preconditioner": 1.0 + 1e-7}),
}


INDEPENDENT = (METHODS["casal"], FREE, BEHIND)
WHEN = [
    (name, when)
    for name, (method, _) in OTHERS.items()
    for when in ("finished", "killed", *(["another batch first"] if method in INDEPENDENT else []))
]


@pytest.mark.parametrize(("name", "when"), WHEN)
def test_another_run_that_no_setting_shows_is_refused_by_replaying(
    name: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, changes = OTHERS[name]
    right, store = Setup(method), tmp_path / "run.zarr"
    whole = right.sample(None)
    if when == "killed":
        with monkeypatch.context() as patch, pytest.raises(Killed):
            stopped_after(patch, 110, Killed)
            right.sample(store)
    else:
        right.sample(store)
    if when == "another batch first":
        record(store, 0).unlink()
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    said = r"holds another run; nothing was changed.*Taken again, .* differ in \w+ \(by up to .*e-"
    with pytest.raises(StoreError, match=said) as refused:
        right._replace(**changes).sample(store)
    size = float(str(refused.value).partition("(by up to ")[2].partition(")")[0])
    assert 1e-13 < size < 1e-5  # as large as the change
    assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    same(whole, right.sample(store))


def test_another_set_or_method_is_named_by_its_setting(tmp_path: Path) -> None:
    Setup().sample(tmp_path / "run.zarr")
    for other, said in ((Setup(radius=1.6), "constraint"), (Setup(METHODS["final projection"]), "method")):
        with pytest.raises(StoreError, match=f"\n  {said}: "):
            other.sample(tmp_path / "run.zarr")


@pytest.mark.parametrize("batch", [2, 10])
def test_a_replay_takes_two_percent_of_the_steps(batch: int, tmp_path: Path) -> None:
    """Calls of the score of a finished run, beyond the rows on which it is tried first."""
    whole, again = list[int](), list[int]()
    Setup().sample(tmp_path / "run.zarr", whole, batch=batch)
    Setup().sample(tmp_path / "run.zarr", again, batch=batch)
    assert sum(whole) >= 40 * N and sum(again) > 4 + 8
    assert sum(again) - (4 + 8) <= 0.02 * 40 * N


def test_a_soft_term_is_part_of_the_run(tmp_path: Path) -> None:
    def sampled(factor: float) -> casal.SampleResult:
        sigmas = casal.karras_sigmas(20, 0.05, 10.0)
        prior = casal.edm(denoiser, sigmas, shape=3, churn=1.0, dtype=torch.float64)
        target = casal.tilted(prior, lambda x: factor * x[:, 0])
        method = casal.Matheron(levels=6)
        return casal.sample(target, casal.Sphere(1.0), method, 8, run=casal.Run(store=tmp_path / "run.zarr"))

    same(sampled(1.0), sampled(1.0))
    with pytest.raises(StoreError, match="Taken again"):
        sampled(1.2)


# ------------------------------------------------------------------------------------------- shared numbers of a method


class Point(NamedTuple):
    """The state of Tempered."""

    x: Tensor


class Level(NamedTuple):
    """Its shared numbers."""

    done: int
    scale: float
    history: tuple[float, ...]


@dataclass(frozen=True)
class Tempered(Method[Point]):
    """Three stages of five rows; before each, all chains are divided by their mean radius."""

    name = "tempered"
    strict = False

    def control(self, problem: Problem, n: int) -> Level:
        return Level(0, 1.0, ())

    def next(self, problem: Problem, control: Level, stage: int) -> Each | Together | None:
        if control.done == 3 and stage % 2 == 0:
            return None
        if stage % 2 == 0:
            return Together(self.divide)
        return Each(table_rows(problem)[:5], self.step)

    def steps(self, problem: Problem, control: Level) -> int:
        return 15

    @staticmethod
    def divide(
        problem: Problem, state: Point, control: Level, generator: torch.Generator
    ) -> tuple[Point, Level, dict[str, float]]:
        radius = float(torch.linalg.vector_norm(state.x, dim=1).mean())
        scale = radius * (1.0 + 0.01 * float(torch.rand((), generator=generator)))
        level = Level(control.done + 1, scale, (*control.history, scale))
        return Point(state.x / radius), level, {"scale": scale}

    @staticmethod
    def step(problem: Problem, state: Point, row: Any, noise: Tensor) -> Point:
        return free_step(problem, state, row, noise)

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Point:
        return Point(x)

    def samples(self, problem: Problem, state: Point) -> Tensor:
        return problem.decode(state.x)


def test_a_method_with_shared_numbers_of_its_own_goes_on_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(store: Path | None = None, factor: float = 1.0) -> casal.SampleResult:
        target = casal.langevin(lambda x: factor * x, steps=40, step_size=0.05, init=start)
        how = casal.Run(batch=BATCH, threads=1, store=store, record_every=5)
        return casal.sample(target, casal.Ball(9.0), Tempered(), N, run=how)

    whole = sampled()
    assert whole.trace["scale"].shape == (3,) and whole.steps.tolist() == [15] * N
    for steps in (30, 60, 74):  # of 75, in stages 3, 5 and 5
        store = tmp_path / f"{steps}.zarr"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            stopped_after(patch, steps, Killed)
            sampled(store)
        found = RunStore.reading(store).read_arrays(CHECKPOINT)
        assert found is not None
        done, scale, history = found[1]["control"]
        assert done == len(history) >= 1 and history == whole.trace["scale"][:done].tolist() and scale == history[-1]
        with pytest.raises(StoreError, match="Taken again"):
            sampled(store, 1.0 + 1e-7)
        same(whole, sampled(store))


# ------------------------------------------------------------------------------------------- two processes, damage

FUNCTIONS = """
import sys, torch, casal
class Project:
    def __call__(self, z): return z / z.norm(dim=1, keepdim=True)
def violation(z): return (z.norm(dim=1) - 1).abs()
start = lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64)
target = casal.langevin(lambda x: x, steps=5, step_size=.1, init=start)
constraint = casal.FromProjection(Project(), violation) | casal.Sphere(0.5)
result = casal.sample(target, constraint, casal.Projected(), 8, run=casal.Run(batch=4, store=sys.argv[1]))
print(result.samples.tolist())
"""


def test_a_set_of_functions_is_continued_in_another_process(tmp_path: Path) -> None:
    """Its settings hold no address in memory, and no value of a hash."""
    store, outputs = tmp_path / "run.zarr", list[str]()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", FUNCTIONS, str(store)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
        record(store, 1).unlink()
    assert outputs[0] == outputs[1]


# ------------------------------------------------------------------------------------------- two processes, damage

WAITS = """
import sys, torch, casal
from pathlib import Path
def gradient(x):
    if len(x) == 4 and list(Path(sys.argv[1]).rglob("batch-*.json")):
        print("waiting", flush=True)
        sys.stdin.read()
    return x
start = lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64)
target = casal.langevin(gradient, steps=5, step_size=.1, init=start)
run = casal.Run(batch=4, threads=1, store=sys.argv[1])
result = casal.sample(target, casal.Sphere(1.0), casal.Projected(), 12, run=run)
print(result.samples.tolist())
"""


def test_a_store_in_use_is_refused_and_one_that_was_killed_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    script = [sys.executable, "-c", WAITS]
    with subprocess.Popen([*script, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        with pytest.raises(StoreError, match=rf"in use by process {process.pid} on .*nothing was changed"):
            run("casal", store=store)
        assert casal.load(store).samples.shape == (4, 3)  # reading is free
        process.kill()
    assert list(store.rglob("lock.json"))
    (store / "state" / "x" / "c" / "0.4f2a.partial").write_text("half a chunk")
    outputs = []
    for place in (store, tmp_path / "other.zarr"):
        done = subprocess.run(
            [*script, str(place)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout.splitlines()[-1])
    assert outputs[0] == outputs[1]
    assert not [
        path for path in tmp_path.rglob("*") if path.suffix == ".partial" or path.name.startswith((".", "lock"))
    ]


def test_a_run_that_failed_or_ended_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        stopped_after(patch, 60)
        with pytest.warns(CasalWarning, match="repeat the same call"):
            run("casal", store=store, threads=1)
    assert not list(store.rglob("lock.json"))
    run("casal", store=store)
    assert not list(store.rglob("lock.json"))
    run("casal").save(tmp_path / "saved.zarr")
    assert not list(tmp_path.rglob("lock.json"))


@pytest.mark.parametrize("damage", ["bytes", "removed", "record"])
def test_damage_is_found_and_nothing_is_overwritten(damage: str, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("casal", store=store)
    chunk = sorted(path for path in (store / "posterior" / "samples" / "c").rglob("*") if path.is_file())[1]
    if damage == "bytes":
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 0xFF
        chunk.write_bytes(content)
    elif damage == "removed":
        chunk.unlink()
    else:
        record(store, 1).write_text("{")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for way in (lambda: casal.load(store), lambda: run("casal", store=store)):
        with pytest.raises(StoreError, match=r"damaged|cannot be read"):
            way()
    assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_places_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    with pytest.raises(StoreError, match="not a store; nothing was changed"):
        run("casal", store=tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
    (tmp_path / "samples.pt").write_bytes(b"tensors")
    with pytest.raises(StoreError, match=r"is a file; casal.load reads the folders .* torch.load"):
        casal.load(tmp_path / "samples.pt")
    with pytest.raises(StoreError, match="no store at"):
        casal.load(tmp_path / "nothing.zarr")
    with pytest.raises(StoreError, match="cannot use the store"):
        run("casal", store="/proc/casal.zarr")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"a part of its path is a file|cannot use"):
        run("casal", store=tmp_path / "file" / "run.zarr")


def test_a_full_disk_is_named_and_the_run_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third batch finds no space; what is there stays, and the same call ends in the same bits."""
    import casal.store.run_store as place

    write, count = place.write_json, 0

    def no_space(path: Path, content: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        write(path, content)

    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(place, "write_json", no_space)
        with pytest.raises(StoreError, match="the disk is full"):
            run("casal", store=store, threads=1)
    assert len(casal.load(store).samples) == 2 * BATCH
    same(run("casal"), run("casal", store=store))


def test_a_saved_result_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("casal")
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="the disk is full"):
        patch.setattr("casal.store.run_store.write_json", no_space)
        result.save(tmp_path / "saved.zarr")
    assert not list(tmp_path.iterdir())
    result.save(tmp_path / "saved.zarr")
    same(result, casal.load(tmp_path / "saved.zarr"))


def no_space(path: Path, content: Any) -> None:
    raise OSError(28, "No space left on device")


def small(name: str, **options: Any) -> casal.SampleResult:
    target = casal.langevin(gradient, steps=12, step_size=0.05, init=start)
    return casal.sample(
        target, casal.Sphere(1.5), METHODS[name], 12, seed=3, check=False, run=casal.Run(batch=5, threads=1, **options)
    )


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")
@pytest.mark.parametrize(("name", "lost"), [("casal", []), ("casal", [1]), ("weighted", [])])
def test_flipped_bits_never_change_a_sample_and_always_have_a_name(name: str, lost: list[int], tmp_path: Path) -> None:
    """One bit in any file of a store, whole or not: loading and going on give the same bits, or StoreError."""
    whole = small(name, store=tmp_path / "run.zarr")
    for index in lost:
        record(tmp_path / "run.zarr", index).unlink()
    there = casal.load(tmp_path / "run.zarr")
    files = sorted(path.relative_to(tmp_path / "run.zarr") for path in tmp_path.rglob("*") if path.is_file())
    draw, found = random.Random(11), {"same": 0, "refused": 0}
    for k in range(25):
        store = tmp_path / f"flipped-{k}.zarr"
        shutil.copytree(tmp_path / "run.zarr", store)
        file = store / draw.choice(files)
        content = bytearray(file.read_bytes())
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        for way, right in ((lambda: casal.load(store), there), (lambda: small(name, store=store), whole)):  # noqa: B023
            try:
                result = way()
            except StoreError as error:
                assert any(way in str(error) for way in ("estore", "remove", "Read it with", "another path"))
                found["refused"] += 1
            else:
                assert torch.equal(result.samples, right.samples) and not result.certificate.note
                assert torch.equal(result.certificate.violation, right.certificate.violation)
                found["same"] += 1
    assert found["refused"] > 10 and found["same"] > 0


BROKEN_RECORDS: dict[str, Any] = {
    "no usage": {"usage": None},
    "usage of text": {"usage": "many"},
    "three usages": {"usage": [1, 2, 3]},
    "no trace": {"trace": None},
    "a trace of numbers": {"trace": [1, 2]},
    "steps in a mapping": {"steps": {}},
    "fields that are not there": {"fields": ["x", "nothing"]},
    "fields of another method": {"fields": ["x"]},
    "common numbers without dtype": {"common": {"x": 1.0}},
}


@pytest.mark.parametrize("name", BROKEN_RECORDS)
def test_records_that_make_no_sense_are_named(name: str, tmp_path: Path) -> None:
    """Even where their checksum fits."""
    store = tmp_path / "run.zarr"
    whole, place = small("casal", store=store), record(store, 1)
    place.write_text(json.dumps(sealed({**json.loads(place.read_text()), **BROKEN_RECORDS[name]})))
    with pytest.raises(StoreError, match=r"damaged|does not fit"):
        small("casal", store=store)
    try:
        loaded = casal.load(store)
    except StoreError:
        return
    assert torch.equal(loaded.samples, whole.samples)


def test_a_state_of_another_shape_is_named(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    small("casal", store=store)
    writer = RunStore.reading(store)
    writer.root = zarr.open_group(store, mode="r+")
    arrays, about = writer.read(1)
    for name in list(arrays):
        if name.startswith("state/"):
            shutil.rmtree(store / name)
            arrays[name] = torch.cat([arrays[name], arrays[name]], dim=1)
    for index in (0, 2):
        record(store, index).unlink()
    writer.write(1, arrays, {key: about[key] for key in ("steps", "usage", "trace", "fields", "common", "kind")})
    with pytest.raises(
        StoreError, match=r"does not fit the run|it describes float64 \(12, 6\) .* the run has float64 \(12, 3\)"
    ):
        small("casal", store=store)


def test_a_forged_number_of_batches_does_not_keep_load_busy(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    small("casal", store=store)
    for file in (store / "provenance" / "zarr.json", store / "provenance" / "batches" / "zarr.json"):
        document = json.loads(file.read_text())
        if "identity" in document["attributes"]:
            document["attributes"]["identity"].update(n=10**12, batch=1)
            document["attributes"] = sealed(document["attributes"])
        else:
            document["shape"] = [10**12]
        file.write_text(json.dumps(document))
    with pytest.raises(StoreError):
        casal.load(store)


@pytest.mark.parametrize("where", ["stage", "taken", "usage", "state", "control"])
def test_checkpoints_that_make_no_sense_are_named(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch, pytest.warns(CasalWarning, match="repeat the same call"):
        stopped_after(patch, 140)
        run("weighted", store=store, threads=1)
    reader = RunStore.reading(store)
    found = reader.read_arrays(CHECKPOINT)
    assert found is not None
    arrays, about = found
    if where == "state":
        arrays = {name: part[:1] if name == "state/x" else part for name, part in arrays.items()}
    else:
        about[where] = {"stage": "third", "taken": [], "usage": 3, "control": [1, 2, 3, 4, 5, 6, 7, 8, 9]}[where]
    reader.write_arrays(CHECKPOINT, arrays, about)
    with pytest.raises(StoreError, match=r"damaged|does not fit"):
        run("weighted", store=store)


def test_a_run_that_ends_between_its_last_batch_and_its_summary_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of exchanges are written last; without them the exchanges are made again."""
    undisturbed = run("weighted")

    def killed(self: RunStore, about: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(RunStore, "finish", killed)
        run("weighted", store=tmp_path / "run.zarr")
    again = run("weighted", store=tmp_path / "run.zarr")
    assert torch.equal(again.samples, undisturbed.samples)
    assert again.cost.score_evaluations == undisturbed.cost.score_evaluations
    assert set(again.trace) == set(undisturbed.trace)
    assert all(torch.equal(again.trace[key], undisturbed.trace[key]) for key in again.trace)
    assert again.fidelity.plain() == undisturbed.fidelity.plain()


# ---------------------------------------------------------------------------------------------- more chains


def test_a_store_takes_more_chains(tmp_path: Path) -> None:
    """Two full batches stay, the third is not full and is run again."""
    store = tmp_path / "run.zarr"
    first = run("casal", n=50, store=store, snapshots=10)
    grown = run("casal", store=store, snapshots=10, batch=None)  # the batch is that of the store
    same(run("casal", snapshots=10), grown)
    assert torch.equal(grown.samples[:40], first.samples[:40])
    same(grown, casal.load(store))
    same(grown, run("casal", store=store, snapshots=10))
    assert torch.equal(casal.load(store).snapshots.samples, grown.snapshots.samples)
    with pytest.raises(StoreError, match=r"n: 90 in the store, 50 now"):
        run("casal", n=50, store=store, snapshots=10)


def test_chains_that_exchange_take_no_more_of_them(tmp_path: Path) -> None:
    run("weighted", n=40, store=tmp_path / "run.zarr")
    with pytest.raises(
        StoreError, match=r"40 chains of this run, and 90 are requested; the chains of WeightedCASAL exchange"
    ):
        run("weighted", store=tmp_path / "run.zarr")
    assert len(casal.load(tmp_path / "run.zarr").samples) == 40


def test_growing_that_was_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "run.zarr"
    run("casal", n=50, store=store)

    def cut_short(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "resize", cut_short)
        with pytest.raises(StoreError, match="no space left"):
            run("casal", n=60, store=store)
    with pytest.raises(StoreError, match="about to take more chains"):
        casal.load(store)
    same(run("casal"), run("casal", store=store))


# ---------------------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("name", ["casal", "weighted"])
def test_snapshots_survive_ctrl_c(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, plain = tmp_path / "run.zarr", run(name, snapshots=10)
    with monkeypatch.context() as patch:
        stopped_after(patch, 110)
        with pytest.warns(CasalWarning, match="repeat the same call"):
            run(name, snapshots=10, store=store, threads=1)
    again = run(name, snapshots=10, store=store)
    assert plain.snapshots is not None and again.snapshots is not None
    assert torch.equal(plain.snapshots.steps, again.snapshots.steps)
    assert torch.equal(plain.snapshots.samples, again.snapshots.samples)
    assert torch.equal(casal.load(store).snapshots.samples, plain.snapshots.samples)
