"""Cyclic assimilation: five windows of two observation times, a biased linear forecast, three kinds of analysis.

They are 3D-Var, a diffusion prior, and the ensemble Kalman filter that users of the field would try first.

The analysis of a window is at its first time; the second observation is compared with the forecast from there. With b
the forecast of the analysis before (zero at first), B = diag((0.7 sigma_j)^2) and R the noise of the observations,

    P^-1 = B^-1 + G^T R^-1 G,   P^-1 m = B^-1 b + G^T R^-1 y,   G = [H; H L(dt)],

in Fourier coefficients. The diffusion prior knows the climatology N(0, diag(sigma^2)) already, so it is divided out,

    P'^-1 = P^-1 - diag(sigma^-2),   m' = P' P^-1 m,

and m' enters as an observation of x0 with covariance P': score + sqrt(abar) (P' + (1 - abar) I)^-1 (m' - x0_hat). For
a Gaussian prior N(0, I) that is exact, and returns N(m, P).

The paper has two more ways for the observations to enter (C.3):

- PSLD (Rout et al. 2023, ``casal.latent_posterior``): only the background enters as a Gaussian; the observations by the
  gradients of two norms of the denoised latent D. Our decoder is linear and our encoder its pseudo-inverse, so that
  A^+ A = I, and the gluing term is |D - A^+ (A D + H^+ g)| = |A^+ H^+ g| with g = y - H A D: the same misfit again, in
  a norm that weighs mode j by 1/sigma_j. It adds no information; it only counts the small modes for more.
- strictly: the first observations of a window become equations z_k = y_k, beside mass and energy. On that set their
  likelihood is constant, so that it may stay in the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import Constraint, ObservedMassEnergy, PerChain, Run, Target, latent_posterior, sample
from casal.streams import stream
from casal.targets import along, levels_of
from casal_lab.burgers.setup import (
    BASIS,
    DIMENSION,
    MODES,
    POINTS,
    SITES,
    Conserved,
    ConservedLatents,
    Model,
    Setup,
    Truth,
    nearest_field,
)
from casal_lab.experiment import AnyMethod

CYCLES, WINDOW = 5, 2
MEMBERS = 5
SPEED = 0.45
"""Of the forecast; the truth has 0.5 and steepens."""

BACKGROUND = 0.7
KALMAN_MEMBERS = 40
INFLATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Sizes of the Kalman filter's model error that are tried, in units of sigma."""


def forecast(time: float, damping: float) -> Tensor:
    """L (19, 19): coefficients shifted by 0.45 time and damped by exp(-damping time)."""
    angle = torch.arange(MODES, dtype=torch.float64) * (SPEED * time)
    matrix = torch.zeros((DIMENSION, DIMENSION), dtype=torch.float64)
    cosines, sines = torch.arange(MODES), torch.arange(MODES, DIMENSION)
    matrix[cosines, cosines] = angle.cos()
    matrix[sines, sines] = angle[1:].cos()
    matrix[cosines[1:], sines] = -angle[1:].sin()
    matrix[sines, cosines[1:]] = angle[1:].sin()
    return math.exp(-damping * time) * matrix


