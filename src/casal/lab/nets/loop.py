"""The training loop, for any loss; it can stop between any two iterations and go on later to the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from casal.lab.nets import files
from casal.lab.nets.interrupt import patient_interrupt
from casal.lab.nets.settings import Settings
from casal.lab.nets.state import Checkpoint, Loss, RunState
from casal.lab.nets.streams import ITERATION, MODULE, ORDER, address, seeded, stream
from casal.sampling import progress_bar

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(batch, generator) -> a batch of the same law and shape."""

Callback = Callable[[int, float], None]
"""(iteration counted from 1, its loss); whatever it raises stops the run between two iterations."""


def batches(data: Tensor, settings: Settings, start: int) -> Iterator[Tensor]:
    """Batches of iterations ``start``, ``start + 1``, ...: consecutive pieces of one shuffled epoch after the other."""
    n, size = len(data), settings.batch_size
    orders: dict[int, Tensor] = {}

    def order(epoch: int) -> Tensor:
        if epoch not in orders:
            for old in [key for key in orders if key < epoch - 1]:
                del orders[old]
            orders[epoch] = torch.randperm(n, generator=stream(settings.seed, ORDER, epoch))
        return orders[epoch]

    for i in range(start, settings.iterations):
        left, right = i * size, (i + 1) * size
        parts = []
        while left < right:
            epoch, offset = divmod(left, n)
            stop = min(n, offset + right - left)
            parts.append(order(epoch)[offset:stop])
            left += stop - offset
        yield data[torch.cat(parts).to(data.device)]


def run(
    net: nn.Module,
    data: Tensor,
    loss: Loss,
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    progress: bool,
    callback: Callback | None,
    augment: Augment | None,
) -> tuple[Tensor, int, float]:
    """Train ``net`` in place, or go on training it; at the end it holds the averaged weights.

    Returns:
        The loss of every iteration (n,), the iteration this call took over at, and the seconds over all calls.
    """
    state = RunState(net, settings, checkpoint)
    if checkpoint.path is not None:
        files.require_safetensors()
    state.restore()
    resumed = state.done
    begun = time.perf_counter() - state.seconds
    net.train()
    try:
        with (
            patient_interrupt() as interrupt,
            seeded(settings.seed),
            progress_bar(progress, settings.iterations, f"training {type(net).__name__}") as bar,
        ):
            bar.advance(resumed)
            for batch in batches(data, settings, resumed):
                i = state.done
                generator = stream(settings.seed, ITERATION, i)
                torch.default_generator.manual_seed(address(settings.seed, MODULE, i))  # for dropout and the like
                state.step(batch if augment is None else augment(batch, generator), loss, generator)
                state.seconds = time.perf_counter() - begun
                bar.advance(1)
                try:
                    if callback is not None:
                        callback(state.done, state.history[-1])
                    interrupt.check()
                except KeyboardInterrupt as stop:
                    state.save()
                    raise KeyboardInterrupt(_how_to_continue(state)) from stop
                if state.done % checkpoint.every == 0 or state.done == settings.iterations:
                    state.save()
            interrupt.check()
    finally:
        state.use_average()
        net.eval()
    return torch.tensor(state.history, dtype=torch.float64), resumed, state.seconds


def _how_to_continue(state: RunState) -> str:
    said = f"stopped after iteration {state.done} of {state.settings.iterations}; "
    if state.checkpoint.path is None:
        return said + "nothing was kept: pass checkpoint='some/file.safetensors' to be able to continue"
    return said + f"the run is in {state.checkpoint.path}: make the same call again to continue it"
