"""Physics-preserving data assimilation on the inviscid Burgers equation (paper, section 5.2).

Set-ups A and B: a field is seen at four sites, the forecast is biased, mass and energy are known; the prior is a
diffusion model in a Fourier latent. Set-up C: three regimes and one sensor, where the law of the samples decides, with
the exact prior and with a learned one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import torch

from casal import __version__
from casal.lab.problems import burgers_regimes as regimes
from casal.lab.problems.base import Claim, Column, Experiment, Outcome, ResultTable
from casal.lab.problems.burgers_claims import claims, regime_claims
from casal.lab.problems.burgers_regimes_learned import Training as RegimeTraining
from casal.lab.problems.burgers_regimes_trial import Scale as RegimeScale
from casal.lab.problems.burgers_runs import METHODS, Runs, Scale, compare, row
from casal.lab.problems.burgers_setup import SETUPS, Model, Training, Truth, joined, model, truths
from casal.lab.problems.burgers_stories import (
    GLOBAL,
    SIGMAS,
    along,
    hovmoeller,
    invariants,
    larger,
    members_table,
    networks,
    one_scale,
    starts,
)

Tell = Callable[[str], None]

SHOWN = ("3D-Var", "3D-Var, constrained", "unconstrained", "projected, A+ P A", "Algorithm 2", "CASAL")
"""Methods of the pictures of single trajectories, those of them that were run."""

EXAMPLE = 1
"""The trajectory they show."""


class Size(NamedTuple):
    """The scale of every part.

    Attributes:
        runs: Of the comparison on A and B.
        training: Of the networks.
        some: Trajectories of the smaller studies: one scale, start of lambda, more members.
        sigmas: Starts of lambda.
        members: Members of CASAL beside constrained 3D-Var.
        regimes: Of set-up C.
        solver: Trajectories whose invariants are followed.
    """

    runs: Scale
    training: Training
    some: int
    sigmas: Sequence[float]
    members: Sequence[int]
    regimes: RegimeScale
    solver: int


FULL = Size(
    Scale(50, 3, 2, 1000, 10, 1),
    Training(),
    50,
    SIGMAS,
    (5, 20, 80),
    RegimeScale(40, 400, 200, 400, 6, 1, 20_000, RegimeTraining(10_000, 20_000, 400)),
    50,
)
QUICK = Size(
    Scale(6, 1, 1, 100, 3, 6),
    Training(100, 150, None),
    4,
    (0.0, 10.0, 100.0),
    (5, 10),
    RegimeScale(3, 100, 50, 60, 1, 7, 1000, RegimeTraining(500, 2000, 60)),
    3,
)

COLUMNS = (
    Column("method", "method"),
    Column("l2", "error of the mean", ".3f"),
    Column("gap", "minus unconstrained", "+.3f"),
    Column("l2_projected", "re-projected mean", ".3f"),
    Column("l2_member", "one member", ".3f"),
    Column("member_mass", "mass error", ".0e"),
    Column("member_energy", "energy error", ".0e"),
    Column("mean_energy", "of the mean", ".0e"),
    Column("worst_projected", "of the re-projected mean", ".0e"),
    Column("crps", "CRPS", ".3f"),
    Column("spread_skill", "spread / skill", ".2f"),
    Column("spectrum", "spectrum", ".2f"),
    Column("seconds", "time", ".2f"),
    Column("setting", "setting"),
)


def _table(name: str, found: Mapping[str, Runs], scale: Scale) -> ResultTable:
    setup = SETUPS[name]
    return ResultTable(
        f"Set-up {name}: amplitude {setup.amplitude:g}, H = {setup.horizon:g}; {scale.trajectories} trajectories x "
        f"{scale.seeds} seeds, {scale.networks} networks, {scale.steps} steps",
        COLUMNS,
        [row(label, found) for label in found],
        note="Errors are relative l2, averaged over five windows; standard errors over trajectories, differences "
        "paired. Mass and energy: mean relative error of a member. CRPS in units of the amplitude; spread / skill is 1 "
        "for a calibrated ensemble; spectrum: mean |log10 power ratio| of modes 1 to 9 in the last window; time over "
        "that of unconstrained sampling. CASAL is the full z-step with the paper's dual step tau.",
    )


def _some(truth: Truth, n: int) -> Truth:
    """The first n trajectories."""
    return Truth(truth.initial[:n], truth.fields[:, :n], truth.observed[:, :n], truth.mass[:n], truth.energy[:n])


def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Both set-ups with all methods, or those named; the smaller studies and set-up C unless single ones are asked."""
    began, size = time.perf_counter(), QUICK if quick else FULL
    scale, chosen = size.runs, [label for label in METHODS if labels is None or label in labels]
    tables: list[ResultTable] = []
    found: dict[str, dict[str, Runs]] = {}
    models: dict[str, list[Model]] = {}
    every: dict[str, Truth] = {}
    for name, setup in SETUPS.items():
        tell(f"set-up {name}: networks (trained now unless cached) and truths")
        models[name] = [model(setup, size.training, seed) for seed in range(scale.networks)]
        every[name] = joined([truths(setup, scale.trajectories, seed) for seed in range(scale.seeds)])
        found[name] = compare(models[name], every[name], chosen, scale, tell)
        tables.append(_table(name, found[name], scale))
    data = _pictures(found, models, size)
    verdicts: list[Claim] = []
    if labels is None:
        rows = _studies(size, models, every, found, tables, tell)
        more, data["regimes"], data["learned"] = regimes.run(size.regimes, tell)
        tables += more
        if not quick:
            verdicts = [
                *claims(found, [m[0] for m in models.values()], rows),
                *regime_claims("Set-up C", data["regimes"]),
                *regime_claims("Set-up C, learned prior", data["learned"]),
            ]
    settings = {
        "date": date.today().isoformat(),
        "casal": __version__,
        "torch": str(torch.__version__),
        "quick": quick,
        **scale._asdict(),
    }
    return Outcome("burgers", tables, verdicts, data, settings, time.perf_counter() - began)


