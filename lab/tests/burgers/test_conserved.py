"""Mass and energy of each chain: in the decoded space, and seen from the latent."""

from __future__ import annotations

import torch
from torch import Tensor

from casal import Fourier, PerChain
from casal.constraints import geometry
from casal_lab.burgers.setup import (
    BASIS,
    DIMENSION,
    MODES,
    POINTS,
    SETUPS,
    Conserved,
    ConservedLatents,
    Model,
    Truth,
    least_on_sphere,
    nearest_field,
    truths,
)
from casal_lab.physics.burgers import energy, mass


def test_the_decoder_has_norm_one_and_the_projection_stays_in_its_range(sigma: Tensor) -> None:
    scale = sigma / sigma.max()
    decoder = Fourier(MODES, POINTS, scale=scale)
    matrix = decoder.matrix((DIMENSION,), torch.zeros((0, DIMENSION), dtype=torch.float64))
    assert abs(float(torch.linalg.matrix_norm(matrix, 2)) - 1.0) < 1e-12
    fields = torch.randn(7, DIMENSION, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ matrix.T
    found = nearest_field(fields, torch.linspace(-1, 1, 7).double(), torch.linspace(2, 5, 7).double())
    assert float((found - found @ BASIS @ BASIS.T).abs().max()) < 1e-12


def test_every_chain_meets_its_own_mass_and_energy() -> None:
    truth = truths(SETUPS["B"], 5, 3)
    noisy = truth.initial + torch.randn(5, POINTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = Conserved(PerChain(truth.mass), PerChain(truth.energy)).project(noisy)
    assert float(((mass(found) - truth.mass) / (POINTS * truth.energy).sqrt()).abs().max()) < 1e-12
    assert float((energy(found) / truth.energy - 1).abs().max()) < 1e-12
    assert (
        float(Conserved(PerChain(truth.mass), PerChain(truth.energy)).violation(noisy).min()) > 1e-3
    )  # and noticed when not


def test_the_hard_case_of_the_secular_equation() -> None:
    precision = torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64))
    mean = torch.tensor([[0.0, 0.3, 0.0], [0.0, 5.0, 1.0]], dtype=torch.float64)
    found = least_on_sphere(precision, mean, torch.tensor([2.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(found.norm(dim=1), torch.full((2,), 2.0, dtype=torch.float64))
    drawn = torch.randn((20_000, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sphere = 2.0 * drawn / drawn.norm(dim=1, keepdim=True)
    for row, best in zip(mean, found, strict=True):
        every = ((sphere - row) @ precision * (sphere - row)).sum(1).min()
        assert float((best - row) @ precision @ (best - row)) <= float(every)


def test_sets_of_latents_are_exact(model: Model, truth: Truth) -> None:
    inside = ConservedLatents(model.scale, PerChain(truth.mass), PerChain(truth.energy), POINTS)
    y = torch.randn((len(truth), DIMENSION), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x = inside.project(y)
    assert float(inside.violation(x).max()) < 1e-12
    by_rescaling = nearest_field(y * model.scale @ BASIS.T, truth.mass, truth.energy) @ BASIS / model.scale
    assert bool(((x - y).norm(dim=1) <= (by_rescaling - y).norm(dim=1) + 1e-12).all())


def test_the_fast_projection_is_the_strict_one(truth: Truth) -> None:
    inside = Conserved(PerChain(truth.mass), PerChain(truth.energy))
    y = torch.randn((len(truth), POINTS), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(inside.project(y, quick=True), inside.project(y))
    leaf = y.clone().requires_grad_()
    weights = torch.randn((len(truth), 2), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    (gradient,) = torch.autograd.grad((geometry.residual(inside, leaf) * weights).sum(), leaf)
    torch.testing.assert_close(geometry.residual_pull(inside, y, weights), gradient)
