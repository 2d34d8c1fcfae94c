"""A particle on a circle (paper, appendix particle): which methods find the side of the circle that is likely?

Set-up: V(x) is a double well whose right well cannot reach the circle of radius 3, and y ~ N(0, 0.1^2). Almost all of
the distribution on the circle sits at x = -3. A chain that starts on the right and is projected at once stays there.

The paper claims, in a picture, that projected Langevin dynamics is stuck on the right and that CASAL is not. It gives
no constants; the authors' script has four revisions with three sets of them (``setup.REVISIONS``).

The exact answer is quadrature over the angle, with respect to the surface measure of the circle.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.particle.figures import figures
from casal_lab.particle.motions import onto_the_circle
from casal_lab.particle.runs import TUNED, cases, run
from casal_lab.particle.setup import ORIGINS

EXPERIMENT = Experiment(
    "particle",
    "On a circle whose likely side is far from the start, which methods get there, and with the right spread?",
    (*cases(), TUNED),
    run,
    writer(figures),
    origins=ORIGINS,
    moving=lambda: [onto_the_circle(cases())],
)
