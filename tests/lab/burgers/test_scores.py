"""Scores of ensembles that are known."""

from __future__ import annotations

import math

import pytest
import torch

from casal.lab.burgers.scores import Scores, analysed
from casal.lab.burgers.setup import POINTS, Truth, joined


def test_scores_of_known_ensembles(truth: Truth) -> None:
    perfect = Scores(analysed(truth)[:, None], truth, 0.2)
    assert (
        float(perfect.l2.max()) == 0.0 and float(perfect.crps.max()) == 0.0 and perfect.figures["spread_skill"] is None
    )
    both = joined([truth, truth])
    assert len(both) == 2 * len(truth) and both.fields.shape == (10, 2 * len(truth), POINTS)
    noise = torch.randn((5, 40, len(truth), POINTS), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    shift = torch.randn((5, 1, len(truth), POINTS), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    calibrated = Scores(analysed(truth)[:, None] + shift + noise, truth, 1.0)
    assert calibrated.figures["spread_skill"] == pytest.approx(1.0, abs=0.05)
    assert float(calibrated.crps.mean()) == pytest.approx(1 / math.sqrt(math.pi), abs=0.03)  # E|X - X'| / 2 of N(0, 1)
