"""Flow matching and every name of a prediction: one Gaussian, Euler steps by hand and by diffusers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError
from casal.targets import flow
from casal.targets.network import PREDICTIONS

from .gaussian import F64, model


def test_flow_equals_euler_of_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    theirs.set_timesteps(sigmas=[1 - k / 20 for k in range(20)])
    target = flow(model, steps=20, shape=5, reverse=True, dtype=F64)
    assert callable(target.init)
    x = torch.randn((8, 5), generator=torch.Generator().manual_seed(0), dtype=F64)
    mine = target.init(8, torch.Generator().manual_seed(0))
    for k, t in enumerate(theirs.timesteps):
        at = torch.tensor(1 - k / 20, dtype=F64)
        x = theirs.step(model(x, at), t, x).prev_sample.to(F64)
        if k:
            mine = target.table.a[k - 1] * mine + target.table.b[k - 1] * target.score(mine, target.table.t[k - 1])
    torch.testing.assert_close(mine, x, atol=1e-5, rtol=0)  # theirs keeps its sigmas in float32


@pytest.mark.parametrize("reverse", [False, True])
def test_flow_equals_plain_euler_on_the_velocity(reverse: bool) -> None:
    target = flow(model, steps=25, shape=5, reverse=reverse, dtype=F64)
    assert callable(target.init)
    start = replace(target, init=target.init(9, torch.Generator().manual_seed(4)))
    samples = casal.sample(start, casal.Sphere(1.0), casal.Unconstrained(), 9).samples
    x = torch.randn((9, 5), generator=torch.Generator().manual_seed(4), dtype=F64)
    for k in range(25):
        t = torch.tensor(k / 25, dtype=F64)
        x = x + (-model(x, 1 - t) if reverse else model(x, t)) / 25
    torch.testing.assert_close(samples, x, atol=1e-11, rtol=0)


MEAN, VARIANCE = 0.7, 0.3
BETAS = torch.linspace(1e-3, 0.2, 40, dtype=torch.float64)
ABAR = torch.cumprod(1 - BETAS, 0)
X = torch.linspace(-2.0, 2.0, 12, dtype=torch.float64).reshape(6, 2)


def parts(x: Tensor, alpha: Tensor, sigma: Tensor) -> dict[str, Tensor]:
    """What each kind of network returns at x = alpha x0 + sigma noise, x0 ~ N(MEAN, VARIANCE)."""
    total = alpha**2 * VARIANCE + sigma**2
    clean = MEAN + alpha * VARIANCE / total * (x - alpha * MEAN)
    noise = (x - alpha * clean) / sigma
    return {"eps": noise, "x0": clean, "v": alpha * noise - sigma * clean, "flow": noise - clean}


def exact_score(x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    return -(x - alpha * MEAN) / (alpha**2 * VARIANCE + sigma**2)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_every_prediction_is_the_same_model(name: str) -> None:
    def network(x: Tensor, t: Tensor) -> Tensor:
        return parts(x, ABAR[t].sqrt(), (1 - ABAR[t]).sqrt())[PREDICTIONS[name]]

    for family in (casal.ddpm, casal.ddim):
        target = family(network, BETAS, shape=2, prediction=name, dtype=torch.float64)
        for t in (0, 17, 39):
            alpha, sigma = ABAR[t].sqrt(), (1 - ABAR[t]).sqrt()
            found = target.score(X, torch.tensor(float(t), dtype=torch.float64))
            torch.testing.assert_close(found, exact_score(X, alpha, sigma))
            assert target.denoise is not None
            clean = target.denoise(X, sigma / alpha)
            torch.testing.assert_close(clean, parts(alpha * X, alpha, sigma)["x0"])


@pytest.mark.parametrize("name", ["x0", "sample", "eps", "epsilon"])
def test_denoisers_by_their_noise_level(name: str) -> None:
    one = torch.ones((), dtype=torch.float64)
    target = casal.edm(lambda x, s: parts(x, one, s)[PREDICTIONS[name]], [3.0, 1.0], shape=2, prediction=name)
    for s in (torch.tensor(1.5, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)):
        torch.testing.assert_close(target.score(X, s), exact_score(X, one, s))
        assert target.denoise is not None
        torch.testing.assert_close(target.denoise(X, s), parts(X, one, s)["x0"])


@pytest.mark.parametrize("name", ["flow", "flow_prediction", "x0", "sample"])
@pytest.mark.parametrize("reverse", [False, True])
def test_flows_in_both_directions_of_time(name: str, reverse: bool) -> None:
    def network(x: Tensor, t: Tensor) -> Tensor:
        clean = 1 - t if reverse else t
        found = parts(x, clean, 1 - clean)
        return found["x0"] if PREDICTIONS[name] == "x0" else found["flow"] if reverse else -found["flow"]

    target = casal.flow(network, steps=5, shape=2, prediction=name, reverse=reverse, dtype=torch.float64)
    for clean in (0.2, 0.9):
        t = torch.tensor(1 - clean if reverse else clean, dtype=torch.float64)
        alpha, sigma = torch.tensor(clean, dtype=torch.float64), torch.tensor(1 - clean, dtype=torch.float64)
        torch.testing.assert_close(target.score(X, t), exact_score(X, alpha, sigma))
    usual = casal.flow(
        lambda x, t: -parts(x, t, 1 - t)["flow"] if float(t) else MEAN - x, steps=5, shape=2, dtype=torch.float64
    )
    found, other = (
        casal.sample(one, casal.Ball(9.0), casal.Unconstrained(), 20).samples
        for one in (_whole(target, network, name, reverse), usual)
    )
    torch.testing.assert_close(found, other)


def _whole(target: casal.Target, network: Any, name: str, reverse: bool) -> casal.Target:
    """The same flow with a network that also knows t = 0, where ``parts`` would divide zero by zero."""

    def everywhere(x: Tensor, t: Tensor) -> Tensor:
        clean = 1 - t if reverse else t
        if float(clean) > 0:
            out: Tensor = network(x, t)
            return out
        if PREDICTIONS[name] == "x0":
            return torch.full_like(x, MEAN)
        return x - MEAN if reverse else MEAN - x

    return casal.flow(everywhere, steps=5, shape=2, prediction=name, reverse=reverse, dtype=torch.float64)


def shifted(steps: int, shift: float = 3.0) -> Tensor:
    """Times from 1 to 0 that dwell at large noise, as those of large flow models do."""
    t = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)
    return shift * t / (1 + (shift - 1) * t)


def euler(network: Any, x: Tensor, times: Tensor) -> Tensor:
    for here, there in pairwise(times):
        x = x + (there - here) * network(x, here)
    return x


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("end", [True, False])
def test_time_grids_of_ones_own(reverse: bool, end: bool) -> None:
    def network(x: Tensor, t: Tensor) -> Tensor:
        clean = 1 - t if reverse else t
        out = (MEAN * torch.ones_like(x) + (clean * VARIANCE - (1 - clean)) * (x - clean * MEAN)) / 1.0
        return -out if reverse else out

    times = shifted(6) if reverse else 1 - shifted(6)
    target = casal.flow(network, times=times if end else times[:-1], reverse=reverse, shape=2, dtype=torch.float64)
    assert len(target.table) == 5
    start = casal.flow(lambda x, t: 0 * x, steps=6, shape=2, dtype=torch.float64)
    method, ball = casal.Unconstrained(), casal.Ball(9.0)
    noise = casal.sample(start, ball, method, 8).samples  # a velocity of zero keeps the starting points
    torch.testing.assert_close(casal.sample(target, ball, method, 8).samples, euler(network, noise, times))


def test_a_grid_that_begins_near_noise_has_a_row_for_every_time() -> None:
    target = casal.flow(lambda x, t: -x, times=[0.01, 0.2, 0.6], shape=2)
    assert len(target.table) == 3 and target.init_evaluations == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": [0.0, 0.5, 0.4]}, "increase from 0"),
        ({"times": [1.0, 0.5]}, "reverse=True"),
        ({"times": [0.0, 0.5], "reverse": True}, "decrease from 1"),
        ({"times": [0.5, 0.8]}, "away from noise"),
        ({"times": [0.0, 0.5, 1.0], "steps": 5}, "leave out steps"),
        ({}, "give the number of Euler steps"),
        ({"steps": 5, "prediction": "epsilon"}, "'flow', 'flow_prediction'"),
        ({"steps": 5, "prediction": "velocity"}, "'x0', 'sample', 'flow', 'flow_prediction', got 'velocity'"),
    ],
)
def test_flows_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        casal.flow(lambda x, t: x, shape=2, **options)
