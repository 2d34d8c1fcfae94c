"""A run on disk is the run: same bits after saving, stopping, killing; other runs and damage are refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, StoreError
from casal.sampling import stepping
from casal.store import RunStore, open_tree
from casal.store.files import sealed
from casal.store.run_store import JOURNAL

from .runs import METHODS, TILE, N, gradient, run, start

zarr = pytest.importorskip("zarr")

every_run = pytest.mark.parametrize("name", METHODS)


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
    return store / JOURNAL / f"tile-{index:06d}.json"


@every_run
def test_a_stored_run_equals_one_in_memory_and_is_read_back(name: str, tmp_path: Path) -> None:
    plain, stored = run(name), run(name, store=tmp_path / "run.zarr")
    same(plain, stored)
    same(plain, casal.load(tmp_path / "run.zarr"))
    same(plain, run(name, store=tmp_path / "run.zarr"))  # finished: nothing is run again


@every_run
def test_a_saved_result_is_read_back(name: str, tmp_path: Path) -> None:
    result = run(name, dtype=torch.float32)
    result.save(tmp_path / "saved.zarr")
    loaded = casal.load(tmp_path / "saved.zarr")
    same(result, loaded)
    assert loaded.provenance["method"] == result.provenance["method"]
    with pytest.raises(StoreError, match="exists; nothing was changed"):
        result.save(tmp_path / "saved.zarr")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    run("final projection", dtype=dtype, store=tmp_path / "a.zarr")
    assert casal.load(tmp_path / "a.zarr").state.x.dtype == dtype


@pytest.mark.parametrize("name", ["casal", "final projection"])
@pytest.mark.parametrize("missing", [[0], [4], [1, 3], [0, 1, 2, 3, 4]])
def test_missing_tiles_are_run_again(name: str, missing: list[int], tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    whole = run(name, store=store)
    for index in missing:
        record(store, index).unlink()
    if len(missing) < 5:
        part = casal.load(store)
        assert part.fidelity.verdict == "suspect"  # what is there of a run has not been checked
        assert part.partial and len(part.samples) == N - sum(10 if k == 4 else TILE for k in missing)
    else:
        with pytest.raises(StoreError, match=r"no tile .* finished"):
            casal.load(store)
    same(whole, run(name, store=store))


def stopped_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Ctrl-C at the given step."""
    count, before = 0, stepping.step_once

    def step_once(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == steps:
            raise KeyboardInterrupt
        before(*args)

    monkeypatch.setattr(stepping, "step_once", step_once)


@every_run
def test_ctrl_c_keeps_the_store_and_says_how_to_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)
    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch:
        stopped_after(patch, 110)
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


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    whole = run("casal", store=store)
    for change, message in (
        ({"seed": 4}, "seed: 3 in the store, 4 now"),
        ({"n": 89}, "n: 90 in the store, 89 now"),
        ({"tile": 30}, "tile: 20 in the store, 30 now"),
        ({"dtype": torch.float32}, "dtype"),
    ):
        with pytest.raises(StoreError, match=message):
            run("casal", store=store, **change)
    with pytest.raises(StoreError, match="method"):
        run("final projection", store=store)
    with pytest.raises(StoreError, match="constraint"):
        casal.sample(
            casal.langevin(lambda x: x, steps=40, step_size=0.05, init=torch.zeros(N, 3, dtype=torch.float64)),
            casal.Sphere(1.6),
            METHODS["casal"],
            N,
            seed=3,
            store=store,
        )
    same(whole, casal.load(store))


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    def with_scale(scale: float) -> casal.Target:
        return casal.langevin(
            lambda x: scale * x, steps=5, step_size=0.1, init=lambda n, g: torch.randn(n, 2, generator=g)
        )

    casal.sample(with_scale(1.0), casal.Sphere(1.0), casal.Projected(), 8, store=tmp_path / "a.zarr")
    with pytest.raises(StoreError, match="model"):
        casal.sample(with_scale(2.0), casal.Sphere(1.0), casal.Projected(), 8, store=tmp_path / "a.zarr")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("casal", store=store)
    about = store / "provenance" / "zarr.json"
    document = json.loads(about.read_text())
    for key, value, message in (("casal", "0.0.1", "casal: '0.0.1' in the store"), ("format", 99, "format")):
        changed = json.loads(json.dumps(document))
        changed["attributes"]["identity"][key] = value
        changed["attributes"] = sealed(changed["attributes"])
        about.write_text(json.dumps(changed))
        with pytest.raises(StoreError, match=message):
            run("casal", store=store)
    with pytest.raises(StoreError, match="format 99"):
        casal.load(store)


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
    for look in (lambda: casal.load(store), lambda: run("casal", store=store)):
        with pytest.raises(StoreError, match=r"damaged|cannot be read"):
            look()
    assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_places_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    with pytest.raises(StoreError, match="not a store; nothing was changed"):
        run("casal", store=tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"
    with pytest.raises(StoreError, match="no store at"):
        casal.load(tmp_path / "nothing.zarr")
    with pytest.raises(StoreError, match="cannot use the store"):
        run("casal", store="/proc/casal.zarr")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"a part of its path is a file|cannot use"):
        run("casal", store=tmp_path / "file" / "run.zarr")


