"""A mixture in the plane, every model family, four sets: do the methods give each mode its right weight?

Set-up: three Gaussian modes; a circle of two sizes, a line, a half-plane (``problems.three_modes``). The networks
of seven families are exact (``problems.families``), so all that is wrong in a sample is the sampler's; an
energy-based model and an annealed score are trained besides (``trained.py``), with their own error in a table. Each
family gets the same number of score evaluations. Methods with settings are tuned on validation chains against the exact
distribution, which flatters them. PCFM, ECI and predict-project-renoise are among them.

The paper claims that its algorithms run as they are on energy-based, annealed, DDPM and score-SDE models, that every
sample is feasible on any set with a projection, and that they enforce a constraint more strongly than an added energy.
EDM and flow matching are our extension. "As good as exact draws" is our target, not a claim of the paper.

The exact answer is in closed form: on each set every mode keeps its shape and gets a weight that is known.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.mixture.figures import figures
from casal_lab.mixture.motions import onto_the_circle
from casal_lab.mixture.origins import ORIGINS
from casal_lab.mixture.runs import METHODS, run

EXPERIMENT = Experiment(
    "mixture",
    "With an exact model of every family, which methods give the modes of a mixture their right weight on a set?",
    tuple(METHODS),
    run,
    writer(figures),
    origins=ORIGINS,
    moving=lambda: [onto_the_circle()],
)
