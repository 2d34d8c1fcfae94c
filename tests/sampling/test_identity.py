"""Two runs are the same run if, and only if, their functions are: told apart by code, values and behaviour."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.sampling.first_calls import Options
from casal.sampling.identity import MOST_LEVELS, SCALES, identity
from casal.sampling.plan import make_plan

RADIUS = 1.0


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, 3), generator=generator, dtype=torch.float64)


def gradient(x: Tensor) -> Tensor:
    return x


def about(
    constraint: casal.Constraint, target: casal.Target | None = None, n: int = 8, **options: Any
) -> dict[str, Any]:
    target = target or casal.langevin(gradient, steps=3, step_size=0.1, init=start)
    with torch.no_grad():
        return identity(make_plan(target, constraint, casal.Projected(), n, Options(**options)), False)


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in {**one, **other} if one.get(name) != other.get(name)}


# ------------------------------------------------------------------------------------------- sets


def onto(z: Tensor, radius: float | Tensor) -> Tensor:
    return radius * z / z.norm(dim=1, keepdim=True)


def off(z: Tensor, radius: float | Tensor) -> Tensor:
    return (z.norm(dim=1) - radius).abs()


class Onto:
    """A projection that keeps its radius, and counts its calls."""

    def __init__(self, radius: float) -> None:
        self.radius, self.calls = radius, 0

    def __call__(self, z: Tensor) -> Tensor:
        self.calls += 1
        return onto(z, self.radius)


class Scaled(torch.nn.Module):
    """A projection with its radius among its parameters."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = torch.nn.Parameter(torch.tensor(radius, dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:
        return onto(z, self.radius.detach())


def by_default(radius: float) -> Callable[[Tensor], Tensor]:
    def project(z: Tensor, by: float = radius) -> Tensor:
        return onto(z, by)

    return project


def by_keyword(radius: float) -> Callable[[Tensor], Tensor]:
    def project(z: Tensor, *, by: tuple[float, ...] = (radius,)) -> Tensor:
        return onto(z, by[0])

    return project


def by_dictionary(radius: float) -> Callable[[Tensor], Tensor]:
    settings = {"radius": torch.tensor(radius, dtype=torch.float64)}
    return lambda z: onto(z, settings["radius"])


