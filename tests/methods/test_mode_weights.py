"""Weights of modes and components: the mixture is exact, weights are those of quadrature, and what fails is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.methods import HMC, tempering
from casal.methods.inside_chains import space_of
from casal.methods.mode_weights import Mixture, _drawn, clusters, covers, fit
from casal.methods.problem import Problem
from casal.methods.surface import ON_SET, Surface
from casal.methods.tempering import mode_errors

from ..models import MODE_SCALES, MODE_WEIGHTS, MODES, mode_shares, mode_weights_on_circle

F = torch.float64
CHAINS = 320
Density = Callable[[Tensor], Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=F)


def problem_for(constraint: casal.Constraint, d: int) -> Problem:
    target = casal.energy(lambda x: x.square().sum(1) / 2, steps=10, step_size=0.1, init=torch.zeros(1, d, dtype=F))
    return Problem(target, constraint, casal.Identity(), torch.zeros((0, d), dtype=F))


# ------------------------------------------------------------------------------------------------- the mixture


def mixture_2d() -> Mixture:
    root = torch.tensor([[[0.5, 0.0], [0.3, 0.4]], [[1.0, 0.0], [0.0, 0.2]]], dtype=F)
    return Mixture(torch.tensor([0.3, 0.7], dtype=F), torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F), root)


def test_the_mixture_and_its_score_are_those_of_torch() -> None:
    mixture, y = mixture_2d(), normal(0, 20, 2)
    parts = torch.distributions.MultivariateNormal(mixture.mean, scale_tril=mixture.root)
    whole = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(mixture.share), parts)
    leaf = y.clone().requires_grad_()
    expected = whole.log_prob(leaf)
    torch.testing.assert_close(mixture.log_density(y) - math.log(2.0 * math.pi), expected.detach())
    torch.testing.assert_close(mixture.score(y), torch.autograd.grad(expected.sum(), leaf)[0])


def test_clusters_are_the_modes_and_one_gaussian_is_one() -> None:
    far = torch.cat([normal(0, 200, 3), 0.1 * normal(1, 60, 3) + 5.0, normal(2, 90, 3) - 9.0])
    label = clusters(far, generator(0))
    sizes = [torch.bincount(label[some]).tolist() for some in (slice(0, 200), slice(200, 260), slice(260, 350))]
    assert sorted(max(one) for one in sizes) == [60, 90, 200] and int(label.max()) == 2
    assert int(clusters(normal(3, 400, 12), generator(0)).max()) == 0


def integral_of_g(constraint: casal.Constraint, points: Tensor, nodes: Tensor, area: Tensor) -> tuple[float, float]:
    """The integral of g over the set by nodes, and the share of the draws with x > 0 minus the integral over it."""
    problem = problem_for(constraint, points.shape[1])
    space = space_of(problem)
    inward = space.flat.inward if space.flat is not None else (lambda z: z)
    found = fit(space, problem, inward(points), torch.zeros(len(points), dtype=F), len(points), generator(0))
    assert found is not None
    density = found.at(inward(nodes)).exp() * area
    drawn = found.draw(20_000)
    assert drawn is not None
    drawn = space.flat.outward(drawn) if space.flat is not None else drawn
    # a draw is within ON_SET of a curved set, in units of 1 + |z|, like every state of a chain; samples are settled
    assert float(constraint.violation(drawn).max()) < 2.0 * ON_SET * (1.0 + float(drawn.abs().max()))
    if space.flat is None:
        assert float(constraint.violation(Surface(constraint, space.event).settled(drawn)).max()) < 1e-14
    right = float(density[nodes[:, 0] > 0].sum() / density.sum())
    return float(density.sum()), float((drawn[:, 0] > 0).to(F).mean()) - right


def test_draws_between_bounds_follow_the_density_that_is_told() -> None:
    """Correlated Gaussians cut by bounds: the density of a draw has the integral of a Gaussian, 2 pi."""
    points = torch.cat([normal(0, 200, 2) @ torch.tensor([[0.6, 0.5], [0.0, 0.3]], dtype=F), 0.2 * normal(1, 100, 2)])
    points[200:] += torch.tensor([1.5, -0.5], dtype=F)
    box = casal.Box(torch.tensor([-1.0, -0.7], dtype=F), torch.tensor([2.0, 1.0], dtype=F))
    x, y = torch.meshgrid(torch.linspace(-1, 2, 401, dtype=F), torch.linspace(-0.7, 1.0, 301, dtype=F), indexing="ij")
    nodes = torch.stack([x.flatten(), y.flatten()], 1)
    total, off = integral_of_g(
        box, points[box.violation(points) == 0], nodes, torch.tensor(3.0 / 400 * 1.7 / 300, dtype=F)
    )
    assert total == pytest.approx(2.0 * math.pi, rel=1e-2)
    assert abs(off) < 4.0 * 0.5 / math.sqrt(20_000)


def test_draws_on_a_curved_set_follow_the_density_that_is_told() -> None:
    """An ellipse and two arcs of points on it: nodes by arc length. A chart reaches half of it, and cuts off tails."""
    angle = torch.cat([0.5 * normal(0, 300, 1)[:, 0], math.pi + 0.3 * normal(1, 150, 1)[:, 0]])
    ellipse = casal.Implicit(lambda z: (z[..., 0] ** 2 / 4.0 + z[..., 1] ** 2 - 1.0)[..., None])
    t = torch.linspace(-math.pi, math.pi, 4001, dtype=F)[:-1]
    on = lambda a: torch.stack([2.0 * torch.cos(a), torch.sin(a)], 1)  # noqa: E731
    speed = torch.stack([-2.0 * torch.sin(t), torch.cos(t)], 1).norm(dim=1) * (2.0 * math.pi / 4000)
    total, off = integral_of_g(ellipse, on(angle), on(t), speed)
    assert 0.9 < total / math.sqrt(2.0 * math.pi) <= 1.001
    assert abs(off) < 4.0 * 0.5 / math.sqrt(20_000)


def test_a_mixture_covers_what_its_draws_have_seen() -> None:
    new = normal(0, 400, 1)[:, 0]
    assert covers(new, normal(1, 400, 1)[:, 0] + 1.0)  # N(s^2, s^2), as draws of p have it
    hole = torch.cat([normal(1, 390, 1)[:, 0], torch.full((10,), 9.0, dtype=F)])
    assert not covers(new, hole) and not covers(new, torch.cat([new, torch.full((9,), torch.inf, dtype=F)]))


def test_the_error_of_a_weight_counts_ancestors() -> None:
    """Independent chains have sqrt(w (1 - w) / n); a mode of one ancestor has w (1 - w)."""
    part = (torch.arange(400) < 100).long()
    alone = mode_errors(part, torch.arange(400))
    assert alone["mode_error"] == pytest.approx(math.sqrt(0.25 * 0.75 / 400)) and alone["mode_draws"] == pytest.approx(
        400
    )
    one = mode_errors(part, torch.arange(400) * (1 - part))
    assert one["mode_error"] == pytest.approx(0.25 * 0.75 * math.sqrt(1.0 + 1.0 / 300.0))


def test_draws_by_weights_that_are_zero_or_no_number() -> None:
    zero = torch.zeros(3, dtype=F)
    assert len(_drawn(zero, 1, generator(0))) == 1 and set(_drawn(zero, 99, generator(0)).tolist()) == {0, 1, 2}
    odd = torch.tensor([math.nan, 2.0, math.inf, -1.0, 0.0], dtype=F)
    assert set(_drawn(odd, 9, generator(0)).tolist()) == {1}
    assert set(_drawn(torch.tensor([5e-324, 0.0], dtype=F), 9, generator(0)).tolist()) <= {0, 1}
    assert int(clusters(torch.full((40, 2), math.nan, dtype=F), generator(0)).max()) == 0


# ------------------------------------------------------------------------------------------------- weights


def two_gaussians(centres: Tensor, scales: Tensor, weights: Tensor) -> tuple[Density, Density]:
    """-log p of two Gaussians, and the share of the first at a point."""

    def terms(z: Tensor) -> Tensor:
        square = (z[:, None] - centres).square() / (2.0 * scales**2)
        return weights.log() - (square + scales.log().expand_as(square)).sum(2)

    return (lambda z: -terms(z).logsumexp(1)), (lambda z: torch.softmax(terms(z), 1)[:, 0])


def bimodal(size: int, narrow: float) -> tuple[Density, Density]:
    centres = torch.zeros(2, size, dtype=F)
    centres[0, :2], centres[1, :2] = torch.tensor([1.0, 0.3], dtype=F), -1.0
    scales = torch.full((2, size), 0.5, dtype=F)
    scales[0, :2] = narrow
    return two_gaussians(centres, scales, torch.tensor([0.7, 0.3], dtype=F))


def found_weight(
    f: Density,
    share: Density,
    constraint: casal.Constraint,
    init: Any,
    *,
    steps: int = 500,
    method: Any = "auto",
    check: bool = True,
    seed: int = 1,
) -> tuple[float, float, casal.SampleResult]:
    """The weight of the first mode, its standard error, and the result."""
    target = casal.energy(f, steps=steps, init=init)
    result = casal.sample(target, constraint, method, CHAINS, seed=seed, check=check)
    value, error = result.expect(lambda z: share(z.to(F)))
    return float(value), float(error), result


def right(found: tuple[float, float, casal.SampleResult], weight: float) -> bool:
    """Within 3.5 errors, and these are at most three times those of independent draws."""
    return abs(found[0] - weight) < 3.5 * found[1] < 10.5 * math.sqrt(weight * (1.0 - weight) / CHAINS)


def quadrature(f: Density, share: Density, inside: Callable[[Tensor], Tensor], half: float) -> float:
    line = torch.linspace(-half, half, 801, dtype=F)
    nodes = torch.cartesian_prod(line, line)
    mass = torch.exp(-f(nodes)) * inside(nodes)
    return float((mass * share(nodes)).sum() / mass.sum())


@pytest.mark.statistical
def test_modes_of_unequal_widths_in_a_polytope() -> None:
    """The ten coordinates but two are alike in both modes, so quadrature in two gives the weight."""
    rows = torch.zeros(2, 10, dtype=F)
    rows[0, :2], rows[1, 0], rows[1, 1] = 1.0, 1.0, -1.0
    polytope = casal.Polytope(rows, torch.tensor([1.5, 4.0], dtype=F)) & casal.Box(-3.0, 3.0)
    weight = quadrature(*bimodal(2, 0.15), lambda z: (z.sum(1) <= 1.5) & (z[:, 0] - z[:, 1] <= 4.0), 3.0)
    found = found_weight(*bimodal(10, 0.15), polytope, casal.GaussianStart(10, dtype=F))
    assert found[2].provenance["method"] == "HMC" and found[2].fidelity.verdict == "trusted"
    assert right(found, weight)


def narrow_in_a_box() -> tuple[Density, Density]:
    centres = torch.tensor([[3.0, 3.0], [-1.0, -1.0]], dtype=F)
    return two_gaussians(centres, torch.tensor([[0.1], [1.0]], dtype=F).expand(2, 2), torch.tensor([0.3, 0.7], dtype=F))


@pytest.mark.statistical
def test_a_narrow_mode_far_from_the_start() -> None:
    """Sixteen of its standard deviations from all starting points, and seen by one in a hundred points of the box.

    Of seeds 1 to 8 seven were right and one was declined, with fourteen chains in the mode: a few of them lie where its
    Gaussian has no draws, and the result is suspect. So three are asked: none may be wrong and trusted.
    """
    start = casal.GaussianStart(2, dtype=F)
    found = [found_weight(*narrow_in_a_box(), casal.Box(-5.0, 5.0), start, steps=1000, seed=k) for k in (1, 3, 4)]
    trusted = [one for one in found if one[2].fidelity.verdict == "trusted"]
    assert len(trusted) >= 2 and all(right(one, 0.3) for one in trusted)


@pytest.mark.statistical
@pytest.mark.parametrize("start", ["a wide start", "one mode"])
def test_modes_on_a_circle(start: str) -> None:
    def f(z: Tensor) -> Tensor:
        square = (z[:, None] - MODES).square().sum(2) / (2 * MODE_SCALES**2)
        return -torch.logsumexp(torch.log(MODE_WEIGHTS / MODE_SCALES**2) - square, 1)

    init = casal.GaussianStart(2, std=2.0, dtype=F) if start == "a wide start" else MODES[:1].expand(CHAINS, 2).clone()
    weight = float(mode_weights_on_circle(2.0)[0])
    found = found_weight(f, lambda z: mode_shares(z)[:, 0], casal.Sphere(2.0), init)
    assert right(found, weight) and found[2].fidelity.verdict == "trusted"


def on_circles() -> tuple[Density, Density, casal.Constraint, float]:
    """exp(x / 2) on circles of radius 1 at -1.5 and 0.4 at 1, whose integrals are Bessel functions."""

    def h(z: Tensor) -> Tensor:
        x, y = z[..., 0], z[..., 1]
        return (((x + 1.5) ** 2 + y**2 - 1.0) * ((x - 1.0) ** 2 + y**2 - 0.16))[..., None]

    mass = [
        r * math.exp(0.5 * c) * float(torch.special.i0(torch.tensor(0.5 * r, dtype=F)))
        for c, r in ((-1.5, 1.0), (1.0, 0.4))
    ]
    share = lambda z: (z[:, 0] < 0).to(F)  # noqa: E731
    return (lambda z: -0.5 * z[:, 0]), share, casal.Implicit(h), mass[0] / sum(mass)


@pytest.mark.statistical
def test_components_of_a_set_and_power() -> None:
    """Starting points on both circles, nine of ten on the first: without weights these shares stay.

    The second pass declines in two of five runs; then the result is not trusted.
    """
    f, share, circles, weight = on_circles()
    angle = 2.0 * math.pi * torch.rand(CHAINS, generator=generator(0), dtype=F)
    start = torch.stack([torch.cos(angle) - 1.5, torch.sin(angle)], 1)
    start[::10] = torch.tensor([1.0, 0.0], dtype=F) + 0.4 * (start[::10] + torch.tensor([1.5, 0.0], dtype=F))
    runs = [found_weight(f, share, circles, start, steps=150, seed=seed) for seed in (35, 36, 37)]
    weighed = [found for found in runs if found[2].trace.get("weighed", torch.zeros(1))[-1] == 1.0]
    assert weighed and all(right(found, weight) for found in weighed)
    assert all(right(found, weight) or found[2].fidelity.verdict != "trusted" for found in runs)
    free = found_weight(f, share, circles, start, steps=100, method=HMC(temper=False), check=False)
    assert not right(free, weight)


@pytest.mark.statistical
def test_without_its_weights_the_second_pass_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: draws of the mixture that are led to p without weights keep the shares of the mixture."""
    right_temper = tempering.temper

    def unweighted(share: float, log_weight: Tensor, gain: Tensor, *rest: object) -> tuple[float, Tensor]:
        b, _ = right_temper(share, log_weight, gain, *rest)  # type: ignore[arg-type]
        return b, torch.zeros_like(log_weight)

    monkeypatch.setattr(tempering, "temper", unweighted)
    found = found_weight(*narrow_in_a_box(), casal.Box(-5.0, 5.0), casal.GaussianStart(2, dtype=F), check=False)
    assert not right(found, 0.3)


