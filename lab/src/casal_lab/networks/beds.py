"""Models of fields whose conditional distribution is known exactly, with their exact denoiser.

    HeatMixture   a mixture of Gaussians over space-time fields; linear equations A x = b: an exact mixture
    Spectra       periodic fields whose modes differ in width and slope of the spectrum: stiff equations tell them apart
    Shell         one Gaussian field with a given mean square: the reference are free draws in a thin shell
    Nonnegative   one smooth Gaussian field with x >= 0 everywhere: the reference is a long hit-and-run

A Gaussian is kept as N(mean, V diag(v) V^T + floor^2 I), V orthonormal with few columns: every product is linear in the
number of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import casal

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class LowRank:
    """N(mean, V diag(v) V^T + floor^2 I)."""

    mean: Tensor  # (d,)
    basis: Tensor  # V (d, r), orthonormal
    variance: Tensor  # v (r,)
    floor: float

    @classmethod
    def of(cls, mean: Tensor, factor: Tensor, floor: float) -> LowRank:
        """With covariance F F^T + floor^2 I, F (d, r)."""
        basis, size, _ = torch.linalg.svd(factor, full_matrices=False)
        kept = size > 0.1 * floor
        return cls(mean, basis[:, kept], size[kept].square(), floor)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n exact draws."""
        rough = torch.randn(n, len(self.mean), generator=generator, dtype=F64) * self.floor
        smooth = torch.randn(n, len(self.variance), generator=generator, dtype=F64) * self.variance.sqrt()
        return self.mean + rough + smooth @ self.basis.T

    def times(self, rows: Tensor, noise: float = 0.0) -> Tensor:
        """rows (m, d) times the covariance plus noise^2 I."""
        return (self.floor**2 + noise**2) * rows + ((rows @ self.basis) * self.variance) @ self.basis.T

    def denoise(self, x: Tensor, sigma: float) -> Tensor:
        """E[x0 | x0 + sigma w = x] = mean + S (S + sigma^2)^-1 (x - mean)."""
        low = self.floor**2
        rest = low / (low + sigma**2)
        along = (self.variance + low) / (self.variance + low + sigma**2) - rest
        gap = x - self.mean
        return self.mean + rest * gap + ((gap @ self.basis) * along) @ self.basis.T

    def log_density(self, x: Tensor, sigma: float = 0.0) -> Tensor:
        """Of x0 + sigma w at points (n, d), without the constant of d."""
        low = self.floor**2 + sigma**2
        gap = x - self.mean
        along = gap @ self.basis
        rest = gap.square().sum(1) - along.square().sum(1)
        logs = (self.variance + low).log().sum() + (len(self.mean) - len(self.variance)) * math.log(low)
        return -0.5 * ((along.square() / (self.variance + low)).sum(1) + rest / low + logs)


