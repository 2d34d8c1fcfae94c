"""Published methods beside CASAL: PCFM, ECI, predict-project-renoise, and two methods of the authors' scripts.

The first three project the denoised estimate.

They are baselines, not recommendations: every sample is feasible, and none of them promises a distribution.

All three were written for flows, u_t = t u_1 + (1 - t) u_0 from noise (t = 0) to data (t = 1). Every model with noise
levels is one: where x = alpha x0 + sigma noise,

    u = x / (alpha + sigma),   t = alpha / (alpha + sigma),   v = D(x) - noise_hat(x),

with the denoised estimate D = (x + sigma^2 score) / alpha and noise_hat = -sigma score. So the methods run on flow,
EDM, DDPM, VP and annealed models alike, and their formulas below are those of the papers. Of a table they take the
noise levels only: the last row always ends at t = 1. Behind a linear decoder A the projection is A^+ P(A u), as in
``casal.Projected``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal import CASAL, PrimalDual
from casal.checks import positive, whole_number
from casal.constraints import geometry
from casal.errors import SettingError
from casal.methods import Entry, Method, Problem, Stage, noise_levels, table_rows
from casal.methods.base import TableRow, advance
from casal.methods.baselines import PrimalDualState, estimate
from casal.methods.casal import CASALRow, CASALState
from casal.schedules import Schedule

RIDGE = 1e-6
"""Added to J J^T in a Newton step, as in the authors' code of PCFM."""


class FlowRow(NamedTuple):
    """A plain row, the noise level before it, and the times of the flow before and after it."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    alpha: Tensor
    sigma: Tensor
    time: Tensor  # t of the flow, alpha / (alpha + sigma)
    after: Tensor  # t' of the flow, where the step ends
    scale: Tensor  # alpha + sigma where the step ends: x' = scale u'
    fresh: Tensor  # 1 if the noise of the interpolation is drawn anew, else 0
    first: bool = False  # whether it is the first row, which finds u_0


class FlowState(NamedTuple):
    """The point of the model, and the noise u_0 that interpolations go back to."""

    x: Tensor
    noise: Tensor


class Shot(NamedTuple):
    """What one evaluation of the network says of a state."""

    u: Tensor  # the state as that of a flow
    clean: Tensor  # u_1 = D(x) = u + (1 - t) v
    noise: Tensor  # noise_hat(x) = u - t v


def flow_rows(problem: Problem, rounds: int = 1, resample: int = 0) -> list[FlowRow]:
    """The rows of the table, each ``rounds`` times: all but the last of them stay at their level.

    The noise is drawn anew at every ``resample``-th evaluation; never if that is 0.
    """
    alpha, sigma = noise_levels(problem.table)
    total = alpha + sigma
    time, end = alpha / total, alpha.new_ones(1)
    after, scale = torch.cat([time[1:], end]), torch.cat([total[1:], end])
    plain = table_rows(
        problem,
        FlowRow,
        alpha=alpha,
        sigma=sigma,
        time=time,
        after=after,
        scale=scale,
        fresh=torch.zeros_like(alpha),
    )
    rows = []
    for row in plain:
        stays = row._replace(after=row.time, scale=row.alpha + row.sigma)
        rows += [*[stays] * (rounds - 1), row]
    if resample:
        for k in range(resample - 1, len(rows), resample):
            rows[k] = rows[k]._replace(fresh=torch.ones_like(rows[k].time))
    return [rows[0]._replace(first=True), *rows[1:]]


def shoot(problem: Problem, x: Tensor, row: FlowRow) -> Shot:
    """Extrapolate to t = 1 along the velocity at x, and back to t = 0: one evaluation of the network."""
    score = problem.score(x, row.t)
    return Shot(x / (row.alpha + row.sigma), estimate(x, score, row.alpha, row.sigma), -row.sigma * score)


def project_latent(problem: Problem, u: Tensor) -> Tensor:
    """A^+ P(A u): the projection of a clean sample."""
    return problem.decoder.pinv(problem.project(problem.decode(u)), problem.latent)


def newton(problem: Problem, u: Tensor, steps: int) -> Tensor:
    """u <- u - J^T (J J^T + RIDGE)^-1 h(A u), J the derivative of h(A u): so many Gauss-Newton steps to the set."""
    for _ in range(steps):
        with torch.enable_grad():
            leaf = u.detach().requires_grad_()
            h = problem.residual(problem.decode(leaf))
            columns = [torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0] for part in h.unbind(1)]
        J = torch.stack([column.flatten(1) for column in columns], 1)
        gram = J @ J.mT + RIDGE * torch.eye(J.shape[1], dtype=J.dtype, device=J.device)
        pull = torch.linalg.solve(gram, h.detach()[..., None].to(J))
        u = u - (J.mT @ pull).reshape(u.shape)
    return u


class Peer(Method[FlowState]):
    """What the three share: a start, and samples that are projected once more at the end."""

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> FlowState:
        return FlowState(x, torch.zeros_like(x))

    def samples(self, problem: Problem, state: FlowState) -> Tensor:
        return problem.strict(problem.decode(state.x))

    def step(self, problem: Problem, state: FlowState, row: FlowRow, noise: Tensor) -> FlowState:
        """One row. The noise u_0 that the run starts from is noise_hat at the first: exact for a straight flow."""
        shot = shoot(problem, state.x, row)
        return self.land(problem, shot, shot.noise if row.first else state.noise, row, noise)

    def land(self, problem: Problem, shot: Shot, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        """The state at t', from what the network says and the noise u_0."""
        raise NotImplementedError


