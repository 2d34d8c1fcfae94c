"""Snapshots and callbacks: what they show is what the run holds there, and looking changes nothing."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import casal
from casal.errors import CasalWarning, SettingError

from .runs import TILE, N, run


@pytest.mark.parametrize("name", ["casal", "weighted", "split"])
def test_snapshots_change_nothing_and_end_at_the_samples(name: str) -> None:
    plain, watched = run(name), run(name, snapshots=10)
    assert torch.equal(plain.samples, watched.samples) and plain.cost.projections == watched.cost.projections
    found = watched.snapshots
    assert plain.snapshots is None and found is not None
    assert all(step % 10 == 0 for step in found.steps.tolist()) and found.samples.shape == (len(found), N, 3)
    if name == "casal":  # chains that never meet end where their last snapshot is
        assert torch.equal(found.samples[-1], plain.samples) and found.steps.tolist() == [10, 20, 30, 40]
    assert float(casal.Sphere(1.5).violation(found.samples.flatten(0, 1)).max()) < 1e-12


def test_a_snapshot_is_the_run_stopped_there() -> None:
    """A shorter run with the same steps returns what the longer one had there."""
    init = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def of(steps: int, **options: int) -> casal.SampleResult:
        target = casal.langevin(lambda x: x, steps=steps, step_size=0.1, init=init)
        return casal.sample(target, casal.Sphere(1.0), casal.CASAL(10.0), 6, **options)

    found = of(12, snapshots=4).snapshots
    assert found is not None and torch.equal(found.samples[1], of(8).samples)
    assert found.first_draw is None and "steps 4 to 12" in repr(found)
    settled = of(12, snapshots=1).snapshots
    assert settled is not None and settled.first_draw == 6 and settled.draws is not None
    assert settled.draws.shape == (6, 6, 3)


def test_compiled_runs_keep_the_same_snapshots() -> None:
    """Blocks of several steps end where a snapshot or a record is due; looked at without a compiler."""
    from casal.sampling.stepping import compiled_blocks

    stage = casal.methods.Stage([casal.methods.TableRow(*torch.ones(4).unbind())] * 12, lambda *_: None)
    ends = torch.tensor([len(block.rows) for block in compiled_blocks(stage, 0, 3, 8)]).cumsum(0)
    assert {3, 6, 9, 12} <= set(ends.tolist())


def test_a_callback_sees_every_step_of_every_tile_one_at_a_time() -> None:
    seen, inside, overlaps = [], threading.Lock(), 0

    def look(view: casal.StepView) -> None:
        nonlocal overlaps
        overlaps += not inside.acquire(blocking=False)
        time.sleep(1e-4)
        seen.append((view.chains.start, view.step))
        if view.step == view.steps:
            ends[view.chains] = view.samples
            view.samples.zero_()
            view.state.x.zero_()
        inside.release()

    ends = torch.zeros(N, 3, dtype=torch.float64)
    result = run("casal", threads=3, callback=look)
    assert overlaps == 0 and sorted(seen) == [(lo, k) for lo in range(0, N, TILE) for k in range(1, 41)]
    assert torch.equal(result.samples, ends) and torch.equal(result.samples, run("casal").samples)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_callback_ends_the_run(threads: int) -> None:
    with pytest.warns(CasalWarning, match="interrupted"):
        result = run("casal", threads=threads, callback=lambda view: view.step == 25)
    assert result.partial and int(result.steps.max()) == 25 and result.fidelity.verdict != "trusted"


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(SettingError, match="snapshots = 41 steps apart, but the run has 40"):
        run("casal", snapshots=41)
    with pytest.raises(SettingError, match=r"callback is a function of a .*, got 3"):
        run("casal", callback=3)


def test_an_error_in_a_callback_is_the_users() -> None:
    def broken(view: casal.StepView) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run("casal", callback=broken)
