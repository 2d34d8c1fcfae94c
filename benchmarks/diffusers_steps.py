"""What a constraint costs beside a UNet of diffusers: steps of 16 x 16 fields.

The steps of the constraint are timed with a network that costs nothing, so that their share can be seen below the noise
of a clock; times are those of the processor. The cases take turns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import casal
from benchmarks.timing import Table, interleaved
from casal.methods import Problem

SIDE, STEPS = 16, 20


def sets() -> dict[str, casal.Constraint]:
    """The sets, in the decoded space of one channel."""
    size = SIDE * SIDE
    rows = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    return {
        "Affine, 8 equations": casal.Affine(rows, torch.ones(8)),
        "MassEnergy": casal.MassEnergy(mass=20.0, energy=200.0),
        "Box and an equation": casal.Box(-1.0, 1.0) & casal.Affine(torch.ones(1, size), 20.0),
    }


def unet() -> Any:
    """A UNet of 0.9 million parameters or more."""
    import diffusers

    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=SIDE,
        in_channels=1,
        out_channels=1,
        block_out_channels=(32, 64),
        layers_per_block=2,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()


def steps_of(
    target: casal.Target, constraint: casal.Constraint, method: casal.Method[Any], n: int
) -> Callable[[], float]:
    """All rows of a method for n chains: seconds of the processor."""
    x = target.init(n, torch.Generator().manual_seed(0)) if callable(target.init) else target.init
    problem = Problem(target, constraint, casal.Identity(), x[:0])
    (stage,) = method.stages(problem, n)
    noise = torch.zeros_like(x)

    def case() -> float:
        state: Any = method.start(problem, x, torch.Generator())
        with torch.no_grad():
            began = time.process_time()
            for row in stage.rows:
                state = stage.step(problem, state, row, noise)
            return time.process_time() - began

    return case


def tables(quick: bool = False) -> Iterator[Table]:
    """Microseconds a step of all chains, and the share of the constraint in a step of the UNet."""
    import diffusers

    n, repeats = (4, 3) if quick else (16, 9)
    model = unet()
    count = sum(part.numel() for part in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        target = casal.from_diffusers(model, diffusers.DPMSolverMultistepScheduler(), steps=STEPS)

    def nothing(x: Tensor, t: Tensor) -> Tensor:
        return -0.1 * x

    free = replace(target, score=nothing)
    coupled = casal.CASAL(casal.inverse_variance(1.0))
    cases: dict[str, Callable[[], object]] = {
        "UNet": steps_of(target, casal.Box(-1e9, 1e9), casal.Unconstrained(), n),
        "no network": steps_of(free, casal.Box(-1e9, 1e9), casal.Unconstrained(), n),
    }
    cases |= {name: steps_of(free, constraint, coupled, n) for name, constraint in sets().items()}
    seconds = interleaved(cases, repeats)
    base, whole = seconds["no network"][0], seconds["UNet"][0]
    rows = [
        {
            "case": name,
            "us a step": low / STEPS * 1e6,
            "share of a UNet step, %": None if name in ("UNet", "no network") else 100 * (low - base) / whole,
        }
        for name, (low, _) in seconds.items()
    ]
    note = f"DPM-Solver++ (2M), {n} fields of {SIDE} x {SIDE}, {count:,} parameters; minima over {repeats} rounds."
    yield Table("A constraint beside a UNet of diffusers", rows, note)
