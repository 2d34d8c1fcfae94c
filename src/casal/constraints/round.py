"""Round sets: sphere and ball, ellipsoid, and a sphere or ball cut by linear equations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Constraint,
    Excess,
    Parts,
    SphereInFlat,
    Subspace,
    register,
    row_of,
    side_by_side,
    total_count,
)
from casal.constraints.chains import (
    Bound,
    Number,
    PerChain,
    as_rows,
    bound,
    brief,
    column,
    common_chains,
    derive,
    each,
    event_shape,
    first_failure,
    marked,
    number,
    raw,
    share,
    show,
    spread,
)
from casal.constraints.flat import Affine, Box, points_where_zero
from casal.constraints.solvers.laws import log_sphere_mass, von_mises_fisher
from casal.constraints.vectors import (
    EPSILON,
    GRANTED,
    ROUNDING,
    axis,
    flat,
    gaussian,
    norm,
    nudge,
    once,
    over_events,
    peak,
    shell_factor,
    shortest,
    unit,
)
from casal.devices import look_due, placed, seen
from casal.errors import InfeasibleSet, SettingError, ShapeError

NEWTON_STEPS = 100
FARTHEST = 1e200
FLATTEST_AXES = 1e-100
FLATTEST_MATRIX = 1e-13
SYMMETRY = 1e-12


class Round(Constraint):
    """What a sphere and a ball share: a centre, a radius, and |z - c|^2 - R^2."""

    smooth = True
    fast = True
    per_chain = ("radius", "center")
    radius: Any  # a number, or PerChain
    center: Any  # a tensor, PerChain, or None

    def __init__(self, radius: Any, center: Any = None) -> None:
        self.radius = number(radius, "radius")
        bad = first_failure(lambda r: (r >= 0) & (r < torch.inf), self.radius)
        if bad is not None:
            raise InfeasibleSet(f"{type(self).__name__} needs a finite radius >= 0, got {show(self.radius, bad)}")
        self.center = None if center is None else bound(center)
        shift: Any = 0.0
        if self.center is not None:
            numbers = raw(self.center)
            if not bool(torch.isfinite(numbers).all()):
                worst = float(numbers[~torch.isfinite(numbers)][0])
                raise InfeasibleSet(f"{type(self).__name__} needs a finite center, got {worst} in it")
            if isinstance(self.center, PerChain):
                shift = PerChain(torch.linalg.vector_norm(self.center.rows, dim=1))
            else:
                shift = float(torch.linalg.vector_norm(numbers))
        self.chains = common_chains(radius=self.radius, center=self.center)
        self._square = derive(lambda r: r**2, self.radius)
        self._shift = shift

    def __repr__(self) -> str:
        center = "" if self.center is None else f", center={brief(self.center)}"
        return f"{type(self).__name__}(radius={self.radius:g}{center})"

    def validate(self, event: Event) -> None:
        if self.center is not None and tuple(event_shape(self.center)) != event:
            raise ShapeError(f"center has shape {tuple(event_shape(self.center))}, events have shape {event}")

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        return (self._offset(z) * (2.0 * weights)).reshape(z.shape)

    def within(self, space: Subspace) -> Round | None:
        """A sphere or ball again, if its centre is in the subspace."""
        if self.center is None:
            return type(self)(self.radius)
        own = isinstance(self.center, PerChain)
        found = space.coordinates(self.center.rows if own else self.center.reshape(1, -1))
        return None if found is None else type(self)(self.radius, PerChain(found) if own else found[0])

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        middle = torch.zeros(1, *event, dtype=torch.float64) if self.center is None else raw(self.center)
        return middle.reshape(-1, *event), raw(as_rows(self.radius)).reshape(-1)

    def _is_point(self) -> bool | None:
        """Whether R = 0; None if only in some chains."""
        if first_failure(lambda r: r > 0, self.radius) is None:
            return False
        return True if first_failure(lambda r: r == 0, self.radius) is None else None

    def _height(self, z: Tensor) -> Tensor:
        """|z - c|^2 - R^2, (n, 1)."""
        return self._offset(z).square().sum(1, keepdim=True) - column(self._square, z)

    def _offset(self, z: Tensor) -> Tensor:
        return flat(z if self.center is None else z - spread(self.center, z))

    def _off_radius(self, z: Tensor, lost: Tensor | None, amount: Tensor) -> Excess:
        """One row, in units of R; of |z| + |c| where R = 0. Rounding of what cancels, c and ``lost``, is granted."""
        radius, shift = (torch.as_tensor(each(v, z), dtype=z.dtype) for v in (self.radius, self._shift))
        radius, terms = radius.to(z).expand(len(z)), shift.to(z).expand(len(z))
        if lost is not None:
            terms = terms + norm(flat(lost))
        unit = torch.where(radius > 0, radius, norm(flat(z)) + terms)
        return Excess(amount[:, None], unit[:, None], GRANTED * EPSILON * terms[:, None])

    def _place(self, offset: Tensor, z: Tensor) -> Tensor:
        moved = offset.reshape(z.shape)
        return moved if self.center is None else moved + spread(self.center, z)


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

    def _project_fast(self, z: Tensor) -> Tensor:
        return self._shell(z, column(self.radius, z))[0]

    def _project_fast_half(self, z: Tensor, warm: Tensor | None) -> tuple[Tensor, Tensor]:
        """The distance is | |z - c| - R |."""
        radius = column(self.radius, z)
        foot, length = self._shell(z, radius)
        return foot, (length - radius).to(torch.float64).flatten().square_().div_(2)

    def _shell(self, z: Tensor, radius: float | Tensor) -> tuple[Tensor, Tensor]:
        """c + R (z - c) / |z - c|, and |z - c| as a column."""
        offset = self._offset(z)
        factor, length = shell_factor(offset, radius)
        shell = offset * factor
        nudge(shell[:, :1], factor, shortest(z.dtype))
        return self._place(shell, z), length

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        return self._place(column(self.radius, z) * unit(offset, axis(offset, 1.0)), z)

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        """A von Mises-Fisher direction around (y - c) / |y - c|, of concentration R |y - c| / sigma^2."""
        offset = self._offset(y)
        kappa = (each(self.radius, y) / sigma) * (norm(offset) / sigma)
        mean, size = unit(offset, axis(offset, 1.0)), offset.shape[1]
        drawn = von_mises_fisher(mean, kappa, size, lambda rows: gaussian(offset[:rows], generator), generator)
        return self._place(column(self.radius, y) * unit(drawn, axis(drawn, 1.0)), y)

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        """Gaussian at the distance of y from C, times the Bessel normaliser of the angle."""
        offset = self._offset(y)
        return log_sphere_mass(norm(offset), each(self.radius, y), sigma, offset.shape[1])

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return self._off_radius(z, lost, (norm(self._offset(z)) - each(self.radius, z)).abs())

    def row_name(self, event: Event, row: int) -> str:
        return f"|z - c| = {show(self.radius, 0)}" if self.chains is None else "|z - c| = R"

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        return shell_tube(self._offset(x), each(self.radius, x), 1)

    def codimension(self, event: Event) -> int | None:
        point = self._is_point()
        return None if point is None else torch.Size(event).numel() if point else 1

    def reach(self, event: Event) -> float | None:
        return smallest_positive(self.radius)

    def sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        size = torch.Size(event).numel()
        nothing = torch.zeros(0, size, dtype=torch.float64)
        center = self.center
        if center is not None:
            center = PerChain(center.rows) if isinstance(center, PerChain) else center.reshape(-1)
        return SphereInFlat(nothing, nothing[:, 0], self.radius, center)


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
        self.solid = self._is_point() is False

    def inequalities(self, z: Tensor) -> Tensor:
        return self._height(z)

    def _apart(self, event: Event) -> Parts:
        """The centre where R = 0."""
        if self.solid:
            return Parts(None, self)
        return Parts(points_where_zero(self.radius, self.center, event), None if self._is_point() else self)

    def _project_fast(self, z: Tensor) -> Tensor:
        offset, radius = self._offset(z), column(self.radius, z)
        factor, length = shell_factor(offset, radius)
        inside = ~(length > radius)
        moved = offset * torch.where(inside, torch.ones_like(factor), factor)
        if self.center is None:
            return moved.reshape(z.shape)
        return torch.where(over_events(inside, z), z, self._place(moved, z))

    def _project(self, z: Tensor) -> Tensor:
        offset = self._offset(z)
        outside = norm(offset) > each(self.radius, z)
        shell = self._place(column(self.radius, z) * unit(offset, offset.new_ones(offset.shape[1])), z)
        return torch.where(over_events(outside, z), shell, z)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return self._off_radius(z, lost, (norm(self._offset(z)) - each(self.radius, z)).clamp_min(0.0))

    def row_name(self, event: Event, row: int) -> str:
        return f"|z - c| <= {show(self.radius, 0)}" if self.chains is None else "|z - c| <= R"


@register
class AffineRound(Constraint):
    """Linear equations and a fixed, or bounded, distance from a centre, in closed form.

    C = {z : A z = b, |z - c| = R} (or <= R); ``Affine(A, b) & Sphere(R, c)`` becomes this set.

    With q the foot of the centre c on the flat and r = sqrt(R^2 - |q - c|^2),

        P(z) = q + r u / |u|,    u = P_flat(z) - q        (u itself if the ball holds it).

    Where P_flat(z) = q all points of the sphere are equally near, and a fixed direction inside the flat is taken. The
    violation is the larger of those of the two sets.

    Args:
        flat_part: The equations.
        round_part: The sphere or ball.
    """

    smooth = True
    fast = True

    def __init__(self, flat_part: Affine, round_part: Round) -> None:
        self.flat_part, self.round_part = flat_part, round_part
        self.convex = round_part.convex
        self._equation_count = total_count((flat_part, round_part))
        self.chains = common_chains(equations=flat_part, sphere=round_part)
        given, size, radius = round_part.center, flat_part.A.shape[1], round_part.radius
        center = torch.zeros(1, size, dtype=torch.float64) if given is None else raw(given).reshape(-1, size)
        self._center: Bound | None = PerChain(center) if isinstance(given, PerChain) else center[0]
        self._center = None if given is None else self._center
        feet = flat_part._project(center.expand(flat_part.chains or len(center), -1))
        gaps = torch.linalg.vector_norm(feet - center, dim=1)
        own = flat_part.chains is not None or isinstance(self._center, PerChain)
        self._foot: Bound = PerChain(feet) if own else feet[0]
        gap = PerChain(gaps) if own else float(torch.linalg.vector_norm(feet[0] - center[0]))
        bad = first_failure(lambda g, r: g <= r * (1 + ROUNDING) + ROUNDING * torch.maximum(g, r), gap, radius)
        if bad is not None:
            raise InfeasibleSet(
                f"the equations stay {show(gap, bad)} away from the centre, beyond the radius {show(radius, bad)}"
            )
        self._gap = gap
        self._radius = derive(_leg, radius, gap)
        self._axis = flat_part.inside_direction()
        self._made: dict[Any, Any] = {}
        if self._axis is None and not self.convex:
            bad = first_failure(lambda r, g, R: r <= 1e-6 * torch.maximum(R, g), self._radius, gap, radius)
            if bad is not None:
                raise InfeasibleSet(f"the equations fix a point at distance {show(gap, bad)}, not {show(radius, bad)}")

    def __repr__(self) -> str:
        return f"({self.flat_part!r} & {self.round_part!r})"

    def validate(self, event: Event) -> None:
        self.flat_part.validate(event)
        self.round_part.validate(event)

    def equations(self, z: Tensor) -> Tensor:
        return torch.cat([self.flat_part.equations(z), self.round_part.equations(z)], dim=1)

    def inequalities(self, z: Tensor) -> Tensor:
        return self.round_part.inequalities(z)

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        if self.convex:
            return None
        inside = flat(self.flat_part._project(x))
        return shell_tube(inside - spread(self._foot, inside), each(self._radius, x), 1 + self.flat_part.rank)

    def codimension(self, event: Event) -> int | None:
        surface = self.parts(event).surface
        if surface is not self:
            return 0 if surface is None else surface.codimension(event)
        return self.flat_part.rank + 1

    def reach(self, event: Event) -> float | None:
        return super().reach(event) if self.parts(event).surface is not self else smallest_positive(self._radius)

    def _apart(self, event: Event) -> Parts:
        """Equations and the ball; a point where the equations touch it, or fix one."""
        touching = share(lambda g, r: g >= r * (1.0 - ROUNDING), self._gap, self.round_part.radius)
        if touching == 1.0 or self._axis is None:
            own, feet = isinstance(self._foot, PerChain), raw(self._foot).reshape(-1, *event)
            return Parts(Box(marked(feet, own), marked(feet, own)), None)
        if not self.convex:
            return Parts(self, None)
        if touching:
            raise SettingError(
                "in some chains the equations touch the ball in one point, in others they cut it: sets of different "
                "dimension; sample those chains in runs of their own (constraint.take)"
            )
        return Parts(self.flat_part, self.round_part) if self.flat_part.rank else self.round_part.parts(event)

    def sphere_in_flat(self, event: Event) -> SphereInFlat | None:
        whole = None if self.convex else self.round_part.sphere_in_flat(event)
        known = self.flat_part.sphere_in_flat(event)
        return None if whole is None or known is None else whole._replace(matrix=known.matrix, level=known.level)

    def _project_fast(self, z: Tensor) -> Tensor:
        """u = (I - B^T B)(z - c), B an orthonormal basis of the rows of A."""
        self._check_chains(z)
        y = flat(z)
        foot, center, radius, aside = once(self._made, z, lambda: self._constants(y))
        if aside is None:
            return foot.expand(len(z), -1).reshape(z.shape)
        offset = y if center is None else y - center
        inside = self.flat_part.inside(offset)
        factor, length = shell_factor(inside, radius)
        if self.convex:
            factor = torch.where(length > radius, factor, torch.ones_like(factor))
        nudge(inside, aside)
        return inside.mul_(factor).add_(foot).reshape(z.shape)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        return raw(self._foot).reshape(-1, *event), raw(as_rows(self._radius)).reshape(-1)

    def _constants(self, y: Tensor) -> tuple[Tensor, Tensor | None, float | Tensor, Tensor | None]:
        """q, c, r and the shortest step inside the flat, in the dtype of y (n, d)."""
        center = None if self._center is None else spread(self._center, y)
        aside = None if self._axis is None else shortest(y.dtype) * self._axis.to(y)
        return spread(self._foot, y), center, column(self._radius, y), aside

    def within(self, space: Subspace) -> Constraint | None:
        flat_part, round_part = self.flat_part.within(space), self.round_part.within(space)
        return None if flat_part is None or round_part is None else AffineRound(flat_part, round_part)

    def _project(self, z: Tensor) -> Tensor:
        y, radius = flat(z), column(self._radius, z)
        foot = spread(self._foot, y)
        inside = flat(self.flat_part._project(z)) - foot
        if self._axis is None:
            return foot.expand(len(z), -1).reshape(z.shape)
        direction = unit(inside, placed(self._axis, z))
        # Rounding leaves a normal part in a small offset; once more inside the flat, once more to length one.
        direction = unit(self.flat_part.inside(direction), placed(self._axis, z))
        shell = foot + radius * direction
        if self.convex:
            within = (norm(inside) <= each(self._radius, z))[:, None]
            shell = torch.where(within, foot + inside, shell)
        return shell.reshape(z.shape)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return side_by_side([part._excess(z, lost) for part in (self.flat_part, self.round_part)], z)

    def row_name(self, event: Event, row: int) -> str:
        parts = (self.flat_part, self.round_part)
        part, own = row_of(parts, (event, event), row)
        return parts[part].row_name(event, own)


def shell_tube(offset: Tensor, radius: float | Tensor, codimension: int) -> Tensor:
    """(k - 1) log(|v| / R), v rows in a space of k dimensions; zero where R = 0, for the set is a point there."""
    size = torch.as_tensor(radius, dtype=offset.dtype, device=offset.device)
    ratio = norm(offset) / torch.where(size > 0, size, 1.0)
    return (offset.shape[1] - codimension) * torch.log(torch.where(size > 0, ratio, 1.0))


def smallest_positive(radius: Number) -> float:
    """The smallest radius that is not zero; infinity if all are, for a point has one nearest point everywhere."""
    sizes = radius.values if isinstance(radius, PerChain) else torch.tensor([radius], dtype=torch.float64)
    return float(torch.where(sizes > 0, sizes, torch.inf).min())


def _leg(hypotenuse: Any, other: Any) -> Any:
    """sqrt(R^2 - g^2) of floats or tensors."""
    square = hypotenuse**2 - other**2
    return square.clamp_min(0.0).sqrt() if isinstance(square, Tensor) else math.sqrt(max(square, 0.0))


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
    smooth = True
    _equation_count = 0

    def __init__(self, axes_or_matrix: Any, center: Any = None) -> None:
        given = torch.as_tensor(axes_or_matrix, dtype=torch.float64).clone()
        if given.ndim not in (1, 2) or not given.numel() or (given.ndim == 2 and given.shape[0] != given.shape[1]):
            raise ShapeError(
                f"Ellipsoid takes semi-axes (d,) or a matrix (d, d), got shape {tuple(given.shape)}; "
                "the axes of an event with several dimensions are given flattened"
            )
        if not bool(torch.isfinite(given).all()):
            raise InfeasibleSet("the ellipsoid has non-finite axes or matrix entries")
        self.axes = given if given.ndim == 1 else None
        self.matrix = given if given.ndim == 2 else None
        self.center = None if center is None else torch.as_tensor(center, dtype=torch.float64).clone()
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
        foot = _secular(y, sigma) * self._most
        foot = (foot if basis is None else foot @ basis.T).reshape(z.shape)
        foot = foot if self.center is None else foot + self.center.to(z)
        return torch.where(over_events(outside, z), foot, z)

    def _ball_around(self, event: Event) -> tuple[Tensor, Tensor] | None:
        middle = torch.zeros(event, dtype=torch.float64) if self.center is None else self.center
        return middle[None], torch.tensor([self._most], dtype=torch.float64)

    def _rounding(self) -> float:
        """How far the gauge of a computed foot may exceed one: the rounding of its coordinates over the axes."""
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

    def row_name(self, event: Event, row: int) -> str:
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
        if look_due(iteration, m) and seen((moved == m).all()):
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
