"""Coupling the constraint to the denoised estimate instead of the noisy state."""

from __future__ import annotations

from torch import Tensor

from casal.errors import SettingError
from casal.methods.context import Context
from casal.targets import Table


def noise_levels(table: Table) -> tuple[Tensor, Tensor]:
    """alpha and sigma of every row, x = alpha x0 + sigma noise; refused where there is no noise to remove."""
    if table.alpha is None or table.sigma is None:
        raise SettingError("a fixed density has no denoised estimate; use couple='state'")
    return table.alpha, table.sigma


def estimate(x: Tensor, score: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """D(x) = (x + sigma^2 score(x)) / alpha: the mean of the clean sample (Tweedie)."""
    return (x + sigma**2 * score) / alpha


def score_of(x: Tensor, clean: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The score whose denoised estimate is ``clean``."""
    return (alpha * clean - x) / sigma**2


def pull_estimate(context: Context, clean: Tensor, goal: Tensor, strength: Tensor) -> Tensor:
    """(I + strength A^T A)^-1 (D + strength A^T goal): the estimate moved so that its image nears ``goal``."""
    back = context.decoder.vjp(clean)(goal)
    return context.gram.solve(clean + strength * context.precondition(back), strength)
