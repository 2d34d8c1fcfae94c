"""A batch of flights while the solver repairs it, for the player of the report page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from casal.lab.drawing import colour
from casal.lab.experiment import Array
from casal.lab.motion import FAILURE, SUCCESS, Limits, Motion, Panel
from casal.lab.physics.quadrotor import INTERVAL, flown
from casal.lab.quadrotor.methods import named
from casal.lab.quadrotor.paths import repair, start
from casal.lab.quadrotor.scenes import ALLOWED, FAR, Scene
from casal.lab.quadrotor.setup import Prior

AFTER = (0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 75, 100)
"""Iterations of the solver after which a frame is taken."""

CAPTION = (
    "Dashed: the paths as they were sampled, before the solver. Lines that move: the flights if the solver stopped "
    "here and its inputs, clipped to what the vehicle can do, were flown. A flight that gets more than 1 cm into an "
    "obstacle fails: it is orange and ends in a cross."
)


def solving(
    scene: Scene,
    labels: Sequence[str],
    n: int = 24,
    seed: int = 0,
    *,
    after: Sequence[int] = AFTER,
    points: int = 60,
    batch: int = 100,
    model: Prior | None = None,
    name: str = "quadrotor_solving",
) -> Motion:
    """Flights of each method after so many iterations of the solver, from the same starts.

    Args:
        scene: The obstacles.
        labels: Names of ``casal.lab.quadrotor.METHODS``. Each has a panel.
        n: Flights shown of each method.
        seed: Of all that is random here.
        after: Iterations, one frame each.
        points: Moments of a flight that are kept, about.
        batch: Chains sampled together, of which n are shown: weighted methods need company.
        model: The diffusion model; the paper's network of training seed 0 if left out.
        name: Of the motion.
    """
    batch = max(batch, n)
    chosen = torch.linspace(0, batch - 1, n).round().long()  # copies of one chain lie side by side
    steps = scene.vehicle.event[0]
    moments = np.unique(np.linspace(0, steps - 1, points).round().astype(int))
    panels = []
    for label in labels:
        _, recipe = named(label)
        starts = start(scene, recipe, batch, seed, model)[0][chosen].to(torch.float64)
        events = [repair(scene, starts, iterations=k)[0] if k else starts for k in after]
        outputs = [flown(scene.vehicle.dynamics, event) for event in events]
        success = torch.stack([scene.depth(output) <= ALLOWED for output in outputs])
        marks = np.where(success.numpy(), SUCCESS, FAILURE)
        frames = np.stack([_places(scene, output, moments) for output in outputs])
        ghost = _places(scene, scene.vehicle.dynamics.physical(starts)[0], moments) if recipe.method else None
        panels.append(Panel(label, frames, marks, colour(label), ghost))
    every = np.concatenate([panel.frames[-1].reshape(-1, 2) for panel in panels])
    (xlim, ylim), names, shapes = _axes(scene, every)
    counts = [f"{k} iteration{'s' * (k != 1)}" for k in after]
    title = f"A batch being solved: {scene.name}"
    return Motion(name, title, CAPTION, panels, xlim, ylim, *names, shapes, counts, bool(scene.discs))


def _places(scene: Scene, outputs: Tensor, moments: Array) -> Array:
    """Lines (n, points, 2): height over time, or the path in the plane."""
    shown: Array = outputs[:, torch.from_numpy(moments)].numpy()
    if scene.discs:
        return shown[:, :, :2]
    times = np.broadcast_to((moments + 1) * INTERVAL, shown.shape[:2])
    return np.stack([times, shown[:, :, 0]], axis=2)


def _axes(scene: Scene, places: Array) -> tuple[tuple[Limits, Limits], tuple[str, str], list[tuple[float, ...]]]:
    """Limits, names of the axes, and shapes: all of the obstacles, and most of the paths."""
    if scene.discs:
        discs = np.array(scene.discs)
        low, high = (discs[:, :2] - discs[:, 2:]).min(0) - 0.4, (discs[:, :2] + discs[:, 2:]).max(0) + 0.4
        limits = (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))
        return limits, ("x (m)", "z (m)"), [tuple(map(float, disc)) for disc in scene.discs]
    end = scene.vehicle.event[0] * INTERVAL
    low, high = np.quantile(places, (0.01, 0.99), axis=0)
    ends = [end for w in scene.walls for end in (w.low, w.high) if abs(end) < FAR]
    least, most = np.clip(low[1], min(ends) - 1.0, min(ends)), np.clip(high[1], max(ends), max(ends) + 1.0)
    bounds = float(least) - 0.2, float(most) + 0.2
    shapes = [((w.start + 0.5) * INTERVAL, w.low, (w.stop + 0.5) * INTERVAL, w.high) for w in scene.walls]
    return ((0.0, end), bounds), ("time (s)", "y (m)"), [tuple(map(float, shape)) for shape in shapes]
