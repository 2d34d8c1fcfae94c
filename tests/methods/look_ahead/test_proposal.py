"""The guided step: its density, and a prediction that is exact where the rows span an invariant space of the prior."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import Tensor

import casal
from casal.methods.look_ahead.potential import potential
from casal.methods.look_ahead.proposal import Proposal, multistep, propose

from .gaussian import Prior, Seen, close, correlated, diagonal, log_psi, looked, normal, problem_for, round_one

D, N, HERE, THERE = 7, 6, 0.9, 0.6
K = (THERE / HERE) ** 2
BETA = THERE * math.sqrt(1 - K)


def invariant(m: int) -> tuple[Prior, Tensor]:
    """A correlated prior, and rows that mix m of its axes."""
    prior = correlated(D)
    axes = torch.linalg.eigh(prior.covariance)[1]
    return prior, normal(21, m, m) @ axes[:, [0, 3, 6][:m]].T


def plan_of(seen: Seen, x: Tensor, extra: Tensor | None = None, there: float = THERE) -> Proposal:
    clean = seen.looks.estimate
    return propose(x, clean, torch.zeros_like(x) if extra is None else extra, seen.ahead, seen.features, HERE, there)


def directions(seen: Seen, plan: Proposal) -> Tensor:
    """E, (n, m, d)."""
    return plan.turn.mT @ seen.ahead.slopes


SETS = {
    "equations": casal.Affine(normal(5, 3, D), normal(6, 3)),
    "norm": casal.Sphere(4.0),
    "equations and norm": casal.Affine(normal(5, 2, D), 0.3) & casal.Sphere(4.0),
    "bounds": casal.Box(
        torch.tensor([-math.inf, 0.0, -math.inf, 1.0, *[-math.inf] * 3]),
        torch.tensor([0.5, 2.0, *[math.inf] * 5]),
    ),
    "equation and bound": casal.Affine(normal(5, 1, D), 0.3) & casal.HalfSpace(normal(6, D), -1.0),
    "general": casal.Implicit(lambda z: torch.stack([z[:, 0] * z[:, 1] - 1, z.sin().sum(1)], 1)),
}
every_set = pytest.mark.parametrize("constraint", SETS.values(), ids=SETS)


def term(v: Tensor) -> Tensor:
    """A soft term."""
    return -(v[:, 4] * v[:, 5] - 0.4).square() - v[:, 6]


# ------------------------------------------------------------------ its density


@every_set
@pytest.mark.parametrize("soft", [None, term], ids=["hard", "soft"])
def test_the_cost_is_the_ratio_of_two_gaussian_densities(constraint: casal.Constraint, soft: object) -> None:
    prior = diagonal(D)
    x = prior.mean + 1.5 * normal(1, N, D)
    seen = looked(problem_for(prior, constraint, term=soft), x, HERE, directions=2)  # type: ignore[arg-type]
    plan = plan_of(seen, x, 0.1 * normal(2, N, D))
    noise = normal(3, N, D)
    point, paid = plan.draw(noise)
    close(plan.cost(point), paid, 1e-8)
    E, eye = directions(seen, plan), torch.eye(D, dtype=torch.float64)
    close(E @ E.mT, torch.eye(E.shape[1], dtype=torch.float64), 1e-7)
    S = plan.root @ plan.root.mT
    centre = plan.centre + BETA * (E.mT @ plan.mean[..., None])[..., 0]
    spread = BETA**2 * (eye - E.mT @ E + E.mT @ S @ E)
    bare = torch.distributions.MultivariateNormal(plan.centre, BETA**2 * eye)
    guided = torch.distributions.MultivariateNormal(centre, (spread + spread.mT) / 2)
    for here in (point, plan.centre, point + 0.1 * normal(4, N, D)):
        close(plan.cost(here), bare.log_prob(here) - guided.log_prob(here), 1e-7)
    root = (point - centre) / BETA  # a draw is the centre plus noise of that covariance
    along = (E @ root[..., None])[..., 0]
    close(along, (plan.root @ (E @ noise[..., None]))[..., 0], 1e-7)
    close(root - (E.mT @ along[..., None])[..., 0], noise - (E.mT @ E @ noise[..., None])[..., 0], 1e-7)


def test_a_soft_term_of_a_row_of_the_set_is_known() -> None:
    """Its direction is the row again, so the covariance is singular; psi is that of the equation times exp t there."""
    prior, row = diagonal(D), torch.eye(D, dtype=torch.float64)[:1]
    x = prior.mean + 1.5 * normal(1, N, D)
    seen = looked(
        problem_for(prior, casal.Affine(row, 2.5), term=lambda v: -(v[:, 0] - 1.0).square()), x, HERE, directions=1
    )
    variance, off = prior.spread(HERE)[0, 0], seen.looks.estimate[:, 0] - 2.5
    close(log_psi(seen), -off.square() / (2 * variance) - variance.log() / 2 - 1.5**2, 1e-3)
    plan = plan_of(seen, x)
    point, paid = plan.draw(normal(3, N, D))
    close(plan.cost(point), paid, 1e-6)
    alone = plan_of(looked(problem_for(prior, casal.Affine(row, 2.5)), x, HERE), x)
    close(alone.cost(point), paid, 1e-3)  # the same step as without the term


@every_set
def test_noise_is_reduced_along_the_slopes_and_nowhere_else(constraint: casal.Constraint) -> None:
    prior = diagonal(D)
    x = prior.mean + 1.5 * normal(1, N, D)
    plan = plan_of(looked(problem_for(prior, constraint), x, HERE), x)
    values = torch.linalg.eigvalsh(plan.root @ plan.root.mT)
    assert bool((values > 0).all()) and bool((values < 1 + 1e-12).all()) and float(values.min()) < 0.99


# ------------------------------------------------------------------ the formulas


class Predicted(NamedTuple):
    """In the basis of one chain."""

    mean: Tensor
    linear: Tensor
    covariance: Tensor
    gain: Tensor  # W diag(g) E, (m, d)
    rows: Tensor  # E


def predicted(seen: Seen, extra: Tensor, i: int, there: float = THERE) -> Predicted:
    """Written out for one chain, with the generalised eigenvalues of SciPy."""
    ahead, slopes = seen.ahead, seen.ahead.slopes
    G, k = slopes[i], (there / HERE) ** 2
    values, axes = linalg.eigh((HERE**4 * G @ G.T).numpy(), ahead.linear[i].numpy())
    c, V = torch.tensor(np.array(values)), torch.tensor(np.array(axes))
    E, W = HERE**2 / c.sqrt()[:, None] * (V.T @ G), torch.linalg.inv(V).T
    a = 1 / (1 + c * (there**-2 - HERE**-2))
    g = c.sqrt() / (there**2 + c * (1 - k))
    mean = W @ (V.T @ ahead.mean[i] + (1 - k) * g * (E @ extra[i]))
    linear = W @ torch.diag(a) @ W.T
    bent = W @ torch.diag(a) @ V.T @ ahead.bent[i] @ V @ torch.diag(a) @ W.T
    close(a + (there**2 * (1 - k) + (1 - k) ** 2 * c) * g**2, torch.ones(1, dtype=torch.float64))  # total variance
    return Predicted(mean, linear, linear + bent, W @ (g[:, None] * E), E)


@every_set
@pytest.mark.parametrize("soft", [None, term], ids=["hard", "soft"])
def test_mean_and_noise_are_those_of_the_formulas(constraint: casal.Constraint, soft: object) -> None:
    prior = diagonal(D)
    x, extra = prior.mean + 1.5 * normal(1, N, D), 0.1 * normal(2, N, D)
    seen = looked(problem_for(prior, constraint, term=soft), x, HERE, directions=2)  # type: ignore[arg-type]
    plan = plan_of(seen, x, extra)
    close(plan.centre, K * x + (1 - K) * (seen.looks.estimate + extra))
    E = directions(seen, plan)
    at = [predicted(seen, extra, i) for i in range(N)]
    mean, covariance = torch.stack([p.mean for p in at]), torch.stack([p.covariance for p in at])
    tilt, stiff = seen.ahead.tilt, seen.ahead.stiff
    found = potential(mean, covariance, seen.features, tilt, stiff)
    for i in range(N):
        step, rows = BETA * at[i].gain, at[i].rows
        wide = torch.eye(D, dtype=torch.float64) + step.T @ found.curvature[i] @ step  # in all directions
        S = torch.linalg.inv(wide)
        close(
            E[i].T @ (plan.root @ plan.root.mT)[i] @ E[i], S - torch.eye(D, dtype=torch.float64) + rows.T @ rows, 1e-7
        )
        close(E[i].T @ plan.mean[i], S @ step.T @ found.slope[i], 1e-7)


def test_with_equations_alone_the_mean_and_noise_are_those_of_a_kalman_update() -> None:
    """q = -B H^-1 r and S = I - B H^-1 B with H = covariance' + B^2, bends included."""
    prior = diagonal(D)
    x = prior.mean + 1.5 * normal(1, N, D)
    seen = looked(problem_for(prior, SETS["equations and norm"]), x, HERE)
    plan, none = plan_of(seen, x), torch.zeros_like(x)
    E = directions(seen, plan)
    for i in range(N):
        at = predicted(seen, none, i)
        B = BETA * at.gain
        gain = B.T @ torch.linalg.inv(at.covariance + B @ B.T)
        close(E[i].T @ plan.mean[i], -gain @ at.mean, 1e-8)
        close(E[i].T @ (plan.root @ plan.root.mT)[i] @ E[i], at.rows.T @ at.rows - gain @ B, 1e-8)


