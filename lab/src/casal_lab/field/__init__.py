"""Energy-constrained fields (paper, section 5.1): 50 Fourier coefficients, a double well, a fixed energy.

Question: given the energy of a field, which methods sample its first mode from the exact conditional distribution?

Set-up: the first two coefficients sit in the double well V, the other 48 are Gaussian with variances
0.1 / (1 + |k|)^2, k on a 5 x 5 lattice, two real numbers per mode. On the sphere |x|^2 = 15 the right well is nearly
out of reach; the levels 12, 10 and 8 are easier.

The paper claims that only CASAL matches the conditional distribution, that projection stays in the wrong mode, that
penalties keep the energy on average only, and two ablations: schedules of rho, and the size of the dual at the start.
Its text gives 1000 steps and rho from 2 to 20; the rest is in the authors' released script, which has other steps and
another rho. Both are run as they are, and ours beside them (``setup.ORIGINS``).

The exact answer is quadrature over the two coefficients in wells (``setup``).
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.field.figures import figures
from casal_lab.field.runs import LABELS, run
from casal_lab.field.setup import ORIGINS

EXPERIMENT = Experiment(
    "field",
    "Given the energy of a field, which methods sample its first mode from the exact conditional distribution?",
    LABELS,
    run,
    writer(figures),
    origins=ORIGINS,
)
