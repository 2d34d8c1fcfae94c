"""Which programs a module uses, found by reading imports: the hash of an experiment changes with these and no others.

The imports of a file are followed from file to file, those inside functions included. The front door of a package is
followed name by name: ``from casal.constraints import Box`` leads to the file that defines ``Box``, not to every file
that ``casal/constraints/__init__.py`` mentions. A name that a front door defines itself (a registry, say) counts with
the names that its statement uses. Modules whose names are only built as strings (``import_module``) are not seen.
"""

from __future__ import annotations

import ast
import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

LOOSE = ""
"""Stands for the statements of a front door that bind no name; they run whatever is imported."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
Import = ast.Import | ast.ImportFrom

Locate = Callable[[str], Path | None]
"""The file of a module by its dotted name; None for modules that do not count, such as numpy."""


class Part(NamedTuple):
    """What can be used: a whole module (name None), or one name of a package's front door."""

    module: str
    name: str | None = None


def _read(node: ast.AST, words: list[str], imports: list[Import]) -> None:
    """Collect what a statement does, without layout, comments and docstrings, and its imports. One pass: it is fast."""
    words.append(type(node).__name__)
    if isinstance(node, _IMPORTS):
        imports.append(node)
    for name in node._fields:
        value = None if name == "ctx" else getattr(node, name, None)
        if isinstance(value, ast.AST):
            _read(value, words, imports)
        elif isinstance(value, list):
            words.append("[")
            for item in value:
                if not isinstance(item, ast.AST):
                    words.append(repr(item))
                elif not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
                    _read(item, words, imports)
            words.append("]")
        else:
            words.append(repr(value))


def file_below(folder: Path, module: str) -> Path | None:
    """The file of a module if its top-level package lies in ``folder``; nothing is imported to find it."""
    place = folder.joinpath(*module.split("."))
    return next((p for p in (place / "__init__.py", place.with_suffix(".py")) if p.is_file()), None)


def in_packages(*roots: Path) -> Locate:
    """Find the modules of the packages in the folders ``roots``, and no others."""
    homes = {root.name: root.parent for root in roots}

    def locate(module: str) -> Path | None:
        home = homes.get(module.split(".")[0])
        return None if home is None else file_below(home, module)

    return locate


def _names_bound(node: ast.AST) -> list[str]:
    """Names that a statement binds at the top level, also inside an ``if`` or ``try``."""
    if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
        inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.ExceptHandler)]
        return [name for child in inner for name in _names_bound(child)]
    if isinstance(node, _IMPORTS):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id if isinstance(target, ast.Name) else LOOSE for target in targets]
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return [] if docstring or isinstance(node, ast.Pass) else [LOOSE]


class Sources:
    """The programs that count: those that ``locate`` finds."""

    def __init__(self, locate: Locate) -> None:
        self.locate = cache(locate)
        self._look, self._bound = cache(self._read_part), cache(self._read_door)

    def used_by(self, *modules: str) -> dict[Part, str]:
        """Every part that the modules use, directly or not, with the hash of its program."""
        found: dict[Part, str] = {}
        todo = [Part(module) for module in modules]
        collects = gc.isenabled()
        gc.disable()  # trees are many small objects without cycles; looking for some takes twice as long as the rest
        try:
            while todo:
                part = todo.pop()
                if part not in found:
                    found[part], uses = self._look(part)
                    todo += uses
        finally:
            if collects:
                gc.enable()
        return found

    def digest(self, *modules: str) -> str:
        """Hash of all programs that the modules use."""
        told = sorted((part.module, part.name or "", code) for part, code in self.used_by(*modules).items() if code)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def _tree(self, module: str) -> ast.Module:
        path = self.locate(module)
        return ast.parse(path.read_text(encoding="utf-8") if path else "")

    def _is_package(self, module: str) -> bool:
        path = self.locate(module)
        return path is not None and path.name == "__init__.py"

    def _read_door(self, module: str) -> dict[str, list[ast.stmt]]:
        """Top-level statements of a package by the name they bind; those that bind none under LOOSE."""
        found: dict[str, list[ast.stmt]] = {LOOSE: []}
        for statement in self._tree(module).body:
            for name in _names_bound(statement):
                found.setdefault(name, []).append(statement)
        return found

    def _read_part(self, part: Part) -> tuple[str, list[Part]]:
        """The hash of a part, and the parts it uses directly."""
        module, name = part
        if self.locate(module) is None:
            return "", []
        path = module.split(".")
        uses = [Part(".".join(path[:k]), LOOSE) for k in range(1, len(path) + (name is not None))]
        nodes: Sequence[ast.AST] = [self._tree(module)] if name is None else self._bound(module).get(name, [])
        own = [node for node in nodes if not isinstance(node, _IMPORTS)]
        words: list[str] = []
        imports: list[Import] = []
        for node in own:
            _read(node, words, imports)
        if name is not None:
            loaded = {node.id for top in own for node in ast.walk(top) if isinstance(node, ast.Name)}
            uses += [Part(module, other) for other in sorted(loaded & self._bound(module).keys())]
        packages: dict[str, str] = {}
        uses += self._imported(module, imports, packages)
        if packages:
            uses += [used for node in own for used in self._attributes(node, packages)]
        handed_on = [node for node in nodes if isinstance(node, _IMPORTS)]
        packages = {}
        uses += self._imported(module, handed_on, packages, only=name)
        uses += map(Part, packages.values())  # anything in them may be used
        return hashlib.sha256("\n".join(words).encode()).hexdigest() if own else "", uses

    def _imported(
        self, module: str, imports: Sequence[Import], packages: dict[str, str], only: str | None = None
    ) -> list[Part]:
        """What imports lead to (``only``: those of one name); ``packages`` takes up those bound to a name."""
        found: list[Part] = []
        for node in imports:
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if only is not None and bound != only:
                    continue
                if isinstance(node, ast.Import):
                    meant = alias.name if alias.asname else bound
                    found += self._follow(alias.name, LOOSE)
                else:
                    here = module if self._is_package(module) else module.rpartition(".")[0]
                    base = resolve_name("." * node.level + (node.module or ""), here)
                    meant = f"{base}.{alias.name}"
                    whole = alias.name == "*"
                    found += self._follow(base, None if whole else LOOSE, () if whole else [alias.name], door=module)
                if self._is_package(meant):
                    packages[bound] = meant
        return found

    def _follow(self, module: str, end: str | None, names: Sequence[str] = (), door: str = "") -> list[Part]:
        """What ``module.name.name`` leads to; ``end`` is what counts of a package if the path ends at it.

        Inside the front door ``door`` of a package, a name that it takes from the package itself is a submodule.
        """
        for name in names:
            if not self._is_package(module):
                break
            bound = self._bound(module)
            if name in bound and module != door:
                return [Part(module, name)]
            if not self.locate(f"{module}.{name}"):
                return [Part(module, "__getattr__" if "__getattr__" in bound else None)]
            module = f"{module}.{name}"
        return [Part(module, end if self._is_package(module) else None)] if self.locate(module) else []

    def _attributes(self, node: ast.AST, packages: dict[str, str]) -> Iterator[Part]:
        """What ``package.name`` leads to wherever it stands in a node; a package by itself counts in full."""
        chain, base = [], node
        while isinstance(base, ast.Attribute):
            chain.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name) and base.id in packages:
            yield from self._follow(packages[base.id], None, chain[::-1])
        else:
            for child in ast.iter_child_nodes(node):
                yield from self._attributes(child, packages)
