"""Specs: what ``casal.constraint_from_spec`` makes of JSON that was damaged or made up.

raises    nothing but a CasalError
hangs     a spec takes no longer than LONGEST seconds
works     what is accepted has a repr, and measures and projects a few points, or says in words why it does not
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import casal
from casal.constraints import SETS, Constraint, constraint_from_spec
from casal.errors import CasalError
from fuzz.limits import TooLong, limit
from fuzz.report import Failure, Report

LONGEST = 10
"""Seconds for one spec."""

EVENTS = ((3,), (2, 4))
"""Shapes of the points that an accepted set is tried on."""

SEEDS: tuple[dict[str, Any], ...] = (
    {"set": "Sphere", "radius": 2.0},
    {"set": "Ball", "radius": 2.0, "center": [0.0, 1.0, 0.0]},
    {"set": "Sphere", "radius": {"per_chain": [1.0, 2.0, 3.0, 4.0]}},
    {"set": "Box", "low": 0.0, "high": "inf"},
    {"set": "Box", "low": [0.0, -1.0, -2.0], "high": [1.0, 1.0, 1.0]},
    {"set": "Affine", "A": [[1.0, 1.0, 1.0], [1.0, -1.0, 0.0]], "b": [1.0, 0.0]},
    {
        "set": "Affine",
        "A": {"sparse": {"shape": [1, 3], "rows": [0, 0], "columns": [0, 2], "values": [1.0, 1.0]}},
        "b": 1.0,
    },
    {"set": "HalfSpace", "a": [1.0, 2.0, 0.0], "b": 1.0},
    {"set": "Polytope", "G": [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], "h": [1.0, 1.0]},
    {"set": "BoxHyperplane", "low": 0.0, "high": 1.0, "a": [1.0, 1.0, 1.0], "b": 1.0},
    {"set": "Simplex", "total": 1.0},
    {"set": "L1Ball", "radius": 1.0},
    {"set": "Ellipsoid", "axes_or_matrix": [1.0, 2.0, 3.0]},
    {"set": "MassEnergy", "mass": 1.0, "energy": 4.0},
    {"set": "SecondOrderCone"},
    {"set": "LinearDynamics", "A": [[0.0, 1.0], [0.0, 0.0]], "B": [[0.0], [1.0]], "steps": 2, "dt": 0.1, "u_max": 1.0},
    {"set": "Monotone"},
    {"set": "Obstacles", "discs": [[[0.0, 0.0], 1.0], [[3.0, 3.0], 1.0, 0, 2]]},
    {"set": "ObservedMassEnergy", "index": [0], "values": [1.0], "mass": 3.0, "energy": 5.0},
    {"set": "Shifted", "inner": {"set": "Ball", "radius": 1.0}, "by": 1.0},
    {"set": "Scaled", "inner": {"set": "Sphere", "radius": 1.0}, "by": 2.0},
    {"set": "Through", "inner": {"set": "Ball", "radius": 1.0}, "A": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]},
    {"set": "Product", "members": [{"set": "Ball", "radius": 1.0}, None], "sizes": [2, 1]},
    {"set": "Union", "members": [{"set": "Ball", "radius": 1.0}, {"set": "Box", "low": 0.0, "high": 1.0}]},
    {"set": "Intersection", "members": [{"set": "Ball", "radius": 1.0}, {"set": "Box", "low": 0.0, "high": 1.0}]},
)
"""Specs that are right as they are."""

WRONG: tuple[Any, ...] = (
    None, True, "", "1", "nan", "inf", "-inf", [], [[]], {}, [None], ["a"], [[1.0], [1.0, 2.0]], {"set": "Box"},
    {"set": []}, {"set": {"set": "Ball"}}, {"per_chain": []}, {"per_chain": None}, {"per_chain": {"per_chain": [1.0]}},
    {"sparse": []}, {"sparse": {"shape": [10**9, 10**9], "rows": [], "columns": [], "values": []}},
    {"sparse": {"shape": [-1, 2], "rows": [0], "columns": [0], "values": [1.0]}}, {"sparse": {"shape": 3}},
    -1, 0, 0.5, -0.0, 10**9, 10**18, 10**30, 10**400, 10**5000, 1e-310, 5e-324, 1e200, 1e308, -1e308, float("nan"),
    float("inf"), [0.0] * 1000, [[0.0] * 3] * 3, [1e308] * 3, [[[1.0]]], "\x00", "é" * 100, [True, False], {"a": 1},
)  # fmt: skip
"""Values that take the place of others."""


def deep(rng: np.random.Generator) -> Any:
    """Lists in lists, or sets in sets, a thousand and more of them."""
    made: Any = {"set": "Ball", "radius": 1.0}
    kind = int(rng.integers(4))
    for _ in range(int(rng.integers(900, 3000))):
        if kind == 0:
            made = [made]
        elif kind == 1:
            made = {"set": "Scaled", "inner": made, "by": 1.0}
        elif kind == 2:
            made = {"set": "Union", "members": [made, {"set": "Sphere", "radius": 1.0}]}
        else:
            made = {"set": "Sphere", "radius": {"per_chain": made}}
    return made


def places(spec: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside a spec."""
    inside = spec.items() if isinstance(spec, dict) else enumerate(spec) if isinstance(spec, list) else ()
    return [here for key, value in inside for here in ((*path, key), *places(value, (*path, key)))]


