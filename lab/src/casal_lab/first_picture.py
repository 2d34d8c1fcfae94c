"""The first picture: flights of a vehicle past two obstacles, exact, by one projection and by casal.

    python -m casal_lab.first_picture docs/images/first.svg

A flight is driven by five waves of tilt with random amplitudes, so the model is a Gaussian in five numbers, and a
linear map turns them into 40 positions. Two intervals of positions are forbidden for some steps. Of all flights 43 %
hit nothing, so the exact distribution is known by rejection. All three panels show feasible flights. The number below
each is the share that passes under the first obstacle and over the second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import casal
from casal.store import write_whole

STEPS, DT, WAVES, TILT = 40, 0.05, 5, 0.12
"""Steps of a flight, seconds of a step, waves of tilt, and their size in radians."""

GATES = ((14, 18, -0.1, 0.5), (28, 32, -0.9, 0.1))
"""Of each obstacle: first step, one past the last, lowest and highest position."""

CHAINS, DRAWS, SHOWN = 4000, 400_000, 80
"""Samples of each method, flights that rejection begins with, and flights in a panel."""

WIDTH, HEIGHT, GUTTER = 232, 216, 12
"""Of a panel and between panels, in units of the picture. At 360 pixels a unit is half a pixel."""

LOW, HIGH = -2.6, 2.6
"""Positions at the bottom and the top of a panel."""

STYLE = """
    svg { --ink: #1c2430; --soft: #5b6675; --path: #a9b4c2; --turn: #c2410c; --wall: #334155; --good: #0f6b4f; }
    @media (prefers-color-scheme: dark) {
      svg { --ink: #e8ebef; --soft: #a3adba; --path: #566273; --turn: #fb8b4c; --wall: #94a3b8; --good: #5fd0a5; }
    }
    text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
    .name { font-size: 26px; font-weight: 600; }
    .share { font-size: 38px; font-weight: 700; }
    .small { font-size: 22px; fill: var(--soft); }
    .path { fill: none; stroke: var(--path); stroke-width: 1.3; }
    .turn { stroke: var(--turn); stroke-width: 1.8; }
    .wall { fill: var(--wall); }
"""


def positions() -> Tensor:
    """Where each wave of tilt leads, (5, 40): the rows of the linear map from amplitudes to positions."""
    time = (torch.arange(STEPS, dtype=torch.float64) + 0.5) / STEPS
    tilts = torch.stack([TILT * torch.cos(torch.pi * k * time) for k in range(WAVES)])
    vehicle = casal.LinearDynamics.double_integrator(9.81, steps=STEPS, dt=DT, u_max=2.0)
    return vehicle.rollout(tilts[:, :, None])[:, :, 0]


def turns(flights: Tensor) -> Tensor:
    """1 where a flight passes under the first obstacle and over the second, else 0, (n,)."""
    below, above = ((first + last) // 2 for first, last, _, _ in GATES)
    middle = [(low + high) / 2 for _, _, low, high in GATES]
    return ((flights[:, below] < middle[0]) & (flights[:, above] > middle[1])).to(flights.dtype)


class Panel(NamedTuple):
    """A panel of the picture.

    Attributes:
        name: Its title.
        flights: Feasible ones, (n, 40).
        share: Of the flights that turn, between 0 and 1.
        error: Its standard error.
        verdict: Of the second certificate; None for exact draws.
    """

    name: str
    flights: Tensor
    share: float
    error: float
    verdict: str | None


@dataclass(frozen=True)
class FirstPicture:
    """The three panels, and the picture they make."""

    exact: Panel
    projection: Panel
    casal: Panel

    @property
    def panels(self) -> Sequence[Panel]:
        """In the order of the picture."""
        return self.exact, self.projection, self.casal

    @property
    def description(self) -> str:
        """For readers who do not see the picture."""
        told = ", ".join(f"{panel.name} {percent(panel.share)}" for panel in self.panels)
        return (
            "Flights of a vehicle past two obstacles. Every flight avoids both at every step. "
            f"Share that passes under the first and over the second: {told}."
        )

    def svg(self) -> str:
        """The picture; its colours follow the light or dark theme of the reader."""
        width = 3 * WIDTH + 2 * GUTTER
        parts = [_panel(panel, k * (WIDTH + GUTTER)) for k, panel in enumerate(self.panels)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 124}" role="img">\n'
            f"  <title>{self.description}</title>\n  <style>{STYLE}  </style>\n"
            + "\n".join(parts)
            + f'\n  <text class="small" x="{width / 2}" y="{HEIGHT + 114}" text-anchor="middle">'
            "turn between the obstacles; all avoid both at every step</text>\n</svg>\n"
        )


def percent(share: float) -> str:
    """A share as the picture shows it."""
    return f"{100 * share:.0f} %"


def _panel(panel: Panel, left: float) -> str:
    """Title, flights, obstacles and the number below them."""

    def x(step: float) -> float:
        return WIDTH * step / (STEPS - 1)

    def y(position: float) -> float:
        return HEIGHT * (HIGH - position) / (HIGH - LOW)

    every = max(1, len(panel.flights) // SHOWN)
    some = panel.flights[::every][:SHOWN]
    paths = []
    for turn, flight in sorted(zip(turns(some).tolist(), some.tolist(), strict=True), key=lambda pair: pair[0]):
        points = " ".join(f"{x(k):.0f},{y(place):.1f}" for k, place in enumerate(flight))
        paths.append(f'<polyline class="path{" turn" if turn else ""}" points="{points}"/>')
    walls = [
        f'<rect class="wall" x="{x(first):.1f}" y="{y(high):.1f}" width="{x(last - 1 - first):.1f}" '
        f'height="{y(low) - y(high):.1f}" rx="3"/>'
        for first, last, low, high in GATES
    ]
    middle = WIDTH / 2
    colour = "var(--ink)" if panel.verdict is None else "var(--good)" if panel.verdict == "trusted" else "var(--turn)"
    return "\n".join(
        [
            f'  <svg x="{left}" y="36" width="{WIDTH}" height="{HEIGHT}">',
            *(f"    {line}" for line in (*walls, *paths)),
            "  </svg>",
            f'  <text class="name" x="{left + middle}" y="24" text-anchor="middle">{panel.name}</text>',
            f'  <text class="share" x="{left + middle}" y="{HEIGHT + 76}" text-anchor="middle" '
            f'style="fill: {colour}">{percent(panel.share)}</text>',
        ]
    )


def first_picture(seed: int = 0, chains: int = CHAINS) -> FirstPicture:
    """Sample the three panels: a second or two."""
    waves = positions()
    obstacles, decoder = casal.Obstacles(intervals=GATES), casal.Linear(waves.T)
    start = casal.GaussianStart(WAVES, dtype=torch.float64)
    target = casal.energy(lambda x: x.square().sum(1) / 2, steps=150, step_size=0.05, init=start)

    def sampled(name: str, method: casal.Method[Any] | str) -> Panel:
        result = casal.sample(target, obstacles, method, n=chains, decoder=decoder, seed=seed)
        share = result.expect(turns)
        verdict = result.fidelity.verdict
        return Panel(name, result.samples, float(share.value), float(share.standard_error), verdict)

    draws = start(DRAWS, torch.Generator().manual_seed(seed + 1)) @ waves
    draws = draws[obstacles.violation(draws) == 0]
    share = float(turns(draws).mean())
    exact = Panel("exact", draws, share, (share * (1 - share) / len(draws)) ** 0.5, None)
    return FirstPicture(exact, sampled("projection", casal.FinalProjection()), sampled("casal", "auto"))


def main(path: Path) -> None:
    """Write the picture."""
    picture = first_picture()
    write_whole(path, lambda file: file.write(picture.svg().encode()))
    for panel in picture.panels:
        verdict = f", {panel.verdict}" if panel.verdict else ""
        print(f"{panel.name:<11} {100 * panel.share:.1f} ± {100 * panel.error:.1f} %{verdict}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
