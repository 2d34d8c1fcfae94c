"""Health of populations, fidelity, calibration of denoisers."""

from casal.diagnostics.chain_mixing import FEWEST_DRAWS, Mixing, mixing
from casal.diagnostics.check import SHARE_OF_EVALUATIONS, Evidence
from casal.diagnostics.denoiser_calibration import Calibration, calibration
from casal.diagnostics.fidelity import Fidelity, assess
from casal.diagnostics.units import clipped_units, other_units
from casal.methods.population import (
    Clusters,
    Estimate,
    Lineage,
    Population,
    advice,
    clusters,
    population,
    warn_if_degenerate,
)

__all__ = [
    "FEWEST_DRAWS",
    "SHARE_OF_EVALUATIONS",
    "Calibration",
    "Clusters",
    "Estimate",
    "Evidence",
    "Fidelity",
    "Lineage",
    "Mixing",
    "Population",
    "advice",
    "assess",
    "calibration",
    "clipped_units",
    "clusters",
    "mixing",
    "other_units",
    "population",
    "warn_if_degenerate",
]
