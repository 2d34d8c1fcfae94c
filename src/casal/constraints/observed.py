"""Known coordinates together with a known sum and a known sum of squares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.constraints.base import Constraint, flat, norm, relative, unit
from casal.constraints.cones import refuse_overflow
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.typing import Event

ROUNDING = 1e-12


class ObservedMassEnergy(Constraint):
    """C = {z in R^N : z_k = v_k for k in index, sum z = M, |z|^2 = E}, a sphere inside a flat set, in closed form.

    Of the N coordinates n_f are free. With m = (M - sum v) / n_f, r = sqrt(E - |v|^2 - n_f m^2), and w the free part
    of y minus its mean,

        P(y) = v on the observed coordinates,  m + r w / |w| on the free ones.

    Without a mass, m = 0 and w is the free part itself; without an energy the free part is m + w (or stays as it is
    if there is no mass either), a flat and convex set. Where w = 0, all of C is equally far and the direction
    (1, -1, 0, ...) / sqrt(2) is taken, or (1, 0, ...) without a mass, counted in free coordinates.

    The violation is the largest of |z_k - v_k| / (max |z| + max |v|), | |z|^2 - E | / E, and
    |sum z - M| / (sqrt(N E) + |M|), with |z| in place of sqrt(E) where no energy is given.

    Args:
        index: Positions of the observed coordinates in the flattened event, each once.
        values: v, as many numbers.
        mass: M, or None if the sum is not known.
        energy: E, or None if the sum of squares is not known.

    >>> ObservedMassEnergy([0], [1.0], mass=3.0, energy=5.0).project(torch.tensor([[9.0, 1.0, 7.0]]))
    tensor([[1., 0., 2.]])
    """

    def __init__(self, index: Any, values: Any, mass: float | None = None, energy: float | None = None) -> None:
        self.index = torch.as_tensor(index)
        if self.index.numel() and (self.index.is_floating_point() or self.index.dtype == torch.bool):
            raise SettingError(f"index holds positions in the flattened event, integers; got {self.index.dtype}")
        self.index = self.index.to(torch.long).reshape(-1).clone()
        self.values = torch.as_tensor(values, dtype=torch.float64).reshape(-1).clone()
        if len(self.index) != len(self.values):
            raise ShapeError(f"{len(self.index)} observed positions but {len(self.values)} values")
        repeated = self.index.unique(return_counts=True)
        if bool((repeated[1] > 1).any()):
            twice = int(repeated[0][repeated[1] > 1][0])
            raise SettingError(f"position {twice} is observed more than once; keep one value for each position")
        self.mass = None if mass is None else float(mass)
        self.energy = None if energy is None else float(energy)
        numbers = [*self.values.tolist(), self.mass or 0.0, self.energy or 0.0]
        if not all(map(math.isfinite, numbers)) or (self.energy or 0.0) < 0.0:
            raise InfeasibleSet(
                f"needs finite values, a finite mass and an energy >= 0, got mass {mass}, energy {energy}"
            )
        self.convex = self.energy is None
        self._known_mass = math.fsum(self.values.tolist())
        self._known_energy = math.fsum(value * value for value in self.values.tolist())

    def __repr__(self) -> str:
        mass = "" if self.mass is None else f", mass={self.mass:g}"
        energy = "" if self.energy is None else f", energy={self.energy:g}"
        return f"ObservedMassEnergy({len(self.index)} observed{mass}{energy})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        if len(self.index) and not 0 <= int(self.index.min()) <= int(self.index.max()) < size:
            raise ShapeError(
                f"observed positions run from {int(self.index.min())} to {int(self.index.max())}, "
                f"events {event} have the positions 0 to {size - 1}"
            )
        free = size - len(self.index)
        if self.mass is not None and free == 0:
            scale = self.values.abs().sum().item() + abs(self.mass)
            if abs(self._known_mass - self.mass) > ROUNDING * scale:
                raise InfeasibleSet(
                    f"all {size} coordinates are observed; their sum is {self._known_mass:g}, not {self.mass:g}"
                )
        if self.energy is not None:
            self._check_energy(size, free)

    def _check_energy(self, size: int, free: int) -> None:
        energy, spent, least = self.energy or 0.0, self._known_energy, self._least_energy(free)
        if energy < least - ROUNDING * (least + energy):
            raise InfeasibleSet(
                f"energy {energy:g} is below {least:g}: the {len(self.index)} observed coordinates have {spent:g}, and "
                f"the mass left for the {free} free ones costs at least {least - spent:g}"
            )
        # Without a direction to move in, the energy is decided already.
        if free <= (0 if self.mass is None else 1) and energy > least + ROUNDING * (least + energy):
            raise InfeasibleSet(
                f"with {free} of {size} coordinates free, the other conditions fix the energy at {least:g}, "
                f"not {energy:g}"
            )

    def _arguments(self) -> dict[str, Any]:
        return {"index": self.index, "values": self.values, "mass": self.mass, "energy": self.energy}

    def residual(self, z: Tensor) -> Tensor:
        y = flat(z)
        parts = [y[:, self.index.to(z.device)] - self.values.to(z)]
        if self.mass is not None:
            parts.append(y.sum(1, keepdim=True) - self.mass)
        if self.energy is not None:
            parts.append(y.square().sum(1, keepdim=True) - self.energy)
        return torch.cat(parts, dim=1)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        free = flat(x)[:, self._free(x)]
        count = free.shape[1]
        directions = count - (0 if self.mass is None else 1)
        if self.energy is None or directions <= 0:
            return torch.zeros(len(x), dtype=x.dtype, device=x.device)
        radius = self._radius(count)
        if radius == 0.0:
            return None
        w = free if self.mass is None else free - free.mean(1, keepdim=True)
        return (directions - 1) * torch.log(norm(w) / radius)

    def _free(self, z: Tensor) -> Tensor:
        """Positions of the free coordinates."""
        free = torch.ones(flat(z).shape[1], dtype=torch.bool, device=z.device)
        free[self.index.to(z.device)] = False
        return torch.nonzero(free).flatten()

    def _mean(self, free: int) -> float:
        return 0.0 if self.mass is None or not free else (self.mass - self._known_mass) / free

    def _least_energy(self, free: int) -> float:
        return self._known_energy + free * self._mean(free) ** 2

    def _radius(self, free: int) -> float:
        return float(max((self.energy or 0.0) - self._least_energy(free), 0.0) ** 0.5)

    def _project(self, z: Tensor) -> Tensor:
        out, free = flat(z).clone(), self._free(z)
        out[:, self.index.to(z.device)] = self.values.to(z)
        count = len(free)
        if count and (self.mass is not None or self.energy is not None):
            y = out[:, free]
            out[:, free] = self._mean(count) + (self._flat_part(y) if self.energy is None else self._round_part(y))
        return refuse_overflow(out, self).reshape(z.shape)

    def _flat_part(self, y: Tensor) -> Tensor:
        for _ in range(2):  # the second pass removes the rounding of the first when |y| is huge
            y = y - (y / y.shape[1]).sum(1, keepdim=True)
        return y

    def _round_part(self, y: Tensor) -> Tensor:
        axis = y.new_zeros(y.shape[1])
        axis[0] = 1.0
        if self.mass is None:
            return self._radius(len(axis)) * unit(y, axis)
        if len(axis) == 1:
            return torch.zeros_like(y)
        axis[1] = -1.0
        # Measured from its first coordinate a constant field is zero exactly; halves keep the difference finite.
        direction = unit(_centred(0.5 * y - 0.5 * y[:, :1]), axis)
        # Centring again after the scaling removes the mean that rounding left in a small fluctuation.
        return self._radius(len(axis)) * unit(_centred(direction), axis)

    def _violation(self, z: Tensor) -> Tensor:
        y = flat(z)
        length, peak = norm(y), y.abs().amax(1)
        worst = torch.zeros_like(length)
        if len(self.index):
            gap = (y[:, self.index.to(z.device)] - self.values.to(z)).abs().amax(1)
            worst = relative(gap, peak + float(self.values.abs().max()))
        size = length if self.energy is None else torch.full_like(length, self.energy**0.5)
        if self.mass is not None:
            gap = (y.sum(1) - self.mass).abs()
            worst = torch.maximum(worst, relative(gap, y.shape[1] ** 0.5 * size + abs(self.mass)))
        if self.energy is not None:
            gap = (length.square() - self.energy).abs()
            worst = torch.maximum(worst, relative(gap, torch.full_like(length, self.energy)))
        return worst


def _centred(y: Tensor) -> Tensor:
    return y - (y / y.shape[1]).sum(1, keepdim=True)
