"""The examples of docs/models.md run as they are written, and every result they name is feasible."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "models.md"


def test_the_examples_run_in_order_and_obey() -> None:
    names: dict[str, Any] = {"results": {}}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(re.sub(r"^result = ", "result = results[len(results)] = ", block, flags=re.MULTILINE), names)
    assert len(names["results"]) == 11
    for result in names["results"].values():
        assert float(result.certificate.violation.max()) < 1e-10
