"""Implicit sets for the contracts that every set must keep: rows (id, constraint, event)."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints import Implicit, SparseJacobian

CENTER = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
AXES = torch.tensor([2.0, 1.0, 0.5, 1.5], dtype=torch.float64)
ROWS = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0], [0.0, 1.0, 1.0, -2.0, 3.0]], dtype=torch.float64)
PLACES = torch.tensor([[0, 0, 0], [2, 0, 1]])


def sphere(z: Tensor) -> Tensor:
    """|z - c|^2 = 4."""
    return (z - CENTER).square().sum(1, keepdim=True) - 4.0


def ellipsoid(z: Tensor) -> Tensor:
    """sum (z_i / a_i)^2 = 1."""
    return (z / AXES).square().sum(1, keepdim=True) - 1.0


def torus(z: Tensor) -> Tensor:
    """Distance 0.7 from the circle of radius 2 in the plane z_3 = 0, as a polynomial."""
    squares = z.square()
    return (squares.sum(1) + 4.0 - 0.49).square()[:, None] / 16.0 - squares[:, :2].sum(1, keepdim=True)


def energy(z: Tensor) -> Tensor:
    """sum z^4 / 4 + z^2 / 2 = 5 for a field."""
    y = z.reshape(len(z), -1)
    return (y.pow(4) / 4 + y.square() / 2).sum(1, keepdim=True) - 5.0


def rows(z: Tensor) -> Tensor:
    """Two linear equations."""
    return z @ ROWS.T - torch.tensor([1.0, -2.0], dtype=z.dtype)


def mass_energy(z: Tensor) -> Tensor:
    """sum z = 2, |z|^2 = 9."""
    return torch.stack([z.sum(1) - 2.0, z.square().sum(1) - 9.0], dim=1)


def low(z: Tensor) -> Tensor:
    """z_1 <= 0.5 and z_2 <= 1."""
    return z[:, :2] - torch.tensor([0.5, 1.0], dtype=z.dtype)


def ball(z: Tensor) -> Tensor:
    """|z|^2 <= 9 / 4."""
    return z.square().sum(1, keepdim=True) - 2.25


SETS: list[tuple[str, Implicit, tuple[int, ...]]] = [
    ("implicit-sphere", Implicit(sphere), (3,)),
    (
        "implicit-sparse",
        Implicit(sphere, jacobian=SparseJacobian(PLACES, lambda z: 2.0 * (z - CENTER)[:, [2, 0, 1]])),
        (3,),
    ),
    ("implicit-ellipsoid", Implicit(ellipsoid), (4,)),
    ("implicit-torus", Implicit(torus), (3,)),
    ("implicit-energy-field", Implicit(energy), (2, 3)),
    ("implicit-affine", Implicit(rows, convex=True), (5,)),
    ("implicit-mass-energy", Implicit(mass_energy), (7,)),
    ("implicit-sphere-cap", Implicit(sphere, low), (3,)),
    ("implicit-ball", Implicit(None, ball, convex=True), (6,)),
]
