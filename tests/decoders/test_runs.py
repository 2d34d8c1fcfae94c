"""Whole runs: a transform and its dense matrix, the identity and its matrix, give the same chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import casal
from casal.decoders import DCT, DST, Decoder, Fourier, Linear, Nonlinear, Transform

from .dense import normal

N = 40

METHODS: dict[str, Any] = {
    "unconstrained": casal.Unconstrained(),
    "final-projection": casal.FinalProjection(),
    "projected": casal.Projected(),
    "penalty": casal.Penalty(0.02),
    "primal-dual": casal.PrimalDual(0.1),
    "decoupled": casal.Decoupled(10.0),
    "implicit": casal.CASAL(50.0),
    "implicit-damped": casal.CASAL(10.0, z_step="damped"),
    "admm": casal.CASAL(10.0, dual_step="admm"),
    "explicit": casal.CASAL(10.0, coupling="explicit"),
    "algorithm1": casal.CASAL.algorithm1(10.0),
    "algorithm2": casal.CASAL.algorithm2(10.0),
    "released": casal.CASAL.released(10.0, 0.1),
    "weighted": casal.WeightedCASAL(30.0, correct=False),
}


def target(size: int, diagonal: bool = False, dtype: torch.dtype = torch.float64) -> casal.Target:
    precision = torch.linspace(0.7, 1.6, size, dtype=torch.float64)
    return casal.langevin(
        lambda x: (precision * (x.reshape(len(x), -1) - 0.2)).reshape(x.shape).to(x.dtype),
        steps=25,
        step_size=0.05,
        init=normal(N, size, seed=3, dtype=dtype),
        preconditioner=torch.linspace(0.5, 1.0, size, dtype=torch.float64) if diagonal else None,
    )


def pair(constraint: casal.Constraint, method: Any, first: Decoder | None, second: Decoder, *on: Any) -> Any:
    return [casal.sample(target(*on), constraint, method, N, decoder=decoder) for decoder in (first, second)]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("constraint", [casal.Sphere(1.5), casal.MassEnergy(1.0, 4.0)], ids=repr)
def test_an_identity_matrix_is_the_identity(constraint: casal.Constraint, method: Any) -> None:
    eye = Linear(torch.eye(6, dtype=torch.float64))
    without, with_matrix = pair(constraint, method, None, eye, 6)
    assert torch.allclose(without.samples, with_matrix.samples, rtol=0, atol=1e-12)
    assert torch.allclose(without.state[0], with_matrix.state[0], rtol=0, atol=1e-12)


def ramp(count: int) -> torch.Tensor:
    return torch.linspace(1.0, 0.2, count, dtype=torch.float64)


TRANSFORMS: dict[str, Callable[[], Transform]] = {
    "fourier": lambda: Fourier(4, 20),
    "fourier-scaled": lambda: Fourier(4, 20, scale=ramp(7)),
    "fourier-fft": lambda: Fourier(4, 21, scale=ramp(7), algorithm="fft"),
    "fourier-disc": lambda: Fourier.disc(1.5, (8, 9), scale=ramp(9)),
    "dct": lambda: DCT((3, 3), (6, 5), scale=ramp(9)),
    "dst-fields": lambda: DST((2, 2), (6, 5), channels=2, cells=True),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("make", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_runs_like_its_matrix(make: Callable[[], Transform], method: Any) -> None:
    transform = make()
    size = (transform.channels or 1) * transform.count
    A = transform.matrix((size,), torch.zeros(0, size, dtype=torch.float64))
    fast, slow = pair(casal.Sphere(1.5), method, transform, Linear(A, shape=transform.shape), size)
    assert torch.allclose(fast.samples, slow.samples, rtol=0, atol=1e-9)
    assert torch.allclose(fast.state[0], slow.state[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["implicit", "weighted", "decoupled", "projected"])
def test_a_transform_with_a_preconditioner_runs_like_its_matrix(name: str) -> None:
    transform = Fourier(4, 20, scale=ramp(7))
    A = transform.matrix((7,), torch.zeros(0, 7, dtype=torch.float64))
    fast, slow = pair(casal.MassEnergy(1.0, 4.0), METHODS[name], transform, Linear(A), 7, True)
    assert torch.allclose(fast.samples, slow.samples, rtol=0, atol=1e-9)
    assert torch.allclose(fast.state[0], slow.state[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["implicit", "explicit", "weighted", "projected", "final-projection"])
def test_samples_behind_a_transform_are_strict(name: str, dtype: torch.dtype) -> None:
    result = casal.sample(
        target(7, False, dtype),
        casal.MassEnergy(2.0, 9.0),
        METHODS[name],
        N,
        decoder=Fourier(4, 30, scale=ramp(7)),
        tol=1e-10,
    )
    assert result.samples.shape == (N, 30) and result.state[0].dtype == dtype
    assert bool(result.certificate.feasible.all())
    assert result.provenance["decoder"] == "Fourier"


def test_latent_grids_and_flat_latents_are_the_same_run() -> None:
    decoder = DCT((3, 3), (6, 5))
    start = normal(N, 9, seed=3)
    runs = [
        casal.sample(
            casal.langevin(lambda x: x, steps=10, step_size=0.1, init=start.reshape(N, *latent)),
            casal.Sphere(2.0),
            casal.CASAL(20.0),
            N,
            decoder=decoder,
        )
        for latent in ((9,), (3, 3))
    ]
    assert torch.allclose(runs[0].samples, runs[1].samples, rtol=0, atol=1e-13)
    assert runs[1].state.x.shape == (N, 3, 3)


def test_an_offset_is_a_shifted_set() -> None:
    """z = A x + c in C is A x in C - c. With explicit coupling the affine map itself says the same."""
    A, c = normal(6, 3) / 3, torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
    constraint = casal.MassEnergy(1.0, 4.0)
    affine = Nonlinear(lambda x: x @ A.T + c)
    run = casal.sample(target(3), constraint, METHODS["explicit"], N, decoder=affine)
    shifted = casal.sample(target(3), constraint.shifted(-c), METHODS["explicit"], N, decoder=Linear(A))
    assert torch.allclose(run.samples, shifted.samples + c, rtol=0, atol=1e-12)
    implicit = casal.sample(target(3), constraint.shifted(-c), METHODS["implicit"], N, decoder=Linear(A))
    assert float(constraint.violation(implicit.samples + c).max()) <= 1e-12


def test_threads_do_not_change_a_fast_transform() -> None:
    """Of the FFT only: a product of matrices is rounded as the library that computes it likes."""
    threads = torch.get_num_threads()
    try:
        for decoder in (Fourier(60, 128), DCT(100, 128), DCT((100, 90), (128, 100)), DST((200, 130), (200, 140))):
            for n in (1, 7):
                x = normal(n, decoder.count)
                results = []
                for count in (1, 2):
                    torch.set_num_threads(count)
                    z = decoder(x)
                    results.append((z, decoder.vjp(x)(z)))
                assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    finally:
        torch.set_num_threads(threads)
