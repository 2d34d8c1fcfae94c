"""Whole runs in two systems of units: the same chains, moved and scaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.decoders import Fourier, Standardise

F64 = torch.float64
MEAN, STD = 1.01e5, 1e4
"""A pressure in Pa."""


# ------------------------------------------------------------------ the same run in two systems of units

D, N = 5, 32
CENTRE, PRECISION = torch.linspace(-0.5, 0.5, D, dtype=F64), torch.linspace(0.7, 1.6, D, dtype=F64)


def density() -> casal.Target:
    return casal.langevin(
        lambda x: PRECISION * (x - CENTRE),
        steps=12,
        step_size=0.05,
        init=lambda n, g: torch.randn((n, D), generator=g, dtype=F64),
        potential=lambda x: (PRECISION * (x - CENTRE).square()).sum(1) / 2,
    )


def diffusion() -> casal.Target:
    sigmas = casal.karras_sigmas(8, 0.05, 10.0)
    return casal.edm(
        lambda y, s: (y / s**2 + PRECISION * CENTRE) / (1 / s**2 + PRECISION), sigmas, shape=D, dtype=F64, churn=1.0
    )


ROW = torch.tensor([[1.0, 2.0, 0.0, -1.0, 1.0]], dtype=F64)
BOX = casal.Box(-0.8, 1.5)
SETS: dict[str, tuple[casal.Constraint, casal.Constraint]] = {
    "sphere": (casal.Sphere(1.5), casal.Sphere(1.5 * STD, center=torch.full((D,), MEAN, dtype=F64))),
    "affine": (casal.Affine(ROW, 0.5), casal.Affine(ROW, 0.5 * STD + MEAN * float(ROW.sum()))),
    "box": (BOX, casal.Box(MEAN - 0.8 * STD, MEAN + 1.5 * STD)),
    "total": (
        BOX & casal.Affine(torch.ones(1, D), 1.0),
        casal.Box(MEAN - 0.8 * STD, MEAN + 1.5 * STD) & casal.Affine(torch.ones(1, D), MEAN * D + STD),
    ),
    "norm": (casal.MassEnergy(1.0, 4.0), casal.MassEnergy(1.0, 4.0).scaled(STD).shifted(MEAN)),
}
"""A set in standardised units, and the same in physical ones."""

Model = Callable[[], casal.Target]
METHODS: dict[str, tuple[Model, Callable[[float], Any], str]] = {
    "unconstrained": (density, lambda s: casal.Unconstrained(), "sphere"),
    "final": (diffusion, lambda s: casal.FinalProjection(), "total"),
    "projected": (density, lambda s: casal.Projected(), "norm"),
    "exact": (density, lambda s: casal.Projected(latent="exact"), "affine"),
    "casal": (density, lambda s: casal.CASAL(50.0 / s**2), "norm"),
    "explicit": (density, lambda s: casal.CASAL(10.0 / s**2, coupling="explicit"), "sphere"),
    "denoised": (diffusion, lambda s: casal.CASAL(10.0 / s**2, couple="denoised"), "total"),
    "weighted": (density, lambda s: casal.WeightedCASAL(30.0 / s**2), "sphere"),
    "weighted-auto": (density, lambda s: casal.WeightedCASAL(), "affine"),
    "gibbs": (diffusion, lambda s: casal.SplitGibbs([s, 0.1 * s], inner_steps=2, moves="gibbs"), "norm"),
    "split-auto": (diffusion, lambda s: casal.SplitGibbs(inner_steps=2, levels=6), "sphere"),
    "matheron": (diffusion, lambda s: casal.Matheron(4), "affine"),
    "matheron-curved": (diffusion, lambda s: casal.Matheron(levels=6), "norm"),
    "matheron-inside": (diffusion, lambda s: casal.Matheron(levels=5, modes=False), "total"),
    "reflected": (density, lambda s: casal.HMC(), "box"),
    "auto": (density, lambda s: "auto", "sphere"),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")
def test_a_run_in_physical_units_is_the_run_in_standardised_units(name: str) -> None:
    """Same noise, same samples up to the map, same verdict; couplings are in units of decoded space."""
    model, method, which = METHODS[name]
    plain, physical = SETS[which]
    ours = casal.sample(model(), physical, method(STD), N, decoder=Standardise(MEAN, STD))
    theirs = casal.sample(model(), plain, method(1.0), N)
    # HMC solves for the next point of a curved set up to 1e-9, in units of 1 + |z|, which differ here
    apart = 1e-7 if name == "auto" else 1e-9
    grazing = 2 if name == "matheron-inside" else 0  # orbits that graze a wall meet it or not by rounding
    off = ((ours.samples - MEAN) / STD - theirs.samples).abs().flatten(1).amax(1).sort().values
    assert float(off[: N - grazing].max()) < apart
    assert ours.fidelity.verdict == theirs.fidelity.verdict
    if name != "unconstrained":
        assert float(physical.violation(ours.samples).max()) < 1e-13
    assert ours.latents is not None and theirs.latents is None
    gap = torch.linalg.vector_norm(ours.samples - MEAN - STD * ours.latents, dim=1)
    assert torch.allclose(ours.gap, gap, rtol=1e-9, atol=1e-9 * STD)
    assert torch.equal(theirs.gap, torch.zeros(N, dtype=F64))


def test_bounds_in_units_of_their_own_for_each_coordinate() -> None:
    """Methods for bounds move the bounds: the run is that in standardised units, whatever the units."""
    mean, std = torch.linspace(-1e3, 1e5, D, dtype=F64), torch.logspace(-2, 4, D, dtype=F64)
    decoder, a = Standardise(mean, std), torch.ones(1, D, dtype=F64)
    plain = BOX & casal.Affine(a, 1.0)
    physical = casal.Box(mean - 0.8 * std, mean + 1.5 * std) & casal.Affine(a / std, 1.0 + (a / std) @ mean)
    for model, method in ((density, casal.HMC()),):
        ours = casal.sample(model(), physical, method, N, decoder=decoder, check=False)
        theirs = casal.sample(model(), plain, method, N, check=False)
        assert float(((ours.samples - mean) / std - theirs.samples).abs().max()) < 1e-7
        assert float(ours.certificate.violation.max()) < 1e-13


def test_a_series_in_physical_units_steps_in_coordinates() -> None:
    """Standardise @ Fourier keeps what the series has: a diagonal Gram matrix, and steps in coordinates."""
    series = Fourier(3, 12, scale=torch.linspace(1.0, 0.4, 5))
    target = density()
    plane = casal.Affine(torch.ones(1, 12, dtype=F64), 6.0)
    physical = casal.Affine(torch.ones(1, 12, dtype=F64), 6.0 * STD + 12 * MEAN)
    for method in (casal.CASAL, lambda rho: casal.Projected()):
        ours = casal.sample(target, physical, method(10.0 / STD**2), N, decoder=Standardise(MEAN, STD) @ series)
        theirs = casal.sample(target, plane, method(10.0), N, decoder=series)
        assert float(((ours.samples - MEAN) / STD - theirs.samples).abs().max()) < 1e-9
        assert float(ours.certificate.violation.max()) < 1e-14


def test_float32_runs_lose_nothing_to_a_large_mean() -> None:
    """The set is moved, not the chains: float32 has 0.008 Pa at 1e5 Pa."""
    mean, std = 1e5, 0.1
    target = casal.langevin(
        lambda x: x, steps=10, step_size=0.05, init=lambda n, g: torch.randn((n, 3), generator=g, dtype=torch.float32)
    )
    plain, physical = casal.Sphere(1.5), casal.Sphere(1.5 * std, center=torch.full((3,), mean, dtype=F64))
    ours = casal.sample(target, physical, casal.CASAL(10.0 / std**2), N, decoder=Standardise(mean, std))
    theirs = casal.sample(target, plain, casal.CASAL(10.0), N)
    assert float(((ours.samples - mean) / std - theirs.samples).abs().max()) < 1e-5
    assert float(ours.certificate.violation.max()) < 1e-12


# ------------------------------------------------------------------ exact distributions, units for each coordinate


def plane_target(steps: int) -> casal.Target:
    centre, variance = torch.tensor([0.3, -0.4], dtype=F64), torch.tensor([1.0, 0.6], dtype=F64)
    return casal.langevin(
        lambda x: (x - centre) / variance,
        steps=steps,
        step_size=0.1,
        init=lambda n, g: torch.randn((n, 2), generator=g, dtype=F64),
        potential=lambda x: ((x - centre).square() / variance).sum(1) / 2,
    )


UNITS = Standardise([1e5, 300.0], [2e3, 500.0])


def gaussian() -> tuple[Tensor, Tensor]:
    """Mean and covariance of z = mean + std x."""
    return UNITS(torch.tensor([[0.3, -0.4]], dtype=F64))[0], torch.diag(UNITS.std.square() * torch.tensor([1.0, 0.6]))


@pytest.mark.statistical
def test_a_gaussian_on_a_line_in_physical_units() -> None:
    a, level = torch.tensor([1.0, 2.0], dtype=F64), 1.009e5
    m, S = gaussian()
    gain = S @ a / (a @ S @ a)
    mean, variance = m + gain * (level - a @ m), (S - torch.outer(gain, S @ a))[0, 0]
    result = casal.sample(plane_target(100), casal.Affine(a[None], level), casal.WeightedCASAL(), 1500, decoder=UNITS)
    found = result.expect(lambda z: torch.stack([(u := (z[:, 0] - mean[0]) / variance.sqrt()), u.square() - 1.0], 1))
    assert bool((found.value.abs() < 4 * found.standard_error).all()), found
    assert bool((found.standard_error < 0.1).all())
    assert result.fidelity.verdict == "trusted"


@pytest.mark.statistical
def test_on_a_circle_the_measure_is_that_of_the_decoded_space() -> None:
    """By quadrature. Power: with the arc length of the standardised ellipse a moment is off by more than 4 errors."""
    radius, centre = 1500.0, UNITS.mean
    angle = torch.linspace(0.0, 2 * math.pi, 20001, dtype=F64)[:-1]
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    m, S = gaussian()
    log_p = -0.5 * ((centre + radius * circle - m).square() / S.diagonal()).sum(1)
    result = casal.sample(
        plane_target(100), casal.Sphere(radius, center=centre), casal.WeightedCASAL(), 6000, decoder=UNITS
    )

    def moments(u: Tensor) -> Tensor:
        return torch.stack([u[:, 0], u[:, 1], u[:, 0].square()], 1)

    found = result.expect(lambda z: moments((z - centre) / radius))
    right = torch.softmax(log_p, 0) @ moments(circle)
    assert bool(((found.value - right).abs() < 4 * found.standard_error).all()), found
    speed = torch.linalg.vector_norm(torch.stack([angle.sin(), angle.cos()], 1) / UNITS.std, dim=1)
    wrong = torch.softmax(log_p + speed.log(), 0) @ moments(circle)
    assert bool(((found.value - wrong).abs() > 2.5 * found.standard_error).any())


# ------------------------------------------------------------------ images, stores


def test_images_in_units_for_each_channel(tmp_path: Any) -> None:
    """(c, h, w) events, a decoder of (c, 1, 1), a total for each channel in physical units; saved and loaded."""
    shape, mean, std = (2, 3, 3), torch.tensor([280.0, 1e5])[:, None, None], torch.tensor([10.0, 500.0])[:, None, None]
    totals = torch.zeros(2, 18, dtype=F64)
    totals[0, :9] = totals[1, 9:] = 1.0
    constraint = casal.Affine(totals, [9 * 285.0, 9 * 1.001e5])
    target = casal.langevin(
        lambda x: x, steps=6, step_size=0.05, init=lambda n, g: torch.randn((n, *shape), generator=g, dtype=F64)
    )
    result = casal.sample(target, constraint, casal.CASAL(1e-3), 8, decoder=Standardise(mean, std))
    assert result.samples.shape == (8, *shape) and bool(result.certificate.feasible.all())
    assert torch.allclose(result.samples.mean((2, 3)), torch.tensor([285.0, 1.001e5], dtype=F64).expand(8, 2))
    assert "away from their decoded latents" in str(result)
    result.save(tmp_path / "saved")
    again = casal.sample(
        target, constraint, casal.CASAL(1e-3), 8, decoder=Standardise(mean, std), run=casal.Run(store=tmp_path / "run")
    )
    assert torch.equal(again.samples, result.samples)
    for place in ("saved", "run"):
        loaded = casal.load(tmp_path / place)
        assert torch.equal(loaded.gap, result.gap) and float(loaded.gap.max()) > 0
        assert loaded.latents is not None and result.latents is not None and torch.equal(loaded.latents, result.latents)
        assert torch.equal(loaded.samples, result.samples) and not loaded.certificate.note


def test_a_store_of_another_mean_is_refused(tmp_path: Any) -> None:
    target = density()
    kept = casal.sample(
        target,
        SETS["sphere"][1],
        casal.CASAL(1e-7),
        4,
        decoder=Standardise(MEAN, STD),
        run=casal.Run(store=tmp_path / "a"),
    )
    assert kept.provenance["decoder"] == "Standardise"
    with pytest.raises(casal.errors.StoreError):
        casal.sample(
            target,
            SETS["sphere"][1],
            casal.CASAL(1e-7),
            4,
            decoder=Standardise(MEAN + 1, STD),
            run=casal.Run(store=tmp_path / "a"),
        )
