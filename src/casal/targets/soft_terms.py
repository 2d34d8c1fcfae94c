"""Soft terms: a model weighted by a function of the clean sample,

    p(x0) exp(t(x0)) / constant,

with t the log-likelihood of any observation, a reward, or a bias along a collective variable. The set that samples must
lie in is another matter: it stays strict, and t weighs the samples inside it.

Of a fixed density t is simply part of the density: score + grad t, potential - t. Of a model that is known under noise
it is not: given a noisy point x its factor is E[exp(t(x0)) | x], which no score contains. There t is handed on, and
methods that look ahead (``casal.LookAhead``) estimate this factor on the way and correct for it by weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from casal.errors import SettingError, ShapeError
from casal.targets.base import Target

Term = Callable[[Tensor], Tensor]


def tilted(target: Target, log_weight: Term, *, name: str | None = None) -> Target:
    """Weight a model by exp(t(x0)), where t is ``log_weight``:

        p(x0) exp(t(x0)) / constant.

    t may be anything that autograd can differentiate twice, with values up to a constant:

        nonlinear observation y = h(x0) + N(0, r^2)      t(x0) = -|y - h(x0)|^2 / (2 r^2)
        reward R at temperature T                        t(x0) = R(x0) / T
        bias of a collective variable c towards v        t(x0) = -k (c(x0) - v)^2 / 2

    On a diffusion or flow model take ``casal.LookAhead`` or "auto": other methods do not see t and are refused. On a
    fixed density (``langevin``, ``energy``) every method works. Tilting twice adds the terms. Linear observations of a
    Gaussian prior have an exact way without weights, ``casal.posterior``; it may be tilted too.

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
        _try(log_weight, _one_start(target), bends=False)
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
    _try(log_weight, x, bends=True)
    before = target.log_weight
    both = log_weight if before is None else _Sum(before, log_weight)
    return replace(target, log_weight=both, name=name)


def slope(log_weight: Term, x: Tensor) -> Tensor:
    """grad t at points (n, *event), of their shape and dtype; can be differentiated where the caller does."""
    whole = torch.is_grad_enabled() and x.requires_grad
    with torch.enable_grad():
        leaf = x if whole else x.detach().requires_grad_()
        (found,) = torch.autograd.grad(log_weight(leaf).sum(), leaf, create_graph=whole)
    return found


class _Sum:
    """t(x) = first(x) + second(x)."""

    def __init__(self, first: Term, second: Term) -> None:
        self.first, self.second = first, second

    def __call__(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


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


def _try(log_weight: Term, x: Tensor, *, bends: bool) -> None:
    """Call the term at a point, and differentiate it; twice where its bends are used.

    Raises:
        ShapeError: It does not return one number for every row.
        SettingError: It is not finite there, or autograd cannot differentiate it.
    """
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        value = log_weight(leaf)
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
        (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=bends, allow_unused=True)
        if gradient is None:
            raise SettingError("log_weight does not depend on x; it must be a function of the clean sample")
        _check_finite(gradient, "the gradient of log_weight")
        if not bends:
            return
        unbent = (
            "autograd finds no second derivatives of log_weight, which the look ahead needs; write it with torch "
            "functions that can be differentiated twice"
        )
        if not gradient.requires_grad:  # linear, or its gradient is a constant for autograd alone
            if not torch.equal(gradient, slope(log_weight, x + 1e-3 * (1.0 + x.abs()))):
                raise SettingError(unbent)
            return
        try:
            (bend,) = torch.autograd.grad(gradient.sum(), leaf, allow_unused=True)
        except RuntimeError as error:
            raise SettingError(unbent) from error
        if bend is not None:
            _check_finite(bend, "the second derivative of log_weight")


def _check_finite(value: Tensor, name: str) -> None:
    if not bool(torch.isfinite(value).all()):
        raise SettingError(
            f"{name} is not finite at a starting point of the model, or at its estimate of the clean sample there; "
            "keep away from square roots and norms at zero (add a small constant inside), and bound it where it "
            "overflows"
        )
