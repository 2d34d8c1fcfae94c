"""Cost of one step of every method on the field problem, against the unconstrained step and the bare noise draw."""

from __future__ import annotations

from collections.abc import Callable

import torch

import casal
from benchmarks.timing import interleaved, markdown
from casal.problems import field

CHAINS, STEPS = 4000, 100


def table() -> str:
    """Microseconds a step of 4000 chains of 50 coefficients, float32."""
    sphere = casal.Sphere(field.ENERGY**0.5)
    ramp = casal.linear(2.0, 20.0)

    def start(n: int, generator: torch.Generator) -> torch.Tensor:
        return field.start(n, generator).float()

    target = casal.langevin(field.gradient, steps=STEPS, step_size=1e-3, init=start)
    methods: dict[str, casal.Method] = {  # type: ignore[type-arg]
        "unconstrained": casal.Unconstrained(),
        "projected": casal.Projected(),
        "penalty": casal.Penalty(0.1),
        "CASAL": casal.CASAL(ramp),
        "WeightedCASAL": casal.WeightedCASAL(20.0),
    }

    def run(method: casal.Method) -> Callable[[], object]:  # type: ignore[type-arg]
        return lambda: casal.sample(target, sphere, method, CHAINS, seed=0)

    def noise() -> None:
        generator = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            torch.randn((CHAINS, 50), generator=generator)

    cases: dict[str, Callable[[], object]] = {"noise draw": noise, **{name: run(m) for name, m in methods.items()}}
    title = f"Field problem, {CHAINS} chains x 50, float32, eager"
    return markdown(title, interleaved(cases), "unconstrained", 1e-6 * STEPS, "us a step")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
