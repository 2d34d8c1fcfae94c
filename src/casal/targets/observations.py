"""Linear observations of the clean sample, added to the score of a diffusion or flow model.

Observed is y = H x0 + noise of covariance R. Given the noisy state x = alpha x0 + sigma noise, with u = x / alpha and
s = sigma / alpha, the model knows the mean D(u) of x0 and, through the derivative of D, its covariance V = s^2 dD/du.
If x0 were Gaussian given x, its mean given y too would be

    D_y = D + V H^T (H V H^T + R)^-1 (y - H D),

and the score of the posterior is (alpha D_y - x) / sigma^2. The ways of ``posterior`` differ in what stands for V:

- "moment": V itself, by vector-Jacobian products and conjugate gradients (MMPS, Rozet et al. 2024). Exact for a
  Gaussian prior.
- "pigdm": V = r^2 I inside the bracket, r^2 = s^2 / (1 + s^2) for data of unit variance, V itself outside (Song et
  al. 2023).
- "dps": the bracket is |y - H D| / weight (Chung et al. 2023); the weight must be tuned.
- "flat": V = s^2 I everywhere, without derivatives of the network: cheap, too confident early on.
- "gaussian": V = s^2 C (C + s^2 I)^-1 everywhere, C the covariance of the data: without derivatives too, exact for a
  Gaussian prior, and as well conditioned as C however much the observations say.

R = 0 is the limit of an exact observation H x0 = y: with "moment" and a Gaussian prior its distribution is kriging's. H
D_y = y then holds up to the accuracy of the solve; ``FinalProjection`` onto ``casal.Affine(H, y)`` makes it hold to
rounding.

Behind a decoder the observation is of A(x0), and ``latent_posterior`` guides the latent towards it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.linalg import conjugate_gradients
from casal.targets.base import Target
from casal.targets.noise import along, noise_level

WAYS = ("moment", "pigdm", "dps", "flat", "gaussian")

LEAST_LEVEL = 1e-12
"""Noise levels below this count as this much, so that sigma = 0 is its own limit."""

DEPENDENT = 1e-12
"""Share of the largest singular value below which exact rows count as dependent, times their number."""

RIDGE = 1e-13
"""Added to a preconditioner, in units of its largest diagonal entry: exact rows may see directions without variance."""

Map = Callable[[Tensor], Tensor]
Correction = Callable[[Map, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | float]]
"""(x -> D, x, alpha, sigma / alpha) -> the estimate of x0 given y too, and a term to subtract from the score."""


def posterior(
    target: Target,
    matrix: Any,
    values: Any,
    noise: Any,
    *,
    way: str = "moment",
    iterations: int = 5,
    weight: float | Map = 1.0,
    covariance: Any = None,
) -> Target:
    """Condition a model on linear observations y = H x0 + N(0, noise^2); see the top of this file.

    One evaluation of the score is one of the network and, except for "flat" and "gaussian", one or (for "moment")
    iterations + 1 backward passes through it; the cost of a run counts the former. For these the network must be
    differentiable in x: one that is called under ``no_grad`` or detaches what it returns passes for a constant, and its
    V is wrong.

    Args:
        target: A diffusion or flow target. (The first step of a flow, taken by its ``init``, ignores the observation.)
        matrix: H, (m, d).
        values: y, (m,).
        noise: Standard deviation of the observation noise, a number or (m,); 0 where an observation is exact.
        way: "moment", "pigdm", "dps", "flat" or "gaussian".
        iterations: Conjugate gradient steps of "moment"; m of them are exact.
        weight: Size of the step of "dps", a number or a function of the noise level s (a tensor). A number that suits
            low levels is often too large at high ones, where ``lambda s: w / s`` stays stable.
        covariance: C (d, d) of the data, where it is known: with V = s^2 C (C + s^2 I)^-1 in its place the system of
            "moment" is solved directly, and that preconditions the conjugate gradients. With a Gaussian prior one
            iteration is then exact; with a network far fewer are needed than from the identity. "gaussian" needs it.

    >>> from casal.targets import edm
    >>> prior = edm(lambda x, s: x / (1 + s**2), [4.0, 1.0], shape=(2,), dtype=torch.float64)
    >>> given = posterior(prior, [[1.0, 1.0]], [1.0], 0.0)
    >>> given.denoise(torch.zeros(1, 2, dtype=torch.float64), 1.0)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    one_of(way, "way", WAYS)
    iterations = whole_number(iterations, "iterations", 1)
    observation = Observation.of(matrix, values, noise)
    spectrum = None if covariance is None else Spectrum.of(covariance, observation.matrix)
    if way == "gaussian" and spectrum is None:
        raise SettingError("way='gaussian' needs covariance=, that of the data; without it use way='moment'")

    def correct(clean: Map, x: Tensor, scale: Tensor, level: Tensor) -> tuple[Tensor, float]:
        """D_y from x -> D, where u = x / scale."""
        here, variance = observation.to(x), level.clamp_min(LEAST_LEVEL).square()
        if way == "flat":
            mean, solve = clean(x), _isotropic_solver(here, variance, torch.ones_like(variance))
            return mean + (solve(here.gap(mean)) @ here.matrix).reshape(mean.shape), 0.0
        if way == "gaussian" and spectrum is not None:
            mean = clean(x)
            return mean + spectrum.shift(here.gap(mean), here.noise, variance).reshape(mean.shape), 0.0
        whole = torch.is_grad_enabled() and x.requires_grad  # the caller differentiates the posterior, as DPS does
        with torch.enable_grad():
            leaf = x if whole else x.detach().requires_grad_()
            mean = clean(leaf)
            if not mean.requires_grad:
                raise SettingError(
                    f"autograd cannot differentiate through {target.name}; call it without no_grad, or way='flat'"
                )

            def derivative(v: Tensor) -> Tensor:
                """(dD/du)^T v = V v / s^2."""
                right = v.reshape(mean.shape)
                (pulled,) = torch.autograd.grad(mean, leaf, right, retain_graph=True, create_graph=whole)
                return (along(scale, x) * pulled).reshape(len(x), -1)

            estimate = mean if whole else mean.detach()
            step = weight(level) if callable(weight) else weight
            shift = _shift(way, here.gap(estimate), here, derivative, variance, iterations, step, spectrum)
        return estimate + shift.reshape(mean.shape), 0.0

    return _condition(target, correct, f"{len(observation.matrix)} observations")


