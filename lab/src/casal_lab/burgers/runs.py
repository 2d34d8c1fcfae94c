"""The whole run: the comparison on A and B, the smaller studies, set-up C."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from casal import CASAL
from casal_lab.burgers import calibrated, cost, observed, regime_runs
from casal_lab.burgers.claims import published, regime_targets, targets
from casal_lab.burgers.comparison import (
    DIFFUSION,
    METHODS,
    PRINTED,
    RHO,
    TUNED,
    Runs,
    Scale,
    Scores,
    average,
    compare,
    difference,
    scores,
    table,
)
from casal_lab.burgers.cycle import CYCLES, MEMBERS, WINDOW, forecast
from casal_lab.burgers.learned import Training as RegimeTraining
from casal_lab.burgers.setup import (
    BASIS,
    PLAIN,
    POINTS,
    SETUPS,
    SOLVER,
    WIENER,
    Model,
    Setup,
    Training,
    Truth,
    joined,
    model,
    truths,
)
from casal_lab.experiment import Array, Claim, Outcome, ResultTable, Tell, stamp
from casal_lab.physics.burgers import energy, mass, random_states
from casal_lab.study import with_error

SHOWN = (
    "3D-Var", "3D-Var, constrained", "unconstrained", TUNED[0], "projected, A+ P A", "Algorithm 2", "released code",
    "CASAL",
)  # fmt: skip
"""Methods of the pictures, those of them that were run with the paper's network."""

