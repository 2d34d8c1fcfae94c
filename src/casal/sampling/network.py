"""A look at a diffusion or flow model before a run: do its denoiser and its own sampler agree near the data?

A trained network is worst at small noise. A ladder that moves clean points by the denoiser at small noise then leaves
the model's own distribution. The look draws a few samples by the model's own table and calibrates the denoiser on them
(``casal.diagnostics.calibration``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from casal.diagnostics import calibration
from casal.methods import (
    LADDER_DIMENSION,
    RANGE,
    Context,
    centred,
    data_floor,
    gaussian,
    move,
    noise_levels,
    straight,
    table_rows,
)

LOOK_CHAINS, LOOK_NUMBERS, FEWEST_CHAINS = (32, 512), 1 << 14, 16
"""Samples that are drawn: at least and at most, and so many that they have about so many coordinates in all, over which
the calibration is a regression; and chains of a run below which none are drawn."""


SYMMETRIC = 0.1
"""Asymmetry up to which the derivative of a denoiser passes for a covariance."""


STRIDE, MOST_LEVELS = 3.0, 6
"""Levels at which a denoiser is compared with a linear one: factor between them, and how many at most."""


def look_chains(n: int, size: int) -> int:
    """Samples to draw for a run of n chains of so many coordinates."""
    least, most = LOOK_CHAINS
    return min(n, max(least, min(most, LOOK_NUMBERS // size)))


@dataclass(frozen=True)
class NetworkLook:
    """What was found.

    Attributes:
        erroneous: The score carries an error of its own at a noise level that the moves of a ladder would use.
        spread: Largest standard deviation of a coordinate of the model's own samples.
        slope: Smallest slope of the calibration at these levels.
        level: The level it belongs to.
        asymmetry: Of the derivative of the denoiser, see ``asymmetry``; nan where autograd finds no derivative,
            and in few dimensions, where no method uses it.
        gaussian: Whether the denoiser is linear in x up to rounding, see ``bend``; not looked at in few dimensions.
        evaluations: Evaluations of the network, each for one chain.
    """

    erroneous: bool
    spread: float
    slope: float
    level: float
    asymmetry: float
    gaussian: bool
    evaluations: int

    @property
    def uneven(self) -> bool:
        """Whether the derivative is not to be used as a covariance."""
        return self.asymmetry > SYMMETRIC


def look_at_network(context: Context, x: Tensor, seed: int, generator: torch.Generator) -> NetworkLook:
    """Draw samples from starting points x by the model's own table, and calibrate its denoiser on them."""
    before = context.usage.scores
    for row in table_rows(context):
        x = move(context, x, context.score(x, row.t), row, gaussian(context, len(x), generator))
    floor, _ = data_floor(context, x, generator)
    spread = _spread(x, context.groups())
    found = calibration(context.target, x, seed=seed)
    used = found.levels >= RANGE * floor  # reverse processes from small noise end below the floor
    wrong = bool((found.erroneous & used).any())
    worst = int(torch.where(used, found.slope, torch.inf).argmin())
    many = x[0].numel() > LADDER_DIMENSION
    uneven = asymmetry(context, x, spread, generator) if many else math.nan
    alike = many and not context.target.condition  # one Gaussian for all chains
    linear = alike and uneven <= SYMMETRIC and straight(bend(context, x, spread, generator), x.dtype)
    evaluations = context.usage.scores - before + found.evaluations * len(x)
    return NetworkLook(
        wrong, spread, float(found.slope[worst]), float(found.levels[worst]), uneven, linear, evaluations
    )


def _spread(x: Tensor, labels: Tensor | None) -> float:
    """Largest standard deviation of a coordinate, within groups of the same distribution if chains differ."""
    if labels is None or len(labels.unique()) > len(x) // 2:
        return float(x.std(0).max())
    labels = labels.to(x.device)
    free = 1.0 - len(labels.unique()) / len(x)
    return float((centred(x.flatten(1), labels).square().mean(0) / free).max().sqrt())


def asymmetry(context: Context, x: Tensor, spread: float, generator: torch.Generator) -> float:
    """How far the derivative J of the denoiser is from symmetric, at the noise levels ``spread`` and 3 ``spread``:

        rms of u.J v - v.J u  over  rms of |J u|,     u and v of random signs, at noisy samples x0 + s w.

    s^2 J is the covariance of x0 given the noisy point, so it is symmetric for an exact denoiser. Networks had 0.15 to
    0.43 (16 x 16 images, a small UNet). The larger of both levels counts; nan if autograd cannot see through it.
    """
    worst = 0.0
    for s in (spread, 3.0 * spread):
        y = x + s * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        u, v = (
            2.0 * torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype) - 1.0 for _ in range(2)
        )
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            clean = context.denoise(leaf, s)
            if not clean.requires_grad:
                return math.nan
            pulled_u, pulled_v = (torch.autograd.grad(clean, leaf, w, retain_graph=True)[0] for w in (u, v))
        context.usage.add_scores(2 * len(x))
        gap = ((pulled_u * v).flatten(1).sum(1) - (pulled_v * u).flatten(1).sum(1)).square().mean().sqrt()
        size = torch.stack([pulled_u, pulled_v]).square().flatten(2).sum(2).mean().sqrt()
        worst = max(worst, float(gap / size.clamp_min(torch.finfo(x.dtype).tiny)))
    return worst


def bend(context: Context, x: Tensor, spread: float, generator: torch.Generator) -> float:
    """How far the denoiser D is from linear in x, at noise levels from ``spread`` up to the first of the model:

        |w.(D_i - D) - (J^T w).(y_i - y)|  over  |w.(D_i - D)|,     and  |J_i^T w - J^T w|  over  |J^T w|

    over the noisy samples y_i = x0 + s noise, means over them without an index, and w of random signs. Both are zero
    for a Gaussian model, and only there: modes bend D. The largest counts, and the look ends where it is too large.
    """
    alpha, sigma = noise_levels(context.table)
    first, worst = float(sigma[0] / alpha[0]), 0.0
    for s in (spread * STRIDE**k for k in range(MOST_LEVELS)):
        if s > max(first, spread) or not straight(worst, x.dtype):
            break
        y = x + s * torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        w = 2.0 * torch.randint(0, 2, x.shape[1:], generator=generator, device=x.device).to(x.dtype) - 1.0
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            clean = context.denoise(leaf, s)
            (pulled,) = torch.autograd.grad(clean, leaf, w.expand_as(clean))
        context.usage.add_scores(len(x))
        pulled, clean, y = (v.detach().flatten(1).to(torch.float64) for v in (pulled, clean, y))
        along, seen = (y - y.mean(0)) @ pulled.mean(0), (clean - clean.mean(0)) @ w.flatten().to(torch.float64)
        misses = (seen - along).norm() / seen.norm(), (pulled - pulled.mean(0)).norm() / pulled.norm()
        worst = max(worst, *(math.inf if math.isnan(v) else float(v) for v in misses))
    return worst
