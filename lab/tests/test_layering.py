"""The laboratory's rules of import: no experiment and no benchmark sees an experiment, no import is hidden."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import casal_lab
from casal_lab.experiments import MODULES

ROOT = Path(casal_lab.__file__).parent
EXPERIMENTS = {module.__name__ for module in MODULES}
REGISTRY = "casal_lab.experiments"
COMMAND = {"casal_lab.__main__", "casal_lab.cli"}
"""They import inside functions: the one asks first whether the libraries are there, the other starts at once."""


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


def experiment_of(name: str) -> str | None:
    """The experiment that a dotted name is part of."""
    return next((one for one in EXPERIMENTS if f"{name}.".startswith(f"{one}.")), None)


def offences(source: str, module: str) -> list[str]:
    """Every import of a module (dotted name) that breaks a rule."""
    found = []
    for name, lazy in imports_of(source):
        experiment = experiment_of(name)
        if name.startswith("."):
            found.append(f"{module} imports {name} relatively")
        elif name.split(".")[0] not in ("casal", "casal_lab"):
            continue
        elif lazy and module not in COMMAND:
            found.append(f"{module} imports {name} inside a function")
        elif experiment not in (None, experiment_of(module)) and module != REGISTRY:
            found.append(f"{module} imports the experiment {experiment}")
    return found


def test_imports() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    assert len(paths) > 50
    for path in paths:
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        assert offences(path.read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize(
    ("source", "module", "says"),
    [
        (
            "from casal_lab.field.setup import STIFF",
            "casal_lab.particle.setup",
            "imports the experiment casal_lab.field",
        ),
        ("from casal_lab import field", "casal_lab.particle.setup", "imports the experiment casal_lab.field"),
        ("import casal_lab.field", "casal_lab.benchmark.catalogue", "imports the experiment casal_lab.field"),
        ("from casal_lab.field import figures", "casal_lab.report.page", "imports the experiment casal_lab.field"),
        ("from casal_lab.pde.darcy import net", "casal_lab.pde.poisson", "imports the experiment casal_lab.pde.darcy"),
        ("from casal_lab.pde import poisson", "casal_lab.pde.compare", "imports the experiment casal_lab.pde.poisson"),
        ("from casal_lab.pde.compare import run", "casal_lab.pde.poisson", None),
        ("def f():\n    from casal_lab.nets import MLP", "casal_lab.field.runs", "inside a function"),
        ("def f():\n    import casal", "casal_lab.field.runs", "inside a function"),
        ("from . import setup", "casal_lab.field.runs", "relatively"),
        ("from casal_lab.field.setup import STIFF", "casal_lab.field.runs", None),
        ("from casal_lab import field", "casal_lab.experiments", None),
        ("from casal_lab.experiments import EXPERIMENTS", "casal_lab.cli", None),
        ("def f():\n    import safetensors", "casal_lab.nets.files", None),
    ],
)
def test_the_rules_catch_what_they_should(source: str, module: str, says: str | None) -> None:
    found = offences(source, module)
    assert (found == []) if says is None else (len(found) == 1 and says in found[0])
