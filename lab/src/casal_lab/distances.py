"""Distances between samples and a distribution, each with its error and the floor of sampling noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.errors import SettingError, ShapeError
from casal.methods import effective_size

ROUNDING = 1e-12

PAIRS_AT_ONCE = 2**22
"""Distances between points that ``energy_distance`` holds at a time."""

QUANTILES_PER_SAMPLE = 8
FEWEST_QUANTILES = 4096
NEWTON_STEPS = 12

Statistic = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Points x (n, d) and y (m, d), R rows of weights a (R, n) and b (R, m) -> R distances (R,)."""


@dataclass(frozen=True)
class Distance:
    """A distance between samples and a distribution, with its error and the floor of exact samples.

    Attributes:
        value: The distance.
        standard_error: Standard deviation of ``value`` over repetitions of the samples.
        floor: Mean of the same statistic between two independent exact sets of the same (effective) sizes.
        floor_sd: Its standard deviation.

    >>> print(Distance(0.03412, 0.0021, floor=0.0283, floor_sd=0.0015))
    0.034 ± 0.002 (floor 0.028)
    """

    value: float
    standard_error: float
    floor: float
    floor_sd: float

    @property
    def excess(self) -> float:
        """(value - floor) / floor_sd: below about 4, exact samples could have given this value."""
        above = self.value - self.floor
        if self.floor_sd > 0:
            return above / self.floor_sd
        return math.copysign(math.inf, above) if abs(above) > ROUNDING else 0.0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        size = self.standard_error if self.standard_error > 0 else max(abs(self.value), 1e-12) / 100
        digits = max(0, -math.floor(math.log10(size)))
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f} (floor {self.floor:.{digits}f})"


