"""Where the constants that the three equations share come from."""

from __future__ import annotations

from casal_lab.experiment import Origin
from casal_lab.reconstruction.methods import SETTINGS
from casal_lab.reconstruction.models import BETAS, LOWEST, TRAINED
from casal_lab.reconstruction.prior import Training
from casal_lab.reconstruction.whole_run import Plan


def shared(plan: Plan, training: Training, samples: Origin) -> tuple[Origin, ...]:
    """Of a full run of one equation; ``samples`` is the number of samples of a case."""
    gaussian, network = plan.scales[0]
    return (
        samples,
        Origin("cases", f"{gaussian.cases}", "ours", "the paper gives no number; differences are paired"),
        Origin("diffusion steps", f"{gaussian.effort.steps} (Gaussian), {network.effort.steps} (network)", "ours", "-"),
        Origin("beta", f"{float(BETAS[0]):g} to {float(BETAS[-1]):g}, {len(BETAS)} levels", "ours", "usual for DDPM"),
        Origin("noise levels near the data", f"down to {LOWEST:g}", "ours", "half of the settings of a tuned method"),
        Origin("settings of a tuned method", f"{SETTINGS}", "ours", "chosen on other cases; the paper gives none"),
        Origin("rho", "by the pull of a step, tuned", "ours", "the paper gives none for these experiments"),
        Origin("network", "UNet that corrects a Wiener filter", "ours", "the paper says: all methods share a network"),
        Origin("training fields", f"{training.fields}", "ours", "the paper gives no number"),
        Origin("updates of the network", f"{training.iterations}", "ours", "a minute of one core"),
        Origin("noise levels of training", f"{TRAINED[0]:g} to {TRAINED[1]:g}", "ours", "latents are of unit size"),
    )
