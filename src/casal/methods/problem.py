"""What a step may use: the score, the projection and the decoder of one run, with their use counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from dataclasses import replace as fresh
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from casal.checks import StartDensity, broadcasts_to
from casal.constraints import Budget, Constraint, geometry, half_square, over_events
from casal.decoders import Decoder, Gram
from casal.devices import on_host
from casal.errors import CasalError, DtypeError, SettingError, ShapeError
from casal.targets import Table, Target, failed


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

    def add_scores(self, chains: int) -> None:
        """One evaluation of the score for each of some chains."""
        self.scores += chains

    def add_projections(self, chains: int) -> None:
        """One projection for each of some chains."""
        self.projections += chains

    def absorb(self, other: Usage) -> None:
        """Add what another part of the run has used."""
        self.scores += other.scores
        self.projections += other.projections


class Uncounted(Usage):
    """For looking without being counted, and inside compiled steps, which are counted from outside."""

    def add_scores(self, chains: int) -> None:
        return

    def add_projections(self, chains: int) -> None:
        return


@dataclass(frozen=True)
class Problem:
    """One target, one set and one decoder, in the dtype and on the device of the run.

    Attributes:
        target: Score, table and start.
        constraint: The set C in decoded space.
        decoder: A.
        like: An empty tensor of the run's dtype and device, shaped (0, *latent).
        budget: How hard projections inside the loop try; None for quick steps where there are some, else the best.
        row_dtype: Dtype of the numbers of a row. Compiled steps want that of the chains: mixed dtypes keep a kernel
            from being vectorised.
        first: Number of the first of these chains in the run.
        start: The density of the starting points, for a fixed density with a potential; None if it is not known.
        batch: Points of one call of the model, at most, where all chains are together; None for any number.
    """

    target: Target
    constraint: Constraint
    decoder: Decoder
    like: Tensor
    usage: Usage = field(default_factory=Usage)
    budget: Budget | None = None
    row_dtype: torch.dtype = torch.float64
    first: int = 0
    start: StartDensity | None = None
    batch: int | None = None

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
        """The preconditioner D in the dtype of the run; of a matrix its diagonal, in the shape of an event."""
        given = self.table.preconditioner
        if given is not None and self.metric is not None:
            given = given.diagonal().reshape(self.latent)
        return None if given is None else given.to(self.like)

    @cached_property
    def metric(self) -> Tensor | None:
        """The preconditioner, if it is a matrix of all coordinates (k, k); methods with one of their own use it."""
        given, size = self.table.preconditioner, torch.Size(self.latent).numel()
        matrix = (
            given is not None and tuple(given.shape) == (size, size) and not broadcasts_to(given.shape, self.latent)
        )
        return given.to(self.like.device) if given is not None and matrix else None

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
        return self.decoder.identity

    @property
    def isotropic(self) -> bool:
        """Whether A and D are multiples of the identity, so that an implicit step goes straight towards z."""
        return self.identity and (self.diagonal is None or self.diagonal.numel() == 1)

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Gradient of log p at x."""
        self.usage.add_scores(len(x))
        return self._like_points("gradient", self.target.score, x, t)

    @property
    def chains(self) -> int | None:
        """How many chains have a set or a condition of their own; None if all chains sample the same distribution."""
        return self.target.chains if self.constraint.chains is None else self.constraint.chains

    def groups(self) -> Tensor | None:
        """(n,) labels, equal for chains that sample the same distribution: their set and their condition are equal.

        None if all chains do.
        """
        both = [found for found in (geometry.groups(self.constraint), self.target.groups) if found is not None]
        if len(both) < 2:
            return both[0] if both else None
        return torch.unique(torch.stack([labels.cpu() for labels in both], 1), dim=0, return_inverse=True)[1]

    def log_density(self, x: Tensor) -> Tensor:
        """-f(x) = log p + constant, (n,) float64; counts as much as a score."""
        return -self.potential(x).to(torch.float64)

    def potential(self, x: Tensor) -> Tensor:
        """f(x) = -log p + constant, (n,), in the dtype it comes in; counts as much as a score."""
        if self.target.potential is None:
            raise SettingError(
                f"{self.target.name} has no potential; use casal.langevin(..., potential=...) or casal.energy"
            )
        self.usage.add_scores(len(x))
        name = f"the potential of {self.target.name}"
        f = unedited(name, self._given(self.target.potential, x), x)
        if not isinstance(f, Tensor) or f.numel() != len(x):
            raise ShapeError(f"{name} is {_shape(f)} at points of shape {tuple(x.shape)}; give a tensor ({len(x)},)")
        return f.reshape(len(x))

    def denoise(self, y: Tensor, sigma: float) -> Tensor:
        """E[x0 | x0 + sigma noise = y]."""
        if self.target.denoise is None:
            raise SettingError(f"{self.target.name} has no denoiser")
        self.usage.add_scores(len(y))
        level = torch.full((), sigma, dtype=torch.float64, device=y.device)
        return self._like_points("denoiser", self.target.denoise, y, level)

    def denoise_all(self, y: Tensor, sigma: float) -> Tensor:
        """``denoise`` at any number of points, in calls of at most ``batch`` of them.

        Of a model with conditions the points are one for each chain.
        """
        size = self.batch or max(1, len(y))
        some = [slice(k, min(k + size, len(y))) for k in range(0, len(y), size)]
        apart = [self if self.target.chains is None else self.take(part) for part in some]
        return torch.cat([one.denoise(y[part], sigma) for one, part in zip(apart, some, strict=True)])

    def _like_points(self, what: str, function: Callable[..., Tensor], x: Tensor, t: Tensor) -> Tensor:
        """``function(x, t)``, which must be as x is: another shape or dtype would be broadcast unseen."""
        name = f"the {what} of {self.target.name}"
        out = unedited(name, self._given(function, x), x, t)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            raise ShapeError(
                f"{name} has shape {_shape(out)} at points of shape {tuple(x.shape)} ({_time(t)}); "
                "it must return one number for every number of its argument"
            )
        if out.dtype != x.dtype or out.device != x.device:
            raise DtypeError(
                f"{name} is {out.dtype} on {out.device}, the chains are {x.dtype} on {x.device} "
                f"({_time(t)}); set run=casal.Run(dtype=..., device=...), or cast inside the {what}"
            )
        return out

    def _given(self, function: Callable[..., Tensor], x: Tensor) -> Callable[..., Tensor]:
        """A function of the model with the condition of these chains; refused for points of others."""
        condition = self.target.condition
        if not condition:
            return function
        if len(x) != self.target.chains:
            raise ShapeError(
                f"{len(x)} points for a model with conditions of {self.target.chains} chains; problem.take(index) is "
                "the problem of some of them"
            )
        return partial(function, **condition)

    def replace(self, **fields: Any) -> Problem:
        """The same problem with other fields. Factorisations are kept, if what they are made of is the same."""
        other = copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        same = other.table is self.table and other.decoder is self.decoder and other.like is self.like
        return other if same else fresh(other)

    def of_chains(self, start: int, stop: int, usage: Usage) -> Problem:
        """The problem of some chains of the run: their sets and conditions, their use counted on its own."""
        return self.take(slice(start, stop)).replace(usage=usage, first=start)

    def take(self, index: slice | Tensor) -> Problem:
        """The same for some of these chains, a slice or their numbers (k,): with their sets and conditions."""
        if self.constraint.chains is None and self.target.chains is None:
            return self
        return self.replace(constraint=self.constraint.take(index), target=self.target.take(index))

    def project(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """P(z) for the loop: in the dtype of z where there is a fast form (closed, or quick steps), else in float64.

        Off the host closed forms are taken without a look at the points, which would have to wait for the device.

        Args:
            z: Points (n, *event).
            warm: A point near the answer, for iterative projections. They keep to the budget, if there is one.
        """
        self.usage.add_projections(len(z))
        if self._quick(z):
            return self.constraint.project(z, warm=warm, quick=True)
        return self.constraint.project(z, budget=self.budget, warm=warm)

    def _quick(self, z: Tensor) -> bool:
        """Whether the loop takes the fast form of the projection."""
        fast = self.constraint.fast or (self.constraint.exact and not on_host(z))
        return fast and (self.budget is None or self.constraint.exact)

    def nearest(self, z: Tensor, warm: Tensor) -> Tensor:
        """P(z) for methods whose distribution depends on it: the nearest point of C.

        On a set that is not convex a search that begins at the point before may end at a far one, so that a chain
        would keep to an arc of the set.
        """
        return self.project(z, warm=warm if self.constraint.convex else None)

    def nearest_and_half(self, z: Tensor, warm: Tensor) -> tuple[Tensor, Tensor]:
        """``nearest(z)`` and dist(z, C)^2 / 2, (n,) float64."""
        if self._quick(z):
            self.usage.add_projections(len(z))
            return geometry.quick_projection(self.constraint, z, warm if self.constraint.convex else None)
        nearest = self.nearest(z, warm)
        return nearest, half_square(z - nearest)

    def strict(self, z: Tensor, warm: Tensor | None = None) -> Tensor:
        """P(z) in float64 in and out, as well as it can be done: what a method returns as a sample."""
        self.usage.add_projections(len(z))
        return self.constraint.project(z.to(torch.float64), warm=warm)

    def decode(self, x: Tensor) -> Tensor:
        """A x."""
        if self.identity:
            return x
        return unedited("the decoder", self.decoder, x)

    def precondition(self, v: Tensor) -> Tensor:
        """D v."""
        return v if self.diagonal is None else self.diagonal * v

    def residual(self, z: Tensor) -> Tensor:
        """h(z), its negative part cut off where only its positive part counts."""
        return geometry.positive_part(self.constraint, geometry.residual(self.constraint, z))

    def check_smooth(self, x: Tensor) -> None:
        """Evaluate the residual at one chain: a set without one is refused before the first step."""
        geometry.residual(self.constraint.take(slice(0, 1)), self.decode(x)[:1])

    def penalty_gradient(self, x: Tensor) -> Tensor:
        """The gradient in x of |h(A x)|^2 / 2."""
        if self.decoder.linear:
            decoded = self.decode(x)
            pull = geometry.residual_pull(self.constraint, decoded, self.residual(decoded))
            if pull is not None:
                return self.decoder.vjp(x)(pull)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            h = self.residual(self.decode(leaf))
            (gradient,) = torch.autograd.grad(h, leaf, grad_outputs=h.detach())
        return gradient

    def distance_gradient(self, x: Tensor) -> Tensor:
        """The gradient in x of dist(A x, C)^2 / 2: the Jacobian of A applied to A x - P(A x)."""
        decoded = self.decode(x)
        return self.decoder.vjp(x)(decoded - self.project(decoded))


def unedited(name: str, function: Callable[..., Tensor], x: Tensor, *more: Tensor) -> Tensor:
    """``function(x, *more)``; SettingError if it wrote into x, which is the state of the chains."""
    if torch.compiler.is_dynamo_compiling() or x.is_inference():  # torch counts no versions there
        return function(x, *more)
    version = x._version
    try:
        out = function(x, *more)
    except CasalError:
        raise
    except Exception as error:
        raise failed(name, x, error) from error
    if x._version != version:
        raise SettingError(f"{name} edits its argument in place; return a new tensor (work on x.clone(), not on x)")
    return out


def _time(t: Tensor) -> str:
    return f"t = {float(t.flatten()[0]):.6g}"


def _shape(out: object) -> str:
    return str(tuple(out.shape)) if isinstance(out, Tensor) else type(out).__name__


NUMBERS_AT_ONCE = 1 << 22
"""Numbers that are looked at together where all chains of a run are looked at."""


def few_chains(*parts: Tensor, share: int = 1) -> Iterator[slice]:
    """Slices of dim 0, so that what is made on the way stays small beside a million chains; or a share of these."""
    chains = max(1, NUMBERS_AT_ONCE // share // max(1, *(part.shape[1:].numel() for part in parts)))
    return (slice(start, start + chains) for start in range(0, len(parts[0]), chains))


def pick(yes: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """``one`` for chains that say yes (n,), ``other`` for the rest."""
    return torch.where(over_events(yes, one), one, other)


def move(problem: Problem, x: Tensor, score: Tensor, row: Steps, noise: Tensor) -> Tensor:
    """a x + b D score + s D^(1/2) w: one row of the table, without any constraint."""
    if problem.diagonal is None or problem.root is None:
        return (row.a * x).addcmul_(score, row.b).addcmul_(noise, row.s)
    return (row.a * x).addcmul_(score, row.b * problem.diagonal).addcmul_(noise, row.s * problem.root)
