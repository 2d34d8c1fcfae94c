"""Baselines: seven methods that need no more than the rows of the table, and the projection or the residual of the set.

They are what the other methods are measured against: sampling without a constraint, one projection at the end, a
projection after every step, and penalties of the residual, of the distance, by multipliers, of a split copy, and of the
denoised estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from casal.checks import number_of, one_of, positive, whole_number
from casal.constraints import Constraint, Through, geometry
from casal.devices import solve
from casal.errors import CasalError, SettingError
from casal.linalg import jacobian
from casal.methods.base import (
    Each,
    Method,
    Recall,
    Step,
    TableRow,
    Together,
    advance,
    burn_in_steps,
    free_step,
    nothing_past,
    refuse_own_sets,
    split_records,
    step_advice,
    table_rows,
    zero_before,
)
from casal.methods.problem import Problem, move
from casal.schedules import Schedule, evaluate
from casal.targets import Table


def noise_levels(table: Table) -> tuple[Tensor, Tensor]:
    """alpha and sigma of every row, x = alpha x0 + sigma noise; refused where there is no noise to remove."""
    if table.alpha is None or table.sigma is None:
        raise SettingError("a fixed density has no denoised estimate; use couple='state'")
    return table.alpha, table.sigma


def estimate(x: Tensor, score: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """D(x) = (x + sigma^2 score(x)) / alpha: the mean of the clean sample (Tweedie)."""
    return (x + sigma**2 * score) / alpha


class PointState(NamedTuple):
    """Only the point itself."""

    x: Tensor


class PointWithPast(NamedTuple):
    """The point, and the estimates (n, p, *latent) of the rows before, where rows look back."""

    x: Tensor
    past: Tensor


def points(problem: Problem, x: Tensor) -> PointState:
    """The state of chains that start at x: a point, with a past if rows of the table look back."""
    past = nothing_past(problem, x)
    return PointState(x) if past is None else cast(PointState, PointWithPast(x, past))


class _Points(Method[PointState]):
    """What methods share whose chains are points in the latent, and whose samples are A x."""

    strict: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        return points(problem, x)

    def samples(self, problem: Problem, state: PointState) -> Tensor:
        return problem.decode(state.x)

    def advice(self, state: PointState, row: Any) -> str:
        return step_advice(row)


# ----------------------------------------------------------------------------------------------- one projection or none


@dataclass(frozen=True)
class Unconstrained(_Points):
    """Samples as if there were no constraint (paper, eq. langevin_gradient-step):

        x' = a x + b score(x) + s w

    The samples are A x, feasible only by luck.
    """

    name: ClassVar[str] = "unconstrained"

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        return [Each(table_rows(problem), free_step)]


@dataclass(frozen=True)
class FinalProjection(Method[Any]):
    """Projects the samples of another method once, at the end: z = P(A x_T).

    Feasible; in general not distributed as p restricted to C.

    Args:
        inner: The method to run before the projection; unconstrained sampling if left out, a penalty for
            "guidance and one projection".
    """

    inner: Method[Any] = field(default_factory=Unconstrained)

    name: ClassVar[str] = "final projection"

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether the inner method does."""
        return self.inner.remembers

    def control(self, problem: Problem, n: int) -> Any:
        return self.inner.control(problem, n)

    def next(self, problem: Problem, control: Any, stage: int) -> Each | Together | None:
        return self.inner.next(problem, control, stage)

    def steps(self, problem: Problem, control: Any) -> int:
        return self.inner.steps(problem, control)

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> Any:
        return self.inner.start(problem, x, generator)

    def samples(self, problem: Problem, state: Any) -> Tensor:
        return problem.strict(self.inner.samples(problem, state))

    def monitor(self, problem: Problem, state: Any) -> Mapping[str, Tensor]:
        return self.inner.monitor(problem, state)

    def decoded_parts(self) -> tuple[str, ...] | None:
        return self.inner.decoded_parts()

    def advice(self, state: Any, row: Any) -> str:
        return self.inner.advice(state, row)


# ---------------------------------------------------------------------------------------- a projection after every step

LATENT = ("pinv", "exact")
REACHED = 1e-10
"""Violation up to which a latent projection counts as well posed."""
FAR = 1e8
"""Size of an image, in units of the point and its nearest point of C, beyond which it is rounding blown up."""
WAY_OUT = "use latent='pinv'"


