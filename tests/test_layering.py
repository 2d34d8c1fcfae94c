"""Imports point one way (docs/design.md): each room sees the rooms below it and nothing above or beside."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import casal

ROOT = Path(casal.__file__).parent

FLOORS: list[set[str]] = [
    {"errors", "checks", "devices", "linalg"},
    {"constraints", "decoders", "schedules", "targets"},
    {"methods"},
    {"store", "diagnostics"},
    {"sampling"},
    {"integrations"},
    {"lab"},
    {"benchmark"},
    {"cli"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
BLIND = FLOORS[1]
"""Rooms of one floor that do not see each other."""

PLOTTING = {"lab"}
RESULT_PLOT = "casal.sampling.plot"
"""The one file of the library that draws, for ``result.plot()``; it imports matplotlib inside a function."""

EXTRAS_ALLOWED = {"lab", "benchmark", "cli", "integrations"}
CORE_LIBRARIES = {"torch", "numpy"}
LAZY = {
    ("sampling", "rich"),
    ("store", "zarr"),
    ("store", "xarray"),
    ("sampling", "distributed"),
    ("sampling", "arviz"),
    ("sampling", "matplotlib"),
    ("constraints", "scipy"),
}
"""Optional libraries that a room may import inside a function."""

BUSIEST = 12
"""Modules of the package that one file may import, beside those that everybody may know."""

GROUND = {"casal.errors", "casal.checks"}

PACKAGE = {"__version__"}
"""Names that the package itself defines; all others live in a room."""


class Import(NamedTuple):
    """``module`` (and ``name``, for from-imports), and whether it runs only when a function is called."""

    module: str
    name: str | None
    lazy: bool
    line: int


def imports_of(source: str, package: str) -> Iterator[Import]:
    """All imports of a file of the given package, relative ones resolved; those inside functions are lazy."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, None, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                yield from (Import(module, alias.name, lazy, child.lineno) for alias in child.names)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, lazy or inside)

    yield from walk(ast.parse(source), False)