def test_the_multistep_term_is_half_the_change_to_come() -> None:
    """For an estimate that is linear in log s, so that the mean over the step is met."""
    slope, earlier = normal(1, N, D), 1.4
    before, clean, after = (slope * math.log(s) for s in (earlier, HERE, THERE))
    close(multistep(clean, before, HERE, THERE, earlier), (after - clean) / 2)
    assert not bool(multistep(clean, None, HERE, THERE, HERE).any())


# ------------------------------------------------------------------ what the prediction is worth


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_prediction_is_the_look_to_come_if_the_rows_span_an_invariant_space(m: int) -> None:
    """Mean, slopes and covariance at x' = mu + beta xi for any xi, with the multistep term."""
    prior, rows = invariant(m)
    x, extra, xi = prior.mean + 1.5 * normal(1, N, D), 0.3 * normal(2, N, D), normal(3, N, D)
    problem = problem_for(prior, casal.Affine(rows, 0.5))
    seen = looked(problem, x, HERE)
    there = looked(problem, plan_of(seen, x, extra).centre + BETA * xi, THERE)
    for i in range(N):
        at = predicted(seen, extra, i)
        close(there.ahead.mean[i], at.mean + BETA * at.gain @ xi[i])
        close(there.ahead.linear[i], at.covariance)
        close(there.ahead.slopes[i], at.gain)


