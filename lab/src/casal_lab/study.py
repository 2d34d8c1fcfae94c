"""How methods are run and summarised: runs over seeds, tuning on validation chains, numbers with their errors."""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

import casal
from casal import ECI, PCFM, Constraint, ProjectRenoise, SampleResult, Target, sample
from casal.errors import CasalWarning, DivergedError, SettingError
from casal_lab.experiment import AnyMethod, Array, Claim, reached

VALIDATION_SEED = 1_000_003
"""Seeds of reported runs are small numbers; this one is kept for choosing settings."""

PEERS = ("PCFM", "ECI", "predict-project-renoise")
"""Published methods that project the denoised estimate, by their names in ``casal.methods.METHODS``."""

Case = tuple[casal.Target, AnyMethod]
Named = tuple[str, AnyMethod]
"""A setting and the method that has it."""

Setting = TypeVar("Setting")
Result = TypeVar("Result")


def tune(
    settings: Sequence[Setting], loss: Callable[[Setting], float], run: Callable[[Setting], Result]
) -> tuple[tuple[Setting, Result] | None, list[tuple[Setting, SettingError | DivergedError]]]:
    """Run the setting of smallest loss on validation chains; the next one if it loses a chain on fresh ones.

    Returns the setting with what its run returned (None if all are out), and those that are out: the library refuses
    them, or they lose a chain, on validation or later.
    """
    scored: list[tuple[float, int]] = []
    out: list[tuple[Setting, SettingError | DivergedError]] = []
    for k, setting in enumerate(settings):
        try:
            scored.append((loss(setting), k))
        except (SettingError, DivergedError) as error:
            out.append((setting, error))
    for _, k in sorted(scored):
        try:
            return (settings[k], run(settings[k])), out
        except (SettingError, DivergedError) as error:
            out.append((settings[k], error))
    return None, out


def require(
    found: tuple[tuple[Setting, Result] | None, Sequence[tuple[Setting, SettingError | DivergedError]]],
) -> tuple[Setting, Result]:
    """The setting and the result of ``tune``; SettingError if all settings are out."""
    if found[0] is None:
        raise SettingError(f"all {len(found[1])} settings are refused or diverge")
    return found[0]


class Scale(NamedTuple):
    """How much is run."""

    n: int  # chains
    seeds: int  # runs
    tuning: int  # chains for tuning
    evaluations: int  # of the score, in a run
    stride: int  # every how manyth setting is tried


def tuned(
    settings: Sequence[Named],
    target: casal.Target,
    constraint: casal.Constraint,
    loss: Callable[[casal.SampleResult], float],
    scale: Scale,
) -> tuple[tuple[Named, list[casal.SampleResult]] | None, list[tuple[Named, SettingError | DivergedError]]]:
    """``tune`` over named methods on one target and set: runs over the seeds with the best of them."""

    def validation(setting: Named) -> float:
        return loss(runs(target, constraint, setting[1], scale.tuning, [VALIDATION_SEED])[0])

    def fresh(setting: Named) -> list[casal.SampleResult]:
        return runs(target, constraint, setting[1], scale.n, range(scale.seeds))

    return tune(settings[:: scale.stride], validation, fresh)


def best(
    cases: Sequence[Case], constraint: casal.Constraint, loss: Callable[[casal.SampleResult], float], n: int
) -> Case:
    """The case with the smallest loss on n validation chains; settings that diverge are out."""

    def validation(case: Case) -> float:
        return loss(casal.sample(case[0], constraint, case[1], n, seed=VALIDATION_SEED))

    return require(tune(cases, validation, lambda case: None))[0]


def penalty_ramps(targets: Iterable[casal.Target]) -> list[Case]:
    """Penalties whose weight climbs geometrically, slowly or fast, each followed by one projection."""
    return [
        (target, casal.FinalProjection(casal.Penalty(casal.geometric(low, high), burn_in=0.1)))
        for target, low, high in product(targets, (1e-4, 1e-3, 1e-2, 1e-1), (0.03, 0.1, 0.3, 1.0))
        if low < high
    ]


def _gains(name: str, gains: Sequence[float], step: str = "b") -> dict[str, Any]:
    """Couplings by their product with the step size: the gain b, or tau = s^2 / 2 in the published variants."""
    return {f"{step} {name} = {gain:g}": casal.constant_gain(gain) for gain in gains}


_FIXED = {f"rho = {rho:g}": rho for rho in (1.0, 10.0, 100.0)}
_PRINTED: dict[str, Any] = {
    **_FIXED,
    **_gains("rho", (0.05, 0.5, 1.0), "tau"),
    "rho = 2 to 20": casal.linear(2.0, 20.0),
}
_REPAIRED: dict[str, Any] = {**_FIXED, **_gains("rho", (0.003, 0.01, 0.1, 1.0))}
_NOISE = {f"rho = {c:g} alpha^2 / sigma^2": casal.inverse_variance(c) for c in (0.01, 0.1)}
_PENALTIES: dict[str, Any] = {
    **{f"weight {w:g}": w for w in (0.1, 1.0, 10.0, 60.0)},
    **{f"weight {lo:g} to {hi:g}": casal.geometric(lo, hi) for lo, hi in ((0.01, 1.0), (0.1, 10.0), (1.0, 100.0))},
    **_gains("weight", (0.003, 0.01, 0.03, 0.1, 0.3)),
}
_GUIDES: dict[str, Any] = {
    **{f"weight {w:g}": w for w in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)},
    **_gains("weight", (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)),
    **{f"weight {c:g} alpha^2 / sigma^2": casal.inverse_variance(c) for c in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)},
}

