"""Threads and the order of tiles change no bit; interrupts and divergence come through as with one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL, Decoupled, FinalProjection, Penalty, PrimalDual, Projected, SplitGibbs, Twisted, WeightedCASAL
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.methods import Method
from casal.sampling.tiles import cut

from ..models import network_ddpm

STEPS, N, TILE = 12, 150, 32
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
    Twisted(20.0, moves=3, inner_steps=2),
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
        casal.sample(target(), SPHERE, method, N, tile=TILE, seed=3, record_every=5, threads=threads)
        for threads in (1, 2, 8)
    ]
    assert [run.provenance["threads"] for run in runs] == [1, 2, 5]
    assert all(same(runs[0], run) for run in runs[1:])
    assert all(run.cost.score_evaluations == runs[0].cost.score_evaluations for run in runs)
    assert all(run.cost.projections == runs[0].cost.projections for run in runs)


@pytest.mark.parametrize("method", [CASAL(10.0), WeightedCASAL(30.0)], ids=lambda method: method.name)
def test_the_order_of_tiles_does_not_matter(method: Method[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = casal.sample(langevin(), SPHERE, method, N, tile=TILE, threads=1)

    def backward(self: Any, work: Callable[..., None], tiles: list[Any], args: Any = (), done: Any = None) -> None:
        for tile in reversed(tiles):
            work(self.plan, tile, self, *args)

    monkeypatch.setattr("casal.sampling.executors.Threads.each", backward)
    assert same(forward, casal.sample(langevin(), SPHERE, method, N, tile=TILE, threads=1))


def test_left_out_there_are_as_many_threads_as_torch_has() -> None:
    torch.set_num_threads(3)
    try:
        threads = casal.sample(langevin(), SPHERE, CASAL(10.0), N, tile=TILE).provenance["threads"]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert threads == 3


def test_tiles_really_run_in_other_threads_without_gradients() -> None:
    seen: set[tuple[int, bool, int]] = set()
    meet = threading.Barrier(2, timeout=30)

    def grad(x: Tensor) -> Tensor:
        if len(x) == TILE:
            seen.add((threading.get_ident(), torch.is_grad_enabled(), torch.get_num_threads()))
            meet.wait()  # goes on only if two tiles are under way at once
        return gradient(x)

    casal.sample(langevin(grad), SPHERE, CASAL(10.0), 2 * TILE, tile=TILE, threads=2)
    assert len(seen) == 2 and threading.get_ident() not in {ident for ident, _, _ in seen}
    assert {(grads, inner) for _, grads, inner in seen} == {(False, 1)}


def test_autocast_of_the_caller_holds_in_threads() -> None:
    def run(threads: int) -> casal.SampleResult:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return casal.sample(network(), SPHERE, casal.Unconstrained(), N, tile=TILE, threads=threads)

    assert same(run(1), run(2))
    assert not torch.equal(
        run(2).samples, casal.sample(network(), SPHERE, casal.Unconstrained(), N, tile=TILE, threads=2).samples
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
        result = casal.sample(langevin(grad), SPHERE, CASAL(10.0), 10 * TILE, tile=TILE, threads=2)
    assert result.partial and 0 < len(result.samples) < 10 * TILE
    assert int(result.steps.max()) <= STEPS and int(result.steps.min()) >= 1
    assert float(result.certificate.violation.max()) <= 1e-12
    whole = casal.sample(langevin(), SPHERE, CASAL(10.0), 10 * TILE, tile=TILE, threads=1)
    tiles = whole.samples.split(TILE)
    for steps, samples in zip(result.steps.split(TILE), result.samples.split(TILE), strict=True):
        if int(steps.min()) == STEPS:
            assert any(torch.equal(samples, tile) for tile in tiles), "a finished tile is as in a run without an end"


def test_an_interrupt_of_the_waiting_thread_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from casal.sampling import executors

    wait, first = executors.wait, True

    def interrupted(jobs: Any) -> Any:
        nonlocal first
        if first:
            first = False
            jobs[0].result()
            raise KeyboardInterrupt
        return wait(jobs)

    monkeypatch.setattr(executors, "wait", interrupted)
    with pytest.warns(CasalWarning, match="interrupted"):
        result = casal.sample(langevin(), SPHERE, CASAL(10.0), 40 * TILE, tile=TILE, threads=2)
    assert result.partial and result.steps[:TILE].tolist() == [STEPS] * TILE


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_divergence_is_that_of_the_first_tile(threads: int) -> None:
    """Tiles 1 and 3 blow up; whoever is faster, the error is that of tile 1."""

    def init(n: int, generator: torch.Generator) -> Tensor:
        return torch.zeros(n, 4) + generator.initial_seed() % 1000

    seeds = [tile.generator.initial_seed() % 1000 for tile in cut(N, TILE, 0, torch.device("cpu"))]

    def grad(x: Tensor) -> Tensor:
        bad = (x[:, 0] == seeds[1]) | (x[:, 0] == seeds[3])
        return torch.where(bad[:, None], torch.inf, torch.zeros_like(x))

    target = casal.langevin(grad, steps=STEPS, step_size=1e-30, init=init)
    with pytest.raises(DivergedError, match="diverged at step 1 of 12") as caught:
        casal.sample(target, SPHERE, casal.Unconstrained(), N, tile=TILE, threads=threads)
    assert caught.value.chains == tuple(range(TILE, 2 * TILE))


@pytest.mark.parametrize("threads", [0, -1, 1.5, "many"])
def test_a_number_of_threads_is_a_whole_number(threads: Any) -> None:
    with pytest.raises(SettingError, match="threads must be a whole number >= 1"):
        casal.sample(langevin(), SPHERE, CASAL(10.0), N, threads=threads)
