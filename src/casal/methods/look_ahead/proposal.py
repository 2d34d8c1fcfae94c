"""One guided step from the noise level s to s', and what it costs in weight.

The bare step of the reverse process, with the estimate D + e (e: the second-order multistep term), is

    b = N(mu, beta^2 I),   k = (s' / s)^2,   mu = k x + (1 - k) (D + e),   beta^2 = s'^2 (1 - k).

The guide tilts it by what psi is expected to be at s'. In a basis with V^T linear V = I, V^T (s^4 G G^T) V = diag(c),
the rows E_i = s^2 (V^T G)_i / sqrt(c_i) are orthonormal, and a Gaussian model predicts

    covariance' = W (diag(a) + a V^T bent V a) W^T,   a_i = 1 / (1 + c_i (1/s'^2 - 1/s^2)),   W = linear V
    mean'(al)   = W (V^T mean + (1 - k) g (E e) + beta g al),   g_i = sqrt(c_i) / (s'^2 + c_i (1 - k))

at x' = mu + beta (w + E^T (al - E w)). log psi' is quadratic there: with K = W diag(beta g), slope l and curvature P,

    S = (I + K^T P K)^-1,   q = S K^T l,   al = q + chol(S) E w:

the noise along E is reduced, because psi narrows it. The step costs

    log b(x') - log proposal(x') = -|al|^2 / 2 + (al - q)^T S^-1 (al - q) / 2 + log det S / 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from casal.devices import cholesky, eigh
from casal.methods.look_ahead.features import Features
from casal.methods.look_ahead.look import Ahead
from casal.methods.look_ahead.potential import potential


class Proposal(NamedTuple):
    """x' = mu + beta (w + E^T (al - E w)), al = q + root E w, with E = turn^T G.

    Attributes:
        centre: mu, (n, d).
        beta: Size of the noise.
        slopes: G.
        turn: (n, m, m).
        mean: q, (n, m).
        root: chol(S), (n, m, m).
    """

    centre: Tensor
    beta: float
    slopes: Tensor
    turn: Tensor
    mean: Tensor
    root: Tensor

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """x' (n, d) from standard normal noise (n, d), and its log b - log proposal, (n,)."""
        here = self._along(noise)
        moved = self.mean + _times(self.root, here)
        point = self.centre + self.beta * (noise + _times(self.slopes.mT, _times(self.turn, moved - here)))
        return point, self._cost(moved)

    def cost(self, point: Tensor) -> Tensor:
        """log b - log proposal at a given x', (n,)."""
        return self._cost(self._along((point - self.centre) / self.beta))

    def _along(self, v: Tensor) -> Tensor:
        return _times(self.turn.mT, _times(self.slopes, v))

    def _cost(self, moved: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(self.root, (moved - self.mean)[..., None], upper=False)[..., 0]
        half_log_det = self.root.diagonal(dim1=1, dim2=2).log().sum(1)
        return half_log_det + (white.square().sum(1) - moved.square().sum(1)) / 2


def _times(matrix: Tensor, v: Tensor) -> Tensor:
    return (matrix @ v[..., None])[..., 0]


def multistep(clean: Tensor, before: Tensor | None, here: float, there: float, earlier: float) -> Tensor:
    """e: the estimate runs on along its last change, to second order in log s."""
    if before is None:
        return torch.zeros_like(clean)
    return (clean - before) * (0.5 * math.log(here / there) / math.log(earlier / here))


def propose(
    x: Tensor, clean: Tensor, extra: Tensor, ahead: Ahead, features: Features, here: float, there: float
) -> Proposal:
    """The guided step.

    Args:
        x: Noisy points (n, d), float64.
        clean: D, (n, d).
        extra: e, (n, d).
        ahead: What was seen from x.
        features: f.
        here: s.
        there: s'.
    """
    k = (there / here) ** 2
    beta = there * math.sqrt(1.0 - k)
    root = cholesky(ahead.linear)
    gram = here**4 * ahead.slopes @ ahead.slopes.mT
    whitened = torch.linalg.solve_triangular(root, gram, upper=False)
    whitened = torch.linalg.solve_triangular(root, whitened.mT, upper=False)
    c, axes = eigh((whitened + whitened.mT) / 2)
    c = c.clamp_min(1e-12 * here**2)
    basis = torch.linalg.solve_triangular(root.mT, axes, upper=True)  # V
    turn = basis * (here**2 / c.sqrt())[:, None]  # E = turn^T G
    back = ahead.linear @ basis  # W
    shrink = 1.0 / (1.0 + c * (there**-2 - here**-2))
    gain = c.sqrt() / (there**2 + c * (1.0 - k))
    predicted = torch.diag_embed(shrink) + shrink[:, :, None] * (basis.mT @ ahead.bent @ basis) * shrink[:, None]
    mean = _times(basis.mT, ahead.mean) + (1.0 - k) * gain * _times(turn.mT, _times(ahead.slopes, extra))
    covariance = back @ predicted @ back.mT
    at = potential(_times(back, mean), (covariance + covariance.mT) / 2, features, ahead.tilt, ahead.stiff)
    step = back * (beta * gain)[:, None]  # K
    inverse = torch.eye(len(c[0]), dtype=c.dtype, device=c.device) + step.mT @ at.curvature @ step
    spread = torch.cholesky_inverse(cholesky((inverse + inverse.mT) / 2))
    mean = _times(spread, _times(step.mT, at.slope))
    return Proposal(k * x + (1.0 - k) * (clean + extra), beta, ahead.slopes, turn, mean, cholesky(spread))