SIGMAS = (0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""The paper's starts of lambda."""

PAPER = {0.0: 0.56, 1.0: 0.56, 5.0: 0.56, 10.0: 0.57, 20.0: 0.58, 50.0: 0.79, 100.0: 1.34}
GLOBAL = ("unconstrained", "final projection", "projected, A+ P A", "Algorithm 2", "CASAL")
FRAMES = 80
"""Moments of a Hovmoeller picture."""


class Size(NamedTuple):
    """The scale of every part."""

    runs: Scale  # of the comparison on A and B
    training: Training  # of the networks
    some: int  # trajectories of the smaller studies: how observations enter, one scale, more members
    chains: int  # of the start of lambda
    sigmas: Sequence[float]  # starts of lambda
    psld: int  # every how manyth setting of PSLD is tried
    rounds: int  # of the cost table
    members: Sequence[int]  # members of CASAL beside constrained 3D-Var
    regimes: regime_runs.Scale  # of set-up C
    solver: int  # trajectories whose invariants are followed
    amplitudes: Sequence[float] = calibrated.AMPLITUDES  # that are tried for the paper's error


_FULL = regime_runs.Scale(40, 400, 200, 400, 6, 1, 20_000, RegimeTraining(10_000, 20_000, 400))
_QUICK = regime_runs.Scale(3, 100, 50, 60, 1, 7, 1000, RegimeTraining(500, 2000, 60))
FULL = Size(Scale(50, 1, 1, 1000, 10, 1), Training(), 50, 100, SIGMAS, 1, 10, (5, 20, 80), _FULL, 50)
QUICK = Size(Scale(4, 1, 1, 100, 2, 4), Training(100, 120, None), 2, 10, (0.0, 100.0), 6, 1, (5, 10), _QUICK, 3, ())


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Both set-ups with all methods, or those named; the smaller studies and set-up C unless single ones are asked."""
    size = QUICK if quick else FULL
    scale, chosen = size.runs, [label for label in METHODS if labels is None or label in labels]
    tables: list[ResultTable] = []
    found: dict[str, dict[str, dict[str, Runs]]] = {PLAIN: {}, WIENER: {}}
    models: dict[str, dict[str, Model]] = {PLAIN: {}, WIENER: {}}
    every: dict[str, Truth] = {}
    for (kind, runs), (name, setup) in product(found.items(), SETUPS.items()):
        tell(f"set-up {name}, {kind}: networks (trained now unless cached) and truths")
        several = [model(setup, size.training, seed, kind=kind) for seed in range(scale.networks)]
        models[kind][name] = several[0]
        every[name] = joined([truths(setup, scale.trajectories, seed) for seed in range(scale.seeds)])
        runs[name] = compare(several, every[name], [x for x in chosen if kind == WIENER or x in PRINTED], scale, tell)
        if runs[name]:
            tables.append(table(setup, kind, runs[name], scale))
    printed = found[PLAIN]
    data = pictured(SETUPS, printed)
    data["invariants"], shown = invariants(size.solver), data["shown"]
    data["hovmoeller"] = {
        name: hovmoeller(SETUPS[name], each, shown, data["example"]) for name, each in printed.items() if shown
    }
    verdicts: list[Claim] = []
    if labels is None:
        some = {name: t.first(size.some) for name, t in every.items()}
        data["observed"], weights = {}, dict[str, observed.Weights]()
        for name, net in models[PLAIN].items():
            weights[name] = observed.tuned(net, scale.steps, scale.tuning, size.psld, tell)
            entered = observed.compare(net, some[name], printed[name], scale.steps, weights[name], tell)
            data["observed"][name] = entered
        tell("cost of a step")
        costs, ratios = cost.measure(models[PLAIN]["A"], some["A"], max(100, scale.steps // 5), size.rounds)
        begun = starts(models[PLAIN]["A"], every["A"].first(size.chains // MEMBERS), scale.steps, size.sigmas, tell)
        members = more_members(models[WIENER], some, found[WIENER], scale.steps, size.members, tell)
        flat = {
            name: compare([model(setup, size.training, 0, per_mode=False)], some[name], GLOBAL, scale, tell)
            for name, setup in SETUPS.items()
        }
        paper = calibrated.study(size.training, scale, 0, tell, size.amplitudes)
        data["paper"] = pictured(paper.setups, paper.found)
        more, data["regimes"], data["learned"] = regime_runs.run(size.regimes, tell)
        tables += [observed.table(data["observed"], weights), costs, begun, networks(models)]
        tables += [members, one_scale(flat, some), *paper.tables, *more]
        if not quick:
            verdicts = [
                *published(printed, data["observed"], ratios, begun.rows),
                *paper.claims,
                *targets(found[WIENER], list(models[WIENER].values()), members.rows),
                *regime_targets("Set-up C", data["regimes"]),
                *regime_targets("Set-up C, learned prior", data["learned"]),
            ]
    return Outcome("burgers", tables, verdicts, data, {"quick": quick, **scale._asdict()})


@stamp
def run_scene(name: str, seed: int, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """The set-ups on which Algorithm 2 has the paper's error: ``casal run burgers --scene calibrated``."""
    size = QUICK if quick else FULL
    found = calibrated.study(size.training, size.runs, seed, tell, size.amplitudes)
    settings = {"scene": name, "quick": quick, **size.runs._asdict()}
    return Outcome(
        "burgers", found.tables, () if quick else found.claims, pictured(found.setups, found.found), settings
    )


def pictured(setups: Mapping[str, Setup], found: Mapping[str, Mapping[str, Runs]]) -> dict[str, Any]:
    """What figures 3 and 6 of the paper show: states, errors, and one trajectory."""
    shown = [label for label in SHOWN if all(label in runs for runs in found.values())]
    which = typical(found, shown)
    lines = {name: {label: along(setups[name], each[label], which) for label in shown} for name, each in found.items()}
    return {
        "runs": found,
        "times": {name: setups[name].times for name in found},
        "shown": shown,
        "example": which,
        "along": lines,
    }


def starts(model: Model, truth: Truth, steps: int, sigmas: Sequence[float], tell: Tell) -> ResultTable:
    """lambda ~ N(0, sigma^2) at the start, mu = lambda / rho: the paper's Algorithm 2 and the full z-step.

    sigma has the unit of rho times the field. The paper does not give it: here a field has the root mean square 1
    ("field"), or the decoder the norm 1 ("decoder"), in which a field has about 0.1.
    """
    unit = model.setup.amplitude * math.sqrt(2.0) / model.unit  # a field has mean and fluctuation of this amplitude
    rows, first = [], dict[str, Scores]()
    for sigma in sigmas:
        line: dict[str, Any] = {"sigma": f"{sigma:g}", "paper": PAPER[sigma], "growth": PAPER[sigma] / PAPER[0.0]}
        for key, plain, size in (
            ("printed", DIFFUSION["Algorithm 2"][0], unit),
            ("decoder", DIFFUSION["Algorithm 2"][0], 1.0),
            ("full", DIFFUSION["CASAL"][0], unit),
            ("admm", DIFFUSION["CASAL, dual 1"][0], unit),
        ):
            tell(f"set-up {model.setup.name}: start of lambda {sigma:g}, {key}")
            method = replace(cast(CASAL, plain), dual_init=size * sigma / RHO)
            found = scores(model, truth, steps, method)
            line |= with_error(key, *average(found.l2))
            if key == "printed":
                base = first.setdefault(key, found)
                line |= with_error("gap", *average(found.l2 - base.l2))
                line["ratio"] = float(found.l2.mean() / base.l2.mean())
        rows.append(line)
    return ResultTable.of(
        f"Start of lambda, set-up {model.setup.name}, the paper's network: relative error, "
        f"{MEMBERS * len(truth)} chains",
        "sigma: sigma of lambda | paper, .2f | printed: Algorithm 2, .3f | growth: paper: over sigma = 0, .2f | "
        "ratio: Algorithm 2: over sigma = 0, .2f | gap: minus sigma = 0, +.3f | "
        "decoder: Algorithm 2 where the decoder has norm 1, .3f | full: CASAL, .3f | admm: CASAL, dual 1, .3f",
        rows,
        note="sigma has the unit of the field, which the paper does not give. It is in units of the root mean square "
        f"of a field, but in one column in units in which the decoder has norm 1 and a field {unit:.2f}. Errors have "
        "other sizes than the paper's because its problem has other constants; what can be compared is the growth.",
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
        "One scale for all modes instead of one per mode: relative error",
        ("method", *(f"{name}, .3f" for name in found), *(f"gap {name}: {name}: minus CASAL, +.3f" for name in found)),
        rows,
        note=f"One network; {counts}. Differences are paired.",
    )


def more_members(
    models: Mapping[str, Model],
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
        ours = scores(models[name], truths[name], steps, DIFFUSION["CASAL"][0], members=size)
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


def networks(models: Mapping[str, Mapping[str, Model]]) -> ResultTable:
    """Held-out losses of the networks beside those of the Gaussian score, per noise level."""
    every = {f"{name}, {kind}": each for kind, named in models.items() for name, each in named.items()}
    rows = []
    for k, t in enumerate(next(iter(every.values())).losses.levels.tolist()):
        line: dict[str, Any] = {"t": f"{t:.0f}"}
        for title, each in every.items():
            line |= with_error(title, float(each.losses.ratio[k]), float(each.losses.ratio_error[k]))
            line[f"loss {each.setup.name}"] = float(each.losses.gaussian[k])
        rows.append(line)
    return ResultTable.of(
        "Held-out loss of the noise predictor over that of the Gaussian score of the same latent",
        (
            "t: step t",
            *(f"{title}, .4f" for title in every),
            *(f"loss {name}: {name}: loss of the Gaussian, .4f" for name in SETUPS),
        ),
        rows,
        note="Below 1 the network knows more than mean and covariance. Ours is a correction of the Gaussian score that "
        "vanishes where noise is all there is: there the ratio is 1.",
    )


def typical(found: Mapping[str, Mapping[str, Runs]], labels: Sequence[str]) -> int:
    """The trajectory that single pictures show: that of median error, of all these methods and set-ups together."""
    parts = [runs[label].values["l2"].mean(0) for runs in found.values() for label in labels]
    if not parts:
        return 0
    error = torch.stack(parts).mean(0)
    return int((error - error.median()).abs().argmin())


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
    pictures = {"truth": SOLVER.trajectory(truth.initial[which], times).numpy()}
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
        fields = SOLVER.trajectory(initial, times)
        scale = (POINTS * energy(initial)).sqrt()
        drifts[name] = {
            "time": times.numpy(),
            "mass": ((mass(fields) - mass(initial)).abs() / scale).amax(1).numpy(),
            "energy": ((energy(fields) - energy(initial)).abs() / energy(initial)).amax(1).numpy(),
        }
    return drifts
