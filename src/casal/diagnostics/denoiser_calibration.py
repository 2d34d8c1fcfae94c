"""Whether the denoiser of a diffusion or flow model fits the model's own samples, level by level of the noise.

A network is trained at every noise level, but not equally well: near the data its score is an estimate of the noise
divided by a small number, and a small error of the estimate is a large error of the score. A method that moves chains
at a noise level where the network is wrong draws them away from the model's own distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.checks import positive
from casal.errors import SettingError, ShapeError
from casal.targets import Target

TOLERANCE = 0.1
"""Error of the slope up to which a level counts as calibrated, where the standard error allows to tell."""

CERTAIN = 3.0
"""Standard errors by which a slope must differ from one to count as wrong."""

LEVELS = 12
"""Levels if none are given: in equal ratios, from the model's finest level to WIDEST times the spread of the points."""

WIDEST = 2.0
FEWEST_POINTS = 16

NUMBERS_AT_ONCE = 1 << 22
"""Numbers that are noised together."""

NOT_THE_POINTS = 0x5EED_0F_D01
"""Added to the seed, so that points drawn with the same seed are not the noise that is added to them."""


@dataclass(frozen=True)
class Calibration:
    """How well a denoiser D fits samples x0, at every noise level s.

    Attributes:
        levels: Noise levels s in units of the clean sample, increasing, (L,).
        slope: Regression slope of the true displacement x0 - y on the denoiser's D(y, s) - y, y = x0 + s w; one for the
            exact denoiser. It is the factor that the model's score s^-2 (D - y) should be multiplied by, (L,).
        slope_error: Standard error of ``slope``, (L,).
        ratio: Mean squared error of D over the one that D itself implies, s E[w . (D(y, s) - x0)]; one for the exact
            denoiser. At small s both are nearly s^2 d, so look at the slope there, (L,).
        ratio_error: Standard error of ``ratio``, (L,).
        evaluations: Evaluations of the denoiser for each point.
        tolerance: Error of the slope that is allowed.
    """

    levels: Tensor
    slope: Tensor
    slope_error: Tensor
    ratio: Tensor
    ratio_error: Tensor
    evaluations: int
    tolerance: float = TOLERANCE

    @property
    def calibrated(self) -> Tensor:
        """Whether |slope - 1| is at most the larger of ``tolerance`` and CERTAIN standard errors, (L,) bool."""
        return (self.slope - 1.0).abs() <= self._allowed

    @property
    def erroneous(self) -> Tensor:
        """Whether the slope is below one by more than that: the score carries an error of its own, (L,) bool."""
        return ~(self.slope - 1.0 >= -self._allowed)

    @property
    def _allowed(self) -> Tensor:
        return (CERTAIN * self.slope_error).clamp(min=self.tolerance)

    @property
    def trusted_from(self) -> float | None:
        """The smallest level that is calibrated together with all larger ones; None if the largest is not."""
        good = self.calibrated.flip(0).long().cumprod(0).flip(0).bool()
        return float(self.levels[good][0]) if bool(good.any()) else None

    def __str__(self) -> str:
        rows = [
            f"sigma {float(s):8.3g}   slope {float(a):6.3f} ± {float(e):.3f}   error ratio {float(r):6.3f}"
            for s, a, e, r in zip(self.levels, self.slope, self.slope_error, self.ratio, strict=True)
        ]
        found = self.trusted_from
        rows.append("calibrated at no level" if found is None else f"calibrated from sigma = {found:.3g} on")
        return "\n".join(rows)


