"""Standard errors of means over samples that share ancestors."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from casal.diagnostics import Lineage
from casal.diagnostics.genealogy import two_sided_p
from casal.methods import systematic

from .populations import generator


def equal(n: int) -> Tensor:
    return torch.full((n,), 1.0 / n, dtype=torch.float64)


def test_independent_samples_have_the_usual_error() -> None:
    values = torch.randn((50, 2), generator=generator(0), dtype=torch.float64)
    lineage = Lineage(equal(50), torch.arange(50))
    mean, error = lineage.mean(values)
    assert lineage.effective == pytest.approx(50.0) and lineage.ancestors == 50
    torch.testing.assert_close(mean, values.mean(0))
    torch.testing.assert_close(error, values.std(0) / 50**0.5)


def test_copies_count_once() -> None:
    """Four copies of each of 25 samples say as much as the 25."""
    values = torch.randn((25, 1), generator=generator(1), dtype=torch.float64)
    index = torch.arange(25).repeat_interleave(4)
    lineage = Lineage(equal(100), index)
    assert lineage.effective == pytest.approx(25.0)
    torch.testing.assert_close(lineage.mean(values[index]).standard_error, values.std(0) / 5.0)
    assert lineage.inflation(values[index]) == pytest.approx(4.0 * 25.0 / 24.0)


def test_weights_by_hand() -> None:
    """Weights (1/2, 1/4, 1/4), the last two of one ancestor, values (0, 4, 8): mean 3, both groups off by 1.5."""
    lineage = Lineage(torch.tensor([2.0, 1.0, 1.0]), torch.tensor([7, 3, 3]))
    mean, error = lineage.mean(torch.tensor([[0.0], [4.0], [8.0]]))
    assert (float(mean), lineage.effective) == pytest.approx((3.0, 2.0))
    assert float(error) == pytest.approx((2.0 * (1.5**2 + 1.5**2)) ** 0.5)


def test_opposite_siblings_do_not_lower_the_error() -> None:
    """Siblings that lie on opposite sides of the mean cancel; the error stays that of independent samples."""
    values = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(10, 1)
    error = Lineage(equal(20), torch.arange(10).repeat_interleave(2)).mean(values).standard_error
    assert float(error) == pytest.approx(20**-0.5)


def test_the_mean_of_others_leaves_out_the_own_ancestor() -> None:
    values = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    others = Lineage(equal(3), torch.tensor([0, 0, 1])).mean_of_others(values)
    torch.testing.assert_close(others[:, 0], torch.tensor([6.0, 6.0, 1.5], dtype=torch.float64))


@pytest.mark.parametrize("degrees", [10.0, 49.0, 1000.0])
def test_the_tail_of_student(degrees: float) -> None:
    t = torch.linspace(0.0, 8.0, 33, dtype=torch.float64)
    exact = torch.from_numpy(2.0 * stats.t.sf(t.numpy(), degrees))
    assert float((two_sided_p(t, degrees) / exact).log().abs().max()) < 0.1


def population(seed: int, n: int = 400) -> tuple[Tensor, Lineage]:
    """N(0, 1) weighted to N(1, 1/3) and resampled, then moved a little in a way that keeps the distribution."""
    stream = generator(seed)
    x = torch.randn(n, generator=stream, dtype=torch.float64)
    index = systematic(torch.softmax(-(x - 1.5).square(), 0), stream)
    noise = torch.randn(n, generator=stream, dtype=torch.float64)
    return 1.0 + 0.9 * (x[index] - 1.0) + (0.19 / 3.0) ** 0.5 * noise, Lineage(equal(n), index)


def covered(naive: bool) -> float:
    """Share of 95 % intervals of the mean and the second moment that hold the exact ones."""
    hits = []
    for seed in range(200):
        z, lineage = population(seed)
        estimated = (Lineage(equal(len(z)), torch.arange(len(z))) if naive else lineage).mean(
            torch.stack([z, z.square()], dim=1)
        )
        off = (estimated.value - torch.tensor([1.0, 4.0 / 3.0], dtype=torch.float64)).abs()
        hits.append(off < 1.96 * estimated.standard_error)
    return float(torch.stack(hits).to(torch.float64).mean())


def test_intervals_cover() -> None:
    assert 0.92 < covered(naive=False) < 0.98
    assert covered(naive=True) < 0.9  # the test can tell