class HeatMixture:
    """Fields u(t, y) of the heat equation with random initial values and smooth random forcing, in several modes.

    The modes differ in diffusivity and in the phase of their mean. The largest standard deviation of a mode is about 20
    (of the whole vector), the floor 0.02.
    """

    def __init__(self, size: int = 32, modes: int = 4, seed: int = 0, floor: float = 0.02, gap: float = 1.6) -> None:
        generator = torch.Generator().manual_seed(1000 + seed)
        y, t = torch.arange(size, dtype=F64) * (2 * math.pi / size), torch.arange(size, dtype=F64) / size
        turn = 2 * math.pi * torch.rand((), generator=generator, dtype=F64)
        self.size, self.d, self.floor = size, size * size, floor
        self.parts = list[LowRank]()
        for k in range(modes):
            diffusivity = 0.06 * 2.0**k
            columns = list[Tensor]()
            for wave in range(9):
                for shape in (torch.cos(wave * y), torch.sin(wave * y))[: 2 if wave else 1]:
                    decay = torch.exp(-diffusivity * wave**2 * t)
                    columns.append(0.6 * (1 + wave) ** -1.2 * torch.outer(decay, shape).flatten())
                    if wave <= 5:
                        for m in range(1, 7):
                            force = torch.sin((m - 0.5) * math.pi * t)
                            columns.append(0.25 / ((1 + wave) * m) * torch.outer(force, shape).flatten())
            centre = torch.outer(torch.exp(-diffusivity * t), torch.sin(y + turn + 2 * math.pi * k / modes))
            level = 0.3 * torch.randn((), generator=generator, dtype=F64)
            self.parts.append(LowRank.of(gap * centre.flatten() + level, torch.stack(columns, 1), floor))
        weight = 0.5 + torch.rand(modes, generator=generator, dtype=F64)
        self.weights = weight / weight.sum()

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        """E[x0 | x0 + sigma w = x], sigma 0-d."""
        y, s = x.to(F64), float(sigma)
        logs = torch.stack([part.log_density(y, s) for part in self.parts], 1) + self.weights.log()
        shares = torch.softmax(logs, 1)
        found = torch.stack([part.denoise(y, s) for part in self.parts], 1)
        return torch.einsum("nk,nkd->nd", shares, found).to(x)

    def target(self, steps: int = 30, low: float = 0.02, high: float = 160.0, dtype: torch.dtype = F64) -> casal.Target:
        """The probability flow of the exact denoiser on so many levels."""
        return casal.edm(self.denoise, casal.karras_sigmas(steps, low, high), shape=self.d, time="scalar", dtype=dtype)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n exact draws."""
        kind = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        out = torch.empty(n, self.d, dtype=F64)
        for k, part in enumerate(self.parts):
            out[kind == k] = part.draw(int((kind == k).sum()), generator)
        return out

    def rows(self, m: int) -> Tensor:
        """A (m, d). 4: masses; 8: and points; size / 2: half of the initial values; size: all; 2 size - 1: and masses.

        Any other number: random rows.
        """
        s, one = self.size, torch.eye(self.d, dtype=F64)
        mass = torch.kron(torch.eye(s, dtype=F64), torch.full((1, s), 1.0 / s, dtype=F64))
        first = one[:s]
        if m == 4:
            return mass[[s // 8, 3 * s // 8, 5 * s // 8, 7 * s // 8]]
        if m == 8:
            at = [(s // 4, s // 8), (s // 4, 5 * s // 8), (3 * s // 4, 3 * s // 8), (3 * s // 4, 7 * s // 8)]
            return torch.cat([self.rows(4), one[[s * i + j for i, j in at]]])
        if m == s // 2:
            return first[::2]
        if m == s:
            return first
        if m == 2 * s - 1:
            return torch.cat([first, mass[1:]])
        generator = torch.Generator().manual_seed(7_000_000 + m)
        return torch.randn(m, self.d, generator=generator, dtype=F64) / math.sqrt(self.d)

    def given(self, A: Tensor, b: Tensor) -> Given:
        """The exact distribution on A x = b."""
        return Given(self, A, b)


class Spectra(HeatMixture):
    """Random periodic fields in several modes, each with its own amplitude, spectral slope and mean field.

    From the first mode to the last amplitude and slope go from the first number of ``widths`` and ``slopes`` to the
    second.
    """

    def __init__(
        self,
        size: int = 24,
        modes: int = 2,
        seed: int = 0,
        floor: float = 0.02,
        slopes: tuple[float, float] = (0.9, 1.3),
        widths: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        generator = torch.Generator().manual_seed(7000 + seed)
        y = torch.arange(size, dtype=F64) * (2 * math.pi / size)
        self.size, self.d, self.floor = size, size * size, floor
        self.parts = list[LowRank]()
        waves = [(a, b) for a in range(5) for b in range(-4, 5) if a or b >= 0]
        for k in range(modes):
            slope, width = (low + (high - low) * k / max(modes - 1, 1) for low, high in (slopes, widths))
            columns = list[Tensor]()
            for a, b in waves:
                angle = (a * y[:, None] + b * y[None]).flatten()
                height = width / (1 + a * a + b * b) ** slope
                columns += [height * angle.cos()] + ([height * angle.sin()] if a or b else [])
            turn = 2 * math.pi * torch.rand(2, generator=generator, dtype=F64)
            centre = torch.outer((y + turn[0]).sin(), (y + turn[1]).sin()).flatten()
            self.parts.append(LowRank.of(centre, torch.stack(columns, 1), floor))
        weight = 0.5 + torch.rand(modes, generator=generator, dtype=F64)
        self.weights = weight / weight.sum()

    def ambiguous(self, A: Tensor, seed: int, tries: int = 400, least: float = 0.05) -> Tensor:
        """A x of a draw that leaves at least two modes above ``least``; of the most ambiguous draw if there is none."""
        x = self.draw(tries, torch.Generator().manual_seed(seed))
        second = torch.stack([self.given(A, A @ one).weights.topk(2).values[1] for one in x[:100]])
        enough = torch.nonzero(second > least).flatten()
        return A @ x[int(enough[0]) if len(enough) else int(second.argmax())]


class Given:
    """A mixture of Gaussians on A x = b: weights w_k N(b; A m_k, A S_k A^T), and each mode conditioned by itself."""

    def __init__(self, bed: HeatMixture, A: Tensor, b: Tensor) -> None:
        self.bed, self.A, self.b = bed, A, b
        self.gains, self.means, logs = list[Tensor](), list[Tensor](), list[Tensor]()
        for part in bed.parts:
            across = part.times(A)
            factor = torch.linalg.cholesky(across @ A.T)
            gap = b - A @ part.mean
            half = torch.linalg.solve_triangular(factor, gap[:, None], upper=False)[:, 0]
            logs.append(-0.5 * half.square().sum() - factor.diagonal().log().sum())
            self.gains.append(torch.cholesky_solve(across, factor))
            self.means.append(part.mean + gap @ self.gains[-1])
        self.weights = torch.softmax(torch.stack(logs) + bed.weights.log(), 0)
        self.mean = sum((w * m for w, m in zip(self.weights, self.means, strict=True)), torch.zeros(bed.d, dtype=F64))

    def covariance(self, k: int) -> Tensor:
        """Of mode k, (d, d)."""
        part = self.bed.parts[k]
        return part.times(torch.eye(self.bed.d, dtype=F64)) - part.times(self.A).T @ self.gains[k]

    @cached_property
    def main(self) -> tuple[int, Tensor, Tensor]:
        """The heaviest mode, the variances of its wide directions (above twice the floor) and these directions."""
        k = int(self.weights.argmax())
        value, vector = torch.linalg.eigh(self.covariance(k))
        kept = value > 4 * self.bed.floor**2
        return k, value[kept], vector[:, kept]

    @cached_property
    def trace(self) -> float:
        """Of the covariance of the mixture."""
        spread = [self.covariance(k).trace() + (m - self.mean).square().sum() for k, m in enumerate(self.means)]
        return float(self.weights @ torch.stack(spread))

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n exact draws."""
        kind = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        out = torch.empty(n, self.bed.d, dtype=F64)
        for k, part in enumerate(self.bed.parts):
            x = part.draw(int((kind == k).sum()), generator)
            out[kind == k] = x + (self.b - x @ self.A.T) @ self.gains[k]
        return out

    def judge(self, x: Tensor) -> dict[str, float]:
        """Squared error of the mean in units of exact draws, share in wrong modes, distance of mode weights, variance.

        A mode counts as wrong if its exact weight is below 1e-3. The variance is the mean over wide directions of the
        heaviest mode, relative to the exact one.
        """
        x = x.to(F64)
        logs = torch.stack([part.log_density(x, 0.03) for part in self.bed.parts], 1)
        kind, (top, variance, vector) = logs.argmax(1), self.main
        share = torch.bincount(kind, minlength=len(self.means)) / len(x)
        inside = ((x[kind == top] - self.means[top]) @ vector) / variance.sqrt()
        return {
            "mmse": float((x.mean(0) - self.mean).square().sum()) * len(x) / self.trace,
            "wrong": float(share[self.weights < 1e-3].sum()),
            "tv": 0.5 * float((share - self.weights).abs().sum()),
            "variance": float(inside.var(0).mean()) if len(inside) > 4 else math.nan,
        }