@dataclass(frozen=True)
class PCFM(Peer):
    """Physics-constrained flow matching: project the extrapolated sample, go back with the noise of the start.

        u_1  = u + (1 - t) v(u, t)                                    extrapolate
        u_1' = P(u_1)                                                 or u_1 - J^T (J J^T)^-1 h(u_1), ``newton`` times
        u'   = (1 - t') u_0 + t' u_1'                                 go back by the optimal-transport interpolant
        u'   = argmin_u |u - u'|^2 + weight |h(u + (1 - t') v)|^2     relaxed correction, by gradient steps

    and one projection at the end. Deterministic. Without a constraint it is Euler's method where trajectories are
    straight (v does not change along them); where they bend it is not, since it goes back to u_0 and not to noise_hat.

    Args:
        newton: Gauss-Newton steps on the extrapolated sample, the paper's form for equations h = 0; None for the
            projection of the set, to which they converge. Both are the same on an affine set.
        weight: Of the relaxed correction; 0 leaves it out.
        correction_steps: Gradient steps of the correction; the authors' code takes 20.
        correction_step: Their size; the authors' code has 0.01.

    References:
        Utkarsh et al. (2025), Physics-constrained flow matching, Algorithm 1.
    """

    newton: int | None = None
    weight: float = 0.0
    correction_steps: int = 20
    correction_step: float = 0.01

    name: ClassVar[str] = "PCFM"

    def __post_init__(self) -> None:
        if self.newton is not None:
            whole_number(self.newton, "newton", 1)
        if self.weight:
            positive(self.weight, "weight")
        whole_number(self.correction_steps, "correction_steps", 1)
        positive(self.correction_step, "correction_step")

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        return [Stage(flow_rows(problem), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> FlowState:
        if self.newton is not None or self.weight:
            problem.check_smooth(x)
        return super().start(problem, x, generator)

    def land(self, problem: Problem, shot: Shot, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        u1 = project_latent(problem, shot.clean) if self.newton is None else newton(problem, shot.clean, self.newton)
        back = (1 - row.after) * start + row.after * u1
        u, ahead = back, (1 - row.after) * (shot.clean - shot.noise)  # v = u_1 - noise_hat
        for _ in range(self.correction_steps if self.weight else 0):
            pull = (u - back) + self.weight * problem.penalty_gradient(u + ahead)
            u = u - 2 * self.correction_step * pull
        return FlowState(row.scale * u, start)

    def advice(self, state: FlowState, row: FlowRow) -> str:
        return f"(weight = {self.weight:g}, newton = {self.newton}); leave them out: PCFM() projects and interpolates"


@dataclass(frozen=True)
class ECI(Peer):
    """Extrapolation, correction, interpolation, several times at every level:

        u_1 = P(u + (1 - t) v(u, t))                    extrapolate and correct
        u   = (1 - t) u_0 + t u_1                       interpolate, ``mixing`` - 1 times at the level t,
        u'  = (1 - t') u_0 + t' u_1                     then to the next

    The noise u_0 is that of the start, or drawn anew at every ``resample``-th evaluation. With mixing = 1 and no
    resampling this is PCFM without its correction.

    Args:
        mixing: Evaluations at every level.
        resample: Every how manyth evaluation draws u_0 anew; 0 never does.

    References:
        Cheng et al. (2025), Gradient-free generation for hard-constrained systems, Algorithm 1.
    """

    mixing: int = 1
    resample: int = 0

    name: ClassVar[str] = "ECI"

    def __post_init__(self) -> None:
        whole_number(self.mixing, "mixing", 1)
        whole_number(self.resample, "resample", 0)

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        return [Stage(flow_rows(problem, self.mixing, self.resample), self.step)]

    def land(self, problem: Problem, shot: Shot, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        start = start + row.fresh * (noise - start)
        u = (1 - row.after) * start + row.after * project_latent(problem, shot.clean)
        return FlowState(row.scale * u, start)


@dataclass(frozen=True)
class ProjectRenoise(Peer):
    """Predict, project, renoise: the projected estimate with noise of the next level.

        x' = alpha' P(D(x)) + sigma' (fresh w + sqrt(1 - fresh^2) noise_hat(x))

    repeated ``rounds`` - 1 times at the level before it goes to the next. With fresh = 0 and no constraint it is
    Euler's method for the flow, for every model. (The second version of the paper projects through the network,
    with its derivative; that is not built here.)

    Args:
        rounds: Evaluations at every level.
        fresh: Share of new noise in [0, 1].

    References:
        Rochman-Sharabi and Louppe (2026), Predict-project-renoise.
    """

    rounds: int = 1
    fresh: float = 1.0

    name: ClassVar[str] = "predict-project-renoise"

    def __post_init__(self) -> None:
        whole_number(self.rounds, "rounds", 1)
        if not 0 <= self.fresh <= 1:
            raise SettingError(f"fresh must be in [0, 1], got {self.fresh}")

    def plan(self, problem: Problem, n: int) -> Sequence[Stage]:
        return [Stage(flow_rows(problem, self.rounds), self.step)]

    def land(self, problem: Problem, shot: Shot, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        mixed = self.fresh * noise + (1 - self.fresh**2) ** 0.5 * shot.noise
        u = (1 - row.after) * mixed + row.after * project_latent(problem, shot.clean)
        return FlowState(row.scale * u, start)


PEERS: dict[str, Entry] = {
    "PCFM": Entry(PCFM(), "diffusion", "#DDCC77"),
    "ECI": Entry(ECI(), "diffusion", "#88CCEE"),
    "predict-project-renoise": Entry(ProjectRenoise(), "diffusion", "#CC6677"),
}
"""The peers by the names of the tables, with an example and a colour each, as in ``casal.methods.METHODS``."""


# ------------------------------------------------------------------ the authors' scripts


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
