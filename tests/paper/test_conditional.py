"""The conditional experiment: the pieces against exact answers, and a quick run of the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import casal
from casal.lab.problems import conditional_cache, conditional_images, conditional_mixture, conditional_network
from casal.lab.problems import conditional_inverse as inverse
from casal.lab.problems import conditional_quadrotor as quadrotor
from casal.lab.problems.base import Outcome
from casal.lab.problems.conditional import CASES, run
from casal.lab.problems.conditional_base import Setup, at_most, within
from casal.lab.problems.conditional_gaussian import MEAN, SPREAD, eps_network, transport
from casal.lab.problems.mixture_cases import MIXTURE
from casal.lab.problems.mixture_families import BETAS, FAMILIES


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run(True, None, lambda line: None)


@pytest.mark.slow
def test_a_quick_run_has_every_row_and_all_samples_are_feasible(quick: Outcome) -> None:
    assert len(quick.tables) == len(conditional_mixture.CASES) + len(CASES)  # images have two
    for table in quick.tables:
        rows = {row["method"]: row for row in table.rows}
        assert {"final projection", "SplitGibbs, metropolis"} <= set(rows) or "moment matching + projection" in rows
        for row in rows.values():
            if "evaluations" in row:
                assert row["feasible"] == 1.0 and row["violation"] < 1e-8, (table.title, row)
        floors = [row for row in table.rows if row["method"].startswith(("exact draws", "kriging"))]
        assert floors and all("evaluations" not in row for row in floors)
    assert not quick.claims


@pytest.mark.slow
def test_weights_bring_the_modes_into_proportion(quick: Outcome) -> None:
    for table in quick.tables[: len(conditional_mixture.CASES)]:
        tv = {row["method"]: row["tv"] for row in table.rows}
        for label in ("SplitGibbs, gibbs", "SplitGibbs, metropolis", "Twisted"):
            assert tv[label] < tv["final projection"] / 2, (table.title, label)


@pytest.mark.slow
def test_pictures_of_a_quick_run(quick: Outcome, tmp_path: Path) -> None:
    from casal.lab.report.figures import draw

    paths = draw(quick, tmp_path)
    assert {path.stem for path in paths} == {f"conditional_{k}" for k in ("all", "circles", "quadrotor", "images")}
    assert all(path.stat().st_size > 20_000 for path in paths)


def test_only_the_named_cases_run() -> None:
    outcome = run(True, ["inverse"], lambda line: None)
    assert len(outcome.tables) == 1 and {dot.case for dot in outcome.data["dots"]} == {"Inverse problem, 256-D"}


@pytest.mark.parametrize("case", conditional_mixture.CASES, ids=lambda case: case.name)
def test_exact_draws_are_at_the_floor_and_shifted_ones_are_not(case: conditional_mixture.SphereCase) -> None:
    floor = case.floor(2000, 5)
    z = case.law.draw(2000, torch.Generator().manual_seed(99))
    assert case.total_variation(z) < 4 * floor["tv"] and case.inside(z) < 2 * floor["inside"]
    turned = case.constraint.project(z + 0.3)
    assert case.inside(turned) > 3 * floor["inside"]
    assert case.total_variation(z[z[:, 0] > z[:, 0].median()]) > 5 * floor["tv"]


def test_the_integrator_is_the_double_integral() -> None:
    time = (np.arange(quadrotor.STEPS) + 1) * quadrotor.INTERVAL
    np.testing.assert_allclose(quadrotor.integrator() @ np.ones(quadrotor.STEPS), quadrotor.GRAVITY * time**2 / 2)
    position = velocity = 0.0
    u = np.sin(time)
    for k in range(quadrotor.STEPS):
        position += velocity * quadrotor.INTERVAL + quadrotor.GRAVITY * u[k] * quadrotor.INTERVAL**2 / 2
        velocity += quadrotor.GRAVITY * u[k] * quadrotor.INTERVAL
    assert (quadrotor.integrator() @ u)[-1] == pytest.approx(position)


def test_distinct_paths_are_counted_greedily() -> None:
    step = quadrotor.APART / quadrotor.UNIT
    heights = torch.tensor([0.0, 0.4, 1.1, 1.2, 5.0], dtype=torch.float64) * step
    assert quadrotor.distinct(heights[:, None].expand(-1, 7)) == 3
    assert quadrotor.distinct(torch.zeros(0, 7, dtype=torch.float64)) == 0


def test_exact_paths_are_free_and_in_classes() -> None:
    x = quadrotor.exact_draws(0.3, 20_000)
    z = x @ quadrotor.decoder()[quadrotor.ROWS].T
    assert len(x) > 100 and float(quadrotor.obstacles(0.3).violation(z).max()) <= 0
    found = torch.bincount(quadrotor.classes(z, 0.3), minlength=8)
    assert found.sum() == len(x) and found[7] > found[:6].sum()


def test_kriging_is_the_conditional_mean() -> None:
    case, (variance, axes) = inverse.truth(3), inverse.spectrum()
    torch.testing.assert_close(axes @ axes.T, torch.eye(256, dtype=torch.float64), atol=1e-10, rtol=0)
    covariance = (axes * variance) @ axes.T
    seen = case.matrix.argmax(1)
    joint = covariance[seen][:, seen]
    guess = covariance[:, seen] @ torch.linalg.inv(joint) @ case.values
    assert float((guess - case.field).norm()) == pytest.approx(case.kriging)
    assert float(case.constraint.violation(case.field[None])) < 1e-10


def test_the_network_of_a_gaussian_is_exact() -> None:
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    x, t = torch.tensor([[0.3, -1.2]], dtype=torch.float64), torch.tensor(400)
    kept = torch.prod(1 - BETAS[:401])
    noisy = kept * covariance + (1 - kept) * torch.eye(2, dtype=torch.float64)
    expected = (1 - kept).sqrt() * torch.linalg.solve(noisy, x.T).T
    torch.testing.assert_close(eps_network(covariance)(x, t), expected)


def test_transport_to_the_conditional_gaussian() -> None:
    z = np.random.default_rng(0).standard_normal(200_000)
    assert transport(MEAN + SPREAD * z) < 0.01
    assert transport(MEAN + 0.1 + SPREAD * z) == pytest.approx(0.1, abs=0.01)


def test_shell_weights_of_exact_samples() -> None:
    free = MIXTURE.sample(200_000, torch.Generator().manual_seed(0))
    exact = MIXTURE.restricted(casal.Sphere(conditional_network.RADIUS)).weights
    assert float((conditional_network.shell_weights(free) - exact).abs().sum()) / 2 < 0.03
    assert conditional_network.halves(free) < 0.02


def test_blobs_are_images_of_unit_size() -> None:
    images = conditional_images.blobs(500, 1)
    assert images.shape == (500, 16, 16)
    assert 0.5 < float(images.square().mean().sqrt()) < 1.5
    mass, energy = conditional_images.mass_and_energy(torch.full((2, 16, 16), 0.5))
    torch.testing.assert_close(mass, torch.full((2,), 128.0))
    torch.testing.assert_close(energy, torch.full((2,), 64.0))


def test_the_cache_makes_a_thing_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASAL_CACHE", str(tmp_path / "new"))
    made: list[int] = []

    def make() -> torch.Tensor:
        made.append(1)
        return torch.arange(4.0)

    for _ in range(2):
        torch.testing.assert_close(conditional_cache.points("numbers", make), torch.arange(4.0, dtype=torch.float64))
    assert len(made) == 1 and [path.name for path in (tmp_path / "new").iterdir()] == ["numbers.npy"]


def test_tuning_passes_over_settings_that_diverge() -> None:
    target = FAMILIES["ddpm"](MIXTURE, 20)
    setup = Setup(target, casal.Sphere(2.0), 50, range(1))
    wild = casal.FinalProjection(casal.DPS(1e6))
    name, results = setup.tuned([("wild", wild), ("tame", casal.FinalProjection())], lambda r: 0.0, 20)
    assert name == "tame" and len(results) == 1
    with pytest.raises(casal.errors.SettingError, match="all 1 settings"):
        setup.tuned([("wild", wild)], lambda r: 0.0, 20)


def test_verdicts() -> None:
    assert at_most("t", 0.02, 0.03).verdict == "reproduced" == within("t", 0.81, 0.8, 0.02).verdict
    assert at_most("t", 0.04, 0.03).verdict == "not reproduced" == within("t", 0.77, 0.8, 0.02).verdict
