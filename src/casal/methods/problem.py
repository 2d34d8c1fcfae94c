"""What a step may use: the score, the projection and the decoder of one run, with their use counted."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from casal.constraints import Budget, Constraint
from casal.decoders import Decoder, Gram, Identity
from casal.errors import SettingError
from casal.targets import Table, Target


class Steps(Protocol):
    """The part of a row that every method reads: a, b, s and t of the table."""

    @property
    def a(self) -> Tensor: ...
    @property
    def b(self) -> Tensor: ...
    @property
    def s(self) -> Tensor: ...
    @property
    def t(self) -> Tensor: ...


@dataclass
class Usage:
    """Chain-wise counts: one evaluation of a batch of 100 chains counts 100."""

    scores: int = 0
    projections: int = 0

    def scored(self, chains: int) -> None:
        """One evaluation of the score for each of some chains."""
        self.scores += chains

    def projected(self, chains: int) -> None:
        """One projection for each of some chains."""
        self.projections += chains

    def absorb(self, other: Usage) -> None:
        """Add what another part of the run has used."""
        self.scores += other.scores
        self.projections += other.projections


class Uncounted(Usage):
    """For looking without being counted, and inside compiled steps, which are counted from outside."""

    def scored(self, chains: int) -> None:
        return

    def projected(self, chains: int) -> None:
        return


@dataclass(frozen=True)
class Problem:
    """One target, one set, one decoder, in the dtype and on the device of the run.

    Attributes:
        target: Score, table and start.
        constraint: The set C in decoded space.
        decoder: A.
        like: An empty tensor of the run's dtype and device, shaped (0, *latent).
        budget: How hard projections inside the loop try; None for the best they can.
        row_dtype: Dtype of the numbers of a row. Compiled steps want that of the chains: mixed dtypes keep a kernel
            from being vectorised.
    """

    target: Target
    constraint: Constraint
    decoder: Decoder
    like: Tensor
    usage: Usage = field(default_factory=Usage)
    budget: Budget | None = None
    row_dtype: torch.dtype = torch.float64

    @property
    def table(self) -> Table:
        """The table of the target."""
        return self.target.table

    @property
    def latent(self) -> tuple[int, ...]:
        """Shape of a latent event."""
        return tuple(self.like.shape[1:])

    @cached_property
    def diagonal(self) -> Tensor | None:
        """The preconditioner D in the dtype of the run."""
        given = self.table.preconditioner
        return None if given is None else given.to(self.like)

    @cached_property
    def root(self) -> Tensor | None:
        """D^(1/2)."""
        return None if self.diagonal is None else self.diagonal.sqrt()

    @cached_property
    def gram(self) -> Gram:
        """The factorised D^(1/2) A^T A D^(1/2)."""
        return self.decoder.gram(self.latent, self.diagonal, self.like)

    @cached_property
    def noiseless(self) -> bool:
        """Whether the target is a diffusion or flow whose sampler adds no noise."""
        return not self.table.static and not bool(self.table.s.any())

    @property
    def identity(self) -> bool:
        """Whether the decoder is the identity."""
        return isinstance(self.decoder, Identity)

    @property
    def isotropic(self) -> bool:
        """Whether A and D are multiples of the identity, so that an implicit step goes straight towards z."""
        return self.identity and (self.diagonal is None or self.diagonal.numel() == 1)

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Gradient of log p at x."""
        self.usage.scored(len(x))
        return self.target.score(x, t)

    def denoise(self, y: Tensor, sigma: float) -> Tensor:
        """E[x0 | x0 + sigma noise = y]."""
        if self.target.denoise is None:
            raise SettingError(f"{self.target.name} has no denoiser")
        self.usage.scored(len(y))
        return self.target.denoise(y, torch.as_tensor(sigma, dtype=torch.float64, device=y.device))

    def with_budget(self, budget: Budget) -> Problem:
        """The same problem with other projections inside the loop; factorisations are kept."""
        other = copy(self)
        object.__setattr__(other, "budget", budget)
        return other

    def with_usage(self, usage: Usage) -> Problem:
        """The same problem, its use counted elsewhere."""
        other = copy(self)
        object.__setattr__(other, "usage", usage)
        return other

    def project(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """P(z) for the loop: in the dtype of z where there is a fast closed form, else in float64 inside.

        Args:
            z: Points (n, *event).
            warm: A point near the answer, for iterative projections; they keep to the budget.
        """
        self.usage.projected(len(z))
        if self.constraint.fast:
            return self.constraint.project_fast(z)
        return self.constraint.project(z, budget=self.budget, warm=warm)

    def strict(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """P(z) in float64 in and out, as well as it can be done: what a method returns as a sample."""
        self.usage.projected(len(z))
        return self.constraint.project(z.to(torch.float64), warm=warm)

    def decode(self, x: Tensor) -> Tensor:
        """A x."""
        return self.decoder(x)

    def scaled(self, v: Tensor) -> Tensor:
        """D v."""
        return v if self.diagonal is None else self.diagonal * v

    def residual(self, x: Tensor) -> Tensor:
        """h(A x), its negative part cut off where only its positive part counts."""
        return self.constraint.positive_part(self.constraint.residual(self.decode(x)))

    def residual_vjp(self, x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """h(A x), and the gradient in x of weights . h (of |h|^2 / 2 if no weights are given)."""
        if weights is None and self.decoder.linear:
            decoded = self.decode(x)
            value = self.constraint.positive_part(self.constraint.residual(decoded))
            pulled = self.constraint.residual_pull(decoded, value)
            if pulled is not None:
                return value, self.decoder.vjp(x)(pulled)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            h = self.residual(leaf)
            (gradient,) = torch.autograd.grad(h, leaf, grad_outputs=h.detach() if weights is None else weights)
        return h.detach(), gradient


def move(problem: Problem, x: Tensor, score: Tensor, row: Steps, noise: Tensor) -> Tensor:
    """a x + b D score + s D^(1/2) w: one row of the table, without any constraint."""
    if problem.diagonal is None or problem.root is None:
        return (row.a * x).addcmul_(score, row.b).addcmul_(noise, row.s)
    return (row.a * x).addcmul_(score, row.b * problem.diagonal).addcmul_(noise, row.s * problem.root)
