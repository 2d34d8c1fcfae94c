"""The whole run: success against the size of the last wall, ablations, weights of the classes, random scenes, discs.

At the end, where the constants come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal_lab.distances import mode_weights_tv
from casal_lab.experiment import Origin, Outcome, ResultTable, Tell, stamp
from casal_lab.physics import quadrotor as physics
from casal_lab.physics.quadrotor import distinct
from casal_lab.problems.families import BETAS
from casal_lab.quadrotor.claims import claims
from casal_lab.quadrotor.motions import SHOWN, in_gallery, solving
from casal_lab.quadrotor.paths import (
    ABLATION,
    BATCH,
    GRIDS,
    ITERATIONS,
    METHODS,
    RHO,
    STEPS,
    Paths,
    Recipe,
    batches_of,
    free_draws,
    solve,
)
from casal_lab.quadrotor.setup import ALLOWED, FLIGHTS, MODES, RATE, WINDOWS, Prior, Training, prior, scene
from casal_lab.study import VALIDATION_SEED, mean_entry, require, share, tune, with_error

VALIDATION = 0.5
"""r of the scene that baselines are tuned on; no other run uses it."""

DRAWN = ("unconstrained", "penalty", "projected", "Algorithm 2", "released code", "CASAL", "Twisted")
"""Methods whose flights are drawn; "CASAL" is our variant."""

WEIGHTED = ("SplitGibbs", "Twisted")
WEAK = 0.4
"""u_max in the solver, where it is less than that of the data."""

SOLVERS = ("admm", "alternating", "dykstra")


class Scale(NamedTuple):
    """How much is run."""

    n: int  # flights of each method at one r, over all networks
    others: int  # the same in other studies
    networks: int  # of different training seeds
    training: Training
    radii: Sequence[float]
    tuning: int  # flights for one setting of a baseline
    stride: int  # every how manyth setting is tried
    scenes: int  # random ones
    prior: int  # draws of the model for the exact reference
    planar: int  # flights of the planar vehicle
    compared: Sequence[str]  # methods in random scenes, with other solvers, and in motion


FULL = Scale(
    1_500, 300, 3, Training(), (0.3, 0.8, 1.3, 1.8, 2.3), 200, 1, 20, 60_000, 60,
    [label for label in METHODS if label not in ("zero", "noise")],
)  # fmt: skip
QUICK = Scale(60, 30, 1, Training(25), (0.8, 1.8), 30, 12, 2, 10_000, 8, ("CASAL", "Twisted"))


class Tried(NamedTuple):
    """A method at one r: its flights, network by network, and the name of its setting."""

    parts: Sequence[Paths]
    setting: str = ""

    @property
    def success(self) -> Tensor:
        return torch.cat([part.success for part in self.parts])

    def rate(self, key: str = "success") -> dict[str, float]:
        """The share of successes and its binomial error, as entries of a row."""
        return with_error(key, *share(int(self.success.sum()), len(self.success)))


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """All studies; with labels, the curves of these methods alone, and what the paper says of them."""
    scale = QUICK if quick else FULL
    wanted = [label for label in METHODS if labels is None or label in labels]
    models = [prior(training=scale.training, seed=seed) for seed in range(scale.networks)]
    recipes = tuned(wanted, models[0], scale, tell)
    curves = success_curves(recipes, models, scale, tell)
    rows = {label: {r: _numbers(tried) for r, tried in by_r.items()} for label, by_r in curves.items()}
    tables = [_curve_table(curves, scale), _detail_table(rows, scale)]
    data: dict[str, Any] = {"curves": _curves(curves), "rows": rows, **_drawn(curves, scale)}
    motions = []
    if labels is None:
        rest = _studies(curves, {label: recipe for label, (recipe, _) in recipes.items()}, models, scale, tell)
        tables += rest.tables
        data |= rest.data
        tell("motion")
        motions = [in_gallery(models[0], [label for label in SHOWN if label in scale.compared], scale.prior)]
    settings = {**scale._asdict(), "settings": {label: name for label, (_, name) in recipes.items() if name}}
    verdicts = [] if quick else claims(data)
    return Outcome("quadrotor", tables, verdicts, data, settings, motions=motions)


@stamp
def run_scene(name: str, seed: int, quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Every method in one scene: ``casal run quadrotor --scene random --seed 7``."""
    scale = QUICK if quick else FULL
    place = scene(name, seed=seed)
    model = prior(place.vehicle.name, scale.training)
    found = {}
    for label, recipe in METHODS.items():
        if labels is None or label in labels:
            tell(f"{place.name}: {label}")
            found[label] = Tried([solve(place, recipe, scale.others, seed, model=model)])
    rows = [{"method": label, **_numbers(tried)} for label, tried in found.items()]
    table = ResultTable.of(f"{place.name}: {scale.others} flights of each method", DETAIL, rows, note=DETAIL_NOTE)
    data = {"flights": {(0.0, label): _shown(tried) for label, tried in found.items()}, "walls": {0.0: place.walls}}
    if place.discs:
        data = {"planar": {label: _shown(tried) for label, tried in found.items()}, "discs": place.discs}
    tell("motion")
    moving = [label for label in SHOWN if label in found]
    motions = [solving(place, moving, 16, seed, model=model)] if moving else []
    return Outcome("quadrotor", [table], [], data, {"scene": name, "seed": seed}, motions=motions)


