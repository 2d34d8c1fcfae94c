"""The scheduler of a diffusers model as a table of rows.

The step of a scheduler is linear: in the states, in the outputs of the network, and in the noise. So its rows are read
off the scheduler itself. ``scheduler.step`` is run once on vectors of coefficients instead of images, with

    D = skip x + gain output          (the denoised estimate, from the prediction type)

for the network, and ``casal.targets.recursion`` finds the rows. Nothing of a scheduler's formula is typed again here,
and a scheduler that is not linear, or looks back further than rows can, is refused. Two checks follow: the rows must
repeat the scheduler's own steps on random numbers, and they must take a clean sample from one noise level to the next,

    a alpha + c + m_1 + ... + m_p = alpha'.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.errors import SettingError
from casal.targets import Recursion, Table, multistep_table, recursion

SEEDS = (1, 1 << 20)
"""First seeds of the two runs that tell noise from what is linear."""

NOISE_DTYPES = (torch.float64, torch.float32)
"""Dtypes in which a scheduler may draw its noise."""

REPEATED = 1e-4
"""Difference between a row and the scheduler's step on random numbers, in units of the state: rounding, no more."""

CARRIED = 0.1
"""Relative difference between the scale of a clean sample after a row and the one that the next row expects. DDIM has
some where the number of steps does not divide that of the training: the change of alpha in one training step."""

WAY_OUT = "use another scheduler, such as DDIMScheduler.from_config(scheduler.config)"


def _power(alpha: Tensor, sigma: Tensor) -> Tensor:
    """alpha^2 + sigma^2, which is one up to rounding where the variance is preserved."""
    power = alpha.square() + sigma.square()
    return torch.where((power - 1).abs() < 1e-6, torch.ones_like(power), power)


Prediction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(alpha, sigma) -> (skip, gain) of D = skip x + gain output, at x = alpha x0 + sigma noise."""

PREDICTIONS: Mapping[str, Prediction] = {
    "epsilon": lambda alpha, sigma: (1 / alpha, -sigma / alpha),
    "sample": lambda alpha, sigma: (torch.zeros_like(alpha), torch.ones_like(alpha)),
    "v_prediction": lambda alpha, sigma: (alpha / _power(alpha, sigma), -sigma / _power(alpha, sigma).sqrt()),
    "flow_prediction": lambda alpha, sigma: (torch.ones_like(alpha), -sigma),
}
"""What the network predicts, by diffusers' own names."""


class Readout(NamedTuple):
    """A scheduler as rows, and how the network is asked before each of them.

    Attributes:
        table: The rows. Its ``t`` is the number of the row.
        times: The second argument of the network (T,), in the dtype of the scheduler.
        scale: Factor of x in the argument of the network (T,).
        skip: Factor of x in the estimate (T,).
        gain: Factor of the output of the network in the estimate (T,).
        start: Size of the noise that chains start from.
    """

    table: Table
    times: Tensor
    scale: Tensor
    skip: Tensor
    gain: Tensor
    start: float


def read(scheduler: Any, steps: int | None, schedule: Mapping[str, Any], options: Mapping[str, Any]) -> Readout:
    """The rows of a scheduler.

    Args:
        scheduler: Of diffusers; it is copied and not changed.
        steps: ``num_inference_steps``; None if ``schedule`` says which.
        schedule: More arguments of ``set_timesteps``.
        options: More arguments of ``step``, such as eta.
    """
    name = type(scheduler).__name__
    copy = unclipped(scheduler)
    copy.set_timesteps(**({} if steps is None else {"num_inference_steps": steps}), **schedule)
    alpha, sigma = levels(copy)
    skip, gain = estimate_of(copy, alpha, sigma)
    if not bool(torch.isfinite(skip).all() and torch.isfinite(gain).all() and (gain != 0).all()):
        row = int((~torch.isfinite(skip) | ~torch.isfinite(gain) | (gain == 0)).nonzero()[0])
        raise SettingError(
            f"{name} predicts the noise where it does not determine the sample (alpha = {float(alpha[row]):.3g}, sigma "
            f"= {float(sigma[row]):.3g} at step {row}): {prediction_of(copy)!r} cannot be used with zero terminal SNR"
        )
    states, s, drawn, scale = _run(copy, skip, gain, options)
    try:
        rows = recursion(states)
        table = multistep_table(rows, s, torch.arange(len(alpha), dtype=torch.float64), alpha, sigma)
    except SettingError as error:
        raise SettingError(f"the steps of {name} cannot be read: {error}; {WAY_OUT}") from error
    _check_carried(name, rows, alpha)
    _check_repeated(name, copy, rows, s, drawn, skip, gain, options)
    start = float(getattr(copy, "init_noise_sigma", 1.0))
    return Readout(table, copy.timesteps.detach().cpu(), scale, skip, gain, start)


