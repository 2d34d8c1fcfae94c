"""Trajectories among obstacles: how long searches for common points take, what they find, and their peak memory.

The planar quadrotor, 200 steps, with three obstacles of five samples; 10,000 starts in one batch, 100 iterations each,
in float64. ``python -m benchmarks.feasibility 10000 100 admm noise`` prints what one search measured as JSON.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import Table
from casal.constraints import Budget, Intersection, LinearDynamics, Obstacles, Projection

ROOT = Path(__file__).parents[1]
SCALE_Y, SCALE_U, U_MAX = 0.698, 0.181, 0.5
ROWS = [(57, 62, -0.1, 0.5), (107, 112, -0.8, 0.3), (157, 162, -0.3, 1.3)]
"""The scene "slalom": first and last sample (excluded), forbidden interval in metres."""
ALLOWED = 0.01
"""Penetration, in metres, up to which a path counts as free."""
SEARCHES = ("admm", "alternating", "dykstra")
STARTS = ("noise", "sines")


def tables(quick: bool = False) -> Iterator[Table]:
    """Each search in a process of its own; ``quick`` takes a twentieth of the starts."""
    n, iterations = (500, 100) if quick else (10_000, 100)
    rows = [measured(n, iterations, search, start) for start in STARTS for search in SEARCHES]
    note = (
        "Peak memory is that of the process; 'start' before the search, with torch loaded and the starts in memory. "
        f"Success: the clipped input, rolled out, enters no obstacle by more than {ALLOWED:g} m. Dykstra's "
        "algorithm is for convex sets and has no guarantee here."
    )
    title = (
        f"Paths among obstacles, {n} starts x {iterations} iterations in one batch, {torch.get_num_threads()} threads"
    )
    yield Table(title, rows, note)


def measured(n: int, iterations: int, search: str, start: str) -> dict[str, float | str]:
    """Seconds, success and megabytes of one search."""
    command = [sys.executable, "-m", "benchmarks.feasibility", str(n), str(iterations), search, start]
    command.append(str(torch.get_num_threads()))
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    found: dict[str, float | str] = json.loads(answer)
    return {"search": search, "start": start, **found}


def dynamics() -> LinearDynamics:
    """The model of the paper, in the units of its data."""
    return LinearDynamics.double_integrator(9.81, steps=200, dt=0.01, u_max=U_MAX, scale_y=SCALE_Y, scale_u=SCALE_U)


def obstacles() -> Obstacles:
    """Those of ROWS, in standardised units."""
    return Obstacles(intervals=[(a, b, low / SCALE_Y, high / SCALE_Y) for a, b, low, high in ROWS], channels=0)


def starts(kind: str, n: int, seed: int = 0) -> Tensor:
    """Standard Gaussian numbers, or trajectories of random sums of three sines (n, 200, 2)."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "noise":
        return torch.randn(n, 200, 2, generator=generator, dtype=torch.float64)
    frequency, weight, phase = torch.rand(3, n, 3, 1, generator=generator, dtype=torch.float64)
    frequency = 0.2 + 1.3 * frequency
    angle = 2 * math.pi * (frequency * 0.01 * torch.arange(200, dtype=torch.float64) + phase)
    u = (weight / frequency.clamp_min(0.5).sqrt() * angle.sin()).sum(1)
    strength = 0.2 + 0.8 * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return dynamics().trajectory((U_MAX * strength * u / u.abs().amax(1, keepdim=True))[..., None])


def solver(name: str) -> Callable[[Tensor, Budget], Projection]:
    """A search by name."""
    both = Intersection(dynamics(), obstacles(), way=name)
    return lambda z, budget: both.solve(z, budget=budget)


def success(point: Tensor) -> Tensor:
    """Which (n,) of the clipped inputs, rolled out, keep free of the obstacles."""
    system = dynamics()
    y = system.rollout(system.physical(point)[1].clamp(-U_MAX, U_MAX))[..., 0]
    depth = [torch.minimum(y[:, a:b] - low, high - y[:, a:b]).amax(1) for a, b, low, high in ROWS]
    return torch.stack(depth).amax(0) <= ALLOWED


def main() -> None:
    import resource

    n, iterations, name, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else 1)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    search, budget = solver(name), Budget(1e-12, iterations)
    search(starts(kind, 8, seed=1), Budget(1e-12, 2))
    z = starts(kind, n)
    before, began = peak(), time.perf_counter()
    found = search(z, budget)
    seconds, after = time.perf_counter() - began, peak()
    share = float(success(found.point).double().mean())
    print(json.dumps({"seconds": seconds, "success": share, "peak, MB": after, "start, MB": before}))


if __name__ == "__main__":
    main()
