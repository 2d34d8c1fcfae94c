"""Sets as JSON data, and back: names and numbers only, never code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from casal.constraints.base import Constraint
from casal.errors import SettingError


def encode(value: Any) -> Any:
    """Tensors become nested lists, sets become their specs, infinities become strings."""
    if isinstance(value, Constraint):
        return value.spec()
    if isinstance(value, Tensor):
        return encode(value.tolist())
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SettingError(f"{type(value).__name__} cannot be written as JSON data")


def decode(value: Any) -> Any:
    """The reverse of ``encode``, except that tensors stay lists: the constructors of sets take both."""
    if isinstance(value, Mapping):
        return constraint_from_spec(value)
    if isinstance(value, list):
        return [decode(item) for item in value]
    if value in ("inf", "-inf"):
        return float(value)
    return value


def constraint_from_spec(spec: Mapping[str, Any] | str) -> Constraint:
    """Build a set from ``constraint.spec()``, or from that as JSON text.

    >>> import casal
    >>> casal.constraint_from_spec(casal.Sphere(3.0).spec())
    Sphere(radius=3)
    """
    data = json.loads(spec) if isinstance(spec, str) else dict(spec)
    if not isinstance(data, dict) or "set" not in data:
        raise SettingError("a spec is a mapping with the key 'set', such as {'set': 'Sphere', 'radius': 3.0}")
    kind = Constraint._named.get(data.pop("set"))
    if kind is None:
        raise SettingError(f"no set named {spec!r}; there are {sorted(Constraint._named)}")
    arguments = {name: decode(value) for name, value in data.items()}
    members = arguments.pop("members", ())
    try:
        return kind(*members, **arguments)
    except TypeError as error:
        raise SettingError(f"{kind.__name__} does not take these arguments: {error}") from error
