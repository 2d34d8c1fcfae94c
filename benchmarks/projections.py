"""How long projections take: closed forms against iterations, and the iterative sets, per chain.

The cases of a group are timed in turn, round after round, so that a busy machine slows all of them alike. Flat sets are
compared with solvers of quadratic programmes that are installed, one point after the other: Clarabel, OSQP and HiGHS.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.timing import Race, Table
from casal.constraints import (
    Affine,
    Box,
    Budget,
    Constraint,
    Implicit,
    LinearDynamics,
    MassEnergy,
    Polytope,
    SparseJacobian,
    Sphere,
)
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
    groups += _curved(share)
    for title, chains, cases in groups:
        yield _race(f"{title}, {chains} chains", chains, cases, repeats)
    yield _flat_sets(quick)


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


def _curved(share: int) -> list[tuple[str, int, Cases]]:
    """Sets of functions with known values or bounds, against ten lines of Gauss-Newton with the analytic Jacobian."""
    found = []
    for size, rows, n in ((1024, 31, 64), (4096, 63, 64), (16384, 127, 32)):
        chains = max(n // share, 4)
        title = f"{rows + 1} known values and {rows} nonlinear balances, {size} coordinates"
        found.append((title, chains, _balances(size, rows, chains)))
    for buses, n in ((9, 2000), (30, 2000)):
        chains = max(n // share, 100)
        found.append((f"AC power flow, {buses} buses, voltages 0.94 to 1.06", chains, _power_flow(buses, chains)))
    return found


def _balances(size: int, rows: int, n: int) -> Cases:
    """Mass of a field from one time to the next: its change is what flows in, a quadratic function of the edges."""
    times, width = rows + 1, size // (rows + 1)

    def fn(z: Tensor) -> Tensor:
        u = z.reshape(len(z), times, width)
        mass, flux = (u + 0.1 * u.square()).mean(2), 0.5 * (u[:, :-1, -1].square() - u[:, :-1, 0].square()) / times
        return mass[:, 1:] - mass[:, :-1] - flux

    def values(z: Tensor) -> Tensor:
        u = z.reshape(len(z), times, width)
        slope = (1.0 + 0.2 * u) / width
        before = -slope[:, :-1].clone()
        before[:, :, -1] -= u[:, :-1, -1] / times
        before[:, :, 0] += u[:, :-1, 0] / times
        return torch.cat([before, slope[:, 1:]], 2).flatten(1)

    place = torch.arange(rows)[:, None]
    indices = torch.stack([place.expand(rows, 2 * width), place * width + torch.arange(2 * width)]).flatten(1)
    level, eye = 0.3 * _normal(times, seed=5), torch.eye(times, size, dtype=torch.float64)
    sparse = Implicit(fn, jacobian=SparseJacobian(indices, values)) & Affine(eye, level)
    near = sparse.project(0.5 * _normal(n, size, seed=1)) + 0.02 * _normal(n, size, seed=9)

    def ten_lines(steps: int) -> Tensor:
        z = near
        for _ in range(steps):
            J = torch.cat([z.new_zeros(n, rows, size), eye.expand(n, times, size)], 1)
            J[:, indices[0], indices[1]] = values(z)
            c = torch.cat([fn(z), z[:, :times] - level], 1)
            right = c[:, :, None] + J @ (near - z)[:, :, None]
            z = near - (J.mT @ torch.linalg.solve(J @ J.mT, right)).squeeze(2)
        return z

    cases: Cases = {
        "ten lines, 2 steps": lambda: ten_lines(2),
        "ten lines, 4 steps": lambda: ten_lines(4),
        "quick, sparse": lambda: sparse.project(near, quick=True),
        "strict, sparse": lambda: sparse.project(near),
    }
    if size <= 1024:
        found = Implicit(fn) & Affine(eye, level)
        cases |= {"quick, by autograd": lambda: found.project(near, quick=True)}
        cases |= {"strict, by autograd": lambda: found.project(near)}
    return cases


def _power_flow(buses: int, n: int) -> Cases:
    """Power balances of a made-up grid in polar coordinates, its loads unknown; voltages are bounded."""
    generator = torch.Generator().manual_seed(buses)
    admittance = torch.zeros(buses, buses, dtype=torch.complex128)
    lines = [(max(0, k - 1 - int(torch.randint(3, (1,), generator=generator))), k) for k in range(1, buses)]
    lines += [(k, k + buses // 3) for k in range(0, buses - buses // 3, 2)]
    for one, other in lines:
        r, x = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        line = 1.0 / complex(0.01 + 0.05 * r, 0.05 + 0.15 * x)
        for i, k, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
            admittance[i, k] += sign * line
    g, b = admittance.real.contiguous(), admittance.imag.contiguous()

    def fn(z: Tensor) -> Tensor:
        size, angle = z[:, :buses], torch.cat([torch.zeros_like(z[:, :1]), z[:, buses : 2 * buses - 1]], 1)
        e, f = size * angle.cos(), size * angle.sin()
        real, imaginary = e @ g - f @ b, f @ g + e @ b
        load = z[:, 2 * buses - 1 :]
        active, reactive = e * real + f * imaginary + load, f * real - e * imaginary + 0.4 * load
        return torch.cat([active[:, 1:], reactive[:, 1 + buses // 5 :]], 1)

    state = torch.cat([torch.ones(buses), torch.zeros(buses - 1), torch.full((buses,), 2.0 / buses)]).to(torch.float64)
    low = torch.full((3 * buses - 1,), -math.inf, dtype=torch.float64)
    high = -low
    low[:buses], high[:buses] = 0.94, 1.06
    both = Implicit(fn) & Box(low, high)
    y = both.project(state[None]) + 0.03 * _normal(n, len(state), seed=2)
    return {"strict": lambda: both.project(y), "quick": lambda: both.project(y, quick=True)}


# ------------------------------------------------------------------ flat sets and other solvers

FEW_POINTS = 4
"""Points that another solver is timed on, one after the other."""

Array = NDArray[np.float64]


def _flat_sets(quick: bool) -> Table:
    """{A z = b, low <= z <= high} for batches of 1 to 4096 points; other solvers take one point at a time."""
    counts = (1, 50, 1000) if quick else (1, 16, 50, 256, 1000, 4096)
    rows = []
    for name, A, low, high, size in _networks(quick):
        whole = Affine(A, 0.0) & Box(torch.from_numpy(low), torch.from_numpy(high))
        few, most = _normal(FEW_POINTS, A.shape[1], seed=9) * size, max(4, 40_000_000 // A.shape[1] ** 2)
        here = whole.solve(few).point.numpy()
        peers = {peer: _timed(solve, few.numpy(), A, low, high, here) for peer, solve in _peers().items()}
        for count in (count for count in counts if count <= most):
            z = _normal(count, A.shape[1], seed=10) * size
            whole.solve(z)
            start = time.process_time()
            found = whole.solve(z)
            own = 1e3 * (time.process_time() - start) / count
            row = {"set": name, "points": count, "ms a point": own, "converged": float(found.converged.double().mean())}
            rows.append(row | {f"{peer} / this": ms / own for peer, (ms, _) in peers.items()})
        for peer, (ms, apart) in peers.items():
            rows.append({"set": f"{name}: {peer}", "points": 1, "ms a point": ms, "largest difference": apart})
    return Table("Balances within bounds", rows, "Processor time, one thread; ratios above one: this is faster.")


def _networks(quick: bool) -> Iterator[tuple[str, Any, Array, Array, float]]:
    """Metabolic networks of the package cobra, if it is installed; random ones of the same size if not."""
    import scipy.sparse

    sizes = {"textbook": (72, 95), "iJO1366": (1805, 2583)}
    for name, (m, d) in sizes.items():
        if quick and d > 1000:
            continue
        if importlib.util.find_spec("cobra") is not None:
            import cobra

            model = cobra.io.load_model(name)
            A = scipy.sparse.csr_array(cobra.util.create_stoichiometric_matrix(model))
            low, high = (
                np.array([getattr(r, f"{side}_bound") for r in model.reactions]) for side in ("lower", "upper")
            )
            yield f"{name}, {m} x {d}", A, low, high, 10.0
        else:
            rng = np.random.default_rng(0)
            place = np.concatenate([rng.choice(d, 5, replace=False) for _ in range(m)])
            values = rng.choice([-2.0, -1.0, 1.0, 2.0], 5 * m)
            A = scipy.sparse.csr_array((values, (np.repeat(np.arange(m), 5), place)), shape=(m, d))
            low = np.where(rng.random(d) < 0.5, 0.0, -1000.0)
            yield f"random, {m} x {d}", A, low, np.full(d, 1000.0), 10.0


def _timed(
    solve: Callable[..., Array], few: Array, A: Any, low: Array, high: Array, here: Array
) -> tuple[float, float]:
    """Milliseconds a point, and the largest difference from our points."""
    start = time.process_time()
    found = np.stack([solve(y, A, low, high) for y in few])
    return 1e3 * (time.process_time() - start) / len(few), float(np.abs(found - here).max())


def _peers() -> dict[str, Callable[..., Array]]:
    known = {"clarabel": _clarabel, "osqp": _osqp, "highspy": _highs}
    return {name: solve for name, solve in known.items() if importlib.util.find_spec(name) is not None}


def _clarabel(y: Array, A: Any, low: Array, high: Array) -> Array:
    import clarabel
    import scipy.sparse

    m, d = A.shape
    eye = scipy.sparse.eye(d, format="csc")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    cones = [clarabel.ZeroConeT(m), clarabel.NonnegativeConeT(2 * d)]
    rows = scipy.sparse.vstack([scipy.sparse.csc_matrix(A), eye, -eye]).tocsc()
    level = np.concatenate([np.zeros(m), high, -low])
    return np.array(clarabel.DefaultSolver(eye, -y, rows, level, cones, settings).solve().x)


def _osqp(y: Array, A: Any, low: Array, high: Array) -> Array:
    import osqp
    import scipy.sparse

    m, d = A.shape
    eye = scipy.sparse.eye(d, format="csc")
    rows = scipy.sparse.vstack([scipy.sparse.csc_matrix(A), eye]).tocsc()
    solver = osqp.OSQP()
    ends = np.concatenate([np.zeros(m), low]), np.concatenate([np.zeros(m), high])
    solver.setup(eye, -y, rows, *ends, verbose=False, eps_abs=1e-8, eps_rel=1e-8, max_iter=100_000, polishing=True)
    return np.array(solver.solve(raise_error=False).x)


def _highs(y: Array, A: Any, low: Array, high: Array) -> Array:
    import highspy
    import scipy.sparse

    m, d = A.shape
    model, rows = highspy.HighsModel(), scipy.sparse.csc_matrix(A)
    model.lp_.num_col_, model.lp_.num_row_ = d, m
    model.lp_.col_cost_, model.lp_.col_lower_, model.lp_.col_upper_ = -y, low, high
    model.lp_.row_lower_ = model.lp_.row_upper_ = np.zeros(m)
    model.lp_.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.lp_.a_matrix_.start_, model.lp_.a_matrix_.index_ = rows.indptr, rows.indices
    model.lp_.a_matrix_.value_ = rows.data
    model.hessian_.dim_, model.hessian_.format_ = d, highspy.HessianFormat.kTriangular
    model.hessian_.start_, model.hessian_.index_ = np.arange(d + 1), np.arange(d)
    model.hessian_.value_ = np.ones(d)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(model)
    solver.run()
    return np.array(solver.getSolution().col_value)
