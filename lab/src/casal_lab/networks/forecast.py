"""A forecast of 32 members by a network, each with its own circulation and enstrophy, which are kept for 50 cycles.

The fields are vorticities w of the Euler equation on a torus, 16 x 16, cut to the modes of the solver: without
viscosity sum w and sum w^2 do not change. A UNet learns the next field given the present one as a flow. In every cycle
each member is one chain of a run with its own condition, its present field, and its own set,

    sum w' = sum w(0),    |w'|^2 = |w(0)|^2.

The bare step is a sample of the network without a set, in the same number of steps.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import casal
from casal.errors import DivergedError
from casal_lab.artifacts import network
from casal_lab.experiment import AnyMethod, Claim, ResultTable, Tell, reached
from casal_lab.nets import UNet
from casal_lab.nets.events import beside
from casal_lab.networks.fields import F64, NavierStokes
from casal_lab.physics import navier_stokes

MEMBERS = 32
STEPS = 30
"""Of the network's own sampler."""

LEVELS = 20
"""Of Matheron: the next field given the present one is narrow."""

CYCLE, FINE = 0.05, 0.01
"""Time of a cycle and largest step of the solver."""

STATES, ITERATIONS, QUICK_ITERATIONS, BATCH = 4000, 1200, 20, 64
LARGEST = 6.0
"""Times the bare step that a cycle may take."""


def starts(n: int, generator: torch.Generator) -> Tensor:
    """Fields (n, 1, 16, 16) in the modes that the solver keeps."""
    return NavierStokes().initial(n, generator)[:, None]


def advanced(w: Tensor) -> Tensor:
    """The exact next fields."""
    speed = NavierStokes.speed
    return navier_stokes.advance(speed * w[:, 0], CYCLE, viscosity=0.0, step=FINE)[:, None] / speed


def velocity(net: nn.Module, x: Tensor, t: Tensor, *, state: Tensor) -> Tensor:
    """The velocity of the flow to the next field, from noise (t = 0) to data (t = 1); it learns the change alone."""
    level = ((1 - t) / t.clamp_min(1e-3)).clamp_min(1e-3)
    found: Tensor = net(torch.cat([x, state.to(x)], 1), level.to(x.dtype))
    return found


def trained(iterations: int, tell: Tell) -> nn.Module:
    """The network, from the cache or trained now: min E |v(t x + (1 - t) w, t, state) - (x - w)|^2."""

    def make() -> nn.Module:
        tell("forecast: training")
        net = UNet(2, 1, (16, 16), widths=(24, 32, 48), padding="circular", sigmas=(0.003, 150.0), seed=7)
        generator = torch.Generator().manual_seed(7)
        pairs = list[tuple[Tensor, Tensor]]()
        w = starts(STATES, generator)
        for _ in range(5):
            after = advanced(w)
            pairs.append((w.float(), after.float()))
            w = after
        now, then = (torch.cat(part) for part in zip(*pairs, strict=True))
        adam = torch.optim.Adam(net.parameters(), lr=2e-3)
        for k in range(iterations):
            for group in adam.param_groups:
                group["lr"] = 1e-3 * (1 + math.cos(math.pi * k / iterations))
            some = torch.randint(len(now), (BATCH,), generator=generator)
            t = torch.rand(BATCH, generator=generator)
            x, noise = then[some], torch.randn(then[some].shape, generator=generator)
            at = beside(t, x)
            loss = (velocity(net, at * x + (1 - at) * noise, t, state=now[some]) - (x - noise)).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return net.eval()

    return network(f"fields_forecast_unet_flow_{iterations}", make).requires_grad_(False)


class Forecast(NamedTuple):
    """Fields after some cycles, and what they took.

    Attributes:
        fields: The members at the end.
        done: Cycles until chains diverged, or all.
        seconds: CPU seconds a cycle.
        evaluations: Of the network, for each member and cycle.
        violation: The largest along the way.
    """

    fields: Tensor
    done: int
    seconds: float
    evaluations: float
    violation: float