def test_every_row_is_invariant_under_a_round_prior() -> None:
    prior, rows = round_one(D), normal(5, 3, D)
    x, xi = prior.mean + 1.5 * normal(1, N, D), normal(3, N, D)
    problem = problem_for(prior, casal.Affine(rows, 0.5))
    seen = looked(problem, x, HERE)
    there = looked(problem, plan_of(seen, x).centre + BETA * xi, THERE)
    at = predicted(seen, torch.zeros_like(x), 0)
    close(there.ahead.mean[0], at.mean + BETA * at.gain @ xi[0])
    close(there.ahead.linear[0], at.covariance)


def test_then_the_weight_of_a_step_does_not_depend_on_its_noise() -> None:
    """The proposal is bare(x') psi(x') itself: psi(x') bare / proposal is the integral of psi' over the bare step."""
    prior, rows = invariant(3)
    x = (prior.mean + 1.5 * normal(1, 1, D)).expand(N, -1)
    problem = problem_for(prior, casal.Affine(rows, 0.5))
    seen = looked(problem, x, HERE)
    plan = plan_of(seen, x)
    point, paid = plan.draw(normal(3, N, D))
    weight = log_psi(looked(problem, point, THERE)) + paid
    at = predicted(seen, torch.zeros_like(x), 0)
    whole = at.covariance + BETA**2 * at.gain @ at.gain.T
    exact = -at.mean @ torch.linalg.solve(whole, at.mean) / 2 - torch.logdet(whole) / 2
    close(weight, exact)


def test_without_the_guide_the_weight_depends_on_the_noise() -> None:
    """Power: the bare step of the same problem."""
    prior, rows = invariant(3)
    x = (prior.mean + 1.5 * normal(1, 1, D)).expand(N, -1)
    problem = problem_for(prior, casal.Affine(rows, 0.5))
    plan = plan_of(looked(problem, x, HERE), x)
    bare = plan._replace(mean=torch.zeros_like(plan.mean), root=torch.eye(3, dtype=torch.float64).expand(N, -1, -1))
    point, paid = bare.draw(normal(3, N, D))
    assert not bool(paid.any())
    assert float(log_psi(looked(problem, point, THERE)).std()) > 0.5


def test_for_any_rows_the_mean_is_kept_and_the_covariance_is_right_to_first_order() -> None:
    prior, rows = correlated(D), normal(5, 2, D)
    x = prior.mean + 1.5 * normal(1, N, D)
    problem = problem_for(prior, casal.Affine(rows, 0.5))
    seen = looked(problem, x, HERE)
    errors = []
    for precision in (0.2, 0.1):  # 1/s'^2 - 1/s^2
        there = (HERE**-2 + precision) ** -0.5
        after = looked(problem, plan_of(seen, x, there=there).centre, there)
        close(after.ahead.mean, seen.ahead.mean)  # the estimate is a martingale
        covariance = predicted(seen, torch.zeros_like(x), 0, there).covariance
        errors.append(float((after.ahead.linear[0] - covariance).norm()))
    assert 0.2 < errors[1] / errors[0] < 0.3
