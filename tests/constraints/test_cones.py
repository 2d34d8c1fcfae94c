"""Second-order cone and positive semidefinite matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casal.constraints import (
    PSDCone,
    SecondOrderCone,
)
from casal.errors import ProjectionError

from .points import normal, one


def test_second_order_cone_has_three_cases() -> None:
    cone = SecondOrderCone()
    for point, expected in (
        ([5.0, 3.0, 4.0], [5.0, 3.0, 4.0]),
        ([-5.0, 3.0, 4.0], [0.0, 0.0, 0.0]),
        ([1.0, 3.0, 4.0], [3.0, 1.8, 2.4]),
        ([-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([3e155, 4e155, 0.0], [3.5e155, 3.5e155, 0.0]),
    ):
        np.testing.assert_allclose(one(cone, point), expected, rtol=1e-15, atol=1e-15)
    with pytest.raises(ProjectionError, match="overflows for 1 of 1"):
        cone.project(torch.full((1, 9), 1.7e308, dtype=torch.float64))


def test_psd_cone_clips_a_known_spectrum() -> None:
    basis = torch.linalg.qr(normal(5, 5, seed=12)).Q
    spectrum = torch.tensor([-3.0, -1e-3, 0.0, 2.0, 2.0], dtype=torch.float64)
    skew = normal(5, 5, seed=13)
    z = basis @ torch.diag(spectrum) @ basis.T + 0.5 * (skew - skew.T)
    expected = basis @ torch.diag(spectrum.clamp_min(0)) @ basis.T
    np.testing.assert_allclose(one(PSDCone(), z), expected.numpy(), atol=1e-14)
    assert float(PSDCone().violation(torch.diag(torch.tensor([4.0, -3.0]))[None])) == 1.0
    assert float(PSDCone().violation(torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]]))) == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [0, 6, 12])
def test_matrices_in_mixed_units_are_positive_in_every_unit(ratio: int) -> None:
    """A small block beside a large one is as positive as it is alone."""
    units = 10.0 ** torch.linspace(-ratio / 2, ratio / 2, 3, dtype=torch.float64)
    z = PSDCone().project(units[:, None] * normal(300, 3, 3, seed=ratio) * units)
    assert float(PSDCone().violation(z).max()) <= 1e-13
    assert bool((z.diagonal(dim1=1, dim2=2) >= 0).all())
