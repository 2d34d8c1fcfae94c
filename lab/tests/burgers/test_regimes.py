"""Set-up C: the score of its posterior, and its reference against brute force."""

from __future__ import annotations

import math

import pytest
import torch

from casal_lab.burgers import regimes


def test_the_posterior_of_the_regimes_has_this_score() -> None:
    posterior = regimes.Posterior(0.4)
    x = posterior.sample(3, torch.Generator().manual_seed(0)).requires_grad_()
    h, (along, across) = regimes.DIRECTION, regimes.VARIANCES
    gap = x[:, None] - posterior.means
    part = gap @ h
    log = posterior.weights.log() - (gap.square().sum(2) - part**2) / (2 * across) - part**2 / (2 * along)
    (gradient,) = torch.autograd.grad(torch.logsumexp(log, 1).sum(), x)
    torch.testing.assert_close(posterior.score(x.detach()), gradient)


@pytest.mark.statistical
def test_the_reference_of_the_regimes_agrees_with_a_thin_shell() -> None:
    """Draws of the posterior in a thin shell around mass and energy and within the bounds, by brute force."""
    case = regimes.case(1)
    posterior = regimes.Posterior(case.value)
    exact = regimes.reference(case, posterior, 20_000)
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(3, dtype=torch.float64)
    box = case.bounds
    wanted = (case.field - case.field.mean()).norm()
    for _ in range(8):
        x = posterior.sample(100_000, generator)
        c = x * regimes.SPECTRUM
        near = (c[:, 0] - case.field.sum() / math.sqrt(len(case.field))).abs() < 0.06
        x = x[near & ((c[:, 1:].norm(dim=1) - wanted).abs() < 0.06)]
        fields = regimes.DECODER(x)
        x = x[((fields >= box.low) & (fields <= box.high)).all(1)]
        counts += torch.bincount(torch.cdist(x, posterior.means).argmin(1), minlength=3)
    assert float(counts.sum()) > 300
    assert float((counts / counts.sum() - exact.modes).abs().sum()) / 2 < 0.06
