"""Rows of the contract suite for sets with iterative projections: name, set, shape of an event."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.constraints import Constraint, LinearDynamics, Polytope


def matrix(rows: int, columns: int, seed: int) -> Tensor:
    """A matrix in general position."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def levels(rows: int, seed: int) -> Tensor:
    """Levels between 0.2 and 1.2, so that zero is inside."""
    return 0.2 + torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cube(size: int) -> Tensor:
    return torch.cat([torch.eye(size), -torch.eye(size)]).to(torch.float64)


def polygon(sides: int) -> Polytope:
    """A regular polygon around (1, -1)."""
    angle = 2 * math.pi * torch.arange(sides, dtype=torch.float64) / sides + 0.1
    normals = torch.stack([angle.cos(), angle.sin()], dim=1)
    return Polytope(normals, 1.0 + normals @ torch.tensor([1.0, -1.0], dtype=torch.float64))


def pyramid() -> Polytope:
    """Nine planes through one apex, (0.3, 0.2, 1.5), of which a vertex needs three; open below."""
    angle = 2 * math.pi * torch.arange(9, dtype=torch.float64) / 9
    normals = torch.stack([angle.cos(), angle.sin(), torch.full_like(angle, 0.7)], dim=1)
    return Polytope(normals, normals @ torch.tensor([0.3, 0.2, 1.5], dtype=torch.float64))


def badly_scaled() -> Polytope:
    """Rows whose lengths span eighteen orders of magnitude."""
    size = 10.0 ** torch.linspace(-9, 9, 7, dtype=torch.float64)
    return Polytope(size[:, None] * matrix(7, 4, seed=6), size * levels(7, seed=6))


def redundant() -> Polytope:
    """Repeated rows, a weaker copy, a zero row, a level at infinity."""
    G, h = matrix(4, 3, seed=7), levels(4, seed=7)
    return Polytope(
        torch.cat([G, 2 * G[:2], G[:2], torch.zeros(1, 3), G[2:3]]),
        torch.cat([h, 2 * h[:2], h[:2] + 1, torch.tensor([0.0, torch.inf], dtype=torch.float64)]),
    )


def slab() -> Polytope:
    """An equation, as a pair of opposite rows, and two inequalities."""
    G = matrix(3, 4, seed=8)
    return Polytope(torch.cat([G, -G[:1]]), [0.5, 0.8, 0.6, -0.5])


def oscillator() -> LinearDynamics:
    """A damped oscillator that starts displaced; two inputs, one of them unbounded; only the velocity is seen."""
    return LinearDynamics(
        A=[[0.0, 1.0], [-4.0, -0.3]],
        B=[[0.0, 0.5], [1.0, 0.2]],
        steps=5,
        dt=0.2,
        u_max=[0.7, math.inf],
        y0=[1.0, -0.5],
        scale_y=0.4,
        scale_u=[0.3, 2.0],
        outputs=[1],
    )


def quadrotor() -> LinearDynamics:
    return LinearDynamics.double_integrator(9.81, steps=6, dt=0.15, u_max=0.5, scale_y=0.7, scale_u=0.18)


SETS: list[tuple[str, Constraint, tuple[int, ...]]] = [
    ("polytope-line", Polytope([[2.0], [-1.0]], [3.0, 1.0]), (1,)),
    ("polytope-half-space", Polytope([1.0, 2.0, -2.0], -6.0), (3,)),
    ("polytope-square", Polytope(cube(2), [1.0, 2.0, 0.5, 0.0]), (2,)),
    ("polytope-corner-at-zero", Polytope(cube(3), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), (3,)),
    ("polytope-polygon", polygon(17), (2,)),
    ("polytope-general", Polytope(matrix(9, 4, seed=1), levels(9, seed=1)), (4,)),
    ("polytope-without-zero", Polytope(matrix(4, 5, seed=2), -levels(4, seed=2)), (5,)),
    ("polytope-cone", Polytope(matrix(5, 3, seed=3), 0.0), (3,)),
    ("polytope-pyramid", pyramid(), (3,)),
    ("polytope-badly-scaled", badly_scaled(), (4,)),
    ("polytope-redundant", redundant(), (3,)),
    ("polytope-slab", slab(), (4,)),
    ("polytope-point", Polytope(cube(3), [1.0, -2.0, 0.5, -1.0, 2.0, -0.5]), (3,)),
    ("polytope-field", Polytope(matrix(10, 12, seed=4), levels(10, seed=4)), (3, 4)),
    ("dynamics-quadrotor", quadrotor(), (6, 2)),
    ("dynamics-oscillator", oscillator(), (5, 3)),
    ("dynamics-one-step", LinearDynamics([[0.0]], [[1.0]], 1, 1.0, 2.0), (1, 2)),
    ("dynamics-unbounded", LinearDynamics([[-1.0]], [[1.0]], 4, 0.5, math.inf, y0=[2.0]), (4, 2)),
    ("dynamics-no-input", LinearDynamics([[-1.0]], [[1.0]], 3, 0.5, 0.0, y0=[2.0]), (3, 2)),
]
