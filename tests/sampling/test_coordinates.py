"""Steps in coordinates of the range of a decoder are the steps in decoded space, to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import casal
from casal.constraints import Constraint, Subspace, geometry
from casal.decoders import Decoder, Transform
from casal.methods import Method

N, MODES = 16, 4
SIZE = 2 * MODES - 1
SCALE = torch.linspace(0.4, 1.0, SIZE, dtype=torch.float64)
IN_RANGE = casal.Fourier(MODES, N)(torch.randn(3, SIZE, generator=torch.Generator().manual_seed(5)).double())

DECODERS: dict[str, Decoder] = {
    "Fourier": casal.Fourier(MODES, N),
    "Fourier, scaled": casal.Fourier(MODES, N, scale=SCALE),
    "DCT, scaled": casal.DCT(SIZE, N, scale=SCALE),
}
SETS: dict[str, Constraint] = {
    "MassEnergy": casal.MassEnergy(1.5, 6.0),
    "Sphere": casal.Sphere(2.0),
    "Ball": casal.Ball(0.5),
    "mean": casal.Affine(torch.ones(1, N), 1.0),
    "mean below": casal.HalfSpace(-torch.ones(N), -1.0),
    "mean on a sphere": casal.Affine(torch.ones(1, N), 1.0) & casal.Sphere(2.0),
}
METHODS: dict[str, Method[Any]] = {
    "CASAL": casal.CASAL(5.0),
    "explicit": casal.CASAL(1.0, coupling="explicit", dual_step=0.1),
    "Algorithm 2": casal.CASAL.algorithm2(5.0),
    "denoised": casal.CASAL(5.0, couple="denoised"),
    "mean dual": casal.CASAL(5.0, dual="mean", dual_step=0.1),
    "projected": casal.Projected(burn_in=2),
    "projected, exact": casal.Projected(latent="exact"),
    "final projection": casal.FinalProjection(casal.Projected()),
}


def model() -> casal.Target:
    """Ancestral sampling of a Gaussian."""
    betas = torch.linspace(0.02, 0.3, 12, dtype=torch.float64)
    alphas = torch.cumprod(1.0 - betas, 0)

    def eps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        clean = alphas[int(t)].to(x)
        return (1.0 - clean).sqrt() * (x - 0.3 * clean.sqrt()) / (0.5 * clean + 1.0 - clean)

    return casal.ddpm(eps, betas, shape=SIZE, time="scalar")


def run(constraint: Constraint, decoder: Decoder, method: Method[Any], **options: Any) -> casal.SampleResult:
    how = casal.Run(**{"dtype": torch.float64, "record_every": 4, "threads": 1, **options})
    return casal.sample(model(), constraint, method, 11, decoder=decoder, seed=3, run=how)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
@pytest.mark.parametrize("constraint", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS.keys())
def test_the_same_chain(
    decoder: Decoder, constraint: Constraint, method: Method[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = run(constraint, decoder, method)
    with monkeypatch.context() as patch:
        patch.setattr(Transform, "factors", lambda self: None)
        whole = run(constraint, decoder, method)
    assert_close(smaller.samples, whole.samples, rtol=0, atol=1e-9)
    for ours, theirs in zip(smaller.state, whole.state, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert_close(ours, theirs, rtol=0, atol=1e-9)
    for name, values in whole.trace.items():
        assert_close(smaller.trace[name], values, rtol=0, atol=1e-9)
    assert smaller.cost.projections <= whole.cost.projections
    assert float(smaller.certificate.violation.max()) <= 1e-12


def subspace() -> Subspace:
    decoder = DECODERS["Fourier"]
    return Subspace((N,), decoder, decoder.vjp(torch.zeros(1, SIZE, dtype=torch.float64)))


@pytest.mark.parametrize("constraint", SETS.values(), ids=SETS.keys())
def test_a_set_within_has_the_same_feet(constraint: Constraint) -> None:
    space, inner = subspace(), geometry.within(constraint, subspace())
    assert inner is not None
    c = 2.0 * torch.randn((50, SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(space.synthesis(inner.project(c)), constraint.project(space.synthesis(c)), rtol=0, atol=1e-12)


def test_a_centre_of_the_subspace_goes_along() -> None:
    space, sphere = subspace(), casal.Sphere(1.0, center=IN_RANGE[0])
    inner = geometry.within(sphere, space)
    assert inner is not None
    c = torch.randn((5, SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(space.synthesis(inner.project(c)), sphere.project(space.synthesis(c)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "constraint",
    [
        casal.Sphere(1.0, center=torch.eye(N)[0]),
        casal.Affine(torch.eye(N)[:1], 0.3),
        casal.HalfSpace(torch.eye(N)[0], 0.3),
        casal.Affine(torch.eye(N)[:1], 0.3) & casal.Sphere(2.0),
        casal.Box(-1.0, 1.0),
        casal.Box(-1.0, 1.0) & casal.MassEnergy(0.0, 4.0),
    ],
    ids=["centre outside", "row outside", "normal outside", "cut outside", "Box", "MassEnergy & Box"],
)
def test_a_projection_that_leaves_the_range_is_done_in_decoded_space(constraint: Constraint) -> None:
    space = subspace()
    assert geometry.within(constraint, space) is None
    z = constraint.project(space.synthesis(torch.ones(1, SIZE, dtype=torch.float64)))
    assert float((space.synthesis(space.analysis(z)) - z).abs().max()) > 1e-3


def test_constants_must_be_in_the_range_for_mass_energy() -> None:
    sines = casal.DST(5, N)
    space = Subspace((N,), sines, sines.vjp(torch.zeros(1, 5, dtype=torch.float64)))
    assert geometry.within(casal.MassEnergy(1.0, 6.0), space) is None
    assert geometry.within(casal.Sphere(1.0), space) is not None


def test_a_random_multiplier_stays_in_decoded_space(monkeypatch: pytest.MonkeyPatch) -> None:
    method = casal.CASAL(5.0, dual_init=1.0)
    ours = run(SETS["MassEnergy"], DECODERS["Fourier"], method)
    monkeypatch.setattr(Transform, "factors", lambda self: None)
    assert torch.equal(ours.samples, run(SETS["MassEnergy"], DECODERS["Fourier"], method).samples)


def test_samples_of_float32_chains_are_in_the_range_of_the_decoder() -> None:
    decoder = DECODERS["Fourier, scaled"]
    z = run(SETS["MassEnergy"], decoder, METHODS["CASAL"], dtype=torch.float32).samples
    space = subspace()
    assert float((space.synthesis(space.analysis(z)) - z).abs().max()) <= 1e-12


@pytest.mark.parametrize("name", ["CASAL", "mean dual", "projected"])
def test_a_stored_run_comes_back_in_decoded_space(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    plain = run(SETS["MassEnergy"], DECODERS["Fourier, scaled"], METHODS[name], batch=4)
    for _ in range(2):  # the second time everything is read from the store
        stored = run(SETS["MassEnergy"], DECODERS["Fourier, scaled"], METHODS[name], batch=4, store=tmp_path / "run")
        assert torch.equal(stored.samples, plain.samples)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(stored.state, plain.state, strict=True))
