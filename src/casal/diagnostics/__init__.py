"""Distances between samples and a law, each beside its floor, and the health of weighted populations."""

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

__all__ = [
    "Clusters",
    "Distance",
    "Population",
    "advice",
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