class Shell:
    """A Gaussian field with a given mean square |x|^2 / d, so many standard deviations above the model's mean of it."""

    def __init__(self, size: int = 16, seed: int = 0, above: float = 2.0) -> None:
        self.part, self.d = HeatMixture(size, 1, seed).parts[0], size * size
        square = self.part.draw(20_000, torch.Generator().manual_seed(seed)).square().mean(1)
        self.level, self.width = float(square.mean() + above * square.std()), 0.1 * float(square.std())

    def target(self, steps: int = 30, low: float = 0.02, high: float = 80.0) -> casal.Target:
        """The probability flow of the exact denoiser."""

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            return self.part.denoise(x, float(sigma))

        sigmas = casal.karras_sigmas(steps, low, high)
        return casal.edm(denoise, sigmas, shape=self.d, time="scalar", dtype=F64)

    def constraint(self) -> casal.Constraint:
        """|x| = sqrt(level d): the gradient has one length on it, so surface and co-area measure agree."""
        return casal.Sphere(math.sqrt(self.level * self.d))

    def reference(self, n: int, generator: torch.Generator) -> Tensor:
        """Free draws whose mean square is within a tenth of a standard deviation, scaled to the sphere."""
        found = list[Tensor]()
        while sum(map(len, found)) < n:
            x = self.part.draw(20_000, generator)
            square = x.square().mean(1)
            near = (square - self.level).abs() < self.width
            found.append(x[near] * (self.level / square[near]).sqrt()[:, None])
        return torch.cat(found)[:n]


