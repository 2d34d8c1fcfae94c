"""What is measured and chosen before a run: steps that are far off, modes, and whether a denoiser can be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, SettingError
from casal.methods import Problem
from casal.methods.matheron import SYMMETRIC, asymmetry

D = 24


def turned(x: Tensor) -> Tensor:
    """K x with K^T = -K and |K x| = |x|: pairs of coordinates are turned by a right angle."""
    return torch.stack([-x[:, 1::2], x[:, ::2]], 2).flatten(1)


def model(skew: float) -> casal.Target:
    """The denoiser of N(0, I), and ``skew`` K y beside it, K a turn."""

    def denoise(y: Tensor, sigma: Tensor) -> Tensor:
        return (y + skew * turned(y)) / (1.0 + sigma.to(y) ** 2)

    return casal.edm(denoise, casal.karras_sigmas(20, 0.02, 20.0), shape=(D,), churn=1.0, dtype=torch.float64)


def found(target: Any, n: int = 4000) -> float:
    problem = Problem(target, casal.Sphere(1.0), casal.Identity(), torch.zeros((0, D), dtype=torch.float64))
    stream = torch.Generator().manual_seed(0)
    return asymmetry(problem, torch.randn((n, D), generator=stream, dtype=torch.float64), 1.0, stream)


def test_asymmetry_needs_no_autograd() -> None:
    """J ~ I + b K with K^T = -K: u.J v - v.J u = 2 b u.K v, and u.J v + v.J u = 2 u.v."""
    for b in (0.0, 0.1, 0.5):
        target = model(b)
        inner = target.denoise
        assert inner is not None
        hidden = replace(target, denoise=lambda y, s, inner=inner: inner(y.detach(), s))
        assert found(hidden) == pytest.approx(b, rel=0.05, abs=1e-12)


@pytest.mark.parametrize(("skew", "exact"), [(0.0, True), (0.5, False)])
def test_auto_draws_inside_no_set_through_a_derivative_that_is_no_covariance(skew: float, exact: bool) -> None:
    """One curved equation: x0 is drawn inside the set on exact networks, and on no others."""
    first = casal.Run(callback=lambda view: True)  # one step is enough to see what was chosen
    with pytest.warns(CasalWarning, match="interrupted"):
        result = casal.sample(model(skew), casal.Sphere(4.0), "auto", 128, check=False, run=first)
    assert result.provenance["method"] == "Matheron" and bool(result.certificate.feasible.all())
    assert ("the network is not exact" in result.provenance["choice"]) != exact
    assert ("flows=0" in result.provenance["settings"]) != exact
    assert (found(model(skew)) > SYMMETRIC) != exact


@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_auto_takes_matheron_for_a_linear_equation_and_tells_what_the_network_is(skew: float) -> None:
    A = torch.ones((1, D), dtype=torch.float64)
    result = casal.sample(model(skew), casal.Affine(A, [1.0]), "auto", 16, check=False)
    assert result.provenance["method"] == "Matheron" and bool(result.certificate.feasible.all())
    assert ("the network is not exact" in result.provenance["choice"]) == (skew > 0.0)


# ------------------------------------------------------------------------------------------- steps, starts, pieces


def von_mises(step: float | str, held: float = 0.0) -> casal.Target:
    """exp(5 x0), not integrable off a sphere unless it is held back there."""

    def start(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn((n, 3), generator=generator, dtype=torch.float64)

    pull = torch.tensor([5.0, 0.0, 0.0], dtype=torch.float64)
    return casal.langevin(lambda x: held * x - pull, steps=200, step_size=step, init=start)


@pytest.mark.parametrize("step", [0.0005, 5.0, "auto"])
def test_auto_corrects_a_step_that_is_far_off_and_says_so(step: float | str) -> None:
    """Chains that stay on the sphere, where nothing else holds them back, need no step."""
    for held, name in ((1.0, "WeightedCASAL"), (0.0, "HMC")):
        result = casal.sample(von_mises(step, held), casal.Sphere(1.0), "auto", 2000, seed=0)
        value, error = result.expect(lambda z: z[:, 0])
        assert abs(float(value) - (1 / np.tanh(5.0) - 0.2)) < 4 * float(error)
        said = [reason for reason in result.fidelity.reasons if "step_size was" in reason]
        assert len(said) == (0 if step == "auto" or name == "HMC" else 1)
        assert result.provenance["method"] == name and "model calls per chain" in result.provenance["choice"]
    assert "not integrable" in result.provenance["choice"]


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")  # few ancestors, besides
@pytest.mark.parametrize(("step", "word"), [(0.0005, "too small"), (5.0, "too large")])
def test_a_named_method_keeps_a_wrong_step_and_is_suspect(step: float, word: str) -> None:
    result = casal.sample(von_mises(step), casal.Sphere(1.0), casal.WeightedCASAL(400.0), 4000, seed=0)
    assert result.fidelity.verdict == "suspect"
    assert any(word in reason for reason in result.fidelity.reasons)


def test_the_result_says_that_the_start_decides_on_the_modes() -> None:
    target = casal.langevin(lambda x: x, steps=50, step_size=0.1, init=von_mises(0.1).init)
    result = casal.sample(target, casal.Sphere(1.0), "auto", 200)
    assert any("weights of separate modes are those of the starting points" in r for r in result.fidelity.reasons)
    known = casal.energy(
        lambda x: x.square().sum(1) / 2, steps=50, step_size=0.1, init=casal.GaussianStart(3, dtype=torch.float64)
    )
    result = casal.sample(known, casal.Sphere(1.0), "auto", 200)
    assert not any("separate modes" in reason for reason in result.fidelity.reasons)


def test_pieces_of_different_dimension_are_refused_by_methods_that_promise() -> None:
    union = casal.Ball(0.0) | casal.Sphere(1.0)
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=von_mises(0.1).init)
    with pytest.raises(SettingError, match="different dimension"):
        casal.sample(target, union, "auto", 100)
    assert bool(casal.sample(target, union, casal.Projected(), 100).certificate.feasible.all())
