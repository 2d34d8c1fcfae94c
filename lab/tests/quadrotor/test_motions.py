"""A batch being solved: its frames are what the solver and the certificate say."""

from __future__ import annotations

import json

import numpy as np
import torch

from casal_lab.motion import SUCCESS
from casal_lab.physics.quadrotor import flown
from casal_lab.quadrotor import repair, scene, solve
from casal_lab.quadrotor.motions import AFTER, solving


def test_the_frames_are_the_flights_after_so_many_iterations() -> None:
    place = scene("slalom", r=0.3)
    motion = solving(place, ["noise"], n=3, after=(0, 2, 20), batch=3, points=200)
    (panel,) = motion.panels
    assert panel.frames.shape == (3, 3, 200, 2)
    assert panel.ghost is None  # of noise, no path was sampled
    assert panel.marks is not None
    starts = torch.randn((3, 200, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for frame, marks, k in zip(panel.frames, panel.marks, (0, 2, 20), strict=True):
        events = repair(place, starts, iterations=k)[0] if k else starts
        outputs = flown(place.vehicle.dynamics, events)
        assert np.allclose(frame[:, :, 1], outputs[:, :, 0].numpy())
        assert ((marks == SUCCESS) == (place.depth(outputs) <= 0.01).numpy()).all()
    assert np.allclose(panel.frames[..., 0], np.arange(1, 201) * 0.01)
    last = solve(place, "noise", n=3, seed=0, iterations=20)
    assert np.allclose(panel.frames[-1, :, :, 1], last.positions.numpy())
    assert list(motion.frame_labels) == ["0 iterations", "2 iterations", "20 iterations"]


def test_walls_stand_where_the_scene_has_them() -> None:
    place = scene("hard", r=0.8)
    motion = solving(place, ["zero"], n=1, after=(0, 1), batch=1)
    middles = [(x0 + x1) / 2 for x0, _, x1, _ in motion.shapes]
    assert np.allclose(middles, [(w.start + w.stop + 1) / 2 * 0.01 for w in place.walls])  # sample s is at (s + 1) ds
    assert [(low, high) for _, low, _, high in motion.shapes] == [(w.low, w.high) for w in place.walls]
    assert motion.ylim[0] < -0.3
    assert motion.ylim[1] > 1.3
    assert motion.xlim == (0.0, 2.0)


def test_discs_stay_round_and_are_seen_whole() -> None:
    motion = solving(scene("discs"), ["zero"], n=2, after=(0, 1), batch=2)
    assert motion.equal
    for x, z, radius in motion.shapes:
        assert motion.xlim[0] <= x - radius <= x + radius <= motion.xlim[1]
        assert motion.ylim[0] <= z - radius <= z + radius <= motion.ylim[1]


def test_four_methods_take_less_than_400_kb() -> None:
    one = solving(scene("slalom", r=0.3), ["noise"], n=24, after=(0, 1), batch=24)
    size = len(json.dumps(one.record()))
    ghost = 24 * 60 * 2 * 4 / 3
    assert 4 * (size * len(AFTER) / 2 + ghost) < 400_000
