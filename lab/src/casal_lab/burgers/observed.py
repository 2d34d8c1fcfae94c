"""How observations enter: as the paper's Gaussian posterior, by PSLD, or as a strict constraint (appendix C.3)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from casal import Penalty
from casal.errors import DivergedError
from casal_lab.burgers.comparison import DIFFUSION, REFERENCE, Runs, Scores, average, scores
from casal_lab.burgers.cycle import PSLD
from casal_lab.burgers.setup import TUNING_SEED, Model, Truth, truths
from casal_lab.experiment import AnyMethod, ResultTable, Tell
from casal_lab.study import require, tune, with_error

GAUSSIAN, GLUED, STRICT = "Gaussian posterior", "PSLD", "strict"
SETTINGS = tuple(PSLD(weight, share * weight) for weight in (30.0, 100.0, 300.0) for share in (0.0, 0.1))
"""Weights that are tried, with and without the gluing; 0.1 is the share of it in Rout et al."""

COMPARED = ("unconstrained", "projected, A+ P A", "Algorithm 2", "CASAL")
PENALTY = "penalty, tuned"
PRINTED = "Algorithm 2"
Weights = Mapping[str, PSLD]
"""Of PSLD: those of unconstrained sampling, which all methods take, and those of Algorithm 2."""

Observed = Mapping[tuple[str, str], Scores]
"""By (how observations enter, method)."""


def tuned(model: Model, steps: int, trajectories: int, stride: int, tell: Tell) -> Weights:
    """The weights of PSLD with the smallest error on other trajectories."""
    other = truths(model.setup, trajectories, TUNING_SEED)

    def best(label: str) -> PSLD:
        def loss(setting: PSLD) -> float:
            tell(f"set-up {model.setup.name}: {label}, PSLD, weight {setting.weight:g}, gluing {setting.gluing:g}")
            return float(scores(model, other, steps, DIFFUSION[label][0], psld=setting).l2.mean())

        return require(tune(SETTINGS[::stride], loss, lambda setting: None))[0]

    return {label: best(label) for label in (REFERENCE, PRINTED)}


def compare(
    model: Model, truth: Truth, found: Mapping[str, Runs], steps: int, weights: Weights, tell: Tell
) -> Observed:
    """Methods of the paper with each of its ways for the observations, without those that diverge.

    The penalty has the weight of ``found``, tuned with the Gaussian posterior.
    """
    out: dict[tuple[str, str], Scores] = {}
    methods: dict[str, AnyMethod] = {label: DIFFUSION[label][0] for label in COMPARED}
    if PENALTY in found:
        methods[PENALTY] = Penalty(float(found[PENALTY].setting.removeprefix("weight ")))
    for way in (GAUSSIAN, GLUED, STRICT):
        for label, method in methods.items():
            psld = weights.get(label, weights[REFERENCE]) if way == GLUED else None
            options: dict[str, Any] = {"psld": psld, "strict": way == STRICT}
            if way == STRICT and label == PENALTY:
                continue  # a penalty holds nothing strictly
            if way == STRICT and label == REFERENCE:
                method, options["conserve"] = DIFFUSION["projected, A+ P A"][0], False
            tell(f"set-up {model.setup.name}: observations as {way}, {label}")
            with suppress(DivergedError):
                out[way, label] = scores(model, truth, steps, method, **options)
    return out


def table(found: Mapping[str, Observed], settings: Mapping[str, Weights]) -> ResultTable:
    """A line for each way and method, both set-ups side by side."""
    rows = []
    for way, label in dict.fromkeys(key for observed in found.values() for key in observed):
        line: dict[str, Any] = {"way": way, "method": label}
        if way == STRICT and label == REFERENCE:
            line["method"] = "observations only, projected"
        for name, observed in found.items():
            if (way, label) not in observed:
                continue
            one, base = observed[way, label], observed[GAUSSIAN, label]
            line |= with_error(name, *average(one.l2))
            if way != GAUSSIAN:
                line |= with_error(f"gap {name}", *average(one.l2 - base.l2))
            figures = one.figures
            line |= {f"energy {name}": figures["member_energy"], f"beyond {name}": figures["beyond"]}
            line |= {f"high {name}": figures["high"], f"high {name}_se": figures["high_se"]}
        rows.append(line)
    names, n = list(found), len(next(iter(next(iter(found.values())).values())).truth)
    chosen = "; ".join(
        f"{name}, {label}: weight {psld.weight:g}, gluing {psld.gluing:g}"
        for name, weights in settings.items()
        for label, psld in weights.items()
    )
    return ResultTable.of(
        f"How observations enter, the paper's network: {n} trajectories",
        (
            "way: observations | method",
            *(f"{name}: {name}: error of the mean, .3f" for name in names),
            *(f"gap {name}: {name}: minus the Gaussian posterior, +.3f" for name in names),
            *(f"energy {name}: {name}: energy error, .0e" for name in names),
            *(f"high {name}: {name}: modes 7-9, +.2f" for name in names),
            *(f"beyond {name}: {name}: energy beyond mode 20, .0e" for name in names),
        ),
        rows,
        note="Differences are paired, method by method. PSLD is tuned on other trajectories, for Algorithm 2 by itself "
        f"and for all others with unconstrained sampling ({chosen}); the background stays a Gaussian. Strict: the four "
        "values at the first time of a window are equations beside mass and energy (in the first line alone). Modes "
        "7-9: log10 of the power of a member over the truth's. No truth has energy beyond mode 20. A missing figure: "
        "chains diverge.",
    )
