"""Sets: one class each, its formula in the docstring."""

from casal.constraints.affine import Affine, HalfSpace
from casal.constraints.base import Constraint
from casal.constraints.box import Box
from casal.constraints.from_projection import FromProjection
from casal.constraints.mass_energy import MassEnergy
from casal.constraints.sphere import Ball, Sphere

__all__ = ["Affine", "Ball", "Box", "Constraint", "FromProjection", "HalfSpace", "MassEnergy", "Sphere"]
