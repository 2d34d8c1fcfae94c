"""A batch of flights while it is sampled and while the solver repairs it, for the report page and the gallery."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from casal import Run
from casal.errors import SettingError
from casal_lab.drawing import colour
from casal_lab.experiment import Array
from casal_lab.frames import Watch, progress
from casal_lab.motion import FAILURE, NEUTRAL, SUCCESS, Backdrop, Limits, Motion, Panel, Shades, shades
from casal_lab.physics.quadrotor import INTERVAL, flown
from casal_lab.quadrotor.paths import Recipe, free_draws, named, repair, shuffled, start
from casal_lab.quadrotor.setup import ALLOWED, FAR, Prior, Scene, scene

SHOWN = ("unconstrained", "penalty", "projected", "CASAL", "Twisted")
"""Methods in pictures."""

AFTER = (0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 75, 100)
"""Iterations of the solver after which a frame is taken."""

PIXELS, BLUR = (80, 110), 0.04
"""Rows and columns of the image of the exact distribution, and the width of its kernel in metres."""

SAMPLING = (
    "While it samples, a method moves whole flights: lines show the flights of the noisy state of its chains. Then a "
    "solver repairs them. "
)
GHOSTS = "Dashed: the paths as they were sampled, before the solver. "
SOLVING = (
    "Lines that move: the flights if the solver stopped here and its inputs, clipped to what the vehicle can do, were "
    "flown. A flight that gets more than 1 cm into an obstacle fails: it is orange and ends in a cross. "
)
COPIES = "Chains of Twisted are resampled while it samples: some end, others are copied, so lines jump. "


def in_gallery(model: Prior, labels: Sequence[str] = SHOWN, draws: int = 20_000) -> Motion:
    """Flights past the paper's three walls, from noise to what the solver makes of them, before the exact ones."""
    place = scene("hard", r=0.8)
    exact = free_draws(model, place, draws)
    after = (0, 1, 2, 4, 8, 20, 50, 100)
    return solving(place, labels, 14, model=model, after=after, points=40, sampled=12, exact=exact)


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
    sampled: int = 0,
    exact: Tensor | None = None,
) -> Motion:
    """Flights of each method after so many iterations of the solver, from the same starts.

    Args:
        scene: The obstacles.
        labels: Names of ``casal_lab.quadrotor.METHODS``. Each has a panel.
        n: Flights shown of each method.
        seed: Of all that is random here.
        after: Iterations, one frame each.
        points: Moments of a flight that are kept, about.
        batch: Chains sampled together, of which n are shown: weighted methods need company.
        model: The diffusion model; the paper's network of training seed 0 if left out.
        name: Of the motion.
        sampled: Frames of the sampling, before those of the solver.
        exact: Flights (m, S) of the exact distribution past walls: shown behind all panels and in a panel of their own.
    """
    batch = max(batch, n)
    chosen = torch.linspace(0, batch - 1, n).round().long()  # copies of one chain lie side by side
    steps = scene.vehicle.event[0]
    moments = np.unique(np.linspace(0, steps - 1, points).round().astype(int))
    panels = []
    for label in labels:
        _, recipe = named(label)
        before, starts = _sampled(scene, recipe, batch, seed, model, sampled, chosen)
        events = [repair(scene, starts, iterations=k)[0] if k else starts for k in after]
        outputs = [flown(scene.vehicle.dynamics, event) for event in events]
        success = torch.stack([scene.depth(output) <= ALLOWED for output in outputs])
        marks = np.where(success.numpy(), SUCCESS, FAILURE)
        marks = np.concatenate([np.full((sampled, n), NEUTRAL), marks])
        frames = np.stack([_places(scene, output, moments) for output in (*before, *outputs)])
        ghost = _places(scene, scene.vehicle.dynamics.physical(starts)[0], moments) if recipe.method else None
        shade, jumps = colour(label), label == "Twisted"
        panels.append(Panel(label, frames, marks, shade, None if sampled else ghost, jumps=jumps))
    every = np.concatenate([panel.frames[-1].reshape(-1, 2) for panel in panels])
    (xlim, ylim), names, shapes = _axes(scene, every)
    counts = [f"{'solver, ' if sampled else ''}{k} iteration{'s' * (k != 1)}" for k in after]
    labels_of_frames = [*progress(sampled), *counts]
    copies = sampled and "Twisted" in labels
    caption = (SAMPLING if sampled else GHOSTS) + SOLVING + (COPIES if copies else "")
    title = f"A batch being solved: {scene.name}"
    backdrop = Backdrop()
    if exact is not None:
        title = f"Flights past walls, sampled and solved: {scene.name}"
        caption += f"Exact draws: those flights of the model itself that keep clear, {n} of {len(exact)} drawn."
        backdrop = Backdrop(_density(exact, xlim, ylim), image_label="the exact distribution of flights")
        places = _places(scene, exact[torch.linspace(0, len(exact) - 1, n).long(), :, None], moments)
        still = np.broadcast_to(places, (len(labels_of_frames), *places.shape))
        panels.append(Panel("exact draws", still, np.full(still.shape[:2], SUCCESS), colour("exact draws")))
    axes = (xlim, ylim, *names)
    return Motion(
        name, title, caption.strip(), panels, *axes, shapes, labels_of_frames, bool(scene.discs), backdrop=backdrop
    )


def _sampled(
    scene: Scene, recipe: Recipe, batch: int, seed: int, model: Prior | None, count: int, chosen: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Outputs of the chosen chains in frames of the sampling, and the events that the solver starts from."""
    if not count:
        return [], start(scene, recipe, batch, seed, model)[0][chosen].to(torch.float64)
    if recipe.method is None or (recipe.batch or batch) < batch:
        raise SettingError(f"frames of the sampling need a method with a model and one batch, at most {recipe.batch}")
    watch, machine = Watch(), scene.vehicle
    starts = start(scene, recipe, batch, seed, model, run=Run(callback=watch))[0][chosen].to(torch.float64)
    kept = shuffled(batch, seed)[chosen]
    events = [machine.decode(x[kept]).to(torch.float64).reshape(-1, *machine.event) for x in watch.frames(count)]
    return [machine.dynamics.physical(event)[0] for event in events], starts


def _density(paths: Tensor, xlim: Limits, ylim: Limits) -> Shades:
    """How likely each height is at each time, for an image: a mean of Gaussian kernels over paths (m, S)."""
    rows, columns = PIXELS
    times = (np.arange(paths.shape[1]) + 1) * INTERVAL
    at = xlim[0] + (np.arange(columns) + 0.5) / columns * (xlim[1] - xlim[0])
    heights = np.stack([np.interp(at, times, path) for path in np.asarray(paths)])
    y = ylim[1] - (np.arange(rows) + 0.5) / rows * (ylim[1] - ylim[0])
    density = np.exp(-0.5 * ((y[:, None, None] - heights.T) / BLUR) ** 2).mean(axis=2)
    return shades(np.sqrt(density))  # near the start all flights are in one place


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
