"""Behind a decoder the score is taken where it is known: against closed forms of Gaussians, and on exact draws."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import casal
from casal.diagnostics import assess
from casal.diagnostics.behind import view
from casal.diagnostics.check import NotAvailable
from casal.diagnostics.model_score import level_score
from casal.methods import Problem

from .populations import CENTRE, evidence, gaussian, generator

PRECISION = torch.tensor([[2.0, 0.5, -0.3], [0.5, 1.0, 0.4], [-0.3, 0.4, 1.5]], dtype=torch.float64)
COVARIANCE = torch.linalg.inv(PRECISION)


def score(x: Tensor) -> Tensor:
    return -(x - CENTRE) @ PRECISION


def behind(decoder: casal.Decoder, constraint: casal.Constraint) -> Problem:
    target = casal.langevin(lambda x: -score(x), steps=10, step_size=0.1, init=torch.zeros(2, 3).double())
    return Problem(target, constraint, decoder, torch.zeros((0, 3), dtype=torch.float64))


def equal(n: int) -> Tensor:
    return torch.full((n,), 1.0 / n, dtype=torch.float64)


@pytest.mark.parametrize("orthonormal", [True, False])
def test_the_mean_score_of_a_decoder_that_is_onto(orthonormal: bool) -> None:
    """A x ~ N(A m, A S A^T); the score is linear, so at E[x | A x = z] it is its own mean given z."""
    A = torch.tensor([[1.0, 0.5, -0.3], [0.0, 0.8, 0.6]], dtype=torch.float64)
    A = torch.linalg.qr(A.T)[0].T.contiguous() if orthonormal else A
    circle = casal.Sphere(1.0)
    z = circle.project(torch.randn((20, 2), generator=generator(0), dtype=torch.float64))
    inner = A @ COVARIANCE @ A.T
    x = CENTRE + torch.linalg.solve(inner, (z - CENTRE @ A.T).T).T @ (A @ COVARIANCE)
    problem = behind(casal.Linear(A), circle)
    seen = view(problem, circle, z, equal(20), x + 1e-3 * (A.T @ torch.ones(2).double()))  # not quite on the set
    found = seen.pull(level_score(problem, seen.latent(z)))
    assert not seen.pointwise
    off = x + 1e-3 * (A.T @ torch.ones(2).double())
    back = off - (off @ A.T - z) @ torch.linalg.pinv(A).T
    torch.testing.assert_close(seen.latent(z), back)
    torch.testing.assert_close(found, -torch.linalg.solve(inner, (z - CENTRE @ A.T).T).T)


@pytest.mark.parametrize("rows", [3, 5])
def test_the_score_of_a_decoder_that_is_one_to_one(rows: int) -> None:
    """In orthonormal coordinates of its range, a Gaussian again."""
    A = torch.randn((rows, 3), generator=generator(1), dtype=torch.float64)
    plane = casal.Affine(torch.ones(1, rows), 0.5)
    x = gaussian(20, 0)
    x = x - (x @ A.T @ torch.ones(rows).double() - 0.5)[:, None] * torch.linalg.pinv(torch.ones(1, rows).double() @ A).T
    problem = behind(casal.Linear(A), plane)
    seen = view(problem, plane, x @ A.T, equal(20), x)
    assert seen.pointwise and bool(seen.inside(seen.points).all()) and seen.shape.project is not None
    torch.testing.assert_close(seen.latent(seen.points), x)
    torch.testing.assert_close(seen.shape.project(seen.points), seen.points)

    def log_density(u: Tensor) -> Tensor:
        off = seen.latent(u) - CENTRE
        return -0.5 * torch.einsum("ni,ij,nj->n", off, PRECISION, off)

    leaf = seen.points.requires_grad_()
    (expected,) = torch.autograd.grad(log_density(leaf).sum(), leaf)
    torch.testing.assert_close(seen.pull(level_score(problem, x)), expected)


def test_latents_of_a_set_with_an_interior_are_checked_behind_any_decoder() -> None:
    """N(CENTRE, I) where |(x, x0 x1)| <= 1, by rejection; and at half temperature."""
    decoder = casal.Nonlinear(lambda x: torch.cat([x, x[:, :1] * x[:, 1:2]], dim=1))
    ball = casal.Ball(1.0)
    for temperature, verdict in ((1.0, "trusted"), (0.3, "suspect")):
        x = CENTRE + temperature**0.5 * (gaussian(20_000, 3) - CENTRE)
        x = x[ball.violation(decoder(x)) == 0.0][:1000]
        found = evidence(decoder(x), ball, decoder=decoder, state=SimpleNamespace(x=x))
        assert assess(found, promised=True).verdict == verdict


def test_what_has_no_view() -> None:
    net = casal.Nonlinear(lambda x: x.square())
    x, sphere = gaussian(20, 0), casal.Sphere(1.0)
    with pytest.raises(NotAvailable, match="nonlinear decoder"):
        view(behind(net, sphere), sphere, sphere.project(x), equal(20), x)
    with pytest.raises(NotAvailable, match="keeps no latents"):
        view(behind(net, sphere), sphere, sphere.project(x), equal(20), None)
