"""The names of the authors' released code on this library: their scripts run with our samplers.

    python -m casal_lab.authors path/to/example_field.py

runs a script of the authors' repository (revisions 330c997 to 904d4d2, and the particle script of c726ba8 if its JAX is
installed) with the modules ``samplers`` and ``constraint`` replaced by this one; ``systems`` and ``geometry`` stay
theirs. In a program of your own:

    from casal_lab.authors import L2NormConstraint, SplitLangevin
    sampler = SplitLangevin(d, grad_potential, L2NormConstraint(15.0), tau, rho_values, eta, burn_in, sigma0=5.0)
    x, z, mu = sampler.sample(n_steps=10_000, n_samples=1000)

What differs: random numbers are the library's (``sample(seed, ...)``); only the last iterate is returned, arrays
(chains, 1, d), of which the scripts take ``[:, -1, :]``; and the result with its certificate stays in
``sampler.result``. As in their loop the last iterate is the one before step ``n_steps``.

There is no loader for their checkpoints: none of the six revisions (330c997, 418c546, 904d4d2, 2dbe368, dbb45b9,
c726ba8) has a network, a file of weights or a line that saves or loads one, so their format is not known.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import casal
from casal import CASAL, PrimalDual
from casal.constraints import geometry
from casal.errors import SettingError
from casal.methods import Problem
from casal.methods.base import TableRow, advance
from casal.methods.baselines import PrimalDualState
from casal.methods.casal import CASALRow, CASALState
from casal.schedules import Schedule
from casal_lab.experiment import AnyMethod, Array

Gradient = Callable[..., Any]
Iterates = tuple[Array, Array, Array]


# ------------------------------------------------------------------ updates of theirs that the library does not have


@dataclass(frozen=True)
class FirstRelease(CASAL):
    """The gradient of rho |x - z + mu|^4 / 4 in the place of rho |x - z + mu|^2 / 2:

        x' = x + tau score(x) + sqrt(2 tau) w - tau rho |x - z + mu|^2 (x - z + mu)
        z' = P(x' + mu),      mu' = mu + eta (x' - z')

    The next revision (904d4d2, "correct gradient of the augmented term") has the quadratic one, ``CASAL.released``.
    """

    @classmethod
    def of(cls, rho: float | Schedule, eta: float, *, burn_in: float = 0) -> FirstRelease:
        """With the coupling and the dual step of a script."""
        made = cls.released(rho, eta, burn_in=burn_in)
        assert isinstance(made, FirstRelease)
        return made

    def step(self, problem: Problem, state: CASALState, row: CASALRow, noise: Tensor) -> CASALState:
        """One step."""
        gap = state.x - state.z + state.lam
        free = advance(problem, state, problem.score(state.x, row.t), row, noise).x
        x = free - row.kappa * torch.sum(gap * gap, dim=1, keepdim=True) * problem.precondition(gap)
        z = problem.project(x + state.lam, warm=state.z)
        return state._replace(x=x, z=z, lam=state.lam + row.eta * (x - z))


@dataclass(frozen=True)
class ScriptPrimalDual(PrimalDual):
    """Primal-dual Langevin as in the authors' script: a multiplier for each chain, h taken before the step.

        x' = x + tau (score(x) - lam J^T / 2) + sqrt(2 tau) w,      lam' = lam + dual_step h(x)

    with h(x) = |x|^2 - E on a sphere and the gradient x where J^T = 2 x: the script's factor. Each chain is driven to
    E h = 0 over time by itself. The paper's text has one expectation, ``casal.PrimalDual``.
    """

    average: str = "time"

    def step(self, problem: Problem, state: PrimalDualState, row: TableRow, noise: Tensor) -> PrimalDualState:
        """One step."""
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            h = geometry.residual(problem.constraint, problem.decode(leaf))
            (pull,) = torch.autograd.grad(h, leaf, grad_outputs=state.lam / 2)
        x = advance(problem, state, problem.score(state.x, row.t) - pull, row, noise).x
        return PrimalDualState(x, self._ascend(problem, state.lam, h.detach()))


# ------------------------------------------------------------------ their names


def _number(value: Any) -> Array:
    return np.asarray(value, dtype=np.float64)


class Constraint:
    """A set by its projection, as theirs: ``project`` on arrays (n, d), ``m`` multipliers, perhaps h and its gradient.

    Args:
        project: The projection; None for all of space.
        m: Number of equations.
        equality_constraint: h(x), (n, m).
        grad_equality_constraint: Its gradient.
    """

    def __init__(
        self,
        project: Callable[[Any], Any] | None,
        m: int,
        equality_constraint: Callable[[Any], Any] | None = None,
        grad_equality_constraint: Callable[[Any], Any] | None = None,
    ) -> None:
        self.project: Callable[[Any], Any] = (lambda x: x) if project is None else project
        self.m = m
        self.equality_constraint = equality_constraint
        self.grad_equality_constraint = grad_equality_constraint

    def as_set(self) -> casal.Constraint:
        """The set for the library; without h the violation is the distance to the projection."""

        def project(z: Tensor) -> Tensor:
            return torch.as_tensor(_number(self.project(z.numpy()))).to(z)

        def violation(z: Tensor) -> Tensor:
            return (z - project(z)).flatten(1).norm(dim=1)

        return casal.FromProjection(project, violation)


class L2NormConstraint(Constraint):
    """The sphere |x|^2 = ``target_squared_norm``; the gradient of h = |x|^2 - E is taken to be x, as in their code."""

    def __init__(self, target_squared_norm: float) -> None:
        self.radius = float(target_squared_norm) ** 0.5

        def h(x: Any) -> Array:
            return np.square(_number(x)).sum(1, keepdims=True) - target_squared_norm

        super().__init__(lambda x: self.as_set().project(torch.as_tensor(_number(x))).numpy(), 1, h, lambda x: x)

    def as_set(self) -> casal.Constraint:
        return casal.Sphere(self.radius)


class LinearConstraint(Constraint):
    """A x = b."""

    def __init__(self, A: Any, b: Any, equality_constraint: Any = None, grad_equality_constraint: Any = None) -> None:
        self.rows, self.values = _number(A), _number(b)
        super().__init__(
            lambda x: self.as_set().project(torch.as_tensor(_number(x))).numpy(),
            len(self.rows),
            equality_constraint,
            grad_equality_constraint,
        )

    def as_set(self) -> casal.Constraint:
        return casal.Affine(self.rows, self.values)


@dataclass(frozen=True)
class Values:
    """A schedule given by its values, one a step."""

    values: tuple[float, ...]

    def __call__(self, table: Any) -> Tensor:
        return torch.tensor(self.values[: len(table)], dtype=torch.float64)


class Langevin:
    """Langevin dynamics x' = x - tau grad f(x) + sqrt(2 tau) w from sigma0 N(0, I)."""

    def __init__(
        self, d: int, grad_potential: Gradient, tau: float, constraint: Any = None, sigma0: float | None = None
    ) -> None:
        self.d, self.grad_potential, self.tau, self.constraint = d, grad_potential, float(tau), constraint
        self.sigma0 = 1.0 if sigma0 is None else float(sigma0)
        self.result: casal.SampleResult | None = None

    def method(self, steps: int) -> AnyMethod:
        """The method of the library."""
        return casal.Unconstrained()

    def iterates(self, result: casal.SampleResult) -> Iterates:
        """x, z and the multiplier of the last iterate, each (chains, 1, .)."""
        x = result.state.x.numpy()[:, None]
        return x, x.copy(), np.zeros((len(x), 1, 1))

    def sample(self, key: Any = 0, *, n_steps: int, n_samples: int = 1) -> Iterates:
        """Run the chains. ``key`` is a seed; of a JAX key the numbers are taken."""
        steps = n_steps - 1
        if steps < 1:
            raise SettingError(f"n_steps must be at least 2, got {n_steps}: the first iterate is the start")

        def gradient(x: Tensor) -> Tensor:
            return torch.as_tensor(_number(self.grad_potential(x.numpy()))).to(x)

        def start(n: int, generator: torch.Generator) -> Tensor:
            return self.sigma0 * torch.randn((n, self.d), generator=generator, dtype=torch.float64)

        target = casal.langevin(gradient, steps=steps, step_size=self.tau, init=start)
        given = None if self.constraint is None else self.constraint.as_set()
        seed = int(np.asarray(key, dtype=np.int64).sum())
        self.result = casal.sample(target, given, self.method(steps), n_samples, seed=seed, check=False)
        return self.iterates(self.result)


