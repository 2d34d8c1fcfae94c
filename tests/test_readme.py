"""The example of the README runs as it is written, and does what the text beside it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def test_the_examples_run_and_keep_their_promises() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for code, most in zip(blocks, (5, 15, 15), strict=True):
        assert len([line for line in code.splitlines() if line.strip()]) <= most
        exec(code, names)
        names.setdefault("first", names["result"])
    first, result, given = names["first"], names["result"], names["given"]
    assert first.samples.shape == (1000, 2)
    for strict in (first, result, given):
        assert bool(strict.certificate.feasible.all())
        assert float(strict.certificate.violation.max()) < 1e-12
    assert int((result.samples[:, 0] > 0).sum()) == 0
    assert abs(float(given.samples[:, 1].mean()) - 0.80) < 0.04
    assert abs(float(given.samples[:, 1].std()) - 0.60) < 0.04


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
