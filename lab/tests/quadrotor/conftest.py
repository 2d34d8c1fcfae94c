"""What the tests of the quadrotor share: a model that is trained for a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from casal_lab.quadrotor.setup import Prior, Training, _prior, prior

BRIEF = Training(3)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's cache is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    _prior.cache_clear()


@pytest.fixture(scope="session")
def brief(cache: None) -> Prior:
    """The tilting vehicle's model after three epochs."""
    return prior("tilting", BRIEF)
