"""Methods: one file each, one ``step`` each, and the registry that lists them."""

from casal.methods.base import Method, Segment
from casal.methods.casal import CASAL
from casal.methods.choose import choose
from casal.methods.coordinates import coordinates
from casal.methods.decoupled import Decoupled
from casal.methods.dps import DPS
from casal.methods.final_projection import FinalProjection
from casal.methods.penalty import Penalty
from casal.methods.primal_dual import PrimalDual
from casal.methods.problem import Problem, Uncounted, Usage
from casal.methods.projected import Projected
from casal.methods.resampling import effective_size, normalised, systematic
from casal.methods.split_gibbs import SplitGibbs
from casal.methods.twisted import Twisted
from casal.methods.unconstrained import Unconstrained
from casal.methods.weighted import WeightedCASAL

__all__ = [
    "CASAL",
    "DPS",
    "Decoupled",
    "FinalProjection",
    "Method",
    "Penalty",
    "PrimalDual",
    "Problem",
    "Projected",
    "Segment",
    "SplitGibbs",
    "Twisted",
    "Unconstrained",
    "Uncounted",
    "Usage",
    "WeightedCASAL",
    "choose",
    "coordinates",
    "effective_size",
    "normalised",
    "systematic",
]
