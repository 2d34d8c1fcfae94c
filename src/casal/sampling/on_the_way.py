"""What is seen of a run on its way: snapshots are taken, and a function of the user's is shown the chains."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from casal.methods import Uncounted
from casal.sampling.plan import Plan
from casal.sampling.snapshots import Snapshots, snapshots_of
from casal.sampling.tiles import Tile


class StepView:
    """What a ``callback`` of ``casal.sample`` is shown: some chains of the run after a step. Nothing in it is live.

    Attributes:
        step: Steps that these chains have taken.
        steps: Steps of the whole run.
        chains: Which chains they are, as a slice of all n.
    """

    def __init__(self, plan: Plan, tile: Tile) -> None:
        self._plan, self._tile = plan, tile
        self.step, self.steps, self.chains = tile.steps, plan.steps, slice(tile.start, tile.stop)

    def __repr__(self) -> str:
        return f"StepView(step {self.step} of {self.steps}, chains {self.chains.start} to {self.chains.stop})"

    @property
    def samples(self) -> Tensor:
        """What the run would return now, (chains, *event), projected where the method is strict; worked out on use."""
        return self._plan.output(self._tile, Uncounted()).clone()

    @property
    def state(self) -> Any:
        """A copy of the state of the method: x, z, multipliers ..."""
        lifted = self._plan.inside.lift(self._tile.state)
        return type(lifted)(*(part.clone() for part in lifted))


def take_snapshot(plan: Plan, tile: Tile) -> None:
    """Keep the samples of a tile as they are; it counts as no use."""
    tile.snapshots[tile.steps] = plan.output(tile, Uncounted()).detach()


def gather_snapshots(plan: Plan, tiles: list[Tile]) -> Snapshots | None:
    """The snapshots of all tiles, at the steps that all of them have reached; None if none were asked for."""
    if not plan.options.snapshots or not tiles:
        return None
    steps = sorted(set.intersection(*(set(tile.snapshots) for tile in tiles)))
    parts = [torch.cat([tile.snapshots[step] for tile in tiles]) for step in steps]
    if not parts:
        return None
    return snapshots_of(torch.tensor(steps), torch.stack(parts), settled_after(plan))


def settled_after(plan: Plan) -> int | None:
    """The step after which independent chains sample one distribution, as far as the plan tells; None if never."""
    if plan.meets or not plan.target.table.static:
        return None
    rows = [(stage, row) for leg in plan.legs for stage in leg.stages for row in stage.rows]
    last = rows[-1]
    same = next((k for k in range(len(rows), 0, -1) if not _same(rows[k - 1], last)), 0)
    share = 0.0 if plan.options.sets is None else plan.options.sets.stages[-1][0]
    return max(same, plan.steps // 2, math.ceil(share * plan.steps))


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether two steps of a plan are taken alike; the time of a row means nothing to a fixed density."""
    (stage, row), (last_stage, last_row) = one, other
    if stage is not last_stage:
        return False
    names = [name for name in row._fields if name != "t"]
    pairs = [(getattr(row, name), getattr(last_row, name)) for name in names]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
