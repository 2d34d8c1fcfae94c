"""Densities that are known up to a constant, sampled by Langevin Monte Carlo (paper, eq. langevin_gradient-step).

A sampler that starts at points of density q and knows the potential f = -log p can weigh the start: it goes from q to
p through the densities q^(1-b) p^b. Without q it keeps the weights of the modes that the start happened to have. So
starts may know their density (``GaussianStart``), and ``fit_start`` recognises starting points that are Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.checks import Event, Init, StartDensity, broadcasts_to, event_shape, whole_number
from casal.errors import DtypeError, FunctionError, SettingError, ShapeError
from casal.targets.base import NO_GRADIENT, Table, Target, Tuning, checked, fitted, returned

STEPS = 1000
"""Steps where none are given."""

AUTO = "auto"
"""What stands for a setting that a pilot run is to find."""

MOST_DRAWS = 16384
"""Draws from a callable on which its density is fitted."""

MOST_COORDINATES = 64
"""Coordinates of an event up to which a density is fitted."""

ROWS_PER_PARAMETER = 20
"""Rows that each parameter of a fitted density needs."""

LEVEL = 1e-3
"""Probability that Gaussian starting points are taken for others."""

DIRECTIONS = 16
"""Random directions in which starting points are tested, besides the coordinates; the same in every run."""

DUPLICATES = 0.01
"""Share of repeated rows above which starting points are no independent draws."""


def langevin(
    grad: Callable[..., Tensor],
    *,
    steps: int = STEPS,
    step_size: float | Tensor | str = AUTO,
    init: Init | None = None,
    preconditioner: Tensor | float | str | None = None,
    potential: Callable[..., Tensor] | None = None,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Langevin dynamics on a potential f = -log p, given its gradient:

        x' = x - tau D grad f(x) + sqrt(2 tau D) w.

    With "auto" the step size, the preconditioner or both are found on a pilot run of at most 256 chains from the
    starting points (``sampling/pilot.py``): D from the curvature of f in each coordinate, tau from the largest
    curvature in units of D. Its evaluations are part of the cost of the run.

    Args:
        grad: Gradient of the potential, (n, *event) -> (n, *event).
        steps: How many steps; each costs one evaluation of ``grad``. ``HMC`` may end before.
        step_size: tau, a number or one per step, or "auto". ``HMC`` finds its own.
        init: Starting points, one for each chain, fewer that are taken in turn, or a single one; or a callable
            (n, generator) -> points; ``casal.GaussianStart`` knows its own density. None starts at an interior point of
            the set, if the set says how many coordinates there are.
        preconditioner: Diagonal D, roughly the variance of each coordinate (one over the curvature of f), or "auto".
            Or a covariance matrix of all coordinates (k, k): ``HMC`` takes it as its metric and adapts none; other
            methods take its diagonal.
        potential: f itself up to a constant, (n, *event) -> (n,), if it is known. Methods that weigh or accept moves
            by the density use it; without it the weights of separate modes are those of the starting points.
        condition: What ``grad`` and ``potential`` are called with besides, ``grad(x, **condition)``: names to tensors
            (n, ...), one row per chain; see ``docs/models.md``. Step size and preconditioner are then numbers, not
            "auto".

    >>> target = langevin(lambda x: x, steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> len(target.table)
    10
    >>> langevin(lambda x: x, steps=10, step_size="auto", init=torch.zeros(4, 2)).tune
    Tuning(step_size=True, preconditioner=False)
    """
    if not callable(grad):
        raise SettingError(f"grad must be a function (n, *event) -> (n, *event), got {type(grad).__name__}")
    if potential is not None and not callable(potential):
        raise SettingError(f"potential must be a function (n, *event) -> (n,), got {type(potential).__name__}")
    table, tune = _langevin_table(steps, step_size, preconditioner)
    gradient = Given(grad)
    return Target(
        Descent(gradient),
        table,
        FromSet() if init is None else init,
        potential=Given(potential) if potential is not None and condition else potential,
        name="langevin",
        tune=_tuned(tune, condition),
        condition=checked(condition),
    )


