"""Any differentiable map as a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import casal
from casal.decoders import Linear, Nonlinear
from casal.errors import SettingError, ShapeError

from .dense import normal


def network(*, bias: bool = True, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16, bias=bias), nn.Tanh(), nn.Linear(16, 6, bias=bias))
    return net.to(dtype)


def linear_network(A: Tensor) -> nn.Linear:
    net = nn.Linear(A.shape[1], A.shape[0], bias=False, dtype=A.dtype)
    with torch.no_grad():
        net.weight.copy_(A)
    return net


def jacobians(net: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.stack([torch.autograd.functional.jacobian(lambda row: net(row[None])[0], row) for row in x])


# ------------------------------------------------------------------ decoding and its transpose


@pytest.mark.parametrize("problem", [torch.enable_grad, torch.no_grad])
def test_vjp_is_the_transposed_jacobian(problem: Any) -> None:
    net, x, v = network(), normal(5, 3), normal(5, 6, seed=1)
    expected = torch.einsum("nk,nkd->nd", v, jacobians(net, x)).detach()
    with problem():
        pull = Nonlinear(net).vjp(x)
        assert torch.allclose(pull(v), expected, rtol=0, atol=1e-14)
        assert torch.allclose(pull(2 * v), 2 * expected, rtol=0, atol=1e-14)
        assert not pull(v).requires_grad
    assert not x.requires_grad and all(part.grad is None for part in net.parameters())


def test_a_function_is_as_good_as_a_module() -> None:
    x, v = normal(4, 2, 3), normal(4, 2, 3, seed=1)
    assert torch.allclose(Nonlinear(torch.sin).vjp(x)(v), v * x.cos(), rtol=0, atol=1e-15)


def test_shape_lays_out_what_the_network_returns() -> None:
    net, x = network(), normal(5, 3)
    decoder = Nonlinear(net, shape=(2, 3))
    assert decoder(x).shape == (5, 2, 3) and decoder.event(x) == (2, 3)
    assert torch.equal(decoder(x).reshape(5, 6), net(x))
    v = normal(5, 2, 3, seed=1)
    assert torch.equal(decoder.vjp(x)(v), Nonlinear(net).vjp(x)(v.reshape(5, 6)))


# ------------------------------------------------------------------ its norm


@pytest.mark.parametrize("problem", [torch.enable_grad, torch.no_grad])
def test_the_norm_is_the_largest_over_the_points(problem: Any) -> None:
    net, points = network(), normal(7, 3)
    expected = float(torch.linalg.matrix_norm(jacobians(net, points), ord=2).max())
    with problem():
        estimate = Nonlinear(net, points=points).norm()
    assert estimate == pytest.approx(expected, rel=1e-3) and estimate <= expected * (1 + 1e-12)


def test_the_norm_of_a_linear_network_is_that_of_its_matrix() -> None:
    A = normal(6, 4)
    points = torch.zeros(1, 4, dtype=torch.float64)
    estimate = Nonlinear(linear_network(A), points=points).norm()
    assert estimate == pytest.approx(float(np.linalg.norm(A.numpy(), ord=2)), rel=1e-3)


def test_a_given_norm_is_taken() -> None:
    assert Nonlinear(network(), norm=3.5, points=normal(2, 3)).norm() == 3.5


def test_without_points_the_starting_points_are_taken() -> None:
    net = network()
    with pytest.raises(SettingError, match="give norm= or points="):
        Nonlinear(net).norm()
    start = normal(2, 3)
    assert Nonlinear(net).to(start).norm() == Nonlinear(net, points=start).norm()
    with pytest.raises(SettingError, match="give norm= or points="):
        Nonlinear(net).to(start[:0]).norm()


def test_a_constant_map_has_norm_zero() -> None:
    assert Nonlinear(lambda x: 0.0 * x, points=normal(2, 3)).norm() == 0.0


# ------------------------------------------------------------------ dtype


def test_a_network_follows_the_dtype_of_the_run_and_stays_as_it_was() -> None:
    net = network(dtype=torch.float32)
    decoder = Nonlinear(net).to(normal(2, 3))
    assert isinstance(decoder, Nonlinear) and decoder.net is not net
    assert decoder(normal(2, 3)).dtype == torch.float64
    assert {part.dtype for part in net.parameters()} == {torch.float32}
    assert Nonlinear(net).to(normal(2, 3).float()).net is net  # type: ignore[attr-defined]


# ------------------------------------------------------------------ runs


def target(dtype: torch.dtype = torch.float64) -> casal.Target:
    return casal.langevin(lambda x: x, steps=60, step_size=0.05, init=normal(100, 3, seed=2).to(dtype))


@pytest.mark.parametrize("z_step", ["full", "damped"])
def test_a_linear_network_runs_like_its_matrix(z_step: str) -> None:
    A = normal(5, 3) / 4
    method = casal.CASAL(10.0, coupling="explicit", z_step=z_step)
    run = [
        casal.sample(target(), casal.Sphere(1.0), method, 100, decoder=decoder)
        for decoder in (Nonlinear(linear_network(A)), Linear(A))
    ]
    assert torch.allclose(run[0].samples, run[1].samples, rtol=0, atol=1e-12)
    assert torch.allclose(run[0].state.x, run[1].state.x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "constraint", [casal.Sphere(0.8), casal.MassEnergy(0.5, 1.0), casal.Affine(torch.ones(1, 6), 0.3)], ids=repr
)
def test_samples_behind_a_network_are_strict(constraint: casal.Constraint, dtype: torch.dtype) -> None:
    decoder = Nonlinear(network(), points=normal(20, 3))
    method = casal.CASAL(5.0, coupling="explicit")
    result = casal.sample(
        target(dtype), constraint, method, 100, decoder=decoder, tol=1e-10, run=casal.Run(record_every=59)
    )
    assert result.samples.shape == (100, 6) and result.samples.dtype == torch.float64
    assert bool(result.certificate.feasible.all())
    assert result.state.x.dtype == dtype and bool(torch.isfinite(result.state.x).all())


def test_the_coupling_pulls_the_decoded_chain_towards_the_set() -> None:
    decoder, constraint = Nonlinear(network(), points=normal(20, 3)), casal.Sphere(0.8)
    fine = casal.langevin(lambda x: x, steps=200, step_size=0.005, init=normal(100, 3, seed=2))

    def gap(method: Any) -> float:
        x = casal.sample(fine, constraint, method, 100, decoder=decoder).state.x
        with torch.no_grad():
            return float((decoder(x).norm(dim=1) - 0.8).abs().mean())

    free = gap(casal.Unconstrained())
    gaps = [gap(casal.CASAL(rho, coupling="explicit")) for rho in (20.0, 100.0, 500.0)]
    assert free > gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.25 * free


@pytest.mark.parametrize(
    "method",
    [casal.Unconstrained(), casal.FinalProjection(), casal.Penalty(0.1), casal.PrimalDual(0.1)],
    ids=lambda method: method.name,
)
def test_methods_without_an_implicit_step_run_behind_a_network(method: Any) -> None:
    result = casal.sample(target(), casal.Sphere(0.8), method, 100, decoder=Nonlinear(network()))
    assert result.samples.shape == (100, 6) and not result.samples.requires_grad


# ------------------------------------------------------------------ mistakes


def test_what_needs_a_linear_decoder_says_so() -> None:
    decoder = Nonlinear(network())
    with pytest.raises(SettingError, match=r"Nonlinear is not linear, .* coupling='explicit'"):
        decoder.gram((3,), None, normal(1, 3))
    with pytest.raises(SettingError, match="no pseudo-inverse; state the set in the latent"):
        decoder.pinv(normal(1, 6), (3,))
    for method in (casal.CASAL(1.0), casal.WeightedCASAL(1.0)):
        with pytest.raises(SettingError, match="coupling='explicit'"):
            casal.sample(target(), casal.Sphere(0.8), method, 100, decoder=decoder)


def test_an_unstable_step_is_refused_with_the_estimated_norm() -> None:
    with pytest.raises(SettingError, match=r"explicit coupling is unstable: tau rho \|A\|\^2"):
        casal.sample(
            target(),
            casal.Sphere(0.8),
            casal.CASAL(1e4, coupling="explicit"),
            100,
            decoder=Nonlinear(network()),
        )


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Nonlinear(3), SettingError, "a module or a function, got int"),
        (lambda: Nonlinear(torch.sin, norm=0.0), SettingError, "norm must be finite and > 0, got 0.0"),
        (lambda: Nonlinear(nn.Sequential(nn.Dropout())), SettingError, r"Dropout is in training mode.*\.eval\(\)"),
        (lambda: Nonlinear(nn.BatchNorm1d(3)), SettingError, "BatchNorm1d is in training mode"),
        (lambda: Nonlinear(lambda x: x.sum(0))(torch.ones(3, 2)), ShapeError, r"returned \(2,\) for 3 chains"),
        (lambda: Nonlinear(lambda x: None)(torch.ones(3, 2)), ShapeError, "returned NoneType for 3 chains"),
        (lambda: Nonlinear(torch.sin, shape=(3,))(torch.ones(3, 2)), ShapeError, r"does not fill events \(3,\)"),
        (
            lambda: Nonlinear(lambda x: x.detach()).vjp(torch.ones(3, 2)),
            SettingError,
            "autograd cannot differentiate through",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_evaluation_mode_is_fine() -> None:
    Nonlinear(nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3)).eval())
