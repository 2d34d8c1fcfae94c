"""Methods, the equation beside each step, and the registry ``METHODS`` that lists them all."""

from __future__ import annotations

from typing import Any, NamedTuple

from casal.methods.auto import LADDER_DIMENSION, choose, inside
from casal.methods.base import (
    Each,
    Method,
    TableRow,
    Together,
    gaussian,
    generator_of,
    key,
    table_rows,
    uniform,
)
from casal.methods.baselines import (
    DPS,
    Decoupled,
    FinalProjection,
    Penalty,
    PrimalDual,
    Projected,
    Unconstrained,
    noise_levels,
)
from casal.methods.casal import CASAL
from casal.methods.chain_memory import Memory, centred, memory
from casal.methods.cheap import ECI, PCFM, ProjectRenoise
from casal.methods.coupling import lift, onto
from casal.methods.hmc import HMC
from casal.methods.matheron import Matheron
from casal.methods.matheron_inside import MatheronInside
from casal.methods.moves import RANGE, data_floor
from casal.methods.population import effective_ancestors, effective_size, normalised, systematic
from casal.methods.problem import Problem, Uncounted, Usage, few_chains, move, pick
from casal.methods.split_gibbs import SplitGibbs
from casal.methods.weighted import WeightedCASAL


class Entry(NamedTuple):
    """A row of the registry.

    Attributes:
        example: The method with settings that work on small problems: the contract suite runs it.
        runs_on: "density", "diffusion" (any model with noise levels) or "both".
        colour: Of its points and lines in every picture.
    """

    example: Method[Any]
    runs_on: str
    colour: str


METHODS: dict[str, Entry] = {
    "unconstrained": Entry(Unconstrained(), "both", "#999999"),
    "final projection": Entry(FinalProjection(), "both", "#56B4E9"),
    "projected": Entry(Projected(), "both", "#0072B2"),
    "penalty": Entry(Penalty(0.02), "both", "#E69F00"),
    "primal-dual": Entry(PrimalDual(0.1), "both", "#F0E442"),
    "decoupled": Entry(Decoupled(10.0), "both", "#B8860B"),
    "Algorithm 1": Entry(CASAL.algorithm1(0.3), "both", "#CC79A7"),
    "Algorithm 2": Entry(CASAL.algorithm2(0.3), "both", "#882255"),
    "released code": Entry(CASAL.released(0.3, 0.1), "both", "#D55E00"),
    "CASAL": Entry(CASAL(10.0), "both", "#44AA99"),
    "DPS": Entry(DPS(0.1), "diffusion", "#6699CC"),
    "PCFM": Entry(PCFM(), "diffusion", "#A6761D"),
    "ECI": Entry(ECI(), "diffusion", "#88CCEE"),
    "predict-project-renoise": Entry(ProjectRenoise(), "diffusion", "#CC6677"),
    "WeightedCASAL": Entry(WeightedCASAL(30.0), "density", "#009E73"),
    "SplitGibbs": Entry(SplitGibbs(0.2, levels=6), "diffusion", "#117733"),
    "Matheron": Entry(Matheron(levels=8), "diffusion", "#DDCC77"),
    "MatheronInside": Entry(MatheronInside(levels=8), "diffusion", "#AA4499"),
    "HMC": Entry(HMC(), "density", "#999933"),
}
"""Every method by the name that tables and pictures use. The command line, the contracts, the report's colours and the
docs read it. The colours are Okabe and Ito's palette, widened by colours of Tol's."""

__all__ = [
    "CASAL",
    "DPS",
    "ECI",
    "HMC",
    "LADDER_DIMENSION",
    "METHODS",
    "PCFM",
    "RANGE",
    "Decoupled",
    "Each",
    "Entry",
    "FinalProjection",
    "Matheron",
    "MatheronInside",
    "Memory",
    "Method",
    "Penalty",
    "PrimalDual",
    "Problem",
    "ProjectRenoise",
    "Projected",
    "SplitGibbs",
    "TableRow",
    "Together",
    "Unconstrained",
    "Uncounted",
    "Usage",
    "WeightedCASAL",
    "centred",
    "choose",
    "data_floor",
    "effective_ancestors",
    "effective_size",
    "few_chains",
    "gaussian",
    "generator_of",
    "inside",
    "key",
    "lift",
    "memory",
    "move",
    "noise_levels",
    "normalised",
    "onto",
    "pick",
    "systematic",
    "table_rows",
    "uniform",
]
