"""The yardstick: what the best Gaussian model of the same data can do.

A network that does not beat it has learned nothing beyond mean and covariance, and a table of samplers does not show
that. Every training report stands beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from casal.checks import event_shape, whole_number
from casal.errors import CasalWarning, SettingError, ShapeError
from casal_lab.nets.events import all_digits, arguments, beside, check_event, over_events

RELATIVE_RANK = 1e-10
"""Eigenvalues of the covariance below this share of the largest are zero: the data do not vary there."""


class Gaussian(nn.Module):
    """D(y, sigma) = m + V diag(lam / (lam + sigma^2)) V^T (y - m), the Wiener filter of N(m, V diag(lam) V^T).

    It is E[x | x + sigma w = y] exactly if the data are Gaussian, and the best affine denoiser if they are not. As a
    module it can be called, moved, and saved like a network.

    Args:
        event: Shape of one point, d numbers.
        rank: r; d if None. The standard normal distribution on the first r coordinates until fitted.

    Reference: N. Wiener, Extrapolation, Interpolation and Smoothing of Stationary Time Series, 1949.

    >>> wiener = Gaussian.fit(torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]))
    >>> wiener(torch.tensor([[2.0]]), 1.0)
    tensor([[1.]])
    """

    mean: Tensor  # m, (d,)
    basis: Tensor  # V, (d, r) with orthonormal columns; r < d if the data lie in a subspace
    variances: Tensor  # lam, (r,), positive, decreasing

    def __init__(self, event: int | Sequence[int], rank: int | None = None) -> None:
        super().__init__()
        self.event = event_shape(event)
        d = torch.Size(self.event).numel()
        self.rank = d if rank is None else whole_number(rank, "rank", 1)
        if self.rank > d:
            raise SettingError(f"rank {rank} of a covariance in {d} dimensions; use at most {d}")
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("basis", torch.eye(d, self.rank))
        self.register_buffer("variances", torch.ones(self.rank))

    @classmethod
    def fit(cls, data: Tensor, *, dtype: torch.dtype = torch.float32) -> Gaussian:
        """Mean and covariance of ``data`` (n, *event), computed in float64 and kept in ``dtype``.

        Warns if there are fewer than two points per dimension: then the covariance is poor, and a network
        beats it too easily.
        """
        if data.ndim < 2 or len(data) < 2:
            raise ShapeError(f"data of shape {tuple(data.shape)}; a covariance needs (n, *event) with n >= 2")
        x = data.detach().flatten(1).double()
        n, d = x.shape
        if n < 2 * d:
            warnings.warn(
                f"{n} points in {d} dimensions make a poor covariance, so beating it says little; "
                f"use {2 * d} or more, or fewer coordinates",
                CasalWarning,
                stacklevel=2,
            )
        mean = x.mean(0)
        values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / n)
        if not bool(torch.isfinite(values).all()):
            raise SettingError("the data hold numbers that are not finite; remove those points first")
        values, vectors = values.flip(0), vectors.flip(1)
        rank = int((values > RELATIVE_RANK * values[0]).sum())
        if not rank:
            raise SettingError(f"all {n} points of the data are the same; there is nothing to learn")
        found = cls(tuple(data.shape[1:]), rank).to(device=data.device, dtype=dtype)
        found.mean.copy_(mean)
        found.basis.copy_(vectors[:, :rank])
        found.variances.copy_(values[:rank])
        return found

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a filter of this shape."""
        return arguments(self, "event", "rank")

    def centred(self, y: Tensor) -> Tensor:
        """y - m as vectors (n, d) in the filter's own dtype."""
        check_event(y, self.event)
        return y.flatten(1).to(self.mean.dtype) - self.mean

    def forward(self, y: Tensor, sigma: Tensor | float) -> Tensor:
        """D(y, sigma) for y (n, *event), sigma a number or (n,)."""
        centred = self.centred(y)
        square = over_events(sigma, centred, "sigma").square().unsqueeze(1)
        gain = self.variances / (self.variances + square)
        with all_digits(y):
            filtered = self.mean + (gain * (centred @ self.basis)) @ self.basis.T
        return filtered.view(y.shape).to(y.dtype)

    def score(self, y: Tensor, sigma: Tensor | float) -> Tensor:
        """grad log p_sigma(y) = -(C + sigma^2 I)^-1 (y - m), the score of the data plus sigma w."""
        centred = self.centred(y)
        square = over_events(sigma, centred, "sigma").square().unsqueeze(1)
        with all_digits(y):
            coefficients = centred @ self.basis
            pull = (coefficients / (self.variances + square)) @ self.basis.T
            if self.rank < len(self.mean):
                pull = pull + (centred - coefficients @ self.basis.T) / square
        return -pull.view(y.shape).to(y.dtype)

    def eps(self, x: Tensor, alpha: Tensor | float, sigma: Tensor | float) -> Tensor:
        """E[w | alpha x0 + sigma w = x]: the best affine prediction of the noise in x (n, *event)."""
        a, s = over_events(alpha, x, "alpha"), over_events(sigma, x, "sigma")
        return -beside(s / a, x) * self.score(x / beside(a, x), s / a)

    def mse(self, sigma: Tensor | float) -> Tensor:
        """mean over coordinates of lam sigma^2 / (lam + sigma^2): the error of D on Gaussian data, shaped as sigma."""
        square = torch.as_tensor(sigma, dtype=self.mean.dtype, device=self.mean.device).square().unsqueeze(-1)
        return (self.variances * square / (self.variances + square)).sum(-1) / len(self.mean)
