"""What every model family promises behind every decoder: strict samples, and steps that stay finite."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL, FinalProjection, Projected
from casal import decoders as decoder_room
from casal import targets as target_room
from casal.decoders import DECODERS
from casal.errors import SettingError
from casal.targets import TARGETS

F64 = torch.float64
N = 4
TOL = 1e-10
DECODED = 6
BETAS = torch.linspace(1e-3, 0.4, 12, dtype=F64)
ABAR = (1 - BETAS).cumprod(0)


# ------------------------------------------------------------------ models: data are N(0.3, 0.5^2) in every coordinate

MEAN, VARIANCE = 0.3, 0.25


def clean(x: Tensor, alpha: Any, sigma: Any) -> Tensor:
    """E[x0 | alpha x0 + sigma noise = x]."""
    return MEAN + alpha * VARIANCE / (alpha**2 * VARIANCE + sigma**2) * (x - alpha * MEAN)


def exploding(x: Tensor, s: Tensor) -> Tensor:
    return (MEAN - x) / (VARIANCE + s**2)


def preserving(x: Tensor, t: Tensor) -> Tensor:
    decay = t * (0.1 + t * 19.9 / 2)
    return (torch.exp(-decay / 2) * MEAN - x) / (torch.exp(-decay) * (VARIANCE - 1) + 1)


def discrete(kind: str, abar: Tensor = ABAR) -> Callable[[Tensor, Tensor], Tensor]:
    def network(x: Tensor, t: Tensor) -> Tensor:
        kept = abar.to(t.device).take(t)
        alpha, sigma = kept.sqrt(), (1 - kept).sqrt()
        x0 = clean(x, alpha, sigma)
        eps = (x - alpha * x0) / sigma
        return {"x0": x0, "eps": eps, "v": alpha * eps - sigma * x0}[kind]

    return network


def start(size: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda n, stream: 2.0 * torch.randn((n, size), generator=stream, dtype=F64, device=stream.device)


def plain(size: int) -> dict[str, Any]:
    return {"shape": size, "dtype": F64}


def discrete_of(name: str, kind: str) -> Callable[[int], casal.Target]:
    return lambda size: TARGETS[name](discrete(kind), BETAS, prediction=kind, steps=6, **plain(size))


def sde(corrector_steps: int) -> Callable[[int], casal.Target]:
    return lambda size: casal.vp_sde(preserving, steps=8, corrector_steps=corrector_steps, **plain(size))


def edm(churn: float) -> Callable[[int], casal.Target]:
    sigmas = casal.karras_sigmas(6, 0.05, 10.0)
    return lambda size: casal.edm(lambda x, s: clean(x, 1.0, s), sigmas, churn=churn, **plain(size))


DIFFUSIONS: dict[str, Callable[[int], casal.Target]] = {
    "annealed": lambda size: casal.annealed(
        exploding, [4.0, 1.0, 0.3], steps_per_level=2, step_size=0.2, init=start(size)
    ),
    "ddpm-eps": discrete_of("ddpm", "eps"),
    "ddpm-x0": discrete_of("ddpm", "x0"),
    "ddpm-v": discrete_of("ddpm", "v"),
    "ddim": discrete_of("ddim", "eps"),
    "vp_sde": sde(0),
    "vp_sde-corrected": sde(1),
    "edm": edm(0.0),
    "edm-churn": edm(1.0),
    "flow": lambda size: casal.flow(lambda x, t: (clean(x, t, 1 - t) - x) / (1 - t), steps=6, **plain(size)),
}
FAMILIES: dict[str, Callable[[int], casal.Target]] = {
    "langevin": lambda size: casal.langevin(lambda x: (x - MEAN) / VARIANCE, steps=6, step_size=0.05, init=start(size)),
    "energy": lambda size: casal.energy(
        lambda x: (x - MEAN).square().sum(1) / (2 * VARIANCE), steps=6, step_size=0.05, init=start(size)
    ),
    **DIFFUSIONS,
}
"""A few steps of every family by ``family`` or ``family-variant``: takes the numbers in a latent event."""


# ------------------------------------------------------------------ decoders and sets: all decode to six numbers


def matrix(rows: int, columns: int) -> Tensor:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(4), dtype=F64) / columns**0.5


class Behind(NamedTuple):
    """A decoder, the numbers of its latent events, and whether it has a pseudo-inverse and A^T A."""

    decoder: casal.Decoder
    size: int
    linear: bool = True


BEHIND: dict[str, Behind] = {
    "Identity": Behind(casal.Identity(), DECODED),
    "Linear": Behind(casal.Linear(matrix(DECODED, 4)), 4),
    "Fourier": Behind(casal.Fourier(3, DECODED), 5),
    "DCT": Behind(casal.DCT(4, DECODED, scale=[1.0, 0.8, 0.6, 0.4]), 4),
    "DST": Behind(casal.DST(5, DECODED), 5),
    "Rows": Behind(casal.Rows(casal.Linear(matrix(9, 4)), [0, 1, 3, 4, 6, 8]), 4),
    "Standardise": Behind(casal.Standardise(0.3, 0.8), DECODED),
    "Nonlinear": Behind(
        casal.Nonlinear(lambda x: torch.tanh(x @ matrix(DECODED, 4).to(x).T), norm=1.6), 4, linear=False
    ),
}
SETS: dict[str, casal.Constraint] = {
    "sphere": casal.Sphere(1.5),
    "affine": casal.Affine([[1.0, 2.0, 0.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, -1.0, 0.0]], [1.0, 0.5]),
    "mass-energy": casal.MassEnergy(1.0, 4.0),
    "box-hyperplane": casal.Box(-0.8, 1.5) & casal.Affine(torch.ones(1, DECODED), 1.0),
}


def casal_for(name: str, behind: Behind) -> CASAL:
    """The default; behind a network, which has no A^T A to solve with, the explicit step it asks for."""
    if behind.linear:
        return CASAL(10.0)
    return CASAL(2.0, coupling="explicit", couple="denoised" if name in DIFFUSIONS else "auto")


def feasible(name: str, behind: Behind, constraint: casal.Constraint, method: casal.Method[Any]) -> bool:
    result = casal.sample(FAMILIES[name](behind.size), constraint, method, N, decoder=behind.decoder, tol=TOL)
    assert result.samples.dtype == F64 and result.samples.shape == (N, DECODED)
    assert float(constraint.violation(result.samples).max()) <= TOL
    return bool(result.certificate.feasible.all())


# ------------------------------------------------------------------ nothing is left out


def test_every_family_of_the_registry_is_tested_here() -> None:
    assert {name.split("-")[0] for name in FAMILIES} == set(TARGETS)


def test_every_decoder_of_the_registry_is_tested_here() -> None:
    assert set(BEHIND) == set(DECODERS)
    assert all(type(behind.decoder) is DECODERS[name] for name, behind in BEHIND.items())


def test_the_registry_of_families_holds_every_public_function_that_makes_a_target() -> None:
    """Those that change a target (``posterior``) take one first."""
    public = {name: getattr(casal, name) for name in casal.__all__ if inspect.isfunction(getattr(casal, name))}
    makers = {
        name: function
        for name, function in public.items()
        if inspect.signature(function).return_annotation in ("Target", casal.Target)
        and next(iter(inspect.signature(function).parameters)) != "target"
    }
    assert makers == dict(TARGETS)


def test_the_registry_of_decoders_holds_every_public_decoder() -> None:
    public = {name: getattr(casal, name) for name in casal.__all__ if inspect.isclass(getattr(casal, name))}
    decoders = {name: kind for name, kind in public.items() if issubclass(kind, casal.Decoder)}
    assert {name: kind for name, kind in decoders.items() if not inspect.isabstract(kind)} == dict(DECODERS)


@pytest.mark.parametrize("room", [target_room, decoder_room], ids=["targets", "decoders"])
def test_no_module_has_the_name_of_what_it_defines(room: ModuleType) -> None:
    assert not {module.name for module in pkgutil.iter_modules(room.__path__)} & set(room.__all__)


# ------------------------------------------------------------------ strict samples

PAIRS = [
    pytest.param(
        name, decoder, list(SETS)[(i + j) % len(SETS)], id=f"{name}-{decoder}-{list(SETS)[(i + j) % len(SETS)]}"
    )
    for i, name in enumerate(FAMILIES)
    for j, decoder in enumerate(BEHIND)
]
"""Every family behind every decoder, the sets in rotation: each family and each decoder meets each set."""


@pytest.mark.parametrize(("name", "decoder", "shape"), PAIRS)
def test_casal_returns_samples_of_the_set(name: str, decoder: str, shape: str) -> None:
    behind = BEHIND[decoder]
    assert feasible(name, behind, SETS[shape], casal_for(name, behind))


@pytest.mark.parametrize(("name", "decoder", "shape"), PAIRS)
def test_projections_return_samples_of_the_set(name: str, decoder: str, shape: str) -> None:
    behind = BEHIND[decoder]
    assert feasible(name, behind, SETS[shape], FinalProjection())
    if behind.linear:
        assert feasible(name, behind, SETS[shape], Projected())
    else:
        with pytest.raises(SettingError, match="has no pseudo-inverse; state the set in the latent"):
            feasible(name, behind, SETS[shape], Projected())


@pytest.mark.parametrize("name", DIFFUSIONS)
def test_both_couplings_return_samples_of_the_set(name: str) -> None:
    for couple in ("state", "denoised"):
        assert feasible(name, BEHIND["Linear"], SETS["mass-energy"], CASAL(10.0, couple=couple))


def test_the_default_says_what_to_change_behind_a_network() -> None:
    with pytest.raises(SettingError, match=r"Nonlinear is not linear, .*coupling='explicit'"):
        feasible("ddpm-eps", BEHIND["Nonlinear"], SETS["sphere"], CASAL(10.0))


# ------------------------------------------------------------------ stability

LONG = torch.linspace(1e-4, 0.02, 1000, dtype=F64)
LONG_ABAR = (1 - LONG).cumprod(0)
RHO = (1.0, 10.0, 100.0, 1e4)
COUPLES = ("state", "denoised")


def couple_of(first: int, rho: float) -> str:
    """The couplings by turns: each meets every rho, and every length of a run."""
    return COUPLES[(first + RHO.index(rho)) % 2]


def long_ddpm(steps: int) -> casal.Target:
    return casal.ddpm(discrete("eps", LONG_ABAR), LONG, shape=DECODED, steps=steps, dtype=F64)


def stays(target: casal.Target, method: CASAL) -> None:
    """Finite all along (``sample`` raises DivergedError otherwise), and the free copy x not far from the data."""
    result = casal.sample(target, casal.Sphere(1.5), method, N, tol=TOL)
    assert bool(result.certificate.feasible.all())
    assert all(bool(torch.isfinite(part).all()) for part in result.state)
    assert float(result.state.x.abs().max()) < 20.0


@pytest.mark.parametrize("rho", RHO)
@pytest.mark.parametrize("steps", [20, 50, 250, 1000])
def test_ddpm_stays_finite(steps: int, rho: float) -> None:
    stays(long_ddpm(steps), CASAL(rho, couple=couple_of([20, 50, 250, 1000].index(steps), rho)))


@pytest.mark.parametrize("rho", RHO)
@pytest.mark.parametrize("churn", [0.0, 1.0])
def test_edm_from_80_stays_finite(churn: float, rho: float) -> None:
    sigmas = casal.karras_sigmas(25, 0.002, 80.0)
    target = casal.edm(lambda x, s: clean(x, 1.0, s), sigmas, shape=DECODED, churn=churn, dtype=F64)
    stays(target, CASAL(rho, couple=couple_of(int(churn), rho)))


@pytest.mark.parametrize("variant", [CASAL.algorithm1, CASAL.algorithm2], ids=["algorithm1", "algorithm2"])
@pytest.mark.parametrize("steps", [20, 50, 250, 1000])
def test_the_printed_variants_refuse_what_is_unstable_with_the_number(
    steps: int, variant: Callable[[float], CASAL]
) -> None:
    """tau = s^2 / 2 is the paper's; |A| = 1."""
    target = long_ddpm(steps)
    largest = float(target.table.s.square().max()) / 2
    number = f"{1e4 * largest:.3g}"
    with pytest.raises(SettingError, match=re.escape(f"tau rho |A|^2 = {number} > 1") + ".*" + re.escape(number)):
        casal.sample(target, casal.Sphere(1.5), variant(1e4), N)
    with pytest.raises(SettingError, match=r"tau rho \|A\|\^2 = 1\.01 > 1"):
        casal.sample(target, casal.Sphere(1.5), variant(1.01 / largest), N)
    if steps <= 50:
        stays(target, variant(0.9 / largest))


@pytest.mark.parametrize("variant", [CASAL.algorithm1, CASAL.algorithm2], ids=["algorithm1", "algorithm2"])
def test_the_printed_variants_refuse_edm_from_80(variant: Callable[[float], CASAL]) -> None:
    sigmas = casal.karras_sigmas(25, 0.002, 80.0)
    noisy = casal.edm(lambda x, s: clean(x, 1.0, s), sigmas, shape=DECODED, churn=1.0, dtype=F64)
    number = f"{float(noisy.table.s.square().max()) / 2:.3g}"
    with pytest.raises(SettingError, match=re.escape(f"tau rho |A|^2 = {number} > 1 at step 0")):
        casal.sample(noisy, casal.Sphere(1.5), variant(1.0), N)
