"""The picture of a result: its samples, how far they violate the set, and the trace of the run.

The only file of the library that draws. It imports matplotlib on use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from casal.errors import MissingExtraError, SettingError, missing_extra
from casal.sampling.certificate import Certificate
from casal.sampling.export import quantiles

MOST_POINTS = 5000
"""Samples in a scatter plot."""

MOST_HISTOGRAMS = 4
"""Coordinates that are drawn as histograms; more are drawn as ranges."""

FEW_IMAGES = 3
"""Samples that are shown as images."""

MOST_RUN_PANELS = 4
"""Panels about the run."""

INK, BLUE, RED, GREY = "#333333", "#0072B2", "#D55E00", "#999999"

Axes: TypeAlias = Any
Panel: TypeAlias = Callable[[Axes], None]


class Drawable(Protocol):
    """What is drawn of a result."""

    @property
    def samples(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def certificate(self) -> Certificate: ...
    @property
    def trace(self) -> Mapping[str, Tensor]: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


def draw(result: Drawable) -> Any:
    """The figure of ``SampleResult.plot``: images above the run, other samples beside it."""
    figure_class = _figure_class()
    samples, run = _sample_panels(result), _run_panels(result)
    if _is_image(result.samples):
        figure = figure_class(figsize=(2.4 * len(samples), 4.8), layout="constrained")
        above, below = figure.subfigures(2, 1)
        _fill(above, samples, 1, len(samples))
        _fill(below, run, 1, MOST_RUN_PANELS)
    else:
        tall = 1 if len(run) == 1 and len(samples) == 1 else 2
        wide = -(-len(run) // 2)
        figure = figure_class(figsize=(4.6 + 2.6 * wide, 4.8 if tall == 2 else 3.6), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=[4.6, 2.6 * wide])
        _fill(left, samples, 1 if len(samples) == 1 else 2, 1 if len(samples) == 1 else 2)
        _fill(right, run, min(tall, len(run)), wide)
    n, kind = len(result.samples), result.provenance.get("method", "")
    good = int(result.certificate.feasible.sum())
    figure.suptitle(f"{kind}: {good} of {n} samples feasible", fontsize=10, color=INK)
    return figure


def _fill(part: Any, panels: list[Panel], rows: int, columns: int) -> None:
    """Draw panels into a grid of axes; places that are left over stay empty."""
    places = part.subplots(rows, columns, squeeze=False).ravel()
    for place in places[len(panels) :]:
        place.set_axis_off()
    for place, panel in zip(places, panels, strict=False):
        panel(place)
        place.tick_params(which="both", labelsize=7)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(missing_extra("result.plot()", "plot", "matplotlib")) from error

    class ResultFigure(Figure):
        """A figure that pyplot does not manage, so that it is freed with its last use; ``show`` hands it over."""

        def show(self, warn: bool = True) -> None:
            _show(self)

    return ResultFigure


def _show(figure: Any) -> None:
    """Open a window with a figure.

    Raises:
        SettingError: There is no display.
    """
    from matplotlib import get_backend, pyplot

    window = pyplot.figure()  # finds out which windows there are
    if window.canvas.manager is not None and type(window.canvas).required_interactive_framework is not None:
        window.canvas.manager.canvas.figure = figure
        figure.set_canvas(window.canvas)
        pyplot.show()
        return
    pyplot.close(window)
    raise SettingError(
        f"there is no window to show the figure in (matplotlib's backend is {get_backend()}): "
        "result.plot().savefig('result.png') writes it to a file, and result.plot() at the end of a notebook's cell "
        "shows it"
    )


def _titled(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    axes.set_title(title, fontsize=8, color=INK)
    axes.set_xlabel(x, fontsize=7)
    axes.set_ylabel(y, fontsize=7)


# ------------------------------------------------------------------------------------------------------- samples


def _is_image(samples: Tensor) -> bool:
    return samples.ndim in (3, 4) and min(samples.shape[-2:]) > 1


def _sample_panels(result: Drawable) -> list[Panel]:
    """Images for (h, w) and (c, h, w), points in the plane, histograms of few coordinates, ranges of many."""
    samples, weights = result.samples.detach().cpu().to(torch.float64), result.weights.cpu()
    if _is_image(samples):
        return _image_panels(samples, weights)
    z = samples.flatten(1)
    if z.shape[1] == 2:
        return [lambda axes: _scatter(axes, z, weights, result.certificate.feasible.cpu())]
    if z.shape[1] <= MOST_HISTOGRAMS:
        return [_histogram_panel(z, weights, k) for k in range(z.shape[1])]
    return [lambda axes: _ranges(axes, z, weights)]


def _scatter(axes: Axes, z: Tensor, weights: Tensor, feasible: Tensor) -> None:
    some = torch.arange(len(z))
    if len(z) > MOST_POINTS:
        some = torch.linspace(0, len(z) - 1, MOST_POINTS).round().long()
    size = 6.0 * weights[some] / weights.max()
    for chosen, colour, label in ((feasible, BLUE, None), (~feasible, RED, "not feasible")):
        mine = chosen[some]
        if bool(mine.any()):
            x, y = z[some][mine].T.numpy()
            axes.scatter(x, y, s=size[mine].numpy(), color=colour, alpha=0.5, linewidths=0, label=label)
    if not bool(feasible.all()):
        axes.legend(fontsize=7, frameon=False)
    axes.set_aspect("equal", adjustable="datalim")
    shown = "samples" if len(some) == len(z) else f"{len(some)} of {len(z)} samples"
    even = float(weights.max() - weights.min()) <= 1e-9 * float(weights.max())
    _titled(axes, shown if even else f"{shown}, areas are weights", "z[0]", "z[1]")


def _histogram_panel(z: Tensor, weights: Tensor, k: int) -> Panel:
    def panel(axes: Axes) -> None:
        axes.hist(z[:, k].numpy(), bins=40, weights=weights.numpy(), density=True, color=BLUE, alpha=0.8)
        axes.axvline(float(weights @ z[:, k]), color=INK, linewidth=1, linestyle=":")
        axes.set_yticks([])
        _titled(axes, f"z[{k}], dotted: mean")

    return panel


def _ranges(axes: Axes, z: Tensor, weights: Tensor) -> None:
    low, middle, high = quantiles(z, weights, (0.05, 0.5, 0.95))
    index = torch.arange(z.shape[1]).numpy()
    axes.fill_between(index, low.numpy(), high.numpy(), color=BLUE, alpha=0.25, linewidth=0, label="5 % to 95 %")
    axes.plot(index, middle.numpy(), color=BLUE, linewidth=1, label="median")
    axes.plot(index, z[0].numpy(), color=INK, linewidth=0.6, label="first sample")
    axes.legend(fontsize=7, framealpha=0.8, edgecolor="none")
    _titled(axes, "marginals of all coordinates", "coordinate", "z")


def _image_panels(samples: Tensor, weights: Tensor) -> list[Panel]:
    """Mean and a few samples on one scale, the standard deviation on its own; channels one below the other."""
    mean = torch.einsum("n,n...->...", weights, samples)
    spread = torch.einsum("n,n...->...", weights, (samples - mean).square()).sqrt()
    few = samples[torch.linspace(0, len(samples) - 1, min(FEW_IMAGES, len(samples))).round().long()]
    low, high = float(torch.minimum(few.min(), mean.min())), float(torch.maximum(few.max(), mean.max()))

    def panel(image: Tensor, title: str, span: tuple[float, float] | None) -> Panel:
        def show(axes: Axes) -> None:
            flat = image if image.ndim == 2 else torch.cat(list(image), dim=0)
            low, high = span or (0.0, float(flat.max()) or 1.0)
            shown = axes.imshow(flat.numpy(), cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.figure.colorbar(shown, ax=axes, shrink=0.8).ax.tick_params(labelsize=6)
            _titled(axes, title if image.ndim == 2 or len(image) == 1 else f"{title} ({len(image)} channels)")

        return show

    panels = [panel(mean, "mean", (low, high)), panel(spread, "standard deviation", None)]
    return panels + [panel(image, f"sample {k + 1}", (low, high)) for k, image in enumerate(few)]


# ------------------------------------------------------------------------------------------------------- the run


def _run_panels(result: Drawable) -> list[Panel]:
    """Violations, then what the trace knows: coupling, effective size, ancestors, gap."""
    panels: list[Panel] = [lambda axes: _violations(axes, result.certificate)]
    trace = {name: series.cpu() for name, series in result.trace.items()}
    for name, title, log in (
        ("rho", "coupling rho", True),
        ("ess", "effective size", False),
        ("ancestors", "surviving ancestors", False),
        ("violation", "largest violation", True),
        ("gap", "gap |A x - z|", True),
    ):
        series = trace.get(name)
        at_steps = name in ("violation", "gap")
        steps = trace.get("step" if at_steps else "exchange_step")
        if series is not None and steps is not None and len(series) > 1:
            most = None if at_steps or name == "rho" else len(result.samples)
            panels.append(_series_panel(steps[-len(series) :], series, title, log, most))
    return panels[:MOST_RUN_PANELS]


def _violations(axes: Axes, certificate: Certificate) -> None:
    """Share of samples in every power of ten, those with a violation of exactly zero and the lost ones apart."""
    found = certificate.violation.cpu()
    told = found[(found > 0) & torch.isfinite(found)]
    powers = told.clamp_min(1e-30).log10().floor().long()
    limit = max(certificate.tolerance, 1e-30)
    ends = [*powers.tolist(), math.floor(math.log10(limit))]
    first, last = min(ends), max(ends)
    shares = torch.bincount(powers - first, minlength=last - first + 1) / len(found)
    zero, lost = (float(some.double().mean()) for some in (found == 0, ~torch.isfinite(found)))
    places = torch.arange(first, last + 1) + 0.5
    axes.bar(places.numpy(), shares.numpy(), width=0.9, color=BLUE)
    axes.bar([first - 1.5], [zero], width=0.9, color=BLUE)
    marks = {first - 1.5: "0", **{float(k): f"1e{k}" for k in range(first, last + 1, max(1, (last - first) // 3))}}
    if lost:
        axes.bar([last + 2.5], [lost], width=0.9, color=RED)
        marks[last + 2.5] = "lost"
    axes.set_xticks(list(marks), list(marks.values()))
    axes.axvline(math.log10(limit), color=RED, linewidth=1, linestyle="--")
    axes.set_ylim(0, 1.05)
    _titled(axes, "violation, dashed: tolerance", "", "share of samples")


def _series_panel(steps: Tensor, series: Tensor, title: str, log: bool, most: int | None) -> Panel:
    def panel(axes: Axes) -> None:
        axes.plot(steps.numpy(), series.numpy(), color=BLUE, linewidth=1.2, marker=".", markersize=3)
        if log and bool((series > 0).all()) and float(series.max()) > 10.0 * float(series.min()):
            axes.set_yscale("log")
        if most is not None:
            axes.axhline(most, color=GREY, linewidth=0.8, linestyle=":")
            axes.set_ylim(0, 1.05 * most)
        _titled(axes, title if most is None else f"{title} of {most}", "step")

    return panel
