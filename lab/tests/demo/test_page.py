"""``casal demo``: its page, a problem that fails, a process that dies, Ctrl-C, and a browser."""

from __future__ import annotations

import io
import math
import multiprocessing
import re
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from casal_lab import cli, demo
from casal_lab.demo import page, processes
from casal_lab.demo.cards import Card, card
from casal_lab.demo.page import EXACT, FIVE_LINES, FirstScreen, amount, first_screen, notes, sentence, write_page

PROBLEM = """
import os
import time

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem


def sample(method, n, seed):
    {act}
    start = casal.GaussianStart(2)
    model = casal.langevin(lambda x: x, init=start, steps=20, step_size=0.1)
    return casal.sample(model, casal.Sphere(1.0), method, n=n, seed=seed)


# ------------------------------------------------------------------ rest


def exact():
    angle = torch.linspace(0, 6.28, 100).double()
    return Reference.draws(torch.stack([angle.cos(), angle.sin()], 1))


def draw(axis, z, exact, colour):
    axis.plot(*z.T, ".", color=colour)


import torch

PROBLEM = Problem("A <circle>", "About.", 30, sample, exact, "Exact: a grid", lambda z: z, "both means", draw, "Points")
"""
ACTS = {
    "works": "pass",
    "fails": "raise ValueError('no <luck>')",
    "dies": "os._exit(9)",
    "hangs": "time.sleep(600)",
}


@pytest.fixture(autouse=True)
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small problems as modules, and a process that does not ignore Ctrl-C, as one in the background does."""
    for name, act in ACTS.items():
        (tmp_path / f"demo_{name}.py").write_text(PROBLEM.format(act=act), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(page, "first_screen", screen)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@cache
def screen() -> FirstScreen:
    return first_screen()


@cache
def made() -> Card:
    return card("demo_works", lambda line: None)


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *names: str) -> tuple[Any, str]:
    monkeypatch.setattr(demo, "MODULES", tuple(f"demo_{name}" for name in names))
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(out)])
    return result, (out / "index.html").read_text(encoding="utf-8")


def articles(text: str) -> list[str]:
    return re.findall(r'<article class="problem" id="(\w+)"', text)


def test_the_five_lines() -> None:
    assert FIVE_LINES.count("\n") == 5 and max(map(len, FIVE_LINES.splitlines())) <= 80
    with redirect_stdout(io.StringIO()) as printed:
        exec(FIVE_LINES, {})
    shown = screen()
    assert printed.getvalue() == f"{shown.result.fidelity.verdict} {shown.mean}\n"
    assert shown.result.fidelity.verdict == "trusted"
    angle = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)[1:]
    weight = torch.softmax(2 * (angle.cos() + angle.sin()), 0)
    assert float(weight @ (2 * angle.cos())) == pytest.approx(EXACT, abs=5e-4)
    assert abs(float(shown.result.samples[:, 0].mean()) - EXACT) < 0.08


def test_the_first_screen_then_the_figure_then_the_cards(tmp_path: Path) -> None:
    text = write_page(screen(), [made()], tmp_path).read_text(encoding="utf-8")
    parts = [
        "<h1>Draw samples from your model that satisfy a constraint exactly, and know whether their distribution can",
        "All feasible; only one right.",
        "exact 4.0 %, projection 23 %, casal",
        "Five lines",
        'class="copy"',
        "Is every sample feasible?",
        "Is the distribution right?",
        'id="explorer"',
        'id="rho"',
        '<article class="problem"',
        "A &lt;circle&gt;",
        "<figcaption>model alone",
        "<figcaption>one projection",
        "<figcaption>casal",
        "def sample(method, n, seed):",
        "casal reproduce",
        "<dt>seed",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    body = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    for word in ("left out", "missed", "reproduced", "not applicable"):
        assert word not in body
    assert body.count("<h1") == 1
    assert all('alt="' in tag for tag in re.findall(r"<img[^>]*>", body))
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|fetch\(|XMLHttp""", text)


def test_the_page_of_the_experiments_is_linked_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "index.html").write_text("")
    (tmp_path / "demo").mkdir()
    text = write_page(screen(), [made()], tmp_path / "demo").read_text(encoding="utf-8")
    assert '<a href="../reproduce/index.html">' in text


def test_a_verdict_in_words() -> None:
    found = made()
    rows = [*found.rows[:2], found.ours.__class__(**{**vars(found.ours), "verdict": "trusted", "worth": 12.3})]
    trusted = Card(**{**vars(found), "rows": rows})
    assert sentence(trusted) == "no check found a problem. The 30 samples are worth 12 independent ones."
    assert notes(trusted) == list(found.ours.reasons)
    rows[2] = rows[2].__class__(**{**vars(rows[2]), "verdict": "suspect", "reasons": ("p = 1e-9: use more", "b")})
    suspect = Card(**{**vars(found), "rows": rows})
    assert (sentence(suspect), notes(suspect)) == ("p = 1e-9: use more", ["b"])
    assert [amount(value) for value in (0.0, 0.034, 0.26, 9.96, 1013.2)] == ["0", "0.03", "0.3", "10", "1013"]


def test_a_problem_that_fails_or_dies_costs_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, text = run(monkeypatch, tmp_path / "out", "fails", "works", "dies", "is_not_there")
    assert result.exit_code == 1, result.output
    assert articles(text) == ["demo_fails", "demo_works", "demo_dies", "demo_is_not_there"]
    assert "This problem failed: ValueError: no &lt;luck&gt;" in text
    assert "This problem failed: its process ended with code 9" in text
    assert "This problem failed: ModuleNotFoundError" in text
    assert text.count('<figure class="panel') == 3
    assert "demo_fails: failed: ValueError: no <luck>" in result.output
    assert "[4/4] " in result.output


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes.cards

    def stopped(*arguments: Any) -> Iterator[Card]:
        for found in real(*arguments):
            yield found
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "cards", stopped)
    result, text = run(monkeypatch, tmp_path / "out", "hangs", "works", "fails")
    assert result.exit_code == 130
    assert articles(text) == ["demo_works"]
    assert "Stopped by Ctrl-C after 1 of 3 problems." in text
    assert "Stopped by Ctrl-C after 1 of 3 problems." in result.output
    assert multiprocessing.active_children() == []


def test_ctrl_c_before_the_first_screen_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "first_screen", lambda: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert result.output == "stopped\n"
    assert not (tmp_path / "index.html").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_in_a_browser(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    address = write_page(screen(), [made()], tmp_path).as_uri()
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    tab.goto(address)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    if width == 1400:
        assert tab.evaluate("document.querySelector('header.first').getBoundingClientRect().bottom") <= 900
    before = tab.locator("#rho-value").inner_text()
    tab.locator("#rho").press("ArrowRight")
    assert tab.locator("#rho-value").inner_text() != before
    tab.locator(".side .copy").click()
    assert tab.evaluate("getSelection().toString()").strip() == FIVE_LINES.strip()
    assert said == []
    tab.close()
