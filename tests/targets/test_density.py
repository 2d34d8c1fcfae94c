"""Langevin dynamics, energies, and starting points with a density: given by name or recognised as Gaussian."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import casal
from casal.checks import StartDensity
from casal.errors import DtypeError, SettingError, ShapeError
from casal.targets import Tuning, fit_start, with_settings

from ..models import MODE_SCALES, MODE_WEIGHTS, MODES


def potential(x: torch.Tensor) -> torch.Tensor:
    """A double well along the first coordinate, narrow along the second."""
    return (x[:, 0].square() - 1.0).square() + 50.0 * x[:, 1].square()


def gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([4.0 * x[:, 0] * (x[:, 0].square() - 1.0), 100.0 * x[:, 1]], dim=1)


def start(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn((n, 2), generator=generator, dtype=torch.float64)


def test_langevin_rows_are_one_tau_and_root_two_tau() -> None:
    tau = 1.0 / torch.arange(1, 6, dtype=torch.float64).sqrt()
    table = casal.langevin(lambda x: x, steps=5, step_size=tau, init=torch.zeros(1, 2)).table
    torch.testing.assert_close(table.a, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(table.b, tau)
    torch.testing.assert_close(table.s, (2 * tau).sqrt())
    torch.testing.assert_close(table.tau, tau)
    assert table.static


def test_an_energy_gives_the_same_chains_as_its_gradient() -> None:
    by_autograd = casal.energy(potential, steps=100, step_size=5e-3, init=start)
    by_hand = casal.langevin(gradient, steps=100, step_size=5e-3, init=start)
    for method in (casal.Unconstrained(), casal.CASAL(10.0), casal.WeightedCASAL(50.0)):
        a = casal.sample(by_autograd, casal.Sphere(1.5), method, 50, seed=5)
        b = casal.sample(by_hand, casal.Sphere(1.5), method, 50, seed=5)
        torch.testing.assert_close(a.samples, b.samples, atol=1e-9, rtol=0)
    assert by_autograd.potential is potential


def test_an_energy_model_that_is_a_network() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))

    def f(x: torch.Tensor) -> torch.Tensor:
        return net(x).squeeze(1) + 0.5 * x.square().sum(1)

    target = casal.energy(f, steps=50, step_size=1e-2, init=lambda n, g: torch.randn(n, 3, generator=g))
    result = casal.sample(target, casal.MassEnergy(0.5, 2.0), casal.CASAL(20.0), 64, seed=0)
    assert float(result.certificate.violation.max()) < 1e-12
    assert not result.samples.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_preconditioner_scales_drift_and_noise() -> None:
    diagonal = torch.tensor([0.5, 0.01], dtype=torch.float64)
    x0 = torch.randn((4, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    make = lambda d: casal.langevin(gradient, steps=1, step_size=0.1, init=x0, preconditioner=d)  # noqa: E731
    plain = casal.sample(make(None), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    scaled = casal.sample(make(diagonal), casal.Sphere(3.0), casal.Unconstrained(), 4, seed=9).samples
    drift = -0.1 * gradient(x0)
    torch.testing.assert_close(scaled - x0, diagonal * drift + diagonal.sqrt() * (plain - x0 - drift))


def test_step_sizes_are_checked() -> None:
    for steps, size in ((0, 0.1), (2.5, 0.1), (10, 0.0), (10, float("nan"))):
        with pytest.raises(SettingError):
            casal.langevin(lambda x: x, steps=steps, step_size=size, init=torch.zeros(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one value per step"):
        casal.langevin(lambda x: x, steps=3, step_size=torch.ones(4), init=torch.zeros(1, 1))


def test_langevin_takes_the_potential_of_its_gradient() -> None:
    target = casal.langevin(gradient, steps=5, step_size=0.1, init=start, potential=potential)
    assert target.potential is potential
    with pytest.raises(SettingError, match="potential must be a function"):
        casal.langevin(gradient, steps=5, step_size=0.1, init=start, potential=3.0)  # type: ignore[arg-type]


def test_open_settings_are_marked_and_filled_in() -> None:
    open_step = casal.langevin(gradient, steps=5, step_size="auto", init=start, preconditioner=torch.ones(2))
    assert open_step.tune == Tuning(step_size=True, preconditioner=False)
    assert bool(open_step.table.b.isnan().all())
    chosen = with_settings(open_step, step_size=0.2)
    assert chosen.tune is None
    torch.testing.assert_close(chosen.table.b, torch.full((5,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(chosen.table.s, torch.full((5,), 0.4, dtype=torch.float64).sqrt())
    assert chosen.table.preconditioner is open_step.table.preconditioner

    both = casal.energy(potential, steps=5, step_size="auto", init=start, preconditioner="auto")
    assert both.tune == Tuning(step_size=True, preconditioner=True)
    done = with_settings(both, step_size=0.2, preconditioner=torch.tensor([0.1, 0.01])).table
    assert done.preconditioner is not None and len(done) == 5
    with pytest.raises(SettingError, match="finite and > 0"):
        with_settings(both, preconditioner=torch.ones(2))
    assert casal.langevin(gradient, steps=5, step_size=0.1, init=start).tune is None


def test_words_other_than_auto_are_refused() -> None:
    with pytest.raises(SettingError, match="step_size must be 'auto'"):
        casal.langevin(gradient, steps=5, step_size="large", init=start)
    with pytest.raises(SettingError, match="preconditioner must be 'auto'"):
        casal.langevin(gradient, steps=5, step_size=0.1, init=start, preconditioner="diagonal")
    with pytest.raises(SettingError, match="not a fixed density"):
        with_settings(casal.ddpm(lambda x, t: x, torch.linspace(0.1, 0.2, 5), shape=2), step_size=0.1)


WIDE = torch.float64


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn((n, d), generator=stream(seed), dtype=WIDE)


def mixture(n: int, generator: torch.Generator) -> Tensor:
    mode = torch.multinomial(MODE_WEIGHTS, n, replacement=True, generator=generator)
    noise = torch.randn((n, 2), generator=generator, dtype=WIDE)
    return MODES[mode] + MODE_SCALES[mode][:, None] * noise


# -------------------------------------------------------------------------------------------- by name


def test_a_gaussian_start_has_the_density_of_its_points() -> None:
    std, mean = torch.tensor([[0.5, 2.0, 1.0], [3.0, 1.0, 0.1]]), torch.tensor([1.0, -2.0, 0.0])
    start = casal.GaussianStart((2, 3), std, mean, dtype=WIDE)
    x = start(7, stream(0))
    right = torch.distributions.Normal(mean.to(WIDE).expand(2, 3), std.to(WIDE))
    torch.testing.assert_close(start.log_density(x), right.log_prob(x).flatten(1).sum(1))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(start.log_density(leaf).sum(), leaf)
    torch.testing.assert_close(start.score(x), gradient)


def test_the_points_are_scaled_standard_normal_numbers() -> None:
    start = casal.GaussianStart(3, std=[1.0, 2.0, 3.0], mean=4.0)
    x = start(5, stream(1))
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, 4.0 + torch.tensor([1.0, 2.0, 3.0]) * torch.randn((5, 3), generator=stream(1)))
    assert start.log_density(x).dtype == WIDE
    assert start.score(x).dtype == torch.float32


def test_starts_are_known_by_their_methods_and_can_be_sent_away() -> None:
    start = casal.GaussianStart(2, 0.5)
    fitted = fit_start(normal(500, 2, 0), (2,), 500, stream(0))
    x = normal(3, 2, 1)
    for density in (start, fitted):
        assert isinstance(density, StartDensity)
        again = pickle.loads(pickle.dumps(density))
        torch.testing.assert_close(again.log_density(x), density.log_density(x), rtol=0, atol=0)
    assert not isinstance(x, StartDensity)
    assert fit_start(start, (2,), 10, stream(0)) is start


def test_settings_of_a_start_are_checked() -> None:
    for error, settings in (
        (SettingError, {"std": 0.0}),
        (SettingError, {"mean": math.nan}),
        (ShapeError, {"std": [1.0, 2.0, 3.0]}),
        (ShapeError, {"shape": 0}),
        (DtypeError, {"dtype": torch.int64}),
    ):
        with pytest.raises(error):
            casal.GaussianStart(**({"shape": 2} | settings))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\(3, 3\)"):
        casal.GaussianStart(2).log_density(torch.zeros(3, 3))


# ------------------------------------------------------------------------------------------ recognised


def correlated(n: int, generator: torch.Generator) -> Tensor:
    root = torch.tensor([[2.0, 0.0], [1.2, 0.5]], dtype=WIDE)
    return 1.0 + torch.randn((n, 2), generator=generator, dtype=WIDE) @ root.T


GAUSSIANS: dict[str, tuple[Callable[[int, torch.Generator], Tensor], str]] = {
    "N(0, 4 I)": (lambda n, g: 2.0 * torch.randn((n, 2), generator=g, dtype=WIDE), "isotropic"),
    "N(0, 100 I)": (lambda n, g: 10.0 * torch.randn((n, 2), generator=g, dtype=WIDE), "isotropic"),
    "float32, 64-D": (lambda n, g: 3.0 + torch.randn((n, 64), generator=g), "isotropic"),
    "diagonal": (lambda n, g: torch.randn((n, 2), generator=g, dtype=WIDE) * torch.tensor([1.0, 1e-3]), "diagonal"),
    "correlated": (correlated, "full"),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", GAUSSIANS)
def test_gaussian_points_are_recognised(name: str) -> None:
    init, covariance = GAUSSIANS[name]
    event = tuple(init(1, stream(0)).shape[1:])
    for points in (init, init(4000, stream(5))):
        density = fit_start(points, event, 4000, stream(7))
        assert density is not None
        assert getattr(density, "covariance") == covariance  # noqa: B009


@pytest.mark.statistical
def test_the_fitted_density_is_that_of_the_points() -> None:
    density = fit_start(correlated, (2,), 10, stream(3))
    assert density is not None
    x = correlated(2000, stream(4))
    scale = torch.tensor([[4.0, 2.4], [2.4, 1.69]], dtype=WIDE)
    right = torch.distributions.MultivariateNormal(torch.ones(2, dtype=WIDE), scale)
    # The mean square of log p - log q is chi-square with five degrees of freedom, one a parameter, over the draws.
    error = (right.log_prob(x) - density.log_density(x)).square().mean()
    assert float(error) * 16384 < 20.0  # once in a thousand times
    worse = (right.log_prob(x) - density.log_density(1.03 * x)).square().mean()
    assert float(worse) * 16384 > 20.0
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(density.log_density(leaf).sum(), leaf)
    torch.testing.assert_close(density.score(x), gradient)


@pytest.mark.statistical
def test_few_gaussian_starts_are_refused() -> None:
    """The level is 1e-3: of 200 sets of Gaussian points at most two are refused but once in a thousand times."""
    refused = sum(fit_start(normal(300, 3, seed), (3,), 300, stream(0)) is None for seed in range(200))
    assert refused <= 2


def shell(n: int, generator: torch.Generator) -> Tensor:
    x = torch.randn((n, 5), generator=generator, dtype=WIDE)
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)


def two_widths(n: int, generator: torch.Generator) -> Tensor:
    """Chains of two standard deviations: every coordinate has tails."""
    width = 1.0 + (torch.rand((n, 1), generator=generator, dtype=WIDE) < 0.5)
    return width * torch.randn((n, 3), generator=generator, dtype=WIDE)


OTHERS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "mixture of three modes": mixture,
    "uniform": lambda n, g: torch.rand((n, 2), generator=g, dtype=WIDE),
    "sphere": shell,
    "two widths": two_widths,
    "one point": lambda n, g: torch.ones((n, 2)),
    "zeros": lambda n, g: torch.zeros((n, 2)),
    "a line": lambda n, g: torch.randn((n, 1), generator=g).expand(-1, 2).contiguous(),
    "ten points": lambda n, g: torch.randn((10, 2), generator=g, dtype=WIDE).repeat(-(-n // 10), 1)[:n],
    "not finite": lambda n, g: torch.full((n, 2), math.inf),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("n", [400, 4000])
def test_other_points_are_refused(name: str, n: int) -> None:
    init = OTHERS[name]
    event = tuple(init(1, stream(0)).shape[1:])
    assert fit_start(init, event, n, stream(2)) is None
    assert fit_start(init(n, stream(1)), event, n, stream(2)) is None


def test_too_few_rows_or_too_many_coordinates_are_refused() -> None:
    assert fit_start(normal(59, 2, 0), (2,), 59, stream(0)) is None
    assert fit_start(normal(60, 2, 0), (2,), 60, stream(0)) is not None
    asked: list[int] = []

    def large(n: int, generator: torch.Generator) -> Tensor:
        asked.append(n)
        return torch.randn((n, 65), generator=generator)

    assert fit_start(large, (65,), 4000, stream(0)) is None
    assert not asked


def test_a_callable_that_gives_only_n_points_is_asked_for_n() -> None:
    rows = normal(500, 2, 0)

    def only(n: int, generator: torch.Generator) -> Tensor:
        if n > 500:
            raise ValueError("there are 500")
        return rows[:n]

    assert fit_start(only, (2,), 500, stream(0)) is not None
    assert fit_start(lambda n, g: rows, (2,), 500, stream(0)) is not None
    assert fit_start(lambda n, g: rows, (2,), 400, stream(0)) is None
    assert fit_start(lambda n, g: None, (2,), 400, stream(0)) is None  # type: ignore[arg-type,return-value]


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert fit_start(lambda n, g: torch.randn(n, 2), (2,), 100, stream(0)) is not None
    assert torch.equal(torch.get_rng_state(), before)