# ------------------------------------------------------------------ success against the size of the last wall


def tuned(wanted: Sequence[str], model: Prior, scale: Scale, tell: Tell) -> dict[str, tuple[Recipe, str]]:
    """The recipe of every method and the name of its setting: baselines have their best on the validation scene."""
    place, found = scene("hard", r=VALIDATION), {}
    for label in wanted:
        grid = list(GRIDS.get(label, {}).items())[:: scale.stride]

        def loss(named: tuple[str, Recipe], label: str = label) -> float:
            tell(f"tuning {label}: {named[0]}")
            return -float(solve(place, named[1], scale.tuning, VALIDATION_SEED, model=model).success.double().mean())

        if grid:
            (name, recipe), _ = require(tune(grid, loss, lambda named: None))
            edge = ", at the end of the grid" if _at_edge(name, [setting for setting, _ in grid]) else ""
            found[label] = (recipe, f"{name} (best of {len(grid)}{edge})")
        else:
            found[label] = (METHODS[label], "")
    return found


def _at_edge(name: str, names: Sequence[str]) -> bool:
    """Whether the strength of a setting, the first number of its name, is the smallest or the largest of all."""
    values = {setting: float(re.search(r"[\d.]+(e[+-]\d+)?", setting)[0]) for setting in names}  # type: ignore[index]
    return values[name] in (min(values.values()), max(values.values()))


def success_curves(
    recipes: Mapping[str, tuple[Recipe, str]], models: Sequence[Prior], scale: Scale, tell: Tell
) -> dict[str, dict[float, Tried]]:
    """Every method at every r: flights of all networks, with the same seeds."""
    found: dict[str, dict[float, Tried]] = {}
    for label, (recipe, setting) in recipes.items():
        n = math.ceil(scale.n / len(models))
        found[label] = {}
        for r in scale.radii:
            tell(f"hard, r = {r:g}: {label}")
            parts = [solve(scene("hard", r=r), recipe, n, seed, model=model) for seed, model in enumerate(models)]
            found[label][r] = Tried(parts, setting)
    return found


def _curves(curves: Mapping[str, Mapping[float, Tried]]) -> dict[str, Any]:
    out = {}
    for label, by_r in curves.items():
        rates = [tried.rate() for tried in by_r.values()]
        out[label] = {
            "r": list(by_r),
            "success": [rate["success"] for rate in rates],
            "se": [rate["success_se"] for rate in rates],
        }
    return out


