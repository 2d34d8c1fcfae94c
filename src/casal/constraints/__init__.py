"""Sets: one class each, its formula in the docstring; sets made of sets in ``algebra``."""

from casal.constraints.affine import Affine, HalfSpace
from casal.constraints.algebra import Product, Scaled, Shifted, Union
from casal.constraints.base import Budget, Constraint, Projection, over_events, tightening
from casal.constraints.box import Box
from casal.constraints.box_hyperplane import BoxHyperplane
from casal.constraints.cones import PSDCone, SecondOrderCone
from casal.constraints.ellipsoid import Ellipsoid
from casal.constraints.from_projection import FromProjection
from casal.constraints.implicit import Implicit
from casal.constraints.intersection import Intersection
from casal.constraints.linear_dynamics import LinearDynamics
from casal.constraints.mass_energy import MassEnergy
from casal.constraints.monotone import Monotone
from casal.constraints.observed import ObservedMassEnergy
from casal.constraints.obstacles import Obstacles
from casal.constraints.polytope import Polytope
from casal.constraints.simplex import L1Ball, Simplex
from casal.constraints.spec import constraint_from_spec
from casal.constraints.sphere import Ball, Sphere
from casal.constraints.subspace import Subspace
from casal.constraints.through import Through

__all__ = [
    "Affine",
    "Ball",
    "Box",
    "BoxHyperplane",
    "Budget",
    "Constraint",
    "Ellipsoid",
    "FromProjection",
    "HalfSpace",
    "Implicit",
    "Intersection",
    "L1Ball",
    "LinearDynamics",
    "MassEnergy",
    "Monotone",
    "ObservedMassEnergy",
    "Obstacles",
    "PSDCone",
    "Polytope",
    "Product",
    "Projection",
    "Scaled",
    "SecondOrderCone",
    "Shifted",
    "Simplex",
    "Sphere",
    "Subspace",
    "Through",
    "Union",
    "constraint_from_spec",
    "over_events",
    "tightening",
]
