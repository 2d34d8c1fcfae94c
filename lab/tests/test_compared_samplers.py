"""``casal bench --compare``: what its samplers are given is the same distribution, in torch and in NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
compare: Any = import_module("benchmarks.compare")

F64 = torch.float64


@pytest.fixture(scope="module", params=list(compare.CASES))
def case(request: pytest.FixtureRequest) -> Any:
    return compare.CASES[request.param]()


def points(case: Any, n: int = 32) -> torch.Tensor:
    return case.start(n, torch.Generator().manual_seed(3)).to(F64)


def test_gradients_are_those_of_the_potential_in_torch_and_in_numpy(case: Any) -> None:
    x = points(case).requires_grad_()
    values = case.potential(x)
    (slope,) = torch.autograd.grad(values.sum(), x)
    x = x.detach()
    torch.testing.assert_close(case.gradient(x), slope)
    np.testing.assert_allclose(case.array_gradient(x.numpy()), slope.numpy(), atol=1e-10)
    differences = [case.array_potential(q) - float(v) for q, v in zip(x.numpy(), values.detach(), strict=True)]
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)


def test_co_area_and_surface_measure_agree_because_the_normal_has_one_length(case: Any) -> None:
    z = case.project(points(case).numpy())
    assert float(case.exact.violation(torch.from_numpy(z)).max()) < 1e-12
    assert max(abs(float(case.equation(q))) for q in z) < 1e-12
    lengths = np.array([np.linalg.norm(case.normal(q)) for q in z])
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-12)
    step = 1e-6 * np.eye(z.shape[1])
    slope = [(case.equation(z[0] + e) - case.equation(z[0] - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(case.normal(z[0]), slope, atol=1e-7)


def test_projections_in_numpy_are_those_of_the_sets(case: Any) -> None:
    x = points(case)
    np.testing.assert_allclose(case.project(x.numpy()), case.exact.constraint.project(x).numpy(), atol=1e-7)


def test_the_denoiser_of_the_field_is_the_conditional_mean() -> None:
    """By Tweedie at small noise, and by drawing from the wells and weighing at large noise."""
    case, denoise = compare.CASES["field"](), compare.FieldDenoiser()
    x = points(case)
    for sigma, some in ((1e-3, 50), (0.04, 2)):  # the stiffest of the others has a standard deviation of 0.05
        expected = (x - sigma**2 * case.gradient(x))[:, :some]
        found = denoise(x, torch.tensor(sigma, dtype=F64))[:, :some]
        torch.testing.assert_close(found, expected, atol=40 * sigma**4, rtol=1e-3)
    fine = torch.linspace(-7.0, 6.0, 20_001, dtype=F64)
    log_prior = -compare.double_well.potential(fine)
    for sigma in (0.3, 2.0):
        weights = torch.softmax(log_prior - (x[:5, :1] - fine).square() / (2 * sigma**2), 1)
        found = denoise(x[:5], torch.tensor(sigma, dtype=F64))[:, 0]
        torch.testing.assert_close(found, weights @ fine, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("errors", "seconds"), [([0.2, 0.05], 2.0), ([0.04, 0.03], 1.0), ([0.2, 0.1], None), ([0.1, 0.025], 2.0**0.5)]
)
def test_seconds_to_an_error_are_read_between_efforts(errors: list[float], seconds: float | None) -> None:
    found, _ = compare._crossing(np.array(errors), np.array([[1.0, 10.0], [2.0, 20.0]]))
    assert found == pytest.approx(seconds)


def test_the_authors_iteration_is_the_released_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the noise of NumPy's generator, by ``CASAL.released`` written with the same numbers."""
    case, steps = compare.CASES["sphere"](), 40
    monkeypatch.setattr(compare, "CHAINS", 16)
    (run,) = compare.authors(case, steps, 5)
    x = case.start(16, torch.Generator().manual_seed(5))
    rng, tau = np.random.default_rng(5), case.step_size
    project: Callable[[torch.Tensor], torch.Tensor] = case.constraint.project
    z, mu = project(x), torch.zeros_like(x)
    for k in range(steps):
        rho = 0.0 if k < steps // 10 else 2.0 + 18.0 * k / (steps - 1)
        w = torch.from_numpy(rng.standard_normal(x.shape))
        x = x - tau * (case.gradient(x) + rho * (x - z + mu)) + (2 * tau) ** 0.5 * w
        z = project(x + mu)
        mu = mu + tau * (x - z)
    np.testing.assert_allclose(run.points, z.numpy(), atol=1e-10)
    assert run.evaluations == 16 * steps
