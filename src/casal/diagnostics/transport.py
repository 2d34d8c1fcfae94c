"""Wasserstein distances: in one dimension, and averaged over directions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from casal.checks import whole_number
from casal.diagnostics.distance import Distance, distance, generator_of, points
from casal.errors import ShapeError

QUANTILES_PER_SAMPLE = 8
FEWEST_QUANTILES = 4096


def wasserstein1(
    x: Tensor,
    y: Tensor | Callable[[Tensor], Tensor],
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """W1 = int |F_x(v) - F_y(v)| dv, for samples of one coordinate.

    Args:
        x: Samples (n,) or (n, 1).
        y: Exact samples, or the quantile function of the law, u in (0, 1) -> value, which is put on a grid.
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.
    """
    rows = points(x, "x")
    if callable(y):
        count = max(FEWEST_QUANTILES, QUANTILES_PER_SAMPLE * len(rows))
        y_rows = y((torch.arange(count, dtype=torch.float64, device=rows.device) + 0.5) / count)
    else:
        y_rows = y
    if rows.shape[1] != 1:
        raise ShapeError(f"wasserstein1 takes one coordinate a sample, got {rows.shape[1]}; try sliced_wasserstein")
    return distance(
        _transport,
        rows,
        y_rows,
        weights,
        reference_weights,
        exact=exact,
        repeats=repeats,
        generator=generator_of(seed, rows),
        reference_is_law=callable(y),
    )


def sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    projections: int = 128,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """SW1 = mean over unit vectors theta of W1(theta . x, theta . y).

    The order is one; events are flattened. Time O(P (n + m) (log + repeats)), memory O((n + m) repeats).

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        projections: Random directions P, the same for value, error and floor.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of directions and repetitions.
    """
    rows = points(x, "x")
    generator = generator_of(seed, rows)
    theta = directions(rows.shape[1], whole_number(projections, "projections", 1), generator)

    def statistic(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(len(a), dtype=x.dtype, device=x.device)
        for direction in theta:
            total += _transport(x @ direction, y @ direction, a, b)
        return total / len(theta)

    return distance(statistic, rows, y, weights, reference_weights, exact=exact, repeats=repeats, generator=generator)


def directions(dimension: int, count: int, generator: torch.Generator) -> Tensor:
    """Uniform unit vectors (count, d)."""
    theta = torch.randn((count, dimension), generator=generator, dtype=torch.float64, device=generator.device)
    return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


def _transport(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Area between two weighted distribution functions, for each row of weights."""
    values, order = torch.cat([x.reshape(-1), y.reshape(-1)]).sort()
    steps = torch.cat([a, -b], dim=1)[:, order]
    return torch.cumsum(steps, dim=1)[:, :-1].abs() @ values.diff()
