"""What do methods make of trained networks of fields, with many equations and few samples?

Set-up: small networks (perceptrons and UNets, flows and DDPMs) trained on fields of four partial differential
equations, with known values and conservation laws, linear, curved and with bounds. The exact distribution given the
known values is sampled by the solver. All methods have the same number of evaluations of the network.

Nothing here is in the paper. All claims are targets of ours: errors below those of published methods, a self-check of
the right size and power, a forecast of many members at a few times the cost of the bare network.
"""

from casal_lab.drawing import writer
from casal_lab.experiment import Experiment
from casal_lab.networks.figures import figures
from casal_lab.networks.runs import ORIGINS, PARTS, run

EXPERIMENT = Experiment(
    "networks",
    "What do methods make of trained networks of fields, with many equations?",
    PARTS,
    run,
    writer(figures),
    origins=ORIGINS,
)