def calibration(
    target: Target,
    x0: Tensor,
    levels: Tensor | Sequence[float] | None = None,
    seed: int = 0,
    *,
    weight: Callable[[Tensor], Tensor] | None = None,
    tolerance: float = TOLERANCE,
) -> Calibration:
    """Compare the denoiser of a model with the model's own samples, at every noise level.

    With y = x0 + s w, w ~ N(0, I), the exact denoiser D(y, s) = E[x0 | y] leaves an error x0 - D that is orthogonal to
    every function of y. Taken with the function D - y this is

        E[(x0 - D) . (D - y)] = 0,       slope = E[(x0 - y) . (D - y)] / E|D - y|^2 = 1,
                                         ratio = E|D - x0|^2 / (s E[w . (D - x0)])  = 1.

    In terms of the score S = (D - y) / s^2 the slope is -E[div S] / E|S|^2 by partial integration. A slope below one
    means that the score is too steep or carries an error of its own: 0.5 if the error is as large as the score. A slope
    above one means that the points are narrower than the score says, as those of a sampler with few steps are (an
    exact flow with 20 ancestral steps has 1.4). Every w is used with both signs, which keeps the standard error of the
    slope about the same at all levels.

    A flow network with 64 hidden units on two Gaussians had slopes of 0.3, 0.5, 0.85 and 1.0 at 0.01, 0.02, 0.04 and
    0.07 after 12000 steps of training, and 0.05, 0.1, 0.2 and 0.3 after 600: there the score at small noise is error.

    A slope of one is necessary, not sufficient: errors that are orthogonal to D - y, or that sit where there are few
    samples, leave it as it is. ``weight`` looks at one place, such as the neighbourhood of a constraint.

    The points should follow the model's own distribution, such as ``casal.sample(target, C, Unconstrained(), n)``; then
    the question is whether denoiser and sampler agree. With training data it is whether the network has learned them.

    Args:
        target: A diffusion or flow model (it has ``denoise``).
        x0: Clean points (n, *event) in the model's space; a few thousand give a standard error of 0.03 and less.
            Point i belongs to row i of a condition.
        levels: Noise levels in units of the clean sample, any order; LEVELS of them if left out.
        seed: Of the noise.
        weight: Function of the noisy points (n, *event) -> (n,), >= 0; equal weights if left out.
        tolerance: Error of the slope up to which a level counts as calibrated.

    Returns:
        Slope and ratio of every level with standard errors, and the level from which on the denoiser can be trusted.

    Raises:
        SettingError: The model has no denoiser, or a level is not > 0.
        ShapeError: Fewer than FEWEST_POINTS points.
    """
    if target.denoise is None:
        raise SettingError(f"{target.name} has no denoiser to calibrate: give a diffusion or flow model")
    if x0.ndim < 2 or len(x0) < FEWEST_POINTS:
        raise ShapeError(f"x0 has shape {tuple(x0.shape)}; give at least {FEWEST_POINTS} points (n, *event)")
    if target.chains not in (None, len(x0)):
        raise ShapeError(
            f"{len(x0)} points for a model with conditions of {target.chains} chains; target.take(index) is the model "
            "of some of them"
        )
    given = default_levels(target, x0) if levels is None else torch.as_tensor(levels, dtype=torch.float64).reshape(-1)
    if not len(given) or not bool((torch.isfinite(given) & (given > 0)).all()):
        raise SettingError(f"levels must be finite and > 0, got {given.tolist()}")
    generator = torch.Generator(x0.device).manual_seed(seed + NOT_THE_POINTS)
    rows, together = [], max(1, NUMBERS_AT_ONCE // x0[0].numel())
    with torch.no_grad():
        for s in given.sort().values.tolist():
            parts = [
                _moments(target.take(slice(start, start + together)), some, s, generator, weight)
                for start, some in zip(range(0, len(x0), together), x0.split(together), strict=True)
            ]
            found, square, error, implied = torch.cat(parts).unbind(1)
            rows.append(torch.tensor([*_quotient(found, square), *_quotient(error, implied)], dtype=torch.float64))
    slope, slope_error, ratio, ratio_error = torch.stack(rows).unbind(1)
    return Calibration(
        given.sort().values.cpu(),
        slope,
        slope_error,
        ratio,
        ratio_error,
        evaluations=2 * len(given),
        tolerance=positive(tolerance, "tolerance"),
    )


def default_levels(target: Target, x0: Tensor) -> Tensor:
    """LEVELS noise levels from the finest of the model's table up to WIDEST times the spread of a coordinate of x0."""
    table = target.table
    if table.alpha is None or table.sigma is None:
        raise SettingError(f"{target.name} has no table of noise levels; give levels")
    known = table.sigma / table.alpha
    low, high = float(known.min()), float(known.max())
    spread = float(x0.to(torch.float64).var(0).mean().sqrt())
    top = min(high, max(WIDEST * spread, 4.0 * low))
    ramp = torch.linspace(0.0, 1.0, LEVELS, dtype=torch.float64)
    return low * (top / low) ** ramp if top > low else torch.tensor([low], dtype=torch.float64)


def _moments(
    target: Target, x0: Tensor, s: float, generator: torch.Generator, weight: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """(x0 - y) . (D - y), |D - y|^2, |D - x0|^2, (y - x0) . (D - x0) of every point, mean over both signs, (n, 4)."""
    assert target.denoise is not None
    level = torch.as_tensor(s, dtype=torch.float64, device=x0.device)
    w = torch.randn(x0.shape, generator=generator, dtype=x0.dtype, device=x0.device)
    total = torch.zeros((len(x0), 4), dtype=torch.float64, device=x0.device)
    for sign in (1.0, -1.0):
        y = x0 + (sign * s) * w
        clean = target.denoise(y, level, **target.condition)
        added, change = ((v - start).reshape(len(x0), -1).to(torch.float64) for v, start in ((y, x0), (clean, y)))
        left = change + added
        terms = torch.stack([-added * change, change * change, left * left, added * left]).sum(2).T
        if weight is not None:
            terms = terms * weight(y).to(torch.float64).reshape(-1, 1)
        total += terms / 2
    return total


def _quotient(above: Tensor, below: Tensor) -> tuple[float, float]:
    """The quotient of two means and its standard error."""
    mean = below.mean()
    value = above.mean() / mean
    error = (above - value * below).std() / (mean.abs() * len(above) ** 0.5)
    return float(value), float(error)
