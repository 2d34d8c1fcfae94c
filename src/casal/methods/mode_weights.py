"""The weights of modes and of components of a set: fresh draws of a mixture around them, and their exact weights.

Chains inside a set keep to their modes, so the share of chains in a mode is chance. Once the modes are found, their
weights follow from a second pass:

1. Clusters of all points that were found, cut in two as long as two Gaussians describe them better than one (EM in
   the leading principal coordinates, BIC). On a curved set also as long as they are bent.
2. A mixture g = sum_k a_k g_k of one Gaussian for each, 1.3 times as wide as the cluster, no a_k below 0.1 before they
   are scaled. On a curved set a Gaussian in the tangent space at a point c of it:

       z = c + U t - J(c)^T m   with h(z) = 0,     g_k(z) = N(t) |det(N_c^T N_z)|

   U and N span tangent and normal space. Points to which this way does not lead have density zero.
3. n independent draws of g in the set, and log g of each. Between bounds the coordinates are drawn one after the other,
   each between its bounds given those before it, else by rejection.
4. From g to p by levels g^(1-b) p^b with weights, as the tempered start goes from q to p. On the way g is replaced by a
   smooth mixture of Gaussians, whose ratio to g is the first weight.

The draws are independent, and p / g is known for each. So the weights of modes have the error of independent draws,
apart from what resampling takes away, however the modes were found. **Declined** if g misses places where chains are:
more than 1 % of them have p / g above e times the largest that is expected of draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints import log_interval_mass, truncated_normal
from casal.linalg import log_gram
from casal.methods.inside_chains import Space
from casal.methods.population import effective_size, normalised
from casal.methods.problem import Problem
from casal.methods.scales import shrunk
from casal.methods.surface import Frame, Surface

GROWING, STILL = 3.7, 3.0
"""Chains that entered a cluster minus those that left it, in standard errors, from which on its share grew, since
adaptation and in the last round. One in 200 right runs with 24 clusters is beyond the first by chance; where chains
were still on their way when adaptation ended, some ten clusters grew, and one in 80 is beyond the second."""

AXES, TRIALS, ROUNDS, MOST_PARTS = 4, 4, 30, 24
"""Principal coordinates in which a cluster is cut; starts of EM at two random points, besides one for every coordinate;
its rounds, at most; clusters, at most."""

SMALLEST = 6
"""Points of a cluster, at least."""

STEEP, OFTEN = 0.4, 0.05
"""|det(N_c^T N_z)| below which a point z is hard to reach from the tangent space at c, at 66 degrees on a circle, and
the share of such points from which on a cluster is bent."""

WIDER, MOST_VOLUME, LEAST_SHARE = 1.3, 2.6, 0.1
"""Factor of the standard deviations of a cluster; logarithm of the volume that it may add, ten dimensions' worth, or
draws become rare where p is; and the smallest share of draws."""

MISSED, ABOVE = 0.01, 1.0
"""Share of the points, and how far above all draws their log(p / g) lies, at which the mixture misses something."""

RARE, QUARTILES = 2.33, 1.349
"""Of N(0, 1): what a share of 0.01 lies above, and the distance of the quartiles."""

ATTEMPTS = 200
"""Draws for each chain, at most, until as many are in the set as there are chains."""

LEAST_EFFECTIVE = 0.02
"""Effective size of the first weights, as a share of the chains, below which the mixture does not fit the set."""


class Mixture(NamedTuple):
    """Gaussians in the coordinates y: shares (k,), means (k, r), Cholesky factors (k, r, r)."""

    share: Tensor
    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, numbers: Any, like: Tensor) -> Mixture:
        """From plain numbers."""
        return cls(*(torch.tensor(part, dtype=like.dtype, device=like.device) for part in numbers))

    def terms(self, y: Tensor) -> Tensor:
        """log a_k N_k(y) up to a constant, (n, k)."""
        found = [self._term(k, self._whitened(k, y)) for k in range(len(self.share))]
        return torch.stack(found, 1)

    def label(self, y: Tensor) -> Tensor:
        """The Gaussian that each point belongs to, (n,)."""
        return self.terms(y).argmax(1)

    def log_density(self, y: Tensor) -> Tensor:
        """log of the sum, (n,)."""
        return self.terms(y).logsumexp(1)

    def score(self, y: Tensor) -> Tensor:
        """Its gradient, (n, r)."""
        whitened = [self._whitened(k, y) for k in range(len(self.share))]
        own = torch.softmax(torch.stack([self._term(k, u) for k, u in enumerate(whitened)], 1), 1)
        total = torch.zeros_like(y)
        for k, u in enumerate(whitened):
            total -= own[:, k, None] * torch.linalg.solve_triangular(self.root[k].T, u.T, upper=True).T
        return total

    def _whitened(self, k: int, y: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root[k], (y - self.mean[k]).T, upper=False).T

    def _term(self, k: int, u: Tensor) -> Tensor:
        return self.share[k].log() - 0.5 * u.square().sum(1) - self.root[k].diagonal().log().sum()


class Fit(NamedTuple):
    """A mixture g on the set.

    Attributes:
        mixture: The smooth one, for the way to p.
        draw: So many draws of g in the set, (n, r); None if too few of those tried are in it.
        at: log g of points in the set, (n,).
        alone: Points of clusters without a chain that count.
        dropped: Those of clusters that are too small for a Gaussian.
    """

    mixture: Mixture
    draw: Callable[[int], Tensor | None]
    at: Callable[[Tensor], Tensor]
    alone: int
    dropped: int


# ---------------------------------------------------------------------------------------------------- clusters


def clusters(y: Tensor, generator: torch.Generator, bent: Callable[[Tensor], bool] | None = None) -> Tensor:
    """Clusters of points (n, r), numbered, (n,): cut in two until each is one Gaussian, and not bent.

    Args:
        y: The points.
        generator: For the starts of EM.
        bent: Whether the points with these numbers lie on a part of the set that is bent.
    """
    label, todo, count = torch.zeros(len(y), dtype=torch.long, device=y.device), [0], 1
    while todo and count < MOST_PARTS:
        own = torch.nonzero(label == todo[0]).flatten()
        upper = _cut(y[own], generator, always=bent is not None and bent(own))
        if upper is None:
            todo = todo[1:]
            continue
        label[own[upper]] = count
        todo, count = [*todo[1:], todo[0], count], count + 1
    return label


def _cut(y: Tensor, generator: torch.Generator, *, always: bool) -> Tensor | None:
    """Which of some points are in the second of two clusters, (n,); None if one Gaussian describes them as well."""
    n = len(y)
    if n < 2 * SMALLEST or not bool(torch.isfinite(y).all()):
        return None
    centred = y - y.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    some = s > 1e-6 * s[0]
    if not bool(some.any()):
        return None
    points = u[:, some][:, :AXES] * math.sqrt(n)
    q = points.shape[1]
    if n < 2 * (q + 2):
        return None
    best, chosen = math.inf if always else n * q, None
    best -= 0.0 if always else math.log(n) * (1 + q + q * (q + 1) / 2)  # what two Gaussians cost more than one
    for start in [points[:, k] > 0.0 for k in range(q)] + [_far_apart(points, generator) for _ in range(TRIALS)]:
        value, second = _two_gaussians(points, start)
        few = min(int(second.sum()), n - int(second.sum()))
        if value < best and few >= max(SMALLEST, q + 1):
            best, chosen = value, second
    return chosen


def _far_apart(points: Tensor, generator: torch.Generator) -> Tensor:
    """Which points are nearer to the second of two random ones, (n,); the second lies far from the first."""
    first = points[torch.randint(len(points), (1,), generator=generator, device=points.device)]
    far = (points - first).square().sum(1)
    other = points[_drawn(far.square(), 1, generator)]  # the fourth power: a few far away count
    return torch.cdist(points, torch.cat([first, other])).argmin(1) > 0


def _drawn(weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers (count,) in proportion to weights; all alike if none is above zero, as for points that coincide.

    Weights that are not finite count as zero.
    """
    weight = torch.where(torch.isfinite(weight), weight, 0.0).clamp_min(0.0)
    largest = weight.amax()
    weight = torch.where(largest > 0.0, weight / largest.clamp_min(torch.finfo(weight.dtype).tiny), 1.0)
    return torch.multinomial(weight, count, replacement=count > 1, generator=generator)


