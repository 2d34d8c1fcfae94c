"""Every method on every family and set: the settings it is tuned over, its runs, tables and verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from casal.errors import DivergedError, SettingError
from casal_lab.experiment import Claim, Outcome, ResultTable, Tell, reached, stamp, verdict
from casal_lab.mixture.motions import onto_the_circle
from casal_lab.mixture.trained import ENERGY, ITERATIONS, TRAINED, energy_network, own_error
from casal_lab.problems.families import EXTENSIONS, FAMILIES
from casal_lab.problems.three_modes import CASES, MIXTURE, SetCase
from casal_lab.study import PEERS, SETTINGS, Named, Scale, mean_entry, runs, trust, tuned
from casal_lab.twisted import Twisted

Rows = Sequence[Mapping[str, Any]]

PRINTED = ("Algorithm 1", "Algorithm 2")
"""What the paper prints."""

PRESCRIBED = {"langevin": "Algorithm 1", ENERGY: "Algorithm 1"}
"""What the paper prints for a family, where that is not Algorithm 2, its time-dependent form."""

WEIGHTED = ("WeightedCASAL", "SplitGibbs", "Twisted")
"""Methods with importance weights."""

TWINS = {ENERGY: "langevin", "annealed, trained": "annealed"}
"""The family with an exact network beside each trained one, whose settings it takes over without tuning."""


class Entry(NamedTuple):
    """A method of the comparison: the settings it is tuned over, and the tables it is meant for."""

    settings: Sequence[Named]
    applies: Callable[[casal.Table], bool] = lambda table: True


TOLERANCE = 1e-8
"""Violation up to which a point counts as feasible."""

FULL = Scale(4000, 5, 1000, 250, 1)
QUICK = Scale(300, 2, 100, 30, 12)


def _noisy(table: casal.Table) -> bool:
    return table.alpha is not None


def _random(table: casal.Table) -> bool:
    return _noisy(table) and bool(table.s.any())


METHODS: dict[str, Entry] = {
    "final projection": Entry([("", casal.FinalProjection())]),
    "projected": Entry([("", casal.Projected())]),
    "penalty, tuned + projection": Entry(SETTINGS["penalty, tuned + projection"]),
    "DPS, tuned + projection": Entry(SETTINGS["DPS, tuned + projection"], _noisy),
    "Algorithm 1": Entry(SETTINGS["Algorithm 1"]),
    "Algorithm 2": Entry(SETTINGS["Algorithm 2"]),
    "CASAL": Entry(SETTINGS["CASAL"]),
    "CASAL, denoised": Entry(SETTINGS["CASAL, denoised"], _random),  # without noise it is the default
    **{label: Entry(SETTINGS[label], _noisy) for label in PEERS},
    "WeightedCASAL": Entry([("top rho = 400", casal.WeightedCASAL(400.0))], lambda table: table.static),
    "SplitGibbs": Entry([("sigma = 0.02", casal.SplitGibbs(0.02))], _noisy),
    "Twisted": Entry([("rho = 2500", Twisted(2500.0))], _random),
}
"""A new sampler joins by a line here; what the library refuses is shown as refused."""


def run_best(
    entry: Entry, target: casal.Target, case: SetCase, scale: Scale
) -> tuple[Sequence[casal.SampleResult], dict[str, Any]]:
    """A result a seed with the best setting on validation chains, and its name with why others are out.

    A single setting is run without validation. If all are out there is no result but a verdict: refused before the
    first step, or all that were let in diverged.
    """
    if len(entry.settings) == 1:
        name, method = entry.settings[0]
        try:
            return runs(target, case.constraint, method, scale.n, range(scale.seeds)), {"chosen": name, "setting": name}
        except (SettingError, DivergedError) as error:
            said = "diverged" if isinstance(error, DivergedError) else "refused"
            return (), {"setting": "; ".join(part for part in (name, _reason(error)) if part), "verdict": said}
    found, left = tuned(entry.settings, target, case.constraint, lambda result: case.loss(result.samples), scale)
    out = [(name, _reason(error)) for (name, _), error in left]
    if found:
        last = f"{len(out)} out, last {': '.join(out[-1])}" if out else ""
        return found[1], {"chosen": found[0][0], "setting": "; ".join(part for part in (found[0][0], last) if part)}
    reasons = {why for _, why in out}
    told = f"all {len(out)} out: {out[0][1]}" if len(reasons) == 1 else "all out: " + "; ".join(map(": ".join, out))
    verdict = "diverged" if all(why.startswith("diverged") for why in reasons) else "refused"
    return (), {"setting": told, "verdict": verdict}


def _reason(error: SettingError | DivergedError) -> str:
    if isinstance(error, DivergedError):
        return f"diverged at step {error.step}"
    number = re.search(r"tau rho \|A\|\^2 = (\S+) > 1", str(error))
    return f"tau rho = {number[1]} > 1" if number else str(error).partition(",")[0]


@stamp
def run(quick: bool, labels: Sequence[str] | None, tell: Tell) -> Outcome:
    """Every method on every family and set; total variation of the mode weights over several seeds."""
    scale = QUICK if quick else FULL
    tell("training an energy-based model and an annealed score")
    targets = {family: make(MIXTURE, scale.evaluations) for family, make in FAMILIES.items()}
    targets |= {family: make(scale.evaluations, ITERATIONS[quick]) for family, make in TRAINED.items()}
    entries = {label: entry for label, entry in METHODS.items() if labels is None or label in labels}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    points: dict[tuple[str, str, str], Any] = {}
    for name, case in CASES.items():
        for family, target in targets.items():
            plain: Sequence[float] | None = None
            for label, entry in entries.items():
                if entry.applies(target.table):
                    tell(f"{name}, {family}, {label}")
                    results, told = run_best(_as_twin(entry, rows[name], family, label), target, case, scale)
                    row = {"family": family, "method": label, **told}
                    if results:
                        values = [case.total_variation(r.samples) for r in results]
                        plain = values if label == "final projection" else plain
                        row |= _numbers(case, results, values, plain)
                        points[name, family, label] = results[0].samples.numpy()
                    rows[name].append(row)
    floors = {name: case.floor(scale.n, 20 if quick else 100) for name, case in CASES.items()}
    tables = [
        *(matrix(name, rows[name], floors[name], list(targets), list(entries)) for name in CASES),
        certificates(rows, list(entries)),
        models(targets, scale.n, scale.seeds, ITERATIONS[quick]),
    ]
    data = {"rows": rows, "floors": floors, "points": points, "methods": list(entries), "families": list(targets)}
    verdicts = claims(rows, floors) if labels is None or set(PRINTED) & set(labels) else []
    settings = {**scale._asdict(), "settings": {label: len(e.settings) for label, e in entries.items()}}
    motions = [onto_the_circle(scale.n // 2)] if labels is None else []
    records = {"rows": rows, "floors": floors}
    return Outcome("mixture", tables, verdicts, data, settings, motions=motions, records=records)


def _as_twin(entry: Entry, rows: Rows, family: str, label: str) -> Entry:
    """The entry of a trained family: the one setting that its exact twin was given, if it was given one."""
    found = [r["chosen"] for r in rows if r["family"] == TWINS.get(family) and r["method"] == label and "chosen" in r]
    return entry._replace(settings=[s for s in entry.settings if s[0] == found[0]]) if found else entry


def _numbers(
    case: SetCase, results: Sequence[casal.SampleResult], values: Sequence[float], plain: Sequence[float] | None
) -> dict[str, Any]:
    numbers = mean_entry("tv", values)
    numbers |= mean_entry("sliced", [case.sliced(r.samples) for r in results])
    if plain is not None and plain is not values:
        numbers |= mean_entry("gain", np.subtract(values, plain))
    return {
        **numbers,
        "feasible": float(np.mean([float(r.certificate.feasible.double().mean()) for r in results])),
        "violation": max(float(r.certificate.violation.max()) for r in results),
        "evaluations": results[0].cost.score_evaluations,
        "seconds": float(np.mean([r.cost.seconds for r in results])),
        "fidelity": trust(results),
        "seeds": len(results),
        "alone": float(np.mean([_free(case, r) for r in results])),
    }


def _free(case: SetCase, result: casal.SampleResult) -> float:
    """Share of the chains whose point x is in the set before any projection at the end."""
    return float((case.constraint.violation(result.state.x.to(torch.float64)) <= TOLERANCE).double().mean())


def matrix(
    name: str, rows: Rows, floor: Mapping[str, float], families: Sequence[str], methods: Sequence[str]
) -> ResultTable:
    """Family x method: total variation of the mode weights."""
    cells = {(row["family"], row["method"]): row for row in rows}
    lines = []
    for method in methods:
        line: dict[str, Any] = {"method": method}
        for family in families:
            row = cells.get((family, method))
            if row is not None:
                line[family] = row.get("tv", row.get("verdict"))
                line[f"{family}_se"] = row.get("tv_se")
        lines.append(line)
    return ResultTable.of(
        f"Mode weights on the {name}: total variation",
        ("method", *(f"{family}, .3f" for family in families)),
        lines,
        note=f"Exact draws: {floor['tv']:.3f}. A dash: the method is not made for that family, or is its default.",
    )


def certificates(rows: Mapping[str, Rows], methods: Sequence[str]) -> ResultTable:
    """What ``result.certificate`` and ``result.fidelity`` say of each method, over all families and sets."""
    lines = []
    for method in methods:
        mine = [(name, row) for name, found in rows.items() for row in found if row["method"] == method]
        ran = [(name, row) for name, row in mine if "tv" in row]
        if not ran:
            continue
        words = Counter(word for _, row in ran for word in _words(row["fidelity"], row["seeds"]))
        lines.append(
            {
                "method": method,
                "pairs": f"{len(ran)} of {len(mine)}",
                "feasible": float(np.mean([row["feasible"] for _, row in ran])),
                "violation": max(row["violation"] for _, row in ran),
                "fidelity": ", ".join(f"{word} {count}" for word, count in words.most_common()),
                "sliced": float(np.median([row["sliced"] for _, row in ran])),
                "evaluations": "{:.0f} to {:.0f}".format(*_ends([row["evaluations"] for _, row in ran])),
            }
        )
    return ResultTable.of(
        "What the certificates say, over all families and sets",
        "method | pairs: (family, set) pairs run | feasible, .1% | violation: largest violation, .0e | "
        "fidelity: verdict on the distribution, runs | sliced: median sliced W1, .3f | evaluations: score evaluations",
        lines,
        note="Feasible: violation at most 1e-8. Every seed has a verdict of its own. All figures pair by pair, with "
        "settings, differences to one final projection and standard errors, are in results.json of the run (records).",
    )


def _words(told: str, seeds: int) -> list[str]:
    """The verdicts of single runs, from what ``trust`` says of all seeds of a row."""
    found = re.findall(r"([a-z ]+) (\d+)", told)
    return [word.strip() for word, count in found for _ in range(int(count))] if found else [told] * seeds


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def models(targets: Mapping[str, casal.Target], n: int, seeds: int, iterations: int) -> ResultTable:
    """What each family gives without a constraint: its own error, before any method adds one."""
    rows = []
    for family, target in targets.items():
        results = runs(target, casal.Sphere(1.0), casal.Unconstrained(), n, range(seeds))
        tv = [MIXTURE.total_variation(r.samples, MIXTURE.weights) for r in results]
        row = {"family": family, **mean_entry("tv", tv), "evaluations": results[0].cost.score_evaluations}
        row["covered"] = "our extension" if family in EXTENSIONS else "yes"
        row["network"] = "trained" if family in TRAINED else "exact"
        if family == ENERGY:
            net = energy_network(iterations).requires_grad_(False)
            row |= {name: own_error(case, net) for name, case in CASES.items()}
        rows.append(row)
    exact = np.mean([MIXTURE.total_variation(z, MIXTURE.weights) for z in _exact(n)])
    return ResultTable.of(
        "Without a constraint: total variation to the weights of the mixture itself",
        (
            "family | covered: in the paper | network | tv: TV of mode weights, .3f",
            *(f"{name}: network's own error on the {name}, .3f" for name in CASES),
            "evaluations: score evaluations, .0f",
        ),
        [*rows, {"family": "exact draws", "tv": float(exact)}],
        note="Langevin chains, exact or energy-based, start as draws of the mixture; all others start as noise. The "
        "network's own error is the TV between the mode weights of the energy-based model itself on the set, by "
        "quadrature, and the right ones: no sampler of that model can be expected below it. Trained families run with "
        "the settings of their exact twins.",
    )


def _exact(n: int) -> list[Tensor]:
    """Twenty times n draws of the mixture."""
    return [MIXTURE.sample(n, torch.Generator().manual_seed(k)) for k in range(20)]


def claims(rows: Mapping[str, Rows], floors: Mapping[str, Mapping[str, float]]) -> list[Claim]:
    """What the paper says of model families, and what we ask of all methods, counted over families and sets."""
    every = [{**row, "set": name} for name, found in rows.items() for row in found]
    return [*published(every), *targets_met(every, floors)]


def published(every: Rows) -> list[Claim]:
    """The statements of section 3.3 and appendix B."""
    out, inside = [], [row for row in every if row["family"] not in EXTENSIONS and row["method"] in PRINTED]
    meant = [row for row in inside if row["method"] == PRESCRIBED.get(row["family"], "Algorithm 2")]
    if meant:
        ran = [row for row in meant if "tv" in row]
        held = sum(row["setting"].startswith("tau rho") for row in ran)
        other = [row for row in inside if row not in meant]
        out.append(
            Claim(
                "CASAL replaces the Langevin steps of energy-based, annealed, DDPM and score-SDE models as they are: "
                "Algorithm 1 on fixed densities, Algorithm 2 on models with noise levels",
                "all of them",
                f"{len(ran)} of {len(meant)} (family, set) pairs, {held} of them with tau rho held constant, a "
                f"coupling of ours; the other of the two algorithms: {sum('tv' in row for row in other)} of "
                f"{len(other)}",
                verdict(*("tv" in row for row in meant)),
                source="section 3.3; appendix B, summary",
                flips="a pair on which every coupling is refused as unstable or loses chains",
                variant="printed",
                plain="The printed update runs on every family of models, with a coupling that suits its steps.",
            )
        )
    kept = [row for row in inside if "tv" in row]
    if kept:
        full = sum(row["feasible"] == 1.0 for row in kept)
        out.append(
            Claim(
                "every sample satisfies the constraint, on any set with a projection",
                "all samples",
                f"all samples in {full} of {len(kept)} runs; largest violation {max(r['violation'] for r in kept):.0e}",
                verdict(*(row["feasible"] == 1.0 for row in kept)),
                source="section 3.3, constraint satisfaction",
                flips="one sample with a violation above 1e-8",
                variant="printed",
                exact="0",
                plain="Every sample is in the set, to rounding.",
            )
        )
    energy = [row for row in every if row["family"] == ENERGY and "tv" in row]
    added = [row["alone"] for row in energy if row["method"].startswith("penalty") and "alone" in row]
    strict = [row["feasible"] for row in energy if row["method"] in PRINTED]
    if added and strict:
        out.append(
            Claim(
                "on an energy-based model it enforces the constraint more strongly than an added constraint energy",
                "stronger",
                f"feasible: printed algorithms {min(strict):.0%}, a tuned penalty by itself {np.mean(added):.0%} "
                f"({len(added)} sets)",
                verdict(min(strict) > max(added)),
                source="appendix B.1",
                flips="a penalty whose samples are as often feasible without a projection",
                variant="printed",
                plain="An added energy leaves most samples off the set; the projection leaves none.",
            )
        )
    return out


def targets_met(every: Rows, floors: Mapping[str, Mapping[str, float]]) -> list[Claim]:
    """What we ask: the right mode weights. Families with exact networks only, so that a miss is the sampler's."""
    out, exact = [], [row for row in every if row["family"] not in TRAINED and "tv" in row]
    for label in (*PRINTED, "CASAL"):
        gains = [row["gain"] < -2 * row["gain_se"] for row in exact if row["method"] == label and "gain" in row]
        if gains:
            out.append(
                Claim(
                    f"{label}: nearer to the right mode weights than one final projection, by two standard errors",
                    f"{len(gains)} of {len(gains)} (family, set) pairs",
                    f"{sum(gains)} of {len(gains)}",
                    reached(*gains),
                    flips="a paired difference to one final projection below minus two standard errors on every pair",
                )
            )
    for label in (*PRINTED, *WEIGHTED):
        mine = [row for row in exact if row["method"] == label]
        near = [row["tv"] < floors[row["set"]]["tv"] + 2 * row["tv_se"] for row in mine]
        if near:
            worst = max(row["tv"] for row in mine)
            out.append(
                Claim(
                    f"{label}: mode weights as good as exact draws, within two standard errors",
                    f"{len(near)} of {len(near)} (family, set) pairs",
                    f"{sum(near)} of {len(near)}; the worst TV is {worst:.3f}",
                    reached(*near),
                    flips="a TV within two standard errors of that of exact draws on every pair",
                )
            )
    return [*out, *_against_peers(exact)]


def _against_peers(exact: Rows) -> list[Claim]:
    """Whether CASAL without weights is as good as the best peer, set by set."""
    out = []
    for name in CASES:
        cells = {(row["family"], row["method"]): row["tv"] for row in exact if row["set"] == name}
        pairs = []
        for family in dict.fromkeys(family for family, _ in cells):
            peers = [cells[family, label] for label in PEERS if (family, label) in cells]
            if peers and (family, "CASAL") in cells:
                pairs.append((cells[family, "CASAL"], min(peers)))
        if pairs:
            ahead = [ours <= theirs for ours, theirs in pairs]
            mean = np.mean(pairs, axis=0)
            out.append(
                Claim(
                    f"CASAL without weights is no worse than the best of three peers on the {name}",
                    f"{len(pairs)} of {len(pairs)} families",
                    f"{sum(ahead)} of {len(pairs)}; mean TV {mean[0]:.3f}, best peer {mean[1]:.3f}",
                    reached(*ahead),
                    flips="a TV of tuned CASAL at most that of the best tuned peer on every family",
                )
            )
    return out
