"""A small DDPM in a Fourier latent, as in the paper's data assimilation of Burgers' equation, and its runtime table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import casal
from benchmarks.field import METHODS as FIELD_METHODS
from benchmarks.field import run as field_run
from benchmarks.field import target as field_target
from benchmarks.timing import Race, Table, interleaved
from casal_lab.nets import MLP

BATCH, MODES, POINTS = 250, 10, 200
PAPER = {
    "unconstrained": (0.37, 0.17),
    "penalty": (0.41, 0.25),
    "projected": (0.43, 2.46),
    "CASAL": (0.45, 0.31),
}
"""Seconds per 1e6 sampling steps on an Apple M1 (paper, appendix on computational cost): fluid, data assimilation."""

SCALE = 1.0 / casal.Fourier(MODES, POINTS).frequencies.flatten().clamp_min(1)

METHODS: dict[str, casal.Method[Any]] = {
    "unconstrained": casal.Unconstrained(),
    "projected": casal.Projected(),
    "penalty": casal.Penalty(1e-3),
    "CASAL": casal.CASAL(10.0),
}


def model(steps: int) -> casal.Target:
    """19 Fourier coefficients, MLP 3 x 128; weights as they come, since only the time matters."""
    net = MLP(2 * MODES - 1, width=128, depth=3, horizon=steps)
    torch.nn.init.normal_(net.output.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    net.requires_grad_(False)
    return casal.ddpm(net, torch.linspace(1e-4, 0.02, steps), shape=2 * MODES - 1, time="scalar")


def tables(quick: bool) -> Iterator[Table]:
    steps = 96 if quick else 400
    network, constraint = model(steps), casal.MassEnergy(0.0, 19.0)
    modes = casal.Fourier(MODES, POINTS)
    decoders = {"coefficients as they are": modes, "a scale for each mode": casal.Fourier(MODES, POINTS, scale=SCALE)}

    def case(method: casal.Method[Any], decoder: casal.Decoder, compile: bool) -> Any:
        options: dict[str, Any] = {"decoder": decoder, "threads": 1, "compile": compile}
        return lambda: casal.sample(network, constraint, method, BATCH, **options).cost.seconds

    for label, decoder in decoders.items():
        race = Race(
            f"MLP DDPM, {2 * MODES - 1} Fourier coefficients, {label}; {POINTS} points, MassEnergy, batch {BATCH}",
            1e-6 * steps,
            "us a step",
            ("unconstrained", "unconstrained, compiled"),
            repeats=5 if quick else 15,
            note="In the paper CASAL / unconstrained is 1.82 and projected / unconstrained 14.5.",
        )
        for compile in (False, True):
            for name, method in METHODS.items():
                race.cases[f"{name}, compiled" if compile else name] = case(method, decoder, compile)
        yield race.table()
    yield paper(quick, {name: case(method, modes, False) for name, method in METHODS.items()}, BATCH * steps)


def paper(quick: bool, assimilation: dict[str, Any], assimilation_steps: int) -> Table:
    """Seconds per 1e6 sampling steps (one chain, one step), beside the paper's."""
    chains, steps = 1000, 200
    fluid = {name: field_run(field_target(steps), FIELD_METHODS[name], chains, threads=1) for name in PAPER}
    repeats = 3 if quick else 9
    ours = interleaved(fluid, repeats), interleaved(assimilation, repeats)
    rows = []
    for name, (theirs_fluid, theirs_assimilation) in PAPER.items():
        rows.append(
            {
                "method": name,
                "fluid, paper": theirs_fluid,
                "fluid, ours": ours[0][name][0] * 1e6 / (chains * steps),
                "assimilation, paper": theirs_assimilation,
                "assimilation, ours": ours[1][name][0] * 1e6 / assimilation_steps,
            }
        )
    note = (
        "Paper: Apple M1. Ours: eager, one thread of the machine above. Its batch is not stated; ours are 1000 fields "
        f"and {BATCH} states. Compare ratios within a column."
    )
    return Table("Seconds per 1e6 sampling steps", rows, note)
