"""The problems of the demo: their exact answers against other ways to compute them, and a small run of each."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo import MODULES, burgers, portfolio, small_unet, sphere, torus, unet, vehicle
from casal_lab.demo.cards import METHODS, card
from casal_lab.demo.problem import Problem, error, moments, shown


def problem(module: str) -> Problem:
    made: Problem = import_module(module).PROBLEM
    return made


@cache
def exact(module: str) -> Reference:
    return problem(module).exact()


def agrees(module: Any, mean: Tensor, quantities: slice | list[int]) -> None:
    """Within four standard errors of the reference, whose weights say what it is worth."""
    reference = exact(module.__name__)
    found, spread = moments(module.PROBLEM, reference)
    allowed = 4 * spread * reference.weights.square().sum().sqrt()
    assert ((found - mean).abs() < allowed)[quantities].all(), (found, mean)


@pytest.fixture(autouse=True)
def hardly_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_unet, "UPDATES", 2)


def test_sphere() -> None:
    """Given the energy, mean squares are ratios of integrals of the characteristic function of the energy."""
    t = torch.linspace(-60, 60, 60_001, dtype=torch.float64)
    variance = 1 / (1 + torch.tensor([0, *range(1, 8), *range(1, 8), 8], dtype=torch.float64).square())
    characteristic = torch.exp(-torch.log(1 - 2j * t[:, None] * variance).sum(1) / 2 - 1j * t * sphere.ENERGY)
    mean = torch.stack([(characteristic * v / (1 - 2j * t * v)).sum() for v in variance[:5]]).real
    agrees(sphere, mean / characteristic.sum().real, slice(None))


def test_burgers() -> None:
    """Kalman updates for observations and mass on the grid, then the characteristic function of the energy."""
    truth, observed, mean, covariance = burgers.known()
    rows = burgers.DECODER(torch.eye(len(mean), dtype=torch.float64)).T
    for row, value, noise in [
        *((rows[k], y, burgers.NOISE) for k, y in zip(burgers.SEEN, observed, strict=True)),
        (rows.sum(0), truth.sum(), 0.0),
    ]:
        gain = covariance @ row / (row @ covariance @ row + noise**2)
        mean, covariance = mean + gain * (value - row @ mean), covariance - torch.outer(gain, row @ covariance)
    level, turn = torch.linalg.eigh(covariance[1:, 1:])
    offset = turn.T @ mean[1:]
    rest = truth.square().sum() - truth.sum() ** 2 / burgers.POINTS
    t = torch.linspace(-10, 10, 50_001, dtype=torch.float64)[:, None]
    d = 1 - 2j * t * level
    weight = torch.exp((-torch.log(d) / 2 + 1j * t * offset**2 / d).sum(1, keepdim=True) - 1j * t * rest)
    waves = turn @ ((weight * offset / d).sum(0) / weight.sum()).real
    agrees(burgers, burgers.DECODER(torch.cat([mean[:1], waves])[None])[0, ::3], slice(None))


def test_vehicle() -> None:
    """Quasi-random numbers, and the obstacles of the library."""
    points = torch.quasirandom.SobolEngine(5, scramble=True, seed=3).draw(2**16, dtype=torch.float64)
    x = torch.special.ndtri(points.clamp(1e-12, 1 - 1e-12)) * torch.tensor([0.1, 1, 1, 1, 1])
    x[:, 0] += 1
    z = (x @ vehicle.paths().T).reshape(-1, vehicle.STEPS, 2)
    free = casal.Obstacles(discs=vehicle.DISCS).violation(z) == 0
    agrees(vehicle, vehicle.routes(z[free]).mean(0), slice(None))


def test_torus() -> None:
    """The angle around the axis is integrated in closed form: a von Mises density for each angle in the tube."""
    centre = torus.SEEN.mean(0)
    tube = (torch.arange(20_000, dtype=torch.float64) + 0.5) * 2 * math.pi / 20_000
    ring, height = torus.LARGE + torus.SMALL * tube.cos(), torus.SMALL * tube.sin()
    k = 3 * ring * centre[:2].norm() / torus.NOISE**2
    square = ring**2 + height**2 - 2 * height * centre[2]
    log_weight = ring.log() - 1.5 * square / torus.NOISE**2 + torch.special.i0e(k).log() + k
    weight = torch.softmax(log_weight, 0)
    pull = (weight * torch.special.i1e(k) / torch.special.i0e(k)).sum() * centre[:2] / centre[:2].norm()
    mean = torch.stack([pull[0], weight @ tube.cos(), pull[1], weight @ tube.sin()])
    found, _ = moments(torus.PROBLEM, exact(torus.__name__))
    torch.testing.assert_close(found, mean, atol=1e-8, rtol=0)


def test_portfolio() -> None:
    """Gibbs moves of one weight to another, whose length is a Gaussian between two bounds."""
    generator = torch.Generator().manual_seed(7)
    w = torch.full((1500, portfolio.ASSETS), 1 / portfolio.ASSETS, dtype=torch.float64)
    bend = 2 * 1500 * 2.0 * portfolio.COVARIANCE
    for _ in range(1500):
        i, j = torch.randperm(portfolio.ASSETS, generator=generator)[:2].tolist()
        along = torch.zeros(portfolio.ASSETS, dtype=torch.float64)
        along[i], along[j] = 1.0, -1.0
        stiff = along @ bend @ along
        middle = (1500 * portfolio.RETURN @ along - w @ bend @ along) / stiff
        low = torch.maximum(-w[:, i], w[:, j] - portfolio.CAP)
        high = torch.minimum(portfolio.CAP - w[:, i], w[:, j])
        a, b = (torch.special.ndtr((edge - middle) * stiff.sqrt()) for edge in (low, high))
        u = a + (b - a) * torch.rand(len(w), generator=generator, dtype=torch.float64)
        step = (middle + torch.special.ndtri(u) / stiff.sqrt()).clamp(low, high)
        w = w + step[:, None] * along
    found, spread = moments(portfolio.PROBLEM, exact(portfolio.__name__))
    z = (portfolio.PROBLEM.quantities(w).mean(0) - found) / (spread / math.sqrt(len(w)))
    assert z.abs().max() < 4.5
    flat = w.sort(dim=1).values  # the same weights in another order: the test sees it
    assert ((portfolio.PROBLEM.quantities(flat).mean(0) - found) / (spread / len(w) ** 0.5)).abs().max() > 20


def test_the_window_of_the_fields_is_narrow_enough() -> None:
    reference = exact(unet.__name__)
    mass = reference.points.sum((1, 2, 3))
    assert (mass - unet.MASS).abs().max() < unet.WIDTH and reference.points.min() > 0
    half = unet.quantities(reference.points[(mass - unet.MASS).abs() < unet.WIDTH / 2]).mean(0)
    found, spread = moments(unet.PROBLEM, reference)
    assert ((half - found) / (spread / unet.PROBLEM.n**0.5)).abs().max() < 0.6  # of the unit of an error


@pytest.mark.parametrize("module", MODULES)
def test_a_small_run_of_each_problem(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{module}.DRAWS", 20_000, raising=False)
    made = card(module, lambda line: None, n=16)
    assert made.failure == ""
    assert [row.label for row in made.rows] == list(METHODS)
    alone, projected, ours = made.rows
    assert alone.feasible < 1.0 and projected.feasible == ours.feasible == 1.0
    assert (alone.verdict, projected.verdict) == ("not promised", "not promised")
    assert (ours.verdict == "not promised") == (module == unet.__name__)  # nothing promises bounds on a network
    assert all(math.isfinite(row.error) and row.calls > 0 for row in made.rows)
    assert all(row.svg.count("<svg") == 1 and "prefers-color-scheme" in row.svg for row in made.rows)
    assert made.n == 16 and made.cpu > 0


@pytest.mark.parametrize("module", MODULES)
def test_the_code_on_the_page_is_complete_and_narrow(module: str) -> None:
    code = problem(module).code
    assert max(map(len, code.splitlines())) <= 80
    assert problem(module).call in code
    known: dict[str, Any] = {}
    exec(code, known)
    copied = known["sample"](casal.FinalProjection(), 3, 0)
    torch.testing.assert_close(copied.samples, problem(module).sample(casal.FinalProjection(), 3, 0).samples)


def test_the_part_of_a_module_that_is_shown() -> None:
    source = f'"""Text."""\n\nimport math\nimport torch\n\nX = math.pi\n\n# {"-" * 66} rest\n\nY = torch.ones(1)\n'
    assert shown(source) == "import math\n\n\nX = math.pi\n"


def test_the_unit_of_an_error() -> None:
    """Exact draws have one on average, and shifted ones show their shift."""
    row, whole = problem(sphere.__name__), exact(sphere.__name__)
    generator, n, found = torch.Generator().manual_seed(0), 500, list[float]()
    chosen = torch.multinomial(whole.weights, 5000, replacement=True, generator=generator)
    reference = Reference.draws(whole.points[chosen])
    result = row.sample(casal.FinalProjection(), n, 0)
    for _ in range(100):
        chosen = torch.multinomial(reference.weights, n, replacement=True, generator=generator)
        object.__setattr__(result, "samples", reference.points[chosen])
        found.append(error(row, result, reference) ** 2)
    assert sum(found) / 100 == pytest.approx(1.0, abs=0.3)
    _, spread = moments(row, reference)
    object.__setattr__(result, "samples", 1.2 * reference.points[chosen])
    mean, _ = moments(row, reference)
    expected = float((0.44 * mean / (spread / n**0.5)).square().mean().sqrt())
    assert error(row, result, reference) == pytest.approx(expected, rel=0.2)
