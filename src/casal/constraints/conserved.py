"""Conserved quantities: the sum and the sum of squares, with bounds or with known coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Parts,
    Projection,
    SphereInFlat,
    Subspace,
    register,
    side_by_side,
)
from casal.constraints.chains import (
    Bound,
    Number,
    PerChain,
    as_rows,
    bound,
    column,
    common_chains,
    derive,
    each,
    first_failure,
    join,
    marked,
    number,
    raw,
    root,
    share,
    show,
    spread,
)
from casal.constraints.flat import Affine, Box, BoxHyperplane, bounds_missed
from casal.constraints.round import AffineRound, Sphere, shell_tube, smallest_positive
from casal.constraints.solvers.laws import log_sphere_mass, von_mises_fisher
from casal.constraints.vectors import (
    EPSILON,
    GRANTED,
    LARGE,
    ROUNDING,
    axis,
    flat,
    gaussian,
    norm,
    nudge,
    once,
    peak,
    refuse_overflow,
    shell_factor,
    shortest,
    unit,
)
from casal.devices import chosen, look_due, on_host, placed, seen
from casal.errors import InfeasibleSet, SettingError, ShapeError

PASSES = 3
ROUNDS = 30
HALVINGS = 80
CORNERS = 50
SETTLED = 1e-13
TIED = 1e-14
WIDEST, NARROWEST = 1e20, 1e-20
TRIALS, MANY = 20, 512


@register
class MassEnergy(Constraint):
    """Fields of a given mass and energy, in closed form.

    C = {z in R^N : sum z = M, |z|^2 = E}, a sphere inside a hyperplane.

    With the mean m = M / N and the radius r = sqrt(E - M^2 / N),

        P(y) = m + r (y - ybar) / |y - ybar|,

    which is also the limit of alternating projections onto the two sets. A constant y sits on the axis, equally
    far from all of C; there the direction (1, -1, 0, ...) / sqrt(2) is taken. The violation is the larger of
    |sum z - M| / (sum |z| + |M|) and | |z|^2 - E | / E.

    Args:
        mass: M; may be PerChain.
        energy: E; may be PerChain. It needs E >= M^2 / N, checked as soon as N is known.
    """

    smooth = True
    _equation_count = 2
    samples_near = True
    fast = True
    per_chain = ("mass", "energy")
    mass: Any  # numbers, or PerChain
    energy: Any

    def __init__(self, mass: Any, energy: Any) -> None:
        self.mass, self.energy = number(mass, "mass"), number(energy, "energy")
        self.chains = common_chains(mass=self.mass, energy=self.energy)
        bad = first_failure(lambda m, e: (e >= 0) & (e < torch.inf) & torch.isfinite(m), self.mass, self.energy)
        if bad is not None:
            found = f"{show(self.mass, bad, '')} and {show(self.energy, bad, '')}"
            raise InfeasibleSet(f"MassEnergy needs a finite mass and an energy >= 0, got {found}")

    def __repr__(self) -> str:
        return f"MassEnergy(mass={self.mass:g}, energy={self.energy:g})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        least, energy = derive(lambda m: m**2 / size, self.mass), self.energy
        bad = first_failure(lambda e, floor: e >= floor * (1.0 - ROUNDING), energy, least)
        if bad is not None:
            found = f"energy {show(energy, bad)} is below mass^2 / N = {show(least, bad)}"
            raise InfeasibleSet(f"{found} (mass {show(self.mass, bad)}, N = {size}): no field has so little")
        bad = first_failure(lambda e, floor: e <= floor * (1.0 + ROUNDING), energy, least) if size == 1 else None
        if bad is not None:
            raise InfeasibleSet(f"one coordinate of this mass has energy {show(least, bad)}, not {show(energy, bad)}")

    def equations(self, z: Tensor) -> Tensor:
        y = flat(z)
        return torch.stack([y.sum(1) - each(self.mass, z), y.square().sum(1) - each(self.energy, z)], dim=1)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return torch.zeros(1, *event, dtype=torch.float64), raw(as_rows(derive(root, self.energy))).reshape(-1)

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (flat(z) * (2.0 * weights[:, 1:])).add_(weights[:, :1]).reshape(z.shape)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        y = flat(x)
        return shell_tube(y - y.mean(1, keepdim=True), each(self._radius(y.shape[1]), x), 2)

    def codimension(self, event: Event) -> int | None:
        size = torch.Size(event).numel()
        constant = self._constant(size)
        return size if constant == 1.0 else None if constant else 2

    def reach(self, event: Event) -> float | None:
        return smallest_positive(self._radius(torch.Size(event).numel()))

    def _apart(self, event: Event) -> Parts:
        """The constant field where E = M^2 / N."""
        size = torch.Size(event).numel()
        if self._constant(size) < 1.0:
            return Parts(self, None)
        mean = raw(as_rows(derive(lambda m: m / size, self.mass))).reshape(-1, *[1] * len(event))
        level = marked(mean, isinstance(self.mass, PerChain))
        return Parts(Box(level, level), None)

    def _constant(self, size: int) -> float:
        """Share of the chains that are left with the constant field."""
        return share(lambda m, e: e - m**2 / size <= ROUNDING * e, self.mass, self.energy)

    def sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        ones = torch.ones(1, torch.Size(event).numel(), dtype=torch.float64)
        return SphereInFlat(ones, as_rows(self.mass), derive(lambda e: e**0.5, self.energy))

    def _radius(self, size: int) -> Number:
        if size not in self._radii:
            self._radii[size] = derive(lambda m, e: root(e - m**2 / size), self.mass, self.energy)
        return self._radii[size]

    @cached_property
    def _radii(self) -> dict[int, Number]:
        """For so many coordinates, the radius."""
        return {}

    def _project_fast(self, z: Tensor) -> Tensor:
        y = flat(z)
        size = y.shape[1]
        if size == 1:
            return torch.zeros_like(y).add_(column(self.mass, z)).reshape(z.shape)
        offset = y - y.mean(1, keepdim=True)
        factor, _ = shell_factor(offset, column(self._radius(size), z))
        field = offset.mul_(factor).add_(column(self.mass, z) / size)
        # Off a constant field, along (1, -1, 0, ...) / sqrt(2).
        step = 0.5**0.5 * shortest(z.dtype)
        nudge(field[:, :1], factor, step)
        nudge(field[:, 1:2], factor, -step)
        return field.reshape(z.shape)

    def within(self, space: Subspace) -> Constraint | None:
        """A sphere cut by one equation, if constant fields are in the subspace."""
        size = torch.Size(space.event).numel()
        ones = space.coordinates(torch.ones((1, size), dtype=torch.float64))
        if ones is None or ones.numel() < 2 or first_failure(lambda r: r > 0, self._radius(size)) is not None:
            return None
        return AffineRound(Affine(ones.flatten(1), self.mass), Sphere(derive(lambda e: e**0.5, self.energy)))

    def _project(self, z: Tensor) -> Tensor:
        y = flat(z)
        size = y.shape[1]
        if size == 1:
            return self.project_fast(z)
        return (column(self.mass, z) / size + column(self._radius(size), z) * direction(y)).reshape(z.shape)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """The mean, and a von Mises-Fisher direction around y - ybar in the hyperplane of sum zero."""
        rows, size = flat(y), flat(y).shape[1]
        if size == 1:
            return self._project(y)
        kappa = (each(self._radius(size), y) / sigma) * (norm(_fluctuation(rows)) * 2.0 / sigma)

        def normal(count: int) -> Tensor:
            return _fluctuation(gaussian(rows[:count], generator)) * 2.0

        drawn = von_mises_fisher(direction(rows), kappa, size - 1, normal, generator)
        return self._project(drawn.reshape(y.shape))

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """A Gaussian at the distance of y from the hyperplane, times the normaliser of the sphere in it."""
        rows, size = flat(y), flat(y).shape[1]
        height = (rows.sum(1) - each(self.mass, y)) / (math.sqrt(size) * sigma)
        across = -0.5 * height.square() - math.log(math.sqrt(2.0 * math.pi) * sigma)
        if size == 1:
            return across
        return across + log_sphere_mass(norm(_fluctuation(rows)) * 2.0, each(self._radius(size), y), sigma, size - 1)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([_mass_missed(z, lost, self.mass), _energy_missed(z, lost, self.energy)], z)

    def row_name(self, event: Event, row: int) -> str:
        return "|z|^2 = E" if row else "sum z = M"


def _mass_missed(z: Tensor, lost: Tensor | None, mass: Number) -> Excess:
    """sum z - M, in units of sum |z| + |M|."""
    y, level = flat(z), torch.zeros_like(flat(z)[:, :1]) + column(mass, z)
    size = y.abs() if lost is None else y.abs() + flat(lost)
    top = peak(y)
    top = torch.where(top > LARGE, top, 1.0)
    gap = (y / top).sum(1, keepdim=True) - level / top
    return Excess(gap.abs(), (size / top).sum(1, keepdim=True) + level.abs() / top, scale=top)


def _energy_missed(z: Tensor, lost: Tensor | None, energy: Number) -> Excess:
    """|z|^2 - E, in units of E."""
    y, level = flat(z), torch.zeros_like(flat(z)[:, :1]) + column(energy, z)
    amount = (norm(y)[:, None].square() - level).abs().clamp_max(torch.finfo(z.dtype).max)
    rounding = 0.0 if lost is None else GRANTED * EPSILON * 2.0 * (y.abs() * flat(lost)).sum(1, keepdim=True)
    return Excess(amount, level, rounding)


def _mean_free(y: Tensor) -> Tensor:
    return y - y.mean(1, keepdim=True)


def _mean_free_huge(y: Tensor) -> Tensor:
    """The same where the sum may overflow."""
    return y - (y / y.shape[1]).sum(1, keepdim=True)


def _fluctuation(y: Tensor, centre: Callable[[Tensor], Tensor] = _mean_free) -> Tensor:
    """(y - ybar) / 2 for rows (n, d): exactly zero for a constant row.

    Halving keeps differences of numbers near the largest float finite; taking them to the first coordinate makes a
    constant field exactly zero, where subtracting a rounded mean would leave a constant.
    """
    return centre(0.5 * y - 0.5 * y[:, :1])


def direction(y: Tensor, centre: Callable[[Tensor], Tensor] = _mean_free) -> Tensor:
    """(y - ybar) / |y - ybar| for rows (n, d), d > 1."""
    first = axis(y, 1.0, -1.0)
    # Centring again after the scaling removes the mean that rounding left in a small fluctuation.
    return unit(centre(unit(_fluctuation(y, centre), first)), first)


@register
class ObservedMassEnergy(Constraint):
    """Fields of a given mass and energy, some of whose values are known, in closed form.

    C = {z in R^N : z_k = v_k for k in index, sum z = M, |z|^2 = E}, a sphere inside a flat set.

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
        values: v, as many numbers; PerChain: (n, k).
        mass: M, or None if the sum is not known; may be PerChain.
        energy: E, or None if the sum of squares is not known; may be PerChain.

    >>> ObservedMassEnergy([0], [1.0], mass=3.0, energy=5.0).project(torch.tensor([[9.0, 1.0, 7.0]]))
    tensor([[1., 0., 2.]])
    """

    smooth = True
    fast = True
    per_chain = ("values", "mass", "energy")

    def __init__(self, index: Any, values: Any, mass: Any = None, energy: Any = None) -> None:
        self.index = torch.as_tensor(index)
        if self.index.numel() and (self.index.is_floating_point() or self.index.dtype == torch.bool):
            raise SettingError(f"index holds positions in the flattened event, integers; got {self.index.dtype}")
        self.index = self.index.to(torch.long).reshape(-1).clone()
        given = bound(values)
        self.values: Bound = PerChain(given.rows) if isinstance(given, PerChain) else given.reshape(-1)
        numbers = raw(self.values)
        if len(self.index) != numbers.shape[-1]:
            raise ShapeError(f"{len(self.index)} observed positions but {numbers.shape[-1]} values")
        repeated = self.index.unique(return_counts=True)
        if bool((repeated[1] > 1).any()):
            twice = int(repeated[0][repeated[1] > 1][0])
            raise SettingError(f"position {twice} is observed more than once; keep one value for each position")
        self.mass = None if mass is None else number(mass, "mass")
        self.energy = None if energy is None else number(energy, "energy")
        self.chains = common_chains(values=self.values, mass=self.mass, energy=self.energy)
        bad = first_failure(
            lambda m, e: torch.isfinite(m) & (e >= 0) & (e < torch.inf), self.mass or 0.0, self.energy or 0.0
        )
        if bad is not None or not bool(torch.isfinite(numbers).all()):
            found = f"mass {show(self.mass, bad or 0)}, energy {show(self.energy, bad or 0)}"
            raise InfeasibleSet(f"ObservedMassEnergy needs finite values and mass, and an energy >= 0, got {found}")
        self.convex = self.energy is None
        self._equation_count = len(self.index) + (self.mass is not None) + (self.energy is not None)
        self._known_mass = self._known(math.fsum)
        self._known_energy = self._known(lambda row: math.fsum(v * v for v in row))
        self._peak = self._known(lambda row: max(map(abs, row), default=0.0))
        self._made: dict[Any, Any] = {}

    def _known(self, measure: Callable[[list[float]], float]) -> Number:
        """What the observed values say, for all chains or for each."""
        if isinstance(self.values, PerChain):
            return PerChain([measure(row) for row in self.values.values.tolist()])
        return measure(self.values.tolist())

    def __repr__(self) -> str:
        mass = "" if self.mass is None else f", mass={self.mass:g}"
        energy = "" if self.energy is None else f", energy={self.energy:g}"
        chains = f", values={self.values}" if isinstance(self.values, PerChain) else ""
        return f"ObservedMassEnergy({len(self.index)} observed{chains}{mass}{energy})"

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        first, last = min(self.index.tolist(), default=0), max(self.index.tolist(), default=-1)
        if first < 0 or last >= size:
            raise ShapeError(f"observed positions run from {first} to {last}, those of {event} from 0 to {size - 1}")
        free = size - len(self.index)
        if self.mass is not None and free == 0:
            scale = float(raw(self.values).abs().reshape(-1, len(self.index)).sum(1).max())
            bad = first_failure(lambda s, m: (s - m).abs() <= ROUNDING * (scale + m.abs()), self._known_mass, self.mass)
            if bad is not None:
                found = f"their sum is {show(self._known_mass, bad)}, not {show(self.mass, bad)}"
                raise InfeasibleSet(f"all {size} coordinates are observed; {found}")
        if self.energy is not None:
            self._check_energy(size, free, self.energy)

    def _check_energy(self, size: int, free: int, energy: Number) -> None:
        spent, least = self._known_energy, self._least_energy(free)
        bad = first_failure(lambda e, floor: e >= floor - ROUNDING * (floor + e), energy, least)
        if bad is not None:
            rest = show(derive(lambda floor, known: floor - known, least, spent), bad)
            parts = f"the observed ones have {show(spent, bad)}, the mass of the {free} others takes at least {rest}"
            raise InfeasibleSet(f"energy {show(energy, bad)} is below {show(least, bad)}: {parts}")
        # Without a direction to move in, the energy is decided already.
        decided = free <= (0 if self.mass is None else 1)
        bad = first_failure(lambda e, floor: e <= floor + ROUNDING * (floor + e), energy, least) if decided else None
        if bad is not None:
            fixed = f"fix the energy at {show(least, bad)}, not {show(energy, bad)}"
            raise InfeasibleSet(f"with {free} of {size} coordinates free, the other conditions {fixed}")

    def equations(self, z: Tensor) -> Tensor:
        y = flat(z)
        parts = [y[:, self.index.to(z.device)] - spread(self.values, y)]
        if self.mass is not None:
            parts.append(y.sum(1, keepdim=True) - column(self.mass, z))
        if self.energy is not None:
            parts.append(y.square().sum(1, keepdim=True) - column(self.energy, z))
        return torch.cat(parts, dim=1)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        free = flat(x)[:, self._free(x)]
        count = free.shape[1]
        directions = count - (0 if self.mass is None else 1)
        if self.energy is None or directions <= 0:
            return torch.zeros(len(x), dtype=x.dtype, device=x.device)
        w = free if self.mass is None else free - free.mean(1, keepdim=True)
        return shell_tube(w, each(self._radius(count), x), count - directions + 1)

    def codimension(self, event: Event) -> int | None:
        size = torch.Size(event).numel()
        directions = self._directions(size)
        fixed = self._fixed(size)
        return size if fixed == 1.0 else None if fixed else size - directions + (self.energy is not None)

    def reach(self, event: Event) -> float | None:
        size = torch.Size(event).numel()
        if self.energy is None or not self._directions(size):
            return math.inf
        return smallest_positive(self._radius(size - len(self.index)))

    def _apart(self, event: Event) -> Parts:
        """A point where all coordinates are observed, or the energy leaves no other."""
        size = torch.Size(event).numel()
        if self._fixed(size) < 1.0:
            return Parts(self if size > self._directions(size) or self.energy is not None else None, None)
        chains = self.chains or 1
        point = self._project(torch.zeros(chains, *event, dtype=torch.float64))
        level = marked(point, self.chains is not None)
        return Parts(Box(level, level), None)

    def _directions(self, size: int) -> int:
        """Dimensions that are left before the energy is known."""
        free = size - len(self.index)
        return max(0, free - (0 if self.mass is None else 1))

    def _fixed(self, size: int) -> float:
        """Share of the chains that are left with one point."""
        if not self._directions(size) or self.energy is None:
            return float(not self._directions(size))
        free = size - len(self.index)
        return share(lambda e, least: e - least <= ROUNDING * e, self.energy, self._least_energy(free))

    def sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        size = torch.Size(event).numel()
        rows, level = torch.zeros((len(self.index), size), dtype=torch.float64), self.values
        rows[torch.arange(len(self.index)), self.index.cpu()] = 1.0  # never all of the identity
        if self.mass is not None:
            rows, level = torch.cat([rows, rows.new_ones(1, size)]), join(level, as_rows(self.mass))
        radius = None if self.energy is None else derive(lambda e: e**0.5, self.energy)
        return SphereInFlat(rows, level, radius)

    def _free(self, z: Tensor) -> Tensor:
        """Positions of the free coordinates."""
        free = torch.ones(flat(z).shape[1], dtype=torch.bool)
        free[self.index.cpu()] = False
        return torch.nonzero(free).flatten().to(z.device)

    def _mean(self, free: int) -> Number:
        if self.mass is None or not free:
            return 0.0
        return derive(lambda m, known: (m - known) / free, self.mass, self._known_mass)

    def _least_energy(self, free: int) -> Number:
        return derive(lambda known, m: known + free * m**2, self._known_energy, self._mean(free))

    def _radius(self, free: int) -> Number:
        energy = 0.0 if self.energy is None else self.energy
        return derive(lambda e, floor: root(e - floor), energy, self._least_energy(free))

    def _project_fast(self, z: Tensor) -> Tensor:
        """q + r w / |w| with q = v on the observed coordinates and m on the free ones."""
        self._check_chains(z)
        y = flat(z)
        if y.shape[1] not in self._made:
            self.validate(tuple(z.shape[1:]))
            self._made[y.shape[1]] = {}
        mask, count, middle, radius, aside = once(self._made[y.shape[1]], y, lambda: self._constants(y))
        w = y * mask
        if self.mass is not None and count:
            w -= mask * (w.sum(1, keepdim=True) / count)
        if self.energy is None:
            return w.add_(middle).reshape(z.shape)
        factor, _ = shell_factor(w, radius)
        nudge(w, aside)
        return w.mul_(factor).add_(middle).reshape(z.shape)

    def _constants(self, y: Tensor) -> tuple[Tensor, int, Tensor, float | Tensor, Tensor]:
        """Ones on the free coordinates, their number, q, r, the shortest step off w = 0, all in the dtype of y."""
        free = self._free(y)
        mask = torch.zeros(y.shape[1], dtype=y.dtype, device=y.device)
        mask[free] = 1.0
        middle = mask * column(self._mean(len(free)), y.to(torch.float64))
        middle = middle.to(torch.float64).expand(self.chains or 1, -1).clone()
        middle[:, self.index.to(y.device)] = raw(self.values).to(middle)
        aside = torch.zeros_like(mask)
        numbers = (1.0,) if self.mass is None else (2**-0.5, -(2**-0.5))
        for place, part in zip(free.tolist(), numbers, strict=False):
            aside[place] = shortest(y.dtype) * part
        return mask, len(free), middle.to(y.dtype), column(self._radius(len(free)), y), aside

    def _project(self, z: Tensor) -> Tensor:
        out, free = flat(z).clone(), self._free(z)
        out[:, self.index.to(z.device)] = spread(self.values, out)
        count = len(free)
        if count and (self.mass is not None or self.energy is not None):
            y = out[:, free]
            radius = column(self._radius(count), y)
            if self.energy is None:  # the second pass removes the rounding of the first when |y| is huge
                inner = _mean_free_huge(_mean_free_huge(y))
            elif self.mass is None:
                inner = radius * unit(y, axis(y, 1.0))
            else:
                inner = torch.zeros_like(y) if count == 1 else radius * direction(y, _mean_free_huge)
            out[:, free] = column(self._mean(count), z) + inner
        return refuse_overflow(out, self).reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """The observed coordinates, then mass and energy."""
        index = self.index.to(z.device)
        known = spread(self.values, flat(z)).expand(len(z), -1)
        missed = flat(lost)[:, index] if lost is not None else None
        parts = [bounds_missed(flat(z)[:, index], missed, known, known)]
        if self.mass is not None:
            parts.append(_mass_missed(z, lost, self.mass))
        if self.energy is not None:
            parts.append(_energy_missed(z, lost, self.energy))
        return side_by_side(parts, z)

    def row_name(self, event: Event, row: int) -> str:
        if row < len(self.index):
            return f"observed value of z[{int(self.index[row])}]"
        return "sum z = M" if row == len(self.index) and self.mass is not None else "|z|^2 = E"


class _Frame(NamedTuple):
    """What is known once N is: the mean m, the radius r, the bounds (N,), and those on u = (z - m) / r if r > 0."""

    mean: float
    radius: float
    low: Tensor
    high: Tensor
    reduced: _Bounds | None


@register
class MassEnergyBox(Constraint):
    """Fields of a given mass and energy within bounds.

    C = {z in R^N : sum z = M, |z|^2 = E, low <= z <= high}; what ``MassEnergy(M, E) & Box(low, high)`` becomes.

        P(y) = clip(alpha y + beta, low, high),   alpha > 0 and beta such that both equations hold.

    On C the distance to y depends on y . z alone, and such a point maximises it (see ``_farthest``), so it
    is the nearest, and the only one. alpha and beta come from guessing which coordinates are clipped, and where the
    guesses do not settle from halving intervals. Ties of y that bounds break (all of C is equally far from a constant
    y) are broken in the order of the coordinates.

    With one pair of bounds for all coordinates this is the nearest point from everywhere, and ``exact`` says so. With
    bounds of their own, it is the nearest wherever alpha > 0 exists. It does not where the order of y fills small boxes
    before large ones, so that even alpha = infinity has too little energy; to find the nearest point there is a
    combinatorial problem, and a point of C is returned that need not be the nearest. Just below the largest energy that
    such bounds allow, not even a point of C is certain to be found; ``solve`` flags those chains.

    The violation is the larger of those of ``MassEnergy`` and ``Box``; the equations are those of the first, the
    inequalities those of the second.

    Args:
        mass: M; this and all others may be PerChain, and chains of equal parameters are then projected together.
        energy: E.
        low: Lower bounds: a number, or a tensor that broadcasts to an event. Minus infinity is allowed.
        high: Upper bounds, likewise.

    Raises:
        InfeasibleSet: The bounds leave no room for this mass or energy; raised as soon as N is known.

    >>> MassEnergyBox(1.0, 2.0, -0.5, 1.0).project(torch.tensor([[3.0, 0.0, -3.0, 0.5]]))
    tensor([[ 1.0000, -0.3090, -0.5000,  0.8090]])
    """

    smooth = True
    _equation_count = 2
    per_chain = ("mass", "energy", "low", "high")

    def __init__(self, mass: Any, energy: Any, low: Any, high: Any) -> None:
        self.conserved, self.bounds = MassEnergy(mass, energy), Box(low, high)
        self.chains = common_chains(equations=self.conserved, bounds=self.bounds)
        self.exact = all(_same(side) for side in (self.bounds.low, self.bounds.high))
        self._frames: dict[Event, _Frame] = {}
        if self.chains is None:
            self._check_any_size()

    def __repr__(self) -> str:
        return f"({self.conserved!r} & {self.bounds!r})"

    def explain(self) -> str:
        how = f"{super().explain()}, alpha y + beta clipped to the bounds"
        return how if self.exact else f"{how}, the nearest point where alpha > 0 exists"

    def validate(self, event: Event) -> None:
        if self.chains is None:
            self._frame(tuple(event))
            return
        for _, alone in self._group_sets:
            alone.validate(event)

    def _arguments(self) -> dict[str, Any]:
        return {**self.conserved._arguments(), **self.bounds._arguments()}

    def equations(self, z: Tensor) -> Tensor:
        return self.conserved.equations(z)

    def inequalities(self, z: Tensor) -> Tensor:
        return self.bounds.inequalities(z)

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        equations, below, above = weights.tensor_split((2, 2 + (weights.shape[1] - 2) // 2), dim=1)
        pulled = self.conserved.residual_pull(z, equations)
        return None if pulled is None else pulled.add_((above - below).reshape(z.shape))

    def _apart(self, event: Event) -> Parts:
        """Mass and energy, known where low = high; the bounds on the others."""
        low, high = (self.bounds._over(raw(side), event) for side in (self.bounds.low, self.bounds.high))
        own, ones = isinstance(self.bounds.low, PerChain), torch.ones(low.shape[1], dtype=torch.float64)
        met = BoxHyperplane(marked(low, own), marked(high, own), ones, self.conserved.mass)._bounds_met()
        pinned, rest = met._pinned, met._bounds_where(~met._pinned)
        solid = rest._shaped(event) if rest._has_an_edge else None
        if self.conserved.parts(event).surface is not self.conserved:
            return Parts(self.conserved.parts(event).surface, None)
        if not bool(pinned.any()):
            return Parts(self.conserved, solid)
        pins = met._bounds_where(pinned)
        if bool(pinned.all()):
            return Parts(pins._shaped(event), None)
        rows = pins.sphere_in_flat((low.shape[1],))
        if rows is None:
            raise SettingError(
                "low = high fixes other coordinates in one chain than in another; "
                "sample those chains in runs of their own (constraint.take)"
            )
        observed = ObservedMassEnergy(rows.matrix.argmax(1), rows.level, self.conserved.mass, self.conserved.energy)
        surface = observed.parts(event).surface
        return Parts(surface, solid if surface is observed else None)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self.chains is not None:
            return self._solve_by_group(z, budget, warm)
        frame = self._frame(tuple(z.shape[1:]))
        y = flat(z).clone()
        # A second pass starts beside the answer, and takes away what rounding left of the first.
        for _ in range(PASSES):
            left = chosen(~self._holds(y, frame))
            if not len(left):
                break
            y[left] = self._pass(y[left], frame)
        point = y.reshape(z.shape)
        residual = torch.zeros_like(y[:, 0]) if self.exact else self._violation(point)
        return Projection(point, residual <= ROUNDING, torch.zeros_like(residual).long(), residual)

    def _pass(self, y: Tensor, frame: _Frame) -> Tensor:
        low, high = placed(frame.low, y), placed(frame.high, y)
        if frame.reduced is None:
            return torch.full_like(y, frame.mean).clamp(low, high)
        reduced = frame.reduced
        on = reduced._replace(low=placed(reduced.low, y), high=placed(reduced.high, y))
        on = on._replace(longest=placed(reduced.longest, y))
        return (frame.mean + frame.radius * _farthest(direction(y), on)).clamp(low, high)

    def _holds(self, y: Tensor, frame: _Frame) -> Tensor:
        """Points (n,) that satisfy the definition to rounding, which stay where they are."""
        mass, energy = self.conserved.mass, self.conserved.energy
        power, size = y.square().sum(1), y.abs().sum(1) + abs(mass)
        bounded = ((y >= placed(frame.low, y)) & (y <= placed(frame.high, y))).all(1)
        summed = (y.sum(1) - mass).abs() <= 4.0 * EPSILON * size
        return bounded & summed & ((power - energy).abs() <= 8.0 * EPSILON * energy)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([part._excess(z, lost) for part in (self.conserved, self.bounds)], z)

    def row_name(self, event: Event, row: int) -> str:
        return self.conserved.row_name(event, row) if row < 2 else self.bounds.row_name(event, row - 2)

    def _frame(self, event: Event) -> _Frame:
        """Made at the first event of a shape, with all the checks."""
        if event not in self._frames:
            self.conserved.validate(event)
            self.bounds.validate(event)
            self._frames[event] = self._measured(event)
        return self._frames[event]

    def _measured(self, event: Event) -> _Frame:
        mass, energy = self.conserved.mass, self.conserved.energy
        low, high = (side.expand(event).reshape(-1) for side in (self.bounds.low, self.bounds.high))
        size = len(low)
        least, most = float(low.sum()), float(high.sum())
        slack = ROUNDING * (abs(mass) + math.sqrt(size * energy))
        if not least - slack <= mass <= most + slack:
            reach = f"{size} coordinates within the bounds sum to {least:g} at least and {most:g} at most"
            raise InfeasibleSet(f"mass {mass:g} is out of reach: {reach}; choose a mass in between, or wider bounds")
        mean, radius = mass / size, root(energy - mass**2 / size)
        within = BoxHyperplane(low, high, torch.ones(size, dtype=torch.float64), mass)
        level = float(within._project(torch.full((1, size), mean, dtype=torch.float64)).square().sum())
        if energy < level * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: fields of mass {mass:g} within the bounds have {level:g} at least; "
                "choose a larger energy, or bounds that come closer to the mean"
            )
        return _Frame(mean, radius, low, high, self._reduced(low, high, mean, radius) if radius else None)

    def _reduced(self, low: Tensor, high: Tensor, mean: float, radius: float) -> _Bounds:
        """Bounds on u = (z - m) / r. Missing ones are put at two, which |u| = 1 does not reach."""
        mass, energy = self.conserved.mass, self.conserved.energy
        low = torch.where(low.isinf(), high.clamp_max(mean - 2.0 * radius), low)
        high = torch.where(high.isinf(), low.clamp_min(mean + 2.0 * radius), high)
        below, above = (low - mean) / radius, (high - mean) / radius
        within = BoxHyperplane(low, high, torch.ones(len(low), dtype=torch.float64), mass)

        def onto(u: Tensor) -> Tensor:
            return (within._project(mean + radius * u) - mean) / radius

        corner, most = _longest(below, above)
        if self.exact:
            most = float(corner.square().sum())
        if radius**2 * (1.0 - most) > ROUNDING * energy:
            raise InfeasibleSet(
                f"energy {energy:g} is too much: fields of mass {mass:g} within the bounds have "
                f"{energy + radius**2 * (most - 1.0):g} at most; choose a smaller energy, or wider bounds"
            )
        return _Bounds(below, above, onto, corner)

    def _check_any_size(self) -> None:
        """What no number of coordinates can repair is refused at once."""
        low, high, mass, energy = self.bounds.low, self.bounds.high, self.conserved.mass, self.conserved.energy
        floor = float(low.sum()) if bool((low >= 0).all()) else -math.inf
        roof = float(high.sum()) if bool((high <= 0).all()) else math.inf
        if mass < floor - ROUNDING * abs(floor) or mass > roof + ROUNDING * abs(roof):
            asked = f"{floor:g} or more" if mass < floor else f"{roof:g} or less"
            raise InfeasibleSet(f"mass {mass:g} is out of reach: the bounds alone ask for a sum of {asked}")
        least = float(torch.zeros_like(low).clamp(low, high).square().sum())
        if energy < least * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: the bounds alone ask for {least:g} or more; "
                "choose a larger energy, or bounds that come closer to zero"
            )


def _same(side: Bound) -> bool:
    """Whether all coordinates have the same bound."""
    numbers = side.rows if isinstance(side, PerChain) else raw(side).reshape(1, -1)
    return bool((numbers == numbers[:, :1]).all())


# ------------------------------------------------------------------ a sphere clipped by bounds


class _Bounds(NamedTuple):
    """A box that meets the sphere of sum zero and length one.

    Attributes:
        low: Finite lower bounds (d,).
        high: Finite upper bounds (d,).
        onto: The projection of rows (n, d) onto {low <= u <= high, sum u = 0}.
        longest: A point (d,) of that set, about as long as they come.
    """

    low: Tensor
    high: Tensor
    onto: Callable[[Tensor], Tensor]
    longest: Tensor


def _farthest(v: Tensor, bounds: _Bounds) -> Tensor:
    """Between bounds, the point of sum zero and length one that reaches farthest along rows v (n, d) of that kind.

        maximise v . u   subject to   sum u = 0,  |u| = 1,  low <= u <= high

    For alpha > 0 and any beta the point u = clip(alpha v + beta, low, high) maximises v . u - |u|^2 / (2 alpha) plus a
    multiple of sum u, a strictly concave function, over the box. So one that meets both equations is the answer, and
    the only one. With beta from the first equation, |u| never falls as alpha grows: from the least length at alpha = 0
    to that of the corner which fills the coordinates in the order of v.

    Where even the corner in the order of v is too short no alpha > 0 will do. Then a point between two longer corners
    is taken: on the set, not always the farthest one. This cannot happen if all coordinates have the same bounds, for
    then every corner is as long as the longest point.
    """
    u, left = _refine(v, bounds.low, bounds.high)
    if len(left):
        u[left] = _bracket(v[left], bounds)
    return u


def _refine(v: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Answers, and the indices of the rows that have none yet.

    Which coordinates are clipped is guessed; the others get their own sum and length in closed form, which makes the
    next guess. A row that meets both equations is done, whatever the guesses before it were.
    """
    out = v.clone()
    left = torch.arange(len(v), device=v.device)
    line, done = v, torch.zeros(len(v), dtype=torch.bool, device=v.device)
    for iteration in range(ROUNDS):
        u = line.clamp(low, high)
        lost = (u.sum(1).abs() > SETTLED) | ((u.square().sum(1) - 1.0).abs() > SETTLED)
        out[left] = u if on_host(v) else torch.where(done[:, None], out[left], u)
        lost = lost & ~done
        if look_due(iteration, v):
            if not seen(lost.any()):
                return out, left[:0]
            if not seen(lost.all()):
                some = chosen(lost)
                left, v, line, u, lost = left[some], v[some], line[some], u[some], lost[some]
        done = ~lost
        line = _fit(v, u, (line > low) & (line < high))
    return out, left if on_host(v) else left[chosen(lost)]


