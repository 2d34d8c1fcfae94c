"""The page of the demo: what casal is, a figure to drag, and a card for each problem, in one file."""

from __future__ import annotations

import base64
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

import casal
from casal.store import write_whole
from casal_lab.demo.cards import Card
from casal_lab.demo.problem import SEED
from casal_lab.first_picture import FirstPicture, first_picture
from casal_lab.report.explorer import explorer_numbers
from casal_lab.report.page import environment, percent

FIVE_LINES = """\
import casal
start = casal.GaussianStart(2)
model = casal.langevin(lambda x: x - 1, init=start, steps=300, step_size=0.1)
result = casal.sample(model, casal.Sphere(2.0), "auto", n=2000, seed=0)
print(result.fidelity.verdict, result.expect(lambda z: z[:, 0]))
"""
"""Complete: a Gaussian around (1, 1) on the circle of radius 2. The first screen shows what it prints."""

EXACT = 1.126
"""What it estimates: sqrt 2 I1(k) / I0(k) with k = 2 sqrt 2, the mean of a von Mises distribution."""

REPRODUCED = Path("reproduce") / "index.html"
"""What ``casal reproduce`` writes, beside the folder of the demo."""


@dataclass(frozen=True)
class FirstScreen:
    """The picture, and what the five lines give."""

    picture: FirstPicture
    result: casal.SampleResult
    mean: str
    code: str = FIVE_LINES
    exact: float = EXACT


def first_screen() -> FirstScreen:
    """Sample what the first screen shows: some seconds."""
    known = dict[str, Any](print=lambda *parts: None)
    exec(FIVE_LINES, known)
    result: casal.SampleResult = known["result"]
    return FirstScreen(first_picture(SEED), result, str(result.expect(lambda z: z[:, 0])))


def write_page(screen: FirstScreen, cards: Sequence[Card], out: Path, stopped: str = "") -> Path:
    """Write ``index.html`` into a folder and return its path.

    Args:
        screen: The first screen.
        cards: The problems, in the order of the page.
        out: The folder.
        stopped: What to say of a run that was stopped.
    """
    made = environment("casal_lab.demo")
    for function in (amount, data, notes, sentence):
        made.filters[function.__name__] = function
    made.globals["percent"] = percent
    facts = {
        "date": date.today().isoformat(),
        "casal": casal.__version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "seed": str(SEED),
        "processor time": f"{sum(card.cpu for card in cards):.0f} s on one core",
    }
    link = Path("..") / REPRODUCED if (out.resolve().parent / REPRODUCED).exists() else None
    text = made.get_template("demo.html.jinja").render(
        screen=screen, cards=cards, facts=facts, stopped=stopped, link=link, explorer=explorer_numbers()
    )
    path = out / "index.html"
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def amount(value: float) -> str:
    """A number as a reader wants it: two digits, or whole.

    >>> amount(1.46), amount(60.7), amount(0.04), amount(1013.2)
    ('1.5', '61', '0.04', '1013')
    """
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.095 else f"{value:.1g}"


def data(svg: str) -> str:
    """A picture as part of the page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def notes(card: Card) -> list[str]:
    """What the checks of a trusted run could not see; of others, the reasons after the first."""
    return list(card.ours.reasons[0 if card.ours.verdict == "trusted" else 1 :])


def sentence(card: Card) -> str:
    """The verdict on the samples of "auto", in words."""
    ours = card.ours
    if ours.verdict != "trusted":
        return "; ".join(ours.reasons[:1]) or "no reason is known"
    worth = "" if ours.worth is None else f" The {card.n} samples are worth {ours.worth:.0f} independent ones."
    return f"no check found a problem.{worth}"
