"""A network that was trained for a few seconds: can a right sampler be trusted on it, and is a wrong one seen?

The data are Gaussian, so that the exact answer is known: A x = b leaves N(m, C) in closed form. The network is poor at
small noise, where its score is error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import casal
from casal.diagnostics import Evidence, Fidelity, assess
from casal.methods import Problem
from casal_lab.problems.hostile import Gaussian, rotated, spectrum

SIZE, WIDTH, STEPS, BATCH = 8, 96, 3000, 256
"""Of the data and the network, and of its training: 3 seconds of processor time."""

FINEST, SPREAD = 0.02, 0.6
"""The finest noise level of the model, and the spread of the data in the scaling of the network."""

ROW, LEVEL = torch.ones(1, SIZE), 1.0


@cache
def data() -> Gaussian:
    """Variances from 0.03 to 1 along random axes."""
    return rotated(spectrum(10**-1.5, SIZE), torch.zeros(SIZE, dtype=torch.float64), seed=77)


@cache
def trained() -> casal.Target:
    """The model, after a short training with a fixed seed."""
    generator, p = torch.Generator().manual_seed(0), data()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(SIZE + 1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, SIZE)
        )

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        s = sigma.to(x).reshape(-1, 1).expand(len(x), 1)
        whole = (s.square() + SPREAD**2).sqrt()
        found: Tensor = net(torch.cat([x / whole, s.log() / 4], 1))
        return (SPREAD / whole).square() * x + s * SPREAD / whole * found

    root = (p.axes * p.variances.sqrt()).float()
    best = torch.optim.Adam(net.parameters(), 3e-3)
    rate = torch.optim.lr_scheduler.LinearLR(best, 1.0, 0.003, STEPS)
    with torch.enable_grad():
        for _ in range(STEPS):
            x, w = (torch.randn((BATCH, SIZE), generator=generator) for _ in range(2))
            x, s = x @ root.T, torch.exp(1.4 * torch.randn((BATCH, 1), generator=generator) - 1.2)
            weight = (s.square() + SPREAD**2) / (s * SPREAD).square()
            loss = ((denoise(x + s * w, s) - x).square() * weight).mean()
            best.zero_grad()
            loss.backward()
            best.step()
            rate.step()
    for weights in net.parameters():
        weights.requires_grad_(False)
    return casal.edm(denoise, casal.karras_sigmas(30, FINEST, 20.0), shape=SIZE)


def run(method: casal.Method[Any], n: int, seed: int) -> tuple[Fidelity, float]:
    """The verdict of one run, of the checks alone where nothing is promised; and the largest error of a mean."""
    p, target, plane = data(), trained(), casal.Affine(ROW, LEVEL)
    result = casal.sample(target, plane, method, n, seed=seed)
    told = result.fidelity
    if told.verdict == "not promised":
        problem = Problem(target, plane, casal.Identity(), torch.zeros(0, SIZE))
        told = assess(Evidence(result, problem, 450.0, 450.0), promised=True)
    a = ROW[0].to(torch.float64)
    gain = p.covariance @ a / (a @ p.covariance @ a)
    values, axes = torch.linalg.eigh(p.covariance - torch.outer(gain, a @ p.covariance))
    off = (result.samples.to(torch.float64).mean(0) - LEVEL * gain) @ axes[:, 1:] / values[1:].sqrt()
    return told, float(off.abs().max())
