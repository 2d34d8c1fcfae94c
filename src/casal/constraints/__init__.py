"""Sets: what a sample must satisfy. One class each, with its formula; ``@register`` is its row in ``SETS``."""

from casal.constraints.algebra import Product, Scaled, Shifted, Through, Union
from casal.constraints.base import (
    SETS,
    Budget,
    Constraint,
    Geometry,
    OnSurface,
    Parts,
    Projection,
    Rows,
    SphereInFlat,
    Subspace,
    Way,
    constraint_from_spec,
    register,
    tightening,
)
from casal.constraints.behind_network import ThroughDecoder
from casal.constraints.cones import PSDCone, SecondOrderCone
from casal.constraints.dynamics import LinearDynamics
from casal.constraints.flat import Affine, Box, BoxHyperplane, HalfSpace, Polytope
from casal.constraints.implicit import FromProjection, Implicit, JacobianProducts, SparseJacobian
from casal.constraints.intersection import Intersection
from casal.constraints.monotone import Monotone
from casal.constraints.obstacles import Obstacles
from casal.constraints.parameters import PerChain
from casal.constraints.reduction import Centre, Reduction, analytic_centre, reduced
from casal.constraints.round import (
    AffineRound,
    Ball,
    Ellipsoid,
    MassEnergy,
    MassEnergyBox,
    ObservedMassEnergy,
    Sphere,
)
from casal.constraints.simplex import L1Ball, Simplex
from casal.constraints.solvers.structure import IncompleteStructure, Structure, structure_of
from casal.constraints.solvers.truncated import log_interval_mass, truncated_normal
from casal.constraints.vectors import half_square, over_events, squarable

for _kind in (Intersection, Product, Scaled, Shifted, Through, Union):
    register(_kind)  # here and not at the class: the operators of every set reach them by their names

__all__ = [
    "SETS",
    "Affine",
    "AffineRound",
    "Ball",
    "Box",
    "BoxHyperplane",
    "Budget",
    "Centre",
    "Constraint",
    "Ellipsoid",
    "FromProjection",
    "Geometry",
    "HalfSpace",
    "Implicit",
    "IncompleteStructure",
    "Intersection",
    "JacobianProducts",
    "L1Ball",
    "LinearDynamics",
    "MassEnergy",
    "MassEnergyBox",
    "Monotone",
    "ObservedMassEnergy",
    "Obstacles",
    "OnSurface",
    "PSDCone",
    "Parts",
    "PerChain",
    "Polytope",
    "Product",
    "Projection",
    "Reduction",
    "Rows",
    "Scaled",
    "SecondOrderCone",
    "Shifted",
    "Simplex",
    "SparseJacobian",
    "Sphere",
    "SphereInFlat",
    "Structure",
    "Subspace",
    "Through",
    "ThroughDecoder",
    "Union",
    "Way",
    "analytic_centre",
    "constraint_from_spec",
    "half_square",
    "log_interval_mass",
    "over_events",
    "reduced",
    "register",
    "squarable",
    "structure_of",
    "tightening",
    "truncated_normal",
]
