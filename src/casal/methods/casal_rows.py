"""The rows of a CASAL run: every number a step needs, worked out and checked before the first one."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import burn_in_steps, masked, table_rows
from casal.methods.denoised import noise_levels
from casal.methods.problem import Problem
from casal.schedules import Schedule, evaluate


class CASALRow(NamedTuple):
    """A plain row with kappa = tau rho, the damping of z, the dual step eta, the scale lam / mu, and x's noise.

    Three more numbers save divisions: ``per_scale`` = 1 / scale, ``pace`` = scale eta, and where A and D are multiples
    of the identity ``lean`` = kappa D / (1 + kappa D), the share of the way to z.
    """

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    kappa: Tensor
    damping: Tensor
    eta: Tensor
    scale: Tensor
    alpha: Tensor
    sigma: Tensor
    per_scale: Tensor
    pace: Tensor
    lean: Tensor


class Settings(Protocol):
    """The settings of CASAL that decide about its rows."""

    @property
    def rho(self) -> float | Schedule: ...
    @property
    def dual_step(self) -> float | str: ...
    @property
    def z_step(self) -> str: ...
    @property
    def coupling(self) -> str: ...
    @property
    def burn_in(self) -> float: ...
    @property
    def step_size(self) -> str: ...
    @property
    def hold(self) -> str: ...
    @property
    def couple(self) -> str: ...


def casal_rows(problem: Problem, method: Settings) -> list[CASALRow]:
    """One row a step; refuses settings that cannot work."""
    table = problem.table
    rho = evaluate(method.rho, table, "rho")
    first = burn_in_steps(method.burn_in, len(table))
    tau = table.b if method.step_size == "gain" else table.tau
    if not bool(tau.any()):
        raise SettingError(
            "the paper's step size s^2 / 2 is zero for a sampler without noise, so nothing would couple x to the set; "
            "use CASAL(rho), which couples to the denoised estimate"
        )
    alpha = sigma = torch.ones_like(rho)
    if couples_estimate(method, problem):
        alpha, sigma = noise_levels(table)
        tau = (sigma / alpha).square()
    kappa = masked(tau * rho, first)
    if method.coupling == "implicit":
        _ = problem.gram
    elif not couples_estimate(method, problem):
        _refuse_unstable(problem, kappa)
    eta = _dual_steps(method.dual_step, tau, rho, table.static)
    eta = eta if method.hold == "mu" else masked(eta, first)
    scale = rho if method.hold == "lambda" else torch.ones_like(rho)
    stiffness = 1.0
    if problem.isotropic and problem.diagonal is not None and not couples_estimate(method, problem):
        stiffness = float(problem.diagonal)
    return table_rows(
        problem,
        CASALRow,
        kappa=kappa,
        damping=torch.ones_like(kappa) if method.z_step == "full" else kappa.clamp_max(1.0),
        eta=eta,
        scale=scale,
        alpha=alpha,
        sigma=sigma,
        per_scale=1.0 / scale,
        pace=scale * eta,
        lean=stiffness * kappa / (1.0 + stiffness * kappa),
    )


def couples_estimate(method: Settings, problem: Problem) -> bool:
    """Whether the constraint couples to the denoised estimate: asked for, or there is no noise in the sampler."""
    return method.couple == "denoised" or (method.couple == "auto" and problem.noiseless)


def _dual_steps(dual_step: float | str, tau: Tensor, rho: Tensor, static: bool) -> Tensor:
    kind = ("tau" if static else "admm") if dual_step == "auto" else dual_step
    if kind == "tau":
        return tau
    if kind == "tau/rho":
        return tau / rho
    return torch.full_like(tau, 1.0 if kind == "admm" else float(kind))


def _refuse_unstable(problem: Problem, kappa: Tensor) -> None:
    stiffness = problem.decoder.norm() ** 2
    if problem.diagonal is not None:
        stiffness *= float(problem.diagonal.max())
    worst = int(kappa.argmax())
    number = float(kappa[worst]) * stiffness
    if number > 1.0 + 1e-9:
        raise SettingError(
            f"explicit coupling is unstable: tau rho |A|^2 = {number:.3g} > 1 at step {worst} "
            f"(tau rho = {float(kappa[worst]):.3g}, |A|^2 = {stiffness:.3g}); "
            f"use coupling='implicit' or divide rho by {number:.3g}"
        )
