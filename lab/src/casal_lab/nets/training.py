"""Training a noise predictor (DDPM) or a denoiser, with a report that shows whether anything was learned.

A run can stop between any two iterations and go on later to the same bits: random numbers and the order of the data
are functions of the seed and the iteration (``streams``), and the file of a run holds all else that matters.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from casal.checks import positive, whole_number
from casal.errors import DivergedError, DtypeError, SettingError, ShapeError, StoreError
from casal.sampling import progress_bar
from casal_lab.nets.checkpoint import read, write
from casal_lab.nets.evaluation import LevelLosses, compare_ddpm, compare_denoiser
from casal_lab.nets.events import beside, noise_range, signal_and_noise
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.streams import ITERATION, MODULE, ORDER, SPLIT, address, normal_like, seeded, stream, using_threads

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""(batch, generator) -> a batch of the same distribution and shape."""

Callback = Callable[[int, float], None]
"""(iteration counted from 1, its loss); whatever it raises stops the run between two iterations."""


@dataclass(frozen=True)
class TrainingReport(LevelLosses):
    """The outcome of ``train_ddpm`` or ``train_denoiser``: held-out losses of the averaged network, and the run."""

    history: Tensor  # (iterations,) float64, the training loss of every batch
    resumed_from: int  # iteration at which this call took over; 0 for an unbroken run
    seconds: float  # spent on training, over all calls

    @property
    def iterations(self) -> int:
        """How many updates the network has seen."""
        return len(self.history)

    def __str__(self) -> str:
        last = self.history[-max(1, len(self.history) // 10) :].mean()
        head = f"{self.iterations} iterations in {self.seconds:.1f} s, training loss {last:.4g} over the last tenth"
        return f"{head}\nheld-out loss per noise level\n{super().__str__()}"


def train_ddpm(net: nn.Module, data: Tensor, betas: Tensor, **options: Any) -> TrainingReport:
    """min over eps of  E |eps(alpha_t x + sigma_t w, t) - w|^2,   t uniform on 0 .. T-1,  w ~ N(0, I).

    Args:
        net: ``net(x, t)`` with x (n, *event) and t (n,) whole numbers.
        data: (n, *event), standardised.
        betas: (T,), as in ``torch.linspace(1e-4, 0.02, 1000)``.
        **options: Those of ``train``; ``levels`` are steps t.

    Reference: Ho, Jain, Abbeel 2020, eq. 14; paper, appendix on algorithms.
    """
    alpha, sigma = signal_and_noise(betas)

    def loss(gaussian: Gaussian, x: Tensor, generator: torch.Generator) -> Tensor:
        t = torch.randint(len(alpha), (len(x),), generator=generator).to(x.device)
        w = normal_like(x, generator)
        error: Tensor = net(beside(alpha.to(x)[t], x) * x + beside(sigma.to(x)[t], x) * w, t) - w
        return error.float().square().mean()

    def compare(gaussian: Gaussian, test: Tensor, **how: Any) -> LevelLosses:
        return compare_ddpm(net, gaussian, test, betas, **how)

    return train(net, data, loss, compare, {"loss": "ddpm", "betas": fingerprint(sigma)}, **options)


def train_denoiser(
    net: nn.Module, data: Tensor, sigmas: Sequence[float] = (0.01, 3.0), **options: Any
) -> TrainingReport:
    """min over D of  E |D(x + sigma w, sigma) - x|^2 / mse_G(sigma),   log sigma uniform,  w ~ N(0, I).

    mse_G is the error of the Gaussian denoiser of the same data (``Gaussian.mse``): the loss is 1 at every noise level
    for a denoiser that knows mean and covariance only, and each level counts alike.

    Args:
        net: ``net(y, sigma)`` with y (n, *event) and sigma (n,). For fields ``train, test = split(data)``, then
            ``WienerUNet.fit(train)``, trained with ``held_out=test``: its filter must not know the held-out points.
        data: (n, *event), of unit size.
        sigmas: The range of noise levels.
        **options: Those of ``train``; ``levels`` are sigmas. By default batches of 64, a learning rate of 3e-3, a
            weight decay of 0.01, 5 % warm-up, 8 levels, and a saving every 100 iterations.
    """
    low, high = noise_range(sigmas)

    def loss(gaussian: Gaussian, x: Tensor, generator: torch.Generator) -> Tensor:
        u = torch.rand(len(x), generator=generator).to(x)
        sigma = (u * math.log(high / low) + math.log(low)).exp()
        error: Tensor = net(x + beside(sigma, x) * normal_like(x, generator), sigma) - x
        return (error.float().square().flatten(1).mean(1) / gaussian.mse(sigma).float()).mean()

    def compare(gaussian: Gaussian, test: Tensor, **how: Any) -> LevelLosses:
        return compare_denoiser(net, gaussian, test, sigmas=(low, high), **how)

    usual = {"batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.01, "warm_up": 0.05, "levels": 8}
    options = {**usual, "checkpoint_every": 100, **options}
    return train(net, data, loss, compare, {"loss": "denoiser", "sigmas": [low, high]}, **options)


def train(
    net: nn.Module,
    data: Tensor,
    loss: Callable[[Gaussian, Tensor, torch.Generator], Tensor],
    compare: Callable[..., LevelLosses],
    identity: Mapping[str, Any],
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
    """What ``train_ddpm`` and ``train_denoiser`` have in common.

    Trains ``net`` in place; at the end it holds the averaged weights, in evaluation mode. Every random number is a
    function of ``seed`` and the iteration. If ``checkpoint`` names a file, the run is kept in it and an interrupted run
    (Ctrl-C, kill, power) is continued by the same call, to the same bits as an unbroken one on the same machine.

    Args:
        net: The network.
        data: (n, *event).
        loss: (Gaussian of the training data, batch, generator) -> a number to differentiate.
        compare: (Gaussian, held-out points, levels, seed) -> held-out losses.
        identity: Names the loss, so that the file of a run is not taken up by another one.
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
        levels: Noise levels of the report: how many, or which.
        augment: (batch, generator) -> batch, for data with symmetries, such as ``random_flips(-1, -2)``.
        autocast: bfloat16 where torch thinks it safe; a Wiener filter keeps its digits.
        checkpoint: The file to keep the run in.
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
        known, test = _points(net, data, held_out, seed)
        gaussian = Gaussian.fit(known, dtype=known.dtype)
        size = whole_number(batch_size, "batch_size", 1)
        updates = _iterations(epochs, iterations, len(known), size)
        settings = Settings(updates, size, learning_rate, weight_decay, warm_up, ema, autocast, seed, threads)
        run = Run(net, known, partial(loss, gaussian), augment, settings, checkpoint, checkpoint_every, identity)
        resumed = run.go(progress, callback)
        losses = compare(gaussian, test, levels=levels, seed=seed)
        return TrainingReport(**vars(losses), history=run.past(), resumed_from=resumed, seconds=run.seconds)


def split(data: Tensor, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The points to train on and the points to hold out, chosen at random.

    For whatever is fitted before the training, such as a Wiener filter, so that it does not see the held-out points.

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
    if epochs is not None:
        return math.ceil(positive(epochs, "epochs") * n / batch_size)
    return whole_number(iterations, "iterations", 1)


def random_flips(*dims: int) -> Augment:
    """x -> x mirrored along each of ``dims`` of a batch (n, *event) with probability 1/2, for every point by itself."""

    def flips(x: Tensor, generator: torch.Generator) -> Tensor:
        for dim in dims:
            chosen = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
            x = torch.where(beside(chosen, x), x.flip(dim), x)
        return x

    flips.__qualname__ = f"random_flips{dims}"
    return flips


@dataclass(frozen=True)
class Settings:
    """How to train; the names are those of ``train_ddpm``.

        rate(i) = learning_rate * min(1, (i + 1) / (warm_up n)) * (1 + cos(pi i / n)) / 2,      i = 0 .. n - 1
        average <- average + r (weights - average),   r = max(1e-3, 10 / (i + 10)), or 1 - ema

    for n iterations. The number of threads is one of the settings because it decides how sums round.
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
        whole_number(self.seed, "seed", 0)
        for name, value in (("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)):
            if not 0 <= value < math.inf:
                raise SettingError(f"{name} must be a finite number >= 0, got {value}")
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


def fingerprint(tensor: Tensor) -> str:
    """A short name for the exact bits of a tensor."""
    values = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Run:
    """A run between two iterations: network, optimiser, averaged weights, history; and its file.

    ``identity`` names everything that decides the outcome besides the settings, the data and the network: a file that
    says otherwise belongs to another run.
    """

    def __init__(
        self,
        net: nn.Module,
        data: Tensor,
        loss: Callable[[Tensor, torch.Generator], Tensor],
        augment: Augment | None,
        settings: Settings,
        path: str | Path | None,
        every: int,
        identity: Mapping[str, Any],
    ) -> None:
        self.net, self.data, self.loss, self.augment, self.settings = net, data, loss, augment, settings
        self.path, self.every = None if path is None else Path(path), whole_number(every, "checkpoint_every", 1)
        self.trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
        if not self.trained:
            raise SettingError(f"{type(net).__name__} has no parameters to train")
        self.average = {name: p.detach().clone() for name, p in self.trained.items()}
        self.optimiser = torch.optim.AdamW(
            list(self.trained.values()), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.history: list[float] = []
        self.seconds = 0.0
        self.model = {"class": type(net).__name__, "config": None}
        with suppress(TypeError, ValueError):  # a network without a configuration that JSON can hold is trained too
            self.model["config"] = json.loads(json.dumps(getattr(net, "config", None), allow_nan=False))
        self.identity = {
            **identity,
            "data": fingerprint(data) if self.path else None,
            "augment": None if augment is None else getattr(augment, "__qualname__", type(augment).__qualname__),
            **asdict(settings),
            "network": self.model,
            "parameters": {name: list(p.shape) for name, p in self.trained.items()},
            "dtypes": sorted({str(p.dtype) for p in self.trained.values()}),
        }

    @property
    def done(self) -> int:
        """Iterations so far."""
        return len(self.history)

    def go(self, progress: bool, callback: Callback | None) -> int:
        """Train the network in place, or go on training it; return the iteration this call took over at."""
        self.restore()
        resumed, total = self.done, self.settings.iterations
        begun = time.perf_counter() - self.seconds
        self.net.train()
        try:
            with (
                _patient_interrupt() as check_interrupt,
                seeded(self.settings.seed),
                progress_bar(progress, total, f"training {type(self.net).__name__}") as bar,
            ):
                bar.advance(resumed)
                for batch in batches(self.data, self.settings, resumed):
                    self.step(batch)
                    self.seconds = time.perf_counter() - begun
                    bar.advance(1)
                    try:
                        if callback is not None:
                            callback(self.done, self.history[-1])
                        check_interrupt()
                    except KeyboardInterrupt as stop:
                        self.save()
                        way_out = "nothing was kept: pass checkpoint='some/file.safetensors' to be able to continue"
                        if self.path is not None:
                            way_out = f"the run is in {self.path}: make the same call again to continue it"
                        raise KeyboardInterrupt(f"stopped after iteration {self.done} of {total}; {way_out}") from stop
                    if self.done % self.every == 0 or self.done == total:
                        self.save()
                check_interrupt()
        finally:
            with torch.no_grad():  # the network ends with the averaged weights
                for name, p in self.trained.items():
                    p.copy_(self.average[name])
            self.net.eval()
        return resumed

    def past(self) -> Tensor:
        """(iterations so far,) losses."""
        return torch.tensor(self.history, dtype=torch.float64)

    def step(self, batch: Tensor) -> None:
        """One update of weights and average."""
        i, seed = self.done, self.settings.seed
        generator = stream(seed, ITERATION, i)
        torch.default_generator.manual_seed(address(seed, MODULE, i))  # for dropout and the like
        if self.augment is not None:
            batch = self.augment(batch, generator)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(i)
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            value = self.loss(batch, generator)
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

    def save(self) -> None:
        """Write everything the next iteration depends on."""
        if self.path is None:
            return
        if not all(bool(torch.isfinite(value).all()) for value in self.average.values()):
            raise self._diverged("some weights are not finite after")
        tensors = {
            **{f"net.{name}": value for name, value in self.net.state_dict().items()},
            **{f"ema.{name}": value for name, value in self.average.items()},
            "history": self.past(),
        }
        for name, p in self.trained.items():
            for key, value in self.optimiser.state.get(p, {}).items():
                tensors[f"optimiser.{key}.{name}"] = value
        header = {"kind": "training", **self.model, "identity": self.identity, "seconds": self.seconds}
        write(self.path, tensors, header)

    def restore(self) -> None:
        """Take up the run in the file, if it is this run; begin the file if there is none."""
        path = self.path
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

    @lru_cache(maxsize=2)
    def order(epoch: int) -> Tensor:
        return torch.randperm(n, generator=stream(settings.seed, ORDER, epoch))

    for i in range(start, settings.iterations):
        epoch, offset = divmod(i * size, n)
        more = -(-(offset + size) // n)  # epochs that the batch touches
        shuffled = torch.cat([order(epoch + k) for k in range(more)])
        yield data[shuffled[offset : offset + size].to(data.device)]


@contextmanager
def _patient_interrupt() -> Iterator[Callable[[], None]]:
    """The first Ctrl-C inside waits until the function that is given is called; a second one stops at once.

    Outside the main thread, where signals do not arrive, and where somebody else handles them, nothing changes.
    """
    asked = False

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(number, frame)
        asked = True

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
