"""Networks that are scores and denoisers, their training and their files.

``MLP(2)`` is the paper's network; ``train_ddpm(net, data, betas, epochs=200, checkpoint="run.safetensors")`` trains it
and returns a report with the held-out loss per noise level beside a Gaussian's; ``casal.ddpm(net, betas, shape=(2,))``
samples from it. ``WienerMLP.fit(data, betas)`` is the same network as a correction of the Gaussian: better at every
noise level, trained and used in the same way. ``WienerUNet.fit(fields)`` and ``train_denoiser`` are for fields.
"""

from casal.lab.nets.augment import random_flips
from casal.lab.nets.checkpoint import load, save
from casal.lab.nets.embedding import cosine_features
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.held_out import compare_ddpm, compare_denoiser
from casal.lab.nets.mlp import MLP
from casal.lab.nets.probability_flow import ProbabilityFlow
from casal.lab.nets.report import LevelLosses, TrainingReport
from casal.lab.nets.standardise import Standardise
from casal.lab.nets.training import split, train_ddpm, train_denoiser
from casal.lab.nets.unet import UNet
from casal.lab.nets.wiener import WienerUNet
from casal.lab.nets.wiener_mlp import WienerMLP

__all__ = [
    "MLP",
    "Gaussian",
    "LevelLosses",
    "ProbabilityFlow",
    "Standardise",
    "TrainingReport",
    "UNet",
    "WienerMLP",
    "WienerUNet",
    "compare_ddpm",
    "compare_denoiser",
    "cosine_features",
    "load",
    "random_flips",
    "save",
    "split",
    "train_ddpm",
    "train_denoiser",
]
