"""Chains of the particle on their way to the circle, for the player of the report page and the gallery."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from casal import Sphere
from casal_lab.experiment import Array
from casal_lab.frames import histogram, panel, progress, walk
from casal_lab.motion import Backdrop, Group, Motion, Panel, Profile, circle, plane, ring, shades
from casal_lab.particle.setup import RADIUS, SIGMA_Y, exact_answer, exact_density
from casal_lab.problems import double_well
from casal_lab.study import Case

LABELS = ("projected", "Algorithm 2", "released code", "CASAL", "WeightedCASAL")
RESAMPLED = ("WeightedCASAL",)
"""Methods whose chains become copies of others."""

SEED, FRAMES, SHOWN = 1, 36, 140
WIDTH, HEIGHT, PIXELS = 4.2, 3.4, 90
"""Half the axes, and pixels of the image along each."""

SPREAD, BINS, TOP = (-0.5, 0.5), 40, 5.0
"""Limits, bins and highest density of the histogram of y."""

CAPTION = (
    "The same {n} starting points for every method; {shown} are drawn. A point is where its chain stands: projected "
    "chains are put on the circle after each step, from a tenth of the run on; those of CASAL explore the plane and "
    "are pulled to the circle more and more. The last frame shows the samples. Chains of WeightedCASAL are resampled "
    "on the way: some end, others are copied, so points jump. Histograms: y of the chains on the left, with the exact "
    "density as a line. Shares and histograms count all chains."
)


def onto_the_circle(cases: Mapping[str, Case], n: int = 2000, shown: int = SHOWN) -> Motion:
    """The chains of LABELS and exact draws side by side; the left side holds all but 7e-8 of the exact distribution."""
    panels = []
    for label in LABELS:
        frames = walk(cases[label][0], Sphere(RADIUS), cases[label][1], n, SEED, FRAMES)
        panels.append(_panel(label, frames, shown))
    panels.append(_panel("exact draws", np.broadcast_to(_exact_draws(n), (FRAMES, n, 2)), shown))
    wrong = exact_answer()["wrong"]
    groups = [Group("left", 1.0 - wrong, (-1.9, 0.8)), Group("right", wrong, (1.9, 0.8))]
    return Motion(
        "particle_chains",
        "A particle on a circle: chains on their way",
        CAPTION.format(n=n, shown=min(n, shown)),
        panels,
        (-WIDTH, WIDTH),
        (-HEIGHT, HEIGHT),
        frame_labels=[*progress(FRAMES - 1), "the samples"],
        equal=True,
        groups=groups,
        backdrop=backdrop(),
        profile=Profile("y of chains on the left", SPREAD, _spread(np.linspace(*SPREAD, 101)), TOP),
    )


def _panel(label: str, frames: Array, shown: int) -> Panel:
    def shares(z: Array) -> Array:
        right = float((z[:, 0] > 0).mean())
        return np.array([1.0 - right, right])

    def heights(z: Array) -> Array:
        return histogram(z[z[:, 0] < 0, 1], SPREAD, BINS)

    return panel(label, frames, shown, shares, heights, label in RESAMPLED)


def backdrop() -> Backdrop:
    """The density in the plane, the circle, and the exact distribution on it."""
    x, y = plane(WIDTH, HEIGHT, PIXELS)
    density = np.exp(-double_well.potential(x) - 0.5 * (y / SIGMA_Y) ** 2)
    angle, exact = exact_density()
    kept = slice(None, None, 25)
    area = ring(angle[kept], exact[kept], RADIUS, 1.0)
    labels = "the density without the constraint", "the set", "the exact distribution on the set"
    return Backdrop(shades(density), circle(RADIUS), area, *labels)


def _exact_draws(n: int) -> Array:
    """Independent draws (n, 2) on the grid of the quadrature."""
    angle, density = exact_density()
    drawn = np.random.default_rng(SEED).choice(angle, n, p=density / density.sum())
    return RADIUS * np.stack([np.cos(drawn), np.sin(drawn)], axis=1)


def _spread(y: Array) -> Array:
    """Density of y on the left side: that of the angle over R |cos|; the right side has nothing to speak of."""
    angle, density = exact_density()
    turn = np.pi - np.arcsin(y / RADIUS)
    return np.interp(turn, angle, density, period=2 * np.pi) / (RADIUS * np.abs(np.cos(turn)))
