"""Twisted sequential Monte Carlo over the noise levels (Wu et al. 2023), with Metropolis moves at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError, whole_number
from casal.methods.base import Method, Segment, split_records, table_rows
from casal.methods.denoised import estimate
from casal.methods.problem import Problem, move
from casal.methods.renoise import (
    Accept,
    Renoise,
    Renoised,
    Reverse,
    accepted,
    finest_level,
    footed,
    move_rows,
    renoised,
    reversed_step,
    start_of,
)
from casal.methods.resampling import chosen, effective_size, normalised, population, systematic

SCALES = (1.0, 3.0, 10.0)
"""Sizes of the noise of the moves, taken in turn, in units of the slack rho^(-1/2) / |A|."""


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
    """Resample; with ``last`` in any case, and then find the feet of the clean points."""

    last: bool


class Pool(NamedTuple):
    """After the moves: nothing but a record."""


@dataclass(frozen=True)
class Twisted(Method[Renoised, Any]):
    """Guide every chain by a potential of its denoised estimate D, and pay for the guidance with weights:

        V_t(x) = r^T (I / rho + v_t A A^T)^-1 r / 2,   r = A D(x) - P(A D(x)),   v_t = sigma^2 / (alpha^2 + sigma^2)
        delta  = -b (alpha / sigma^2) v_t A^T (I / rho + v_t A A^T)^-1 r          (the gradient of V_t, D' left out)
        x'     = a x + b score(x) + delta + s_t w
        weight *= exp(V_t(x) - V_t'(x')) N(x'; a x + b score, s_t^2) / N(x'; a x + b score + delta, s_t^2)

    and resample (systematic) if the effective size < ess n. The law at the end is p(x) exp(-rho/2 dist(A x, C)^2),
    whatever delta: a poor guide costs effective size, not the law. Then ``moves`` rounds of ``renoise.py`` bring copies
    apart, and z = P(A x) is returned. Of nonlinear decoders (A D(x) read as the decoded estimate) it asks a derivative.

    Chains guided together often end in one mode: ``islands`` are groups of chains that never meet. They are pooled with
    weights proportional to their evidence, the mean of their weights along the run; ``result.weights`` has them.

    Args:
        rho: Coupling at the end; rho^(-1/2) is the slack that the last projection removes.
        ess: Resample when the effective size of an island falls below this share of its chains.
        moves: Rounds of renoise-and-denoise moves at the end.
        islands: Groups of chains, of equal size; n must be a multiple.
        inner_steps: Evaluations of the denoiser in one move.
    """

    rho: float
    ess: float = 0.7
    moves: int = 30
    islands: int = 1
    inner_steps: int = 10

    name: ClassVar[str] = "Twisted"

    def __post_init__(self) -> None:
        if not 0.0 < self.rho < math.inf:
            raise SettingError(f"rho must be finite and > 0, got {self.rho}")
        if not 0.0 < self.ess <= 1.0:
            raise SettingError(f"ess is a share of the chains in (0, 1], got {self.ess}")
        whole_number(self.moves, "moves", 0)
        whole_number(self.islands, "islands", 1)
        whole_number(self.inner_steps, "inner_steps", 1)

    def plan(self, problem: Problem) -> Sequence[Segment]:
        finest_level(problem)
        table = problem.table
        assert table.alpha is not None and table.sigma is not None, "finest_level refuses targets without noise levels"
        if not bool(table.s.any()):
            raise SettingError(
                f"{problem.target.name} is a sampler without noise, so chains that are resampled would stay copies; "
                "take ddpm, ddim with eta > 0, edm with churn > 0, or flow with noise > 0"
            )
        columns = {"t": table.t, "alpha": table.alpha, "sigma": table.sigma}
        after = {f"{name}_next": torch.cat([v[1:], v[-1:]]) for name, v in columns.items()}
        after["sigma_next"][-1], after["alpha_next"][-1] = 0.0, 1.0
        rows = table_rows(problem, TwistedRow, alpha=table.alpha, sigma=table.sigma, **after)
        walk = [row for k in range(self.moves) for row in move_rows(problem, self.inner_steps, SCALES[k % len(SCALES)])]
        guided = [Segment([row], None if k == 0 else Look(False)) for k, row in enumerate(rows)]
        return [*guided, Segment(walk, Look(True)), *([Segment([], Pool())] if self.moves else [])]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Renoised:
        table = problem.table
        assert table.alpha is not None and table.sigma is not None
        state = start_of(problem, x)._replace(rho=torch.tensor(float(self.rho), dtype=torch.float64, device=x.device))
        return self._seen(problem, state, table.t[0].to(x.device), table.alpha[0], table.sigma[0])

    def noise(self, problem: Problem, row: Any, n: int, generator: torch.Generator) -> Any:
        if isinstance(row, Accept):
            return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
        return super().noise(problem, row, n, generator)

    def step(self, problem: Problem, state: Renoised, row: Any, noise: Any) -> Renoised:
        if isinstance(row, Renoise):
            return renoised(problem, state, row, noise)
        if isinstance(row, Reverse):
            return reversed_step(problem, state, row, noise)
        if isinstance(row, Accept):
            return accepted(problem, state, row, noise)
        score = (row.alpha * state.before - state.x) / row.sigma**2
        delta = self._delta(problem, state, row) if float(row.s) > 0.0 else torch.zeros_like(state.x)
        x = move(problem, state.x, score, row, noise) + delta
        paid = torch.zeros_like(state.log_weight)
        if float(row.s) > 0.0:
            d, w = (v.reshape(len(x), -1).to(torch.float64) for v in (delta, noise))
            paid = -((d * w).sum(1) + d.square().sum(1) / (2 * row.s)) / row.s
        new = self._seen(problem, state._replace(x=x), row.t_next, row.alpha_next, row.sigma_next)
        return new._replace(log_weight=state.log_weight + state.half - new.half + paid)

    def exchange(
        self, problem: Problem, state: Renoised, rung: Look | Pool, generator: torch.Generator
    ) -> tuple[Renoised, Mapping[str, float]]:
        if len(state.x) % self.islands:
            raise SettingError(f"{len(state.x)} chains do not fall into {self.islands} islands of equal size")
        info = population(state)
        if isinstance(rung, Pool):
            return state, {**info, "acceptance": float(state.accepted.mean()) / self.moves}
        groups = state.log_weight.reshape(self.islands, -1)
        picks, weights = [], []
        for k, group in enumerate(groups):
            here = torch.arange(k * len(group), (k + 1) * len(group), device=group.device)
            weight = normalised(group)
            if rung.last or float(effective_size(weight)) < self.ess * len(group):
                here = here[systematic(weight, generator)]
                group = (torch.logsumexp(group, 0) - math.log(len(group))).expand(len(group))
            picks.append(here)
            weights.append(group)
        state = chosen(state, torch.cat(picks))._replace(log_weight=torch.cat(weights))
        return (footed(problem, state) if rung.last else state), info

    def output(self, problem: Problem, state: Renoised) -> Tensor:
        return problem.strict(problem.decode(state.x), warm=state.z)

    def monitor(self, problem: Problem, state: Renoised) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, problem.project(problem.decode(state.x)))

    def _seen(self, problem: Problem, state: Renoised, t: Tensor, alpha: Tensor, sigma: Tensor) -> Renoised:
        """The state with the denoised estimate of x, its foot on C and its potential V_t (in ``half``)."""
        clean = state.x
        if float(sigma) > 0.0:
            clean = estimate(state.x, problem.score(state.x, t), alpha, sigma)
        decoded = problem.decode(clean)
        z = problem.project(decoded, warm=state.z)
        half = self._potential(problem, decoded - z, self._variance(alpha, sigma))
        return state._replace(before=clean, z=z, half=half)

    def _variance(self, alpha: Tensor, sigma: Tensor) -> float:
        s = float(sigma / alpha) ** 2
        return s / (1.0 + s)

    def _solve(self, problem: Problem, r: Tensor, v: float) -> Tensor:
        """(I / rho + v A A^T)^-1 r = rho (r - v rho A (I + v rho A^T A)^-1 A^T r) for a linear decoder (Woodbury)."""
        if problem.identity:
            return r / (1.0 / self.rho + v)
        if not problem.decoder.linear:
            return r / (1.0 / self.rho + v * problem.decoder.norm() ** 2)
        strength = torch.as_tensor(v * self.rho, dtype=torch.float64, device=r.device)
        back = problem.decoder.vjp(problem.like)(r.to(problem.like.dtype))
        return self.rho * (r - strength * problem.decode(problem.gram.solve(back, strength)))

    def _potential(self, problem: Problem, r: Tensor, v: float) -> Tensor:
        flat = r.reshape(len(r), -1).to(torch.float64)
        return (flat * self._solve(problem, r, v).reshape(len(r), -1).to(torch.float64)).sum(1) / 2

    def _delta(self, problem: Problem, state: Renoised, row: TwistedRow) -> Tensor:
        v = self._variance(row.alpha, row.sigma)
        r = problem.decode(state.before) - state.z
        pull = problem.decoder.vjp(state.before)(self._solve(problem, r, v).to(state.x.dtype))
        return -(row.b * v * row.alpha / row.sigma**2) * pull
