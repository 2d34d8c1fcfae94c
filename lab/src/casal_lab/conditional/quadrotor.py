"""Obstacles for a quadrotor in the simplest form: a Gaussian latent, a linear decoder, three forbidden intervals.

    y'' = g u,  u = sum over the first ten Fourier modes of latent x standard deviation,  y = G u

G is a double integrator with zero-order hold, from rest. The latent (19 numbers) is N(0, I), so the diffusion's network
is exact, and draws of the prior that happen to avoid the obstacles are the exact distribution. A way past three
obstacles is one of eight classes, above or below each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casal import CASAL, Linear, Obstacles, SplitGibbs, Target, ddpm
from casal_lab.conditional import common
from casal_lab.conditional.gaussian import eps_network
from casal_lab.distances import mode_weights_tv
from casal_lab.experiment import AnyMethod, Array, Claim, Outcome, ResultTable, Tell
from casal_lab.physics.quadrotor import STEPS, tilt_inputs, tilting
from casal_lab.physics.quadrotor import distinct as count_distinct
from casal_lab.problems.families import BETAS
from casal_lab.study import mean_and_error, runs
from casal_lab.twisted import Twisted

MODES = 10
LATENT = 2 * MODES - 1
UNIT = 0.698
"""Metres: the standard deviation of y, in whose units the set is written."""

AT = (57, 107, 157)
WIDTH = 5
ROWS = [row for start in AT for row in range(start, start + WIDTH)]
RADII = (0.3, 0.8, 1.8)
SOLVED = 0.01
"""Metres: a trajectory this deep in an obstacle still counts as a solution."""


class Scale(NamedTuple):
    """Chains, seeds, islands, prior draws for the reference, sizes of the last obstacle."""

    n: int
    seeds: int
    islands: int
    prior: int
    radii: Sequence[float]


FULL = Scale(1600, 5, 4, 400_000, RADII)
QUICK = Scale(200, 2, 2, 40_000, RADII[:1])


@cache
def decoder() -> Tensor:
    """(200, 19): from the standardised Fourier latent of u to y, in units of UNIT."""
    spectrum = np.fft.rfft(tilt_inputs(10_000, 0), axis=1)[:, :MODES]
    spread = np.concatenate([spectrum.real, spectrum[:, 1:].imag], axis=1).std(0)
    unit = np.diag(spread)
    waves = unit[:, :MODES] + 1j * np.concatenate([np.zeros((LATENT, 1)), unit[:, MODES:]], axis=1)
    signals = torch.from_numpy(np.fft.irfft(waves, n=STEPS, axis=1))
    return tilting().rollout(signals[:, :, None])[:, :, 0].T / UNIT


def intervals(r: float) -> list[tuple[float, float]]:
    """The three forbidden intervals, in metres."""
    return [(-0.1, 0.5), (-4.0, 0.3), (0.5 - r, 0.5 + r)]


def obstacles(r: float) -> Obstacles:
    """Each interval stands for WIDTH of the constrained rows."""
    return Obstacles(
        intervals=[(WIDTH * k, WIDTH * (k + 1), low / UNIT, high / UNIT) for k, (low, high) in enumerate(intervals(r))]
    )


def classes(z: Tensor, r: float) -> Tensor:
    """0 ... 7: above (1) or below (0) the middle of each obstacle."""
    label = torch.zeros(len(z), dtype=torch.long)
    for k, (low, high) in enumerate(intervals(r)):
        label = 2 * label + (z[:, WIDTH * k + WIDTH // 2] > (low + high) / 2 / UNIT)
    return label


def model() -> Target:
    """The diffusion of N(0, I) in 19 dimensions."""
    network = eps_network(torch.eye(LATENT, dtype=torch.float64))
    return ddpm(network, BETAS, shape=LATENT, steps=250, dtype=torch.float64)


def exact_draws(r: float, n: int) -> Tensor:
    """Latents of the exact distribution: those of n draws of the prior that avoid the obstacles."""
    x = torch.randn(n, LATENT, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return x[obstacles(r).violation(x @ decoder()[ROWS].T) <= 0]


def distinct(paths: Tensor) -> int:
    """Greedy count of paths (m, S), in units of UNIT, no two nearer than APART."""
    return count_distinct(paths * UNIT)


def solutions(x: Tensor, r: float) -> tuple[int, float]:
    """Distinct solutions among 100 of the latents, and the share of latents that are free of all obstacles."""
    z, constraint = x @ decoder()[ROWS].T, obstacles(r)
    depth = (z - constraint.project(z)).abs().amax(1) * UNIT
    some = torch.linspace(0, len(x) - 1, 100).long()
    solved = some[depth[some] <= SOLVED]
    return distinct(x[solved] @ decoder().T), float((constraint.violation(z) <= 1e-9).double().mean())


def _methods(quick: bool, islands: int) -> dict[str, AnyMethod]:
    levels, moves = common.LADDER[quick]
    return {
        **common.PLAIN,
        **common.UNTUNED,
        "Algorithm 2": CASAL.algorithm2(1.0),
        "CASAL": CASAL(100.0),
        "SplitGibbs, metropolis": SplitGibbs(common.SIGMA, levels=levels),
        "Twisted": Twisted(common.SIGMA**-2, moves=moves),
        f"Twisted, {islands} islands": Twisted(common.SIGMA**-2, moves=moves, islands=islands),
    }


def run(quick: bool, tell: Tell) -> Outcome:
    """Class weights, distinct solutions and feasibility without the projection, for three sizes of the gate."""
    scale = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    marks, paths = [], {}
    for r in scale.radii:
        free = exact_draws(r, scale.prior)
        exact = torch.bincount(classes(free @ decoder()[ROWS].T, r), minlength=8).double()
        paths[r, "exact draws"] = _shown(free, free @ decoder()[ROWS].T)
        through = Linear(decoder()[ROWS])
        floor = mode_weights_tv(torch.zeros(scale.n, dtype=torch.long), exact).floor
        for label, method in _methods(quick, scale.islands).items():
            tell(f"quadrotor, r = {r:g}: {label}")
            results = runs(model(), obstacles(r), method, scale.n, range(scale.seeds), decoder=through)
            tv = [float(mode_weights_tv(classes(q.samples, r), exact, weights=q.weights, repeats=2)) for q in results]
            found = [solutions(common.equally_weighted(q, q.state.x), r) for q in results]
            row = common.figures(label, results, tv=tv, distinct=[f[0] for f in found])
            rows.append({"r": r, **row, "alone": float(np.mean([f[1] for f in found]))})
            marks.append(common.Dot(f"Quadrotor, r = {r:g}", label, row["tv"] / floor))
            x, z = (common.equally_weighted(results[0], v) for v in (results[0].state.x, results[0].samples))
            paths[r, label] = _shown(x, z)
        label = f"exact draws ({len(free)} for the reference)"
        rows.append({"r": r, "method": label, "tv": floor, "distinct": solutions(free, r)[0]})
    return Outcome("quadrotor", [_table(rows, scale)], _claims(rows, scale), {"dots": marks, "paths": paths})


def _shown(x: Tensor, z: Tensor) -> tuple[Array, Array]:
    """Paths (40, S) in metres of some latents, and their values on the constrained rows."""
    some = torch.linspace(0, len(x) - 1, 40).long()
    return (x[some] @ decoder().T * UNIT).numpy(), z[some].numpy()


def _table(rows: Sequence[Mapping[str, Any]], scale: Scale) -> ResultTable:
    return ResultTable.of(
        f"Quadrotor past three obstacles: {scale.n} chains, {scale.seeds} seeds",
        (
            "r: r (m), .1f | method | tv: TV of class weights, .3f | "
            "distinct: distinct solutions of 100 chains, .0f | alone: free without the projection, .1%",
            common.HEALTH,
        ),
        rows,
        note="A solution is a path G u of the latent that is nowhere deeper than 1 cm in an obstacle; two are distinct "
        "if they are more than 5 cm apart (rms). Feasible: the 15 constrained rows after the projection, which need "
        "not be the path of any input. Class weights count all samples.",
    )


def _claims(rows: Sequence[Mapping[str, Any]], scale: Scale) -> list[Claim]:
    out = []
    pooled = f"Twisted, {scale.islands} islands"
    for r in scale.radii:
        here = {row["method"]: row for row in rows if row["r"] == r}
        out.append(common.at_most(f"Quadrotor, r = {r:g}: {pooled}, TV of class weights", here[pooled]["tv"], 0.15))
        ours, theirs = here[pooled]["distinct"], here["CASAL"]["distinct"]
        text = f"Quadrotor, r = {r:g}: {pooled}, distinct solutions, twice those of CASAL"
        out.append(common.at_least(text, ours, round(2 * theirs)))
    mean, _ = mean_and_error([row["tv"] for row in rows if row["method"] == pooled])
    out.append(common.at_most(f"Quadrotor, mean over r: {pooled}, TV of class weights", mean, 0.15))
    return out
