"""What all particles do together: agree on the moments of f, weigh each other, and draw anew by their weights."""

from __future__ import annotations

import torch

from casal.methods.look_ahead.features import Features
from casal.methods.look_ahead.look import Looks, moments
from casal.methods.look_ahead.potential import potential
from casal.methods.look_ahead.state import PARTICLES, SEEN, AheadState, flat, fold
from casal.methods.population import Groups, draw, effective_size, normalised


def settled(state: AheadState, features: Features, level: float, middle: float) -> AheadState:
    """The state with the moments of f and log psi.

    A soft term that is not quadratic counts to the power (middle / level)^2 above the middle level: there a local look
    at it is poor.

    Args:
        state: What every particle has seen.
        features: f, with the set of every particle.
        level: The noise level.
        middle: The level where modes are decided.
    """
    width = state.x.shape[1]
    power = min(1.0, (middle / level) ** 2)
    if power < 1.0 and state.tilt.shape[2] and not float(state.even):
        state = state._replace(level=power * state.level, tilt=power * state.tilt, stiff=power * state.stiff)
    seen = Looks(*(flat(getattr(state, name)) for name in SEEN))
    found = moments(seen, features)
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
    found = draw(state.logs, groups, generator, ess, points=flat(state.estimate), width=width)
    if found is None:
        return state
    pick, after = found.chosen.reshape(-1), found.chosen.shape[1]  # shuffled, so any part of the chains stands for all
    taken = {name: fold(flat(getattr(state, name))[pick], after) for name in PARTICLES if name != "logs"}
    logs = found.log_weight
    return state._replace(
        **taken, logs=logs, log_weight=torch.logsumexp(logs, 1), ancestor=taken["lines"][:, 0], path=state.path
    )


def health(state: AheadState) -> dict[str, float]:
    """Effective size and starting particles left, for the trace."""
    weight = normalised(state.logs.reshape(-1))
    return {"ess": float(effective_size(weight)), "ancestors": float(len(state.lines.unique()))}
