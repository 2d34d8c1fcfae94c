"""Two trained families: an energy-based model and an annealed score network, on draws of the mixture.

Beside them stand the same families with exact networks (``problems.families``), so that the error of a network
can be told from that of a sampler. On a set the energy-based model has a distribution of its own, whose mode weights
are found by quadrature: how far they are from those of the mixture is the part that no sampler can mend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from casal import Target, annealed, energy
from casal_lab.artifacts import network
from casal_lab.nets import EnergyMLP, NoiseConditionalMLP, train_denoiser, train_energy
from casal_lab.problems.families import ANNEALED_SIGMAS, ANNEALED_STEP, LANGEVIN_STEP, annealed_start, steps_per_level
from casal_lab.problems.three_modes import MIXTURE, SetCase

DRAWS = 50_000
"""Draws of the mixture that the networks see."""

ITERATIONS = {False: 6000, True: 300}
"""Updates of a network in a full and in a quick run."""


def draws() -> Tensor:
    """The training data."""
    return MIXTURE.sample(DRAWS, torch.Generator().manual_seed(0)).float()


def energy_network(iterations: int) -> EnergyMLP:
    """The energy, from the cache or trained now."""

    def make() -> EnergyMLP:
        net = EnergyMLP(2)
        train_energy(net, draws(), iterations=iterations)
        return net

    return cast(EnergyMLP, network(f"mixture_energy_{iterations}", make, [EnergyMLP]))


def score_network(iterations: int) -> NoiseConditionalMLP:
    """The score of all noise levels, from the cache or trained now."""

    def make() -> NoiseConditionalMLP:
        data = draws()
        ends = float(ANNEALED_SIGMAS[-1]), float(ANNEALED_SIGMAS[0])
        net = NoiseConditionalMLP(2, sigmas=ends, size=float(data.square().mean().sqrt()))
        train_denoiser(net, data, ends, iterations=iterations, batch_size=1024, weight_decay=0.0, progress=False)
        return net

    found = network(f"mixture_annealed_{iterations}", make, [NoiseConditionalMLP])
    return cast(NoiseConditionalMLP, found.requires_grad_(False))


def energy_based(steps: int, iterations: int) -> Target:
    """Langevin dynamics on the trained energy; the chains start as draws of the data, as those of "langevin" do."""
    net = energy_network(iterations).requires_grad_(False)
    return energy(net, steps=steps, step_size=LANGEVIN_STEP, init=lambda n, g: MIXTURE.sample(n, g).float())


def annealed_score(steps: int, iterations: int) -> Target:
    """Annealed Langevin dynamics on the trained score, with the levels and steps of "annealed"."""
    return annealed(
        score_network(iterations).score,
        ANNEALED_SIGMAS,
        steps_per_level=steps_per_level(steps),
        step_size=ANNEALED_STEP,
        init=annealed_start(MIXTURE.dimension),
    )


ENERGY = "energy-based, trained"

TRAINED: dict[str, Callable[[int, int], Target]] = {ENERGY: energy_based, "annealed, trained": annealed_score}
"""(score evaluations, iterations of the training) -> target."""


def own_error(case: SetCase, net: EnergyMLP) -> float:
    """Total variation between the mode weights of the energy-based model on a set and those of the mixture there.

    Weights of a density q on a set are the integral of P(mode | z) q(z) / integral of q, by quadrature on a grid.
    """
    z = case.grid_points()
    weight = torch.softmax(-net(z.float()).to(torch.float64), 0)
    found = weight @ MIXTURE.responsibilities(z)
    return float((found - case.exact.weights).abs().sum()) / 2