@dataclass(frozen=True, eq=False)
class Gaussian3DVar:
    """Everything of 3D-Var that does not depend on the data."""

    setup: Setup  # times, noise, damping
    sigma: Tensor  # size of every coefficient, (19,)

    @cached_property
    def seen(self) -> Tensor:
        """G (8, 19): both observations of a window from the state at its first time."""
        H = BASIS[list(SITES)]
        return torch.cat([H, H @ forecast(self.setup.spacing, self.setup.damping)])

    @property
    def noise(self) -> float:
        """Standard deviation of an observation."""
        return self.setup.noise * self.setup.amplitude

    @cached_property
    def prior_precision(self) -> Tensor:
        """B^-1."""
        return torch.diag((BACKGROUND * self.sigma).pow(-2))

    @cached_property
    def precision(self) -> Tensor:
        """P^-1, the same in every window."""
        return self.prior_precision + self.seen.T @ self.seen / self.noise**2

    @cached_property
    def covariance(self) -> Tensor:
        """P."""
        return torch.linalg.inv(self.precision)

    def observed(self, truth: Truth, window: int) -> Tensor:
        """Both observations of a window, (n, 8)."""
        return torch.cat([truth.observed[WINDOW * window + k] for k in range(WINDOW)], dim=1)

    def mean(self, background: Tensor, observed: Tensor) -> Tensor:
        """m (n, 19)."""
        right = background @ self.prior_precision + observed @ self.seen / self.noise**2
        return torch.linalg.solve(self.precision, right.T).T

    def next_background(self, analysis: Tensor) -> Tensor:
        """The forecast from one window to the next."""
        return analysis @ forecast(WINDOW * self.setup.spacing, self.setup.damping).T

    def divided(self, precision: Tensor) -> tuple[Tensor, Tensor]:
        """P', and P' P^-1, which takes m to m': of the analysis (``precision``) or of the background alone."""
        other = torch.linalg.inv(precision - torch.diag(self.sigma.pow(-2)))
        other = (other + other.T) / 2
        return other, other @ precision

    @cached_property
    def seen_on_grid(self) -> Tensor:
        """Both observations of a window from its first field, (8, points): four of its values, four of the forecast."""
        return torch.cat([torch.eye(POINTS, dtype=torch.float64)[list(SITES)], self.seen[len(SITES) :] @ BASIS.T])


def guided(prior: Target, mean: Tensor, covariance: Tensor) -> Target:
    """score + alpha (P' + sigma^2 I)^-1 (m' - x0_hat), with x0_hat = (x + sigma^2 score) / alpha; alpha = sqrt(abar).

    ``prior`` is a variance-preserving diffusion on the latent, ``mean`` m' of every chain (n, d), which is a condition
    of the target, ``covariance`` P'.
    """
    levels = levels_of(prior)
    values, vectors = torch.linalg.eigh(covariance)

    def score(x: Tensor, t: Tensor, /, analysis: Tensor) -> Tensor:
        scale, size = (along(level, x) for level in levels(t))
        free, basis = prior.score(x, t), vectors.to(x)
        gap = analysis.to(x) - (x + size.square() * free) / scale
        return free + scale * ((gap @ basis / (values.to(x) + size.square())) @ basis.T)

    name = f"{prior.name} given an analysis"
    return replace(prior, score=score, denoise=None, condition={"analysis": mean}, name=name)


class Window(NamedTuple):
    """What is known in a window."""

    number: int  # 0 .. 4
    background: Tensor  # b, coefficients (n, 19)
    observed: Tensor  # y, both observations (n, 8)
    mean: Tensor  # m, coefficients (n, 19)


Analyse = Callable[[Window, Truth], Tensor]
"""A window -> fields (members, n, points)."""


class PSLD(NamedTuple):
    """Weights of the observations and of the gluing."""

    weight: float
    gluing: float


