"""The law of SplitGibbs against exact answers, with the weights and without them (power)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal import SplitGibbs
from casal.methods import Method

from ..models import mode_shares, mode_weights_on_circle, modes_ddpm

pytestmark = pytest.mark.statistical
N = 2000
CIRCLE = casal.Sphere(2.0)
WEIGHTS = mode_weights_on_circle(2.0)
METHODS: dict[str, Method[Any]] = {
    "gibbs": SplitGibbs(0.03, levels=30, moves="gibbs"),
    "metropolis": SplitGibbs(0.03, levels=30, moves="metropolis"),
    "given levels": SplitGibbs(np.geomspace(3.0, 0.03, 30).tolist(), moves="gibbs"),
    "islands": SplitGibbs(0.03, levels=30, moves="metropolis", islands=4),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def mode_error(result: casal.SampleResult) -> float:
    shares = (result.weights[:, None] * mode_shares(result.samples)).sum(0)
    return float((shares - WEIGHTS).abs().sum()) / 2


@every_method
def test_modes_on_a_circle_have_their_weights(method: Method[Any]) -> None:
    result = casal.sample(modes_ddpm(120), CIRCLE, method, N, seed=4)
    assert bool(result.certificate.feasible.all()) and float(result.certificate.violation.max()) < 1e-12
    # floor 0.012 at n = 2000; resampling doubles the variance, the reverse process adds up to 0.02
    assert mode_error(result) < 0.06
    assert int(result.trace["ancestors"][-1]) > N / 8


def test_without_weights_the_modes_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: the same test fails for the same moves if every chain keeps its weight."""
    from casal.methods import split_gibbs

    def unweighted(state: Any, *_: Any) -> Any:
        return state._replace(log_weight=torch.zeros_like(state.log_weight))

    monkeypatch.setattr(split_gibbs, "resample", unweighted)
    result = casal.sample(modes_ddpm(120), CIRCLE, METHODS["metropolis"], N, seed=4)
    assert mode_error(result) > 0.1


COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)


def gaussian_denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    """Of N(0, COVARIANCE)."""
    gain = COVARIANCE @ torch.linalg.inv(COVARIANCE + sigma.to(torch.float64) ** 2 * torch.eye(2, dtype=torch.float64))
    return x @ gain.T.to(x)


def gaussian_target() -> casal.Target:
    return casal.edm(gaussian_denoiser, casal.karras_sigmas(80, 0.01, 20.0), shape=2, churn=1.0, dtype=torch.float64)


@every_method
def test_a_correlated_gaussian_on_a_line(method: Method[Any]) -> None:
    """x2 given x1 = 1 has mean 0.8 and standard deviation 0.6."""
    result = casal.sample(gaussian_target(), casal.Affine([[1.0, 0.0]], [1.0]), method, N, seed=1)
    other = result.samples[:, 1]
    assert abs(float((result.weights * other).sum()) - 0.8) < 0.05  # 3.5 standard errors, resampling included
    assert abs(float(other.std()) - 0.6) < 0.04


@pytest.mark.parametrize("method", [METHODS["gibbs"], METHODS["metropolis"]])
def test_a_linear_decoder_that_is_not_isotropic(method: Method[Any]) -> None:
    """z = A x with A far from orthogonal, z1 = 1: z2 follows the Gaussian conditional."""
    A = torch.tensor([[2.0, 0.5], [0.3, 0.2]], dtype=torch.float64)
    decoded = A @ COVARIANCE @ A.T
    mean = float(decoded[0, 1] / decoded[0, 0])
    spread = math.sqrt(float(decoded[1, 1] - decoded[0, 1] ** 2 / decoded[0, 0]))
    result = casal.sample(
        gaussian_target(), casal.Affine([[1.0, 0.0]], [1.0]), method, N, decoder=casal.Linear(A), seed=2
    )
    other = result.samples[:, 1]
    assert abs(float(other.mean()) - mean) < 5 * spread / math.sqrt(N) + 0.002
    assert abs(float(other.std()) - spread) < 0.12 * spread


