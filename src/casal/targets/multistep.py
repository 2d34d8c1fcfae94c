"""Rows with memory: solvers of second order and multistep solvers as tables.

Any sampler whose state is linear in the start x_0, in the denoised estimates D_k and in the noise w_k has rows

    x_(k+1) = a_k x_k + c_k D_k + m_k1 D_(k-1) + ... + m_kp D_(k-p) + s_k w_k

if the older estimates reach x_(k+1) through x_k alone. Heun's second evaluation, DPM-Solver++ (2M, 3M) and UniPC are of
this kind: their earlier states can be written as x_k and a few estimates. With D = (x + sigma^2 score) / alpha the
first two terms are those of a plain row, a = a_k + c_k / alpha and b = c_k sigma^2 / alpha.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.targets.base import Table, Target
from casal.targets.network import implicit_rows, next_values

LONGEST = 3
"""Estimates before the present one that a row may use."""

ROUNDED = 3e-6
"""What may be left of a state that no row explains, in units of its largest coefficient: many schedulers round their
numbers to float32."""

SAME_LEVEL = 1e-6
"""Relative change of sigma / alpha up to which two rows are at one noise level."""

FAINT = 0.125
"""The signal of the first row in units of that of the second, below which the first counts as pure noise."""


class Recursion(NamedTuple):
    """The rows of a linear sampler.

    Attributes:
        state: Gain of x (T,).
        clean: Gain of the estimate of the row (T,).
        memory: Gains of the estimates before (T, p), p >= 0.
    """

    state: Tensor
    clean: Tensor
    memory: Tensor


def recursion(states: Tensor) -> Recursion:
    """Find the rows of a sampler from the coefficients of its states.

    Args:
        states: Coefficients of x_0 ... x_T, (T + 1, 1 + 2 T) float64: in the start, the estimates D_0 ... D_(T-1) and
            the noises w_0 ... w_(T-1).

    Raises:
        SettingError: A state needs more than x and the estimates of LONGEST rows before.

    >>> eye = torch.eye(5, dtype=torch.float64)
    >>> x1 = 0.5 * eye[0] + 0.5 * eye[1]
    >>> recursion(torch.stack([eye[0], x1, 0.1 * x1 + 1.2 * eye[2] - 0.3 * eye[1]])).memory.T
    tensor([[ 0.0000, -0.3000]], dtype=torch.float64)
    """
    steps = len(states) - 1
    worst = 0.0
    for back in range(min(LONGEST, steps - 1) + 1):  # the shortest memory: a long one explains a few steps of anything
        found, worst = _fit(states, back)
        if worst <= ROUNDED:
            return found
    raise SettingError(
        f"a step depends on more than x and the estimates of the {LONGEST} steps before it: {worst:.3g} of a state is "
        f"left unexplained (limit {ROUNDED:g})"
    )


def _fit(states: Tensor, back: int) -> tuple[Recursion, float]:
    """Rows with so much memory, and the largest part of a state that they leave unexplained."""
    steps = len(states) - 1
    state, clean, memory = states.new_zeros(steps), states.new_zeros(steps), states.new_zeros(steps, back)
    worst = 0.0
    for k in range(steps):
        here, there = states[k], states[k + 1]
        recent = [1 + k - j for j in range(back + 1) if j <= k]
        deep = torch.ones_like(here)
        deep[[*recent, 1 + steps + k]] = 0.0
        size = (deep * here).square().sum()
        state[k] = (deep * here * there).sum() / size if float(size) > 0.0 else 0.0
        rest = there - state[k] * here
        gains = rest[recent]
        clean[k], memory[k, : len(recent) - 1] = gains[0], gains[1:]
        worst = max(worst, float((deep * rest).abs().max() / here.abs().max().clamp_min(1.0)))
    return Recursion(state, clean, memory), worst


def multistep_table(rows: Recursion, s: Tensor, t: Tensor, alpha: Tensor, sigma: Tensor) -> Table:
    """The table of a recursion, x = alpha x0 + sigma noise before every row.

    A first row without signal (alpha = 0: zero terminal SNR, flow matching at t = 1) has a score that says nothing of
    the estimate. The score is then written as if a little signal were left, an eighth of that of the second row. This
    changes what "score" means in that row, by as little, and no step: ``alpha`` of the table says how to read it.
    """
    alpha = alpha.clone()
    if len(alpha) > 1:
        alpha[0] = torch.maximum(alpha[0], FAINT * alpha[1])
    if not bool((alpha > 0).all() and (sigma > 0).all()):
        raise SettingError("all rows but the first need some signal, and all of them some noise")
    a, b = rows.state + rows.clean / alpha, rows.clean * sigma.square() / alpha
    return Table(a, b, s, t, alpha=alpha, sigma=sigma, memory=rows.memory if rows.memory.shape[1] else None)


def first_order(target: Target) -> Target:
    """The same model with rows without memory, for methods that move chains between rows.

    The rows are those of DDIM between the same noise levels (of ancestral sampling if the table has noise); a level
    that is visited twice, as by Heun's method, is visited once.
    """
    table = target.table
    if table.memory is None or table.alpha is None or table.sigma is None:
        return target
    ratio = table.sigma / table.alpha
    kept = torch.cat([torch.ones(1, dtype=torch.bool), ratio[1:] < (1.0 - SAME_LEVEL) * ratio[:-1]])
    alpha, sigma = table.alpha[kept], table.sigma[kept]
    eta = 1.0 if bool(table.s.any()) else 0.0
    a, b, s = implicit_rows(alpha, sigma, next_values(alpha, 1.0), next_values(sigma, 0.0), eta)
    return replace(target, table=Table(a, b, s, table.t[kept], alpha=alpha, sigma=sigma))
