"""The first revision of the authors' code: CASAL with the gradient of a fourth power."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal import CASAL
from casal.methods import Problem
from casal.methods.base import advance
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
