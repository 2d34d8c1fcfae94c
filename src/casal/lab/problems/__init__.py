"""Experiments with a known answer. A new one joins by a file and a line here."""

from casal.lab.problems import burgers, conditional, field, mixture, particle, propositions
from casal.lab.problems.base import Experiment, Outcome

REGISTRY: dict[str, Experiment] = {
    e.name: e
    for e in (
        particle.EXPERIMENT,
        field.EXPERIMENT,
        mixture.EXPERIMENT,
        propositions.EXPERIMENT,
        conditional.EXPERIMENT,
        burgers.EXPERIMENT,
    )
}

__all__ = ["REGISTRY", "Experiment", "Outcome"]
