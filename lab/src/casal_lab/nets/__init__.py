"""Networks that are scores and denoisers, their training and their files.

``MLP(2)`` is the paper's network; ``train_ddpm(net, data, betas, epochs=200, checkpoint="run.safetensors")`` trains it
and returns a report with the held-out loss per noise level beside a Gaussian's; ``casal.ddpm(net, betas, shape=(2,))``
samples from it. ``WienerMLP.fit(data, betas)`` is the same network as a correction of the Gaussian: better at every
noise level, trained and used in the same way. ``WienerUNet.fit(fields)`` and ``train_denoiser`` are for fields.
``NoiseConditionalMLP`` is a score of all noise levels for vectors, ``EnergyMLP`` an energy.
"""

from casal_lab.nets.checkpoint import load, save
from casal_lab.nets.energy import EnergyMLP, train_energy
from casal_lab.nets.evaluation import LevelLosses, ProbabilityFlow, compare_ddpm, compare_denoiser
from casal_lab.nets.events import Standardise, signal_and_noise
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.mlp import MLP, cosine_features
from casal_lab.nets.noise_conditional import NoiseConditionalMLP
from casal_lab.nets.training import TrainingReport, random_flips, split, train_ddpm, train_denoiser
from casal_lab.nets.unet import UNet
from casal_lab.nets.wiener import WienerMLP, WienerUNet

__all__ = [
    "MLP",
    "EnergyMLP",
    "Gaussian",
    "LevelLosses",
    "NoiseConditionalMLP",
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
    "signal_and_noise",
    "split",
    "train_ddpm",
    "train_denoiser",
    "train_energy",
]
