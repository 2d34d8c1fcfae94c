"""Distances with their floor, health of populations, fidelity, calibration of denoisers, samples near a set."""

from casal.diagnostics.chain_mixing import FEWEST_DRAWS, Mixing, mixing
from casal.diagnostics.degeneracy import Clusters, Population, advice, clusters, population, warn_if_degenerate
from casal.diagnostics.denoiser_calibration import Calibration, calibration
from casal.diagnostics.distances import (
    Distance,
    classifier_test,
    directions,
    energy_distance,
    mode_weights_tv,
    sliced_wasserstein,
    wasserstein1,
)
from casal.diagnostics.fidelity import Evidence, Fidelity, assess
from casal.diagnostics.genealogy import Estimate, Lineage
from casal.diagnostics.neighbours import NearEstimate, NearSet, near_set

__all__ = [
    "FEWEST_DRAWS",
    "Calibration",
    "Clusters",
    "Distance",
    "Estimate",
    "Evidence",
    "Fidelity",
    "Lineage",
    "Mixing",
    "NearEstimate",
    "NearSet",
    "Population",
    "advice",
    "assess",
    "calibration",
    "classifier_test",
    "clusters",
    "directions",
    "energy_distance",
    "mixing",
    "mode_weights_tv",
    "near_set",
    "population",
    "sliced_wasserstein",
    "warn_if_degenerate",
    "wasserstein1",
]