PROJECTIONS: dict[str, Callable[[float], Callable[[Tensor], Tensor]]] = {
    "closure": lambda radius: lambda z: onto(z, radius),
    "default": by_default,
    "keyword": by_keyword,
    "dictionary": by_dictionary,
    "partial": lambda radius: functools.partial(onto, radius=radius),
    "object": Onto,
    "method": lambda radius: Onto(radius).__call__,
    "network": Scaled,
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_radius_is_found_wherever_a_function_keeps_it(name: str) -> None:
    def found(radius: float) -> dict[str, Any]:
        return about(casal.FromProjection(PROJECTIONS[name](radius), lambda z: 0.0 * z[:, 0], exact=False))

    one = found(1.0)
    assert differing(one, found(1.0)) == set()
    assert differing(one, found(3.0)) == {"constraint_code", "constraint_values"}


def test_implicit_sets_that_differ_in_a_closed_over_radius_are_told_apart() -> None:
    def circle(radius: float) -> casal.Constraint:
        return casal.Implicit(lambda z: (z.square().sum(1) - radius**2)[:, None])

    one = about(circle(1.0))
    assert one["constraint"] == "Implicit(<lambda>)"
    assert differing(one, about(circle(1.0))) == set()
    assert differing(one, about(circle(3.0))) == {"constraint_code", "constraint_values"}
    inside = about(circle(1.0) & casal.Ball(2.0))
    assert differing(inside, about(circle(1.5) & casal.Ball(2.0))) == {"constraint_code", "constraint_values"}
    assert differing(inside, about(circle(1.0) & casal.Ball(2.5))) >= {"constraint_values"}


def test_globals_and_other_code_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = casal.FromProjection(lambda z: onto(z, RADIUS), lambda z: off(z, RADIUS))
    one = about(constraint)
    monkeypatch.setattr(sys.modules[__name__], "RADIUS", 2.0)
    assert differing(one, about(constraint)) == {"constraint_code", "constraint_values"}
    monkeypatch.setattr(sys.modules[__name__], "RADIUS", 1.0)
    assert differing(one, about(constraint)) == set()
    monkeypatch.setattr(sys.modules[__name__], "onto", lambda z, radius: radius * z / z.norm(dim=1, keepdim=True) + 0)
    assert differing(one, about(constraint)) == {"constraint_code"}


def test_sets_that_differ_far_from_all_probes_are_told_apart_by_their_code() -> None:
    def wall(at: float) -> casal.Constraint:
        return casal.FromProjection(lambda z: z.clamp_max(at), lambda z: (z - at).clamp_min(0.0).amax(1), convex=True)

    assert differing(about(wall(1e9)), about(wall(2e9))) == {"constraint_code"}


def test_counters_are_no_settings() -> None:
    """What a call changes does not tell two runs apart: the same object may be used again."""
    calls, listed = 0, [0]

    def project(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        listed[0] += 1
        return onto(z, 1.0)

    for function in (project, Onto(1.0)):
        constraint = casal.FromProjection(function, lambda z: off(z, 1.0))
        assert differing(about(constraint), about(constraint)) == set()
    assert calls > 0


def test_a_used_set_keeps_its_identity() -> None:
    """What a set remembers of earlier runs is no part of it."""
    h = casal.Implicit(lambda z: (z.square().sum(1) - 1.0)[:, None], lambda z: z[:, :1])
    for constraint in (h, h & casal.Ball(2.0), h.shifted([0.1, 0.0, 0.0]), h | casal.Sphere(0.5)):
        before = about(constraint)
        casal.sample(casal.langevin(gradient, steps=5, step_size=0.1, init=start), constraint, casal.CASAL(5.0), 60)
        constraint.parts((3,)) if not constraint.in_pieces else constraint.pieces((3,))
        assert differing(before, about(constraint)) == set()


def test_a_set_of_numbers_is_its_data_and_nothing_more() -> None:
    found = about(casal.Sphere(1.0) & casal.Box(0.0, 2.0))
    assert found["constraint"]["set"] == "Intersection" and not {"constraint_code", "constraint_values"} & set(found)


def test_a_class_of_the_user_counts_with_its_code() -> None:
    def kind(factor: float) -> casal.Constraint:
        class Mine(casal.Sphere):
            def _violation(self, z: Tensor) -> Tensor:
                return factor * super()._violation(z)

        return Mine(1.0)

    one, other = about(kind(1.0)), about(kind(2.0))
    assert one["constraint"] == {"set": "Mine", "radius": 1.0, "center": None} == other["constraint"]
    assert differing(one, other) == {"constraint_code", "constraint_values"}


def test_a_set_for_each_chain_is_probed_with_its_first_chains() -> None:
    radii = casal.PerChain([1.0 + 0.1 * k for k in range(8)])
    own = casal.FromProjection(lambda z: z, lambda z: 0.0 * z[:, 0])
    assert "constraint_values" in about(casal.Sphere(radii) & own)


SCRIPT = """
import json, sys
import torch, casal
from casal.sampling.identity import identity
from casal.sampling.first_calls import Options
from casal.sampling.plan import make_plan

NAMES = {"one", "two", "three"}
R = 1.25

class Project:
    def __init__(self, radius): self.radius, self.names = radius, {"a", "b", "c"}
    def __call__(self, z): return self.radius * z / z.norm(dim=1, keepdim=True)

def violation(z):
    assert "one" in NAMES and "x" not in {"p", "q", "r"}
    return (z.norm(dim=1) - R).abs()

start = lambda n, g: torch.randn(n, 3, generator=g, dtype=torch.float64)
target = casal.langevin(lambda x: x, steps=3, step_size=.1, init=start)
given = casal.FromProjection(Project(R), violation)
h = casal.Implicit(lambda z: (z[:, :1] - R), lambda z: z[:, 1:2])
out = []
for constraint in (given, h, h & casal.Ball(3.0), casal.Ball(2.0).through(torch.eye(3)) & given):
    out.append(identity(make_plan(target, constraint, casal.Projected(), 8, Options()), False))
print(json.dumps(out))
"""


def test_another_process_finds_the_same_identity() -> None:
    """Whatever the addresses of its objects and the seeds of its hashes are."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and "0x" not in outputs[0] and len(json.loads(outputs[0])) == 4


# ------------------------------------------------------------------------------------------- models

SIGMAS = casal.karras_sigmas(40, 0.02, 20.0)


def diffusion(denoiser: Callable[[Tensor, Tensor], Tensor], sigmas: Tensor = SIGMAS) -> casal.Target:
    return casal.edm(denoiser, sigmas, shape=3, churn=1.0, dtype=torch.float64, time="scalar")


@pytest.mark.parametrize("below", [1.0, 0.05, 0.0201])
def test_a_denoiser_changed_at_low_noise_only_is_told_apart(below: float) -> None:
    def denoiser(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            return x / (1.0 + sigma**2) * (factor if float(sigma) < below else 1.0)

        return denoise

    one = about(casal.Sphere(1.0), diffusion(denoiser(1.0)))
    assert differing(one, about(casal.Sphere(1.0), diffusion(denoiser(1.0)))) == set()
    assert differing(one, about(casal.Sphere(1.0), diffusion(denoiser(1.1)))) == {"model"}


@pytest.mark.parametrize("far", [0.5, 2.0, 8.0])
def test_a_gradient_changed_away_from_the_start_is_told_apart(far: float) -> None:
    def target(factor: float) -> casal.Target:
        def grad(x: Tensor) -> Tensor:
            return torch.where(x.norm(dim=1, keepdim=True) > far, factor * x, x)

        return casal.langevin(grad, steps=3, step_size=0.1, init=start)

    one = about(casal.Sphere(1.0), target(1.0))
    assert differing(one, about(casal.Sphere(1.0), target(1.0))) == set()
    assert "model" in differing(one, about(casal.Sphere(1.0), target(1.5)))


def test_a_gradient_changed_beyond_all_probes_is_told_apart_by_its_code() -> None:
    one = casal.langevin(lambda x: x.clamp_max(1e9), steps=3, step_size=0.1, init=start)
    other = casal.langevin(lambda x: x.clamp_max(2e9), steps=3, step_size=0.1, init=start)
    assert differing(about(casal.Sphere(1.0), one), about(casal.Sphere(1.0), other)) == {"code"}


def test_starts_and_budgets_of_functions_are_told_apart() -> None:
    def from_far(far: float) -> casal.Target:
        def init(n: int, generator: torch.Generator) -> Tensor:
            return start(n, generator) + torch.arange(n)[:, None].clamp_min(2) - 2 * far

        return casal.langevin(gradient, steps=3, step_size=0.1, init=init)

    assert differing(about(casal.Sphere(1.0), from_far(0.0)), about(casal.Sphere(1.0), from_far(1.0))) == {"model"}
    one, other = (about(casal.Sphere(1.0), budget=casal.tightening(1e-2, last)) for last in (1e-10, 1e-9))
    assert differing(one, other) == {"budget"}


def test_all_given_starting_points_count() -> None:
    def target(last: float) -> casal.Target:
        points = torch.ones(8, 3, dtype=torch.float64)
        points[-1, -1] = last
        return casal.langevin(gradient, steps=3, step_size=0.1, init=points)

    assert differing(about(casal.Sphere(1.0), target(1.0)), about(casal.Sphere(1.0), target(1.1))) == {"model"}


def test_probes_are_few_cover_the_table_and_have_as_many_chains_as_the_plan_tries() -> None:
    seen: list[tuple[int, float]] = []

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append((len(x), float(sigma)))
        return x / (1.0 + sigma**2)

    sigmas = casal.karras_sigmas(300, 0.02, 20.0)
    with torch.no_grad():
        plan = make_plan(diffusion(denoise, sigmas), casal.Sphere(1.0), casal.Projected(), 8, Options())
        seen.clear()
        identity(plan, False)
    assert {rows for rows, _ in seen} == {len(plan.probe())}
    levels = {sigma for _, sigma in seen}
    assert MOST_LEVELS <= len(seen) <= MOST_LEVELS + 2 * len(SCALES)
    assert len(levels) == MOST_LEVELS and {max(levels), min(levels)} == {float(sigmas[0]), float(sigmas[-1])}


def test_a_score_that_refuses_points_off_the_start_is_known_by_what_it_takes() -> None:
    points = torch.rand(8, 3, dtype=torch.float64)

    def target(factor: float) -> casal.Target:
        def grad(x: Tensor) -> Tensor:
            if not bool(((x >= 0) & (x <= 1)).all()):
                raise ValueError("outside")
            return factor * x

        return casal.langevin(grad, steps=3, step_size=0.001, init=points)

    box = casal.Box(0.0, 1.0)
    one = about(box, target(1.0))
    assert differing(one, about(box, target(1.0))) == set()
    assert differing(one, about(box, target(1.1))) == {"model"}


def test_random_numbers_of_the_caller_are_left_alone_and_a_noisy_score_is_known_again() -> None:
    target = casal.langevin(lambda x: x + 0.1 * torch.rand_like(x), steps=3, step_size=0.1, init=start)
    torch.manual_seed(5)
    with torch.no_grad():
        plan = make_plan(target, casal.Sphere(1.0), casal.Projected(), 8, Options())
        state = torch.get_rng_state()
        one = identity(plan, False)
        assert torch.equal(state, torch.get_rng_state())
        torch.rand(3)
        assert identity(plan, False) == one


def test_threads_and_order_of_runs_change_nothing(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).double()
    target = casal.langevin(lambda x: network(x), steps=3, step_size=0.01, init=start)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = about(casal.Sphere(1.0), target)
        torch.set_num_threads(2)
        assert about(casal.Sphere(1.0), target) == one
    finally:
        torch.set_num_threads(before)


def test_soft_terms_are_told_apart() -> None:
    """By what they return near clean samples, also where they are flat at the noise of the start, and by their code."""

    def tilted(term: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        prior = casal.edm(lambda x, s: x / (1 + s**2), [80.0, 1.0, 0.1], shape=(3,), dtype=torch.float64)
        plan = make_plan(
            casal.tilted(prior, term), casal.Affine([[1.0, 1.0, 1.0]], [0.5]), casal.LookAhead(), 8, Options()
        )
        with torch.no_grad():
            return identity(plan, False)

    def bump(height: float) -> Callable[[Tensor], Tensor]:
        return lambda x: height * torch.exp(-x.square().sum(1))

    one = tilted(bump(1.0))
    assert differing(one, tilted(bump(1.0))) == set()
    assert differing(one, tilted(bump(1.5))) == {"model"}
    assert differing(one, tilted(lambda x: torch.exp(-x.square().sum(1)))) == {"code"}
    both = casal.tilted(casal.energy(lambda x: x.square().sum(1), steps=3, step_size=0.1, init=start), bump(1.0))
    other = casal.tilted(casal.energy(lambda x: x.square().sum(1), steps=3, step_size=0.1, init=start), bump(1.5))
    assert differing(about(casal.Sphere(1.0), both), about(casal.Sphere(1.0), other)) == {"model"}
