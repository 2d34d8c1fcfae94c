"""The hash of an experiment changes with the programs it uses, and with no others."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import casal
import casal_lab
from casal_lab.report import cache
from casal_lab.report.sources import Sources, in_packages

ROOTS = [Path(package.__file__).parent for package in (casal, casal_lab)]

FILES = {
    "__init__.py": "from pack import lone\nfrom pack.sets import Ball, Box\n__version__ = '1'\n__all__ = ['Box']",
    "lone.py": "x = 1",
    "sets/__init__.py": "from .ball import Ball\nfrom .box import Box\nALL = {'ball': Ball, 'box': Box}\nLIMIT = 3",
    "sets/base.py": '"""Words."""\n\n\nclass Set:\n    """Words."""\n    size = 1',
    "sets/ball.py": "from pack.sets.base import Set\n\nclass Ball(Set): ...",
    "sets/box.py": "from .base import Set\n\nclass Box(Set): ...\n\ndef f():\n    from pack.tools import late",
    "tools/__init__.py": "",
    "tools/late.py": "def go(): ...",
    "tools/early.py": "x = 1",
    "uses_ball.py": "from pack.sets import Ball",
    "uses_box.py": "from pack import Box",
    "uses_attribute.py": "import pack\n\nx = pack.sets.Ball()",
    "uses_alias.py": "from pack import sets as s\n\nx = s.Box",
    "uses_registry.py": "from pack.sets import ALL",
    "uses_number.py": "from pack.sets import LIMIT\nfrom pack import __version__",
    "uses_package.py": "from pack import sets\n\nx = vars(sets)",
    "uses_star.py": "from pack.sets import *",
    "uses_file.py": "import pack.tools.early",
    "uses_others.py": "import numpy\nfrom torch import nn",
}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        place = tmp_path / "pack" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n", encoding="utf-8")
    return tmp_path / "pack"


def digest(root: Path, module: str) -> str:
    """The hash of a module of the package in ``root``, or of one beside it."""
    return Sources(in_packages(*(place for place in root.parent.iterdir() if place.is_dir()))).digest(module)


def touches(root: Path, module: str, file: str) -> bool:
    """Whether a new program in a file changes the hash of a module."""
    before, place = digest(root, module), root / file
    text = place.read_text(encoding="utf-8")
    place.write_text(f"{text}\nprint('edited')\n", encoding="utf-8")
    after = digest(root, module)
    place.write_text(text, encoding="utf-8")
    assert digest(root, module) == before
    return after != before


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("uses_ball", {"sets/ball.py", "sets/base.py"}),
        ("uses_box", {"sets/box.py", "sets/base.py", "tools/late.py"}),
        ("uses_attribute", {"sets/ball.py", "sets/base.py"}),
        ("uses_alias", {"sets/box.py", "sets/base.py", "tools/late.py"}),
        ("uses_registry", {"sets/ball.py", "sets/box.py", "sets/base.py", "tools/late.py"}),
        ("uses_number", set()),
        ("uses_package", {"sets/ball.py", "sets/box.py", "sets/base.py", "tools/late.py"}),
        ("uses_star", {"sets/ball.py", "sets/box.py", "sets/base.py", "tools/late.py"}),
        ("uses_file", {"tools/early.py"}),
        ("uses_others", set()),
    ],
)
def test_a_module_depends_on_the_files_that_define_what_it_imports(pack: Path, module: str, used: set[str]) -> None:
    files = {name for name in FILES if not name.endswith("__init__.py") and not name.startswith("uses")}
    assert {file for file in files if touches(pack, f"pack.{module}", file)} == used
    assert touches(pack, f"pack.{module}", f"{module}.py")


def test_a_name_defined_at_the_front_door_counts_by_its_statement(pack: Path) -> None:
    door = pack / "sets" / "__init__.py"
    text = door.read_text(encoding="utf-8")
    before = {name: digest(pack, f"pack.uses_{name}") for name in ("ball", "number", "registry")}
    door.write_text(text.replace("LIMIT = 3", "LIMIT = 4"), encoding="utf-8")
    changed = {name for name in before if digest(pack, f"pack.uses_{name}") != before[name]}
    assert changed == {"number"}
    door.write_text(text.replace("'box': Box", "'Box': Box"), encoding="utf-8")
    changed = {name for name in before if digest(pack, f"pack.uses_{name}") != before[name]}
    assert changed == {"registry"}


def test_what_runs_on_the_way_in_counts(pack: Path) -> None:
    assert touches(pack, "pack.uses_ball", "sets/__init__.py")
    assert touches(pack, "pack.uses_ball", "__init__.py")
    assert not touches(pack, "pack.uses_ball", "tools/__init__.py")


def test_words_and_layout_do_not_count(pack: Path) -> None:
    before, base = digest(pack, "pack.uses_ball"), pack / "sets" / "base.py"
    base.write_text('"""Other."""\n\n# why\nclass Set:\n\n    """Other."""\n\n    size  =  1\n', encoding="utf-8")
    assert digest(pack, "pack.uses_ball") == before
    base.write_text("class Set:\n    size = 2\n", encoding="utf-8")
    assert digest(pack, "pack.uses_ball") != before


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("source")
    for root in ROOTS:
        shutil.copytree(root, home / root.name, ignore=shutil.ignore_patterns("__pycache__"))
    return home / "casal"


def file_of(thing: object) -> str:
    """Seen from the folder of casal."""
    path = Path(inspect.getfile(thing))  # type: ignore[arg-type]
    (root,) = (root for root in ROOTS if path.is_relative_to(root))
    return f"../{root.name}/{path.relative_to(root).as_posix()}"


@pytest.mark.parametrize(
    ("thing", "counts"),
    [
        (casal.Sphere, True),
        (casal.WeightedCASAL, True),
        (casal.sample, True),
        (casal.Constraint, True),
        (casal.Obstacles, False),
        (casal.LinearDynamics, False),
        (casal.ddpm, False),
        (cache.save, False),
    ],
)
def test_the_particle_depends_on_the_sphere_and_not_on_obstacles(
    copied: Path, thing: Callable[..., object], counts: bool
) -> None:
    from casal_lab.cli import experiments

    module = experiments()["particle"].module
    assert touches(copied, module, file_of(thing)) is counts


def test_every_experiment_has_a_digest_of_its_own_and_a_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front door may be read twice: once whole, once name by name."""
    from casal_lab.cli import experiments

    modules = [experiment.module for experiment in experiments().values()]
    read: list[Path] = []
    text_of = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **options: read.append(path) or text_of(path, **options))
    sources = Sources(in_packages(*ROOTS))
    assert len({sources.digest(module) for module in modules}) == len(modules)
    assert max(read.count(path) - (path.name == "__init__.py") for path in set(read)) == 1
    once = len(read)
    assert len({sources.digest(module) for module in modules}) == len(modules)
    assert len(read) == once


