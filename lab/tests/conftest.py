"""What the tests of the laboratory share: one thread, Hypothesis without clocks or luck, their own cache, a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Monte Carlo tests are slow."""
    for item in items:
        if item.get_closest_marker("statistical"):
            item.add_marker(pytest.mark.slow)


# Examples are derived from the test itself: a failure comes back on every run and on every machine.
settings.register_profile("casal", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("casal")


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's cache is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()
