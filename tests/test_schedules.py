"""Schedules against NumPy, at their ends, and the checks of ``evaluate``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import casal
from casal.errors import SettingError
from casal.methods.casal import couplings
from casal.schedules import evaluate

ends = st.floats(1e-6, 1e6)
lengths = st.integers(2, 300)


@given(value=st.floats(-1e6, 1e6), steps=st.integers(1, 300))
def test_constant_repeats_its_value(value: float, steps: int) -> None:
    values = casal.constant(value)(range(steps))
    assert values.dtype == torch.float64
    assert values.tolist() == [value] * steps


@given(first=st.floats(-1e6, 1e6), last=st.floats(-1e6, 1e6), steps=lengths)
def test_linear_takes_equal_steps(first: float, last: float, steps: int) -> None:
    values = casal.linear(first, last)(range(steps)).numpy()
    scale = max(abs(first), abs(last), 1e-300)
    np.testing.assert_allclose(values, np.linspace(first, last, steps), rtol=0, atol=1e-14 * scale)
    assert values[0] == first and values[-1] == last


@given(first=ends, last=ends, steps=lengths)
def test_geometric_takes_equal_ratios(first: float, last: float, steps: int) -> None:
    values = casal.geometric(first, last)(range(steps)).numpy()
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, np.geomspace(first, last, steps), rtol=1e-12)
    np.testing.assert_allclose(values[1:] / values[:-1], (last / first) ** (1 / (steps - 1)), rtol=1e-12)
    assert values[0] == first and values[-1] == last
    assert bool((np.diff(values) >= 0).all()) if last >= first else bool((np.diff(values) <= 0).all())


def test_all_schedules_read_a_run_of_one_step_alike() -> None:
    assert casal.linear(2.0, 20.0)(range(1)).tolist() == casal.geometric(2.0, 20.0)(range(1)).tolist()


@pytest.mark.parametrize(("first", "last"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 2.0), (3.0, -2.0)])
def test_geometric_needs_positive_ends(first: float, last: float) -> None:
    with pytest.raises(SettingError, match=f"positive ends, got {first} and {last}"):
        casal.geometric(first, last)


def test_schedules_read_only_the_length_of_a_table() -> None:
    target = casal.langevin(lambda x: x, steps=4, step_size=0.1, init=torch.zeros(1, 1))
    assert torch.equal(casal.linear(1.0, 4.0)(target.table), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))


# ------------------------------------------------------------------ evaluate


def test_evaluate_takes_numbers_schedules_and_any_callable() -> None:
    table = range(3)
    assert evaluate(2, table, "rho").tolist() == [2.0, 2.0, 2.0]
    assert evaluate(casal.linear(1.0, 2.0), table, "rho").tolist() == [1.0, 1.5, 2.0]
    assert evaluate(lambda t: [1.0, 4.0, 9.0][: len(t)], table, "rho").tolist() == [1.0, 4.0, 9.0]  # type: ignore[arg-type]
    wide = evaluate(lambda t: torch.ones(3, dtype=torch.float32), table, "rho")
    assert wide.dtype == torch.float64


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0.0, "rho must be finite and > 0; it is 0 at step 0"),
        (-2.0, "it is -2 at step 0"),
        (math.nan, "it is nan at step 0"),
        (math.inf, "it is inf at step 0"),
        (casal.linear(4.0, -4.0), "it is 0 at step 2"),
        (lambda table: torch.tensor([1.0, 2.0, math.nan, 4.0, -1.0]), "it is nan at step 2"),
        (lambda table: torch.ones(4), r"rho gave shape \(4,\) for 5 steps"),
        (lambda table: torch.ones(5, 1), r"rho gave shape \(5, 1\) for 5 steps"),
        (lambda table: torch.tensor(1.0), r"rho gave shape \(\) for 5 steps"),
    ],
)
def test_evaluate_names_the_value_and_the_step(value: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        evaluate(value, range(5), "rho")


def test_zero_is_allowed_where_it_means_off() -> None:
    assert evaluate(casal.linear(0.0, 2.0), range(3), "weight", positive=False).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(SettingError, match="weight must be finite and >= 0; it is -1 at step 2"):
        evaluate(casal.linear(1.0, -1.0), range(3), "weight", positive=False)


# ------------------------------------------------------------------ schedules reach the steps they are meant for


def test_methods_see_the_schedule_step_by_step() -> None:
    """A penalty whose weight is on at a single step moves x there only, by exactly its gradient."""
    start = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    tau = torch.tensor([1e-300, 1e-300, 0.01, 1e-300], dtype=torch.float64)
    target = casal.langevin(torch.zeros_like, steps=4, step_size=tau, init=start)
    on = casal.Penalty(lambda table: torch.tensor([7.0, 7.0, 3.0, 7.0]))
    off = casal.Penalty(lambda table: torch.tensor([7.0, 7.0, 0.0, 7.0]))
    line = casal.Affine([[1.0, 0.0]], 0.5)
    difference = casal.sample(target, line, on, 1).samples - casal.sample(target, line, off, 1).samples
    assert difference[0].tolist() == pytest.approx([-0.01 * 3.0 * 2 * (2.0 - 0.5), 0.0], abs=1e-14)


@pytest.mark.parametrize("variant", ["algorithm1", "algorithm2", "released", "CASAL"])
def test_constant_gain_divides_by_the_step_that_multiplies_rho(variant: str) -> None:
    betas = torch.linspace(1e-4, 0.2, 20, dtype=torch.float64)
    table = casal.ddpm(lambda x, t: x, betas, shape=(2,)).table
    rho = casal.constant_gain(0.7)
    made = {
        "algorithm1": casal.CASAL.algorithm1(rho),
        "algorithm2": casal.CASAL.algorithm2(rho),
        "released": casal.CASAL.released(rho, 1.0),
        "CASAL": casal.CASAL(rho),
    }[variant]
    step = table.b if variant == "CASAL" else table.s.square() / 2
    values = couplings(made, table)
    torch.testing.assert_close((values * step)[:-1], torch.full_like(step[:-1], 0.7), rtol=1e-12, atol=0)
    assert bool(torch.isfinite(values).all())  # the last row of a DDPM has no noise, and the paper's step is zero there
