"""Published updates that project the denoised estimate: PCFM, ECI and predict-project-renoise.

Every sample is feasible at the cost of the model's own run, and no distribution is promised: the projection moves an
estimate along the equations alone, whatever the model knows about the rest.

All three were written for flows, u_t = t u_1 + (1 - t) u_0 from noise (t = 0) to data (t = 1). Every model with noise
levels is one: where x = alpha x0 + sigma noise,

    u = x / (alpha + sigma),   t = alpha / (alpha + sigma),   v = D(x) - noise_hat(x),

with the denoised estimate D = (x + sigma^2 score) / alpha and noise_hat = -sigma score. So the methods run on flow,
EDM, DDPM, VP and annealed models alike, and their formulas below are those of the papers. Of a table they take the
noise levels only: the last row always ends at t = 1. Behind a linear decoder A the projection is A^+ P(A u), as in
``Projected``. Chains are independent, so each may have its own set or value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.checks import positive, whole_number
from casal.devices import solve
from casal.errors import SettingError
from casal.linalg import jacobian
from casal.methods.base import Each, Method, Together, table_rows
from casal.methods.baselines import estimate, noise_levels
from casal.methods.problem import Problem

RIDGE = 1e-6
"""Added to J J^T in a Newton step, as in the authors' code of PCFM."""


class FlowRow(NamedTuple):
    """A plain row, the noise level before it, and the times of the flow before and after it.

    Attributes:
        time: t of the flow, alpha / (alpha + sigma).
        after: t' of the flow, where the step ends.
        scale: alpha + sigma where the step ends: x' = scale u'.
        fresh: 1 if the noise of the interpolation is drawn anew, else 0.
        first: Whether it is the first row, which finds u_0.
    """

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    alpha: Tensor
    sigma: Tensor
    time: Tensor
    after: Tensor
    scale: Tensor
    fresh: Tensor
    first: bool = False


class FlowState(NamedTuple):
    """The point of the model, and the noise u_0 that interpolations go back to."""

    x: Tensor
    noise: Tensor


class Ahead(NamedTuple):
    """What one evaluation of the network says of a state: u_1 = u + (1 - t) v = D(x), and u - t v = noise_hat(x)."""

    clean: Tensor
    noise: Tensor


def flow_rows(problem: Problem, rounds: int = 1, resample: int = 0) -> list[FlowRow]:
    """The rows of the table, each ``rounds`` times: all but the last of them stay at their level.

    The noise is drawn anew at every ``resample``-th evaluation; never if that is 0.
    """
    alpha, sigma = noise_levels(problem.table)
    total = alpha + sigma
    time, end = alpha / total, alpha.new_ones(1)
    rows = list[FlowRow]()
    for row in table_rows(
        problem,
        FlowRow,
        alpha=alpha,
        sigma=sigma,
        time=time,
        after=torch.cat([time[1:], end]),
        scale=torch.cat([total[1:], end]),
        fresh=torch.zeros_like(alpha),
    ):
        stays = row._replace(after=row.time, scale=row.alpha + row.sigma)
        rows += [*[stays] * (rounds - 1), row]
    for k in range(resample - 1, len(rows), resample) if resample else ():
        rows[k] = rows[k]._replace(fresh=torch.ones_like(rows[k].time))
    return [rows[0]._replace(first=True), *rows[1:]]


