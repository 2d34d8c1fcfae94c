"""The particle: its exact answer against figures found independently, and the settings of the script's revisions."""

from __future__ import annotations

import numpy as np
import pytest

from casal import Sphere, sample
from casal_lab.particle import EXPERIMENT
from casal_lab.particle.runs import script_methods
from casal_lab.particle.setup import NEWEST, RADIUS, REVISIONS, exact_answer, plain


def test_the_exact_answer() -> None:
    exact = exact_answer()
    assert exact["wrong"] == pytest.approx(7.06e-8, rel=2e-3)
    assert exact["mean_x"] == pytest.approx(-2.99831, abs=1e-5)
    assert exact["sd_y"] == pytest.approx(0.10067, abs=1e-5)


def test_the_coupling_of_every_revision() -> None:
    """As the scripts write it: zeros, then np.logspace from the burn-in on; the newest holds 100 from step 3000 on."""
    found = {s.name: s.rho(range(s.steps)).numpy()[s.steps // 10 :] for s in REVISIONS}
    np.testing.assert_allclose(found["330c997"], np.logspace(-1, 1, 1800))
    np.testing.assert_allclose(found["904d4d2"], np.logspace(-1, 1, 1800))
    np.testing.assert_allclose(found["2dbe368"], np.logspace(-1, 2, 1800))
    np.testing.assert_allclose(found["c726ba8"], np.r_[np.logspace(-1, 2, 2600), np.full(1000, 100.0)])


@pytest.mark.statistical
def test_with_the_newest_script_the_released_update_crosses_and_projection_does_not() -> None:
    methods = script_methods(NEWEST)
    wrong = {
        label: float(
            (sample(plain(NEWEST), Sphere(RADIUS), methods[label], 400, seed=0).samples[:, 0] > 0).double().mean()
        )
        for label in ("projected", "Algorithm 1", "released code")
    }
    assert wrong["released code"] < 0.02 < 0.2 < wrong["Algorithm 1"] < 0.4 < wrong["projected"]


def test_every_constant_says_where_it_is_from() -> None:
    assert all(origin.value and origin.where for origin in EXPERIMENT.origins)
    assert {origin.origin for origin in EXPERIMENT.origins} == {"script", "ours"}
