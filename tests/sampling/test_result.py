"""What a result says of its distribution: the verdict of real runs, expectations with their errors, and print."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import ShapeError

CENTRE = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
SPHERE = casal.Sphere(1.0)


@dataclasses.dataclass(frozen=True)
class Boasting(casal.FinalProjection):
    """Promises what one final projection cannot keep."""

    promises_distribution: ClassVar[bool] = True


def target(steps: int = 100, spread: float = 1.0) -> casal.Target:
    """N(CENTRE, I)."""

    def start(n: int, generator: torch.Generator) -> Tensor:
        return CENTRE + spread * torch.randn((n, 3), generator=generator, dtype=torch.float64)

    return casal.langevin(lambda x: x - CENTRE.to(x), steps=steps, step_size=0.2, init=start)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_run_is_trusted(seed: int) -> None:
    result = casal.sample(target(), SPHERE, "auto", 1000, seed=seed)
    assert result.fidelity.verdict == "trusted"
    lines = str(result).split("\n")
    assert lines[1] == str(result.certificate) and lines[2] == str(result.fidelity)


BROKEN: dict[str, tuple[casal.Constraint, casal.Method, str]] = {
    "final projection": (SPHERE, Boasting(), "Stein"),
    "atoms": (casal.Box(torch.zeros(3), torch.ones(3)), Boasting(), "on the edge"),
    "a ladder stopped early": (SPHERE, casal.WeightedCASAL(1.0, correct=False), "Stein"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_suspect(name: str) -> None:
    constraint, method, word = BROKEN[name]
    fidelity = casal.sample(target(), constraint, method, 1000).fidelity
    assert fidelity.verdict == "suspect" and any(word in reason for reason in fidelity.reasons)


def test_methods_without_a_promise_cost_nothing_more() -> None:
    result = casal.sample(target(), SPHERE, casal.FinalProjection(), 200)
    assert result.fidelity.verdict == "not promised" and result.cost.check_projections == 0.0
    assert "distribution not promised: final projection" in str(result)


def test_one_argument_switches_evaluations_off() -> None:
    """What is left with check=False was spent before the run, on a look at the step size."""
    off, on = (casal.sample(target(), SPHERE, "auto", 500, check=check) for check in (False, True))
    assert off.cost.check_projections == 0.0 and on.cost.check_projections > 0.0
    assert 0.0 < on.cost.check_evaluations - off.cost.check_evaluations <= 0.08 * on.cost.score_evaluations
    assert "stein_p" not in off.fidelity.figures and off.fidelity.figures["effective_ancestors"] > 50
    assert torch.equal(off.samples, on.samples) and "stein_p" in on.fidelity.figures


def test_fidelity_is_saved_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    result = casal.sample(target(), casal.L1Ball(1.0), "auto", 300)
    result.save(tmp_path / "saved.zarr")
    loaded = casal.load(tmp_path / "saved.zarr")
    assert loaded.fidelity.plain() == result.fidelity.plain() and loaded.cost == result.cost


def test_expectations_have_the_shape_of_the_function() -> None:
    result = casal.sample(target(), SPHERE, "auto", 300)
    one, many = result.expect(lambda z: z[:, 0]), result.expect(lambda z: z)
    assert one.value.shape == () and many.value.shape == (3,)
    torch.testing.assert_close(one.value, result.samples[:, 0].mean())
    torch.testing.assert_close(many.standard_error[0], one.standard_error)
    with pytest.raises(ShapeError, match=r"\(300,\) or \(300, k\)"):
        result.expect(lambda z: z.sum())


def test_chains_that_never_meet_are_their_own_ancestors() -> None:
    result = casal.sample(target(20), SPHERE, casal.CASAL(10.0), 200)
    error = result.expect(lambda z: z[:, 0]).standard_error
    torch.testing.assert_close(error, result.samples[:, 0].std() / math.sqrt(200))


def test_intervals_of_runs_cover() -> None:
    """E z on the sphere is von Mises-Fisher's: (coth k - 1/k) along CENTRE, k = |CENTRE|."""
    k = float(torch.linalg.vector_norm(CENTRE))
    exact, hits, runs = (1.0 / math.tanh(k) - 1.0 / k) * CENTRE / k, [], 60
    for seed in range(runs):
        estimate = casal.sample(target(40), SPHERE, casal.WeightedCASAL(30.0), 250, seed=seed, check=False).expect(
            lambda z: z
        )
        hits.append((estimate.value - exact).abs() < 1.97 * estimate.standard_error)
    assert 0.90 <= float(torch.stack(hits).double().mean()) <= 0.99