class _ThroughTheEstimate(Method[FlowState]):
    """What the three share: one evaluation a row, a new state from it, and samples projected once more at the end."""

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> FlowState:
        return FlowState(x, torch.zeros_like(x))

    def samples(self, problem: Problem, state: FlowState) -> Tensor:
        return problem.strict(problem.decode(state.x))

    def step(self, problem: Problem, state: FlowState, row: FlowRow, noise: Tensor) -> FlowState:
        """One row. The noise u_0 that the run starts from is noise_hat at the first: exact for a straight flow."""
        score = problem.score(state.x, row.t)
        ahead = Ahead(estimate(state.x, score, row.alpha, row.sigma), -row.sigma * score)
        return self.back(problem, ahead, ahead.noise if row.first else state.noise, row, noise)

    def back(self, problem: Problem, ahead: Ahead, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        """The state at t', from what the network says and the noise u_0."""
        raise NotImplementedError


def _project(problem: Problem, u: Tensor) -> Tensor:
    """A^+ P(A u)."""
    return problem.decoder.pinv(problem.project(problem.decode(u)), problem.latent)


def _newton(problem: Problem, u: Tensor, steps: int) -> Tensor:
    """u <- u - J^T (J J^T + RIDGE)^-1 h(A u), J the derivative of h(A u): so many Gauss-Newton steps to the set."""
    for _ in range(steps):
        J, h = jacobian(lambda u: problem.residual(problem.decode(u)), u)
        gram = J @ J.mT + RIDGE * torch.eye(J.shape[1], dtype=J.dtype, device=J.device)
        u = u - (J.mT @ solve(gram, h[..., None].to(J))).reshape(u.shape)
    return u


@dataclass(frozen=True)
class PCFM(_ThroughTheEstimate):
    """Physics-constrained flow matching: project the extrapolated sample, go back with the noise of the start.

        u_1  = u + (1 - t) v(u, t)                                    extrapolate
        u_1' = P(u_1)                                                 or u_1 - J^T (J J^T)^-1 h(u_1), ``newton`` times
        u'   = (1 - t') u_0 + t' u_1'                                 go back by the optimal-transport interpolant
        u'   = argmin_u |u - u'|^2 + weight |h(u + (1 - t') v)|^2     relaxed correction, by gradient steps

    and one projection at the end. Deterministic. Without a constraint it is Euler's method where trajectories are
    straight (v does not change along them); where they bend it is not, since it goes back to u_0 and not to noise_hat.
    The distribution is not promised.

    Args:
        newton: Gauss-Newton steps on the extrapolated sample, the paper's form for equations h = 0; None for the
            projection of the set, to which they converge. Both are the same on an affine set.
        weight: Of the relaxed correction; 0 leaves it out.
        correction_steps: Gradient steps of the correction; the authors' code takes 20.
        correction_step: Their size; the authors' code has 0.01.

    References:
        Utkarsh et al. (2025), Physics-constrained flow matching, Algorithm 1.

    >>> import casal
    >>> target = casal.flow(lambda x, t: -x, steps=20, shape=(2,))
    >>> result = casal.sample(target, casal.Sphere(2.0), casal.PCFM(), n=10)
    >>> bool(result.certificate.feasible.all()), result.fidelity.verdict
    (True, 'not promised')
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

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        return [Each(flow_rows(problem), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> FlowState:
        if self.newton is not None or self.weight:
            problem.check_smooth(x)
        return super().start(problem, x, generator)

    def back(self, problem: Problem, ahead: Ahead, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        clean = _project(problem, ahead.clean) if self.newton is None else _newton(problem, ahead.clean, self.newton)
        between = (1 - row.after) * start + row.after * clean
        u, rest = between, (1 - row.after) * (ahead.clean - ahead.noise)  # v = u_1 - noise_hat
        for _ in range(self.correction_steps if self.weight else 0):
            pull = (u - between) + self.weight * problem.penalty_gradient(u + rest)
            u = u - 2 * self.correction_step * pull
        return FlowState(row.scale * u, start)

    def advice(self, state: FlowState, row: FlowRow) -> str:
        return f"(weight = {self.weight:g}, newton = {self.newton}); leave them out: PCFM() projects and interpolates"


@dataclass(frozen=True)
class ECI(_ThroughTheEstimate):
    """Extrapolation, correction, interpolation, several times at every level:

        u_1 = P(u + (1 - t) v(u, t))                    extrapolate and correct
        u   = (1 - t) u_0 + t u_1                       interpolate, ``mixing`` - 1 times at the level t,
        u'  = (1 - t') u_0 + t' u_1                     then to the next

    The noise u_0 is that of the start, or drawn anew at every ``resample``-th evaluation. With mixing = 1 and no
    resampling this is PCFM without its correction. The distribution is not promised.

    Args:
        mixing: Evaluations at every level.
        resample: Every how manyth evaluation draws u_0 anew; 0 never does.

    References:
        Cheng et al. (2025), Gradient-free generation for hard-constrained systems, Algorithm 1.

    >>> import casal
    >>> target = casal.flow(lambda x, t: -x, steps=20, shape=(2,))
    >>> casal.sample(target, casal.Sphere(2.0), casal.ECI(mixing=5, resample=5), n=10).cost.score_evaluations
    96.0
    """

    mixing: int = 1
    resample: int = 0

    name: ClassVar[str] = "ECI"

    def __post_init__(self) -> None:
        whole_number(self.mixing, "mixing", 1)
        whole_number(self.resample, "resample", 0)

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        return [Each(flow_rows(problem, self.mixing, self.resample), self.step)]

    def back(self, problem: Problem, ahead: Ahead, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        start = start + row.fresh * (noise - start)
        u = (1 - row.after) * start + row.after * _project(problem, ahead.clean)
        return FlowState(row.scale * u, start)


@dataclass(frozen=True)
class ProjectRenoise(_ThroughTheEstimate):
    """Predict, project, renoise: the projected estimate with noise of the next level.

        x' = alpha' P(D(x)) + sigma' (fresh w + sqrt(1 - fresh^2) noise_hat(x))

    repeated ``rounds`` - 1 times at the level before it goes to the next. With fresh = 0 and no constraint it is
    Euler's method for the flow, for every model. For known values this is replacement as in RePaint. (The second
    version of the paper projects through the network, with its derivative; that is not built here.) The distribution
    is not promised.

    Args:
        rounds: Evaluations at every level.
        fresh: Share of new noise in [0, 1].

    References:
        Rochman-Sharabi and Louppe (2026), Predict-project-renoise.

    >>> import casal
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(20), shape=(2,))
    >>> result = casal.sample(target, casal.Sphere(2.0), casal.ProjectRenoise(), n=10)
    >>> bool(result.certificate.feasible.all())
    True
    """

    rounds: int = 1
    fresh: float = 1.0

    name: ClassVar[str] = "predict-project-renoise"

    def __post_init__(self) -> None:
        whole_number(self.rounds, "rounds", 1)
        if not 0 <= self.fresh <= 1:
            raise SettingError(f"fresh must be in [0, 1], got {self.fresh}")

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        return [Each(flow_rows(problem, self.rounds), self.step)]

    def back(self, problem: Problem, ahead: Ahead, start: Tensor, row: FlowRow, noise: Tensor) -> FlowState:
        mixed = self.fresh * noise + (1 - self.fresh**2) ** 0.5 * ahead.noise
        u = (1 - row.after) * mixed + row.after * _project(problem, ahead.clean)
        return FlowState(row.scale * u, start)
