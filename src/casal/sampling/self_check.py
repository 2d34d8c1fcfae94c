"""``casal.calibrate``: does a sampler return what the model has, given the values of the model's own samples?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.constraints import Constraint, geometry
from casal.decoders import Decoder
from casal.diagnostics.pairs import Features, SelfCheck, exchangeable
from casal.errors import SettingError
from casal.linalg import jacobian, log_gram
from casal.methods import Method
from casal.sampling.call import sample
from casal.sampling.run import Run
from casal.streams import stream
from casal.targets import Target

MEASURES = ("surface", "value")

ROUNDS = 16
"""Free runs, each of as many samples as pairs are asked for, before a set counts as one that the model hardly meets."""

INSIDE = 1e-8
"""Violation up to which a free sample lies in its own set, as ``tol`` of ``casal.sample``."""


def calibrate(
    target: Target,
    family: Callable[[Tensor], Constraint],
    method: Method[Any] | str = "auto",
    n: int = 64,
    *,
    decoder: Decoder | None = None,
    free: Tensor | None = None,
    measure: str = "surface",
    repeats: int = 1,
    residuals: int = 0,
    features: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    flips: int = 999,
    seed: int = 0,
    run: Run | None = None,
) -> SelfCheck:
    """Check a method on a model by the model's own samples: an exact test, for trained networks as for any model.

    Draw y_1, ..., y_n from the model without a constraint. ``family(y)`` is the set of points that have the values of
    y: A x = A y_i, or h(x) = h(y_i). Sample x_i from the model on the set of y_i. If the method is right,

        x_i and y_i are draws of one and the same distribution, p given the values,

    so they can change places. Differences of features of the two, with random signs of the pairs, give an exact
    p-value (``diagnostics/pairs.py``). The check needs no reference. It judges the method on this model and this kind
    of set, not one result.

    Given the values of curved equations h, draws of p have density p / (det J J^T)^(1/2) on the surface, J the
    derivative of h. Methods of this library sample p itself with respect to the surface measure. So y is kept with a
    probability proportional to that root, after which both agree; ``measure="value"`` keeps every y, for a method
    that samples the former. Where the set has inequalities, only those y are kept that satisfy them.

    Args:
        target: A model whose own run ends in samples of it: diffusion, flow.
        family: From points (n, *event) of decoded space to the set of each, with ``casal.PerChain`` values:
            ``lambda y: casal.Affine(A, casal.PerChain(y @ A.T))``. It must give equal sets for points with equal
            values, and its inequalities must not depend on y.
        method: As for ``casal.sample``.
        n: Pairs.
        decoder: As for ``casal.sample``.
        free: Samples of the model (N, *event) in decoded space, drawn elsewhere: n or more that lie in their sets are
            for the pairs, and the rest, at least 8, for the features. Left out, the model's own run makes them.
        measure: "surface" or "value"; equal for linear equations.
        repeats: Chains for each set, of which one is drawn by weight; 16 or more for methods that resample chains.
        residuals: Noise levels at which the size of x - D(x + sigma w), D the denoiser, is a feature: finds seams.
            Two model calls a pair each; only without a decoder.
        features: Names to functions (k, *event) -> (k,) of your own, which join the test.
        flips: Random signs.
        seed: As for ``casal.sample``.
        run: As for ``casal.sample``.

    Returns:
        ``p``, the largest ``objection`` in words, the shift that would have been ``detectable``, cost.

    Raises:
        SettingError: Too few of the model's samples lie in sets of the family.

    >>> import torch
    >>> import casal
    >>> C = torch.tensor([4.0, 1.0, 0.25])  # a Gaussian with these variances, as a diffusion model
    >>> model = casal.edm(lambda x, sigma: x * C / (C + sigma**2), casal.karras_sigmas(20), shape=3)
    >>> total = lambda y: casal.Affine(torch.ones(1, 3), casal.PerChain(y.sum(1, keepdim=True)))
    >>> casal.calibrate(model, total, casal.FinalProjection(), 200).passed
    False
    """
    one_of(measure, "measure", MEASURES)
    n, repeats = whole_number(n, "n", 4), whole_number(repeats, "repeats", 1)
    flips, residuals = whole_number(flips, "flips", 19), whole_number(residuals, "residuals", 0)
    plain = replace(run or Run(), store=None, snapshots=0)
    draw = stream(seed, "self-check")
    runs = (ROUNDS + 2) * seed  # seeds of this check that no other seed uses
    with torch.no_grad():
        if free is None:
            fit, own, chains = _free(target, family, measure, n, decoder, runs, plain, draw)
        else:
            kept = _inside(free, family, measure, draw)
            if len(kept) < n or len(free) - n < 8:
                raise SettingError(
                    f"{len(kept)} of the {len(free)} given samples lie in their sets (after weighting): n = {n} of "
                    "these and 8 more are needed"
                )
            rest = torch.ones(len(free), dtype=torch.bool, device=free.device).index_fill_(0, kept[:n], False)
            fit, own, chains = free[rest], free[kept[:n]], None
        each = torch.arange(n).repeat_interleave(repeats)
        model = target if chains is None else target.take(chains)
        model = model.take(each) if repeats > 1 else model
        where = family(own[each.to(own.device)]) if repeats > 1 else family(own)
        result = sample(model, where, method, len(each), decoder=decoder, seed=runs + 1, check=False, run=plain)
        weights = result.weights.reshape(n, repeats).cpu()
        chosen = torch.multinomial(weights, 1, generator=draw)[:, 0] + repeats * torch.arange(n)
        x = result.samples[chosen.to(result.samples.device)]

        def more(points: Tensor) -> Features:
            found = {name: f(points) for name, f in (features or {}).items()}
            found |= _residuals(target, points, fit, residuals, draw) if residuals and decoder is None else {}
            values = [value.reshape(len(points), -1)[:, :1] for value in found.values()]
            return Features(list(found), torch.cat([points.new_zeros(len(points), 0), *values], 1))

        check = exchangeable(x, own.to(x.device), fit, more=more, flips=flips, generator=draw)
    return replace(check, evaluations=repeats * result.cost.score_evaluations)


def _free(
    target: Target,
    family: Callable[[Tensor], Constraint],
    measure: str,
    n: int,
    decoder: Decoder | None,
    seed: int,
    run: Run,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Samples of the model for the features, samples in their sets for the pairs, and the chains of the latter."""
    count = n if target.chains is None else target.chains
    own, chains = list[Tensor](), list[Tensor]()
    fit = sample(target, None, "auto", count, decoder=decoder, seed=seed, check=False, run=run).samples
    for k in range(ROUNDS):
        drawn = sample(target, None, "auto", count, decoder=decoder, seed=seed + 2 + k, check=False, run=run).samples
        kept = _inside(drawn, family, measure, generator)
        own, chains = [*own, drawn[kept]], [*chains, kept.cpu()]
        if sum(map(len, own)) >= n:
            return fit, torch.cat(own)[:n], None if target.chains is None else torch.cat(chains)[:n]
    raise SettingError(
        f"{sum(map(len, own))} of {ROUNDS * count} samples of the model lie in their own sets, {n} are needed: the "
        "model hardly satisfies the inequalities, or family(y) does not contain y. Give samples of the model by free="
    )


