"""Twisted sequential Monte Carlo over the noise levels (Wu et al. 2023), then the ladder of ``SplitGibbs``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method, Segment, table_rows
from casal.methods.denoised import estimate, noise_levels
from casal.methods.problem import Problem, move
from casal.methods.renoise import Renoised, finest_level, footed, start_of
from casal.methods.resampling import population, resampled_islands
from casal.methods.split_gibbs import SplitGibbs


class TwistedRow(NamedTuple):
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


class Look(NamedTuple):
    """Resample where the effective size is low; ``clean`` chains also get their feet on C."""

    clean: bool


@dataclass(frozen=True)
class Twisted(Method[Renoised, Any]):
    """Guide every chain by a potential of its denoised estimate D, and pay for the guidance with weights:

        V_t(x) = r^T (I / rho + v_t A A^T)^-1 r / 2,   r = A D(x) - P(A D(x)),   v_t = sigma^2 / (alpha^2 + sigma^2)
        delta  = -b (alpha / sigma^2) v_t A^T (I / rho + v_t A A^T)^-1 r          (the gradient of V_t, D' left out)
        x'     = a x + b score(x) + delta + s_t w
        weight *= exp(V_t(x) - V_t'(x')) N(x'; a x + b score, s_t^2) / N(x'; a x + b score + delta, s_t^2)

    and resample (systematic) if the effective size < ess n. Whatever delta is, the law at the end of the table is
    p(x) exp(-rho/2 dist(A x, C)^2): a poor guide costs effective size, not the law. The rho of the guide is ``twist``,
    small enough that the chains stay many. From there ``moves`` rungs of the ladder of ``SplitGibbs`` lead up to
    ``rho``, each with its weights and one move, and end as they do there.

    ``islands`` are groups of chains that never meet, so that no single lucky chain takes them all. They are pooled by
    their evidence, the mean of their weights along the run: ``result.weights`` has it.

    Args:
        rho: Coupling at the top of the ladder.
        ess: Resample when the effective size of an island falls below this share of its chains.
        moves: Rungs of the ladder, one move each.
        islands: Groups of chains, of equal size; n must be a multiple.
        inner_steps: Evaluations of the denoiser in one move.
        twist: Coupling of the guide, in units of the clean sample; at most rho.
    """

    rho: float
    ess: float = 0.7
    moves: int = 30
    islands: int = 1
    inner_steps: int = 10
    twist: float = 1.0

    name: ClassVar[str] = "Twisted"

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

    def plan(self, problem: Problem) -> Sequence[Segment]:
        finest_level(problem)
        table = problem.table
        alpha, sigma = noise_levels(table)
        if not bool(table.s.any()):
            raise SettingError(
                f"{problem.target.name} is a sampler without noise, so chains that are resampled would stay copies; "
                "take ddpm, ddim with eta > 0, edm with churn > 0, or flow with noise > 0"
            )
        columns = {"t": table.t, "alpha": alpha, "sigma": sigma}
        after = {f"{name}_next": torch.cat([v[1:], v[-1:]]) for name, v in columns.items()}
        after["sigma_next"][-1], after["alpha_next"][-1] = 0.0, 1.0
        rows = table_rows(problem, TwistedRow, alpha=alpha, sigma=sigma, **after)
        guided = [Segment([row], None if k == 0 else Look(False)) for k, row in enumerate(rows)]
        return [*guided, Segment([], Look(True)), *self.ladder.climb(problem)]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Renoised:
        alpha, sigma = noise_levels(problem.table)
        state = start_of(problem, x)._replace(rho=torch.tensor(float(self.twist), dtype=torch.float64, device=x.device))
        return self._seen(problem, state, problem.table.t[0].to(x.device), alpha[0], sigma[0])

    def noise(self, problem: Problem, row: Any, n: int, generator: torch.Generator, out: Tensor | None = None) -> Any:
        return self.ladder.noise(problem, row, n, generator, out)

    def step(self, problem: Problem, state: Renoised, row: Any, noise: Any) -> Renoised:
        if not isinstance(row, TwistedRow):
            return self.ladder.step(problem, state, row, noise)
        score = (row.alpha * state.before - state.x) / row.sigma**2
        x, paid = move(problem, state.x, score, row, noise), torch.zeros_like(state.log_weight)
        if float(row.s) > 0.0:
            delta = self._delta(problem, state, row)
            x = x + delta
            d, w = (v.reshape(len(x), -1).to(torch.float64) for v in (delta, noise))
            paid = -((d * w).sum(1) + d.square().sum(1) / (2 * row.s)) / row.s
        new = self._seen(problem, state._replace(x=x), row.t_next, row.alpha_next, row.sigma_next)
        return new._replace(log_weight=state.log_weight + state.half - new.half + paid)

    def exchange(
        self, problem: Problem, state: Renoised, rung: Any, generator: torch.Generator
    ) -> tuple[Renoised, Mapping[str, float]]:
        if not isinstance(rung, Look):
            return self.ladder.exchange(problem, state, rung, generator)
        info = population(state)
        state = resampled_islands(state, generator, self.islands, self.ess)
        return (footed(problem, state) if rung.clean else state), info

    def output(self, problem: Problem, state: Renoised) -> Tensor:
        return self.ladder.output(problem, state)

    def monitor(self, problem: Problem, state: Renoised) -> Mapping[str, Tensor]:
        return self.ladder.monitor(problem, state)

    def _seen(self, problem: Problem, state: Renoised, t: Tensor, alpha: Tensor, sigma: Tensor) -> Renoised:
        """The state with the denoised estimate of x, its foot on C and its potential V_t (in ``half``)."""
        clean = state.x
        if float(sigma) > 0.0:
            clean = estimate(state.x, problem.score(state.x, t), alpha, sigma)
        decoded = problem.decode(clean)
        z = problem.project(decoded, warm=state.z)
        r = (decoded - z).reshape(len(z), -1).to(torch.float64)
        force = self._solve(problem, decoded - z, alpha, sigma).reshape(len(z), -1).to(torch.float64)
        return state._replace(before=clean, z=z, half=(r * force).sum(1) / 2)

    def _solve(self, problem: Problem, r: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """(I / rho + v A A^T)^-1 r = rho (r - v rho A (I + v rho A^T A)^-1 A^T r)      (Woodbury).

        For a nonlinear decoder |A|^2 stands for A A^T.
        """
        rho, v = self.twist, _spread(alpha, sigma)
        if problem.identity or not problem.decoder.linear:
            return r / (1.0 / rho + v * problem.decoder.norm() ** 2)
        strength = torch.as_tensor(v * rho, dtype=torch.float64, device=r.device)
        back = problem.decoder.vjp(problem.like)(r.to(problem.like.dtype))
        return rho * (r - strength * problem.decode(problem.gram.solve(back, strength)))

    def _delta(self, problem: Problem, state: Renoised, row: TwistedRow) -> Tensor:
        r = problem.decode(state.before) - state.z
        force = self._solve(problem, r, row.alpha, row.sigma).to(state.x.dtype)
        gain = float(row.b * row.alpha / row.sigma**2) * _spread(row.alpha, row.sigma)
        return -gain * problem.decoder.vjp(state.before)(force)


def _spread(alpha: Tensor, sigma: Tensor) -> float:
    """v_t: the variance of a clean sample of variance one, given the noisy one."""
    return float(sigma**2 / (alpha**2 + sigma**2))