@pytest.mark.statistical
def test_points_of_a_user_join() -> None:
    """A narrow mode in 20 dimensions that nothing but a few of the starting points can find."""
    size = 20
    centres = torch.stack([torch.full((size,), 2.0, dtype=F), torch.full((size,), -1.0, dtype=F)])
    f, share = two_gaussians(
        centres, torch.tensor([[0.2], [1.0]], dtype=F).expand(2, size), torch.tensor([0.4, 0.6], dtype=F)
    )
    points = normal(5, CHAINS, size) - 1.0
    points[: CHAINS // 4] = 2.0 + 0.3 * normal(6, CHAINS // 4, size)
    box = casal.Box(-4.0, 4.0)
    mass = torch.special.erf(torch.tensor([3.0, 5.0], dtype=F) / math.sqrt(2.0)).sum() / 2.0
    weight = 0.4 / (0.4 + 0.6 * float(mass) ** size)
    value, error, _ = found_weight(f, share, box, points, check=False)
    assert abs(value - weight) < 3.5 * error < 0.35
    rest = points[CHAINS // 4 :][torch.arange(CHAINS) % (CHAINS - CHAINS // 4)]
    lost = found_weight(f, share, box, rest, check=False)
    assert lost[0] < 0.05, "the test has no power: the mode was found without the points"
