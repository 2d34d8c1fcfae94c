"""The settings that the paper leaves open: what is run, where a claim holds, and what the verdict is then."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import casal
from casal_lab.experiment import FAILS, HOLDS, PARTLY
from casal_lab.field import claims, grid
from casal_lab.field.claims import Setting
from casal_lab.field.grid import ENERGIES, METHODS, SCHEDULES, STEPS, TAUS, WEIGHTED, Cell, Effort, Found, run_grid
from casal_lab.problems.field import EXPECTED, STIFF, share_right


def test_every_method_runs_at_every_setting_and_strict_ones_are_strict() -> None:
    tables, data = run_grid(Effort(6, 2, 200), lambda line: None)
    found = data["grid"]
    count = {label: len(grid.schedules_of(label)) for label in METHODS}
    assert len(found) == len(ENERGIES) * (len(TAUS) * len(STEPS) * sum(count.values()) + 2)
    assert len(tables) == len(ENERGIES)
    strict = ("projected", *grid.COUPLED, WEIGHTED)
    assert all(one.violation < 1e-12 for cell, one in found.items() if cell.method in strict)
    assert not any(math.isnan(one.right) for one in found.values())


def test_chains_of_an_energy_are_those_of_a_run_with_that_energy_alone() -> None:
    """One sphere a chain changes nothing but the sphere: the same noise, the same samples."""
    target, method = grid.case("released code", 2e-3, 50, "linear")
    n = 4
    radii = torch.tensor(ENERGIES, dtype=torch.float64).sqrt().repeat_interleave(n)
    together = casal.sample(target, casal.Sphere(casal.PerChain(radii)), method, 3 * n, seed=0, check=False).samples
    for k, energy in enumerate(ENERGIES):
        alone = casal.sample(target, casal.Sphere(energy**0.5), method, 3 * n, seed=0, check=False).samples
        torch.testing.assert_close(together[k * n : (k + 1) * n], alone[k * n : (k + 1) * n], rtol=0, atol=1e-12)


def test_the_exact_share_at_the_papers_energy() -> None:
    """Within the digits of an independent quadrature; the density there is far in the tail."""
    assert share_right(STIFF, 20.0) == pytest.approx(EXPECTED[20.0], rel=0.02)
    assert share_right(STIFF, 30.0) == pytest.approx(EXPECTED[30.0], rel=0.05)


def made_up(shares: dict[str, float]) -> dict[Cell, Found]:
    """A grid whose shares depend on the schedule alone; W1 grows with the share."""
    found = {}
    for label in METHODS:
        for energy in ENERGIES:
            for tau in TAUS:
                for steps in STEPS:
                    for name in grid.schedules_of(label):
                        right = shares.get(name, 0.5) if label in grid.COUPLED else 0.5
                        found[Cell(label, energy, tau, steps, name)] = Found(
                            right, 0.005, 3 * right, energy, 1.0 if label == grid.SPLIT else 0.0, 0.0
                        )
    weighted = Found(0.0, 0.005, 0.02, 30.0, 0.0, 0.0)
    found |= {Cell(WEIGHTED, energy, TAUS[0], steps, ""): weighted for energy in ENERGIES for steps in (1000, 10_000)}
    return found


def verdicts(shares: dict[str, float]) -> dict[tuple[str, str], str]:
    exact = {energy: share_right(STIFF, energy) for energy in ENERGIES}
    rows = {label: {"w1": 1.0, "right": 0.4, "violation": 0.0} for label in (*claims.PUBLISHED, "projected", "CASAL")}
    found = made_up(shares)
    every = [*claims._results(found, exact, rows), *claims._rho(found, exact)]
    assert all(claim.plain and claim.exact for claim in every)
    return {(claim.text.split(" (")[0], claim.variant): claim.verdict for claim in every}


def test_verdicts_go_either_way() -> None:
    good = verdicts(dict(zip(SCHEDULES, (0.4, 0.03, 0.0, 0.01), strict=True)))
    bad = verdicts(dict.fromkeys(SCHEDULES, 0.5))
    for claim in (
        "only CASAL matches p_C closely",
        "with 1000 steps only annealed rho finds the right mode",
        "with 5000 steps the same, and a large constant rho nearly catches up",
        "with too large a rho the chain fails to explore",
    ):
        assert good[claim, "released"] == HOLDS and bad[claim, "released"] == FAILS, claim
    # WeightedCASAL matches wherever it was run, whatever the repaired update does.
    assert bad["only CASAL matches p_C closely", "ours"] == PARTLY


def test_a_claim_is_judged_at_the_papers_energy_and_steps() -> None:
    every = {Setting(energy, tau, steps): False for energy in ENERGIES for tau in TAUS for steps in STEPS}
    assert claims._judged(every, [1000]) == FAILS
    one = {**every, Setting(15.0, 1e-3, 5000): True}
    assert claims._judged(one, [1000]) == PARTLY and "tau 0.001 with 5000 steps" in claims._where(one)
    paper = {at: at.energy == 30.0 and at.steps == 1000 for at in every}
    assert claims._judged(paper, [1000]) == HOLDS
    assert np.unique([at.energy for at in every]).size == 3
