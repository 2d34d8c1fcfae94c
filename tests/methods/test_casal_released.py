"""The published variants against their lines, written out in NumPy and fed with the same noise.

Nothing here comes from the library but the streams of random numbers: potentials, projections and updates are written
from the paper (Algorithms 1 and 2) and from the authors' released step. The print has no burn-in; it is defined as
"x moves without coupling, z and mu stand still". In the released script rho is zero there and all else goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

import casal
from casal.streams import stream

Array = npt.NDArray[np.float64]
STEPS, CHAINS, SEED = 200, 16, 7


class Published(NamedTuple):
    """A potential, a sphere and constants."""

    gradient: Callable[[Array], Array]
    dimension: int
    radius: float
    spread: float  # of the start
    tau: float


def _well(m: Array) -> Array:
    return np.asarray(0.5 * ((m + 1) ** 3 - 0.7 * (m + 1) ** 2 - 1.7 * (m + 1)))


def _particle(x: Array) -> Array:
    return np.stack([_well(x[:, 0]), x[:, 1] / 0.1**2], axis=1)


def _field(x: Array) -> Array:
    k = np.arange(5)
    curvature = np.repeat((1 + np.hypot(k[:, None], k[None, :]).ravel()) ** 2 / 0.1, 2)
    return np.concatenate([_well(x[:, :2]), curvature[2:] * x[:, 2:]], axis=1)


PROBLEMS = {
    "particle": Published(_particle, 2, 3.0, 1.0, 1e-2),
    "field": Published(_field, 50, 30.0**0.5, 5.0, 1e-3),
}
COUPLINGS: dict[str, tuple[float | casal.schedules.Schedule, Array]] = {
    "constant": (20.0, np.full(STEPS, 20.0)),
    "linear": (casal.linear(2.0, 20.0), np.linspace(2.0, 20.0, STEPS)),
    "logarithmic": (casal.geometric(0.1, 50.0), np.logspace(-1, np.log10(50.0), STEPS)),
    "stepped": (
        lambda table: torch.as_tensor(np.where(np.arange(len(table)) < 120, 3.0, 30.0)),
        np.where(np.arange(STEPS) < 120, 3.0, 30.0),
    ),
}
ETA = 5e-3


def method_of(variant: str, rho: float | casal.schedules.Schedule, burn_in: int) -> casal.CASAL:
    """The variant of the library."""
    if variant == "released":
        return casal.CASAL.released(rho, ETA, burn_in=burn_in)
    return getattr(casal.CASAL, variant)(rho, burn_in=burn_in)  # type: ignore[no-any-return]


def printed_lines(variant: str, problem: Published, rho: Array, burn_in: int) -> tuple[Array, Array, Array]:
    """x, z, mu after all steps."""

    def project(v: Array) -> Array:
        return np.asarray(problem.radius * v / np.linalg.norm(v, axis=1, keepdims=True))

    shape, tau, noise = (CHAINS, problem.dimension), problem.tau, stream(SEED, 0, 1)
    start = torch.randn(shape, generator=stream(SEED, "start", 0), dtype=torch.float64)
    x = problem.spread * start.numpy()
    z, mu = project(x), np.zeros(shape)
    for t in range(STEPS):
        w = torch.randn(shape, generator=noise).double().numpy()
        r = 0.0 if t < burn_in else rho[t]
        x = x - tau * problem.gradient(x) - tau * r * (x - z + mu) + np.sqrt(2 * tau) * w
        if variant == "released":
            z = project(x + mu)
            mu = mu + ETA * (x - z)
        elif t >= burn_in:
            z = project(z - tau * r * (z - x - mu))
            mu = mu + (tau / r if variant == "algorithm1" else tau) * (x - z)
    return x, z, mu


def run(variant: str, problem: Published, rho: float | casal.schedules.Schedule, burn_in: int) -> casal.SampleResult:
    """The library on the same problem."""

    def start(n: int, generator: torch.Generator) -> torch.Tensor:
        return problem.spread * torch.randn((n, problem.dimension), generator=generator, dtype=torch.float64)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(problem.gradient(x.numpy()))

    target = casal.langevin(gradient, steps=STEPS, step_size=problem.tau, init=start)
    method = method_of(variant, rho, burn_in)
    return casal.sample(target, casal.Sphere(problem.radius), method, CHAINS, seed=SEED, check=False)


@pytest.mark.parametrize("burn_in", [0, 20])
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("variant", ["algorithm1", "algorithm2", "released"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_variant_equals_its_published_lines_on_shared_noise(
    name: str, variant: str, coupling: str, burn_in: int
) -> None:
    rho, values = COUPLINGS[coupling]
    result = run(variant, PROBLEMS[name], rho, burn_in)
    x, z, mu = printed_lines(variant, PROBLEMS[name], values, burn_in)
    np.testing.assert_allclose(result.state.x.numpy(), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.samples.numpy(), z, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.state.lam.numpy(), mu, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_held_lambda_is_another_iteration_when_rho_changes(name: str) -> None:
    """The check above can fail: mu rescaled by rho_t / rho_(t+1) at every step moves every chain by far more."""
    rho, values = COUPLINGS["linear"]
    problem = PROBLEMS[name]
    held = casal.CASAL(rho, "tau", z_step="damped", coupling="explicit", step_size="paper", couple="state")
    start = torch.randn((CHAINS, problem.dimension), generator=stream(SEED, "start", 0), dtype=torch.float64)
    target = casal.langevin(
        lambda x: torch.as_tensor(problem.gradient(x.numpy())),
        steps=STEPS,
        step_size=problem.tau,
        init=problem.spread * start,
    )
    result = casal.sample(target, casal.Sphere(problem.radius), held, CHAINS, seed=SEED, check=False)
    _, z, _ = printed_lines("algorithm2", problem, values, 0)
    assert np.abs(result.samples.numpy() - z).max(1).min() > 1e-6
