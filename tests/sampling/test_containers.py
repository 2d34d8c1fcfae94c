"""Results in the containers of xarray and ArviZ: the same numbers under the names of a store."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import casal
from casal.errors import MissingExtraError, StoreError

from .runs import run

xarray = pytest.importorskip("xarray")


@pytest.mark.parametrize("name", ["casal", "weighted"])
def test_a_tree_in_memory_is_that_of_the_store(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    result = run(name, snapshots=10)
    result.save(tmp_path / "run.zarr")
    tree, stored = result.to_xarray(), casal.store.open_tree(tmp_path / "run.zarr")
    for group in ("posterior", "sample_stats", "state", "snapshots"):
        assert tree[group].to_dataset().equals(stored[group].to_dataset())
    assert tree["posterior/samples"].dims == ("chain", "draw", "event_0")
    assert tree["snapshots"].attrs["steps"] == [10, 20, 30, 40] if name == "casal" else True
    assert tree["provenance"].attrs["seed"] == 3


def test_recorded_draws_become_chains_and_draws_in_arviz() -> None:
    pytest.importorskip("arviz")
    result = run("final projection", snapshots=2)
    data = result.to_arviz()
    assert data.posterior["samples"].shape == (90, 10, 3)
    np.testing.assert_array_equal(data.posterior["samples"].values[:, -1], result.samples.numpy())
    assert float(data.sample_stats["violation"].max()) < 1e-14
    assert "10 draws along each of 90" in data.posterior.attrs["note"]


def test_weighted_samples_are_resampled_for_arviz_and_it_says_so() -> None:
    pytest.importorskip("arviz")
    result = run("weighted")
    even = result.to_arviz().posterior
    assert even["samples"].shape == (1, 90, 3) and "one chain" in even.attrs["note"]
    log_weight = torch.where(result.samples[:, 0] > 0, 0.0, -torch.inf).double()
    uneven = replace(result, state=result.state._replace(log_weight=log_weight)).to_arviz().posterior
    assert bool((uneven["samples"].values[..., 0] > 0).all()) and "resampled" in uneven.attrs["note"]


def test_without_the_libraries_there_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("casal")
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(MissingExtraError, match=r"casal\[arviz\]"):
        result.to_arviz()
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(StoreError, match=r"casal\[store\]"):
        result.to_xarray()
