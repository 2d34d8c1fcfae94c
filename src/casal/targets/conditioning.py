"""Models given more than their training data: ``guided``, ``tilted``, ``posterior`` and ``latent_posterior``.

**Guidance** moves the score of a conditional network away from its score without the condition.

**Soft terms** weight a model by a function t of the clean sample, p(x0) exp(t(x0)) / constant: the log-likelihood of
any observation, a reward, or a bias along a collective variable. The set that samples must lie in is another matter: it
stays strict, and t weighs the samples inside it. Of a fixed density t is simply part of the density: score + grad t,
potential - t. Of a model that is known under noise it is not: given a noisy point x its factor is E[exp(t(x0)) | x],
which no score contains. There t is handed on, and ``casal.Matheron`` draws x0 given x with this factor.

**Linear observations** y = H x0 + noise of covariance R are added to the score of a diffusion or flow model. Given the
noisy state x = alpha x0 + sigma noise, with u = x / alpha and s = sigma / alpha, the model knows the mean D(u) of x0
and, through the derivative of D, its covariance V = s^2 dD/du.
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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from casal.checks import one_of, whole_number
from casal.errors import InfeasibleSet, SettingError, ShapeError
from casal.linalg import cholesky_solver, conjugate_gradients
from casal.targets.base import Target, failed
from casal.targets.network import along, noise_level

WAYS = ("moment", "pigdm", "dps", "flat", "gaussian")

LEAST_LEVEL = 1e-12
"""Noise levels below this count as this much, so that sigma = 0 is its own limit."""

DEPENDENT = 1e-12
"""Share of the largest singular value below which exact rows count as dependent, times their number."""

RIDGE = 1e-13
"""Added to a preconditioner, in units of its largest diagonal entry: exact rows may see directions without variance."""

Map = Callable[[Tensor], Tensor]
Term = Callable[[Tensor], Tensor]
OBSERVED = "observed_"
"""How the names begin under which observed values of single chains are kept in the condition of a target."""


def guided(target: Target, scale: float, unconditional: Mapping[str, Any]) -> Target:
    """Apply classifier-free guidance to a model, with a condition c and the value u for no condition:

        score_g(x, t) = score(x, t; u) + scale (score(x, t; c) - score(x, t; u)),

    and the same for the denoiser. What the network predicts (noise, clean sample, velocity) does not matter, since the
    score is linear in it at every x and t. Both halves are one call of the network with twice the chains; it counts as
    one evaluation. scale = 1 is the model itself, and scale = 0 the model without its condition.

    Guidance changes the model: with scale != 1 the scores of different noise levels belong to no common density, so
    that samples follow the guided sampler and not p(x0 | c) to some power. A method that promises the distribution of
    a model on a set promises it for a model, which this is not; the result says so in ``fidelity.reasons``. A fixed
    density is the exception: it becomes p(x; u)^(1 - scale) p(x; c)^scale, and the promise holds.

    Args:
        target: A target with a ``condition``.
        scale: Strength. In diffusers' words it is ``guidance_scale``; papers that write (1 + w) c - w u mean w + 1.
        unconditional: What stands for no condition: names of the condition to a value of one row, such as a null label
            or the embedding of an empty text. Names that are left out keep the value that the chain has.

    References:
        Ho and Salimans (2022), Classifier-free diffusion guidance, eq. 6.

    >>> from casal.targets import edm
    >>> network = lambda x, s, label: label[:, None] * torch.ones_like(x)
    >>> target = edm(network, [2.0, 1.0], shape=2, condition={"label": torch.tensor([1, 3])})
    >>> stronger = guided(target, 2.0, {"label": 0})
    >>> stronger.denoise(torch.zeros(2, 2), torch.tensor(1.0), **stronger.condition)
    tensor([[2., 2.],
            [6., 6.]])
    """
    if not target.condition:
        raise SettingError(f"{target.name} has no condition to be guided by; give its family condition={{...}}")
    if not isinstance(scale, int | float) or not -float("inf") < scale < float("inf"):
        raise SettingError(f"scale must be a finite number, got {scale!r}; 1 is no guidance")
    none = unconditional_rows(target.condition, unconditional, target.name)
    if scale == 1:
        return target
    note = () if target.table.static else (guidance_note(scale),)
    return replace(
        target,
        score=_Guided(target.score, scale, none),
        potential=None if target.potential is None else _Guided(target.potential, scale, none),
        denoise=None if target.denoise is None else _Guided(target.denoise, scale, none),
        init=_GuidedStart(target.init, scale, none)
        if target.conditional_init and callable(target.init)
        else target.init,
        name=f"guided {target.name}",
        notes=target.notes + note,
    )


def guidance_note(scale: float) -> str:
    """What a reader of a result must know of a guided model."""
    return (
        f"classifier-free guidance with scale {scale:g} changes the model: its scores belong to no common density, so "
        "what the samples follow on the set is the guided sampler, not the density given the condition"
    )


def unconditional_rows(condition: Mapping[str, Tensor], unconditional: Any, owner: str) -> dict[str, Tensor]:
    """What stands for no condition, (1, ...) each; ``owner`` is who has the condition, for messages."""
    if not isinstance(unconditional, Mapping) or not unconditional:
        raise SettingError(
            f"unconditional maps names of the condition to their values for no condition, got {unconditional!r}"
        )
    rows = dict[str, Tensor]()
    for name, value in unconditional.items():
        if name not in condition:
            known = ", ".join(condition)
            raise SettingError(f"unconditional has {name!r}, which the condition of {owner} does not have: {known}")
        like = condition[name]
        row = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
        row = row[None] if row.ndim < like.ndim else row
        if row.shape != (1, *like.shape[1:]):
            raise ShapeError(
                f"unconditional[{name!r}] has shape {tuple(torch.as_tensor(value).shape)}; give one row, "
                f"{tuple(like.shape[1:])}"
            )
        rows[name] = row
    return rows


class _Guided:
    """out(u) + scale (out(c) - out(u)) for a function of points, more arguments, and a condition: both in one call."""

    def __init__(self, function: Callable[..., Tensor], scale: float, none: Mapping[str, Tensor]) -> None:
        self.function, self.scale, self.none = function, scale, none

    def __call__(self, x: Tensor, /, *more: Tensor, **condition: Tensor) -> Tensor:
        both = {name: torch.cat([_like(self.none, name, value), value]) for name, value in condition.items()}
        times = [torch.cat([t, t]) if isinstance(t, Tensor) and t.ndim else t for t in more]
        without, given = self.function(torch.cat([x, x]), *times, **both).chunk(2)
        return without + self.scale * (given - without)


class _GuidedStart:
    """The same for starting points that evaluate the network: both from the same random numbers."""

    def __init__(self, init: Callable[..., Tensor], scale: float, none: Mapping[str, Tensor]) -> None:
        self.init, self.scale, self.none = init, scale, none

    def __call__(self, n: int, generator: torch.Generator, /, **condition: Tensor) -> Tensor:
        before = generator.get_state()
        without = self.init(n, generator, **{name: _like(self.none, name, v) for name, v in condition.items()})
        generator.set_state(before)
        return without + self.scale * (self.init(n, generator, **condition) - without)


def _like(none: Mapping[str, Tensor], name: str, value: Tensor) -> Tensor:
    """What stands for no condition, as many rows as ``value`` has; its own rows where nothing stands for it."""
    return none[name].to(value).expand_as(value) if name in none else value


def tilted(target: Target, log_weight: Term, *, name: str | None = None) -> Target:
    """Weight a model by exp(t(x0)), where t is ``log_weight``:

        p(x0) exp(t(x0)) / constant.

    t may be anything that autograd can differentiate, with values up to a constant:

        nonlinear observation y = h(x0) + N(0, r^2)      t(x0) = -|y - h(x0)|^2 / (2 r^2)
        reward R at temperature T                        t(x0) = R(x0) / T
        bias of a collective variable c towards v        t(x0) = -k (c(x0) - v)^2 / 2

    On a diffusion or flow model take ``casal.Matheron`` or "auto": other methods do not see t and are refused.
    On a fixed density (``langevin``, ``energy``) every method works. Tilting twice adds the terms. Linear observations
    of a Gaussian prior have an exact way, ``casal.posterior``; it may be tilted too.

    Args:
        target: A target of any family.
        log_weight: t, (n, *event) -> (n,), each row on its own, in the clean sample of the model. With a decoder that
            is the latent sample: give ``lambda x: t(decoder(x))`` for a term of the decoded one.
        name: Of the new target, for messages.

    >>> from casal.targets import energy
    >>> prior = energy(lambda x: x.square().sum(1) / 2, steps=10, step_size=0.1, init=torch.zeros(4, 2))
    >>> target = tilted(prior, lambda x: 3.0 * x[:, 0])
    >>> target.score(torch.zeros(1, 2), torch.tensor(0.0))
    tensor([[3., 0.]])
    >>> target.potential(torch.ones(1, 2))
    tensor([-2.])
    """
    if not callable(log_weight):
        raise SettingError(f"log_weight must be a function (n, *event) -> (n,), got {type(log_weight).__name__}")
    name = name or f"tilted {target.name}"
    table = target.table
    if table.static:
        _try(log_weight, _one_start(target))
        return _with_term(target, log_weight, name)
    if table.alpha is None or table.sigma is None:
        raise SettingError(
            f"{target.name} is not a fixed density and has no noise levels, so its clean samples are not defined; "
            "give its table alpha and sigma, x = alpha x0 + sigma noise"
        )
    x = _one_start(target) / float(table.alpha[0])
    if target.denoise is not None:
        with torch.no_grad():
            first = target.take(slice(0, 1)).condition
            x = target.denoise(x, table.sigma[0] / table.alpha[0], **first)  # a clean sample, as far as one is known
    _try(log_weight, x)
    before = target.log_weight
    both = log_weight if before is None else lambda x: before(x) + log_weight(x)
    return replace(target, log_weight=both, name=name)


def slope(log_weight: Term, x: Tensor) -> Tensor:
    """grad t at points (n, *event), of their shape and dtype; can be differentiated where the caller does."""
    differentiable = torch.is_grad_enabled() and x.requires_grad
    with torch.enable_grad():
        leaf = x if differentiable else x.detach().requires_grad_()
        (found,) = torch.autograd.grad(log_weight(leaf).sum(), leaf, create_graph=differentiable)
    return found


def _with_term(target: Target, log_weight: Term, name: str) -> Target:
    """A fixed density with the term as a part of it."""
    potential = target.potential

    def score(x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        return target.score(x, t, **given) + slope(log_weight, x)

    def less(x: Tensor, /, **given: Tensor) -> Tensor:
        assert potential is not None
        return potential(x, **given) - log_weight(x)

    return replace(target, score=score, potential=None if potential is None else less, name=name)


def _one_start(target: Target) -> Tensor:
    """One starting point (1, *event)."""
    init, stream = target.init, torch.Generator().manual_seed(0)
    return (target.take(slice(0, 1)).draw(1, stream) if callable(init) else init[:1]).detach()


def _try(log_weight: Term, x: Tensor) -> None:
    """Call the term at a point, and differentiate it.

    Raises:
        ShapeError: It does not return one number for every row.
        SettingError: It is not finite there, or autograd cannot differentiate it.
    """
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        try:
            value = log_weight(leaf)
        except Exception as error:
            raise failed("log_weight", x, error) from error
        if not isinstance(value, Tensor) or tuple(value.shape) != (len(x),):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                f"log_weight returned {got} for points {tuple(x.shape)}; it must return one number per row "
                f"({len(x)},): sum over all other dimensions, such as (...).flatten(1).sum(1)"
            )
        _check_finite(value, "log_weight")
        if not value.requires_grad:
            raise SettingError(
                "autograd cannot differentiate through log_weight; write it with torch functions of x, without "
                "no_grad, detach, numpy and item()"
            )
        (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        if gradient is None:
            raise SettingError("log_weight does not depend on x; it must be a function of the clean sample")
        _check_finite(gradient, "the gradient of log_weight")


def _check_finite(value: Tensor, name: str) -> None:
    if not bool(torch.isfinite(value).all()):
        raise SettingError(
            f"{name} is not finite at a starting point of the model, or at its estimate of the clean sample there; "
            "keep away from square roots and norms at zero (add a small constant inside), and bound it where it "
            "overflows"
        )


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
        values: y, (m,), or (n, m) with one row for each chain of the run; these become part of ``condition``.
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

    def correct(here: Observation, clean: Map, x: Tensor, scale: Tensor, level: Tensor) -> tuple[Tensor, float]:
        """D_y from x -> D, where u = x / scale."""
        variance = level.clamp_min(LEAST_LEVEL).square()
        if way == "flat":
            mean, solve = clean(x), _isotropic_solver(here, variance, torch.ones_like(variance))
            return mean + (solve(here.gap(mean)) @ here.matrix).reshape(mean.shape), 0.0
        if way == "gaussian" and spectrum is not None:
            mean = clean(x)
            return mean + spectrum.shift(here.gap(mean), here.noise, variance).reshape(mean.shape), 0.0
        differentiable = torch.is_grad_enabled() and x.requires_grad  # by the caller, as DPS does
        with torch.enable_grad():
            leaf = x if differentiable else x.detach().requires_grad_()
            mean = clean(leaf)
            if not mean.requires_grad:
                raise SettingError(
                    f"autograd cannot differentiate through {target.name}; call it without no_grad, or way='flat'"
                )

            def derivative(v: Tensor) -> Tensor:
                """(dD/du)^T v = V v / s^2."""
                right = v.reshape(mean.shape)
                (pulled,) = torch.autograd.grad(mean, leaf, right, retain_graph=True, create_graph=differentiable)
                return (along(scale, x) * pulled).reshape(len(x), -1)

            estimate = mean if differentiable else mean.detach()
            step = weight(level) if callable(weight) else weight
            shift = _shift(way, here.gap(estimate), here, derivative, variance, iterations, step, spectrum)
        return estimate + shift.reshape(mean.shape), 0.0

    return _condition(target, correct, observation, f"{len(observation.matrix)} observations")


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
        values: y, (m,) or (n, m), as in ``posterior``.
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

    def guide(here: Observation, clean: Map, x: Tensor, scale: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """D(x), and the gradient in x of both norms."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            latent = clean(leaf)
            z = decode(latent)
            gap = here.gap(z)
            code = encode(z + (gap @ inverse.to(x).T).reshape(z.shape))
            if code.shape != latent.shape:
                raise ShapeError(f"encode returned {tuple(code.shape)} for latents {tuple(latent.shape)}")
            apart = (latent - code).reshape(len(x), -1)
            cost = weight * torch.linalg.vector_norm(gap, dim=1) + gluing * torch.linalg.vector_norm(apart, dim=1)
            (gradient,) = torch.autograd.grad(cost.sum(), leaf)
        return latent.detach(), gradient

    return _condition(target, guide, observation, f"{len(observation.matrix)} decoded observations")


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
        try:
            H, y, r = (torch.as_tensor(value, dtype=torch.float64) for value in (matrix, values, noise))
        except (TypeError, ValueError, RuntimeError) as error:
            raise SettingError(f"H, y and noise of an observation must be numbers ({error})") from error
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
        return cholesky_solver(system + torch.diag_embed((RIDGE * size).expand(*size.shape[:-1], len(F))))


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