def _curve_table(curves: Mapping[str, Mapping[float, Tried]], scale: Scale) -> ResultTable:
    rows = [
        {"method": label, **{k: v for r, tried in by_r.items() for k, v in tried.rate(f"{r:g}").items()}}
        for label, by_r in curves.items()
    ]
    return ResultTable.of(
        "Success after repair, by half height r of the last wall",
        ("method", *(f"{r:g}: r = {r:g}, .3f" for r in scale.radii)),
        rows,
        note=f"Scene 'hard', {scale.n} flights of each method from {scale.networks} networks. ± is the binomial "
        "standard error. A start of each method, 100 iterations of ADMM; the rollout of the clipped input must be "
        "nowhere deeper than 1 cm in a wall. Algorithms 1 and 2 and the released update are in units in which the "
        "decoder has norm one, where explicit coupling is stable up to rho = 100. The table below has the settings, "
        f"tuned at r = {VALIDATION:g}.",
    )


DETAIL = (
    "method | success, .3f | worst: worst network, .3f | free: without repair, .3f | "
    "distinct: distinct of 100, .0f | evaluations: network evaluations, .0f | seconds: seconds of sampling, .1f | "
    "repair: seconds of repair, .1f | setting"
)
DETAIL_NOTE = (
    "Without repair: the rollout of the start's own clipped input succeeds. Distinct: of 100 flights, successes no two "
    "of which are within 5 cm (rms)."
)


def _numbers(tried: Tried) -> dict[str, Any]:
    first = tried.parts[0]
    free = torch.cat([part.free for part in tried.parts])
    return {
        **tried.rate(),
        "worst": min(float(part.success.double().mean()) for part in tried.parts),
        **with_error("free", *share(int(free.sum()), len(free))),
        "distinct": float(np.mean([part.distinct() for part in tried.parts])),
        "evaluations": first.evaluations,
        "flights": len(free),
        "seconds": sum(part.seconds for part in tried.parts),
        "repair": sum(part.solver_seconds for part in tried.parts),
        "setting": tried.setting,
        "classes": torch.cat([part.classes[part.success] for part in tried.parts]).bincount(minlength=8).tolist(),
    }


def _detail_table(rows: Mapping[str, Mapping[float, Mapping[str, Any]]], scale: Scale) -> ResultTable:
    radii = [r for r in scale.radii if r in (0.8, 1.8)]
    lines = [{"r": r, "method": label, **by_r[r]} for r in radii for label, by_r in rows.items()]
    return ResultTable.of(
        "All figures at two sizes of the last wall", f"r: r (m), .1f | {DETAIL}", lines, note=DETAIL_NOTE
    )


# ------------------------------------------------------------------ the other studies


def _studies(
    curves: Mapping[str, Mapping[float, Tried]],
    recipes: Mapping[str, Recipe],
    models: Sequence[Prior],
    scale: Scale,
    tell: Tell,
) -> Outcome:
    """Tables and data of everything but the curves."""
    tables, data = list[ResultTable](), dict[str, Any]()
    for part in (
        margins(curves, scale),
        ablation(models, scale, tell),
        weights(curves, models, scale, tell),
        random_scenes(recipes, models, scale, tell),
        solvers(recipes, models[0], scale, tell),
        discs(scale, tell),
    ):
        tables += part.tables
        data |= part.data
    return Outcome("quadrotor", tables, (), data)


def _drawn(curves: Mapping[str, Mapping[float, Tried]], scale: Scale) -> dict[str, Any]:
    """A few flights of some methods at two sizes of the last wall, and the walls."""
    shown = [r for r in (0.8, 1.8) if r in scale.radii]
    return {
        "flights": {(r, label): _shown(curves[label][r]) for r in shown for label in DRAWN if label in curves},
        "walls": {r: scene("hard", r=r).walls for r in shown},
    }


def _shown(tried: Tried, count: int = 12) -> tuple[Any, Any, Any]:
    """Starts, paths and successes of a few flights, for pictures."""
    first = tried.parts[0]
    return first.starts[:count].numpy(), first.positions[:count].numpy(), first.success[:count].numpy()


