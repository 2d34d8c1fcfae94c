"""The Navier-Stokes equation (paper, appendix): vorticity at two times from few points, enstrophy known.

Question: which sampler of a diffusion model reconstructs a flow best if what is seen, circulation and enstrophy hold?

Set-up: vorticity at time 0 and 1 on 64 x 64 points, a latent of the modes |k| <= 8, 123 points of each field seen
(``setup``). A second task leaves only the enstrophies strict. The exact answer: with the Gaussian score, kriging, which
does not know the enstrophy. The paper claims that CASAL has an error of 8 %, projection 10 % and a penalty 11 %.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.navier_stokes.figures import figures
from casal_lab.navier_stokes.runs import NAVIER_STOKES, ORIGINS
from casal_lab.reconstruction.methods import LABELS

__all__ = ["EXPERIMENT", "METHODS"]

METHODS = LABELS
"""Methods with a model; the answers in closed form are always there."""

EXPERIMENT = Experiment(
    "navier_stokes",
    "Which sampler reconstructs a flow best, if what is seen, its circulation and its enstrophy must hold?",
    METHODS,
    NAVIER_STOKES.run,
    writer(figures),
    run_seed=NAVIER_STOKES.run_seed,
    module="casal_lab.navier_stokes.runs",
    origins=ORIGINS,
)
