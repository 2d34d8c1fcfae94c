"""The console script and ``python -m casal``: the command line, or a sentence that says what is missing for it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from casal.errors import missing_extra

LAB = ("jinja2", "matplotlib", "rich", "safetensors", "scipy", "typer")
"""What the extra ``lab`` brings; the library itself needs torch and numpy only."""


def _missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ImportError:
        return True


def main() -> None:
    """Run the command line."""
    if missing := [name for name in LAB if _missing(name)]:
        sys.exit(missing_extra("the command line", "lab", ", ".join(missing)))
    from casal_lab.cli import app

    app(prog_name="casal")


if __name__ == "__main__":
    main()
