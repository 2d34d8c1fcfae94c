"""Mixtures of anisotropic Gaussians in many dimensions, with noise on them and restricted to a set.

    p(x) = sum_k w_k N(x; m_k, Q_k diag(lam_k) Q_k^T)

Under noise, x = x0 + sigma noise, the variances of mode k become lam_k + sigma^2 and

    E[x0 | x] = sum_k P(k | x) (m_k + Q_k diag(lam_k / (lam_k + sigma^2)) Q_k^T (x - m_k)).

On {A x = y}, {|x|^2 = R^2}, both, slabs low <= A x <= high with few rows, and boxes if Q_k = I, the weights of the
modes and the moments within them are known: see ``ModeDistribution``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy  # whose parts load when they are used: stats takes half a second
import torch
from torch import Tensor

from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal_lab.experiment import Array
from casal_lab.problems.modes import ModeDistribution
from casal_lab.problems.truncated_gaussian import TruncatedGaussian, interval_moments, interval_quantile

Axes: TypeAlias = Tensor | tuple[Tensor, Tensor] | None
"""Axes of a mode: Q, the factors of a Kronecker product, or None for the identity."""

RANK = 16
"""Axes Q with I - Q of at most this rank are multiplied as Q = I - W Z, in O(d) a point."""

SPACING, BLOCK, BLOCKS = 0.05, 256, 1000
"""Contour integrals: step in units of the width of the saddle, points evaluated at a time, and how often at most."""

SHELL = 0.05
"""Draws on spheres: half width of the shell in standard deviations of |x|^2."""

CANDIDATES, TRIALS = 2048, 1000
"""Draws by rejection: points tried at a time, and how often at most."""

SOBOL = 16
"""Slabs of several rows are integrated with 2^SOBOL points."""


class Rotation(Protocol):
    """An orthogonal Q, applied to points in rows."""

    def into(self, x: Tensor) -> Tensor:
        """x Q: coordinates along the axes."""

    def back(self, u: Tensor) -> Tensor:
        """u Q^T."""

    def matrix(self, dimension: int) -> Tensor:
        """Q, (d, d) float64."""


@dataclass(frozen=True, eq=False)
class AnisotropicMixture:
    """p(x) = sum_k w_k N(x; m_k, Q_k diag(lam_k) Q_k^T).

    Parameters are float64; functions of x (n, d) keep its dtype and can be differentiated.

    Args:
        weights: w, (m,), positive; scaled to sum to one.
        means: m_k, (m, d).
        axes: Q_k, (d, d) orthogonal, columns are the axes; None for the identity, a pair of orthogonal matrices for
            their Kronecker product (a field on a grid). Products of few reflections are found to be I minus a matrix
            of low rank and cost O(d) a point.
        variances: lam_k, (m, d), positive, in the order of the columns of Q_k.
    """

    weights: Tensor
    means: Tensor
    axes: Sequence[Axes]
    variances: Tensor
    turns: tuple[Rotation, ...] = field(init=False, repr=False)  # the axes, ready to be applied

    def __post_init__(self) -> None:
        weights, means, variances = (part.to(torch.float64) for part in (self.weights, self.means, self.variances))
        if means.ndim != 2 or variances.shape != means.shape or weights.shape != means.shape[:1]:
            shapes = f"{tuple(weights.shape)}, {tuple(means.shape)} and {tuple(variances.shape)}"
            raise ShapeError(f"a mixture needs weights (m,), means (m, d) and variances (m, d), got {shapes}")
        if len(self.axes) != len(weights):
            raise ShapeError(f"{len(weights)} modes need as many axes, got {len(self.axes)}; None is the identity")
        if not (bool((weights > 0).all()) and bool((variances > 0).all())):
            raise SettingError("weights and variances of a mixture must be > 0")
        for name, value in (("weights", weights / weights.sum()), ("means", means), ("variances", variances)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "turns", tuple(_rotation(Q, means.shape[1]) for Q in self.axes))

    @property
    def dimension(self) -> int:
        """d."""
        return self.means.shape[1]

    def covariance(self, k: int) -> Tensor:
        """Q_k diag(lam_k) Q_k^T, (d, d)."""
        Q = self.turns[k].matrix(self.dimension)
        return (Q * self.variances[k]) @ Q.T

    def denoise(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x0 | x0 + sigma noise = x] for x (n, d); sigma is a number, or one per point (n,)."""
        noise = _column(sigma, x).square()
        log_joint, parts = [], []
        for k, turn in enumerate(self.turns):
            mean, variance = self.means[k].to(x), self.variances[k].to(x)
            offset, total = turn.into(x - mean), variance + noise
            log_joint.append(self._log_joint(k, offset, total))
            parts.append(mean + turn.back(offset * (variance / total)))
        if len(parts) == 1:
            return parts[0]
        shares = torch.softmax(torch.stack(log_joint, dim=1), dim=1)
        return torch.stack([shares[:, k, None] * part for k, part in enumerate(parts)]).sum(0)

    def log_density(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        """log p(x), (n,), of x0 + sigma noise."""
        return torch.logsumexp(self._log_joints(x, sigma), dim=1) - 0.5 * self.dimension * math.log(2 * math.pi)

    def responsibilities(self, x: Tensor, sigma: Tensor | float = 0.0) -> Tensor:
        """P(mode k | x), (n, m). Their mean over samples of p on any set is W_k: a soft count without bias."""
        return torch.softmax(self._log_joints(x, sigma), dim=1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws, float64; fits ``init`` of a target."""
        mode = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        x = torch.randn((n, self.dimension), generator=generator, dtype=torch.float64)
        for k, turn in enumerate(self.turns):
            x[mode == k] = self.means[k] + turn.back(self.variances[k].sqrt() * x[mode == k])
        return x

    def restricted_to(
        self, A: Tensor | None = None, y: Tensor | None = None, square: float | None = None
    ) -> ModeDistribution:
        """The exact distribution on {A x = y} (y (r,)), on {|x|^2 = square}, or on both.

        A Gaussian on {A x = y} is Gaussian; ``sphere_moments`` gives its moments on the sphere, in the basis of its
        own axes. The density is with respect to the surface measure; on these sets it is the same as given the
        values of A x and |x|^2. Draws are exact without ``square`` and those of ``sphere_draws`` with it.
        """
        if (A is None) != (y is None) or (A is None and square is None):
            raise SettingError("give A and y together, or square, or all three")
        flats = [self._slice(k, A, y) for k in range(len(self.weights))]
        slices = flats if square is None else [part.on_sphere(square) for part in flats]

        def draw(k: int, count: int, generator: torch.Generator) -> Tensor:
            part = flats[k]
            if square is not None:
                return sphere_draws(part.mean, part.variance, square, count, generator) @ part.basis.T
            noise = torch.randn((count, self.dimension), generator=generator, dtype=torch.float64)
            return (part.mean + part.variance.sqrt() * noise) @ part.basis.T

        return ModeDistribution(
            log_masses=self.weights.log() + torch.tensor([part.log_mass for part in slices], dtype=torch.float64),
            bases=[part.basis for part in slices],
            means=torch.stack([part.mean for part in slices]),
            variances=torch.stack([part.variance for part in slices]),
            responsibilities=self.responsibilities,
            draw_mode=draw,
        )

    def restricted_to_slabs(self, A: Tensor, low: Tensor | float, high: Tensor | float) -> ModeDistribution:
        """The exact distribution on {low <= A x <= high} with few rows, up to about four; bounds may be infinite.

        h = A x is Gaussian in each mode, and x given h is Gaussian with a mean linear in h, so the moments of h on
        the box of bounds give those of x. See ``box_moments`` and, for exact draws, ``box_draws``.
        """
        A = torch.atleast_2d(A.to(torch.float64))
        low, high = (torch.as_tensor(side, dtype=torch.float64).expand(len(A)) for side in (low, high))
        centres, spreads, gains, parts = self.means @ A.T, [], [], []
        for turn, variance, centre in zip(self.turns, self.variances, centres, strict=True):
            along = turn.into(A)  # A Q
            cross = along * variance  # covariance of h and the coordinates
            spreads.append(cross @ along.T)
            gains.append(torch.linalg.solve(spreads[-1], cross))
            log_mass, shift, inner = box_moments(spreads[-1], low - centre, high - centre)
            lost = ((spreads[-1] - inner) @ gains[-1] * gains[-1]).sum(0)
            parts.append((log_mass, shift @ gains[-1], variance - lost))

        def draw(k: int, count: int, generator: torch.Generator) -> Tensor:
            noise = torch.randn((count, self.dimension), generator=generator, dtype=torch.float64)
            free = self.means[k] + self.turns[k].back(self.variances[k].sqrt() * noise)
            wanted = centres[k] + box_draws(spreads[k], low - centres[k], high - centres[k], count, generator)
            return free + self.turns[k].back((wanted - free @ A.T) @ gains[k])

        return ModeDistribution(
            log_masses=self.weights.log() + torch.tensor([log_mass for log_mass, _, _ in parts], dtype=torch.float64),
            bases=[turn.matrix(self.dimension) for turn in self.turns],
            means=torch.cat(
                [turn.into(m[None]) + part[1] for turn, m, part in zip(self.turns, self.means, parts, strict=True)]
            ),
            variances=torch.stack([variance for _, _, variance in parts]),
            responsibilities=self.responsibilities,
            draw_mode=draw,
        )

    def restricted_to_box(self, low: Tensor | float, high: Tensor | float) -> ModeDistribution:
        """The exact distribution on {low <= x <= high} for independent coordinates (all Q_k = I); has exact draws."""
        if any(Q is not None for Q in self.axes):
            raise SettingError("bounds on all coordinates have a closed form for independent ones only, axes None")
        parts = [TruncatedGaussian(m, v, low, high) for m, v in zip(self.means, self.variances, strict=True)]
        masses = torch.tensor([part.log_probability for part in parts], dtype=torch.float64)
        return ModeDistribution(
            log_masses=self.weights.log() + masses,
            bases=[None for _ in parts],
            means=torch.stack([part.means for part in parts]),
            variances=torch.stack([part.variances for part in parts]),
            responsibilities=self.responsibilities,
            draw_mode=lambda k, count, generator: parts[k].draw(count, generator),
            most_coordinates=self.dimension,
        )

    def _log_joints(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """log w_k N(x; m_k, C_k + sigma^2) + constant, (n, m)."""
        noise = _column(sigma, x).square()
        return torch.stack(
            [
                self._log_joint(k, turn.into(x - self.means[k].to(x)), self.variances[k].to(x) + noise)
                for k, turn in enumerate(self.turns)
            ],
            dim=1,
        )

    def _log_joint(self, k: int, offset: Tensor, total: Tensor) -> Tensor:
        """The same for one mode, from the offsets and variances along its axes."""
        return float(self.weights[k].log()) - 0.5 * ((offset.square() / total).sum(1) + total.log().sum(1))

    def _slice(self, k: int, A: Tensor | None, y: Tensor | None) -> _Slice:
        """Mode k on {A x = y}."""
        if A is None or y is None:
            order = self.variances[k].argsort(descending=True, stable=True)
            basis = self.turns[k].matrix(self.dimension)[:, order]
            return _Slice(0.0, basis, self.means[k] @ basis, self.variances[k, order])
        A, y = A.to(torch.float64), y.to(torch.float64)
        cross = self.turns[k].back(self.turns[k].into(A) * self.variances[k])  # A C
        factor = torch.linalg.cholesky(cross @ A.T)
        white = torch.linalg.solve_triangular(factor, (y - A @ self.means[k])[:, None], upper=False)[:, 0]
        half = torch.linalg.solve_triangular(factor, cross, upper=False)
        log_mass = -0.5 * (white @ white + len(y) * math.log(2 * math.pi)) - factor.diagonal().log().sum()
        # Along the rows of A the coordinates are fixed; across them, the axes of what is left of C.
        rows, corner = torch.linalg.qr(A.T, mode="complete")
        fixed = torch.linalg.solve_triangular(corner[: len(y)].T, y[:, None], upper=False)[:, 0]
        inner = self.turns[k].into(rows[:, len(y) :].T) * self.variances[k].sqrt()
        lost = half @ rows[:, len(y) :]
        variance, axes = torch.linalg.eigh(inner @ inner.T - lost.T @ lost)
        across = rows[:, len(y) :] @ axes.flip(1)
        return _Slice(
            float(log_mass),
            torch.cat([across, rows[:, : len(y)]], dim=1),
            torch.cat([(self.means[k] + white @ half) @ across, fixed]),
            torch.cat([variance.flip(0).clamp_min(0.0), torch.zeros_like(fixed)]),
        )


class _Slice(NamedTuple):
    """One mode on a set: the log of its mass, a basis, and moments of the coordinates."""

    log_mass: float
    basis: Tensor
    mean: Tensor
    variance: Tensor

    def on_sphere(self, square: float) -> _Slice:
        """The same Gaussian on {|x|^2 = square} as well."""
        log_density, mean, variance = sphere_moments(self.mean.numpy(), self.variance.numpy(), square)
        return _Slice(
            self.log_mass + log_density, self.basis, torch.from_numpy(mean), torch.from_numpy(variance.clip(0.0))
        )


def _column(sigma: Tensor | float, x: Tensor) -> Tensor:
    return torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1, 1)


# ------------------------------------------------------------------ axes


class _Identity:
    def into(self, x: Tensor) -> Tensor:
        return x

    def back(self, u: Tensor) -> Tensor:
        return u

    def matrix(self, dimension: int) -> Tensor:
        return torch.eye(dimension, dtype=torch.float64)


class _Reflections(NamedTuple):
    """Q = I - W Z, W (d, r), Z (r, d)."""

    W: Tensor
    Z: Tensor

    def into(self, x: Tensor) -> Tensor:
        return x - (x @ self.W.to(x)) @ self.Z.to(x)

    def back(self, u: Tensor) -> Tensor:
        return u - (u @ self.Z.T.to(u)) @ self.W.T.to(u)

    def matrix(self, dimension: int) -> Tensor:
        return torch.eye(dimension, dtype=torch.float64) - self.W @ self.Z


class _Dense(NamedTuple):
    Q: Tensor

    def into(self, x: Tensor) -> Tensor:
        return x @ self.Q.to(x)

    def back(self, u: Tensor) -> Tensor:
        return u @ self.Q.T.to(u)

    def matrix(self, dimension: int) -> Tensor:
        return self.Q


class _Kronecker(NamedTuple):
    """Q = left (x) right, on events (a, b) in row-major order."""

    left: Tensor
    right: Tensor

    def into(self, x: Tensor) -> Tensor:
        grid = x.reshape(len(x), len(self.left), len(self.right))
        return (self.left.T.to(x) @ grid @ self.right.to(x)).reshape(x.shape)

    def back(self, u: Tensor) -> Tensor:
        grid = u.reshape(len(u), len(self.left), len(self.right))
        return (self.left.to(u) @ grid @ self.right.T.to(u)).reshape(u.shape)

    def matrix(self, dimension: int) -> Tensor:
        return torch.kron(self.left, self.right)


def _rotation(axes: Axes, dimension: int) -> Rotation:
    """The cheapest form of Q. The range of I - Q is found from its products with RANK random vectors."""
    if axes is None:
        return _Identity()
    factors = [Q.to(torch.float64) for Q in (axes if isinstance(axes, tuple) else (axes,))]
    if math.prod(len(Q) for Q in factors) != dimension or any(Q.ndim != 2 or Q.shape[0] != Q.shape[1] for Q in factors):
        shapes = " and ".join(str(tuple(Q.shape)) for Q in factors)
        raise ShapeError(f"axes in {dimension} dimensions must be square matrices of that many rows, got {shapes}")
    if any(float((Q.T @ Q - torch.eye(len(Q), dtype=torch.float64)).abs().max()) > 1e-9 for Q in factors):
        raise SettingError("axes must be orthogonal: Q^T Q differs from the identity by more than 1e-9")
    if len(factors) == 2:
        return _Kronecker(*factors)
    Q = factors[0]
    rest = torch.eye(dimension, dtype=torch.float64) - Q
    probes = torch.randn((dimension, RANK), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, sizes, _ = torch.linalg.svd(rest @ probes, full_matrices=False)
    W = left[:, sizes > 1e-11 * math.sqrt(dimension)]
    Z = W.T @ rest
    return _Reflections(W, Z) if float((rest - W @ Z).abs().max()) < 1e-12 else _Dense(Q)


# ------------------------------------------------------------------ spheres


def sphere_moments(mean: Array, variance: Array, square: float) -> tuple[float, Array, Array]:
    """log density of |x|^2 at ``square`` for x ~ N(m, diag lam), and means and variances of x_i given |x|^2 = square.

    With K(z) = log E exp(z |x|^2) = sum_i -log(1 - 2 z lam_i) / 2 + z m_i^2 / (1 - 2 z lam_i), the density is

        f = 1 / (2 pi i) integral of exp(K(z) - z square) dz,

    and E[x_i; |x|^2 = square], E[x_i^2; ...] have the factors m_i / q_i and lam_i / q_i + (m_i / q_i)^2 in the
    integral, q_i = 1 - 2 z lam_i. The contour is the hyperbola

        z = z0 + i t + c (sqrt(w^2 + t^2) - w),   c = 1/2,   w = 3 c K''(z0) / K'''(z0),

    through the saddle point K'(z0) = square. It follows the steepest descent to third order. On every ray from z0 that
    is at most 45 degrees off the vertical the integrand is largest at z0, and to the right it falls exponentially, so
    the trapezoid rule converges geometrically in any dimension. Variances may be zero.

    Raises:
        InfeasibleSet: if coordinates of zero variance alone exceed ``square``.
    """
    m, lam = np.asarray(mean, dtype=float), np.asarray(variance, dtype=float)
    saddle = _saddle(m, lam, square)
    q = 1 - 2 * saddle * lam
    top = float((-0.5 * np.log(q) + saddle * m**2 / q).sum() - saddle * square)
    m, lam = m / q, lam / q  # tilted by exp(z0 |x|^2): now the saddle point is zero
    second = (2 * lam**2 + 4 * lam * m**2).sum()
    third = (8 * lam**3 + 24 * lam**2 * m**2).sum()
    slope, step = 0.5, SPACING / math.sqrt(second)
    waist = 3 * slope * second / third
    mass, first, squares = 0.0, np.zeros_like(m), np.zeros_like(m)
    for block in range(BLOCKS):
        t = step * np.arange(block * BLOCK, (block + 1) * BLOCK)
        root = np.sqrt(waist**2 + t**2)
        z = 1j * t + slope * (root - waist)
        ratio = 1 / (1 - 2 * z[:, None] * lam)
        value = np.exp((0.5 * np.log(ratio) + z[:, None] * m**2 * ratio).sum(1) - z * square)
        # The integrand at -t is the conjugate of that at t.
        value *= (1 - 1j * slope * t / root) * np.where(t == 0, 0.5, 1.0) * step / math.pi
        mass += value.sum().real
        first += (value @ ratio).real * m
        squares += (value @ ratio).real * lam + (value @ ratio**2).real * m**2
        if abs(value[-1]) < 1e-18 * mass:
            first, squares = first / mass, squares / mass
            return top + math.log(mass), first, squares - first**2
    raise SettingError(f"the contour integral of the norm has not converged after {BLOCKS * BLOCK} points")


def sphere_draws(mean: Tensor, variance: Tensor, square: float, n: int, generator: torch.Generator) -> Tensor:
    """n draws of N(m, diag lam) given |x|^2 = square, (n, d), by rejection from a thin shell.

    On the sphere the density does not change if N(m, diag lam) is tilted by exp(z0 |x|^2); at the saddle point z0 of
    ``sphere_moments`` the tilted mean of |x|^2 is ``square``. Its draws with |x|^2 within SHELL standard deviations
    are kept, and their coordinates of positive variance rescaled onto the sphere. The error is of second order in
    SHELL.
    """
    m, lam = mean.numpy(), variance.numpy()
    tilt = torch.from_numpy(1 - 2 * _saddle(m, lam, square) * lam)
    centre, spread = mean / tilt, (variance / tilt).sqrt()
    width = SHELL * (2 * spread.pow(4).sum() + 4 * (spread * centre).square().sum()).sqrt()
    free = variance > 0
    kept = torch.empty((0, len(mean)), dtype=torch.float64)
    while len(kept) < n:  # one candidate in 25 is kept
        x = centre + spread * torch.randn((CANDIDATES, len(mean)), generator=generator, dtype=torch.float64)
        x = x[(x.square().sum(1) - square).abs() < width]
        held, moving = x.square() @ (~free).double(), x.square() @ free.double()
        kept = torch.cat([kept, torch.where(free, x * ((square - held) / moving).sqrt()[:, None], x)])
    return kept[:n]


def _saddle(m: Array, lam: Array, square: float) -> float:
    """z < 1 / (2 max lam) with K'(z) = square, by bisection; K' increases."""
    fixed = float((m[lam == 0] ** 2).sum())
    if not square > fixed:
        raise InfeasibleSet(f"|x|^2 = {square:g} has no points: coordinates of variance zero already have {fixed:g}")

    def slope(z: float) -> float:
        q = 1 - 2 * z * lam
        return float((lam / q + (m / q) ** 2).sum()) if q.min() > 0 else math.inf

    low, high = -1.0 / lam.max(), 0.5 / lam.max()
    while slope(low) > square:
        low *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if slope(middle) > square else (middle, high)
    return low


# ------------------------------------------------------------------ slabs


def box_moments(covariance: Tensor, low: Tensor, high: Tensor) -> tuple[float, Tensor, Tensor]:
    """log P(low <= h <= high), mean and covariance of h there, for h ~ N(0, covariance) in few dimensions.

    One dimension is in closed form. Otherwise by separation of variables: with covariance = L L^T, h = L e,
    e_1, e_2, ... are truncated normals in turn, each on the interval that the ones before leave, and the product of
    the masses of these intervals is the weight of the point. The truncated normals are quantiles of a Sobol sequence.

    References:
        Genz (1992), Numerical computation of multivariate normal probabilities.
    """
    factor = torch.linalg.cholesky(covariance).numpy()
    a, b = low.numpy(), high.numpy()
    if len(a) == 1:
        scale = factor[0, 0]
        one = interval_moments(a / scale, b / scale)
        inner = torch.from_numpy(one.variance * scale**2)[:, None]
        return float(one.log_mass[0]), torch.from_numpy(one.mean * scale), inner
    u = scipy.stats.qmc.Sobol(len(a), scramble=False).random_base2(SOBOL) + 0.5 ** (SOBOL + 1)
    h, log_weight = _separated(factor, a, b, u)
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    log_mass = top + math.log(weight.mean())
    weight /= weight.sum()
    mean = weight @ h
    return log_mass, torch.from_numpy(mean), torch.from_numpy((weight[:, None] * (h - mean)).T @ (h - mean))


def box_draws(covariance: Tensor, low: Tensor, high: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n exact draws of N(0, covariance) on low <= h <= high, (n, r).

    Points of ``box_moments`` from uniform random numbers, kept with a probability in proportion to their weight. The
    mass of each interval after the first is at most that of an interval of its length about zero.
    """
    factor, a, b = torch.linalg.cholesky(covariance).numpy(), low.numpy(), high.numpy()
    half = (b - a)[1:] / factor.diagonal()[1:] / 2
    largest = interval_moments(a[:1] / factor[0, 0], b[:1] / factor[0, 0]).log_mass[0]
    largest += interval_moments(-half, half).log_mass.sum()
    kept: list[Array] = []
    for _ in range(TRIALS):
        u = torch.rand((CANDIDATES, len(a) + 1), generator=generator, dtype=torch.float64).numpy()
        h, log_weight = _separated(factor, a, b, u[:, 1:])
        kept.extend(h[np.log(u[:, 0]) < log_weight - largest])
        if len(kept) >= n:
            return torch.from_numpy(np.array(kept[:n]).reshape(n, len(a)))
    raise SettingError(f"{TRIALS * CANDIDATES} trials gave {len(kept)} points of {n} within the bounds: too improbable")


def _separated(factor: Array, a: Array, b: Array, u: Array) -> tuple[Array, Array]:
    """Points h = L e within the bounds from uniform numbers u (n, r), and the logs of their weights (n,)."""
    e, log_weight = np.zeros_like(u), np.zeros(len(u))
    for i in range(len(a)):
        before = e[:, :i] @ factor[i, :i]
        left, right = (a[i] - before) / factor[i, i], (b[i] - before) / factor[i, i]
        log_weight += interval_moments(left, right).log_mass
        e[:, i] = interval_quantile(u[:, i], left, right)
    return e @ factor.T, log_weight