def unclipped(scheduler: Any) -> Any:
    """A copy that clips nothing: clipping is part of the estimate, not of the rows."""
    copy = deepcopy(scheduler)
    off = {name: False for name in ("clip_sample", "thresholding") if copy.config.get(name)}
    if off:
        copy.register_to_config(**off)
    return copy


def levels(scheduler: Any) -> tuple[Tensor, Tensor]:
    """alpha and sigma before every step, x = alpha x0 + sigma noise, (T,) float64."""
    times = scheduler.timesteps.detach().cpu()
    sigmas: Any = getattr(scheduler, "sigmas", None)
    sigma = None if sigmas is None else torch.as_tensor(sigmas).detach().cpu().to(torch.float64)[: len(times)]
    if sigma is not None and hasattr(scheduler, "precondition_outputs"):  # EDM
        return torch.ones_like(sigma), sigma
    if sigma is not None and is_flow(scheduler):
        return 1 - sigma, sigma
    if sigma is not None and hasattr(scheduler, "_sigma_to_alpha_sigma_t"):  # DPM-Solver, UniPC, DEIS
        alpha, size = scheduler._sigma_to_alpha_sigma_t(sigmas[: len(times)])  # in its own dtype: the numbers it uses
        return alpha.to(sigma), size.to(sigma)
    if sigma is not None and hasattr(scheduler, "alphas_cumprod"):  # Euler, Heun
        return torch.ones_like(sigma), sigma
    if hasattr(scheduler, "alphas_cumprod"):  # DDPM, DDIM
        abar = scheduler.alphas_cumprod.detach().cpu().to(torch.float64)[times.long()]
        return abar.sqrt(), (1 - abar).sqrt()
    if not hasattr(scheduler, "add_noise"):
        raise SettingError(f"the noise levels of {type(scheduler).__name__} are not known; {WAY_OUT}")
    one, zero = torch.ones(len(times), 1, 1, 1), torch.zeros(len(times), 1, 1, 1)
    alpha, size = (scheduler.add_noise(*pair, times).flatten().to(torch.float64) for pair in ((one, zero), (zero, one)))
    return alpha, size


def is_flow(scheduler: Any) -> bool:
    """Whether x = (1 - sigma) x0 + sigma noise, with the sigmas of the scheduler."""
    straight = hasattr(scheduler, "scale_noise") and not hasattr(scheduler, "alphas_cumprod")
    return straight or bool(scheduler.config.get("use_flow_sigmas"))


def prediction_of(scheduler: Any) -> str:
    """What the network predicts, by diffusers' name."""
    default = "flow_prediction" if is_flow(scheduler) else "epsilon"
    name = scheduler.config.get("prediction_type", default)
    if name not in PREDICTIONS:
        raise SettingError(f"prediction_type={name!r} is not known; there are {sorted(PREDICTIONS)}")
    return str(name)


