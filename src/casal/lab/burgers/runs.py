"""The whole run: the comparison on A and B, the smaller studies, set-up C."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import CASAL
from casal.lab.burgers import regime_runs
from casal.lab.burgers.claims import claims, regime_claims
from casal.lab.burgers.comparison import DIFFUSION, METHODS, RHO, Runs, Scale, compare, difference, scores, table
from casal.lab.burgers.cycle import CYCLES, WINDOW, forecast
from casal.lab.burgers.learned import Training as RegimeTraining
from casal.lab.burgers.scores import average
from casal.lab.burgers.setup import BASIS, POINTS, SETUPS, Model, Setup, Training, Truth, joined, model, truths
from casal.lab.experiment import Array, Claim, Outcome, ResultTable, Tell, stamp, with_error
from casal.lab.physics.burgers import Burgers, energy, mass, random_states

SHOWN = ("3D-Var", "3D-Var, constrained", "unconstrained", "projected, A+ P A", "Algorithm 2", "CASAL")
"""Methods of the pictures of single trajectories, those of them that were run."""

EXAMPLE = 1
"""The trajectory they show."""

SIGMAS = (0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""The paper's starts of lambda."""

PAPER = {0.0: 0.56, 1.0: 0.56, 5.0: 0.56, 10.0: 0.57, 20.0: 0.58, 50.0: 0.79, 100.0: 1.34}
GLOBAL = ("unconstrained", "final projection", "projected, A+ P A", "CASAL")
FRAMES = 80
"""Moments of a Hovmoeller picture."""


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
FULL = Size(Scale(50, 3, 2, 1000, 10, 1), Training(), 50, SIGMAS, (5, 20, 80), _FULL, 50)
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
    shown = [label for label in SHOWN if label in found["A"]]
    data: dict[str, Any] = {"runs": found, "shown": shown, "example": EXAMPLE, "along": {}, "hovmoeller": {}}
    data["invariants"] = invariants(size.solver)
    for name, runs in found.items():
        data["along"][name] = {label: along(SETUPS[name], runs[label], EXAMPLE) for label in shown}
        data["hovmoeller"][name] = hovmoeller(SETUPS[name], runs, shown, EXAMPLE)
    verdicts: list[Claim] = []
    if labels is None:
        firsts, some = [each[0] for each in models.values()], {name: t.first(size.some) for name, t in every.items()}
        members = more_members(models, some, found, scale.steps, size.members, tell)
        flat = {
            name: compare([model(setup, size.training, 0, per_mode=False)], some[name], GLOBAL, scale, tell)
            for name, setup in SETUPS.items()
        }
        begun = starts(firsts[0], some["A"], scale.steps, size.sigmas, tell)
        more, data["regimes"], data["learned"] = regime_runs.run(size.regimes, tell)
        tables += [networks(firsts), members, one_scale(flat, some), begun, *more]
        if not quick:
            verdicts = [
                *claims(found, firsts, members.rows),
                *regime_claims("Set-up C", data["regimes"]),
                *regime_claims("Set-up C, learned prior", data["learned"]),
            ]
    return Outcome("burgers", tables, verdicts, data, {"quick": quick, **scale._asdict()})


def starts(model: Model, truth: Truth, steps: int, sigmas: Sequence[float], tell: Tell) -> ResultTable:
    """lambda ~ N(0, sigma^2) at the start, mu = lambda / rho: the paper's Algorithm 2 and the full z-step."""
    rows = []
    for sigma in sigmas:
        line: dict[str, Any] = {"sigma": f"{sigma:g}", "paper": PAPER[sigma]}
        for key, method in (
            ("printed", CASAL(RHO, "tau", "damped", "explicit", step_size="paper", dual_init=sigma / RHO)),
            ("full", CASAL(RHO, "tau", dual_init=sigma / RHO)),
            ("admm", CASAL(RHO, "admm", dual_init=sigma / RHO)),
        ):
            tell(f"set-up {model.setup.name}: start of lambda {sigma:g}, {key}")
            line |= with_error(key, *average(scores(model, truth, steps, method).l2))
        rows.append(line)
    return ResultTable.of(
        f"Start of lambda, set-up {model.setup.name}: relative error, {len(truth)} trajectories",
        "sigma: sigma of lambda | printed: Algorithm 2, .3f | full: CASAL, .3f | admm: CASAL, dual 1, .3f | paper, .2f",
        rows,
        note="The paper's own problem has other constants; what can be compared is how the error grows with sigma.",
    )


def one_scale(found: Mapping[str, Mapping[str, Runs]], truths: Mapping[str, Truth]) -> ResultTable:
    """The latent with one scale for all modes."""
    rows, counts = [], ", ".join(f"{len(truth)} trajectories of {name}" for name, truth in truths.items())
    for label in GLOBAL:
        line: dict[str, Any] = {"method": label}
        for name, runs in found.items():
            line |= with_error(name, *average(runs[label].values["l2"].mean(0)))
            line |= with_error(f"gap {name}", *difference(runs[label], runs["CASAL"]))
        rows.append(line)
    return ResultTable.of(
        "One scale for all modes instead of one a mode: relative error",
        ("method", *(f"{name}, .3f" for name in found), *(f"gap {name}: {name}: minus CASAL, +.3f" for name in found)),
        rows,
        note=f"One network; {counts}. Differences are paired.",
    )


