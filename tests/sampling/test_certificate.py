"""The certificate: worst row, what it misses, tolerances and units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal.sampling.certificate import certify

WIDE = torch.float64
STATE = torch.tensor([1e5, 1e-6, 1e-6], dtype=WIDE)
CONCENTRATIONS = casal.Polytope([[0.0, 1.0, 1.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]], [1e-6, 0.0, 0.0])


def start(n: int, generator: torch.Generator) -> Tensor:
    return STATE * (1.0 + torch.randn((n, 3), generator=generator, dtype=WIDE))


def target() -> casal.Target:
    """N(STATE, STATE^2), in mixed units."""
    return casal.langevin(
        lambda x: (x - STATE) / STATE.square(), steps=20, step_size=0.1, init=start, preconditioner=STATE.square()
    )


def test_unconstrained_states_in_mixed_units_are_not_certified() -> None:
    result = casal.sample(target(), CONCENTRATIONS, casal.Unconstrained(), 500)
    z = result.samples
    holds = (z[:, 1] + z[:, 2] <= 1e-6) & (z[:, 1] >= 0) & (z[:, 2] >= 0)
    assert torch.equal(result.certificate.feasible, holds) and 0 < int(holds.sum()) < 150


def test_constrained_states_are_certified_row_by_row() -> None:
    result = casal.sample(target(), CONCENTRATIONS, casal.Projected(), 300)
    assert bool(result.certificate.feasible.all())
    assert float((result.samples[:, 1] + result.samples[:, 2]).max()) <= 1e-6 * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_positive_images_are_certified_for_every_seed(seed: int) -> None:
    """The rounding of A x is no violation of A x >= 0."""
    rows = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=WIDE))[0].T
    positive = casal.Box(0.0, float("inf")).through(rows)
    gaussian = casal.langevin(lambda x: x, steps=20, step_size=0.1, init=casal.GaussianStart(6, dtype=WIDE))
    result = casal.sample(gaussian, positive, casal.CASAL(10.0), 50, seed=seed, check=False)
    assert bool(result.certificate.feasible.all()) and float((result.samples @ rows.T).min()) >= -1e-14


def test_the_worst_row_is_named_with_what_it_misses() -> None:
    z = torch.tensor([[1e5, 5e-7, 5e-7], [1e5, 1e-6, 3e-6], [1e5, 5e-7, -1e-9]], dtype=WIDE)
    found = certify(CONCENTRATIONS, z, 1e-8)
    assert found.feasible.tolist() == [True, False, False]
    assert found.row.tolist()[1:] == [0, 2] and found.worst == "inequality 2 of G z <= h"
    torch.testing.assert_close(found.excess[1:], torch.tensor([3e-6, 1e-9], dtype=WIDE), rtol=1e-9, atol=0)
    assert "1 of 3 feasible; worst: " in str(found) and f"{found.worst}, off by 1e-09" in str(found)


@pytest.mark.parametrize(
    ("tol", "units", "feasible"),
    [
        (1e-8, None, [False, False]),
        (1e-8, 1.0, [False, True]),  # absolute, in the unit of the set
        (1e-2, 1e-6, [False, True]),
        ([1e-5, 1e-8, 1e-8], None, [True, True]),
        ([1e-5, 1e-8, 1e-10], None, [True, False]),
        (torch.tensor([1.0, 1.0, 1e-4]), [1e-5, 1e-6, 1e-6], [True, False]),
    ],
)
def test_tolerances_and_units(tol: Any, units: Any, feasible: list[bool]) -> None:
    z = torch.tensor([[1e5, 1e-6, 3e-6], [1e5, 5e-7, -1e-9]], dtype=WIDE)
    assert certify(CONCENTRATIONS, z, tol, units).feasible.tolist() == feasible


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tol": -1.0}, SettingError, "tol must be >= 0"),
        ({"tol": float("nan")}, SettingError, "tol must be >= 0"),
        ({"tol": [1e-8, -1.0, 0.0]}, SettingError, "tol must be >= 0"),
        ({"units": 0.0}, SettingError, "units must be > 0"),
        ({"tol": "tight"}, SettingError, "tol must be a number"),
        ({"tol": [1e-8, 1e-8]}, ShapeError, r"2 tolerances or units for a set of 3 components \(inequality 0"),
    ],
)
def test_wrong_tolerances_are_refused_before_the_run(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        casal.sample(target(), CONCENTRATIONS, casal.Projected(), 5, **options)


def test_a_store_keeps_rows_and_units(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tol": [1e-9, 1e-12, 1e-12]}
    result = casal.sample(
        target(), CONCENTRATIONS, casal.Projected(), 40, run=casal.Run(store=tmp_path / "run.zarr"), **settings
    )
    result.save(tmp_path / "saved.zarr")
    for name in ("run", "saved"):
        again = casal.load(tmp_path / f"{name}.zarr").certificate
        assert torch.equal(again.violation, result.certificate.violation) and again.tolerance == 1.0
        assert torch.equal(again.row, result.certificate.row) and torch.equal(again.excess, result.certificate.excess)
        assert again.units is not None and again.units.tolist() == settings["tol"] and again.note == ""