def cycles(net: nn.Module, start: Tensor, count: int, method: AnyMethod | None) -> Forecast:
    """So many cycles, or fewer if chains diverge."""
    n, done = len(start), 0
    mass, energy = start.sum((1, 2, 3)), start.square().sum((1, 2, 3))
    constraint = casal.MassEnergy(casal.PerChain(mass), casal.PerChain(energy))
    now, worst, calls, began = start, 0.0, 0.0, time.process_time()
    for k in range(count):
        target = casal.flow(
            lambda x, t, *, state: velocity(net, x, t, state=state),
            shape=(1, 16, 16),
            steps=STEPS,
            time="scalar",
            condition={"state": now.float()},
        )
        chosen: Any = casal.Unconstrained() if method is None else method
        try:
            result = casal.sample(target, constraint, chosen, n, seed=k, check=False)
        except DivergedError:
            break
        done, now, calls = k + 1, result.samples.to(F64), calls + result.cost.score_evaluations
        worst = max(worst, float(result.certificate.violation.max()))
    many = max(1, done)
    return Forecast(now, done, (time.process_time() - began) / many, calls / many, worst)


def rollout(count: int, tell: Tell) -> tuple[ResultTable, list[Claim]]:
    """Forecasts with and without the set beside the exact solution."""
    net = trained(ITERATIONS if count >= 10 else QUICK_ITERATIONS, tell)
    start = starts(MEMBERS, torch.Generator().manual_seed(99))
    exact = [start]
    for _ in range(count):
        exact.append(advanced(exact[-1]))
    rows, bare = list[dict[str, Any]](), math.nan
    methods: dict[str, AnyMethod | None] = {"unconstrained": None, "predict-project-renoise": casal.ProjectRenoise()}
    methods["Matheron"] = casal.Matheron(levels=LEVELS)
    for label, method in methods.items():
        tell(f"forecast: {label}")
        found = cycles(net, start, count, method)
        bare = found.seconds if method is None else bare
        truth, energy = exact[found.done], found.fields.square().sum((1, 2, 3)) / start.square().sum((1, 2, 3))
        rows.append({"method": label, "cycles": found.done})
        if found.done:
            rows[-1] |= {
                "seconds": found.seconds,
                "ratio": found.seconds / bare,
                "evaluations": found.evaluations,
                "violation": found.violation,
                "enstrophy": float(energy.mean()),
                "spread": float(energy.std()),
                "error": float((found.fields - truth).square().mean().sqrt() / truth.std()),
            }
    table = ResultTable.of(
        f"A forecast of {MEMBERS} members over {count} cycles, each with its own circulation and enstrophy",
        "method | cycles: cycles until chains diverge, d | seconds: CPU seconds a cycle, .3f | "
        "ratio: over the bare step, .2f | evaluations: evaluations a cycle, .0f | violation: largest violation, .0e | "
        "enstrophy: enstrophy at the end / at the start, .3f | spread: its spread over members, .3f | "
        "error: rms error / spread of the fields, .3f",
        rows,
        note="Every member is one chain with its own condition and its own set. The network has seen five cycles.",
    )
    ours = rows[1:]
    claim = Claim(
        f"A cycle of {MEMBERS} members, each with its own mass and energy, takes at most {LARGEST:g} bare steps",
        f"at most {LARGEST:g}, violation below 1e-8",
        "; ".join(
            f"{row['method']} {row['ratio']:.2f}, {row['violation']:.0e}, {row['cycles']} cycles"
            if row["cycles"]
            else f"{row['method']} diverges in the first cycle"
            for row in ours
        ),
        reached(*(row["cycles"] == count and row["ratio"] <= LARGEST and row["violation"] < 1e-8 for row in ours)),
        flips=f"a ratio of CPU times above {LARGEST:g}, a violation of 1e-8 or more, or chains that diverge",
    )
    return table, [claim]