def test_a_full_disk_is_named_and_the_run_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third tile finds no space; what is there stays, and the same call ends in the same bits."""
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
    assert len(casal.load(store).samples) == 2 * TILE
    same(run("casal"), run("casal", store=store))


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    """The same on a real file system of 100 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(StoreError, match="the disk is full"):
            run("casal", n=4000, tile=400, store=disk / "run.zarr", threads=1)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_xarray_opens_it_as_a_tree(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    result = run("weighted", store=store)
    tree = open_tree(store)
    samples = tree["posterior"]["samples"]
    assert samples.dims == ("chain", "draw", "event_0") and samples.shape == (N, 1, 3)
    np.testing.assert_array_equal(samples.values[:, 0], result.samples.numpy())
    np.testing.assert_array_equal(tree["sample_stats"]["violation"].values[:, 0], result.certificate.violation.numpy())
    assert tree["sample_stats"]["log_weight"].shape == (N, 1)
    about = tree["provenance"].attrs
    assert about["identity"]["seed"] == 3 and about["identity"]["constraint"]["set"] == "Sphere"
    assert {"platform", "python", "revision"} <= set(about["machine"])
    tree.close()


def test_a_wrapped_method_with_two_kinds_of_states_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twisted has one state on the way down and another on the ladder, also inside FinalProjection."""
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)
    target = casal.edm(
        lambda y, sigma: y / (1 + sigma.to(y) ** 2),
        casal.karras_sigmas(10, 0.05, 5.0),
        shape=3,
        churn=1.0,
        dtype=torch.float64,
    )
    method = casal.FinalProjection(casal.Twisted(20.0, moves=4, inner_steps=3))

    def sampled(**options: Any) -> casal.SampleResult:
        return casal.sample(target, casal.Sphere(1.0), method, 60, seed=2, threads=1, **options)

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


# ------------------------------------------------------------------------------------------- sets of functions


def on_a_circle(radius: float, store: Path) -> casal.SampleResult:
    circle = casal.Implicit(lambda z: (z.square().sum(1) - radius**2)[:, None])
    target = casal.langevin(
        lambda x: x, steps=5, step_size=0.1, init=lambda n, g: torch.randn(n, 2, generator=g).double()
    )
    return casal.sample(target, circle, casal.Projected(), 8, store=store)


def test_another_set_of_functions_is_refused(tmp_path: Path) -> None:
    first = on_a_circle(1.0, tmp_path / "run.zarr")
    same(first, on_a_circle(1.0, tmp_path / "run.zarr"))
    with pytest.raises(StoreError, match=r"holds another run(.|\n)*constraint_values"):
        on_a_circle(3.0, tmp_path / "run.zarr")


def test_a_denoiser_changed_below_noise_one_is_refused(tmp_path: Path) -> None:
    def sampled(factor: float) -> casal.SampleResult:
        def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
            return x / (1.0 + sigma.to(x) ** 2) * torch.where(sigma < 1.0, factor, 1.0).to(x)

        target = casal.edm(denoiser, casal.karras_sigmas(20, 0.05, 10.0), shape=3, dtype=torch.float64)
        return casal.sample(target, casal.Sphere(1.0), casal.Projected(), 8, store=tmp_path / "run.zarr")

    same(sampled(1.0), sampled(1.0))
    with pytest.raises(StoreError, match=r"\n  model: "):
        sampled(1.2)


def test_another_soft_term_is_refused(tmp_path: Path) -> None:
    def sampled(factor: float) -> casal.SampleResult:
        prior = casal.edm(
            lambda x, s: x / (1.0 + s**2), casal.karras_sigmas(20, 0.05, 10.0), shape=3, churn=1.0, dtype=torch.float64
        )
        target = casal.tilted(prior, lambda x: factor * x[:, 0])
        method = casal.LookAhead(levels=6, moves=1, path=3)
        return casal.sample(target, casal.Sphere(1.0), method, 8, store=tmp_path / "run.zarr")

    same(sampled(1.0), sampled(1.0))
    with pytest.raises(StoreError, match=r"\n  model: "):
        sampled(1.2)


FUNCTIONS = """
import sys, torch, casal
class Project:
    def __call__(self, z): return z / z.norm(dim=1, keepdim=True)
def violation(z): return (z.norm(dim=1) - 1).abs()
start = lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64)
target = casal.langevin(lambda x: x, steps=5, step_size=.1, init=start)
constraint = casal.FromProjection(Project(), violation) | casal.Sphere(0.5)
result = casal.sample(target, constraint, casal.Projected(), 8, tile=4, store=sys.argv[1])
print(result.samples.tolist())
"""


def test_a_set_of_functions_is_continued_in_another_process(tmp_path: Path) -> None:
    """Its identity holds no address in memory, and no value of a hash."""
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
    if len(x) == 4 and list(Path(sys.argv[1]).rglob("tile-*.json")):
        print("waiting", flush=True)
        sys.stdin.read()
    return x
start = lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64)
target = casal.langevin(gradient, steps=5, step_size=.1, init=start)
result = casal.sample(target, casal.Sphere(1.0), casal.Projected(), 12, tile=4, threads=1, store=sys.argv[1])
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
    return casal.sample(target, casal.Sphere(1.5), METHODS[name], 12, tile=5, seed=3, check=False, threads=1, **options)


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
        for look, right in ((lambda: casal.load(store), there), (lambda: small(name, store=store), whole)):  # noqa: B023
            try:
                result = look()
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
    writer.write(1, arrays, {key: about[key] for key in ("steps", "usage", "trace", "fields", "common")})
    with pytest.raises(StoreError, match=r"does not fit the run: x of tile 1 has shape \(5, 6\)"):
        small("casal", store=store)


def test_a_forged_number_of_tiles_does_not_keep_load_busy(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    small("casal", store=store)
    for file in (store / "provenance" / "zarr.json", store / "provenance" / "tiles" / "zarr.json"):
        document = json.loads(file.read_text())
        if "identity" in document["attributes"]:
            document["attributes"]["identity"].update(n=10**12, tile=1)
            document["attributes"] = sealed(document["attributes"])
        else:
            document["shape"] = [10**12]
        file.write_text(json.dumps(document))
    with pytest.raises(StoreError):
        casal.load(store)


@pytest.mark.parametrize("where", ["leg", "tiles", "together", "generator", "state"])
def test_checkpoints_that_make_no_sense_are_named(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)
    store = tmp_path / "run.zarr"
    with monkeypatch.context() as patch, pytest.warns(CasalWarning, match="repeat the same call"):
        stopped_after(patch, 140)
        run("weighted", store=store, threads=1)
    reader = RunStore.reading(store)
    found = reader.read_checkpoint()
    assert found is not None
    arrays, about = found
    if where == "state":
        arrays = {name: part[:1] if name == "1/state/x" else part for name, part in arrays.items()}
    elif where == "generator":
        arrays["2/generator"] = arrays["2/generator"][:10]
    else:
        about[where] = {"leg": 10**6, "tiles": [], "together": 3}[where]
    reader.write_checkpoint(arrays, about)
    with pytest.raises(StoreError, match=r"damaged|does not fit"):
        run("weighted", store=store)


def test_a_run_that_ends_between_its_last_tile_and_its_summary_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of meetings are written last; without them the meetings are held again."""
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
    """Two full tiles stay, the third is not full and is run again."""
    store = tmp_path / "run.zarr"
    first = run("casal", n=50, store=store, snapshots=10)
    grown = run("casal", store=store, snapshots=10, tile=None)  # the tile is that of the store
    same(run("casal", snapshots=10), grown)
    assert torch.equal(grown.samples[:40], first.samples[:40])
    same(grown, casal.load(store))
    same(grown, run("casal", store=store, snapshots=10))
    assert torch.equal(casal.load(store).snapshots.samples, grown.snapshots.samples)
    with pytest.raises(StoreError, match=r"n: 90 in the store, 50 now"):
        run("casal", n=50, store=store, snapshots=10)


def test_chains_that_meet_take_no_more_of_them(tmp_path: Path) -> None:
    run("weighted", n=40, store=tmp_path / "run.zarr")
    with pytest.raises(
        StoreError, match=r"40 chains of this run, and 90 are asked for; the chains of WeightedCASAL meet"
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
    monkeypatch.setattr("casal.store.run_store.CHECKPOINT_SECONDS", 0.0)
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
    with pytest.raises(StoreError, match="snapshots: 10 in the store"):
        run(name, snapshots=5, store=store)
