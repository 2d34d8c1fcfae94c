"""Compiled steps: the same result to rounding, no retrace over a run, and eager steps where there is no compiler."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning
from casal.methods import Method, Stage
from casal.methods.base import no_step
from casal.sampling import stepping
from casal.sampling.stepping import compiled_blocks, steps_together

from ..models import network_ddpm

STEPS = 25
SPHERE = casal.Sphere(2.0)
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl")), reason="torch.compile needs a C++ compiler"
)


def gradient(x: Tensor) -> Tensor:
    return 1.3 * (x - 0.3)


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, 4), generator=generator)


def langevin() -> casal.Target:
    return casal.langevin(gradient, steps=STEPS, step_size=0.05, init=start)


def network() -> casal.Target:
    return network_ddpm(STEPS, 16)


def retraces(run: Callable[[], casal.SampleResult]) -> tuple[casal.SampleResult, int]:
    """The result, and how many graphs torch has made for it."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    result = run()
    return result, counters["stats"]["unique_graphs"] - before


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("target", "method", "graphs"),
    [
        pytest.param(langevin, casal.CASAL(casal.linear(2.0, 20.0)), 1, id="CASAL"),
        pytest.param(langevin, casal.Projected(burn_in=3), 2, id="projected-with-burn-in"),
        pytest.param(network, casal.CASAL(10.0), 1, id="network"),
    ],
)
def test_one_graph_a_kind_of_row_and_the_eager_result(
    target: Callable[[], casal.Target], method: Method[Any], graphs: int
) -> None:
    model = target()
    options: dict[str, Any] = {"tile": 16, "seed": 1, "record_every": 10}
    eager = casal.sample(model, SPHERE, method, 40, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, made = retraces(lambda: casal.sample(model, SPHERE, method, 40, compile=True, **options))
        again, anew = retraces(lambda: casal.sample(model, SPHERE, method, 40, compile=True, threads=2, **options))
        _, more = retraces(lambda: casal.sample(model, SPHERE, method, 40, compile=True, threads=2, **options))
    assert (made, anew, more) == (graphs, graphs, 0), "one set of graphs for one thread, one for several"
    assert compiled.provenance["compile"] and not eager.provenance["compile"]
    assert torch.allclose(compiled.samples, eager.samples, rtol=0, atol=1e-5)
    assert float(compiled.certificate.violation.max()) <= 1e-12
    assert torch.equal(compiled.samples, again.samples), "threads change no bit of a compiled run either"
    assert compiled.cost.score_evaluations == eager.cost.score_evaluations
    assert compiled.cost.projections == eager.cost.projections
    assert set(compiled.trace) == set(eager.trace)


class Row(NamedTuple):
    """A row with a number that changes, one that does not, and a flag."""

    step: Tensor
    same: Tensor
    flag: bool = False


def rows(flags: list[bool]) -> list[Row]:
    same = torch.tensor(7.0)
    return [Row(torch.tensor(float(k)), same, flag) for k, flag in enumerate(flags)]


@pytest.mark.parametrize(
    ("flags", "done", "every", "sizes", "together"),
    [
        ([False] * 20, 0, 0, [8, 8, 4], [True, True, False]),
        ([False] * 16, 4, 12, [4, 4, 4, 4], [True] * 4),
        ([False] * 3 + [True] * 9, 0, 0, [3, 8, 1], [False, True, False]),
        ([False] * 5, 0, 0, [4, 1], [True, False]),
        ([False], 0, 0, [1], [True]),
        ([False] * 6, 3, 5, [1] * 6, [True] * 6),
        ([], 0, 0, [], []),
    ],
    ids=["plain", "records", "kinds", "short", "single", "odd-records", "none"],
)
def test_blocks_end_where_rows_change_or_something_is_recorded(
    flags: list[bool], done: int, every: int, sizes: list[int], together: list[bool]
) -> None:
    given = rows(flags)
    blocks = compiled_blocks(Stage(given, no_step), done, every, 8)
    assert [row for block in blocks for row in block.rows] == given
    assert [len(block.rows) for block in blocks] == sizes
    assert [block.columns is not None for block in blocks] == together
    steps = done
    for block in blocks:
        if block.columns is not None:
            assert block.columns.step.tolist() == [float(row.step) for row in block.rows]
            assert block.columns.same.tolist() == [7.0] * len(block.rows)
            assert all(block.columns.flag == row.flag for row in block.rows)
        ends = steps + len(block.rows)
        assert not every or ends // every == steps // every or ends % every == 0
        steps = ends


@pytest.mark.parametrize(
    ("numbers", "steps"), [(1, 8), (250 * 19, 8), (1024 * 50, 8), (2048 * 50, 8), (4096 * 50, 4), (10**7, 1)]
)
def test_fewer_steps_together_where_their_noise_would_leave_the_cache(numbers: int, steps: int) -> None:
    assert steps_together(numbers) == steps


@pytest.mark.slow
@needs_compiler
def test_noise_that_a_state_keeps_is_not_written_over() -> None:
    """WeightedCASAL hands the noise of a move on to the next one."""
    method = casal.WeightedCASAL(30.0)
    eager = casal.sample(langevin(), SPHERE, method, 32, tile=16, seed=1)
    compiled = casal.sample(langevin(), SPHERE, method, 32, tile=16, seed=1, compile=True)
    assert compiled.provenance["compile"]
    assert torch.allclose(compiled.samples, eager.samples, rtol=0, atol=1e-5)


def test_without_a_compiler_there_is_one_warning_and_the_eager_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def run(*arguments: Any) -> Any:
            raise RuntimeError("No working C++ compiler found\nin a long text")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    method = casal.CASAL(11.0)
    with pytest.warns(CasalWarning, match=r"compile=True has no effect.*No working C\+\+ compiler") as caught:
        result = casal.sample(langevin(), SPHERE, method, 40, tile=16, compile=True, threads=2)
    assert len(caught) == 1
    assert not result.provenance["compile"]
    assert torch.equal(result.samples, casal.sample(langevin(), SPHERE, method, 40, tile=16).samples)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "method", [casal.SplitGibbs(0.2, inner_steps=2, levels=4), casal.Twisted(20.0, moves=3, inner_steps=2)]
)
def test_rows_of_several_types_in_one_segment(method: Method[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)  # few chains: also of a population that is nearly lost
        asked = casal.sample(network(), SPHERE, method, 16, compile=True)
        plain = casal.sample(network(), SPHERE, method, 16)
    assert torch.allclose(asked.samples, plain.samples, rtol=0, atol=1e-5)


@pytest.mark.slow
@needs_compiler
def test_an_energy_is_compiled_with_its_gradient() -> None:
    """By a functional gradient inside the graph; the closure over a float64 array is part of it."""
    curvature = torch.linspace(1.0, 3.0, 4, dtype=torch.float64)

    def energy(x: Tensor) -> Tensor:
        return 0.5 * (curvature.to(x) * x.square()).sum(1) + torch.cos(2.0 * x).sum(1)

    target = casal.energy(energy, steps=STEPS, step_size=0.05, init=start)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, made = retraces(lambda: casal.sample(target, SPHERE, casal.CASAL(10.0), 40, tile=16, compile=True))
    plain = casal.sample(target, SPHERE, casal.CASAL(10.0), 40, tile=16)
    assert made == 1 and compiled.provenance["compile"] and compiled.provenance.get("compile_note") is None
    assert torch.allclose(compiled.samples, plain.samples, rtol=0, atol=1e-5)
    flipped = casal.energy(lambda x: -energy(x), steps=STEPS, step_size=0.05, init=start)
    other = casal.sample(flipped, SPHERE, casal.CASAL(10.0), 40, tile=16)
    assert not torch.allclose(compiled.samples, other.samples, rtol=0, atol=1e-2), "the gradient matters"


def looks(x: Tensor) -> Tensor:
    return x if float(x.sum()) > 0 else 2 * x


@needs_compiler
def test_a_score_that_cannot_be_compiled_runs_eagerly_and_the_result_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is asked once: a run on equal objects is told what was found before."""
    monkeypatch.setattr(stepping, "_kept", OrderedDict())
    asked: list[object] = []
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *given, **options: (asked.append(given), compile(*given, **options))[1]
    )

    def run(**options: Any) -> casal.SampleResult:
        target = casal.langevin(looks, steps=STEPS, step_size=0.05, init=start)
        return casal.sample(target, casal.Sphere(2.0), casal.CASAL(10.0), 20, threads=1, **options)

    plain = run()
    for _ in range(2):
        with pytest.warns(CasalWarning, match="compile=True has no effect: torch.compile cannot take a step of CASAL"):
            result = run(compile=True)
        assert "cannot take a step of CASAL (" in result.provenance["compile_note"]
        assert not result.provenance["compile"] and torch.equal(result.samples, plain.samples)
    assert len(asked) == 1


# ------------------------------------------------------------------ steps that are kept, and those that are too slow


class Scale:
    """A model whose number can be changed."""

    def __init__(self, factor: float) -> None:
        self.factor = torch.tensor(factor)

    def gradient(self, x: Tensor) -> Tensor:
        return self.factor * x


def made_anew(model: Scale, **options: Any) -> casal.SampleResult:
    """A run for which target, set and method are made."""
    target = casal.langevin(model.gradient, steps=STEPS, step_size=0.05, init=start)
    method = casal.CASAL(casal.linear(1.0, 10.0))
    return casal.sample(target, casal.Sphere(2.0), method, 16, check=False, **options)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is given to torch.compile, which gives it back as it is."""
    given: list[object] = []

    def compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        given.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(stepping, "_kept", OrderedDict())
    return given


def test_a_target_made_anew_is_not_compiled_anew(traced: list[object]) -> None:
    one = made_anew(Scale(1.0), compile=True)
    two = made_anew(Scale(1.0), compile=True)
    assert len(traced) == 1 and torch.equal(one.samples, two.samples)


def test_another_number_is_compiled_anew(traced: list[object]) -> None:
    made_anew(Scale(1.0), compile=True)
    other = made_anew(Scale(2.0), compile=True)
    assert len(traced) == 2 and torch.allclose(other.samples, made_anew(Scale(2.0)).samples, atol=1e-5)


def test_steps_of_a_model_that_was_changed_in_place_are_not_taken_for_those_of_an_equal_one(
    traced: list[object],
) -> None:
    model = Scale(1.0)
    made_anew(model, compile=True)
    model.factor.fill_(3.0)
    assert torch.allclose(made_anew(Scale(1.0), compile=True).samples, made_anew(Scale(1.0)).samples, atol=1e-5)
    assert len(traced) == 2


@pytest.mark.parametrize("slower", [False, True])
def test_compiled_steps_that_are_slower_are_given_up(
    traced: list[object], monkeypatch: pytest.MonkeyPatch, slower: bool
) -> None:
    """By a clock that is asked three times a trial: before, after the compiled steps, after the eager ones."""
    ticks = itertools.accumulate(itertools.cycle((1.0, 3.0, 2.0) if slower else (1.0, 2.0, 3.0)))
    monkeypatch.setattr(stepping, "time", SimpleNamespace(thread_time=lambda: next(ticks)))
    monkeypatch.setattr(stepping, "WORTH_A_TRIAL", 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = made_anew(Scale(1.0), compile=True, tile=4, threads=1)
    said = [str(warning.message) for warning in caught if issubclass(warning.category, CasalWarning)]
    assert len(said) == slower and result.provenance["compile"] != slower
    if slower:
        assert "take 1.50 times as long as eager ones" in said[0]
        assert "1.50 times" in result.provenance["compile_note"]
        assert made_anew(Scale(1.0), compile=True, tile=4).provenance["compile"] is False and len(traced) == 1
    assert torch.allclose(result.samples, made_anew(Scale(1.0), tile=4).samples, atol=1e-5)
    assert result.cost.score_evaluations == STEPS
