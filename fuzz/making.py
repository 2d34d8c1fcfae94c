"""Random sets as a line of Python, each with its definition; every set holds a point that was chosen before.

Makers get the point (``anchor``, (k, d): k = 1, or one point for each chain) and the unit of each coordinate, and
return text that ``build`` turns into a set. Numbers go into the text in full, so the text is what a user would write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

import casal.constraints
from casal.constraints import Constraint
from fuzz import definitions as define
from fuzz.definitions import Definition, Grant, wide

Numbers: TypeAlias = npt.NDArray[np.float64]
Rng: TypeAlias = np.random.Generator
Event: TypeAlias = tuple[int, ...]

IMPORTS = "import torch; from math import inf; from casal.constraints import *"


class Made(NamedTuple):
    """A set: its text, its definition, the kinds of sets and operations in it, and points of interest (d,)."""

    text: str
    truth: Definition
    kinds: tuple[str, ...]
    centres: tuple[Numbers, ...] = ()


class Place(NamedTuple):
    """Where a set is to be: a point that it must hold, the units and the shape of an event."""

    anchor: Numbers
    units: Numbers
    event: Event

    @property
    def size(self) -> int:
        return self.anchor.shape[1]

    @property
    def chains(self) -> int:
        return len(self.anchor)

    @property
    def common(self) -> bool:
        """Whether all coordinates have the same unit."""
        return bool((self.units == self.units[0]).all())


def build(text: str) -> Constraint:
    """The set that the text writes."""
    names = {
        "torch": torch,
        "inf": math.inf,
        **{name: getattr(casal.constraints, name) for name in casal.constraints.__all__},
    }
    found: Constraint = eval(text, names)
    return found


def show(values: Any) -> str:
    return repr(np.asarray(values, dtype=np.float64).tolist())


def each(values: Numbers, shape: Event = ()) -> str:
    """Values (k, ...) as PerChain, or as the one value if k = 1."""
    shaped = np.asarray(values, dtype=np.float64).reshape(len(values), *shape)
    return show(shaped[0]) if len(shaped) == 1 else f"PerChain({show(shaped)})"


def tensor(values: Any) -> str:
    return f"torch.tensor({show(values)}, dtype=torch.float64)"


def _sum(rows: Numbers, points: Numbers) -> Numbers:
    """rows @ point of every point, (k, m), rounded once."""
    return (wide(points) @ wide(rows).T).astype(np.float64)


def _rows(rng: Rng, place: Place, count: int) -> Numbers:
    """Rows in general position in the units of the place, some entries zero; a row may be of any length."""
    rows = rng.normal(size=(count, place.size)) * (rng.random((count, place.size)) < 0.7)
    rows[np.arange(count), rng.integers(place.size, size=count)] += 1.0
    return rows / place.units * 10.0 ** rng.integers(-3, 4, size=(count, 1))


# ------------------------------------------------------------------ sets with flat sides


def affine(rng: Rng, place: Place) -> Made:
    rows = _rows(rng, place, int(rng.integers(1, max(2, place.size))))
    if rng.random() < 0.2:
        rows = np.concatenate([rows, 3.0 * rows[:1]])
    level = _sum(rows, place.anchor)
    return Made(
        f"Affine({show(rows)}, {each(level, (len(rows),))})",
        define.equations("Affine", wide(rows), wide(level)),
        ("Affine",),
    )


def half_space(rng: Rng, place: Place) -> Made:
    row = _rows(rng, place, 1)
    level = _sum(row, place.anchor) + (rng.random() < 0.5) * rng.random() * _sum(np.abs(row), np.abs(place.anchor))
    truth = define.inequalities("HalfSpace", wide(row), wide(level))
    return Made(f"HalfSpace({show(row[0])}, {each(level, ())})", truth, ("HalfSpace",))


def polytope(rng: Rng, place: Place) -> Made:
    rows = _rows(rng, place, int(rng.integers(2, 6)))
    level = _sum(rows, place.anchor)[0]
    level = level + (rng.random(len(rows)) < 0.7) * rng.random(len(rows)) * _sum(np.abs(rows), np.abs(place.anchor))[0]
    if rng.random() < 0.2:
        rows, level = np.concatenate([rows, -rows[:1]]), np.append(level, -_sum(rows[:1], place.anchor)[0])
    return Made(
        f"Polytope({show(rows)}, {show(level)})",
        define.inequalities("Polytope", wide(rows), wide(level)),
        ("Polytope",),
    )


def _sides(rng: Rng, place: Place) -> tuple[Numbers, Numbers]:
    low = place.anchor - place.units * rng.random(place.anchor.shape) * (rng.random(place.size) < 0.8)
    high = place.anchor + place.units * rng.random(place.anchor.shape) * (rng.random(place.size) < 0.8)
    low, high = (
        np.where(rng.random(place.size) < 0.2, -np.inf, low),
        np.where(rng.random(place.size) < 0.2, np.inf, high),
    )
    return low, high


def box(rng: Rng, place: Place) -> Made:
    low, high = _sides(rng, place)
    if rng.random() < 0.2 and bool((place.anchor >= 0).all()):
        low = np.zeros_like(low)
    text = f"Box({each(low, place.event)}, {each(high, place.event)})"
    return Made(text, define.bounds("Box", wide(low), wide(high)), ("Box",))


def box_hyperplane(rng: Rng, place: Place) -> Made:
    (low, high), row = _sides(rng, place), _rows(rng, place, 1)
    level = _sum(row, place.anchor)
    text = f"BoxHyperplane({each(low, (place.size,))}, {each(high, (place.size,))}, {show(row[0])}, {each(level, ())})"
    truth = define.All(
        [
            define.bounds("BoxHyperplane", wide(low), wide(high)),
            define.equations("BoxHyperplane", wide(row), wide(level)),
        ]
    )
    return Made(text, truth, ("BoxHyperplane",))


def linear_implicit(rng: Rng, place: Place) -> Made:
    row, equation = _rows(rng, place, 1), rng.random() < 0.5
    level = _sum(row, place.anchor)[0]
    function = f"lambda z: z.flatten(1) @ {tensor(row.T)} - {tensor(level)}"
    truth = (define.equations if equation else define.inequalities)("Implicit", wide(row), wide(level))
    return Made(f"Implicit({'' if equation else 'None, '}{function})", truth, ("Implicit",))


# ------------------------------------------------------------------ round sets; their coordinates share a unit


def _round(rng: Rng, place: Place, solid: bool) -> tuple[Numbers, Numbers | None, Numbers]:
    """Radius (k,), centre (k, d) or None for the origin, and the same as numbers."""
    if rng.random() < 0.3:
        radius = np.asarray([math.sqrt(math.fsum(row * row)) for row in place.anchor])
        return radius * (1.0 + solid * rng.random()), None, np.zeros_like(place.anchor)
    offset = rng.normal(size=place.anchor.shape) * place.units * 10.0 ** rng.integers(-4, 3)
    center = place.anchor - offset
    radius = np.sqrt(((wide(place.anchor) - wide(center)) ** 2).sum(1)).astype(np.float64)
    return radius * (1.0 + solid * rng.random()), center, center


def _sphere_or_ball(rng: Rng, place: Place, kind: str) -> Made:
    radius, center, numbers = _round(rng, place, kind == "Ball")
    middle = "" if center is None else f", {each(center, place.event)}"
    truth = define.shell(kind, wide(radius), wide(numbers), solid=kind == "Ball")
    return Made(f"{kind}({each(radius, ())}{middle})", truth, (kind,), (numbers[0],))


def sphere(rng: Rng, place: Place) -> Made:
    return _sphere_or_ball(rng, place, "Sphere")


def ball(rng: Rng, place: Place) -> Made:
    return _sphere_or_ball(rng, place, "Ball")


def ellipsoid(rng: Rng, place: Place) -> Made:
    axes = place.units * 10.0 ** rng.uniform(-1, 1, size=place.size)
    direction = rng.normal(size=place.size)
    center = place.anchor[0] - axes * direction * rng.random() / np.linalg.norm(direction)
    Q = np.diag(1 / wide(axes) ** 2)
    given = show(axes)
    if rng.random() < 0.3 and place.common:
        turn = np.linalg.qr(rng.normal(size=(place.size, place.size)))[0] / axes[:, None]
        matrix = turn.T @ turn
        matrix = (matrix + matrix.T) / 2
        center = place.anchor[0] - rng.random() * np.linalg.solve(turn, direction / np.linalg.norm(direction))
        given, Q = show(matrix), wide(matrix)
    text = f"Ellipsoid({given}, {show(center.reshape(place.event))})"
    return Made(text, define.gauge("Ellipsoid", Q, wide(center), solid=True), ("Ellipsoid",), (center,))


def round_implicit(rng: Rng, place: Place) -> Made:
    """An ellipse, by its equation or inequality."""
    axes, equation = place.units * 10.0 ** rng.uniform(-1, 1, size=place.size), rng.random() < 0.6
    direction = rng.normal(size=place.size)
    center = (
        np.zeros(place.size) if rng.random() < 0.3 else place.anchor[0] - axes * direction / np.linalg.norm(direction)
    )
    if not center.any():
        axes = axes * float(np.sqrt(((place.anchor[0] / axes) ** 2).sum()))
    function = f"lambda z: (((z.flatten(1) - {tensor(center)}) / {tensor(axes)}) ** 2).sum(1, keepdim=True) - 1"
    Q = np.diag(1 / wide(axes) ** 2)
    truth = define.gauge("Implicit", Q, wide(center), solid=not equation, relative_to_terms=True)
    return Made(f"Implicit({'' if equation else 'None, '}{function})", truth, ("Implicit",), (center,))


# ------------------------------------------------------------------ sums, cones, sequences


def _to(made: Made, place: Place, inside: Numbers) -> Made:
    """The set shifted such that ``inside`` (k, d), a point of it, comes to the anchor."""
    by = place.anchor - inside
    if not by.any():
        return made
    return Made(
        f"{made.text}.shifted({each(by, place.event)})",
        define.Moved(made.truth, wide(by)),
        (*made.kinds, "shifted"),
        tuple(centre + by[0] for centre in made.centres),
    )


def simplex(rng: Rng, place: Place) -> Made:
    inside = place.anchor
    if not bool((inside >= 0).all()) or rng.random() < 0.3:
        inside = rng.dirichlet(np.ones(place.size), size=place.chains) * place.units[0]
    total = np.asarray([math.fsum(row) for row in inside])
    return _to(Made(f"Simplex({each(total, ())})", define.simplex(wide(total)), ("Simplex",)), place, inside)


def l1_ball(rng: Rng, place: Place) -> Made:
    radius = np.asarray([math.fsum(np.abs(row)) for row in place.anchor]) * (1.0 + (rng.random() < 0.5) * rng.random())
    return Made(f"L1Ball({each(radius, ())})", define.l1_ball(wide(radius)), ("L1Ball",))


def monotone(rng: Rng, place: Place) -> Made:
    rising = bool(rng.random() < 0.5)
    made = Made(f"Monotone({rising})", define.monotone(1 if rising else -1), ("Monotone",))
    inside = np.sort(place.anchor, axis=1) if rising else -np.sort(-place.anchor, axis=1)
    return _to(made, place, inside)


def second_order_cone(rng: Rng, place: Place) -> Made:
    inside = place.anchor.copy()
    reach = np.sqrt((wide(inside[:, 1:]) ** 2).sum(1)).astype(np.float64)
    inside[:, 0] = np.where(inside[:, 0] >= reach, inside[:, 0], reach * (1.0 + (rng.random() < 0.5) * rng.random()))
    return _to(Made("SecondOrderCone()", define.second_order_cone(), ("SecondOrderCone",)), place, inside)


def psd_cone(rng: Rng, place: Place) -> Made:
    k = place.event[0]
    root = rng.normal(size=(place.chains, k, int(rng.integers(1, k + 1))))
    inside = (root @ root.transpose(0, 2, 1)).reshape(place.chains, -1) * place.units[0]
    return _to(Made("PSDCone()", define.positive_semidefinite(k), ("PSDCone",)), place, inside)


def _conserved(place: Place) -> tuple[Numbers, Numbers]:
    mass = np.asarray([math.fsum(row) for row in place.anchor])
    energy = (wide(place.anchor) ** 2).sum(1).astype(np.float64)
    return mass, energy


def mass_energy(rng: Rng, place: Place) -> Made:
    mass, energy = _conserved(place)
    truth = define.mass_energy("MassEnergy", wide(mass), wide(energy))
    return Made(
        f"MassEnergy({each(mass, ())}, {each(energy, ())})",
        truth,
        ("MassEnergy",),
        (np.full(place.size, mass[0] / place.size),),
    )


def mass_energy_box(rng: Rng, place: Place) -> Made:
    (mass, energy), (low, high) = _conserved(place), _sides(rng, place)
    text = f"MassEnergyBox({each(mass, ())}, {each(energy, ())}, {each(low, place.event)}, {each(high, place.event)})"
    conserved = define.mass_energy("MassEnergyBox", wide(mass), wide(energy))
    return Made(
        text, define.All([conserved, define.bounds("MassEnergyBox", wide(low), wide(high))]), ("MassEnergyBox",)
    )


def observed(rng: Rng, place: Place) -> Made:
    index = np.sort(rng.choice(place.size, size=int(rng.integers(1, place.size)), replace=False))
    values, (mass, energy) = place.anchor[:, index], _conserved(place)
    with_mass, with_energy = rng.random() < 0.7, rng.random() < 0.7
    text = f"ObservedMassEnergy({index.tolist()}, {each(values, (len(index),))}"
    text += f", mass={each(mass, ())}" if with_mass else ""
    text += f", energy={each(energy, ())})" if with_energy else ")"
    known = define.equations("ObservedMassEnergy", wide(np.eye(place.size)[index]), wide(values))
    conserved = define.mass_energy(
        "ObservedMassEnergy", wide(mass) if with_mass else None, wide(energy) if with_energy else None
    )
    return Made(text, define.All([known, conserved]), ("ObservedMassEnergy",))


# ------------------------------------------------------------------ trajectories


def intervals(rng: Rng, place: Place) -> Made:
    """One forbidden interval at some of the steps, beside the anchor."""
    rows, truth = [], []
    for step in np.flatnonzero(rng.random(place.size) < 0.7).tolist():
        edge, unit = float(place.anchor[0, step]), float(place.units[step])
        width, room = unit * rng.random() * 10.0 ** rng.integers(-2, 2), unit * rng.random() * (rng.random() < 0.7)
        low, high = (edge + room, edge + room + width) if rng.random() < 0.5 else (edge - room - width, edge - room)
        if rng.random() < 0.1:
            low, high = (low, math.inf) if low >= edge else (-math.inf, high)
        if not low < high:
            continue
        rows.append((step, step + 1, float(low), float(high)))
        reach = max(abs(side) for side in (low, high) if math.isfinite(side))
        truth.append(define.obstacle("interval", step, step + 1, _between(low, high), (high - low) / 2, reach, 1))
    return Made(f"Obstacles(intervals={rows!r})", define.All([*truth, _anywhere()]), ("Obstacles",))


def _between(low: float, high: float) -> Callable[[define.Array], define.Array]:
    return lambda y: np.minimum(y[:, 0] - wide(low), wide(high) - y[:, 0])


def _anywhere() -> Definition:
    return define.Rows("Obstacles", lambda y, size: iter(()))


def shapes(rng: Rng, place: Place) -> Made:
    """Discs, boxes and thick segments in the plane, none of which holds the anchor."""
    steps, anchor, unit = place.event[0], place.anchor.reshape(-1, 2), place.units.reshape(-1, 2)[0]
    written: dict[str, list[Any]] = {"discs": [], "boxes": [], "segments": []}
    truth: list[Definition] = [_anywhere()]
    for _ in range(int(rng.integers(1, 5))):
        start = int(rng.integers(steps))
        stop = int(rng.integers(start + 1, steps + 1))
        center = anchor[int(rng.integers(steps))] + unit * rng.normal(size=2) * 2.0
        kind = str(rng.choice(list(written))) if place.common else "boxes"
        row: list[Any]
        if kind == "boxes":
            low, high = center - unit * rng.uniform(0.1, 1.0, size=2), center + unit * rng.uniform(0.1, 1.0, size=2)
            row, free = [low.tolist(), high.tolist()], define.box_obstacle(start, stop, wide(low), wide(high))
        elif kind == "discs":
            radius = float(unit[0] * rng.uniform(0.1, 2.0))
            reach = radius + float(np.linalg.norm(center))
            row = [center.tolist(), radius]
            free = define.obstacle("disc", start, stop, _in_disc(center, radius), radius, reach, 2)
        else:
            end, thick = center + unit * rng.normal(size=2), float(unit[0] * rng.uniform(0.1, 1.0))
            reach = thick + float(np.linalg.norm(np.abs(center) + np.abs(end)))
            row = [center.tolist(), end.tolist(), thick]
            free = define.obstacle("segment", start, stop, _in_segment(center, end, thick), thick / 2, reach, 2)
        if bool((define.judge(free, place.anchor, Grant(0.0, 0.0)).score <= 1).all()):
            written[kind].append([*row, start, stop])
            truth.append(free)
    given = ", ".join(f"{kind}={rows!r}" for kind, rows in written.items() if rows)
    return Made(f"Obstacles({given})", define.All(truth), ("Obstacles",))


def _in_disc(center: Numbers, radius: float) -> Callable[[define.Array], define.Array]:
    return lambda y: wide(radius) - np.sqrt(((y - wide(center)) ** 2).sum(1))


def _in_segment(a: Numbers, b: Numbers, thickness: float) -> Callable[[define.Array], define.Array]:
    def depth(y: define.Array) -> define.Array:
        along = wide(b) - wide(a)
        share = np.clip((y - wide(a)) @ along / (along @ along), 0, 1)
        return wide(thickness) / 2 - np.sqrt(((y - wide(a) - share[:, None] * along) ** 2).sum(1))

    return depth


def dynamics(rng: Rng, units: Callable[[int], Numbers]) -> tuple[Made, Place]:
    """A trajectory of a linear system, which chooses its own anchor."""
    steps, p, q = int(rng.integers(1, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
    A, B, dt = rng.normal(size=(p, p)), rng.normal(size=(p, q)), float(rng.uniform(0.05, 1.0))
    outputs = sorted(rng.choice(p, size=int(rng.integers(1, p + 1)), replace=False).tolist())
    u_max, y0 = rng.uniform(0.1, 2.0, size=q), rng.normal(size=p) * (rng.random() < 0.7)
    unit = units(len(outputs) + q)
    scale_y, scale_u = (1.0 / unit[: len(outputs)], 1.0 / unit[len(outputs) :])
    Ad, Bd = define.hold(wide(A), wide(B), dt)
    state, events = wide(y0), []
    for _ in range(steps):
        u = wide(np.clip(rng.normal(size=q), -1, 1) * u_max)
        state = Ad @ state + Bd @ u
        events.append(np.concatenate([state[outputs] / wide(scale_y), u / wide(scale_u)]))
    text = (
        f"LinearDynamics({show(A)}, {show(B)}, {steps}, {dt!r}, {show(u_max)}, {show(y0)}, "
        f"scale_y={show(scale_y)}, scale_u={show(scale_u)}, outputs={outputs})"
    )
    limits, start, wide_y, wide_u = (wide(part) for part in (u_max, y0, scale_y, scale_u))
    truth = define.dynamics(wide(A), wide(B), steps, dt, limits, start, wide_y, wide_u, outputs)
    anchor = np.stack(events).astype(np.float64).reshape(1, -1)
    return Made(text, truth, ("LinearDynamics",)), Place(anchor, np.tile(unit, steps), (steps, len(unit)))


# ------------------------------------------------------------------ sets made of sets

Maker: TypeAlias = Callable[[Rng, Place], Made]

ANY_UNITS: dict[str, Maker] = {
    "affine": affine,
    "half_space": half_space,
    "box": box,
    "box_hyperplane": box_hyperplane,
    "polytope": polytope,
    "ellipsoid": ellipsoid,
    "linear_implicit": linear_implicit,
    "round_implicit": round_implicit,
    "intervals": intervals,
    "shapes": shapes,
}
"""Sets that can be written in units of each coordinate."""

ONE_UNIT: dict[str, Maker] = {
    "sphere": sphere,
    "ball": ball,
    "simplex": simplex,
    "l1_ball": l1_ball,
    "monotone": monotone,
    "second_order_cone": second_order_cone,
    "psd_cone": psd_cone,
    "mass_energy": mass_energy,
    "mass_energy_box": mass_energy_box,
    "observed": observed,
}
"""Sets whose coordinates are added or compared: in other units they are seen through a diagonal matrix."""

NOT_PER_CHAIN = ("polytope", "ellipsoid", "linear_implicit", "round_implicit", "intervals", "shapes", "psd_cone")


def _choices(place: Place) -> dict[str, Maker]:
    """What can be made for events of this shape."""
    plain, matrix, plane = (
        len(place.event) == 1,
        place.event[0] == place.event[-1] and len(place.event) == 2,
        place.event[1:] == (2,),
    )
    choices = {**ANY_UNITS, **ONE_UNIT}
    for name, fits in (("intervals", plain), ("shapes", plane), ("psd_cone", matrix and place.common)):
        if not fits:
            del choices[name]
    if place.size < 2:
        for name in ("mass_energy", "mass_energy_box", "observed", "second_order_cone", "monotone"):
            choices.pop(name, None)
    return choices if place.chains == 1 else {name: make for name, make in choices.items() if name not in NOT_PER_CHAIN}


def leaf(rng: Rng, place: Place) -> Made:
    choices = _choices(place)
    name = str(rng.choice(sorted(choices)))
    if name in ANY_UNITS or place.common:
        return choices[name](rng, place)
    A = np.diag(1.0 / place.units)
    inner = choices[name](rng, Place(_sum(A, place.anchor), np.ones(place.size), (place.size,)))
    return _through(inner, A)


def _through(inner: Made, A: Numbers) -> Made:
    return Made(f"{inner.text}.through({show(A)})", define.Seen(inner.truth, wide(A)), (*inner.kinds, "through"))


def nested(rng: Rng, place: Place, depth: int) -> Made:
    """A set that holds the anchor, with at most ``depth`` operations inside each other."""
    kind = int(rng.integers(8)) if depth else 0
    if kind == 0:
        return leaf(rng, place)
    return (both, both, either, product, through, shifted, scaled)[kind - 1](rng, place, depth - 1)


def both(rng: Rng, place: Place, depth: int) -> Made:
    members = [nested(rng, place, depth) for _ in range(int(rng.integers(2, 4)))]
    return joined(" & ", members)


def joined(sign: str, members: Sequence[Made]) -> Made:
    text = sign.join(f"({member.text})" for member in members)
    truth = (define.All if sign == " & " else define.Either)([member.truth for member in members])
    kinds = tuple(kind for member in members for kind in member.kinds)
    return Made(f"({text})", truth, (*kinds, sign.strip()), tuple(c for member in members for c in member.centres))


def either(rng: Rng, place: Place, depth: int) -> Made:
    members = [nested(rng, place, depth)]
    for _ in range(int(rng.integers(1, 3))):
        elsewhere = place.anchor + place.units * rng.normal(size=place.anchor.shape)
        members.append(nested(rng, place._replace(anchor=elsewhere), depth))
    return joined(" | ", [members[i] for i in rng.permutation(len(members))])


def product(rng: Rng, place: Place, depth: int) -> Made:
    if place.size < 2:
        return leaf(rng, place)
    cut = int(rng.integers(1, place.size))
    members: list[Made | None] = []
    for part in (slice(cut), slice(cut, None)):
        anchor, units = place.anchor[:, part], place.units[part]
        free = rng.random() < 0.15
        members.append(None if free else nested(rng, Place(anchor, units, (len(units),)), depth))
    sizes = [cut, place.size - cut]
    text = ", ".join("None" if member is None else member.text for member in members)
    truth = define.Blocks([None if member is None else member.truth for member in members], sizes)
    kinds = tuple(kind for member in members if member is not None for kind in member.kinds)
    return Made(f"Product({text}, sizes={sizes})", truth, (*kinds, "Product"))


def through(rng: Rng, place: Place, depth: int) -> Made:
    count = int(rng.integers(1, place.size + 1))
    units = place.units[rng.integers(place.size, size=count)]
    if place.common and rng.random() < 0.5:
        A = np.linalg.qr(rng.normal(size=(place.size, count)))[0].T
    else:
        A = units[:, None] * rng.normal(size=(count, place.size)) / place.units
    image = Place(_sum(A, place.anchor), units, (count,))
    return _through(nested(rng, image, depth), A)


def shifted(rng: Rng, place: Place, depth: int) -> Made:
    inside = place.anchor - place.units * rng.normal(size=place.anchor.shape) * 10.0 ** rng.integers(-2, 3)
    return _to(nested(rng, place._replace(anchor=inside), depth), place, inside)


def scaled(rng: Rng, place: Place, depth: int) -> Made:
    by = float(10.0 ** rng.uniform(-3, 3))
    inner = nested(rng, Place(place.anchor / by, place.units / by, place.event), depth)
    truth = define.Seen(inner.truth, np.eye(place.size, dtype=np.longdouble) / wide(by))
    return Made(f"({inner.text}).scaled({by!r})", truth, (*inner.kinds, "scaled"), tuple(by * c for c in inner.centres))


# ------------------------------------------------------------------ a whole scene


class Scene(NamedTuple):
    """A set in its place, and how the units were chosen."""

    made: Made
    place: Place
    units: str


def _units(rng: Rng, mode: str, size: int) -> Numbers:
    if mode == "one":
        return np.ones(size)
    if mode == "common":
        return np.full(size, 10.0 ** rng.integers(-9, 10))
    if mode == "state":
        return np.where(np.arange(size) == 0, 1e5, 1e-6)
    return 10.0 ** rng.integers(-9, 10, size=size).astype(np.float64)


def scene(rng: Rng, chains: int) -> Scene:
    """Any set; parameters for each of the chains in some."""
    mode = str(rng.choice(["one", "common", "own", "state"], p=[0.3, 0.2, 0.3, 0.2]))
    depth = int(rng.choice([0, 1, 2], p=[0.45, 0.35, 0.2]))
    kind = rng.random()
    if kind < 0.08:
        made, place = dynamics(rng, lambda size: _units(rng, mode, size))
        if depth:
            made = joined(" & ", [made, leaf(rng, place)])
        return Scene(made, place, mode)
    if kind < 0.16:
        side = int(rng.integers(2, 4))
        mode = mode if mode in ("one", "common") else "common"
        place = Place(np.zeros((1, side * side)), _units(rng, mode, side * side), (side, side))
        root = rng.normal(size=(side, side)) * place.units[0] ** 0.5
        place = place._replace(anchor=(root @ root.T).reshape(1, -1))
        made = psd_cone(rng, place)
        return Scene(joined(" & ", [made, leaf(rng, place)]) if depth else made, place, mode)
    if kind < 0.24:
        steps = int(rng.integers(1, 4))
        units = np.tile(_units(rng, mode, 2), steps)
        place = Place(units[None] * rng.normal(size=(1, 2 * steps)), units, (steps, 2))
        made = shapes(rng, place)
        return Scene(joined(" & ", [made, leaf(rng, place)]) if depth else made, place, mode)
    size = int(rng.integers(1, 7))
    units = _units(rng, mode, size)
    anchor = rng.normal(size=(chains if rng.random() < 0.25 else 1, size))
    shape = rng.random()
    anchor = np.abs(anchor) if shape < 0.3 else np.sort(anchor, axis=1) if shape < 0.5 else anchor
    place = Place(anchor * units, units, (size,))
    return Scene(nested(rng, place, depth), place, mode)
