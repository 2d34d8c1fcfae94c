"""How long projections take: closed forms against iterations, and the iterative sets, per chain.

The cases of a group are timed in turn, round after round, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.timing import Race, Table
from casal.constraints import Affine, Box, Budget, Constraint, Implicit, LinearDynamics, MassEnergy, Polytope, Sphere
from casal.constraints.solvers.splitting import Members, alternating, dykstra

SWEEPS = 20

Cases = dict[str, Callable[[], Tensor]]


def tables(quick: bool = False) -> Iterator[Table]:
    """Microseconds a chain; ``quick`` takes fewer chains and rounds."""
    share, repeats = (8, 3) if quick else (1, 9)
    groups = [("Mass and energy, 256 coordinates", 1000, _mass_energy(1000, 256))]
    groups += [("LinearDynamics, quadrotor, 200 steps", 256 // share, _quadrotor(256 // share))]
    for d, m, n in ((2, 8, 1000), (10, 40, 1000), (50, 100, 400), (200, 400, 200)):
        groups += [(f"Polytope, {d} coordinates, {m} rows", max(n // share, 8), _polytope(d, m, max(n // share, 8)))]
    for title, chains, cases in groups:
        yield _race(f"{title}, {chains} chains", chains, cases, repeats)


def _race(title: str, chains: int, cases: Cases, repeats: int) -> Table:
    first = next(iter(cases))
    answers = {name: run() for name, run in cases.items()}
    size = float(answers[first].abs().max())
    errors = [f"{name} {float((x - answers[first]).abs().max()) / size:.0e}" for name, x in answers.items()]
    note = f"Largest difference from the first, relative: {'; '.join(errors[1:])}."
    return Race(title, 1e-6 * chains, "us a chain", (first,), repeats, note, dict(cases)).table()


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mass_energy(n: int, size: int) -> Cases:
    mass, energy = 0.3 * size, 1.2 * size
    closed = MassEnergy(mass, energy)
    members: list[Constraint] = [Affine(torch.ones(1, size), mass), Sphere(math.sqrt(energy))]
    projections = [member._project for member in members]
    z = 0.3 + 1.3 * _normal(n, size, seed=0)

    def bare() -> Tensor:
        x = z
        for _ in range(SWEEPS):
            for project in projections:
                x = project(x)
        return x

    budget, sets = Budget(0.0, SWEEPS), Members(projections, closed._violation)
    newton, narrow = Implicit(closed.residual), z.float()
    return {
        "closed form": lambda: closed.project(z),
        "closed form, in the loop (float32)": lambda: closed.project(narrow, quick=True).double(),
        "Gauss-Newton": lambda: newton.project(z),
        f"{SWEEPS} alternating sweeps, bare loop": bare,
        f"{SWEEPS} alternating sweeps, with flags": lambda: alternating(z, sets, budget).point,
        f"{SWEEPS} Dykstra sweeps": lambda: dykstra(z, sets, budget).point,
    }


def _quadrotor(n: int) -> Cases:
    dynamics = LinearDynamics.double_integrator(9.81, steps=200, dt=0.01, u_max=0.5, scale_y=0.698, scale_u=0.181)
    clock = 0.01 * torch.arange(200, dtype=torch.float64)
    waves = torch.sin(2 * math.pi * (1.0 + 0.3 * _normal(n, 3, 1, seed=1)) * clock + 3.0 * _normal(n, 3, 1, seed=2))
    z = dynamics.trajectory(0.4 * waves.sum(1)[..., None]) + 0.5 * _normal(n, 200, 2, seed=3)
    warm = dynamics.project(z + 0.02 * _normal(n, 200, 2, seed=4))

    limit = 0.5 / 0.181
    box = Box(torch.tensor([-torch.inf, -limit]), torch.tensor([torch.inf, limit]))
    free = LinearDynamics.double_integrator(9.81, steps=200, dt=0.01, u_max=math.inf, scale_y=0.698, scale_u=0.181)
    basis = torch.cat([free._response, torch.eye(200, dtype=torch.float64)])
    basis = torch.linalg.qr(basis).Q

    def on_trajectories(z: Tensor) -> Tensor:
        both = torch.cat([z[..., 0], z[..., 1]], dim=1)
        y, u = ((both @ basis) @ basis.T).split(200, dim=1)
        return torch.stack([y, u], dim=2)

    def defect(z: Tensor) -> Tensor:
        return (z - on_trajectories(z)).abs().amax((1, 2)) / z.abs().amax((1, 2))

    def by_dykstra() -> Tensor:
        return dykstra(z, Members([on_trajectories, box._project], defect), Budget(1e-6, 300)).point

    return {
        "exact": lambda: dynamics.project(z),
        "exact, warm start": lambda: dynamics.project(z, warm=warm),
        "to 1e-6": lambda: dynamics.project(z, budget=Budget(1e-6)),
        "3 iterations, warm start": lambda: dynamics.project(z, budget=Budget(1e-12, 3), warm=warm),
        "Dykstra, trajectories and bounds, to 1e-6": by_dykstra,
    }


def _polytope(d: int, m: int, n: int) -> Cases:
    G = _normal(m, d, seed=5)
    h = G.norm(dim=1) * (0.1 + torch.rand(m, generator=torch.Generator().manual_seed(6), dtype=torch.float64))
    polytope = Polytope(G, h)
    z = (1.0 if d > 100 else 2.0) * _normal(n, d, seed=7)
    warm = polytope.project(z + 0.02 * _normal(n, d, seed=8))
    return {
        "exact": lambda: polytope.project(z),
        "exact, warm start": lambda: polytope.project(z, warm=warm),
        "to 1e-3": lambda: polytope.project(z, budget=Budget(1e-3)),
    }
