"""A generative model is a score and a table.

One row of the table is one step of the sampler,

    x' = a_t x + b_t D score(x, t) + s_t D^(1/2) w,      w ~ N(0, I),

so Langevin dynamics, annealed Langevin, ancestral diffusion and probability-flow samplers differ only in the
numbers a, b, s (and the optional diagonal preconditioner D). A constraint couples to x as one more term of the
log-density: it rides on the score, and every row carries it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.errors import SettingError, ShapeError
from casal.typing import Init, ScoreFunction


@dataclass(frozen=True)
class Table:
    """The numbers of every step, each (T,) float64.

    Attributes:
        a: Factor of x.
        b: Gain of the score; the step size tau of a Langevin row.
        s: Size of the noise.
        t: What the score is told: a time, an index or a noise level.
        preconditioner: Diagonal D > 0, broadcastable to an event; None for the identity.
        static: The same density at every row (Langevin on a fixed potential).
        alpha: Scale of the clean sample in x before each row, where there is one: x = alpha x0 + sigma noise.
        sigma: Size of the noise in x before each row, likewise.
    """

    a: Tensor
    b: Tensor
    s: Tensor
    t: Tensor
    preconditioner: Tensor | None = None
    static: bool = False
    alpha: Tensor | None = None
    sigma: Tensor | None = None

    def __post_init__(self) -> None:
        shapes = {tuple(v.shape) for v in (self.a, self.b, self.s, self.t)}
        if len(shapes) != 1 or len(shapes.copy().pop()) != 1 or not len(self.a):
            raise ShapeError(f"a, b, s and t of a table must be (T,) with T >= 1, got {sorted(shapes)}")

    def __len__(self) -> int:
        return len(self.a)

    @property
    def tau(self) -> Tensor:
        """The paper's step size s^2 / 2, which is b for Langevin rows and less for diffusion rows."""
        return self.s.square() / 2


@dataclass(frozen=True)
class Target:
    """What to sample: a score, the table that drives it, and where to start.

    Attributes:
        score: ``score(x, t)``, the gradient of log p.
        table: The steps.
        init: Starting points (n, *event), or a callable (n, generator) -> points.
        potential: f = -log p + constant, (n, *event) -> (n,), where it is known.
        denoise: ``denoise(y, sigma)`` = E[x0 | x0 + sigma noise = y], for models trained on noise.
        name: For messages and provenance.
        init_evaluations: Evaluations of the network that ``init`` spends on a chain; part of the cost of a run.
    """

    score: ScoreFunction
    table: Table
    init: Init
    potential: Callable[[Tensor], Tensor] | None = None
    denoise: Callable[[Tensor, Tensor], Tensor] | None = None
    name: str = "target"
    init_evaluations: int = 0


def step_sizes(steps: int, step_size: float | Tensor) -> Tensor:
    """The step sizes (steps,) of a Langevin run, checked."""
    steps = whole_number(steps, "steps", 1)
    tau = torch.as_tensor(step_size, dtype=torch.float64)
    if tau.ndim == 0:
        tau = tau.expand(steps)
    if tuple(tau.shape) != (steps,):
        raise ShapeError(f"step_size has shape {tuple(tau.shape)}; give a number or one value per step ({steps},)")
    if not bool((torch.isfinite(tau) & (tau > 0)).all()):
        raise SettingError(f"step_size must be finite and > 0; its smallest value is {float(tau.min()):g}")
    return tau


def langevin_table(steps: int, step_size: float | Tensor, preconditioner: Tensor | float | None) -> Table:
    """Rows (1, tau, sqrt(2 tau)) with an optional diagonal preconditioner."""
    tau = step_sizes(steps, step_size)
    diagonal = None
    if preconditioner is not None:
        diagonal = torch.as_tensor(preconditioner, dtype=torch.float64)
        if not bool((torch.isfinite(diagonal) & (diagonal > 0)).all()):
            raise SettingError(
                f"the preconditioner is a diagonal of finite numbers > 0; its smallest is {float(diagonal.min()):g}"
            )
    time = torch.arange(len(tau), dtype=torch.float64)
    return Table(torch.ones_like(tau), tau, (2 * tau).sqrt(), time, preconditioner=diagonal, static=True)
