"""The inverse problem: kriging."""

from __future__ import annotations

import pytest
import torch

from casal_lab.conditional import inverse


def test_kriging_is_the_conditional_mean() -> None:
    case, (variance, axes) = inverse.truth(3), inverse.spectrum()
    torch.testing.assert_close(axes @ axes.T, torch.eye(256, dtype=torch.float64), atol=1e-10, rtol=0)
    covariance = (axes * variance) @ axes.T
    seen = case.matrix.argmax(1)
    joint = covariance[seen][:, seen]
    guess = covariance[:, seen] @ torch.linalg.inv(joint) @ case.values
    assert float((guess - case.field).norm()) == pytest.approx(case.kriging)
    assert float(case.constraint.violation(case.field[None])) < 1e-10
