"""A short part of ``make fuzz`` under a fixed seed, and proof that it would find what it looks for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuzz import definitions as define
from fuzz import sets, specs, stores
from fuzz.__main__ import main
from fuzz.definitions import Grant, judge, wide
from fuzz.making import scene
from fuzz.report import Failure, Report
from torch import Tensor

from casal.constraints import Box, constraint_from_spec

SEED = 0
SETS = 160
SPECS = 200
STORES = (2, 10, 14, 25, 33)  # files of a finished store; kills take seconds and are left to ``make fuzz``


def test_sets_with_closed_forms() -> None:
    report = Report()
    for number in range(SETS):
        trial = sets.Trial(SEED, number)
        if trial.closed_form:
            report.add(trial.run())
    assert report.tried["sets"]["trials"] > 50
    assert not report.failures, report.text()


def test_damaged_specs() -> None:
    report = Report()
    for spec in specs.SEEDS:
        assert repr(constraint_from_spec(spec))
    for number in range(SPECS):
        report.add(specs.trial(SEED, number))
    assert report.tried["specs"]["accepted"] > 10 and report.tried["specs"]["refused"] > 100
    assert not report.failures, report.text()


def test_an_error_while_reading_a_spec_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "constraint_from_spec", {}.__getitem__)
    checks = [failure.check for number in range(5) for failure in specs.trial(SEED, number).failures]
    assert len(checks) == 5 and set(checks) <= {"raises KeyError", "raises TypeError"}


def test_damaged_stores() -> None:
    report = Report()
    for number in STORES:
        report.add(stores.trial(SEED, number))
    assert report.tried["stores"]["damaged"] == len(STORES)
    assert not report.failures, report.text()


@pytest.mark.parametrize("number", range(3))
def test_a_set_holds_the_point_it_was_made_for(number: int) -> None:
    for case in range(100):
        made, place, _ = scene(np.random.default_rng([7, number, case]), sets.CHAINS)
        assert float(judge(made.truth, place.anchor, Grant(0.0, 2.0**-46)).score.max()) <= 1, made.text


def test_definitions_measure_each_row_in_its_own_unit() -> None:
    box = define.bounds("Box", wide([0.0, 0.0]), wide([1.0, 1e10]))
    points = np.array([[0.5, 5e9], [6.0, 1e10], [1.0 + 1e-9, 1e10 + 1.0], [-1e-6, 0.0]])
    score = judge(box, points, sets.PROMISED).score
    assert (score <= 1).tolist() == [True, False, True, False]
    # Through a matrix, the terms are those of the product: rounding of 1e10 is no violation of a small bound.
    seen = define.Seen(define.bounds("Box", wide([0.0]), wide([np.inf])), wide([[1.0, -1.0]]))
    assert (judge(seen, np.array([[1e10, 1e10 + 1e-6], [1.0, 1.1]]), sets.ROUNDED).score <= 1).tolist() == [True, False]
    # A union is as far off as the nearest of its members.
    either = define.Either([box, define.shell("Sphere", wide(3.0), wide([0.0, 0.0]), solid=False)])
    assert (judge(either, np.array([[3.0, 0.0], [0.5, 0.5], [4.0, 0.0]]), sets.PROMISED).score <= 1).tolist() == [
        True,
        True,
        False,
    ]


def test_the_exponential_is_that_of_torch() -> None:
    matrix = np.random.default_rng(0).normal(size=(4, 4)) * 3.0
    expected = torch.linalg.matrix_exp(torch.from_numpy(matrix)).numpy()
    assert np.allclose(define.exponential(wide(matrix)).astype(float), expected, rtol=1e-12, atol=1e-10)


def test_a_violation_relative_to_the_largest_coordinate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def relative_to_the_largest(self: Box, z: Tensor) -> Tensor:
        low, high = (side.to(z).expand_as(z) for side in (self.low, self.high))
        excess = torch.maximum(low - z, z - high).clamp_min(0.0).flatten(1).amax(1)
        return excess / (1.0 + z.abs().flatten(1).amax(1))

    monkeypatch.setattr(Box, "violation", relative_to_the_largest)
    numbers = [n for n in range(200) if sets.Trial(SEED, n).scene.made.kinds == ("Box",)]
    found = Report()
    for number in numbers:
        found.add(sets.trial(SEED, number))
    assert any(failure.check == "certified off the set" for failure in found.failures)


def test_the_report_shows_counts_and_the_shortest_example() -> None:
    report = Report()
    report.count("set", "Box", "Box", "Ball")
    report.failures += [
        Failure("check", "Box", "long", "a long line", "x"),
        Failure("check", "Box", "short", "line", "y"),
    ]
    text = report.text()
    assert "set: Box 2, Ball 1" in text and "2 x check, Box\n  short\n  line\n  y" in text


def test_one_trial_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--only", "sets", "--trial", "13", "--minutes", "1"])
    out = capsys.readouterr().out
    assert "trials 1" in out and (code == 0) == ("failures: 0" in out)
    with pytest.raises(SystemExit):
        main(["--only", "nope"])
    assert "there is no part nope" in capsys.readouterr().err
