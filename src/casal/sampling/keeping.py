"""Runs that last: tiles go to a store as they end, and a run goes on from what is there."""

from __future__ import annotations

import warnings
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.errors import CasalWarning, StoreError
from casal.methods import Uncounted, Usage
from casal.sampling.certificate import certify
from casal.sampling.identity import identity
from casal.sampling.loop import Chains, Keeper
from casal.sampling.plan import Plan
from casal.sampling.progress import Progress
from casal.sampling.result import SampleResult, snapshot_data, state_data, tile_data
from casal.sampling.tiles import Tile
from casal.sampling.trace import Trace
from casal.store import RunStore, named_errors, stored_tile


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
        fixed = f"the chains of {plan.method.name} meet, so that more of them change all" if plan.meets else None
        self.store = RunStore(path, identity(plan, compiled), plan.n, plan.tile, fixed)

    @staticmethod
    def tile_of(path: str | Path, n: int) -> int | None:
        """The tile of a store that is to grow to n chains; None where there is none."""
        return stored_tile(path, n)

    def resume(self) -> int:
        if not self.store.begun():
            return 0
        first = self._first()  # made by the method, whose errors are its own
        with named_errors(self.store.path):
            return self._resume(first)

    def close(self) -> None:
        """Let other processes use the store."""
        self.store.close()

    def _resume(self, first: Any) -> int:
        plan, tiles, done = self.plan, self.chains.tiles, self.store.done()
        if not plan.meets or (len(done) == len(tiles) and "exchanges" in self.store.attributes):
            for index in done:
                arrays, record = self.store.read(index)
                self._restore(tiles[index], state_data(arrays, record), record, first)
                tiles[index].snapshots = dict(snapshot_data(arrays, record))
                if tiles[index].steps != plan.steps:
                    raise self._misfit(f"tile {index} has taken {tiles[index].steps} steps")
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
            self._restore(tile, state, record, first)
            snapshot = f"{tile.index}/snapshot/"
            tile.snapshots = {
                int(name.removeprefix(snapshot)): part for name, part in arrays.items() if name.startswith(snapshot)
            }
            tile.generator.set_state(arrays[f"{tile.index}/generator"])
        self.chains.generator.set_state(arrays["generator"])
        self._absorb(about["together"])
        if about["leg"] not in range(len(plan.legs)):
            raise self._misfit(f"the checkpoint stands at part {about['leg']!r}")
        return int(about["leg"])

    def checkpoint(self, leg: int) -> None:
        if not self.plan.meets or leg == 0 or not self.store.checkpoint_due():
            return
        arrays = {"generator": self.chains.generator.get_state()}
        for tile in self.chains.tiles:
            arrays[f"{tile.index}/generator"] = tile.generator.get_state()
            arrays.update({f"{tile.index}/state/{name}": part for name, part in tile.state._asdict().items()})
            arrays.update({f"{tile.index}/snapshot/{step}": part for step, part in tile.snapshots.items()})
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
        constraint, options = self.plan.constraint.take(slice(tile.start, tile.stop)), self.plan.options
        certificate = certify(constraint, samples, options.tol, options.units)
        gap = self.plan.gap(tile.state, samples)
        steps = sorted(tile.snapshots)
        snapshots = torch.stack([tile.snapshots[step] for step in steps]) if steps else None
        record = {**_progress(tile), "snapshots": steps}
        self.store.write(tile.index, *tile_data(tile.state, samples, certificate, gap, record, snapshots))

    def _restore(self, tile: Tile, state: dict[str, Tensor], record: Any, first: Any) -> None:
        """Put a tile where its record says; ``first`` is a first state of a few chains, which tells the shapes."""
        kinds = {kind._fields: kind for kind in (type(first), *self.plan.method.states)}
        same = tuple(state) == first._fields and not self.plan.method.resizes
        known = first._asdict() if same else {}
        for name, part in state.items():
            like = known.get(name, part)
            if part.ndim != like.ndim or part.shape != (len(tile), *like.shape[1:])[: part.ndim]:
                raise self._misfit(f"{name} of tile {tile.index} has shape {tuple(part.shape)}")
        tile.state = kinds[tuple(state)](*(part.to(self.plan.device) for part in state.values()))
        scores, projections = record["usage"]
        tile.steps, tile.usage = int(record["steps"]), Usage(int(scores), int(projections))
        tile.trace = Trace.from_plain(record["trace"])
        self.bar.advance(tile.steps)

    def _first(self) -> Any:
        """The method's first state of a few chains."""
        x = self.plan.probe()
        context = self.plan.inside.context.of_chains(0, len(x), Uncounted())
        return self.plan.method.init(context, x, torch.Generator(self.plan.device))

    def _misfit(self, what: str) -> StoreError:
        return StoreError(
            f"{self.store.path} does not fit the run: {what}; nothing was changed. Restore it from a copy, or "
            "remove it to begin again"
        )

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
