"""Sets of latents: the points that a network maps into another set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from casal.checks import Event
from casal.constraints.base import (
    Budget,
    Constraint,
    Excess,
    Geometry,
    Parts,
    Projection,
    Way,
    register,
    total_count,
)
from casal.constraints.geometry import codimension, log_volume_factor, parts
from casal.constraints.implicit import Implicit, JacobianProducts
from casal.errors import SettingError
from casal.linalg import jacobian

MOST_DENSE_ROWS = 32
"""Equations and inequalities up to which every row gets its own vector-Jacobian product; many go by products alone."""

SPREAD_POINTS = 16
"""Standard normal latents over which the size of a row is read off."""

ROUNDED = 4e-3
"""Least unit of a row, in units of its terms: 16 roundings of them are then less than the tolerance of 1e-12."""


class Map(Protocol):
    """A decoder, as a set sees it: a differentiable map with v -> J(x)^T v."""

    batch: int | None

    def __call__(self, x: Tensor) -> Tensor: ...
    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]: ...
    def to(self, like: Tensor) -> Any: ...


@register
class ThroughDecoder(Constraint):
    """Latents whose decoded image lies in a set, ``a.through(decoder)``.

    {x : g(x) in C} for a differentiable map g: latents whose decoded image lies in C.

    P(x) is a nearest latent, by Gauss-Newton steps on c(g(x)) for the equations and inequalities c of C, as for
    ``Implicit``: with a vector-Jacobian product per row, and for more than 32 equations by products alone (conjugate
    gradients). A decoder with ``batch`` is called for at most so many chains at a time. The violation is that of g(x)
    in C, with g in float64: a network of float32 is copied once.

    A sample of such a set is a latent, ``decoder.to(x)(x)`` decodes it, and nothing lies between the two. On a surface
    the reference measure is that of the latent space.

    Args:
        inner: C, with ``equations`` and ``inequalities``; at most 32 rows if there are inequalities.
        decoder: g, a casal decoder such as ``casal.Nonlinear(net)``.

    >>> from casal.decoders import Nonlinear
    >>> from casal.constraints import Sphere
    >>> latents = Sphere(1.0).through(Nonlinear(lambda x: x.exp()))
    >>> x = latents.project(torch.zeros(1, 2, dtype=torch.float64))
    >>> x.exp().square().sum().round(decimals=10)
    tensor(1., dtype=torch.float64)
    """

    exact = False

    def __init__(self, inner: Constraint, decoder: Map) -> None:
        if not hasattr(decoder, "vjp"):
            raise SettingError(f"a set through a decoder needs a casal.decoders.Decoder, got {decoder!r}")
        if not inner.smooth or inner.in_pieces:
            raise SettingError(
                f"{inner!r} has no equations and inequalities with gradients, so it cannot be stated in the latent; "
                "give decoder= to casal.sample with a method that needs its projection alone, such as FinalProjection"
            )
        self.inner, self.decoder = inner, decoder
        self.solid, self.chains = inner.solid, inner.chains

    def __repr__(self) -> str:
        return f"{self.inner!r}.through({type(self.decoder).__name__})"

    @property
    def way(self) -> Way:
        return Way.NEWTON

    def _explained(self) -> str:
        return f"{self!r}: {self.way.value} on the residual of the decoded point"

    def image(self, x: Tensor) -> Tensor:
        """g(x), in the dtype of x."""
        key = (x.dtype, x.device)
        if key not in self._decoders:
            self._decoders[key] = self.decoder.to(x[:1].detach())
        image: Tensor = self._decoders[key](x)
        return image

    def equations(self, z: Tensor) -> Tensor:
        return self.inner.equations(self.image(z))

    def inequalities(self, z: Tensor) -> Tensor:
        return self.inner.inequalities(self.image(z))

    def _count_equations(self) -> int | None:
        return total_count((self.inner,), self._equation_count)

    def validate(self, event: Event) -> None:
        self.inner.validate(self._image_event(event))

    def component_name(self, event: Event, row: int) -> str:
        return self.inner.component_name(self._image_event(event), row)

    def _geometry(self, event: Event) -> Geometry:
        """The equations of C are taken to stay independent."""
        image = self._image_event(event)
        surface, solid = parts(self.inner, image)
        return Geometry(
            Parts(*(None if part is None else self._of(part) for part in (surface, solid))),
            codimension=lambda: codimension(self.inner, image),
            log_volume=self._log_volume,
        )

    def _log_volume(self, x: Tensor, z: Tensor) -> Tensor | None:
        if self.chains is not None:
            return self._by_group(log_volume_factor, x, z)
        return log_volume_factor(self._system(tuple(x.shape[1:])), x, z)

    def _made_of(self, event: Event) -> Sequence[tuple[Constraint, Event]] | None:
        return [(self.inner, self._image_event(event))]

    def take(self, index: slice | Tensor) -> Constraint:
        return self if self.chains is None else self._of(self.inner.take(index))

    def _groups(self) -> Tensor | None:
        return self.inner._groups()

    def _alone(self, chain: int) -> ThroughDecoder:
        return self._of(self.inner._alone(chain))

    def _of(self, inner: Constraint) -> ThroughDecoder:
        """Another set behind the same decoder."""
        other = self if inner is self.inner else ThroughDecoder(inner, self.decoder)
        other._decoders.update(self._decoders)
        return other

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        return self.inner._excess(self.image(z).detach(), None)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        if self.chains is not None:
            return self._solve_by_group(z, budget, warm)
        return self._system(tuple(z.shape[1:]))._solve(z, budget, warm)

    def _image_event(self, event: Event) -> Event:
        key = tuple(event)
        if key not in self._events:
            with torch.no_grad():
                self._events[key] = tuple(self.image(torch.zeros(1, *key, dtype=torch.float64)).shape[1:])
        return self._events[key]

    @cached_property
    def _decoders(self) -> dict[Any, Any]:
        """The decoder in the dtypes that were asked for."""
        return {}

    @cached_property
    def _events(self) -> dict[Event, Event]:
        """Shapes of decoded events."""
        return {}

    @cached_property
    def _systems(self) -> dict[Event, Implicit]:
        """The equations as functions of latents, for events that were asked for."""
        return {}

    def _system(self, event: Event) -> Implicit:
        key = tuple(event)
        if key not in self._systems:
            self._systems[key] = self._made(key)
        return self._systems[key]

    def _made(self, event: Event) -> Implicit:
        """The set as an ``Implicit`` one."""
        origin = torch.zeros(1, *event, dtype=torch.float64)
        with torch.no_grad():
            image = self.image(origin)
            sides, count = self.inner.inequalities(image).shape[1], self.inner.equations(image).shape[1]
        few = count + sides <= MOST_DENSE_ROWS
        if sides and not few:
            raise SettingError(
                f"{self.inner!r} has {sides} inequalities and {count} equations for decoded events "
                f"{tuple(image.shape[1:])}; behind a network at most {MOST_DENSE_ROWS} are supported where there are "
                "inequalities. Give decoder= to casal.sample instead, or fewer inequalities, such as one bound on the "
                "logsumexp of all values"
            )
        inequality, scale = self.inequalities if sides else None, self._units(origin)
        if not few:
            return Implicit(self.equations, jacobian=JacobianProducts(self._forward, self._back), scale=scale)
        rows = None if self.decoder.batch is None else self._rows
        return Implicit(self.equations if count else None, inequality, jacobian=rows, scale=scale)

    def _parts_of(self, x: Tensor) -> tuple[Tensor, ...]:
        """x in slices of at most ``batch`` chains."""
        return x.split(self.decoder.batch or max(1, len(x)))

    def _rows(self, x: Tensor) -> Tensor:
        """All derivatives (n, m, *latent): one call of g a slice, one product per row."""
        slices = list[Tensor]()
        for some in self._parts_of(x):
            z = self.image(some)
            slopes, _ = jacobian(self.inner._residual, z)
            pull = self._decoders[(x.dtype, x.device)].vjp(some)
            slices.append(torch.stack([pull(slope.reshape(z.shape)) for slope in slopes.unbind(1)], 1))
        return torch.cat(slices)

    def _back(self, x: Tensor, w: Tensor) -> Tensor:
        """J(x)^T w."""
        pulled = list[Tensor]()
        for some, weights in zip(self._parts_of(x), self._parts_of(w), strict=True):
            z = self.image(some).detach()
            with torch.enable_grad():
                leaf = z.requires_grad_()
                (slope,) = torch.autograd.grad(self.inner.equations(leaf), leaf, grad_outputs=weights)
            pulled.append(self._decoders[(x.dtype, x.device)].vjp(some)(slope))
        return torch.cat(pulled)

    def _forward(self, x: Tensor, v: Tensor) -> Tensor:
        """J(x) v."""
        pairs = zip(self._parts_of(x), self._parts_of(v), strict=True)
        return torch.cat([torch.autograd.functional.jvp(self.equations, some, w)[1] for some, w in pairs])

    def _units(self, origin: Tensor) -> Tensor:
        """What counts as one in each row when Newton's steps stop, (m,): its spread over standard normal latents.

        At least what makes the rounding of its terms, sum_j |dc / dz_j| |z_j|, less than the tolerance.
        """
        stream = torch.Generator().manual_seed(0)
        x = torch.randn((SPREAD_POINTS, *origin.shape[1:]), generator=stream, dtype=torch.float64)
        z = torch.cat([self.image(some) for some in self._parts_of(x.to(origin.device))])
        slopes, values = jacobian(self.inner._residual, z)
        if not bool(torch.isfinite(values).all()):
            raise SettingError(
                f"the equations and inequalities of {self!r} are not finite at standard normal latents; check the "
                "decoder there"
            )
        terms = (slopes * z.detach().flatten(1)[:, None]).abs().sum(2).mean(0)
        unit = torch.maximum(values.std(0), ROUNDED * terms)
        return torch.where(unit > 0.0, unit, 1.0)
