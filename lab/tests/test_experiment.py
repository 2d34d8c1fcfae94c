"""What experiments share: errors of shares, verdicts, the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from casal.errors import SettingError
from casal_lab.experiment import Claim, Experiment, Outcome, reached, stamp, verdict
from casal_lab.experiments import EXPERIMENTS, register
from casal_lab.report.tables import claim_groups, outcome_markdown
from casal_lab.study import share


def test_a_share_of_zero_has_an_error() -> None:
    assert share(0, 1000)[0] == 0.0
    assert 0 < share(0, 1000)[1] < 0.005


def test_verdicts() -> None:
    assert [verdict(True, True), verdict(True, False), verdict(False)] == ["reproduced", "partly", "not reproduced"]
    assert [reached(True, True), reached(True, False), reached(False)] == ["met", "partly met", "missed"]


def test_what_the_paper_says_and_what_we_ask_for_stand_in_tables_of_their_own() -> None:
    claims = [Claim("a", "1", "2", "missed"), Claim("b", "1", "1", "reproduced", "table 2", "a 3")]
    published, targets = claim_groups(claims)
    assert (published.title, [claim.text for claim in published.claims]) == ("Published claims", ["b"])
    assert (targets.title, [claim.text for claim in targets.claims]) == ("Our targets", ["a"])
    text = outcome_markdown(Outcome("mine", [], claims), "?")
    assert "| b | table 2 | 1 | 1 | reproduced | a 3 |" in text and "| a | 1 | 2 | missed | - |" in text
    told = Claim("b", "1", "1", "reproduced", "table 2", "a 3", "printed", "1.1", "It is so.")
    text = outcome_markdown(Outcome("mine", [], [told]), "?")
    assert "| b | table 2 | printed | 1 | 1 | 1.1 | reproduced | It is so. | a 3 |" in text


def test_an_experiment_joins_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("casal_lab.experiments.EXPERIMENTS", dict(EXPERIMENTS))
    mine = Experiment("mine", "Does it hold?", ("CASAL",), stamp(lambda quick, labels, tell: Outcome("mine", [])))
    assert register(mine) is mine and register(mine) is mine
    outcome = mine.run(True, None, print)
    assert {"date", "casal", "torch"} <= set(outcome.settings) and outcome.seconds > 0
    assert mine.draw(outcome, tmp_path) == []
    with pytest.raises(SettingError, match="'particle' already"):
        register(Experiment("particle", "Another?", (), mine.run))
