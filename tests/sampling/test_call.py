"""What the public call says of a result that is not what was asked for."""

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
    """Three tiles of 5, 5 and 2 chains; call 1 is the probe, the second tile is stopped at its fourth step."""
    with pytest.warns(CasalWarning) as said:
        result = run(interrupted_at(1 + 10 + 4), tile=5, threads=1)
    assert result.partial and result.steps.tolist() == [10] * 5 + [3] * 5
    (text,) = [str(warning.message) for warning in said]
    assert text.startswith("interrupted: of 12 chains 5 took all 10 steps, 5 fewer (at least 3)")
    assert "the result holds these 10" in text and "store=" in text
    assert said[0].filename == __file__


def test_ctrl_c_with_a_store_says_how_to_go_on(tmp_path: Any) -> None:
    with pytest.warns(CasalWarning) as said:
        run(interrupted_at(30), tile=5, threads=1, store=tmp_path / "store")
    assert ["store=" in str(warning.message) for warning in said] == [False]
