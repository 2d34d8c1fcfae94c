"""Statistics of the data: mean zero and size one, and back."""

from __future__ import annotations

import pytest
import torch

from casal.errors import ShapeError
from casal_lab.nets import Standardise

from .points import noise


@pytest.mark.parametrize(("per", "kept"), [("coordinate", (3, 4, 5)), ("channel", (3,)), ("all", ())])
def test_standardised_data_have_mean_zero_and_size_one(per: str, kept: tuple[int, ...]) -> None:
    raw = 3 + 2 * noise(200, 3, 4, 5) * torch.arange(1, 61).view(3, 4, 5)
    standardise = Standardise((3, 4, 5))
    x = standardise.fit(raw, per)
    groups = x.reshape(200, *kept, -1).movedim(0, -1).flatten(len(kept))
    torch.testing.assert_close(groups.mean(-1), torch.zeros(kept), atol=1e-5, rtol=0)
    torch.testing.assert_close(groups.square().mean(-1), torch.ones(kept), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardise.restore(x), raw, atol=1e-3, rtol=1e-5)


def test_a_constant_coordinate_is_centred_and_not_divided_by_zero() -> None:
    raw = torch.cat([noise(50, 1), torch.full((50, 1), 4.0)], dim=1)
    assert torch.equal(Standardise((2,)).fit(raw)[:, 1], torch.zeros(50))
    with pytest.raises(ShapeError, match="made for"):
        Standardise((3,)).fit(raw)
