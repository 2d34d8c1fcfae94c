"""Feasible flights of a planar quadrotor past obstacles (paper, section 5.3)."""

from casal.lab.quadrotor.methods import METHODS, Recipe
from casal.lab.quadrotor.paths import Paths, distinct, repair, solve
from casal.lab.quadrotor.scenes import Scene, scene
from casal.lab.quadrotor.setup import Prior, Training, prior, vehicle

__all__ = [
    "METHODS",
    "Paths",
    "Prior",
    "Recipe",
    "Scene",
    "Training",
    "distinct",
    "prior",
    "repair",
    "scene",
    "solve",
    "vehicle",
]
