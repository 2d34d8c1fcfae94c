"""Chains along a run of ``casal.sample``, as the frames of a motion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from casal import Constraint, Run, StepView, Target
from casal_lab.drawing import colour
from casal_lab.experiment import AnyMethod, Array
from casal_lab.motion import Panel
from casal_lab.study import runs


class Watch:
    """A ``callback`` of ``casal.sample`` that keeps the point x of every chain after every step of one run."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, Tensor]] = {}

    def __call__(self, view: StepView) -> None:
        self._seen.setdefault(view.step, {})[view.chains.start] = view.state[0]

    def frames(self, count: int) -> list[Tensor]:
        """x (n, *latent) after ``count`` evenly spaced steps, the first and the last among them."""
        steps = sorted(self._seen)
        kept = [steps[k] for k in np.linspace(0, len(steps) - 1, count).round().astype(int)]
        return [torch.cat([x for _, x in sorted(self._seen[step].items())]) for step in kept]


def walk(target: Target, constraint: Constraint, method: AnyMethod, n: int, seed: int, count: int) -> Array:
    """Where the chains of a run are in ``count`` frames, (count, n, d).

    A frame is the point x that moves, after evenly spaced steps of which the first is step 1. The last frame is not x
    but the samples that the run returns. Runs with the same seed and the same starting points start alike.

    >>> import casal
    >>> target = casal.langevin(lambda x: x, steps=30, step_size=0.1, init=torch.ones(2, 2))
    >>> frames = walk(target, casal.Sphere(1.0), casal.FinalProjection(), n=2, seed=0, count=4)
    >>> np.linalg.norm(frames, axis=2).round(6)[-1].tolist()
    [1.0, 1.0]
    """
    watch = Watch()
    (result,) = runs(target, constraint, method, n, [seed], run=Run(callback=watch))
    return np.stack([*(x.double().numpy() for x in watch.frames(count - 1)), result.samples.double().numpy()])


def progress(count: int, doing: str = "sampling") -> list[str]:
    """A label for each of ``count`` frames of a watch."""
    return [f"{doing}, {k / max(count - 1, 1):.0%}" for k in range(count)]


def panel(
    label: str,
    frames: Array,
    shown: int,
    shares: Callable[[Array], Array],
    heights: Callable[[Array], Array],
    jumps: bool = False,
) -> Panel:
    """A panel of ``shown`` chains; its shares and its histogram, functions of points (n, d), count all of them.

    The chains shown are evenly spaced, since copies of a chain lie side by side.
    """
    n = frames.shape[1]
    chosen = np.linspace(0, n - 1, min(shown, n)).round().astype(int)
    counted, spread = (np.stack([count(points) for points in frames]) for count in (shares, heights))
    return Panel(label, frames[:, chosen], None, colour(label), None, counted, spread, jumps)


def histogram(values: Array, limits: tuple[float, float], bins: int) -> Array:
    """Density of the values in even bins; values beyond the limits count in the total."""
    edges = np.linspace(*limits, bins + 1)
    counts, _ = np.histogram(values, edges)
    return counts / (max(len(values), 1) * (edges[1] - edges[0]))
