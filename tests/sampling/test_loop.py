"""The loop: batches are slices of one state, streams have keys, lost chains a number, Ctrl-C keeps what there is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import casal
from casal import CASAL, Decoupled, FinalProjection, Penalty, PrimalDual, Projected, Unconstrained, WeightedCASAL
from casal.errors import CasalWarning, DivergedError, SettingError
from casal.methods import Each, Method, Together
from casal.sampling.loop import Job, Whole
from casal.sampling.prepare import Batch, batch_size, cut, prepare
from casal.sampling.run import Options
from casal.sampling.threads import one_thread
from casal.streams import stream

from .runs import BATCH, N, run

START = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(8, 3)

# ------------------------------------------------------------------ batches and the state of all chains


def test_batches_cut_the_chains_and_are_slices_of_one_state() -> None:
    batches = cut(50, 16)
    assert [(b.index, b.start, b.stop, len(b)) for b in batches] == [
        (0, 0, 16, 16),
        (1, 16, 32, 16),
        (2, 32, 48, 16),
        (3, 48, 50, 2),
    ]
    state = run("mean dual").state
    job = Job(None, [0] * 5, state)
    part = job.part(Batch(1, 20, 40))
    assert type(part) is type(state) and torch.equal(part.x, state.x[20:40])
    assert part.x.untyped_storage().data_ptr() == state.x.untyped_storage().data_ptr()  # no copy
    version = part.x._version
    state.x[:20] = 0.0
    assert part.x._version == version  # another batch is written while this one is at work


def test_states_of_batches_are_written_into_one() -> None:
    whole_state = run("weighted").state
    batches = cut(N, BATCH)
    whole = Whole(N, None)
    parts = [type(whole_state)(*(p[b.chains].clone() if p.ndim else p for p in whole_state)) for b in batches]
    for k in (3, 0, 4, 1, 2):
        whole.write(batches[k], parts[k])
    assert all(torch.equal(a, b) for a, b in zip(whole.state, whole_state, strict=True))
    place = whole.state.x.data_ptr()
    whole.write(batches[1], parts[1]._replace(x=parts[1].x + 1.0))
    assert whole.state.x.data_ptr() == place  # over the one before
    assert torch.equal(whole.state.x[20:40], whole_state.x[20:40] + 1.0)
    assert torch.equal(whole.state.x[40:], whole_state.x[40:])
    whole.write(batches[1], parts[1]._replace(x=parts[1].x.float()))
    assert whole.state.x.dtype == torch.float32 and whole.state.x.shape == (N, 3)


def problem_for(target: casal.Target, decoder: casal.Decoder | None = None) -> Any:
    return prepare(target, casal.Box(-9.0, 9.0), Unconstrained(), 4, Options(decoder=decoder)).problem


@pytest.mark.parametrize(
    ("n", "size", "batch"),
    [
        (100, 2, 100),
        (4096, 2, 4096),
        (4097, 2, 2049),
        (1_000_000, 2, 4033),
        (2048, 50, 2048),
        (5000, 50, 1250),
        (20_000, 50, 2000),
        (1_000_000, 50, 2017),
        (3, 10**6, 1),
    ],
)
def test_batches_are_of_nearly_the_same_size_and_fit_the_cache(n: int, size: int, batch: int) -> None:
    """An even number of them, so that two threads end together; a multiple of eight of many."""
    start = casal.GaussianStart(size)
    problem = problem_for(casal.langevin(lambda x: x, steps=1, step_size=0.1, init=start))
    found = batch_size(n, problem, (size,))
    count = -(-n // found)
    assert found == batch and n - (count - 1) * found > 0.7 * found
    assert batch_size(n, problem, (size,)) <= batch_size(n, problem, (2 * size,)) * 2 + 1


def test_a_network_gets_more_chains_than_the_cache_takes() -> None:
    """A latent of 16 numbers behind a decoder to 10,000: 8 chains of a density in a batch, 64 of a network."""
    decoder = casal.Linear(torch.eye(16).repeat(625, 1))
    net = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(3, 0.1, 2.0), shape=16, time="scalar")
    plain = casal.langevin(lambda x: x, steps=1, step_size=0.1, init=casal.GaussianStart(16))
    assert batch_size(128, problem_for(net, decoder), (10_000,)) == 64
    assert batch_size(128, problem_for(plain, decoder), (10_000,)) == 8


class Largest(TorchDispatchMode):
    """The largest new tensor of every operation, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            name = str(function)
            self.sizes[name] = max(self.sizes.get(name, 0), out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("method", [Unconstrained(), Projected(), CASAL(10.0)], ids=lambda method: method.name)
def test_only_what_is_returned_grows_with_the_chains(method: Method[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary of a step or of the certificates is as large as the run."""
    size, chains = 8, 64
    monkeypatch.setattr("casal.methods.problem.NUMBERS_AT_ONCE", chains * size)
    monkeypatch.setattr("casal.diagnostics.check.MOST_SAMPLES", chains)
    n = 40 * chains
    target = casal.langevin(lambda x: x, steps=6, step_size=0.01, init=casal.GaussianStart(size))
    with Largest() as seen:
        result = casal.sample(target, casal.Sphere(2.0), method, n, run=casal.Run(batch=chains, threads=1))
    assert max(seen.sizes.values()) == result.samples.untyped_storage().nbytes()
    large = {name for name, nbytes in seen.sizes.items() if nbytes > max(4 * chains * size, n) * 8}
    allowed = (
        "new_empty",
        "slice",
        "copy_",
        "split",
        "full",
        "le",
        "detach",
        "fill_",
        "empty",
        "all",
        "max",
        "cat",
        "view",
    )
    assert {name for name in large if not any(word in name for word in allowed)} == set()
    assert sum(part.untyped_storage().nbytes() for part in result.state) == len(result.state) * n * size * 4


def test_an_exchange_works_on_some_chains_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No float64 copy of all points; and the same bits as in one go."""
    size, chains = 8, 64
    n, how = 40 * chains, casal.Run(batch=chains, threads=1)
    target = casal.langevin(lambda x: x, steps=6, step_size=0.01, init=casal.GaussianStart(size))
    whole = casal.sample(target, casal.Sphere(2.0), WeightedCASAL(20.0), n, run=how)
    monkeypatch.setattr("casal.methods.problem.NUMBERS_AT_ONCE", chains * size)
    monkeypatch.setattr("casal.diagnostics.check.MOST_SAMPLES", chains)
    with Largest() as seen:
        parts = casal.sample(target, casal.Sphere(2.0), WeightedCASAL(20.0), n, run=how)
    assert torch.equal(parts.samples, whole.samples)
    wide = {name for name, nbytes in seen.sizes.items() if nbytes >= n * size * 8}
    allowed = ("new_empty", "slice", "copy_", "split", "view", "detach")
    assert {name for name in wide if not any(word in name for word in allowed)} == set()


# ------------------------------------------------------------------ streams


def test_a_batch_takes_the_noise_of_its_key() -> None:
    """The plain recursion with the streams (seed, stage 0, batch + 1), and with those of another seed."""
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=START)
    result = casal.sample(target, casal.Sphere(1.0), Unconstrained(), 8, seed=9, run=casal.Run(batch=3))

    def recursion(seed: int) -> Tensor:
        out = START.clone()
        for batch in cut(8, 3):
            generator = stream(seed, 0, batch.index + 1)
            for _ in range(5):
                noise = torch.randn((len(batch), 3), generator=generator).double()
                out[batch.chains] = 0.9 * out[batch.chains] + math.sqrt(0.2) * noise
        return out

    torch.testing.assert_close(result.samples, recursion(9), rtol=0, atol=1e-14)
    assert float((result.samples - recursion(10)).abs().max()) > 0.1


def test_two_runs_at_once_leave_the_threads_of_torch_as_they_were() -> None:
    """The second begins while the first has set one thread, and ends after it."""
    before, inside, first_over = torch.get_num_threads(), threading.Barrier(2, timeout=30), threading.Event()
    seen = list[int]()

    def begin_first() -> None:
        with one_thread():
            inside.wait()
            seen.append(torch.get_num_threads())
        first_over.set()

    torch.set_num_threads(3)
    try:
        other = threading.Thread(target=begin_first)
        other.start()
        with one_thread():
            inside.wait()
            assert first_over.wait(30)
            seen.append(torch.get_num_threads())
        other.join()
        assert seen == [1, 1] and torch.get_num_threads() == 3
        runs = [threading.Thread(target=lambda: run("casal", threads=2)) for _ in range(2)]
        for one in runs:
            one.start()
        for one in runs:
            one.join()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------ what all chains do together


class Exchanging(Unconstrained):
    """Four rows, something that all chains do, and four rows again."""

    do: Callable[..., Any]

    def stages(self, problem: Any, n: int) -> list[Each | Together]:
        (every,) = super().stages(problem, n)
        assert isinstance(every, Each)
        return [every._replace(rows=every.rows[:4]), Together(self.do), every._replace(rows=every.rows[4:8])]


def exchanging(do: Callable[..., Any], grad: Callable[[Tensor], Tensor] = lambda x: x) -> casal.SampleResult:
    method = type("Exchanging", (Exchanging,), {"do": staticmethod(do)})()
    target = casal.langevin(grad, steps=10, step_size=0.1, init=START)
    return casal.sample(target, casal.Sphere(1.0), method, 8, run=casal.Run(batch=3, threads=1))


def test_all_chains_are_seen_at_once_and_what_comes_back_is_used() -> None:
    seen = list[tuple[int, int]]()

    def reverse(problem: Any, state: Any, control: Any, generator: torch.Generator) -> Any:
        seen.append((len(state.x), torch.get_num_threads()))
        return state._replace(x=state.x.flip(0)), control, {"rho": 7.0}

    def keep(problem: Any, state: Any, control: Any, generator: torch.Generator) -> Any:
        return state, control, {}

    turned, plain = exchanging(reverse), exchanging(keep)
    assert seen == [(8, 1)] and turned.trace["rho"].tolist() == [7.0] and turned.trace["exchange_step"].tolist() == [4]
    # the same noise after the exchange, on points in another order: x' - 0.9^4 x is that of the noise alone
    shrink = 0.9**4
    middle = (turned.state.x - plain.state.x) / shrink
    torch.testing.assert_close(middle, -middle.flip(0), rtol=0, atol=1e-12)
    assert float(middle.abs().max()) > 0.5


def test_an_error_in_what_chains_do_together_is_the_users() -> None:
    def broken(problem: Any, state: Any, control: Any, generator: torch.Generator) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        exchanging(broken)


def interrupted_at(call: int) -> Callable[[Tensor], Tensor]:
    calls = 0

    def grad(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return x

    return grad


@pytest.mark.parametrize("call", [2 + 12 + 3, 2 + 12 + 6, 2 + 24])
def test_chains_that_exchange_go_back_to_their_last_whole_stage(call: int) -> None:
    """Three batches: calls 2 to 13 are the first stage, 14 to 25 the second."""
    seen = list[Tensor]()

    def keep(problem: Any, state: Any, control: Any, generator: torch.Generator) -> Any:
        seen.append(state.x.clone())
        return state, control, {}

    with pytest.warns(CasalWarning, match="interrupted"):
        result = exchanging(keep, interrupted_at(call))
    assert result.partial and result.steps.tolist() == [4] * 8 and torch.equal(result.state.x, seen[0])


@pytest.mark.parametrize("call", [2 + 2, 2 + 5])
def test_before_the_first_whole_stage_there_is_nothing_to_return(call: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        exchanging(lambda problem, state, control, generator: (state, control, {}), interrupted_at(call))


# ------------------------------------------------------------------ runs that diverge


def quartic(x: Tensor) -> Tensor:
    return x**3


TAU, SEEDS = 0.3, range(4)


def first_lost(seed: int, start: Tensor, size: int, steps: int) -> tuple[int, list[int]]:
    """Step and chains of the first loss, by the plain recursion under the noise of (seed, stage, batch)."""
    for part in cut(len(start), size):
        x, generator = start[part.chains], stream(seed, 0, part.index + 1)
        for step in range(1, steps + 1):
            noise = torch.randn((len(part), 3), generator=generator).double()
            x = x - TAU * quartic(x) + math.sqrt(2 * TAU) * noise
            lost = torch.nonzero(~torch.isfinite(x).all(1)).flatten()
            if len(lost):
                return step, (part.start + lost).tolist()
    raise AssertionError("this run does not diverge: choose another seed")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", [Unconstrained(), FinalProjection()], ids=lambda method: method.name)
@pytest.mark.parametrize("batch", [8, 3])
@pytest.mark.parametrize("record_every", [0, 1])
def test_divergence_names_the_true_step(seed: int, method: Method[Any], batch: int, record_every: int) -> None:
    target = casal.langevin(quartic, steps=400, step_size=TAU, init=START)
    step, chains = first_lost(seed, START, batch, 400)
    with pytest.raises(DivergedError, match=rf"at step {step} of 400 .*tau = {TAU}") as lost:
        casal.sample(
            target, casal.Sphere(1.0), method, 8, seed=seed, run=casal.Run(batch=batch, record_every=record_every)
        )
    assert (lost.value.step, lost.value.steps) == (step, 400)
    assert list(lost.value.chains) == chains
    assert f"{len(chains)} of" in str(lost.value) and "step_size" in str(lost.value)


def test_the_divergence_seeds_reach_across_several_tests() -> None:
    """The loop tests every 16 steps; the seeds above must not all diverge before the first test."""
    steps = {first_lost(seed, START, 8, 400)[0] for seed in SEEDS}
    assert min(steps) <= 16 < max(steps) and any(step % 16 for step in steps)


def test_an_immediate_overflow_is_step_one() -> None:
    target = casal.langevin(quartic, steps=50, step_size=1e10, init=1e100 * (START + 2))
    with pytest.raises(DivergedError, match=r"8 of 8 chains diverged at step 1 of 50 \(tau = 1e\+10\)") as lost:
        casal.sample(target, casal.Sphere(1.0), Unconstrained(), 8)
    assert lost.value.step == 1 and lost.value.chains == tuple(range(8))


def test_a_chain_lost_in_a_later_batch_keeps_its_number() -> None:
    start = START.clone()
    start[5] = 1e200
    target = casal.langevin(quartic, steps=30, step_size=0.01, init=start)
    with pytest.raises(DivergedError, match=r"1 of 3 chains diverged at step 1 of 30 \(tau = 0\.01\)") as lost:
        casal.sample(target, casal.Sphere(1.0), Unconstrained(), 8, run=casal.Run(batch=3))
    assert lost.value.step == 1 and lost.value.chains == (5,)


class Wall:
    """The gradient of |x|^2 / 2, not a number beyond x_0 = 1.2; remembers the first call that met the wall."""

    def __init__(self) -> None:
        self.calls, self.met, self.chains = 0, 0, []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        beyond = x[:, 0] > 1.2
        if bool(beyond.any()) and not self.met:
            self.met, self.chains = self.calls, torch.nonzero(beyond).flatten().tolist()
        return torch.where(beyond[:, None], math.nan, x)


@pytest.mark.parametrize("record_every", [0, 1])
@pytest.mark.parametrize(
    "method",
    [
        Unconstrained(),
        FinalProjection(),
        Projected(),
        Projected(burn_in=59),
        Penalty(0.1),
        PrimalDual(0.1),
        PrimalDual(0.1, average="time"),
        Decoupled(1.0),
        CASAL(5.0),
        CASAL(5.0, burn_in=59),
        CASAL(5.0, coupling="explicit"),
        CASAL(5.0, dual="mean"),
        CASAL.algorithm1(5.0),
        CASAL.released(5.0, 0.1),
        WeightedCASAL(5.0, burn_in=0.5),
        WeightedCASAL(casal.geometric(0.1, 5.0), burn_in=0.5),
    ],
    ids=lambda method: method.name,
)
def test_every_method_says_where_a_gradient_broke_down(method: Method[Any], record_every: int) -> None:
    wall = Wall()
    start = torch.full((32, 2), 0.1, dtype=torch.float64)
    target = casal.langevin(wall, steps=60, step_size=0.1, init=start)
    with pytest.raises(DivergedError, match=r"tau = 0\.1") as lost:
        casal.sample(target, casal.Affine([[1.0, 1.0]], 0.2), method, 32, run=casal.Run(record_every=record_every))
    assert wall.met > 1
    assert lost.value.step == wall.met - 2  # the first two calls are probes
    assert list(lost.value.chains) == wall.chains
    assert f"step {wall.met - 2} of {lost.value.steps}" in str(lost.value)


def test_a_gradient_that_breaks_down_in_the_last_correction_is_not_hidden() -> None:
    """WeightedCASAL asks for two scores after its last step; one chain without a number must not spoil the weights."""
    calls = 0

    def breaks_late(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.where(torch.arange(len(x))[:, None] == 3, math.nan, x) if calls > 19 else x

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(32, 2, generator=generator, dtype=torch.float64)
    target = casal.langevin(breaks_late, steps=20, step_size=0.1, init=start)
    with pytest.raises(DivergedError, match="1 of 32") as lost:
        casal.sample(target, casal.Sphere(1.0), WeightedCASAL(5.0), 32)
    assert lost.value.chains == (3,)


def test_divergence_names_the_strength_of_the_coupling() -> None:
    target = casal.langevin(lambda x: -1e3 * x, steps=200, step_size=1.0, init=START)
    with pytest.raises(DivergedError, match=r"tau = 1, rho = 0\.5, tau rho = 0\.5"):
        casal.sample(target, casal.Ball(1.0), CASAL(0.5, coupling="explicit"), 8)


# ------------------------------------------------------------------ snapshots and callbacks


@pytest.mark.parametrize("name", ["casal", "weighted", "split"])
def test_snapshots_change_nothing_and_end_at_the_samples(name: str) -> None:
    plain, watched = run(name), run(name, snapshots=10)
    assert torch.equal(plain.samples, watched.samples) and plain.cost.projections == watched.cost.projections
    found = watched.snapshots
    assert plain.snapshots is None and found is not None
    assert all(step % 10 == 0 for step in found.steps.tolist()) and found.samples.shape == (len(found), N, 3)
    if name == "casal":  # independent chains end where their last snapshot is
        assert torch.equal(found.samples[-1], plain.samples) and found.steps.tolist() == [10, 20, 30, 40]
    assert float(casal.Sphere(1.5).violation(found.samples.flatten(0, 1)).max()) < 1e-12


def test_a_snapshot_is_the_run_stopped_there() -> None:
    """A shorter run with the same steps returns what the longer one had there."""
    init = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def of(steps: int, **how: int) -> casal.SampleResult:
        target = casal.langevin(lambda x: x, steps=steps, step_size=0.1, init=init)
        return casal.sample(target, casal.Sphere(1.0), casal.CASAL(10.0), 6, run=casal.Run(**how))

    found = of(12, snapshots=4).snapshots
    assert found is not None and torch.equal(found.samples[1], of(8).samples)
    assert found.first_draw is None and "steps 4 to 12" in repr(found)
    settled = of(12, snapshots=1).snapshots
    assert settled is not None and settled.first_draw == 6 and settled.draws is not None
    assert settled.draws.shape == (6, 6, 3)


def test_a_callback_sees_every_step_of_every_batch_one_at_a_time() -> None:
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
    assert overlaps == 0 and sorted(seen) == [(lo, k) for lo in range(0, N, BATCH) for k in range(1, 41)]
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
