"""Distances between samples and a law, each beside its floor; the health of populations; what can be trusted."""

from casal.diagnostics.degeneracy import Clusters, Population, advice, clusters, population, warn_if_degenerate
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

__all__ = [
    "Clusters",
    "Distance",
    "Estimate",
    "Evidence",
    "Fidelity",
    "Lineage",
    "Population",
    "advice",
    "assess",
    "classifier_test",
    "clusters",
    "directions",
    "energy_distance",
    "mode_weights_tv",
    "population",
    "sliced_wasserstein",
    "warn_if_degenerate",
    "wasserstein1",
]
