"""A training run between two iterations: network, optimiser, averaged weights, history; and its file.

The file holds everything the next iteration depends on. Random numbers and the order of the data are functions of the
seed and the iteration (``streams``), so they need no place in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from casal.errors import DivergedError, SettingError, StoreError
from casal.lab.nets import files
from casal.lab.nets.settings import Settings

Loss = Callable[[Tensor, torch.Generator], Tensor]
"""(batch, generator) -> the loss of the batch, a number to differentiate."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often the run is kept, and what else it depends on.

    Attributes:
        path: The file; None for nowhere.
        every: Iterations between two savings.
        identity: Names and numbers of everything that decides the outcome, besides the settings.
    """

    path: Path | None
    every: int
    identity: dict[str, Any]


def fingerprint(tensor: Tensor) -> str:
    """A short name for the exact bits of a tensor."""
    values = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def plain_config(net: nn.Module) -> Any:
    """The configuration of a network as it comes back from JSON; None if it has none, or one that JSON cannot hold."""
    try:
        return json.loads(json.dumps(getattr(net, "config", None), allow_nan=False))
    except (TypeError, ValueError):
        return None


class RunState:
    """The moving parts: network, optimiser, average, history; and how to put them into a file and back."""

    def __init__(self, net: nn.Module, settings: Settings, checkpoint: Checkpoint) -> None:
        self.net, self.settings, self.checkpoint = net, settings, checkpoint
        self.trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if not self.trained:
            raise SettingError(f"{type(net).__name__} has no parameters to train")
        self.average = {name: p.detach().clone() for name, p in self.trained.items()}
        self.optimiser = torch.optim.AdamW(
            list(self.trained.values()), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.history: list[float] = []
        self.seconds = 0.0
        self.model = {"class": type(net).__name__, "config": plain_config(net)}
        self.identity = {
            **checkpoint.identity,
            **asdict(settings),
            "network": self.model,
            "parameters": {name: list(p.shape) for name, p in self.trained.items()},
            "dtypes": sorted({str(p.dtype) for p in self.trained.values()}),
        }

    @property
    def done(self) -> int:
        return len(self.history)

    def step(self, batch: Tensor, loss: Loss, generator: torch.Generator) -> None:
        """One update of weights and average."""
        i = self.done
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(i)
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            value = loss(batch, generator)
        number = value.item()
        if not math.isfinite(number):
            raise self._diverged(f"the training loss is {number} at", ahead=1)
        self.optimiser.zero_grad(set_to_none=True)
        value.backward()
        self.optimiser.step()
        averages = list(self.average.values())
        torch._foreach_lerp_(averages, [p.detach() for p in self.trained.values()], self.settings.average_rate(i))
        self.history.append(number)

    def _diverged(self, what: str, ahead: int = 0) -> DivergedError:
        step, steps = self.done + ahead, self.settings.iterations
        return DivergedError(
            f"{what} iteration {step} of {steps}; use a smaller learning_rate than {self.settings.learning_rate:g} "
            "or a longer warm_up",
            step=step,
            steps=steps,
        )

    @torch.no_grad()
    def use_average(self) -> None:
        """Put the averaged weights into the network."""
        for name, p in self.trained.items():
            p.copy_(self.average[name])

    def save(self) -> None:
        """Write everything the next iteration depends on."""
        if self.checkpoint.path is None:
            return
        if not all(bool(torch.isfinite(value).all()) for value in self.average.values()):
            raise self._diverged("some weights are not finite after")
        moments: dict[str, Tensor] = {}
        for name, p in self.trained.items():
            for key, value in self.optimiser.state.get(p, {}).items():
                moments[f"optimiser.{key}.{name}"] = value
        tensors = {
            **{f"net.{name}": value for name, value in self.net.state_dict().items()},
            **{f"ema.{name}": value for name, value in self.average.items()},
            **moments,
            "history": torch.tensor(self.history, dtype=torch.float64),
        }
        header = {"kind": "training", **self.model, "identity": self.identity, "seconds": self.seconds}
        files.write(self.checkpoint.path, tensors, header)

    def restore(self) -> None:
        """Take up the run in the file, if it is this run; begin the file if there is none."""
        path = self.checkpoint.path
        if path is None or not path.exists():
            self.save()  # a place that cannot be written to is known before the first iteration
            return
        tensors, header = files.read(path)
        if header.get("kind") != "training":
            raise StoreError(f"{path} holds a network, not a training run; choose another path")
        theirs = header.get("identity")
        theirs = theirs if isinstance(theirs, dict) else {}
        differ = [key for key in self.identity if theirs.get(key) != self.identity[key]]
        if differ:
            told = ", ".join(f"{k} {theirs.get(k)!r} (now {self.identity[k]!r})" for k in differ if k != "parameters")
            raise StoreError(
                f"{path} is another run: {told or 'a network of another shape'}; "
                "use the same settings, or another path, or delete the file"
            )
        try:
            self._take(tensors)
        except (KeyError, RuntimeError) as error:
            raise StoreError(f"{path} does not hold the state of this run ({error}); delete it") from error
        self.seconds = float(header.get("seconds", 0.0))

    @torch.no_grad()
    def _take(self, tensors: dict[str, Tensor]) -> None:
        state = {name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")}
        self.net.load_state_dict(state)
        moments: dict[int, dict[str, Tensor]] = {}
        for k, name in enumerate(self.trained):
            self.average[name].copy_(tensors[f"ema.{name}"])
            found = {key: tensors.get(f"optimiser.{key}.{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
            if found["step"] is not None:
                moments[k] = {key: value for key, value in found.items() if value is not None}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.history = tensors["history"].tolist()
