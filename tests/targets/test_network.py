"""What every family that learns from noise promises: its rows, its denoiser, and how its network is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import casal
from casal.errors import CasalError, DtypeError, SettingError, ShapeError
from casal.targets import annealed, ddim, ddpm, edm, flow, karras_sigmas, vp_sde

from .gaussian import (
    ABAR,
    BETA_MAX,
    BETA_MIN,
    BETAS,
    COVARIANCE,
    F64,
    FAMILIES,
    MEAN,
    ONE,
    SHORT,
    Moments,
    Network,
    apart,
    bayes,
    continuous,
    denoiser,
    discrete,
    exploding,
    law,
    library_steps,
    model,
    normal,
    score_of,
    some_points,
    velocity,
    wide,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_equal_the_written_out_recursion(name: str) -> None:
    family = FAMILIES[name]
    ours, theirs = library_steps(family.make(1.0)), family.steps()
    assert len(ours) == len(theirs)
    for mine, hand in zip(ours, theirs, strict=True):
        for a, b in zip(mine, hand, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-8)
    assert apart(law(family.start, ours), law(family.start, theirs)) < 1e-8


@pytest.mark.parametrize("name", FAMILIES)
def test_the_written_out_recursion_notices_a_flipped_score(name: str) -> None:
    family = FAMILIES[name]
    flipped, right = library_steps(family.make(-1.0)), family.steps()
    assert all(np.abs(a[0] - b[0]).max() > 1e-5 for a, b in zip(flipped, right, strict=True))
    assert not apart(law(family.start, flipped), law(family.start, right)) < 1.0


@pytest.mark.parametrize("name", ["ddim", "edm", "flow", "flow reverse"])
def test_an_unconstrained_run_takes_the_rows_of_the_table(name: str) -> None:
    """Samplers without noise, so that the run is a function of its start."""
    x = some_points(5)
    target = replace(FAMILIES[name].make(1.0), init=x)
    result = casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 5)
    for F, G, c in library_steps(target):
        assert not G.any()
        x = torch.as_tensor(x.numpy() @ F.T + c)
    torch.testing.assert_close(result.samples, x, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_start_has_the_law_it_should(name: str) -> None:
    family = FAMILIES[name]
    target = family.make(1.0)
    assert callable(target.init)
    x = target.init(7, torch.Generator().manual_seed(3))
    w = torch.randn((7, 2), generator=torch.Generator().manual_seed(3), dtype=F64)
    scale = float(np.sqrt(family.start.covariance[0, 0]))
    torch.testing.assert_close(x, torch.as_tensor(family.start.mean) + scale * w, atol=1e-12, rtol=0)


MANY: dict[str, tuple[Callable[[], casal.Target], Moments]] = {
    "ddpm": (lambda: ddpm(discrete("eps"), BETAS, shape=2), normal(1.0)),
    "ddim": (lambda: ddim(discrete("eps"), BETAS, shape=2, steps=1000), normal(1.0)),
    "vp_sde": (lambda: vp_sde(continuous(), steps=2000, shape=2), normal(1.0)),
    "vp_sde corrected": (lambda: vp_sde(continuous(), steps=500, corrector_steps=3, shape=2), normal(1.0)),
    "edm": (lambda: edm(denoiser(), karras_sigmas(1000), shape=2), normal(80.0)),
    "edm churn": (lambda: edm(denoiser(), karras_sigmas(1000), shape=2, churn=1.0), normal(80.0)),
    "flow": (lambda: flow(velocity(), steps=1000, shape=2), normal(1 - 1e-3, 1e-3)),
    "flow noise": (lambda: flow(velocity(), steps=1000, shape=2, noise=1.0), normal(1 - 1e-3, 1e-3)),
    "annealed": (
        lambda: annealed(exploding(), torch.logspace(1, -1, 20), steps_per_level=300, step_size=0.5, init=wide),
        normal(10.0),
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many_steps_lead_to_the_data_law(name: str) -> None:
    """Errors of first order in the step: 0.001 (vp_sde) to 0.021 (edm churn) on variances up to 2."""
    make, start = MANY[name]
    assert apart(law(start, library_steps(make())), Moments(MEAN, COVARIANCE)) < 0.025


# --- denoise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_denoise_is_the_posterior_mean(name: str) -> None:
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None and target.table.sigma is not None and target.table.alpha is not None
    y = some_points()
    levels = target.table.sigma / target.table.alpha
    for sigma in levels[:: len(levels) // 7]:
        torch.testing.assert_close(target.denoise(y, sigma), bayes(y, float(sigma)), atol=1e-10, rtol=0)
    # One level a chain.
    picked = levels[torch.linspace(0, len(levels) - 1, len(y)).long()]
    expected = torch.cat([bayes(y[k : k + 1], float(picked[k])) for k in range(len(y))])
    torch.testing.assert_close(target.denoise(y, picked), expected, atol=1e-10, rtol=0)
    # And float32 stays float32.
    low = target.denoise(y.float(), levels[len(levels) // 2])
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, bayes(y, float(levels[len(levels) // 2])).float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["vp_sde", "edm", "flow", "flow reverse", "annealed"])
@pytest.mark.parametrize("sigma", [0.02, 0.37, 1.0, 9.0, 60.0])
def test_continuous_families_denoise_between_their_levels(name: str, sigma: float) -> None:
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None
    y = some_points()
    torch.testing.assert_close(
        target.denoise(y, torch.tensor(sigma)), bayes(y, float(torch.tensor(sigma))), atol=1e-10, rtol=0
    )


@pytest.mark.parametrize("name", ["ddpm eps", "ddpm x0", "ddpm v", "vp_sde"])
def test_denoise_outside_the_levels(name: str) -> None:
    """Nothing to take away at sigma = 0, the score of the least level below it, the largest level above all."""
    target = FAMILIES[name].make(1.0)
    assert target.denoise is not None
    y = some_points()
    torch.testing.assert_close(target.denoise(y, torch.tensor(0.0)), y, atol=0, rtol=0)
    torch.testing.assert_close(target.denoise(y, torch.tensor(5e-3)), bayes(y, 5e-3), atol=1e-5, rtol=0)
    high = float(np.sqrt(1 / ABAR[-1] - 1)) if name != "vp_sde" else float(np.sqrt(np.expm1((BETA_MIN + BETA_MAX) / 2)))
    torch.testing.assert_close(target.denoise(y, torch.tensor(1e4)), bayes(y, high), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_score_is_that_of_the_level_in_the_table(name: str) -> None:
    target = FAMILIES[name].make(1.0)
    table = target.table
    assert table.alpha is not None and table.sigma is not None and not table.static
    x = some_points()
    for k in range(0, len(table), 17):
        expected = score_of(x, float(table.alpha[k]), float(table.sigma[k]))
        torch.testing.assert_close(target.score(x, table.t[k]), expected, atol=1e-8, rtol=1e-9)
        every = target.score(x, table.t[k].expand(len(x)))
        torch.testing.assert_close(every, expected, atol=1e-8, rtol=1e-9)


# --- the form of the time argument -----------------------------------------------------------------------------


def makers(network: Network, time: str) -> dict[str, casal.Target]:
    start = torch.randn((4, 3), generator=torch.Generator().manual_seed(0))
    return {
        "annealed": annealed(network, [2.0, 1.0], steps_per_level=2, step_size=0.1, init=start, time=time),
        "ddpm": ddpm(network, SHORT, shape=3, time=time),
        "ddim": ddim(network, SHORT, shape=3, steps=10, time=time),
        "vp_sde": vp_sde(network, steps=10, shape=3, time=time),
        "edm": edm(network, [2.0, 1.0], shape=3, time=time),
        "flow": flow(network, steps=10, shape=3, time=time),
    }


class Recorder:
    """A network that takes t in one form only, and counts what it was given."""

    def __init__(self, form: str, wrong: str) -> None:
        self.form, self.wrong, self.shapes, self.dtypes = form, wrong, [], []  # type: ignore[var-annotated]

    def __call__(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(t.shape))
        self.dtypes.append(t.dtype)
        fits = t.ndim == 0 if self.form == "scalar" else tuple(t.shape) == (len(x),)
        if not fits:
            if self.wrong == "shape":
                return x[:, :1]
            raise IndexError("too many indices for tensor of dimension 0")
        at = t.to(x) if self.form == "scalar" else t.to(x)[:, None]
        return -x / (1 + at)


@pytest.mark.parametrize("form", ["scalar", "batch"])
@pytest.mark.parametrize("wrong", ["raise", "shape"])
@pytest.mark.parametrize("family", makers(model, "auto"))
def test_the_form_of_the_time_is_found_out_once(form: str, wrong: str, family: str) -> None:
    network, plain = Recorder(form, wrong), Recorder(form, wrong)
    target, told = makers(network, "auto")[family], makers(plain, form)[family]
    x = torch.randn((4, 3), generator=torch.Generator().manual_seed(2))
    for k in (0, 1, 0):
        out = target.score(x, target.table.t[k])
        assert out.dtype == torch.float32
        assert torch.equal(out, told.score(x, told.table.t[k]))
    odd = [shape for shape in network.shapes if (shape == ()) != (form == "scalar")]
    assert len(odd) == (form == "batch")
    assert set(network.dtypes) == {torch.int64 if family in ("ddpm", "ddim") else torch.float32}
    # Levels that differ between chains agree with one chain at a time, whatever the form.
    assert target.denoise is not None
    sigma = torch.tensor([0.4, 1.0, 1.0, 3.0])
    single = torch.cat([target.denoise(x[k : k + 1], sigma[k]) for k in range(4)])
    torch.testing.assert_close(target.denoise(x, sigma), single, atol=1e-6, rtol=0)


def test_the_form_may_be_found_out_by_times_that_differ() -> None:
    for form in ("scalar", "batch"):
        target = makers(Recorder(form, "raise"), "auto")["edm"]
        told = makers(Recorder(form, "raise"), form)["edm"]
        assert target.denoise is not None and told.denoise is not None
        x, sigma = torch.randn(5, 3), torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0])
        assert torch.equal(target.denoise(x, sigma), told.denoise(x, sigma))


def test_one_chain_does_not_settle_the_form() -> None:
    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, t.view(-1, 1)], dim=1)[:, :3]  # takes (n,), and by luck a number if n = 1

    target = edm(network, [2.0, 1.0], shape=3)
    for n in (1, 5, 1):
        assert target.score(torch.zeros(n, 3), torch.tensor(1.0)).shape == (n, 3)


def test_a_network_that_fails_both_ways_is_reported_with_both_reasons() -> None:
    def broken(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no luck with {t.ndim} dimensions")

    target = edm(broken, [2.0, 1.0], shape=3)
    with pytest.raises(SettingError, match=r"no luck with 0 .*no luck with 1"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="no luck with 0"):
        edm(broken, [2.0, 1.0], shape=3, time="scalar").score(torch.zeros(4, 3), torch.tensor(1.0))
    target = edm(lambda x, t: x[:, :1], [2.0, 1.0], shape=3)
    with pytest.raises(ShapeError, match=r"\(4, 1\)"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))
    target = edm(lambda x, t: (x,), [2.0, 1.0], shape=3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ShapeError, match="tuple"):
        target.score(torch.zeros(4, 3), torch.tensor(1.0))


def test_gradients_pass_through_denoise() -> None:
    for name in ("ddpm eps", "vp_sde", "edm", "flow", "annealed"):
        target = FAMILIES[name].make(1.0)
        assert target.denoise is not None
        y = some_points().requires_grad_()
        sigma = torch.tensor(float(np.sqrt(1 / ABAR[400] - 1)), dtype=F64)
        (gradient,) = torch.autograd.grad(target.denoise(y, sigma)[:, 0].sum(), y)
        gain = COVARIANCE @ np.linalg.inv(COVARIANCE + float(sigma) ** 2 * ONE)
        np.testing.assert_allclose(gradient.numpy(), np.tile(gain[0], (6, 1)), atol=1e-9)


# --- through the loop, and what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("family", makers(model, "auto"))
def test_every_family_runs_under_a_constraint(family: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.SiLU(), torch.nn.Linear(16, 3))

    def network(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return net(torch.cat([x, t.to(x)[:, None]], dim=1))

    result = casal.sample(makers(network, "auto")[family], casal.MassEnergy(0.5, 2.0), casal.CASAL(20.0), 4, seed=0)
    assert result.samples.shape == (4, 3)
    assert float(result.certificate.violation.max()) < 1e-12
    assert result.provenance["target"] == family
    assert not result.samples.requires_grad


def test_events_of_any_shape_and_dtype() -> None:
    for dtype in (torch.float32, F64):
        for target in (
            ddpm(model, SHORT, shape=(2, 3, 4), dtype=dtype),
            edm(model, [2.0, 1.0], shape=(2, 3, 4), dtype=dtype),
            flow(model, steps=5, shape=(2, 3, 4), dtype=dtype),
        ):
            result = casal.sample(target, casal.Sphere(1.0), casal.Unconstrained(), 5, seed=0)
            assert result.samples.shape == (5, 2, 3, 4)
            assert result.samples.dtype == dtype


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ddpm(model, [0.1, 1.0], shape=2), SettingError, "from 0.1 to 1"),
        (lambda: ddpm(model, [0.0, 0.1], shape=2), SettingError, r"\(0, 1\)"),
        (lambda: ddpm(model, [0.1, float("nan")], shape=2), SettingError, "1 of 2 are not"),
        (lambda: ddpm(model, [[0.1]], shape=2), ShapeError, r"\(1, 1\)"),  # type: ignore[list-item]
        (lambda: ddpm(model, "linear", shape=2), SettingError, "str"),  # type: ignore[arg-type]
        (lambda: ddpm(model, SHORT, shape=2, steps=61), SettingError, "61 is more than the 60"),
        (lambda: ddpm(model, SHORT, shape=2, steps=0), SettingError, "steps"),
        (lambda: ddpm(model, SHORT, shape=2, prediction="x"), SettingError, "'x'"),
        (lambda: ddpm(model, SHORT, shape=2, variance="learned"), SettingError, "'learned'"),
        (lambda: ddpm(model, SHORT, shape=2, spacing="odd"), SettingError, "'odd'"),
        (lambda: ddpm(model, SHORT, shape=2, time="vector"), SettingError, "'vector'"),
        (lambda: ddpm(model, SHORT, shape=()), ShapeError, "whole numbers"),
        (lambda: ddpm(model, SHORT, shape=(3, 0)), ShapeError, r"\(3, 0\)"),
        (lambda: ddpm(model, SHORT, shape=2.5), ShapeError, "2.5"),  # type: ignore[arg-type]
        (lambda: ddpm(model, SHORT, shape=2, dtype=torch.int64), DtypeError, "int64"),
        (lambda: ddpm(None, SHORT, shape=2), SettingError, "NoneType"),  # type: ignore[arg-type]
        (lambda: ddim(model, SHORT, shape=2, steps=10, eta=1.5), SettingError, "1.5"),
        (lambda: ddim(model, SHORT, shape=2, steps=100), SettingError, "at most 60"),
        (lambda: vp_sde(model, steps=1, shape=2), SettingError, "steps"),
        (lambda: vp_sde(model, steps=4, shape=2), SettingError, "at least 6 steps"),
        (lambda: vp_sde(model, steps=10, shape=2, corrector_steps=-1), SettingError, "corrector_steps"),
        (lambda: vp_sde(model, steps=10, shape=2, corrector_size=0.0), SettingError, "corrector_size"),
        (lambda: vp_sde(model, steps=10, shape=2, beta_min=30.0), SettingError, "beta_min <= beta_max"),
        (lambda: vp_sde(model, steps=10, shape=2, end=1.0), SettingError, "end < 1"),
        (lambda: edm(model, [1.0, 2.0], shape=2), SettingError, r"sigmas\[0\] = 1 is followed by 2"),
        (lambda: edm(model, [1.0, -2.0], shape=2), SettingError, "-2"),
        (lambda: edm(model, [0.0], shape=2), SettingError, "> 0"),
        (lambda: edm(model, [], shape=2), ShapeError, "at least one"),
        (lambda: edm(model, [2.0, 1.0], shape=2, churn=-0.1), SettingError, "-0.1"),
        (lambda: karras_sigmas(0), SettingError, "count"),
        (lambda: karras_sigmas(5, 3.0, 2.0), SettingError, "low = 3"),
        (lambda: flow(model, steps=1, shape=2), SettingError, "steps"),
        (lambda: flow(model, steps=5, shape=2, noise=2.0), SettingError, "noise"),
        (
            lambda: annealed(model, [1.0, 1.0], steps_per_level=1, step_size=0.1, init=torch.zeros(1, 2)),
            SettingError,
            "strictly",
        ),
        (
            lambda: annealed(model, [1.0], steps_per_level=0, step_size=0.1, init=torch.zeros(1, 2)),
            SettingError,
            "steps_per_level",
        ),
        (
            lambda: annealed(model, [1.0], steps_per_level=1, step_size=-1.0, init=torch.zeros(1, 2)),
            SettingError,
            "step_size",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(make: Callable[[], Any], error: type[CasalError], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_denoise_refuses_levels_that_fit_no_chain() -> None:
    target = edm(model, [2.0, 1.0], shape=2)
    assert target.denoise is not None
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        target.denoise(torch.zeros(4, 2), torch.ones(3))
