"""The last draw: x0 given the noisy point x and given that the constraint is met, to first order in the last level.

    x0 = D + s J J^(-1/2) w ~ N(D, C),   then pushed along the slopes, x0 += s^2 G^T linear^-1 (f - f(x0)),

to an f that is drawn first, row after row: zero for an equation, within its bounds for an inequality, tilted by the
soft term for its rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from casal.constraints import truncated_normal
from casal.devices import cholesky, solve
from casal.methods.base import gaussian
from casal.methods.look_ahead.features import Features
from casal.methods.look_ahead.look import Ahead, Derivative
from casal.methods.look_ahead.state import AheadState, ahead_of
from casal.methods.problem import Problem

CORRECTIONS = 3
"""Pushes along the slopes by which a last draw gets the f that it shall have."""


def last_draw(problem: Problem, state: AheadState, features: Features, s: float, generator: torch.Generator) -> Tensor:
    """x0 ~ N(D, C) given f(x0) in C, to first order, (n, *latent)."""
    x = state.x[:, 0]
    model = Derivative(problem, x, s)
    w = model.inverse_root(gaussian(problem, len(x), generator).flatten(1))
    free = model.estimate + (s * model.pull(w)).reshape(x.shape).to(x.dtype)  # s J J^(-1/2) noise
    ahead = ahead_of(state, features)
    scale, own = state.factor[:, 0], state.slopes[:, 0]
    soft = s * (own[:, features.count :] @ w.to(own)[..., None])[..., 0]
    wanted = _wanted(ahead, features, generator)
    linear = state.covariance[:, 0] / (scale[:, :, None] * scale[:, None])
    point = free
    for _ in range(CORRECTIONS):  # f bends, so one push along its slopes is not all
        gap = wanted - torch.cat([features.values(point), soft], 1)
        push = s**2 * (own.mT @ solve(linear, gap[..., None]))[..., 0]
        point, soft = point + push.reshape(x.shape).to(x.dtype), wanted[:, features.count :]
    return point


def _wanted(ahead: Ahead, features: Features, generator: torch.Generator) -> Tensor:
    """The f that x0 shall have, row after row given those before.

    Zero for an equation, a draw within the bounds for an inequality, a draw tilted by the soft term for its rows.
    """
    e, m = features.equal, features.count
    wanted, white = torch.zeros_like(ahead.mean), torch.zeros_like(ahead.mean)
    if e == ahead.mean.shape[1]:
        return wanted
    root = cholesky(ahead.linear + ahead.bent)
    for i in range(m):
        centre = ahead.mean[:, i] + (root[:, i, :i] * white[:, :i]).sum(1)
        spread = root[:, i, i]
        if i < e:
            white[:, i] = -centre / spread
            continue
        low, high = ((side[:, i - e] - centre) / spread for side in (features.low, features.high))
        white[:, i] = truncated_normal(torch.zeros_like(centre), 1.0, low, high, generator)
        wanted[:, i] = centre + spread * white[:, i]
    if features.rank:
        centre = ahead.mean[:, m:] + (root[:, m:, :m] @ white[:, :m, None])[..., 0]
        inner = root[:, m:, m:]
        eye = torch.eye(features.rank, dtype=root.dtype, device=root.device)
        narrow = cholesky(eye + inner.mT @ ahead.stiff @ inner)  # precision of the white noise
        pull = inner.mT @ (ahead.tilt - (ahead.stiff @ centre[..., None])[..., 0])[..., None]
        noise = torch.randn(centre.shape, generator=generator, dtype=torch.float64, device=centre.device)
        moved = torch.cholesky_solve(pull, narrow) + torch.linalg.solve_triangular(
            narrow.mT, noise[..., None], upper=True
        )
        wanted[:, m:] = centre + (inner @ moved)[..., 0]
    return wanted
