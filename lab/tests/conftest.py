"""What the tests of experiments share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's cache is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
