"""A quadrotor that flies in a plane, linearised about hover, and inputs that excite it.

With the rotor forces u_1, u_2 above those of hover (Tedrake, "Underactuated Robotics", chapter on acrobots, cart-poles
and quadrotors),

    x'' = -g theta,     z'' = (u_1 + u_2) / m,     theta'' = (r / I) (u_1 - u_2).

``planar`` is this model. ``tilting`` is the paper's, where the tilt itself is the input: y'' = g u. Both start at rest
and are discretised exactly for inputs that are held for ``dt`` (``casal.LinearDynamics``).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from casal import LinearDynamics
from casal_lab.experiment import Array

GRAVITY = 9.81
STEPS, INTERVAL = 200, 0.01
"""Samples of a trajectory, and the seconds between them: both as in the paper."""

TILT = 0.5
"""Largest tilt, rad; the paper's u_max, whose value it does not give."""

MASS, ARM, INERTIA = 0.486, 0.25, 0.00383
"""kg, m, kg m^2."""

FORCE = 2.0
"""Largest force of a rotor beyond hover, N. Hover takes m g / 2 = 2.38 N of each, so no rotor ever pulls down."""


def tilting(u_max: float = TILT, scale_y: float = 1.0, scale_u: float = 1.0, steps: int = STEPS) -> LinearDynamics:
    """y'' = g u, |u| <= u_max: events (steps, 2) of the position and the tilt, in units of the two scales."""
    return LinearDynamics.double_integrator(
        GRAVITY, steps=steps, dt=INTERVAL, u_max=u_max, scale_y=scale_y, scale_u=scale_u
    )


def planar(
    u_max: float = FORCE, scale_y: Array | float = 1.0, scale_u: Array | float = 1.0, steps: int = STEPS
) -> LinearDynamics:
    """The planar model: events (steps, 5) of x, z, theta and the two forces, in units of the scales."""
    A, B = np.zeros((6, 6)), np.zeros((6, 2))
    A[:3, 3:] = np.eye(3)
    A[3, 2] = -GRAVITY
    B[4] = 1.0 / MASS
    B[5] = ARM / INERTIA, -ARM / INERTIA
    return LinearDynamics(A, B, steps, INTERVAL, u_max, scale_y=scale_y, scale_u=scale_u, outputs=(0, 1, 2))


def _sines(n: int, rng: np.random.Generator, steps: int, *, rest: bool = False) -> Array:
    """Sums of three sines of random frequency (0.2 to 1.5 Hz), size and phase, (n, steps).

    With ``rest`` they are sums of a (1 - cos), which start at rest.
    """
    time = np.arange(steps) * INTERVAL
    total = np.zeros((n, steps))
    for _ in range(3):
        frequency, size, phase = rng.uniform(0.2, 1.5, n), rng.uniform(0, 1, n), rng.uniform(0, 2 * np.pi, n)
        size = size / np.sqrt(np.maximum(frequency, 0.5))
        angle = 2 * np.pi * frequency[:, None] * time
        wave = np.sign(phase[:, None] - np.pi) * (1.0 - np.cos(angle)) if rest else np.sin(angle + phase[:, None])
        total += size[:, None] * wave
    return total


def _rescaled(signal: Array, largest: float, rng: np.random.Generator) -> Array:
    """Each signal rescaled to a random largest value, 20 % to 100 % of ``largest``."""
    return largest * signal / np.abs(signal).max(1, keepdims=True) * rng.uniform(0.2, 1, len(signal))[:, None]


def tilt_inputs(n: int, seed: int, u_max: float = TILT, steps: int = STEPS) -> Array:
    """Random periodic tilts (n, steps) in rad: sums of three sines, rescaled to 20 % to 100 % of u_max."""
    rng = np.random.default_rng(seed)
    return _rescaled(_sines(n, rng, steps), u_max, rng)


def force_inputs(n: int, seed: int, steps: int = STEPS) -> Array:
    """Random rotor forces (n, steps, 2) in N, whose tilt stays near or below TILT.

    The tilt is a sum of three a (1 - cos), the common force a sum of three sines up to 0.4 of the weight.
    """
    rng = np.random.default_rng(seed)
    theta = _rescaled(_sines(n, rng, steps + 1, rest=True), TILT, rng)
    theta = np.concatenate([theta[:, 1:2], theta], axis=1)  # 1 - cos is even
    moment = np.diff(theta, n=2, axis=1) / INTERVAL**2 * INERTIA / ARM
    lift = _rescaled(_sines(n, rng, steps), 0.4 * MASS * GRAVITY, rng)
    return np.stack([lift + moment, lift - moment], axis=2) / 2.0


APART = 0.05
"""Metres: two paths this far apart (rms) are distinct."""


def distinct(paths: Tensor) -> int:
    """Greedy count of paths (m, S) or (m, S, p) in metres, no two nearer than APART."""
    kept: list[Tensor] = []
    for path in paths if paths.ndim > 2 else paths[:, :, None]:
        if not kept or float((torch.stack(kept) - path).square().sum(2).mean(1).min()) > APART**2:
            kept.append(path)
    return len(kept)


def clipped(model: LinearDynamics, z: Tensor) -> Tensor:
    """Inputs (n, S, q) of events z in physical units, clipped to u_max, float64."""
    u = model.physical(z)[1].to(torch.float64)
    limit = model.u_max.to(u)
    return torch.clamp(u, -limit, limit)


def flown(model: LinearDynamics, z: Tensor) -> Tensor:
    """Outputs (n, S, o) in physical units of the inputs of events z, clipped to u_max: what the vehicle would fly.

    This is the certificate of a trajectory. It looks at the inputs alone, so no claim about the outputs is taken on
    trust.
    """
    return model.rollout(clipped(model, z))[..., model.outputs]
