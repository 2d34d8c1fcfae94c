"""Every model family has the exact network of a mixture."""

from __future__ import annotations

import pytest
import torch

from casal_lab.problems.families import FAMILIES
from casal_lab.problems.three_modes import MIXTURE


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "langevin"])
def test_every_family_has_the_exact_network(family: str) -> None:
    target = FAMILIES[family](MIXTURE, 50)
    y = MIXTURE.sample(20, torch.Generator().manual_seed(0))
    assert target.table.alpha is not None and target.table.sigma is not None and target.denoise is not None
    for row in (0, 20, 40):
        alpha, sigma = float(target.table.alpha[row]), float(target.table.sigma[row])
        x = alpha * y + sigma
        torch.testing.assert_close(
            target.score(x, target.table.t[row]), MIXTURE.score(x, alpha, sigma), rtol=1e-6, atol=1e-6
        )
        level = torch.tensor(sigma / alpha, dtype=torch.float64)
        torch.testing.assert_close(target.denoise(y, level), MIXTURE.denoise(y, 1.0, level), rtol=1e-5, atol=1e-5)
