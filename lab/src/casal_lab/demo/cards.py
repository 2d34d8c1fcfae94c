"""Sample a problem by three methods: what its card on the page shows."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import SEED, Problem, error
from casal_lab.drawing import styled
from casal_lab.experiment import Tell
from casal_lab.report.tutorials import STYLE, themed

METHODS: dict[str, tuple[Any, str]] = {
    "model alone": (casal.Unconstrained(), "#8a94a0"),
    "one projection": (casal.FinalProjection(), "#d9822b"),
    "casal": ("auto", "#3a8fd0"),
}
"""What is run, by the name on the page, and its colour, which can be seen on light and on dark."""

TEXTS = ("title", "about", "source", "told", "picture", "call", "code")
"""What a card takes from its problem as it stands."""

PANEL = (3.5, 2.3)
"""Inches of a picture."""


@dataclass(frozen=True)
class Row:
    """A method on a problem.

    Attributes:
        label: Its name on the page.
        feasible: Share of feasible samples.
        error: Distance to the exact answer, see ``problem.error``.
        calls: Model calls per chain.
        seconds: Of the run.
        verdict: Of the second certificate.
        worth: How many independent samples the samples are worth, where it is known.
        reasons: Of the verdict.
        svg: Picture.
    """

    label: str
    feasible: float
    error: float
    calls: float
    seconds: float
    verdict: str
    worth: float | None
    reasons: Sequence[str]
    svg: str


@dataclass(frozen=True)
class Card:
    """A problem on the page; ``name`` is that of its module. One that failed has no rows and says why."""

    name: str
    title: str
    about: str = ""
    n: int = 0
    source: str = ""
    told: str = ""
    picture: str = ""
    call: str = ""
    code: str = ""
    rows: Sequence[Row] = field(default_factory=tuple)
    cpu: float = 0.0  # seconds of the processor, exact answer and pictures included
    failure: str = ""

    @property
    def ours(self) -> Row:
        """The row of "auto"."""
        return self.rows[-1]

    def __str__(self) -> str:
        """The line of the terminal."""
        if self.failure:
            return f"{self.name}: failed: {self.failure}"
        errors = ", ".join(f"{row.label} {row.error:.1f}" for row in reversed(self.rows))
        return f"{self.name}: {self.ours.verdict}; error {errors}"


def blank(module: str) -> Card:
    """A card of which nothing but the module is known."""
    name = module.rpartition(".")[2]
    return Card(name, name.replace("_", " ").capitalize())


def card(module: str, tell: Tell, n: int | None = None) -> Card:
    """The card of the problem in a module; if something fails, it says what."""
    made = blank(module)
    try:
        problem: Problem = import_module(module).PROBLEM
        texts = {key: getattr(problem, key) for key in TEXTS}
        made = replace(made, n=n or problem.n, **texts)
        return _filled(problem, made, tell)
    except Exception as failure:  # whatever it is, the other problems have their cards
        return replace(made, failure=f"{type(failure).__name__}: {failure}")


def _filled(problem: Problem, made: Card, tell: Tell) -> Card:
    began = time.process_time()
    tell("exact answer")
    exact, rows = problem.exact(), list[Row]()
    for label, (method, colour) in METHODS.items():
        tell(label)
        result = problem.sample(method, made.n, SEED)
        worth = result.fidelity.figures.get("effective_ancestors")
        rows.append(
            Row(
                label,
                feasible=float(result.certificate.feasible.double().mean()),
                error=error(problem, result, exact),
                calls=result.cost.score_evaluations + result.cost.check_evaluations,
                seconds=result.cost.seconds,
                verdict=result.fidelity.verdict,
                worth=worth,
                reasons=result.fidelity.reasons,
                svg=_picture(problem.draw, result.samples.double(), exact, colour),
            )
        )
    cpu = time.process_time() - began
    return replace(made, rows=tuple(rows), cpu=cpu)


def _picture(draw: Callable[..., None], samples: Tensor, exact: Reference, colour: str) -> str:
    """An SVG whose ink follows the theme of the reader."""
    file = io.StringIO()
    with styled(), plt.rc_context(STYLE), torch.no_grad():
        figure, axis = plt.subplots(figsize=PANEL)
        draw(axis, samples, exact, colour)
        figure.savefig(file, format="svg")
    return themed(file.getvalue())
