"""Where the constants of the quadrotor experiment come from: the paper gives the network, not the flights."""

from __future__ import annotations

from casal_lab.experiment import Origin
from casal_lab.physics import quadrotor as physics
from casal_lab.problems.families import BETAS
from casal_lab.quadrotor.methods import BATCH, GRIDS, METHODS, RHO, STEPS
from casal_lab.quadrotor.paths import ITERATIONS
from casal_lab.quadrotor.runs import FULL, VALIDATION
from casal_lab.quadrotor.scenes import ALLOWED, WINDOWS
from casal_lab.quadrotor.setup import FLIGHTS, MODES, RATE, Training

ORIGINS = (
    Origin("samples of a flight", f"{physics.STEPS}", "paper", "section C.4"),
    Origin("time between samples", f"{physics.INTERVAL:g} s", "paper", "section C.4"),
    Origin("dynamics", "linear, at rest at first, bounded input", "paper", "section C.4"),
    Origin("model of the vehicle", "y'' = g u, u the tilt", "ours", "the paper says: controlled in acceleration angle"),
    Origin(
        "largest tilt u_max",
        f"{physics.TILT:g} rad",
        "ours",
        "the paper has u_max without a value; half a radian is where the linearisation ends",
    ),
    Origin("flights to learn from", f"{FLIGHTS}", "ours", "the paper gives no number"),
    Origin(
        "excitations",
        "sums of three sines, 0.2 to 1.5 Hz",
        "ours",
        "the paper says: a variety of random periodic excitations",
    ),
    Origin("latent", f"first {MODES} Fourier modes", "paper", "section C.4; we encode the input, not input and path"),
    Origin("network", "fully connected, depth 3, width 128, cosine embedding of time", "paper", "section C.4"),
    Origin("epochs", f"{Training().epochs}", "paper", "section C.4"),
    Origin("learning rate", f"{RATE:g}", "ours", "the paper gives none"),
    Origin("diffusion steps", f"{STEPS}", "paper", "section C.4"),
    Origin("beta", f"{float(BETAS[0]):g} to {float(BETAS[-1]):g}, linear", "ours", "the usual one of DDPM"),
    Origin("rho", f"{RHO:g}", "paper", "section C.4, in units that it does not give; ours has one per sd of a channel"),
    Origin(
        "rho of our variant",
        "30",
        "ours",
        f"the best of 10, 30, 100 and 300 on the validation scene (r = {VALIDATION:g})",
    ),
    Origin("obstacles", "segments with a way above and below", "paper", "section C.4"),
    Origin("places of the obstacles", f"samples {', '.join(f'{a} to {b}' for a, b in WINDOWS)}", "ours", "figure only"),
    Origin("sizes r", ", ".join(f"{r:g}" for r in FULL.radii), "ours", "the paper has an axis without a unit"),
    Origin("flights a point", "10000", "paper", "section 5.3; the docs page is from a shorter run and says so"),
    Origin("solver", f"ADMM, {ITERATIONS} iterations", "ours", "the paper names ADMM and Dykstra, no number"),
    Origin("success", f"at most {ALLOWED:g} m inside an obstacle", "ours", "the paper gives no tolerance"),
    Origin(
        "penalty, projected, DPS",
        ", ".join(f"{len(grid)} settings of {name}" for name, grid in GRIDS.items()),
        "ours",
        "the paper gives no settings of its baselines; the best on the validation scene",
    ),
    Origin("chains of a population", f"{BATCH}", "ours", "methods that resample; not in the paper"),
    Origin("SplitGibbs, Twisted", f"{METHODS['SplitGibbs'].method}; {METHODS['Twisted'].method}", "ours", "see above"),
)
"""One row a constant."""
