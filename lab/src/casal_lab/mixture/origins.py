"""Where the constants of the mixture experiment come from. The paper has no such experiment: nearly all are ours."""

from __future__ import annotations

from casal_lab.experiment import Origin
from casal_lab.mixture.runs import FULL
from casal_lab.mixture.trained import DRAWS, ITERATIONS
from casal_lab.problems.families import ANNEALED_STEP, LANGEVIN_STEP, LEVELS
from casal_lab.problems.three_modes import MIXTURE

ORIGINS = (
    Origin(
        "mixture",
        f"{len(MIXTURE.weights)} round Gaussians in the plane",
        "ours",
        "an exact answer on every set; the heaviest mode is not the one that meets the sets best",
    ),
    Origin("sets", "circles R = 2 and 1.2, a line, a half-plane", "ours", "curved, affine and solid sets"),
    Origin("chains, seeds", f"{FULL.n}, {FULL.seeds}", "ours", "a floor below 0.01 in total variation"),
    Origin("score evaluations", f"{FULL.evaluations}", "ours", "the same for every family"),
    Origin("families", "energy-based, annealed, DDPM, score SDE with corrector", "paper", "appendix B.1 to B.4"),
    Origin("families", "EDM and flow matching", "ours", "the conclusion leaves stochastic interpolants to future work"),
    Origin("Langevin step", f"{LANGEVIN_STEP:g}", "ours", "well below the stability limit of the narrowest mode"),
    Origin(
        "annealed levels and step",
        f"{LEVELS} levels from 10 to 0.05, {ANNEALED_STEP:g} sigma^2",
        "ours",
        "the step is proportional to sigma^2 as in appendix B.2; the numbers are ours",
    ),
    Origin(
        "DDPM betas", "1e-4 to 0.02 in 1000 steps", "ours", "the schedule of Ho et al. (2020); the paper prints none"
    ),
    Origin("variance-preserving beta(t)", "0.1 to 20", "ours", "Song et al. (2021); the paper prints none"),
    Origin("coupling rho", "2 to 20, linear", "paper", "C.2, field generation; one of seven that are tried"),
    Origin("coupling rho", "10 and 100", "paper", "C.3 and C.4; two of seven that are tried"),
    Origin("coupling rho", "1, and b rho = 0.1, 1, 2", "ours", "what is stable where tau grows with the noise"),
    Origin(
        "trained networks",
        f"3 layers of 32, {DRAWS} draws, {ITERATIONS[False]} updates",
        "ours",
        "trained in a minute; their own error is in a table",
    ),
    Origin(
        "settings of PCFM and ECI",
        "weight 1, step 0.01, 20 steps, one Newton step; mixing 5",
        "ours",
        "defaults of the code of PCFM's authors are among those tried; the others are ours",
    ),
)