def estimate_of(scheduler: Any, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """skip and gain of D = skip x + gain output, at x = alpha x0 + sigma noise."""
    if hasattr(scheduler, "precondition_outputs"):
        one, zero = torch.ones_like(sigma), torch.zeros_like(sigma)
        return scheduler.precondition_outputs(one, zero, sigma), scheduler.precondition_outputs(zero, one, sigma)
    return PREDICTIONS[prediction_of(scheduler)](alpha, sigma)


# ------------------------------------------------------------------------------------- the scheduler on coefficients


def _step(scheduler: Any, output: Tensor, t: Tensor, x: Tensor, seed: int, options: Mapping[str, Any]) -> Tensor:
    """One step of a scheduler, as the loops of diffusers take it."""
    stream = {}
    if "generator" in inspect.signature(scheduler.step).parameters:
        stream = {"generator": torch.Generator().manual_seed(seed)}
    try:
        moved: Tensor = scheduler.step(output, t, x, **stream, **options, return_dict=False)[0]
    except TypeError as error:
        raise SettingError(f"{type(scheduler).__name__}.step does not take {sorted(options)}: {error}") from error
    return moved.to(torch.float64)


def _input(scheduler: Any, x: Tensor, t: Tensor) -> Tensor:
    """What the network is shown of x."""
    shown: Tensor = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
    return shown


def _run(
    scheduler: Any, skip: Tensor, gain: Tensor, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, list[torch.dtype], Tensor]:
    """All steps on vectors of coefficients: the states, the size of the noise, its dtype, the scale of the input."""
    one, other = (deepcopy(scheduler) for _ in SEEDS)
    steps = len(skip)
    unit = torch.eye(1 + 2 * steps, dtype=torch.float64)
    states, sizes, scales, drawn = [unit[0]], list[Tensor](), list[float](), list[torch.dtype]()
    for k, t in enumerate(one.timesteps):
        output = (unit[1 + k] - skip[k] * states[k]) / gain[k]
        moved = []
        for copy, seed in zip((one, other), SEEDS, strict=True):
            scale = _input(copy, torch.ones(1, 1, 1, 1, dtype=torch.float64), t)
            moved.append(_step(copy, _image(output), t, _image(states[k]), seed + k, options).flatten())
        size, free, dtype = _noise(type(scheduler).__name__, moved, k, len(unit))
        states.append(free + size * unit[1 + steps + k])
        sizes.append(size)
        drawn.append(dtype)
        scales.append(float(scale))
    return torch.stack(states), torch.stack(sizes), drawn, torch.tensor(scales, dtype=torch.float64)


def _image(coefficients: Tensor) -> Tensor:
    """One image whose channels are the coefficients."""
    return coefficients.reshape(1, -1, 1, 1).clone()


def _noise(name: str, moved: list[Tensor], k: int, count: int) -> tuple[Tensor, Tensor, torch.dtype]:
    """The size of the noise of a step, and the step without it, from two runs with known noise."""
    first, second = moved
    if torch.equal(first, second):
        return first.new_zeros(()), first, NOISE_DTYPES[0]
    for dtype in NOISE_DTYPES:
        w, v = (_drawn(seed + k, (1, count, 1, 1), dtype).flatten() for seed in SEEDS)
        size = ((first - second) * (w - v)).sum() / (w - v).square().sum()
        if float((first - second - size * (w - v)).abs().max()) <= 1e-5 * float(size.abs()):
            return size, first - size * w, dtype
    raise SettingError(f"{name} draws its noise in a way that cannot be repeated here; {WAY_OUT}")


def _drawn(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=dtype).to(torch.float64)


# ----------------------------------------------------------------------------------------------------------- checks


def _check_carried(name: str, rows: Recursion, alpha: Tensor) -> None:
    """With exact estimates a clean sample keeps the scale that the next row expects."""
    after = rows.state * alpha + rows.clean + rows.memory.sum(1)
    off = (after[:-1] - alpha[1:]).abs() / alpha[1:].clamp_min(1e-2)
    if len(off) and float(off.max()) > CARRIED:
        row = int(off.argmax())
        raise SettingError(
            f"{name} is not understood: step {row} takes a clean sample to {float(after[row]):.4g} times its size, and "
            f"the next step expects {float(alpha[row + 1]):.4g}; {WAY_OUT}"
        )


def _check_repeated(
    name: str,
    scheduler: Any,
    rows: Recursion,
    s: Tensor,
    drawn: list[torch.dtype],
    skip: Tensor,
    gain: Tensor,
    options: Mapping[str, Any],
) -> None:
    """The rows repeat the scheduler's steps on random estimates."""
    copy, shape = deepcopy(scheduler), (1, 8, 1, 1)
    x, past = _drawn(0, shape, torch.float64), list[Tensor]()
    for k, t in enumerate(copy.timesteps):
        clean = _drawn(7 + k, shape, torch.float64)
        _input(copy, x, t)
        theirs = _step(copy, (clean - skip[k] * x) / gain[k], t, x, k, options)
        ours = rows.state[k] * x + rows.clean[k] * clean + s[k] * _drawn(k, shape, drawn[k])
        for m, before in zip(rows.memory[k], past, strict=False):
            ours = ours + m * before
        off = float((ours - theirs).abs().max() / torch.maximum(theirs.abs().max(), x.abs().max()))
        if not off <= REPEATED:
            raise SettingError(
                f"{name} takes steps that are not linear in the estimates: step {k} is off by {off:.3g} "
                f"(limit {REPEATED:g}); {WAY_OUT}"
            )
        x, past = theirs, [clean, *past]
