"""The public call: how a run is carried out, old keywords, and what is said of a result that is not as asked for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, SettingError
from casal.methods import METHODS, Method

N = 12
START = torch.linspace(-1.0, 1.0, 3 * N, dtype=torch.float64).reshape(N, 3)


def run(grad: Any = lambda x: x, **changes: Any) -> casal.SampleResult:
    target = casal.langevin(grad, steps=10, step_size=0.05, init=START)
    return casal.sample(target, **{"constraint": casal.Sphere(1.0), "method": casal.CASAL(10.0), "n": N, **changes})


def half_way(z: Tensor) -> Tensor:
    """A projection that gives up for the chains whose first coordinate is positive."""
    onto = z / torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return torch.where(z[:, :1] > 0, (z + onto) / 2, onto)


def off(z: Tensor) -> Tensor:
    return (torch.linalg.vector_norm(z, dim=1) - 1).abs()


GIVES_UP = casal.FromProjection(half_way, off, exact=False)


def test_a_network_that_is_not_a_target_is_told_how_to_become_one() -> None:
    network: Any = torch.nn.Linear(3, 3)
    with pytest.raises(SettingError, match=r"got Linear: wrap .* casal\.from_diffusers"):
        casal.sample(network, casal.Sphere(1.0), casal.CASAL(10.0), N)


@pytest.mark.parametrize(
    "method", [casal.CASAL(10.0), casal.Projected(), casal.FinalProjection()], ids=lambda m: m.name
)
def test_samples_of_a_strict_method_that_are_not_feasible_are_warned_of(method: Method[Any]) -> None:
    with pytest.warns(CasalWarning) as said:
        result = run(constraint=GIVES_UP, method=method)
    lost, worst = int((~result.certificate.feasible).sum()), float(result.certificate.violation.max())
    assert 0 < lost < N
    (text,) = [str(warning.message) for warning in said]
    assert text.startswith(f"{lost} of {N} samples are not feasible: the largest violation is {worst:.3g}, tol = 1e-08")
    assert "result.certificate" in text and "Raise tol=" in text
    assert said[0].filename == __file__


@pytest.mark.parametrize("changes", [{"constraint": casal.Sphere(1.0)}, {"constraint": GIVES_UP, "tol": 10.0}])
def test_feasible_samples_are_not_warned_of(changes: dict[str, Any]) -> None:
    run(**changes)


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if not row.example.strict])
def test_methods_that_promise_no_feasible_samples_do_not_warn(name: str) -> None:
    method = METHODS[name].example
    sigmas = casal.karras_sigmas(10, 0.1, 5.0)
    model = casal.edm(lambda x, s: x / (1 + s**2), sigmas, shape=3, churn=1.0, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = run(method=method)
        except casal.errors.SettingError:  # it needs noise levels
            result = casal.sample(model, casal.Sphere(1.0), method, N)
    assert not bool(result.certificate.feasible.all())


def interrupted_at(call: int) -> Any:
    calls = 0

    def grad(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return x

    return grad


def test_ctrl_c_without_a_store_is_warned_of() -> None:
    """Batches of 5, 5 and 2 chains; calls 1 and 2 are probes, the second batch is stopped at its fourth step."""
    with pytest.warns(CasalWarning) as said:
        result = run(interrupted_at(2 + 10 + 4), run=casal.Run(batch=5, threads=1))
    assert result.partial and result.steps.tolist() == [10] * 5 + [3] * 5
    (text,) = [str(warning.message) for warning in said]
    assert text.startswith("interrupted: of 12 chains 5 took all 10 steps, 5 fewer (at least 3)")
    assert "the result holds these 10" in text and "store=" in text
    assert said[0].filename == __file__


def test_ctrl_c_with_a_store_says_how_to_go_on(tmp_path: Any) -> None:
    with pytest.warns(CasalWarning) as said:
        run(interrupted_at(30), run=casal.Run(batch=5, threads=1, store=tmp_path / "store"))
    assert ["store=" in str(warning.message) for warning in said] == [False]


# ------------------------------------------------------------------------------------------- casal.Run and old keywords


def test_old_keywords_warn_and_do_the_same(tmp_path: Any) -> None:
    seen = list[int]()
    old: dict[str, Any] = {"tile": 5, "threads": 1, "record_every": 2, "snapshots": 5, "dtype": torch.float32}
    new = casal.Run(batch=5, threads=1, record_every=2, snapshots=5, dtype=torch.float32)
    with pytest.warns(DeprecationWarning, match=r"tile, threads.* write run=casal\.Run\(batch=\.\.\., threads") as said:
        one = run(lambda x: x, **old, store=tmp_path / "old", callback=lambda view: seen.append(view.step))
    assert len(said) == 1 and said[0].filename == __file__
    other = run(lambda x: x, run=new)
    assert torch.equal(one.samples, other.samples) and one.provenance["batch"] == other.provenance["batch"] == 5
    assert one.samples.dtype == other.samples.dtype and one.state.x.dtype == torch.float32
    assert one.trace.keys() == other.trace.keys() and torch.equal(one.trace["step"], other.trace["step"])
    assert one.snapshots is not None and other.snapshots is not None
    assert torch.equal(one.snapshots.samples, other.snapshots.samples)
    assert len(seen) == 30 and torch.equal(casal.load(tmp_path / "old").samples, other.samples)
    with pytest.warns(DeprecationWarning, match="record_every as keywords"):
        mixed = run(lambda x: x, run=casal.Run(batch=4), record_every=5)
    assert mixed.provenance["batch"] == 4 and mixed.trace["step"].tolist() == [5.0, 10.0]


def test_unknown_keywords_are_refused_with_those_there_are() -> None:
    with pytest.raises(
        SettingError, match=r"no keyword tiles; .*run=casal\.Run\(\.\.\.\), with batch, budget, callback"
    ):
        run(tiles=5)
    with pytest.raises(TypeError, match="tile"):
        casal.Run(tile=5)  # type: ignore[call-arg]
    with pytest.raises(SettingError, match=r"run must be a casal\.Run such as .*, got \{'batch': 5\}"):
        run(run={"batch": 5})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"batch": 0}, "batch must be a whole number >= 1, got 0"),
        ({"workers": 1.5}, r"workers must be a whole number >= 1, got 1\.5"),
        ({"snapshots": -1}, "snapshots must be a whole number >= 0, got -1"),
        ({"callback": 3}, "callback is a function"),
        ({"client": object(), "workers": 2}, "not both"),
        ({"workers": 2, "callback": print}, "leave out client= and workers="),
        ({"workers": 2, "compile": True}, "works in this process only"),
    ],
)
def test_what_cannot_work_is_refused_by_run(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        casal.Run(**fields)
