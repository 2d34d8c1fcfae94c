"""Steps that are affine in (state, noise): read off their matrices, and push mean and covariance through exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import casal
from casal.methods import Each, Method, Problem

Array = npt.NDArray[np.float64]

MEAN = np.array([1.0, -1.0])
COVARIANCE = np.array([[2.0, 0.6], [0.6, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)
NORMAL = np.array([1.0, 1.0])
LEVEL = 1.0

_GAIN = COVARIANCE @ NORMAL / (NORMAL @ COVARIANCE @ NORMAL)
CONDITIONAL_MEAN = MEAN + _GAIN * (LEVEL - NORMAL @ MEAN)
CONDITIONAL_COVARIANCE = COVARIANCE - np.outer(_GAIN, NORMAL @ COVARIANCE)
"""N((1,-1), [[2,.6],[.6,.5]]) given x1 + x2 = 1: mean (1.70270, -0.70270), variance of x1 0.17297."""


class Moments(NamedTuple):
    """Mean and covariance of a flattened state."""

    mean: Array
    covariance: Array


def gaussian_target(steps: int, step_size: float | torch.Tensor, preconditioner: Any = None) -> casal.Target:
    """Langevin dynamics for the Gaussian of this module."""
    mean, precision = torch.as_tensor(MEAN), torch.as_tensor(PRECISION)
    return casal.langevin(
        lambda x: (x - mean.to(x)) @ precision.to(x),
        steps=steps,
        step_size=step_size,
        init=lambda n, g: torch.randn((n, 2), generator=g, dtype=torch.float64),
        preconditioner=preconditioner,
    )


def line() -> casal.Affine:
    """The line x1 + x2 = 1."""
    return casal.Affine(torch.as_tensor(NORMAL)[None], LEVEL)


def problem(target: casal.Target, constraint: casal.Constraint, decoder: casal.Decoder | None = None) -> Problem:
    """The problem as ``casal.sample`` sees it."""
    like = torch.zeros((0, 2), dtype=torch.float64)
    return Problem(target, constraint, (decoder or casal.Identity()).to(like), like)


def rows(p: Problem, method: Method[Any]) -> list[Any]:
    """All rows of a method whose chains do not meet."""
    return [row for stage in method.stages(p, 2) if isinstance(stage, Each) for row in stage.rows]


def matrices(p: Problem, method: Method[Any], row: Any, kind: Any, sizes: Sequence[int]) -> tuple[Array, ...]:
    """(F, G, c) of state' = F state + G noise + c, by stepping from the origin and from every unit vector."""
    total, width, stage = sum(sizes), sizes[0], method.stages(p, 2)[0]
    assert isinstance(stage, Each)

    def step(flat: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        state = kind(*torch.split(flat, list(sizes), dim=1))
        return torch.cat(list(stage.step(p, state, row, noise)), dim=1)

    eye = torch.eye(total + width, dtype=torch.float64)
    probes = torch.cat([torch.zeros((1, total + width), dtype=torch.float64), eye])
    out = step(probes[:, :total], probes[:, total:]).numpy()
    offset = out[0]
    slopes = (out[1:] - offset).T
    return slopes[:, :total], slopes[:, total:], offset


def reduced(F: Array, G: Array, c: Array) -> tuple[Array, Array, Array]:
    """A CASAL step in the coordinates (x normal, x tangential, z tangential, lam normal[, lam tangential]).

    On a flat set z has a fixed normal part, and with the full z-step the dual never turns tangential: what is left
    out would only add directions that nothing moves.
    """
    normal = NORMAL / np.linalg.norm(NORMAL)
    tangent = np.array([normal[1], -normal[0]])
    embed, origin = np.zeros((6, 5)), np.zeros(6)
    embed[0:2, 0], embed[0:2, 1], embed[2:4, 2], embed[4:6, 3], embed[4:6, 4] = (
        normal,
        tangent,
        tangent,
        normal,
        tangent,
    )
    origin[2:4] = normal * LEVEL / np.linalg.norm(NORMAL)
    leaves = F @ origin + c - origin
    if max(np.abs(embed[:, 4] @ F @ embed[:, :4]).max(), np.abs(embed[:, 4] @ leaves)) < 1e-13:
        embed = embed[:, :4]
    np.testing.assert_allclose(embed @ (embed.T @ F @ embed), F @ embed, atol=1e-12)
    np.testing.assert_allclose(embed @ (embed.T @ leaves), leaves, atol=1e-12)
    return embed.T @ F @ embed, embed.T @ G, embed.T @ leaves


def first_coordinate(moments: Moments) -> tuple[float, float]:
    """Mean and variance of z1 from reduced moments (z tangential is entry 2)."""
    normal = NORMAL / np.linalg.norm(NORMAL)
    tangent = np.array([normal[1], -normal[0]])
    level = normal[0] * LEVEL / np.linalg.norm(NORMAL)
    return level + tangent[0] * moments.mean[2], tangent[0] ** 2 * moments.covariance[2, 2]


def propagate(moments: Moments, F: Array, G: Array, c: Array) -> Moments:
    """One step of the exact recursion."""
    return Moments(F @ moments.mean + c, F @ moments.covariance @ F.T + G @ G.T)


def stationary(F: Array, G: Array, c: Array) -> Moments:
    """The fixed point of the recursion."""
    radius = np.abs(np.linalg.eigvals(F)).max()
    assert radius < 1.0, f"the recursion does not settle: spectral radius {radius}"
    return Moments(np.linalg.solve(np.eye(len(F)) - F, c), settled_covariance(F, G))


def settled_covariance(F: Array, G: Array) -> Array:
    """sum_k F^k G G^T F^kT by doubling, which stays accurate when the slowest mode decays very slowly."""
    power, total = F, G @ G.T
    for _ in range(60):
        total = total + power @ total @ power.T
        power = power @ power
    return total
