"""A soft term: part of a fixed density, handed on with a model under noise, refused if it has no derivative."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError
from casal.targets import Target, slope

TIME = torch.tensor(0.0, dtype=torch.float64)
CENTRE = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
SPREAD = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return ((x - CENTRE.to(x)) / SPREAD.to(x)).square().sum(1) / 2


def quadratic(x: Tensor) -> Tensor:
    return 3.0 * x[:, 0] - x.square().sum(1)


def density(**options: Any) -> Target:
    settings: dict[str, Any] = {"steps": 20, "step_size": 0.05, "init": torch.zeros(8, 3, dtype=torch.float64)}
    return casal.energy(f, **settings | options)


def diffusion() -> Target:
    return casal.edm(lambda x, s: x / (1 + s**2), [20.0, 1.0, 0.1], shape=(3,), churn=1.0, dtype=torch.float64)


def points(n: int = 5) -> Tensor:
    return torch.randn((n, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ------------------------------------------------------------------------------------------- fixed densities


def test_a_fixed_density_has_the_term_in_score_and_potential() -> None:
    """N(m, s^2) exp(3 x_1 - |x|^2) is Gaussian, of precision 1/s^2 + 2 and known mean."""
    target, x = casal.tilted(density(), quadratic), points()
    precision = SPREAD**-2 + 2.0
    mean = (CENTRE / SPREAD**2 + torch.tensor([3.0, 0.0, 0.0])) / precision
    torch.testing.assert_close(target.score(x, TIME), -precision * (x - mean), rtol=1e-13, atol=1e-13)
    assert target.potential is not None and target.log_weight is None
    found = target.potential(x) - (precision * (x - mean).square()).sum(1) / 2
    assert float((found - found[0]).abs().max()) < 1e-12  # the same up to a constant


def test_a_gradient_alone_will_do() -> None:
    prior = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=points())
    target = casal.tilted(prior, lambda x: x.sin().sum(1))
    torch.testing.assert_close(target.score(points(), TIME), points().cos() - points())
    assert target.potential is None


def test_open_settings_stay_open_and_every_method_works() -> None:
    prior = density(step_size="auto", preconditioner="auto", init=torch.randn((64, 3), dtype=torch.float64))
    target = casal.tilted(prior, quadratic, name="mine")
    assert target.tune == prior.tune and target.tune is not None and target.name == "mine"
    for method in (casal.CASAL(10.0), casal.WeightedCASAL(30.0)):
        result = casal.sample(target, casal.Sphere(1.0), method, 64)
        assert bool(result.certificate.feasible.all())


def test_float32_stays_float32() -> None:
    target = casal.tilted(density(init=torch.zeros(8, 3)), quadratic)
    assert target.score(points().float(), TIME).dtype == torch.float32


def test_a_tilted_score_can_be_differentiated() -> None:
    prior = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=points())
    target, x = casal.tilted(prior, quadratic), points().requires_grad_()
    (found,) = torch.autograd.grad(target.score(x, TIME).sum(), x)
    torch.testing.assert_close(found, torch.full_like(found, -3.0))


def test_terms_of_a_fixed_density_add() -> None:
    once = casal.tilted(density(), lambda x: quadratic(x) + x.sin().sum(1))
    twice = casal.tilted(casal.tilted(density(), quadratic), lambda x: x.sin().sum(1))
    torch.testing.assert_close(once.score(points(), TIME), twice.score(points(), TIME))


# ------------------------------------------------------------------------------------------- models under noise


def test_a_model_under_noise_hands_the_term_on() -> None:
    prior = diffusion()
    target = casal.tilted(prior, quadratic)
    assert target.log_weight is quadratic and target.name == "tilted edm"
    assert target.score is prior.score and target.denoise is prior.denoise


def test_terms_of_a_model_under_noise_add() -> None:
    target = casal.tilted(casal.tilted(diffusion(), quadratic), lambda x: x.sin().sum(1))
    assert target.log_weight is not None
    torch.testing.assert_close(target.log_weight(points()), quadratic(points()) + points().sin().sum(1))


def test_observations_keep_the_term() -> None:
    target = casal.tilted(diffusion(), quadratic)
    H, y = torch.eye(3, dtype=torch.float64)[:1], torch.ones(1, dtype=torch.float64)
    assert casal.posterior(target, H, y, 0.1).log_weight is quadratic
    assert casal.latent_posterior(target, lambda x: x, lambda z: z, H, y).log_weight is quadratic
    assert casal.tilted(casal.posterior(diffusion(), H, y, 0.1), quadratic).log_weight is quadratic


def test_the_term_is_tried_at_a_clean_sample_and_not_at_noise() -> None:
    """At the first noise level a point is 20 away from zero, and the square root has no value there."""
    target = casal.tilted(diffusion(), lambda x: (4.0 - x.square().sum(1)).sqrt())
    assert target.log_weight is not None


def test_slope_is_the_gradient() -> None:
    torch.testing.assert_close(
        slope(quadratic, points()), torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64) - 2 * points()
    )


# ------------------------------------------------------------------------------------------- what is refused


class Once(torch.autograd.Function):
    """A sum of squares that can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g[:, None] * ctx.saved_tensors[0]


def once(x: Tensor) -> Tensor:
    found: Tensor = Once.apply(x)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("make", [density, diffusion])
@pytest.mark.parametrize(
    ("term", "kind", "message"),
    [
        (3.0, SettingError, "must be a function"),
        (lambda x: x, ShapeError, r"returned \(1, 3\) .* sum over all other dimensions"),
        (lambda x: x.sum(), ShapeError, r"one number per row \(1,\)"),
        (lambda x: 1.0, ShapeError, "returned float"),
        (lambda x: x.detach().sum(1), SettingError, "cannot differentiate through log_weight; .* without no_grad"),
        (lambda x: (x.sum(1) * 0.0).log(), SettingError, "log_weight is not finite"),
        (lambda x: (0.0 * x).norm(dim=1).sqrt(), SettingError, "gradient of log_weight is not finite"),
    ],
)
def test_terms_that_cannot_work_are_refused_with_the_way_out(make: Any, term: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        casal.tilted(make(), term)


def test_second_derivatives_are_needed_under_noise_only() -> None:
    with pytest.raises(SettingError, match=r"no second derivatives of log_weight.* differentiated twice"):
        casal.tilted(diffusion(), once)
    found = casal.tilted(density(), once).score(points(), TIME)
    torch.testing.assert_close(found, density().score(points(), TIME) + 2 * points())
    assert casal.tilted(diffusion(), lambda x: x[:, 0]).log_weight is not None  # a linear term has none, and needs none


def test_methods_that_do_not_see_the_term_are_refused() -> None:
    target, constraint = casal.tilted(diffusion(), quadratic), casal.Affine([[1.0, 1.0, 1.0]], [0.5])
    for method in (casal.FinalProjection(), casal.SplitGibbs(0.2), casal.Twisted(30.0), casal.CASAL(10.0)):
        with pytest.raises(SettingError, match=f"{method.name} takes no account .* take casal.LookAhead"):
            casal.sample(target, constraint, method, 8)


def test_auto_takes_the_method_that_does() -> None:
    target = casal.tilted(diffusion(), quadratic)
    result = casal.sample(target, casal.Affine([[1.0, 1.0, 1.0]], [0.5]), "auto", 16)
    assert bool(result.certificate.feasible.all())
    assert result.provenance["method"] == "LookAhead" and "soft term" in result.provenance["choice"]