def _fit(v: Tensor, u: Tensor, free: Tensor) -> Tensor:
    """alpha v + beta with which the free coordinates supply what the clipped ones of u leave over."""
    share = free.to(v)
    clipped = u * (1.0 - share)
    total, power = -clipped.sum(1, keepdim=True), 1.0 - clipped.square().sum(1, keepdim=True)
    count = share.sum(1, keepdim=True).clamp_min(1.0)
    offset = v - (share * v).sum(1, keepdim=True) / count
    spread = (share * offset.square()).sum(1, keepdim=True)
    alpha = ((power - total.square() / count).clamp_min(0.0) / spread.clamp_min(1e-300)).sqrt()
    # Ties are not to be told apart by their rounding.
    alpha = torch.where(spread > TIED**2 * count, alpha, torch.zeros_like(alpha))
    return alpha * offset + total / count


def _bracket(v: Tensor, bounds: _Bounds) -> Tensor:
    """By halving the range of alpha until the same coordinates are clipped at both ends.

    In between u is then linear in alpha, and the answer lies on the segment from end to end.
    """
    order = _order(v, bounds)
    # From the coordinate that is filled last, where beta ends up as alpha grows: a large alpha then drowns no bounds.
    before, _, need = _fill(order, bounds.low, bounds.high)
    last = ((before < need).sum(1, keepdim=True) - 1).clamp_min(0)
    v = v - v.gather(1, order).gather(1, last)
    start, end = bounds.onto(torch.zeros_like(v)), bounds.onto(WIDEST * v)
    near, far = (torch.full_like(v[:, :1], math.log(alpha)) for alpha in (NARROWEST, WIDEST))
    for iteration in range(HALVINGS):
        differ = (_pattern(start, bounds) != _pattern(end, bounds)).any(1, keepdim=True)
        moving = differ & _show(start) & ~_show(end)
        if look_due(iteration, v) and not seen(moving.any()):
            break
        middle = 0.5 * (near + far)
        point = bounds.onto(middle.exp() * v)
        up, down = moving & _show(point), moving & ~_show(point)
        start, end = torch.where(up, point, start), torch.where(down, point, end)
        near, far = torch.where(up, middle, near), torch.where(down, middle, far)

    stuck = chosen(_show(end).squeeze(1))
    if len(stuck):
        start[stuck], end[stuck] = _corners(v[stuck], end[stuck], bounds)
    return _between(start, end)


