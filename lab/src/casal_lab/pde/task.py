"""A task: where fields are seen, what is known of them exactly, and the cases to reconstruct.

The points that are seen are drawn once for a run, from its seed, and are the same in all cases: so all cases and all
samples are one batch of chains, whose sets differ from chain to chain (``casal.PerChain``).

With a Gaussian prior the answers are exact: kriging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from casal import Budget, Constraint
from casal_lab.nets import Gaussian
from casal_lab.pde.prior import Prior


class Rows(NamedTuple):
    """Observations of latents with independent noise.

    Attributes:
        matrix: (k + j, d): first k rows that hold exactly, then those of unit noise.
        noise: (k + j,), 0 or 1.
        mean: Of the residual at the points that are seen, (m,).
        map: (j, m), from y - mean to the values of the rows of unit noise.
        points: H (m, d), from latents to the values that are seen.
    """

    matrix: Tensor
    noise: Tensor
    mean: Tensor
    map: Tensor
    points: Tensor

    def values(self, y: Tensor, known: Tensor) -> Tensor:
        """The values (n, k + j) of all rows from what is seen (n, m) and what is known (n, k)."""
        return torch.cat([known, (y - self.mean) @ self.map.T], dim=1)


def whitened(H: Tensor, mean: Tensor, S: Tensor, known: Tensor) -> Rows:
    """Rows of unit noise that say the same as y = H x + N(mean, S), and those that hold exactly before them."""
    L = torch.linalg.cholesky(S)
    matrix = torch.linalg.solve_triangular(L, H, upper=False)
    pull = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype), upper=False)
    if len(H) > H.shape[1]:
        Q, matrix = torch.linalg.qr(matrix)
        pull = Q.T @ pull
    noise = torch.cat([torch.zeros(len(known)), torch.ones(len(matrix))]).to(H)
    return Rows(torch.cat([known, matrix]), noise, mean, pull, H)


class Conditional(NamedTuple):
    """A Gaussian given rows.

    Attributes:
        mean: (n, d), one row per case.
        covariance: (d, d), the same for all cases.
    """

    mean: Tensor
    covariance: Tensor

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of every case, those of a case in a row, (cases n, d)."""
        lam, V = torch.linalg.eigh(self.covariance)
        w = torch.randn((n * len(self.mean), len(lam)), generator=generator, dtype=lam.dtype)
        return self.mean.repeat_interleave(n, 0) + (w * lam.clamp_min(0.0).sqrt()) @ V.T


def krige(gaussian: Gaussian, rows: Rows, values: Tensor) -> Conditional:
    """E[x | rows] = m + C F^T (F C F^T + R)^-1 (y - F m), and C - C F^T (F C F^T + R)^-1 F C.

    F are the rows and C = V diag(lam) V^T; all in the coordinates V.
    """
    V, lam, m = (part.double() for part in (gaussian.basis, gaussian.variances, gaussian.mean))
    F = rows.matrix @ V
    root = torch.linalg.cholesky((F * lam) @ F.T + torch.diag(rows.noise.square()))
    gain = torch.cholesky_solve(F * lam, root).T  # (r, rows)
    left = torch.diag(lam) - gain @ (F * lam)
    return Conditional(m + (values - m @ rows.matrix.T) @ gain.T @ V.T, V @ (left + left.T) @ V.T / 2)


def least_squares(rows: Rows, y: Tensor, known: Tensor) -> Tensor | None:
    """argmin |H x - y|^2 with the known rows exact, (n, d); None if it is not determined.

    Nothing of the prior enters: neither mean and covariance nor those of the residual.
    """
    K = rows.matrix[: len(rows.matrix) - len(rows.map)]
    if len(rows.points) + len(K) < rows.points.shape[1]:
        return None
    if not len(K):
        return torch.linalg.lstsq(rows.points, y.T).solution.T
    start = torch.linalg.lstsq(K, known.T).solution.T
    free = torch.linalg.svd(K, full_matrices=True).Vh[len(K) :].T  # K x stays as it is along these
    return start + torch.linalg.lstsq(rows.points @ free, (y - start @ rows.points.T).T).solution.T @ free.T


# ------------------------------------------------------------------ tasks

SHRINKAGE = 0.01
"""Share of the truncation covariance that is replaced by its diagonal: few training residuals span few directions. Of
0.1, 0.03 and 0.01 the one with the best spread / skill of kriging on validation cases; its error hardly changes."""


class Weight(NamedTuple):
    """A weight of DPS, size / s^power at noise level s."""

    size: float
    power: int = 0

    def __str__(self) -> str:
        return f"weight {self.size:g}" + (" / sigma" if self.power == 1 else "")

    def at(self, level: Tensor) -> Tensor:
        """The weight at a noise level."""
        return self.size / level**self.power


WEIGHTS = (*(Weight(size) for size in (30.0, 100.0, 300.0)), *(Weight(size, 1) for size in (10.0, 30.0, 100.0)))
"""Of DPS, where a task has no others."""


SENSORS, CASES, NOISE, DRAWS = 0, 1, 2, 3
"""Parts of a seed: where fields are seen, which fields, the noise of what is seen, and draws of the exact answer."""


