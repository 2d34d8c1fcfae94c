"""A problem of the benchmark: a model, a set, and the exact distribution on it.

A sampler sees the model through functions that are counted, and the set through its projection, violation and
equations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal_lab.benchmark.answer import F64, Answer, Map

Kind = Literal["density", "diffusion", "trained"]
Shape = Literal["thin", "solid", "mixed"]


class Count:
    """How many points a sampler has asked the model about, and what it says of its own samples."""

    def __init__(self) -> None:
        self.points = 0
        self.verdict = self.reason = ""

    def __call__(self, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """The value of a function at points (n, d); n more are counted, and n again for each pass back through it."""
        rows = len(inputs[0])
        self.points += rows
        found = function(*inputs)
        if found.requires_grad:
            found.register_hook(lambda _: self._back(rows))
        return found

    def _back(self, rows: int) -> None:
        self.points += rows


@dataclass(frozen=True, eq=False)
class Problem:
    """A distribution on a set, exactly known.

    A sampler may use ``score``, ``potential``, ``start`` (of a density), ``denoise``, ``levels`` (of a diffusion
    model), ``project``, ``violation``, ``equations``, ``jacobian`` and ``inequalities``, or the same things as a
    ``casal`` target, ``target(steps)``, and set, ``constraint``. Points are float64 tensors (n, d).

    Attributes:
        name: In tables.
        about: What it is, in a sentence.
        kind: "density": score and potential are given. "diffusion": an exact denoiser. "trained": a trained network.
        shape: "thin": the set has no volume. "solid": it has. "mixed": equations and inequalities.
        dimension: Of a point.
        constraint: The set.
        answer: The exact distribution, and distances to it.
        nonconvex: Whether the set is more than the surface of a convex one and not convex: pieces, holes, cusps.
        log_density: log p up to a constant, (n, d) -> (n,), of a density.
        gradient: Of log p, if it has a faster form than automatic differentiation.
        init: Starting points of a density, ``init(n, generator)``: draws without the constraint where there are any.
        unit: Scale of a Langevin step, a variance or one for each coordinate; None to find it on a pilot run.
        denoiser: E[x0 | x0 + sigma noise = x] as ``denoiser(x, sigma)``.
        levels: Largest and smallest noise of the model.
        make_target: Makes the casal target of a given number of rows, if the family has its own.
        steps: Rows of a target that are enough; fewer where a projection takes long.
        seed: Of this run.
        count: Counts the evaluations of this run.
    """

    name: str
    about: str
    kind: Kind
    shape: Shape
    dimension: int
    constraint: casal.Constraint
    answer: Answer
    nonconvex: bool = False
    log_density: Map | None = None
    gradient: Map | None = None
    init: Callable[[int, torch.Generator], Tensor] | None = None
    unit: float | Tensor | None = None
    denoiser: Callable[[Tensor, Tensor], Tensor] | None = None
    levels: tuple[float, float] | None = None
    make_target: Callable[[Problem, int], casal.Target] | None = None
    steps: int = 500
    seed: int = 0
    count: Count = field(default_factory=Count, repr=False)

    def fresh(self, seed: int) -> Problem:
        """The same problem for another run: its own seed, nothing counted yet."""
        return replace(self, seed=seed, count=Count())

    @property
    def evaluations(self) -> int:
        """Points at which the model was asked so far; a pass back through its functions counts again."""
        return self.count.points

    def claim(self, verdict: str, reason: str = "") -> None:
        """Say what the sampler thinks of its own samples, "trusted" or "suspect", and why; the score ignores it."""
        self.count.verdict, self.count.reason = verdict, reason

    @property
    def generator(self) -> torch.Generator:
        """Random numbers from the seed of the run; the same ones at every call."""
        return torch.Generator().manual_seed(self.seed)

    # ------------------------------------------------------------------ the model

    def score(self, x: Tensor) -> Tensor:
        """Gradient of log p, (n, d); of a density."""
        return self.count(self._score, x)

    def potential(self, x: Tensor) -> Tensor:
        """-log p up to a constant, (n,); of a density."""
        return self.count(lambda x: -self._log_density(x), x)

    def start(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n starting points of a density, (n, d)."""
        if self.init is None:
            raise SettingError(f"{self.name} is a {self.kind} model and starts from noise; see levels and denoise")
        return self.init(n, generator or self.generator)

    def denoise(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x0 | x0 + sigma noise = x], (n, d), for sigma a number or (n,); of a diffusion or trained model."""
        if self.denoiser is None:
            raise SettingError(f"{self.name} is a density and has no denoiser; see score and potential")
        return self.count(self.denoiser, x, torch.as_tensor(sigma, dtype=x.dtype))

    def target(self, steps: int | None = None) -> casal.Target:
        """The model as a casal target of so many rows; its evaluations are counted."""
        steps = self.steps if steps is None else steps
        if self.make_target is not None:
            return self.make_target(self, steps)
        if self.levels is not None:
            levels = casal.karras_sigmas(steps, self.levels[1], self.levels[0])
            return casal.edm(self.denoise, levels, shape=self.dimension, churn=1.0, dtype=F64)
        return casal.langevin(
            lambda x: -self.score(x),
            steps=steps,
            step_size="auto" if self.unit is None else 0.2,
            init=lambda n, generator: self.start(n, generator),
            preconditioner="auto" if self.unit is None else self.unit,
            potential=self.potential,
        )

    def _log_density(self, x: Tensor) -> Tensor:
        if self.log_density is None:
            raise SettingError(f"{self.name} is a {self.kind} model and has no density in closed form; see denoise")
        return self.log_density(x)

    def _score(self, x: Tensor) -> Tensor:
        if self.gradient is not None:
            return self.gradient(x)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(self._log_density(leaf).sum(), leaf)
        return found

    # ------------------------------------------------------------------ the set

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the set, (n, d)."""
        return self.constraint.project(x)

    def violation(self, x: Tensor) -> Tensor:
        """How far points are from obeying the definition of the set, (n,); zero inside."""
        return self.constraint.violation(x)

    def equations(self, x: Tensor) -> Tensor:
        """Smooth functions that vanish on the set, (n, m); m = 0 if there are none."""
        return self.constraint.equations(x)

    def inequalities(self, x: Tensor) -> Tensor:
        """Smooth functions that are <= 0 on the set, (n, m); m = 0 if there are none."""
        return self.constraint.inequalities(x)

    def jacobian(self, x: Tensor) -> Tensor:
        """Derivative of ``equations``, (n, m, d)."""
        return self.linearised(x)[1]

    def linearised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``equations``, (n, m), and their derivative, (n, m, d)."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            values = self.equations(leaf)
            rows = [torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0] for value in values.unbind(1)]
        slope = torch.stack(rows, 1) if rows else x.new_zeros(len(x), 0, x.shape[1])
        return values.detach(), slope