def _corners(v: Tensor, start: Tensor, bounds: _Bounds) -> tuple[Tensor, Tensor]:
    """Where alpha = infinity is too short: the last short corner and the first long one on the way to the longest.

    The corner that fills in the order of v breaks the ties of v, which is all it takes with equal bounds. Beyond it the
    order leans more and more on low + high, the energy that filling a coordinate adds for its mass.
    """
    end = bounds.longest.expand_as(v)
    near, far = torch.zeros_like(v[:, :1]), torch.ones_like(v[:, :1])
    share = near
    for iteration in range(CORNERS):
        point = _filling(_order(torch.lerp(v, bounds.low + bounds.high, share), bounds), bounds.low, bounds.high)
        short = _show(point)
        start, end = torch.where(short, point, start), torch.where(short, end, point)
        near, far = torch.where(short, share, near), torch.where(short, far, share)
        if look_due(iteration, v) and not seen((far > near).any()):
            break
        share = 0.5 * (near + far)
    return start, end


def _order(v: Tensor, bounds: _Bounds) -> Tensor:
    """Coordinates from the largest v to the smallest; of equal ones those with the higher bounds first."""
    high_first = (bounds.low + bounds.high).argsort(descending=True, stable=True)
    return high_first[v[:, high_first].argsort(dim=1, descending=True, stable=True)]


