"""The model's own samples near a set: weighted, they follow the distribution on the set."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal_lab.distances import near_set

from .samples import normal, weights

N = 200_000


def two_modes(n: int) -> Tensor:
    """0.7 N((-1, -1), 0.35^2 I) + 0.3 N((1, 1), 0.35^2 I)."""
    side = torch.where(weights(n) < 0.7, -1.0, 1.0).to(torch.float64)
    return side[:, None] + 0.35 * normal(n, 2, seed=3)


def share_at(c: float) -> float:
    """Share of the lower mode on x0 = c."""
    low, high = (w * math.exp(-((c - m) ** 2) / (2 * 0.35**2)) for w, m in ((0.7, -1.0), (0.3, 1.0)))
    return low / (low + high)


def line(c: float) -> casal.Constraint:
    return casal.Affine([[1.0, 0.0]], [c])


def test_the_share_of_a_mode_on_a_line() -> None:
    near = near_set(two_modes(N), line(0.1), width=0.05)
    found = near.mean((near.feet[:, 1] < 0).double())
    assert found.value == pytest.approx(share_at(0.1), abs=3 * found.standard_error + 0.01)
    assert 0.0 < found.standard_error < 0.03
    # Power: where the share is another one, these samples say so.
    assert abs(found.value - share_at(0.0)) > 5 * found.standard_error
    assert bool((near.feet[:, 0] == 0.1).all())
    assert float(near.weights.sum()) == pytest.approx(1.0)
    assert 100 < near.effective_size < len(near.feet) < near.n == N
    assert torch.allclose(near.feet[:, 1], two_modes(N)[near.index, 1])


def test_the_bias_of_a_width_is_estimated() -> None:
    """On x ~ N(0, I) correlated by 0.9: E[x1 | x0 = 1] = 0.9; the kernel shrinks it to 0.9 / (1 + width^2)."""
    x = normal(N, 2)
    x = torch.stack([x[:, 0], 0.9 * x[:, 0] + math.sqrt(1 - 0.81) * x[:, 1]], 1)
    near = near_set(x, line(1.0), width=0.4)
    found = near.mean(x[near.index, 1])
    right, kernel = 0.9, 0.9 / 1.16
    assert found.value == pytest.approx(kernel, abs=4 * found.standard_error)
    assert abs(found.value - right) > 10 * found.standard_error
    assert found.bias == pytest.approx(kernel - right, abs=0.04)


def test_a_circle_divides_by_its_tube_factor() -> None:
    """N(m, s^2 I) on the circle of radius 1 is von Mises: E[z0] = I1(k) / I0(k), k = |m| / s^2."""
    s = 0.5
    x = torch.tensor([0.5, 0.0], dtype=torch.float64) + s * normal(N, 2)
    k = torch.tensor(0.5 / s**2, dtype=torch.float64)
    right = float(torch.special.i1(k) / torch.special.i0(k))
    near = near_set(x, casal.Sphere(1.0), width=0.05)
    found = near.mean(near.feet[:, 0])
    assert found.value == pytest.approx(right, abs=4 * found.standard_error)
    plain = torch.exp(-near.distances.square() / (2 * 0.05**2)) / torch.linalg.vector_norm(x[near.index], dim=1)
    assert torch.allclose(near.weights, plain / plain.sum())


def test_a_set_with_an_interior_keeps_the_samples_inside() -> None:
    x = normal(2000, 2)
    near = near_set(x, casal.Box([0.0, 0.0], [1.0, 1.0]))
    inside = ((x >= 0) & (x <= 1)).all(1)
    assert torch.equal(near.index, torch.nonzero(inside).flatten())
    assert torch.equal(near.feet, x[inside])
    assert float(near.weights.std()) == 0.0
    assert near.mean(near.feet[:, 0]).bias == 0.0


def test_the_width_by_default_has_the_wanted_effective_size() -> None:
    near = near_set(two_modes(20_000), line(0.1))
    assert near.effective_size == pytest.approx(200.0, rel=0.02)
    few = near_set(two_modes(50), line(0.1))
    assert few.effective_size == pytest.approx(25.0, rel=0.2)


def test_behind_a_decoder() -> None:
    x = normal(5000, 2)
    decoder = casal.Linear(torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    near = near_set(x, line(1.0), width=0.1, decoder=decoder)
    direct = near_set(x * torch.tensor([2.0, 1.0]), line(1.0), width=0.1)
    assert torch.allclose(near.feet, direct.feet)
    assert torch.allclose(near.weights, direct.weights)


def test_it_shows_a_constrained_run_that_is_wrong() -> None:
    """One projection of free samples keeps the free shares of the modes; the samples near the set do not."""
    x = two_modes(N)
    near = near_set(x, line(0.1), width=0.05)
    found = near.mean((near.feet[:, 1] < 0).double())
    projected = float((x[:4000, 1] < 0).double().mean())
    assert abs(projected - found.value) > 10 * found.standard_error


def test_refusals() -> None:
    x = normal(100, 2)
    with pytest.raises(ShapeError, match="at least one"):
        near_set(x[:0], line(0.0))
    with pytest.raises(SettingError, match="width"):
        near_set(x, line(0.0), width=0.0)
    with pytest.raises(SettingError, match="inequalities"):
        near_set(x, casal.Box([50.0, 50.0], [51.0, 51.0]))
    far = near_set(x, line(50.0), width=0.1)
    assert len(far.feet) == 0
    assert far.effective_size == 0.0
    with pytest.raises(SettingError, match="larger width"):
        far.mean(far.weights)
    with pytest.raises(ShapeError, match="one for each"):
        far.mean(torch.zeros(3))
