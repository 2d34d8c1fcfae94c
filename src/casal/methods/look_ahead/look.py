"""The look ahead: mean and covariance of f(x0), given the noisy point x = x0 + s noise.

One call of the denoiser D, and one product with its derivative J = dD/dx for every row and probe:

    C        = s^2 J                                          the covariance of x0 given x
    N_i      = grad f_i(D),   G_i = J^T N_i                   slopes in x0, and of the expected f in x
    mean_i   = f_i(D) + tr(f_i'' C) / 2
    linear   = s^2 N G^T                                      covariance to first order
    bent_ij  = tr(f_i'' C f_j'' C) / 2                        what the bends add to it

Traces are means over a few fixed probes u of random signs, common to all chains: tr(B) = mean u.(B u).

A row that is a norm goes through a power (Wilson and Hilferty): |x0|^2 is skewed, its cube root nearly Gaussian. With
M and V its mean and variance, f becomes |x0|^(2/3) - R^(2/3), of mean M^(1/3) (1 - V / (9 M^2)) - R^(2/3), and its
slopes are multiplied by (2/3) M^(-2/3).

A soft term t(x0) of the target (``casal.tilted``) is quadratic here, t(D) + g.e + e.H e / 2 with e ~ N(0, C). It acts
through few directions: those of the Lanczos process of H in the inner product of C, n_1 ~ g, n_(j+1) ~ H C n_j, with
n_i.C n_j = 1 if i = j and else 0. They are further rows f_j = n_j.(x0 - D), of mean zero, and

    t = t(D) + tilt.f - f.stiff f / 2,    tilt = (sqrt(g.C g), 0, ...),    stiff_ij = -(C n_i).H (C n_j)

with stiff cut to its positive part: where t bends upwards it counts as straight.

Where there are many linear equations, each chain takes the product with J for a few of them, and the slopes are the
mean over the chains that are looked from together; rows that bend, bounds and soft terms keep a product each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from casal.devices import eigh, seen
from casal.errors import SettingError
from casal.methods.look_ahead.features import Features
from casal.methods.problem import Problem

FLOOR = 0.2
"""Least variance of a row, in units of the median of the chains: a network may give a variance of zero or less."""

LEAST = 1e-6
"""Least eigenvalue of the covariance, each row in units of the variance that a denoiser of slope one would give it.

