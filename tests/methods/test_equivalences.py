"""Two roads to the same numbers, along diffusions. (Families against each other: tests/targets.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL, FinalProjection, Projected

F64 = torch.float64
SIZE = 5
BETAS = torch.linspace(1e-4, 0.2, 40, dtype=F64)


def bent(x: Tensor, t: Tensor) -> Tensor:
    """Some network that is no score of anything."""
    return torch.sin(2 * x + 0.01 * t) + 0.2 * x


FAMILIES: dict[str, Callable[[], casal.Target]] = {
    "ddpm": lambda: casal.ddpm(bent, BETAS, shape=SIZE, steps=20, dtype=F64),
    "ddim": lambda: casal.ddim(bent, BETAS, shape=SIZE, steps=20, dtype=F64),
    "vp_sde": lambda: casal.vp_sde(
        lambda x, t: -x - 0.1 * bent(x, t), steps=30, corrector_steps=1, shape=SIZE, dtype=F64
    ),
    "edm": lambda: casal.edm(lambda x, s: bent(x, s) / (1 + s), casal.karras_sigmas(15), shape=SIZE, dtype=F64),
    "flow": lambda: casal.flow(lambda x, t: bent(x, t) - x, steps=20, shape=SIZE, dtype=F64),
}
METHODS: dict[str, casal.Method[Any]] = {
    "casal": CASAL(10.0),
    "casal-denoised": CASAL(10.0, couple="denoised"),
    "casal-state": CASAL(casal.constant_gain(0.5), couple="state"),
    "projected": Projected(),
    "projected-exact": Projected(latent="exact"),
    "final-projection": FinalProjection(),
}


def samples(family: str, method: casal.Method[Any], decoder: casal.Decoder | None) -> Tensor:
    return casal.sample(FAMILIES[family](), casal.MassEnergy(1.0, 4.0), method, 6, decoder=decoder, seed=2).samples


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_identity_matrix_is_the_identity_along_a_diffusion(family: str, method: str) -> None:
    eye = torch.eye(SIZE, dtype=F64)
    plain = samples(family, METHODS[method], None)
    for decoder in (casal.Linear(eye), casal.Rows(casal.Identity(), range(SIZE)), casal.DCT(1, 1, channels=SIZE)):
        torch.testing.assert_close(
            samples(family, METHODS[method], decoder).reshape(plain.shape), plain, atol=1e-11, rtol=0
        )


def test_the_comparison_notices_another_matrix() -> None:
    other = torch.eye(SIZE, dtype=F64)
    other[0, 1] = 1e-6
    apart = samples("ddpm", CASAL(10.0), casal.Linear(other)) - samples("ddpm", CASAL(10.0), None)
    assert float(apart.abs().max()) > 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_huge_coupling_to_the_state_is_projection_at_every_step(family: str) -> None:
    """rho leads from unconstrained to projected; an affine set, where P is linear and the limit is clean."""
    plane = casal.Affine(torch.ones(1, SIZE), 1.0)
    model = FAMILIES[family]()
    strong = casal.sample(model, plane, CASAL(1e14, couple="state", dual_step=0.0), 6, seed=2)
    projected = casal.sample(model, plane, Projected(), 6, seed=2)
    torch.testing.assert_close(strong.samples, projected.samples, atol=1e-6, rtol=1e-6)


def test_flow_says_what_its_start_costs() -> None:
    """Rows and start together are the Euler steps that were asked for, counted at the network itself."""
    calls: list[int] = []

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        calls.append(len(x))
        return -x

    target = casal.flow(velocity, steps=12, shape=2, time="scalar")
    assert callable(target.init) and target.init_evaluations == 1
    x = target.init(7, torch.Generator().manual_seed(0))
    for t in target.table.t:
        target.score(x, t)
    assert sum(calls) == 7 * (len(target.table) + target.init_evaluations) == 7 * 12
    assert casal.posterior(target, [[1.0, 0.0]], [1.0], 0.1).init_evaluations == 1
    assert casal.ddpm(bent, BETAS, shape=2).init_evaluations == 0
