"""Pictures: truth, mean, spread, error and residual of some methods on one case; error against evaluations; errors.

``pictures`` makes those of an experiment from a list of its maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

from casal_lab.drawing import EXACT, FAINT, colour, headline, label, legend_below, panels
from casal_lab.experiment import Array, Outcome
from casal_lab.pde.compare import KRIGING_PROJECTED, Scores
from casal_lab.pde.models import GAUSSIAN, NETWORK
from casal_lab.pde.study import Study

DIVERGING, GROWING = "RdBu_r", "viridis"
STRETCH = 0.98
"""Share of the points that a colour scale covers; single pixels may lie beyond."""


@dataclass(frozen=True)
class Map:
    """A picture of the first case with the network, a row per method.

    Attributes:
        name: Of the file, after the name of the experiment.
        title: What is shown.
        methods: In this order, where they were run.
        task: Of the experiment.
        pick: Takes the part of an event that is drawn (points, points).
        residual: Heading of the residual of one sample; none is drawn if empty.
    """

    name: str
    title: str
    methods: Sequence[str]
    task: int = 0
    pick: Callable[[Array], Array] = lambda field: field
    residual: str = ""


def pictures(
    name: str, shown: Sequence[Map], error_titles: Mapping[str, str], curve_title: str, of_truth: bool = False
) -> Callable[[Outcome], Mapping[str, Figure]]:
    """What draws an outcome: maps, errors of every case for each task, error against evaluations.

    ``error_titles`` has the name of the file of each task and its title; with ``of_truth`` the residual is a function
    of the truth too.
    """

    def figures(outcome: Outcome) -> Mapping[str, Figure]:
        data, made = outcome.data, dict[str, Figure]()
        study: Study = data["study"]
        residual = partial(data["residual"], truth=torch.as_tensor(data["truth"])) if of_truth else data["residual"]
        for one in shown:
            here = study.of(NETWORK, one.task)
            if any(method in here for method in one.methods):
                left = (residual, one.pick, one.residual) if one.residual else (None, one.pick)
                made[f"{name}_{one.name}"] = maps(one.title, here, one.methods, data["truth"], *left)
        for task, (file, title) in enumerate(error_titles.items()):
            made[f"{name}_{file}"] = errors(title, study, task, (GAUSSIAN, NETWORK))
        if "curves" in data:
            floor = float(study.of(GAUSSIAN)[KRIGING_PROJECTED].error[: data["curve cases"]].mean())
            made[f"{name}_evaluations"] = curves(curve_title, data["curves"], floor)
        return made

    return figures


def maps(
    title: str,
    found: Mapping[str, Scores],
    chosen: Sequence[str],
    truth: Array,
    residual: Callable[[Tensor], Tensor] | None,
    pick: Callable[[Array], Array] = lambda field: field,
    residual_name: str = "residual of a sample",
) -> Figure:
    """A row per method: mean, spread, error of the mean, residual of one sample; the truth in the first column.

    ``pick`` takes the part of an event that is drawn (points, points); ``residual`` gets the whole event.
    """
    shown = [name for name in chosen if name in found]
    columns = ["truth", "mean", "spread", "error of the mean", residual_name][: 5 if residual else 4]
    figure, axes = panels(len(shown), len(columns), 2.1 * len(columns), 1.75 * len(shown) + 0.5)
    field, top = pick(truth), float(np.abs(pick(truth)).max())
    errors = {name: pick(found[name].mean) - field for name in shown}
    widest = float(np.quantile(np.abs(np.stack(list(errors.values()))), STRETCH))
    spread = float(np.quantile(np.stack([pick(found[name].spread) for name in shown]), STRETCH)) or 1.0
    left = {}
    if residual is not None:
        left = {name: residual(torch.as_tensor(found[name].one)).numpy() for name in shown}
    beyond = float(np.quantile(np.abs(np.stack(list(left.values()))), STRETCH)) if left else 1.0
    for row, name in enumerate(shown):
        scores = found[name]
        drawn: list[tuple[Array, str, float, float]] = [
            (field, DIVERGING, -top, top),
            (pick(scores.mean), DIVERGING, -top, top),
            (pick(scores.spread), GROWING, 0.0, spread),
            (errors[name], DIVERGING, -widest, widest),
        ]
        drawn += [(left[name], DIVERGING, -beyond, beyond)] if left else []
        for column, (values, shades, low, high) in enumerate(drawn):
            axis = axes[row, column]
            image = axis.imshow(values, cmap=shades, vmin=low, vmax=high, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set_visible(False)
            if row == 0:
                axis.set_title(columns[column], fontsize=9)
            if row == len(shown) - 1:
                figure.colorbar(image, ax=axis, location="bottom", shrink=0.9, aspect=14).ax.tick_params(labelsize=7)
        error = 100 * float(scores.error[0])
        axes[row, 0].set_ylabel(f"{name.replace(' + ', chr(10) + '+ ')}\n{error:.1f} %", fontsize=8)
    headline(figure, title)
    return figure


def curves(title: str, found: Mapping[str, Sequence[tuple[float, float]]], floor: float | None) -> Figure:
    """Error of the mean against evaluations of the model, backward passes included."""
    figure, axes = panels(1, 1, 6.4, 3.9)
    axis = axes[0, 0]
    for name, points in found.items():
        x, y = zip(*points, strict=True)
        axis.plot(x, [100 * value for value in y], marker="o", markersize=4, color=_shade(name), label=name)
    if floor is not None:
        axis.axhline(100 * floor, color=EXACT, linewidth=1, linestyle="--", label="kriging + projection")
    label(axis, xscale="log", yscale="log", xlabel="evaluations and backward passes, a sample")
    axis.set_ylabel("error of the mean (%)")
    axis.grid(color=FAINT, linewidth=0.4, which="both")
    legend_below(figure, axis, 2)
    headline(figure, title)
    return figure


def errors(title: str, found: Study, task: int, models: Sequence[str]) -> Figure:
    """Every case a dot, every method a line; the mean is a bar."""
    here = [found.of(model, task) for model in models]
    names = list(dict.fromkeys(name for scores in here for name in scores))[::-1]
    figure, axes = panels(1, len(models), 4.6 * len(models), 0.6 + 0.2 * len(names), sharey=True)
    for axis, model, scores in zip(axes[0], models, here, strict=True):
        for y, name in enumerate(names):
            if name in scores:
                values = 100 * scores[name].error
                axis.scatter(values, np.full(len(values), y), s=9, color=_shade(name), alpha=0.5, linewidths=0)
                axis.plot([values.mean()] * 2, [y - 0.32, y + 0.32], color=_shade(name), linewidth=2.2)
        exact = scores.get(KRIGING_PROJECTED)
        if exact is not None:
            axis.axvline(100 * float(exact.error.mean()), color=EXACT, linewidth=0.8, linestyle="--")
        axis.set_yticks(range(len(names)), names)  # the axes share their rows
        axis.grid(axis="x", color=FAINT, linewidth=0.4, which="both")
        label(axis, model, xscale="log", xlabel="error of the mean (%)")
        _plain_numbers(axis)
    headline(figure, title)
    return figure


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10, ... on a short logarithmic axis, powers of ten on a long one."""
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


GUIDES: Mapping[str, Any] = {
    "moment matching": "#d55e00",
    "covariance matching": "#882255",
    "kriging": EXACT,
    "exact draws": EXACT,
    "least": EXACT,
}
"""Colours of what the registry of methods does not name."""


def _shade(name: str) -> str:
    return next((shade for start, shade in GUIDES.items() if name.startswith(start)), colour(name))