def latent_posterior(
    target: Target,
    decode: Map,
    encode: Map,
    matrix: Any,
    values: Any,
    *,
    weight: float = 1.0,
    gluing: float = 0.1,
) -> Target:
    """Condition a latent model on y = H A(x0) + noise, by guidance on the denoised estimate D(x) (PSLD):

        score_y = score - weight grad |y - H z| - gluing grad |D - E(z + H^+ (y - H z))|,   z = A(D(x)).

    The second term glues: it pulls D towards a fixed point of encode and decode in which the observed part is
    replaced. Without it many latents that decode to the right observation are no codes of anything. Both gradients
    are in x and go through A, E and the network. The norms are not squared, as in the authors' code; what they
    subtract from x' itself is weight / b here, b the gain of the row. Both weights must be tuned. The samples are
    near the observation: ``FinalProjection`` onto ``casal.Affine(H, y)``, behind the decoder, makes them strict.

    Args:
        target: A diffusion or flow target on latents.
        decode: A, (n, *latent) -> (n, *event): a casal decoder, or any differentiable function.
        encode: E, (n, *event) -> (n, *latent). Of a linear decoder: ``lambda z: decoder.pinv(z, latent)``.
        matrix: H, (m, d) on flattened decoded events.
        values: y, (m,).
        weight: Strength >= 0 of the observation.
        gluing: Strength >= 0 of the gluing; 0 leaves DPS in the latent space.

    References:
        Rout et al. (2023), Solving linear inverse problems provably via posterior sampling with latent diffusion
        models, Algorithm 2.

    >>> from casal.targets import edm
    >>> prior = edm(lambda x, s: x / (1 + s**2), [4.0, 1.0], shape=(1,), dtype=torch.float64)
    >>> given = latent_posterior(
    ...     prior, lambda x: x.expand(-1, 2), lambda z: z.mean(1, keepdim=True), [[1.0, 0.0]], [1.0]
    ... )
    >>> float(given.denoise(torch.zeros(1, 1, dtype=torch.float64), 1.0)) > 0
    True
    """
    for value, name in ((weight, "weight"), (gluing, "gluing")):
        if not 0.0 <= value < float("inf"):
            raise SettingError(f"{name} must be finite and >= 0, got {value}")
    observation = Observation.of(matrix, values, 1.0)  # the noise only scales the weight
    inverse = torch.linalg.pinv(observation.matrix)

    def guide(clean: Map, x: Tensor, scale: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """D(x), and the gradient in x of both norms."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            latent = clean(leaf)
            z = decode(latent)
            gap = observation.to(x).gap(z)
            code = encode(z + (gap @ inverse.to(x).T).reshape(z.shape))
            if code.shape != latent.shape:
                raise ShapeError(f"encode returned {tuple(code.shape)} for latents {tuple(latent.shape)}")
            apart = (latent - code).reshape(len(x), -1)
            cost = weight * torch.linalg.vector_norm(gap, dim=1) + gluing * torch.linalg.vector_norm(apart, dim=1)
            (gradient,) = torch.autograd.grad(cost.sum(), leaf)
        return latent.detach(), gradient

    return _condition(target, guide, f"{len(observation.matrix)} decoded observations")


@dataclass(frozen=True)
class Observation:
    """y = H x0 + N(0, R).

    Attributes:
        matrix: H, (m, d) on flattened events.
        values: y, (m,), or (n, m) with one row per chain.
        noise: Standard deviation of the noise (m,); 0 for rows that hold exactly.
    """

    matrix: Tensor
    values: Tensor
    noise: Tensor

    @classmethod
    def of(cls, matrix: Any, values: Any, noise: Any) -> Observation:
        """Check and convert; exact rows become orthonormal ones that say the same."""
        H = torch.as_tensor(matrix, dtype=torch.float64)
        y, r = torch.as_tensor(values, dtype=torch.float64), torch.as_tensor(noise, dtype=torch.float64)
        if H.ndim != 2 or y.shape[-1:] != H.shape[:1] or y.ndim > 2 or r.shape not in ((), H.shape[:1]):
            raise ShapeError(f"H {tuple(H.shape)}, y {tuple(y.shape)} and noise {tuple(r.shape)} do not fit together")
        if not bool((r >= 0).all()) or not bool(torch.isfinite(r).all()):
            raise SettingError(f"noise must be finite and >= 0 (0 for exact observations), got {r.tolist()}")
        r = r.expand(len(H))
        noisy = r > 0
        if bool(noisy.all()):
            return cls(H, y, r)
        rows, level = _independent_rows(H[~noisy], y[..., ~noisy])
        return cls(
            torch.cat([rows, H[noisy]]),
            torch.cat([level, y[..., noisy]], -1),
            torch.cat([r.new_zeros(len(rows)), r[noisy]]),
        )

    def to(self, like: Tensor) -> Observation:
        """The same in the dtype and on the device of ``like``."""
        return Observation(self.matrix.to(like), self.values.to(like), self.noise.to(like))

    def gap(self, clean: Tensor) -> Tensor:
        """y - H x, (n, m)."""
        flat = clean.reshape(len(clean), -1)
        if flat.shape[1] != self.matrix.shape[1]:
            raise ShapeError(
                f"H has {self.matrix.shape[1]} columns, events {tuple(clean.shape[1:])} have {flat.shape[1]}"
            )
        return self.values - flat @ self.matrix.T


@dataclass(frozen=True)
class Spectrum:
    """A covariance C = Q diag(lam) Q^T of the data, as observations see it.

    Attributes:
        axes: Q, (d, d).
        rows: H Q, (m, d).
        variances: lam (d,), >= 0.
    """

    axes: Tensor
    rows: Tensor
    variances: Tensor

    @classmethod
    def of(cls, covariance: Any, matrix: Tensor) -> Spectrum:
        """Check and diagonalise C, for the rows H."""
        C = torch.as_tensor(covariance, dtype=torch.float64, device=matrix.device)
        if C.shape != (matrix.shape[1], matrix.shape[1]) or not bool(torch.isfinite(C).all()):
            raise ShapeError(f"covariance is finite and {(matrix.shape[1],) * 2} for H {tuple(matrix.shape)}")
        lam, Q = torch.linalg.eigh((C + C.T) / 2)
        return cls(Q, matrix @ Q, lam.clamp_min(0.0))

    def shift(self, gap: Tensor, noise: Tensor, variance: Tensor) -> Tensor:
        """V H^T (H V H^T + R)^-1 g with V = s^2 C / (C + s^2), in the dtype of g."""
        lam = self.variances.to(gap.device)
        share = lam / (lam + variance.to(lam)[..., None])
        solved = self.solver(noise, variance)(gap.to(torch.float64))
        return ((solved @ self.rows.to(solved) * share) @ self.axes.T.to(solved)).to(gap.dtype)

    def solver(self, noise: Tensor, variance: Tensor) -> Map:
        """g -> (H (C / (C + s^2)) H^T + R / s^2)^-1 g, in float64 inside; for one s, or one per chain."""
        F = self.rows.to(noise.device)
        at = variance.to(F)[..., None]
        share = self.variances.to(F) / (self.variances.to(F) + at)
        system = (F * share[..., None, :]) @ F.T + torch.diag_embed(noise.to(F).square() / at)
        size = system.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        root = torch.linalg.cholesky(system + torch.diag_embed((RIDGE * size).expand(*size.shape[:-1], len(F))))
        if variance.ndim == 0:
            return lambda g: torch.cholesky_solve(g.to(F).T, root).T.to(g.dtype)
        return lambda g: torch.cholesky_solve(g.to(F)[..., None], root)[..., 0].to(g.dtype)


def levels_of(target: Target) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The function t -> (alpha, sigma) of the nearest row, for a time or one time a chain."""
    table = target.table
    if table.alpha is None or table.sigma is None:
        raise SettingError(
            f"{target.name} has no noise levels; add the gradient of the likelihood to its score instead"
        )
    alphas, sigmas, times = table.alpha, table.sigma, table.t

    def levels(t: Tensor) -> tuple[Tensor, Tensor]:
        row = (times - t.to(times)[..., None]).abs().argmin(-1)
        return alphas[row], sigmas[row]

    return levels


def _condition(target: Target, correct: Correction, observations: str) -> Target:
    """The target whose estimate of the clean sample is corrected, in its score and in its denoiser."""
    levels = levels_of(target)

    def score(x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        scale, size = levels(t)
        alpha, power = along(scale, x), along(size.square(), x)

        def prior(leaf: Tensor) -> Tensor:
            return (leaf + power * target.score(leaf, t, **given)) / alpha

        clean, push = correct(prior, x, scale, size / scale)
        return (alpha * clean - x) / power - push

    def denoise(prior: Callable[..., Tensor], y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        level = noise_level(sigma, y)
        clean, push = correct(lambda leaf: prior(leaf, level, **given), y, torch.ones_like(level), level)
        return clean - along(level.square(), y) * push

    return replace(
        target,
        score=score,
        denoise=None if target.denoise is None else partial(denoise, target.denoise),
        name=f"{target.name} given {observations}",
    )


def _independent_rows(H: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows and their values that say the same as H x = y."""
    lengths = torch.linalg.vector_norm(H, dim=1)
    lengths = torch.where(lengths > 0, lengths, 1.0)
    H, y = H / lengths[:, None], y / lengths
    u, s, vh = torch.linalg.svd(H, full_matrices=False)
    kept = s > DEPENDENT * max(H.shape) * s.max()
    level = (y @ u[:, kept]) / s[kept]
    worst = float((y - (level * s[kept]) @ u[:, kept].T).abs().max())
    if worst > 1e-9 * (1.0 + float(y.abs().max())):
        raise InfeasibleSet(
            f"the exact observations contradict each other: least-squares residual {worst:.3g} (rows of length one); "
            "give some of them noise > 0"
        )
    return vh[kept], level


def _isotropic_solver(observation: Observation, variance: Tensor, share: Tensor) -> Map:
    """g -> (share H H^T + R / s^2)^-1 g, in float64 inside; for one s, or one per chain."""
    H = observation.matrix.to(torch.float64)
    share, at = (value.to(H)[..., None, None] for value in (share, variance))
    root = torch.linalg.cholesky(share * (H @ H.T) + torch.diag(observation.noise.to(H).square()) / at)
    if variance.ndim == 0:
        return lambda g: torch.cholesky_solve(g.to(H).T, root).T.to(g.dtype)
    return lambda g: torch.cholesky_solve(g.to(H)[..., None], root)[..., 0].to(g.dtype)


def _shift(
    way: str,
    gap: Tensor,
    observation: Observation,
    derivative: Map,
    variance: Tensor,
    iterations: int,
    weight: float | Tensor,
    spectrum: Spectrum | None,
) -> Tensor:
    """V H^T times what stands for (H V H^T + R)^-1 (y - H D), all in units of s^2."""
    H = observation.matrix
    if way == "dps":
        length = torch.linalg.vector_norm(gap, dim=1, keepdim=True).clamp_min(1e-12)
        return along(weight * variance, gap) * derivative(gap / length @ H)
    solve = _isotropic_solver(observation, variance, 1.0 / (1.0 + variance))
    if way == "pigdm":
        return derivative(solve(gap) @ H)
    ratio = observation.noise.square() / along(variance, gap)
    if len(H) == 1:  # the system is a number: one backward pass instead of two
        pulled = derivative(H.expand(len(gap), -1))
        return pulled * (gap / ((pulled @ H.T).clamp_min(LEAST_LEVEL) + ratio))

    def system(v: Tensor) -> Tensor:
        return (derivative(v.to(H) @ H) @ H.T).to(v) + ratio.to(v) * v

    rounding = torch.finfo(gap.dtype)
    if spectrum is not None:  # such systems may be far from the identity: all but the derivative in float64
        solve, gap = spectrum.solver(observation.noise, variance), gap.to(torch.float64)
    floor = (32 * rounding.eps) ** 2 * (gap * solve(gap)).sum(1) + rounding.tiny
    found = conjugate_gradients(system, gap, floor, iterations, precondition=solve)[0]
    return derivative(found.to(H) @ H)
