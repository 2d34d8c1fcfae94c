"""What the site takes from the package at build time: version, citation, and links from names to the reference."""

from __future__ import annotations

import re
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

CITATION = Path(__file__).parents[2] / "CITATION.cff"
REFERENCE = "api.md"
OBJECTS = {"result": "casal.SampleResult", "result.certificate": "casal.Certificate"}
"""Objects that pages call by these names, and their classes."""

_PIECE = re.compile(
    r"<(?P<skip>h[13-6]|a|pre)\b.*?</(?P=skip)>|(?P<section><h2\b.*?</h2>)|<code>(?P<code>[^<]+)</code>", re.DOTALL
)
_NAME = re.compile(r"(?P<name>[A-Za-z_][\w.]*\w)(?P<call>\((?:[^()]|\([^()]*\))*\))?")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The version stands in the header and in the title of every page."""
    config.site_name = f"{config.site_name} {version('casal')}"
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The citation of the page that asks for it."""
    return markdown.replace("{{ citation }}", f"```bibtex\n{bibtex(yaml.safe_load(CITATION.read_text()))}\n```")


def on_env(env: Any, config: MkDocsConfig, files: Files) -> Any:
    """Names in the text of all pages lead to the reference, once all of them are rendered."""
    pages = {file.src_uri: file.page for file in files.documentation_pages() if file.page}
    anchors = set(re.findall(r'id="(casal[\w.]*)"', pages[REFERENCE].content or ""))
    for path, page in pages.items():
        if path != REFERENCE:
            page.content = linked(page.content or "", anchors)
    return env


def anchor(code: str, anchors: set[str]) -> str | None:
    """The place of the reference where a piece of code is explained, if it is a public name or a call of one.

    Words in small letters, such as `energy`, also name arguments: without `casal.` they count only as calls.
    """
    found = _NAME.fullmatch(code)
    if found is None:
        return None
    name: str = found["name"]
    if name in anchors:
        return name
    if f"casal.{name}" in anchors and (found["call"] or name[0].isupper()):
        return f"casal.{name}"
    for owner in sorted(OBJECTS, key=len, reverse=True):
        if name.startswith(f"{owner}."):
            member = OBJECTS[owner] + name.removeprefix(owner)
            return member if member in anchors else OBJECTS[owner]
    return None


def linked(html: str, anchors: set[str]) -> str:
    """A page whose names link to the reference: first mentions in a section, outside headings, links and blocks."""
    seen: set[str] = set()

    def piece(match: re.Match[str]) -> str:
        if match["section"]:
            seen.clear()
        place = anchor(match["code"], anchors) if match["code"] else None
        if place is None or place in seen:
            return match[0]
        seen.add(place)
        return f'<autoref identifier="{place}">{match[0]}</autoref>'

    return _PIECE.sub(piece, html)


def bibtex(citation: dict[str, Any]) -> str:
    """The paper and the software of a citation file, as two entries."""
    paper = citation["preferred-citation"]
    authors = [(one["family-names"], one["given-names"]) for one in paper["authors"]]
    entries = (
        ("inproceedings", f"{authors[0][0].lower()}{paper['year']}", {
            "title": paper["title"],
            "author": " and ".join(map(", ".join, authors)),
            "booktitle": paper["collection-title"],
            "year": paper["year"],
        }),
        ("software", "casal", {
            "title": citation["title"],
            "author": f"{{{citation['authors'][0]['name']}}}",  # braces keep a name that is no person's in one piece
            "version": citation["version"],
        }),
    )  # fmt: skip
    return "\n\n".join(
        "\n".join([f"@{kind}{{{key},", *(_field(*field) for field in fields.items()), "}"])
        for kind, key, fields in entries
    )


def _field(name: str, value: object) -> str:
    """A field in lines of at most 80 columns."""
    head = f"  {name} = {{"
    return textwrap.fill(f"{head}{value}}},", 80, subsequent_indent=" " * len(head), break_on_hyphens=False)
