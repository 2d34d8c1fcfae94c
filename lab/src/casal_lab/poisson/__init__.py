"""The Poisson equation (paper, appendix): a field from few of its points, its mass known.

Question: which sampler of a diffusion model reconstructs a field best if what is seen and its mass must hold exactly?

Set-up: solutions on 100 x 100 points with random boundaries and sources, a latent of 16 x 16 cosines (``setup``); one
tenth of the points seen without noise, and a harder task with 100 noisy points where only the mass is strict.

The exact answer: with the Gaussian score, kriging (``reconstruction.kriging``). The paper claims that CASAL has
an error of 5 %, projection 15 % and a penalty 14 %, at equal cost.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.poisson.figures import figures
from casal_lab.poisson.runs import ORIGINS, POISSON
from casal_lab.reconstruction.methods import EXACT_PROJECTED, LABELS

__all__ = ["EXPERIMENT", "METHODS"]

METHODS = tuple(label for label in LABELS if label != EXACT_PROJECTED)
"""Methods with a model; the answers in closed form are always there."""

EXPERIMENT = Experiment(
    "poisson",
    "Which sampler reconstructs a solution of the Poisson equation best, if what is seen and its mass must hold?",
    METHODS,
    POISSON.run,
    writer(figures),
    run_seed=POISSON.run_seed,
    module="casal_lab.poisson.runs",
    origins=ORIGINS,
)
