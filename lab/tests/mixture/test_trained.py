"""The error of an energy-based model on a set, apart from that of a sampler."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from casal_lab.mixture.trained import own_error
from casal_lab.nets import EnergyMLP
from casal_lab.problems.three_modes import CASES, MIXTURE


class Exact(torch.nn.Module):
    """The energy of the mixture, with the weight of the first mode changed by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.change = torch.tensor([factor, 1.0, 1.0], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        shares = MIXTURE.responsibilities(x.double())
        return -MIXTURE.log_density(x.double()) - (shares @ self.change).log()


@pytest.mark.parametrize("name", CASES)
def test_the_exact_energy_has_no_error_and_a_changed_one_its_own(name: str) -> None:
    case = CASES[name]
    assert own_error(case, cast(EnergyMLP, Exact(1.0))) < 1e-4
    shares = MIXTURE.responsibilities(case.exact.draw(100_000, torch.Generator().manual_seed(0)))
    density = shares @ torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    found = (density @ shares) / density.sum()
    want = float((found - case.exact.weights).abs().sum()) / 2
    assert want > 0.02 and own_error(case, cast(EnergyMLP, Exact(2.0))) == pytest.approx(want, abs=0.004)
