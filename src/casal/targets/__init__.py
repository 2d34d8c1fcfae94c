"""Model families: one function each, returning a score and a table."""

from casal.targets.annealed import annealed
from casal.targets.base import Table, Target
from casal.targets.ddpm import ddim, ddpm
from casal.targets.edm import edm, karras_sigmas
from casal.targets.flow import flow
from casal.targets.langevin import energy, langevin
from casal.targets.latent_posterior import latent_posterior
from casal.targets.noise import along
from casal.targets.observation import levels_of
from casal.targets.posterior import posterior
from casal.targets.vp_sde import vp_sde

__all__ = [
    "Table",
    "Target",
    "along",
    "annealed",
    "ddim",
    "ddpm",
    "edm",
    "energy",
    "flow",
    "karras_sigmas",
    "langevin",
    "latent_posterior",
    "levels_of",
    "posterior",
    "vp_sde",
]