class Cases(NamedTuple):
    """Fields to reconstruct, one per row.

    Attributes:
        fields: The truth (n, *event), float64.
        latents: Its latents (n, d).
        values: What is seen of it (n, m), with its noise.
    """

    fields: Tensor
    latents: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.fields)

    def repeated(self, n: int) -> Cases:
        """Each case n times in a row: one row per chain."""
        return Cases(*(part.repeat_interleave(n, 0) for part in self))

    def take(self, index: slice) -> Cases:
        """Some cases."""
        return Cases(*(part[index] for part in self))


MakeSet = Callable[[Tensor, Tensor, Tensor], Constraint]
"""(index (m,), fields (n, *event), values (n, m)) -> the set of these n chains."""


MakeInside = Callable[[Cases], Constraint]
"""Chains -> the set of all latents that decode into their set."""


Measure = Callable[[Tensor], Tensor]
"""Events (n, *event) -> the field (n, ...) whose error counts."""


def whole(fields: Tensor) -> Tensor:
    """The event itself."""
    return fields


@dataclass(frozen=True, eq=False)
class Task:
    """What a method is given, whatever the case.

    Attributes:
        name: For tables.
        prior: What is known of the fields.
        index: Points that are seen (m,), positions in the flattened event.
        noise: Standard deviation of the noise of what is seen.
        make: Builds the set of some chains.
        known: Rows (k, d) on latents whose values are known exactly, such as the mass; their values are those of the
            truth.
        rows: What is seen and known, as rows on latents with independent noise.
        one_by_one: Whether sets must be built and run case by case.
        guided: Whether the set leaves out what is seen, which then enters by guidance alone.
        inside: Builds the set of all latents that decode into the set; None if there are none, or if it is all the same
            as projecting the decoded field.
        pixels: Whether there are training fields enough to krige whole fields.
        budget: Of projections inside a run; as they come if None.
        measures: What errors are of, by name; the first is the error of the tables.
        weights: That DPS is tuned over, with either family of noise levels.
    """

    name: str
    prior: Prior
    index: Tensor
    noise: float
    make: MakeSet
    known: Tensor
    rows: Rows
    one_by_one: bool = False
    guided: bool = False
    inside: MakeInside | None = None
    pixels: bool = False
    budget: Budget | None = None
    measures: Mapping[str, Measure] = field(default_factory=lambda: {"": whole})
    weights: Sequence[Weight] = WEIGHTS

    @classmethod
    def of(
        cls,
        name: str,
        prior: Prior,
        index: Tensor,
        make: MakeSet,
        known: Tensor,
        *,
        noise: float = 0.0,
        one_by_one: bool = False,
        guided: bool = False,
        inside: MakeInside | None = None,
        pixels: bool = False,
        budget: Budget | None = None,
        measures: Mapping[str, Measure] | None = None,
        weights: Sequence[Weight] = WEIGHTS,
    ) -> Task:
        """With the covariance of the truncation residual at the points that are seen.

        S = (1 - shrinkage) S_hat + shrinkage diag(S_hat) + noise^2 I, and the mean of the residual is subtracted.
        """
        left = prior.residuals.flatten(1)[:, index].double()
        mean = left.mean(0)
        H = prior.decoder.matrix((prior.size,), torch.empty(0, dtype=torch.float64), index)
        S = torch.cov(left.T)
        S = (1 - SHRINKAGE) * S + torch.diag(SHRINKAGE * S.diagonal() + noise**2)
        rows, counted = whitened(H, mean, S, known), {"": whole} if measures is None else measures
        return cls(
            name,
            prior,
            index,
            noise,
            make,
            known,
            rows,
            one_by_one,
            guided,
            inside,
            pixels,
            budget=budget,
            measures=counted,
            weights=weights,
        )

    def cases(self, n: int, seed: int) -> Cases:
        """n fresh fields and what is seen of them; the first ones are the same for every n."""
        fields = torch.cat([self.prior.draw(1, stream(seed, CASES, k)) for k in range(n)])
        values = fields.flatten(1)[:, self.index]
        noise = [torch.randn(len(self.index), generator=stream(seed, NOISE, k), dtype=torch.float64) for k in range(n)]
        w = torch.stack(noise)
        return Cases(fields, self.prior.encode(fields), values + self.noise * w)

    def constraint(self, cases: Cases) -> Constraint:
        """The set of these chains, one row each."""
        return self.make(self.index, cases.fields, cases.values)

    def latents(self, cases: Cases) -> Constraint:
        """The set of all latents of these chains that decode into their set."""
        assert self.inside is not None
        return self.inside(cases)

    def given(self, cases: Cases) -> Tensor:
        """Values (n, rows) of the whitened rows."""
        return self.rows.values(cases.values, cases.latents @ self.known.T)


def stream(seed: int, part: int, number: int = 0) -> torch.Generator:
    """The random numbers of one part of a seed, for one of its cases."""
    digest = hashlib.blake2b(f"{seed} {part} {number}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def sensors(size: int, count: int, seed: int) -> Tensor:
    """``count`` of ``size`` points, at random, in order."""
    return torch.randperm(size, generator=stream(seed, SENSORS))[:count].sort().values
