"""Imports point one way (docs/design.md): each package sees the packages below it and nothing above or beside."""

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

LAYERS: list[set[str]] = [
    {"errors", "checks", "devices", "linalg", "streams"},
    {"constraints", "decoders", "schedules", "targets"},
    {"methods"},
    {"store", "diagnostics"},
    {"sampling"},
    {"integrations"},
]
LAYER = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
BLIND = LAYERS[1]
"""Packages of one layer that do not see each other."""

RESULT_PLOT = "casal.sampling.plot"
"""The one file that draws, for ``result.plot()``; it imports matplotlib inside a function."""

EXTRAS_ALLOWED = {"integrations"}
CORE_LIBRARIES = {"torch", "numpy"}
LAZY = {
    ("sampling", "rich"),
    ("store", "zarr"),
    ("store", "xarray"),
    ("sampling", "distributed"),
    ("sampling", "arviz"),
    ("sampling", "matplotlib"),
    ("constraints", "scipy"),
    ("methods", "scipy"),
}
"""Optional libraries that a package may import inside a function."""

BUSIEST = 12
"""Modules of the package that one file may import, beside those that everybody may know."""

GROUND = {"casal.errors", "casal.checks"}

PACKAGE = {"__version__"}
"""Names that ``casal`` itself defines; all others live in a package below it."""


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


def package_of(module: str) -> str:
    """The package a dotted name below ``casal`` belongs to; "" for ``casal`` itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def packages_seen(imported: Import) -> set[str]:
    """The packages an import opens. ``from casal import X`` opens X if it is a package, else ``casal`` itself."""
    package = package_of(imported.module)
    if package:
        return {package}
    if imported.name in LAYER:
        return {imported.name}
    return set() if imported.name in PACKAGE else {""}


def offences(source: str, module: str, *, package: str | None = None) -> list[str]:
    """Every import of a module (dotted name) that breaks a rule."""
    own = package_of(module)
    found = []
    for item in imports_of(source, package or module.rpartition(".")[0]):
        top, at = item.module.split(".")[0], f"{module}:{item.line}"
        if top == "casal_lab":
            found.append(f"{at} imports the laboratory")
        elif top == "casal":
            for seen in packages_seen(item):
                if not seen:
                    if LAYER[own] <= LAYER["sampling"]:  # ``casal`` itself shows what this layer makes
                        found.append(f"{at} imports casal itself")
                elif seen not in LAYER:
                    found.append(f"{at} imports {seen}, which is in no layer")
                elif LAYER[seen] > LAYER[own]:
                    found.append(f"{at} looks up: {own} imports {seen}")
                elif seen != own and {seen, own} <= BLIND:
                    found.append(f"{at} looks aside: {own} imports {seen}")
                elif item.lazy:
                    found.append(f"{at} imports {seen} inside a function")
        elif top == "matplotlib" and not (item.lazy and module == RESULT_PLOT):
            found.append(f"{at} plots")
        elif (
            own not in EXTRAS_ALLOWED
            and top not in CORE_LIBRARIES | set(sys.stdlib_module_names)
            and not (item.lazy and (own, top) in LAZY)
        ):
            found.append(f"{at} needs {top}")
    return found


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


MODULES = [(name, path) for name, path in modules() if name != "casal"]


def test_every_module_is_in_a_package() -> None:
    assert len(MODULES) > 30
    assert {package_of(name) for name, _ in MODULES} <= set(LAYER)
    assert {"errors", "constraints", "methods", "sampling"} <= {package_of(name) for name, _ in MODULES}


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


def test_no_module_has_the_name_of_what_its_package_exports() -> None:
    """``casal.targets.ddpm`` is the function, never the file."""
    for package in sorted({package_of(name) for name, _ in MODULES}):
        for name in getattr(import_module(f"casal.{package}"), "__all__", ()):
            assert not (ROOT / package / f"{name}.py").exists(), f"casal.{package}.{name}"


def test_casal_itself_imports_its_packages_only() -> None:
    for item in imports_of((ROOT / "__init__.py").read_text(encoding="utf-8"), "casal"):
        assert item.module.split(".")[0] in {"casal", "__future__"} | set(sys.stdlib_module_names), item
        if item.module.split(".")[0] == "casal":
            assert packages_seen(item) <= set(LAYER), item


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
        ("from casal_lab.nets import MLP", "casal.sampling.call", "imports the laboratory"),
        ("from casal.sampling import sample", "casal.store.files", "looks up: store imports sampling"),
        (
            "if TYPE_CHECKING:\n    from casal.sampling import Cost",
            "casal.methods.base",
            "looks up: methods imports sampling",
        ),
        ("def f():\n    from casal.constraints.base import encode", "casal.constraints.base", "inside a function"),
        ("from casal import Sphere", "casal.methods.casal", "imports casal itself"),
        ("import casal", "casal.diagnostics.modes", "imports casal itself"),
        ("from casal.attic import x", "casal.integrations.azula", "imports attic, which is in no layer"),
        ("import matplotlib.pyplot as plt", "casal.sampling.result", "plots"),
        ("def f():\n    import matplotlib", "casal.diagnostics.modes", "plots"),
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
        ("from casal_lab.benchmark import run", "casal.integrations.azula", "imports the laboratory"),
    ],
)
def test_the_rules_catch_what_they_should(source: str, module: str, says: str | None) -> None:
    found = offences(source, module)
    assert (found == []) if says is None else (len(found) == 1 and says in found[0])
