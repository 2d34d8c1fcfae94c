"""Data assimilation on the inviscid Burgers equation (paper, section 5.2) that keeps mass and energy.

Question: does a constrained diffusion prior assimilate data better than what the field has already?

Set-up: in A and B a field is seen at four sites, the forecast is biased, mass and energy are known; the prior is a
diffusion model in a Fourier latent. In C there are three regimes and one sensor, and the distribution of the samples
decides, with the exact prior and with a learned one.

The paper claims that the diffusion prior regularises better than 3D-Var, that unconstrained samples deviate in mass
and energy and projected ones have artifacts, and that CASAL respects conservation and has a significantly lower error.
These claims are judged with the paper's network and algorithms; the other claims are targets of ours.

In A and B the answer is the truth that was simulated, and constrained 3D-Var is the global minimum by a secular
equation. In C the exact distribution is importance sampling on the set (``regimes``), under a network weighted anew by
the density that the probability-flow ODE gives (``learned``).
"""

from casal_lab.burgers.comparison import METHODS
from casal_lab.burgers.figures import figures
from casal_lab.burgers.origins import ORIGINS
from casal_lab.burgers.runs import run, run_scene
from casal_lab.drawing import writer
from casal_lab.experiment import Experiment

EXPERIMENT = Experiment(
    "burgers",
    "Does a constrained diffusion prior assimilate data better than what the field has already?",
    METHODS,
    run,
    writer(figures),
    ("calibrated",),
    run_scene,
    origins=ORIGINS,
)
