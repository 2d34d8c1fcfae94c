"""Training a noise predictor (DDPM) or a denoiser, with a report that shows whether anything was learned.

A run can stop between any two iterations and go on later to the same bits: random numbers and the order of the data are
functions of the seed and the iteration (``streams``), and the file of a run holds all else that the next one depends on.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from casal.errors import DivergedError, DtypeError, SettingError, ShapeError, StoreError, whole_number
from casal.lab.nets.checkpoint import read, require_safetensors, write
from casal.lab.nets.evaluation import LevelLosses, compare_ddpm, compare_denoiser, noise_range
from casal.lab.nets.events import beside, signal_and_noise
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.streams import (
    ITERATION,
    MODULE,
    ORDER,
    SPLIT,
    address,
    normal_like,
    seeded,
    stream,
    using_threads,
)
from casal.progress import progress_bar

Loss = Callable[[Tensor, torch.Generator], Tensor]
"""(batch, generator) -> the loss of the batch, a number to differentiate."""

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(batch, generator) -> a batch of the same law and shape."""

Callback = Callable[[int, float], None]
"""(iteration counted from 1, its loss); whatever it raises stops the run between two iterations."""


@dataclass(frozen=True)
class TrainingReport:
    """The outcome of ``train_ddpm`` or ``train_denoiser``.

    Attributes:
        held_out: Losses per noise level of the averaged network, beside the Gaussian's.
        history: (iterations,) float64, the training loss of every batch.
        iterations: How many updates the network has seen.
        resumed_from: Iteration at which this call took over; 0 for an unbroken run.
        seconds: Spent on training, over all calls.
    """

    held_out: LevelLosses
    history: Tensor
    iterations: int
    resumed_from: int
    seconds: float

    @property
    def levels(self) -> Tensor:
        """(L,) noise levels of the comparison."""
        return self.held_out.levels

    @property
    def network(self) -> Tensor:
        """(L,) held-out loss of the network."""
        return self.held_out.network

    @property
    def gaussian(self) -> Tensor:
        """(L,) held-out loss of the Gaussian."""
        return self.held_out.gaussian

    @property
    def ratio(self) -> Tensor:
        """(L,) network / Gaussian."""
        return self.held_out.ratio

    @property
    def best(self) -> float:
        """The smallest ratio."""
        return self.held_out.best

    @property
    def learned(self) -> bool:
        """Whether the network beats the Gaussian at some level."""
        return self.held_out.learned

    def __str__(self) -> str:
        last = self.history[-max(1, len(self.history) // 10) :].mean()
        head = f"{self.iterations} iterations in {self.seconds:.1f} s, training loss {last:.4g} over the last tenth"
        return f"{head}\nheld-out loss per noise level\n{self.held_out}"


def train_ddpm(
    net: nn.Module,
    data: Tensor,
    betas: Tensor,
    *,
    epochs: float | None = None,
    iterations: int | None = None,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    warm_up: float = 0.02,
    ema: float | None = None,
    seed: int = 0,
    held_out: float | Tensor = 0.1,
    levels: int | Sequence[float] = 10,
    augment: Augment | None = None,
    autocast: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 500,
    threads: int = 1,
    progress: bool = True,
    callback: Callback | None = None,
) -> TrainingReport:
    """min over eps of  E |eps(alpha_t x + sigma_t w, t) - w|^2,   t uniform on 0 .. T-1,  w ~ N(0, I).

    Trains ``net`` in place; at the end it holds the averaged weights, in evaluation mode. Every random number is a
    function of ``seed`` and the iteration. If ``checkpoint`` names a file, the run is kept in it and an interrupted run
    (Ctrl-C, kill, power) is continued by the same call, to the same bits as an unbroken one on the same machine.

    Args:
        net: ``net(x, t)`` with x (n, *event) and t (n,) whole numbers.
        data: (n, *event), standardised.
        betas: (T,), as in ``torch.linspace(1e-4, 0.02, 1000)``.
        epochs: Passes over the data; give this or ``iterations``.
        iterations: Updates.
        batch_size: Points per update.
        learning_rate: The largest; it follows a cosine after a warm-up.
        weight_decay: Decoupled (AdamW); 0 is Adam.
        warm_up: Share of the iterations in which the learning rate grows.
        ema: Decay of the averaged weights, as 0.999; 0 for none; None for the rate max(1e-3, 10 / (i + 10)), which does
            not lag in short runs.
        seed: Of everything random.
        held_out: Share of the data kept for the report, or data of their own (m, *event).
        levels: Noise levels of the report: how many, or which t.
        augment: (batch, generator) -> batch, for data with symmetries.
        autocast: bfloat16 where torch thinks it safe.
        checkpoint: The file to keep the run in.
        checkpoint_every: Iterations between two savings.
        threads: Of torch, while training; part of what decides the bits. Small networks are fastest with one.
        progress: Show a bar if there is a terminal.
        callback: Called with (iteration, loss) after every update.

    Raises:
        DivergedError: The loss is no longer a number.
        StoreError: The checkpoint belongs to another run, or cannot be read or written.
        KeyboardInterrupt: After Ctrl-C; the state was saved, and the message says how to continue.

    Reference: Ho, Jain, Abbeel 2020, eq. 14; paper, appendix on algorithms.
    """
    with using_threads(whole_number(threads, "threads", 1)):
        alpha, sigma = signal_and_noise(betas)
        train, test = _points(net, data, held_out, seed)
        gaussian = Gaussian.fit(train, dtype=train.dtype)
        alpha_t, sigma_t = alpha.to(train), sigma.to(train)

        def loss(x: Tensor, generator: torch.Generator) -> Tensor:
            t = torch.randint(len(alpha_t), (len(x),), generator=generator).to(x.device)
            w = normal_like(x, generator)
            error: Tensor = net(beside(alpha_t[t], x) * x + beside(sigma_t[t], x) * w, t) - w
            return error.float().square().mean()

        size = whole_number(batch_size, "batch_size", 1)
        updates = _iterations(epochs, iterations, len(train), size)
        settings = Settings(updates, size, learning_rate, weight_decay, warm_up, ema, autocast, seed, threads)
        kept = _checkpoint(checkpoint, checkpoint_every, train, augment, loss="ddpm", betas=fingerprint(sigma))
        trained = run(net, train, loss, settings, kept, progress=progress, callback=callback, augment=augment)
        return _report(trained, compare_ddpm(net, gaussian, test, betas, levels=levels, seed=seed))


def train_denoiser(
    net: nn.Module,
    data: Tensor,
    sigmas: Sequence[float] = (0.01, 3.0),
    *,
    epochs: float | None = None,
    iterations: int | None = None,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.01,
    warm_up: float = 0.05,
    ema: float | None = None,
    seed: int = 0,
    held_out: float | Tensor = 0.1,
    levels: int | Sequence[float] = 8,
    augment: Augment | None = None,
    autocast: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    threads: int = 1,
    progress: bool = True,
    callback: Callback | None = None,
) -> TrainingReport:
    """min over D of  E |D(x + sigma w, sigma) - x|^2 / mse_G(sigma),   log sigma uniform,  w ~ N(0, I).

    mse_G is the error of the Gaussian denoiser of the same data (``Gaussian.mse``): the loss is 1 at every noise level
    for a denoiser that knows mean and covariance only, and each level counts alike.

    Args:
        net: ``net(y, sigma)`` with y (n, *event) and sigma (n,). For fields ``train, test = split(data)``, then
            ``WienerUNet.fit(train)``, trained with ``held_out=test``: its filter must not know the held-out points.
        data: (n, *event), of unit size.
        sigmas: The range of noise levels.
        epochs: Passes over the data; give this or ``iterations``.
        iterations: Updates.
        batch_size: Points per update.
        learning_rate: The largest; it follows a cosine after a warm-up.
        weight_decay: Decoupled (AdamW); 0 is Adam.
        warm_up: Share of the iterations in which the learning rate grows.
        ema: As in ``train_ddpm``.
        seed: Of everything random.
        held_out: Share of the data kept for the report, or data of their own (m, *event).
        levels: Noise levels of the report: how many, or which sigmas.
        augment: (batch, generator) -> batch, such as ``random_flips(-1, -2)``.
        autocast: bfloat16 for the network; the Wiener filter keeps its digits.
        checkpoint: The file to keep the run in, and to continue from, as in ``train_ddpm``.
        checkpoint_every: Iterations between two savings.
        threads: Of torch, while training; part of what decides the bits. Small networks are fastest with one.
        progress: Show a bar if there is a terminal.
        callback: Called with (iteration, loss) after every update.

    Raises:
        DivergedError: The loss is no longer a number.
        StoreError: The checkpoint belongs to another run, or cannot be read or written.
        KeyboardInterrupt: After Ctrl-C; the state was saved, and the message says how to continue.
    """
    with using_threads(whole_number(threads, "threads", 1)):
        low, high = noise_range(sigmas)
        train, test = _points(net, data, held_out, seed)
        gaussian = Gaussian.fit(train, dtype=train.dtype)

        def loss(x: Tensor, generator: torch.Generator) -> Tensor:
            u = torch.rand(len(x), generator=generator).to(x)
            sigma = (u * math.log(high / low) + math.log(low)).exp()
            error: Tensor = net(x + beside(sigma, x) * normal_like(x, generator), sigma) - x
            return (error.float().square().flatten(1).mean(1) / gaussian.mse(sigma).float()).mean()

        size = whole_number(batch_size, "batch_size", 1)
        updates = _iterations(epochs, iterations, len(train), size)
        settings = Settings(updates, size, learning_rate, weight_decay, warm_up, ema, autocast, seed, threads)
        kept = _checkpoint(checkpoint, checkpoint_every, train, augment, loss="denoiser", sigmas=[low, high])
        trained = run(net, train, loss, settings, kept, progress=progress, callback=callback, augment=augment)
        return _report(trained, compare_denoiser(net, gaussian, test, levels=levels, sigmas=(low, high), seed=seed))


def split(data: Tensor, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The points to train on and the points to hold out, chosen at random.

    For whatever is fitted before the training, such as a Wiener filter, so that it does not see the held-out points.

    Args:
        data: (n, *event).
        share: Of the points, to hold out.
        seed: Of the choice.
    """
    kept = round(share * len(data)) if 0 < share < 1 else 0
    if not 0 < kept < len(data) - 1:
        raise SettingError(
            f"held_out = {share} of {len(data)} points holds out {kept}; it must leave at least one point to "
            "hold out and two to train on: use a share such as 0.1, or give held-out data"
        )
    order = torch.randperm(len(data), generator=stream(whole_number(seed, "seed", 0), SPLIT)).to(data.device)
    return data[order[kept:]], data[order[:kept]]


def _points(net: nn.Module, data: Tensor, held_out: float | Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Training and held-out points, checked, in the dtype and on the device of the network."""
    like = next(net.parameters(), None)
    if like is None:
        raise SettingError(f"{type(net).__name__} has no parameters to train")
    _check(data, "data")
    if not isinstance(held_out, Tensor):
        train, test = split(data.detach(), held_out, seed)
        return train.to(like), test.to(like)
    _check(held_out, "held_out")
    if held_out.shape[1:] != data.shape[1:]:
        raise ShapeError(f"data {tuple(data.shape)} and held_out {tuple(held_out.shape)} hold different events")
    return data.detach().to(like), held_out.detach().to(like)


def _check(data: Tensor, name: str) -> None:
    if data.ndim < 2 or not len(data):
        raise ShapeError(f"{name} has shape {tuple(data.shape)}; expected (n, *event)")
    if not data.is_floating_point():
        raise DtypeError(f"{name} is {data.dtype}; use floating point numbers")
    finite = torch.isfinite(data).flatten(1).all(1)
    if not bool(finite.all()):
        raise SettingError(f"{int((~finite).sum())} of {len(data)} points of {name} are not finite; remove them first")


def _iterations(epochs: float | None, iterations: int | None, n: int, batch_size: int) -> int:
    if (epochs is None) == (iterations is None):
        raise SettingError(f"give either epochs or iterations, got epochs={epochs} and iterations={iterations}")
    if iterations is not None:
        return whole_number(iterations, "iterations", 1)
    if epochs is None or not 0 < epochs < math.inf:
        raise SettingError(f"epochs must be a finite number > 0, got {epochs}")
    return math.ceil(epochs * n / batch_size)


def _checkpoint(
    path: str | Path | None, every: int, train: Tensor, augment: Augment | None, **identity: Any
) -> Checkpoint:
    name = None if augment is None else getattr(augment, "__qualname__", type(augment).__qualname__)
    known = {**identity, "data": fingerprint(train) if path is not None else None, "augment": name}
    return Checkpoint(None if path is None else Path(path), whole_number(every, "checkpoint_every", 1), known)


def _report(trained: tuple[Tensor, int, float], losses: LevelLosses) -> TrainingReport:
    history, resumed, seconds = trained
    return TrainingReport(losses, history, len(history), resumed, seconds)


def random_flips(*dims: int) -> Augment:
    """x -> x mirrored along each of ``dims`` with probability 1/2, for every point by itself.

    Args:
        *dims: Dimensions of a batch (n, *event), as in ``random_flips(-1, -2)`` for the two axes of a field.
    """

    def flips(x: Tensor, generator: torch.Generator) -> Tensor:
        for dim in dims:
            chosen = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
            x = torch.where(chosen.view(-1, *(1,) * (x.ndim - 1)), x.flip(dim), x)
        return x

    flips.__qualname__ = f"random_flips{dims}"
    return flips


@dataclass(frozen=True)
class Settings:
    """How to train.

        rate(i) = learning_rate * min(1, (i + 1) / (warm_up n)) * (1 + cos(pi i / n)) / 2,      i = 0 .. n - 1
        average <- average + r (weights - average),   r = max(1e-3, 10 / (i + 10)), or 1 - ema

    Attributes:
        iterations: n.
        batch_size: Points of a batch.
        learning_rate: The largest.
        weight_decay: Decoupled, as in AdamW; 0 is Adam.
        warm_up: Share of the iterations in which the rate grows.
        ema: A fixed decay such as 0.999, 0 for no average; None for the rate above, which does not lag in short runs.
        autocast: Run the network in bfloat16 where torch thinks it safe.
        seed: Of everything random.
        threads: Of torch, because they decide how sums round.
    """

    iterations: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warm_up: float
    ema: float | None
    autocast: bool
    seed: int
    threads: int = 1

    def __post_init__(self) -> None:
        whole_number(self.iterations, "iterations", 1)
        whole_number(self.batch_size, "batch_size", 1)
        whole_number(self.seed, "seed", 0)
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        if not 0 <= self.warm_up <= 1:
            raise SettingError(f"warm_up is a share of the iterations, between 0 and 1, got {self.warm_up}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise SettingError(f"ema must be None or a decay with 0 <= ema < 1, such as 0.999, got {self.ema}")

    def rate(self, i: int) -> float:
        """Learning rate of iteration i."""
        rise = min(1.0, (i + 1) / max(1.0, self.warm_up * self.iterations))
        return self.learning_rate * rise * (1 + math.cos(math.pi * i / self.iterations)) / 2

    def average_rate(self, i: int) -> float:
        """How far the average moves towards the weights after iteration i."""
        return max(1e-3, 10 / (i + 10)) if self.ema is None else 1 - self.ema


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
        write(self.checkpoint.path, tensors, header)

    def restore(self) -> None:
        """Take up the run in the file, if it is this run; begin the file if there is none."""
        path = self.checkpoint.path
        if path is None or not path.exists():
            self.save()  # a place that cannot be written to is known before the first iteration
            return
        tensors, header = read(path)
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
        require_safetensors()
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


class Interrupt:
    """Whether Ctrl-C was pressed.

    Attributes:
        asked: It was.
    """

    asked = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if there was one."""
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def patient_interrupt() -> Iterator[Interrupt]:
    """The first Ctrl-C inside only sets ``asked``, for the loop to see between two steps; a second one stops at once.

    Outside the main thread, where signals do not arrive, nothing changes.
    """
    state = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else already looks after it
        yield state
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if state.asked:
            signal.default_int_handler(number, frame)
        state.asked = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before)
