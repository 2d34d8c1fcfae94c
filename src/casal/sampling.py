"""The only loop. Everything else plugs into it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from casal.certificate import certify
from casal.checks import PROBE, check_call, check_decoder, check_init, check_problem, starting_points
from casal.constraints.base import Budget, Constraint
from casal.decoders import Decoder
from casal.diagnostics import warn_if_degenerate
from casal.errors import DivergedError, ProjectionError, whole_number
from casal.methods.base import Method, Segment
from casal.methods.choose import choose
from casal.methods.problem import Problem
from casal.progress import Progress, progress_bar
from casal.result import Cost, SampleResult
from casal.targets.base import Target
from casal.tiles import Tile, cut, generator, joined, one_thread, split, tile_size
from casal.trace import Trace

SPREAD_PROBE = 64
"""Starting points from which ``method="auto"`` reads the scale of a fixed density."""

CHECK_EVERY = 16
"""Steps between two looks for chains that are no longer finite."""


def sample(
    target: Target,
    constraint: Constraint,
    method: Method[Any, Any] | str,
    n: int,
    *,
    decoder: Decoder | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    tol: float = 1e-8,
    record_every: int = 0,
    budget: Budget | Callable[[float], Budget] | None = None,
    progress: bool = False,
    tile: int | None = None,
) -> SampleResult:
    """Draw n samples that lie in the set, with a certificate.

    Args:
        target: Score, table and start, from ``casal.langevin``, ``casal.energy`` ...
        constraint: The set C, in decoded space.
        method: How the constraint enters each step; "auto" takes what measurements recommend (``methods/choose.py``).
        n: Number of chains; each gives one sample.
        decoder: A, if the model lives in another space than the constraint; the identity if left out.
        seed: One number for all randomness. The result does not depend on the number of threads.
        dtype: Dtype of the chains; that of the starting points if left out. Projections, returned samples of
            strict methods and the certificate are float64 in any case.
        device: Device of the chains; that of the starting points if left out.
        tol: Violation up to which a sample counts as feasible.
        record_every: Steps between two records of the trace; 0 records the end only.
        budget: How hard iterative projections try inside the loop: one budget, or a function of the progress in
            [0, 1] such as ``casal.tightening()``. The samples that are returned get all it takes in any case.
        progress: Whether to show a progress bar (needs rich).
        tile: Chains in a tile; chosen from the size of an event if left out. Changes the random numbers.

    Returns:
        Samples, certificate, trace, cost, last state, provenance. Interrupted by Ctrl-C it returns the chains that
        have taken at least one step, marked ``partial``.

    Raises:
        CasalError: Settings, shapes or sets that cannot work (before the first step), or chains that diverged.
    """
    n, seed = whole_number(n, "n", 1), whole_number(seed, "seed", 0)
    record_every = whole_number(record_every, "record_every", 0)
    tile = None if tile is None else whole_number(tile, "tile", 1)
    check_call(constraint, method, tol, dtype)
    check_init(target, n)
    with torch.no_grad():
        run = _Run(target, constraint, method, n, decoder, seed, dtype, device, tol, record_every, budget, tile)
        with progress_bar(progress, run.total_steps, run.method.name) as bar:
            return run.result(interrupted=run.go(bar))


class _Run:
    """One call of ``sample``: tiles, their states and the trace."""

    def __init__(
        self,
        target: Target,
        constraint: Constraint,
        method: Method[Any, Any] | str,
        n: int,
        decoder: Decoder | None,
        seed: int,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        tol: float,
        record_every: int,
        budget: Budget | Callable[[float], Budget] | None,
        tile: int | None,
    ) -> None:
        self.target, self.tol, self.record_every = target, tol, record_every
        self.n, self.seed, self.dtype, self.budget = n, seed, dtype, budget
        place = torch.device(device) if device is not None else _device_of(target)
        probe = self._points(Tile(0, 0, min(n, PROBE), generator(seed, 1, place)))
        size = tile_size(tuple(probe.shape[1:])) if tile is None else tile
        self.tiles = cut(n, size, seed, place)
        self.common = generator(seed, 0, place)
        self.problem = Problem(target, constraint, check_decoder(decoder).to(probe), probe[:0])
        check_problem(self.problem, probe, tol)
        self.method = method if isinstance(method, Method) else self._choice()
        self.segments: Sequence[Segment] = self.method.plan(self.problem)
        self.steps = sum(len(segment.rows) for segment in self.segments)
        self.total_steps = self.steps * len(self.tiles)
        self.trace = Trace()
        self.seconds = 0.0

    def go(self, bar: Progress) -> bool:
        """Run all segments; whether the run was interrupted."""
        began = time.perf_counter()
        try:
            for segment in self.segments:
                if segment.rung is not None:
                    self._exchange(segment.rung)
                for tile in self.tiles:
                    self._advance(tile, segment.rows, bar)
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.perf_counter() - began
        return False

    def result(self, interrupted: bool) -> SampleResult:
        """Collect the states of all tiles that took a step."""
        begun = [tile for tile in self.tiles if tile.state is not None and tile.steps > 0]
        if not begun:
            raise KeyboardInterrupt("interrupted before any chain took a step; nothing to return")
        state = joined([tile.state for tile in begun])
        usage = self.problem.usage
        samples = self.method.output(self.problem, state)
        chains = len(samples)
        last = max(tile.steps for tile in begun)
        self.trace.steps.pop(last, None)  # the state may have been resampled since
        self._record(state, last)
        trace = self.trace.collected()
        warn_if_degenerate(trace, chains, getattr(state, "log_weight", None))
        return SampleResult(
            samples=samples,
            certificate=certify(self.problem.constraint, samples, self.tol),
            trace=trace,
            cost=Cost(usage.scores / chains + self.target.init_evaluations, usage.projections / chains, self.seconds),
            state=state,
            provenance=self._provenance(),
            steps=torch.cat([torch.full((len(tile),), tile.steps) for tile in begun]),
            partial=interrupted,
        )

    def _choice(self) -> Method[Any, Any]:
        few = Tile(0, 0, min(self.n, SPREAD_PROBE), generator(self.seed, 1, self.problem.like.device))
        return choose(self.problem, self._points(few))

    def _points(self, tile: Tile) -> Tensor:
        x = starting_points(self.target, len(tile), tile.start, self.n, tile.generator)
        return x.to(device=tile.generator.device, dtype=self.dtype or x.dtype)

    def _start(self, tile: Tile) -> None:
        if tile.state is None:
            tile.state = self.method.init(self.problem, self._points(tile), tile.generator)

    def _exchange(self, rung: Any) -> None:
        for tile in self.tiles:
            self._start(tile)
        whole = joined([tile.state for tile in self.tiles])
        with one_thread():
            whole, info = self.method.exchange(self.problem, whole, rung, self.common)
        self.trace.exchanged(self.tiles[0].steps, info)
        for tile, state in zip(self.tiles, split(whole, self.tiles), strict=True):
            tile.state = state

    def _advance(self, tile: Tile, rows: Sequence[Any], bar: Progress) -> None:
        self._start(tile)
        for first in range(0, len(rows), CHECK_EVERY):
            some = rows[first : first + CHECK_EVERY]
            before, stream, taken = tile.state, tile.generator.get_state(), tile.steps
            for row in some:
                self._step(tile, row)
                if self.record_every and tile.steps % self.record_every == 0 and _finite(tile.state):
                    self._record(tile.state, tile.steps)
            if not _finite(tile.state):
                self._locate(tile, before, stream, taken, some)
            bar.advance(len(some))

    def _step(self, tile: Tile, row: Any) -> None:
        problem = self.problem
        noise = self.method.noise(problem, row, len(tile), tile.generator)
        if self.budget is not None:
            budget = self.budget(tile.steps / self.steps) if callable(self.budget) else self.budget
            problem = problem.with_budget(budget)
        try:
            tile.state = self.method.step(problem, tile.state, row, noise)
        except ProjectionError as error:
            if error.chains:
                raise self._diverged(tile, row, tile.steps + 1, error.chains) from error
            raise
        tile.steps += 1

    def _locate(self, tile: Tile, state: Any, stream: Tensor, taken: int, rows: Sequence[Any]) -> None:
        """Replay the last few steps with the same noise, to say at which of them the first chain was lost."""
        tile.generator.set_state(stream)
        tile.state, tile.steps = state, taken
        for row in rows:
            self._step(tile, row)
            if not _finite(tile.state):
                lost = ~torch.isfinite(tile.state[0]).flatten(1).all(1)
                raise self._diverged(tile, row, tile.steps, torch.nonzero(lost).flatten().tolist())

    def _diverged(self, tile: Tile, row: Any, step: int, chains: Sequence[int]) -> DivergedError:
        tau = float(getattr(row, "b", 0.0))
        rho = getattr(row, "rho", None)
        if rho is None and hasattr(row, "kappa"):
            rho = float(row.kappa) / tau if tau else 0.0
        if rho is None:
            rho = getattr(tile.state, "rho", None)
        strength = "" if rho is None else f", rho = {float(rho):.3g}, tau rho = {tau * float(rho):.3g}"
        return DivergedError(
            f"{len(chains)} of {len(tile)} chains diverged at step {step} of {self.steps} "
            f"(tau = {tau:.3g}{strength}); take a smaller step_size, a preconditioner, or coupling='implicit'",
            step=step,
            steps=self.steps,
            chains=[tile.start + chain for chain in chains],
        )

    def _record(self, state: Any, step: int) -> None:
        usage = self.problem.usage
        scores, projections = usage.scores, usage.projections
        self.trace.record(step, self.method.monitor(self.problem, state))
        usage.scores, usage.projections = scores, projections

    def _provenance(self) -> Mapping[str, Any]:
        from casal import __version__

        return {
            "casal": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "target": self.target.name,
            "constraint": repr(self.problem.constraint),
            "decoder": type(self.problem.decoder).__name__,
            "method": self.method.name,
            "settings": repr(self.method),
            "n": self.n,
            "steps": self.steps,
            "seed": self.seed,
            "tile": len(self.tiles[0]),
            "dtype": str(self.problem.like.dtype),
        }


def _device_of(target: Target) -> torch.device:
    return target.init.device if isinstance(target.init, Tensor) else torch.device("cpu")


def _finite(state: Any) -> bool:
    """Whether the points of a state are finite. A sum is one cheap pass; an overflowing one is looked at again."""
    x = state[0]
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())
