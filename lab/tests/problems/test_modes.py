"""The score of samples against a known distribution: exact draws score one, wrong ones do not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from casal.errors import SettingError
from casal_lab.problems.anisotropic_mixture import AnisotropicMixture
from casal_lab.problems.modes import ModeDistribution

N, RUNS, D = 300, 12, 40


def two_modes() -> ModeDistribution:
    """Two modes far apart, of independent coordinates, on x >= -100: nothing is cut."""
    means = torch.zeros((2, D), dtype=torch.float64)
    means[1, 0] = 12.0
    variances = torch.linspace(1.0, 0.2, D, dtype=torch.float64).expand(2, D)
    return AnisotropicMixture(torch.tensor([0.7, 0.3]), means, [None, None], variances).restricted_to_box(-100.0, 100.0)


def draws(exact: ModeDistribution, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [exact.draw(N, generator) for _ in range(RUNS)]


@pytest.mark.statistical
def test_exact_draws_score_one() -> None:
    exact = two_modes()
    score = exact.score(draws(exact))
    # 12 runs x 2 modes x 40 coordinates: z^2 has a relative standard error of sqrt(2 / 960).
    assert abs(score.z - 1) < 0.1
    assert abs(score.variance_ratio - 1) < 4 * math.sqrt(2 / (N * RUNS * 0.3 * D))
    assert score.total_variation == pytest.approx(exact.floor(N), rel=0.8)
    assert score.pooled_total_variation < 4 * exact.floor(N * RUNS)
    assert score.pooled_offset < 2 / math.sqrt(0.3 * N * RUNS)
    assert len(score.total_variations) == len(score.zs) == RUNS
    assert sum(score.zs) / RUNS == pytest.approx(score.z, rel=0.05)


@pytest.mark.statistical
def test_score_has_power() -> None:
    exact = two_modes()
    shifted = exact.score([x + 0.2 * exact.variances[0].sqrt() for x in draws(exact)])
    # Means off by 0.2 sd: z^2 = 1 + 0.04 n_k.
    expected = 0.7 * math.sqrt(1 + 0.04 * 0.7 * N) + 0.3 * math.sqrt(1 + 0.04 * 0.3 * N)
    assert shifted.z == pytest.approx(expected, rel=0.07)
    assert shifted.pooled_offset == pytest.approx(0.2, abs=0.03)
    narrow = exact.score([exact.means[1] + (x - exact.means[1]) * 0.9 for x in draws(exact) for x in [x[x[:, 0] > 6]]])
    assert narrow.variance_ratio == pytest.approx(0.81, abs=0.02)
    assert narrow.total_variation == pytest.approx(0.7)
    assert exact.total_variation(draws(exact)[0]) == exact.score(draws(exact)[0]).total_variation


def test_coordinates_are_leading_and_spread_and_not_narrow() -> None:
    exact = replace(two_modes(), most_coordinates=20)
    chosen = exact.coordinates(0).tolist()
    assert chosen[:10] == list(range(10)) and chosen[10] == 10 and chosen[-1] == D - 1 and len(set(chosen)) == 20
    thin = exact.variances.clone()
    thin[:, 5:] = 0.05**2
    assert replace(exact, variances=thin).coordinates(1).tolist() == [0, 1, 2, 3, 4]


def test_rare_modes_do_not_enter() -> None:
    exact = two_modes()
    rare = replace(exact, log_masses=torch.tensor([0.99, 0.01], dtype=torch.float64).log())
    x = draws(exact)[0]
    wrong = torch.where(x[:, :1] > 6, x + 3.0, x)
    assert rare.score(wrong).z == rare.score(x).z
    assert math.isnan(exact.score(x[:3]).z)


def test_mean_is_that_of_the_mixture() -> None:
    exact = two_modes()
    expected = torch.zeros(D, dtype=torch.float64)
    expected[0] = 3.6
    torch.testing.assert_close(exact.mean, expected)


def test_law_without_draws_says_so() -> None:
    with pytest.raises(SettingError, match="no exact draws"):
        replace(two_modes(), draw_mode=None).draw(1, torch.Generator())