def energy(
    f: Callable[..., Tensor],
    *,
    steps: int = STEPS,
    step_size: float | Tensor | str = AUTO,
    init: Init | None = None,
    preconditioner: Tensor | float | str | None = None,
    condition: Mapping[str, Any] | None = None,
) -> Target:
    """Langevin dynamics on an energy-based model f, its gradient by automatic differentiation.

    Args:
        f: Energy, (n, *event) -> (n,), one number per chain; any torch function or module.
        steps: How many steps.
        step_size: tau, a number or one per step, or "auto", as in ``langevin``.
        init: Starting points, a callable (n, generator) -> points, or None, as in ``langevin``.
        preconditioner: Diagonal D, a matrix, or "auto", as in ``langevin``.
        condition: What ``f`` is called with besides, ``f(x, **condition)``, as in ``langevin``.
    """
    if not callable(f):
        raise SettingError(f"f must be a function (n, *event) -> (n,), got {type(f).__name__}")
    potential = Given(f) if condition else f
    table, tune = _langevin_table(steps, step_size, preconditioner)
    tune, score = _tuned(tune, condition), Downhill(potential)
    init = FromSet() if init is None else init
    return Target(score, table, init, potential=potential, name="energy", tune=tune, condition=checked(condition))


class FromSet:
    """Starting points that the set gives: an interior point, or projections of normal points."""

    def __call__(self, n: int, generator: torch.Generator) -> Tensor:
        raise SettingError("there is no set to start in; give one point, init=torch.zeros(d)")