Correction = Callable[[Observation, Map, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | float]]
"""(y of the chains, x -> D, x, alpha, sigma / alpha) -> the estimate of x0 given y too, and a term to subtract from the
score."""


def _condition(target: Target, correct: Correction, observation: Observation, what: str) -> Target:
    """The target whose estimate of the clean sample is corrected, in its score and in its denoiser."""
    levels, init = levels_of(target), target.init
    name = f"{OBSERVED}{sum(key.startswith(OBSERVED) for key in target.condition)}"
    own = {name: observation.values} if observation.values.ndim == 2 else {}

    def seen_by(x: Tensor, given: Mapping[str, Tensor]) -> tuple[Observation, dict[str, Tensor]]:
        """The observation of the chains x, and what the model itself is given."""
        values = given.get(name, observation.values)
        here = Observation(observation.matrix, values, observation.noise).to(x)
        return here, {key: value for key, value in given.items() if key != name}

    def score(x: Tensor, t: Tensor, /, **given: Tensor) -> Tensor:
        here, rest = seen_by(x, given)
        scale, size = levels(t)
        alpha, power = along(scale, x), along(size.square(), x)

        def prior(leaf: Tensor) -> Tensor:
            return (leaf + power * target.score(leaf, t, **rest)) / alpha

        clean, push = correct(here, prior, x, scale, size / scale)
        return (alpha * clean - x) / power - push

    def denoise(prior: Callable[..., Tensor], y: Tensor, sigma: Tensor, /, **given: Tensor) -> Tensor:
        here, rest = seen_by(y, given)
        level = noise_level(sigma, y)
        clean, push = correct(here, lambda leaf: prior(leaf, level, **rest), y, torch.ones_like(level), level)
        return clean - along(level.square(), y) * push

    def start(first: Callable[..., Tensor], n: int, generator: torch.Generator, /, **given: Tensor) -> Tensor:
        return first(n, generator, **{key: value for key, value in given.items() if key != name})

    return replace(
        target,
        score=score,
        denoise=None if target.denoise is None else partial(denoise, target.denoise),
        init=partial(start, init) if own and target.conditional_init and callable(init) else init,
        condition={**target.condition, **own},
        name=f"{target.name} given {what}",
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
    return cholesky_solver(share * (H @ H.T) + torch.diag(observation.noise.to(H).square()) / at)


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
    tolerance = (32 * rounding.eps) ** 2 * (gap * solve(gap)).sum(1) + rounding.tiny
    found = conjugate_gradients(system, gap, tolerance, iterations, precondition=solve)[0]
    return derivative(found.to(H) @ H)
