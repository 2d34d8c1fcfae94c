"""The authors' names on this library: the same iterates as their lines on the same noise, and a whole script."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from casal.errors import SettingError
from casal.streams import stream
from casal_lab import authors

Array = npt.NDArray[np.float64]
N, STEPS, TAU, ETA, ENERGY = 6, 40, 1e-2, 5e-3, 9.0
RHO = np.concatenate([np.zeros(4), np.logspace(-1, 1, STEPS - 4)])


def gradient(x: Array, step_index: int = 0) -> Array:
    return np.asarray(x**3 + 0.5)


def their_loop(kind: str) -> tuple[Array, Array, Array]:
    """x, z and lambda that the loop of the scripts stores last: before step STEPS, so after STEPS - 1 steps."""
    start, noise = stream(5, "start", 0), stream(5, 0, 1)
    x = 2.0 * torch.randn((N, 2), generator=start, dtype=torch.float64).numpy()

    def project(v: Array) -> Array:
        return np.asarray(np.sqrt(ENERGY) * v / np.linalg.norm(v, axis=1, keepdims=True))

    z, lam = project(x), np.zeros((N, 2 if kind == "split" else 1))
    for t in range(STEPS - 1):
        if kind == "projected" and t == 5:
            noise = stream(5, 1, 1)  # the library runs burn-in and projected steps as two stages
        w = np.sqrt(2 * TAU) * torch.randn((N, 2), generator=noise).double().numpy()
        if kind == "split":
            x = x - TAU * (gradient(x) + RHO[t] * (x - z + lam)) + w
            z = project(x + lam)
            lam = lam + ETA * (x - z)
        elif kind == "projected":
            x = x - TAU * gradient(x) + w
            z = project(x)
            x = z if t > 4 else x
        else:
            h = (x**2).sum(1, keepdims=True) - ENERGY
            x = x - TAU * (gradient(x) + lam * x) + w
            lam = lam + ETA * h
            z = x
    return x, z, lam


@pytest.mark.parametrize("own_set", [False, True])
@pytest.mark.parametrize("kind", ["split", "projected", "ascent"])
def test_iterates_are_those_of_their_lines(kind: str, own_set: bool) -> None:
    constraint: authors.Constraint = authors.L2NormConstraint(ENERGY)
    if own_set:  # a set known by a NumPy projection alone
        if kind == "ascent":
            pytest.skip("needs a smooth set")
        constraint = authors.Constraint(constraint.project, 1)
    sampler = {
        "split": lambda: authors.SplitLangevin(2, gradient, constraint, TAU, RHO, ETA, 4, sigma0=2.0),
        "projected": lambda: authors.ProjectedLangevin(2, gradient, constraint, TAU, 4, sigma0=2.0),
        "ascent": lambda: authors.PrimalDescentDualAscent(2, gradient, constraint, TAU, ETA, burn_in=4, sigma0=2.0),
    }[kind]()
    found = sampler.sample(5, n_steps=STEPS, n_samples=N)
    for mine, theirs in zip(found, their_loop(kind), strict=True):
        assert mine.shape[:2] == (N, 1)
        if kind != "projected" or mine.shape[2] == 2:  # projection has no multiplier
            np.testing.assert_allclose(mine[:, -1, :], theirs, rtol=0, atol=1e-11)
    assert sampler.result is not None
    assert bool(sampler.result.certificate.feasible.all()) == (kind != "ascent")


def test_a_linear_set_and_settings_that_are_refused() -> None:
    line = authors.LinearConstraint(np.array([[1.0, 1.0]]), np.array([2.0]))
    np.testing.assert_allclose(line.project(np.zeros((1, 2))), [[1.0, 1.0]], atol=1e-12)
    with pytest.raises(SettingError, match="first steps only"):
        authors.SplitLangevin(2, gradient, line, TAU, [1.0, 0.0, 1.0, 1.0], ETA, 0).sample(n_steps=4)
    with pytest.raises(SettingError, match="not built"):
        authors.PrimalDescentDualAscent(2, gradient, line, TAU, ETA, 0, rho=1.0)
    with pytest.raises(SettingError, match="at least 2"):
        authors.Langevin(2, gradient, TAU).sample(n_steps=1)


SCRIPT = """
import numpy as np
from constraint import L2NormConstraint
from mine import grad_potential
from samplers import Langevin, PrimalDescentDualAscent, ProjectedLangevin, SplitLangevin

constraint = L2NormConstraint(9.0)
rho_values = np.zeros(30)
rho_values[3:] = np.logspace(-1, 1.0, 27)
samplers = {
    "langevin": Langevin(2, grad_potential, 1e-2, constraint=constraint, sigma0=1.0),
    "projected": ProjectedLangevin(2, grad_potential, constraint, 1e-2, 3, sigma0=1.0),
    "descent_ascent": PrimalDescentDualAscent(2, grad_potential, constraint, 1e-2, 1e-2, burn_in=3),
    "augmented": SplitLangevin(2, grad_potential, constraint, 1e-2, rho_values, 1e-2, 3, sigma0=1.0),
}
norms = {}
for name, sampler in samplers.items():
    primal, projected, dual = sampler.sample(n_steps=30, n_samples=20)
    norms[name] = np.sum(projected[:, -1, :] ** 2, axis=1)
"""


def test_a_script_of_their_form_runs_and_leaves_no_modules_behind(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def grad_potential(x, step_index=0):\n    return x\n", encoding="utf-8")
    script = tmp_path / "example.py"
    script.write_text(SCRIPT, encoding="utf-8")
    found = authors.run_script(script)["norms"]
    for name in ("projected", "augmented"):
        np.testing.assert_allclose(found[name], 9.0, atol=1e-12)
    assert np.abs(found["langevin"] - 9.0).max() > 1.0
    assert "samplers" not in sys.modules and "constraint" not in sys.modules
    sys.modules.pop("mine", None)
