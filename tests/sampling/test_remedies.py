"""What messages recommend: every call that a refusal or a reason names runs as it is written."""

from __future__ import annotations

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalError, CasalWarning, SettingError, ShapeError, StoreError

N, SIZE = 64, 2


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, SIZE, generator=generator)


def normal(**options: Any) -> casal.Target:
    return casal.langevin(lambda x: x, **({"steps": 30, "step_size": 0.1, "init": start} | options))


b, A = torch.linspace(-1.0, 1.0, N), torch.ones(1, SIZE)


class Remedy(NamedTuple):
    """A refusal, and what its message recommends.

    Attributes:
        refused: The call.
        error: What it raises.
        says: The recommended code, in the message word by word.
        followed: The call with that code in place: ``{}`` is where the code stands.
    """

    refused: Callable[[], Any]
    error: type[CasalError]
    says: str
    followed: str = "{}"


REMEDIES = {
    "one value per chain": Remedy(
        lambda: casal.Affine(A, b), ShapeError, "casal.PerChain(b)", "casal.Affine(A, {}).project(torch.zeros(N, 2))"
    ),
    "one chain per value": Remedy(
        lambda: casal.sample(normal(), casal.Affine(A, casal.PerChain(b)), casal.WeightedCASAL(), n=N),
        SettingError,
        "method=casal.CASAL(rho=casal.constant_gain(1.0))",
        "casal.sample(normal(), casal.Affine(A, casal.PerChain(b)), n=N, {})",
    ),
    "repeated values": Remedy(
        lambda: casal.sample(normal(), casal.Affine(A, casal.PerChain(b)), casal.WeightedCASAL(), n=N),
        SettingError,
        "values.repeat_interleave(16, 0)",
        "(lambda values: casal.sample(normal(), casal.Affine(A, casal.PerChain({})), n=16 * len(values)))(b[:2])",
    ),
    "a falling schedule": Remedy(
        lambda: casal.sample(normal(), casal.Sphere(1.0), casal.WeightedCASAL(casal.linear(9.0, 1.0)), n=N),
        SettingError,
        "casal.geometric(low, high)",
        "(lambda low, high: casal.sample(normal(), casal.Sphere(1.0), casal.WeightedCASAL({}), n=N))(1.0, 9.0)",
    ),
    "no starting point": Remedy(
        lambda: casal.sample(normal(init=None), casal.Sphere(1.0), n=N),
        SettingError,
        "init=torch.zeros(d)",
        "(lambda d: casal.sample(normal({}), casal.Sphere(1.0), n=N))(2)",
    ),
    "a vector for points": Remedy(
        lambda: casal.Sphere(1.0).project(torch.zeros(2)),
        ShapeError,
        "z[None]",
        "(lambda z: casal.Sphere(1.0).project({}))(torch.ones(2))",
    ),
    "and for &": Remedy(
        lambda: casal.Sphere(1.0) and casal.Box(0.0, 1.0), SettingError, "a & b", "eval({!r}, dict(a=BALL, b=BOX))"
    ),
    "a class for a method": Remedy(
        lambda: casal.sample(normal(), casal.Sphere(1.0), casal.CASAL, n=N),  # type: ignore[arg-type]
        SettingError,
        "casal.CASAL(rho=10.0)",
        "casal.sample(normal(), casal.Sphere(1.0), {}, n=N)",
    ),
    "a dtype that is none": Remedy(
        lambda: casal.Run(dtype=torch.int64), CasalError, "torch.float32", "casal.Run(dtype={})"
    ),
    "the name of a file": Remedy(
        lambda: casal.sample(normal(), casal.Sphere(1.0), n=N).save("res.pt"),
        StoreError,
        "torch.save(result.samples, 'samples.pt')",
        "(lambda result: {})(casal.sample(normal(), casal.Sphere(1.0), n=N))",
    ),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_call_that_a_refusal_names_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remedy = REMEDIES[name]
    with pytest.raises(remedy.error) as refusal:
        remedy.refused()
    assert remedy.says in str(refusal.value)
    names = {"casal": casal, "torch": torch, "normal": normal, "A": A, "b": b, "N": N}
    names |= {"BALL": casal.Ball(1.0), "BOX": casal.Box(0.0, 1.0)}
    eval(remedy.followed.format(remedy.says), names)


def printed_calls() -> list[tuple[str, str]]:
    """All calls that strings of the checks name, as a name and its arguments; a number stands for what is filled in."""
    source = Path(casal.__file__).parent
    files = [*source.glob("diagnostics/*.py"), *(source / "methods" / f for f in ("chain_memory.py", "population.py"))]
    files.append(source / "sampling" / "result.py")
    found = set[tuple[str, str]]()
    for file in files:
        tree = ast.parse(file.read_text())
        about = {id(node.body[0].value) for node in ast.walk(tree) if is_documented(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "0.5" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in about:
                text = node.value
            else:
                continue
            found |= set(re.findall(r"casal\.([A-Za-z_][\w.]*)\(([^()]*)\)", text))
    return sorted(found)


def is_documented(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node) is not None


@pytest.mark.parametrize(("name", "given"), printed_calls())
def test_every_call_that_a_reason_can_print_is_one_of_the_library(name: str, given: str) -> None:
    """It exists and takes these arguments; methods are made as they are written, and run."""
    call = operator.attrgetter(name)(casal)
    taken = inspect.signature(call).parameters
    keywords = re.findall(r"(\w+)=", given)
    assert all(word in taken for word in keywords), (name, given, list(taken))
    if "..." not in given and (not given or re.fullmatch(r"(\w+=)?[\d.e+-]+", given)):
        made = eval(f"casal.{name}({given})", {"casal": casal})
        if isinstance(made, casal.Method):
            noisy = casal.edm(lambda x, sigma: x / (1 + sigma**2), casal.karras_sigmas(20, 0.05, 10.0), shape=SIZE)
            target = noisy if name in ("SplitGibbs", "Matheron") else normal()
            assert bool(casal.sample(target, casal.Box(-1.0, 1.0), made, n=N).certificate.feasible.all())


def test_there_are_such_calls() -> None:
    names = {name for name, _ in printed_calls()}
    assert {"sample", "HMC", "SplitGibbs", "WeightedCASAL", "calibrate"} <= names and len(printed_calls()) >= 10


def test_a_reason_names_a_number_of_chains_that_is_enough() -> None:
    """Independent chains first, whose checks are too weak, then resampled ones, of which too few are left."""
    for method, n, verdict in (("hmc", 12, "unchecked"), (casal.WeightedCASAL(), 30, "too few")):
        few = casal.sample(normal(), casal.Box(-0.3, 0.3), method, n=n, seed=3)
        found = re.search(r"casal.sample\(..., n=(\d+)\), ([\d.]+) times the model calls", few.fidelity.reasons[0])
        assert few.fidelity.verdict == verdict and found is not None
        assert float(found[2]) == pytest.approx(int(found[1]) / n, rel=0.05)
        more = casal.sample(normal(), casal.Box(-0.3, 0.3), method, n=int(found[1]), seed=3)
        assert more.fidelity.verdict == "trusted"


def test_checks_that_may_spend_more_can_be_asked_for() -> None:
    target = normal(steps=6)
    weak = casal.sample(target, casal.Sphere(1.0), casal.WeightedCASAL(), n=100)
    found = re.search(r"casal.sample\(..., check=([\d.]+)\)", weak.fidelity.reasons[0])
    assert weak.fidelity.verdict == "unchecked" and found is not None
    more = casal.sample(target, casal.Sphere(1.0), casal.WeightedCASAL(), n=100, check=float(found[1]))
    assert math.isfinite(more.fidelity.figures["stein_p"]) and torch.equal(more.samples, weak.samples)
    for wrong in ("drift", -0.1, math.inf):
        with pytest.raises(SettingError, match="check must be True, False, or the share"):
            casal.sample(target, casal.Sphere(1.0), n=100, check=wrong)  # type: ignore[arg-type]


def test_too_few_of_each_value_names_how_often() -> None:
    def run(times: int) -> casal.Fidelity:
        values = casal.PerChain(torch.tensor([1.5, 2.0]).repeat_interleave(16 * times))
        return casal.sample(normal(), casal.Affine(A, values), casal.WeightedCASAL(), n=32 * times).fidelity

    found = re.search(r"repeat each PerChain value and condition (\d+) times as often", run(1).reasons[0])
    assert found is not None and run(int(found[1])).verdict == "trusted"


def test_one_ancestor_is_told_that_more_chains_do_not_help() -> None:
    target = casal.langevin(lambda x: x, steps=4, step_size=0.1, init=start)
    with pytest.warns(CasalWarning, match="have descendants"):
        far = casal.sample(target, casal.Box(30.0, 31.0), casal.WeightedCASAL(rho=100.0, correct=False), n=N)
    sentence = " ".join(far.fidelity.reasons)
    assert far.fidelity.verdict != "trusted" and "try n=" not in sentence


# ------------------------------------------------------------------------------------------- estimates that say so


def test_an_estimate_says_what_its_error_leaves_out() -> None:
    circle = casal.Sphere(1.0)
    plain = casal.sample(normal(steps=100), circle, n=400).expect(lambda z: z[:, 0])
    assert plain.note == "" and "(" not in str(plain)
    projected = casal.sample(normal(), circle, casal.FinalProjection(), n=N).expect(lambda z: z)
    assert str(projected).endswith(" (distribution not promised)") and projected.value.shape == (2,)
    value, error = projected
    assert len(projected) == 2 and value is projected.value and error is projected.standard_error
    few = casal.sample(normal(), circle, n=8).expect(lambda z: z[:, 0])
    assert str(few).endswith(" (distribution unchecked)")


def test_a_mean_over_several_sets_says_so() -> None:
    values = casal.PerChain(b[:8].repeat_interleave(8))
    mixed = casal.sample(normal(), casal.Affine(A, values), casal.CASAL(rho=casal.constant_gain(1.0)), n=N)
    note = "distribution not promised; mean over 8 different sets or conditions"
    assert mixed.expect(lambda z: z.sum(1)).note == note
    apart = mixed.expect(lambda z: z.sum(1), by=values.values)
    assert list(apart) == b[:8].tolist()
    for value, mean in apart.items():
        assert float(mean.value) == pytest.approx(value, abs=1e-12) and mean.note == "distribution not promised"
    whole = torch.stack([mean.value for mean in apart.values()]).mean()
    assert float(whole) == pytest.approx(float(mixed.expect(lambda z: z.sum(1)).value), abs=1e-12)
    with pytest.raises(ShapeError, match="one number for each of the 64 samples"):
        mixed.expect(lambda z: z.sum(1), by=[1.0, 2.0])


# ------------------------------------------------------------------------------------------- runs of copies


def test_a_run_of_copies_stops_and_goes_on_if_asked() -> None:
    def far(**how: Any) -> casal.SampleResult:
        target = normal(steps=100)
        return casal.sample(
            target, casal.Box(6.0, 6.5), casal.WeightedCASAL(rho=400.0), n=400, run=casal.Run(**how), check=False
        )

    with pytest.warns(CasalWarning, match=r"the run stopped after \d+ of 100 steps: \d+ of 400 starts") as told:
        short = far()
    assert short.partial and int(short.steps.max()) < 100 and short.cost.score_evaluations < 100
    assert short.fidelity.verdict == "suspect" and short.fidelity.reasons[0] == str(told[0].message)
    assert bool(short.certificate.feasible.all()) and len(short) == 400
    left = int(short.trace["ancestors"][-1])
    assert left < 0.05 * 400 and bool((short.trace["ancestors"][:-1] >= 0.05 * 400).all())
    assert "casal.sample(..., run=casal.Run(stop_early=False))" in short.fidelity.reasons[0]
    with pytest.warns(CasalWarning, match="have descendants among the samples"):
        long = far(stop_early=False)
    assert not long.partial and int(long.steps.min()) == 100
    assert torch.equal(long.trace["ancestors"][: len(short.trace["ancestors"])], short.trace["ancestors"])


# ------------------------------------------------------------------------------------------- reasons are calls


def test_the_call_of_a_ladder_that_ends_too_early_is_enough() -> None:
    """Its samples do not follow the score, and those of the coupling that the reason names do."""
    circle = casal.Sphere(1.0)
    shifted = casal.langevin(lambda x: x - 1.0, steps=200, step_size=0.05, init=start)
    early = casal.sample(shifted, circle, casal.WeightedCASAL(2.0, correct=False), n=2000)
    found = re.search(r"casal\.sample\(\.\.\., (casal\.WeightedCASAL\([\d.e+]+\)), n=4000\)", early.fidelity.reasons[0])
    assert early.fidelity.verdict == "suspect" and found is not None, early.fidelity.reasons
    assert early.fidelity.figures["slack_bias"] > 0.0
    later = casal.sample(shifted, circle, eval(found[1], {"casal": casal}), n=4000)
    assert later.fidelity.verdict == "trusted", later.fidelity.reasons


def test_the_call_with_more_steps_is_enough() -> None:
    def run(steps: int) -> casal.Fidelity:
        far = casal.langevin(lambda x: x - 3.0, steps=steps, step_size=0.01, init=start)
        return casal.sample(far, casal.HalfSpace([1.0, -1.0], 0.0), casal.WeightedCASAL(), n=300, seed=1).fidelity

    short = run(100)
    found = re.search(
        r"casal\.sample\(casal\.langevin\(\.\.\., steps=(\d+)\), \.\.\.\), 3 times", " ".join(short.reasons)
    )
    assert short.verdict == "suspect" and found is not None and int(found[1]) == 300
    assert run(1200).verdict == "trusted"


# ------------------------------------------------------------------------------------------- events never seen


def test_an_event_that_no_sample_shows_follows_the_rule_of_three() -> None:
    result = casal.sample(normal(), casal.Box(-1.0, 1.0), casal.Projected(), n=300)
    never = result.expect(lambda z: z[:, 0] > 2.0)
    assert float(never.value) == 0.0 and float(never.standard_error) == pytest.approx(0.01 / 1.96)
    assert "an event that no sample shows is rarer than 0.01, with 95 % confidence" in str(never)
    always = result.expect(lambda z: z[:, 0] < 2.0)
    assert float(always.value) == pytest.approx(1.0) and float(always.standard_error) == pytest.approx(0.01 / 1.96)
    two = casal.sample(normal(), casal.Box(-1.0, 1.0), casal.Projected(), n=2).expect(lambda z: z[:, 0] > 2.0)
    assert float(two.standard_error) == 0.5
