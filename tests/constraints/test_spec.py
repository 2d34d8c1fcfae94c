"""Sets as data, the registry, and a set that a stranger writes outside the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.constraints import (
    SETS,
    Ball,
    Box,
    Constraint,
    FromProjection,
    PerChain,
    Sphere,
    constraint_from_spec,
    geometry,
    register,
)
from casal.errors import SettingError


class Slab(Constraint):
    """C = {z : |z_1| <= half}: all that a set must write, and its arguments."""

    convex = True

    def __init__(self, half: float) -> None:
        self.half = float(half)

    def _project(self, z: Tensor) -> Tensor:
        out = z.clone()
        out[:, 0] = out[:, 0].clamp(-self.half, self.half)
        return out

    def _violation(self, z: Tensor) -> Tensor:
        return (z[:, 0].abs() - self.half).clamp_min(0.0)


class Hyperbola(Constraint):
    """C = {z : z_1 z_2 = 1, z_1 >= 0}: what a smooth set writes."""

    exact = False
    smooth = True

    def equations(self, z: Tensor) -> Tensor:
        return z[:, :1] * z[:, 1:2] - 1.0

    def inequalities(self, z: Tensor) -> Tensor:
        return -z[:, :1]

    def _project(self, z: Tensor) -> Tensor:
        first = z[:, :1].clamp_min(0.5)
        return torch.cat([first, 1.0 / first], dim=1)

    def _violation(self, z: Tensor) -> Tensor:
        return torch.maximum(self.equations(z).abs(), self.inequalities(z).clamp_min(0.0)).amax(1)


def test_a_smooth_set_from_outside_has_its_equations_counted() -> None:
    z = torch.tensor([[-1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[-3.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    for constraint in (
        Hyperbola(),
        Hyperbola().shifted(0.0),
        Hyperbola().scaled(1.0),
        Hyperbola().through(torch.eye(2)),
    ):
        with pytest.raises(SettingError, match="evaluate residual"):
            geometry.positive_part(constraint, expected)
        assert torch.equal(geometry.positive_part(constraint, geometry.residual(constraint, z)), expected)
        assert constraint._count_equations() == 1
    both = Hyperbola() & Ball(2.0)
    assert geometry.positive_part(both, geometry.residual(both, z)).tolist() == [[-3.0, 1.0, 1.0], [2.0, 0.0, 6.0]]
    target = casal.langevin(lambda x: x, steps=2, step_size=0.01, init=z)
    assert bool(torch.isfinite(casal.sample(target, Hyperbola(), casal.Penalty(0.1), 2, seed=0).samples).all())


@pytest.fixture
def registered() -> Iterator[None]:
    register(Slab)
    yield
    del SETS["Slab"]


def test_a_set_from_outside_needs_no_registration() -> None:
    slab = Slab(0.3)
    z = 2.0 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for made in (slab & Ball(1.0), slab | Sphere(1.0), slab.shifted(0.1), slab.scaled(2.0), slab.through(torch.eye(3))):
        assert float(made.violation(made.project(z)).max()) <= 1e-11 and repr(made) and made.explain()
    assert slab.spec() == {"set": "Slab", "half": 0.3}
    assert slab.take(slice(0, 2)) is slab and geometry.groups(slab) is None and slab.linear((3,)) is None
    target = casal.langevin(lambda x: x, steps=20, step_size=0.05, init=z)
    assert bool(casal.sample(target, slab, casal.CASAL(10.0), 20, seed=0).certificate.feasible.all())
    with pytest.raises(SettingError, match="no set named"):
        constraint_from_spec(slab.spec())
    with pytest.raises(SettingError, match="Slab takes no half for each chain"):
        Slab(PerChain([1.0, 2.0]))  # type: ignore[arg-type]


@pytest.mark.usefixtures("registered")
def test_a_registered_set_is_read_back() -> None:
    both = constraint_from_spec(json.dumps((Slab(0.3) & Ball(1.0)).spec()))
    z = torch.ones(2, 3, dtype=torch.float64)
    assert torch.equal(both.project(z), (Slab(0.3) & Ball(1.0)).project(z))


def test_the_registry_holds_the_sets_by_name() -> None:
    assert all(name == kind.__name__ and issubclass(kind, Constraint) for name, kind in SETS.items())
    public = {name for name in casal.__all__ if isinstance(getattr(casal, name), type)}
    named = {name for name in public if issubclass(getattr(casal, name), Constraint)} - {"Constraint"}
    assert named <= set(SETS)


EMPTY: dict[str, Any] = {"rows": [], "columns": [], "values": []}


def nested(depth: int) -> dict[str, Any]:
    """A ball in sets of one member, in each other."""
    spec: dict[str, Any] = {"set": "Ball", "radius": 1.0}
    for _ in range(depth):
        spec = {"set": "Union", "members": [spec]}
    return spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "key 'set'"),
        ([1.0], "key 'set'"),
        ({"set": ["Ball"]}, "no set named .'Ball'."),
        ({"set": "Sphere", "radius": "1"}, "radius is one number"),
        ({"set": "Sphere", "radius": 10**5000}, "too long to show"),
        ({"set": "Box", "low": [[1.0], [1.0, 2.0]]}, "real numbers"),
        ({"set": "Affine", "A": {"sparse": 3}, "b": 1.0}, "Affine does not take"),
        ({"set": "Affine", "A": {"sparse": {"shape": ["", 1]}}, "b": 1.0}, "Affine does not take"),
        ({"set": "Shifted", "inner": 3.0, "by": 1.0}, "Shifted does not take"),
        ({"set": "ThroughDecoder", "inner": {"set": "Sphere", "radius": 1.0}, "decoder": 1.0}, "Decoder"),
        (nested(1000), "inside each other"),
        ({"set": "Affine", "A": {"sparse": {**EMPTY, "shape": [10**9, 10**9]}}, "b": 1.0}, "at most 1e8"),
        (
            {"set": "LinearDynamics", "A": [[0.0]], "B": [[1.0]], "steps": 10**12, "dt": 0.1, "u_max": 1.0},
            "at most 1e6",
        ),
    ],
)
def test_hostile_specs_are_refused_in_words(spec: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        constraint_from_spec(spec)


def test_specs_hold_data_only() -> None:
    with pytest.raises(SettingError, match="functions"):
        (Ball(1.5) & FromProjection(Box(0.0, 1.0).project, Box(0.0, 1.0).violation)).spec()
    with pytest.raises(SettingError, match="no set named"):
        constraint_from_spec({"set": "os.system", "command": "true"})
    with pytest.raises(SettingError, match="does not take"):
        constraint_from_spec({"set": "Sphere", "size": 3})
    with pytest.raises(SettingError, match="key 'set'"):
        constraint_from_spec({"radius": 3})
