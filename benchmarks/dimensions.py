"""What the methods for many dimensions cost beside bare calls of the network: evaluations, memory, time.

Every problem runs through "auto" in a process of its own; ``python -m benchmarks.dimensions KEY`` runs one and prints
what it took. A product with the derivative of the network (vjp) counts as much as it takes on this machine, measured
on the same network and batch. Times are processor times, so that other work on the machine disturbs them little.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.timing import Table, in_new_process

ROUNDS = 5


class Problem(NamedTuple):
    """Name of a function of ``casal_lab.problems.many_dimensions``, its settings, dimensions and chains."""

    name: str
    options: dict[str, Any]
    d: int = 256
    n: int = 256


PROBLEMS = {
    "4 equations": Problem("four_equations", {}),
    "mass + energy": Problem("mass_energy", {}),
    "4 equations + norm": Problem("four_equations_and_norm", {}),
    "norm 4 sd out": Problem("norm", {"deviations": 4.0}),
    "half-space": Problem("half_space", {}),
    "nonnegative field": Problem("nonnegative_field", {"total": False}, n=400),
    "nonnegative field of given sum": Problem("nonnegative_field", {"total": True}, n=400),
    "64 values + norm": Problem("observed_and_norm", {"deviations": 2.5}, d=1024),
}


def tables(quick: bool) -> list[Table]:
    """One table; a quick one has few chains."""
    names = list(PROBLEMS)[:2] if quick else list(PROBLEMS)
    note = (
        "Through auto. vjp: time of a product with the derivative over that of a call. evaluations: calls + vjps x "
        "that. memory: above what the process had before the run. time / bare: processor time of the run over that of "
        "its calls and products alone."
    )
    return [Table("Many dimensions: cost", [_row(name, 16 if quick else None) for name in names], note)]


def _row(name: str, n: int | None) -> dict[str, Any]:
    problem = PROBLEMS[name]
    took = in_new_process("benchmarks.dimensions", name, n or problem.n)
    return {"problem": name, "d": problem.d, "n": n or problem.n, **took}


def cost(problem: Problem, n: int) -> dict[str, Any]:
    """Run a problem, and count calls and products of its network."""
    import dataclasses
    import resource

    import torch

    import casal
    from casal_lab.problems import many_dimensions

    torch.set_num_threads(1)
    case = getattr(many_dimensions, problem.name)(problem.d, 1, **problem.options)
    calls, denoise = 0, case.target.denoise
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def counted(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += len(x)
        return denoise(x, sigma)

    def score(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += len(x)
        return case.target.score(x, t)

    target = dataclasses.replace(case.target, denoise=counted, score=score)
    began = time.process_time()
    result = casal.sample(target, case.constraint, "auto", n, seed=1, check=False)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    products = max(0.0, result.cost.score_evaluations * n - calls)
    call, product = _bare(denoise, problem.d, n)
    bare = (calls * call + products * product) / n
    return {
        "method": result.provenance["method"],
        "calls": round(calls / n),
        "vjps": round(products / n),
        "vjp": product / call,
        "evaluations": round((calls + products * product / call) / n),
        "memory, MB": round(peak / 1024),
        "time, s": seconds,
        "time / bare": seconds / bare,
    }


def _bare(denoise: Callable[..., Any], d: int, n: int) -> tuple[float, float]:
    """Seconds of a call without a derivative, and of a product with the derivative; medians, after a warm-up."""
    import torch

    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor(1.0, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    out = denoise(leaf, sigma)
    product = partial(torch.autograd.grad, out, leaf, torch.ones_like(out), retain_graph=True)

    def seconds(case: Callable[[], object]) -> float:
        found = []
        for _ in range(ROUNDS + 1):
            began = time.process_time()
            case()
            found.append(time.process_time() - began)
        return sorted(found[1:])[ROUNDS // 2]

    def call() -> object:
        with torch.no_grad():
            return denoise(x, sigma)

    return max(seconds(call), math.ulp(1.0)), seconds(product)


if __name__ == "__main__":
    print(json.dumps(cost(PROBLEMS[sys.argv[1]], int(sys.argv[2]))))
