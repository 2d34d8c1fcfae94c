"""The compiled step of CASAL over the noise it needs and over the unconstrained step: medians of many processes.

Ratios of one process differ from those of the next by several percent, since memory lies elsewhere. So each ratio is
the median over the rounds of one process, and the table has the median and the middle half over processes. A second
table says where the time of a noise draw goes: to the generator or to the logarithm, root, sine and cosine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from statistics import median
from unittest import mock

import torch

import casal
from benchmarks import field
from benchmarks.timing import Case, Table, in_new_process, in_turn, quartiles, ratios, step_seconds
from casal.sampling import stepping
from casal.sampling.fast_noise import fast_normal

PROCESSES = 20
CHAINS = 4096
FEW = 8
"""Steps of the short runs: what a call takes besides its steps, mostly."""

COMPILED = ("unconstrained", "projected", "CASAL")
WANTED = {"CASAL / noise": 1.35, "CASAL / unconstrained": 1.10}


def one_process(rounds: int) -> dict[str, dict[str, float]]:
    """Ratios of processor time in this process: of whole calls, of steps alone, and of steps with noise by ``normal_``.

    A whole call also plans the run, projects strictly and certifies. Steps alone are the difference of a long call and
    a short one. The noise that all are compared with is drawn by ``normal_``.
    """
    torch.set_num_threads(1)
    lengths = (FEW, field.STEPS)
    models = {steps: field.target(steps) for steps in lengths}
    with_normal = mock.patch.object(stepping, "fast_normal", lambda numbers, device: None)

    def compiled(name: str, steps: int) -> Callable[[], None]:
        def run() -> None:
            casal.sample(
                models[steps],
                field.SPHERE,
                field.METHODS[name],
                CHAINS,
                check=False,
                run=casal.Run(threads=1, compile=True),
            )

        return run

    def by_normal(case: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with with_normal:
                case()

        return run

    cases: dict[str, Case] = {}
    for steps in lengths:
        cases[f"noise {steps}"] = field.noise(CHAINS, steps)
        for name in COMPILED:
            cases[f"{name} {steps}"] = compiled(name, steps)
            cases[f"{name} by normal_ {steps}"] = by_normal(compiled(name, steps))
    seconds = in_turn(cases, rounds)

    names = ("noise", *COMPILED)
    by_torch = {name: name if name == "noise" else f"{name} by normal_" for name in names}
    return {
        "call": _medians({name: seconds[f"{name} {field.STEPS}"] for name in names}),
        "steps": _medians({name: step_seconds(seconds, name, lengths) for name in names}),
        "normal": _medians({name: step_seconds(seconds, by_torch[name], lengths) for name in names}),
    }


def _medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {
        f"{name} / {base}": median(own / other for own, other in zip(seconds[name], seconds[base], strict=True))
        for base in ("noise", "unconstrained")
        for name in seconds
    }


def tables(quick: bool) -> Iterator[Table]:
    """Medians and quartiles over processes; then the parts of a noise draw."""
    count, rounds = (3, 3) if quick else (PROCESSES, 5)
    found = [in_new_process("benchmarks.fused", rounds) for _ in range(count)]
    kinds = {
        "call": "whole calls",
        "steps": f"steps alone ({field.STEPS} less {FEW})",
        "normal": "steps alone, with noise drawn by normal_",
    }
    for key, what in kinds.items():
        rows = []
        for name in ("CASAL / noise", "CASAL / unconstrained", "projected / unconstrained", "unconstrained / noise"):
            values = [one[key][name] for one in found]
            low, middle, high = quartiles(values)
            row = {"ratio": name, "median": middle, "middle half": f"{low:.3g} to {high:.3g}"}
            row |= {"smallest": min(values), "largest": max(values), "wanted": WANTED.get(name)}
            rows.append(row)
        yield Table(
            f"Compiled field, {CHAINS} chains x {field.SIZE}, {field.STEPS} steps, {count} processes: {what}",
            rows,
            f"Processor time; noise is a bare draw by normal_. In each process the median ratio of {rounds} rounds in "
            "which cases take turns.",
        )
    yield noise_parts(3 if quick else 15)


def noise_parts(rounds: int) -> Table:
    """``normal_`` beside its generator alone, and beside Box-Muller over counters in a compiled graph."""
    size, generator = (1024, field.SIZE), torch.Generator().manual_seed(0)
    page, numbers = torch.empty(size), torch.empty(size, dtype=torch.int32)
    key = torch.tensor([12345], dtype=torch.int64)
    counters = torch.compile(philox_normal, dynamic=False)
    fast = fast_normal(page.numel(), page.device)
    cases = {
        "normal_": lambda: page.normal_(generator=generator),
        "uniform_ (the generator)": lambda: page.uniform_(generator=generator),
        "random_ (the generator, whole numbers)": lambda: numbers.random_(generator=generator),
        "fast_noise, the same numbers": lambda: fast(page[None], generator) if fast else page.normal_(),
        "Philox counters and Box-Muller, compiled": lambda: counters(page.numel() // 4, key, key),
    }
    return ratios(f"Parts of a noise draw, {size[0]} x {size[1]} float32", cases, "normal_", rounds, repeats=200)


MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


def philox_normal(quarter: int, key: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """4 ``quarter`` standard normal numbers by Philox 4x32 with ten rounds and Box-Muller.

    In 64-bit arithmetic, because torch has no product of 32-bit numbers that keeps the high half.

    References:
        Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3.
    """
    a = torch.arange(quarter, dtype=torch.int64)
    b, c, d = stream.expand(quarter) & LOW, torch.zeros_like(a), torch.zeros_like(a)
    low, high = key & LOW, (key >> 32) & LOW
    for _ in range(10):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = ((right >> 32) & LOW) ^ b ^ low, right & LOW, ((left >> 32) & LOW) ^ d ^ high, left & LOW
        low, high = (low + WEYL[0]) & LOW, (high + WEYL[1]) & LOW
    first, second = torch.cat([a, c]), torch.cat([b, d])
    radius = (-2.0 * ((first.float() + 1.0) * 2.0**-32).log()).sqrt()
    angle = second.float() * (2.0**-32 * 6.283185307179586)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


if __name__ == "__main__":
    print(json.dumps(one_process(int(sys.argv[1]))))
