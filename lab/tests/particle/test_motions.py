"""The motion of the particle on short runs: where its frames come from, and what is counted."""

from __future__ import annotations

import numpy as np

from casal import FinalProjection, Projected
from casal_lab.particle import motions
from casal_lab.particle.motions import onto_the_circle
from casal_lab.particle.setup import OURS, RADIUS, exact_answer, plain


def test_frames_end_on_the_circle_and_are_counted() -> None:
    short = {label: (plain(OURS._replace(steps=80)), FinalProjection()) for label in motions.LABELS}
    short["projected"] = (plain(OURS._replace(steps=80)), Projected())
    motion = onto_the_circle(short, n=300, shown=30)
    free, stuck = motion.panels[1], motion.panels[0]
    radii = [np.linalg.norm(panel.frames, axis=2) for panel in (free, stuck)]
    assert np.abs(radii[0][-1] - RADIUS).max() < 1e-9 < np.abs(radii[0][-2] - RADIUS).max()
    assert np.abs(radii[1] - RADIUS).max() < 1e-6  # on the circle after every step
    # The same starting points: after one step, projected chains are the free ones put on the circle.
    first = RADIUS * free.frames[0] / radii[0][0][:, None]
    assert np.abs(first - stuck.frames[0]).max() < 1e-5
    everyone = onto_the_circle(short, n=300, shown=300)
    z = everyone.panels[1].frames
    assert free.shares is not None and free.heights is not None
    assert np.allclose(free.shares[:, 1], (z[:, :, 0] > 0).mean(axis=1))
    assert np.allclose(free.frames, z[:, np.linspace(0, 299, 30).round().astype(int)])
    inside = np.abs(z[-1][z[-1][:, 0] < 0, 1]) < 0.5
    assert motions.SPREAD == (-0.5, 0.5)
    assert np.isclose(free.heights[-1].sum() / motions.BINS, inside.mean())


def test_the_exact_line_and_the_exact_draws_have_the_spread_of_quadrature() -> None:
    short = {label: (plain(OURS._replace(steps=40)), FinalProjection()) for label in motions.LABELS}
    motion = onto_the_circle(short, n=3000, shown=3000)
    assert motion.profile is not None
    y, density = np.linspace(*motion.profile.limits, len(motion.profile.exact)), motion.profile.exact
    weight = density / density.sum()
    assert np.isclose(density.sum() * (y[1] - y[0]), 1.0, atol=1e-4)
    assert np.isclose(np.sqrt((weight * y**2).sum()), exact_answer()["sd_y"], rtol=1e-3)
    draws = motion.panels[-1].frames[0]
    assert abs(draws[:, 1].std() / exact_answer()["sd_y"] - 1.0) < 4 / np.sqrt(2 * 3000)
    assert (draws[:, 0] < 0).all()