def test_pictures_and_the_page_do_not_ask_for_a_new_run() -> None:
    from casal_lab.cli import experiments

    for experiment in experiments().values():
        used = cache._library().used_by(experiment.module)
        modules = {part.module for part, code in used.items() if code}
        assert len(modules) > 5
        assert not [m for m in modules if m.startswith("casal_lab.report") or "figures" in m.split(".")]


def test_an_experiment_from_elsewhere_is_followed_too(pack: Path) -> None:
    """Through its package, into the library, and into modules beside it; not into what else is installed."""
    (pack.parent / "beside.py").write_text("x = 1\n", encoding="utf-8")
    place = pack / "uses_casal.py"
    place.write_text("import beside, torch\nfrom casal import Sphere\nfrom pack.sets import Box\n", encoding="utf-8")
    found = cache._outside("pack.uses_casal", place).used_by("pack.uses_casal")
    used = {part.module for part, code in found.items() if code}
    assert {"beside", "pack.uses_casal", "pack.sets.box", "pack.tools.late", casal.Sphere.__module__} <= used
    assert casal.Obstacles.__module__ not in used
    site = pack.parent.rename(pack.parent.with_name("site-packages"))
    found = cache._outside("pack.uses_casal", site / "pack" / "uses_casal.py").used_by("pack.uses_casal")
    assert used - {part.module for part, code in found.items() if code} == {"beside"}


def test_without_a_file_nothing_is_ever_current() -> None:
    first = cache.source_digest("no_such_module")
    cache.source_digest.cache_clear()
    assert cache.source_digest("no_such_module") != first
