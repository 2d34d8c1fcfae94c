"""The particle on a circle: where each method puts its samples, and how they spread on the likely side."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from casal_lab.drawing import EXACT, FAINT, INK, colour
from casal_lab.experiment import Array, Outcome
from casal_lab.particle.setup import DRAWN, RADIUS, SIGMA_Y, exact_answer, exact_density
from casal_lab.problems import double_well

SHOWN = {
    "projected": "projected",
    "Algorithm 2": "CASAL, printed (Algorithm 2)",
    "released code": "CASAL, released",
}
"""Panels of the paper's figure: the density, projected Langevin, CASAL; there are two of the last."""


def figures(outcome: Outcome) -> dict[str, Figure]:
    """The look-alike of figure 5: the density on the circle, and where each method of the figure puts its samples."""
    points = {label: outcome.data["points"][label] for label in SHOWN if label in outcome.data["points"]}
    figure, axes = plt.subplots(
        2, len(points) + 1, figsize=(3.0 * (len(points) + 1), 5.6), height_ratios=(1.6, 1), squeeze=False
    )
    _circle(axes[0, 0])
    _ring(axes[0, 0], *exact_density(), EXACT)
    axes[0, 0].set_title("true density")
    _spread(axes[1, 0], None, EXACT)
    for k, (label, z) in enumerate(points.items(), start=1):
        _circle(axes[0, k])
        _ring(axes[0, k], np.arctan2(z[:, 1], z[:, 0]), np.ones(len(z)), colour(label))
        right = float((z[:, 0] > 0).mean())
        axes[0, k].set_title(SHOWN[label])
        axes[0, k].text(0, 1.4, f"{right:.1%}\nat x > 0", ha="center", va="center", fontsize=10, color=INK)
        _spread(axes[1, k], z, colour(label))
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("density of y, x < 0")
    figure.suptitle(
        f"Particle on a circle, constants of the script {DRAWN.name}; below: y on the likely side (line: exact)"
    )
    return {"particle": figure}


def _circle(axis: Axes) -> None:
    x, y = np.meshgrid(np.linspace(-4.3, 4.3, 200), np.linspace(-4.3, 4.3, 200))
    energy = double_well.potential(x) + 0.5 * (y / SIGMA_Y) ** 2
    axis.contourf(x, y, np.exp(-energy), levels=np.linspace(0.05, 2.2, 8), cmap="Greys", alpha=0.5)
    angle = np.linspace(0, 2 * np.pi, 400)
    axis.plot(RADIUS * np.cos(angle), RADIUS * np.sin(angle), color=FAINT, linewidth=1)
    axis.set(aspect="equal", xlim=(-4.3, 4.3), ylim=(-4.3, 4.3), xticks=[-3, 0, 3], yticks=[-3, 0, 3])


def _ring(axis: Axes, angle: Array, weight: Array, shade: str) -> None:
    """Points on one circle hide each other: draw how many there are in each direction as a ring of that height."""
    edges = np.linspace(-np.pi, np.pi, 361)
    count, _ = np.histogram(angle, edges, weights=weight)
    height = 1.1 * np.sqrt(count / count.max())
    for lo, hi, top in zip(edges[:-1], edges[1:], height, strict=True):
        if top > 0.01:
            turn = np.array([lo, hi, hi, lo])
            radius = np.array([RADIUS, RADIUS, RADIUS + top, RADIUS + top])
            axis.fill(radius * np.cos(turn), radius * np.sin(turn), color=shade, linewidth=0)


def _spread(axis: Axes, z: Array | None, shade: str) -> None:
    angle, density = exact_density()
    left = np.abs(angle) > np.pi / 2
    y, jacobian = RADIUS * np.sin(angle[left]), RADIUS * np.abs(np.cos(angle[left]))
    order = np.argsort(y)
    if z is not None:
        kept = z[z[:, 0] < 0, 1]
        if len(kept) > 10:
            axis.hist(kept, bins=np.linspace(-0.5, 0.5, 41).tolist(), density=True, color=shade, alpha=0.75)
            axis.set_title(f"sd {kept.std():.3f}", fontsize=9)
    else:
        axis.set_title(f"sd {exact_answer()['sd_y']:.3f}", fontsize=9)
    axis.plot(y[order], (density[left] / jacobian)[order], color=EXACT, linewidth=1.2)
    axis.set(xlim=(-0.5, 0.5), ylim=(0, 5), yticks=[], xticks=[-0.4, 0, 0.4], xlabel="y")
