"""Scores, ratios and claims of the study by hand; tables of the networks; the stages of the self-check."""

from __future__ import annotations

import math

import pytest
import torch

import casal
from casal_lab.networks.fields import F64
from casal_lab.networks.forecast import advanced, starts
from casal_lab.networks.models import LEVEL, SPECS, Model, made
from casal_lab.networks.power import PAIRS, exact_subject, trained_subject
from casal_lab.networks.runs import MATHERON, PEERS, Score, claims_of, judged, row


def test_errors_of_mean_and_standard_deviation_per_pixel() -> None:
    reference = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=F64)
    found = judged(2 * reference + 1, reference)  # means (3, 5) for (1, 2); standard deviations twice as large
    assert found.mmse == pytest.approx((4 + 9) / 2) and found.smse == pytest.approx(2.0)
    assert found.variance == pytest.approx(4.0)


def test_ratios_are_paired_and_claims_follow_from_them() -> None:
    ours = [Score(1.0, 1.0, 1.0, 10, 1.0), Score(4.0, 1.0, 1.0, 10, 1.0)]
    theirs = [Score(2.0, 0.5, 1.0, 10, 1.0), Score(2.0, 8.0, 1.0, 10, 1.0)]
    rows = [row("net", MATHERON, ours, ours), row("net", "PCFM", theirs, ours), row("net", "ECI", [None, None], ours)]
    assert rows[1]["mmse_ratio"] == pytest.approx(1.0) and rows[1]["mmse_worse"] == "1 of 2"
    assert rows[1]["smse_ratio"] == pytest.approx(2.0) and rows[2]["diverged"] == 2 and "mmse" not in rows[2]
    assert rows[1]["mmse_ratio_se"] == pytest.approx(math.log(2.0))  # logs are +-log 2: their error is log 2
    (claim,) = claims_of(rows)
    assert claim.verdict == "partly met"  # no chain of Matheron diverged, but PCFM is not below it
    worse = [Score(2.0, 2.0, 1.0, 10, 1.0), Score(5.0, 1.5, 1.0, 10, 1.0)]
    (claim,) = claims_of([rows[0], row("net", "PCFM", worse, ours)])
    assert claim.verdict == "met"


def test_peers_have_the_evaluations_they_are_given() -> None:
    spec = SPECS[2]
    model = Model(spec, made(spec).requires_grad_(False))
    y = model.fields.draw(2, torch.Generator().manual_seed(0))
    family = next(iter(model.fields.sets.values()))
    for label, of in PEERS.items():
        steps, method = of(20)
        found = casal.sample(model.target(steps), family(y), method, 2, check=False)
        assert found.cost.score_evaluations == 20, label
        assert bool(found.certificate.feasible.all())


@pytest.mark.parametrize("spec", SPECS[:2], ids=["flow", "DDPM"])
def test_a_table_may_end_at_a_noise_level(spec: object) -> None:
    assert isinstance(spec, type(SPECS[0]))
    model = Model(spec, made(spec).requires_grad_(False))
    whole, early = model.target(50).table, model.target(50, 0.5).table
    for table in (whole, early):
        assert table.alpha is not None and table.sigma is not None
    assert whole.alpha is not None and whole.sigma is not None and early.alpha is not None and early.sigma is not None
    assert float((early.sigma / early.alpha).min()) >= 0.5 > float((whole.sigma / whole.alpha).min())
    assert len(early) < len(whole) and float(LEVEL[0]) < 0.02
    assert len(casal.sample(model.target(3), None, "auto", 2, check=False).samples) == 2


def test_right_pairs_of_both_kinds_of_network() -> None:
    subject = exact_subject(11, 8)
    samples, own = subject.right(PAIRS, 0)
    family = subject.family(own)
    assert float(family.violation(samples[:PAIRS]).max()) < 1e-9 and len(samples) == 4 * PAIRS
    spec = SPECS[2]
    model = Model(spec, made(spec).requires_grad_(False))
    pool = model.fields.draw(400, torch.Generator().manual_seed(0))
    one, other = trained_subject(model, pool).right(PAIRS, 1)
    assert len(one) == 4 * PAIRS
    near = (one[:PAIRS].flatten(1).mean(1) - other.flatten(1).mean(1)).abs().mean()
    assert float(near) < 0.1 * float(pool.flatten(1).mean(1).std())


def test_the_solver_of_the_forecast_keeps_circulation_and_enstrophy() -> None:
    w = starts(3, torch.Generator().manual_seed(0))
    after = advanced(w)
    torch.testing.assert_close(after.sum((1, 2, 3)), w.sum((1, 2, 3)), atol=1e-10, rtol=0)
    torch.testing.assert_close(after.square().sum((1, 2, 3)), w.square().sum((1, 2, 3)), rtol=1e-3, atol=0)
    assert float((after - w).square().mean()) > 1e-3
