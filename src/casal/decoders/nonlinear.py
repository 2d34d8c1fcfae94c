"""Any differentiable map, such as the decoder of an autoencoder."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from casal.checks import Event, positive, whole_number
from casal.decoders.base import Decoder
from casal.errors import SettingError, ShapeError

POWER_STEPS = 100
"""Most steps of the power iteration for the norm of a Jacobian."""

POWER_CHANGE = 1e-4
"""Relative change of the estimate at which it stops."""


class Nonlinear(Decoder):
    """Decodes by any differentiable map g, with v -> J(x)^T v by autograd: z = g(x).

    The recommended way to use it is to state the set in the latent, ``constraint.through(Nonlinear(net))``: samples are
    then latents whose images lie in the set. As ``decoder=`` of a run it couples latents to points of the set, which
    need not be images of any latent; ``result.gap`` says how far they are. There is no A^T A to factorise, so the
    coupling must be explicit: ``CASAL(rho, coupling="explicit")``, stable while tau rho |J|^2 <= 1. |J| is ``norm`` if
    that is given. Else it is the largest estimate, by power iteration on J^T J, over ``points``, or over a few starting
    points of the run if no points are given. That estimate comes from below and knows only those points: leave a
    margin in rho, and give points near samples.

    Chains must not see each other: g maps each row of its batch on its own. A module is used as it is, copied only if
    the run has another dtype or device; dropout and batch norm must be in evaluation mode.

    Args:
        net: A module or function (n, *latent) -> (n, *event).
        shape: Shape of a decoded event, if what net returns is to be reshaped.
        norm: An upper bound of the spectral norm of the Jacobian.
        points: Latent events (m, *latent) at which the norm is estimated.
        batch: Most chains that are decoded, or taken back, at once: for networks whose activations fill the memory. A
            product with J^T then decodes again, slice by slice. All at once if left out.

    >>> Nonlinear(torch.sin).vjp(torch.zeros(1, 2))(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    def __init__(
        self,
        net: Callable[[Tensor], Tensor],
        *,
        shape: Event | None = None,
        norm: float | None = None,
        points: Any = None,
        batch: int | None = None,
    ) -> None:
        if not callable(net):
            raise SettingError(f"Nonlinear needs a module or a function, got {type(net).__name__}")
        if norm is not None:
            positive(norm, "norm")
        if isinstance(net, nn.Module):
            _refuse_random(net)
        self.net = net
        self.shape = None if shape is None else tuple(shape)
        self.bound = norm
        self.points = None if points is None else torch.as_tensor(points)
        self.batch = None if batch is None else whole_number(batch, "batch", 1)

    def __call__(self, x: Tensor) -> Tensor:
        if self.batch is None or len(x) <= self.batch:
            return self._decode(x)
        if torch.is_grad_enabled() and x.requires_grad:  # keep no activations: they are computed again on the way back
            return torch.cat([checkpoint(self._decode, some, use_reentrant=False) for some in x.split(self.batch)])
        return torch.cat([self._decode(some) for some in x.split(self.batch)])

    def _decode(self, x: Tensor) -> Tensor:
        z = self.net(x)
        if not isinstance(z, Tensor) or z.ndim < 1 or len(z) != len(x):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ShapeError(f"the decoder returned {got} for {len(x)} chains; it must return ({len(x)}, *event)")
        if self.shape is None:
            return z
        if torch.Size(self.shape).numel() * len(x) != z.numel():
            raise ShapeError(f"the decoder returned {tuple(z.shape)}, which does not fill events {self.shape}")
        return z.reshape(len(x), *self.shape)

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        batch = self.batch
        if batch is None or len(x) <= batch:
            return self._vjp(x)

        def by_slices(v: Tensor) -> Tensor:
            return torch.cat([self._vjp(some)(w) for some, w in zip(x.split(batch), v.split(batch), strict=True)])

        return by_slices

    def _vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            z = self._decode(leaf)
        if not z.requires_grad:
            raise SettingError(
                "autograd cannot differentiate through the decoder; write it in torch, without detach, numpy or no_grad"
            )

        def pull(v: Tensor) -> Tensor:
            (gradient,) = torch.autograd.grad(z, leaf, grad_outputs=v, retain_graph=True)
            return gradient

        return pull

    def norm(self) -> float:
        """The given bound, or the largest |J| over the points."""
        if self.bound is not None:
            return self.bound
        if self.points is None or not len(self.points):
            raise SettingError("the norm of the Jacobian is not known; give norm= or points= to Nonlinear")
        return self._estimate(self.points)

    def to(self, like: Tensor) -> Decoder:
        net = self.net
        if isinstance(net, nn.Module) and not _matches(net, like):
            net = deepcopy(net).to(device=like.device, dtype=like.dtype)
        points = like.detach() if self.points is None else self.points.to(like)
        return Nonlinear(net, shape=self.shape, norm=self.bound, points=points, batch=self.batch)

    def _estimate(self, points: Tensor) -> float:
        """max over points of |J|, as many points at once as there may be."""
        return max(self._largest(some) for some in points.split(self.batch or len(points)))

    def _largest(self, points: Tensor) -> float:
        """v <- J^T J v / |J^T J v|, all points at once."""
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points)
        pull, last = self._vjp(points), 0.0
        for _ in range(POWER_STEPS):
            length = torch.linalg.vector_norm(v.flatten(1), dim=1).clamp_min(torch.finfo(v.dtype).tiny)
            v = v / length.reshape(-1, *[1] * (v.ndim - 1))
            image = torch.autograd.functional.jvp(self._decode, points, v)[1]
            now = float(torch.linalg.vector_norm(image.flatten(1), dim=1).max())
            if abs(now - last) <= POWER_CHANGE * now:
                break
            v, last = pull(image), now
        return now


def _matches(net: nn.Module, like: Tensor) -> bool:
    """Whether all numbers of a module have the dtype and the device of the run."""
    parts = [*net.parameters(), *net.buffers()]
    return all(
        part.device == like.device and (part.dtype == like.dtype or not part.is_floating_point()) for part in parts
    )


def _refuse_random(net: nn.Module) -> None:
    for module in net.modules():
        if module.training and isinstance(module, _BatchNorm | _DropoutNd):
            raise SettingError(f"{type(module).__name__} is in training mode, so decoding is not a map; call .eval()")
