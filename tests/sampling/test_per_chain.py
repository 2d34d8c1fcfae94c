"""Runs in which every chain has its own set: cut with the batches, certified, stored, never mixed by resampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import casal
from casal import PerChain
from casal.errors import SettingError, ShapeError

N, STEPS = 96, 30
MASS = torch.linspace(-1.0, 1.0, N, dtype=torch.float64)
ENERGY = torch.linspace(2.0, 5.0, N, dtype=torch.float64)
OWN = casal.MassEnergy(PerChain(MASS), PerChain(ENERGY))
TWO = casal.Sphere(PerChain(torch.tensor([1.0, 2.0], dtype=torch.float64).repeat_interleave(N // 2)))


def target(steps: int = STEPS, dtype: torch.dtype = torch.float64) -> casal.Target:
    start = torch.randn((N, 4), generator=torch.Generator().manual_seed(3), dtype=dtype)
    mean = torch.tensor([0.5, -0.2, 0.1, 0.9], dtype=dtype)
    return casal.langevin(lambda x: x - mean, steps=steps, step_size=0.1, init=start)


def diffusion() -> casal.Target:
    sigmas = casal.karras_sigmas(15, 0.05, 5.0)
    return casal.edm(lambda y, s: y / (1 + s.to(y) ** 2), sigmas, shape=4, churn=1.0, dtype=torch.float64)


LONE = {
    "casal": casal.CASAL(10.0),
    "explicit": casal.CASAL.algorithm2(2.0),
    "projected": casal.Projected(),
    "final projection": casal.FinalProjection(),
    "penalty": casal.FinalProjection(casal.Penalty(0.01)),
}


@pytest.mark.parametrize("name", LONE)
@pytest.mark.parametrize("batch", [N, 40, 7])
def test_every_chain_is_in_its_own_set(name: str, batch: int) -> None:
    result = casal.sample(target(), OWN, LONE[name], N, run=casal.Run(batch=batch, record_every=10))
    z = result.samples
    torch.testing.assert_close(z.sum(1), MASS, rtol=0, atol=1e-12)
    torch.testing.assert_close(z.square().sum(1), ENERGY, rtol=1e-12, atol=0)
    assert bool(result.certificate.feasible.all())
    # The certificate can tell: the sets of other chains are not those of these samples.
    assert not bool(OWN.take(torch.arange(N - 1, -1, -1)).violation(z)[: N // 3].le(1e-6).any())


@pytest.mark.parametrize("name", LONE)
def test_a_chain_with_its_own_set_is_the_chain_of_a_run_with_that_set(name: str) -> None:
    together = casal.sample(target(), OWN, LONE[name], N)
    for chain in (0, 17, N - 1):
        alone = casal.MassEnergy(float(MASS[chain]), float(ENERGY[chain]))
        same_noise = casal.sample(target(), alone, LONE[name], N)
        torch.testing.assert_close(together.samples[chain], same_noise.samples[chain], rtol=0, atol=1e-12)


def test_chains_run_in_their_own_dtype_where_the_set_has_a_closed_form() -> None:
    result = casal.sample(target(dtype=torch.float32), OWN, casal.CASAL(10.0), N, run=casal.Run(batch=40))
    assert result.state.z.dtype == torch.float32 and result.samples.dtype == torch.float64
    assert float(result.certificate.violation.max()) <= 1e-12


def test_sets_for_each_chain_and_common_sets_intersect() -> None:
    both = casal.Affine([[1.0, 1.0, 1.0, 1.0]], PerChain(MASS[:, None])) & casal.Sphere(2.0)
    result = casal.sample(target(), both, casal.CASAL(10.0), N, run=casal.Run(batch=40))
    torch.testing.assert_close(result.samples.sum(1), MASS, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.samples.norm(dim=1), torch.full_like(MASS, 2.0), rtol=1e-12, atol=0)


def test_behind_a_decoder() -> None:
    A = torch.randn((6, 4), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    radius = PerChain(torch.linspace(1.0, 3.0, N, dtype=torch.float64))
    result = casal.sample(
        target(), casal.Sphere(radius), casal.CASAL(10.0), N, decoder=casal.Linear(A), run=casal.Run(batch=40)
    )
    torch.testing.assert_close(result.samples.norm(dim=1), radius.values, rtol=1e-12, atol=0)


POPULATIONS: dict[str, tuple[Any, Any]] = {
    "weighted": (lambda: target(60), casal.WeightedCASAL(50.0)),
    "gibbs": (diffusion, casal.SplitGibbs(0.2, levels=6, inner_steps=4)),
    "metropolis": (diffusion, casal.SplitGibbs(0.2, levels=6, inner_steps=4, moves="metropolis")),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_resampling_keeps_to_chains_of_the_same_set(name: str) -> None:
    make, method = POPULATIONS[name]
    result = casal.sample(make(), TWO, method, N, run=casal.Run(batch=40))
    radius = result.samples.norm(dim=1)
    torch.testing.assert_close(radius[: N // 2], torch.ones(N // 2, dtype=torch.float64))
    torch.testing.assert_close(radius[N // 2 :], torch.full((N // 2,), 2.0, dtype=torch.float64))
    assert bool((result.ancestors < N // 2).eq(torch.arange(N) < N // 2).all())
    assert len(result.ancestors.unique()) < N, "chains were resampled"


@pytest.mark.parametrize("name", POPULATIONS)
def test_populations_of_too_few_chains_of_a_set_are_refused(name: str) -> None:
    make, method = POPULATIONS[name]
    with pytest.raises(SettingError, match="at least 16 chains of each PerChain value and condition, found 1"):
        casal.sample(make(), OWN, method, N)


@pytest.mark.statistical
def test_two_sets_in_one_run_have_the_distributions_of_two_runs() -> None:
    """N(mean, I) on circles of radius 1 and 2: the mean of z1, by quadrature, for each half of the chains."""
    mean, n = torch.tensor([0.8, 0.3], dtype=torch.float64), 6000
    radius = torch.tensor([1.0, 2.0], dtype=torch.float64).repeat_interleave(n // 2)
    model = casal.langevin(
        lambda x: x - mean, steps=150, step_size=0.2, init=lambda k, g: torch.randn((k, 2), generator=g).double() + mean
    )
    z = casal.sample(model, casal.Sphere(PerChain(radius)), casal.WeightedCASAL(200.0), n, seed=1).samples
    angle = torch.linspace(0.0, 2 * torch.pi, 4001, dtype=torch.float64)[:-1]
    for half, r in ((z[: n // 2], 1.0), (z[n // 2 :], 2.0)):
        points = r * torch.stack([angle.cos(), angle.sin()], dim=1)
        weight = torch.softmax(-(points - mean).square().sum(1) / 2, 0)
        exact, spread = float((weight * points[:, 0]).sum()), float((weight * points[:, 0].square()).sum().sqrt())
        # Resampling leaves about a third of the chains independent.
        assert abs(float(half[:, 0].mean()) - exact) < 4 * spread / (n / 6) ** 0.5
    # Power: the halves differ by more than that.
    assert abs(float(z[: n // 2, 0].mean() - z[n // 2 :, 0].mean())) > 0.3


def test_stored_and_continued(tmp_path: Path) -> None:
    plain = casal.sample(target(), OWN, casal.CASAL(10.0), N, run=casal.Run(batch=40))
    for _ in range(2):
        kept = casal.sample(target(), OWN, casal.CASAL(10.0), N, run=casal.Run(batch=40, store=tmp_path / "run.zarr"))
        assert torch.equal(kept.samples, plain.samples)
    other = casal.MassEnergy(PerChain(MASS), PerChain(ENERGY + 1.0))
    with pytest.raises(casal.errors.StoreError, match="constraint"):
        casal.sample(target(), other, casal.CASAL(10.0), N, run=casal.Run(batch=40, store=tmp_path / "run.zarr"))


@pytest.mark.slow
@pytest.mark.parametrize("square", [False, True])
def test_projected_to_the_nearest_latents(square: bool) -> None:
    """Every chain to its own set behind a decoder, in closed form (A A^T = c I) and by Newton steps."""
    A = torch.randn((2, 4), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if square:
        A = 2.0 * torch.linalg.qr(A.T)[0].T
    radius = PerChain(torch.linspace(1.0, 3.0, N, dtype=torch.float64))
    method = casal.Projected(latent="exact", burn_in=3)
    result = casal.sample(target(10), casal.Sphere(radius), method, N, decoder=casal.Linear(A), run=casal.Run(batch=40))
    torch.testing.assert_close((result.state.x @ A.T).norm(dim=1), radius.values, rtol=1e-10, atol=0)


@pytest.mark.parametrize("method", [casal.PrimalDual(0.1), casal.CASAL(10.0, dual="mean")], ids=lambda m: m.name)
def test_one_multiplier_for_all_chains_needs_one_set(method: Any) -> None:
    with pytest.raises(SettingError, match="common set, not PerChain"):
        casal.sample(target(), OWN, method, N)


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="parameters for 96 chains, but n = 40"):
        casal.sample(diffusion(), OWN, casal.CASAL(10.0), 40)
    with pytest.raises(SettingError, match="common to all chains"):
        casal.sample(target(), OWN, casal.CASAL(10.0), N, run=casal.Run(compile=True))
    with pytest.raises(SettingError, match="islands"):
        casal.sample(diffusion(), TWO, casal.SplitGibbs(0.2, islands=2), N)
