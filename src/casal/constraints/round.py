"""Round sets: spheres and balls, alone or inside a flat set (mass and energy, known values), and ellipsoids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Geometry,
    Parts,
    Projection,
    SphereInFlat,
    Subspace,
    register,
    row_of,
    side_by_side,
    total_count,
)
from casal.constraints.flat import Affine, Box, BoxHyperplane, bounds_missed
from casal.constraints.geometry import parts
from casal.constraints.parameters import (
    PerChain,
    argument,
    brief,
    common_chains,
    copied,
    first_failure,
    join,
    one_number,
    over,
    over_flattened,
    parameter,
    real,
    show,
)
from casal.constraints.solvers.truncated import log_sphere_mass, von_mises_fisher
from casal.constraints.vectors import (
    EPSILON,
    GRANTED,
    LARGE,
    ROUNDING,
    flat,
    gaussian,
    norm,
    nudge,
    once,
    over_events,
    peak,
    refuse_overflow,
    shell_factor,
    shortest,
    unit,
)
from casal.devices import check_due, chosen, placed, seen
from casal.errors import InfeasibleSet, SettingError, ShapeError

NEWTON_STEPS = 100
FARTHEST = 1e200
FLATTEST_AXES = 1e-100
FLATTEST_MATRIX = 1e-13
SYMMETRY = 1e-12

PASSES = 3
ROUNDS = 30
HALVINGS = 80
CORNERS = 50
SETTLED = 1e-13
TIED = 1e-14
WIDEST, NARROWEST = 1e20, 1e-20
TRIALS, MANY = 20, 512


# ------------------------------------------------------------------ spheres and balls inside flat sets


class Directions(Protocol):
    """Directions v along a flat set, A v = 0: a system of linear equations (``flat.py``), or ``Coordinates``."""

    rank: int

    def inside_fast(self, y: Tensor) -> Tensor:
        """The part of rows (n, d) along the set, in one pass."""

    def tangent(self, y: Tensor) -> Tensor:
        """The same to rounding, exactly zero where nothing but rounding is left."""

    def inside_direction(self) -> Tensor | None:
        """A fixed direction (d,), or None if there is none."""


class Coordinates:
    """Directions that are zero in known coordinates, and of sum zero in the others if the sum is known.

    Args:
        size: d.
        known: Positions of the known coordinates.
        summed: Whether the sum is known.
    """

    def __init__(self, size: int, known: Tensor | None = None, *, summed: bool = False) -> None:
        mask = torch.ones(size, dtype=torch.float64)
        if known is not None:
            mask[known.cpu()] = 0.0
        self.free = torch.nonzero(mask).flatten()
        self.rank = size - max(0, len(self.free) - summed)
        self._mask, self._summed, self._size = mask if len(self.free) < size else None, summed, size
        self._first = int(self.free[0]) if len(self.free) else 0
        self._made: dict[Any, Tensor] = {}

    def inside_fast(self, y: Tensor) -> Tensor:
        """y itself if all of it is free."""
        mask = None if self._mask is None else once(self._made, y, lambda: self._mask.to(y))  # type: ignore[union-attr]
        if mask is not None:
            y = y * mask
        if not self._summed:
            return y
        mean = y.sum(1, keepdim=True) / max(1, len(self.free))
        return y - mean if mask is None else y.addcmul_(mask, mean, value=-1.0)

    def tangent(self, y: Tensor) -> Tensor:
        """Differences to the first free coordinate make a constant exactly zero, where a rounded mean would not."""
        if not self._summed or self.rank == self._size:
            return self.inside_fast(y)
        return self.inside_fast(y - y[:, self._first : self._first + 1])

    def inside_direction(self) -> Tensor | None:
        """(1, 0, ...) in free coordinates; (1, -1, 0, ...) / sqrt(2) if their sum is known."""
        if self.rank == self._size:
            return None
        out = torch.zeros(self._size, dtype=torch.float64)
        out[self.free[: 1 + self._summed]] = out.new_tensor([0.5**0.5, -(0.5**0.5)] if self._summed else [1.0])
        return out


class Frame(NamedTuple):
    """A round set for events of one size.

    Attributes:
        along: Directions along the flat set.
        point: q (1 or n, d or 1), its nearest point to the centre; None for the origin.
        radius: r (1 or n, 1), the radius around q inside the flat set; None if there is no sphere.
        axis: The direction (d,) that is taken from q itself; None if the flat set is a point.
        columns: Coordinates in which it is not zero.
        points: Share of the chains that are left with the point q.
        small: A power of two in which sums over the coordinates of any y stay finite; one without a flat set.
        made: Constants of the fast projection by dtype and device.
    """

    along: Directions
    point: Tensor | None
    radius: Tensor | None
    axis: Tensor | None
    columns: slice
    points: float
    small: float
    made: dict[Any, Any]

    @staticmethod
    def of(along: Directions, size: int, point: Tensor | None, radius: Tensor | None, whole: Tensor | None) -> Frame:
        """From r (1 or n,) and R (1 or n,), here ``whole``; a set is a point where r is nothing beside R."""
        axis = along.inside_direction()
        used = [i for i, part in enumerate([] if axis is None else axis.tolist()) if part]
        points = float(axis is None)
        if used and radius is not None and whole is not None:
            points = float((radius <= math.sqrt(ROUNDING) * whole).to(torch.float64).mean())
        columns = slice(used[0], used[-1] + 1) if used else slice(0)
        small = 0.5 ** (1 + size.bit_length()) if along.rank else 1.0
        return Frame(along, point, None if radius is None else radius[:, None], axis, columns, points, small, {})


class RoundInFlat(Constraint):
    """A sphere or ball inside a flat set, in closed form.

    C = {z : A z = b, |z - c| = R}, or <= R. With q the nearest point of the flat set to c, r = sqrt(R^2 - |q - c|^2),
    and u the part of y - c along the flat set,

        P(y) = q + r u / |u|        (q + u if the ball holds it).

    Where u = 0 all of the sphere is equally near, and a fixed direction inside the flat set is taken. A subclass keeps
    its arguments, ``_center``, ``_radius``, ``_square`` and ``convex``, and writes ``_measured``.
    """

    samples_near = False  # for spheres alone
    _center: Tensor | None = None  # c (1 or n, *event); None for the origin
    _radius: Tensor | None = None  # R (1 or n,); None if there is no sphere
    _square: Tensor | None = None  # R^2 (1 or n,)

    def _measured(self, size: int) -> Frame:
        """``Frame.of`` for so many coordinates."""
        raise NotImplementedError

    def validate(self, event: Event) -> None:
        """A subclass checks an event; what is left is to work out the frame, at the first event of a size."""
        size = torch.Size(event).numel()
        with torch.inference_mode(False):  # what is kept may be differentiated later
            self._once(("frame", size), lambda: self._measured(size))

    def _frame(self, event: Event) -> Frame:
        key = "frame", torch.Size(event).numel()
        if key not in self._cache:
            self.validate(event)
        return cast(Frame, self._cache[key])

    # -------------------------------------------------------------- projections

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        return self._shell(z)[0]

    def _shell(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """P(z) in the dtype of z, |u| and r, both (n, 1); r is infinite if there is no sphere."""
        self._check_chains(z)
        y, frame = flat(z), self._frame(tuple(z.shape[1:]))
        center, point, radius, aside = once(frame.made, z, lambda: self._constants(frame, y))
        if frame.axis is None:
            return (torch.zeros_like(y) + point).reshape(z.shape), y[:, :1], radius
        offset = y if center is None else y - center
        inside = frame.along.inside_fast(offset)
        if frame.radius is None:
            return (inside if point is None else inside + point).reshape(z.shape), y[:, :1], radius
        factor, length = shell_factor(inside, radius)
        if self.convex:
            factor = torch.where(length > radius, factor, torch.ones_like(factor))
        out = inside * factor if inside is offset else inside.mul_(factor)
        if not self.convex:
            nudge(out[:, frame.columns], factor, aside)
        if point is not None:
            out = out.add_(point)
        if self.convex and center is not None and not frame.along.rank:
            out = torch.where(length > radius, out, y)
        return out.reshape(z.shape), length, radius

    def _constants(self, frame: Frame, y: Tensor) -> tuple[Tensor | None, Any, Tensor, Any]:
        """c, q, r, and the shortest step along the axis in its columns, in the dtype of y (n, d)."""
        with torch.inference_mode(False):
            center = None if self._center is None else placed(self._center.flatten(1), y)
            point = None if frame.point is None else placed(frame.point, y)
            radius = y.new_full((1, 1), torch.inf) if frame.radius is None else placed(frame.radius, y)
            aside = None if frame.axis is None else shortest(y.dtype) * placed(frame.axis[frame.columns], y)
            return center, point, radius, aside

    def _project(self, z: Tensor) -> Tensor:
        y, frame = flat(z), self._frame(tuple(z.shape[1:]))
        point = torch.zeros_like(y[:1]) if frame.point is None else placed(frame.point, y)
        if frame.axis is None:
            return (torch.zeros_like(y) + point).reshape(z.shape)
        inside = self._inside(y, frame)
        if frame.radius is None:
            return refuse_overflow(point + inside / frame.small, self).reshape(z.shape)
        radius = placed(frame.radius, y)
        shell = point + radius * self._direction(inside, frame)
        if self.convex:
            within = norm(inside)[:, None] <= radius * frame.small
            shell = torch.where(within, point + inside / frame.small if frame.along.rank else y, shell)
        return shell.reshape(z.shape)

    def _inside(self, y: Tensor, frame: Frame) -> Tensor:
        """frame.small u (n, d), u the part of y - c along the flat set."""
        if self._center is not None:
            y = y - placed(self._center.flatten(1), y)
        return frame.along.tangent(y * frame.small if frame.along.rank else y)

    def _direction(self, inside: Tensor, frame: Frame) -> Tensor:
        """u / |u|. What rounding left of other directions in a small u goes in a second pass."""
        assert frame.axis is not None
        axis = placed(frame.axis, inside)
        found = unit(inside, axis)
        return unit(frame.along.inside_fast(found), axis) if frame.along.rank else found

    # -------------------------------------------------------------- Gaussians restricted to a sphere

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """q, and a von Mises-Fisher direction around u / |u|, of concentration r |u| / sigma^2."""
        rows, frame = flat(y), self._frame(tuple(y.shape[1:]))
        if frame.axis is None or frame.radius is None:
            return self._project(y)
        inside, radius = self._inside(rows, frame), placed(frame.radius, rows)
        kappa = (radius[:, 0] / sigma) * (norm(inside) / frame.small / sigma)
        drawn = von_mises_fisher(
            self._direction(inside, frame),
            kappa,
            rows.shape[1] - frame.along.rank,
            lambda count: frame.along.tangent(gaussian(rows[:count], generator)),
            generator,
        )
        out = radius * self._direction(frame.along.tangent(drawn), frame)
        return (out if frame.point is None else placed(frame.point, rows) + out).reshape(y.shape)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """A Gaussian at the distance of y from the flat set, times the normaliser of the sphere in it."""
        rows, frame = flat(y), self._frame(tuple(y.shape[1:]))
        across = self._log_across(rows, sigma)
        if frame.axis is None or frame.radius is None:
            return across
        length, radius = norm(self._inside(rows, frame)) / frame.small, placed(frame.radius, rows)[:, 0]
        return across + log_sphere_mass(length, radius, sigma, rows.shape[1] - frame.along.rank)

    def _log_across(self, y: Tensor, sigma: float) -> Tensor:
        """log N(height; 0, sigma^2) over the heights of rows (n, d) above the flat set."""
        return torch.zeros_like(y[:, 0])

    # -------------------------------------------------------------- geometry

    def _geometry(self, event: Event) -> Geometry:
        frame = self._frame(event)
        found = Geometry(self._apart(event), sphere_in_flat=lambda: self._sphere_in_flat(event), within=self._within)
        if found.parts is None or found.parts.surface is not self:
            return found
        sizes = torch.zeros(1, 1) if frame.radius is None else frame.radius
        return found._replace(
            codimension=lambda: None if frame.points else frame.along.rank + (frame.radius is not None),
            reach=lambda: float(torch.where(sizes > 0, sizes, torch.inf).min()),
            log_volume=self._log_volume,
        )

    def _log_volume(self, x: Tensor, z: Tensor) -> Tensor | None:
        """(k - 1) log(|u| / r), k the dimension of the flat set; zero for a point and for a flat set alone."""
        y, frame = flat(x), self._frame(tuple(x.shape[1:]))
        if frame.radius is None or frame.axis is None:
            return torch.zeros(len(x), dtype=x.dtype, device=x.device)
        offset = y if self._center is None else y - placed(self._center.flatten(1), y)
        radius = placed(frame.radius, y)[:, 0]
        ratio = norm(frame.along.inside_fast(offset)) / torch.where(radius > 0, radius, 1.0)
        return (y.shape[1] - frame.along.rank - 1) * torch.log(torch.where(radius > 0, ratio, 1.0))

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        """The surface as equations and a sphere."""
        return None

    def _within(self, space: Subspace) -> Constraint | None:
        """The set in the coordinates of a subspace."""
        return None

    def _apart(self, event: Event) -> Parts:
        """A point where the flat set touches the sphere or is one; the flat set and the ball of a ball inside it."""
        frame = self._frame(event)
        if frame.points == 1.0:
            level = argument(self._middle(event))
            return Parts(Box(level, level), None)
        if frame.radius is None and not frame.along.rank:
            return Parts(None, None)
        return Parts(self, None)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        frame = self._frame(tuple(event))
        return None if frame.radius is None else (self._middle(event), frame.radius[:, 0])

    def _middle(self, event: Event) -> Tensor:
        """q (1 or n, *event)."""
        point, size = self._frame(tuple(event)).point, torch.Size(event).numel()
        wide = torch.zeros(1, size, dtype=torch.float64) if point is None else point.expand(-1, size)
        return wide.reshape(-1, *event)

    # -------------------------------------------------------------- equations

    def _offset(self, z: Tensor) -> Tensor:
        return flat(z if self._center is None else z - over(self._center, z))

    def _height(self, z: Tensor) -> Tensor:
        """|z - c|^2 - R^2, (n, 1)."""
        assert self._square is not None
        return self._offset(z).square().sum(1, keepdim=True) - over(self._square, flat(z))


class Round(RoundInFlat):
    """What a sphere and a ball share: a centre and a radius, and no flat set around them."""

    per_chain = ("radius", "center")
    radius: Any  # a number, or PerChain
    center: Any  # a tensor, PerChain, or None
    _radius: Tensor

    def __init__(self, radius: Any, center: Any = None) -> None:
        self.radius, self.center = one_number(radius, "radius"), copied(center)
        self._radius = parameter(self.radius)
        bad = first_failure((self._radius >= 0) & (self._radius < torch.inf))
        if bad is not None:
            raise InfeasibleSet(f"{type(self).__name__} needs a finite radius >= 0, got {show(self._radius, bad)}")
        self._shift = torch.zeros(1, dtype=torch.float64)
        if self.center is not None:
            self._center = parameter(self.center)
            lost = self._center[~torch.isfinite(self._center)]
            if len(lost):
                raise InfeasibleSet(f"{type(self).__name__} needs a finite center, got {float(lost[0])} in it")
            self._shift = norm(self._center.reshape(len(self._center), -1))
            self._coordinates = self._center.shape[1] if self._center.ndim == 2 else None
        self.chains = common_chains(radius=self.radius, center=self.center)
        self._square = self._radius**2

    def __repr__(self) -> str:
        center = "" if self.center is None else f", center={brief(self.center)}"
        return f"{type(self).__name__}(radius={self.radius:g}{center})"

    def validate(self, event: Event) -> None:
        if self._center is not None and tuple(self._center.shape[1:]) != event:
            raise ShapeError(f"center has shape {tuple(self._center.shape[1:])}, events have shape {event}")
        super().validate(event)

    def _measured(self, size: int) -> Frame:
        center = None if self._center is None else self._center.flatten(1)
        return Frame.of(Coordinates(size), size, center, self._radius, self._radius)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (self._offset(z) * (2.0 * weights)).reshape(z.shape)

    def _within(self, space: Subspace) -> Round | None:
        """A sphere or ball again, if its centre is in the subspace."""
        if self._center is None:
            return type(self)(self.radius)
        found = space.coordinates(self._center.flatten(1))
        return None if found is None else type(self)(self.radius, argument(found))

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """One row, in units of R; of |z| + |c| where R = 0. Rounding of what cancels, c and ``lost``, is granted."""
        size = norm(flat(z))
        radius, terms = over(self._radius, size), over(self._shift, size).expand(len(z))
        if lost is not None:
            terms = terms + norm(flat(lost))
        amount, unit = norm(self._offset(z)) - radius, torch.where(radius > 0, radius, size + terms)
        amount = amount.clamp_min(0.0) if self.convex else amount.abs()
        return Excess(amount[:, None], unit[:, None], GRANTED * EPSILON * terms[:, None])

    def component_name(self, event: Event, row: int) -> str:
        sign = "<=" if self.convex else "="
        return f"|z - c| {sign} {show(self._radius, 0) if self.chains is None else 'R'}"


@register
class Sphere(Round):
    """All points at a fixed distance from a centre.

    C = {z : |z - c| = R}; P(z) = c + R (z - c) / |z - c|.

    The centre itself is equally far from all of C; there P(c) = c + R e_1 (first coordinate), so that a
    projection is defined everywhere and the same on every run. The violation is | |z - c| - R | / R; what the
    rounding of c allows does not count.

    Args:
        radius: R >= 0; may be PerChain.
        center: c, of the shape of an event; the origin if left out; may be PerChain.

    >>> Sphere(3.0).project(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    tensor([[3., 0.],
            [0., 3.]])
    """

    samples_near = True
    _equation_count = 1

    def equations(self, z: Tensor) -> Tensor:
        return self._height(z)

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        nothing = torch.zeros(0, torch.Size(event).numel(), dtype=torch.float64)
        return SphereInFlat(
            nothing, nothing.T[:1], self._radius, None if self._center is None else self._center.flatten(1)
        )


@register
class Ball(Round):
    """All points within a distance of a centre.

    C = {z : |z - c| <= R}; points outside go to c + R (z - c) / |z - c|, points inside stay.

    The violation is max(0, |z - c| - R) / R; what the rounding of c allows does not count.

    Args:
        radius: R >= 0; may be PerChain.
        center: c, of the shape of an event; the origin if left out; may be PerChain.
    """

    convex = True
    _equation_count = 0

    def __init__(self, radius: Any, center: Any = None) -> None:
        super().__init__(radius, center)
        self.solid = bool((self._radius > 0).all())

    def inequalities(self, z: Tensor) -> Tensor:
        return self._height(z)

    def _apart(self, event: Event) -> Parts:
        """The centre where R = 0, all of space in other chains."""
        if self.solid:
            return Parts(None, self)
        middle = torch.zeros(1, *event, dtype=torch.float64) if self._center is None else self._center
        zero = over_events(self._radius == 0, middle)
        points = Box(*(argument(torch.where(zero, middle, free)) for free in (-torch.inf, torch.inf)))
        return Parts(points, None if bool(zero.all()) else self)


@register
class AffineRound(RoundInFlat):
    """Linear equations and a fixed, or bounded, distance from a centre, in closed form.

    C = {z : A z = b, |z - c| = R} (or <= R); ``Affine(A, b) & Sphere(R, c)`` becomes this set. The violation is the
    larger of those of the two sets.

    Args:
        flat_part: The equations.
        round_part: The sphere or ball.
    """

    def __init__(self, flat_part: Affine, round_part: Round) -> None:
        self.flat_part, self.round_part = flat_part, round_part
        self.convex = round_part.convex
        self._equation_count = total_count((flat_part, round_part))
        self.chains = common_chains(equations=flat_part, sphere=round_part)
        size, radius = flat_part.A.shape[1], round_part._radius
        self._radius = radius
        center = torch.zeros(1, size, dtype=torch.float64)
        if round_part._center is not None:
            self._center = center = round_part._center.reshape(-1, size)
        point = flat_part._project(center.expand(flat_part.chains or len(center), -1))
        gap = norm(point - center)
        largest = torch.maximum(gap, radius)
        bad = first_failure(gap <= radius * (1 + ROUNDING) + ROUNDING * largest)
        if bad is not None:
            off, limit = show(gap, bad), show(radius, bad)
            raise InfeasibleSet(f"the equations stay {off} away from the centre, beyond the radius {limit}")
        inner = (radius - gap).clamp_min(0.0).sqrt() * (radius + gap).sqrt()
        bad = first_failure(inner <= math.sqrt(ROUNDING) * largest)
        if flat_part.rank == size and not self.convex and bad is not None:
            raise InfeasibleSet(f"the equations fix a point at distance {show(gap, bad)}, not {show(radius, bad)}")
        self._cache["frame", size] = Frame.of(flat_part._system, size, point, inner, radius)

    def __repr__(self) -> str:
        return f"({self.flat_part!r} & {self.round_part!r})"

    def validate(self, event: Event) -> None:
        self.flat_part.validate(event)
        self.round_part.validate(event)

    def equations(self, z: Tensor) -> Tensor:
        return torch.cat([self.flat_part.equations(z), self.round_part.equations(z)], dim=1)

    def inequalities(self, z: Tensor) -> Tensor:
        return self.round_part.inequalities(z)

    def _apart(self, event: Event) -> Parts:
        """Equations and the ball; a point where the equations touch it, or fix one."""
        found, points = super()._apart(event), self._frame(event).points
        if not self.convex or points == 1.0:
            return found
        if points:
            raise SettingError(
                "in some chains the equations touch the ball in one point, in others they cut it: sets of different "
                "dimension; sample those chains in runs of their own (constraint.take)"
            )
        return Parts(self.flat_part, self.round_part) if self.flat_part.rank else parts(self.round_part, event)

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        whole = None if self.convex else self.round_part._sphere_in_flat(event)
        known = self.flat_part._sphere_in_flat()
        return None if whole is None or known is None else whole._replace(matrix=known.matrix, level=known.level)

    def _within(self, space: Subspace) -> Constraint | None:
        flat_part, round_part = self.flat_part._within(space), self.round_part._within(space)
        return None if flat_part is None or round_part is None else AffineRound(flat_part, round_part)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([part._excess(z, lost) for part in (self.flat_part, self.round_part)], z)

    def component_name(self, event: Event, row: int) -> str:
        parts = (self.flat_part, self.round_part)
        part, own = row_of(parts, (event, event), row)
        return parts[part].component_name(event, own)


# ------------------------------------------------------------------ mass and energy


class Conserved(RoundInFlat):
    """Known coordinates, sum and sum of squares of fields, any of which may be missing.

    C = {z in R^N : z_k = v_k for k in index, sum z = M, |z|^2 = E}. Of the N coordinates n_f are free; q is v on the
    others and m = (M - sum v) / n_f on these, and r = sqrt(E - |v|^2 - n_f m^2).

    Args:
        index: Positions (k,) of the known coordinates.
        values: v (1 or n, k).
        mass: M, or None.
        energy: E, or None.
    """

    mass: Any  # numbers, PerChain, or None
    energy: Any

    def __init__(self, index: Tensor, values: Tensor, mass: Any, energy: Any) -> None:
        self.index, self._values = index, values
        self.mass = None if mass is None else one_number(mass, "mass")
        self.energy = None if energy is None else one_number(energy, "energy")
        self._mass = None if mass is None else parameter(self.mass)
        self._square = None if energy is None else parameter(self.energy)
        self._radius = None if self._square is None else self._square.sqrt()
        sums, sizes = (parameter(0.0 if given is None else given) for given in (self.mass, self.energy))
        bad = first_failure(torch.isfinite(sums) & (sizes >= 0) & (sizes < torch.inf))
        if bad is not None or not bool(torch.isfinite(values).all()):
            finite = "finite values and mass, and" if len(index) else "a finite mass and"
            found = f"mass {show(self._mass, bad or 0)}, energy {show(self._square, bad or 0)}"
            raise InfeasibleSet(f"{type(self).__name__} needs {finite} an energy >= 0, got {found}")
        self.convex = energy is None
        self._equation_count = len(index) + (mass is not None) + (energy is not None)

    def validate(self, event: Event) -> None:
        size = torch.Size(event).numel()
        first, last = min(self.index.tolist(), default=0), max(self.index.tolist(), default=-1)
        if first < 0 or last >= size:
            raise ShapeError(f"observed positions run from {first} to {last}, those of {event} from 0 to {size - 1}")
        free, known, energy = size - len(self.index), self._values.sum(1), self._square
        if self._mass is not None and free == 0:
            scale = self._values.abs().sum(1).max() + self._mass.abs()
            bad = first_failure((known - self._mass).abs() <= ROUNDING * scale)
            if bad is not None:
                found = f"their sum is {show(known, bad)}, not {show(self._mass, bad)}"
                raise InfeasibleSet(f"all {size} coordinates are observed; {found}")
        if energy is not None:
            self._check_energy(energy, size, free)
        super().validate(event)

    def _check_energy(self, energy: Tensor, size: int, free: int) -> None:
        spent, least = self._values.square().sum(1), self._least(size)
        granted = ROUNDING * (least + energy)
        bad = first_failure(energy >= least - granted)
        if bad is not None:
            rest = f"the mass of the {free} others takes at least {show(least - spent, bad)}"
            parts = f"{show(least, bad)}: the observed ones have {show(spent, bad)}, {rest}"
            if not len(self.index):
                mass = f"mass {show(self._mass, bad)}, N = {size}"
                parts = f"mass^2 / N = {show(least, bad)} ({mass}): no field has so little"
            raise InfeasibleSet(f"energy {show(energy, bad)} is below {parts}")
        # Without a direction to move in, the energy is decided already.
        bad = first_failure(energy <= least + granted) if free <= (self._mass is not None) else None
        if bad is not None:
            fixed = f"fix the energy at {show(least, bad)}, not {show(energy, bad)}"
            raise InfeasibleSet(f"with {free} of {size} coordinates free, the other conditions {fixed}")

    def _rest(self, size: int) -> Tensor:
        """M - sum v (1 or n,), what the free coordinates add up to; zero without a mass or without any of them."""
        if self._mass is None or size == len(self.index):
            return torch.zeros(1, dtype=torch.float64)
        return self._mass - self._values.sum(1)

    def _least(self, size: int) -> Tensor:
        """|v|^2 + n_f m^2 (1 or n,)."""
        return self._values.square().sum(1) + self._rest(size) ** 2 / max(1, size - len(self.index))

    def _measured(self, size: int) -> Frame:
        along = Coordinates(size, self.index, summed=self._mass is not None)
        point = (self._rest(size) / max(1, len(along.free)))[:, None]
        if len(self.index):
            point = point.expand(self.chains or 1, size).clone()
            point[:, self.index.cpu()] = self._values
        radius = None if self._square is None else (self._square - self._least(size)).clamp_min(0.0).sqrt()
        return Frame.of(along, size, point, radius, self._radius)

    def equations(self, z: Tensor) -> Tensor:
        y = flat(z)
        parts = [y[:, self.index.to(z.device)] - over(self._values, y)] if len(self.index) else []
        if self._mass is not None:
            parts.append(y.sum(1, keepdim=True) - over(self._mass, y))
        if self._square is not None:
            parts.append(self._height(z))
        return torch.cat(parts, dim=1) if parts else y[:, :0]

    def _sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        size = torch.Size(event).numel()
        rows, level = torch.zeros((len(self.index), size), dtype=torch.float64), self._values
        rows[torch.arange(len(self.index)), self.index.cpu()] = 1.0  # never all of the identity
        if self._mass is not None:
            rows, level = torch.cat([rows, rows.new_ones(1, size)]), join(level, self._mass[:, None])
        return SphereInFlat(rows, level, self._radius)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """z_k - v_k; sum z - M in units of sum |z| + |M|; |z|^2 - E in units of E."""
        y, parts = flat(z), []
        cancelled = torch.zeros_like(y[:1]) if lost is None else flat(lost)
        if len(self.index):
            index, known = self.index.to(z.device), over(self._values, y).expand(len(z), -1)
            parts.append(bounds_missed(y[:, index], None if lost is None else cancelled[:, index], known, known))
        if self._mass is not None:
            level, top = over(self._mass, y), peak(y)
            top = torch.where(top > LARGE, top, 1.0)
            gap = (y / top).sum(1, keepdim=True) - level / top
            size = ((y.abs() + cancelled) / top).sum(1, keepdim=True) + level.abs() / top
            parts.append(Excess(gap.abs(), size, scale=top))
        if self._square is not None:
            level = over(self._square, y).expand(len(z), 1)
            amount = (norm(y)[:, None].square() - level).abs().clamp_max(torch.finfo(z.dtype).max)
            rounding = GRANTED * EPSILON * 2.0 * (y.abs() * cancelled).sum(1, keepdim=True)
            parts.append(Excess(amount, level, rounding))
        return side_by_side(parts, z)

    def component_name(self, event: Event, row: int) -> str:
        if row < len(self.index):
            return f"observed value of z[{int(self.index[row])}]"
        return "sum z = M" if row == len(self.index) and self.mass is not None else "|z|^2 = E"


@register
class MassEnergy(Conserved):
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

    samples_near = True
    per_chain = ("mass", "energy")
    _mass: Tensor
    _radius: Tensor

    def __init__(self, mass: Any, energy: Any) -> None:
        self.chains = common_chains(mass=mass, energy=energy)
        nothing = torch.zeros(1, 0, dtype=torch.float64)
        super().__init__(nothing[0].long(), nothing, one_number(mass, "mass"), one_number(energy, "energy"))

    def __repr__(self) -> str:
        return f"MassEnergy(mass={self.mass:g}, energy={self.energy:g})"

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (flat(z) * (2.0 * weights[:, 1:])).add_(weights[:, :1]).reshape(z.shape)

    def _within(self, space: Subspace) -> Constraint | None:
        """A sphere cut by one equation, if constant fields are in the subspace."""
        ones = space.coordinates(torch.ones((1, torch.Size(space.event).numel()), dtype=torch.float64))
        if ones is None or ones.numel() < 2 or self._frame(space.event).points:
            return None
        return AffineRound(Affine(ones.flatten(1), self.mass), Sphere(argument(self._radius)))

    def _log_across(self, y: Tensor, sigma: float) -> Tensor:
        height = (y.sum(1) - over(self._mass, y[:, 0])) / (math.sqrt(y.shape[1]) * sigma)
        return -0.5 * height.square() - math.log(math.sqrt(2.0 * math.pi) * sigma)


@register
class ObservedMassEnergy(Conserved):
    """Fields of a given mass and energy, some of whose values are known, in closed form.

    C = {z in R^N : z_k = v_k for k in index, sum z = M, |z|^2 = E}, a sphere inside a flat set.

    Of the N coordinates n_f are free. With m = (M - sum v) / n_f, r = sqrt(E - |v|^2 - n_f m^2), and w the free part
    of y minus its mean,

        P(y) = v on the observed coordinates,  m + r w / |w| on the free ones.

    Without a mass, m = 0 and w is the free part itself; without an energy the free part is m + w (or stays as it is
    if there is no mass either), a flat and convex set. Where w = 0, all of C is equally far and the direction
    (1, -1, 0, ...) / sqrt(2) is taken, or (1, 0, ...) without a mass, counted in free coordinates.

    The violation is the largest of |z_k - v_k| / (|z_k| + |v_k|), |sum z - M| / (sum |z| + |M|) and | |z|^2 - E | / E.

    Args:
        index: Positions of the observed coordinates in the flattened event, each once.
        values: v, as many numbers; PerChain: (n, k).
        mass: M, or None if the sum is not known; may be PerChain.
        energy: E, or None if the sum of squares is not known; may be PerChain.

    >>> ObservedMassEnergy([0], [1.0], mass=3.0, energy=5.0).project(torch.tensor([[9.0, 1.0, 7.0]]))
    tensor([[1., 0., 2.]])
    """

    per_chain = ("values", "mass", "energy")

    def __init__(self, index: Any, values: Any, mass: Any = None, energy: Any = None) -> None:
        places = torch.as_tensor(index)
        if places.numel() and (places.is_floating_point() or places.dtype == torch.bool):
            raise SettingError(f"index holds positions in the flattened event, integers; got {places.dtype}")
        places = places.to(torch.long).reshape(-1).clone()
        given = parameter(copied(values))
        given = given.reshape(len(given), -1)
        self.values = argument(given, common_chains(values=values) is not None)
        if len(places) != given.shape[1]:
            raise ShapeError(f"{len(places)} observed positions but {given.shape[1]} values")
        repeated = places.unique(return_counts=True)
        if bool((repeated[1] > 1).any()):
            twice = int(repeated[0][repeated[1] > 1][0])
            raise SettingError(f"position {twice} is observed more than once; keep one value for each position")
        self.chains = common_chains(values=values, mass=mass, energy=energy)
        super().__init__(places, given, mass, energy)

    def __repr__(self) -> str:
        mass = "" if self.mass is None else f", mass={self.mass:g}"
        energy = "" if self.energy is None else f", energy={self.energy:g}"
        chains = f", values={self.values}" if isinstance(self.values, PerChain) else ""
        return f"ObservedMassEnergy({len(self.index)} observed{chains}{mass}{energy})"


# ------------------------------------------------------------------ mass, energy and bounds


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
    guesses do not converge from halving intervals. Ties of y that bounds break (all of C is equally far from a constant
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

    _equation_count = 2
    per_chain = ("mass", "energy", "low", "high")

    def __init__(self, mass: Any, energy: Any, low: Any, high: Any) -> None:
        self.conserved, self.box = MassEnergy(mass, energy), Box(low, high)
        self.chains = common_chains(equations=self.conserved, bounds=self.box)
        self.exact = all(_same(side) for side in (self.box.low, self.box.high))
        if self.chains is None:
            self._check_any_size()

    def __repr__(self) -> str:
        return f"({self.conserved!r} & {self.box!r})"

    def _explained(self) -> str:
        how = f"{super()._explained()}, alpha y + beta clipped to the bounds"
        return how if self.exact else f"{how}, the nearest point where alpha > 0 exists"

    def validate(self, event: Event) -> None:
        if self.chains is None:
            self._frame(tuple(event))
            return
        for _, alone in self._group_sets:
            alone.validate(event)

    def _arguments(self) -> dict[str, Any]:
        return {**self.conserved._arguments(), **self.box._arguments()}

    def equations(self, z: Tensor) -> Tensor:
        return self.conserved.equations(z)

    def inequalities(self, z: Tensor) -> Tensor:
        return self.box.inequalities(z)

    def _residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        parts = zip((self.conserved, self.box), weights.tensor_split((2,), dim=1), strict=True)
        pulled, bounds = (part._residual_pull(z, own) for part, own in parts)
        return None if pulled is None or bounds is None else pulled.add_(bounds)

    def bounds(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return self.box.bounds(event)

    def _geometry(self, event: Event) -> Geometry:
        return Geometry(self._apart(event))

    def _apart(self, event: Event) -> Parts:
        """Mass and energy, known where low = high; the bounds on the others."""
        low, high = (over_flattened(side, event) for side in (self.box._low, self.box._high))
        ones = torch.ones(low.shape[1], dtype=torch.float64)
        met = BoxHyperplane(argument(low), argument(high), ones, self.conserved.mass)._bounds_met()
        pinned, rest = met._pinned, met._bounds_where(~met._pinned)
        solid = rest._shaped(event) if rest._has_an_edge else None
        if parts(self.conserved, event).surface is not self.conserved:
            return Parts(parts(self.conserved, event).surface, None)
        if not bool(pinned.any()):
            return Parts(self.conserved, solid)
        pins = met._bounds_where(pinned)
        if bool(pinned.all()):
            return Parts(pins._shaped(event), None)
        rows = pins._pins((low.shape[1],))
        if rows is None:
            raise SettingError(
                "low = high fixes other coordinates in one chain than in another; "
                "sample those chains in runs of their own (constraint.take)"
            )
        known = argument(rows.level)
        observed = ObservedMassEnergy(rows.matrix.argmax(1), known, self.conserved.mass, self.conserved.energy)
        surface = parts(observed, event).surface
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
        return (frame.mean + frame.radius * _farthest(self._directions(y), on)).clamp(low, high)

    def _directions(self, y: Tensor) -> Tensor:
        """(y - ybar) / |y - ybar| for rows (n, d), d > 1."""
        frame = self.conserved._frame((y.shape[1],))
        return self.conserved._direction(self.conserved._inside(y, frame), frame)

    def _holds(self, y: Tensor, frame: _Frame) -> Tensor:
        """Points (n,) that satisfy the definition to rounding, which stay where they are."""
        mass, energy = self.conserved.mass, self.conserved.energy
        power, size = y.square().sum(1), y.abs().sum(1) + abs(mass)
        bounded = ((y >= placed(frame.low, y)) & (y <= placed(frame.high, y))).all(1)
        summed = (y.sum(1) - mass).abs() <= 4.0 * EPSILON * size
        return bounded & summed & ((power - energy).abs() <= 8.0 * EPSILON * energy)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([part._excess(z, lost) for part in (self.conserved, self.box)], z)

    def component_name(self, event: Event, row: int) -> str:
        return self.conserved.component_name(event, row) if row < 2 else self.box.component_name(event, row - 2)

    def _frame(self, event: Event) -> _Frame:
        """Made at the first event of a shape, with all the checks."""
        return self._once(("frame", event), lambda: self._measured(event))

    def _measured(self, event: Event) -> _Frame:
        self.conserved.validate(event)
        self.box.validate(event)
        mass, energy = self.conserved.mass, self.conserved.energy
        low, high = (side.expand(event).reshape(-1) for side in (self.box.low, self.box.high))
        size = len(low)
        least, most = float(low.sum()), float(high.sum())
        granted = ROUNDING * (abs(mass) + math.sqrt(size * energy))
        if not least - granted <= mass <= most + granted:
            reach = f"{size} coordinates within the bounds sum to {least:g} at least and {most:g} at most"
            raise InfeasibleSet(f"mass {mass:g} is out of reach: {reach}; choose a mass in between, or wider bounds")
        mean, radius = mass / size, max(0.0, energy - mass**2 / size) ** 0.5
        within = BoxHyperplane(low, high, torch.ones(size, dtype=torch.float64), mass)
        level = float(within._project(torch.full((1, size), mean, dtype=torch.float64)).square().sum())
        if energy < level * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: fields of mass {mass:g} within the bounds have {level:g} at least; "
                "choose a larger energy, or bounds that come closer to the mean"
            )
        return _Frame(mean, radius, low, high, self._reduced(low, high, mean, radius) if radius and size > 1 else None)

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
        low, high, mass, energy = self.box.low, self.box.high, self.conserved.mass, self.conserved.energy
        least_sum = float(low.sum()) if bool((low >= 0).all()) else -math.inf
        most_sum = float(high.sum()) if bool((high <= 0).all()) else math.inf
        if mass < least_sum - ROUNDING * abs(least_sum) or mass > most_sum + ROUNDING * abs(most_sum):
            asked = f"{least_sum:g} or more" if mass < least_sum else f"{most_sum:g} or less"
            raise InfeasibleSet(f"mass {mass:g} is out of reach: the bounds alone require a sum of {asked}")
        least = float(torch.zeros_like(low).clamp(low, high).square().sum())
        if energy < least * (1.0 - ROUNDING):
            raise InfeasibleSet(
                f"energy {energy:g} is too little: the bounds alone require {least:g} or more; "
                "choose a larger energy, or bounds that come closer to zero"
            )


def _same(side: Any) -> bool:
    """Whether all coordinates have the same bound."""
    numbers = parameter(side)
    numbers = numbers.reshape(len(numbers), -1)
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
        out[left] = torch.where(done[:, None], out[left], u)
        lost = lost & ~done
        if check_due(iteration, v):
            if not seen(lost.any()):
                return out, left[:0]
            if not seen(lost.all()):
                some = chosen(lost)
                left, v, line, u, lost = left[some], v[some], line[some], u[some], lost[some]
        done = ~lost
        line = _fit(v, u, (line > low) & (line < high))
    return out, left[chosen(lost)]


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
        moving = differ & _too_short(start) & ~_too_short(end)
        if check_due(iteration, v) and not seen(moving.any()):
            break
        middle = 0.5 * (near + far)
        point = bounds.onto(middle.exp() * v)
        up, down = moving & _too_short(point), moving & ~_too_short(point)
        start, end = torch.where(up, point, start), torch.where(down, point, end)
        near, far = torch.where(up, middle, near), torch.where(down, middle, far)

    stuck = chosen(_too_short(end).squeeze(1))
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
        short = _too_short(point)
        start, end = torch.where(short, point, start), torch.where(short, end, point)
        near, far = torch.where(short, share, near), torch.where(short, far, share)
        if check_due(iteration, v) and not seen((far > near).any()):
            break
        share = 0.5 * (near + far)
    return start, end


def _order(v: Tensor, bounds: _Bounds) -> Tensor:
    """Coordinates from the largest v to the smallest; of equal ones those with the higher bounds first."""
    high_first = (bounds.low + bounds.high).argsort(descending=True, stable=True)
    return high_first[v[:, high_first].argsort(dim=1, descending=True, stable=True)]


def _too_short(u: Tensor) -> Tensor:
    """(n, 1): |u| < 1."""
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


# ------------------------------------------------------------------ ellipsoids


@register
class Ellipsoid(Constraint):
    """All points in an ellipsoid: a bounded quadratic form.

    C = {z : (z - c)^T Q (z - c) <= 1}, Q = V diag(1 / s_i^2) V^T with the semi-axes s_i.

    A point outside goes, in the eigenbasis y = V^T (z - c), to

        p_i = s_i^2 y_i / (s_i^2 + mu),   where mu > 0 solves   |s y / (s^2 + mu)| = 1   (the secular equation).

    1 / |s y / (s^2 + mu)| is increasing and concave in mu, so Newton's method on it climbs to the root from the
    left without a safeguard; it runs until no chain moves any more, about ten steps. The nearest point is unique
    everywhere, the centre is inside. The gauge of a point is sqrt((z - c)^T Q (z - c)); the violation is
    max(0, gauge - 1); what the rounding of c and of a matrix allows does not count. Points whose gauge exceeds one by
    rounding only are left alone.

    Rounding: an axis-aligned ellipsoid is resolved to a few 1e-16 whatever its axes; one given by a matrix only
    to about 1e-16 times the condition number of Q, because that is what Q itself says.

    Args:
        axes_or_matrix: Semi-axes (d,), all positive, along the coordinates of the flattened event; or Q (d, d),
            symmetric positive definite.
        center: c, of the shape of an event; the origin if left out.

    >>> Ellipsoid([2.0, 1.0]).project(torch.tensor([[4.0, 0.0], [0.0, 3.0], [1.0, 0.5]]))
    tensor([[2.0000, 0.0000],
            [0.0000, 1.0000],
            [1.0000, 0.5000]])
    """

    convex = True
    solid = True
    _equation_count = 0

    def __init__(self, axes_or_matrix: Any, center: Any = None) -> None:
        given = real(axes_or_matrix).clone()
        if given.ndim not in (1, 2) or not given.numel() or (given.ndim == 2 and given.shape[0] != given.shape[1]):
            raise ShapeError(
                f"Ellipsoid takes semi-axes (d,) or a matrix (d, d), got shape {tuple(given.shape)}; "
                "the axes of an event with several dimensions are given flattened"
            )
        if not bool(torch.isfinite(given).all()):
            raise InfeasibleSet("the ellipsoid has non-finite axes or matrix entries")
        self.axes = given if given.ndim == 1 else None
        self.matrix = given if given.ndim == 2 else None
        self.center = None if center is None else real(center).clone()
        if self.center is not None and not bool(torch.isfinite(self.center).all()):
            worst = float(self.center[~torch.isfinite(self.center)][0])
            raise InfeasibleSet(f"Ellipsoid needs a finite center, got {worst} in it")
        self._basis: Tensor | None
        self._semi: Tensor
        self._basis, self._semi = (None, given) if given.ndim == 1 else _eigenbasis(given)
        least, most = float(self._semi.min()), float(self._semi.max())
        if not least > 0.0 or least < FLATTEST_AXES * most:
            raise InfeasibleSet(
                f"the semi-axes must be positive and within a factor {1 / FLATTEST_AXES:.0e}, "
                f"got {least:g} to {most:g}; a set that is flat along some directions is an intersection with Affine"
            )
        self._least, self._most, self._coordinates = least, most, len(self._semi)

    def __repr__(self) -> str:
        center = "" if self.center is None else f", center={brief(self.center)}"
        return f"Ellipsoid(d={len(self._semi)}, semi-axes {self._least:g} to {self._most:g}{center})"

    def validate(self, event: Event) -> None:
        super().validate(event)
        if self.center is not None and tuple(self.center.shape) != event:
            raise ShapeError(f"center has shape {tuple(self.center.shape)}, events have shape {event}")

    def _arguments(self) -> dict[str, Any]:
        return {"axes_or_matrix": self.matrix if self.axes is None else self.axes, "center": self.center}

    def inequalities(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        if self.matrix is None:
            return (offset / self._semi.to(z)).square().sum(1, keepdim=True) - 1.0
        return ((offset @ self.matrix.to(z)) * offset).sum(1, keepdim=True) - 1.0

    def _offset(self, z: Tensor) -> Tensor:
        return flat(z if self.center is None else z - self.center.to(z))

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        sigma, basis = (self._semi / self._most).to(z), None if self._basis is None else placed(self._basis, z)
        size = peak(offset)
        rows = offset / size if basis is None else (offset / size) @ basis
        # Beyond 1e200 semi-axes the nearest point depends on the direction only.
        y = rows * (size / self._most).clamp_max(FARTHEST)
        outside = norm(y / sigma) > 1.0 + self._rounding()
        point = _secular(y, sigma) * self._most
        point = (point if basis is None else point @ basis.T).reshape(z.shape)
        point = point if self.center is None else point + self.center.to(z)
        return torch.where(over_events(outside, z), point, z)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        middle = torch.zeros(event, dtype=torch.float64) if self.center is None else self.center
        return middle[None], torch.tensor([self._most], dtype=torch.float64)

    def _rounding(self) -> float:
        """How far the gauge of a computed point may exceed one: the rounding of its coordinates over the axes."""
        size = len(self._semi)
        center = torch.zeros_like(self._semi) if self.center is None else self.center.reshape(-1).to(self._semi)
        if self.matrix is None:
            return 2.0 * EPSILON * (size**0.5 + float(norm((center / self._semi)[None])[0]))
        return 4.0 * EPSILON * (size * (self._most / self._least) ** 2 + float(center.abs().max()) / self._least)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """One row, the gauge. Rounding of what cancels, c and ``lost``, is granted, and that of a matrix."""
        offset = self._offset(z)
        size = peak(offset)
        rows = offset / size
        if self.matrix is None:
            gauge = norm(rows / (self._semi / self._most).to(z)) * (size.squeeze(1) / self._most)
        else:
            gauge = ((rows @ self.matrix.to(z)) * rows).sum(1).clamp_min(0.0).sqrt() * size.squeeze(1)
        terms = torch.zeros_like(offset) if lost is None else flat(lost)
        if self.center is not None:
            terms = terms + self.center.to(z).abs().reshape(1, -1)
        semi = self._semi.to(z) if self.matrix is None else self._least
        rounding = GRANTED * EPSILON * norm(terms / semi)
        if self.matrix is not None:
            rounding = rounding + self._rounding()
        amount = (gauge - 1.0).clamp(0.0, torch.finfo(z.dtype).max)
        return Excess(amount[:, None], torch.ones_like(amount)[:, None], rounding[:, None])

    def component_name(self, event: Event, row: int) -> str:
        return "sqrt((z - c)^T Q (z - c)) <= 1"


def _secular(y: Tensor, sigma: Tensor) -> Tensor:
    """sigma^2 y / (sigma^2 + m) with |sigma y / (sigma^2 + m)| = 1, rows of y outside, max sigma = 1."""
    square, pull = sigma.square(), sigma * y
    # Where every coordinate of sigma y / (sigma^2 + m) is at most one, the largest of them equal to one.
    m = (pull.abs() - square).amax(1, keepdim=True).clamp_min(0.0)
    for iteration in range(NEWTON_STEPS):
        p = pull / (square + m)
        length = torch.linalg.vector_norm(p, dim=1, keepdim=True)
        slope = (p.square() / (square + m)).sum(1, keepdim=True)
        step = torch.where(length > 1.0, (length - 1.0) * length.square() / slope, torch.zeros_like(m))
        moved = m + step
        if check_due(iteration, m) and seen((moved == m).all()):
            break
        m = moved
    return square * y / (square + m)


def _eigenbasis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors in columns, and the semi-axes 1 / sqrt(eigenvalue)."""
    top = float(matrix.abs().max())
    gap = float((matrix - matrix.T).abs().max())
    if gap > SYMMETRY * top:
        raise SettingError(f"the matrix is not symmetric: entries differ by {gap:g}; pass (Q + Q.T) / 2")
    values, vectors = torch.linalg.eigh(matrix / (top or 1.0))
    if not float(values[0]) > FLATTEST_MATRIX * float(values[-1]):
        raise InfeasibleSet(
            f"the matrix is not positive definite: eigenvalues {top * float(values[0]):g} to "
            f"{top * float(values[-1]):g}, least allowed ratio {FLATTEST_MATRIX:g}; pass extreme axes as a vector"
        )
    return vectors, (1.0 / values.sqrt()) / top**0.5
