"""Several draws of a chain (``casal.HMC(draws=...)``): their law, their errors, and where there is one draw a chain."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.methods import HMC, flat_flows, hmc
from casal.methods.population import Lineage

F = torch.float64
INF = math.inf
HALF_NORMAL = math.sqrt(2.0 / math.pi)


def half_space(d: int, potential: bool = True) -> tuple[casal.Target, casal.Constraint, Tensor]:
    """N(0, I) above zero along the first axis, and its first and second moments."""
    target = casal.langevin(
        lambda x: x, potential=(lambda x: x.square().sum(1) / 2) if potential else None, steps=300,
        init=casal.GaussianStart(d, dtype=F),
    )  # fmt: skip
    right = torch.cat([torch.zeros(d, dtype=F), torch.ones(d, dtype=F)])
    right[0] = HALF_NORMAL
    return target, casal.HalfSpace([-1.0] + [0.0] * (d - 1), 0.0), right


def moments(z: Tensor) -> Tensor:
    return torch.cat([z, z.square()], 1)


def box(d: int) -> tuple[casal.Target, casal.Constraint, Tensor]:
    """A constant density in [0, 1]^d, and its moments."""
    target = casal.langevin(lambda x: 0 * x, steps=300, init=torch.full((d,), 0.5, dtype=F))
    return target, casal.Box([0.0] * d, [1.0] * d), torch.tensor([0.5, 1 / 3], dtype=F).repeat_interleave(d)


def cap(d: int) -> tuple[casal.Target, casal.Constraint, Tensor]:
    """A constant density on a sphere."""
    target = casal.energy(lambda x: 0 * x[:, 0], steps=300, init=casal.GaussianStart(d, dtype=F))
    return target, casal.Sphere(1.0), torch.tensor([0.0, 1 / d], dtype=F).repeat_interleave(d)


@pytest.mark.statistical
@pytest.mark.parametrize("law", [half_space, box, cap])
def test_draws_of_few_chains_have_the_right_moments(law: object) -> None:
    target, constraint, right = law(3)  # type: ignore[operator]
    n = 2000
    result = casal.sample(target, constraint, HMC(draws=7) if law is cap else HMC(), n)
    chains = int((result.state.draw == 0).sum())
    assert chains == 286 and len(result.ancestors.unique()) == chains
    assert int(torch.bincount(result.ancestors).max()) == math.ceil(n / chains)
    assert len(torch.unique(result.samples, dim=0)) > 0.98 * n  # a refused trajectory repeats a point
    found = result.expect(moments)
    assert float(((found.value - right) / found.standard_error).abs().max()) < 4.0
    assert float((found.standard_error / (moments(result.samples).std(0) / math.sqrt(n))).max()) < 1.6
    assert result.fidelity.verdict == "trusted", result.fidelity.reasons
    assert result.fidelity.figures["effective_ancestors"] == pytest.approx(chains, rel=0.01)
    assert float(result.certificate.violation.max()) < 1e-12


@pytest.mark.statistical
def test_errors_know_that_draws_of_a_chain_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws that hardly differ: errors of 30 runs are those that are told, and twice those of independent samples."""
    monkeypatch.setattr(hmc, "APART", 0.999)
    monkeypatch.setattr(flat_flows, "TIME", (0.2, 0.4))
    target, constraint, right = box(2)
    told, naive = list[Tensor](), list[Tensor]()
    for seed in range(30):
        result = casal.sample(target, constraint, HMC(draws=16), 16 * 40, seed=seed, check=False)
        found = result.expect(moments)
        told.append((found.value - right) / found.standard_error)
        alone = Lineage(result.weights, torch.arange(len(result.samples))).mean(moments(result.samples))
        naive.append((alone.value - right) / alone.standard_error)
    # 120 values, of four functions that depend on each other in pairs: an error of 13 % for 60 of them
    assert 0.7 < float(torch.stack(told).square().mean().sqrt()) < 1.35
    assert float(torch.stack(naive).square().mean().sqrt()) > 1.4