def _two_gaussians(points: Tensor, second: Tensor) -> tuple[float, Tensor]:
    """-2 log likelihood of two Gaussians, n q for one N(0, I), and the points of the second; by EM."""
    n, q = points.shape
    own = second.to(points)
    own = torch.stack([1.0 - own, own], 1)
    value, eye = math.inf, torch.eye(q, dtype=points.dtype, device=points.device)
    for _ in range(ROUNDS):
        size = own.sum(0).clamp_min(1e-9)
        mean = own.T @ points / size[:, None]
        away = points[:, None] - mean
        spread = torch.einsum("nk,nki,nkj->kij", own, away, away) / size[:, None, None] + 1e-6 * eye
        root = torch.linalg.cholesky(spread)
        white = torch.linalg.solve_triangular(root, away.permute(1, 2, 0), upper=False).square().sum(1).T
        term = (size / n).log() - 0.5 * white - root.diagonal(dim1=1, dim2=2).log().sum(1)
        total = term.logsumexp(1)
        own, before, value = (term - total[:, None]).exp(), value, -2.0 * float(total.sum())
        if before - value < 1e-3:
            break
    return value, own[:, 1] > 0.5


# ---------------------------------------------------------------------------------------------------- the mixture


class Found(NamedTuple):
    """Clusters of points: those large enough for a Gaussian, and how many points are alone and dropped, see ``Fit``."""

    parts: list[Tensor]
    alone: int
    dropped: int


