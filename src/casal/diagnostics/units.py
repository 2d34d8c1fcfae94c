"""Whether a model and its set are in the same units: a forgotten decoder, a scheduler that clips standardised data.

Both end in feasible samples that mean nothing. The first is seen by comparison with the model's own samples, the second
from what the scheduler does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints import Constraint, geometry
from casal.decoders import Decoder
from casal.diagnostics.check import SHARE_OF_EVALUATIONS
from casal.diagnostics.model_score import own_samples
from casal.methods import Problem
from casal.targets import Target

FEWEST_FREE, MOST_FREE = 4, 8
"""Samples of the model that are drawn, at least and at most."""

FAR = 5.0
"""Distance from the model's own samples to the set, in units of their spread, from which on units are asked about."""

MANY = 16
"""Dimensions from which on a set that is small beside the model is asked about, too: with fewer, a rare event is."""

SMALL, PER_EQUATION = 1.5, 3.0
"""The same distance in units of the spread of the samples on the set: for inequalities, and what equations add, which
fix c of d directions: 3 (c / (d - c))^(1/2)."""

ROUNDS, REACHED = 50, 1e-3
"""Alternating projections between the set and the range of a clipped model, and the distance, in units of the range, at
which they meet."""


def other_units(problem: Problem, samples: Tensor, weights: Tensor, evaluations: float) -> str | None:
    """A question to the reader if the model's own samples are so far from the set that their units may differ.

    A few samples y of the model alone are drawn by its own table. Their distance to the set, rms |y - P(y)|, is
    compared with their spread, and in many dimensions with the spread of the samples on the set: right units leave the
    model most of its freedom.

    Args:
        problem: Of the run; its usage counts what is spent.
        samples: (n, *event) in the set.
        weights: (n,), their sum is one.
        evaluations: Of all chains of the run.
    """
    count = min(MOST_FREE, int(SHARE_OF_EVALUATIONS * evaluations / len(problem.table)), len(samples))
    if problem.table.static or count < FEWEST_FREE:
        return None
    few = problem.take(slice(0, count))
    y = problem.decode(own_samples(few, count)).to(torch.float64)
    onto = few.constraint.project(y)
    problem.usage.add_projections(count)
    away = math.sqrt(float((y - onto).flatten(1).square().sum(1).mean()))
    free = math.sqrt(float(y.flatten(1).var(0).sum()))
    z = samples.flatten(1).to(torch.float64)
    left = math.sqrt(float(weights @ (z - weights @ z).square().sum(1)))
    size, fixed = z.shape[1], geometry.codimension(few.constraint, tuple(samples.shape[1:])) or 0
    many = size >= MANY and fixed < size
    limit = SMALL + PER_EQUATION * math.sqrt(fixed / (size - fixed)) if many else math.inf
    if not (away > FAR * free or away > limit * left) or not math.isfinite(away):
        return None
    return (
        f"the projection moves samples of the model alone by {away:.3g} (root mean square); they spread by {free:.3g}, "
        f"and the samples on the set by {left:.3g}: does the model work in other units than the set, so that "
        "decoder=casal.Standardise(mean, std) is missing?"
    )


def clipped_units(target: Target, constraint: Constraint, decoder: Decoder, latent: Event) -> str | None:
    """A sentence if the scheduler clips a model whose data cannot have been scaled to that range.

    Data scaled to [-1, 1] from [0, h] have a decoder with mean = std = h / 2. Others are standardised data, which the
    clip cuts off at one standard deviation, unless they were scaled from another range. Without a decoder the set must
    have points in the range.

    Args:
        target: The model.
        constraint: Its set.
        decoder: As given.
        latent: Shape of a latent.
    """
    if target.clip is None or decoder.diagonal is None:
        return None
    one = torch.ones(1, *latent, dtype=torch.float64)
    low, high = decoder(-target.clip * one), decoder(target.clip * one)
    said = f"the scheduler clips the model's samples to [{-target.clip:g}, {target.clip:g}] (clip_sample=True)"
    remedy = (
        "if the data were not scaled to that range, call casal.from_diffusers(..., clip=False); if they were, "
        "clip=True says so"
    )
    if not decoder.identity and float(low.abs().max()) > REACHED * float((high - low).max()):
        return f"{said}, which are {float(low.min()):.3g} to {float(high.max()):.3g} in the units of the set; {remedy}"
    z, shape = (low + high) / 2, constraint.take(slice(0, 1))
    for _ in range(ROUNDS):
        onto = shape.project(z)
        z = onto.clamp(low, high)
    if float((z - onto).abs().max()) > REACHED * float((high - low).max()):
        return f"{said}, and the set has no point there; {remedy}"
    return None
