"""The picture of a result: the panels that samples and trace call for, and the numbers of the run in them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import casal
from casal.errors import MissingExtraError, SettingError

from .runs import run

pytest.importorskip("matplotlib")


def of_shape(*event: int) -> casal.SampleResult:
    """A few samples on a sphere."""
    init = torch.randn(30, *event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = casal.langevin(lambda x: x, steps=4, step_size=0.1, init=init)
    return casal.sample(target, casal.Sphere(1.0), casal.CASAL(10.0), 30, run=casal.Run(record_every=1))


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


@pytest.mark.parametrize(
    ("event", "first"),
    [
        ((1,), ["z[0], dotted: mean"]),
        ((2,), ["samples"]),
        ((3,), [f"z[{k}], dotted: mean" for k in range(3)]),
        ((9,), ["marginals of all coordinates"]),
        ((4, 5), ["mean", "standard deviation", "sample 1", "sample 2", "sample 3"]),
        ((1, 4, 4), ["mean", "standard deviation", "sample 1", "sample 2", "sample 3"]),
        ((2, 3, 4), [f"{name} (2 channels)" for name in ("mean", "standard deviation")]),
    ],
)
def test_samples_are_drawn_by_their_shape(event: tuple[int, ...], first: list[str]) -> None:
    figure = of_shape(*event).plot()
    found = titles(figure)
    assert found[: len(first)] == first
    assert found[-3:] == ["violation, dashed: tolerance", "largest violation", "gap |A x - z|"]


def test_images_and_traces_hold_the_numbers_of_the_run() -> None:
    result = of_shape(4, 5)
    mean = next(axes for axes in result.plot().axes if axes.get_title() == "mean")
    assert torch.allclose(torch.as_tensor(mean.images[0].get_array().data), result.samples.mean(0))
    weighted = run("weighted")
    axes = {axes.get_title(): axes for axes in weighted.plot().axes}
    assert axes["coupling rho"].lines[0].get_ydata().tolist() == weighted.trace["rho"].tolist()
    assert axes["effective size of 90"].lines[0].get_ydata().tolist() == weighted.trace["ess"].tolist()
    assert axes["surviving ancestors of 90"].lines[0].get_ydata().tolist() == weighted.trace["ancestors"].tolist()


def test_samples_off_the_set_are_seen() -> None:
    init = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = casal.langevin(lambda x: x, steps=4, step_size=0.1, init=init)
    result = casal.sample(target, casal.Ball(1.0), casal.Unconstrained(), 40)
    off = int((~result.certificate.feasible).sum())
    figure = result.plot()
    drawn = {points.get_label(): len(points.get_offsets()) for points in figure.axes[0].collections}
    assert 0 < off < 40 and drawn["not feasible"] == off and sum(drawn.values()) == 40
    bars = next(axes for axes in figure.axes if axes.get_title().startswith("violation")).patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(1.0)


def test_without_matplotlib_there_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    result = of_shape(2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        MissingExtraError, match=r"pip install 'casal\[plot\]', or in a clone pip install -e '\.\[plot\]'"
    ):
        result.plot()


def test_a_figure_is_shown_in_a_window_or_says_how_to_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    pyplot.switch_backend("agg")
    figure = of_shape(2).plot()
    with pytest.raises(SettingError, match=r"agg.*savefig\('result.png'\)"):
        figure.show()
    assert not pyplot.get_fignums()
    shown = list[Any]()
    monkeypatch.setattr(FigureCanvasAgg, "required_interactive_framework", "a window")
    monkeypatch.setattr(pyplot, "show", lambda: shown.extend(pyplot.figure(k) for k in pyplot.get_fignums()))
    figure.show()
    pyplot.close("all")
    assert shown == [figure]
