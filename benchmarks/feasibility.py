"""Flights among obstacles: how long searches for common points and samplers take, what they find, and peak memory.

The planar quadrotor, 200 steps, with three obstacles of five samples; 10,000 starts in one batch, 100 iterations each,
in float64. ``python -m benchmarks.feasibility 10000 100 admm noise`` prints what one search measured as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import casal
from benchmarks.timing import Race, Table, in_new_process
from casal.constraints import Budget, Intersection, Projection
from casal_lab.nets import MLP, Gaussian, compare_ddpm
from casal_lab.physics.quadrotor import flown, tilt_inputs
from casal_lab.problems.families import BETAS
from casal_lab.quadrotor import METHODS, Prior, Recipe, scene, vehicle
from casal_lab.quadrotor.paths import start
from casal_lab.quadrotor.setup import ALLOWED

SEARCHES = ("admm", "alternating", "dykstra")
STARTS = ("noise", "sines")
CHAINS, STEPS = 400, 200
"""Of the race between samplers."""


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
    yield samplers(3 if quick else 10)


def samplers(repeats: int) -> Table:
    """Starts of each method without repair: the paper finds penalties 3 times as slow as CASAL and projections."""
    place = scene("slalom")
    machine = place.vehicle
    net = MLP(machine.dimension).requires_grad_(False)  # untrained: only its time counts
    nothing = torch.zeros((4, machine.dimension))
    model = Prior("untrained", machine, net, compare_ddpm(net, Gaussian.fit(torch.randn(64, 19)), nothing, BETAS))
    penalty = {
        f"penalty, {repeats} gradient steps{how}": Recipe(casal.Penalty(1.0, of=of, repeats=repeats))
        for of, how in (("distance", ""), ("residual", ", by autograd"))
        for repeats in (1, 3, 10)
    }
    recipes = {label: METHODS[label] for label in ("unconstrained", "projected", "CASAL")} | penalty
    race = Race(
        f"Starts of {CHAINS} flights, {STEPS} steps",
        1e-3,
        "ms",
        ("unconstrained", "CASAL", "projected"),
        repeats,
        "Gradients of the distance to the obstacles are in closed form; those of the smooth residual go through the "
        "decoder by autograd. Projected: A+ P A on the whole flight, twice a step; the others see 15 numbers.",
    )
    for label, recipe in recipes.items():
        race.cases[label] = partial(start, place, recipe._replace(steps=STEPS), CHAINS, 0, model)
    return race.table()


def measured(n: int, iterations: int, search: str, start: str) -> dict[str, float | str]:
    """Seconds, success and megabytes of one search."""
    threads = torch.get_num_threads()
    found: dict[str, float | str] = in_new_process("benchmarks.feasibility", n, iterations, search, start, threads)
    return {"search": search, "start": start, **found}


def starts(kind: str, n: int, seed: int = 0) -> Tensor:
    """Standard Gaussian numbers, or flights of random sums of three sines (n, 200, 2)."""
    machine = vehicle("tilting")
    if kind == "noise":
        generator = torch.Generator().manual_seed(seed)
        return torch.randn((n, *machine.event), generator=generator, dtype=torch.float64)
    return machine.dynamics.trajectory(torch.from_numpy(tilt_inputs(n, seed))[..., None])


def search(z: Tensor, way: str, iterations: int) -> Projection:
    """Points of the scene "slalom", to rounding or until the iterations are spent."""
    place = scene("slalom")
    both = Intersection(place.vehicle.dynamics, place.obstacles, way=way)
    return both.solve(z, budget=Budget(1e-12, iterations))


def main() -> None:
    import resource

    n, iterations, name, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else 1)

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    search(starts(kind, 8, seed=1), name, 2)
    z = starts(kind, n)
    before, began = peak(), time.perf_counter()
    found = search(z, name, iterations)
    seconds, after = time.perf_counter() - began, peak()
    place = scene("slalom")
    share = float((place.depth(flown(place.vehicle.dynamics, found.point)) <= ALLOWED).double().mean())
    print(json.dumps({"seconds": seconds, "success": share, "peak, MB": after, "start, MB": before}))


if __name__ == "__main__":
    main()
