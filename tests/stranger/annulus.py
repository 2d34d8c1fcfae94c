"""A set from outside the package: one file, one row of the registry."""

from __future__ import annotations

import torch
from torch import Tensor

import casal
from casal.constraints import register


@register
class Annulus(casal.Constraint):
    """C = {z : inner <= |z| <= outer}; P(z) scales z to the nearest radius.

    The violation is the distance of |z| to [inner, outer], relative to outer.
    """

    solid = True
    smooth = True

    def __init__(self, inner: float, outer: float) -> None:
        self.inner, self.outer = float(inner), float(outer)
        if not 0.0 < self.inner < self.outer:
            raise casal.errors.InfeasibleSet(f"0 < inner < outer is needed, got {inner} and {outer}")

    def __repr__(self) -> str:
        return f"Annulus({self.inner:g}, {self.outer:g})"

    def inequalities(self, z: Tensor) -> Tensor:
        square = z.flatten(1).square().sum(1, keepdim=True)
        return torch.cat([self.inner**2 - square, square - self.outer**2], dim=1)

    def _project(self, z: Tensor) -> Tensor:
        length = z.flatten(1).norm(dim=1).clamp_min(1e-300)
        wanted = length.clamp(self.inner, self.outer)
        return torch.where(
            (wanted == length)[:, None], z.flatten(1), z.flatten(1) * (wanted / length)[:, None]
        ).view_as(z)

    def _violation(self, z: Tensor) -> Tensor:
        length = z.flatten(1).norm(dim=1)
        return torch.maximum(self.inner - length, length - self.outer).clamp_min(0.0) / self.outer
