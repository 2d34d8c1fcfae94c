"""Compiled steps: the eager result to rounding, one graph for a kind of row, eager steps where there is no compiler."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning
from casal.methods import Method
from casal.sampling.compile import BLOCK, _block, _columns, _row

from ..models import network_ddpm

STEPS = 25
SPHERE = casal.Sphere(2.0)
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl")), reason="torch.compile needs a C++ compiler"
)


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, 4), generator=generator)


def langevin(grad: Callable[[Tensor], Tensor] = lambda x: 1.3 * (x - 0.3)) -> casal.Target:
    return casal.langevin(grad, steps=STEPS, step_size=0.05, init=start)


def energy() -> casal.Target:
    curvature = torch.linspace(1.0, 3.0, 4, dtype=torch.float64)
    potential = lambda x: 0.5 * (curvature.to(x) * x.square()).sum(1) + torch.cos(2.0 * x).sum(1)  # noqa: E731
    return casal.energy(potential, steps=STEPS, step_size=0.05, init=start)


def network() -> casal.Target:
    return network_ddpm(STEPS, 16)


def run(target: casal.Target, method: Method[Any], **how: Any) -> casal.SampleResult:
    return casal.sample(target, SPHERE, method, 40, seed=1, run=casal.Run(**{"batch": 16, "record_every": 10, **how}))


def graphs(call: Callable[[], casal.SampleResult]) -> tuple[casal.SampleResult, int]:
    """The result, and how many graphs torch has made for it."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    result = call()
    return result, counters["stats"]["unique_graphs"] - before


LONG = pytest.mark.nightly
COMPILED = [
    # two sizes of batches: 16, and 8 for the last one
    pytest.param(langevin, casal.CASAL(casal.linear(2.0, 20.0)), 2, id="CASAL"),
    pytest.param(langevin, casal.WeightedCASAL(30.0), None, id="noise-that-a-state-keeps", marks=LONG),
    pytest.param(langevin, casal.Projected(burn_in=3), None, id="two-kinds-of-rows", marks=LONG),
    pytest.param(network, casal.CASAL(10.0), 2, id="network", marks=LONG),
    pytest.param(network, casal.SplitGibbs(0.2, inner_steps=2, levels=4), None, id="SplitGibbs", marks=LONG),
    pytest.param(network, casal.SplitGibbs(0.2, levels=2, moves="level"), None, id="SplitGibbs-level"),
    pytest.param(energy, casal.CASAL(10.0), 2, id="energy-with-its-gradient", marks=LONG),
]


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")  # few chains; steps that draw their own numbers
@pytest.mark.parametrize(("target", "method", "made"), COMPILED)
def test_compiled_steps_give_the_eager_result(
    target: Callable[[], casal.Target], method: Method[Any], made: int | None
) -> None:
    model = target()
    eager = run(model, method)
    compiled, found = graphs(lambda: run(model, method, compile=True, threads=1))
    again = run(model, method, compile=True, threads=2)
    assert compiled.provenance["compile"] and not eager.provenance["compile"]
    assert made is None or found == made, "one graph for a kind of row and a size of batch"
    assert torch.allclose(compiled.samples, eager.samples, rtol=0, atol=1e-5)
    assert torch.equal(compiled.samples, again.samples), "threads change no bit of a compiled run either"
    assert float(compiled.certificate.violation.max()) <= 1e-12
    assert compiled.cost.score_evaluations == eager.cost.score_evaluations
    assert compiled.cost.projections == eager.cost.projections
    assert set(compiled.trace) == set(eager.trace)
    if target is not network:
        other = run(langevin(lambda x: 1.31 * x), method)
        assert not torch.allclose(compiled.samples, other.samples, rtol=0, atol=1e-3)


def looks(x: Tensor) -> Tensor:
    """A gradient with a branch on the numbers, which no graph takes; both are the same."""
    return x + 0.0 if float(x.sum()) > 0 else x.clone()


@pytest.mark.slow
@needs_compiler
def test_a_score_that_cannot_be_compiled_runs_eagerly_and_the_result_says_why() -> None:
    with pytest.warns(CasalWarning, match="compile=True has no effect: torch.compile cannot take a step of CASAL"):
        result = run(langevin(looks), casal.CASAL(10.0), compile=True, threads=1)
    assert "cannot take a step of CASAL (" in result.provenance["compile_note"]
    assert not result.provenance["compile"]
    torch.testing.assert_close(result.samples, run(langevin(looks), casal.CASAL(10.0)).samples, rtol=0, atol=1e-5)


def test_without_a_compiler_there_is_one_warning_and_the_eager_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any, **_: Any) -> Any:
        def call(*arguments: Any) -> Any:
            raise RuntimeError("No working C++ compiler found\nin a long text")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(CasalWarning, match=r"compile=True has no effect.*No working C\+\+ compiler") as caught:
        result = run(langevin(), casal.CASAL(11.0), compile=True, threads=2)
    assert len(caught) == 1 and not result.provenance["compile"]
    torch.testing.assert_close(result.samples, run(langevin(), casal.CASAL(11.0)).samples, rtol=0, atol=1e-5)


class Row(NamedTuple):
    """A row with a number, and a flag or another number."""

    step: Tensor
    flag: Tensor | bool | None = False


@pytest.mark.parametrize(
    ("flags", "done", "every", "sizes"),
    [
        ([False] * 10, 0, 0, [4, 4, 2]),
        ([False] * 12, 4, 6, [2, 4, 2, 4]),
        ([False] * 3 + [True] * 5, 0, 0, [3, 4, 1]),
        ([False] * 12, 0, 3, [3, 3, 3, 3]),
        ([False], 0, 0, [1]),
        ([None, *torch.ones(5)], 0, 0, [1, 4, 1]),
    ],
    ids=["plain", "records", "kinds", "odd-records", "single", "a-number-that-some-lack"],
)
def test_blocks_end_where_rows_change_or_something_is_recorded(
    flags: list[Tensor | bool | None], done: int, every: int, sizes: list[int]
) -> None:
    rows = [Row(torch.tensor(float(k)), flag) for k, flag in enumerate(flags)]
    taken = list[int]()
    while sum(taken) < len(rows):
        block = _block(rows, sum(taken), done, every)
        columns = _columns(block)
        assert len(block) <= BLOCK and columns.step.tolist() == [float(row.step) for row in block]
        assert [_row(columns, k) for k in range(len(block))] == list(block)
        taken.append(len(block))
    assert taken == sizes


def test_a_plain_run_is_not_compiled_and_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(langevin(), casal.CASAL(10.0))
    assert result.provenance["compile"] is False and "compile_note" not in result.provenance
