"""The docs are true: tables name what the registries hold, files that are named exist, examples run."""

from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import casal
from casal.constraints import SETS
from casal.decoders import DECODERS
from casal.methods import METHODS
from casal.targets import TARGETS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "casal"
LAB = ROOT / "lab" / "src" / "casal_lab"
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def table(page: str, *head: str) -> list[list[str]]:
    """The rows of the only table of a page whose first columns have these heads."""
    found = [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
        for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    ]
    tables = [rows for rows in found if tuple(rows[0][: len(head)]) == head]
    assert len(tables) == 1, f"{len(tables)} tables with the columns {head}"
    return tables[0][2:]


def names(cell: str) -> list[str]:
    """The names in backticks, without arguments: ``Box(...)`` is Box."""
    return [re.match(r"[\w.]+", code)[0] for code in re.findall(r"`([^`]+)`", cell) if code[0].isalpha()]  # type: ignore[index]


def file_of(kind: type) -> str:
    """The file of a class of the package, as tables write it."""
    return f"`{kind.__module__.removeprefix('casal.').replace('.', '/')}.py`"


# ---------------------------------------------------------------------------------------------- registries


def test_the_table_of_promises_is_that_of_the_registry() -> None:
    told = {row[0]: row[1:] for row in table(text("methods.md"), "name", "runs on")}
    word = {True: "yes", False: "no"}
    right = {
        name: [entry.runs_on, word[entry.example.strict], word[entry.example.promises_distribution]]
        for name, entry in METHODS.items()
    }
    assert told == right
    assert list(told) == list(METHODS)


def test_every_method_has_its_call_and_its_file() -> None:
    rows = table(text("methods.md"), "name", "call")
    assert [row[0] for row in rows] == list(METHODS)
    for name, call, _, file in rows:
        kind: Any = type(METHODS[name].example)
        assert names(call)[0].split(".")[0] == kind.__name__
        maker = casal
        for part in names(call)[0].split("."):
            maker = getattr(maker, part)
        assert callable(maker)
        assert file == file_of(kind)


def test_every_set_stands_once_in_the_tables_with_its_file() -> None:
    page = text("sets.md")
    rows = [(row[0], row[3]) for row in table(page, "set", "definition")]
    rows += [(row[1], row[3]) for row in table(page, "expression", "class")]
    told = {name: file for cell, file in rows for name in names(cell)}
    assert sum(len(names(cell)) for cell, _ in rows) == len(told)
    own = {name: kind for name, kind in SETS.items() if kind.__module__.startswith("casal.")}
    assert set(told) == set(own)
    for name, file in told.items():
        assert file == file_of(own[name]), name


def test_the_table_of_parameters_for_each_chain_is_that_of_the_sets() -> None:
    told = {name: names(row[1]) for row in table(text("sets.md"), "set", "for each chain") for name in names(row[0])}
    own = {name: kind for name, kind in SETS.items() if kind.__module__.startswith("casal.")}
    assert told == {name: list(kind.per_chain) for name, kind in own.items() if kind.per_chain}


def test_every_model_family_and_decoder_is_in_the_tables() -> None:
    page = text("models.md")
    families = {name for row in table(page, "family", "`a`") for name in names(row[0])}
    assert families - {"prediction"} == set(TARGETS)
    decoders = {name for row in table(page, "decoder", "map") for name in names(row[0])}
    assert decoders == set(DECODERS)


def test_the_reference_has_every_public_name() -> None:
    page = set(re.findall(r"^::: casal\.(\w+)$", text("api.md"), re.MULTILINE))
    modules = {name for name in casal.__all__ if isinstance(getattr(casal, name), types.ModuleType)}
    assert page >= {*casal.__all__, *casal.BRIDGES} - modules - {"__version__"}
    assert page - modules <= {*casal.__all__, *casal.BRIDGES}