class Descent:
    """The score -grad f, from the gradient of a potential."""

    def __init__(self, gradient: Callable[..., Tensor]) -> None:
        self.gradient = gradient

    def __call__(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        return -returned(self.gradient(x, **given), x, "the gradient of langevin")


class Downhill:
    """The score -grad f, from a potential by automatic differentiation."""

    def __init__(self, potential: Callable[..., Tensor]) -> None:
        self.potential = potential

    def __call__(self, x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        if torch.compiler.is_dynamo_compiling():  # a functional gradient is part of a graph; autograd's tape is not
            return -torch.func.grad(self._total)(x, given)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            total = self._total(leaf, given)
            if not total.requires_grad:
                raise FunctionError(
                    f"the energy f has no gradient at x of shape {tuple(x.shape)}: {NO_GRADIENT}. A flat density is "
                    "lambda x: 0 * x.flatten(1).sum(1)"
                )
            (gradient,) = torch.autograd.grad(total, leaf)
        return -gradient

    def _total(self, x: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        return self.potential(x, **given).sum()


def _tuned(tune: Tuning | None, condition: Mapping[str, Any] | None) -> Tuning | None:
    """What is open; SettingError for a conditional density, of which a pilot run could miss the stiffest condition."""
    if tune is not None and condition:
        raise SettingError(
            "'auto' finds one step size for all chains on a few of them, and may miss the condition whose density is "
            "stiffest; give step_size and preconditioner as numbers"
        )
    return tune


def with_settings(
    target: Target, *, step_size: float | Tensor | None = None, preconditioner: Tensor | float | None = None
) -> Target:
    """The same target with other settings of its Langevin steps, none of them open; None keeps what is there."""
    table = target.table
    if not table.static:
        raise SettingError(f"{target.name} is not a fixed density: its steps have no step size of their own")
    size = table.b if step_size is None else step_size
    diagonal = table.preconditioner if preconditioner is None else preconditioner
    return replace(target, table=_langevin_table(len(table), size, diagonal)[0], tune=None)


def _langevin_table(
    steps: int, step_size: float | Tensor | str, preconditioner: Tensor | float | str | None
) -> tuple[Table, Tuning | None]:
    """Rows (1, tau, sqrt(2 tau)) with an optional diagonal preconditioner, checked, and what is open of them."""
    steps = whole_number(steps, "steps", 1)
    tune = Tuning(_is_open(step_size, "step_size"), _is_open(preconditioner, "preconditioner"))
    tau = _numbers(float("nan") if isinstance(step_size, str) else step_size, "step_size")
    tau = tau.expand(steps) if tau.ndim == 0 else tau
    if tuple(tau.shape) != (steps,):
        raise ShapeError(f"step_size has shape {tuple(tau.shape)}; give a number or one value per step ({steps},)")
    if not tune.step_size and not _all_positive(tau):
        raise SettingError(
            f"step_size must be finite and > 0; its smallest value is {float(tau.min()):g}; 'auto' finds one"
        )
    fixed = None if isinstance(preconditioner, str) else preconditioner
    diagonal = None if fixed is None else _numbers(fixed, "preconditioner")
    square = diagonal is not None and diagonal.ndim == 2 and len(diagonal) == diagonal.shape[1]
    if diagonal is not None and not _all_positive(diagonal.diagonal() if square else diagonal):
        raise SettingError(
            f"the preconditioner is a diagonal of finite numbers > 0; its smallest is {float(diagonal.min()):g}"
        )
    time = torch.arange(steps, dtype=torch.float64)
    table = Table(torch.ones_like(tau), tau, (2 * tau).sqrt(), time, preconditioner=diagonal, static=True)
    return table, tune if tune.step_size or tune.preconditioner else None


def _is_open(value: object, name: str) -> bool:
    """Whether a setting is left to the pilot."""
    if isinstance(value, str) and value != AUTO:
        raise SettingError(f"{name} must be {AUTO!r} or made of numbers, got {value!r}")
    return isinstance(value, str)


def _numbers(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} must be {AUTO!r} or made of numbers, got {value!r}") from error


def _all_positive(values: Tensor) -> bool:
    return bool((torch.isfinite(values) & (values > 0)).all())


class Given:
    """A function of points and a condition, which gets the condition on the device and in the dtype of the points."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, /, **condition: Tensor) -> Tensor:
        return self.function(x, **fitted(condition, x))


@dataclass(frozen=True, eq=False)
class GaussianStart:
    """Starting points x = mean + std w, w ~ N(0, I), with a known density:

        log q(x) = -|(x - mean) / std|^2 / 2 - sum log std - d/2 log(2 pi).

    Args:
        shape: Shape of one sample.
        std: Standard deviation: a number, or one for each coordinate (anything that broadcasts to ``shape``).
        mean: Mean, likewise.
        dtype: Dtype of the points.

    >>> start = GaussianStart(2, std=2.0, dtype=torch.float64)
    >>> start(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    >>> start.log_density(torch.zeros(1, 2)).exp() * 8 * math.pi
    tensor([1.0000], dtype=torch.float64)
    """

    shape: int | Sequence[int]
    std: float | Sequence[float] | Tensor = 1.0
    mean: float | Sequence[float] | Tensor = 0.0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        event = event_shape(self.shape)
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise DtypeError(f"chains are floating-point numbers, got dtype={self.dtype}")
        std, mean = (_broadcast(value, name, event) for value, name in ((self.std, "std"), (self.mean, "mean")))
        if not bool((std > 0).all()):
            raise SettingError(f"std must be > 0; its smallest value is {float(std.min()):g}")
        for name, value in (("shape", event), ("std", std), ("mean", mean)):
            object.__setattr__(self, name, value)

    def __call__(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n points."""
        event, std, mean = self._parts()
        noise = torch.randn((n, *event), generator=generator, dtype=self.dtype, device=generator.device)
        return noise * std.to(noise) + mean.to(noise)

    def log_density(self, x: Tensor) -> Tensor:
        """log q at points (n, *event), (n,) float64."""
        event, std, mean = self._parts()
        wide = _events(x, event)
        whitened = ((wide - mean.to(wide)) / std.to(wide)).reshape(len(x), -1)
        log_scale = std.expand(event).log().sum().to(wide)
        return -whitened.square().sum(1) / 2 - log_scale - whitened.shape[1] / 2 * math.log(2 * math.pi)

    def score(self, x: Tensor) -> Tensor:
        """-(x - mean) / std^2."""
        event, std, mean = self._parts()
        wide = _events(x, event)
        return ((mean.to(wide) - wide) / std.to(wide).square()).to(x.dtype)

    def _parts(self) -> tuple[Event, Tensor, Tensor]:
        """Shape, std and mean as ``__post_init__`` left them."""
        assert isinstance(self.shape, tuple) and isinstance(self.std, Tensor) and isinstance(self.mean, Tensor)
        return self.shape, self.std, self.mean


@dataclass(frozen=True, eq=False)
class FittedGaussian:
    """A Gaussian N(mean, L L^T) that was fitted to starting points.

    Attributes:
        event: Shape of one sample.
        mean: (d,) float64.
        root: L, lower triangular (d, d) float64.
        covariance: "isotropic", "diagonal" or "full".
    """

    event: Event
    mean: Tensor
    root: Tensor
    covariance: str

    def log_density(self, x: Tensor) -> Tensor:
        """log q at points (n, *event), (n,) float64."""
        whitened = self.whiten(x)
        log_scale = self.root.diagonal().log().sum().to(whitened)
        return -whitened.square().sum(1) / 2 - log_scale - len(self.mean) / 2 * math.log(2 * math.pi)

    def score(self, x: Tensor) -> Tensor:
        """-(L L^T)^-1 (x - mean)."""
        whitened = self.whiten(x)
        pulled = torch.linalg.solve_triangular(self.root.to(whitened).T, whitened.T, upper=True).T
        return (-pulled).reshape(x.shape).to(x.dtype)

    def whiten(self, x: Tensor) -> Tensor:
        """L^-1 (x - mean), (n, d) float64."""
        centred = _events(x, self.event).reshape(len(x), -1) - self.mean.to(x.device)
        return torch.linalg.solve_triangular(self.root.to(centred), centred.T, upper=False).T


def fit_start(init: Init, event: Event, n: int, generator: torch.Generator) -> StartDensity | None:
    """The density of the starting points: their own if they have one, else that of a Gaussian if they are Gaussian.

    A tensor is fitted on its own rows, a callable on up to MOST_DRAWS draws from ``generator``. A callable that can
    only give n points is asked for n. Isotropic, diagonal and full covariances compete by their Bayesian information
    criterion, and the best that passes a test is returned: after whitening, skewness and excess kurtosis of every
    coordinate and of some fixed directions, the correlations and variances, and the spread of the radius are those of
    N(0, I), at level LEVEL in all (Bonferroni). None if no model passes, if there are too few rows for its parameters
    (ROWS_PER_PARAMETER for each), if rows repeat, or if events have more than MOST_COORDINATES coordinates.

    Args:
        init: Starting points, or a callable (n, generator) -> points.
        event: Shape of one sample.
        n: Chains of the run.
        generator: A random stream that nothing else uses.
    """
    if isinstance(init, StartDensity):
        return init
    if torch.Size(event).numel() > MOST_COORDINATES:
        return None
    points = init if isinstance(init, Tensor) else _draw(init, n, generator)
    if points is None or tuple(points.shape[1:]) != event or not points.is_floating_point():
        return None
    rows = points.detach().reshape(len(points), -1).to(torch.float64)
    if not bool(torch.isfinite(rows).all()) or _repeated(rows) > DUPLICATES * len(rows):
        return None
    for fit in sorted(_fits(rows, event), key=lambda fit: fit.criterion):
        if _looks_standard(fit.density.whiten(points)):
            return fit.density
    return None


def _repeated(rows: Tensor) -> int:
    """How many rows are copies of another: two that differ have different products with a random vector."""
    vector = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(rows)
    products = (rows * vector).sum(1).sort().values
    return int((products.diff() == 0).sum())


class _Fit(NamedTuple):
    """A fitted density and its Bayesian information criterion (less is better)."""

    density: FittedGaussian
    criterion: float


def _fits(rows: Tensor, event: Event) -> list[_Fit]:
    """The Gaussians of largest likelihood that the rows (n, d) are enough for."""
    n, d = rows.shape
    mean = rows.mean(0)
    centred = rows - mean
    variance = centred.square().mean(0)
    scale = rows.square().mean(0).sqrt()
    if not bool((variance.sqrt() > 1e3 * torch.finfo(rows.dtype).eps * scale).all()):
        return []
    candidates = {"isotropic": d + 1, "diagonal": 2 * d, "full": d + d * (d + 1) // 2}
    if d == 1:
        candidates = {"isotropic": 2}
    found = []
    for kind, parameters in candidates.items():
        if n < ROWS_PER_PARAMETER * parameters:
            continue
        if kind == "isotropic":
            root = torch.diag(variance.mean().sqrt().expand(d))
        elif kind == "diagonal":
            root = torch.diag(variance.sqrt())
        else:
            spread = variance.sqrt()
            factor, failed = torch.linalg.cholesky_ex((centred / spread).T @ (centred / spread) / n)
            if int(failed):
                continue
            root = spread[:, None] * factor
        density = FittedGaussian(event, mean, root, kind)
        likelihood = float(density.log_density(rows.reshape(n, *event)).sum())
        found.append(_Fit(density, parameters * math.log(n) - 2 * likelihood))
    return found


def _draw(init: Callable[[int, torch.Generator], Tensor], n: int, generator: torch.Generator) -> Tensor | None:
    """Many points from a callable, or n if it can give no others; None if it fails.

    The global random state is left as it was, for callables that use it.
    """
    for count in (MOST_DRAWS, n):
        try:
            with torch.random.fork_rng(devices=[]):
                points = init(count, generator)
        except Exception:  # whatever a foreign function raises: it cannot give so many
            continue
        if isinstance(points, Tensor) and points.ndim >= 2 and len(points) == count:
            return points
    return None


def _looks_standard(w: Tensor) -> bool:
    """Whether rows (n, d) may be draws of N(0, I), up to what whitening by fitted moments changes."""
    n, d = w.shape
    stream = torch.Generator().manual_seed(0)
    directions = torch.randn((d, DIRECTIONS if d > 1 else 0), generator=stream, dtype=torch.float64).to(w)
    along = torch.cat([w, w @ (directions / torch.linalg.vector_norm(directions, dim=0))], dim=1)
    along = (along - along.mean(0)) / along.std(0, unbiased=False)
    square = along.square()
    normal = [_skewness_deviate((square * along).mean(0), n), _kurtosis_deviate(square.square().mean(0), n)]
    squares = w.square().sum(1)
    radius = (squares.square().mean() - d * (d + 2) * (n - 1) / (n + 1)) / math.sqrt(8 * d * (d + 2) / n)
    second = w.T @ w / n
    upper = torch.triu_indices(d, d, 1)
    normal += [radius[None], second[upper[0], upper[1]] * math.sqrt(n), (second.diagonal() - 1) * math.sqrt(n / 2)]
    deviates = torch.cat(normal)
    limit = -float(torch.special.ndtri(torch.tensor(LEVEL / (2 * len(deviates)), dtype=torch.float64)))
    return bool((deviates.abs() <= limit).all())


def _skewness_deviate(skewness: Tensor, n: int) -> Tensor:
    """A standard normal number from the skewness of n normal numbers (D'Agostino 1970)."""
    y = skewness * math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    beta = 3 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    square = math.sqrt(2 * (beta - 1)) - 1
    return torch.asinh(y / math.sqrt(2 / (square - 1))) / math.sqrt(math.log(square) / 2)


def _kurtosis_deviate(kurtosis: Tensor, n: int) -> Tensor:
    """A standard normal number from the kurtosis (3 for a Gaussian) of n normal numbers (Anscombe and Glynn 1983)."""
    mean = 3 * (n - 1) / (n + 1)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (kurtosis - mean) / math.sqrt(variance)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * math.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + math.sqrt(1 + 4 / skew**2))
    ratio = (1 - 2 / a) / (1 + x * math.sqrt(2 / (a - 4)))
    cube = torch.sign(ratio) * ratio.abs().pow(1 / 3)
    return (1 - 2 / (9 * a) - cube) / math.sqrt(2 / (9 * a))


def _broadcast(value: float | Sequence[float] | Tensor, name: str, event: Event) -> Tensor:
    """A number or one for each coordinate, float64 and finite."""
    out = torch.as_tensor(value, dtype=torch.float64)
    if not broadcasts_to(out.shape, event):
        raise ShapeError(f"{name} has shape {tuple(out.shape)}, which does not broadcast to events {event}")
    if not bool(torch.isfinite(out).all()):
        raise SettingError(f"{name} must be finite; {int((~torch.isfinite(out)).sum())} of {out.numel()} are not")
    return out


def _events(x: Tensor, event: Event) -> Tensor:
    """Points (n, *event) in float64."""
    if tuple(x.shape[1:]) != event:
        raise ShapeError(f"points have shape {tuple(x.shape)}; this start has events {event}")
    return x.to(torch.float64)