class Nonnegative:
    """A smooth Gaussian field about ``lift`` with x >= 0 at every pixel."""

    def __init__(self, size: int = 16, seed: int = 0, lift: float = 0.3) -> None:
        y = torch.arange(size, dtype=F64) * (2 * math.pi / size)
        columns = list[Tensor]()
        for a in range(-5, 6):
            for b in range(6):
                wave = a * y[:, None] + b * y[None]
                height = 0.5 * (1 + a * a + b * b) ** -0.75
                columns += [height * wave.cos().flatten(), height * wave.sin().flatten()]
        self.d, self.seed = size * size, seed
        self.part = LowRank.of(torch.full((self.d,), lift, dtype=F64), torch.stack(columns, 1), 0.05)

    def target(self, steps: int = 30, low: float = 0.02, high: float = 80.0) -> casal.Target:
        """The probability flow of the exact denoiser."""

        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            return self.part.denoise(x, float(sigma))

        sigmas = casal.karras_sigmas(steps, low, high)
        return casal.edm(denoise, sigmas, shape=self.d, time="scalar", dtype=F64)

    def reference(self, chains: int = 128, moves: int = 6000) -> Tensor:
        """Hit and run: exact moves on lines, along draws of the model and along its wide directions in turn.

        Half of the chains start low, half high; their means must agree. (Gibbs moves of single pixels do not do.)
        """
        generator = torch.Generator().manual_seed(40 + self.seed)
        part, low = self.part, self.part.floor**2
        shrink = part.variance / (part.variance + low) / low  # S^-1 = I / floor^2 - V diag(shrink) V^T

        def inverse(v: Tensor) -> Tensor:
            return v / low - ((v @ part.basis) * shrink) @ part.basis.T

        x = part.draw(chains, generator)
        x = torch.where(torch.arange(chains)[:, None] % 2 == 0, x.abs(), x - x.amin(1, keepdim=True) + 0.01)
        for k in range(moves):
            if k % 2:
                v = part.draw(chains, generator) - part.mean
            else:
                pick = torch.randint(len(part.variance), (chains,), generator=generator)
                v = part.basis.T[pick] * part.variance[pick].sqrt()[:, None]
            w = inverse(v)
            sd = (v * w).sum(1).rsqrt()
            mean = -((x - part.mean) * w).sum(1) * sd.square()
            end = -x / v
            first = torch.where(v > 0, end, -math.inf).amax(1)
            last = torch.where(v < 0, end, math.inf).amin(1)
            a, b = torch.special.ndtr((first - mean) / sd), torch.special.ndtr((last - mean) / sd)
            u = a + (b - a) * torch.rand(chains, generator=generator, dtype=F64)
            step = (mean + sd * torch.special.ndtri(u.clamp(1e-15, 1 - 1e-15))).clamp(first, last)
            x = (x + torch.nan_to_num(step, 0.0, 0.0, 0.0)[:, None] * v).clamp_min(0.0)
        return x
