"""Bounds on each coordinate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints.algorithms.truncated_normal import log_interval_mass, truncated_normal
from casal.constraints.base import Constraint, flat, relative
from casal.errors import InfeasibleSet, ShapeError
from casal.typing import Event


class Box(Constraint):
    """C = {z : low <= z <= high}, coordinate by coordinate; P(z) = min(max(z, low), high).

    The violation is the largest excess over a bound, relative to |z|_inf + |bound|.

    Args:
        low: Lower bounds: a number, or a tensor that broadcasts to an event. Minus infinity is allowed.
        high: Upper bounds, likewise; plus infinity is allowed.
    """

    convex = True
    one_sided = True
    samples_near = True
    fast = True

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = torch.broadcast_tensors(
            torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
        )
        bad = ~(self.low <= self.high) | (self.low == torch.inf) | (self.high == -torch.inf)
        if bool(bad.any()):
            worst = tuple(torch.nonzero(bad)[0].tolist()) if bad.ndim else ()
            raise InfeasibleSet(
                f"low <= high fails for {int(bad.sum())} of {bad.numel()} bounds, first at {worst}: "
                f"low = {float(self.low[worst]):g}, high = {float(self.high[worst]):g}"
            )
        self.solid = bool((self.low < self.high).all())

    def __repr__(self) -> str:
        return f"Box(low in [{float(self.low.min()):g}, ...], high in [..., {float(self.high.max()):g}])"

    def validate(self, event: Event) -> None:
        try:
            fits = torch.broadcast_shapes(self.low.shape, event) == torch.Size(event)
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(f"bounds of shape {tuple(self.low.shape)} do not broadcast to events {event}")

    def _arguments(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}

    def residual(self, z: Tensor) -> Tensor:
        below, above = flat(self.low.to(z) - z), flat(z - self.high.to(z))
        return torch.cat([below, above], dim=1).clamp_min(-1e30)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """Coordinate by coordinate, a Gaussian cut to [low, high]."""
        return truncated_normal(y, sigma, self.low.to(y), self.high.to(y), generator)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Sum of log[Phi((high - y) / sigma) - Phi((low - y) / sigma)]; of log-densities where low = high."""
        return flat(log_interval_mass(y, sigma, self.low.to(y), self.high.to(y))).sum(1)

    def project_fast(self, z: Tensor) -> Tensor:
        return self._project(z)

    def _project(self, z: Tensor) -> Tensor:
        return torch.clamp(z, self.low.to(z), self.high.to(z))

    def _violation(self, z: Tensor) -> Tensor:
        peak = flat(z).abs().amax(1, keepdim=True)
        parts = []
        for bound, excess in ((self.low.to(z), self.low.to(z) - z), (self.high.to(z), z - self.high.to(z))):
            size = flat(bound.expand_as(z)).abs()
            size = torch.where(size == torch.inf, torch.zeros_like(size), size)
            parts.append(relative(flat(excess).clamp_min(0.0), peak + size).amax(1))
        return torch.maximum(*parts)
