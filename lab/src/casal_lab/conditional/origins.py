"""Where the constants of the conditional experiment come from: it is ours, and so are nearly all of them."""

from __future__ import annotations

from casal_lab.conditional.common import FULL, LADDER, SIGMA
from casal_lab.experiment import Origin

ORIGINS = (
    Origin(
        "cases and references", "seven", "ours", "problems whose conditional distribution is known or can be sampled"
    ),
    Origin("limits of the targets", "see the table of targets", "ours", "what we ask of ourselves"),
    Origin(
        "chains, seeds, evaluations", f"{FULL.n}, {FULL.seeds}, {FULL.evaluations}", "ours", "mixtures and Gaussian"
    ),
    Origin("last noise level of weighted methods", f"{SIGMA:g}", "ours", "small beside every mode"),
    Origin("rungs of SplitGibbs and Twisted", "{} and {}".format(*LADDER[False]), "ours", "defaults of the library"),
    Origin("quadrotor: modes of the latent", "10", "paper", "C.4"),
    Origin(
        "quadrotor: three obstacles, r = 0.3, 0.8, 1.8 m", "as printed here", "ours", "a small case with an exact prior"
    ),
    Origin(
        "quadrotor: rho of CASAL", "100", "paper", "C.4; the paper's network and scene are in `casal run quadrotor`"
    ),
    Origin(
        "rho of Algorithm 2 and CASAL elsewhere", "0.01 to 10, or tuned", "ours", "what was stable; the rows say which"
    ),
    Origin("trained network", "depth 3, width 128, cosine time", "paper", "C.3, learning architecture"),
    Origin("trained network: data and updates", "50000 draws, 2000 updates", "ours", "minutes on one core"),
    Origin(
        "DDPM betas", "1e-4 to 0.02 in 1000 steps", "ours", "the schedule of Ho et al. (2020); the paper prints none"
    ),
)