class ProjectedLangevin(Langevin):
    """Each step after ``burn_in`` is projected."""

    def __init__(
        self,
        d: int,
        grad_potential: Gradient,
        constraint: Constraint,
        tau: float,
        burn_in: int,
        sigma0: float | None = None,
    ) -> None:
        super().__init__(d, grad_potential, tau, constraint, sigma0)
        self.burn_in = burn_in

    def method(self, steps: int) -> AnyMethod:
        return casal.Projected(burn_in=min(self.burn_in + 1, steps - 1))  # theirs projects from step burn_in + 1 on

    def iterates(self, result: casal.SampleResult) -> Iterates:
        z = result.samples.numpy()[:, None]
        return result.state.x.numpy()[:, None], z, np.zeros((len(z), 1, 1))


class PrimalDescentDualAscent(Langevin):
    """A multiplier a chain for h(x) = 0 on average over time (``ScriptPrimalDual``)."""

    def __init__(
        self,
        d: int,
        grad_potential: Gradient,
        constraint: Constraint,
        tau: float,
        eta: float,
        burn_in: int,
        rho: float = 0.0,
        sigma0: float | None = None,
    ) -> None:
        if rho:
            raise SettingError(f"rho = {rho:g}: the penalty beside the multiplier is not built; leave rho out")
        super().__init__(d, grad_potential, tau, constraint, sigma0)
        self.eta = float(eta)

    def method(self, steps: int) -> AnyMethod:
        return ScriptPrimalDual(self.eta)

    def iterates(self, result: casal.SampleResult) -> Iterates:
        x = result.state.x.numpy()[:, None]
        return x, x.copy(), result.state.lam.numpy()[:, None]