Rows may be in any units: a mass in Pa and an energy in Pa^2."""

MOST_SKEWED = 0.3
"""Largest correction of the cube root of a norm."""

ROOT_STEPS = 12
"""Products with J for a draw of its covariance."""

SMALL_SLOPE = 1e-4
"""Eigenvalues of J below which a draw loses variance: deviations of a hundredth of the noise level."""

SPENT = 1e-9
"""Share of the variance along H C n_j that must be new for it to count as a further direction of the soft term."""

EVEN = 1e-3
"""Share of its gradient by which that of a quadratic term may miss H (x - y), by rounding."""

SAME = 1e-9
"""Share of a vector by which it may miss a multiple of another one."""


class Looks(NamedTuple):
    """What was seen, chain by chain.

    Attributes:
        estimate: D, (n, *latent).
        slopes: G, (n, m, d).
        values: f(D), (n, m).
        shifts: tr(f'' C) / 2, one for each probe, (n, p, m).
        linear: Covariance to first order, (n, m, m).
        bent: What the bends add, (n, m, m).
        largest: s^2 |N|^2 of every row, (n, m); of the soft term the largest of the others.
        log_area: log sqrt(det N N^T) in decoded space, (n,); zero where it is constant.
        level: t(D) of the soft term, (n,); zero if there is none.
        tilt: (n, r).
        stiff: (n, r, r).
    """

    estimate: Tensor
    slopes: Tensor
    values: Tensor
    shifts: Tensor
    linear: Tensor
    bent: Tensor
    largest: Tensor
    log_area: Tensor
    level: Tensor
    tilt: Tensor
    stiff: Tensor


class Ahead(NamedTuple):
    """What a step needs to know of f(x0) given x: it counts as Gaussian.

    Attributes:
        slopes: G, the slopes of the mean in x, (n, m, d).
        mean: (n, m).
        linear: The part of the covariance that goes with the slopes, (n, m, m).
        bent: The rest of it.
        factor: By which the slopes of every row were multiplied, (n, m).
        tilt: Of the soft term, whose rows come last, (n, r).
        stiff: (n, r, r).
    """

    slopes: Tensor
    mean: Tensor
    linear: Tensor
    bent: Tensor
    factor: Tensor
    tilt: Tensor
    stiff: Tensor


class Derivative:
    """The denoiser at some points, and products with its derivative there; each counts as one evaluation."""

    def __init__(self, problem: Problem, x: Tensor, s: float) -> None:
        self._context = problem
        with torch.enable_grad():
            self._leaf = x.detach().requires_grad_()
            self._out = problem.denoise(self._leaf, s)
        if not self._out.requires_grad:
            raise SettingError(
                f"autograd cannot differentiate through the denoiser of {problem.target.name}, and LookAhead needs its "
                "derivative; call the network without no_grad and detach, or use SplitGibbs"
            )
        self.estimate = self._out.detach()

    def pull(self, v: Tensor) -> Tensor:
        """J^T v, (n, d) float64, for v (n, d) or one vector for all (d,)."""
        self._context.usage.add_scores(len(self._leaf))
        right = v.expand(len(self._leaf), -1).reshape(self._out.shape).to(self._out.dtype)
        (found,) = torch.autograd.grad(self._out, self._leaf, right, retain_graph=True)
        return found.flatten(1).to(torch.float64)

    def inverse_root(self, w: Tensor) -> Tensor:
        """J^(-1/2) w, (n, d) float64, for w (n, d): so that s J J^(-1/2) w has the covariance C = s^2 J.

        By the Lanczos process, whose basis V from w has V^T J V = T: |w| V T^(-1/2) e_1. It ends where V is complete.
        Eigenvalues of T that are negative, which a network may have, count for nothing.
        """
        size = torch.linalg.vector_norm(w.to(torch.float64), dim=1, keepdim=True)
        basis, images, row = list[Tensor](), list[Tensor](), w.to(torch.float64) / size
        for _ in range(min(ROOT_STEPS, w.shape[1])):
            basis.append(row)
            images.append(self.pull(row))
            row = images[-1]
            for _ in range(2):  # rounding
                row = row - sum((v * row).sum(1, keepdim=True) * v for v in basis)
            left = torch.linalg.vector_norm(row, dim=1, keepdim=True)
            new = left > SPENT * torch.linalg.vector_norm(images[-1], dim=1, keepdim=True)
            row = torch.where(new, row / left.clamp_min(torch.finfo(left.dtype).tiny), 0.0)
        V = torch.stack(basis, 1)
        values, axes = eigh(_symmetric(V @ torch.stack(images, 2)))
        factor = torch.where(values > 0.0, values.clamp_min(SMALL_SLOPE).rsqrt(), 0.0)
        return size * (V.mT @ (axes @ (factor * axes[:, 0])[..., None]))[..., 0]


def probes(count: int, problem: Problem) -> Tensor:
    """(count, d): random signs, the same in every run."""
    size = torch.Size(problem.latent).numel()
    stream = torch.Generator().manual_seed(size)
    signs = torch.randint(0, 2, (count, size), generator=stream) * 2 - 1
    return signs.to(device=problem.like.device, dtype=torch.float64)


def look(problem: Problem, features: Features, x: Tensor, s: float, signs: Tensor) -> Looks:
    """Look ahead from points x (n, *latent) at the noise level s.

    Args:
        problem: Model, set and decoder.
        features: f.
        x: Noisy points.
        s: Noise level.
        signs: Probes (p, d); used where f bends.
    """
    model = Derivative(problem, x, s)
    clean = model.estimate
    values, normals = features.values(clean), features.slopes(clean)
    slopes = _pulled(model, normals)
    shifts, bent = _bends(model, features, clean, s, signs) if features.curved else _straight(values)
    soft = _soft(model, features.term, clean, s, features.rank)
    rows = normals.square().sum(2)
    most = rows.amax(1, keepdim=True) if features.count else torch.ones_like(soft.level)[:, None]
    largest = s**2 * torch.cat([rows, most.expand(-1, features.rank)], 1)
    normals, slopes = torch.cat([normals, soft.normals], 1), torch.cat([slopes, soft.slopes], 1)
    linear = s**2 * _symmetric(normals @ slopes.mT) + torch.diag_embed(pad(soft.spent, (features.count, 0)))
    more, area = (0, features.rank), features.log_area(clean)
    return Looks(
        clean,
        slopes,
        pad(values, more),
        pad(shifts, more),
        linear,
        pad(bent, (*more, *more)),
        largest,
        torch.zeros_like(soft.level) if area is None else area,
        soft.level,
        soft.tilt,
        soft.stiff,
    )


def _pulled(model: Derivative, normals: Tensor) -> Tensor:
    """J^T N, (n, m, d), a product for every row."""
    return torch.stack([model.pull(normals[:, i]) for i in range(normals.shape[1])], 1) if normals.shape[1] else normals


class Soft(NamedTuple):
    """The soft term to second order.

    Attributes:
        level: t(D), (n,).
        tilt: (n, r).
        stiff: (n, r, r), positive semidefinite.
        normals: n_j, (n, r, d).
        slopes: J^T n_j.
        spent: One where there is no direction left, (n, r); its row is zero and its variance counts as one.
    """

    level: Tensor
    tilt: Tensor
    stiff: Tensor
    normals: Tensor
    slopes: Tensor
    spent: Tensor


def _soft(model: Derivative, term: Callable[[Tensor], Tensor] | None, clean: Tensor, s: float, rank: int) -> Soft:
    n, flat = len(clean), clean.flatten(1).to(torch.float64)
    nothing = flat.new_zeros(n, rank)
    if term is None:
        wide = flat.new_zeros(n, 0, flat.shape[1])
        return Soft(flat.new_zeros(n), nothing, flat.new_zeros(n, 0, 0), wide, wide, nothing)
    with torch.enable_grad():
        leaf = clean.detach().requires_grad_()
        value = term(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)

        def bend(v: Tensor) -> Tensor:
            """H v, (n, d)."""
            along = (gradient.flatten(1) * v.to(gradient.dtype)).sum()
            if not along.requires_grad:
                return torch.zeros_like(v)
            (found,) = torch.autograd.grad(along, leaf, retain_graph=True, allow_unused=True)
            return torch.zeros_like(v) if found is None else found.flatten(1).to(torch.float64)

        normals, spreads, bends, spent = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        row = gradient.detach().flatten(1).to(torch.float64)
        known = row.new_zeros(n)  # variance along H C n_j that the directions so far have
        for _ in range(rank):
            spread = s**2 * model.pull(row)
            square = (row * spread).sum(1)
            live = (square > SPENT * known) & (square > 0.0)
            scale = torch.where(live, square.clamp_min(torch.finfo(square.dtype).tiny).rsqrt(), 0.0)[:, None]
            normals.append(scale * row)
            spreads.append(scale * spread)
            bends.append(bend(spreads[-1]))
            spent.append((~live).to(torch.float64))
            shares = [(v * bends[-1]).sum(1, keepdim=True) for v in spreads]
            known = torch.cat(shares, 1).square().sum(1)
            row = bends[-1] - sum(share * m for share, m in zip(shares, normals, strict=True))
    directions, spread_rows = torch.stack(normals, 1), torch.stack(spreads, 1)
    stiff = -_symmetric(spread_rows @ torch.stack(bends, 1).mT)
    values, axes = eigh(stiff)
    nothing = nothing.clone()
    nothing[:, 0] = (gradient.detach().flatten(1).to(torch.float64) * spreads[0]).sum(1)
    return Soft(
        value.detach().to(torch.float64),
        nothing,
        (axes * values.clamp_min(0.0)[:, None]) @ axes.mT,
        directions,
        spread_rows / s**2,
        torch.stack(spent, 1),
    )


def quadratic(term: Callable[[Tensor], Tensor], points: Tensor) -> bool:
    """Whether a soft term is quadratic, or linear: between points (k, *latent) its gradient changes by H (x - y)."""
    with torch.enable_grad():
        leaf = points.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(term(leaf).sum(), leaf, create_graph=True)
        step, bend = points - points.roll(1, 0), torch.zeros_like(points)
        if gradient.requires_grad:
            (found,) = torch.autograd.grad((gradient * step).sum(), leaf, allow_unused=True)
            bend = bend if found is None else found
    change = (gradient - gradient.roll(1, 0)).detach()
    return bool((change - bend).abs().max() <= EVEN * torch.maximum(gradient.detach().abs().max(), change.abs().max()))


def _straight(values: Tensor) -> tuple[Tensor, Tensor]:
    n, m = values.shape
    return values.new_zeros(n, 1, m), values.new_zeros(n, m, m)


def _bends(model: Derivative, features: Features, clean: Tensor, s: float, signs: Tensor) -> tuple[Tensor, Tensor]:
    """tr(f'' C) / 2 for each probe, and tr(f_i'' C f_j'' C) / 2."""
    shifts, bent = list[Tensor](), list[Tensor]()
    for u in signs:
        across = u.expand(len(clean), -1)
        spread = s**2 * model.pull(u)  # C u
        bend, bend_spread = features.bend(clean, across), features.bend(clean, spread)  # f'' u and f'' C u
        shifts.append((bend_spread @ u) / 2)
        rows = [_spread_of(model, bend[:, i], across, spread, s) for i in range(features.count)]
        bent.append(_symmetric(torch.stack(rows, 1) @ bend_spread.mT) / 2)
    return torch.stack(shifts, 1), torch.stack(bent).mean(0)


def _spread_of(model: Derivative, v: Tensor, u: Tensor, spread: Tensor, s: float) -> Tensor:
    """C v; without a product with J where v is a multiple of u, whose C u is known."""
    factor = (v * u).sum(1, keepdim=True) / u.square().sum(1, keepdim=True)
    if seen(((v - factor * u).abs().amax(1) <= SAME * v.abs().amax(1)).all()):
        return factor * spread
    return s**2 * model.pull(v)


class Moments(NamedTuple):
    """Mean and covariance of f, chain by chain; see ``Ahead``."""

    mean: Tensor
    linear: Tensor
    bent: Tensor
    factor: Tensor


def moments(seen: Looks, features: Features) -> Moments:
    """Mean and covariance of f, with what all chains know of each other: for all chains of a run.

    A variance is at least FLOOR of the median. The shift by the bends is drawn towards the median by the share of
    noise that the probes have in its spread.
    """
    linear = _positive(seen.linear, seen.largest)
    mean, bent = seen.values + _shrunk(seen.shifts), seen.bent
    factor = torch.ones_like(mean)
    if features.norm is not None and features.square is not None:
        row, square = features.norm, features.square
        variance = 4.0 * (linear + bent)[:, row, row]
        size = (2.0 * mean[:, row] + square).clamp_min(1e-3 * square)
        factor[:, row] = 2.0 / 3.0 * size ** (-2.0 / 3.0)
        skew = (variance / (9.0 * size.square())).clamp_max(MOST_SKEWED)
        mean = mean.clone()
        mean[:, row] = size ** (1.0 / 3.0) * (1.0 - skew) - square ** (1.0 / 3.0)
        both = factor[:, :, None] * factor[:, None]
        linear, bent = both * linear, both * bent
    return Moments(mean, linear, bent, factor)


def _positive(linear: Tensor, largest: Tensor) -> Tensor:
    """The covariance with its diagonal floored, and positive."""
    diagonal = linear.diagonal(dim1=1, dim2=2)
    low = FLOOR * diagonal.median(0).values.clamp_min(0.0)
    raised = linear + torch.diag_embed((low - diagonal).clamp_min(0.0))
    if not largest.shape[1]:
        return raised
    unit = torch.maximum(largest, LEAST * largest.median(0).values).clamp_min(torch.finfo(largest.dtype).tiny)
    if not bool(torch.linalg.cholesky_ex(raised - torch.diag_embed(LEAST * unit))[1].any()):
        return raised
    both = unit.sqrt()[:, :, None] * unit.sqrt()[:, None]
    values, axes = eigh(raised / both)
    return _symmetric(both * ((axes * values.clamp_min(LEAST)[:, None]) @ axes.mT))


def _shrunk(shifts: Tensor) -> Tensor:
    """Mean over the probes (n, p, m) -> (n, m), drawn towards the median of the chains by the noise of the probes."""
    mean, count = shifts.mean(1), shifts.shape[1]
    if count < 2 or len(mean) < 2:
        return mean
    noise, spread = shifts.var(1).mean(0) / count, mean.var(0)
    tiny = torch.finfo(mean.dtype).tiny
    kept = torch.where(noise > 1e-12 * spread, (1.0 - noise / spread.clamp_min(tiny)).clamp_min(0.0), 1.0)
    middle = mean.median(0).values
    return middle + kept * (mean - middle)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2
