"""A Gaussian restricted to curved equations: quadrature on circles and ellipses, and Matheron on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics.ladder import FARTHEST_SET, LEAST_LINES
from casal.methods import Problem, curved_draw
from casal.methods.equations import equations_of

F64 = torch.float64
N = 1500


def ellipse(a: float, b: float) -> casal.Constraint:
    half = torch.tensor([a, b], dtype=F64)
    return casal.Implicit(lambda z: ((z / half.to(z)) ** 2).sum(1, keepdim=True) - 1)


def quadrature(a: float, b: float, mean: Tensor, cov: Tensor, measure: str) -> tuple[float, float]:
    """E cos^2 and its standard deviation of a Gaussian restricted to the ellipse (a cos, b sin)."""
    t = torch.linspace(0, 2 * math.pi, 20001, dtype=F64)[:-1]
    point = torch.stack([a * t.cos(), b * t.sin()], 1)
    speed = torch.stack([a * t.sin(), b * t.cos()], 1).norm(dim=1)
    slope = torch.stack([t.cos() / a, t.sin() / b], 1).norm(dim=1)
    gap = point - mean
    w = torch.exp(-0.5 * (gap @ torch.linalg.inv(cov) * gap).sum(1)) * speed / (slope if measure == "co-area" else 1.0)
    square = t.cos() ** 2
    first, second = (float((w * square**k).sum() / w.sum()) for k in (1, 2))
    return first, math.sqrt(second - first**2)


def draws(constraint: casal.Constraint, mean: Tensor, cov: Tensor, measure: str, *, weighted: bool = True) -> Tensor:
    stream, root = torch.Generator().manual_seed(1), torch.linalg.cholesky(cov)
    target = casal.edm(lambda x, s: x / (1 + s**2), [2.0, 1.0], shape=len(mean), dtype=F64)
    problem = Problem(target, constraint, casal.Identity(), torch.zeros(0, len(mean), dtype=F64))

    def error() -> Tensor:
        return torch.randn(N, len(mean), generator=stream, dtype=F64) @ root.T

    found, centre = equations_of(problem), mean.expand(N, -1)
    slopes = found.bent(problem, centre + error())[0]
    if not weighted:
        return curved_draw.search(problem, found, centre + error(), slopes @ cov, cov.trace().expand(N, 1))[0]
    return curved_draw.conditioned(problem, found, centre, slopes, slopes @ cov, error, stream, measure, 40).points


CASES: dict[str, tuple[float, float, list[float], list[list[float]]]] = {
    "circle": (1.0, 1.0, [1.0, 0.4], [[1.0, 0.0], [0.0, 0.2]]),
    "long": (3.0, 1.0, [0.5, 0.2], [[1.0, 0.3], [0.3, 1.0]]),
    "narrow": (2.0, 1.0, [1.5, 1.0], [[0.1, 0.0], [0.0, 0.1]]),
}


@pytest.mark.statistical
@pytest.mark.parametrize("measure", curved_draw.MEASURES)
@pytest.mark.parametrize("case", CASES)
def test_a_gaussian_on_an_ellipse_has_its_moments(case: str, measure: str) -> None:
    a, b, centre, matrix = CASES[case]
    mean, cov = torch.tensor(centre, dtype=F64), torch.tensor(matrix, dtype=F64)
    x = draws(ellipse(a, b), mean, cov, measure)
    assert float((((x / torch.tensor([a, b], dtype=F64)) ** 2).sum(1) - 1).abs().max()) < 5e-3
    exact, deviation = quadrature(a, b, mean, cov, measure)
    # one of forty weighted candidates: a bias of up to 8 % of the spread beside the error of N draws
    assert abs(float((x[:, 0] / a).square().mean()) - exact) < (4 / math.sqrt(N) + 0.08) * deviation


@pytest.mark.statistical
def test_points_without_weights_are_seen() -> None:
    """Power: the first root on the line of every draw fails the same test."""
    a, b, centre, matrix = CASES["circle"]
    mean, cov = torch.tensor(centre, dtype=F64), torch.tensor(matrix, dtype=F64)
    exact, deviation = quadrature(a, b, mean, cov, "surface")
    seen = float((draws(ellipse(a, b), mean, cov, "surface", weighted=False)[:, 0] / a).square().mean())
    assert abs(seen - exact) > 1.2 * (4 / math.sqrt(N) + 0.08) * deviation


@pytest.mark.statistical
def test_a_flat_equation_is_matherons_rule() -> None:
    """One root a line, equal weights: the moments of the Gaussian given the equation."""
    cov = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    plane: Callable[[Tensor], Tensor] = lambda z: torch.sinh(z[:, :1] + z[:, 1:] - 1.0)  # noqa: E731
    x = draws(casal.Implicit(plane), torch.zeros(2, dtype=F64), cov, "co-area")
    gain = cov.sum(0) / cov.sum()
    deviation = math.sqrt(float(cov[0, 0] - gain[0] ** 2 * cov.sum()))
    assert abs(float(x[:, 0].mean() - gain[0])) < 4.5 * deviation / math.sqrt(N)


@pytest.mark.statistical
def test_a_plane_and_a_sphere_are_met_together() -> None:
    """N(m, diag) in three dimensions on x + y + z = 1, |x| = 2: quadrature on the circle, from the whole run."""
    mean, variance = torch.tensor([1.0, 0.0, 0.5], dtype=F64), torch.tensor([1.0, 0.5, 0.8], dtype=F64)
    model = casal.edm(
        lambda x, s: mean + (x - mean) * variance / (variance + s**2),
        casal.karras_sigmas(20, 0.02, 20.0),
        shape=3,
        dtype=F64,
    )
    both = casal.Affine(torch.ones(1, 3, dtype=F64), torch.ones(1, dtype=F64)) & casal.Sphere(2.0)
    n = 200
    z = casal.sample(model, both, casal.Matheron(8), n, seed=1, check=False).samples
    assert float((z.sum(1) - 1).abs().max()) < 1e-9 and float((z.norm(dim=1) - 2).abs().max()) < 1e-9
    t = torch.linspace(0, 2 * math.pi, 2001, dtype=F64)[:-1]
    one, two = torch.tensor([1.0, -1.0, 0.0], dtype=F64) / math.sqrt(2), torch.tensor([1.0, 1.0, -2.0], dtype=F64)
    circle = 1 / 3 + math.sqrt(4 - 1 / 3) * (torch.outer(t.cos(), one) + torch.outer(t.sin(), two / math.sqrt(6)))
    w = torch.exp(-0.5 * ((circle - mean) ** 2 / variance).sum(1))
    w = w / w.sum()
    exact = w @ circle
    deviation = (w @ (circle - exact) ** 2).sqrt()
    assert bool(((z.mean(0) - exact).abs() < 4.5 * deviation / math.sqrt(n)).all())


V = torch.logspace(-1, 0.6, 20, dtype=F64)


def far_model() -> casal.Target:
    """N(0, V) in 20 dimensions."""
    return casal.edm(lambda x, s: x * V / (V + s**2), casal.karras_sigmas(30, 0.02, 40.0), shape=20, dtype=F64)


def mean_squares(square: float) -> Tensor:
    """E[z_i^2 | |z|^2 = square] of N(0, V), exact.

    By inversion of the Laplace transform of |z|^2, along the line through its saddle point: the mean of
    v_i / (1 - 2 s v_i) over s with the weights exp(-s square) det(1 - 2 s V)^(-1/2).
    """
    low, high = torch.tensor(-1e3, dtype=F64), 0.5 / V[-1]
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if float((V / (1 - 2 * middle * V)).sum()) > square else (middle, high)
    s = torch.complex(low, torch.linspace(-4, 4, 40001, dtype=F64)[:, None])
    weight = torch.exp(-(s - low) * square - torch.log(1 - 2 * s * V).sum(1, keepdim=True) / 2)
    return ((weight * V / (1 - 2 * s * V)).sum(0) / weight.sum()).real


@pytest.mark.statistical
def test_a_sphere_has_its_mean_squares() -> None:
    """Twice the mean of |z|^2; and power: one projection fails."""
    square = 2.0 * float(V.sum())
    exact, found = mean_squares(square), list[float]()
    assert abs(float(exact.sum()) - square) < 1e-6
    methods: list[Any] = [casal.Matheron(20, candidates=12), casal.FinalProjection()]
    for method in methods:
        z = casal.sample(far_model(), casal.Sphere(math.sqrt(square)), method, 200, seed=2, check=False).samples
        found.append(float(((z.square().mean(0) - exact) / z.square().std(0)).abs().max()) * math.sqrt(len(z)))
    assert found[0] < 4.2
    assert found[1] > 7.0


@pytest.mark.statistical
@pytest.mark.parametrize(("share", "name"), [(0.05, "lines"), (6.0, "apart")])
def test_a_sphere_far_from_the_samples_of_the_model_is_suspect(share: float, name: str) -> None:
    result = casal.sample(far_model(), casal.Sphere(math.sqrt(share * float(V.sum()))), casal.Matheron(10), 32, seed=1)
    limit = {"lines": LEAST_LINES, "apart": FARTHEST_SET}[name]
    assert (result.fidelity.figures[name] < limit) == (name == "lines")
    call = {"lines": "casal.Matheron(candidates=200)", "apart": "casal.SplitGibbs()"}[name]
    assert result.fidelity.verdict == "suspect" and call in " ".join(result.fidelity.reasons)


def test_lines_through_a_flat_set_weigh_the_same() -> None:
    even = torch.tensor([[1.0, 0.5]], dtype=F64)
    target = casal.edm(lambda x, s: x / (1 + s**2), [2.0, 1.0], shape=2, dtype=F64)
    problem = Problem(
        target, casal.Implicit(lambda z: torch.sinh(z[:, :1])), casal.Identity(), torch.zeros(0, 2, dtype=F64)
    )
    found, stream = equations_of(problem), torch.Generator().manual_seed(0)
    slopes = found.bent(problem, even)[0]
    drawn = curved_draw.conditioned(
        problem, found, even, slopes, slopes, lambda: torch.randn(1, 2, generator=stream, dtype=F64), stream,
        "co-area", 24,
    )  # fmt: skip
    torch.testing.assert_close(drawn.lines, torch.full((1,), 24.0, dtype=F64))
