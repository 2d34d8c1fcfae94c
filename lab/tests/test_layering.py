"""The laboratory's own rules of import: experiments do not see each other, and nobody outside sees the laboratory."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import casal

ROOT = Path(casal.__file__).parent
SHARED = {"laws", "nets", "physics", "reconstruction", "report"}
"""Folders of the laboratory that are not experiments."""

EXPERIMENTS = {path.parent.name for path in (ROOT / "lab").glob("*/__init__.py")} - SHARED
REGISTRY = "casal_lab.experiments"

ABOVE = {"benchmark", "cli"}
"""Rooms above the laboratory, which may use it."""


class Import(NamedTuple):
    """A full dotted name, and whether it is imported only when a function is called."""

    name: str
    lazy: bool


def imports_of(source: str) -> Iterator[Import]:
    """All imports of a file; ``from a import b`` gives a.b."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (Import(f"{'.' * child.level}{child.module}.{alias.name}", lazy) for alias in child.names)
            yield from walk(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(source), False)


def offences(source: str, module: str) -> list[str]:
    """Every import of a module (dotted name) that breaks a rule."""
    room, found = module.split("."), []
    inside = room[1] == "lab"
    for name, lazy in imports_of(source):
        parts = name.split(".")
        if inside and name.startswith("."):
            found.append(f"{module} imports {name} relatively")
        elif parts[0] != "casal":
            continue
        elif inside and lazy:
            found.append(f"{module} imports {name} inside a function")
        elif parts[1:2] == ["lab"] and not inside and room[1] not in ABOVE:
            found.append(f"{module} is outside and imports {name}")
        elif inside and parts[1:2] == ["lab"] and parts[2] in EXPERIMENTS - {room[2]} and module != REGISTRY:
            found.append(f"{module} imports the experiment {parts[2]}")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts), path


MODULES = dict(modules())


def test_the_experiments_are_found() -> None:
    assert {"particle", "field", "mixture", "propositions", "conditional", "burgers"} <= EXPERIMENTS


@pytest.mark.parametrize("name", MODULES)
def test_imports(name: str) -> None:
    assert offences(MODULES[name].read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize(
    ("source", "module", "says"),
    [
        ("from casal_lab.field.setup import STIFF", "casal_lab.particle.setup", "imports the experiment field"),
        ("from casal_lab import field", "casal_lab.particle.setup", "imports the experiment field"),
        ("import casal_lab.field", "casal_lab.laws.double_well", "imports the experiment field"),
        ("from casal_lab.field import figures", "casal_lab.report.html", "imports the experiment field"),
        ("def f():\n    from casal_lab.laws import families", "casal_lab.field.runs", "inside a function"),
        ("def f():\n    import casal", "casal_lab.field.runs", "inside a function"),
        ("from . import setup", "casal_lab.field.runs", "relatively"),
        ("from casal_lab.nets import MLP", "casal.targets.ddpm", "is outside"),
        ("def f():\n    from casal_lab import nets", "casal.diagnostics", "is outside"),
        ("from casal_lab.field.setup import STIFF", "casal_lab.field.runs", None),
        ("from casal_lab.field.setup import STIFF", "casal_lab.benchmark.catalogue", None),
        ("from casal_lab import field", "casal_lab.experiments", None),
        ("from casal_lab.experiments import EXPERIMENTS", "casal_lab.cli", None),
        ("def f():\n    import safetensors", "casal_lab.nets.files", None),
    ],
)
def test_the_rules_catch_what_they_should(source: str, module: str, says: str | None) -> None:
    found = offences(source, module)
    assert (found == []) if says is None else (len(found) == 1 and says in found[0])
