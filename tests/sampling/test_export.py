"""The table of a result against numbers worked out by other means; results in the containers of xarray and ArviZ."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal.errors import MissingExtraError, SettingError, ShapeError, StoreError
from casal.methods.population import student_quantile
from casal.sampling.export import quantiles

from .runs import run


def radius(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z, dim=1)


def test_a_run_without_weights_has_the_plain_numbers() -> None:
    result = run("casal")
    table, z = result.summary(), result.samples.numpy()
    assert table.names == ("z[0]", "z[1]", "z[2]") and list(table.columns) == ["mean", "error", "sd", "5 %", "95 %"]
    for name, right in (
        ("mean", z.mean(0)),
        ("error", z.std(0, ddof=1) / len(z) ** 0.5 * student_quantile(0.05, len(z) - 1.0) / 1.96),
        ("sd", z.std(0, ddof=1)),
        ("5 %", np.quantile(z, 0.05, axis=0, method="inverted_cdf")),
        ("95 %", np.quantile(z, 0.95, axis=0, method="inverted_cdf")),
    ):
        np.testing.assert_allclose(table[name].numpy(), right, rtol=1e-12)


def test_errors_are_those_of_expect() -> None:
    result = run("weighted")
    table, estimate = result.summary({"r": radius, "z": lambda z: z}), result.expect(lambda z: z)
    assert table.names == ("r", "z[0]", "z[1]", "z[2]")
    assert torch.equal(table["mean"][1:], estimate.value) and torch.equal(table["error"][1:], estimate.standard_error)
    assert "R-hat" not in table.columns


def test_quantiles_of_weights_are_those_of_copies() -> None:
    values = torch.tensor([[0.3], [-1.0], [2.0], [0.7]], dtype=torch.float64)
    copies = torch.tensor([1, 4, 2, 3])
    shares = (0.05, 0.4, 0.41, 0.5, 0.8, 0.95, 1.0)
    right = np.quantile(values.repeat_interleave(copies, 0).numpy(), shares, axis=0, method="inverted_cdf")
    assert quantiles(values, copies / 10.0, shares).tolist() == right.tolist()


def test_draws_of_independent_chains_bring_r_hat() -> None:
    table = run("final projection", snapshots=4, record_every=0).summary([radius])
    assert {"R-hat", "ESS"} <= set(table.columns) and "draws of each of 90 chains" in str(table)
    for name in ("casal", "weighted", "split"):  # a coupling that rises, chains that exchange, a diffusion
        assert "R-hat" not in run(name, snapshots=4).summary().columns


def test_the_table_is_short_and_escaped() -> None:
    text = str(run("casal").summary({"<b>": lambda z: z.repeat(1, 50)}))
    assert len(text.splitlines()) == 22 and "..." in text
    html = run("casal").summary({"<b>": radius})._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html


def test_functions_that_do_not_fit_are_named() -> None:
    result = run("casal")
    with pytest.raises(ShapeError, match=r"total must return a tensor \(90,\)"):
        result.summary({"total": lambda z: z.sum()})
    with pytest.raises(SettingError, match="give lambdas as a mapping"):
        result.summary([lambda z: z[:, 0]])
    for wrong in ({}, "mean", 3):
        with pytest.raises(SettingError, match="functions by name"):
            result.summary(wrong)
    with pytest.raises(KeyError, match="there are mean, error"):
        result.summary()["median"]


def test_one_ancestor_has_no_error() -> None:
    """A copy is no second observation: an error of zero would be a lie."""
    result = run("weighted")
    one = replace(result, state=result.state._replace(ancestor=torch.zeros(90, dtype=torch.long)))
    assert bool(one.summary()["error"].isnan().all()) and bool(one.expect(radius).standard_error.isnan())
    assert bool(one.summary()["mean"].isfinite().all())


def test_it_is_exported() -> None:
    assert casal.Summary is type(run("casal").summary())


# ------------------------------------------------------------------------------------------- xarray and ArviZ


@pytest.mark.parametrize("name", ["casal", "weighted"])
def test_a_tree_in_memory_is_that_of_the_store(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr"), pytest.importorskip("xarray")
    result = run(name, snapshots=10)
    result.save(tmp_path / "run.zarr")
    tree, stored = result.to_xarray(), casal.store.open_tree(tmp_path / "run.zarr")
    for group in ("posterior", "sample_stats", "state", "snapshots"):
        assert tree[group].to_dataset().equals(stored[group].to_dataset())
    assert tree["posterior/samples"].dims == ("chain", "draw", "event_0")
    assert tree["snapshots"].attrs["steps"] == [10, 20, 30, 40] if name == "casal" else True
    assert tree["provenance"].attrs["seed"] == 3


def test_recorded_draws_become_chains_and_draws_in_arviz() -> None:
    pytest.importorskip("arviz"), pytest.importorskip("xarray")
    result = run("final projection", snapshots=2)
    data = result.to_arviz()
    assert data.posterior["samples"].shape == (90, 10, 3)
    np.testing.assert_array_equal(data.posterior["samples"].values[:, -1], result.samples.numpy())
    assert float(data.sample_stats["violation"].max()) < 1e-14
    assert "10 draws along each of 90" in data.posterior.attrs["note"]


def test_weighted_samples_are_resampled_for_arviz_and_it_says_so() -> None:
    pytest.importorskip("arviz"), pytest.importorskip("xarray")
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
