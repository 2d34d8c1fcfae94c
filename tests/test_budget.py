"""What the library may cost its readers: lines, files, numeric constants, methods of base classes, imports of a file.

The numbers of the tables below are what stands, and they hold: a change that needs more deletes something elsewhere, or
raises the number in the same commit and says why in one sentence beside it. A change that needs less lowers them. Lines
of code are those without docstrings, comments and blanks: nothing is gained by leaving out an explanation.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import casal

ROOT = Path(casal.__file__).parent


class Package(NamedTuple):
    """Upper bounds for one package.

    Attributes:
        files: Python files.
        code: Lines of code, without docstrings, comments and blank lines.
        constants: Names in capitals that a module gives a number or a tuple of numbers.
        imports: Modules of the library that one of its files imports, at most.
    """

    files: int
    code: int
    constants: int
    imports: int


BUDGET = {
    "casal": Package(
        files=7, code=501, constants=4, imports=1
    ),  # streams by key; published methods and calibrate by name; derivatives by rows are taken in linalg alone, all
    # rows of a Jacobian at once
    "constraints": Package(
        files=30, code=8534, constants=177, imports=11
    ),  # the reduction of flat sets came from the methods, as explain() tells its dimension; structure of Jacobians;
    # coordinates that no equation links stay apart; linear programmes say first which inequalities are equations
    "decoders": Package(files=5, code=880, constants=4, imports=2),
    "diagnostics": Package(
        files=16, code=2338, constants=105, imports=8
    ),  # unseen_modes: a mode that no free sample shows was trusted with a wrong weight; lines: no check saw draws on
    # curved equations that few points decide
    # renoised: no check had the power to object on networks given equations, and none saw details that a last
    # projection adds, with which runs of two trained networks were wrong and trusted
    # check.py and ladder.py: what a check is, and those of ladders, were in one file of 1273 lines; what chains say
    # of themselves came from the methods; peaks asks the density in the set alone; the factor of a set that is known
    # by its projection has a gradient, so that no check takes differences of it
    "integrations": Package(files=7, code=841, constants=5, imports=6),  # callbacks for every kind of stage
    "methods": Package(
        files=27, code=5815, constants=225, imports=12
    ),  # Matheron draws inside sets, weighs modes by lines of several directions, and ends where the score is error;
    # a tempered start that is narrow or given up, a warm-up and rounds that know when chains are at rest; the second
    # kind of move knows its power; a Gaussian that takes leapfrogs begins in the middle of the set;
    # draws on curved equations say how many lines carry them; the measure of asymmetry came from sampling
    "sampling": Package(
        files=20, code=3279, constants=56, imports=12
    ),  # calibrate; a share of evaluations for checks; runs of copies stop; densities that are asked in the set alone;
    # whether a density grows without bound where there is no pilot run; the pilot measures curvatures alone
    "store": Package(files=3, code=609, constants=3, imports=1),  # names of files are refused
    "targets": Package(
        files=8, code=1543, constants=18, imports=3
    ),  # functions that fail are named; models can be pickled; starts of one point or none
}
"""By package; "casal" are the files that lie in none of them."""

LINES = 39229
"""Of all files together, everything counted."""

METHODS = {
    "Constraint": 22,  # written_for and reduction: what explain() and chains inside a set need to know
    "Decoder": 9,
    "Target": 5,
    "Method": 12,  # control, next: two kinds of stage; first_points: a density that is defined in the set alone;
    # promises: what a run has found decides
    "SampleResult": 9,
}
"""Public methods and properties that the base classes define."""


# ------------------------------------------------------------------ counting


tree = cache(ast.parse)


def code_lines(source: str) -> int:
    """Lines of a source that hold something else than docstrings, comments and blanks."""
    texts: set[int] = set()
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.split("#")[0].strip()}
    return len(lines - texts)


def numeric_constants(source: str) -> list[str]:
    """Names in capitals that a module gives a number, arithmetic of numbers, or a tuple of such values."""
    found: list[str] = []

    def numeric(node: ast.AST | None) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if isinstance(node, ast.Tuple):
            return bool(node.elts) and all(map(numeric, node.elts))
        if isinstance(node, ast.UnaryOp):
            return numeric(node.operand)
        if isinstance(node, ast.BinOp):
            return numeric(node.left) and numeric(node.right)
        return isinstance(node, ast.Name) and node.id in found

    for statement in tree(source).body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        pairs = [(target, statement.value) for target in targets]
        if isinstance(targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(targets[0].elts, statement.value.elts, strict=False))
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id.isupper() and numeric(value):
                found.append(target.id)
    return found


def modules_imported(source: str) -> set[str]:
    """Modules of the library that a source imports anywhere; errors and types may be known to everybody."""
    found: set[str] = set()
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "casal"} - {"casal.errors", "casal.checks"}


def public_methods(source: str, name: str) -> set[str] | None:
    """Methods and properties without underscore of a class that the source defines."""
    for node in tree(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            functions = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            return {function.name for function in functions if not function.name.startswith("_")}
    return None


@cache
def sources() -> dict[Path, str]:
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def packages() -> dict[str, list[tuple[Path, str]]]:
    found: dict[str, list[tuple[Path, str]]] = {}
    for path, source in sources().items():
        found.setdefault(path.parts[0] if len(path.parts) > 1 else "casal", []).append((path, source))
    return found


def cost(files: list[tuple[Path, str]]) -> Package:
    # An __init__ lists what its package offers: its imports are no knowledge.
    knowing = [len(modules_imported(source)) for path, source in files if path.name != "__init__.py"]
    return Package(
        len(files),
        sum(code_lines(source) for _, source in files),
        sum(len(numeric_constants(source)) for _, source in files),
        max(knowing, default=0),
    )


# ------------------------------------------------------------------ the budget holds


def test_every_package_has_a_budget() -> None:
    assert set(packages()) == set(BUDGET)


@pytest.mark.parametrize("name", BUDGET)
def test_a_package_stays_within_its_budget(name: str) -> None:
    used = cost(packages()[name])._asdict()
    over = {what: f"{now} > {most}" for what, most in BUDGET[name]._asdict().items() if (now := used[what]) > most}
    assert not over, f"{name}: {over}; delete something, or raise the number in BUDGET and say why"


def test_the_library_stays_within_its_lines() -> None:
    assert sum(source.count("\n") for source in sources().values()) <= LINES


@pytest.mark.parametrize("name", METHODS)
def test_base_classes_do_not_grow(name: str) -> None:
    (found,) = [methods for source in sources().values() if (methods := public_methods(source, name)) is not None]
    assert len(found) <= METHODS[name], sorted(found)


# ------------------------------------------------------------------ the counting counts

EXAMPLE = '''"""What it is.

More of it.
"""

from casal.constraints.base import Constraint, Projection
from casal.errors import CasalError
import casal.linalg  # a comment

STEPS = 7
RATES: tuple[float, ...] = (0.1, -2.0**-3)
LOW, HIGH = -1.0, 2 * STEPS
NAME, FLAG, step = "seven", True, 3
"""Not a docstring, but a text."""


class Base:
    """A class."""

    LIMIT = 5

    def one(self) -> int:
        """Return one."""
        # one
        return (
            1
        )

    @property
    def two(self) -> str:
        return """2
        3"""

    def _three(self) -> None: ...
'''


def test_the_counting_is_right() -> None:
    assert code_lines(EXAMPLE) == 3 + 4 + 1 + 1 + 4 + 4 + 1
    assert numeric_constants(EXAMPLE) == ["STEPS", "RATES", "LOW", "HIGH"]
    assert modules_imported(EXAMPLE) == {"casal.constraints.base", "casal.linalg"}
    assert public_methods(EXAMPLE, "Base") == {"one", "two"}
    assert public_methods(EXAMPLE, "Other") is None
