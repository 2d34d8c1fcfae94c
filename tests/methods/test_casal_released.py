"""``CASAL.released`` against the authors' iteration, written out in NumPy and fed with the same noise."""

from __future__ import annotations

import numpy as np
import torch

import casal
from casal.streams import stream

from ..models import RADIUS, particle, particle_gradient, particle_start


def test_released_equals_the_published_iteration_on_shared_noise() -> None:
    n, steps, tau, eta, burn = 64, 120, 1e-2, 1e-2, 12
    rho = casal.geometric(0.1, 100.0)
    target = particle(steps, tau)
    result = casal.sample(target, casal.Sphere(RADIUS), casal.CASAL.released(rho, eta, burn_in=burn), n, seed=7)

    x, noise = particle_start(n, stream(7, "start", 0)).numpy(), stream(7, 0, 1)
    values = rho(range(steps)).numpy().copy()
    values[:burn] = 0.0

    def project(v: np.ndarray) -> np.ndarray:
        return RADIUS * v / np.linalg.norm(v, axis=1, keepdims=True)

    z, mu = project(x), np.zeros_like(x)
    for t in range(steps):
        w = torch.randn((n, 2), generator=noise).double().numpy()
        gradient = particle_gradient(torch.as_tensor(x)).numpy()
        x = x - tau * (gradient + values[t] * (x - z + mu)) + np.sqrt(2 * tau) * w
        z = project(x + mu)
        mu = mu + eta * (x - z)

    np.testing.assert_allclose(result.state.x.numpy(), x, atol=1e-11)
    np.testing.assert_allclose(result.samples.numpy(), z, atol=1e-11)
    np.testing.assert_allclose(result.state.lam.numpy(), mu, atol=1e-11)


def test_algorithms_1_and_2_equal_their_printed_iterations_on_shared_noise() -> None:
    n, steps, tau, rho = 32, 50, 1e-2, 20.0
    for method, dual in ((casal.CASAL.algorithm1(rho), tau / rho), (casal.CASAL.algorithm2(rho), tau)):
        result = casal.sample(particle(steps, tau), casal.Sphere(RADIUS), method, n, seed=3)
        x, noise = particle_start(n, stream(3, "start", 0)), stream(3, 0, 1)
        project = casal.Sphere(RADIUS).project
        z, mu = project(x), torch.zeros_like(x)
        for _ in range(steps):
            w = torch.randn((n, 2), generator=noise).double()
            x = x - tau * particle_gradient(x) - tau * rho * (x - z + mu) + (2 * tau) ** 0.5 * w
            z = project(z - tau * rho * (z - x - mu))
            mu = mu + dual * (x - z)
        torch.testing.assert_close(result.samples, z, atol=1e-11, rtol=0)
        torch.testing.assert_close(result.state.lam / rho, mu, atol=1e-11, rtol=0)
