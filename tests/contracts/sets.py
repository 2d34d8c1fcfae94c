"""The sets every contract of ``test_sets.py`` runs over. Adding a set = adding a row."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal import Affine, Ball, Box, Constraint, FromProjection, HalfSpace, MassEnergy, Product, Sphere
from casal.constraints import AffineRound, MassEnergyBox
from casal.decoders import Nonlinear

from ..constraints.closed_form_cases import NO_RESIDUAL as CLOSED_FORM_NO_RESIDUAL
from ..constraints.closed_form_cases import SETS as CLOSED_FORM
from ..constraints.implicit_cases import SETS as IMPLICIT
from ..constraints.iterative_cases import SETS as ITERATIVE


class SetCase(NamedTuple):
    """One row: a name, a set, and the shape of an event that it is asked to hold."""

    id: str
    constraint: Constraint
    event: tuple[int, ...]

    @property
    def seldom(self) -> bool:
        """Whether its projection is so slow that a fifth of the draws must do."""
        return self.id in ("through-network", "implicit-sphere", "mass-energy-box-own-bounds", "polytope-square")


def ramp(*shape: int, start: float = -1.0, stop: float = 2.0) -> Tensor:
    """Numbers without symmetry, so that a transposed or permuted event cannot go unnoticed."""
    return torch.linspace(start, stop, math.prod(shape), dtype=torch.float64).reshape(shape)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    """A matrix in general position."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def redundant() -> tuple[Tensor, Tensor]:
    """Five rows of rank two, one of them zero, one repeated, one a combination of the others; consistent."""
    two, b = matrix(2, 4, seed=1), torch.tensor([1.0, -2.0], dtype=torch.float64)
    return (
        torch.stack([two[0], two[1], 3 * two[0] - two[1], torch.zeros(4, dtype=torch.float64), -2 * two[1]]),
        torch.stack([b[0], b[1], 3 * b[0] - b[1], 0 * b[0], -2 * b[1]]),
    )


def badly_scaled() -> tuple[Tensor, Tensor]:
    """Three rows whose lengths span eighteen orders of magnitude."""
    size = torch.tensor([1e-9, 1.0, 1e9], dtype=torch.float64)
    return size[:, None] * matrix(3, 5, seed=2), size * torch.tensor([1.0, 0.0, -3.0], dtype=torch.float64)


def sparse_rows() -> tuple[Tensor, Tensor]:
    """Differences of neighbours of 12 numbers and their total as a sparse matrix, one row repeated, one zero."""
    A = torch.zeros(10, 12, dtype=torch.float64)
    for row in range(7):
        A[row, row], A[row, row + 1] = 1.0, -2.0
    A[7], A[8] = 1.0, -3.0 * A[2]
    b = ramp(10)
    b[8], b[9] = -3.0 * b[2], 0.0
    return A.to_sparse(), b


def cylinder() -> FromProjection:
    """x^2 + y^2 = 4 in R^3, as a user would write it."""

    def project(z: Tensor) -> Tensor:
        angle = torch.atan2(z[:, 1], z[:, 0])
        return torch.stack([2 * torch.cos(angle), 2 * torch.sin(angle), z[:, 2]], dim=1)

    return FromProjection(project, lambda z: (torch.hypot(z[:, 0], z[:, 1]) - 2).abs() / 2)


def orthant() -> FromProjection:
    """z >= 0 for a 2 x 3 event, a convex solid set with a residual."""
    return FromProjection(
        lambda z: z.clamp_min(0.0),
        lambda z: (-z).clamp_min(0.0).amax((1, 2)),
        convex=True,
        solid=True,
        residual=lambda z: (-z).clamp_min(0.0).reshape(len(z), -1),
    )