def fit(space: Space, problem: Problem, y: Tensor, log_p: Tensor, n: int, generator: torch.Generator) -> Fit | None:
    """A mixture around points of the set; None for one cluster.

    Args:
        space: Coordinates.
        problem: The set.
        y: The points.
        log_p: log p of them. Few points count as a mode if they lie higher than chains do in the mean; others are on
            their way.
        n: How many of them are chains; these come first.
        generator: For clusters and draws.
    """
    chain = torch.arange(len(y), device=y.device) < n
    high = log_p > log_p[:n].mean()
    return (_flat if space.flat is not None else _curved)(space, problem, y, (chain, high), generator)


def covers(new: Tensor, old: Tensor) -> bool:
    """Whether points with log(p / g) ``old`` lie where draws with log(p / g) ``new`` have been.

    If log(p / g) is N(m, s^2) at draws of g, it is N(m + s^2, s^2) at draws of p, in many dimensions above all draws of
    g. So the largest that is expected there counts as seen, with s from the quartiles of the draws.
    """
    if not bool(torch.isfinite(new).all()):
        return False
    low, middle, high = torch.quantile(new, new.new_tensor([0.25, 0.5, 0.75])).tolist()
    s = (high - low) / QUARTILES
    seen = max(float(new.amax()), middle + s**2 + RARE * s)
    return float((~(old <= seen + ABOVE)).to(new).mean()) <= MISSED