def _pictures(found: Mapping[str, dict[str, Runs]], models: Mapping[str, list[Model]], size: Size) -> dict[str, Any]:
    """What the pictures need."""
    shown = [label for label in SHOWN if label in found["A"]]
    return {
        "runs": found,
        "shown": shown,
        "example": EXAMPLE,
        "along": {
            name: {label: along(SETUPS[name], runs[label], EXAMPLE) for label in shown} for name, runs in found.items()
        },
        "hovmoeller": {name: hovmoeller(SETUPS[name], runs, shown, EXAMPLE) for name, runs in found.items()},
        "invariants": invariants(size.solver),
        "losses": {name: each[0].losses for name, each in models.items()},
    }


def _studies(
    size: Size,
    models: Mapping[str, list[Model]],
    every: Mapping[str, Truth],
    found: Mapping[str, Mapping[str, Runs]],
    tables: list[ResultTable],
    tell: Tell,
) -> list[dict[str, Any]]:
    """Networks, more members, one scale for all modes, start of lambda; the rows of the members."""
    scale = size.runs
    tables.append(networks([each[0] for each in models.values()]))
    rows: list[dict[str, Any]] = []
    for name, truth in every.items():
        constrained = found[name]["3D-Var, constrained"].values["l2"][0, : size.some]
        rows += larger(models[name][0], _some(truth, size.some), constrained, scale.steps, size.members, tell)
    tables.append(members_table(rows, size.some))
    flat = {
        name: compare(
            [model(setup, size.training, 0, per_mode=False)], _some(every[name], size.some), GLOBAL, scale, tell
        )
        for name, setup in SETUPS.items()
    }
    tables.append(one_scale(flat, {name: len(_some(truth, size.some)) for name, truth in every.items()}))
    tables.append(starts(models["A"][0], _some(every["A"], size.some), scale.steps, size.sigmas, tell))
    return rows


EXPERIMENT = Experiment(
    "burgers",
    "Does a constrained diffusion prior assimilate data better than what the field has already?",
    METHODS,
    run,
)
