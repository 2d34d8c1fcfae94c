"""Where every constant of the Burgers experiment comes from: the paper's text, or us."""

from __future__ import annotations

from casal_lab.burgers import calibrated, cost, cycle, learned, observed, regimes, setup
from casal_lab.burgers.comparison import ETA, RHO, WEIGHTS
from casal_lab.burgers.runs import FULL, SIGMAS
from casal_lab.experiment import Origin
from casal_lab.physics.burgers import Burgers
from casal_lab.problems.families import BETAS

_A, _B = setup.SETUPS.values()
_RUNS, _TRAINING, _SOLVER = FULL.runs, setup.Training(), Burgers()
_DATA, _NET, _SET_UP, _BASE, _ABLATION = (
    "C.3, data",
    "C.3, learning architecture",
    "section 5.2, experimental setup",
    "C.3, baselines",
    "C.7, influence of lambda",
)


def _paper(constant: str, value: object, where: str) -> Origin:
    return Origin(constant, str(value), "paper", where)


def _ours(constant: str, value: object, why: str) -> Origin:
    return Origin(constant, str(value), "ours", why)


ORIGINS = (
    # The equation and its data.
    _paper("points of the grid", setup.POINTS, _SET_UP),
    _paper("Fourier modes of the data", setup.FIELD_MODES, _DATA),
    _ours("how the data are cut to them", "Galerkin truncation", "not printed; the cut that keeps mass and energy"),
    _ours("domain", "[0, 2 pi), periodic", "not printed; that of Fourier modes"),
    _paper("discretisation", "conserves mass and energy", f"{_DATA}: the method of van Gastelen et al. (2024)"),
    _ours("advection speed", _SOLVER.speed, "the paper adds a constant linear advection and does not print its speed"),
    _ours("time stepping", f"implicit midpoint, dt = {_SOLVER.step:g}", "keeps the energy to 1e-10; not printed"),
    _paper("initial state", "random Fourier coefficients, power-law decay", _DATA),
    _ours("exponent of the decay", "-1.5", "not printed; fields that are smooth at first and steepen in time"),
    _ours(
        "amplitude of the fluctuation",
        f"{_A.amplitude:g} (A), {_B.amplitude:g} (B)",
        "not printed, and what matters most: it decides how steep the field is at H; a smooth and a steep case",
    ),
    _ours("mean of a field", "N(0, amplitude^2)", "not printed; with a mean of zero the mass would be no constraint"),
    _paper("training trajectories", _TRAINING.trajectories, _DATA),
    _paper("snapshots of each", setup.SNAPSHOTS, _DATA),
    _paper("time units of a training trajectory", f"{setup.RECORDED:g}", _DATA),
    # The network.
    _paper("latent", f"the first {setup.MODES} Fourier modes", _NET),
    _ours("whether the mean is one of them", "yes: modes 0 to 9, 19 numbers", "not printed; without it no mass"),
    _ours(
        "scale of a latent",
        "each coefficient by its own size",
        "not printed; rho means nothing without it; one scale for all is a table beside",
    ),
    _paper("network", "fully connected, depth 3, width 128, cosine time embedding", _NET),
    _ours("our network beside it", "the same as a correction of the Gaussian score", "lower held-out loss"),
    _ours("activation, time features", "SiLU, 32", "not printed; common choices"),
    _paper("epochs", _TRAINING.epochs, _NET),
    _ours("optimiser", "Adam 1e-3, cosine decay, batch 256, averaged weights 0.999", "not printed; common choices"),
    _paper("diffusion", "DDPM", _NET),
    _paper("diffusion steps", _RUNS.steps, _NET),
    _ours("beta schedule", f"linear, {float(BETAS[0]):g} to {float(BETAS[-1]):g}", "not printed; that of Ho et al."),
    _ours("noise of a DDPM step", "posterior variance", "(B.6) prints sigma^2 = beta"),
    # Assimilation.
    _paper("horizon H", f"{_A.horizon:g}", _SET_UP),
    _paper("observation times", setup.TIMES, _SET_UP),
    _paper("points that are seen", f"{len(setup.SITES)}, evenly spaced", _SET_UP),
    _paper("cycles", cycle.CYCLES, _SET_UP),
    _ours("observation times in a cycle", cycle.WINDOW, "ten times in five cycles"),
    _ours("time of the analysis", "the first of a cycle", "not printed; the second is compared with the forecast"),
    _paper("samples whose mean is the analysis", cycle.MEMBERS, _SET_UP),
    _paper("trajectories", _RUNS.trajectories, _SET_UP),
    _ours("noise of the observations", f"{_A.noise:g} of the amplitude", "not printed"),
    _paper("forecast", "linear and biased, the same for all methods", _SET_UP),
    _ours("its speed", cycle.SPEED, f"not printed; the truth has {_SOLVER.speed:g}"),
    _ours("its damping", f"exp(-{_A.damping:g} t)", "not printed; a forecast loses what it does not know"),
    _ours("background covariance B", f"diag(({cycle.BACKGROUND:g} sigma_j)^2)", "not printed"),
    _ours("first background", "zero", "not printed; the mean of the training data"),
    _paper("how the diffusion model is conditioned", "combined with the Gaussian posterior", _SET_UP),
    _ours(
        "how it is combined",
        "climatology divided out, exact for a Gaussian prior",
        "the paper's sentence does not say; without it the prior would count twice",
    ),
    _paper("mass and energy of the set", "those of the truth", "section 5.2, constraint"),
    # Methods.
    _paper("rho", f"{RHO:g}", _NET),
    _paper("tau", "the step of the diffusion at its time", "Algorithm 2"),
    _paper("dual step of Algorithm 2", "tau", "Algorithm 2"),
    Origin(
        "dual step of the released update", f"{ETA:g}", "script", "example_particle.py, 904d4d2; of another experiment"
    ),
    _paper("projected diffusion", "through the decoder, A^+ P A", _BASE),
    _paper("projection of the paper", "alternating, onto plane and sphere", "C.3, constraints"),
    _ours("its tolerance, in the cost table", f"{cost.TOLERANCE:g}", "not printed"),
    _ours("projection of all other tables", "closed form", "the same point, without sweeps"),
    _paper("observations of baselines", "by PSLD, or as a strict constraint", _BASE),
    _ours(
        "weight and gluing of PSLD",
        f"tuned over {len(observed.SETTINGS)} settings",
        "not printed; on other trajectories, gluing 0 or 0.1 of the weight as in Rout et al.",
    ),
    _ours("which observations are strict", "those at the time of the analysis", "later ones pass a biased forecast"),
    _ours("penalty weight", f"tuned over {WEIGHTS[0]:g} to {WEIGHTS[-1]:g}", "not printed; on other trajectories"),
    _ours("trajectories for tuning", _RUNS.tuning, "of a seed that is never reported"),
    _ours("ensemble Kalman filter", f"{cycle.KALMAN_MEMBERS} members, model error tuned", "not in the paper"),
    _paper("starts of lambda", ", ".join(f"{sigma:g}" for sigma in SIGMAS), _ABLATION),
    _paper("chains of that study", FULL.chains, _ABLATION),
    _ours("unit of lambda", "root mean square of a field = 1", "not printed; the norm of the decoder = 1 beside"),
    # Set-ups "noise" and "steep".
    _paper("error of Algorithm 2 they have", f"{calibrated.ERROR:g}", _ABLATION),
    _ours("amplitudes tried", ", ".join(f"{a:g}" for a in calibrated.AMPLITUDES), "the largest that stays below"),
    _ours("noise", "by bisection", f"on {_RUNS.trajectories} trajectories of a seed that is never reported"),
    # Set-up C.
    _ours("set-up C", f"three regimes of size {regimes.WITHIN:g}, one sensor of noise {regimes.SENSOR:g}", "not there"),
    _ours("truths, chains", f"{FULL.regimes.truths}, {FULL.regimes.n}", "an exact distribution to compare with"),
    _ours("draws for its network", learned.DRAWS, "a prior that is nearly exact"),
)
"""One row for each constant. The released scripts that we know are of other experiments."""
