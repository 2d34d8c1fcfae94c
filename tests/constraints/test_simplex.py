"""Simplex and l1 ball at ties and shifts."""

from __future__ import annotations

import numpy as np

from casal.constraints import (
    L1Ball,
    Simplex,
)

from .points import one


def test_simplex_and_ball_at_ties_and_shifts() -> None:
    np.testing.assert_allclose(one(Simplex(), [0.2, 0.2, 0.2, 0.2]), np.full(4, 0.25), atol=1e-16)
    np.testing.assert_allclose(one(Simplex(), [1e15, 1e15, -1e15]), [0.5, 0.5, 0.0], atol=0)
    np.testing.assert_allclose(one(Simplex(3.0), [-7.0, -7.0, -8.5]), [4 / 3 + 1 / 6 + 0, 1.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(one(L1Ball(2.0), [-5.0, 5.0]), [-1.0, 1.0], atol=1e-16)
    np.testing.assert_allclose(one(L1Ball(2.0), [0.0, 0.0]), [0.0, 0.0], atol=0)
