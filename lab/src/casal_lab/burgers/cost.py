"""The cost table of the paper, data assimilation: time per step of each method over that of unconstrained sampling."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

import casal
from casal import CASAL, Penalty, PerChain, Projected, Unconstrained, sample
from casal.constraints import Subspace
from casal.constraints.parameters import over, parameter
from casal_lab.burgers.comparison import RHO
from casal_lab.burgers.cycle import MEMBERS
from casal_lab.burgers.setup import POINTS, Conserved, Model, Truth
from casal_lab.experiment import AnyMethod, Array, ResultTable
from casal_lab.study import mean_entry

PAPER = {"unconstrained": 0.17, "penalty": 0.25, "projected": 2.46, "CASAL": 0.31}
"""Seconds for 10^6 steps on the authors' machine (table in C.6)."""

SWEEPS = 500
TOLERANCE = 1e-6
SMALL = 1e-6
"""A penalty weight that cannot diverge in few steps; time does not depend on it."""


class Alternating(Conserved):
    """Mass and energy by alternating projections onto plane and sphere, each in closed form, as the paper does it.

        y <- y + (M - sum y) / N,   y <- sqrt(E) y / |y|,   until |sum y - M| <= tolerance sqrt(N E) in all chains.

    The limit is the point that ``MassEnergy`` has in closed form; the rate is M^2 / (N E).

    Args:
        mass: M_i, PerChain.
        energy: E_i, PerChain.
        tolerance: Of the mass.
        most: Sweeps at most.
    """

    counts: ClassVar[list[int]] = []  # sweeps of every projection, until the list is cleared

    def __init__(self, mass: PerChain, energy: PerChain, tolerance: float = TOLERANCE, most: int = SWEEPS) -> None:
        super().__init__(mass, energy)
        self.tolerance, self.most = tolerance, most

    def _project_fast(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        size = z.shape[1]
        mass, length = over(parameter(self.mass), z), over(parameter(self.energy), z).sqrt()
        for sweep in range(self.most + 1):
            gap = mass - z.sum(1, keepdim=True)
            if sweep == self.most or (sweep and bool((gap.abs() <= self.tolerance * size**0.5 * length).all())):
                break
            z = z + gap / size
            z = z * (length / torch.linalg.vector_norm(z, dim=1, keepdim=True))
        self.counts.append(sweep)
        return z

    def _within(self, space: Subspace) -> None:
        """The steps stay on the grid, and each projection goes through the decoder."""


class Timed(NamedTuple):
    """A method of the cost table."""

    method: AnyMethod
    paper: str = ""  # its column in the paper
    sweeps: int = 0  # most alternating projections at a time; 0: the closed form


THROUGH = 20
"""Sweeps that go through the decoder one by one."""

METHODS: Mapping[str, Timed] = {
    "unconstrained": Timed(Unconstrained(), "unconstrained"),
    "penalty": Timed(Penalty(SMALL), "penalty"),
    f"projected, {THROUGH} sweeps through the decoder": Timed(Projected(repeats=THROUGH), "projected", 1),
    "projected, sweeps on the grid": Timed(Projected(), "", SWEEPS),
    "projected, closed form": Timed(Projected()),
    "Algorithm 2, sweeps on the grid": Timed(CASAL.algorithm2(RHO), "CASAL", SWEEPS),
    "Algorithm 2, one sweep on the grid": Timed(CASAL.algorithm2(RHO), "", 1),
    "Algorithm 2, closed form": Timed(CASAL.algorithm2(RHO)),
    "CASAL, closed form": Timed(CASAL(RHO, dual_step="tau")),
}


def measure(model: Model, truth: Truth, steps: int, rounds: int) -> tuple[ResultTable, dict[str, Array]]:
    """All methods in turn, ``rounds`` times over, and the ratio to unconstrained sampling of the same round.

    Time of the processor, one thread, the chains of an analysis in one batch. The first round is not counted.
    """
    n = MEMBERS * len(truth)
    values = PerChain(truth.mass.repeat(MEMBERS) / model.unit), PerChain(truth.energy.repeat(MEMBERS) / model.unit**2)
    target = model.prior(steps)
    counts = Alternating.counts
    seconds: dict[str, list[float]] = {label: [] for label in METHODS}
    sweeps: dict[str, list[int]] = {label: [] for label in METHODS}
    for _ in range(rounds + 1):
        for label, timed in METHODS.items():
            counts.clear()
            inside = Alternating(*values, most=timed.sweeps) if timed.sweeps else Conserved(*values)
            began = time.process_time()
            sample(target, inside, timed.method, n, decoder=model.decoder, seed=0, run=casal.Run(batch=n, threads=1))
            seconds[label].append((time.process_time() - began) / steps)
            sweeps[label] += counts
    ratios = {label: np.array(each[1:]) / np.array(seconds["unconstrained"][1:]) for label, each in seconds.items()}
    rows = []
    for label, timed in METHODS.items():
        line: dict[str, Any] = {"method": label, **mean_entry("ratio", ratios[label])}
        line["micro"] = 1e6 * float(np.median(seconds[label][1:])) / n
        if timed.sweeps:
            line["sweeps"] = float(np.mean(sweeps[label])) * getattr(timed.method, "repeats", 1)
        if timed.paper:
            line |= {"paper": PAPER[timed.paper] / PAPER["unconstrained"], "seconds": PAPER[timed.paper]}
        rows.append(line)
    table = ResultTable.of(
        f"Time of a step over that of unconstrained sampling: {n} chains, {POINTS} points, {rounds} rounds in turn",
        "method | ratio: ours, .2f | paper: paper, .2f | micro: microseconds a step and chain, .2f | "
        "seconds: paper: seconds for 10^6 steps, .2f | sweeps: sweeps a projection, .0f",
        rows,
        note="Time of the processor, one thread; the prior alone, without observations. A sweep is onto the plane and "
        f"then onto the sphere. On the grid sweeps stop when the mass of every chain is met to {TOLERANCE:g}; "
        "through the decoder each is x <- A^+ P(A x). The paper does not print how many it takes.",
    )
    return table, ratios
