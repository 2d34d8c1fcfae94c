"""What people try first: bounds that are left out, sets on images, short reprs, and commands in messages."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import casal
from casal.errors import SettingError
from casal.sampling.workers import refuse_unguarded_script

from .sets import SETS

EVENT = (2, 3, 4)
D = 24
Z = torch.randn(5, *EVENT, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.rand(2, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

ON_IMAGES: dict[str, Callable[[], tuple[casal.Constraint, casal.Constraint]]] = {
    "Affine": lambda: (casal.Affine(W.reshape(2, *EVENT), 3.0), casal.Affine(W, 3.0)),
    "Polytope": lambda: (casal.Polytope(W.reshape(2, *EVENT), -1.0), casal.Polytope(W, -1.0)),
    "HalfSpace": lambda: (casal.HalfSpace(W[0].reshape(EVENT), -1.0), casal.HalfSpace(W[0], -1.0)),
    "Box": lambda: (casal.Box(W[0].reshape(EVENT), None), casal.Box(W[0], None)),
    "BoxHyperplane": lambda: (
        casal.BoxHyperplane(0.0, 1.0, W[0].reshape(EVENT), 3.0),
        casal.BoxHyperplane(0.0, 1.0, W[0], 3.0),
    ),
    "MassEnergy": lambda: (casal.MassEnergy(3.0, 30.0), casal.MassEnergy(3.0, 30.0)),
    "Simplex": lambda: (casal.Simplex(2.0), casal.Simplex(2.0)),
    "Sphere": lambda: (casal.Sphere(1.0, W[0].reshape(EVENT)), casal.Sphere(1.0, W[0])),
    "both": lambda: (
        casal.Box(0, None) & casal.Affine(W[:1].reshape(1, *EVENT), 3.0),
        casal.Box(0, None) & casal.Affine(W[:1], 3.0),
    ),
}


@pytest.mark.parametrize("name", ON_IMAGES)
def test_images_need_no_flattening(name: str) -> None:
    """A set on (n, c, h, w) is the set on the flattened events."""
    image, flat = ON_IMAGES[name]()
    torch.testing.assert_close(image.project(Z).flatten(1), flat.project(Z.flatten(1)), rtol=0, atol=1e-14)
    assert float(image.violation(image.project(Z)).max()) < 1e-12


def test_a_bound_that_is_left_out_is_infinite() -> None:
    z = torch.tensor([[-2.0, 0.5, 2.0]], dtype=torch.float64)
    for box, right in (
        (casal.Box(0, None), [0.0, 0.5, 2.0]),
        (casal.Box(None, 1), [-2.0, 0.5, 1.0]),
        (casal.Box(high=1), [-2.0, 0.5, 1.0]),
        (casal.Box(casal.PerChain([1.0]), None), [1.0, 1.0, 2.0]),
    ):
        assert box.project(z).tolist() == [right]
        assert casal.constraint_from_spec(box.spec()).project(z).tolist() == [right]


def test_sets_have_short_reprs() -> None:
    assert not {case.id: repr(case.constraint) for case in SETS if len(repr(case.constraint)) >= 300}


def test_a_repr_never_prints_a_thousand_numbers() -> None:
    many = torch.linspace(0.0, 1.0, 1000, dtype=torch.float64)
    union: casal.Constraint = casal.Union(*(casal.Sphere(1.0 + k) for k in range(100)))
    target = casal.ddpm(lambda x, t: x, 1e-4 + 0.01 * many, shape=(1, 16, 16))
    things = [
        casal.Affine(many.reshape(1, -1), 1.0),
        casal.Box(-many, many),
        casal.Ball(1.0, many),
        casal.Ball(1.0).shifted(many),
        casal.Product(*[casal.Sphere(1.0)] * 100, sizes=[2] * 100),
        union,
        target,
        target.table,
        casal.Linear(torch.ones(30, 40)),
        casal.DCT(4, size=(16, 16)),
    ]
    for thing in things:
        assert len(repr(thing)) < 200 and " object at 0x" not in repr(thing)
    assert repr(casal.Box(0, None)) == "Box(low=0, high=inf)"
    assert "96 more" in repr(union)


def test_processes_from_an_unguarded_script_are_refused_with_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    head = "from casal.sampling.workers import refuse_unguarded_script as look\ndef f():\n    look()\n"
    script.write_text(head + "f()\n")
    with pytest.raises(SettingError, match=r"import script\.py again, and line 4 .* under if __name__"):
        runpy.run_path(str(script), run_name="__main__")
    script.write_text(head + "if __name__ == '__main__':\n    f()\n")
    runpy.run_path(str(script), run_name="__main__")
    refuse_unguarded_script()  # pytest's own script is guarded


def test_a_callback_and_a_cluster_are_not_for_each_other() -> None:
    target = casal.langevin(lambda x: x, steps=2, step_size=0.1, init=torch.ones(2, 2))
    with pytest.raises(SettingError, match="called in this process"):
        casal.sample(target, casal.Sphere(1.0), casal.CASAL(1.0), 2, run=casal.Run(workers=1, callback=print))
