"""The motion of the mixture on few chains."""

from __future__ import annotations

import numpy as np
import torch

from casal_lab.mixture.motions import BINS, METHODS, PLACE, RADIUS, onto_the_circle
from casal_lab.problems.three_modes import CASES, MIXTURE


def test_chains_start_alike_end_on_the_circle_and_are_counted() -> None:
    motion = onto_the_circle(n=40, shown=40)
    panels = {panel.title: panel for panel in motion.panels}
    assert list(panels) == [*METHODS, "exact draws"]
    assert np.array_equal(panels["final projection"].frames[0], panels["SplitGibbs"].frames[0])  # both free so far
    for panel in motion.panels:
        assert np.abs(np.linalg.norm(panel.frames[-1], axis=1) - RADIUS).max() < 1e-6
        assert panel.shares is not None and panel.heights is not None
        weights = MIXTURE.responsibilities(torch.from_numpy(panel.frames[-1].copy())).mean(0).numpy()
        assert np.allclose(panel.shares[-1], weights)
        assert np.allclose(panel.heights.sum(1) * 360 / BINS, 1.0)  # the whole circle
    assert panels["SplitGibbs"].jumps and not panels["CASAL"].jumps
    assert [group.exact for group in motion.groups] == CASES[PLACE].exact.weights.tolist()
    still = panels["exact draws"].frames
    assert (still == still[0]).all()