@dataclass(frozen=True)
class Projected(_Points):
    """Projects after every step (paper, example projected). Feasible; stays where it starts.

        x' = A^+ P(A (a x + b score(x) + s w))

    Where A does not reach every z, A A^+ P(z) may leave C again: the chain is then only near it, and the samples are
    made strict at the end. "exact" takes the nearest latent whose image is in C instead,

        x' = P_L(a x + b score(x) + s w),   L = {x : A x in C},

    in closed form if A A^T = c I or C is affine, else by the solvers of ``constraint.through(A)``. Between the two,
    ``repeats`` applies x <- A^+ P(A x) several times after every step: alternating projections between C and the range
    of A, as in latent projected diffusion (Zampini et al. 2025).

    Args:
        burn_in: First steps without a projection: a number of steps, or a fraction of the run below one.
        latent: "pinv" or "exact", for linear decoders. The same for the identity.
        repeats: Projections after a step, with latent="pinv".
    """

    burn_in: float = 0
    latent: str = "pinv"
    repeats: int = 1

    name: ClassVar[str] = "projected"
    strict: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of(self.latent, "latent", LATENT)
        whole_number(self.repeats, "repeats", 1)
        if self.repeats > 1 and self.latent == "exact":
            raise SettingError(f"repeats = {self.repeats} is for latent='pinv'; one exact projection is enough")

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        first, rows = burn_in_steps(self.burn_in, len(problem.table)), table_rows(problem)
        exact = self.latent == "exact" and not problem.identity
        step: Step = partial(self.latent_step, _latents(problem)) if exact else self.step
        burn_in = [Each(rows[:first], free_step)] if first else []
        return [*burn_in, Each(rows[first:], step)]

    def step(self, problem: Problem, state: PointState, row: TableRow, noise: Tensor) -> PointState:
        """x' = A^+ P(A y), y the free step, ``repeats`` times."""
        state = free_step(problem, state, row, noise)
        x = state.x
        for _ in range(1 if problem.identity else self.repeats):
            x = problem.decoder.pinv(problem.project(problem.decode(x)), problem.latent)
        return state._replace(x=x)

    def latent_step(
        self, latents: Constraint, problem: Problem, state: PointState, row: TableRow, noise: Tensor
    ) -> PointState:
        """x' = P_L(y)."""
        warm, state = state.x, free_step(problem, state, row, noise)
        problem.usage.add_projections(len(warm))
        own = latents.take(slice(problem.first, problem.first + len(warm)))
        return state._replace(x=own.project(state.x, budget=problem.budget, warm=warm))

    def decoded_parts(self) -> tuple[str, ...] | None:
        return ()

    def samples(self, problem: Problem, state: PointState) -> Tensor:
        return problem.strict(problem.decode(state.x))


def _latents(problem: Problem) -> Constraint:
    """{x : A x in C}, tried on two points: a set that A cannot reach is refused before the first step."""
    decoder, constraint = problem.decoder, problem.constraint
    if not decoder.linear:
        raise SettingError(
            f"latent='exact' needs a linear decoder, got {type(decoder).__name__}; behind others state the set in the "
            "latent: constraint.through(decoder), without decoder="
        )
    A = decoder.matrix(problem.latent, problem.like)
    count = min(2, constraint.chains or 2)
    points = 1.0 + torch.eye(count, A.shape[1], dtype=torch.float64, device=A.device)
    event = decoder.event(points.to(problem.like).reshape(count, *problem.latent))
    try:
        latents = Through(constraint, A, shape=event)
        few = latents.take(slice(0, count))
        found = few.project(points)
        worst = float(few.violation(found).max())
    except CasalError as error:
        raise SettingError(f"{constraint!r} has no projection behind the decoder ({error}); {WAY_OUT}") from error
    size, near = (float((z @ A.T).abs().max()) for z in (found, points))
    nearest = constraint.take(slice(0, count)).project((points @ A.T).reshape(count, *event))
    size /= near + float(nearest.abs().max())
    if not worst <= REACHED or not size <= FAR:
        raise SettingError(
            f"the decoder does not reach the set: the projection in the latent ({latents.explain()}) leaves a "
            f"violation of {worst:.3g} (limit {REACHED:g}) and is {size:.3g} times as large as necessary "
            f"(limit {FAR:g}); {WAY_OUT}"
        )
    return latents


