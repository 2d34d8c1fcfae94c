"""How a network is called, and what it predicts. Before every row of its table x = alpha x0 + sigma noise, so

    x0_hat(x)    = (x + sigma^2 score(x)) / alpha      (Tweedie: the mean of x0 given x)
    noise_hat(x) = -sigma score(x)                     (the mean of the noise given x)

and a network that predicts any of the three predicts them all. What tables of such networks share is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event, event_shape, number_of, one_of
from casal.errors import DtypeError, SettingError, ShapeError
from casal.targets.base import failed, fitted, returned, take_rows

PREDICTIONS: Mapping[str, str] = {
    "eps": "eps",
    "epsilon": "eps",
    "x0": "x0",
    "sample": "x0",
    "v": "v",
    "v_prediction": "v",
    "flow": "flow",
    "flow_prediction": "flow",
}
"""Names of what a network returns on x = alpha x0 + sigma noise, those of diffusers besides ours. "v" is
(alpha noise - sigma x0) / sqrt(alpha^2 + sigma^2), "flow" is noise - x0."""

TIMES = ("auto", "scalar", "batch")
"""Forms of the time argument: detected, a number (0-d), one number per chain (n,)."""


class Network:
    """Calls f(x, t) with t in the form that the function takes.

    "scalar" hands it a tensor without dimensions, "batch" one of shape (n,). "auto" tries the first, goes over to the
    second if the function raises or returns another shape than that of x, and remembers what worked. One chain alone
    decides nothing: there a function meant for (n,) may take a number by luck.

    Times that differ between chains (a per-chain sigma of ``denoise``) go to a "scalar" function in groups of equal
    time, one call each; say "batch" if yours takes them all at once. The rows of a condition go along as keywords, on
    the device of x; floating-point ones in its dtype.

    Args:
        function: What the user gave.
        name: For messages.
        time: One of TIMES.
        integer: Whether t is an index (int64); else it has the dtype of x.
    """

    def __init__(
        self, function: Callable[..., Tensor], name: str, *, time: str = "auto", integer: bool = False
    ) -> None:
        if not callable(function):
            raise SettingError(f"{name} must be a function {name}(x, t), got {type(function).__name__}")
        one_of(time, "time", TIMES)
        self.function, self.name, self.form, self.integer = function, name, time, integer

    def __call__(self, x: Tensor, t: Tensor, /, **condition: Tensor) -> Tensor:
        t = t.to(device=x.device, dtype=torch.int64 if self.integer else x.dtype)
        given = fitted(condition, x)
        if t.ndim == 0:
            return self._common(x, t, given)
        if len(x) > 1 and self.form == "auto":
            self._common(x[:2], t[0], take_rows(given, slice(0, 2)))  # finds the form
        return self._run(x, t, given) if self.form == "batch" else self._grouped(x, t, given)

    def _common(self, x: Tensor, t: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """All chains at one time."""
        if self.form == "scalar":
            return self._run(x, t, given)
        column = t.expand(len(x)).contiguous()
        if self.form == "batch":
            return self._run(x, column, given)
        try:
            out = self._run(x, t, given)
        except Exception as first:
            try:
                out = self._run(x, column, given)
            except Exception as second:
                if isinstance(first, ShapeError) and isinstance(second, ShapeError):
                    raise
                if str(first) == str(second):
                    raise failed(self._call(given), x, second) from second
                raise SettingError(
                    f"{self._call(given)} fails at x of shape {tuple(x.shape)} ({x.dtype}), both with t a number "
                    f"({first}) and with t of shape ({len(x)},) ({second}); fix it, or set "
                    "time='scalar' or time='batch' to see its own error"
                ) from second
            self.form = "batch"
        else:
            if len(x) > 1:
                self.form = "scalar"
        return out

    def _grouped(self, x: Tensor, t: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Chains of equal time together."""
        values, group = torch.unique(t, return_inverse=True)
        if len(values) == 1:
            return self._common(x, values[0], given)
        out = torch.empty_like(x)
        for k, value in enumerate(values):
            chains = torch.nonzero(group == k).flatten()
            out[chains] = self._run(x[chains], value, take_rows(given, chains))
        return out

    def _run(self, x: Tensor, t: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        out = returned(self.function(x, t, **given), x, self._call(given))
        if out.shape != x.shape:
            raise ShapeError(
                f"{self._call(given)} returned a tensor {tuple(out.shape)} for x {tuple(x.shape)} and t "
                f"{tuple(t.shape)}; it must return a tensor of the shape of x"
            )
        return out

    def _call(self, given: Mapping[str, Tensor]) -> str:
        """How the function is called, for messages."""
        return f"{self.name}({', '.join(['x', 't', *(f'{name}={name}' for name in given)])})"


def prediction_of(name: str, family: str, allowed: Sequence[str]) -> str:
    """What the network of a family returns: "eps", "x0", "v" or "flow", from any of the names in PREDICTIONS."""
    found = PREDICTIONS.get(name) if isinstance(name, str) else None
    if found is None or found not in allowed:
        names = ", ".join(repr(known) for known, kind in PREDICTIONS.items() if kind in allowed)
        raise SettingError(f"prediction of {family} must be one of {names}, got {name!r}")
    return found


def score_from(prediction: str, out: Tensor, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """-noise_hat / sigma, from what a network returns at x = alpha x0 + sigma noise."""
    if prediction == "eps":
        return -out / sigma
    if prediction == "x0":
        return (alpha * out - x) / sigma.square()
    if prediction == "v":
        size = (alpha.square() + sigma.square()).sqrt()
        return -(alpha / sigma * out / size) - x / size.square()
    return -(x + alpha * out) / (sigma * (alpha + sigma))


def clean_from(prediction: str, out: Tensor, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """x0_hat, likewise."""
    if prediction == "eps":
        return (x - sigma * out) / alpha
    if prediction == "x0":
        return out
    if prediction == "v":
        size = (alpha.square() + sigma.square()).sqrt()
        return (alpha * x / size - sigma * out) / size
    return (x - sigma * out) / (alpha + sigma)


def along(value: Tensor, x: Tensor) -> Tensor:
    """Reshape a number, or one number per chain, so that it multiplies x without widening its dtype."""
    if value.ndim == 0:
        return value.to(x.device)
    return value.to(x).reshape(-1, *[1] * (x.ndim - 1))


def noise_level(sigma: Tensor | float, y: Tensor) -> Tensor:
    """Check the sigma of ``denoise(y, sigma)`` and convert it to float64: a number, or one number per chain."""
    level = torch.as_tensor(sigma, dtype=torch.float64, device=y.device)
    if level.ndim and tuple(level.shape) != (len(y),):
        raise ShapeError(f"sigma has shape {tuple(level.shape)}; give a number or one per chain ({len(y)},)")
    return level


def below_least_level(level: Tensor, least: Tensor | float, y: Tensor, clean: Tensor) -> Tensor:
    """Extend E[x0 | x0 + sigma noise = y] to sigma below the least level that the network knows.

    There it is y + sigma^2 score(y) with the score of that least level: from y at sigma = 0 to ``clean``.
    """
    part = along((level / least).clamp(max=1.0).square(), y)
    return (1 - part) * y + part * clean


def next_values(values: Tensor, last: float) -> Tensor:
    """Each value replaced by the one of the next row, ``last`` at the end."""
    return torch.cat([values[1:], values.new_tensor([last])])


def implicit_rows(
    alpha: Tensor, sigma: Tensor, alpha_next: Tensor, sigma_next: Tensor, eta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (a, b, s) of the implicit sampler:

        x' = alpha' x0_hat + sqrt(sigma'^2 - s^2) noise_hat + s w,
        a = alpha' / alpha,   b = a sigma^2 - sigma sqrt(sigma'^2 - s^2),
        s = eta sigma' sqrt(1 - (alpha sigma' / (alpha' sigma))^2).

    eta = 0 is an Euler step of the probability-flow ODE, exact wherever x0_hat stays what it is; eta = 1 is ancestral
    sampling. Going to (1, 0) returns x0_hat.

    Args:
        alpha: Scale of the clean sample before each row, > 0.
        sigma: Size of the noise before each row, > 0.
        alpha_next: The scale after it.
        sigma_next: The noise after it.
        eta: Share of ancestral noise in [0, 1].

    References:
        Song, Meng and Ermon (2021), Denoising diffusion implicit models, eq. 12 and 16.
    """
    s = eta * sigma_next * (1 - (alpha * sigma_next / (alpha_next * sigma)).square()).sqrt()
    a = alpha_next / alpha
    b = sigma * (a * sigma - (sigma_next.square() - s.square()).clamp(min=0).sqrt())
    return a, b, s


def gaussian_start(
    shape: int | Sequence[int], scale: float, dtype: torch.dtype
) -> Callable[[int, torch.Generator], Tensor]:
    """(n, generator) -> scale w, w ~ N(0, I) of the given event shape."""
    event = event_shape(shape)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise DtypeError(f"chains are floating-point numbers, got dtype={dtype}")
    return partial(_noise, event=event, scale=scale, dtype=dtype)


def _noise(n: int, generator: torch.Generator, *, event: Event, scale: float, dtype: torch.dtype) -> Tensor:
    return scale * torch.randn((n, *event), generator=generator, dtype=dtype, device=generator.device)


def column(values: Any, name: str) -> Tensor:
    """Numbers (L,) as float64, L >= 1, all finite."""
    try:
        out = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} must be numbers (L,), got {type(values).__name__} ({error})") from error
    if out.ndim != 1 or not len(out):
        raise ShapeError(f"{name} has shape {tuple(out.shape)}; give at least one number in a row")
    if not bool(torch.isfinite(out).all()):
        raise SettingError(f"{name} must be finite; {int((~torch.isfinite(out)).sum())} of {len(out)} are not")
    return out


def noise_share(value: float, name: str) -> float:
    """A number in [0, 1]."""
    if not 0.0 <= number_of(value, name) <= 1.0:
        raise SettingError(f"{name} must lie in [0, 1], got {value}: 0 for the ODE, 1 for ancestral sampling")
    return float(value)
