"""R-hat and effective sample size against another library and against a chain whose autocorrelation is known."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from casal.diagnostics import mixing
from casal.methods.chain_memory import LARGEST_SHIFT, drift


def autoregressive(chains: int, draws: int, phi: float, seed: int = 0) -> Tensor:
    """Chains (chains, draws, 1) of x' = phi x + sqrt(1 - phi^2) w, stationary from the start."""
    noise = torch.randn((draws, chains), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = [noise[0]]
    for w in noise[1:]:
        x.append(phi * x[-1] + (1 - phi**2) ** 0.5 * w)
    return torch.stack(x, dim=1)[..., None]


def test_figures_are_those_of_arviz() -> None:
    """Where its search for the last lag ends by itself; at the end of a short chain it leaves out the last pair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
    draws = autoregressive(20, 400, 0.9)
    found, plain = mixing(draws), draws[..., 0].numpy()
    assert found is not None
    assert float(found.r_hat) == pytest.approx(float(arviz.rhat(plain, method="split")), rel=1e-12)
    assert float(found.ess) == pytest.approx(float(arviz.ess(plain, method="mean")), rel=1e-9)


@pytest.mark.statistical
@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_the_effective_size_of_an_autoregression(phi: float) -> None:
    """N (1 - phi) / (1 + phi); the estimate over 200 chains is within a tenth of it."""
    draws = autoregressive(200, 400, phi)
    found = mixing(draws)
    assert found is not None
    assert float(found.ess) == pytest.approx(draws[..., 0].numel() * (1 - phi) / (1 + phi), rel=0.1)
    assert float(found.r_hat) < 1.1


def test_chains_apart_are_seen_and_constants_are_not_judged() -> None:
    draws = autoregressive(4, 50, 0.0)
    apart = draws + 3.0 * torch.arange(4.0)[:, None, None]
    found = mixing(torch.cat([draws, apart, torch.ones_like(draws)], dim=2))
    assert found is not None
    assert float(found.r_hat[0]) < 1.05 and float(found.r_hat[1]) > 2.0 and bool(found.r_hat[2].isnan())
    assert float(found.ess[1]) < 20.0 and bool(found.ess[2].isnan())
    assert mixing(draws[:, :3]) is None


def test_a_mean_that_moves_on_is_told() -> None:
    """By 1.0 and then 0.3 deviations; chains that have come to rest in between move by chance."""
    anchor, before, y = torch.randn((3, 400, 2), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    aside = torch.tensor([1.0, 0.0], dtype=torch.float64)
    way, late, told, left = drift(anchor - aside, before - 0.3 * aside, y)
    assert abs(way - 1.0) < 0.3 and abs(late - 0.3) < 0.3 and told > 10.0 and left > 0.1
    assert drift(anchor - aside, before, y).left < 0.1 and drift(anchor, before, y).left == 0.0


@pytest.mark.statistical
def test_chains_that_began_at_one_point_and_are_at_rest_raise_no_alarm() -> None:
    """Twelve coordinates, 3 deviations from the start: none of 100 right runs, nine of ten that move on by 0.4."""
    y, before = torch.randn((2, 100, 300, 12), generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    start = torch.full((300, 12), 3.0, dtype=torch.float64)
    rest = [drift(start, one, other).left for one, other in zip(before, y, strict=True)]
    on = [drift(start, one + 0.4, other).left for one, other in zip(before, y, strict=True)]
    assert max(rest) <= LARGEST_SHIFT and sum(left > LARGEST_SHIFT for left in on) >= 90