class SplitLangevin(Langevin):
    """The released update, ``casal.CASAL.released``; rho is zero at first where ``rho_values`` are."""

    def __init__(
        self,
        d: int,
        grad_potential: Gradient,
        constraint: Constraint,
        tau: float,
        rho_values: Any,
        eta: float,
        burn_in: int,
        sigma0: float | None = None,
    ) -> None:
        super().__init__(d, grad_potential, tau, constraint, sigma0)
        self.rho_values, self.eta, self.burn_in = _number(rho_values), float(eta), burn_in

    def method(self, steps: int) -> AnyMethod:
        rho = self.rho_values[:steps]
        positive = np.flatnonzero(rho > 0)
        if len(rho) < steps or not len(positive):
            raise SettingError(f"rho_values has {len(rho)} values, {len(positive)} of them > 0, for {steps} steps")
        first = int(positive[0])
        if (rho[first:] <= 0).any():
            raise SettingError("rho_values may be zero in the first steps only; give positive values after them")
        values = np.concatenate([np.full(first, rho[first]), rho[first:]])
        return casal.CASAL.released(Values(tuple(values.tolist())), self.eta, burn_in=first)

    def iterates(self, result: casal.SampleResult) -> Iterates:
        x, z, mu = (part.numpy()[:, None] for part in (result.state.x, result.samples, result.state.lam))
        return x, z, mu


def run_script(path: str | Path) -> dict[str, Any]:
    """Run a script of theirs with ``samplers`` and ``constraint`` replaced; returns its names."""
    place = Path(path).resolve()
    own = sys.modules[__name__]
    modules = {}
    for name, public in {
        "samplers": (Langevin, ProjectedLangevin, PrimalDescentDualAscent, SplitLangevin),
        "constraint": (Constraint, L2NormConstraint, LinearConstraint),
    }.items():
        modules[name] = ModuleType(name, own.__doc__)
        for each in public:
            setattr(modules[name], each.__name__, each)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    sys.path.insert(0, str(place.parent))
    try:
        return runpy.run_path(str(place), run_name="__main__")
    finally:
        sys.path.remove(str(place.parent))
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


if __name__ == "__main__":
    import casal_lab.authors as authors  # under its own name, so that a script finds the same classes

    if len(sys.argv) != 2:
        sys.exit("give one script: python -m casal_lab.authors path/to/example_field.py")
    authors.run_script(sys.argv[1])
