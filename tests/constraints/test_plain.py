"""Plain and extreme arguments: rows that are always true, numbers at the ends of the range, points as lists."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.constraints import Affine, Ball, Box, Constraint, HalfSpace, PerChain, Polytope, Sphere, geometry
from casal.errors import CasalError, CasalWarning, InfeasibleSet, SettingError, ShapeError
from casal.methods import METHODS

ALL_OF_SPACE: dict[str, Constraint] = {
    "Affine": Affine(torch.zeros(1, 2), [0.0]),
    "Polytope": Polytope(torch.ones(1, 2), [math.inf]),
    "Polytope of zeros": Polytope(torch.zeros(1, 2), [1.0]),
    "Polytope beyond all floats": Polytope(torch.full((1, 2), 5e-324), [1.0]),
    "Box": Box(None, None),
    "HalfSpace": HalfSpace([0.0, 0.0], 1.0),
    "HalfSpace at zero": HalfSpace([0.0, 0.0], 0.0),
    "HalfSpace at infinity": HalfSpace([1.0, 0.0], math.inf),
    "HalfSpace for each chain": HalfSpace([0.0, 0.0], PerChain([0.0] * 16)),
}


def normal(kind: str) -> casal.Target:
    """A standard normal in two dimensions."""
    if kind == "diffusion":
        sigmas = casal.karras_sigmas(12, 0.05, 5.0)
        return casal.edm(lambda y, s: y / (1 + s.to(y) ** 2), sigmas, shape=(2,), churn=1.0)

    def init(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, 2, generator=generator)

    return casal.langevin(lambda x: x, steps=12, step_size=0.05, init=init)


@pytest.mark.parametrize("name", ALL_OF_SPACE)
def test_a_row_that_is_always_true_holds_everywhere(name: str) -> None:
    constraint, z = ALL_OF_SPACE[name], 1e3 * torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    for quick in (False, True):
        assert torch.equal(constraint.project(z, quick=quick), z)
    assert not bool(constraint.violation(z).any()) and geometry.codimension(constraint, (2,)) == 0
    rows = constraint.linear((2,))
    assert constraint.chains or (rows is not None and not bool(torch.isfinite(torch.cat([rows.low, rows.high])).any()))
    inner = constraint & Ball(1.0)
    torch.testing.assert_close(inner.project(z), Ball(1.0).project(z))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        for method in ("CASAL", "WeightedCASAL", "auto") if constraint.chains else (*METHODS, "auto"):
            kind = "density" if method == "auto" or METHODS[method].runs_on != "diffusion" else "diffusion"
            made: Any = "auto" if method == "auto" else METHODS[method].example
            made = casal.CASAL.algorithm1(1e-3) if method == "Algorithm 1" else made
            result = casal.sample(normal(kind), constraint, made, 16, seed=0)
            assert bool(result.certificate.feasible.all()) and str(result)


def test_a_row_that_is_never_true_is_refused() -> None:
    for a, b in (([0.0, 0.0], -1.0), ([0.0, 0.0], PerChain([1.0, -1.0])), ([1.0, 0.0], -math.inf), ([1.0], math.nan)):
        with pytest.raises(InfeasibleSet, match="b = "):
            HalfSpace(a, b)


def test_points_may_be_lists_and_arrays_but_need_a_dimension_for_chains() -> None:
    for z in ([[3.0, 4.0]], np.array([[3.0, 4.0]]), torch.tensor([[3, 4]]), ((3, 4),)):
        for quick in (False, True):
            torch.testing.assert_close(
                Sphere(1.0).project(z, quick=quick).double(), torch.tensor([[0.6, 0.8]]).double()
            )
        assert Sphere(5.0).violation(z).tolist() == [0.0] and Sphere(5.0).excess(z).amount.tolist() == [[0.0]]
    for call in (Sphere(1.0).project, Sphere(1.0).violation, Sphere(1.0).excess, Sphere(1.0).solve):
        with pytest.raises(ShapeError, match=r"z\[None\]"):
            call(torch.ones(2))
        with pytest.raises(ShapeError, match="lists of numbers"):
            call([[1.0], [1.0, 2.0]])


NO_NUMBERS: list[Any] = ["1", b"1", 10**400, 10**5000, None, {}, [[1.0], [1.0, 2.0]], object(), 1j]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_arguments_that_are_no_numbers_are_refused(value: Any) -> None:
    for kind in (Sphere, Ball, lambda v: Affine([[1.0]], v), lambda v: Affine(v, 1.0), lambda v: HalfSpace(v, 1.0)):
        with pytest.raises(CasalError, match="number") as caught:
            kind(value)
        assert len(str(caught.value)) < 300


EXTREME = (1e200, 1e308, 5e-324, 1e-310)
KINDS: tuple[Callable[[float], Any], ...] = (float, np.float64, np.float32, torch.tensor, np.asarray)
OF_ONE_NUMBER: dict[str, Callable[[Any], Constraint]] = {
    "Sphere": Sphere,
    "Sphere far": lambda v: Sphere(1.0, [float(v), 0.0, 0.0]),
    "Ball": Ball,
    "Ball far": lambda v: Ball(v, [float(v), 0.0, 0.0]),
    "mass": lambda v: casal.MassEnergy(v, 4.0),
    "energy": lambda v: casal.MassEnergy(1.0, v),
    "Box": lambda v: Box(0.0, v),
    "Box, wide": lambda v: Box(-v, v),
    "Box & Affine": lambda v: Box(0.0, v) & Affine(torch.ones(1, 3), 1.0),
    "Affine": lambda v: Affine([[v, v, v]], [1.0]),
    "Affine, b": lambda v: Affine(torch.ones(1, 3), [v]),
    "HalfSpace": lambda v: HalfSpace([v, 0.0, v], 1.0),
    "HalfSpace, b": lambda v: HalfSpace([1.0, 0.0, 1.0], -v),
    "Polytope": lambda v: Polytope([[v, 0.0, 0.0], [0.0, v, v]], [1.0, 1.0]),
    "Polytope, h": lambda v: Polytope([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], [v, v]),
    "BoxHyperplane": lambda v: casal.BoxHyperplane(0.0, v, torch.ones(3), 1.0),
    "Simplex": casal.Simplex,
    "L1Ball": casal.L1Ball,
    "Ellipsoid": lambda v: casal.Ellipsoid([v, 1.0, 1.0]),
    "shifted": Sphere(1.0).shifted,
    "scaled": Sphere(1.0).scaled,
    "union": lambda v: Ball(v) | Ball(1.0),
    "intersection": lambda v: Ball(v) & Box(0.0, 1.0),
}
RUNS: tuple[Any, ...] = (casal.CASAL(10.0), casal.WeightedCASAL(rho=10.0), "auto")


@pytest.mark.parametrize("name", OF_ONE_NUMBER)
def test_numbers_at_the_ends_of_the_range_work_or_are_refused_in_words(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for number, (value, kind) in enumerate(itertools.product(EXTREME, KINDS)):
        dtype = (torch.float32, torch.float64)[number % 2]
        z = torch.randn(8, 3, generator=generator, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                constraint = OF_ONE_NUMBER[name](kind(value))
                found = constraint.solve(z.double())
                assert not constraint.exact or float(constraint.violation(found.point).max()) <= 1e-8
                assert constraint.project(z, quick=True).dtype == dtype
                assert bool((constraint.excess(z).amount >= 0).all())
                target = casal.langevin(lambda x: x, steps=6, step_size=0.05, init=z)
                result = casal.sample(target, constraint, RUNS[number % 3], 8, seed=0)
                assert bool(torch.isfinite(result.samples).all()) and str(result)
            except CasalError as error:
                assert any(sign.isdigit() for sign in str(error)) or "finite" in str(error)


def test_a_set_out_of_range_says_how_to_rescale() -> None:
    target = casal.langevin(lambda x: x, steps=6, step_size=0.05, init=torch.ones(8, 3))
    for constraint, method in ((Sphere(1e25), casal.CASAL(1.0)), (Sphere(1e-25), casal.WeightedCASAL())):
        with pytest.raises(SettingError, match=r"e[-+]2[45]\b.*range of torch.float32.*scaled\(1 / unit\)"):
            casal.sample(target, constraint, method, 8, seed=0)


@pytest.mark.parametrize(
    ("constraint", "method", "words"),
    [
        (Ball(1e-8), "auto", "tiny beside the model"),
        (Box(30.0, 31.0), "WeightedCASAL", "all 200 samples are the same point"),
    ],
)
def test_a_set_that_the_chains_do_not_resolve_is_named(constraint: Constraint, method: str, words: str) -> None:
    def init(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, 2, generator=generator)

    target = casal.langevin(lambda x: x, steps=100, step_size=0.1, init=init)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        found = casal.sample(target, constraint, method, n=200, seed=0, run=casal.Run(stop_early=False)).fidelity
        early = casal.sample(target, constraint, method, n=200, seed=0).fidelity
    assert found.verdict == "suspect" and words in found.reasons[0]
    assert early.verdict == "suspect" and "the run stopped" in early.reasons[0]


def test_one_point_is_sampled_exactly() -> None:
    x = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    target = casal.langevin(lambda x: x, steps=100, step_size=0.1, init=x)
    result = casal.sample(target, Affine([[1.0]], [0.5]), n=200, seed=0)
    assert bool((result.samples == 0.5).all()) and result.fidelity.verdict == "trusted"
