"""Closed-form sets with a few parameters each, for the contract suite: rows (id, set, shape of an event)."""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints import (
    BoxHyperplane,
    Constraint,
    Ellipsoid,
    L1Ball,
    Monotone,
    ObservedMassEnergy,
    Obstacles,
    PSDCone,
    SecondOrderCone,
    Simplex,
)

INF = float("inf")


def form(size: int, condition: float, seed: int) -> Tensor:
    """A positive definite matrix with eigenvalues from 1 to ``condition`` in general position."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    matrix: Tensor = (
        basis @ torch.diag(torch.logspace(0, torch.tensor(condition).log10(), size, dtype=torch.float64)) @ basis.T
    )
    return torch.add(matrix, matrix.T).mul(0.5)


def ramp(*shape: int) -> Tensor:
    """Numbers without symmetry from -1 to 2."""
    return torch.linspace(-1.0, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


GATES = [(1, 4, -0.1, 0.5), (3, 6, 0.2, 0.9), (5, 7, -4.0, 0.3), (6, 8, -INF, -0.5), (6, 8, 0.75, INF)]
CLUSTER = [([0.0, 0.0], 1.0), ([1.2, 0.3], 0.8), ([-0.4, 1.0], 0.7)]

SETS: list[tuple[str, Constraint, tuple[int, ...]]] = [
    ("ellipsoid-axes", Ellipsoid([1.0, 2.0, 0.5, 4.0]), (4,)),
    ("ellipsoid-round", Ellipsoid([3.0, 3.0, 3.0]), (3,)),
    ("ellipsoid-needle", Ellipsoid([1e-6, 1.0, 1e3]), (3,)),
    ("ellipsoid-center", Ellipsoid([1.0, 2.0, 3.0], ramp(3)), (3,)),
    ("ellipsoid-matrix", Ellipsoid(form(5, 50.0, 0)), (5,)),
    ("ellipsoid-field", Ellipsoid(form(6, 10.0, 1), ramp(2, 3)), (2, 3)),
    ("ellipsoid-tiny", Ellipsoid([1e-200, 3e-200]), (2,)),
    ("ellipsoid-huge", Ellipsoid([1e120, 1e118]), (2,)),
    ("simplex-one", Simplex(2.0), (1,)),
    ("simplex", Simplex(), (5,)),
    ("simplex-field", Simplex(7.0), (3, 4)),
    ("simplex-tiny", Simplex(1e-200), (3,)),
    ("simplex-point", Simplex(0.0), (3,)),
    ("l1-ball-line", L1Ball(0.5), (1,)),
    ("l1-ball", L1Ball(1.5), (6,)),
    ("l1-ball-huge", L1Ball(1e120), (4,)),
    ("second-order-cone-half-line", SecondOrderCone(), (1,)),
    ("second-order-cone-wedge", SecondOrderCone(), (2,)),
    ("second-order-cone", SecondOrderCone(), (8,)),
    ("psd-cone-number", PSDCone(), (1, 1)),
    ("psd-cone-pair", PSDCone(), (2, 2)),
    ("psd-cone", PSDCone(), (4, 4)),
    ("monotone-one", Monotone(), (1,)),
    ("monotone", Monotone(), (9,)),
    ("monotone-falling", Monotone(increasing=False), (6,)),
    ("monotone-field", Monotone(), (3, 4)),
    ("obstacles-none", Obstacles(), (3,)),
    ("obstacles-intervals", Obstacles(intervals=GATES), (9,)),
    ("obstacles-discs", Obstacles(discs=CLUSTER), (3, 2)),
    ("obstacles-channel", Obstacles(intervals=GATES, channels=1), (9, 3)),
    ("obstacles-plane", Obstacles(discs=CLUSTER, channels=(2, 0)), (3, 3)),
    ("obstacles-boxes", Obstacles(boxes=[([-1.0, -0.5], [0.5, 0.5]), ([0.0, -1.0], [1.0, 0.0], 1, 3)]), (4, 2)),
    ("obstacles-walls", Obstacles(boxes=[([-0.2, -INF], [0.2, 0.3]), ([-0.2, 0.9], [0.2, INF])]), (3, 2)),
    (
        "obstacles-segments",
        Obstacles(segments=[([-1.0, 0.0], [1.0, 0.5], 0.6), ([0.0, -1.0], [0.0, 1.0], 0.4)]),
        (3, 2),
    ),
    (
        "obstacles-mixed",
        Obstacles(
            discs=[([0.0, 0.0], 0.8, 0, 3)],
            boxes=[([-0.5, 0.2], [1.5, 0.9])],
            segments=[([0.3, -1.0], [1.0, 0.6], 0.5, 1, None)],
        ),
        (4, 2),
    ),
    (
        "obstacles-space",
        Obstacles(discs=[([0.0, 0.0, 0.0], 1.0)], boxes=[([1.2, -1.0, -1.0], [3.0, 1.0, 1.0])]),
        (2, 3),
    ),
    ("observed", ObservedMassEnergy([0, 3], [0.5, -1.0]), (5,)),
    ("observed-all", ObservedMassEnergy([1, 0], [0.5, -1.0]), (2,)),
    ("observed-mass", ObservedMassEnergy([1], [2.0], mass=1.0), (4,)),
    ("observed-energy", ObservedMassEnergy([4, 1], [0.5, -1.0], energy=6.0), (6,)),
    ("observed-energy-one-free", ObservedMassEnergy([1], [1.0], energy=5.0), (2,)),
    ("observed-mass-energy", ObservedMassEnergy([2, 5], [1.0, -0.5], mass=1.5, energy=9.0), (7,)),
    ("observed-mass-energy-point", ObservedMassEnergy([0], [2.0], mass=5.0, energy=7.0), (4,)),
    ("observed-mass-energy-one-free", ObservedMassEnergy([0], [2.0], mass=5.0, energy=13.0), (2,)),
    ("observed-mass-energy-none", ObservedMassEnergy([], [], mass=2.0, energy=9.0), (7,)),
    ("observed-mass-energy-field", ObservedMassEnergy([0, 7, 11], [1.0, 1.0, 3.0], mass=4.0, energy=20.0), (3, 4)),
    ("box-hyperplane", BoxHyperplane(-1.0, 1.0, ramp(4), 0.3), (4,)),
    ("box-hyperplane-line", BoxHyperplane(-1.0, 2.0, [2.0], 1.0), (1,)),
    ("box-hyperplane-simplex", BoxHyperplane(0.0, INF, torch.ones(5), 1.0), (5,)),
    ("box-hyperplane-half-open", BoxHyperplane([-INF, 0.0, -2.0], [1.0, INF, 2.0], [1.0, -2.0, 0.0], 0.5), (3,)),
    ("box-hyperplane-no-bounds", BoxHyperplane(-INF, INF, [1.0, -2.0, 3.0], 4.0), (3,)),
    ("box-hyperplane-corner", BoxHyperplane(0.0, [1.0, 0.1, 0.3], [1.0, 2.0, 3.0], 2.1), (3,)),
]

# Rows without a smooth residual, and rows that hardly any point of ordinary size lies outside of.
NO_RESIDUAL = tuple(
    name
    for name, constraint, _ in SETS
    if isinstance(constraint, L1Ball | PSDCone) or (isinstance(constraint, Obstacles) and "boxes" in constraint.spec())
)
NO_OUTSIDE = ("ellipsoid-huge", "l1-ball-huge", "monotone-one", "obstacles-none")
