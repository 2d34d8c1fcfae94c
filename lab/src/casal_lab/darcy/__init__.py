"""Darcy flow (paper, appendix): coefficient and solution from few cells, the equation strict in every cell.

Question: which sampler of a diffusion model reconstructs a flow best if every sample must solve the equation?

Set-up: 32 x 32 cells, 25 seen of either field, a latent of cosines and sines (``setup``). The reference: kriging, the
exact answer of the Gaussian to what is seen, projected onto the equation. The paper claims that CASAL has an error of
10 %, projection 22 % and a penalty 23 %, at equal cost.
"""

from casal_lab.darcy.figures import figures
from casal_lab.darcy.runs import DARCY, ORIGINS
from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.reconstruction.methods import EXACT_PROJECTED, INNER_PROJECTED, LABELS, LOOK_AHEAD

__all__ = ["EXPERIMENT", "METHODS"]

METHODS = tuple(label for label in LABELS if label not in (EXACT_PROJECTED, INNER_PROJECTED, LOOK_AHEAD))
"""Methods with a model; the answers in closed form are always there."""

EXPERIMENT = Experiment(
    "darcy",
    "Which sampler reconstructs coefficient and solution of Darcy flow best, if the equation must hold in every cell?",
    METHODS,
    DARCY.run,
    writer(figures),
    run_seed=DARCY.run_seed,
    module="casal_lab.darcy.runs",
    origins=ORIGINS,
)
