"""Metropolis moves: add noise, run the model's reverse process back down, accept or not.

    y  = x + g(x) + s w                                       (w ~ N(0, I); g leads towards C)
    x' ~ p(x0 | x0 + s noise = y)                             (the reverse process from the level s down)
    accept with probability min(1, exp(-rho (V(x') - V(x))) T(x') / T(x)),   T(x) = N(y; x + g(x), s^2) / N(y; x, s^2)

with V(x) = dist(A x, C)^2 / 2 and g(x) = c A^T (P(A x) - A x). Two clean points that share a noisy one are
exchangeable under p: p(x) N(y; x) p(x' | y) is symmetric in x and x'. So without g and V the move leaves p as it is; T
pays for g, and the factor of V makes pi_rho(x) ~ p(x) exp(-rho V(x)) the distribution that stays. Nothing is asked of
the set but its projection, nothing of the decoder but its derivative. A rung weighs by Phi_rho(x) = exp(-rho V(x)).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from casal.constraints import half_square
from casal.methods.base import Stage, uniform
from casal.methods.coupling import Finish, choose_finish
from casal.methods.moves import Moves, clean_score
from casal.methods.population import equal_weights
from casal.methods.problem import Problem, pick

TOWARDS = 0.75
"""Share of the way to C that g goes when the noise is as large as the slack rho^(-1/2)."""

WIDE, WANTED_INSIDE = 0.7, 0.45
"""In a set with an interior: largest noise of a move, in units of the spread of the chains, and share to accept."""

HARD = 1e16
"""Coupling at which a move out of C is never accepted, in units of the last rung's."""


class MetropolisState(NamedTuple):
    """A population between a clean point and the next.

    Attributes:
        x: The point that moves; clean at the end of a move.
        z: The nearest point P(A x) of the clean point.
        clean: The clean point the present move started from.
        start: y of the present move.
        estimate: The denoised estimate of the step before.
        half: V of the clean point, (n,).
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain each chain descends from, (n,).
        accepted: How many proposals each chain has accepted since the last rung, (n,).
        rho: Coupling that all chains are at.
        size: Size of the noise in units of rho^(-1/2) / |A|.
        top: Where the ladder ends, as far as the chains have shown.
        floor: Where the reverse process ends (``moves.data_floor``).
        blur: Size of its last noise, in units of its last level.
    """

    x: Tensor
    z: Tensor
    clean: Tensor
    start: Tensor
    estimate: Tensor
    half: Tensor
    log_weight: Tensor
    ancestor: Tensor
    accepted: Tensor
    rho: Tensor
    size: Tensor
    top: Tensor
    floor: Tensor
    blur: Tensor


class AcceptedMoves(Moves):
    """Moves that propose a clean point and accept it or not; the states also have clean, half, accepted and size.

    Attributes:
        wanted: Share of proposals to accept; the size of the noise adapts to it between two rungs.
        sizes: Bounds of the size of the noise in units of rho^(-1/2) / |A|.
    """

    wanted: ClassVar[float]
    sizes: ClassVar[tuple[float, float]]

    def arrive(self, problem: Problem, state: Any, moves: int) -> tuple[Any, Mapping[str, float]]:
        if float(state.rho) == 0.0:
            return with_nearest(problem, state), {"acceptance": 1.0}
        rate = float(state.accepted.mean()) / moves
        least, most = self.sizes
        widest = self.widest(problem, state)
        wanted = WANTED_INSIDE if widest else self.wanted
        factor = torch.exp(torch.as_tensor(rate - wanted, dtype=torch.float64))
        size = (state.size * factor).clamp(least, max(most, widest))
        return state._replace(size=size, accepted=torch.zeros_like(state.accepted)), {"acceptance": rate}

    def widest(self, problem: Problem, state: Any) -> float:
        """Size of the noise up to which a move may go, if the set allows more than ``sizes``."""
        return 0.0

    def weigh(self, problem: Problem, state: Any, rho: float) -> Tensor:
        return (float(state.rho) - rho) * cast(Tensor, state.half)

    def half(self, problem: Problem, state: Any) -> Tensor:
        return cast(Tensor, state.half)

    def finish(self, problem: Problem) -> Finish:
        return choose_finish(problem, clean_score)

    def decide(self, problem: Problem, state: Any, noise: Tensor) -> tuple[Any, Tensor]:
        """Keep the proposal, or go back to the clean point the move started from; and who kept it, (n,) bool."""
        new = with_nearest(problem, state)
        yes = torch.log(noise) < self.log_ratio(problem, state, new)
        kept = state._replace(
            x=pick(yes, state.x, state.clean),
            z=pick(yes, new.z, state.z),
            half=torch.where(yes, new.half, state.half),
            accepted=state.accepted + yes.to(state.accepted),
        )
        return kept, yes

    @abstractmethod
    def log_ratio(self, problem: Problem, old: Any, new: Any) -> Tensor:
        """Logarithm of the acceptance ratio, (n,); the old clean point is ``old.clean``, the new one ``new.x``."""


