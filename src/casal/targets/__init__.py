"""Generative models: one function per family, each returning a score and a table of steps."""

from collections.abc import Callable, Mapping

from casal.targets.base import Table, Target, Tuning, checked, failed
from casal.targets.conditioning import (
    guidance_note,
    guided,
    latent_posterior,
    levels_of,
    posterior,
    slope,
    tilted,
    unconditional_rows,
)
from casal.targets.density import FromSet, GaussianStart, energy, fit_start, langevin, with_settings
from casal.targets.diffusion import annealed, ddim, ddpm, edm, karras_sigmas, vp_sde
from casal.targets.flow_matching import flow
from casal.targets.multistep import Recursion, first_order, multistep_table, recursion
from casal.targets.network import (
    Network,
    along,
    below_least_level,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_share,
)

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
    "FromSet",
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
    "failed",
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
    "multistep_table",
    "next_values",
    "noise_level",
    "noise_share",
    "posterior",
    "recursion",
    "slope",
    "tilted",
    "unconditional_rows",
    "vp_sde",
    "with_settings",
]
