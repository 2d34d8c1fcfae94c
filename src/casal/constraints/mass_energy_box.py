"""Two conserved quantities and bounds: the sum, the sum of squares, and limits on each coordinate."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints.algorithms.clipped_sphere import Bounds, farthest
from casal.constraints.algorithms.filling import longest
from casal.constraints.base import Budget, Constraint, Projection, flat
from casal.constraints.box import Box
from casal.constraints.box_hyperplane import BoxHyperplane
from casal.constraints.mass_energy import MassEnergy, direction
from casal.errors import InfeasibleSet
from casal.typing import Event

ROUNDING = 1e-12
EPS = 2.0**-52
PASSES = 3


class _Frame(NamedTuple):
    """What is known once N is: the mean m, the radius r, the bounds (N,), and the bounds on u = (z - m) / r."""

    mean: float
    radius: float
    low: Tensor
    high: Tensor
    reduced: Bounds | None


class MassEnergyBox(Constraint):
    """C = {z in R^N : sum z = M, |z|^2 = E, low <= z <= high}; what ``MassEnergy(M, E) & Box(low, high)`` becomes.

        P(y) = clip(alpha y + beta, low, high),   alpha > 0 and beta such that both equations hold.

    On C the distance to y depends on y . z alone, and such a point maximises it (``algorithms.clipped_sphere``), so it
    is the nearest, and the only one. alpha and beta come from guessing which coordinates are clipped, and where the
    guesses do not settle from halving intervals. Ties of y that bounds break (all of C is equally far from a constant
    y) are broken in the order of the coordinates.

    With one pair of bounds for all coordinates this is the nearest point from everywhere, and ``exact`` says so. With
    bounds of their own, it is the nearest wherever alpha > 0 exists. It does not where the order of y fills small boxes
    before large ones, so that even alpha = infinity has too little energy; to find the nearest point there is a
    combinatorial problem, and a point of C is returned that need not be the nearest. Just below the largest energy that
    such bounds allow, not even a point of C is certain to be found; ``solve`` flags those chains.

    The violation is the larger of those of ``MassEnergy`` and ``Box``; the residual is the mass, the energy, then the
    bounds, low - z and z - high.

    Args:
        mass: M.
        energy: E.
        low: Lower bounds: a number, or a tensor that broadcasts to an event. Minus infinity is allowed.
        high: Upper bounds, likewise.

    Raises:
        InfeasibleSet: The bounds leave no room for this mass or energy; raised as soon as N is known.

    >>> MassEnergyBox(1.0, 2.0, -0.5, 1.0).project(torch.tensor([[3.0, 0.0, -3.0, 0.5]]))
    tensor([[ 1.0000, -0.3090, -0.5000,  0.8090]])
    """

    def __init__(self, mass: float, energy: float, low: Any, high: Any) -> None:
        self.conserved, self.bounds = MassEnergy(mass, energy), Box(low, high)
        self.exact = all(bool((bound == bound.flatten()[0]).all()) for bound in (self.bounds.low, self.bounds.high))
        self.one_sided = ()
        self._frames: dict[Event, _Frame] = {}
        self._check_any_size()

    def __repr__(self) -> str:
        return f"({self.conserved!r} & {self.bounds!r})"

    def explain(self) -> str:
        how = "alpha y + beta clipped to the bounds"
        return f"{self!r}: {how}" if self.exact else f"{self!r}: {how}, the nearest point where alpha > 0 exists"

    def validate(self, event: Event) -> None:
        self._frame(tuple(event))

    def _arguments(self) -> dict[str, Any]:
        return {**self.conserved._arguments(), **self.bounds._arguments()}

    def residual(self, z: Tensor) -> Tensor:
        bounds = self.bounds.residual(z)
        self.one_sided = (False, False, *(True,) * bounds.shape[1])
        return torch.cat([self.conserved.residual(z), bounds], dim=1)

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        equations, below, above = weights.tensor_split((2, 2 + (weights.shape[1] - 2) // 2), dim=1)
        pulled = self.conserved.residual_pull(z, equations)
        return None if pulled is None else pulled.add_((above - below).reshape(z.shape))

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        frame = self._frame(tuple(z.shape[1:]))
        y = flat(z).clone()
        # A second pass starts beside the answer, and takes away what rounding left of the first.
        for _ in range(PASSES):
            left = torch.nonzero(~self._holds(y, frame)).flatten()
            if not len(left):
                break
            y[left] = self._pass(y[left], frame)
        point = y.reshape(z.shape)
        residual = torch.zeros_like(y[:, 0]) if self.exact else self._violation(point)
        return Projection(point, residual <= ROUNDING, torch.zeros_like(residual).long(), residual)

    def _pass(self, y: Tensor, frame: _Frame) -> Tensor:
        low, high = frame.low.to(y), frame.high.to(y)
        if frame.reduced is None:
            return torch.full_like(y, frame.mean).clamp(low, high)
        reduced = frame.reduced
        on = reduced._replace(low=reduced.low.to(y), high=reduced.high.to(y), longest=reduced.longest.to(y))
        return (frame.mean + frame.radius * farthest(direction(y), on)).clamp(low, high)

    def _holds(self, y: Tensor, frame: _Frame) -> Tensor:
        """Points (n,) that satisfy the definition to rounding, which stay where they are."""
        power, size = y.square().sum(1), y.abs().sum(1) + abs(self.conserved.mass)
        bounded = ((y >= frame.low.to(y)) & (y <= frame.high.to(y))).all(1)
        mass = (y.sum(1) - self.conserved.mass).abs() <= 4.0 * EPS * size
        return bounded & mass & ((power - self.conserved.energy).abs() <= 8.0 * EPS * self.conserved.energy)

    def _violation(self, z: Tensor) -> Tensor:
        return torch.maximum(self.conserved._violation(z), self.bounds._violation(z))

    def _frame(self, event: Event) -> _Frame:
        """Made at the first event of a shape, with all the checks."""
        if event not in self._frames:
            self.conserved.validate(event)
            self.bounds.validate(event)
            self._frames[event] = self._measured(event)
        return self._frames[event]

    def _measured(self, event: Event) -> _Frame:
        low, high = (bound.expand(event).reshape(-1) for bound in (self.bounds.low, self.bounds.high))
        size, mass, energy = len(low), self.conserved.mass, self.conserved.energy
        least, most = float(low.sum()), float(high.sum())
        slack = ROUNDING * (abs(mass) + math.sqrt(size * energy))
        if not least - slack <= mass <= most + slack:
            raise InfeasibleSet(
                f"mass {mass:g} is out of reach: {size} coordinates within the bounds sum to {least:g} at least and "
                f"{most:g} at most; choose a mass in between, or wider bounds"
            )
        mean, radius = mass / size, self.conserved._radius(size)
        within = BoxHyperplane(low, high, torch.ones(size, dtype=torch.float64), mass)
        level = float(within._project(torch.full((1, size), mean, dtype=torch.float64)).square().sum())
        if energy < level * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: fields of mass {mass:g} within the bounds have {level:g} at least; "
                "choose a larger energy, or bounds that come closer to the mean"
            )
        if radius == 0.0:
            return _Frame(mean, radius, low, high, None)
        return _Frame(mean, radius, low, high, self._reduced(low, high, mean, radius))

    def _reduced(self, low: Tensor, high: Tensor, mean: float, radius: float) -> Bounds:
        """Bounds on u = (z - m) / r. Missing ones are put at two, which |u| = 1 does not reach."""
        low = torch.where(low.isinf(), high.clamp_max(mean - 2.0 * radius), low)
        high = torch.where(high.isinf(), low.clamp_min(mean + 2.0 * radius), high)
        below, above = (low - mean) / radius, (high - mean) / radius
        within = BoxHyperplane(low, high, torch.ones(len(low), dtype=torch.float64), self.conserved.mass)

        def onto(u: Tensor) -> Tensor:
            return (within._project(mean + radius * u) - mean) / radius

        corner, most = longest(below, above)
        if self.exact:
            most = float(corner.square().sum())
        energy = self.conserved.energy
        if radius**2 * (1.0 - most) > ROUNDING * energy:
            raise InfeasibleSet(
                f"energy {energy:g} is too much: fields of mass {self.conserved.mass:g} within the bounds have "
                f"{energy + radius**2 * (most - 1.0):g} at most; choose a smaller energy, or wider bounds"
            )
        return Bounds(below, above, onto, corner)

    def _check_any_size(self) -> None:
        """What no number of coordinates can repair is refused at once."""
        low, high, mass, energy = self.bounds.low, self.bounds.high, self.conserved.mass, self.conserved.energy
        floor = float(low.sum()) if bool((low >= 0).all()) else -math.inf
        roof = float(high.sum()) if bool((high <= 0).all()) else math.inf
        if mass < floor - ROUNDING * abs(floor) or mass > roof + ROUNDING * abs(roof):
            raise InfeasibleSet(
                f"mass {mass:g} is out of reach: the bounds alone ask for a sum of "
                f"{f'{floor:g} or more' if mass < floor else f'{roof:g} or less'}"
            )
        least = float(torch.zeros_like(low).clamp(low, high).square().sum())
        if energy < least * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: the bounds alone ask for {least:g} or more; "
                "choose a larger energy, or bounds that come closer to zero"
            )