class MetropolisMoves(AcceptedMoves):
    """Proposals from the reverse process, accepted or not."""

    wanted = 0.65
    sizes = (0.05, 2.0)
    settles = True

    def start(self, problem: Problem, x: Tensor) -> MetropolisState:
        log_weight, ancestor = equal_weights(problem, len(x))
        z = problem.project(problem.decode(x))
        return self.from_clean(x, z, log_weight, ancestor, log_weight.new_zeros(()))

    @staticmethod
    def from_clean(x: Tensor, z: Tensor, log_weight: Tensor, ancestor: Tensor, rho: Tensor) -> MetropolisState:
        """Clean points that have not moved yet, with their weights."""
        zeros = torch.zeros_like(log_weight)
        one, none = torch.ones_like(rho), torch.zeros_like(rho)
        return MetropolisState(x, z, x, x, x, zeros, log_weight, ancestor, zeros, rho, one, none, none, none)

    def widest(self, problem: Problem, state: Any) -> float:
        """In a set with an interior, where a chain has room, noise nearly as large as the spread of the chains."""
        if not problem.constraint.solid or len(state.x) < 2:
            return 0.0
        spread = float(state.x.to(torch.float64).var(0).mean().sqrt())
        return WIDE * spread * float(state.rho) ** 0.5 * problem.decoder.norm()

    def settle(self, problem: Problem, state: MetropolisState) -> MetropolisState:
        """The same noise, and every move out of C is refused."""
        state = with_nearest(problem, state)
        return state._replace(rho=HARD * state.rho, size=HARD**0.5 * state.size)

    def sweep(self, problem: Problem) -> list[Stage]:
        return [
            Stage([()], self.renoise),
            self.reverse_stage(problem),
            Stage([()], self.accept, noise=uniform),
        ]

    def level(self, problem: Problem, state: MetropolisState) -> float:
        return float(state.size) / (float(state.rho) ** 0.5 * problem.decoder.norm())

    def renoise(self, problem: Problem, state: MetropolisState, row: Any, noise: Tensor) -> MetropolisState:
        """y = x + g(x) + s w."""
        s = self.level(problem, state)
        y = state.x + guide(problem, state.x, state.z, s, state.rho) + s * noise
        return state._replace(x=y, start=y, clean=state.x, estimate=y)

    def accept(self, problem: Problem, state: MetropolisState, row: Any, noise: Tensor) -> MetropolisState:
        """Keep the proposal, or go back."""
        kept: MetropolisState = self.decide(problem, state, noise)[0]
        return kept

    def log_ratio(self, problem: Problem, old: MetropolisState, new: MetropolisState) -> Tensor:
        """log of exp(-rho (V(x') - V(x))) T(x') / T(x)."""
        s = self.level(problem, old)
        tilt = _tilt(problem, old, new.x, new.z, s) - _tilt(problem, old, old.clean, old.z, s)
        return tilt - old.rho * (new.half - old.half)


def with_nearest(problem: Problem, state: Any) -> Any:
    """The state with the nearest point of every clean point and its distance."""
    decoded = problem.decode(state.x)
    z = problem.nearest(decoded, warm=state.z)
    return state._replace(z=z, half=half_square(decoded - z))


def guide(problem: Problem, x: Tensor, z: Tensor, s: float, rho: Tensor) -> Tensor:
    """g(x) = c A^T (z - A x) with c |A|^2 = min(1, (s |A|)^2 rho) TOWARDS."""
    stiffness = problem.decoder.norm() ** 2
    share = TOWARDS * min(1.0, s**2 * stiffness * float(rho)) / stiffness
    return share * problem.decoder.vjp(x)(z - problem.decode(x))


def _tilt(problem: Problem, state: MetropolisState, x: Tensor, z: Tensor, s: float) -> Tensor:
    """log N(y; x + g(x), s^2) - log N(y; x, s^2) = (g . (y - x) - |g|^2 / 2) / s^2."""
    g = guide(problem, x, z, s, state.rho).reshape(len(x), -1).to(torch.float64)
    away = (state.start - x).reshape(len(x), -1).to(torch.float64)
    return ((g * away).sum(1) - g.square().sum(1) / 2) / s**2
