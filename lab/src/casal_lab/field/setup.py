"""The settings of the field problem: what all methods of one table share, and where every constant comes from."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

import torch
from torch import Tensor

from casal import linear
from casal.schedules import Schedule
from casal_lab.experiment import Origin
from casal_lab.problems import double_well
from casal_lab.problems.field import STIFF

WIDE, NARROW = 5.0, 1.0
"""Standard deviations of the script's starting points: of all methods but one, and of the primal-dual method."""


BURN_IN = 0.1
"""Share of a run without coupling or projection, in the script."""


def script_ramp(table: Sized) -> Tensor:
    """The coupling of the released script at step i: floor(i / 100), 10 to 99 over its last 9000 of 10,000 steps.

    The first tenth runs without coupling (``burn_in``). A shorter run ends lower: 1 to 9 in 1000 steps.

    >>> script_ramp(range(10_000))[[1000, 9999]]
    tensor([10., 99.], dtype=torch.float64)
    """
    return (torch.arange(len(table)) // 100).clamp_min(1).double()


@dataclass(frozen=True)
class Means:
    """What all methods of one table share: steps, coupling, start, and the step size with a preconditioner."""

    key: str
    title: str
    steps: int
    rho: Schedule
    largest: float  # rho at the end
    scaled_step: float  # tau with the preconditioner
    burn_in: float = BURN_IN

    def condition(self) -> tuple[float, float]:
        """4 tau (beta + 4 rho), at most 1 in the paper's proposition: without and with the preconditioner D.

        With it the coordinates are D^(-1/2) x: beta is the largest eigenvalue of D times the curvature, and the
        coupling is rho times the largest entry of D.
        """
        stiffest, wells = float(STIFF.curvatures.max()), double_well.STEEPEST
        diagonal = float(STIFF.preconditioner().max())
        plain = 4 * STIFF.step_size * (max(stiffest, wells) + 4 * self.largest)
        scaled = max(1.0, wells / double_well.CURVATURE)
        return plain, 4 * self.scaled_step * (scaled + 4 * self.largest * diagonal)


SCRIPT = Means("script", "the released script as it is", 10_000, script_ramp, 99.0, 0.02)
"""example_field.py of the revisions 330c997 and 904d4d2. rho = 99 allows steps up to 0.0202 with the preconditioner."""

OURS = Means("ours", "ours: the paper's rho and steps, our start", 1000, linear(2.0, 20.0), 20.0, 0.1)
"""A hybrid that is in neither: the script's problem and steps, the text's ramp, starting points of our own."""

_SCRIPT, _TEXT = "example_field.py and systems/field.py, 330c997 and 904d4d2", "section C.2"
ORIGINS = (
    Origin("potential of the first two coefficients", "double well, minima at 0.7 and -2", "script", _SCRIPT),
    Origin("variances of the other 48", "0.1 / (1 + |k|)^2, k on a 5 x 5 lattice", "script", _SCRIPT),
    Origin("grid of the pictures", "100 x 100", "paper", "section 5.1"),
    Origin("energy |x|^2, script", "15", "script", f"{_SCRIPT}; the text says 'a high energy level'"),
    Origin(
        "energy |x|^2, paper", "30", "ours", "section 5.1 fixes |x|^2 / 2 = E without a number; the script's E = 15"
    ),
    Origin("energy |x|^2, between", "20", "ours", "to see where the positive mode stops mattering"),
    Origin("chains", "1000", "paper", "section 5.1, and the script"),
    Origin("chains of the settings", "200 in each of 3 seeds", "ours", "a share of 2 % to 0.6 %, in minutes"),
    Origin("chains of one more row of WeightedCASAL", "4000", "ours", "its error falls with the number of chains"),
    Origin("steps, script", "10,000", "script", _SCRIPT),
    Origin("steps, text", "1000", "paper", _TEXT),
    Origin("steps, settings", "1000, 5000, 10,000", "paper", "sections C.2, C.7; 10,000 is the script's"),
    Origin("rho, script", "0 for a tenth of the run, then floor(i / 100): 10 to 99", "script", _SCRIPT),
    Origin("rho, text", "2 to 20, linear", "paper", _TEXT),
    Origin("burn-in without coupling or projection", "a tenth of the run", "script", f"{_SCRIPT}; not in the text"),
    Origin("step size tau without a preconditioner", "1e-3", "script", f"{_SCRIPT}; not in the text"),
    Origin("step sizes tau, settings", "1e-3, 2e-3, 4e-3", "ours", "the script's, and up to the limit 4.5e-3"),
    Origin("dual step eta of the released update", "1e-3 = tau", "script", f"{_SCRIPT}; Algorithms 1, 2 state theirs"),
    Origin("start, script and settings", "5 N(0, I)", "script", f"{_SCRIPT}; not in the text"),
    Origin("start of primal-dual, script and settings", "N(0, I)", "script", f"{_SCRIPT}, by default; not in the text"),
    Origin(
        "start, ours",
        "N(0, 1.5^2) in the wells, prior elsewhere",
        "ours",
        "covers both wells, 5 N(0, I) diverges with large steps",
    ),
    Origin("preconditioner", "1 / curvature, 1/2 in the wells", "ours", "all coefficients relax at the same pace"),
    Origin(
        "step size with the preconditioner",
        "0.1; 0.02 where rho ends at 99",
        "ours",
        "explicit coupling needs tau rho D <= 1",
    ),
    Origin("dual step with the preconditioner", "equal to tau", "ours", "as in the script, where eta = tau"),
    Origin(
        "weight of the penalty",
        "0.5; 0.05 with the preconditioner",
        "ours",
        "no number is given",
    ),
    Origin("top of the ladder of WeightedCASAL", "400", "ours", "a ladder to 20 leaves a bias of 0.2 in W1"),
    Origin(
        "rho of the ablation, authors' problem",
        "2 and 20, and between",
        "paper",
        "section C.7 has rho_min and rho_max; the figures are those of C.2",
    ),
    Origin("steps of the ablation of rho", "1000, 5000", "paper", "section C.7"),
    Origin("sizes of the dual at the start", "0, 1, 5, 10, 20, 50, 100", "paper", "section C.7"),
    Origin("chains of the ablation of the dual", "100", "paper", "section C.7"),
    Origin(
        "sizes in it", "of mu, and of lambda = rho mu", "ours", "the paper says lambda, and its algorithms start mu"
    ),
    Origin("rho in the ablation of the dual", "20, constant", "ours", "not in the paper; the upper end of its ramp"),
    Origin(
        "dual steps in it, released update",
        "0.001, 0.01",
        "ours",
        "0.001 is the script's; 0.01 was picked with the paper's figures in view",
    ),
    Origin(
        "convergence of the dual",
        "its mean size stays below 1.5 times the largest from zero",
        "ours",
        "the paper has no criterion",
    ),
    Origin(
        "tightening: the set",
        "|x|^2 = 15 and x1 + x2 = -3, by alternating projections",
        "ours",
        "energy and a linear constraint as in section C.6, with a known distribution",
    ),
    Origin("tightening: tolerances", "1e-10; 1e-2 to 1e-10; 0.1 to 1e-4; two sweeps", "ours", "the paper names none"),
)
"""Where every constant comes from."""