def _inside(y: Tensor, family: Callable[[Tensor], Constraint], measure: str, generator: torch.Generator) -> Tensor:
    """Numbers of the points (n, *event) that lie in their own sets, thinned to the surface measure if asked for."""
    found = family(y)
    if not isinstance(found, Constraint):
        raise SettingError(f"family(y) must return a set, such as casal.Affine(...), got {type(found).__name__}")
    kept = torch.nonzero(found.violation(y) <= INSIDE)[:, 0]
    if measure == "value" or not len(kept):
        return kept
    log_root = _log_root(found.take(kept) if found.chains is not None else found, y[kept])
    if log_root is None:
        return kept
    chance = (log_root - log_root.max()).exp().cpu()
    return kept[(torch.rand(len(kept), generator=generator, dtype=torch.float64) < chance).to(kept.device)]


def _log_root(constraint: Constraint, z: Tensor) -> Tensor | None:
    """log (det J J^T)^(1/2) of the equations at points (n, *event), (n,); None where it is the same at all points."""
    surface = geometry.parts(constraint, tuple(z.shape[1:])).surface
    if surface is None or surface.linear(tuple(z.shape[1:])) is not None:
        return None
    return 0.5 * log_gram(jacobian(surface.equations, z.to(torch.float64))[0])


def _residuals(target: Target, x: Tensor, fit: Tensor, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """log |x - D(x + sigma w)|^2 at some levels; a sample and its pair, x[i] and x[n + i], share their noise w."""
    table, denoise = target.table, target.denoise
    if denoise is None or table.alpha is None or table.sigma is None or target.condition:
        raise SettingError("residuals are for models with a denoiser and without a condition; leave residuals out")
    level = table.sigma / table.alpha
    low, high = float(target.finest or level.min()), min(float(level.max()), float(fit.std(0).max()))
    found = dict[str, Tensor]()
    for s in torch.logspace(math.log10(low), math.log10(max(high, 2 * low)), count + 2, dtype=torch.float64)[1:-1]:
        w = (
            torch.randn(x[: len(x) // 2].shape, generator=generator, dtype=torch.float64)
            .to(x)
            .repeat(2, *[1] * (x.ndim - 1))
        )
        left = x - denoise(x + float(s) * w, s.to(x)).to(x)
        found[f"size of what the denoiser changes at sigma = {float(s):.2g}"] = left.flatten(1).square().sum(1).log()
    return found