CLASSES = tuple("".join(["above", "below"][1 - int(bit)][0] for bit in f"{k:03b}") for k in range(8))
"""Names of the classes: a for above, b for below, wall by wall."""


def margins(curves: Mapping[str, Mapping[float, Tried]], scale: Scale) -> Outcome:
    """The room that each class leaves, and how many successes of all methods are of that class."""
    rows: list[dict[str, Any]] = []
    every = {r: scene("hard", r=r).margins() for r in scale.radii}
    for r, by_class in every.items():
        counts = sum(
            part.classes[part.success].bincount(minlength=8)
            for by_r in curves.values()
            if r in by_r
            for part in by_r[r].parts
        )
        for k, margin in by_class.items():
            if margin > -0.5:
                rows.append({"r": r, "class": CLASSES[k], "margin": margin, "found": int(torch.as_tensor(counts)[k])})
    table = ResultTable.of(
        "Room that each class leaves, and successes found in it",
        "r: r (m), .1f | class: way past the walls | margin: margin of the linear programme (m), +.3f | "
        "found: successes of all methods, d",
        rows,
        note="a: above, b: below. Margins below -1 cm cannot be flown; classes below -0.5 m are left out (no success).",
    )
    low, high = 1.3, 1.8  # between them "above, above, below" becomes impossible
    while high - low > 0.01:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if scene("hard", r=middle).margin(6) >= 0.0 else (low, middle)
    wrong = sum(row["found"] for row in rows if row["margin"] < -0.01)
    total = sum(row["found"] for row in rows)
    return Outcome("quadrotor", [table], (), {"impossible": high, "margins": (wrong, total)})


def ablation(models: Sequence[Prior], scale: Scale, tell: Tell) -> Outcome:
    """Dual steps, z-steps and couplings of CASAL."""
    found: dict[str, Any] = {}
    rows = []
    radii = [r for r in scale.radii if r in (0.3, 0.8, 1.3, 1.8)][: 4 if scale.stride == 1 else 1]
    for label, recipe in list(ABLATION.items())[:: 1 if scale.stride == 1 else 7]:
        row: dict[str, Any] = {"variant": label}
        curve: dict[str, list[float]] = {"r": [], "success": [], "se": []}
        for r in radii:
            tell(f"ablation, r = {r:g}: {label}")
            n = math.ceil(scale.others / len(models))
            parts = [solve(scene("hard", r=r), recipe, n, 100 + k, model=model) for k, model in enumerate(models)]
            rate = Tried(parts).rate(f"{r:g}")
            row |= rate
            for key, value in zip(curve, (r, rate[f"{r:g}"], rate[f"{r:g}_se"]), strict=True):
                curve[key].append(value)
        rows.append(row)
        found[label] = curve
    table = ResultTable.of(
        "Variants of CASAL: success after repair",
        ("variant", *(f"{r:g}: r = {r:g}, .3f" for r in radii)),
        rows,
        note="rho = 100, 1000 steps. Coupled to the 15 numbers that walls see, or to the whole flight. Explicit: the "
        "paper's step size s^2 / 2, in units in which the decoder has norm one.",
    )
    return Outcome("quadrotor", [table], (), {"ablation": found})


