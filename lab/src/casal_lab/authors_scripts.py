"""Two methods of the authors' scripts: the first revision of CASAL, and primal-dual with a multiplier a chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal import CASAL, PrimalDual
from casal.constraints import geometry
from casal.methods import Problem
from casal.methods.base import TableRow, advance
from casal.methods.baselines import PrimalDualState
from casal.methods.casal import CASALRow, CASALState
from casal.schedules import Schedule


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