def room_of(module: str) -> str:
    """The room a dotted name below ``casal`` belongs to; "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def rooms_seen(imported: Import, rooms: set[str]) -> set[str]:
    """The rooms an import opens. ``from casal import X`` opens X if it is a room, else the package itself."""
    room = room_of(imported.module)
    if room:
        return {room}
    if imported.name in rooms:
        return {imported.name}
    return set() if imported.name in PACKAGE else {""}


def offences(source: str, module: str, *, package: str | None = None) -> list[str]:
    """Every import of a module (dotted name) that breaks a rule."""
    room = room_of(module)
    found = []
    for item in imports_of(source, package or module.rpartition(".")[0]):
        top, at = item.module.split(".")[0], f"{module}:{item.line}"
        if top == "casal":
            for seen in rooms_seen(item, set(FLOOR)):
                if not seen:
                    if FLOOR[room] <= FLOOR["sampling"]:  # the package is the front door of the loop's floor
                        found.append(f"{at} imports the package itself")
                elif seen not in FLOOR:
                    found.append(f"{at} imports {seen}, which is in no floor")
                elif FLOOR[seen] > FLOOR[room]:
                    found.append(f"{at} looks up: {room} imports {seen}")
                elif seen != room and {seen, room} <= BLIND:
                    found.append(f"{at} looks aside: {room} imports {seen}")
                elif item.lazy and room not in ("cli", "lab"):
                    found.append(f"{at} imports {seen} inside a function")
        elif top == "matplotlib" and room not in PLOTTING and not (item.lazy and module == RESULT_PLOT):
            found.append(f"{at} plots")
        elif (
            room not in EXTRAS_ALLOWED
            and top not in CORE_LIBRARIES | set(sys.stdlib_module_names)
            and not (item.lazy and (room, top) in LAZY)
        ):
            found.append(f"{at} needs {top}")
    return found


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


MODULES = [(name, path) for name, path in modules() if name not in ("casal", "casal_lab.__main__")]


def test_every_module_is_in_a_room() -> None:
    assert len(MODULES) > 30
    assert {room_of(name) for name, _ in MODULES} <= set(FLOOR)
    assert {"errors", "constraints", "methods", "sampling"} <= {room_of(name) for name, _ in MODULES}


def test_imports_point_one_way() -> None:
    for name, path in MODULES:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        assert offences(path.read_text(encoding="utf-8"), name, package=package) == []


def test_no_file_knows_everybody() -> None:
    for name, path in MODULES:
        if path.name == "__init__.py":
            continue
        known = {item.module for item in imports_of(path.read_text(encoding="utf-8"), name.rpartition(".")[0])}
        own = {module for module in known if module.split(".")[0] == "casal"} - GROUND
        assert len(own) <= BUSIEST, name


def test_no_module_has_the_name_of_what_its_room_exports() -> None:
    """``casal.targets.ddpm`` is the function, never the file."""
    for room in sorted({room_of(name) for name, _ in MODULES}):
        package = import_module(f"casal.{room}")
        for name in getattr(package, "__all__", ()):
            assert not (ROOT / room / f"{name}.py").exists(), f"casal.{room}.{name}"


def test_the_package_opens_no_room_above_the_bridges() -> None:
    """``import casal`` must not draw in experiments, networks or figures."""
    top = FLOOR["integrations"]  # which import other libraries inside functions
    for item in imports_of((ROOT / "__init__.py").read_text(encoding="utf-8"), "casal"):
        assert item.module.split(".")[0] in {"casal", "__future__"} | set(sys.stdlib_module_names), item
        if item.module.split(".")[0] == "casal":
            assert all(FLOOR[seen] <= top for seen in rooms_seen(item, set(FLOOR))), item


def test_importing_casal_loads_nothing_but_torch_and_numpy() -> None:
    script = (
        "import sys, torch, numpy; before = {m.split('.')[0] for m in sys.modules}; import casal; "
        "print(*sorted({m.split('.')[0] for m in sys.modules} - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "casal" in loaded
    assert set(loaded) - {"casal"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("source", "module", "says"),
    [
        ("from casal.methods import CASAL", "casal.constraints.round", "looks up: constraints imports methods"),
        ("from ..methods import CASAL", "casal.constraints.round", "looks up: constraints imports methods"),
        ("import casal.sampling", "casal.methods.casal", "looks up: methods imports sampling"),
        ("from casal.decoders import Linear", "casal.constraints.flat", "looks aside: constraints imports decoders"),
        ("from ..schedules import linear", "casal.targets.density", "looks aside: targets imports schedules"),
        ("import casal_lab", "casal.sampling.call", "looks up: sampling imports lab"),
        ("from casal_lab.nets import MLP", "casal.sampling.call", "looks up: sampling imports lab"),
        ("from casal.sampling import sample", "casal.store.files", "looks up: store imports sampling"),
        ("def f():\n    from casal_lab.cli import main", "casal_lab.field.runs", "looks up: lab imports cli"),
        (
            "if TYPE_CHECKING:\n    from casal.sampling import Cost",
            "casal.methods.base",
            "looks up: methods imports sampling",
        ),
        ("def f():\n    from casal.constraints.spec import encode", "casal.constraints.base", "inside a function"),
        ("from casal import Sphere", "casal.methods.casal", "imports the package itself"),
        ("import casal", "casal.diagnostics.distances", "imports the package itself"),
        ("from casal.attic import x", "casal_lab.cli", "imports attic, which is in no floor"),
        ("import matplotlib.pyplot as plt", "casal.sampling.result", "plots"),
        ("def f():\n    import matplotlib", "casal.diagnostics.distances", "plots"),
        ("def f():\n    import matplotlib", "casal.sampling.result", "plots"),
        ("import matplotlib", "casal.sampling.plot", "plots"),
        ("def f():\n    from matplotlib.figure import Figure", "casal.sampling.plot", None),
        ("import scipy.linalg", "casal.constraints.flat", "needs scipy"),
        ("def f():\n    import scipy", "casal.targets.density", "needs scipy"),
        ("import rich", "casal.sampling.progress", "needs rich"),
        ("from casal.errors import ShapeError", "casal.checks", None),
        ("from .base import flat", "casal.constraints.round", None),
        ("from casal.constraints import Constraint\nimport torch, math", "casal.methods.base", None),
        ("def f():\n    from rich.progress import Progress", "casal.sampling.progress", None),
        ("from casal_lab.benchmark import run", "casal_lab.field.runs", "looks up: lab imports benchmark"),
        ("from casal_lab.benchmark import run", "casal.sampling.call", "looks up: sampling imports benchmark"),
        ("import matplotlib", "casal_lab.benchmark.page", "plots"),
        ("from casal_lab.drawing import panels", "casal_lab.benchmark.page", None),
        ("import matplotlib", "casal_lab.drawing", None),
        ("import scipy", "casal_lab.field.setup", None),
        ("from casal import Sphere", "casal_lab.particle.setup", None),
    ],
)
def test_the_rules_catch_what_they_should(source: str, module: str, says: str | None) -> None:
    found = offences(source, module)
    assert (found == []) if says is None else (len(found) == 1 and says in found[0])