def weights(curves: Mapping[str, Mapping[float, Tried]], models: Sequence[Prior], scale: Scale, tell: Tell) -> Outcome:
    """Class weights and distinct solutions of the weighted methods and CASAL beside exact draws of the model."""
    rows: list[dict[str, Any]] = []
    for r in scale.radii:
        place = scene("hard", r=r)
        tell(f"exact draws, r = {r:g}")
        free = [free_draws(model, place, scale.prior) for model in models]
        for label in ("CASAL", *WEIGHTED):
            tried = curves[label][r]
            pooled, each, floors = [], [], []
            for part, exact in zip(tried.parts, free, strict=True):
                truth = place.classes(exact[..., None]).bincount(minlength=8).double()
                batches = part.classes.split(list(batches_of(len(part), METHODS[label].batch)))
                each += [float(mode_weights_tv(batch, truth, repeats=2)) for batch in batches]
                floors.append(mode_weights_tv(part.classes, truth, repeats=50))
                pooled.append(float(floors[-1]))
            size = METHODS[label].batch
            some = [b for part in tried.parts for b in part.success.split(list(batches_of(len(part), size)))]
            rows.append(
                {
                    "r": r,
                    "method": label,
                    **tried.rate(),
                    "least": min(float(batch.double().mean()) for batch in some),
                    **mean_entry("tv", each),
                    "pooled": float(np.mean(pooled)),
                    "floor": float(np.mean([found.floor for found in floors])),
                    "distinct": float(np.mean([part.distinct() for part in tried.parts])),
                }
            )
        rows.append({"r": r, "method": f"exact draws ({sum(map(len, free))})", "distinct": _distinct_of(free)})
    table = ResultTable.of(
        "Weights of the classes, and distinct solutions",
        "r: r (m), .1f | method | success, .4f | least: worst batch, .3f | tv: TV of class weights, one batch, .3f | "
        "pooled: of all flights of a network, .3f | floor: floor of that, .3f | distinct: distinct of 100, .0f",
        rows,
        note=f"Exact draws: of {scale.prior} unconditional samples of the same network, those clear of all walls. "
        "TV: total variation of the eight class weights to theirs; its floor is that of as many exact draws. A batch "
        "of CASAL is all flights of a network.",
    )
    return Outcome("quadrotor", [table], (), {"weights": rows})


def _distinct_of(free: Sequence[Tensor]) -> float:
    return float(np.mean([distinct(paths[:100]) for paths in free]))


def random_scenes(recipes: Mapping[str, Recipe], models: Sequence[Prior], scale: Scale, tell: Tell) -> Outcome:
    """Every method in random scenes, with the same settings."""
    n = min(scale.others, 400)
    found: dict[str, list[float]] = {}
    for label in scale.compared:
        found[label] = []
        for k in range(scale.scenes):
            tell(f"random scene {k}: {label}")
            model = models[k % len(models)]
            paths = solve(scene("random", seed=k), recipes[label], n, k, model=model)
            found[label].append(float(paths.success.double().mean()))
    rows = [{"method": k, **mean_entry("success", v), "least": min(v)} for k, v in found.items()]
    table = ResultTable.of(
        f"Random scenes: success over {scale.scenes} scenes, {n} flights each",
        "method | success: mean, .4f | least: worst scene, .3f",
        rows,
        note="± is the standard error over scenes. Scene k is flown by network k modulo their number.",
    )
    return Outcome("quadrotor", [table], (), {"random": found})


def solvers(recipes: Mapping[str, Recipe], model: Prior, scale: Scale, tell: Tell) -> Outcome:
    """Other feasibility solvers, and a vehicle that can do less than the data."""
    place, rows, weak = scene("hard", r=0.8), [], []
    for label in [label for label in SHOWN if label in scale.compared]:
        row: dict[str, Any] = {"method": label}
        for solver in SOLVERS:
            tell(f"solver {solver}: {label}")
            row |= Tried([solve(place, recipes[label], scale.others, 200, model=model, solver=solver)]).rate(solver)
        rows.append(row)
        tell(f"u_max = {WEAK:g}: {label}")
        paths = solve(place, recipes[label], scale.others, 200, model=model, u_max=WEAK)
        free = share(int(paths.free.sum()), len(paths))
        weak.append({"method": label, **Tried([paths]).rate(), **with_error("free", *free)})
    size = f"{scale.others} flights, r = 0.8"
    tables = [
        ResultTable.of(
            f"Feasibility solvers: success after 100 iterations ({size})",
            ("method", *(f"{solver}, .3f" for solver in SOLVERS)),
            rows,
            note="dykstra: Dykstra's algorithm, whose theory is for convex sets.",
        ),
        ResultTable.of(
            f"Solver and vehicle limited to |u| <= {WEAK:g} rad, data and model to 0.5 ({size})",
            "method | success, .3f | free: without repair, .3f",
            weak,
        ),
    ]
    return Outcome("quadrotor", tables, (), {"weak": weak, "solvers": rows})


