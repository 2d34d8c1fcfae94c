"""The console script and ``python -m casal_lab``: the command line, or a sentence that says what is missing for it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

LAB = ("jinja2", "matplotlib", "rich", "safetensors", "scipy", "typer")
"""What casal-lab needs beside casal (``lab/pyproject.toml``)."""


def _missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ImportError:
        return True


def main() -> None:
    """Run the command line; Ctrl-C while its libraries are imported ends it as later."""
    try:
        _start()
    except KeyboardInterrupt:
        sys.exit(130)


def _start() -> None:
    if missing := [name for name in LAB if _missing(name)]:
        names = ", ".join(missing)
        sys.exit(f"the command line needs {names}: pip install casal-lab, or in a clone pip install -e lab")
    from casal_lab.cli import app

    app(prog_name="casal")


if __name__ == "__main__":
    main()
