"""What a last projection leaves: bias of a finite coupling, weights that few chains carry, moves far off the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from casal.constraints import geometry
from casal.diagnostics.behind import view_of
from casal.diagnostics.check import (
    REJECT,
    SMALL_BIAS,
    Check,
    Evidence,
    evenly,
    two_sided_p,
)
from casal.diagnostics.edges import ON_THE_SET, parts_of
from casal.diagnostics.model_score import PAIRS, level_score
from casal.diagnostics.stein import EXACT_DIMENSION
from casal.methods.scales import main_directions

TINY_SET = 100.0
"""A set is tiny beside the model if chains end this many times its size away from it."""

STEP, MOST_ATOMS = 1e-6, 0.01
"""Step along the set, in units of the distance to the mean, that a sample inside survives; and the share of samples on
the edge that is let pass, beyond two standard errors."""

MOST_NEAR_CROSSINGS = 0.012
"""Share of samples near a crossing of two pieces of a union that is let pass."""

LEAST_KEPT = 0.25
"""Effective share of the chains after the last correction, below which few chains carry most of its weights: the chains
that should carry the rest are missing, and the error bars, which see those that are there, are too small."""

FARTHEST_FROM_RANGE = 0.03
"""Distance of samples to the range of a decoder, in units of their norm, that is let pass."""

LEAST_LINES = 4.0
"""Lines that carry the weight of a draw on curved equations, effective number of 36. On small spheres in a Gaussian of
24 dimensions runs with fewer than 3.3 were wrong, those with 14 and more right."""

FARTHEST_SET = 5.0
"""Mean of a curved equation over the model's samples, in its standard deviations: on spheres in 20 dimensions runs were
right at 4, nearly right at 6 and 7, and wrong by .25 standard deviations above."""

ROUNDING = 16.0
"""Spread of samples, in units of the rounding of their largest coordinate, up to which they are one point."""

FAR_MOVE = 1.0
"""Standard deviations of the model by which a last projection may move samples along a direction without a note: in 36
right runs of 12 small problems it was at most 0.44."""


def resolution(evidence: Evidence) -> Iterator[Check]:
    """Whether the chains resolve the set: samples that are all at one point of it, or a set tiny beside the model."""
    z, event, left = evidence.flat, tuple(evidence.z.shape[1:]), evidence.offset
    size = float((z - z.mean(0)).square().sum(1).mean().sqrt())
    away = 0.0 if left is None else float(left.square().sum(1).mean().sqrt())
    if evidence.constraint.convex and geometry.codimension(evidence.constraint, event) == z.shape[1]:
        return  # one point
    yield Check(
        float((z == z[0]).all()),
        0.5,
        f"all {len(z)} samples are the same point: the set lies far out in the tail of the model",
        "start the chains in it (init=) and use more of them",
    )
    yield Check(
        away if size > 0.0 else 0.0,
        TINY_SET * size,
        f"the set is about {size:.1g} wide, and chains end {away:.1g} away from it: it is tiny beside the model",
        f"use casal.WeightedCASAL(rho={(10.0 / max(size, 1e-100)) ** 2:.0e}) and more steps",
    )


def atoms(evidence: Evidence) -> Iterator[Check]:
    """Share of samples on the edge of the set, which a small step away from the mean or towards it leaves.

    Stein's identity finds these samples too. This tells of them where the score is not asked.
    """
    parts, z = parts_of(evidence.constraint, tuple(evidence.z.shape[1:])), evidence.z
    if parts is None or parts.solid is None or hasattr(evidence.run.state, "refused"):  # chains that live inside
        return
    edge = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    for step in (STEP, -STEP):
        y = z + step * (z - evidence.mean)
        edge |= parts.solid.violation(y if parts.surface is None else parts.surface.project(y, warm=z)) > 0.0
    edge &= evidence.constraint.violation(z) <= ON_THE_SET
    share, error = (float(value) for value in evidence.lineage.mean(edge[:, None]))
    yield Check(
        share,
        MOST_ATOMS + 2.0 * error,
        f"{100 * share:.3g} % of the samples lie exactly on the edge of the set, which has probability zero: the last "
        "projection put them there",
        evidence.closer(),
        figures={"on_edge": share},
    )


def decoder_range(evidence: Evidence) -> Iterator[Check]:
    """|A x - z| / |z|: how far samples are from what the decoder can produce."""
    decoder, offset, latent = evidence.problem.decoder, evidence.offset, math.prod(evidence.problem.latent)
    if decoder.identity or offset is None or (decoder.linear and evidence.flat.shape[1] <= latent):
        return
    weights = evidence.lineage.weights
    size = float(weights @ evidence.flat.square().sum(1))
    gap = math.sqrt(float(weights @ offset.square().sum(1)) / max(size, 1e-300))
    yield Check(
        gap,
        FARTHEST_FROM_RANGE,
        f"the samples lie {100 * gap:.3g} % of their norm away from the decoder's range (|A x - z| / |z|)",
        f"{evidence.closer()}, or a set that meets the decoder's range",
        figures={"range_gap": gap},
    )


def correction(evidence: Evidence) -> Iterator[Check]:
    """Whether the ladder ended so close to the set that chains could be weighted for the distance that is left.

    If not, ``slack`` and ``stein`` test what the distance does. The effective share of the chains that these weights
    leave is counted among those inside the set.
    """
    last = evidence.last
    inside = last.get("inside", 0.0)
    if "inside" in last:
        yield Check(figures={"inside": inside})
    if not last.get("corrected", 1.0) > 0.0:
        sentence = (
            "the last correction, for the distance that is left between chains and set, was not made, because it would "
            "have left too few chains; what it leaves is tested by the slack and by the score"
        )
        yield Check(notes=(sentence,))
    elif "corrected" in last and "finish_ess" in last and inside > 0.0:
        kept = min(1.0, last["finish_ess"] / (len(evidence.run.samples) * inside))
        yield Check(
            -kept,
            -LEAST_KEPT,
            "the last correction, for the distance that is left between chains and set, leaves "
            f"{100 * kept:.2g} % of the chains: few carry most of the weight, and error bars are too small",
            evidence.closer(),
            figures={"correction_kept": kept},
        )


def lines(evidence: Evidence) -> Iterator[Check]:
    """Whether draws on curved equations had points of the set to choose from (``methods/curved_draw.py``).

    Of the lower levels: what was wrong at higher ones is forgotten.
    """
    if not {"lines", "apart"} <= evidence.last.keys():
        return
    least, apart = (torch.as_tensor(evidence.run.trace[name]).nan_to_num(math.inf) for name in ("lines", "apart"))
    few, far = float(least.min()), float(apart.min())
    yield Check(
        -few,
        -LEAST_LINES,
        f"at one noise level the chains had {few:.2g} points of the set to choose from: lines through the model rarely "
        "meet it",
        "casal.sample(..., casal.Matheron(candidates=200)), as many model calls",
        figures={"lines": few, "apart": far},
    )
    yield Check(
        far,
        FARTHEST_SET,
        f"the set lies {far:.2g} standard deviations out, where the model has no samples",
        evidence.closer(),
    )


def crossings(evidence: Evidence) -> Iterator[Check]:
    """Share of samples near a crossing of two pieces of a union, where a ladder leaves a gap as wide as its slack."""
    share = evidence.last.get("crossing")
    if share is None:
        return
    yield Check(
        share,
        MOST_NEAR_CROSSINGS,
        f"{100 * share:.2g} % of the samples lie within 2 / sqrt(rho) of another piece of the union, where pieces that "
        "cross are counted once",
        f"{evidence.closer()}, or sample each piece alone",
        figures={"crossing": share},
    )


def slack(evidence: Evidence) -> Iterator[Check]:
    """Bias of a ladder that ends at a finite rho, from the population itself reweighted to a smaller rho:

        weight = exp((rho - rho/r)/2 |A x - z|^2),      bias = (E_{rho/r} f - E_rho f) / (r - 1),

    since the bias is proportional to 1/rho near its limit. A finish that corrects for rho leaves none: the offset
    A x - z is then independent of z, and weights that depend on it alone do not move the samples. A t-test over
    ancestors says whether they do.
    """
    rho, offset, lineage, f = evidence.rho, evidence.offset, evidence.lineage, statistics(evidence)
    if rho is None or offset is None or not f.shape[1]:
        return
    half = offset.square().sum(1) / 2
    ratio = 1.0 + 0.5 / math.sqrt(max(1.0, 2.0 * rho * float(lineage.weights @ half)))
    change = torch.exp(rho * (1.0 - 1.0 / ratio) * (half - half.max()))
    change = change / (lineage.weights @ change)
    there = lineage.weights @ (change[:, None] * f)
    bias = there.abs() / (ratio - 1.0)
    error = lineage.mean(change[:, None] * (f - there) - f).standard_error / (ratio - 1.0)
    t = bias / error.clamp_min(torch.finfo(torch.float64).tiny)
    p = (two_sided_p(t, lineage.effective - 1.0) * len(t)).clamp_max(1.0)
    told = (bias > SMALL_BIAS) & torch.isfinite(p)
    least = float(p[told].min()) if bool(told.any()) else 1.0
    sure = float(torch.where(told & (p < REJECT), bias, 0.0).max())
    yield Check(
        sure,
        SMALL_BIAS,
        f"the run ends at the coupling rho = {rho:.3g}, which shifts a mean by about {sure:.2g} standard deviations "
        f"(p = {least:.1g})",
        evidence.closer(max(2.0, sure / SMALL_BIAS)),
        figures={"slack_bias": float(bias.max()), "slack_p": least},
    )


def statistics(evidence: Evidence) -> Tensor:
    """Coordinates, or those along the main directions where there are many, and their squares, of variance one: (n, m).

    Those that vary by rounding alone are left out.
    """
    height, rounding = evidence.flat, torch.finfo(evidence.run.samples.dtype).eps * evidence.flat.abs().max()
    if height.shape[1] > EXACT_DIMENSION:
        height = main_directions(height, torch.Generator(height.device).manual_seed(4242))
    height = height - evidence.lineage.weights @ height
    spread = (evidence.lineage.weights @ height.square()).sqrt()
    height = height[:, (spread > 1e-6 * spread.max()) & (spread > ROUNDING * rounding)]
    columns = torch.cat([height, height.square()], 1)
    columns = columns - evidence.lineage.weights @ columns
    return columns / (evidence.lineage.weights @ columns.square()).sqrt().clamp_min(1e-300)


def displacement(evidence: Evidence) -> Iterator[Check]:
    """How far the last projection moved the samples, in standard deviations of the model: in all, and along directions.

        d^2 = -(x - z) . (s(x) - s(z)),       the squared length of x - z by the curvature of -log p between them,
        M   = -E[sym((x - z) (s(x) - s(z))^T)],       trace M = E d^2.

    Where moves and curvatures have the same directions, an eigenvalue of M is the mean square of the moves along one, a
    normal of the set, in units of the model's variance along it: so it is large where the model is narrow.
    """
    if evidence.latents is None or evidence.left < 2.0:
        return
    index = evenly(len(evidence.z), int(min(PAIRS, len(evidence.z), evidence.left / 2))).to(evidence.z.device)
    seen = view_of(evidence, index)
    if not (seen.pointwise and seen.same):
        return
    own, moved = evidence.problem.take(evidence.index[index]), evidence.latents[index].to(torch.float64)
    z = seen.latent(seen.points)
    rise, move = (level_score(own, moved) - level_score(own, z)).flatten(1), (moved - z).flatten(1)
    square = -(move * rise).sum(1)
    known = torch.isfinite(square)
    figures = {"moved_deviations": float(square.clamp_min(0.0).nanmedian().sqrt())}
    if not bool(known.any()):
        yield Check(figures=figures)
        return
    basis = torch.linalg.qr(torch.cat([move[known], rise[known]]).T).Q
    product = -(move[known] @ basis).T @ (rise[known] @ basis) / int(known.sum())
    values, axes = torch.linalg.eigh((product + product.T) / 2.0)
    most, loads = math.sqrt(max(0.0, float(values[-1]))), (basis @ axes[:, -1]).square()
    place = ", ".join(str(int(k)) for k in np.unravel_index(int(loads.argmax()), tuple(moved.shape[1:])))
    sentence = (
        f"the last projection moved the samples by {most:.2g} standard deviations of the model along one direction, "
        f"{100 * float(loads.max()):.0f} % of it coordinate [{place}]"
    )
    yield Check(figures=figures | {"moved_most": most}, notes=(sentence,) if most > FAR_MOVE else ())
