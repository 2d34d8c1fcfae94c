"""The registry of experiments. A new one joins by its module's name in MODULES, or from outside by ``register``."""

from casal.errors import SettingError
from casal_lab import burgers, fidelity, field, mixture, networks, particle, propositions, quadrotor
from casal_lab.experiment import Experiment
from casal_lab.pde import darcy, navier_stokes, poisson

MODULES = (
    particle,
    field,
    mixture,
    propositions,
    burgers,
    quadrotor,
    poisson,
    navier_stokes,
    darcy,
    fidelity,
    networks,
)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}
"""By name, in the order of ``casal list`` and of the report."""


def register(experiment: Experiment) -> Experiment:
    """Add an experiment from outside the package; SettingError if there is another one of this name."""
    if EXPERIMENTS.setdefault(experiment.name, experiment) is not experiment:
        raise SettingError(f"there is an experiment {experiment.name!r} already; give yours another name")
    return experiment