SETS: list[SetCase] = [
    SetCase("through-network", Sphere(2.0).through(Nonlinear(lambda x: x + 0.1 * torch.sin(x))), (3,)),
    SetCase("sphere-line", Sphere(2.0), (1,)),
    SetCase("sphere-circle", Sphere(3.0), (2,)),
    SetCase("sphere-center", Sphere(0.5, ramp(5)), (5,)),
    SetCase("sphere-far-center", Sphere(1e-2, 1e6 * ramp(3)), (3,)),
    SetCase("sphere-field", Sphere(7.0), (3, 4)),
    SetCase("sphere-field-center", Sphere(1.0, ramp(3, 4)), (3, 4)),
    SetCase("sphere-tiny", Sphere(1e-200), (4,)),
    SetCase("sphere-huge", Sphere(1e120), (4,)),
    SetCase("sphere-point", Sphere(0.0, ramp(3)), (3,)),
    SetCase("ball-line", Ball(0.5), (1,)),
    SetCase("ball", Ball(1.5), (6,)),
    SetCase("ball-center", Ball(2.0, ramp(3)), (3,)),
    SetCase("ball-field-center", Ball(1.0, ramp(3, 4)), (3, 4)),
    SetCase("ball-point", Ball(0.0), (3,)),
    SetCase("box-number", Box(-1.0, 2.0), (4,)),
    SetCase("box-tensor", Box(ramp(3), ramp(3) + 0.5), (3,)),
    SetCase("box-broadcast", Box(ramp(4), 2.5), (3, 4)),
    SetCase("box-half-open", Box(torch.tensor([-torch.inf, 0.0, -1.0]), torch.tensor([1.0, torch.inf, -0.5])), (3,)),
    SetCase("box-whole-space", Box(-torch.inf, torch.inf), (2, 2)),
    SetCase("box-flat", Box(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0])), (2,)),
    SetCase("half-space-line", HalfSpace([-2.0], 1.0), (1,)),
    SetCase("half-space", HalfSpace(ramp(4), 0.7), (4,)),
    SetCase("half-space-through-zero", HalfSpace([1.0, 1.0], 0.0), (2,)),
    SetCase("half-space-without-zero", HalfSpace([1.0, 2.0, -2.0], -6.0), (3,)),
    SetCase("half-space-scaled", HalfSpace([1e-9, 1e9, 1.0], 1e9), (3,)),
    SetCase("half-space-field", HalfSpace(ramp(3, 4), 0.3), (3, 4)),
    SetCase("affine-row", Affine(ramp(4), 2.0), (4,)),
    SetCase("affine-mean-zero", Affine(torch.ones(1, 7), 0.0), (7,)),
    SetCase("affine-rows", Affine(matrix(3, 6), [1.0, 0.0, -2.0]), (6,)),
    SetCase("affine-point", Affine(matrix(3, 3, seed=3), [1.0, 2.0, 3.0]), (3,)),
    SetCase("affine-redundant", Affine(*redundant()), (4,)),
    SetCase("affine-badly-scaled", Affine(*badly_scaled()), (5,)),
    SetCase("affine-no-equation", Affine(torch.zeros(2, 3), 0.0), (3,)),
    SetCase("affine-field", Affine(matrix(2, 12, seed=4), [0.5, 1.0]), (3, 4)),
    SetCase("affine-sparse", Affine(*sparse_rows()), (3, 4)),
    SetCase("mass-energy-zero-mass", MassEnergy(0.0, 3.0), (5,)),
    SetCase("mass-energy", MassEnergy(2.0, 9.0), (7,)),
    SetCase("mass-energy-pair", MassEnergy(-1.0, 4.0), (2,)),
    SetCase("mass-energy-point", MassEnergy(3.0, 3.0), (3,)),
    SetCase("mass-energy-rounded-point", MassEnergy(0.1, 0.1**2 / 7), (7,)),
    SetCase("mass-energy-thin", MassEnergy(1e4, 1e8 / 5 + 1e-4), (5,)),
    SetCase("mass-energy-one", MassEnergy(-2.0, 4.0), (1,)),
    SetCase("mass-energy-field", MassEnergy(5.0, 20.0), (3, 4)),
    SetCase("from-projection-cylinder", cylinder(), (3,)),
    SetCase("from-projection-orthant", orthant(), (2, 3)),
]

TAKEN = (
    "ellipsoid-axes",
    "ellipsoid-matrix",
    "simplex",
    "l1-ball",
    "second-order-cone",
    "psd-cone",
    "monotone",
    "obstacles-intervals",
    "obstacles-discs",
    "obstacles-segments",
    "obstacles-boxes",
    "observed-mass",
    "observed-mass-energy",
    "box-hyperplane",
    "polytope-square",
    "dynamics-one-step",
    "implicit-sphere",
)
"""Of the rows in ``tests/constraints``, those that stand for their sets here: every contract costs 200 cases a row."""

SETS += [SetCase(*row) for row in (*CLOSED_FORM, *ITERATIVE, *IMPLICIT) if row[0] in TAKEN]
SETS += [
    SetCase("intersection-affine-sphere", Affine(matrix(1, 5), 0.5) & Sphere(2.0), (5,)),
    SetCase("affine-ball", AffineRound(Affine(matrix(2, 5), 0.2), Ball(3.0, ramp(5))), (5,)),
    SetCase("mass-energy-box", MassEnergyBox(1.0, 2.0, -0.5, 1.0), (4,)),
    SetCase("mass-energy-box-field", Box(-0.8, torch.inf) & MassEnergy(2.0, 9.0) & Box(-1.0, 2.5), (3, 4)),
    SetCase("mass-energy-box-own-bounds", MassEnergy(1.0, 3.5) & Box(ramp(5) - 1.0, 1.0 + 0.5 * ramp(5)), (5,)),
    SetCase("union-spheres", Sphere(1.0) | Sphere(3.0), (4,)),
    SetCase("product", Product(Sphere(1.0), Box(0.0, 1.0), sizes=(3, 2)), (5,)),
    SetCase("through-turned", Ball(2.0).through(2.0 * torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]), (4,)),
    SetCase("shifted", Box(0.0, 1.0).shifted(ramp(3)), (3,)),
    SetCase("scaled", Sphere(1.5).scaled(0.2), (3,)),
]

NO_RESIDUAL = (*CLOSED_FORM_NO_RESIDUAL, "from-projection-cylinder", "union-spheres")
"""Rows whose sets are not described by smooth functions."""