def more_members(
    models: Mapping[str, Sequence[Model]],
    truths: Mapping[str, Truth],
    found: Mapping[str, Mapping[str, Runs]],
    steps: int,
    sizes: Sequence[int],
    tell: Tell,
) -> ResultTable:
    """CASAL with more members: the mean of five is itself noisy. Paired with constrained 3D-Var on the same truths."""
    rows = []
    for name, size in product(truths, sizes):
        tell(f"set-up {name}: CASAL, {size} members")
        line: dict[str, Any] = {"setup": name, "members": size}
        ours = scores(models[name][0], truths[name], steps, DIFFUSION["CASAL"][0], members=size)
        theirs = found[name]["3D-Var, constrained"].values["l2"][0, : len(truths[name])]
        for key, error in (("l2", ours.l2), ("l2_projected", ours.l2_projected)):
            line |= with_error(key, *average(error)) | with_error(f"gap {key}", *average(error - theirs))
        rows.append(line)
    return ResultTable.of(
        f"CASAL against constrained 3D-Var as members are added: {len(truths['A'])} trajectories, one network",
        "setup: set-up | members, d | l2: error of the mean, .3f | gap l2: minus constrained 3D-Var, +.3f | "
        "l2_projected: re-projected mean, .3f | gap l2_projected: minus constrained 3D-Var, +.3f",
        rows,
        note="Differences are paired.",
    )


def networks(models: Sequence[Model]) -> ResultTable:
    """Held-out losses of the networks beside those of the Gaussian score, per noise level."""
    levels = models[0].losses.levels.tolist()
    rows = []
    for k, t in enumerate(levels):
        line: dict[str, Any] = {"t": f"{t:.0f}"}
        for each in models:
            name, losses = each.setup.name, each.losses
            line |= with_error(name, float(losses.ratio[k]), float(losses.ratio_error[k]))
            line[f"loss {name}"] = float(losses.network[k])
        rows.append(line)
    names = [each.setup.name for each in models]
    return ResultTable.of(
        "Held-out loss of the noise predictor over that of the Gaussian score of the same latent",
        (
            "t: step t",
            *(f"{name}: {name}: network / Gaussian, .4f" for name in names),
            *(f"loss {name}: {name}: loss, .4f" for name in names),
        ),
        rows,
        note="Below 1 the network knows more than mean and covariance. The network is a correction of the Gaussian "
        "score that vanishes where noise is all there is: there the ratio is 1.",
    )


def along(setup: Setup, runs: Runs, which: int) -> dict[str, Array]:
    """One trajectory at the ten observation times: mass, energy (relative to the truth) and error of the analysis.

    At the first time of a window the analysis itself, at the second its forecast.
    """
    truth = runs.first.truth
    step = forecast(setup.spacing, setup.damping)
    fields: list[Tensor] = []
    for mean in runs.first.mean[:, which]:
        fields += [mean, BASIS @ (step @ (BASIS.T @ mean))]
    u, exact = torch.stack(fields), truth.fields[: WINDOW * CYCLES, which]
    scale = math.sqrt(POINTS * float(truth.energy[which]))
    return {
        "mass": ((mass(u) - truth.mass[which]) / scale).numpy(),
        "energy": (energy(u) / truth.energy[which]).numpy(),
        "l2": ((u - exact).norm(dim=1) / exact.norm(dim=1)).numpy(),
    }


def hovmoeller(setup: Setup, found: Mapping[str, Runs], labels: Sequence[str], which: int) -> dict[str, Any]:
    """u(x, t) of the truth and of analyses carried on by the forecast, (frames, points)."""
    truth = next(iter(found.values())).first.truth
    times = (torch.arange(FRAMES, dtype=torch.float64) + 1.0) * (setup.horizon / FRAMES)
    pictures = {"truth": Burgers(POINTS).trajectory(truth.initial[which], times).numpy()}
    for label in labels:
        rows = []
        for time in times.tolist():
            window = min(max(int((time / setup.spacing - 1.0 + 1e-9) // WINDOW), 0), CYCLES - 1)
            since = time - (WINDOW * window + 1) * setup.spacing
            c = BASIS.T @ found[label].first.mean[window, which]
            rows.append(BASIS @ (forecast(since, setup.damping) @ c))
        pictures[label] = torch.stack(rows).numpy()
    return {"times": times.numpy(), "fields": pictures}


def invariants(n: int) -> dict[str, dict[str, Array]]:
    """Relative drift of mass and energy in the solver, the largest of n trajectories, for each set-up."""
    drifts = {}
    for name, setup in SETUPS.items():
        initial = random_states(n, setup.amplitude, torch.Generator().manual_seed(0), points=POINTS)
        times = torch.linspace(0.0, setup.horizon, 21, dtype=torch.float64)[1:]
        fields = Burgers(POINTS).trajectory(initial, times)
        scale = (POINTS * energy(initial)).sqrt()
        drifts[name] = {
            "time": times.numpy(),
            "mass": ((mass(fields) - mass(initial)).abs() / scale).amax(1).numpy(),
            "energy": ((energy(fields) - energy(initial)).abs() / energy(initial)).amax(1).numpy(),
        }
    return drifts
