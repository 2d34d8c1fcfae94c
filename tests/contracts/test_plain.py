"""The plain matrix: every registered set with every method, in ordinary uses, ends well or in a named error.

A row pairs a set with a method. Where chains start (all inside the set, some, none), how many there are, their dtype
and the model (a density, one with a potential, a diffusion) go round from row to row, so that every set and every
method meets each of them several times.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalError, CasalWarning
from casal.methods import METHODS

from .sets import SETS, SetCase

N = (1, 2, 16, 40)
WHERE = ("inside", "some", "outside")
DTYPES = (torch.float32, torch.float64)
STEPS = 12

OTHER: dict[str, Any] = {"auto": "auto", "Algorithm 1": casal.CASAL.algorithm1(1e-3)}
"""What stands for a name where the example of the registry does not fit all sets."""


class Row(NamedTuple):
    """One run."""

    case: SetCase
    method: str
    where: str
    n: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.case.id}-{self.method}-{self.where}-{self.n}-{str(self.dtype).removeprefix('torch.')}"


def rows() -> list[Row]:
    """Every set with every method; the rest goes round."""
    settings = itertools.cycle(itertools.product(N, WHERE, DTYPES))
    skip = itertools.cycle((1, 1, 2, 1, 3))  # so that a set does not meet a method in the same setting again
    found = list[Row]()
    for case, method in itertools.product(SETS, (*METHODS, "auto")):
        for _ in range(next(skip)):
            n, where, dtype = next(settings)
        found.append(Row(case, method, where, n, dtype))
    return found


def target_of(row: Row) -> casal.Target:
    """A standard normal as a density or a diffusion, with starting points where the row wants them."""
    event, kind = row.case.event, METHODS[row.method].runs_on if row.method in METHODS else "both"
    if kind == "diffusion" or (kind == "both" and row.n == 2):
        sigmas = casal.karras_sigmas(STEPS, 0.05, 5.0)
        return casal.edm(lambda y, s: y / (1.0 + s.to(y) ** 2), sigmas, shape=event, churn=1.0, dtype=row.dtype)

    def init(n: int, generator: torch.Generator) -> Tensor:
        x = torch.randn((n, *event), generator=generator, dtype=torch.float64)
        constraint = row.case.constraint if row.case.constraint.chains is None else row.case.constraint.take(slice(n))
        x = constraint.project(x) if row.where == "inside" else x + (20.0 if row.where == "outside" else 0.0)
        return x.to(row.dtype)

    potential = (lambda x: x.square().flatten(1).sum(1) / 2) if row.n == 16 else None
    return casal.langevin(lambda x: x, steps=STEPS, step_size=0.05, init=init, potential=potential)


def outcome(row: Row) -> str:
    """How a run ends: "ran", or the kind of error; AssertionError if it ends badly."""
    method = OTHER.get(row.method) or METHODS[row.method].example
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        try:
            result = casal.sample(target_of(row), row.case.constraint, method, row.n, run=casal.Run(threads=1))
        except CasalError as error:
            assert len(str(error)) > 20, "a message without a way out"
            return type(error).__name__
    assert result.samples.shape == (row.n, *row.case.event)
    assert bool(torch.isfinite(result.samples).all())
    assert bool(torch.isfinite(result.certificate.violation).all())
    assert result.fidelity.verdict in ("trusted", "suspect", "too few", "unchecked", "not promised")
    if isinstance(method, str) or method.strict:
        flagged = ~result.certificate.feasible
        assert not bool(flagged.any()) or not row.case.constraint.exact, "an exact projection that leaves the set"
    assert str(result)
    return "ran"


ROWS = rows()
EVERY = 2
"""In the suite one row in so many; all of them are nightly."""


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.nightly) for k in range(1, EVERY))])
@pytest.mark.parametrize("case", SETS, ids=lambda case: case.id)
def test_a_set_with_every_method(case: SetCase, part: int) -> None:
    mine = [row for k, row in enumerate(ROWS) if row.case is case and k % EVERY == part]
    ended = [(str(row), outcome(row)) for row in mine]
    assert len(ended) >= len(METHODS) // EVERY


@pytest.mark.parametrize("method", (*METHODS, "auto"))
def test_a_thousand_chains_in_one_dimension(method: str) -> None:
    """In a set that none of them leaves, in one that some leave, and in one that none starts in."""
    for constraint, where in (
        (casal.Ball(10.0), "some"),
        (casal.Box(-0.5, 1.0), "some"),
        (casal.Sphere(1.0), "inside"),
    ):
        row = Row(SetCase("line", constraint, (1,)), method, where, 1000, torch.float32)
        assert outcome(row) in ("ran", "SettingError")


@pytest.mark.parametrize(
    "numbers",
    [float, lambda v: torch.tensor(v), lambda v: torch.tensor(v, dtype=torch.float64), numpy.float32, numpy.float64],
    ids=["python", "torch", "torch float64", "numpy float32", "numpy"],
)
@pytest.mark.parametrize("n", [int, numpy.int64, lambda v: torch.tensor(v)], ids=["int", "numpy", "torch"])
def test_numbers_of_every_library(numbers: Any, n: Any) -> None:
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.zeros(6, 2))
    for constraint in (casal.Sphere(numbers(1.0)), casal.Box(numbers(-1.0), numbers(2.0)), casal.Simplex(numbers(1.0))):
        result = casal.sample(
            target, constraint, casal.CASAL(10.0), n(6), seed=n(3), run=casal.Run(batch=n(4), threads=1)
        )
        assert float(result.certificate.violation.max()) < 1e-6 and len(result) == 6


def test_broken_sets_are_found() -> None:
    """The matrix has power: a projection that leaves its set, and one that raises its own error, fail."""
    leaves = casal.FromProjection(lambda z: z + 1.0, lambda z: z.square().sum(1))
    raw = casal.FromProjection(lambda z: z[7:8], lambda z: z.square().sum(1))
    for constraint in (leaves, raw):
        row = Row(SetCase("broken", constraint, (2,)), "projected", "some", 16, torch.float64)
        try:
            ended = outcome(row)
        except Exception:
            continue
        assert ended != "ran"
