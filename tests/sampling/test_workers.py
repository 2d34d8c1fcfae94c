"""Threads and the order of batches change no bit; interrupts and divergence come through as with one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL, Decoupled, FinalProjection, Penalty, PrimalDual, Projected, SplitGibbs, WeightedCASAL
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.methods import Method
from casal.sampling import workers
from casal.sampling.workers import Threads

from ..models import network_ddpm

STEPS, N, BATCH = 12, 150, 32
SPHERE = casal.Sphere(2.0)


def gradient(x: Tensor) -> Tensor:
    return torch.linspace(0.7, 1.6, x.shape[1], dtype=x.dtype) * (x - 0.3)


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, 4), generator=generator)


def langevin(grad: Callable[[Tensor], Tensor] = gradient, step_size: float = 0.05) -> casal.Target:
    return casal.langevin(grad, steps=STEPS, step_size=step_size, init=start)


def network() -> casal.Target:
    return network_ddpm(STEPS, 32)


LANGEVIN: list[Method[Any]] = [
    casal.Unconstrained(),
    FinalProjection(),
    Projected(burn_in=3),
    Penalty(0.02),
    PrimalDual(0.1),
    Decoupled(10.0),
    CASAL(10.0),
    CASAL(10.0, coupling="explicit"),
    CASAL(10.0, dual="mean", dual_step=0.5),
    CASAL(10.0, dual_init=0.3),
    WeightedCASAL(30.0),
]
DIFFUSION: list[Method[Any]] = [
    casal.Unconstrained(),
    CASAL(10.0),
    CASAL(10.0, couple="denoised"),
    casal.DPS(1e-4),
    SplitGibbs(0.2, inner_steps=2, levels=4),
    SplitGibbs(0.2, inner_steps=2, levels=4, moves="metropolis"),
]
RUNS = [pytest.param(langevin, m, id=f"langevin-{k}-{m.name}") for k, m in enumerate(LANGEVIN)]
RUNS += [pytest.param(network, m, id=f"network-{k}-{m.name}") for k, m in enumerate(DIFFUSION)]


def same(a: casal.SampleResult, b: casal.SampleResult) -> bool:
    tensors = [(a.samples, b.samples), (a.certificate.violation, b.certificate.violation)]
    tensors += list(zip(a.state, b.state, strict=True))
    tensors += [(a.trace[name], b.trace[name]) for name in a.trace]
    return set(a.trace) == set(b.trace) and all(torch.equal(p, q) for p, q in tensors)


@pytest.fixture(autouse=True)
def own_thread_number() -> Iterator[None]:
    yield
    assert torch.get_num_threads() == 1, "a run must leave torch's own threads as they were"


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")
@pytest.mark.parametrize(("target", "method"), RUNS)
def test_any_number_of_threads_gives_the_same_bits(target: Callable[[], casal.Target], method: Method[Any]) -> None:
    runs = [
        casal.sample(target(), SPHERE, method, N, seed=3, run=casal.Run(batch=BATCH, record_every=5, threads=threads))
        for threads in (1, 2, 8)
    ]
    assert [run.provenance["threads"] for run in runs] == [1, 2, 5]
    assert all(same(runs[0], run) for run in runs[1:])
    assert all(run.cost.score_evaluations == runs[0].cost.score_evaluations for run in runs)
    assert all(run.cost.projections == runs[0].cost.projections for run in runs)


@pytest.mark.parametrize("method", [CASAL(10.0), WeightedCASAL(30.0)], ids=lambda method: method.name)
def test_the_order_of_batches_does_not_matter(method: Method[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = casal.sample(langevin(), SPHERE, method, N, run=casal.Run(batch=BATCH, threads=1))

    def backward(self: Threads, task: Any, works: list[Any], walk: Any) -> Iterator[Any]:
        return (task(self.prepared, work, self, walk) for work in reversed(works))

    monkeypatch.setattr(Threads, "map", backward)
    assert same(forward, casal.sample(langevin(), SPHERE, method, N, run=casal.Run(batch=BATCH, threads=1)))


def test_left_out_there_are_as_many_threads_as_torch_has() -> None:
    torch.set_num_threads(3)
    try:
        threads = casal.sample(langevin(), SPHERE, CASAL(10.0), N, run=casal.Run(batch=BATCH)).provenance["threads"]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert threads == 3


def test_batches_really_run_in_other_threads_without_gradients() -> None:
    seen: set[tuple[int, bool, int]] = set()
    both = threading.Barrier(2, timeout=30)

    def grad(x: Tensor) -> Tensor:
        if len(x) == BATCH:
            seen.add((threading.get_ident(), torch.is_grad_enabled(), torch.get_num_threads()))
            both.wait()  # goes on only if two batches are under way at once
        return gradient(x)

    casal.sample(langevin(grad), SPHERE, CASAL(10.0), 2 * BATCH, run=casal.Run(batch=BATCH, threads=2))
    assert len(seen) == 2 and threading.get_ident() not in {ident for ident, _, _ in seen}
    assert {(grads, inner) for _, grads, inner in seen} == {(False, 1)}


def test_autocast_of_the_caller_holds_in_threads() -> None:
    def run(threads: int) -> casal.SampleResult:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return casal.sample(
                network(), SPHERE, casal.Unconstrained(), N, run=casal.Run(batch=BATCH, threads=threads)
            )

    assert same(run(1), run(2))
    assert not torch.equal(
        run(2).samples,
        casal.sample(network(), SPHERE, casal.Unconstrained(), N, run=casal.Run(batch=BATCH, threads=2)).samples,
    )


def test_an_interrupt_in_a_thread_keeps_what_is_done() -> None:
    lock, calls = threading.Lock(), 0

    def grad(x: Tensor) -> Tensor:
        nonlocal calls
        with lock:
            calls += 1
            if calls == 1 + 2 * STEPS:
                raise KeyboardInterrupt
        return gradient(x)

    with pytest.warns(CasalWarning, match="interrupted"):
        result = casal.sample(langevin(grad), SPHERE, CASAL(10.0), 10 * BATCH, run=casal.Run(batch=BATCH, threads=2))
    assert result.partial and 0 < len(result.samples) < 10 * BATCH
    assert int(result.steps.max()) <= STEPS and int(result.steps.min()) >= 1
    assert float(result.certificate.violation.max()) <= 1e-12
    whole = casal.sample(langevin(), SPHERE, CASAL(10.0), 10 * BATCH, run=casal.Run(batch=BATCH, threads=1))
    batches = whole.samples.split(BATCH)
    for steps, samples in zip(result.steps.split(BATCH), result.samples.split(BATCH), strict=True):
        if int(steps.min()) == STEPS:
            assert any(torch.equal(samples, batch) for batch in batches), (
                "a finished batch is as in a run without an end"
            )


def test_an_interrupt_of_the_waiting_thread_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, first = workers.wait, True

    def interrupted(jobs: Any, **how: Any) -> Any:
        nonlocal first
        if first and next(iter(jobs)).result().rows == STEPS:
            first = False
            raise KeyboardInterrupt
        return wait(jobs, **how)

    monkeypatch.setattr(workers, "wait", interrupted)
    with pytest.warns(CasalWarning, match="interrupted"):
        result = casal.sample(langevin(), SPHERE, CASAL(10.0), 40 * BATCH, run=casal.Run(batch=BATCH, threads=2))
    assert result.partial and result.steps[:BATCH].tolist() == [STEPS] * BATCH


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_divergence_is_that_of_the_first_batch(threads: int) -> None:
    """Batches 1 and 3 blow up; whoever is faster, the error is that of batch 1."""
    number = torch.arange(N) // BATCH

    def grad(x: Tensor) -> Tensor:
        bad = (x[:, 0] == 1.0) | (x[:, 0] == 3.0)
        return torch.where(bad[:, None], torch.inf, torch.zeros_like(x))

    target = casal.langevin(grad, steps=STEPS, step_size=1e-30, init=number.float()[:, None].expand(N, 4).contiguous())
    with pytest.raises(DivergedError, match="diverged at step 1 of 12") as caught:
        casal.sample(target, SPHERE, casal.Unconstrained(), N, run=casal.Run(batch=BATCH, threads=threads))
    assert caught.value.chains == tuple(range(BATCH, 2 * BATCH))


@pytest.mark.parametrize("threads", [0, -1, 1.5, "many"])
def test_a_number_of_threads_is_a_whole_number(threads: Any) -> None:
    with pytest.raises(SettingError, match="threads must be a whole number >= 1"):
        casal.sample(langevin(), SPHERE, CASAL(10.0), N, run=casal.Run(threads=threads))
