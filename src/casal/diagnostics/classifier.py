"""Classifier two-sample test."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.diagnostics.distance import Distance, generator_of, normalised, pair
from casal.errors import SettingError, ShapeError
from casal.methods import effective_size

NEWTON_STEPS = 12


def classifier_test(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    score: Literal["accuracy", "auc"] = "accuracy",
    features: int = 128,
    folds: int = 5,
    ridge: float = 1.0,
    seed: int = 0,
) -> Distance:
    """How well a classifier tells x from y on points it has not seen: 1/2 if the laws agree, 1 if they are apart.

    Logistic regression, fitted by Newton's method with a ridge, on standardised coordinates, their squares, and
    random waves cos(omega . z + phase); cross-validated. Accuracy is the mean of the two classes' hit rates, so
    unequal sizes do not matter. The floor is 1/2, its standard deviation binomial (Mann-Whitney's for the AUC) at the
    effective sizes.

    Reference: D. Lopez-Paz and M. Oquab, Revisiting classifier two-sample tests, 2017.

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        score: Hit rate, or area under the curve, which is finer for small differences.
        features: Random waves.
        folds: Parts, each classified by a fit to the others.
        ridge: Penalty on the coefficients, in units of one sample.
        seed: Of waves and folds.
    """
    if score not in ("accuracy", "auc"):
        raise SettingError(f"score must be 'accuracy' or 'auc', got {score!r}")
    x, y = pair(x, y)
    folds = whole_number(folds, "folds", 2)
    if min(len(x), len(y)) < folds:
        raise ShapeError(f"{folds} folds need as many samples of both kinds, got {len(x)} and {len(y)}")
    generator = generator_of(seed, x)
    a, b = normalised(weights, x), normalised(reference_weights, y)
    sizes = float(effective_size(a)), float(effective_size(b))
    label = torch.cat([torch.ones_like(a), torch.zeros_like(b)])
    mass = torch.cat([a, b]) * 0.5 * sum(sizes)
    inputs = _features(torch.cat([x, y]), features, generator)
    fold = torch.cat([_folds(len(x), folds, generator), _folds(len(y), folds, generator)])
    logit = torch.empty_like(label)
    for part in range(folds):
        seen = fold != part
        logit[~seen] = inputs[~seen] @ _logistic(inputs[seen], label[seen], mass[seen], ridge)
    return _accuracy(logit, a, b, sizes) if score == "accuracy" else _auc(logit, a, b, sizes)


def _features(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    spread = z.std(0)
    z = (z - z.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    shape = (z.shape[1], count)
    omega = torch.randn(shape, generator=generator, dtype=z.dtype, device=z.device)
    # Waves from long to short: half to twice the typical distance of two points.
    omega = omega * torch.logspace(-0.5, 0.5, count, dtype=z.dtype, device=z.device) / math.sqrt(z.shape[1])
    phase = 2.0 * math.pi * torch.rand(count, generator=generator, dtype=z.dtype, device=z.device)
    waves = torch.cos(z @ omega + phase)
    return torch.cat([torch.ones_like(z[:, :1]), z, z.square() - 1.0, waves], dim=1)


def _folds(n: int, folds: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device) % folds


def _logistic(inputs: Tensor, label: Tensor, mass: Tensor, ridge: float) -> Tensor:
    """Coefficients of the penalised fit; damped where a full Newton step would leave the quadratic's range."""
    w = inputs.new_zeros(inputs.shape[1])
    penalty = torch.full_like(w, ridge).diag()
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(inputs @ w)
        slope = inputs.T @ (mass * (p - label)) + ridge * w
        curve = (inputs.T * (mass * p * (1.0 - p))) @ inputs + penalty
        step = torch.linalg.solve(curve, slope)
        longest = float((inputs @ step).abs().max())
        w = w - step * min(1.0, 5.0 / max(longest, 1e-12))
    return w


def _accuracy(logit: Tensor, a: Tensor, b: Tensor, sizes: tuple[float, float]) -> Distance:
    right_x = float(((logit[: len(a)] > 0) * a).sum())
    right_y = float(((logit[len(a) :] <= 0) * b).sum())
    error = 0.5 * math.sqrt(right_x * (1 - right_x) / sizes[0] + right_y * (1 - right_y) / sizes[1])
    return Distance(0.5 * (right_x + right_y), error, 0.5, 0.25 * math.sqrt(1 / sizes[0] + 1 / sizes[1]))


def _auc(logit: Tensor, a: Tensor, b: Tensor, sizes: tuple[float, float]) -> Distance:
    """P(logit of x > logit of y), ties half; its error from the ranks of each class (DeLong)."""
    lx, ly = logit[: len(a)], logit[len(a) :]
    beaten, lost = _below(ly, b, lx), _below(lx, a, ly)
    value = float((a * beaten).sum())
    variance = float((a * (beaten - value).square()).sum()) / sizes[0]
    variance += float((b * (lost - (1.0 - value)).square()).sum()) / sizes[1]
    floor_sd = math.sqrt((sizes[0] + sizes[1] + 1.0) / (12.0 * sizes[0] * sizes[1]))
    return Distance(value, math.sqrt(variance), 0.5, floor_sd)


def _below(values: Tensor, mass: Tensor, at: Tensor) -> Tensor:
    """Share of weighted values below each point, ties half."""
    ordered, order = values.sort()
    total = torch.cat([mass.new_zeros(1), mass[order].cumsum(0)])
    return 0.5 * (total[torch.searchsorted(ordered, at)] + total[torch.searchsorted(ordered, at, right=True)])
