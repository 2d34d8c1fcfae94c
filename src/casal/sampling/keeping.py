"""Runs that last: tiles go to a store as they end, and a run goes on from what is there."""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal.errors import CasalWarning, SettingError
from casal.methods import Uncounted, Usage
from casal.sampling.loop import Chains, Keeper
from casal.sampling.plan import Plan
from casal.sampling.progress import Progress
from casal.sampling.result import SampleResult, state_data, tile_data
from casal.sampling.tiles import Tile
from casal.sampling.trace import Trace
from casal.store import RunStore


class StoreKeeper(Keeper):
    """Keeps the tiles of a run in a store.

    Chains that never meet are kept tile by tile as they end. Chains that meet are kept together, at checkpoints before
    a meeting and at the end.

    Args:
        path: The folder of the store.
        plan: The run.
        chains: Its chains.
        compiled: Whether its steps are compiled, which changes bits.
        bar: Shows the progress.
    """

    def __init__(self, path: str | Path, plan: Plan, chains: Chains, compiled: bool, bar: Progress) -> None:
        self.plan, self.chains, self.bar = plan, chains, bar
        bounds = [(tile.start, tile.stop) for tile in chains.tiles]
        self.store = RunStore(path, identity(plan, compiled), bounds)

    def resume(self) -> int:
        plan, tiles, done = self.plan, self.chains.tiles, self.store.done()
        if not plan.meets or len(done) == len(tiles):
            for index in done:
                arrays, record = self.store.read(index)
                self._restore(tiles[index], state_data(arrays, record), record)
            together = self.store.attributes.get("exchanges")
            if together is not None:
                self._absorb(together)
            return len(plan.legs) if plan.meets else 0
        found = self.store.read_checkpoint()
        if found is None:
            return 0
        arrays, about = found
        for tile, record in zip(tiles, about["tiles"], strict=True):
            mine = f"{tile.index}/state/"
            state = {name.removeprefix(mine): part for name, part in arrays.items() if name.startswith(mine)}
            self._restore(tile, state, record)
            tile.generator.set_state(arrays[f"{tile.index}/generator"])
        self.chains.generator.set_state(arrays["generator"])
        self._absorb(about["together"])
        return int(about["leg"])

    def checkpoint(self, leg: int) -> None:
        if not self.plan.meets or leg == 0 or not self.store.checkpoint_due():
            return
        arrays = {"generator": self.chains.generator.get_state()}
        for tile in self.chains.tiles:
            arrays[f"{tile.index}/generator"] = tile.generator.get_state()
            arrays.update({f"{tile.index}/state/{name}": part for name, part in tile.state._asdict().items()})
        about = {"leg": leg, "together": self._together(), "tiles": [_progress(tile) for tile in self.chains.tiles]}
        self.store.write_checkpoint(arrays, about)

    def keep(self, tile: Tile) -> None:
        if not self.plan.meets and tile.steps == self.plan.steps:
            self._write(tile)

    def end(self) -> None:
        if self.plan.meets:
            done = self.store.done()
            for tile in self.chains.tiles:
                if tile.index not in done:
                    self._write(tile)

    def finish(self, result: SampleResult) -> None:
        """Keep what only the whole run knows, or say how to go on if it was interrupted."""
        if result.partial:
            warnings.warn(
                f"interrupted: {len(self.store.done())} of {len(self.chains.tiles)} tiles are in {self.store.path}; "
                "repeat the same call to go on from there",
                CasalWarning,
                stacklevel=3,
            )
            return
        whole = {"run": dict(result.provenance), "cost": list(astuple(result.cost)), "exchanges": self._together()}
        self.store.finish({**whole, "fidelity": result.fidelity.plain()})

    def _write(self, tile: Tile) -> None:
        tile.trace.steps.pop(tile.steps, None)
        self.plan.record(tile, tile.steps)
        samples = self.plan.output(tile, Uncounted())
        violation = self.plan.context.constraint.take(slice(tile.start, tile.stop)).violation(samples)
        self.store.write(tile.index, *tile_data(tile.state, samples, violation, _progress(tile)))

    def _restore(self, tile: Tile, state: dict[str, Tensor], record: Any) -> None:
        kind = self._kinds[tuple(state)]
        tile.state = kind(*(part.to(self.plan.device) for part in state.values()))
        tile.steps, tile.usage = record["steps"], Usage(*record["usage"])
        tile.trace = Trace.from_plain(record["trace"])
        self.bar.advance(tile.steps)

    @cached_property
    def _kinds(self) -> dict[tuple[str, ...], Any]:
        """The classes of the method's states, by their fields."""
        method, stream = self.plan.method, torch.Generator(self.plan.device)
        context = self.plan.inside.context.of_chains(0, 1, Uncounted())
        first = type(method.init(context, self.plan.points(0, 1, stream), stream))
        return {kind._fields: kind for kind in (first, *method.states)}

    def _together(self) -> dict[str, Any]:
        usage = self.chains.usage
        return {"trace": self.chains.trace.plain(), "usage": [usage.scores, usage.projections]}

    def _absorb(self, together: Any) -> None:
        self.chains.trace.absorb(Trace.from_plain(together["trace"]))
        self.chains.usage.absorb(Usage(*together["usage"]))


def _progress(tile: Tile) -> dict[str, Any]:
    """How far a tile is, what it used and what was recorded of it, as JSON data."""
    usage = [tile.usage.scores, tile.usage.projections]
    return {"steps": tile.steps, "usage": usage, "trace": tile.trace.plain()}


# ------------------------------------------------------------------- what makes two runs the same run


def identity(plan: Plan, compiled: bool) -> dict[str, Any]:
    """What a store must agree with to be continued."""
    about = {name: value for name, value in plan.about().items() if name != "python"}  # which changes no bit
    try:
        constraint: Any = plan.context.constraint.spec()
    except SettingError:  # a set of functions
        constraint = _plain_repr(plan.context.constraint)
    return {
        **about,
        "constraint": constraint,
        "settings": _plain_repr(plan.method),
        "compile": compiled,
        "tol": plan.options.tol,
        "record_every": plan.options.record_every,
        "budget": _plain_repr(plan.options.budget),
        "model": _fingerprint(plan),
        "rows": _rows_digest(plan),
    }


def _plain_repr(value: Any) -> str:
    """repr without addresses in memory, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _fingerprint(plan: Plan) -> str:
    """A checksum of the model: its table, its score and its decoder at a few points, and where those points are."""
    x, table = plan.probe(), plan.target.table
    columns = [v for v in (table.a, table.b, table.s, table.t, table.preconditioner) if v is not None]
    looks = [x, plan.target.score(x, table.t[0].to(x.device)), plan.context.decode(x)]
    total = hashlib.sha256()
    for part in (*columns, *looks):
        total.update(np.ascontiguousarray(part.detach().cpu().to(torch.float64).numpy()).tobytes())
    return total.hexdigest()[:16]


def _rows_digest(plan: Plan) -> str:
    """A checksum of all numbers of a plan: what functions among the settings came to."""
    total = hashlib.sha256()
    for leg in plan.legs:
        for stage in leg.stages:
            total.update(getattr(stage.step, "__qualname__", "").encode())
            for row in stage.rows:
                total.update(type(row).__name__.encode())
                for part in row:
                    total.update(_plain_repr(part.tolist() if isinstance(part, Tensor) else part).encode())
    return total.hexdigest()[:16]
