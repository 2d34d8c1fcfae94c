"""Flow matching: Euler steps along the velocity, by hand and by diffusers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import casal
from casal.targets import flow

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
