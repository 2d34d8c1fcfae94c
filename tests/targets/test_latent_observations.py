"""Observations of decoded samples: the gradient against finite differences, its fixed points, what it leads to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError

F64 = torch.float64
A = torch.tensor([[1.0, 0.2, 0.0], [0.3, -1.0, 0.5], [0.0, 0.4, 0.9], [0.7, 0.0, -0.3], [0.1, 0.6, 0.2]], dtype=F64)
LINEAR = casal.Linear(A)
H = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.5, 0.0, 1.0, 0.0]], dtype=F64)
CODE = torch.tensor([[0.4, -0.8, 0.3]], dtype=F64)
SEEN = (CODE @ A.T @ H.T)[0]
SET = casal.Affine(H, SEEN)


def pinv(z: Tensor) -> Tensor:
    return LINEAR.pinv(z, (3,))


def curved(x: Tensor) -> Tensor:
    return torch.tanh(x @ A.T)


def learned(z: Tensor) -> Tensor:
    """Some encoder that inverts nothing exactly."""
    return torch.sin(z) @ A


def bent(x: Tensor, s: Tensor) -> Tensor:
    """Some denoiser."""
    return torch.tanh(x / (1 + s**2)) + 0.1 * x / (1 + s**2)


def prior(steps: int = 30) -> casal.Target:
    return casal.edm(bent, casal.karras_sigmas(steps, 0.02, 10.0), shape=3, churn=1.0, dtype=F64)


def points(n: int = 4) -> Tensor:
    return torch.randn((n, 3), generator=torch.Generator().manual_seed(1), dtype=F64)


@pytest.mark.parametrize("pair", [(LINEAR, pinv), (curved, learned)], ids=["linear", "curved"])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (3.0, 0.4)], ids=str)
def test_the_score_is_the_gradient_of_what_is_printed(
    pair: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], weights: tuple[float, float]
) -> None:
    decode, encode = pair
    weight, gluing = weights
    target, sigma = prior(), float(prior().table.t[12])
    inverse = H.T @ torch.linalg.inv(H @ H.T)

    def cost(x: Tensor) -> Tensor:
        clean = bent(x, torch.tensor(sigma, dtype=F64))
        z = decode(clean)
        gap = SEEN - z @ H.T
        return weight * gap.norm(dim=1) + gluing * (clean - encode(z + gap @ inverse.T)).norm(dim=1)

    given = casal.latent_posterior(target, decode, encode, H, SEEN, weight=weight, gluing=gluing)
    slope = target.score(points(), target.table.t[12]) - given.score(points(), target.table.t[12])
    for k in range(3):
        step = 1e-6 * torch.eye(3, dtype=F64)[k]
        numeric = (cost(points() + step) - cost(points() - step)) / 2e-6
        torch.testing.assert_close(slope[:, k], numeric, atol=1e-7, rtol=1e-6)
    assert given.denoise is not None
    tweedie = points() + sigma**2 * given.score(points(), target.table.t[12])
    torch.testing.assert_close(tweedie, given.denoise(points(), torch.tensor(sigma, dtype=F64)), atol=1e-9, rtol=1e-9)


def test_without_gluing_and_decoder_it_is_dps() -> None:
    matrix, values = H[:, :3], SEEN
    latent = casal.latent_posterior(prior(), lambda x: x, lambda z: z, matrix, values, weight=2.0, gluing=0.0)
    plain = casal.posterior(prior(), matrix, values, 1.0, way="dps", weight=2.0)
    for t in prior().table.t[::7]:
        torch.testing.assert_close(latent.score(points(), t), plain.score(points(), t), atol=1e-9, rtol=1e-9)


def test_the_weight_of_dps_may_depend_on_the_noise_level() -> None:
    """w / s at level s is the number w / s there; prior() is an EDM, whose times are its levels."""
    matrix, values = H[:, :3], SEEN
    falling = casal.posterior(prior(), matrix, values, 1.0, way="dps", weight=lambda s: 2.0 / s)
    assert falling.denoise is not None
    for t in prior().table.t[::7]:
        number = casal.posterior(prior(), matrix, values, 1.0, way="dps", weight=2.0 / float(t))
        torch.testing.assert_close(falling.score(points(), t), number.score(points(), t), atol=1e-9, rtol=1e-9)
    several = torch.linspace(0.5, 2.0, len(points()), dtype=F64)  # one level a chain
    one_by_one = [falling.denoise(points()[k : k + 1], several[k]) for k in range(len(several))]
    torch.testing.assert_close(falling.denoise(points(), several), torch.cat(one_by_one))


def test_a_code_that_fits_is_left_alone() -> None:
    """D = the code itself: the observation holds, and it is a fixed point of encode and decode."""
    known = casal.edm(lambda x, s: CODE + 0 * x, [2.0, 1.0], shape=3, dtype=F64)
    given = casal.latent_posterior(known, LINEAR, pinv, H, SEEN, weight=1.0, gluing=1.0)
    torch.testing.assert_close(given.score(points(), known.table.t[0]), known.score(points(), known.table.t[0]))


def test_samples_come_nearer_to_the_observation_and_stay_codes() -> None:
    free = casal.sample(prior(), SET, casal.Unconstrained(), 200, seed=0, decoder=LINEAR)
    given = casal.latent_posterior(prior(), LINEAR, pinv, H, SEEN, weight=5.0, gluing=1.0)
    guided = casal.sample(given, SET, casal.Unconstrained(), 200, seed=0, decoder=LINEAR)
    misfit = [float((r.samples @ H.T - SEEN).norm(dim=1).mean()) for r in (free, guided)]
    assert misfit[1] < 0.3 * misfit[0]
    strict = casal.sample(given, SET, casal.FinalProjection(), 200, seed=0, decoder=LINEAR, tol=1e-12)
    assert bool(strict.certificate.feasible.all())

    def apart(z: Tensor) -> float:
        """How far the strict samples are from being decoded codes."""
        return float((z - LINEAR(pinv(z))).norm(dim=1).mean())

    loose = casal.sample(prior(), SET, casal.FinalProjection(), 200, seed=0, decoder=LINEAR)
    assert apart(strict.samples) < 0.3 * apart(loose.samples)


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match=r"gluing must be finite and >= 0, got -1"):
        casal.latent_posterior(prior(), LINEAR, pinv, H, SEEN, gluing=-1.0)
    with pytest.raises(ShapeError, match=r"encode returned \(4, 5\) for latents \(4, 3\)"):
        casal.latent_posterior(prior(), LINEAR, lambda z: z, H, SEEN).score(points(), prior().table.t[0])
    with pytest.raises(ShapeError, match=r"H has 5 columns, events \(3,\) have 3"):
        casal.latent_posterior(prior(), lambda x: x, pinv, H, SEEN).score(points(), prior().table.t[0])
    static = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=torch.zeros(2, 3))
    with pytest.raises(SettingError, match="no noise levels"):
        casal.latent_posterior(static, LINEAR, pinv, H, SEEN)
