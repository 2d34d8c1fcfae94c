"""How often the self-check ``casal.calibrate`` rejects right draws, and methods that were broken on purpose.

Networks: two with an exact denoiser, whose right draws are known, and trained ones. Of a trained network right draws
given a value are free samples whose value falls into the same narrow bin: any two can change places, exactly.

    final projection     one projection after a free run
    projected            a projection after every step
    stopped ladder       Matheron on a table that ends at a noise of half the spread of the fields
    half temperature     right draws whose variance given the values is halved
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import casal
from casal.diagnostics.pairs import SelfCheck, exchangeable
from casal.errors import DivergedError
from casal_lab.experiment import AnyMethod, Claim, ResultTable, Tell, reached
from casal_lab.networks.beds import HeatMixture
from casal_lab.networks.fields import F64
from casal_lab.networks.models import Model
from casal_lab.study import share

PAIRS, FIT = 64, 128
"""Pairs of a check, and free samples for its features."""

STEPS = 50
STOP = 0.5
"""Noise at which the stopped ladder ends, in units of the spread of the fields."""

LEVEL = 0.05
KINDS = ("final projection", "projected", "stopped ladder", "half temperature")
OURS = "Matheron"
"""Checked beside the broken methods, and not counted among them."""

TRAINED = 3
"""Trained networks that are checked: with the two exact ones these are five."""

REPEATS = 4
"""Chains given the same values, whose mean is the centre of the half temperature."""

SHRINK = 3.0**-0.5
"""About the mean m of 4 draws, m + c (x - m) has the variance (c^2 3 + 1) / 4 of one draw: 1 / 2."""

EXACT_CHECKS = 5
"""Checks of right draws for each check of a broken method: they cost nothing."""


class Subject(NamedTuple):
    """A network and what the check needs of it.

    Attributes:
        name: As in the table.
        target: The model's own sampler.
        family: From points to their sets.
        free: n samples of the model.
        right: (n, seed) to right draws (4 n, *event), four for each of n points, and the points.
        stopped: The sampler with a table that ends at half of the root mean square spread of the pixels.
    """

    name: str
    target: casal.Target
    family: Callable[[Tensor], casal.Constraint]
    free: Callable[[int, int], Tensor]
    right: Callable[[int, int], tuple[Tensor, Tensor]]
    stopped: casal.Target


def exact_subject(seed: int, rows: int) -> Subject:
    """A mixture of heat fields with its exact denoiser."""
    bed = HeatMixture(16, 3, seed=seed)
    A, target = bed.rows(rows), bed.target(STEPS, high=80.0)

    def family(y: Tensor) -> casal.Constraint:
        return casal.Affine(A, casal.PerChain(y @ A.T))

    def free(n: int, k: int) -> Tensor:
        return bed.draw(n, torch.Generator().manual_seed(1000 * seed + k))

    def right(n: int, k: int) -> tuple[Tensor, Tensor]:
        own, stream = free(n, k), torch.Generator().manual_seed(7_000_000 + 1000 * seed + k)
        drawn = [bed.given(A, A @ y).draw(REPEATS, stream) for y in own]
        return torch.stack(drawn, 1).flatten(0, 1), own

    early = bed.target(STEPS, low=STOP * spread_of(free(500, 999)), high=80.0)
    return Subject(f"heat mixture {seed}, exact, {rows} rows", target, family, free, right, early)


def trained_subject(model: Model, pool: Tensor) -> Subject:
    """A trained network; its free samples are a pool that was drawn once."""
    known, family = next(iter(model.fields.sets.items()))

    def free(n: int, k: int) -> Tensor:
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(k))
        return pool[order[:n]]

    def right(n: int, k: int) -> tuple[Tensor, Tensor]:
        """Neighbours in the order of the mean of the field, five by five: right given the bin of that mean."""
        some = free((REPEATS + 1) * n, k)
        some = some[some.flatten(1).mean(1).argsort()].unflatten(0, (n, REPEATS + 1))
        order = torch.rand(n, REPEATS + 1, generator=torch.Generator().manual_seed(k)).argsort(1)
        mixed = some[torch.arange(n)[:, None], order].transpose(0, 1)
        return mixed[1:].flatten(0, 1), mixed[0]

    early = model.target(STEPS, STOP * spread_of(pool))
    return Subject(f"{model.spec.title}: {known}", model.target(STEPS), family, free, right, early)


def spread_of(points: Tensor) -> float:
    """Root mean square of the standard deviations of the pixels."""
    return float(points.std(0).square().mean().sqrt())


def broken(subject: Subject, kind: str, k: int) -> SelfCheck:
    """One check of one broken method, with pairs and seed of its own."""
    free = subject.free(PAIRS + FIT, 100 + k)
    if kind == "half temperature":
        return _half(subject, k)
    methods: dict[str, AnyMethod] = {"final projection": casal.FinalProjection(), "projected": casal.Projected()}
    target = subject.stopped if kind == "stopped ladder" else subject.target
    return casal.calibrate(target, subject.family, methods.get(kind, casal.Matheron()), PAIRS, free=free, seed=k)


def _half(subject: Subject, k: int) -> SelfCheck:
    many, own = subject.right(PAIRS, 100 + k)
    many = many.reshape(REPEATS, *own.shape)
    centre = many.mean(0)
    stream = torch.Generator().manual_seed(k)
    return exchangeable(centre + SHRINK * (many[0] - centre), own, subject.free(FIT, 5000 + k), generator=stream)


def self_check(models: Sequence[Model], checks: int, tell: Tell) -> tuple[ResultTable, list[Claim]]:
    """Size on right draws and power on broken methods, network by network."""
    subjects = [exact_subject(11, 8), exact_subject(12, 16)]
    for model in models[:TRAINED]:
        tell(f"self-check: free samples of {model.spec.title}")
        count = 4 * (PAIRS + FIT)
        drawn = casal.sample(model.target(STEPS), None, "auto", count, seed=424242, check=False).samples
        subjects.append(trained_subject(model, drawn.to(F64)))
    rows = list[dict[str, Any]]()
    for subject in subjects:
        tell(f"self-check: {subject.name}")
        rows.append(checked(subject, checks))
    return summary(rows)


def checked(subject: Subject, checks: int) -> dict[str, Any]:
    """A row of the table: how often right draws, broken methods and ours are rejected."""
    found = [_right(subject, k).p < LEVEL for k in range(EXACT_CHECKS * checks)]
    out: dict[str, Any] = {"network": subject.name, "right_n": len(found)}
    out["right"], out["right_se"] = share(sum(found), len(found))
    for kind in (*KINDS, OURS):
        told = list[bool]()
        for k in range(checks):
            try:
                told.append(broken(subject, kind, k).p < LEVEL)
            except DivergedError:
                continue
        out[kind] = f"{sum(told)} of {len(told)}"
        out[f"{kind} found"], out[f"{kind} of"] = sum(told), len(told)
    return out


def summary(rows: Sequence[dict[str, Any]]) -> tuple[ResultTable, list[Claim]]:
    """The table and the claim of all networks."""
    table = ResultTable.of(
        f"The self-check: rejected at 5 %, {PAIRS} pairs",
        "network | right: right draws rejected, .1% | right_n: checks, d | " + " | ".join((*KINDS, OURS)),
        rows,
        note="Right draws of trained networks are free samples given a narrow bin of their mean. Checks whose chains "
        "diverged are left out.",
    )
    size = sum(row["right"] * row["right_n"] for row in rows) / sum(row["right_n"] for row in rows)
    powers = {
        kind: (sum(row[f"{kind} found"] for row in rows), sum(row[f"{kind} of"] for row in rows)) for kind in KINDS
    }
    ok = [count >= 0.95 * of for count, of in powers.values()]
    counts = ", ".join(f"{kind} {count} of {of}" for kind, (count, of) in powers.items())
    claim = Claim(
        f"casal.calibrate on {len(rows)} networks: size at most 5 %, power at least 95 % on four broken methods",
        "0.05; 95 % each",
        f"size {size:.3f}; {counts}",
        reached(size <= LEVEL + 0.02, *ok),
        flips="more than 7 % of right draws rejected (two standard errors above 5 %), or a broken method found in less "
        "than 95 % of the checks",
    )
    return table, [claim]


def _right(subject: Subject, k: int) -> SelfCheck:
    samples, own = subject.right(PAIRS, 20_000 + k)
    return exchangeable(
        samples[: len(own)], own, subject.free(FIT, 30_000 + k), generator=torch.Generator().manual_seed(k)
    )
