"""CASAL: Constrained Alternated Split Augmented Langevin (paper, Algorithms 1 and 2), and its repaired default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.methods.base import Method, Segment, split_records
from casal.methods.casal_rows import CASALRow, casal_rows, couples_estimate
from casal.methods.denoised import estimate, pulled, score_of
from casal.methods.problem import Problem, move
from casal.schedules import Schedule, evaluate


class CASALState(NamedTuple):
    """x explores, z is in C, lam (times ``scale`` of the row) is the multiplier of A x = z."""

    x: Tensor
    z: Tensor
    lam: Tensor


@dataclass(frozen=True)
class CASAL(Method[CASALState, CASALRow]):
    """The split augmented Langevin step, with mu = lam / rho:

        x' = a x + b score(x) + s w - tau rho A^T (A x - z + mu)
        z' = P(A x' + mu)  ("full")   or   P(z - tau rho (z - A x' - mu))  ("damped", as printed)
        mu' = mu + dual_step (A x' - z')

    "explicit" coupling reads the bracket as printed. "implicit" takes the x in it to be the new one, and with the
    full z-step also the z: with m the free step, x' = (I + tau rho A^T A)^-1 (m + tau rho A^T (P(A m + mu) - mu)).
    That is stable for every rho, and rho leads from unconstrained (0) to projected Langevin (infinity).

    Along a diffusion the constraint may couple to the denoised estimate D(x) instead of the noisy state: D is moved as
    x is above, with (sigma / alpha)^2 rho for tau rho, and the score is that of the moved estimate. Samplers without
    noise take it by default: their noisy state must not be near C, and on several modes the state locks into one.

    The printed damped z-step samples at the temperature 1 / (2 - tau rho) when rho is large, one half for small steps:
    x and z drift together and only x is shaken. So the full step is the default; the printed variants keep their
    names below. z is feasible at every step. At finite rho its law is not the conditional law: see ``WeightedCASAL``.

    Args:
        rho: Coupling > 0: a number, or a schedule over the run.
        dual_step: Step of mu: "tau", "tau/rho", "admm" (1), or a number. "auto" is "tau" on a fixed density, where
            larger steps shake x too much to settle, and "admm" along a diffusion, where tau would leave mu at zero.
        z_step: "full" or "damped".
        coupling: "implicit" is stable for every rho (needs a linear decoder); "explicit" needs
            tau rho |A|^2 <= 1.
        dual: "chain" for one multiplier a chain, "mean" for one multiplier driven by the average over chains.
        burn_in: First steps with rho = 0: a number of steps, or a fraction below one.
        step_size: Which step size multiplies rho: the "gain" b of the score, or the "paper"'s s^2 / 2. The same for
            Langevin rows.
        hold: What stays put when rho changes: "lambda", or "mu" as in the released code.
        dual_init: Standard deviation of a Gaussian start of mu (paper, ablation of lambda).
        couple: "state", "denoised", or "auto": the denoised estimate for samplers without noise, else the state.
    """

    rho: float | Schedule
    dual_step: float | str = "auto"
    z_step: str = "full"
    coupling: str = "implicit"
    dual: str = "chain"
    burn_in: float = 0
    step_size: str = "gain"
    hold: str = "lambda"
    dual_init: float = 0.0
    couple: str = "auto"

    name: ClassVar[str] = "CASAL"

    @classmethod
    def algorithm1(cls, rho: float | Schedule) -> CASAL:
        """Algorithm 1 to the letter: damped z, explicit coupling, mu' = mu + (tau / rho)(x' - z')."""
        return cls(rho, dual_step="tau/rho", z_step="damped", coupling="explicit", step_size="paper", couple="state")

    @classmethod
    def algorithm2(cls, rho: float | Schedule) -> CASAL:
        """Algorithm 2 to the letter: as Algorithm 1 with time-dependent tau and mu' = mu + tau (x' - z')."""
        return cls(rho, dual_step="tau", z_step="damped", coupling="explicit", step_size="paper", couple="state")

    @classmethod
    def released(cls, rho: float | Schedule, eta: float, *, burn_in: float = 0) -> CASAL:
        """The iteration of the authors' code: full z, explicit coupling, mu' = mu + eta (x' - z')."""
        return cls(
            rho, dual_step=eta, coupling="explicit", step_size="paper", hold="mu", burn_in=burn_in, couple="state"
        )

    def __post_init__(self) -> None:
        for value, allowed in (
            (self.z_step, ("full", "damped")),
            (self.coupling, ("implicit", "explicit")),
            (self.dual, ("chain", "mean")),
            (self.step_size, ("gain", "paper")),
            (self.hold, ("lambda", "mu")),
            (self.couple, ("auto", "state", "denoised")),
        ):
            if value not in allowed:
                raise SettingError(f"{value!r} is not one of {allowed}")
        if isinstance(self.dual_step, str) and self.dual_step not in ("auto", "admm", "tau", "tau/rho"):
            raise SettingError(
                f"dual_step must be 'auto', 'admm', 'tau', 'tau/rho' or a number, got {self.dual_step!r}"
            )
        if not isinstance(self.dual_step, str) and not self.dual_step >= 0:
            raise SettingError(f"dual_step must be >= 0, got {self.dual_step}")
        if not callable(self.rho) and not self.rho > 0:
            raise SettingError(f"rho must be > 0, got {self.rho}; for steps without coupling use burn_in")

    def plan(self, problem: Problem) -> Sequence[Segment]:
        rows = casal_rows(problem, self)
        if self.dual == "chain":
            return [Segment(rows)]
        return [Segment([row], rung=None if step == 0 else rows[step - 1]) for step, row in enumerate(rows)]

    def init(self, problem: Problem, x: Tensor, generator: torch.Generator) -> CASALState:
        z = problem.project(problem.decode(x))
        mu = torch.zeros_like(z)
        if self.dual_init:
            mu = self.dual_init * torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
        scale = float(evaluate(self.rho, problem.table, "rho")[0]) if self.hold == "lambda" else 1.0
        return CASALState(x, z, scale * mu)

    def step(self, problem: Problem, state: CASALState, row: CASALRow, noise: Tensor) -> CASALState:
        x, z, lam = state
        if couples_estimate(self, problem):
            return self._estimate_step(problem, state, row, noise)
        pull = problem.decoder.vjp(x)
        free = move(problem, x, problem.score(x, row.t), row, noise)
        if self.coupling == "implicit" and self.z_step == "full" and problem.isotropic:
            return self._straight_step(problem, free, state, row)
        mu = lam * row.per_scale
        if self.coupling == "implicit":
            if self.z_step == "full":
                z = problem.project(problem.decode(free) + mu, warm=z)
            x = problem.gram.solve(free.addcmul_(problem.scaled(pull(z - mu)), row.kappa), row.kappa)
        else:
            x = free - row.kappa * problem.scaled(pull(problem.decode(x) - z + mu))
        decoded = problem.decode(x)
        target = decoded + mu if self.z_step == "full" else z - row.damping * (z - decoded - mu)
        z = problem.project(target, warm=z)
        return CASALState(x, z, self._dual(lam, decoded - z, row))

    def _straight_step(self, problem: Problem, free: Tensor, state: CASALState, row: CASALRow) -> CASALState:
        """Where A and D are multiples of the identity x goes straight towards z, which is still its foot afterwards.

        With y = free + mu that is x' = y + (kappa D / (1 + kappa D)) (z' - y) - mu.
        """
        lam = state.lam
        y = free.addcmul_(lam, row.per_scale)
        z = problem.project(y, warm=state.z)
        x = _towards(y, z, row.lean).addcmul_(lam, row.per_scale, value=-1)
        return CASALState(x, z, self._dual(lam, x - z, row))

    def _dual(self, lam: Tensor, gap: Tensor, row: CASALRow) -> Tensor:
        """One multiplier for all chains is moved by ``exchange``."""
        return torch.addcmul(lam, gap, row.pace) if self.dual == "chain" else lam

    def _estimate_step(self, problem: Problem, state: CASALState, row: CASALRow, noise: Tensor) -> CASALState:
        """The same three updates on the denoised estimate, then the row with the score of the moved estimate."""
        x, z, lam = state
        mu = lam * row.per_scale
        clean = estimate(x, problem.score(x, row.t), row.alpha, row.sigma)
        z = problem.project(problem.decode(clean) + mu, warm=z)
        if self.coupling == "implicit":
            clean = pulled(problem, clean, z - mu, row.kappa)
        else:
            back = problem.decoder.vjp(clean)(problem.decode(clean) - z + mu)
            clean = clean - row.kappa / (1.0 + row.kappa * problem.decoder.norm() ** 2) * back
        decoded = problem.decode(clean)
        if self.coupling == "explicit" or not problem.isotropic:
            z = problem.project(decoded + mu, warm=z)
        lam = self._dual(lam, decoded - z, row)
        return CASALState(move(problem, x, score_of(x, clean, row.alpha, row.sigma), row, noise), z, lam)

    def exchange(
        self, problem: Problem, state: CASALState, rung: CASALRow, generator: torch.Generator
    ) -> tuple[CASALState, Mapping[str, float]]:
        gap = (problem.decode(state.x) - state.z).mean(0, keepdim=True)
        return state._replace(lam=state.lam + rung.scale * rung.eta * gap), {}

    def decoded_parts(self) -> tuple[str, ...] | None:
        return None if self.dual_init else ("z", "lam")  # a random mu has a part outside the range of A

    def output(self, problem: Problem, state: CASALState) -> Tensor:
        return problem.strict(state.z, warm=state.z)

    def monitor(self, problem: Problem, state: CASALState) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z, state.lam)


def _towards(y: Tensor, z: Tensor, share: Tensor) -> Tensor:
    """y + share (z - y): eagerly in one pass; compiled, lerp would work out both of its branches."""
    return y + share * (z - y) if torch.compiler.is_compiling() else torch.lerp(y, z, share.to(y.dtype))
