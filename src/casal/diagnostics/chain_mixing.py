"""Whether chains have mixed: what they remember, what they say of themselves, R-hat and effective size of their draws.

For R-hat and ESS of recorded draws each chain is cut in two halves of L draws. With W the mean of the variances within
the halves, V the variance of their means, and v+ = (L - 1) / L W + V,

    R-hat = sqrt(v+ / W)                                     (Gelman et al. 2013; one where all halves agree)
    rho_t = 1 - (W - mean autocovariance at lag t) / v+
    ESS   = halves L / (-1 + 2 sum_k P_k),   P_k = rho_2k + rho_2k+1,

the sum up to the last P_k > 0, each P_k at most the one before (Geyer 1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from casal.diagnostics.check import (
    FEWEST,
    FEWEST_TESTED,
    LARGEST_BIAS,
    NOT_CHECKED,
    REJECT,
    Check,
    Evidence,
    evenly,
    zero_test,
)
from casal.diagnostics.model_score import level_score
from casal.methods import memory
from casal.methods.chain_memory import ALLOWED_R_HAT, LARGEST_SHIFT, SECOND_SHIFT, drift
from casal.methods.population import Lineage

FEWEST_DRAWS = 4
"""Draws a chain from which on it can be cut in two."""


class Mixing(NamedTuple):
    """How well chains have mixed, function by function; NaN where the draws do not vary.

    Attributes:
        r_hat: (k,), one where chains agree; above 1.01 they have not mixed.
        ess: (k,) independent draws that all draws of all chains are worth for a mean.
    """

    r_hat: Tensor
    ess: Tensor


def mixing(draws: Tensor) -> Mixing | None:
    """R-hat and effective sample size of draws (chains, draws, k); None for fewer than FEWEST_DRAWS draws per chain.

    >>> generator = torch.Generator().manual_seed(0)
    >>> found = mixing(torch.randn(50, 40, 1, generator=generator))
    >>> bool((found.r_hat - 1).abs() < 0.02)
    True
    """
    chains, count, _ = draws.shape
    if count < FEWEST_DRAWS:
        return None
    half = count // 2
    x = torch.cat([draws[:, :half], draws[:, count - half :]]).to(torch.float64)
    mean = x.mean(1, keepdim=True)
    within = x.var(1).mean(0)
    between = mean[:, 0].var(0)
    total = (half - 1) / half * within + between
    covariance = _autocovariance(x - mean).mean(0)
    rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: half // 2 * 2].reshape(half // 2, 2, -1).sum(1)
    positive = (pairs > 0).to(pairs.dtype).cumprod(0)
    tau = -1.0 + 2.0 * (pairs.cummin(0).values * positive).sum(0)
    size = 2 * chains * half
    ess = size / tau.clamp_min(1.0 / math.log10(max(size, 11)))
    moves = within > 0
    return Mixing(torch.where(moves, (total / within).sqrt(), torch.nan), torch.where(moves, ess, torch.nan))


def _autocovariance(centred: Tensor) -> Tensor:
    """(halves, L, k) -> the same, at lags 0 .. L - 1, each sum divided by L."""
    length = centred.shape[1]
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=1)[:, :length] / length


def inside(evidence: Evidence) -> Iterator[Check]:
    """What chains inside a set say of themselves: R-hat, a second kind of move, walls (``methods/chain_memory.py``)."""
    last = evidence.last
    if "r_hat" in last:
        apart = f"R-hat {last['r_hat']:.2f}, by chance at most {last['r_hat_edge']:.2f}"
        high = last["r_hat"] > last["r_hat_edge"] + ALLOWED_R_HAT
        yield Check(figures={"r_hat": last["r_hat"]}, notes=(f"the chains move slowly ({apart})",) if high else ())
    if "second_t" in last:
        yield Check(
            last["second_shift"] if last["second_t"] > last["second_edge"] else 0.0,
            SECOND_SHIFT,
            f"moves of a second kind shift the samples by {last['second_shift']:.2g} standard deviations "
            f"({last['second_t']:.1f} standard errors, {last['second_edge']:.1f} by chance)",
            "potential and gradient do not belong to each other, or the chains have not come to rest; use more steps, "
            "or casal.energy",
            detectable=last["second_detectable"],
            figures={"second_t": last["second_t"]},
        )
    if "infinite" in last:
        yield Check(
            last["infinite"],
            0.0,
            f"the density is infinite at a wall of the set (like distance^-{last['infinite']:.2g}), where steps along "
            "the gradient fail",
            "give the potential (casal.energy, or potential=), and slices are taken",
        )


def remembered(evidence: Evidence) -> Iterator[Check]:
    """Whether chains that move on their own have forgotten where they were, by their ``anchor`` (``HMC``).

    Of the chains of other methods, what they know of their start is a figure; ``unforgotten`` asks whether it matters.
    Where a second pass has weighed the modes, its chains follow p when adaptation ends, and their ancestors are its
    independent draws: they may stay in their modes, and move slowly, but their means rest.
    """
    anchor, last, labels = getattr(evidence.run.state, "anchor", None), evidence.last, evidence.problem.groups()
    if anchor is None or len(anchor) != len(evidence.run.samples):
        yield Check(figures={} if evidence.since_start is None else {"memory": evidence.since_start.value})
        return
    chains, weighed, potential = evidence.chains, last.get("weighed"), evidence.problem.target.potential
    if labels is not None:
        labels = labels.to(chains.device)[chains]
    elif weighed == 1.0:
        labels = evidence.run.state.part[chains]
    if weighed == 1.0:
        yield Check(
            -last["mode_draws"],
            -FEWEST,
            f"the weights of separate modes have an error of {last['mode_error']:.2g}, that of "
            f"{last['mode_draws']:.0f} independent draws",
            "use more chains or more steps",
            figures={"mode_error": last["mode_error"]},
        )
    elif last.get("tempered") == 0.0:
        sentence = (
            f"the tempered start failed: {last['tempered_ancestors']:.0f} effective samples are left, too few, or its "
            "chains are slow from the first; separate modes may have been missed; use more chains, more steps, or a "
            "start closer to the density"
        )
        yield Check(notes=(sentence,))
    found = memory(anchor[chains], evidence.run.state.y[chains], labels)
    if found is None:
        sentence = "too few chains to check whether they have forgotten their start"
        yield Check(figures={"memory": NOT_CHECKED}, notes=(sentence,))
        return
    if weighed == 0.0:
        yield Check(
            last["alone"],
            1.0,
            f"{last['alone']:.0f} starting points that were followed alone end in a mode where there is no sample, "
            "whose weight could not be found",
            "use more chains or more steps",
        )
    way_out = "a mixture of Gaussians around them missed a part of the samples; use more chains or more steps"
    if potential is None:
        way_out = "use casal.energy, or casal.langevin(..., potential=...)"
    elif weighed is None:
        way_out = evidence.more_steps()
    yield Check(
        found.value,
        math.inf if weighed == 1.0 else found.limit,
        f"the chains have not forgotten where they were when adaptation ended (correlation {found.value:.2f}): they "
        "move too slowly, or stay in their modes, whose weights are not known",
        way_out,
        figures={"memory": found.value} | ({"refused": last["refused"]} if "refused" in last else {}),
    )
    way, late, told, left = drift(*(getattr(evidence.run.state, name)[chains] for name in ("anchor", "before", "y")))
    yield Check(
        left,
        LARGEST_SHIFT,
        f"the chains are still on their way: a mean moved by {way:.2g} standard deviations since adaptation ended "
        f"({told:.1f} standard errors), by {late:.2g} in the last half of that",
        evidence.more_steps(),
    )


def unforgotten(evidence: Evidence) -> Iterator[Check]:
    """Whether chains remember a start that is no draw of p, by Stein's identity at the starting points x0.

    Let v be the direction in which they remember most, h = v . x of variance one over the chains x, and w = cov(x) v,
    so that v . w = 1. Then for draws x0 of p

        E[s(x0) . w] = 0   and   E[(s(x0) . w) (h(x0) - E h(x0)) + 1] = 0.

    If p is Gaussian, these are off by the shift of the mean of h and by the excess of its variance at the start, of
    which chains keep the shares b and b^2, b their regression on the start. A right start may be remembered.
    """
    found, problem, starts = evidence.since_start, evidence.problem, evidence.starts
    count = int(min(len(evidence.index), max(0.0, evidence.left)))
    if found is None or starts is None or found.value <= found.limit or problem.chains is not None:
        return
    if count < FEWEST_TESTED:
        return
    (ancestors, chains), x = evidence.families, starts(evidence.index[evenly(len(evidence.index), count)])
    x0, begun, ended = (v.flatten(1).to(torch.float64) for v in (x, starts(ancestors), evidence.run.state.x[chains]))
    begun, ended = (x - x.mean(0) for x in (begun, ended))
    first, last = begun @ found.direction, ended @ found.direction
    b, w = float(first @ last / first.square().sum()), last @ ended / last.square().sum()
    slope, h = level_score(problem, x).flatten(1).to(torch.float64) @ w, x0 @ found.direction
    known = torch.isfinite(slope)
    columns = torch.stack([b * slope, b**2 * (slope * (h - h.mean()) + 1.0)], 1)[known]
    if len(columns) < FEWEST_TESTED:
        return
    off = zero_test(Lineage(torch.ones_like(h[known]), torch.arange(len(columns), device=h.device)), columns)
    told = off.p * 2 < REJECT
    bias = float(torch.where(told, off.mean.abs(), 0.0).max().clamp_max(LARGEST_BIAS))
    remembers = f"the chains remember where they began (correlation {found.value:.2f} along one direction)"
    nothing = f"{remembers}; the score at the start objects to nothing along it"
    yield Check(
        bias,
        LARGEST_SHIFT,
        f"{remembers}, and the start does not follow the density along it (Stein's identity fails there by "
        f"{float(torch.where(told, off.t, 0.0).max()):.1f} standard errors)",
        f"{evidence.more_steps()}, or start from samples of the density (init=)",
        figures={"start_bias": bias},
        notes=() if bias > LARGEST_SHIFT else (nothing,),
    )
