"""Flights of a planar quadrotor past obstacles (paper, section 5.3): constrained priors for feasibility problems.

Question: which samples of a diffusion model are good starts for a solver that looks for feasible flights?

Set-up: a diffusion model in a Fourier latent has learned flights without obstacles (``setup``). Obstacles appear
(``scenes``); a method samples starts (``methods``); a solver repairs them, and the rollout of the repaired input
decides (``paths``):

>>> from casal_lab.quadrotor import scene, solve
>>> paths = solve(scene("hard", r=1.8), "noise", n=2, seed=0)
>>> paths.inputs.shape, paths.success.tolist(), paths.evaluations
(torch.Size([2, 200]), [False, False], 0.0)

The paper claims that penalties leave samples in the obstacles, that projection distorts paths, and that CASAL succeeds
significantly more often than both, whatever the size r of the last obstacle. The other targets are ours.

The exact answer: which classes of flights are possible at all is a linear programme, and their weights under the model
are those of its unconditional samples that happen to be clear (the model is right in 2 of 100 to 2 of 1000 cases).
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.physics.quadrotor import distinct
from casal_lab.quadrotor.figures import figures
from casal_lab.quadrotor.motions import in_gallery
from casal_lab.quadrotor.paths import METHODS, Paths, Recipe, repair, solve
from casal_lab.quadrotor.runs import ORIGINS, run, run_scene
from casal_lab.quadrotor.setup import SCENES, Prior, Scene, Training, prior, scene, vehicle

__all__ = [
    "EXPERIMENT",
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

EXPERIMENT = Experiment(
    "quadrotor",
    "Which samples of a diffusion model are good starts for a solver that looks for feasible flights?",
    tuple(METHODS),
    run,
    writer(figures),
    SCENES,
    run_scene,
    origins=ORIGINS,
    moving=lambda: [in_gallery(prior())],
)
