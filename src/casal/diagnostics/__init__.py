"""Distances between samples and a law, each beside its floor, and the health of weighted populations."""

from casal.diagnostics.classifier import classifier_test
from casal.diagnostics.distance import Distance
from casal.diagnostics.energy import energy_distance
from casal.diagnostics.modes import mode_weights_tv
from casal.diagnostics.population import Clusters, Population, advice, clusters, population, warn_if_degenerate
from casal.diagnostics.transport import directions, sliced_wasserstein, wasserstein1

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
