"""Strictly constrained generative sampling: samples that obey a law exactly, with a certificate."""

from casal import errors
from casal.certificate import Certificate
from casal.constraints import Affine, Ball, Box, Constraint, FromProjection, HalfSpace, MassEnergy, Sphere
from casal.decoders import Decoder, Identity, Linear
from casal.methods import (
    CASAL,
    Decoupled,
    FinalProjection,
    Method,
    Penalty,
    PrimalDual,
    Projected,
    Unconstrained,
    WeightedCASAL,
)
from casal.result import SampleResult
from casal.sampling import sample
from casal.schedules import constant, geometric, linear
from casal.targets import Table, Target, energy, langevin

__version__ = "0.1.0"

__all__ = [
    "CASAL",
    "Affine",
    "Ball",
    "Box",
    "Certificate",
    "Constraint",
    "Decoder",
    "Decoupled",
    "FinalProjection",
    "FromProjection",
    "HalfSpace",
    "Identity",
    "Linear",
    "MassEnergy",
    "Method",
    "Penalty",
    "PrimalDual",
    "Projected",
    "SampleResult",
    "Sphere",
    "Table",
    "Target",
    "Unconstrained",
    "WeightedCASAL",
    "__version__",
    "constant",
    "energy",
    "errors",
    "geometric",
    "langevin",
    "linear",
    "sample",
]
