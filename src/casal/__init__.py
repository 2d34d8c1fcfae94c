"""Strictly constrained generative sampling: samples that satisfy a constraint exactly, with a certificate."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from casal import diagnostics, errors
from casal.constraints import (
    Affine,
    Ball,
    Box,
    BoxHyperplane,
    Budget,
    Constraint,
    Ellipsoid,
    FromProjection,
    HalfSpace,
    Implicit,
    Intersection,
    JacobianProducts,
    L1Ball,
    LinearDynamics,
    MassEnergy,
    Monotone,
    ObservedMassEnergy,
    Obstacles,
    PerChain,
    Polytope,
    Product,
    Projection,
    PSDCone,
    SecondOrderCone,
    Simplex,
    SparseJacobian,
    Sphere,
    Union,
    constraint_from_spec,
    tightening,
)
from casal.decoders import DCT, DST, Decoder, Fourier, Identity, Linear, Nonlinear, Rows, Standardise
from casal.errors import CasalError, CasalWarning
from casal.methods import (
    CASAL,
    DPS,
    ECI,
    HMC,
    PCFM,
    Decoupled,
    FinalProjection,
    Matheron,
    Method,
    Penalty,
    PrimalDual,
    Projected,
    ProjectRenoise,
    SplitGibbs,
    Unconstrained,
    WeightedCASAL,
)
from casal.sampling import Certificate, Run, SampleResult, Snapshots, StepView, Summary, calibrate, load, sample
from casal.schedules import constant, constant_gain, geometric, inverse_variance, linear
from casal.targets import (
    GaussianStart,
    Table,
    Target,
    annealed,
    ddim,
    ddpm,
    edm,
    energy,
    flow,
    guided,
    karras_sigmas,
    langevin,
    latent_posterior,
    posterior,
    tilted,
    vp_sde,
)

if TYPE_CHECKING:
    from casal.integrations.azula import from_azula as from_azula
    from casal.integrations.diffusers import from_diffusers as from_diffusers

BRIDGES = {"from_azula": "casal.integrations.azula", "from_diffusers": "casal.integrations.diffusers"}
"""Names that another library is needed for, and where they live: imported on use."""


def __getattr__(name: str) -> Any:
    if name in BRIDGES:
        return getattr(import_module(BRIDGES[name]), name)
    raise AttributeError(f"module 'casal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *BRIDGES])


__all__ = [
    "CASAL",
    "DCT",
    "DPS",
    "DST",
    "ECI",
    "HMC",
    "PCFM",
    "Affine",
    "Ball",
    "Box",
    "BoxHyperplane",
    "Budget",
    "CasalError",
    "CasalWarning",
    "Certificate",
    "Constraint",
    "Decoder",
    "Decoupled",
    "Ellipsoid",
    "FinalProjection",
    "Fourier",
    "FromProjection",
    "GaussianStart",
    "HalfSpace",
    "Identity",
    "Implicit",
    "Intersection",
    "JacobianProducts",
    "L1Ball",
    "Linear",
    "LinearDynamics",
    "MassEnergy",
    "Matheron",
    "Method",
    "Monotone",
    "Nonlinear",
    "ObservedMassEnergy",
    "Obstacles",
    "PSDCone",
    "Penalty",
    "PerChain",
    "Polytope",
    "PrimalDual",
    "Product",
    "ProjectRenoise",
    "Projected",
    "Projection",
    "Rows",
    "Run",
    "SampleResult",
    "SecondOrderCone",
    "Simplex",
    "Snapshots",
    "SparseJacobian",
    "Sphere",
    "SplitGibbs",
    "Standardise",
    "StepView",
    "Summary",
    "Table",
    "Target",
    "Unconstrained",
    "Union",
    "WeightedCASAL",
    "__version__",
    "annealed",
    "calibrate",
    "constant",
    "constant_gain",
    "constraint_from_spec",
    "ddim",
    "ddpm",
    "diagnostics",
    "edm",
    "energy",
    "errors",
    "flow",
    "geometric",
    "guided",
    "inverse_variance",
    "karras_sigmas",
    "langevin",
    "latent_posterior",
    "linear",
    "load",
    "posterior",
    "sample",
    "tightening",
    "tilted",
    "vp_sde",
]
