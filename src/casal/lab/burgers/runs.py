"""The whole run: the comparison on A and B, the smaller studies, set-up C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from casal.lab.burgers import regime_runs, studies
from casal.lab.burgers.claims import claims, regime_claims
from casal.lab.burgers.comparison import METHODS, Runs, Scale, compare, table
from casal.lab.burgers.learned import Training as RegimeTraining
from casal.lab.burgers.setup import SETUPS, Model, Training, Truth, joined, model, truths
from casal.lab.experiment import Claim, Outcome, ResultTable, Tell, stamp

SHOWN = ("3D-Var", "3D-Var, constrained", "unconstrained", "projected, A+ P A", "Algorithm 2", "CASAL")
"""Methods of the pictures of single trajectories, those of them that were run."""

EXAMPLE = 1
"""The trajectory they show."""


class Size(NamedTuple):
    """The scale of every part."""

    runs: Scale  # of the comparison on A and B
    training: Training  # of the networks
    some: int  # trajectories of the smaller studies: one scale, start of lambda, more members
    sigmas: Sequence[float]  # starts of lambda
    members: Sequence[int]  # members of CASAL beside constrained 3D-Var
    regimes: regime_runs.Scale  # of set-up C
    solver: int  # trajectories whose invariants are followed


_FULL = regime_runs.Scale(40, 400, 200, 400, 6, 1, 20_000, RegimeTraining(10_000, 20_000, 400))
_QUICK = regime_runs.Scale(3, 100, 50, 60, 1, 7, 1000, RegimeTraining(500, 2000, 60))
FULL = Size(Scale(50, 3, 2, 1000, 10, 1), Training(), 50, studies.SIGMAS, (5, 20, 80), _FULL, 50)
QUICK = Size(Scale(6, 1, 1, 100, 3, 6), Training(100, 150, None), 4, (0.0, 10.0, 100.0), (5, 10), _QUICK, 3)


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Both set-ups with all methods, or those named; the smaller studies and set-up C unless single ones are asked."""
    size = QUICK if quick else FULL
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
        tables.append(table(name, found[name], scale))
    data = _pictures(found, models, size)
    verdicts: list[Claim] = []
    if labels is None:
        studied = _studies(size, models, every, found, tell)
        more, data["regimes"], data["learned"] = regime_runs.run(size.regimes, tell)
        tables += [*studied, *more]
        if not quick:
            verdicts = [
                *claims(found, [m[0] for m in models.values()], studied[1].rows),
                *regime_claims("Set-up C", data["regimes"]),
                *regime_claims("Set-up C, learned prior", data["learned"]),
            ]
    return Outcome("burgers", tables, verdicts, data, {"quick": quick, **scale._asdict()})


def _pictures(found: Mapping[str, dict[str, Runs]], models: Mapping[str, list[Model]], size: Size) -> dict[str, Any]:
    """What the pictures need."""
    shown = [label for label in SHOWN if label in found["A"]]
    return {
        "runs": found,
        "shown": shown,
        "example": EXAMPLE,
        "along": {
            name: {label: studies.along(SETUPS[name], runs[label], EXAMPLE) for label in shown}
            for name, runs in found.items()
        },
        "hovmoeller": {name: studies.hovmoeller(SETUPS[name], runs, shown, EXAMPLE) for name, runs in found.items()},
        "invariants": studies.invariants(size.solver),
    }


def _studies(
    size: Size,
    models: Mapping[str, list[Model]],
    every: Mapping[str, Truth],
    found: Mapping[str, Mapping[str, Runs]],
    tell: Tell,
) -> list[ResultTable]:
    """Networks, more members, one scale for all modes, start of lambda."""
    scale, some = size.runs, {name: truth.first(size.some) for name, truth in every.items()}
    members = studies.more_members(models, some, found, scale.steps, size.members, tell)
    flat = {
        name: compare([model(setup, size.training, 0, per_mode=False)], some[name], studies.GLOBAL, scale, tell)
        for name, setup in SETUPS.items()
    }
    starts = studies.starts(models["A"][0], some["A"], scale.steps, size.sigmas, tell)
    return [studies.networks([each[0] for each in models.values()]), members, studies.one_scale(flat, some), starts]