def _show(u: Tensor) -> Tensor:
    return u.square().sum(1, keepdim=True) < 1.0


def _pattern(u: Tensor, bounds: _Bounds) -> Tensor:
    return (u >= bounds.high).to(torch.int8) - (u <= bounds.low).to(torch.int8)


def _between(p: Tensor, q: Tensor) -> Tensor:
    """The point of length one on the segment from p (no longer than one) to q (no shorter)."""
    step = q - p
    square, slope = step.square().sum(1, keepdim=True), (p * step).sum(1, keepdim=True)
    lack = (1.0 - p.square().sum(1, keepdim=True)).clamp_min(0.0)
    root = (slope.square() + square * lack).sqrt()
    # Two forms of the same root, of which the one without cancellation is taken.
    rising = slope > 0
    above, below = torch.where(rising, lack, root - slope), torch.where(rising, slope + root, square)
    share = torch.where(below > 0, above / below, torch.zeros_like(below)).clamp(0.0, 1.0)
    return torch.where(share < 0.5, p + share * step, q - (1.0 - share) * step)


def _filling(order: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From all coordinates at their lower bound, fill them to the upper one in this order (n, d) until the sum is 0."""
    before, width, need = _fill(order, low, high)
    added = torch.minimum((need - before).clamp_min(0.0), width)
    return (low + torch.zeros_like(width).scatter_(1, order, added)).clamp(low, high)


def _longest(low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """A corner (d,) of {low <= u <= high, sum u = 0} about as long as they come, and what no |u|^2 there exceeds.

    Filling a coordinate adds energy low + high for its mass, so they are filled in this order. That is the longest
    corner if all bounds are equal. Otherwise the one coordinate that is partly filled may be in the wrong place: to
    find the best is a knapsack problem. No corner is longer than if u^2 followed its chord there. If that leaves a
    doubt about length one, each coordinate is tried first and last.
    """
    order = (low + high).argsort(descending=True, stable=True)[None]
    corner = _filling(order, low, high)[0]
    most = float((corner.square() + (corner - low) * (high - corner)).sum())
    for _ in range(TRIALS if len(low) <= MANY else 0):
        length = float(corner.square().sum())
        if length >= 1.0 or most < 1.0:
            break
        picked, everyone = torch.arange(len(low))[:, None], order.expand(len(low), -1)
        rest = everyone[everyone != picked].reshape(len(low), -1)
        tried = torch.cat([torch.cat([picked, rest], dim=1), torch.cat([rest, picked], dim=1)])
        points = _filling(tried, low, high)
        best = int(points.square().sum(1).argmax())
        if float(points[best].square().sum()) <= length:
            break
        corner, order = points[best], tried[best][None]
    return corner, most


def _fill(order: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In this order: what the coordinates before take up, the room in each (n, d), and what all must take up (n, 1)."""
    width = (high - low).expand(order.shape).gather(1, order)
    return width.cumsum(1) - width, width, -low.expand(order.shape).sum(1, keepdim=True)
