"""Sets from JSON data: names and numbers only, never code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from casal.constraints.base import SETS, Constraint, build
from casal.constraints.chains import PerChain
from casal.constraints.solvers.sparse_rows import SparseMatrix
from casal.errors import SettingError


def constraint_from_spec(spec: Mapping[str, Any] | str) -> Constraint:
    """Build a set from ``constraint.spec()``, or from that as JSON text.

    >>> import casal
    >>> casal.constraint_from_spec(casal.Sphere(3.0).spec())
    Sphere(radius=3)
    """
    data = json.loads(spec) if isinstance(spec, str) else dict(spec)
    if not isinstance(data, dict) or "set" not in data:
        raise SettingError("a spec is a mapping with the key 'set', such as {'set': 'Sphere', 'radius': 3.0}")
    kind = SETS.get(data.pop("set"))
    if kind is None:
        raise SettingError(f"no set named {spec!r}; there are {sorted(SETS)}")
    try:
        return build(kind, {name: _decode(value) for name, value in data.items()})
    except TypeError as error:
        raise SettingError(f"{kind.__name__} does not take these arguments: {error}") from error


def _decode(value: Any) -> Any:
    """The reverse of ``encode``, except that tensors stay lists: the constructors of sets take both."""
    if isinstance(value, Mapping) and "sparse" in value:
        return SparseMatrix(**{name: _decode(part) for name, part in value["sparse"].items()})
    if isinstance(value, Mapping):
        return PerChain(_decode(value["per_chain"])) if "per_chain" in value else constraint_from_spec(value)
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if value in ("inf", "-inf"):
        return float(value)
    return value
