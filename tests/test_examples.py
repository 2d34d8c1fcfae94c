"""Every example runs, in quick mode, and ends in a picture."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest

from casal.errors import CasalWarning

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
NEEDS = {
    "azula_denoiser": ["azula", "einops"],
    "class_conditional": ["diffusers"],
    "fields_unet": ["diffusers"],
}
LONGEST = 80
"""Lines of an example."""


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ends_in_a_picture(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    for name in NEEDS.get(example.stem, []):
        pytest.importorskip(name)
    matplotlib.use("agg")
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", [str(example), "--quick", "--out", str(picture)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)  # few chains and untrained networks
        runpy.run_path(str(example), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert " feasible" in capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    assert f"python examples/{example.name} [--quick]" in text