# ---------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    code = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    paths = [name for name in code if re.fullmatch(r"[\w./-]+\.py|[\w./-]+/|[\w./-]+/[\w-]+\.(md|txt)", name)]
    folders = [PACKAGE, ROOT, *(folder for top in (PACKAGE, LAB) for folder in top.rglob("*") if folder.is_dir()), LAB]
    for name in paths:
        # A bare name such as `loop.py` may be in any package; a path is seen from the library or from the repository.
        places = folders if "/" not in name.rstrip("/") else [PACKAGE, ROOT, LAB.parent]
        assert any((place / name).exists() for place in places), f"{page.name} names {name}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and code hosts make them."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md")], ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_somewhere(page: Path) -> None:
    """Pages of the site are checked by ``mkdocs build --strict`` (``make docs``)."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if not re.match(r"\w+:", link):
            assert (ROOT / path).exists(), link
            assert not anchor or anchor in anchors(ROOT / path if path else page), link


def test_strict_means_that_links_are_checked() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for kind in ("omitted_files", "absolute_links", "unrecognized_links", "anchors"):
        assert f"  {kind}: warn" in settings
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(menu) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_every_command_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


# ---------------------------------------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "tools" / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_lead_to_the_reference(hooks: Any) -> None:
    anchors = {"casal.Sphere", "casal.energy", "casal.SampleResult", "casal.SampleResult.expect", "casal.Certificate"}
    for code, place in {
        "casal.Sphere": "casal.Sphere",
        "Sphere(radius=2.0)": "casal.Sphere",
        "casal.energy": "casal.energy",
        "energy(f, steps=10)": "casal.energy",
        "energy": None,  # an argument of a set
        "result.expect(f)": "casal.SampleResult.expect",
        "result.samples": "casal.SampleResult",
        "result.certificate.violation": "casal.Certificate",
        "casal.Nothing": None,
        "Sphere(1.0) & Box(0, 1)": None,
    }.items():
        assert hooks.anchor(code, anchors) == place, code


def test_the_first_mention_of_a_name_in_a_section_is_a_link(hooks: Any) -> None:
    name, link = "<code>Sphere</code>", '<autoref identifier="casal.Sphere"><code>Sphere</code></autoref>'
    page = "<p>{0} {1}</p><pre>{1}</pre><h2>{1}</h2><h3>{1}</h3><a>{1}</a><td>{0}</td>"
    assert hooks.linked(page.format(name, name), {"casal.Sphere"}) == page.format(link, name)


def test_the_citation_is_that_of_the_file(hooks: Any) -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entries = " ".join(hooks.bibtex(citation).split())
    paper = citation["preferred-citation"]
    for told in (
        paper["title"],
        str(paper["year"]),
        citation["title"],
        *(one["family-names"] for one in paper["authors"]),
    ):
        assert told in entries
    assert citation["version"] == casal.__version__
    assert entries.count("{") == entries.count("}")
    assert max(map(len, hooks.bibtex(citation).splitlines())) <= 80


def too_long(page: Path) -> list[str]:
    """Lines of the code blocks of a page that do not fit into the 80 columns that the site shows."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if len(line) > 80]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_has_at_most_80_columns(page: Path) -> None:
    assert too_long(page) == []


# ---------------------------------------------------------------------------------------------- examples


def test_the_examples_of_sets_run() -> None:
    known: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text("sets.md"), re.DOTALL)
    for block in blocks:
        if "casal.sample(target, constraint" in block:  # the model and the set of the block before last
            known |= {"constraint": known["fields"], "method": casal.CASAL(rho=20.0), "n": 256}
        exec(block, known)
    result = known["result"]
    assert float(known["upper"].violation(known["z"]).max()) < 1e-10
    assert bool(result.certificate.feasible.all())
    assert torch.allclose(result.samples.sum(1), known["M"].double(), atol=1e-10)
    assert torch.allclose(result.samples.square().sum(1), known["E"].double(), atol=1e-10)


def test_the_first_steps_run_and_print_what_the_page_says() -> None:
    known: dict[str, Any] = {"print": lambda *values: shown.append(" ".join(map(str, values)))}
    shown: list[str] = []
    for block in re.findall(r"```python\n(.*?)```", text("start.md"), re.DOTALL):
        exec(block, known)
    first, mean, projected = shown
    page = " ".join(text("start.md").split())  # the page wraps what is printed
    for line in first.splitlines()[:-1]:
        assert " ".join(line.split()) in page
    assert f"{mean};" in page and f"# {projected}" in page and projected.endswith("(distribution not promised)")
