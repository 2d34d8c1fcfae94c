"""Training a noise predictor (DDPM) or a denoiser, with a report that shows whether anything was learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from casal.checks import whole_number
from casal.errors import DtypeError, SettingError, ShapeError
from casal.lab.nets.gaussian import Gaussian
from casal.lab.nets.held_out import compare_ddpm, compare_denoiser, noise_range, signal_and_noise
from casal.lab.nets.loop import Augment, Callback, run
from casal.lab.nets.report import LevelLosses, TrainingReport
from casal.lab.nets.settings import Settings
from casal.lab.nets.shapes import beside
from casal.lab.nets.state import Checkpoint, fingerprint
from casal.lab.nets.streams import SPLIT, normal_like, stream, using_threads


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
