"""A ladder of couplings for diffusion models: split Gibbs sampling with importance weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError, whole_number
from casal.methods.base import Method, Segment, TableRow, split_records, table_rows
from casal.methods.finish import Confined, Finish, Plain
from casal.methods.ladder import Rung, half_square, next_rho
from casal.methods.problem import Problem, move
from casal.methods.renoise import (
    Accept,
    Renoise,
    Renoised,
    Reverse,
    accepted,
    adapted,
    footed,
    move_rows,
    noise_of,
    renoised,
    reverse_rows,
    reversed_step,
    start_of,
)
from casal.methods.resampling import normalised, population, resampled_islands

MOVES = ("auto", "gibbs", "metropolis")

GIBBS_DIMENSION = 16
"""Up to here "auto" takes gibbs, which needs fewer evaluations on few dimensions (half the inner steps in the plane)
but forgets more of x in every sweep: in 16 dimensions it keeps half the ancestors of metropolis, in 256 one."""


class Draw(NamedTuple):
    """A row that draws z given x."""


Row = TableRow | Draw | Renoise | Reverse | Accept


@dataclass(frozen=True)
class SplitGibbs(Method[Renoised, Any]):
    """Climb p(x) N(z; A x, sigma^2) 1_C(z) from sigma = infinity down, with importance weights (rho = 1 / sigma^2):

        weight *= Phi_sigma'(x) / Phi_sigma(x);          resample (systematic) if the effective size < ess n
        "gibbs":       z ~ N(A x, sigma'^2) restricted to C,   Phi_sigma(x) = integral of N(z; A x, sigma^2) over C
                       c = x + A^T (z - A x) / |A|^2 + (sigma' / |A|) (I - A^T A / |A|^2)^(1/2) w
                       x ~ p(x0 | x0 + (sigma' / |A|) noise = c)             (the reverse process, ``inner_steps`` long)
        "metropolis":  Phi_sigma(x) = exp(-dist(A x, C)^2 / (2 sigma^2)),   moves of ``renoise.py``

    A coupling of strength rho is noise of size rho^(-1/2), so the model's own reverse process is the exact move of x
    given z: no step size, no barrier to cross. "gibbs" needs a set with closed forms (affine, box, sphere, mass and
    energy) and a linear decoder; "metropolis" needs a projection alone. Both are exact but for the discretisation of
    the reverse process and the last sigma: z follows p smoothed by sigma (gibbs), or the foot of x (metropolis), and
    the error vanishes with sigma. In a set with an interior, "metropolis" ends like ``WeightedCASAL``: chains that are
    inside give copies in place of those outside.

    The run starts with the rows of the target's table, unconstrained: the ladder starts from samples of p. After them
    it takes (levels x sweeps x inner_steps) evaluations.

    Args:
        sigmas: The levels, decreasing; or one number, the last of ``levels`` levels which the chains place themselves,
            in equal steps of the spread of the log-weights.
        inner_steps: Evaluations of the denoiser in one move.
        levels: Number of levels if ``sigmas`` is a number.
        ess: Resample when the effective size falls below this share of the chains.
        sweeps: Moves at every level; more of them bring resampled copies apart.
        moves: "gibbs", "metropolis", or "auto": gibbs where there are closed forms and few dimensions.
        islands: Groups of chains that never meet, of equal size, pooled by their evidence (see ``Twisted``).
    """

    sigmas: float | Sequence[float] | Tensor
    inner_steps: int = 10
    levels: int = 40
    ess: float = 0.7
    sweeps: int = 1
    moves: str = "auto"
    islands: int = 1

    name: ClassVar[str] = "SplitGibbs"

    def __post_init__(self) -> None:
        for name in ("inner_steps", "levels", "sweeps", "islands"):
            whole_number(getattr(self, name), name, 1)
        if not 0.0 < self.ess <= 1.0:
            raise SettingError(f"ess is a share of the chains in (0, 1], got {self.ess}")
        if self.moves not in MOVES:
            raise SettingError(f"moves must be one of {MOVES}, got {self.moves!r}")
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64).reshape(-1)
        if not len(sigma) or not bool((torch.isfinite(sigma) & (sigma > 0)).all()) or bool((sigma.diff() >= 0).any()):
            raise SettingError(f"sigmas must be finite, > 0 and strictly decreasing, got {sigma.tolist()}")

    def plan(self, problem: Problem) -> Sequence[Segment]:
        return [Segment(table_rows(problem)), *self.climb(problem)]

    def climb(self, problem: Problem) -> list[Segment]:
        """The ladder, from clean points on."""
        draws = self._draws(problem)
        sweep: list[Any]
        if draws:
            _ = problem.gram
            sweep = [Draw(), Renoise(), *reverse_rows(problem, self.inner_steps)]
        else:
            sweep = move_rows(problem, self.inner_steps)
        finish = Confined() if problem.constraint.solid and not draws else Plain()
        levels = [Segment(sweep * self.sweeps, level) for level in self._ladder()]
        return [*levels, Segment([Draw()] if draws else [], finish)]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Renoised:
        return start_of(problem, x)

    def noise(self, problem: Problem, row: Row, n: int, generator: torch.Generator, out: Tensor | None = None) -> Any:
        if isinstance(row, Draw):
            return generator
        if isinstance(row, Accept):
            return torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
        return super().noise(problem, row, n, generator, out)

    def step(self, problem: Problem, state: Renoised, row: Row, noise: Any) -> Renoised:
        if isinstance(row, TableRow):
            return state._replace(x=move(problem, state.x, problem.score(state.x, row.t), row, noise))
        if isinstance(row, Draw):
            return state._replace(z=_drawn(problem, state, noise))
        if isinstance(row, Renoise):
            return (
                self._centred(problem, state, noise) if self._draws(problem) else renoised(problem, state, row, noise)
            )
        if isinstance(row, Reverse):
            return reversed_step(problem, state, row, noise)
        return accepted(problem, state, row, noise)

    def exchange(
        self, problem: Problem, state: Renoised, rung: Rung | Finish, generator: torch.Generator
    ) -> tuple[Renoised, Mapping[str, float]]:
        rate = {} if self._draws(problem) else {"acceptance": float(state.accepted.mean()) / self.sweeps}
        if isinstance(rung, Finish):
            state, info = rung.apply(problem, self._resampled(state, generator, at_once=True), generator)
            return state, {**info, **rate}
        if float(state.rho) == 0.0:
            state, rate = footed(problem, state), {key: 1.0 for key in rate}
        elif rate:
            state = adapted(state, self.sweeps)
        state = self._weighted(problem, state, rung)
        info = population(state)
        return self._resampled(state, generator), {**info, **rate}

    def output(self, problem: Problem, state: Renoised) -> Tensor:
        return problem.strict(state.z if self._draws(problem) else problem.decode(state.x), warm=state.z)

    def monitor(self, problem: Problem, state: Renoised) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z)

    def _resampled(self, state: Renoised, generator: torch.Generator, at_once: bool = False) -> Renoised:
        if len(state.x) % self.islands:
            raise SettingError(f"{len(state.x)} chains do not fall into {self.islands} islands of equal size")
        return resampled_islands(state, generator, self.islands, math.inf if at_once else self.ess)

    def _draws(self, problem: Problem) -> bool:
        """Whether z is drawn in closed form."""
        able = problem.constraint.samples_near and problem.decoder.linear
        if self.moves == "gibbs" and not able:
            raise SettingError(
                f"moves='gibbs' needs closed forms, which {problem.constraint!r} behind "
                f"{type(problem.decoder).__name__} has not; take moves='metropolis'"
            )
        small = math.prod(problem.latent) <= GIBBS_DIMENSION
        return able and (self.moves == "gibbs" or (self.moves == "auto" and small))

    def _ladder(self) -> list[Rung]:
        sigma = torch.as_tensor(self.sigmas, dtype=torch.float64)
        if sigma.ndim == 0:
            return [Rung(None, self.levels - k) for k in range(self.levels)]
        return [Rung(rho, len(sigma) - k) for k, rho in enumerate(sigma.pow(-2).tolist())]

    def _weighted(self, problem: Problem, state: Renoised, rung: Rung) -> Renoised:
        """Go to the next level and weight the chains for it."""
        half, decoded = state.half, problem.decode(state.x)
        if self._draws(problem):
            half = half_square(decoded - problem.project(decoded, warm=state.z))
        rho = rung.rho
        if rho is None:
            top = float(torch.as_tensor(self.sigmas, dtype=torch.float64)) ** -2
            rho = next_rho(float(state.rho), top, half, normalised(state.log_weight), rung.left)
        if self._draws(problem):
            change = _log_mass(problem, decoded, rho) - _log_mass(problem, decoded, float(state.rho))
        else:
            change = (float(state.rho) - rho) * half
        return state._replace(rho=torch.full_like(state.rho, rho), log_weight=state.log_weight + change)

    def _centred(self, problem: Problem, state: Renoised, noise: Tensor) -> Renoised:
        """c: the point whose noise of size sigma / |A| stands for both z and what A does not see of x."""
        x, gram, stiffness = state.x, problem.gram, problem.decoder.norm() ** 2
        blind = (1.0 - gram.eigenvalues / stiffness).clamp_min(0.0).sqrt()
        spread = gram.unwhiten((blind * noise.reshape(len(x), *blind.shape)) if blind.ndim else blind * noise)
        pull = problem.decoder.vjp(x)((state.z - problem.decode(x)).to(x.dtype)) / stiffness
        c = x + pull + noise_of(problem, state, 1.0) * spread.reshape(x.shape)
        return state._replace(x=c, start=c, clean=x, before=c)


def _drawn(problem: Problem, state: Renoised, generator: torch.Generator) -> Tensor:
    drawn = problem.constraint.sample_near(problem.decode(state.x), float(state.rho) ** -0.5, generator)
    assert drawn is not None, "plan takes closed forms only where the set has them"
    return drawn.to(state.z.dtype)


def _log_mass(problem: Problem, decoded: Tensor, rho: float) -> Tensor:
    """log Phi, zero at rho = 0."""
    if rho == 0.0:
        return torch.zeros(len(decoded), dtype=torch.float64, device=decoded.device)
    value = problem.constraint.log_normaliser(decoded, rho**-0.5)
    assert value is not None, "plan takes closed forms only where the set has them"
    return value
