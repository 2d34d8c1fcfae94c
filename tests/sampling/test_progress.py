"""What is shown of a run on its way: within 80 columns on a terminal, as lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
import torch

import casal
from casal.sampling import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(steps: int = 40, method: str = "auto") -> None:
    target = casal.langevin(
        lambda x: x, steps=steps, step_size=0.1, init=torch.zeros(8, 2), potential=lambda x: x.square().sum(1) / 2
    )
    casal.sample(target, casal.Ball(1.0), method, 8, check=False, run=casal.Run(progress=True, threads=1))


def test_lines_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    run()
    choice, *lines = out.getvalue().splitlines()
    assert choice.startswith("casal: HMC for 2 dimensions") and lines
    assert all(line.startswith("casal: HMC ") and " left" in line for line in lines)
    assert "100 %" in lines[-1] and "calls/chain" in lines[-1]


def test_nothing_is_said_within_the_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    run(method="projected")
    assert out.getvalue() == ""


def test_one_line_of_a_terminal_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with progress.progress_bar(True, 1000, "WeightedCASAL", 64) as bar:
        bar.tell({"rho": 123.456, "ess": 63.9, "violation": 1e-16, "acceptance": 0.5})
        bar.advance(400, 64 * 12345)
        assert len(bar.figures) < 60 and "acceptance" not in bar.figures
    assert "40%" in out.getvalue() and "WeightedCASAL" in out.getvalue()


def test_without_rich_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(progress, "_told", set())
    for _ in range(2):
        with progress.progress_bar(True, 10, "CASAL") as bar:
            bar.advance(1)
    assert out.getvalue().count("pip install 'casal[progress]'") == 1


def test_a_bar_appears_by_itself_on_a_terminal_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    now, out = [100.0], Terminal()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", out)
    with progress.progress_bar(None, 100, "CASAL", choice="CASAL: 100 model calls per chain") as bar:
        now[0] += progress.WAIT - 0.1
        bar.advance(10)
        assert out.getvalue() == ""
        now[0] += 0.2
        bar.advance(10)
        assert "CASAL: 100 model calls per chain" in out.getvalue()
    assert "20%" in out.getvalue()


@pytest.mark.parametrize(("wanted", "out"), [(None, io.StringIO()), (False, Terminal())])
def test_nothing_appears_off_a_terminal_or_where_it_is_turned_off(
    wanted: bool | None, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", out)
    with progress.progress_bar(wanted, 100, "CASAL", choice="a choice") as bar:
        now[0] += 1000.0
        bar.advance(50)
    assert out.getvalue() == "" and casal.Run().progress is None


def test_time_left_follows_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.Progress(200, "CASAL", 4)
    assert bar.left == "-:--"
    now[0] += 30.0
    bar.advance(50, 200)
    assert bar.left == "1:30" and bar.share == 0.25 and bar.figures == "50 calls/chain  1:30 left"