SETTINGS: Mapping[str, Sequence[Named]] = {
    "penalty, tuned + projection": [
        (f"{name}, off for {burn:.0%}", casal.FinalProjection(casal.Penalty(weight, burn_in=burn)))
        for name, weight in _PENALTIES.items()
        for burn in (0.0, 0.35, 0.6)
    ],
    "DPS, tuned + projection": [(name, casal.FinalProjection(casal.DPS(weight))) for name, weight in _GUIDES.items()],
    "Algorithm 1": [(name, casal.CASAL.algorithm1(rho)) for name, rho in _PRINTED.items()],
    "Algorithm 2": [(name, casal.CASAL.algorithm2(rho)) for name, rho in _PRINTED.items()],
    "CASAL": [(name, casal.CASAL(rho)) for name, rho in _REPAIRED.items()],
    "CASAL, denoised": [(name, casal.CASAL(rho, couple="denoised")) for name, rho in {**_REPAIRED, **_NOISE}.items()],
    "PCFM": [
        ("projection alone", PCFM()),
        *((f"correction of weight {weight:g}", PCFM(weight=weight)) for weight in (0.1, 1.0)),
        ("correction of weight 10 by steps of 0.001", PCFM(weight=10.0, correction_step=0.001)),
        ("one Newton step", PCFM(newton=1)),
        ("one Newton step, correction of weight 1 (the authors' code)", PCFM(newton=1, weight=1.0)),
    ],
    "ECI": [
        (
            f"mixing {mixing}, " + (f"noise anew every {resample}" if resample else "noise of the start"),
            ECI(mixing, resample),
        )
        for mixing in (1, 5)
        for resample in (0, 1, 5)
    ],
    "predict-project-renoise": [(f"rounds {rounds}", ProjectRenoise(rounds)) for rounds in (1, 5)],
}
"""For a diffusion model on a mixture of Gaussians of unit size: the settings of each method, with their names."""


# ------------------------------------------------------------------ runs and their numbers


def runs(
    target: Target,
    constraint: Constraint,
    method: AnyMethod | Literal["auto"],
    n: int,
    seeds: Iterable[int],
    **options: Any,
) -> list[SampleResult]:
    """One run of ``casal.sample`` for each seed, without warnings of few ancestors: the tables have the number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)
        return [sample(target, constraint, method, n, seed=seed, **options) for seed in seeds]


def trust(results: Sequence[SampleResult]) -> str:
    """The verdicts of ``result.fidelity``: the word they share, or how often each was given."""
    words = [result.fidelity.verdict for result in results]
    counted = [f"{word} {words.count(word)}" for word in dict.fromkeys(words)]
    return words[0] if len(counted) == 1 else ", ".join(counted)


def trust_claim(rows: Sequence[Mapping[str, Any]], weak: Sequence[str], sound: str) -> list[Claim]:
    """Whether methods without the right distribution are not trusted, and the one with it is: ``fidelity`` of rows."""
    told = {row["method"]: row["fidelity"] for row in rows if "fidelity" in row}
    if not (set(weak) & set(told)) or sound not in told:
        return []
    doubted = all("trusted" not in told[label] for label in weak if label in told)
    said = ", ".join(f"{label}: {told[label]}" for label in (*weak, sound) if label in told)
    return [
        Claim(
            f"the certificate of the distribution objections the published algorithms and trusts {sound}",
            "as the exact answer does",
            said,
            reached(doubted, told[sound] == "trusted"),
            flips=f"a published algorithm that is trusted on some seed, or {sound} suspect on some seed",
        )
    ]


def share(count: int, n: int) -> tuple[float, float]:
    """A proportion and its standard error (Agresti-Coull, so that 0 of n has an error too)."""
    adjusted = (count + 2) / (n + 4)
    return count / n, math.sqrt(adjusted * (1 - adjusted) / (n + 4))


def mean_and_error(values: Sequence[float] | Array) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), spread / math.sqrt(len(values))


def with_error(key: str, value: float, error: float) -> dict[str, float]:
    """The two entries of a row for a number and its standard error."""
    return {key: value, f"{key}_se": error}


def mean_entry(key: str, values: Sequence[float] | Array) -> dict[str, float]:
    """The two entries of a row for the mean over seeds and its standard error."""
    return with_error(key, *mean_and_error(values))


# ------------------------------------------------------------------ memory

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What Linux wants written to ``RESET``."""


def with_peak(work: Callable[[], Result]) -> tuple[Result, float | None]:
    """What ``work`` returns, and by how many megabytes (2^20 bytes) memory grew at most meanwhile; None but on Linux.

    Freed memory is given back to the system first, where the C library can. Pages count, not bytes: below a megabyte
    the number says nothing.
    """
    try:
        with suppress(OSError, AttributeError):  # glibc alone has it
            ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text(FORGET_PEAK)
        before = _kilobytes("VmRSS")
    except (OSError, KeyError):
        return work(), None
    result = work()
    return result, max(0.0, _kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> float:
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return float(lines[name].split()[0])