def discs(scale: Scale, tell: Tell) -> Outcome:
    """The planar vehicle among discs."""
    place, rows, found = scene("discs"), [], {}
    model = prior("planar", scale.training)
    for label in [label for label in ("unconstrained", "CASAL", "Twisted") if label in scale.compared]:
        tell(f"discs: {label}")
        tried = Tried([solve(place, METHODS[label], scale.planar, 0, model=model)])
        found[label] = _shown(tried)
        rows.append({"method": label, **_numbers(tried)})
    table = ResultTable.of("Planar vehicle with two rotors among discs", DETAIL, rows, note=DETAIL_NOTE)
    return Outcome("quadrotor", [table], (), {"planar": found, "discs": place.discs, "planar rows": rows})


# ------------------------------------------------------------------ where constants come from

ORIGINS = (
    Origin("samples of a flight", f"{physics.STEPS}", "paper", "section C.4"),
    Origin("time between samples", f"{physics.INTERVAL:g} s", "paper", "section C.4"),
    Origin("dynamics", "linear, at rest at first, bounded input", "paper", "section C.4"),
    Origin("model of the vehicle", "y'' = g u, u the tilt", "ours", "the paper says: controlled in acceleration angle"),
    Origin(
        "largest tilt u_max",
        f"{physics.TILT:g} rad",
        "ours",
        "the paper has u_max without a value; half a radian is where the linearisation ends",
    ),
    Origin("flights to learn from", f"{FLIGHTS}", "ours", "the paper gives no number"),
    Origin(
        "excitations",
        "sums of three sines, 0.2 to 1.5 Hz",
        "ours",
        "the paper says: a variety of random periodic excitations",
    ),
    Origin("latent", f"first {MODES} Fourier modes", "paper", "section C.4; we encode the input, not input and path"),
    Origin("network", "fully connected, depth 3, width 128, cosine embedding of time", "paper", "section C.4"),
    Origin("epochs", f"{Training().epochs}", "paper", "section C.4"),
    Origin("learning rate", f"{RATE:g}", "ours", "the paper gives none"),
    Origin("diffusion steps", f"{STEPS}", "paper", "section C.4"),
    Origin("beta", f"{float(BETAS[0]):g} to {float(BETAS[-1]):g}, linear", "ours", "the usual one of DDPM"),
    Origin("noise of a DDPM step", "posterior variance", "ours", "(B.6) prints sigma^2 = beta"),
    Origin("rho", f"{RHO:g}", "paper", "section C.4, in units that it does not give; ours has one per sd of a channel"),
    Origin("obstacles", "segments with a way above and below", "paper", "section C.4"),
    Origin("places of the obstacles", f"samples {', '.join(f'{a} to {b}' for a, b in WINDOWS)}", "ours", "figure only"),
    Origin("sizes r", ", ".join(f"{r:g}" for r in FULL.radii), "ours", "the paper has an axis without a unit"),
    Origin("flights a point", f"{FULL.n}", "ours", "the paper has 10,000; the error is then .004, here .01"),
    Origin("solver", f"ADMM, {ITERATIONS} iterations", "ours", "the paper names ADMM and Dykstra, no number"),
    Origin("success", f"at most {ALLOWED:g} m inside an obstacle", "ours", "the paper gives no tolerance"),
    Origin(
        "settings tried",
        ", ".join(f"{len(grid)} of {name}" for name, grid in GRIDS.items()),
        "ours",
        f"the paper gives none of its baselines; the best on the validation scene (r = {VALIDATION:g})",
    ),
    Origin("chains of a population", f"{BATCH}", "ours", "methods that resample; not in the paper"),
    Origin("SplitGibbs, Twisted", f"{METHODS['SplitGibbs'].method}; {METHODS['Twisted'].method}", "ours", "see above"),
)
"""One row a constant."""
