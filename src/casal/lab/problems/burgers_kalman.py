"""The ensemble Kalman filter that users of the field would try first: stochastic, all trajectories at once."""

from __future__ import annotations

import torch

from casal.lab.problems.burgers_cycle import BACKGROUND, CYCLES, Gaussian3DVar
from casal.lab.problems.burgers_sets import nearest_field
from casal.lab.problems.burgers_setup import BASIS, DIMENSION, Truth
from casal.sampling import generator as stream

MEMBERS = 40
INFLATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Sizes of the model error that are tried, in units of sigma."""


def kalman(
    variational: Gaussian3DVar, truth: Truth, inflation: float, seed: int, *, project: bool = False
) -> torch.Tensor:
    """x_i <- x_i + B G^T (G B G^T + R)^-1 (y + noise_i - G x_i),   B the covariance of the ensemble;

    then x_i <- L x_i + inflation sigma w_i, since the forecast is biased. Members (5 windows, 40, n, points).

    Args:
        variational: Observations and forecast.
        truth: What is observed.
        inflation: Size of the model error, in units of sigma.
        seed: Of members and noise.
        project: Whether to bring every analysed member to its mass and energy.
    """
    generator = stream(seed, 0, torch.device("cpu"))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n, G, sigma = len(truth), variational.seen, variational.sigma
    members = BACKGROUND * sigma * normal(MEMBERS, n, DIMENSION)
    windows = []
    for number in range(CYCLES):
        offset = members - members.mean(0)
        covariance = torch.einsum("mni,mnj->nij", offset, offset) / (MEMBERS - 1)
        across = covariance @ G.T
        inner = G @ across + variational.noise**2 * torch.eye(len(G), dtype=torch.float64)
        observed = variational.observed(truth, number) + variational.noise * normal(MEMBERS, n, len(G))
        gain = torch.linalg.solve(inner, across.mT).mT
        members = members + torch.einsum("nij,mnj->mni", gain, observed - members @ G.T)
        fields = members @ BASIS.T
        if project:
            fields = nearest_field(fields, truth.mass, truth.energy)
            members = fields @ BASIS
        windows.append(fields)
        members = variational.next_background(members) + inflation * sigma * normal(MEMBERS, n, DIMENSION)
    return torch.stack(windows)