@dataclass(frozen=True)
class Parabola:
    """x -> (x1, x2 + x1^2 / 2)."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x[:, 1] + x[:, 0].square() / 2], dim=1)


def standard(x: Tensor, sigma: Tensor) -> Tensor:
    """Denoiser of N(0, I)."""
    return x / (1.0 + sigma.to(x) ** 2)


@pytest.mark.parametrize("method", [METHODS["metropolis"]])
def test_a_nonlinear_decoder(method: Method[Any]) -> None:
    """x ~ N(0, I) with x2 + x1^2 / 2 = 2: x1 has the density exp(-x1^2 / 2 - (2 - x1^2 / 2)^2 / 2)."""
    target = casal.edm(standard, casal.karras_sigmas(80, 0.01, 20.0), shape=2, churn=1.0, dtype=torch.float64)
    decoder = casal.Nonlinear(Parabola())
    result = casal.sample(target, casal.Affine([[0.0, 1.0]], [2.0]), method, N, decoder=decoder, seed=3)
    grid = np.linspace(-5.0, 5.0, 4001)
    density = np.exp(-(grid**2) / 2 - (2 - grid**2 / 2) ** 2 / 2)
    exact = [float((grid**k * density).sum() / density.sum()) for k in (2, 4)]
    value, error = (float(part) for part in result.expect(lambda z: z[:, 0].square()))
    assert error < 5 * math.sqrt((exact[1] - exact[0] ** 2) / N)
    assert abs(value - exact[0]) < 3.5 * error
    assert abs(exact[0] - 1.0) > 5 * error  # power: without the constraint the second moment is one


def test_a_solid_set_has_no_mass_on_its_border() -> None:
    """x2 given x1 >= 1: mean by the truncated normal; nothing sits on the border."""
    half = casal.HalfSpace([-1.0, 0.0], -1.0)
    hazard = math.exp(-0.5) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(1 / math.sqrt(2)))
    for method in (METHODS["gibbs"], METHODS["metropolis"]):
        result = casal.sample(gaussian_target(), half, method, N, seed=5)
        assert float((result.samples[:, 0] - 1.0).abs().lt(1e-9).double().mean()) == 0.0
        assert abs(float(result.samples[:, 1].mean()) - 0.8 * hazard) < 0.08


def test_the_same_seed_gives_the_same_bits() -> None:
    def run(seed: int) -> Tensor:
        return casal.sample(gaussian_target(), casal.Sphere(1.0), SplitGibbs(0.1, levels=3), 64, seed=seed).samples

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


@pytest.mark.parametrize("method", [METHODS["metropolis"]])
def test_ancestors_are_counted_over_all_tiles(method: Method[Any]) -> None:
    result = casal.sample(gaussian_target(), casal.Sphere(1.0), method, 200, run=casal.Run(batch=50))
    assert int(result.trace["ancestors"][0]) == 200 and int(result.trace["ancestors"][-1]) > 50
    assert int(result.ancestors.max()) >= 150


def langevin() -> casal.Target:
    return casal.langevin(lambda x: x, steps=5, step_size=0.1, init=torch.zeros(8, 2))


@pytest.mark.parametrize(
    ("target", "constraint", "method", "message"),
    [
        (langevin, casal.Sphere(1.0), lambda: SplitGibbs(0.1), "use WeightedCASAL"),
        (gaussian_target, casal.Ball(1.0), lambda: SplitGibbs(0.1, moves="gibbs"), "moves='metropolis'"),
        (gaussian_target, casal.Sphere(1.0), lambda: SplitGibbs([0.1, 0.2]), "strictly decreasing"),
        (gaussian_target, casal.Sphere(1.0), lambda: SplitGibbs(0.1, ess=0.0), "ess"),
        (gaussian_target, casal.Sphere(1.0), lambda: SplitGibbs(0.1, inner_steps=0), "inner_steps"),
        (gaussian_target, casal.Sphere(1.0), lambda: SplitGibbs(0.1, levels=2, islands=3), "8 chains .* 3 islands"),
    ],
)
def test_what_cannot_work_is_refused(
    target: Callable[[], casal.Target],
    constraint: casal.Constraint,
    method: Callable[[], Method[Any]],
    message: str,
) -> None:
    with pytest.raises(casal.errors.SettingError, match=message):
        casal.sample(target(), constraint, method(), 8)


@pytest.mark.parametrize(("target", "name"), [(gaussian_target, "SplitGibbs"), (langevin, "WeightedCASAL")])
def test_auto_takes_what_fits_the_model(target: Callable[[], casal.Target], name: str) -> None:
    built = target()
    if name == "WeightedCASAL":
        built = casal.langevin(lambda x: x, steps=40, step_size=0.1, init=torch.randn(200, 2))
    result = casal.sample(built, casal.Sphere(1.0), "auto", 200)
    assert result.provenance["method"] == name and bool(result.certificate.feasible.all())
    with pytest.raises(casal.errors.SettingError, match="'auto'"):
        casal.sample(built, casal.Sphere(1.0), "best", 200)
