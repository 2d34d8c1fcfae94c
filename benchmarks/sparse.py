"""Sparse equations: a Laplacian as linear equations, Darcy flow as nonlinear ones, and the ways to factorise J J^T.

The projection of the Darcy experiment is timed beside a step of its network, which has the size but not the weights.

Times are those of the processor, not of the clock, so that a busy machine counts less. The cases of a group take turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import Case, Race, Table
from casal.constraints import Affine, Budget, Implicit, SparseJacobian
from casal.constraints.solvers.banded import Bands, LapackBands


def tables(quick: bool = False) -> Iterator[Table]:
    """Milliseconds for all chains; ``quick`` takes fewer chains and rounds."""
    chains, repeats = (8, 3) if quick else (64, 7)
    yield _factors(chains, repeats)
    yield _darcy(chains, repeats)
    yield _beside_a_network(chains, repeats)
    yield _laplacian(chains, repeats)


def _race(title: str, cases: dict[str, Callable[[], object]], first: str, repeats: int, note: str) -> Table:
    def timed(run: Callable[[], object]) -> Case:
        def case() -> float:
            began = time.process_time()
            run()
            return time.process_time() - began

        return case

    return Race(title, 1e-3, "ms", (first,), repeats, note, {name: timed(run) for name, run in cases.items()}).table()


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def laplacian(side: int) -> Tensor:
    """Five points, zero beyond the edge: (side^2, side^2), sparse."""
    cell = torch.arange(side * side).reshape(side, side)
    pairs = [(cell[:, 1:], cell[:, :-1]), (cell[1:], cell[:-1])]
    one = torch.cat([a.reshape(-1) for a, _ in pairs] + [b.reshape(-1) for _, b in pairs])
    other = torch.cat([b.reshape(-1) for _, b in pairs] + [a.reshape(-1) for a, _ in pairs])
    places = torch.stack([torch.cat([cell.reshape(-1), one]), torch.cat([cell.reshape(-1), other])])
    values = torch.cat([torch.full((side**2,), 4.0), -torch.ones(len(one))]).double()
    return torch.sparse_coo_tensor(places, values, (side**2, side**2), check_invariants=False).coalesce()


def _factors(chains: int, repeats: int) -> Table:
    from scipy.linalg import cho_solve_banded, cholesky_banded
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    flow = Darcy(32)
    (row, column), size = flow.indices, 32 * 32
    entries = flow.derivatives(
        torch.cat([0.3 * _normal(chains, size, seed=0), 0.01 * _normal(chains, size, seed=1)], 1)
    )
    blocks, lapack = Bands(row, column, size), LapackBands(row, column, size)
    gram, other = blocks.gram(entries), lapack.gram(entries)
    right = _normal(chains, size, seed=2)
    rows = torch.zeros(chains, size, 2 * size, dtype=torch.float64)
    rows[:, row, column] = entries
    dense = rows @ rows.mT
    width = lapack.bandwidth
    bands = np.zeros((chains, width + 1, size))
    for k in range(width + 1):
        bands[:, k, : size - k] = dense.diagonal(-k, 1, 2).numpy()
    sparse = [csc_array(part.numpy()) for part in dense]
    options = {"SymmetricMode": True, "DiagPivotThresh": 0.0}

    def by_blocks() -> object:
        return blocks.solve(blocks.factorise(gram)[0], right)

    def by_lapack() -> object:
        return lapack.solve(lapack.factorise(other)[0], right)

    def by_scipy() -> object:
        pairs = zip(bands, right.numpy(), strict=True)
        return [cho_solve_banded((cholesky_banded(a, lower=True), True), b) for a, b in pairs]

    def by_splu() -> object:
        pairs = zip(sparse, right.numpy(), strict=True)
        return [splu(a, permc_spec="MMD_AT_PLUS_A", options=options).solve(b) for a, b in pairs]

    cases: dict[str, Callable[[], object]] = {
        "LAPACK bands, as Implicit": by_lapack,
        "torch blocks": by_blocks,
        "scipy.linalg.cholesky_banded": by_scipy,
        "scipy splu": by_splu,
        "torch, dense": lambda: torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(dense)),
    }
    title = f"J J^T of Darcy flow, 1024 equations, bandwidth {width}: factorise and solve, {chains} chains"
    return _race(title, cases, "LAPACK bands, as Implicit", repeats, "J J^T itself is given in all cases.")


def _darcy(chains: int, repeats: int) -> Table:
    flow = Darcy(32)
    flat = Implicit(flow.residual, jacobian=SparseJacobian(flow.indices, flow.derivatives))
    x = math.pi * (torch.arange(32, dtype=torch.float64) + 0.5) / 32
    waves = torch.stack([torch.cos(k * x) / (1.0 + k) for k in range(5)])
    s = torch.einsum("nkl,kx,ly->nxy", _normal(chains, 5, 5, seed=3), waves, waves).flatten(1)
    start = flat.project(torch.cat([s, 0.01 * torch.ones_like(s)], dim=1))
    noise = torch.cat([_normal(chains, 1024, seed=4), 0.02 * _normal(chains, 1024, seed=5)], dim=1)
    y = start + 0.02 * noise
    once = flat.solve(y, budget=Budget(1e-12, 1), warm=start)
    found = flat.solve(y, warm=once.point)
    cases: dict[str, Callable[[], object]] = {
        "one warm iteration": lambda: flat.project(y, budget=Budget(1e-12, 1), warm=start),
        "two": lambda: flat.project(y, budget=Budget(1e-12, 2), warm=start),
        "to rounding, warm": lambda: flat.project(y, warm=once.point),
        "to rounding, cold": lambda: flat.project(y),
        "violation": lambda: flat.violation(y),
    }
    note = (
        f"Violation after one iteration {float(flat.violation(once.point).max()):.1e}, to rounding "
        f"{float(flat.violation(found.point).max()):.1e}; residual of the latter over the source "
        f"{float(flow.residual(found.point).abs().max()) * 1024:.1e}."
    )
    return _race(f"Darcy flow 32 x 32, sparse Jacobian, {chains} chains", cases, "one warm iteration", repeats, note)


def _beside_a_network(chains: int, repeats: int) -> Table:
    from casal_lab.nets import WienerUNet
    from casal_lab.pde.darcy import COSINES, IN_LOOP, decoder, prior, task
    from casal_lab.pde.prior import Training

    known = prior(Training(300, 200, 1))
    here = task(known, 0)
    cases = here.cases(max(1, chains // 16), 0)
    every = cases.repeated(chains // len(cases))
    flow, x = here.constraint(every), every.latents + 0.3 * _normal(len(every), known.size, seed=10)
    start = flow.project(known.decode(x), budget=IN_LOOP)
    moved = known.decode(x + 0.05 * _normal(len(every), known.size, seed=11))
    series = decoder(None, COSINES)
    lift = series.matrix((series.latent_size,), torch.empty(0, dtype=torch.float64)).float()
    net = WienerUNet.fit(
        _normal(900, known.size, seed=12).float(),
        grid=(2, COSINES, COSINES),
        lift=lift,
        widths=(16, 24, 32),
        positions=4,
    ).requires_grad_(False)
    noisy, level = x.float(), torch.tensor(0.5)
    timed: dict[str, Callable[[], object]] = {
        "network, one evaluation": lambda: net(noisy, level),
        "projection in the loop": lambda: flow.project(moved, budget=IN_LOOP, warm=start),
        "projection of a sample": lambda: flow.project(moved),
    }
    title = f"Darcy experiment, {len(every)} chains: equation and 50 values beside the network"
    note = "In the loop: one Gauss-Newton step from the last point. The goal is at most 5 evaluations of the network."
    return _race(title, timed, "network, one evaluation", repeats, note)


def _laplacian(chains: int, repeats: int) -> Table:
    whole = laplacian(64).to_dense()[::4].contiguous()
    b, z = _normal(1024, seed=6), _normal(chains, 4096, seed=7)
    sparse, dense = Affine(whole.to_sparse(), b), Affine(whole, b)
    big, c, y = laplacian(100), _normal(10_000, seed=8), _normal(chains, 10_000, seed=9)
    large = Affine(big, c)
    cases: dict[str, Callable[[], object]] = {
        "dense 1024 x 4096, project": lambda: dense.project(z),
        "sparse 1024 x 4096, build": lambda: Affine(whole.to_sparse(), b),
        "sparse 1024 x 4096, project": lambda: sparse.project(z),
        "sparse 1024 x 4096, in the loop": lambda: sparse.project(z, quick=True),
        "sparse 10000 x 10000, build": lambda: Affine(big, c),
        "sparse 10000 x 10000, project": lambda: large.project(y),
    }
    pairs = ((dense, z), (sparse, z), (large, y))
    note = "Violations: " + ", ".join(f"{float(part.violation(part.project(x)).max()):.1e}" for part, x in pairs) + "."
    title = f"Five-point Laplacian as linear equations, {chains} chains"
    return _race(title, cases, "dense 1024 x 4096, project", min(repeats, 3), note)


class Darcy:
    """-div(a grad u) = 1 on the unit square in finite volumes, u = 0 on the walls; points (s, u), a = 6 * 2^s."""

    def __init__(self, side: int) -> None:
        self.side, count = side, side * side
        cell = torch.arange(count).reshape(side, side)
        pairs = [(cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:])]
        self.one = torch.cat([a.reshape(-1) for a, _ in pairs] + [b.reshape(-1) for _, b in pairs])
        self.other = torch.cat([b.reshape(-1) for _, b in pairs] + [a.reshape(-1) for a, _ in pairs])
        self.walls = 2.0 * (4.0 - torch.bincount(self.one, minlength=count).double())
        own = cell.reshape(-1)
        columns = torch.cat([own, self.other, count + own, count + self.other])
        self.indices = torch.stack([torch.cat([own, self.one, own, self.one]), columns])

    def residual(self, z: Tensor) -> Tensor:
        """sum over faces of mean(a) (u_P - u_Q), 2 a u at walls, less the source."""
        a, u = 6.0 * torch.exp2(z[:, : self.side**2]), z[:, self.side**2 :]
        flux = 0.5 * (a[:, self.one] + a[:, self.other]) * (u[:, self.one] - u[:, self.other])
        return (self.walls * a * u - 1.0 / self.side**2).index_add(1, self.one, flux)

    def derivatives(self, z: Tensor) -> Tensor:
        """In the order of ``indices``."""
        a, u = 6.0 * torch.exp2(z[:, : self.side**2]), z[:, self.side**2 :]
        face, drop = 0.5 * (a[:, self.one] + a[:, self.other]), u[:, self.one] - u[:, self.other]
        slope = math.log(2.0) * a
        by_own = (self.walls * u).index_add(1, self.one, 0.5 * drop) * slope
        by_field = (self.walls * a).index_add(1, self.one, face)
        return torch.cat([by_own, 0.5 * drop * slope[:, self.other], by_field, -face], dim=1)
