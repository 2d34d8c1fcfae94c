"""Does the certificate of the distribution tell right runs from wrong ones?

Set-up: distributions on sets whose exact answer is known by quadrature or exact draws, with a method that should get
them right. The same runs broken on purpose: half the temperature, one projection at the end, a ladder that stops early,
starts that miss modes.

The targets of the claims are ours: few alarms on right runs, most wrong runs detected, intervals that hold the exact
value. What no check can know is in the table too: a mode that no chain has found, a score that is itself wrong.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.fidelity.figures import figures
from casal_lab.fidelity.runs import ORIGINS, PARTS, run

EXPERIMENT = Experiment(
    "fidelity",
    "Does the certificate of the distribution tell right runs from wrong ones?",
    PARTS,
    run,
    writer(figures),
    origins=ORIGINS,
)
