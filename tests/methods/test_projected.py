"""Projected(latent="exact"): the image of every iterate is in the set, and the latent is the nearest such one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal import Projected
from casal.errors import SettingError

F64 = torch.float64
N = 12
MIXED = torch.tensor([[1.0, 2.0, 0.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, -1.0, 0.0]], dtype=F64)

SETS: dict[str, casal.Constraint] = {
    "sphere": casal.Sphere(1.5),
    "affine": casal.Affine(MIXED, [1.0, 0.5]),
    "mass-energy": casal.MassEnergy(1.0, 4.0),
    "box": casal.Box(-0.8, 1.5),
}


def matrix(rows: int, columns: int) -> Tensor:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(0), dtype=F64)


DECODERS: dict[str, tuple[Callable[[], casal.Decoder], int]] = {
    "orthogonal rows": (lambda: casal.Linear(1.3 * torch.linalg.qr(matrix(8, 8))[0][:6]), 8),
    "tall matrix": (lambda: casal.Linear(matrix(6, 4)), 4),
    "fourier": (lambda: casal.Fourier(2, 6), 3),
    "dct": (lambda: casal.DCT(4, 6, scale=[1.0, 0.8, 0.5, 0.4]), 4),
    "dst": (lambda: casal.DST(4, 6), 4),
    "rows": (lambda: casal.Rows(casal.DCT(5, 9), [0, 2, 3, 5, 6, 8]), 5),
}


def target(size: int, steps: int = 5) -> casal.Target:
    start = torch.randn((N, size), generator=torch.Generator().manual_seed(1), dtype=F64)
    return casal.langevin(lambda x: x - 0.3, steps=steps, step_size=0.05, init=start)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SETS)
@pytest.mark.parametrize("name", DECODERS)
def test_every_iterate_decodes_into_the_set(name: str, shape: str) -> None:
    make, size = DECODERS[name]
    decoder, constraint = make(), SETS[shape]
    for steps in (1, 2, 5):
        result = casal.sample(target(size, steps), constraint, Projected(latent="exact"), N, decoder=decoder, tol=1e-10)
        assert float(constraint.violation(decoder(result.state.x)).max()) <= 1e-10
        assert bool(result.certificate.feasible.all())
        assert result.cost.projections == steps + 1
        torch.testing.assert_close(result.samples, decoder(result.state.x), atol=1e-9, rtol=0)  # the end moves nothing


def test_the_pseudo_inverse_leaves_the_set() -> None:
    """Why there is a choice: A A^+ P(z) is not in C where A does not reach P(z)."""
    decoder = casal.Linear(matrix(6, 4))
    result = casal.sample(target(4), SETS["affine"], Projected(), N, decoder=decoder)
    assert float(SETS["affine"].violation(decoder(result.state.x)).max()) > 0.01
    assert bool(result.certificate.feasible.all())


def test_repeats_are_alternating_projections_onto_the_range() -> None:
    """x' = (A^+ P A)^k y, by hand after one step; many of them reach the set and the range at once."""
    A = matrix(6, 4)
    constraint, decoder = SETS["affine"], casal.Linear(A)
    y = casal.sample(target(4, 1), constraint, casal.Unconstrained(), N, decoder=decoder).state.x
    for _ in range(3):
        y = constraint.project(y @ A.T) @ torch.linalg.pinv(A).T
    found = casal.sample(target(4, 1), constraint, Projected(repeats=3), N, decoder=decoder).state.x
    torch.testing.assert_close(found, y, atol=1e-12, rtol=0)
    many = casal.sample(target(4, 1), constraint, Projected(repeats=2000), N, decoder=decoder).state.x
    assert float(constraint.violation(decoder(many)).max()) < 1e-6
    with pytest.raises(casal.errors.SettingError, match="repeats = 2"):
        Projected(latent="exact", repeats=2)


def test_the_latent_is_the_nearest() -> None:
    """Affine sets in closed form, and rows with A A^T = c I on a sphere; both by hand."""
    A = matrix(6, 4)
    free = casal.sample(target(4, 1), SETS["affine"], casal.Unconstrained(), N, decoder=casal.Linear(A))
    exact = casal.sample(target(4, 1), SETS["affine"], Projected(latent="exact"), N, decoder=casal.Linear(A))
    rows, level = MIXED @ A, torch.tensor([1.0, 0.5], dtype=F64)
    x = free.state.x
    expected = x - (x @ rows.T - level) @ torch.linalg.pinv(rows).T
    torch.testing.assert_close(exact.state.x, expected, atol=1e-12, rtol=0)

    Q = 1.3 * torch.linalg.qr(matrix(8, 8))[0][:6]
    free = casal.sample(target(8, 1), SETS["sphere"], casal.Unconstrained(), N, decoder=casal.Linear(Q))
    exact = casal.sample(target(8, 1), SETS["sphere"], Projected(latent="exact"), N, decoder=casal.Linear(Q))
    z = free.state.x @ Q.T
    onto = free.state.x + (SETS["sphere"].project(z) - z) @ Q / 1.3**2
    torch.testing.assert_close(exact.state.x, onto, atol=1e-12, rtol=0)


def test_without_decoder_both_ways_are_one() -> None:
    for constraint in SETS.values():
        a, b = (casal.sample(target(6), constraint, Projected(latent=way), N) for way in ("pinv", "exact"))
        assert torch.equal(a.state.x, b.state.x)


def test_burn_in_and_fields_of_numbers() -> None:
    """Latent and decoded events that are grids, and steps that are not projected."""
    decoder, constraint = casal.DCT((2, 2), (3, 3)), casal.Affine(torch.ones(1, 9), 2.0)
    start = torch.randn((N, 2, 2), generator=torch.Generator().manual_seed(1), dtype=F64)
    model = casal.langevin(lambda x: x, steps=4, step_size=0.05, init=start)
    result = casal.sample(model, constraint, Projected(burn_in=3, latent="exact"), N, decoder=decoder)
    assert result.samples.shape == (N, 3, 3) and result.cost.projections == 2
    assert float(constraint.violation(decoder(result.state.x)).max()) <= 1e-12


def test_what_cannot_work_is_refused_with_the_way_out() -> None:
    with pytest.raises(SettingError, match=r"latent must be one of .*'nearest'"):
        Projected(latent="nearest")
    with pytest.raises(SettingError, match=r"needs a linear decoder, got Nonlinear; behind others state the set"):
        casal.sample(target(4), casal.Sphere(1.0), Projected(latent="exact"), N, decoder=casal.Nonlinear(torch.sin))
    no_mean = casal.Linear(matrix(6, 3) - matrix(6, 3).mean(0))
    for constraint in (casal.Affine(torch.ones(1, 6), 1.0), casal.MassEnergy(1.0, 4.0)):
        with pytest.raises(SettingError, match=r"use latent='pinv'"):
            casal.sample(target(3), constraint, Projected(latent="exact"), N, decoder=no_mean)
