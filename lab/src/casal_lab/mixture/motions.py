"""Chains of a diffusion model of the mixture on their way to the circle, for the report page and the gallery."""

from __future__ import annotations

import numpy as np
import torch

import casal
from casal_lab.experiment import AnyMethod, Array
from casal_lab.frames import histogram, panel, progress, walk
from casal_lab.motion import Backdrop, Group, Motion, Panel, Profile, circle, plane, ring, shades
from casal_lab.problems.families import FAMILIES
from casal_lab.problems.three_modes import CASES, MIXTURE

FAMILY, PLACE, RADIUS, EVALUATIONS = "ddpm", "circle R = 2", 2.0, 250

METHODS: dict[str, AnyMethod] = {
    "final projection": casal.FinalProjection(),
    "projected": casal.Projected(),
    "Algorithm 2": casal.CASAL.algorithm2(casal.constant_gain(0.5)),
    "CASAL": casal.CASAL(10.0),
    "SplitGibbs": casal.SplitGibbs(0.02),
}
"""With the settings that the full run of the experiment finds best for this model and set."""

RESAMPLED = ("SplitGibbs",)
"""Methods whose chains become copies of others."""

SEED, FRAMES, SHOWN = 0, 36, 140
WIDTH, HEIGHT, PIXELS, BINS = 3.3, 2.85, 90, 72
"""Half the axes, pixels of the image along each, and bins of the histogram of the angle."""

CAPTION = (
    "A diffusion model with an exact network, {steps} steps, from the same {n} points of noise for every method; "
    "{shown} are drawn. A point is the noisy state of its chain; the last frame shows the samples. SplitGibbs first "
    "samples the model without the constraint, then climbs a ladder of couplings: its chains are resampled there, some "
    "end and others are copied, so points jump. Bars: share of all chains in each mode, with the exact weight as a "
    "mark. Histograms: angle of all chains, with the exact density as a line."
)


def onto_the_circle(n: int = 2000, shown: int = SHOWN) -> Motion:
    """The chains of METHODS and exact draws side by side, with the exact weights of the three modes."""
    case, target = CASES[PLACE], FAMILIES[FAMILY](MIXTURE, EVALUATIONS)
    panels = []
    for label, method in METHODS.items():
        panels.append(_panel(label, walk(target, case.constraint, method, n, SEED, FRAMES), shown))
    exact = case.exact.draw(n, torch.Generator().manual_seed(SEED)).numpy()
    panels.append(_panel("exact draws", np.broadcast_to(exact, (FRAMES, n, 2)), shown))
    groups = [
        Group(name, weight, (1.55 * mean[0] / np.hypot(*mean), 1.55 * mean[1] / np.hypot(*mean)))
        for name, weight, mean in zip("ABC", case.exact.weights.tolist(), MIXTURE.means.tolist(), strict=True)
    ]
    span = float(case.grid[0]), float(case.grid[-1])
    return Motion(
        "mixture_chains",
        "Three modes on a circle: chains on their way",
        CAPTION.format(n=n, shown=min(n, shown), steps=EVALUATIONS),
        panels,
        (-WIDTH, WIDTH),
        (-HEIGHT, HEIGHT),
        frame_labels=[*progress(FRAMES - 1), "the samples"],
        equal=True,
        groups=groups,
        backdrop=backdrop(),
        profile=Profile(case.axis, span, case.density[::5], 1.2 * float(case.density.max())),
    )


def _panel(label: str, frames: Array, shown: int) -> Panel:
    case = CASES[PLACE]

    def shares(z: Array) -> Array:
        found: Array = MIXTURE.responsibilities(torch.from_numpy(z.copy())).mean(0).numpy()
        return found

    def heights(z: Array) -> Array:
        return histogram(case.coordinate(z), (case.grid[0], case.grid[-1]), BINS)

    return panel(label, frames, shown, shares, heights, label in RESAMPLED)


def backdrop() -> Backdrop:
    """The mixture in the plane, the circle, and the exact distribution on it."""
    case = CASES[PLACE]
    x, y = plane(WIDTH, HEIGHT, PIXELS)
    points = torch.from_numpy(np.stack([x, y], axis=2).reshape(-1, 2))
    density = MIXTURE.log_density(points).exp().numpy().reshape(PIXELS, PIXELS)
    turn = np.deg2rad(case.grid)
    labels = "the model without the constraint", "the set", "the exact distribution on the set"
    return Backdrop(shades(density), circle(RADIUS), ring(turn[::2], case.density[::2], RADIUS, 0.6), *labels)