def wasserstein1(
    x: Tensor,
    y: Tensor | Callable[[Tensor], Tensor],
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """Wasserstein distance of order one, for samples of one coordinate: W1 = int |F_x(v) - F_y(v)| dv.

    Args:
        x: Samples (n,) or (n, 1).
        y: Exact samples, or the quantile function of the distribution, u in (0, 1) -> value, which is put on a grid.
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.

    >>> import torch
    >>> from casal_lab.distances import wasserstein1
    >>> distance = wasserstein1(torch.linspace(0, 1, 200), torch.linspace(1, 2, 200))
    >>> round(distance.value, 3)
    1.0
    """
    rows = _points(x, "x")
    if rows.shape[1] != 1:
        raise ShapeError(f"wasserstein1 takes one coordinate per sample, got {rows.shape[1]}; try sliced_wasserstein")
    count = max(FEWEST_QUANTILES, QUANTILES_PER_SAMPLE * len(rows))
    quantiles = (torch.arange(count, dtype=torch.float64, device=rows.device) + 0.5) / count
    return _with_floor(
        _transport,
        rows,
        y(quantiles) if callable(y) else y,
        weights,
        reference_weights,
        exact=exact,
        repeats=repeats,
        generator=_generator(seed, rows),
        reference_is_law=callable(y),
    )


def sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    projections: int = 128,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """Wasserstein distance averaged over random directions: SW1 = mean over unit theta of W1(theta . x, theta . y).

    The order is one; events are flattened. Time O(P (n + m) (log + repeats)), memory O((n + m) repeats).

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        projections: Random directions P, the same for value, error and floor.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of directions and repetitions.

    >>> import torch
    >>> from casal_lab.distances import sliced_wasserstein
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> sliced_wasserstein(x, x, repeats=5).value, sliced_wasserstein(x, x + 1, repeats=5).value > 0.5
    (0.0, True)
    """
    rows = _points(x, "x")
    generator = _generator(seed, rows)
    theta = directions(rows.shape[1], whole_number(projections, "projections", 1), generator)

    def statistic(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(len(a), dtype=x.dtype, device=x.device)
        for direction in theta:
            total += _transport(x @ direction, y @ direction, a, b)
        return total / len(theta)

    return _with_floor(
        statistic, rows, y, weights, reference_weights, exact=exact, repeats=repeats, generator=generator
    )


def directions(dimension: int, count: int, generator: torch.Generator) -> Tensor:
    """Uniform unit vectors (count, d)."""
    theta = torch.randn((count, dimension), generator=generator, dtype=torch.float64, device=generator.device)
    return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


def _transport(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Area between two weighted distribution functions, for each row of weights."""
    values, order = torch.cat([x.reshape(-1), y.reshape(-1)]).sort()
    steps = torch.cat([a, -b], dim=1)[:, order]
    return torch.cumsum(steps, dim=1)[:, :-1].abs() @ values.diff()


def energy_distance(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    exact: Tensor | None = None,
    repeats: int = 40,
    seed: int = 0,
) -> Distance:
    """Energy distance, zero if and only if the distributions agree: 2 E|X - Y| - E|X - X'| - E|Y - Y'|.

    The V-statistic: pairs of a point with itself count, so the value is never negative and lies about
    E|Y - Y'| (1/n + 1/m) above the truth; the floor shows by how much. (SciPy's ``energy_distance`` is the root of
    it.) Time O((n + m)^2 (d + repeats)), memory O((n + m) repeats): the pairs are taken in blocks.

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        exact: Exact draws independent of y, for the floor.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.

    >>> import torch
    >>> from casal_lab.distances import energy_distance
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> energy_distance(x, x + 1, repeats=5).value > 0.5
    True
    """
    rows = _points(x, "x")
    return _with_floor(
        _energy,
        rows,
        y,
        weights,
        reference_weights,
        exact=exact,
        repeats=repeats,
        generator=_generator(seed, rows),
    )


def _energy(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """-s^T D s with s = (a, -b) on the points of x and y: a quadratic form, so all rows share the distances."""
    together, sign = torch.cat([x, y]), torch.cat([a, -b], dim=1)
    together = together - together.mean(0)
    total = torch.zeros(len(a), dtype=x.dtype, device=x.device)
    block = max(1, PAIRS_AT_ONCE // len(together))
    for first in range(0, len(together), block):
        pairs = torch.cdist(together[first : first + block], together)
        total -= ((sign @ pairs.T) * sign[:, first : first + block]).sum(1)
    return total.clamp_min(0.0)


def mode_weights_tv(
    samples: Tensor,
    exact_weights: Any,
    *,
    centers: Tensor | None = None,
    weights: Tensor | None = None,
    repeats: int = 2000,
    seed: int = 0,
) -> Distance:
    """Total variation of the weights of modes: TV = 1/2 sum_k |p_k - q_k|, p_k the share of samples in mode k.

    The floor is multinomial: what as many exact samples as these are worth would give.

    Args:
        samples: Labels (n,) of an integer dtype; or samples (n, *event), which take the nearest centre.
        exact_weights: The exact shares q (K,), positive numbers; normalised.
        centers: (K, *event), needed for samples that are not labels.
        weights: Weights of the samples; equal if left out.
        repeats: Repetitions for the error and the floor.
        seed: Of the repetitions.

    >>> import torch
    >>> from casal_lab.distances import mode_weights_tv
    >>> labels = torch.tensor([0] * 60 + [1] * 40)
    >>> round(mode_weights_tv(labels, [0.5, 0.5]).value, 3)
    0.1
    """
    exact = torch.as_tensor(exact_weights, dtype=torch.float64).reshape(-1).to(samples.device)
    exact = _probabilities(exact, exact)
    labels = _labels(samples, centers)
    if bool(((labels < 0) | (labels >= len(exact))).any()):
        raise SettingError(f"labels must lie in 0 ... {len(exact) - 1}, got {int(labels.min())} to {int(labels.max())}")
    w = _probabilities(weights, labels)
    share = torch.zeros_like(exact).scatter_add_(0, labels, w)
    size, generator = max(1, round(float(effective_size(w)))), _generator(seed, labels)
    floor = _variation(_multinomial(exact, size, repeats, generator), exact)
    again = _variation(_multinomial(share, size, repeats, generator), exact)
    return Distance(float(_variation(share, exact)), float(again.std()), float(floor.mean()), float(floor.std()))


def _variation(p: Tensor, q: Tensor) -> Tensor:
    return 0.5 * (p - q).abs().sum(-1)


def _labels(samples: Tensor, centers: Tensor | None) -> Tensor:
    if centers is not None:
        return torch.cdist(_points(samples, "samples"), _points(centers, "centers")).argmin(1)
    if samples.ndim != 1 or samples.is_floating_point():
        raise ShapeError(
            f"without centers the samples must be integer labels (n,), got {samples.dtype} {tuple(samples.shape)}; "
            "pass centers=(K, *event) to label samples by the nearest one"
        )
    return samples.long()


def _multinomial(law: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """Shares (repeats, K) of ``size`` draws: one binomial after the other, so the cost does not grow with size."""
    left = torch.full((repeats,), float(size), dtype=law.dtype, device=law.device)
    remaining = law.flip(0).cumsum(0).flip(0)
    found = []
    for mass, rest in zip(law, remaining, strict=True):
        chance = (mass / rest).clamp(0.0, 1.0) if float(rest) > 0 else torch.zeros_like(mass)
        count = torch.binomial(left, chance.expand_as(left).contiguous(), generator=generator)
        found.append(count)
        left = left - count
    return torch.stack(found, dim=1) / size


def classifier_test(
    x: Tensor,
    y: Tensor,
    *,
    weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
    score: Literal["accuracy", "auc"] = "accuracy",
    features: int = 128,
    folds: int = 5,
    ridge: float = 1.0,
    seed: int = 0,
) -> Distance:
    """Classifier two-sample test: its accuracy on held-out points, 1/2 if the distributions agree, 1 if they are apart.

    Logistic regression, fitted by Newton's method with a ridge, on standardised coordinates, their squares, and
    random waves cos(omega . z + phase); cross-validated. Accuracy is the mean of the two classes' hit rates, so
    unequal sizes do not matter. The floor is 1/2, its standard deviation binomial (Mann-Whitney's for the AUC) at the
    effective sizes.

    Reference: D. Lopez-Paz and M. Oquab, Revisiting classifier two-sample tests, 2017.

    Args:
        x: Samples (n, *event).
        y: Exact samples (m, *event).
        weights: Weights of x; equal if left out.
        reference_weights: Weights of y.
        score: Hit rate, or area under the curve, which is finer for small differences.
        features: Random waves.
        folds: Parts, each classified by a fit to the others.
        ridge: Penalty on the coefficients, in units of one sample.
        seed: Of waves and folds.

    >>> import torch
    >>> from casal_lab.distances import classifier_test
    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> classifier_test(x, x + 4).value > 0.95
    True
    """
    one_of(score, "score", ("accuracy", "auc"))
    x, y = _pair(x, y)
    folds = whole_number(folds, "folds", 2)
    if min(len(x), len(y)) < folds:
        raise ShapeError(f"{folds} folds need as many samples of both kinds, got {len(x)} and {len(y)}")
    generator = _generator(seed, x)
    a, b = _probabilities(weights, x), _probabilities(reference_weights, y)
    sizes = float(effective_size(a)), float(effective_size(b))
    label = torch.cat([torch.ones_like(a), torch.zeros_like(b)])
    mass = torch.cat([a, b]) * 0.5 * sum(sizes)
    inputs = _features(torch.cat([x, y]), features, generator)
    fold = torch.cat([_folds(len(x), folds, generator), _folds(len(y), folds, generator)])
    logit = torch.empty_like(label)
    for part in range(folds):
        train = fold != part
        logit[~train] = inputs[~train] @ _logistic(inputs[train], label[train], mass[train], ridge)
    return _accuracy(logit, a, b, sizes) if score == "accuracy" else _auc(logit, a, b, sizes)


def _features(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    spread = z.std(0)
    z = (z - z.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    shape = (z.shape[1], count)
    omega = torch.randn(shape, generator=generator, dtype=z.dtype, device=z.device)
    # Waves from long to short: half to twice the typical distance of two points.
    omega = omega * torch.logspace(-0.5, 0.5, count, dtype=z.dtype, device=z.device) / math.sqrt(z.shape[1])
    phase = 2.0 * math.pi * torch.rand(count, generator=generator, dtype=z.dtype, device=z.device)
    waves = torch.cos(z @ omega + phase)
    return torch.cat([torch.ones_like(z[:, :1]), z, z.square() - 1.0, waves], dim=1)


def _folds(n: int, folds: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device) % folds


def _logistic(inputs: Tensor, label: Tensor, mass: Tensor, ridge: float) -> Tensor:
    """Coefficients of the penalised fit; damped where a full Newton step would leave the quadratic's range."""
    w = inputs.new_zeros(inputs.shape[1])
    penalty = torch.full_like(w, ridge).diag()
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(inputs @ w)
        slope = inputs.T @ (mass * (p - label)) + ridge * w
        curve = (inputs.T * (mass * p * (1.0 - p))) @ inputs + penalty
        step = torch.linalg.solve(curve, slope)
        longest = float((inputs @ step).abs().max())
        w = w - step * min(1.0, 5.0 / max(longest, 1e-12))
    return w


def _accuracy(logit: Tensor, a: Tensor, b: Tensor, sizes: tuple[float, float]) -> Distance:
    right_x = float(((logit[: len(a)] > 0) * a).sum())
    right_y = float(((logit[len(a) :] <= 0) * b).sum())
    error = 0.5 * math.sqrt(right_x * (1 - right_x) / sizes[0] + right_y * (1 - right_y) / sizes[1])
    return Distance(0.5 * (right_x + right_y), error, 0.5, 0.25 * math.sqrt(1 / sizes[0] + 1 / sizes[1]))


def _auc(logit: Tensor, a: Tensor, b: Tensor, sizes: tuple[float, float]) -> Distance:
    """P(logit of x > logit of y), ties half; its error from the ranks of each class (DeLong)."""
    lx, ly = logit[: len(a)], logit[len(a) :]
    beaten, lost = _below(ly, b, lx), _below(lx, a, ly)
    value = float((a * beaten).sum())
    variance = float((a * (beaten - value).square()).sum()) / sizes[0]
    variance += float((b * (lost - (1.0 - value)).square()).sum()) / sizes[1]
    floor_sd = math.sqrt((sizes[0] + sizes[1] + 1.0) / (12.0 * sizes[0] * sizes[1]))
    return Distance(value, math.sqrt(variance), 0.5, floor_sd)


def _below(values: Tensor, mass: Tensor, at: Tensor) -> Tensor:
    """Share of weighted values below each point, ties half."""
    ordered, order = values.sort()
    total = torch.cat([mass.new_zeros(1), mass[order].cumsum(0)])
    return 0.5 * (total[torch.searchsorted(ordered, at)] + total[torch.searchsorted(ordered, at, right=True)])


def _with_floor(
    statistic: Statistic,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None,
    reference_weights: Tensor | None,
    *,
    exact: Tensor | None,
    repeats: int,
    generator: torch.Generator,
    reference_is_law: bool = False,
) -> Distance:
    """The statistic of x against y, its bootstrap error, and its floor.

    The error draws the points of x (and of y) anew with their weights. The floor draws as many points as x and y are
    worth (their effective sizes), both from y: what is left is the noise of sampling. Fresh exact draws, if given,
    take the place of x there, so that y's own peculiarities count too.

    Args:
        statistic: See ``Statistic``.
        x: Samples (n, *event).
        y: Reference (m, *event).
        weights: Weights of x (n,), not necessarily normalised; equal if left out.
        reference_weights: Those of y.
        exact: More exact draws (k, *event), independent of y.
        repeats: Bootstrap and floor repetitions.
        generator: For the repetitions.
        reference_is_law: y is a grid of the distribution itself and carries no noise.
    """
    if repeats < 2:
        raise SettingError(f"repeats must be at least 2 to give an error, got {repeats}")
    x, y = _pair(x, y)
    a, b = _probabilities(weights, x), _probabilities(reference_weights, y)
    fixed = b.expand(repeats, -1) if reference_is_law else None
    a_rows = torch.cat([a[None], _bootstrap(a, repeats, generator)])
    b_rows = torch.cat([b[None], _bootstrap(b, repeats, generator) if fixed is None else fixed])
    values = statistic(x, y, a_rows, b_rows)
    source, law = (y, b) if exact is None else (_pair(exact, y, "exact")[0], _probabilities(None, exact))
    a_rows = _shares(law, a, repeats, generator)
    b_rows = _shares(b, b, repeats, generator) if fixed is None else fixed
    floor = statistic(source, y, a_rows, b_rows)
    return Distance(float(values[0]), float(values[1:].std()), float(floor.mean()), float(floor.std()))


def _pair(x: Tensor, y: Tensor, name: str = "x") -> tuple[Tensor, Tensor]:
    """Samples and reference as rows with equally many coordinates, or ShapeError."""
    x, y = _points(x, name), _points(y, "y")
    if x.shape[1] != y.shape[1]:
        raise ShapeError(f"{name} has {x.shape[1]} coordinates per sample, y has {y.shape[1]}")
    return x, y


def _points(x: Tensor, name: str) -> Tensor:
    """(n, *event) -> (n, d) in float64, or ShapeError."""
    rows = torch.as_tensor(x).detach().to(torch.float64)
    if rows.ndim == 0 or len(rows) < 2:
        raise ShapeError(f"{name} must hold at least two samples (n, *event), got shape {tuple(rows.shape)}")
    rows = rows.reshape(len(rows), -1)
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise ShapeError(f"{bad} of {len(rows)} samples of {name} are not finite; leave them out, and say so")
    return rows


def _probabilities(weights: Tensor | None, x: Tensor) -> Tensor:
    """Weights (n,) that sum to one."""
    if weights is None:
        return torch.full((len(x),), 1.0 / len(x), dtype=torch.float64, device=x.device)
    w = torch.as_tensor(weights).detach().to(torch.float64).to(x.device)
    if tuple(w.shape) != (len(x),):
        raise ShapeError(f"{len(x)} samples need as many weights, got shape {tuple(w.shape)}")
    if not bool((w >= 0).all()) or not 0.0 < float(w.sum()) < math.inf:
        raise SettingError("weights must be finite, >= 0 and not all zero")
    return w / w.sum()


def _generator(seed: int, x: Tensor) -> torch.Generator:
    """A generator on the device of x."""
    return torch.Generator(device=x.device).manual_seed(seed)


def _counts(law: Tensor, size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """How often each index is drawn in ``size`` draws: (repeats, n)."""
    edges = torch.cumsum(law, 0)
    u = torch.rand((repeats, size), generator=generator, dtype=law.dtype, device=law.device) * edges[-1]
    chosen = torch.searchsorted(edges, u, right=True).clamp_max(len(law) - 1)
    return law.new_zeros((repeats, len(law))).scatter_add_(1, chosen, torch.ones_like(u))


def _shares(law: Tensor, weights: Tensor, repeats: int, generator: torch.Generator) -> Tensor:
    """Shares (repeats, n) of as many draws from the distribution as the weights are worth."""
    size = max(2, round(float(effective_size(weights))))
    return _counts(law, size, repeats, generator) / size


def _bootstrap(weights: Tensor, repeats: int, generator: torch.Generator) -> Tensor:
    """Points drawn anew uniformly, each with its weight."""
    counts = _counts(torch.full_like(weights, 1.0 / len(weights)), len(weights), repeats, generator)
    again = counts * weights
    # A draw that misses every chain with weight says nothing; the weights themselves stand in for it.
    again = torch.where(again.sum(1, keepdim=True) > 0, again, weights)
    return again / again.sum(1, keepdim=True)
