"""The Navier-Stokes set-up: symmetries of the flow, sets that hold on the truth, the network's extra channels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from casal_lab.pde.navier_stokes import (
    FINE,
    GRID,
    POINTS,
    SEEN,
    FlowUNet,
    finer,
    mismatch,
    prior,
    symmetries,
    tasks,
    to_grid,
)
from casal_lab.pde.prior import Prior, Training
from casal_lab.physics.navier_stokes import advance, diagonal_forcing, random_pairs, velocity

F64 = torch.float64


@pytest.fixture(scope="module")
def known() -> Prior:
    return prior(Training(900, 300, 1))


def test_symmetric_starts_have_symmetric_ends() -> None:
    """Latents on the grid of the symmetries are fields there: advancing commutes with every draw of the symmetries."""
    generator = torch.Generator().manual_seed(0)
    start = random_pairs(1, generator, FINE)[:, 0]
    lift = to_grid(FINE)
    low = (torch.stack([start, start], 1).reshape(1, -1) @ lift) @ lift.T  # modes |k| <= 8 only
    low = low.reshape(1, 2, FINE, FINE)[:, 0].expand(24, -1, -1)
    twice = torch.stack([low, low], 1).reshape(24, -1) @ lift
    moved = (symmetries(twice, torch.Generator().manual_seed(1)) @ lift.T).reshape(24, 2, FINE, FINE)[:, 0]
    push = diagonal_forcing(FINE)
    after = advance(moved, 0.5, push)
    plain = advance(low, 0.5, push)
    both = torch.stack([plain, plain], 1).reshape(24, -1) @ lift
    expected = symmetries(both, torch.Generator().manual_seed(1)) @ lift.T
    seen = torch.stack([after, after], 1).reshape(24, -1) @ lift @ lift.T
    assert torch.allclose(seen, expected, atol=1e-10)
    assert not torch.allclose(moved[0], moved[1])
    wrong = torch.stack([advance(moved, 0.5), advance(moved, 0.5)], 1).reshape(24, -1) @ lift @ lift.T
    assert not torch.allclose(wrong, expected, atol=1e-4)  # power: without the forcing it is another flow


def test_latents_go_round_and_the_set_holds_on_the_truth(known: Prior) -> None:
    assert torch.allclose(known.encode(known.decode(known.latents[:5])), known.latents[:5], atol=1e-12)
    for task in tasks(known, 0):
        assert len(task.index) == 2 * SEEN and len(task.index.unique()) == 2 * SEEN
        cases = task.cases(2, 0)
        assert float(task.constraint(cases).violation(cases.fields).max()) < 1e-14
        assert float(task.constraint(cases).violation(cases.fields.flip(1)).min()) > 1e-4


def test_latents_inside_decode_into_the_set(known: Prior) -> None:
    strict = tasks(known, 0)[0]
    cases = strict.cases(2, 0)
    latents = strict.latents(cases)
    x = latents.project(cases.latents)
    assert float(strict.constraint(cases).violation(known.decode(x)).max()) < 1e-11
    assert float(strict.constraint(cases).violation(known.decode(1.001 * x)).min()) > 1e-5
    nearer = latents.project(x + 1e-3 * (cases.latents - x))  # x is a nearest point: it stays
    assert torch.allclose(nearer, x, atol=1e-8)


def test_extra_channels_are_velocity_and_advection() -> None:
    lift = to_grid(GRID)
    w = random_pairs(2, torch.Generator().manual_seed(3), GRID).reshape(2, -1) @ lift
    data = torch.randn((900, w.shape[1]), generator=torch.Generator().manual_seed(4))
    net = FlowUNet.fit(data, grid=(2, GRID, GRID), lift=lift.float(), widths=(4,))
    fields = (w @ lift.T).reshape(2, 2, GRID, GRID)
    extra = net.extra(fields)
    flat = fields.reshape(4, GRID, GRID)
    u, v = velocity(flat)
    kept = symbols_kept(flat)
    assert torch.allclose(kept(extra[:, :2].reshape(4, GRID, GRID) / 10), kept(u), atol=1e-9)
    assert torch.allclose(kept(extra[:, 2:4].reshape(4, GRID, GRID) / 10), kept(v), atol=1e-9)
    assert extra.shape == (2, 6, GRID, GRID)


def symbols_kept(like: Tensor) -> Callable[[Tensor], Tensor]:
    """Cut fields to the modes that the solver keeps, |k_i| < points / 3."""
    points = like.shape[-1]
    k = torch.fft.fftfreq(points, 1 / points).abs()
    mask = ((3 * k < points)[:, None] & (3 * k < points)[None]).to(F64)
    return lambda w: torch.fft.ifft2(torch.fft.fft2(w.double()) * mask).real


def test_the_mismatch_of_a_true_pair_is_zero() -> None:
    pair = random_pairs(1, torch.Generator().manual_seed(5))[0]
    assert float(mismatch(pair).abs().max()) < 1e-12
    assert float(mismatch(pair.flip(0)).abs().max()) > 0.1


def test_a_finer_grid_has_the_same_fields(known: Prior) -> None:
    fine = finer(known, 2 * POINTS)
    x = known.latents[:2]
    assert torch.allclose(fine.decode(x)[..., ::2, ::2], known.decode(x), atol=1e-10)
