"""What all particles do together: agree on the moments of f, weigh each other, and draw anew by their weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casal.methods.look_ahead.calibration import calibrated
from casal.methods.look_ahead.features import Features
from casal.methods.look_ahead.look import Looks, moments
from casal.methods.look_ahead.potential import potential
from casal.methods.look_ahead.state import PARTICLES, SEEN, AheadState, flat, fold
from casal.methods.smc import Groups, effective_size, normalised, systematic

LIKENESS = 4
"""Principal directions by which particles are put in order."""


def settled(state: AheadState, features: Features, level: float, middle: float, noted: int) -> AheadState:
    """The state with the moments of f and log psi.

    A soft term that is not quadratic counts to the power (middle / level)^2 above the middle level: there a local look
    at it is poor.

    Args:
        state: What every particle has seen.
        features: f, with the set of every particle.
        level: The noise level.
        middle: The level where modes are decided.
        noted: Levels of the calibration, if there is one.
    """
    width = state.x.shape[1]
    power = min(1.0, (middle / level) ** 2)
    if power < 1.0 and state.tilt.shape[2] and not float(state.even):
        state = state._replace(level=power * state.level, tilt=power * state.tilt, stiff=power * state.stiff)
    seen = Looks(*(flat(getattr(state, name)) for name in SEEN))
    found = moments(seen, features)
    if state.fits.shape[1]:
        found = calibrated(found, flat(state.fits)[:noted], level)
    value = potential(found.mean, found.linear + found.bent, features, seen.tilt, seen.stiff).value
    return state._replace(
        mean=fold(found.mean, width),
        covariance=fold(found.linear, width),
        rest=fold(found.bent, width),
        factor=fold(found.factor, width),
        log_psi=fold(value + seen.log_area + seen.level, width),
    )


def resampled(
    state: AheadState, generator: torch.Generator, groups: Groups, ess: float, width: int | None = None
) -> AheadState:
    """Draw the particles of every group anew by their weights if the effective size is below a share ``ess``."""
    n, before = state.logs.shape
    after, old = width or before, state.logs.reshape(-1)
    index, logs, drawn = torch.arange(n * before, device=old.device), old.clone(), after != before
    chosen = torch.empty(n, after, dtype=torch.long, device=old.device) if drawn else index.reshape(n, after)
    for chains in groups.each(state.log_weight):
        some = (chains[:, None] * before + torch.arange(before, device=old.device)).reshape(-1)
        weight = normalised(old[some])
        if float(effective_size(weight)) < ess * len(some):
            drawn = True
            order = by_likeness(flat(state.estimate)[some])
            kept = systematic(weight[order], generator, len(chains) * after)
            shuffled = kept[torch.randperm(len(kept), generator=generator, device=generator.device).to(kept.device)]
            chosen[chains] = some[order[shuffled]].reshape(-1, after)  # any part of the chains stands for all
            logs[some] = 0.0
    if not drawn:
        return state
    pick = chosen.reshape(-1)
    taken = {name: fold(flat(getattr(state, name))[pick], after) for name in PARTICLES if name != "logs"}
    logs = logs.reshape(n, before)[:, :after] if after != before else logs.reshape(n, before)
    return state._replace(
        **taken, logs=logs, log_weight=torch.logsumexp(logs, 1), ancestor=taken["lines"][:, 0], path=state.path
    )


def health(state: AheadState) -> dict[str, float]:
    """Effective size and starting particles left, for the trace."""
    weight = normalised(state.logs.reshape(-1))
    return {"ess": float(effective_size(weight)), "ancestors": float(len(state.lines.unique()))}


def truncated(logs: Tensor) -> Tensor:
    """Log-weights of which none is above sqrt(count) times the mean (Ionides 2008): a network may err at one point."""
    mean = torch.logsumexp(logs.reshape(-1), 0) - math.log(logs.numel())
    return logs.clamp_max(float(mean) + 0.5 * math.log(logs.numel()))


def by_likeness(points: Tensor, leaf: int = 4) -> Tensor:
    """An order (n,) of points (n, ...) in which neighbours are alike: halved again and again along their widest axis.

    Systematic resampling in this order draws every region, and so every mode, in proportion to its weight, rounded.
    The axes are the leading principal directions.
    """
    x = points.flatten(1).to(torch.float64)
    x = x - x.mean(0)
    count = min(LIKENESS, *x.shape)
    gram = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    values, axes = torch.linalg.eigh(gram)
    leading = axes[:, -count:]
    flat_points = x @ leading if x.shape[1] <= len(x) else leading * values[-count:].clamp_min(0.0).sqrt()
    order, open_parts = list[Tensor](), [torch.arange(len(x), device=x.device)]
    while open_parts:
        part = open_parts.pop()
        if len(part) <= leaf:
            order.append(part)
            continue
        here = flat_points[part]
        part = part[here[:, here.var(0).argmax()].argsort(stable=True)]
        half = len(part) // 2
        open_parts += [part[half:], part[:half]]
    return torch.cat(order)
