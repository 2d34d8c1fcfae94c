"""azula: its denoisers as targets, and our targets as its denoisers.

azula describes a model by a schedule t -> (alpha_t, sigma_t), t from 1 (noise) to 0 (data), and a denoiser
E[x0 | x_t] on x_t = alpha_t x0 + sigma_t noise. Both are all that a row of a table needs:

    score(x, t) = (alpha_t denoiser(x, t).mean - x) / sigma_t^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from casal.checks import Init, whole_number
from casal.constraints import Constraint
from casal.errors import SettingError, ShapeError
from casal.targets import Network as Timed
from casal.targets import (
    Table,
    Target,
    along,
    below_least_level,
    checked,
    gaussian_start,
    implicit_rows,
    next_values,
    noise_level,
    noise_share,
)

HALVINGS = 60
"""Halvings of the interval of times that contains a noise level."""


def from_azula(
    denoiser: Any,
    *,
    steps: int,
    shape: int | Sequence[int],
    start: float = 1.0,
    stop: float = 0.0,
    eta: float = 0.0,
    init: Init | None = None,
    denoise_last: bool = False,
    condition: Mapping[str, Any] | None = None,
    time: str = "auto",
    dtype: torch.dtype = torch.float32,
) -> Target:
    """An azula ``Denoiser`` as a target, whose rows are those of azula's ``DDIMSampler``:

        x_s = alpha_s x0_hat + sigma_s sqrt(1 - eta tau) (x_t - alpha_t x0_hat) / sigma_t + sigma_s sqrt(eta tau) w,
        tau = 1 - (alpha_t sigma_s / (alpha_s sigma_t))^2,   x0_hat = denoiser(x_t, t).mean,

    at the same times. eta = 0 is its ``EulerSampler`` too, eta = 1 its ``DDPMSampler``. Run with
    ``casal.Unconstrained()`` from the same start it gives the same samples.

    Args:
        denoiser: An azula denoiser: anything with ``schedule(t) -> (alpha_t, sigma_t)`` that returns a posterior with a
            ``mean`` when it is called as ``denoiser(x, t, **condition)``.
        steps: Steps from ``start`` to ``stop``.
        shape: Shape of one sample.
        start: First time.
        stop: Last time. The samples keep the noise sigma_stop of the schedule, as azula's do.
        eta: Share of the variance of ancestral noise in [0, 1], as azula means it.
        init: Starting points, or a callable (n, generator) -> points; by default those of azula, normal numbers of
            variance alpha^2 + sigma^2.
        denoise_last: Whether the last step goes to x0_hat instead of ``stop``, so that no noise is left.
        condition: What the denoiser is called with besides: names to tensors (n, ...), one row per chain.
        time: How the denoiser wants t: "scalar" (0-d), "batch" (n,), or "auto" to find out.
        dtype: Dtype of the starting points.
    """
    schedule = getattr(denoiser, "schedule", None)
    if not callable(denoiser) or not callable(schedule):
        raise SettingError(f"from_azula takes an azula Denoiser, which has a schedule, got {type(denoiser).__name__}")
    model = _Model(denoiser, schedule, time)
    times = torch.linspace(start, stop, whole_number(steps, "steps", 1) + 1, dtype=torch.float64)
    alpha, sigma = model.levels(times)
    if not bool((sigma / alpha).diff().lt(0).all()):
        raise SettingError(f"the noise must fall from t = {start:g} to t = {stop:g}; it does not for this schedule")
    after = (next_values(alpha[:-1], 1.0), next_values(sigma[:-1], 0.0)) if denoise_last else (alpha[1:], sigma[1:])
    share = math.sqrt(noise_share(eta, "eta"))
    table = Table(*implicit_rows(alpha[:-1], sigma[:-1], *after, share), times[:-1], alpha=alpha[:-1], sigma=sigma[:-1])
    spread = math.hypot(float(alpha[0]), float(sigma[0]))
    return Target(
        model.score,
        table,
        gaussian_start(shape, spread, dtype) if init is None else init,
        denoise=model.denoise,
        finest=model.finest,
        name="azula",
        condition=checked(condition),
    )


class _Model:
    """Score and denoiser of an azula denoiser."""

    def __init__(
        self, denoiser: Callable[..., Any], schedule: Callable[[Tensor], tuple[Tensor, Tensor]], time: str
    ) -> None:
        self.denoiser, self.schedule = denoiser, schedule
        self.network = Timed(self._mean, "denoiser", time=time)
        ends = self.levels(torch.tensor([0.0, 1.0], dtype=torch.float64))
        self.finest, self.coarsest = (float(v) for v in ends[1] / ends[0])
        self.time_of = lru_cache(maxsize=4096)(self._time_of)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Model, (self.denoiser, self.schedule, self.network.form)

    def _mean(self, x: Tensor, t: Tensor, **given: Tensor) -> Tensor:
        mean: Tensor = self.denoiser(x, t, **given).mean
        return mean

    def levels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """alpha and sigma at some times, in float64."""
        alpha, sigma = self.schedule(t.to(torch.float64))
        return alpha.to(torch.float64), sigma.to(torch.float64)

    def score(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        alpha, sigma = (along(v, x) for v in self.levels(t))
        return (alpha * self.network(x, t, **given) - x) / sigma.square()

    def denoise(self, y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        """From x = alpha_t y at the time where sigma_t / alpha_t = sigma."""
        level = noise_level(sigma, y)
        if level.ndim:
            t = self._halved(level)
        else:
            t = torch.tensor(self.time_of(float(level)), dtype=torch.float64, device=y.device)
        alpha, _ = self.levels(t)
        clean = self.network(along(alpha, y) * y, t, **given)
        return below_least_level(level, self.finest, y, clean)

    def _time_of(self, level: float) -> float:
        return float(self._halved(torch.tensor(level, dtype=torch.float64)))

    def _halved(self, level: Tensor) -> Tensor:
        """The times in [0, 1] where sigma_t / alpha_t is nearest to some levels."""
        wanted = level.clamp(self.finest, self.coarsest)
        low, high = torch.zeros_like(wanted), torch.ones_like(wanted)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            alpha, sigma = self.levels(middle)
            above = sigma / alpha > wanted
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2


# ---------------------------------------------------------------------------------------------------- the other way


def as_azula(target: Target, constraint: Constraint | None = None) -> Any:
    """A diffusion or flow target as an azula ``Denoiser``, so that azula's samplers run it.

    Its schedule has the noise levels of the target's table: the first at t = 1, the last at t = 0, the others equally
    spaced between them, and logarithms of alpha and sigma interpolated between rows. So a sampler with one step fewer
    than there are levels visits exactly these.

    With a constraint the clean estimate is projected at every call: ``forward`` returns P(E[x0 | x_t]). That is
    ``casal.Projected`` on the estimate: it promises neither the distribution nor, before the end, that samples lie in
    the set. Nothing is remembered from call to call, so that samplers that look twice (Heun) or back work too. Samplers
    end at the smallest noise of the schedule, so finish with ``denoiser.finish(x)``:

        denoiser = as_azula(target, constraint)
        sampler = azula.sample.HeunSampler(denoiser, steps=32)
        z = denoiser.finish(sampler(sampler.init((n, *shape))))

    which is P(E[x0 | x]) at that noise, in float64, one evaluation more. These samples lie in the set.

    Args:
        target: A target with noise levels and a denoiser. Its condition, if it has one, goes along with n chains; other
            conditions are keywords of the sampler, ``sampler(x, label=label)``.
        constraint: A set in the space of the samples; None for none.

    Returns:
        An ``azula.denoise.Denoiser``.
    """
    if target.denoise is None or target.table.alpha is None or target.table.sigma is None:
        raise SettingError(
            f"{target.name} has no noise levels and no denoiser, which azula needs; give a diffusion or flow model"
        )
    if target.log_weight is not None:
        raise SettingError(f"azula's samplers ignore the soft term of {target.name} (casal.tilted)")
    return _denoiser_class()(target, constraint, _Schedule(target.table.alpha, target.table.sigma))


class _Schedule:
    """Noise levels of a table, from t = 1 to t = 0."""

    def __init__(self, alpha: Tensor, sigma: Tensor) -> None:
        kept = torch.cat([torch.ones(1, dtype=torch.bool), (sigma / alpha).diff() < 0])  # correctors stay at a level
        self.log_alpha, self.log_sigma = alpha[kept].log().flip(0), sigma[kept].log().flip(0)
        if len(self.log_alpha) < 2:
            raise SettingError("azula's samplers need a table with at least two noise levels; this one has one")

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        at = t.to(torch.float64) * (len(self.log_alpha) - 1)
        below = at.floor().long().clamp(0, len(self.log_alpha) - 2)
        share = at - below
        return tuple(  # type: ignore[return-value]
            torch.lerp(logs.to(t.device)[below], logs.to(t.device)[below + 1], share).exp().to(t.dtype)
            for logs in (self.log_alpha, self.log_sigma)
        )


@lru_cache(maxsize=1)
def _denoiser_class() -> Any:
    """The class, made when azula is there: it derives from azula's own."""
    try:
        from azula.denoise import Denoiser, DiracPosterior
    except ImportError as error:
        raise SettingError(f"as_azula needs azula ({error}); install it with: pip install azula") from error

    class TargetDenoiser(Denoiser):  # type: ignore[misc]
        """A target as an azula denoiser."""

        def __init__(self, target: Target, constraint: Constraint | None, schedule: _Schedule) -> None:
            super().__init__()
            self.target, self.constraint, self.schedule = target, constraint, schedule

        def forward(self, x_t: Tensor, t: Tensor, **kwargs: Tensor) -> Any:
            """P(E[x0 | x_t]), or E[x0 | x_t] without a constraint."""
            clean = self._estimate(x_t, t, kwargs)
            return DiracPosterior(mean=clean if self.constraint is None else self.constraint.project(clean))

        def finish(self, x: Tensor, **kwargs: Tensor) -> Tensor:
            """The samples: the estimate at the last noise level, in the set; float64 if there is a set."""
            with torch.no_grad():
                clean = self._estimate(x, torch.zeros((), dtype=x.dtype, device=x.device), kwargs)
                return clean if self.constraint is None else self.constraint.project(clean.to(torch.float64))

        def _estimate(self, x: Tensor, t: Tensor, kwargs: Mapping[str, Tensor]) -> Tensor:
            assert self.target.denoise is not None
            given = {**self.target.condition, **kwargs}
            for name, value in given.items():
                if len(value) != len(x):
                    raise ShapeError(f"{name} has {len(value)} rows for {len(x)} points; give one row per point")
            alpha, sigma = self.schedule(t)
            return self.target.denoise(x / along(alpha, x), sigma / alpha, **given)

    return TargetDenoiser
