"""The pilot run: the steps it finds, and what it says of steps that are given."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import DivergedError, SettingError, ShapeError
from casal.sampling.adapt import pilot_run
from casal.sampling.pilot import BEND, STEP, Pilot
from casal.sampling.prepare import Prepared, prepare
from casal.sampling.run import Options

from ..models import MODE_SCALES, MODE_WEIGHTS, MODES, SIGMA_Y, particle_potential

WIDE = torch.float64
KAPPA = 5.0  # coth(5) - 1/5 = .8001 is the mean cosine of a von Mises-Fisher distribution on the sphere


def start(d: int, std: float = 1.0) -> casal.GaussianStart:
    return casal.GaussianStart(d, std, dtype=WIDE)


def plan(target: casal.Target, constraint: casal.Constraint, n: int = 4000, **options: Any) -> Prepared:
    with torch.no_grad():
        return prepare(target, constraint, casal.Unconstrained(), n, Options(**options))


def found(target: casal.Target, constraint: casal.Constraint, n: int = 4000, **options: Any) -> Pilot:
    pilot = plan(target, constraint, n, **options).pilot
    assert pilot is not None
    return pilot


def compared(target: casal.Target, constraint: casal.Constraint, **options: Any) -> Pilot:
    """The pilot of a target whose settings are given."""

    def points(chains: Tensor, stream: torch.Generator) -> Tensor:
        return target.draw(len(chains), stream)

    return pilot_run(plan(target, constraint, **options).problem, 4000, points, Options(**options).seed)


def gaussian(precision: Tensor | float, std: float = 1.0, d: int = 1, **settings: Any) -> casal.Target:
    """N(0, 1 / precision) from N(0, std^2 I)."""
    scale = torch.as_tensor(precision, dtype=WIDE)
    gradient = (lambda x: x @ scale) if scale.ndim == 2 else (lambda x: x * scale)
    settings = {
        "steps": 50,
        "step_size": "auto",
        "init": start(max(d, len(scale) if scale.ndim else 0), std),
    } | settings
    return casal.langevin(gradient, **settings)


def solid(d: int) -> casal.Constraint:
    return casal.Box(torch.full((d,), -1.0), math.inf)


def von_mises_fisher(step_size: float | str) -> casal.Target:
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=WIDE)
    return casal.langevin(
        lambda x: (-KAPPA * pole).expand_as(x),
        steps=500,
        step_size=step_size,
        init=start(3),
        potential=lambda x: -KAPPA * x[:, 2],
    )


def quartic(x: Tensor) -> Tensor:
    return x.pow(4).sum(1) / 4


def mixture_potential(x: Tensor) -> Tensor:
    variance = MODE_SCALES.square().to(x)
    distance = (x[:, None] - MODES.to(x)).square().sum(2)
    return -torch.logsumexp(torch.log(MODE_WEIGHTS.to(x) / variance) - distance / (2 * variance), 1)


# ------------------------------------------------------------------------------------------- the step


SIDES = casal.Box(torch.zeros(3), 1.0) & casal.Affine(torch.ones((1, 3)), [1.0])
STEPS: dict[str, tuple[Callable[[], casal.Target], casal.Constraint | None, float, float]] = {
    **{f"round, {d} dimensions": (partial(gaussian, 4.0, d=d), None, STEP / 4.0, 1e-4) for d in (1, 2, 50, 500)},
    "given preconditioner": (
        partial(gaussian, torch.tensor([1.0, 100.0]), preconditioner=torch.tensor([1.0, 0.01])),
        None,
        STEP,
        1e-3,
    ),
    "behind a decoder": (partial(gaussian, 1.0, d=2), casal.Sphere(1.0), STEP, 1e-3),
    **{f"simplex, {d}": (partial(gaussian, 1.0, d=d), casal.Simplex(1.0), STEP, 0.05) for d in (3, 20)},
    "box and an equation": (partial(gaussian, 1.0, d=3), SIDES, STEP, 0.05),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_of_a_gaussian_is_that_of_its_stiffest_direction(name: str) -> None:
    """Whatever the dimension, the sharp corners of the set, or a decoder."""
    make, constraint, right, error = STEPS[name]
    target, options = make(), dict[str, Any]()
    if name == "behind a decoder":
        matrix = torch.randn((5, 2), generator=torch.Generator().manual_seed(0), dtype=WIDE)
        options["decoder"] = casal.Linear(matrix)
    size = len(target.draw(1, torch.Generator())[0])
    pilot = found(target, solid(size) if constraint is None else constraint, **options)
    assert pilot.step_size == pytest.approx(right, rel=error)
    assert pilot.integrable and pilot.ratio == 1.0
    assert (pilot.preconditioner is None) == (name != "given preconditioner")


@pytest.mark.parametrize("std", [0.0, 1.0, 300.0])
def test_the_step_does_not_depend_on_the_start(std: float) -> None:
    """From one point, from the right spread, and 300 times too wide; a quartic is flat or stiff there."""
    zeros = torch.zeros((1000, 3), dtype=WIDE)
    init = start(3, std) if std else zeros
    assert found(gaussian(1.0, init=init), solid(3), n=1000).step_size == pytest.approx(STEP, rel=1e-4)
    target = casal.energy(quartic, steps=50, step_size="auto", init=init)
    # At rest the curvature 3 x^2 of the worst of three coordinates is about 4, of one chain in ten above 7.5.
    assert 0.04 < found(target, solid(3), n=1000).step_size < 0.08


def test_the_set_bends_a_linear_potential() -> None:
    """Along the sphere -kappa cos(angle) curves by kappa at the pole; off it the density has no finite integral."""
    pilot = found(von_mises_fisher("auto"), casal.Sphere(1.0))
    assert pilot.free_step_size == pytest.approx(STEP / KAPPA, rel=0.02)
    assert pilot.step_size == pytest.approx(BEND / 2, rel=0.25)
    assert not pilot.integrable


@pytest.mark.statistical
def test_von_mises_fisher_with_the_step_that_was_found() -> None:
    """Standard error of the mean cosine 0.003 with 4000 chains; a share BEND off in kappa makes another .01."""
    right = 1.0 / math.tanh(KAPPA) - 1.0 / KAPPA

    def cosine(step_size: float | str) -> float:
        result = casal.sample(von_mises_fisher(step_size), casal.Sphere(1.0), casal.Projected(), 4000, seed=1)
        return float(result.samples[:, 2].mean())

    assert cosine("auto") == pytest.approx(right, abs=0.022)
    assert cosine(BEND / 2 / 100) < right - 0.15
    assert cosine(BEND / 2 * 100) > right + 0.1


# ---------------------------------------------------------------------------------------- the first steps


def test_first_steps_grow_to_the_step_where_the_start_is_stiff() -> None:
    stiff = found(casal.energy(quartic, steps=100, step_size="auto", init=start(3, 300.0)), solid(3))
    sizes = stiff.step_sizes(100)
    assert float(sizes[0]) == stiff.first_step_size < 1e-5 * stiff.step_size
    assert float(sizes[12]) == float(sizes[-1]) == stiff.step_size  # within a tenth of the steps
    assert float((sizes[1:] / sizes[:-1]).min()) >= 1.0
    torch.testing.assert_close(
        stiff.step_sizes(1000)[1:5] / stiff.step_sizes(1000)[:4], torch.full((4,), 1.5, dtype=WIDE)
    )
    for std in (0.01, 2.0, 300.0):
        even = plan(gaussian(1.0, std, d=2), solid(2))
        assert even.pilot is not None
        assert bool((even.target.table.b == even.pilot.step_size).all())


@pytest.mark.statistical
@pytest.mark.parametrize("std", [30.0, 3000.0])
def test_chains_come_down_from_a_steep_tail(std: float) -> None:
    """E x^2 = 2 Gamma(3/4) / Gamma(1/4) for exp(-x^4 / 4), standard error .007; the Euler steps add 2 %."""
    right = 2.0 * math.gamma(0.75) / math.gamma(0.25)
    target = casal.energy(quartic, steps=300, step_size="auto", init=start(3, std))
    x = casal.sample(target, casal.Ball(1e6), casal.Unconstrained(), 2000).samples
    assert float(x.square().mean()) == pytest.approx(right, abs=0.03)
    pilot = found(target, casal.Ball(1e6), n=2000)
    constant = casal.energy(quartic, steps=300, step_size=pilot.step_size, init=start(3, std))
    with pytest.raises(DivergedError):
        casal.sample(constant, casal.Ball(1e6), casal.Unconstrained(), 2000)


# ---------------------------------------------------------------------------------- the preconditioner


def rotation(d: int, angle: float) -> Tensor:
    turn = torch.randn((d, d), generator=torch.Generator().manual_seed(0), dtype=WIDE)
    return torch.linalg.matrix_exp(angle * (turn - turn.T) / math.sqrt(2 * d))


@pytest.mark.parametrize(("angle", "std"), [(0.0, 100.0), (1e-3, 0.01), (1e-3, 100.0)])
def test_the_preconditioner_of_a_stiff_gaussian(angle: float, std: float) -> None:
    """Condition number 1e6; a rotation by 1e-3 adds as much to a curvature of 1 as there was."""
    variance, turn = torch.logspace(0, -6, 10, dtype=WIDE), rotation(10, angle)
    precision, right = turn @ torch.diag(1 / variance) @ turn.T, (turn @ torch.diag(variance) @ turn.T).diagonal()
    pilot = found(gaussian(precision, std, preconditioner="auto"), solid(10))
    assert pilot.preconditioner is not None
    torch.testing.assert_close(pilot.preconditioner, right, rtol=0.5, atol=0.0)
    root = pilot.preconditioner.sqrt()
    assert pilot.step_size == pytest.approx(STEP / float(torch.linalg.eigvalsh(root[:, None] * precision * root)[-1]))


def test_correlated_coordinates_are_scaled_by_their_curvature() -> None:
    """D is the same multiple of 1 / H_ii, which leaves as small a condition number as scaling by the variances."""
    block = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=WIDE)
    precision = torch.linalg.inv(torch.block_diag(block, 1e-6 * block, 1e-3 * block))
    pilot = found(gaussian(precision, preconditioner="auto"), solid(6))
    assert pilot.preconditioner is not None
    share = pilot.preconditioner * precision.diagonal()
    torch.testing.assert_close(share / share.mean(), torch.ones(6, dtype=WIDE), rtol=0.1, atol=0)
    assert pilot.step_size == pytest.approx(STEP / (1.9 * float(share.mean())), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_particle(dtype: torch.dtype) -> None:
    """Two scales and two wells, found in single precision too; by hand D = (.5, .01) and a step of .1."""
    init = casal.GaussianStart(2, dtype=dtype)
    target = casal.energy(particle_potential, steps=50, step_size="auto", preconditioner="auto", init=init)
    pilot = found(target, casal.Sphere(3.0))
    assert pilot.preconditioner is not None
    assert float(pilot.preconditioner[1]) == pytest.approx(SIGMA_Y**2, rel=0.05)
    assert 0.25 < float(pilot.preconditioner[0]) < 1.0
    assert 0.04 < pilot.step_size < 0.25


@pytest.mark.parametrize("push", [0.0, 3.0])
def test_flat_coordinates_take_the_spread_of_the_start(push: float) -> None:
    """Nothing holds the chains back in the second coordinate."""
    target = casal.langevin(
        lambda x: x * torch.tensor([100.0, 0.0]) - torch.tensor([0.0, push]),
        steps=50,
        step_size="auto",
        preconditioner="auto",
        init=start(2, 2.0),
    )
    pilot = found(target, casal.Sphere(1.0))
    assert pilot.preconditioner is not None
    assert float(pilot.preconditioner[0]) == pytest.approx(0.01, rel=0.05)
    assert float(pilot.preconditioner[1]) == pytest.approx(4.0, rel=0.4)
    assert not pilot.integrable


def test_a_given_step_is_in_units_of_the_preconditioner_that_is_found() -> None:
    made = plan(gaussian(torch.tensor([1.0, 100.0]), step_size=0.3, preconditioner="auto"), solid(2))
    assert made.target.table.preconditioner is not None
    torch.testing.assert_close(
        made.target.table.preconditioner, torch.tensor([1.0, 0.01], dtype=WIDE), rtol=1e-3, atol=0
    )
    assert float(made.target.table.b[0]) == 0.3
    assert made.pilot is not None and made.pilot.ratio == pytest.approx(0.3 / STEP, rel=1e-3)


# ------------------------------------------------------------------------------------ steps that are given


@pytest.mark.parametrize("off", [0.01, 1.0, 100.0])
def test_a_step_that_does_not_fit_is_seen(off: float) -> None:
    stiff = torch.tensor([1.0, 50.0])
    assert compared(gaussian(stiff, step_size=off * STEP / 50.0), solid(2)).ratio == pytest.approx(off, rel=0.05)
    sphere = compared(von_mises_fisher(off * 0.05), casal.Sphere(1.0))
    assert 0.3 * off < sphere.ratio < 3.0 * off
    assert sphere.ratio == pytest.approx(1.0) or off != 1.0


def test_one_step_size_per_step_is_judged_by_its_median() -> None:
    sizes = STEP * torch.cat([torch.ones(40), torch.full((10,), 1e-3)])
    assert compared(gaussian(1.0, d=2, step_size=sizes), solid(2)).ratio == pytest.approx(1.0, rel=1e-3)


# -------------------------------------------------------------------------------------------- integrable


@pytest.mark.parametrize("std", [0.01, 1.0, 300.0])
def test_proper_densities_hold_together(std: float) -> None:
    for precision, mean in (
        (torch.tensor([1.0, 1e6]), 0.0),
        (torch.tensor([1.0, 1.0]), 100.0),
        (torch.full((30,), 2.0), 100.0),
    ):
        init = casal.GaussianStart(len(precision), std, mean, dtype=WIDE)
        assert found(gaussian(precision, init=init), solid(len(precision))).integrable


def test_tails_that_are_heavy_hold_together() -> None:
    student = casal.energy(lambda x: 2.0 * torch.log1p(x.square().sum(1) / 3), steps=5, step_size="auto", init=start(2))
    assert found(student, solid(2)).integrable


IMPROPER: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: -0.3 * x[:, 0],
    "linear and quadratic": lambda x: -2.0 * x[:, 0] + x[:, 1:].square().sum(1),
    "flat": lambda x: 0.0 * x[:, 0],
}


@pytest.mark.parametrize("name", IMPROPER)
def test_densities_without_an_integral_are_seen(name: str) -> None:
    target = casal.energy(IMPROPER[name], steps=5, step_size="auto", init=start(3))
    assert not found(target, casal.Sphere(1.0)).integrable


# ------------------------------------------------------------------------------------------- in a run


def test_the_pilot_is_part_of_the_cost_and_of_the_record() -> None:
    calls: list[int] = []

    def gradient(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x

    target = casal.langevin(gradient, steps=50, step_size="auto", preconditioner="auto", init=start(2))
    result = casal.sample(target, casal.Sphere(1.0), casal.Projected(), 400, run=casal.Run(threads=1))
    probe = 3 + 6  # rows on which the call is checked before anything else; they have never been counted
    assert result.cost.score_evaluations * 400 == pytest.approx(sum(calls) - probe)
    pilot = plan(target, casal.Sphere(1.0), n=400).pilot
    assert pilot is not None and pilot.evaluations <= 110 * 256
    assert result.provenance["step_size"] == pilot.step_size
    assert result.provenance["integrable"] is True


def test_the_same_seed_finds_the_same_step() -> None:
    target = casal.energy(mixture_potential, steps=50, step_size="auto", preconditioner="auto", init=start(2))
    first, second, third = (found(target, casal.Sphere(2.0), seed=seed) for seed in (3, 3, 4))
    assert first.step_size == second.step_size != third.step_size
    assert first.preconditioner is not None and second.preconditioner is not None
    assert torch.equal(first.preconditioner, second.preconditioner)
    short = casal.energy(mixture_potential, steps=20, step_size="auto", preconditioner="auto", init=start(2))
    one, two = (
        casal.sample(short, casal.Sphere(2.0), casal.Projected(), 300, run=casal.Run(threads=k, batch=100)).samples
        for k in (1, 2)
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_few_chains_are_enough_for_an_answer(n: int) -> None:
    pilot = found(gaussian(torch.tensor([1.0, 100.0]), preconditioner="auto"), casal.Affine([[1.0, 1.0]], [1.0]), n=n)
    assert pilot.preconditioner is not None
    torch.testing.assert_close(pilot.preconditioner, torch.tensor([1.0, 0.01], dtype=WIDE), rtol=0.01, atol=0.0)
    assert 0.4 * STEP < pilot.step_size < 1.01 * STEP


def test_a_set_for_each_chain_and_events_of_any_shape() -> None:
    radii = casal.PerChain(torch.linspace(1.0, 2.0, 600, dtype=WIDE))
    assert found(gaussian(1.0, d=2), casal.Sphere(radii), n=600).step_size < STEP
    init = casal.GaussianStart((2, 3), dtype=WIDE)
    pilot = found(gaussian(torch.tensor([1.0, 4.0, 9.0]), preconditioner="auto", init=init), casal.Sphere(2.0))
    right = 1 / torch.tensor([1.0, 4.0, 9.0], dtype=WIDE).expand(2, 3)
    assert pilot.preconditioner is not None
    torch.testing.assert_close(pilot.preconditioner, right, rtol=0.3, atol=0.0)


def test_a_score_that_is_not_finite_is_named() -> None:
    init = torch.ones((100, 2), dtype=WIDE)
    init[40] = -1.0
    target = casal.energy(lambda x: -x.log().sum(1) + x.sum(1), steps=5, step_size="auto", init=init)
    spoiled = casal.langevin(lambda x: x.sqrt(), steps=5, step_size="auto", init=init)
    assert found(target, solid(2), n=100).step_size > 0
    with pytest.raises(SettingError, match="not finite at 1 of the 100 starting points"):
        plan(spoiled, solid(2), n=100)


# ------------------------------------------------------------------------------------- the potential


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "the density's sign": lambda x: -x.square().sum(1) / 2,
    "twice": lambda x: x.square().sum(1),
    "of another density": lambda x: (x + 5.0).square().sum(1) / 2,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_potential_that_is_not_that_of_the_gradient_is_refused(name: str) -> None:
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=start(2), potential=WRONG[name])
    with pytest.raises(SettingError, match="along a line where its gradient says"):
        plan(target, solid(2))
    columns = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=start(2), potential=lambda x: x.square() / 2)
    with pytest.raises(ShapeError, match=r"give a tensor \(2,\)"):
        plan(columns, solid(2))


@pytest.mark.parametrize("std", [0.0, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_potentials_of_their_gradients_pass(std: float, dtype: torch.dtype) -> None:
    zeros = torch.zeros((50, 2), dtype=dtype)
    init = casal.GaussianStart(2, std, dtype=dtype) if std else zeros
    for f in (
        quartic,
        mixture_potential,
        particle_potential,
        lambda x: x.abs().sum(1),
        lambda x: torch.where(x.abs().amax(1) < 1.0, 0.0 * x[:, 0], math.inf),
        lambda x: 1e6 + x.square().sum(1, keepdim=True),
    ):
        plan(casal.energy(f, steps=5, step_size=0.1, init=init), solid(2), n=50)


# ----------------------------------------------------------------------------------------- the start


def test_the_context_knows_the_density_of_the_start() -> None:
    def points(n: int, generator: torch.Generator) -> Tensor:
        return 2.0 * torch.randn((n, 2), generator=generator, dtype=WIDE)

    settings: dict[str, Any] = {"steps": 5, "step_size": 0.1}
    named = start(2, 2.0)
    assert plan(casal.energy(mixture_potential, init=named, **settings), casal.Sphere(2.0)).problem.start is named
    made = plan(casal.energy(mixture_potential, init=points, **settings), casal.Sphere(2.0))
    x, density = points(100, torch.Generator().manual_seed(0)), made.inside.problem.start
    assert density is not None
    torch.testing.assert_close(density.log_density(x), named.log_density(x), atol=0.1, rtol=0.05)
    assert pickle.loads(pickle.dumps(density)) is not None
    no_potential = casal.langevin(lambda x: x, init=points, **settings)
    assert plan(no_potential, casal.Sphere(2.0)).problem.start is None
    zeros = casal.energy(mixture_potential, init=torch.zeros((4000, 2), dtype=WIDE), **settings)
    assert plan(zeros, casal.Sphere(2.0)).problem.start is None
