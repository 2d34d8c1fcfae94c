"""Generative models: one function per family, each returning a score and a table of steps."""

from collections.abc import Callable, Mapping

from casal.targets.annealed_langevin import annealed
from casal.targets.base import Table, Target, Tuning
from casal.targets.conditions import checked
from casal.targets.continuous_diffusion import vp_sde
from casal.targets.denoiser import edm, karras_sigmas
from casal.targets.density import energy, langevin, settled
from casal.targets.discrete_diffusion import ddim, ddpm
from casal.targets.flow_matching import flow
from casal.targets.guidance import guidance_note, guided, unconditional_rows
from casal.targets.multistep import Recursion, first_order, looking_back, recursion
from casal.targets.noise import (
    Network,
    along,
    below_least_level,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_share,
)
from casal.targets.observations import latent_posterior, levels_of, posterior
from casal.targets.soft_terms import slope, tilted
from casal.targets.starts import GaussianStart, fit_start

TARGETS: Mapping[str, Callable[..., Target]] = {
    "langevin": langevin,
    "energy": energy,
    "annealed": annealed,
    "ddpm": ddpm,
    "ddim": ddim,
    "vp_sde": vp_sde,
    "edm": edm,
    "flow": flow,
}
"""Every model family by name. (``posterior``, ``latent_posterior``, ``tilted`` and ``guided`` change a target
of any family.)"""

__all__ = [
    "TARGETS",
    "GaussianStart",
    "Network",
    "Recursion",
    "Table",
    "Target",
    "Tuning",
    "along",
    "annealed",
    "below_least_level",
    "checked",
    "ddim",
    "ddpm",
    "edm",
    "energy",
    "first_order",
    "fit_start",
    "flow",
    "gaussian_start",
    "guidance_note",
    "guided",
    "implicit_rows",
    "karras_sigmas",
    "langevin",
    "latent_posterior",
    "levels_of",
    "looking_back",
    "next_values",
    "noise_level",
    "noise_share",
    "posterior",
    "recursion",
    "settled",
    "slope",
    "tilted",
    "unconditional_rows",
    "vp_sde",
]