# ------------------------------------------------------------------------------------------------------------ penalties


class PenaltyRow(NamedTuple):
    """A plain row and the weight of the penalty."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    weight: Tensor
    recall: Recall | None = None


@dataclass(frozen=True)
class Penalty(_Points):
    """Adds a soft penalty c to the score (paper, eq. penalty), known as guidance:

        x' = a x + b (score(x) - weight grad c(x)) + s w
        c(x) = |h(A x)|^2  ("residual"),   dist(A x, C)^2 = |A x - P(A x)|^2  ("distance")

    h is the smooth residual of the set; the distance needs only a projection. For every finite weight P(x in C) < 1
    (paper, corollary penalty): the certificate flags what is not feasible. ``FinalProjection(Penalty(...))`` makes it
    strict.

    Args:
        weight: The paper's lambda >= 0: a number, or a schedule.
        burn_in: First steps without the penalty: a number of steps, or a fraction below one.
        of: What is squared: the "residual" or the "distance".
        repeats: Gradient steps of the penalty in a row of the table. More than one follow the free step y, each with
            its share of the weight: y <- y - (b weight / repeats) grad c(y).

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=200, step_size=0.05, init=torch.ones(100, 2))
    >>> result = casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), casal.Penalty(weight=5.0), n=100)
    >>> int(result.certificate.feasible.sum())
    0
    >>> strict = casal.FinalProjection(casal.Penalty(weight=5.0))
    >>> bool(casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), strict, n=100).certificate.feasible.all())
    True
    """

    weight: float | Schedule
    burn_in: float = 0
    of: str = "residual"
    repeats: int = 1

    name: ClassVar[str] = "penalty"

    def __post_init__(self) -> None:
        one_of(self.of, "of", ("residual", "distance"))
        whole_number(self.repeats, "repeats", 1)

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        weight = evaluate(self.weight, problem.table, "weight", positive=False)
        first = burn_in_steps(self.burn_in, len(problem.table))
        return [Each(table_rows(problem, PenaltyRow, weight=zero_before(weight, first)), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        if self.of == "residual":
            problem.check_smooth(x)
        return points(problem, x)

    def step(self, problem: Problem, state: PointState, row: PenaltyRow, noise: Tensor) -> PointState:
        gradient = problem.penalty_gradient if self.of == "residual" else problem.distance_gradient
        score = problem.score(state.x, row.t)
        if self.repeats == 1:
            return advance(problem, state, score - (2 * row.weight) * gradient(state.x), row, noise)
        state = advance(problem, state, score, row, noise)
        x = state.x
        for _ in range(self.repeats):
            x = x - problem.precondition((2 * row.b * row.weight / self.repeats).to(x.dtype) * gradient(x))
        return state._replace(x=x)

    def advice(self, state: PointState, row: PenaltyRow) -> str:
        numbers = f"(tau = {float(row.b):.3g}, weight = {float(row.weight):.3g})"
        return f"{numbers}; use a smaller weight, a smaller step_size or a preconditioner"


class PrimalDualState(NamedTuple):
    """The point and the multipliers (n, m) of the residuals."""

    x: Tensor
    lam: Tensor


@dataclass(frozen=True)
class PrimalDual(Method[PrimalDualState]):
    """Enforces the constraint on average, by a multiplier (Chamon et al. 2024):

        x' = a x + b (score(x) - J^T lam) + s w,      lam' = lam + dual_step E[h(x')]

    h is the smooth residual of the set and J its derivative. The expectation is over all chains
    (``average="chains"``, one multiplier for all) or over time along each chain (``average="time"``). Enforces
    E h = 0 only: single samples violate the constraint, and the certificate says so. For an inequality the
    multiplier is kept >= 0.

    Args:
        dual_step: Size of the dual ascent step, > 0.
        average: What stands for the expectation.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=500, step_size=0.05, init=torch.ones(400, 2))
    >>> result = casal.sample(target, casal.Affine([[1.0, 1.0]], [2.0]), casal.PrimalDual(dual_step=0.1), n=400)
    >>> abs(float(result.samples.sum(1).mean()) - 2.0) < 0.3     # on average, not for each sample
    True
    """

    dual_step: float
    average: str = "chains"

    name: ClassVar[str] = "primal-dual"
    strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self.dual_step, "dual_step")
        one_of(self.average, "average", ("chains", "time"))

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        rows = table_rows(problem)
        if self.average == "time":
            return [Each(rows, self.step)]
        refuse_own_sets(problem, "average='chains'")
        pairs = ((Each([row], self.step), Together(self.ascend)) for row in rows)
        return [stage for pair in pairs for stage in pair][:-1]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PrimalDualState:
        return PrimalDualState(x, torch.zeros_like(geometry.residual(problem.constraint, problem.decode(x))))

    def step(self, problem: Problem, state: PrimalDualState, row: TableRow, noise: Tensor) -> PrimalDualState:
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            h = geometry.residual(problem.constraint, problem.decode(leaf))
            (pull,) = torch.autograd.grad(h, leaf, grad_outputs=state.lam)
        x = move(problem, state.x, problem.score(state.x, row.t) - pull, row, noise)
        if self.average == "chains":
            return PrimalDualState(x, state.lam)
        return PrimalDualState(
            x, self._ascend(problem, state.lam, geometry.residual(problem.constraint, problem.decode(x)))
        )

    def ascend(
        self, problem: Problem, state: PrimalDualState, control: Any, generator: torch.Generator
    ) -> tuple[PrimalDualState, Any, Mapping[str, float]]:
        """Move the one multiplier of all chains by the mean of their residuals."""
        mean = geometry.residual(problem.constraint, problem.decode(state.x)).mean(0, keepdim=True)
        return PrimalDualState(state.x, self._ascend(problem, state.lam, mean)), control, {}

    def samples(self, problem: Problem, state: PrimalDualState) -> Tensor:
        return problem.decode(state.x)

    def monitor(self, problem: Problem, state: PrimalDualState) -> Mapping[str, Tensor]:
        return {
            "violation": problem.constraint.violation(problem.decode(state.x)),
            "dual_norm": torch.linalg.vector_norm(state.lam, dim=1),
        }

    def advice(self, state: PrimalDualState, row: TableRow) -> str:
        return step_advice(row)

    def _ascend(self, problem: Problem, lam: Tensor, h: Tensor) -> Tensor:
        return geometry.positive_part(problem.constraint, lam + self.dual_step * h)


class DecoupledState(NamedTuple):
    """The point x, its penalised copy z, the multiplier lam of x = z, the penalty weight (n, 1)."""

    x: Tensor
    z: Tensor
    lam: Tensor
    weight: Tensor


class DecoupledRow(NamedTuple):
    """A plain row, the coupling, and its product with the step."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    rho: Tensor
    kappa: Tensor


@dataclass(frozen=True)
class Decoupled(Method[DecoupledState]):
    """The split soft penalty whose weight is a dual variable (the penalty baseline of the paper's field problem).

        x' = (I + b rho A^T A)^-1 (a x + b score(x) + s w + b rho A^T (z - lam/rho))
        z' = argmin_z  weight |h(z)|^2 + rho/2 |z - (A x' + lam/rho)|^2     (one Gauss-Newton step)
        lam' = lam + rho dual_step (A x' - z'),      weight' = weight + weight_step |h(z')|^2

    z satisfies the constraint only approximately, however large the weight grows; the certificate flags such samples.

    Args:
        rho: Coupling of x and z: a number, or a schedule.
        dual_step: Step of the multiplier of A x = z, in units of rho.
        weight: Initial weight of the penalty.
        weight_step: Step of the weight.

    >>> import casal
    >>> import torch
    >>> target = casal.langevin(lambda x: x, steps=200, step_size=0.05, init=torch.ones(100, 2))
    >>> result = casal.sample(target, casal.Sphere(1.0), casal.Decoupled(rho=10.0), n=100)
    >>> int(result.certificate.feasible.sum())
    0
    """

    rho: float | Schedule
    dual_step: float = 0.01
    weight: float = 1.0
    weight_step: float = 0.01

    name: ClassVar[str] = "decoupled"
    strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sizes = [number_of(getattr(self, name), name) for name in ("weight", "weight_step", "dual_step")]
        if not sizes[0] > 0 or min(sizes[1:]) < 0:
            raise SettingError("Decoupled needs weight > 0, weight_step >= 0 and dual_step >= 0")

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        rho = evaluate(self.rho, problem.table, "rho")
        return [Each(table_rows(problem, DecoupledRow, rho=rho, kappa=rho * problem.table.b), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> DecoupledState:
        problem.check_smooth(x)
        z = problem.decode(x)
        return DecoupledState(x, z, torch.zeros_like(z), torch.full_like(z.reshape(len(z), -1)[:, :1], self.weight))

    def step(self, problem: Problem, state: DecoupledState, row: DecoupledRow, noise: Tensor) -> DecoupledState:
        x, z, lam, weight = state
        pull = problem.decoder.vjp(x)
        free = move(problem, x, problem.score(x, row.t), row, noise)
        x = problem.gram.solve(free + row.kappa * problem.precondition(pull(z - lam / row.rho)), row.kappa)
        decoded = problem.decode(x)
        z, h = _penalised(problem, z, decoded + lam / row.rho, row.rho / (2 * weight))
        lam = lam + row.rho * self.dual_step * (decoded - z)
        return DecoupledState(x, z, lam, weight + self.weight_step * h.square().sum(1, keepdim=True))

    def samples(self, problem: Problem, state: DecoupledState) -> Tensor:
        return state.z

    def advice(self, state: DecoupledState, row: DecoupledRow) -> str:
        return step_advice(row)

    def monitor(self, problem: Problem, state: DecoupledState) -> Mapping[str, Tensor]:
        return split_records(problem, state.x, state.z, state.lam)


def _penalised(problem: Problem, z: Tensor, centre: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """One Gauss-Newton step for min |h(z)|^2 + ridge |z - centre|^2 from z, and the residual where it lands."""
    J, h = jacobian(problem.residual, z)
    offset = (centre - z).reshape(len(z), -1, 1)
    system = J @ J.mT + ridge[:, :, None] * torch.eye(h.shape[1], dtype=z.dtype, device=z.device)
    multiplier = solve(system, h[:, :, None] + J @ offset)
    landed = centre - (J.mT @ multiplier).reshape(z.shape)
    return landed, problem.residual(landed)


class DPSRow(NamedTuple):
    """A plain row, the scale and noise of x, and the weight."""

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    alpha: Tensor
    sigma: Tensor
    weight: Tensor
    recall: Recall | None = None


@dataclass(frozen=True)
class DPS(_Points):
    """Guides the denoised estimate D(x) = (x + sigma^2 score(x)) / alpha towards the set (Chung et al. 2023):

        x' = a x + b (score(x) - weight grad_x |h(A D(x))|^2) + s w

    The gradient goes through the network. The samples are close to the set, not on it:
    ``FinalProjection(DPS(weight))`` makes them strict. The best weight is narrow; tune it.

    Args:
        weight: Strength >= 0: a number, or a schedule.

    >>> import casal
    >>> target = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(20), shape=(2,))
    >>> result = casal.sample(target, casal.Sphere(2.0), casal.FinalProjection(casal.DPS(weight=0.5)), n=50)
    >>> bool(result.certificate.feasible.all())
    True
    """

    weight: float | Schedule

    name: ClassVar[str] = "DPS"

    def stages(self, problem: Problem, n: int) -> Sequence[Each | Together]:
        alpha, sigma = noise_levels(problem.table)
        weight = evaluate(self.weight, problem.table, "weight", positive=False)
        return [Each(table_rows(problem, DPSRow, alpha=alpha, sigma=sigma, weight=weight), self.step)]

    def start(self, problem: Problem, x: Tensor, generator: torch.Generator) -> PointState:
        problem.check_smooth(x)
        return points(problem, x)

    def step(self, problem: Problem, state: PointState, row: DPSRow, noise: Tensor) -> PointState:
        with torch.enable_grad():
            leaf = state.x.detach().requires_grad_()
            score = problem.score(leaf, row.t)
            if not score.requires_grad:
                raise SettingError(
                    f"DPS differentiates the network of {problem.target.name}, which returned a tensor without a "
                    "gradient: take torch.no_grad, torch.inference_mode and detach out of it, or take a method that "
                    "needs no derivative, such as casal.CASAL or casal.SplitGibbs"
                )
            cost = problem.residual(problem.decode(estimate(leaf, score, row.alpha, row.sigma))).square().sum()
            (gradient,) = torch.autograd.grad(cost, leaf)
        return advance(problem, state, score.detach() - row.weight * gradient, row, noise)

    def advice(self, state: PointState, row: DPSRow) -> str:
        return f"(weight = {float(row.weight):.3g}); use a smaller weight"
