"""Calibration of the look ahead on the model's own samples.

Chains run down the noise levels without any guide. At every level they note mean r and variance S of each row of f,
and at the end they see what f has become. Over the chains, a regression at every level

    f_end = shift + slope r,    ratio = mean[((f_end - shift - slope r)^2 + S_end) / S]

shows how far the look can be believed: slope and ratio are 1 for an exact model of Gaussian data. From then on the mean
is shift + slope r, the slopes are multiplied by slope and the covariance by the ratios. A slope that the chains cannot
tell, because r hardly varies at large noise, is drawn towards 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.methods.look_ahead.look import Moments

USUAL = 0.3
"""Standard deviation of slopes about 1, before any regression."""

RATIOS = (0.25, 16.0)
"""Bounds of the ratio of variances."""


def regression(levels: list[float], means: Tensor, variances: Tensor) -> Tensor:
    """Fits (K, 1 + 3 m): logarithm of the level, shifts, slopes and ratios.

    Args:
        levels: The noise levels, decreasing; at the last of them f counts as known.
        means: r of every chain, level and row, (n, K, m).
        variances: S, likewise.
    """
    end, end_variance, n = means[:, -1:], variances[:, -1:], len(means)
    away, end_away = means - means.mean(0), end - end.mean(0)
    power = away.square().mean(0)
    tiny = torch.finfo(power.dtype).tiny
    raw = (away * end_away).mean(0) / power.clamp_min(tiny)
    error = variances.mean(0) / (n * power.clamp_min(tiny))  # squared standard error of the slope
    slope = 1.0 + (raw - 1.0) * USUAL**2 / (USUAL**2 + error)
    shift = end.mean(0) - slope * means.mean(0)
    left = (end - shift - slope * means).square() + end_variance
    ratio = (left / variances).mean(0).clamp(*RATIOS)
    return torch.cat([torch.tensor(levels).to(power).log()[:, None], shift, slope, ratio], 1)


def calibrated(found: Moments, fits: Tensor, s: float) -> Moments:
    """Moments of f at a level, corrected by the fits at the levels around it; rows without a fit stay as they are."""
    rows = (fits.shape[1] - 1) // 3
    above = int((fits[:, 0] >= math.log(s)).sum()) - 1
    high, low = fits[max(above, 0)], fits[min(above + 1, len(fits) - 1)]
    gap = float(high[0] - low[0])
    part = min(1.0, max(0.0, (float(high[0]) - math.log(s)) / gap)) if gap > 0.0 else 0.0
    here = torch.lerp(high, low, part)[1:]
    extra = found.mean.shape[1] - rows
    nothing, ones = here.new_zeros(extra), here.new_ones(extra)
    shift, slope, ratio = here[:rows], here[rows : 2 * rows], here[2 * rows :]
    shift, slope, ratio = torch.cat([shift, nothing]), torch.cat([slope, ones]), torch.cat([ratio, ones])
    both = (ratio[:, None] * ratio).sqrt()
    return Moments(shift + slope * found.mean, both * found.linear, both * found.bent, slope * found.factor)
