"""Energy-constrained fields (paper, section 5.1): 50 Fourier coefficients, a double well, a fixed energy.

Question: given the energy of a field, which methods sample its first mode from the exact conditional distribution?

Set-up: the first two coefficients sit in the double well V, the other 48 are Gaussian with variances
0.1 / (1 + |k|)^2, k on a 5 x 5 lattice, two real numbers per mode. The paper fixes half of the squared norm and prints
no number; the script has 15, as the squared norm. So |x|^2 is 15, 20 or 30; on 30 the right well is out of reach.

The paper claims that only CASAL matches the conditional distribution, that projection stays in the wrong mode, that
penalties keep the energy on average only, and two ablations: schedules of rho, and the size of the dual at the start.
Its text gives 1000 steps and rho from 2 to 20. Every claim is tested at each setting that it leaves open (``grid``),
and with the authors' released script as it is (``setup.ORIGINS``).

The exact answer is quadrature over the two coefficients in wells (``problems.field``).
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
