"""Twisted sequential Monte Carlo over the noise levels (Wu et al. 2023), then the ladder of ``SplitGibbs``.

A method of several published pages, kept for their figures; "auto" never takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Each, Method, Together, split_records
from casal.methods.baselines import estimate, noise_levels
from casal.methods.coupling import population_record
from casal.methods.moves import Rung, with_nearest
from casal.methods.population import equal_weights, groups_of, resample
from casal.methods.problem import Problem, move
from casal.methods.split_gibbs import SplitGibbs

COLOUR = "#332288"
"""In every picture."""

Done: TypeAlias = tuple[Any, Rung, Mapping[str, float]]


class GuidedRow(NamedTuple):
    """A row of the table, its noise level, and the row that comes next (t, alpha, sigma; sigma = 0 at the end)."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    alpha: Tensor
    sigma: Tensor
    t_next: Tensor
    alpha_next: Tensor
    sigma_next: Tensor
    host: Host


class Host(NamedTuple):
    """The same numbers for decisions, in host memory on every device: reading them waits for nothing."""

    b: Tensor
    s: Tensor
    alpha: Tensor
    sigma: Tensor
    alpha_next: Tensor
    sigma_next: Tensor


class GuidedState(NamedTuple):
    """A population on its way down the noise levels.

    Attributes:
        x: Noisy points.
        z: The nearest point P(A D(x)) of the denoised estimate.
        estimate: D(x).
        potential: V_t(x), (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
    """

    x: Tensor
    z: Tensor
    estimate: Tensor
    potential: Tensor
    log_weight: Tensor
    ancestor: Tensor


