"""Whether samples and the draws they are paired with could change places: an exact test.

The pair (x_i, y_i) is exchangeable if x_i is drawn from the law that y_i has given what the two share. Then the
difference of any feature of the two has a symmetric distribution, and the sums

    t_k = sum_i (f_k(x_i) - f_k(y_i)) / (sum_i (f_k(x_i) - f_k(y_i))^2)^(1/2)

change in distribution by no random signs of the pairs. Two statistics, the largest |t_k| and the mean t_k^2, are
compared with their values under random signs (all of them for few pairs), and the smaller of their two p-values is
compared with the smaller ones that the signs give: the level is exact for any features, however they depend.

The features are fitted to other draws of the model: positions along their wide, middle and narrow directions and of
means of blocks of coordinates, roots of the absolute values of these, and sizes of the three parts. Features that are
equal in every pair, since they are fixed by what the pair shares, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError

LEVEL = 0.05
"""p-value below which a self-check is failed."""

TAIL = 1.645
"""Standard normal quantile of 95 %, the power for which ``detectable`` is stated."""

FIXED = 1e-6
"""Size of the differences of a feature, in units of its spread, below which what the pair shares fixes it."""


class Features(NamedTuple):
    """Functions of samples.

    Attributes:
        names: What each of them is, in words.
        values: (n, k).
    """

    names: list[str]
    values: Tensor


@dataclass(frozen=True, repr=False)
class SelfCheck:
    """What ``casal.calibrate`` found.

    Attributes:
        p: Exact p-value: below 0.05 in at most 5 % of the checks of a sampler that is right.
        objection: The feature that disagrees most, in words, with its difference.
        detectable: The shift of one feature that is found 95 times in 100 at the level of 5 %, in standard deviations
            of that feature among samples with the same values.
        statistics: Names of the features to their t, largest first: about standard normal if the sampler is right.
        pairs: How many pairs were compared.
        evaluations: Model calls a pair that the constrained samples took; nan if the samples were given.
    """

    p: float
    objection: str
    detectable: float
    statistics: Mapping[str, float]
    pairs: int
    evaluations: float = math.nan

    @property
    def passed(self) -> bool:
        """p >= 0.05."""
        return self.p >= LEVEL

    def __repr__(self) -> str:
        cost = "" if math.isnan(self.evaluations) else f", {self.evaluations:.0f} model calls a pair"
        least = f"finds a shift of {self.detectable:.2g} standard deviations of one feature"
        return (
            f"SelfCheck {'passed' if self.passed else 'failed'}: p = {self.p:.3g} ({self.pairs} pairs{cost})\n"
            f"  largest objection   {self.objection}\n"
            f"  power               {least if math.isfinite(self.detectable) else 'too few pairs to find a shift'}"
        )


def exchangeable(
    samples: Tensor,
    own: Tensor,
    fit: Tensor,
    *,
    more: Callable[[Tensor], Features] | None = None,
    flips: int = 999,
    generator: torch.Generator,
) -> SelfCheck:
    """Compare samples (n, *event) with the draws (n, *event) they are paired with.

    Args:
        samples: x_i, sampled given what it shares with y_i.
        own: y_i, draws of the model.
        fit: Other draws of the model (N, *event), for the directions.
        more: Further features of points (2 n, *event); a function of each point alone.
        flips: Random signs; all 2^n of them are taken where they are no more.
        generator: Of the narrow directions and the signs.
    """
    if samples.shape != own.shape or samples.shape[1:] != fit.shape[1:] or len(fit) < 2:
        shapes = ", ".join(str(tuple(part.shape)) for part in (samples, own, fit))
        raise ShapeError(f"samples and their pairs (n, *event), other draws (N >= 2, *event), got {shapes}")
    n, both = len(samples), torch.cat([samples.to(own), own])
    parts = [directions(both, fit, generator), *([] if more is None else [more(both)])]
    names = [name for part in parts for name in part.names]
    values = torch.cat([part.values.to(torch.float64) for part in parts], 1)
    if not bool(torch.isfinite(values).all()):
        raise SettingError(f"{names[int((~torch.isfinite(values)).any(0).nonzero()[0])]} is not finite in some samples")
    gap, spread = values[:n] - values[n:], values.std(0)
    size = gap.square().sum(0).sqrt()
    kept = size > FIXED * math.sqrt(n) * spread
    if not bool(kept.any()):
        raise SettingError("the set fixes every feature: samples and their pairs are the same points")
    gap, size, spread = gap[:, kept], size[kept], values[n:, kept].std(0)
    names = [name for name, there in zip(names, kept.tolist(), strict=True) if there]
    t = signs(n, flips, generator) @ (gap / size)
    largest = t.abs().amax(1)
    p = smallest(torch.stack([largest, t.square().mean(1)]))
    order = t[0].abs().argsort(descending=True).tolist()
    worst, limit = order[0], float(largest.quantile(1 - LEVEL)) + TAIL
    shift = float(gap[:, worst].mean() / spread[worst].clamp_min(1e-300))
    return SelfCheck(
        p,
        f"{names[worst]}: {abs(shift):.2g} standard deviations too {'large' if shift > 0 else 'small'} "
        f"(t = {float(t[0, worst]):.1f})",
        limit * math.sqrt(2 / (n - limit**2)) if n > limit**2 else math.inf,
        {names[k]: float(t[0, k]) for k in order},
        n,
    )


def signs(n: int, flips: int, generator: torch.Generator) -> Tensor:
    """Rows of signs (1 + flips, n), the first of ones; all 2^n, each once, if these are no more."""
    if n < 63 and 2**n <= 1 + flips:
        return 1.0 - 2.0 * ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).to(torch.float64)
    random = torch.randint(2, (flips, n), generator=generator).to(torch.float64)
    return torch.cat([torch.ones(1, n, dtype=torch.float64), 1.0 - 2.0 * random])


def smallest(statistics: Tensor) -> float:
    """The p-value of the first column of statistics (s, F), each large where it objects, among all columns.

    p_s of a column is the share of columns that are as large in row s; the p-value is the share of columns whose
    smallest p_s is as small as that of the first.
    """
    count = statistics.shape[1]
    close = statistics * (1 - 1e-9)  # equal up to rounding counts as equal
    ordered = statistics.sort(1).values
    below = torch.stack([torch.searchsorted(row, own) for row, own in zip(ordered, close, strict=True)])
    least = (count - below).amin(0)
    return float((least <= least[0]).sum()) / count


def directions(x: Tensor, fit: Tensor, generator: torch.Generator, each: int = 8, blocks: int = 16) -> Features:
    """Positions along directions of ``fit`` and means of blocks, roots of their sizes, and sizes of three parts.

    Args:
        x: Points (n, *event).
        fit: Other draws (N, *event).
        generator: Of the narrow directions.
        each: Wide and middle directions, half as many as narrow ones.
        blocks: Runs of coordinates whose means are taken.
    """
    flat, other = x.flatten(1).to(torch.float64), fit.flatten(1).to(x.device, torch.float64)
    centre, d = other.mean(0), flat.shape[1]
    _, spread, rows = torch.linalg.svd(other - centre, full_matrices=False)
    rank = int((spread > 1e-8 * spread[0]).sum())
    rows, sd = rows[:rank], spread[:rank] / math.sqrt(len(other) - 1)
    wide, middle = slice(0, each), slice(each, rank)
    some = torch.arange(rank, device=x.device)[each :: max(1, (rank - each) // each)][:each]
    random = torch.randn(2 * each if d > rank else 0, d, generator=generator, dtype=torch.float64).to(x.device)
    narrow = torch.nn.functional.normalize(random - (random @ rows.T) @ rows, dim=1)
    at = torch.arange(d, device=x.device).chunk(min(blocks, d))
    means = torch.stack([torch.zeros_like(centre).index_fill_(0, part, 1.0 / len(part)) for part in at])
    named = {"wide direction": rows[wide], "middle direction": rows[some], "narrow direction": narrow, "block": means}
    words = [f"{kind} {k + 1}" for kind, some in named.items() for k in range(len(some))]
    centred = flat - centre
    z = centred @ torch.cat(list(named.values())).T
    scaled = (centred @ rows.T) / sd
    rest = centred.square().sum(1) - (scaled * sd).square().sum(1)
    sizes = {"size in the wide directions": scaled[:, wide].square().mean(1)}
    if rank > each:
        sizes["size in the middle directions"] = scaled[:, middle].square().mean(1)
    if d > rank:
        sizes["size in the narrow directions"] = rest.clamp_min(1e-12 * sd.square().sum())
    return Features(
        [*(f"position, {word}" for word in words), *(f"size, {word}" for word in words), *sizes],
        torch.cat([z, z.abs().sqrt(), torch.stack(list(sizes.values()), 1).clamp_min(1e-300).log()], 1),
    )
