"""CASAL: Constrained Alternated Split Augmented Langevin (paper, Algorithms 1 and 2), and its repaired default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from casal.checks import number_of, one_of
from casal.errors import SettingError
from casal.methods.base import (
    Each,
    Method,
    Recall,
    Together,
    advance,
    burn_in_steps,
    nothing_past,
    refuse_own_sets,
    split_records,
    table_rows,
    zero_before,
)
from casal.methods.baselines import estimate, noise_levels
from casal.methods.problem import Problem
from casal.schedules import Schedule, evaluate
from casal.targets.base import Table


class CASALState(NamedTuple):
    """x explores, z is in C, lam is the multiplier of A x = z: mu = lam / scale of the row (lam is mu if held)."""

    x: Tensor
    z: Tensor
    lam: Tensor


class CASALWithPast(NamedTuple):
    """The same, and the estimates (n, p, *latent) of the rows before, where rows look back."""

    x: Tensor
    z: Tensor
    lam: Tensor
    past: Tensor


class CASALRow(NamedTuple):
    """A plain row with rho, kappa = tau rho, the damping of z, the dual step eta, the scale lam / mu, and x's noise.

    Three more numbers save divisions: ``inverse_scale`` = 1 / scale, ``dual_gain`` = scale eta, and where A and D are
    multiples of the identity ``share_to_z`` = kappa D / (1 + kappa D), the share of the way to z.
    """

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    rho: Tensor
    kappa: Tensor
    damping: Tensor
    eta: Tensor
    scale: Tensor
    alpha: Tensor
    sigma: Tensor
    inverse_scale: Tensor
    dual_gain: Tensor
    share_to_z: Tensor
    recall: Recall | None = None


@dataclass(frozen=True)
class CASAL(Method[CASALState]):
    """Couples x to a copy z in the set, by a penalty rho and a multiplier.

    The split augmented Langevin step, with mu = lam / rho:

        x' = a x + b score(x) + s w - tau rho A^T (A x - z + mu)
        z' = P(A x' + mu)  ("full")   or   P(z - tau rho (z - A x' - mu))  ("damped", as printed)
        mu' = mu + dual_step (A x' - z')

    "explicit" coupling reads the bracket as printed. "implicit" takes the x in it to be the new one, and with the
    full z-step also the z: with m the free step, x' = (I + tau rho A^T A)^-1 (m + tau rho A^T (P(A m + mu) - mu)).
    That is stable for every rho, and rho leads from unconstrained (0) to projected Langevin (infinity).

    Along a diffusion the constraint may couple to the denoised estimate D(x) instead of the noisy state: D is moved as
    x is above, with (sigma / alpha)^2 rho for tau rho, and the score is that of the moved estimate. Samplers without
    noise take it by default: their noisy state must not be near C, and on several modes the state locks into one. So do
    samplers whose rows look back (multistep, Heun): their next row would undo what was done to the state alone.

    The printed damped z-step samples at the temperature 1 / (2 - tau rho) when rho is large, one half for small steps:
    x and z drift together and only x is shaken. So the full step is the default; the printed variants keep their
    names below. z is feasible at every step. At finite rho it does not follow the conditional distribution; see
    ``WeightedCASAL`` for that.

    Args:
        rho: Coupling > 0: a number, or a schedule over the run.
        dual_step: Step of mu: "tau", "tau/rho", "admm" (1), or a number. "auto" is "tau" on a fixed density, where
            larger steps shake x too much to settle, and "admm" along a diffusion, where tau would leave mu at zero.
        z_step: "full" or "damped".
        coupling: "implicit" is stable for every rho (needs a linear decoder); "explicit" needs
            tau rho |A|^2 <= 1.
        dual: "chain" for one multiplier a chain, "mean" for one multiplier driven by the average over chains.
        burn_in: First steps with rho = 0: a number of steps, or a fraction below one. x moves freely. lambda stands
            still, and with the damped z-step z and mu do too: the print has no burn-in, and its z and mu would move
            by multiples of rho and 1 / rho. In the released code z follows x and mu moves on.
        step_size: Which step size multiplies rho: the "gain" b of the score, or the "paper"'s s^2 / 2. The same for
            Langevin rows.
        hold: What stays put when rho changes: "lambda", or "mu" as printed and as in the released code.
        dual_init: Standard deviation of a Gaussian start of mu (paper, ablation of lambda).
        couple: "state", "denoised", or "auto": the denoised estimate for samplers without noise or with rows that look
            back, else the state.
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
    remembers: ClassVar[bool] = True

    @classmethod
    def algorithm1(cls, rho: float | Schedule, *, burn_in: float = 0, dual_init: float = 0.0) -> CASAL:
        """Algorithm 1 to the letter: damped z, explicit coupling, mu' = mu + (tau / rho)(x' - z').

        A schedule of rho is read line by line: mu is carried from step to step, as printed. The algorithm leaves mu_0
        open: zero, or Gaussian of size ``dual_init`` as in the paper's ablation of lambda. ``burn_in`` is not printed.
        """
        return cls._printed(rho, "tau/rho", burn_in, dual_init)

    @classmethod
    def algorithm2(cls, rho: float | Schedule, *, burn_in: float = 0, dual_init: float = 0.0) -> CASAL:
        """Algorithm 2 to the letter: as Algorithm 1 with time-dependent tau and mu' = mu + tau (x' - z').

        In print mu_0 is zero; ``dual_init`` is for the ablation of lambda. ``burn_in`` is not printed.
        """
        return cls._printed(rho, "tau", burn_in, dual_init)

    @classmethod
    def _printed(cls, rho: float | Schedule, dual_step: str, burn_in: float, dual_init: float) -> CASAL:
        return cls(
            rho,
            dual_step=dual_step,
            z_step="damped",
            coupling="explicit",
            step_size="paper",
            hold="mu",
            burn_in=burn_in,
            couple="state",
            dual_init=dual_init,
        )

    @classmethod
    def released(cls, rho: float | Schedule, eta: float, *, burn_in: float = 0, dual_init: float = 0.0) -> CASAL:
        """The iteration of the authors' code: full z, explicit coupling, mu' = mu + eta (x' - z')."""
        return cls(
            rho,
            dual_step=eta,
            coupling="explicit",
            step_size="paper",
            hold="mu",
            burn_in=burn_in,
            couple="state",
            dual_init=dual_init,
        )

    def __post_init__(self) -> None:
        for name, allowed in (
            ("z_step", ("full", "damped")),
            ("coupling", ("implicit", "explicit")),
            ("dual", ("chain", "mean")),
            ("step_size", ("gain", "paper")),
            ("hold", ("lambda", "mu")),
            ("couple", ("auto", "state", "denoised")),
        ):
            one_of(getattr(self, name), name, allowed)
        if isinstance(self.dual_step, str) and self.dual_step not in ("auto", "admm", "tau", "tau/rho"):
            raise SettingError(
                f"dual_step must be 'auto', 'admm', 'tau', 'tau/rho' or a number, got {self.dual_step!r}"
            )
        if not isinstance(self.dual_step, str) and not number_of(self.dual_step, "dual_step") >= 0:
            raise SettingError(f"dual_step must be >= 0, got {self.dual_step}")
        if isinstance(self.rho, str) or self.rho is None:
            raise SettingError(
                f"rho must be a number or a schedule, got {self.rho!r}; casal.WeightedCASAL() finds one, and so does "
                "method='auto'"
            )
        if not callable(self.rho) and not number_of(self.rho, "rho") > 0:
            raise SettingError(f"rho must be > 0, got {self.rho}; for steps without coupling use burn_in")

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        rows = casal_rows(problem, self)
        step = self._estimate_step if couples_estimate(self, problem) else self.step
        if self.dual == "chain":
            return [Each(rows, step)]
        refuse_own_sets(problem, "dual='mean'")
        pairs = ((Each([row], step), Together(partial(self.ascend, row))) for row in rows)
        return [stage for pair in pairs for stage in pair][:-1]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> CASALState:
        z = problem.project(problem.decode(x))
        mu = torch.zeros_like(z)
        if self.dual_init:
            mu = self.dual_init * torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
        scale = float(couplings(self, problem.table)[0]) if self.hold == "lambda" else 1.0
        past = nothing_past(problem, x)
        if past is None:
            return CASALState(x, z, scale * mu)
        return cast(CASALState, CASALWithPast(x, z, scale * mu, past))

    def step(self, problem: Problem, state: CASALState, row: CASALRow, noise: Tensor) -> CASALState:
        """One step that couples the constraint to the state."""
        x, z, lam = state.x, state.z, state.lam
        pull = problem.decoder.vjp(x)
        state = advance(problem, state, problem.score(x, row.t), row, noise)
        free = state.x
        if self.coupling == "implicit" and self.z_step == "full" and problem.isotropic:
            return self._straight_step(problem, free, state, row)
        mu = lam * row.inverse_scale
        if self.coupling == "implicit":
            if self.z_step == "full":
                z = problem.project(problem.decode(free) + mu, warm=z)
            x = problem.gram.solve(free.addcmul_(problem.precondition(pull(z - mu)), row.kappa), row.kappa)
        else:
            x = free - row.kappa * problem.precondition(pull(problem.decode(x) - z + mu))
        decoded = problem.decode(x)
        target = decoded + mu if self.z_step == "full" else z - row.damping * (z - decoded - mu)
        z = problem.project(target, warm=z)
        return state._replace(x=x, z=z, lam=self._dual(lam, decoded - z, row))

    def _straight_step(self, problem: Problem, free: Tensor, state: CASALState, row: CASALRow) -> CASALState:
        """Where A and D are multiples of the identity x goes straight to z, its nearest point before and after.

        With y = free + mu that is x' = y + (kappa D / (1 + kappa D)) (z' - y) - mu.
        """
        lam = state.lam
        y = free.addcmul_(lam, row.inverse_scale)
        z = problem.project(y, warm=state.z)
        x = _towards(y, z, row.share_to_z).addcmul_(lam, row.inverse_scale, value=-1)
        return state._replace(x=x, z=z, lam=self._dual(lam, x - z, row))

    def _dual(self, lam: Tensor, gap: Tensor, row: CASALRow) -> Tensor:
        """One multiplier for all chains is moved by ``ascend``."""
        return torch.addcmul(lam, gap, row.dual_gain) if self.dual == "chain" else lam

    def _estimate_step(self, problem: Problem, state: CASALState, row: CASALRow, noise: Tensor) -> CASALState:
        """The same three updates on the denoised estimate, then the row with the score of the moved estimate."""
        x, z, lam = state.x, state.z, state.lam
        mu = lam * row.inverse_scale
        clean = estimate(x, problem.score(x, row.t), row.alpha, row.sigma)
        z = problem.project(problem.decode(clean) + mu, warm=z)
        if self.coupling == "implicit":
            clean = pull_estimate(problem, clean, z - mu, row.kappa)
        else:
            back = problem.decoder.vjp(clean)(problem.decode(clean) - z + mu)
            clean = clean - row.kappa / (1.0 + row.kappa * problem.decoder.norm() ** 2) * back
        decoded = problem.decode(clean)
        if self.coupling == "explicit" or not problem.isotropic:
            z = problem.project(decoded + mu, warm=z)
        lam = self._dual(lam, decoded - z, row)
        return advance(problem, state, score_of(x, clean, row.alpha, row.sigma), row, noise)._replace(z=z, lam=lam)

    def ascend(
        self, row: CASALRow, problem: Problem, state: CASALState, control: Any, generator: torch.Generator
    ) -> tuple[CASALState, Any, Mapping[str, float]]:
        """Move the one multiplier of all chains after a row (``dual="mean"``)."""
        gap = (problem.decode(state.x) - state.z).mean(0, keepdim=True)
        return state._replace(lam=state.lam + row.scale * row.eta * gap), control, {}

    def advice(self, state: CASALState, row: CASALRow) -> str:
        implicit = "" if self.coupling == "implicit" else ", or, behind a linear decoder, coupling='implicit'"
        numbers = f"(tau = {float(row.b):.3g}, rho = {float(row.rho):.3g}, tau rho = {float(row.kappa):.3g})"
        return f"{numbers}; use a smaller step_size, a preconditioner{implicit}"

    def decoded_parts(self) -> tuple[str, ...] | None:
        return None if self.dual_init else ("z", "lam")  # a random mu has a part outside the range of A

    def samples(self, problem: Problem, state: CASALState) -> Tensor:
        return problem.strict(state.z, warm=state.z)

    def monitor(self, problem: Problem, state: CASALState) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z, state.lam)


def _towards(y: Tensor, z: Tensor, share: Tensor) -> Tensor:
    """y + share (z - y): eagerly in one pass; compiled, lerp would work out both of its branches."""
    return y + share * (z - y) if torch.compiler.is_dynamo_compiling() else torch.lerp(y, z, share.to(y.dtype))


def couplings(method: CASAL, table: Table) -> Tensor:
    """rho at every row (T,). A schedule finds the step size that multiplies rho as ``b`` of the table it gets."""
    return evaluate(method.rho, replace(table, b=table.tau) if method.step_size == "paper" else table, "rho")


def casal_rows(problem: Problem, method: CASAL) -> list[CASALRow]:
    """One row per step; refuses settings that cannot work."""
    table = problem.table
    rho = couplings(method, table)
    first = burn_in_steps(method.burn_in, len(table))
    tau = table.b if method.step_size == "gain" else table.tau
    if not bool(tau.any()):
        raise SettingError(
            "the paper's step size s^2 / 2 is zero for a sampler without noise, so x would not be coupled to the set; "
            "use CASAL(rho), which couples to the denoised estimate"
        )
    alpha = sigma = torch.ones_like(rho)
    if couples_estimate(method, problem):
        if method.z_step == "damped":
            raise SettingError("z_step='damped' couples to the state; on the denoised estimate take z_step='full'")
        alpha, sigma = noise_levels(table)
        tau = (sigma / alpha).square()
    kappa = zero_before(tau * rho, first)
    if method.coupling == "implicit":
        _ = problem.gram
    elif not couples_estimate(method, problem):
        _refuse_unstable(problem, kappa)
    eta = _dual_steps(method.dual_step, tau, rho, table.static)
    if method.hold == "lambda" or method.z_step == "damped":
        eta = zero_before(eta, first)
    scale = rho if method.hold == "lambda" else torch.ones_like(rho)
    stiffness = 1.0
    if problem.isotropic and problem.diagonal is not None and not couples_estimate(method, problem):
        stiffness = float(problem.diagonal)
    return table_rows(
        problem,
        CASALRow,
        rho=rho,
        kappa=kappa,
        damping=torch.ones_like(kappa) if method.z_step == "full" else kappa.clamp_max(1.0),
        eta=eta,
        scale=scale,
        alpha=alpha,
        sigma=sigma,
        inverse_scale=1.0 / scale,
        dual_gain=scale * eta,
        share_to_z=stiffness * kappa / (1.0 + stiffness * kappa),
    )


def score_of(x: Tensor, clean: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The score whose denoised estimate is ``clean``."""
    return (alpha * clean - x) / sigma**2


def pull_estimate(problem: Problem, clean: Tensor, goal: Tensor, strength: Tensor) -> Tensor:
    """(I + strength A^T A)^-1 (D + strength A^T goal): the estimate moved so that its image nears ``goal``."""
    back = problem.decoder.vjp(clean)(goal)
    return problem.gram.solve(clean + strength * problem.precondition(back), strength)


def couples_estimate(method: CASAL, problem: Problem) -> bool:
    """Whether the constraint couples to the denoised estimate: asked for, no noise in the sampler, or a memory."""
    by_itself = problem.noiseless or problem.table.memory is not None
    return method.couple == "denoised" or (method.couple == "auto" and by_itself)


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
        other = "use coupling='implicit'"
        if not problem.decoder.linear:  # which has no implicit step
            other = "state the set in the latent (constraint.through(decoder), without decoder=)"
        raise SettingError(
            f"explicit coupling is unstable: tau rho |A|^2 = {number:.3g} > 1 at step {worst} "
            f"(tau rho = {float(kappa[worst]):.3g}, |A|^2 = {stiffness:.3g}); "
            f"{other} or divide rho by {number:.3g}"
        )