def diffusion(
    model: Model,
    method: AnyMethod,  # how the set enters
    steps: int,  # of the diffusion
    seed: int,  # of the noise; the same for every method, so that they can be compared in pairs
    *,
    in_latent: bool = False,  # give the method the set of latents instead of the decoder
    members: int = MEMBERS,  # samples whose mean is the analysis
    psld: PSLD | None = None,  # let the observations enter by PSLD
    strict: bool = False,  # let the first observations of a window be equations of the set
    conserve: bool = True,  # mass and energy are in the set
) -> Analyse:
    """Members by a method of the library; all trajectories in one run, each with its own mass, energy and m'."""
    variational, prior = Gaussian3DVar(model.setup, model.sigma), model.prior(steps)
    spread, take = variational.divided(variational.precision if psld is None else variational.prior_precision)
    inverse, unit = 1.0 / model.scale, model.unit

    def analyse(window: Window, truth: Truth) -> Tensor:
        given = window.mean if psld is None else window.background
        chains = (given @ take.T * inverse).repeat(members, 1)
        target = guided(prior, chains, inverse[:, None] * spread * inverse)
        seen = window.observed.repeat(members, 1) / unit
        if psld is not None:
            target = latent_posterior(
                target,
                model.decoder,
                lambda z: model.decoder.pinv(z, (DIMENSION,)),
                variational.seen_on_grid,
                seen,
                weight=psld.weight,
                gluing=psld.gluing,
            )
        mass, energy, n = truth.mass.repeat(members), truth.energy.repeat(members), members * len(truth)
        # In float64, so that z is in the range of the decoder to the last digit; the network stays in float32.
        how = Run(batch=n, threads=1, dtype=torch.float64)
        options: dict[str, Any] = {"seed": seed * CYCLES + window.number, "run": how}
        if in_latent:
            latents = ConservedLatents(model.scale, PerChain(mass), PerChain(energy), POINTS)
            x = sample(target, latents, method, n, **options).samples
            fields = (x * model.scale) @ BASIS.T
        else:
            inside: Constraint = Conserved(PerChain(mass / unit), PerChain(energy / unit**2))
            if strict:
                values = PerChain(seen[:, : len(SITES)])
                known = (PerChain(mass / unit), PerChain(energy / unit**2)) if conserve else ()
                inside = ObservedMassEnergy(SITES, values, *known)
            z = sample(target, inside, method, n, decoder=model.decoder, **options).samples
            fields = z * unit
        return fields.reshape(members, len(truth), POINTS)

    return analyse


def assimilate(variational: Gaussian3DVar, truth: Truth, analyse: Analyse) -> Tensor:
    """All windows of a method that goes on from its own mean: members (5 windows, members, n, points)."""
    background = torch.zeros((len(truth), DIMENSION), dtype=torch.float64)
    windows = []
    for number in range(CYCLES):
        observed = variational.observed(truth, number)
        window = Window(number, background, observed, variational.mean(background, observed))
        members = analyse(window, truth)
        windows.append(members)
        background = variational.next_background(members.mean(0) @ BASIS)
    return torch.stack(windows)


def kalman(
    variational: Gaussian3DVar,
    truth: Truth,
    inflation: float,  # size of the model error, in units of sigma
    seed: int,  # of members and noise
    *,
    project: bool = False,  # bring every analysed member to its mass and energy
) -> Tensor:
    """x_i <- x_i + B G^T (G B G^T + R)^-1 (y + noise_i - G x_i),   B the covariance of the ensemble;

    then x_i <- L x_i + inflation sigma w_i, since the forecast is biased. Members (5 windows, 40, n, points).
    """
    generator = stream(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n, G, sigma = len(truth), variational.seen, variational.sigma
    members = BACKGROUND * sigma * normal(KALMAN_MEMBERS, n, DIMENSION)
    windows = []
    for number in range(CYCLES):
        offset = members - members.mean(0)
        covariance = torch.einsum("mni,mnj->nij", offset, offset) / (KALMAN_MEMBERS - 1)
        across = covariance @ G.T
        inner = G @ across + variational.noise**2 * torch.eye(len(G), dtype=torch.float64)
        observed = variational.observed(truth, number) + variational.noise * normal(KALMAN_MEMBERS, n, len(G))
        gain = torch.linalg.solve(inner, across.mT).mT
        members = members + torch.einsum("nij,mnj->mni", gain, observed - members @ G.T)
        fields = members @ BASIS.T
        if project:
            fields = nearest_field(fields, truth.mass, truth.energy)
            members = fields @ BASIS
        windows.append(fields)
        members = variational.next_background(members) + inflation * sigma * normal(KALMAN_MEMBERS, n, DIMENSION)
    return torch.stack(windows)