def mutated(rng: np.random.Generator) -> Any:
    """A spec with one or two things wrong."""
    if rng.random() < 0.03:
        return deep(rng)
    if rng.random() < 0.03:
        return _any(rng)
    spec = copy.deepcopy(SEEDS[int(rng.integers(len(SEEDS)))])
    for _ in range(int(rng.integers(1, 3))):
        spec = _DAMAGES[int(rng.integers(len(_DAMAGES)))](rng, spec)
    if rng.random() < 0.05:
        try:
            text = json.dumps(spec)
        except ValueError:  # thousands of digits
            return spec
        cut = int(rng.integers(len(text) + 1))
        return text[:cut] + str(rng.choice(["", "}", "]", "\x00", "1e999", "{"])) + text[cut + int(rng.integers(3)) :]
    return spec


def _any(rng: np.random.Generator) -> Any:
    return copy.deepcopy(WRONG[int(rng.integers(len(WRONG)))])


def _change(rng: np.random.Generator, spec: dict[str, Any], change: Callable[[Any, Any], None]) -> dict[str, Any]:
    found = places(spec)
    if found:
        *path, last = found[int(rng.integers(len(found)))]
        inside: Any = spec
        for key in path:
            inside = inside[key]
        change(inside, last)
    return spec


def _replace(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    def change(inside: Any, last: Any) -> None:
        inside[last] = _any(rng)

    return _change(rng, spec, change)


def _remove(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    def change(inside: Any, last: Any) -> None:
        del inside[last]

    return _change(rng, spec, change)


def _wrap(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    def change(inside: Any, last: Any) -> None:
        inside[last] = [inside[last]] * int(rng.integers(1, 4))

    return _change(rng, spec, change)


def _as_text(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    def change(inside: Any, last: Any) -> None:
        inside[last] = "text" if isinstance(inside[last], int) and inside[last] > 10**300 else str(inside[last])

    return _change(rng, spec, change)


def _rename(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    names = sorted(SETS)
    spec["set"] = names[int(rng.integers(len(names)))]
    return spec


def _add(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    names = ["extra", "members", "inner", "by", "center", "A", "b", "sizes", "", "self", "low", "chains"]
    spec[names[int(rng.integers(len(names)))]] = _any(rng)
    return spec


def _nest(rng: np.random.Generator, spec: dict[str, Any]) -> dict[str, Any]:
    other = copy.deepcopy(SEEDS[int(rng.integers(len(SEEDS)))])
    kind = ["Union", "Intersection", "Product"][int(rng.integers(3))]
    return {"set": kind, "members": [spec, other]}


_DAMAGES = (_replace, _replace, _replace, _remove, _wrap, _as_text, _rename, _add, _nest)


def trial(seed: int, number: int) -> Report:
    """One spec: read it, and try what comes out."""
    report = Report()
    rng = np.random.default_rng([seed, 4, number])
    spec = mutated(rng)
    report.count("specs", "trials")
    command = f"python -m fuzz --only specs --seed {seed} --trial {number}"
    try:
        with limit(LONGEST), np.errstate(all="ignore"):
            report.count("specs", _outcome(spec, rng))
    except TooLong:
        report.failures.append(Failure("hangs", _kind(spec), f"longer than {LONGEST} s", "", command))
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = "" if where is None else f"{where.tb_frame.f_code.co_filename.split('/')[-1]}:{where.tb_lineno}"
        message = f"{type(error).__name__}: {str(error)[:200]} ({place})"
        report.failures.append(Failure(f"raises {type(error).__name__}", _kind(spec), message, "", command))
    return report


def _kind(spec: Any) -> str:
    name = spec.get("set") if isinstance(spec, dict) else type(spec).__name__
    return name if isinstance(name, str) else type(name).__name__


def _outcome(spec: Any, rng: np.random.Generator) -> str:
    try:
        constraint = constraint_from_spec(spec)
    except CasalError:
        return "refused"
    assert repr(constraint)
    return "accepted" if any([_works(constraint, event, rng) for event in EVENTS]) else "accepted, fits no event"


def _works(constraint: Constraint, event: tuple[int, ...], rng: np.random.Generator) -> bool:
    z = torch.from_numpy(rng.normal(size=(constraint.chains or 4, *event)))
    try:
        if (constraint.chains or 4) > 100:
            return False
        casal.constraint_from_spec(constraint.spec())
        constraint.violation(z)
        constraint.solve(z, budget=casal.Budget(1e-6, 20))
        constraint.project(z, budget=casal.Budget(1e-6, 20), quick=True)
    except CasalError:
        return False
    return True
