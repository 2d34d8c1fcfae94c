"""A problem of the demo: code that samples it, the exact answer, and how far samples are from it.

Each problem is a module. It begins with the code that the page shows, and that is the code that runs: from after the
imports to the line of dashes. Below the line are the exact answer, the quantities that are compared, and the picture.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

import casal
from casal_lab.benchmark.answer import Reference

RULE = "# " + "-" * 66
"""Begins the line between the code that is shown and the rest."""

SEED = 0
"""Of every run of the demo."""


@dataclass(frozen=True)
class Problem:
    """A row of the demo.

    Attributes:
        title: What is sampled.
        about: Model and constraint in a sentence or two.
        n: Samples of each method.
        sample: (method, n, seed) -> result; its module is the code on the page.
        exact: Points of the exact distribution with weights.
        source: What samples are compared with, in a sentence without its full stop.
        quantities: Samples (n, *event) -> (n, k), whose means are compared.
        told: What the quantities are.
        draw: Draws samples (n, *event) and the exact answer in the colour of a method.
        picture: What the picture shows, for the caption and for readers who do not see it.
    """

    title: str
    about: str
    n: int
    sample: Callable[[Any, int, int], casal.SampleResult]
    exact: Callable[[], Reference]
    source: str
    quantities: Callable[[Tensor], Tensor]
    told: str
    draw: Callable[[Axes, Tensor, Reference, str], None]
    picture: str

    @property
    def call(self) -> str:
        """The source of ``sample``."""
        return inspect.getsource(self.sample)

    @property
    def code(self) -> str:
        """The code that ran: the first part of the module, with the imports that it uses."""
        return shown(inspect.getsource(sys.modules[self.sample.__module__]))


def shown(source: str) -> str:
    """The part of a module between its imports and RULE, after those imports whose names it uses."""
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = source.splitlines()
    last = imports[-1].end_lineno or 0
    end = next((k for k, line in enumerate(lines) if line.startswith(RULE)), len(lines))
    part = "\n".join(lines[last:end]).strip()
    used = {node.id for node in ast.walk(ast.parse(part)) if isinstance(node, ast.Name)}
    kept = [
        ast.unparse(node)
        for node in imports
        if any((alias.asname or alias.name).partition(".")[0] in used for alias in node.names)
    ]
    return "\n".join([*kept, "", "", part]) + "\n"


def moments(problem: Problem, exact: Reference) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each quantity under the exact distribution, (k,) each."""
    values = problem.quantities(exact.points)
    mean = exact.weights @ values
    return mean, (exact.weights @ (values - mean).square()).sqrt()


def error(problem: Problem, result: casal.SampleResult, exact: Reference) -> float:
    """How far means of samples are from the exact ones, in units of the sampling error of exact draws.

        sqrt( mean over k of ( (mean_k - exact_k) / (sd_k / sqrt n) )^2 )

    n independent exact draws have 1 on average (of the square).
    """
    mean, spread = moments(problem, exact)
    off = (result.expect(problem.quantities).value - mean) / (spread / math.sqrt(len(result)))
    return float(off.square().mean().sqrt())


def weighted(points: Tensor, log_weights: Tensor) -> Reference:
    """Points with weights given by their logarithms, up to a constant."""
    return Reference.nodes(points, torch.softmax(log_weights, 0))