def _gaussian(t: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and widened Cholesky factor of points (n, r); a covariance of few points is nearly its diagonal."""
    away = t - t.mean(0)
    covariance = shrunk(away.T @ away / max(len(t) - 1, 1), len(t), 0.9)
    least = 1e-12 * float(covariance.diagonal().amax()) + 1e-300
    eye = torch.eye(t.shape[1], dtype=t.dtype, device=t.device)
    wider = min(WIDER, math.exp(MOST_VOLUME / t.shape[1]))
    return t.mean(0), torch.linalg.cholesky(wider**2 * covariance + least * eye)


def _parts(y: Tensor, label: Tensor, known: tuple[Tensor, Tensor], dimension: int) -> Found:
    (chain, high), parts, alone, dropped = known, list[Tensor](), 0, 0
    for k in range(int(label.max()) + 1):
        own = label == k
        lonely = not bool((own & chain).any())
        if len(torch.unique(y[own], dim=0)) > max(dimension, SMALLEST // 2):
            parts.append(y[own])
            alone += lonely * int(own.sum())
        else:
            dropped += lonely * int((own & high).sum())
    return Found(parts, alone + dropped, dropped)


def _shares(parts: list[Tensor]) -> Tensor:
    total = sum(len(part) for part in parts)
    share = torch.tensor([max(len(part) / total, LEAST_SHARE) for part in parts], dtype=torch.float64)
    return (share / share.sum()).to(parts[0])


def _flat(
    space: Space, problem: Problem, y: Tensor, known: tuple[Tensor, Tensor], generator: torch.Generator
) -> Fit | None:
    parts, *counts = _parts(y, clusters(y, generator), known, y.shape[1])
    if not parts or (len(parts) < 2 and not any(counts)):
        return None
    flat, pairs = space.flat, [_gaussian(part) for part in parts]
    assert flat is not None
    mixture = Mixture(_shares(parts), torch.stack([m for m, _ in pairs]), torch.stack([root for _, root in pairs]))
    bounds = space.bounds

    def draw(k: int, count: int) -> Tensor:
        if bounds is not None:
            return _between(mixture.mean[k], mixture.root[k], bounds, count, generator)[0]
        w = torch.randn((count, y.shape[1]), generator=generator, dtype=y.dtype, device=y.device)
        found = mixture.mean[k] + w @ mixture.root[k].T
        return found[((flat.room - found @ flat.walls.T) > 0.0).all(1)]

    def at(points: Tensor) -> Tensor:
        if bounds is None:
            return mixture.log_density(points)
        mass = [_log_between(points, m, root, bounds) for m, root in zip(mixture.mean, mixture.root, strict=True)]
        return (mixture.terms(points) - torch.stack(mass, 1)).logsumexp(1)

    return Fit(mixture, lambda n: _collect(draw, mixture.share, n, generator), at, *counts)


def _between(
    mean: Tensor, root: Tensor, bounds: tuple[Tensor, Tensor], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws y = mean + L u between bounds, u_i from N(0, 1) between its bounds given u_1 ... u_(i-1)."""
    u, ends = torch.zeros((count, len(mean)), dtype=mean.dtype, device=mean.device), (bounds[0][0], bounds[1][0])
    for i in range(len(mean)):
        centre = mean[i] + u[:, :i] @ root[i, :i]
        low, high = ((end[i] - centre) / root[i, i] for end in ends)
        u[:, i] = truncated_normal(torch.zeros_like(low), 1.0, low, high, generator)
    return mean + u @ root.T, u


def _log_between(y: Tensor, mean: Tensor, root: Tensor, bounds: tuple[Tensor, Tensor]) -> Tensor:
    """log of the product of the masses between the bounds of every u_i, (n,)."""
    u = torch.linalg.solve_triangular(root, (y - mean).T, upper=False).T
    centre = mean + u @ torch.tril(root, -1).T
    low, high = ((end - centre) / root.diagonal() for end in bounds)
    return log_interval_mass(torch.zeros_like(low), 1.0, low, high).sum(1)


def _collect(draw: Callable[[int, int], Tensor], share: Tensor, n: int, generator: torch.Generator) -> Tensor | None:
    """n draws of the mixture, in a random order; None if too few of them are in the set."""
    found, asked, held = list[Tensor](), 0, 0
    while held < n and asked < ATTEMPTS * n:
        own = _drawn(share, n, generator)
        asked += n
        for k, count in enumerate(torch.bincount(own, minlength=len(share)).tolist()):
            if count:
                found.append(draw(k, count))
                held += len(found[-1])
    if held < n:
        return None
    every = torch.cat(found)
    return every[torch.randperm(held, generator=generator, device=every.device)[:n]]


# ---------------------------------------------------------------------------------------------------- on a curved set


class Chart(NamedTuple):
    """A Gaussian in the tangent space at a point of the set: frame (1 point), tangent U (r, s), normal N (r, m)."""

    frame: Frame
    tangent: Tensor
    normal: Tensor
    mean: Tensor
    root: Tensor

    def arrive(self, surface: Surface, t: Tensor) -> tuple[Tensor, Tensor]:
        """c + U t - J(c)^T m on the set, and where there is such a point."""
        at = Frame(*(part.expand(len(t), *part.shape[1:]) for part in self.frame))
        return surface.solve(at, t @ self.tangent.T)

    def log_density(self, surface: Surface, z: Tensor, J: Tensor) -> Tensor:
        """log g_k of points z with derivatives J, (n,)."""
        t = (z - self.frame.w) @ self.tangent
        back, ok = self.arrive(surface, t)
        ok = ok & ((back - z).abs().amax(1) < 1e-6 * (1.0 + z.abs().amax(1)))
        white = torch.linalg.solve_triangular(self.root, (t - self.mean).T, upper=False)
        value = -0.5 * white.square().sum(0) - self.root.diagonal().log().sum()
        if J.shape[1]:
            value = value + torch.linalg.slogdet(J @ self.normal)[1] - 0.5 * log_gram(J)
        return torch.where(ok, value, -torch.inf)


def _curved(
    space: Space, problem: Problem, y: Tensor, known: tuple[Tensor, Tensor], generator: torch.Generator
) -> Fit | None:
    surface = Surface(problem.constraint, space.event)

    normals = _normals(surface.slopes(y))

    def bent(index: Tensor) -> bool:
        steep = torch.linalg.det(normals[index[_middle(y[index])]].mT @ normals[index]).abs() < STEEP
        return float(steep.to(y).mean()) > OFTEN

    parts, *counts = _parts(y, clusters(y, generator, bent), known, y.shape[1] - normals.shape[2])
    if not parts or (len(parts) < 2 and not any(counts)):
        return None
    charts, smooth = list[Chart](), list[tuple[Tensor, Tensor]]()
    for part in parts:
        frame = surface.frame(part[_middle(part)])
        tangent, normal = _axes(frame.J)
        mean, root = _gaussian((part - frame.w) @ tangent)
        charts.append(Chart(frame, tangent, normal, mean, root))
        across = ((part - frame.w) @ normal).square().mean(0).sum() + 1e-2 * root.square().sum() / len(root)
        spread = tangent @ root @ root.T @ tangent.T + across * normal @ normal.T
        smooth.append((frame.w[0] + tangent @ mean, torch.linalg.cholesky(spread)))
    share = _shares(parts)
    # the share of a smooth Gaussian is scaled so that it is g_k near its chart, whatever its width across the set
    scale = [
        root.diagonal().log().sum() - chart.root.diagonal().log().sum()
        for (_, root), chart in zip(smooth, charts, strict=True)
    ]
    scaled = share * torch.stack(scale).exp()
    mixture = Mixture(scaled, torch.stack([m for m, _ in smooth]), torch.stack([root for _, root in smooth]))

    def draw(k: int, count: int) -> Tensor:
        chart = charts[k]
        w = torch.randn((count, len(chart.mean)), generator=generator, dtype=y.dtype, device=y.device)
        z, ok = chart.arrive(surface, chart.mean + w @ chart.root.T)
        return z[ok & (surface.walls(z) <= 0.0).all(1)]

    def at(points: Tensor) -> Tensor:
        J = surface.slopes(points)
        terms = [chart.log_density(surface, points, J) for chart in charts]
        return (share.log() + torch.stack(terms, 1)).logsumexp(1)

    return Fit(mixture, lambda n: _collect(draw, share, n, generator), at, *counts)


def _middle(points: Tensor) -> Tensor:
    """The number of the point nearest to the mean, (1,)."""
    return (points - points.mean(0)).square().sum(1).argmin()[None]


def _normals(J: Tensor) -> Tensor:
    """Orthonormal bases of the normal spaces, (n, r, m)."""
    return torch.linalg.qr(J.mT)[0]


def _axes(J: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of tangent and normal space, (r, s) and (r, m), from J (1, m, r)."""
    count = J.shape[1]
    basis = (
        torch.linalg.qr(J[0].T, mode="complete")[0] if count else torch.eye(J.shape[2], dtype=J.dtype, device=J.device)
    )
    return basis[:, count:], basis[:, :count]


def first_weights(mixture: Mixture, y: Tensor, log_g: Tensor) -> Tensor | None:
    """log of the smooth mixture over g at draws y of g; None if they are too uneven."""
    weight = mixture.log_density(y) - log_g
    enough = bool(torch.isfinite(weight).all()) and effective_size(normalised(weight)) >= LEAST_EFFECTIVE * len(weight)
    return weight if enough else None
