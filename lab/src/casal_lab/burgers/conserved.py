"""Mass and energy, each chain with its own: in the decoded space, and seen from the latent.

With c the Fourier coefficients of z, sum z = sqrt(N) c_0 and |z|^2 = |c|^2 for z in the range of F. So in the latent
C is c_0 = M / sqrt(N) and |(c_1 ..)|^2 = r^2 = E - M^2 / N, and the least of a quadratic on it is a secular equation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal import Constraint, MassEnergy, PerChain
from casal.errors import InfeasibleSet

SWEEPS = 60


def radius(mass: Tensor, energy: Tensor, size: int) -> Tensor:
    """r = sqrt(E - M^2 / N), (n,)."""
    square = energy - mass.square() / size
    if not bool((square > 0).all()):
        raise InfeasibleSet(f"energy {float(energy.min()):g} below mass^2 / N: no field has so little")
    return square.sqrt()


def nearest_field(u: Tensor, mass: Tensor, energy: Tensor) -> Tensor:
    """The nearest fields of mass M_i and energy E_i, for fields (..., n, N) with (n,) masses and energies."""
    fields = u.reshape(-1, u.shape[-1])
    copies = len(fields) // len(mass)
    inside = MassEnergy(PerChain(mass.repeat(copies)), PerChain(energy.repeat(copies)))
    return inside.project(fields).reshape(u.shape)


class Conserved(MassEnergy):
    """Mass and energy of each chain, its residual ((sum z - M) / sqrt(N), |z|^2 - E): both of the size of z.

    A penalty on the residual then weighs both alike.
    """

    def equations(self, z: Tensor) -> Tensor:
        return super().equations(z) * z.new_tensor([z.shape[1] ** -0.5, 1.0])

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor:
        return (z * (2.0 * weights[:, 1:])).add_(weights[:, :1] / math.sqrt(z.shape[1]))


def errors(z: Tensor, mass: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """|sum z - M| / (sqrt(N E) + |M|) and | |z|^2 - E | / E, for fields (..., n, N)."""
    size = z.shape[-1]
    off = (z.sum(-1) - mass).abs() / ((size * energy).sqrt() + mass.abs())
    return off, (z.square().sum(-1) - energy).abs() / energy


def least_on_sphere(precision: Tensor, mean: Tensor, length: Tensor) -> Tensor:
    """argmin (v - m)^T K (v - m) over |v| = r: v = (K + nu I)^-1 K m, nu > -k_min with |v| = r.

    1/|v| grows with nu and is concave, so Newton's steps from the left of the one root never pass it; the root is the
    global minimum. If m has no part along the softest direction (the "hard case"), |v| may be below r for every nu;
    that part of v then makes up for it.

    Args:
        precision: K (d, d), positive definite.
        mean: m (n, d).
        length: r (n,), positive.

    References:
        More and Sorensen (1983), Computing a trust region step.
    """
    values, vectors = torch.linalg.eigh(precision)
    pull = (mean @ vectors) * values
    gaps = values - values[0]
    nu = (pull.abs() / length[:, None] - gaps).amax(1).clamp_min(1e-14 * float(values[0]))
    for _ in range(SWEEPS):
        v = pull / (gaps + nu[:, None])
        square = v.square().sum(1)
        slope = (v.square() / (gaps + nu[:, None])).sum(1)
        rise = (square / slope.clamp_min(1e-300)) * (square.sqrt() / length - 1.0)
        nu = nu + rise.clamp_min(0.0)
        if bool((rise <= 1e-15 * (nu + values[0])).all()):
            break
    found = pull / (gaps + nu[:, None])
    rest = (length.square() - found[:, 1:].square().sum(1)).clamp_min(0.0).sqrt()
    found[:, 0] = torch.where(pull[:, 0] < 0, -rest, rest)
    found = found * (length / torch.linalg.vector_norm(found, dim=1))[:, None]
    return found @ vectors.T


def least_conserving(precision: Tensor, mean: Tensor, mass: Tensor, energy: Tensor, size: int) -> Tensor:
    """argmin (c - m)^T K (c - m) over coefficients c (n, d) of the given mass and energy on ``size`` points.

    c_0 is fixed by the mass; what is left is a Gaussian given c_0, on a sphere.
    """
    first = mass / math.sqrt(size)
    inner = precision[1:, 1:]
    given = mean[:, 1:] - (first - mean[:, 0])[:, None] * torch.linalg.solve(inner, precision[1:, 0])
    return torch.cat([first[:, None], least_on_sphere(inner, given, radius(mass, energy, size))], dim=1)


class ConservedLatents(Constraint):
    """{x : the field with coefficients scale_j x_j has mass M_i and energy E_i}, its nearest point in x.

    Args:
        scale: (d,).
        mass: M_i, PerChain.
        energy: E_i, PerChain.
        size: N.
    """

    per_chain = ("mass", "energy")

    def __init__(self, scale: Tensor, mass: PerChain, energy: PerChain, size: int) -> None:
        self.scale, self.mass, self.energy, self.size = scale, mass, energy, size
        self.chains = mass.chains

    def _project(self, x: Tensor) -> Tensor:
        metric = torch.diag(self.scale.pow(-2))
        wanted = self.mass.values, self.energy.values
        return least_conserving(metric, x * self.scale, *wanted, self.size) / self.scale

    def _violation(self, x: Tensor) -> Tensor:
        c, M, E = x * self.scale, self.mass.values, self.energy.values
        off = (math.sqrt(self.size) * c[:, 0] - M).abs() / ((self.size * E).sqrt() + M.abs())
        return torch.maximum(off, (c.square().sum(1) - E).abs() / E)