@dataclass(frozen=True)
class Twisted(Method[Any]):
    """Guides every chain by a potential of its denoised estimate D, and corrects for the guidance by weights:

        V_t(x) = r^T (I / rho + v_t A A^T)^-1 r / 2,   r = A D(x) - P(A D(x)),   v_t = sigma^2 / (alpha^2 + sigma^2)
        delta  = -b (alpha / sigma^2) v_t A^T (I / rho + v_t A A^T)^-1 r          (the gradient of V_t, D' left out)
        x'     = a x + b score(x) + delta + s_t w
        weight *= exp(V_t(x) - V_t'(x')) N(x'; a x + b score, s_t^2) / N(x'; a x + b score + delta, s_t^2)

    and resample (systematic) if the effective size < ess n. Whatever delta is, the distribution at the end of the table
    is p(x) exp(-rho/2 dist(A x, C)^2): a poor guide costs effective size, not the distribution. The rho of the guide is
    ``twist``, small enough that the chains stay many. From there ``moves`` rungs of the ladder of ``SplitGibbs`` lead
    up to ``rho``, each with its weights and one move, and end as they do there.

    ``islands`` are groups of chains that never meet, so that no single lucky chain takes them all. They are pooled by
    their evidence, the mean of their weights along the run: ``result.weights`` has it.

    Args:
        rho: Coupling at the top of the ladder.
        ess: Resample when the effective size of an island falls below this share of its chains.
        moves: Rungs of the ladder, one move each.
        islands: Groups of chains, of equal size; n must be a multiple.
        inner_steps: Evaluations of the denoiser in one move.
        twist: Coupling of the guide, in units of the clean sample; at most rho.

    >>> import casal
    >>> from casal_lab.twisted import Twisted
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(30), shape=(2,), churn=1.0)
    >>> result = casal.sample(target, casal.Sphere(1.5), Twisted(rho=100.0, moves=5), n=200, seed=0)
    >>> bool(result.certificate.feasible.all())
    True
    """

    rho: float
    ess: float = 0.7
    moves: int = 30
    islands: int = 1
    inner_steps: int = 10
    twist: float = 1.0

    name: ClassVar[str] = "Twisted"
    promises_distribution: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 < self.twist <= self.rho < math.inf:
            raise SettingError(f"0 < twist <= rho < infinity is needed, got twist = {self.twist}, rho = {self.rho}")
        _ = self.ladder

    @property
    def ladder(self) -> SplitGibbs:
        """The ladder from ``twist`` to ``rho``."""
        return SplitGibbs(
            self.rho**-0.5,
            inner_steps=self.inner_steps,
            levels=self.moves,
            ess=self.ess,
            moves="metropolis",
            islands=self.islands,
        )

    def control(self, problem: Problem, n: int) -> Rung:
        first = self.ladder.control(problem, n)
        if not bool(problem.table.s.any()):
            raise SettingError(
                f"{problem.target.name} is a sampler without noise, so resampled chains would stay copies; "
                "use ddpm, ddim with eta > 0, edm with churn > 0, or flow with noise > 0"
            )
        return first._replace(rho=float(self.twist))

    def next(self, problem: Problem, control: Rung, stage: int) -> Each | Together | None:
        row, meets = divmod(stage, 2)
        if row >= len(problem.table):
            return self.ladder.climb(problem, control, stage - 2 * len(problem.table))
        if meets:
            return Together(self.meet if row + 1 < len(problem.table) else self.land)
        return Each([_guided_row(problem, row)], self.step)

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> GuidedState:
        alpha, sigma = noise_levels(problem.table)
        log_weight, ancestor = equal_weights(problem, len(x))
        z = problem.project(problem.decode(x))
        state = GuidedState(x, z, x, log_weight, log_weight, ancestor)
        level = (alpha[0].to(x.device), sigma[0].to(x.device))
        state = self._with_potential(problem, state, problem.table.t[0].to(x.device), level, (alpha[0], sigma[0]))
        return state._replace(log_weight=-state.potential)

    def step(self, problem: Problem, state: GuidedState, row: GuidedRow, noise: Tensor) -> GuidedState:
        """One row of the table with the guide, and the weights that pay for it."""
        score = (row.alpha * state.estimate - state.x) / row.sigma**2
        x, paid = move(problem, state.x, score, row, noise), torch.zeros_like(state.log_weight)
        if float(row.host.s) > 0.0:
            delta = self._delta(problem, state, row)
            x = x + delta
            d, w = (v.reshape(len(x), -1).to(torch.float64) for v in (delta, noise))
            paid = -((d * w).sum(1) + d.square().sum(1) / (2 * row.s)) / row.s
        level, host = (row.alpha_next, row.sigma_next), (row.host.alpha_next, row.host.sigma_next)
        new = self._with_potential(problem, state._replace(x=x), row.t_next, level, host)
        return new._replace(log_weight=state.log_weight + state.potential - new.potential + paid)

    def meet(self, problem: Problem, state: GuidedState, control: Rung, generator: torch.Generator) -> Done:
        """Resample where the weights are uneven."""
        groups = groups_of(problem, len(state.x), self.islands)
        known = population_record(state, groups, control.rho)
        return resample(state, generator, groups, self.ess), control, known

    def land(self, problem: Problem, state: GuidedState, control: Rung, generator: torch.Generator) -> Done:
        """The clean points at the end of the table become the population of the ladder."""
        state, control, known = self.meet(problem, state, control, generator)
        moves = self.ladder.moves_for(problem)
        clean = moves.from_clean(state.x, state.z, state.log_weight, state.ancestor)
        return with_nearest(problem, clean), control, known

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(problem.decode(state.x), warm=state.z)

    def advice(self, state: Any, row: Any) -> str:
        rho = getattr(getattr(row, "at", row), "rho", self.twist)  # rows of the model's table have no rung
        return f"(rho = {rho:.3g}); check the model's scale, or use a smaller twist"

    def monitor(self, problem: Problem, state: Any) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z)

    def _with_potential(
        self, problem: Problem, state: GuidedState, t: Tensor, level: tuple[Tensor, Tensor], host: tuple[Tensor, Tensor]
    ) -> GuidedState:
        """The state with the denoised estimate of x, its nearest point on C and its potential V_t.

        ``level`` is (alpha, sigma) on the device, ``host`` the same in host memory.
        """
        clean = state.x
        if float(host[1]) > 0.0:
            clean = estimate(state.x, problem.score(state.x, t), *level)
        decoded = problem.decode(clean)
        z = problem.nearest(decoded, warm=state.z)
        r = (decoded - z).reshape(len(z), -1).to(torch.float64)
        force = self._solve(problem, decoded - z, *host).reshape(len(z), -1).to(torch.float64)
        return state._replace(estimate=clean, z=z, potential=(r * force).sum(1) / 2)

    def _solve(self, problem: Problem, r: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """(I / rho + v A A^T)^-1 r = rho (r - v rho A (I + v rho A^T A)^-1 A^T r)      (Woodbury).

        For a nonlinear decoder |A|^2 stands for A A^T.
        """
        rho, v = self.twist, _spread(alpha, sigma)
        if problem.identity or not problem.decoder.linear:
            return r / (1.0 / rho + v * problem.decoder.norm() ** 2)
        strength = torch.full((), v * rho, dtype=torch.float64, device=r.device)
        back = problem.decoder.vjp(problem.like)(r.to(problem.like.dtype))
        return rho * (r - strength * problem.decode(problem.gram.solve(back, strength)))

    def _delta(self, problem: Problem, state: GuidedState, row: GuidedRow) -> Tensor:
        r, host = problem.decode(state.estimate) - state.z, row.host
        force = self._solve(problem, r, row.host.alpha, row.host.sigma).to(state.x.dtype)
        gain = float(host.b * host.alpha / host.sigma**2) * _spread(host.alpha, host.sigma)
        return -gain * problem.decoder.vjp(state.estimate)(force)


def _guided_row(problem: Problem, k: int) -> GuidedRow:
    """Row k of the table, with the level that comes next."""
    table = problem.table
    alpha, sigma = noise_levels(table)
    numbers = {"a": table.a[k], "b": table.b[k], "s": table.s[k]}
    numbers |= {"t": table.t[k], "alpha": alpha[k], "sigma": sigma[k]}
    after = {"t": table.t[k], "alpha": torch.ones_like(alpha[k]), "sigma": torch.zeros_like(sigma[k])}
    if k + 1 < len(table):
        after = {"t": table.t[k + 1], "alpha": alpha[k + 1], "sigma": sigma[k + 1]}
    numbers |= {f"{name}_next": number for name, number in after.items()}

    def on(device: torch.device, names: Sequence[str]) -> list[Tensor]:
        return [numbers[name].to(device, problem.row_dtype) for name in names]

    host = Host(*on(torch.device("cpu"), Host._fields))
    return GuidedRow._make([*on(problem.like.device, GuidedRow._fields[:-1]), host])


def _spread(alpha: Tensor, sigma: Tensor) -> float:
    """v_t: the variance of a clean sample of variance one, given the noisy one."""
    return float(sigma**2 / (alpha**2 + sigma**2))
