"""Sets of functions in the loop: quick steps against ten lines of Gauss-Newton, a torus against a sphere, 62 rows.

Times are those of the processor. The cases of a group take turns, so that a busy machine slows all of them alike; the
ratio is the median over the rounds of the ratios within a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import casal
from benchmarks.timing import Case, Table, ratios, steps_in_turn
from casal.constraints import Affine, Constraint, Implicit, JacobianProducts, Sphere

Cases = dict[str, Callable[[], object]]


def tables(quick: bool = False) -> Iterator[Table]:
    """Milliseconds; ``quick`` takes fewer rounds."""
    rounds = 3 if quick else 15
    yield _race("3 equations, 256 chains x 64, one projection", _three(), "ten lines", rounds)
    for chains in (64, 4096) if quick else (1, 64, 1000, 4096):
        for dtype in (torch.float32, torch.float64):
            title = f"A step of CASAL, {chains} chains, {str(dtype)[6:]}"
            yield steps_in_turn(f"{title} x 3: torus", _torus(chains, dtype), "sphere", rounds)
            yield steps_in_turn(f"{title} x 5: two quadrics", _quadrics(chains, dtype), "sphere", rounds)
    yield _race("62 equations, 64 chains x 128, one projection", _many(), "Affine", rounds)


def _race(title: str, cases: Cases, base: str, rounds: int) -> Table:
    return ratios(title, cases, base, rounds, repeats=REPEATS)


REPEATS = 3


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums(z: Tensor) -> Tensor:
    """sum z = 2, |z|^2 = 80, sum z_k z_(k+1) = 3."""
    return torch.stack([z.sum(1) - 2.0, z.square().sum(1) - 80.0, (z[:, :-1] * z[:, 1:]).sum(1) - 3.0], dim=1)


def ten_lines(fn: Callable[[Tensor], Tensor], y: Tensor, tolerance: float = 1e-5) -> Tensor:
    """What a user would write: z <- y - J^T (J J^T)^-1 (h + J (y - z)) until the longest step is short."""
    z, size = y, y.norm(dim=1)
    while True:
        leaf = z.detach().requires_grad_()
        h = fn(leaf)
        J = torch.stack([torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0] for part in h.T], dim=1)
        right = h.detach()[:, :, None] + J @ (y - z)[:, :, None]
        new = y - (J.mT @ torch.linalg.solve(J @ J.mT, right)).squeeze(2)
        step, z = (new - z).norm(dim=1), new
        if bool((step <= tolerance * size).all()):
            return z


def _three() -> Cases:
    constraint = Implicit(sums)
    z = constraint.project(1.2 * _normal(256, 64, seed=0))
    cases: Cases = {}
    y = z + 0.1 * _normal(256, 64, seed=1)
    narrow = y.float()
    cases["ten lines"] = lambda: ten_lines(sums, y)
    cases["quick, float64"] = lambda: constraint.project(y, quick=True)
    cases["quick, float32"] = lambda: constraint.project(narrow, quick=True)
    cases["strict"] = lambda: constraint.project(y)
    return cases


def torus(z: Tensor) -> Tensor:
    """Distance 0.5 from the circle of radius 2 in the plane z_3 = 0."""
    return ((torch.sqrt(z[..., 0] ** 2 + z[..., 1] ** 2) - 2) ** 2 + z[..., 2] ** 2 - 0.25)[:, None]


def polynomial(z: Tensor) -> Tensor:
    """Distance 0.7 from that circle, as a polynomial."""
    squares = z.square()
    return (squares.sum(1) + 3.51).square()[:, None] / 16.0 - squares[:, :2].sum(1, keepdim=True)


def quadrics(z: Tensor) -> Tensor:
    """|z|^2 = 4 and z_1 z_2 + z_3^2 - z_4 z_5 = 1."""
    saddle = z[:, 0] * z[:, 1] + z[:, 2].square() - z[:, 3] * z[:, 4]
    return torch.stack([z.square().sum(1) - 4.0, saddle - 1.0], dim=1)


def _torus(chains: int, dtype: torch.dtype) -> dict[str, Callable[[int], Case]]:
    sets = {"sphere": Sphere(2.0), "torus": Implicit(torus), "torus, a polynomial": Implicit(polynomial)}
    return {name: loop(own, 3, chains, dtype) for name, own in sets.items()}


def _quadrics(chains: int, dtype: torch.dtype) -> dict[str, Callable[[int], Case]]:
    sets = {"sphere": Sphere(2.0), "two quadrics": Implicit(quadrics)}
    return {name: loop(own, 5, chains, dtype) for name, own in sets.items()}


def loop(
    constraint: Constraint, size: int, chains: int, dtype: torch.dtype, step: float = 1e-3, rho: float = 1000.0
) -> Callable[[int], Case]:
    """Number of steps -> a run of CASAL from points of the set."""
    start = constraint.project(1.5 * _normal(chains, size, seed=2)).to(dtype)

    def run(steps: int) -> Case:
        target = casal.langevin(lambda x: 0.5 * x, steps=steps, step_size=step, init=start)
        return lambda: casal.sample(
            target, constraint, casal.CASAL(rho=rho), chains, check=False, run=casal.Run(threads=1)
        )

    return run


def _many() -> Cases:
    A, b = _normal(62, 128, seed=3), _normal(62, seed=4)
    y = _normal(64, 128, seed=5)

    def rows(z: Tensor) -> Tensor:
        return z @ A.T - b

    def bent(z: Tensor) -> Tensor:
        return rows(z) + 0.1 * z[:, :62].square()

    products = JacobianProducts(lambda z, v: v @ A.T, lambda z, w: w @ A)
    sets: dict[str, Constraint] = {
        "Affine": Affine(A, b),
        "a function": Implicit(rows),
        "a function and its products": Implicit(rows, jacobian=products, scale=1.0),
        "a function that is not affine": Implicit(bent),
    }
    cases: Cases = {name: lambda own=own: own.project(y, quick=True) for name, own in sets.items()}
    strict = sets["a function"]
    return cases | {"a function, strict": lambda: strict.project(y)}