def test_few_samples_and_sets_of_their_own_have_one_chain_each() -> None:
    target, constraint, _ = box(2)
    assert int(casal.sample(target, constraint, HMC(), 500, check=False).state.draw.max()) == 0
    own = casal.Box([0.0, 0.0], casal.PerChain(torch.linspace(0.5, 1.0, 600, dtype=F)[:, None].expand(-1, 2)))
    result = casal.sample(target, own, HMC(), 600, check=False)
    assert int(result.state.draw.max()) == 0 and len(result.ancestors.unique()) == 600
    with pytest.raises(SettingError, match="use draws=1"):
        casal.sample(target, own, HMC(draws=2), 600)
    with pytest.raises(SettingError, match="whole number"):
        HMC(draws=0)


@pytest.mark.parametrize("n", [7, 9, 10])
def test_a_number_that_the_draws_do_not_divide(n: int) -> None:
    target, constraint, _ = box(2)
    result = casal.sample(target, constraint, HMC(draws=4), n, check=False)
    assert result.samples.shape == (n, 2) and len(torch.unique(result.samples, dim=0)) == n
    assert torch.equal(torch.unique(result.ancestors, return_inverse=True)[1], torch.arange(n) // 4)


def test_threads_and_stores_give_the_same_draws(tmp_path: object) -> None:
    target, constraint, _ = half_space(3)
    run = casal.Run(batch=100, threads=1)
    one = casal.sample(target, constraint, HMC(draws=4), 400, run=run, check=False)
    two = casal.sample(
        target, constraint, HMC(draws=4), 400, run=casal.Run(batch=100, threads=2, store=f"{tmp_path}/run.zarr"),
        check=False,
    )  # fmt: skip
    assert torch.equal(one.samples, two.samples) and torch.equal(one.ancestors, two.ancestors)
    again = casal.sample(
        target, constraint, HMC(draws=4), 400, run=casal.Run(batch=100, store=f"{tmp_path}/run.zarr"), check=False
    )
    assert torch.equal(one.samples, again.samples)


def test_chains_begin_evenly_at_all_starting_points() -> None:
    """Two far modes without a potential: chains keep the shares of the points that were given, in any order."""
    n = 1200
    start = torch.cat([torch.full((n // 2, 2), 2.0, dtype=F), torch.full((n // 2, 2), 20.0, dtype=F)])
    start += 0.3 * torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=F)
    target = casal.langevin(lambda x: x - torch.where(x.mean(1, keepdim=True) > 11.0, 20.0, 2.0), steps=100, init=start)
    result = casal.sample(target, casal.Box(0.0, INF), HMC(), n)
    assert int(result.state.draw.max()) == 3
    assert float((result.samples[:, 0] > 11.0).to(F).mean()) == pytest.approx(0.5, abs=0.1)
    assert result.fidelity.verdict == "suspect"  # nobody knows the weights


@pytest.mark.statistical
def test_modes_that_are_weighed_get_a_chain_for_every_sample() -> None:
    """N(2, .3^2) with the weight .3 and N(8, .3^2): fresh draws for all samples, so the error is that of n of them."""
    n = 2000

    def energy(x: Tensor) -> Tensor:
        near, far = (-(x - m).square().sum(1) / (2 * 0.09) for m in (2.0, 8.0))
        return -torch.logaddexp(math.log(0.3) + near, math.log(0.7) + far)

    target = casal.energy(energy, steps=300, init=casal.GaussianStart(2, mean=5.0, std=3.0, dtype=F))
    result = casal.sample(target, casal.Box([0.0, 0.0], [10.0, 10.0]), HMC(), n)
    assert int(result.state.draw.max()) == 0 and float(result.trace["weighed"][-1]) == 1.0
    share = result.expect(lambda z: z[:, 0] < 5.0)
    assert abs(float(share.value) - 0.3) < 4.0 * float(share.standard_error)
    assert float(share.standard_error) < 1.6 * math.sqrt(0.21 / n)
