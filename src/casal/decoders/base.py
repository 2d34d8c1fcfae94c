"""The base class of decoders, the identity, and two decoders one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from casal.checks import Event
from casal.decoders.gram import Gram, gram_of
from casal.errors import SettingError

CHUNK = 1 << 22
"""Numbers in the unit vectors that are decoded at once when a matrix is read off."""


class Decoder(ABC):
    """A map from latent events to decoded events, with the transpose of its derivative.

    ``outer @ inner`` decodes by ``inner`` first: ``Standardise(mean, std) @ Fourier(...)``.

    An affine decoder z = A x + c has all that a linear one has, because a run treats it as A x in the set moved by -c
    (``constraint.shifted(-c)``) and adds c to the samples. ``centred`` takes it apart.

    Attributes:
        linear: Whether the map is z = A x. A linear decoder gets ``matrix`` and ``gram`` for free.
        identity: Whether the map is z = x.
        invertible: Whether the map is one-to-one, coordinate by coordinate: ``pinv`` is its inverse, and
            ``gradient_of_decoded`` takes gradients along.
        batch: Most chains that are decoded at once; None for all.
        shape: Shape of a decoded event, where the decoder fixes it.
        latent_size: Numbers in a latent event, where the decoder fixes it.

    >>> import casal
    >>> import torch
    >>> decoder = casal.Linear([[2.0], [1.0]])
    >>> isinstance(decoder, casal.Decoder), decoder(torch.tensor([[3.0]], dtype=torch.float64)).tolist()
    (True, [[6.0, 3.0]])
    """

    linear: bool = False
    identity: bool = False
    invertible: bool = False
    batch: int | None = None
    shape: Event | None = None
    latent_size: int | None = None

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Decode (n, *latent) -> (n, *event)."""

    @abstractmethod
    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The transposed derivative at x: a function v -> J(x)^T v from (n, *event) to (n, *latent)."""

    @abstractmethod
    def norm(self) -> float:
        """Spectral norm |A|, the number in the stability limit tau rho |A|^2 <= 1."""

    def __matmul__(self, inner: Decoder) -> Decoder:
        """x -> self(inner(x))."""
        if not isinstance(inner, Decoder):
            raise SettingError(
                f"outer @ inner needs two decoders, got {type(inner).__name__}; give casal.Nonlinear(net)"
            )
        return inner if self.identity else self if inner.identity else Composed(self, inner)

    @property
    def affine(self) -> bool:
        """Whether the map is z = A x + c."""
        return self.linear

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        """h and c with g(x) = h(x) + c; h is linear if g is affine.

        Args:
            like: Latent points (n, *latent), n > 0, in the dtype and on the device of the run.

        Returns:
            h, and c in float64, broadcastable to a decoded event; None for zero.
        """
        return self, None

    def rescaled(self, scale: Tensor) -> Decoder | None:
        """diag(scale) A as a decoder that is as cheap as A, where there is one; else None.

        Args:
            scale: Positive float64 numbers, broadcastable to a decoded event.
        """
        return None

    def after(self, inner: Decoder) -> Decoder:
        """``self @ inner`` in the form that is cheapest to work with."""
        return self @ inner

    def event(self, x: Tensor) -> Event:
        """Shape of the decoded events of x."""
        return tuple(self(x[:1]).shape[1:]) if self.shape is None else self.shape

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        """Least-squares latent of z, as latent projected diffusion needs it."""
        raise SettingError(
            f"{type(self).__name__} has no pseudo-inverse; state the set in the latent, constraint.through(decoder), "
            "or use a method that needs none, such as FinalProjection or CASAL(rho, coupling='explicit')"
        )

    def gradient_of_decoded(self, v: Tensor) -> Tensor:
        """A^-T v, of an invertible decoder: the gradient in z of a function whose gradient in x is v."""
        raise SettingError(f"{type(self).__name__} has no inverse")

    def matrix(self, latent: Event, like: Tensor) -> Tensor:
        """A (k, d) as a dense float64 matrix, read off from the images of unit vectors."""
        units = torch.eye(torch.Size(latent).numel(), dtype=like.dtype, device=like.device)
        some = max(1, CHUNK // torch.Size(self.event(units[:1].reshape(1, *latent))).numel())
        images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in units.split(some)]
        return torch.cat(images).T.to(torch.float64)

    def matrix_rows(self, index: Tensor, latent: Event, like: Tensor) -> Tensor:
        """Some rows of A (rows, d) in float64: as many unit vectors as its shorter side, never all of A at once."""
        size, rows = torch.Size(latent).numel(), len(index)
        origin = torch.zeros((1, *latent), dtype=like.dtype, device=like.device)
        event = self.event(origin)
        units = torch.eye(min(size, rows), dtype=like.dtype, device=like.device)
        parts = units.split(max(1, CHUNK // torch.Size(event).numel()))
        if size <= rows:
            images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in parts]
            return torch.cat([image.index_select(1, index) for image in images]).T.to(torch.float64)
        pulls = [self.vjp(origin.expand(len(part), *latent))(scatter(part, index, event)) for part in parts]
        return torch.cat([pull.reshape(len(pull), size) for pull in pulls]).to(torch.float64)

    def dense_rows(self, index: Tensor) -> Tensor | None:
        """Some rows of A as a matrix, where a product with it is cheaper than decoding everything; else None."""
        return None

    def source_of_rows(self, index: Tensor) -> tuple[Decoder, Tensor]:
        """The decoder and the positions there that hold these rows: those of rows of a decoder are rows of it."""
        return self, index

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        """Factorise D^(1/2) A^T A D^(1/2) once, for the implicit coupling and the weighted moves."""
        if not self.linear:
            raise SettingError(
                f"{type(self).__name__} is not linear, and there is no implicit step behind it; state the set in the "
                "latent with constraint.through(decoder) and leave out decoder=, use CASAL(rho, coupling='explicit') "
                "with a rho up to 1 / (tau |J|^2), or a method without an implicit step (Penalty, PrimalDual, "
                "FinalProjection)"
            )
        return gram_of(self.matrix(latent, like), latent, preconditioner, like)

    def factors(self) -> tuple[Decoder, Decoder] | None:
        """B and S with A = B S and B^T B = I, where S is cheaper than A; None if that is not known."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.shape is None else f'to events {self.shape}'})"

    def to(self, like: Tensor) -> Decoder:
        """The same decoder in the dtype and on the device of ``like``, a few starting points of the run."""
        return self


class Identity(Decoder):
    """Leaves events as they are, z = x: model and constraint share one space.

    >>> import casal
    >>> import torch
    >>> casal.Identity()(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """

    linear = identity = invertible = True

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda v: v

    def norm(self) -> float:
        return 1.0

    def event(self, x: Tensor) -> Event:
        return tuple(x.shape[1:])

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        return z

    def gradient_of_decoded(self, v: Tensor) -> Tensor:
        return v

    def after(self, inner: Decoder) -> Decoder:
        return inner

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
        return Gram(diagonal.sqrt(), diagonal, None, unit=preconditioner is None)


class Composed(Decoder):
    """Decodes by one decoder after the other: z = outer(inner(x)).

    Where both are linear and their product is of no cheaper kind, its matrix is written out for A^+, A^T A and, up to
    2^22 entries, for |A|, once the shape of a latent is known (``to``). Else |outer| |inner| stands for the norm, which
    is no less.

    Args:
        outer: Applied last.
        inner: Applied first.
    """

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self.outer, self.inner = outer, inner
        self.linear = outer.linear and inner.linear
        self.shape, self.latent_size = outer.shape, inner.latent_size
        self.batch = min(filter(None, (outer.batch, inner.batch)), default=None)
        self._latent: Event | None = None if inner.latent_size is None else (inner.latent_size,)
        self._inverse: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))

    @property
    def affine(self) -> bool:
        return self.outer.affine and self.inner.affine

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """J_inner(x)^T J_outer(inner(x))^T; a linear one looks at the shape of x alone, which may have no rows."""
        first, at = self.inner.vjp(x), x.new_zeros((1, *x.shape[1:])) if self.linear else x
        last = self.outer.vjp(self.inner(at))
        return lambda v: first(last(v))

    def norm(self) -> float:
        if self.linear and self._latent is not None:
            like = torch.zeros((1, *self._latent), dtype=torch.float64)
            wide = self.to(like)
            if like.numel() * torch.Size(wide.event(like)).numel() <= CHUNK:
                return float(torch.linalg.matrix_norm(wide.matrix(self._latent, like), ord=2))
        return self.outer.norm() * self.inner.norm()

    def event(self, x: Tensor) -> Event:
        return self.outer.event(self.inner(x[:1])) if self.shape is None else self.shape

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        if not self.affine:
            return super().pinv(z, latent)
        if not self.linear:
            linear, offset = self.centred(z.new_zeros((1, *latent)))
            return linear.pinv(z if offset is None else z - offset.to(z), latent)
        if self._inverse is None:
            self._inverse = torch.linalg.pinv(self.matrix(latent, z), rtol=1e-12).to(z)
        return (z.reshape(len(z), -1) @ self._inverse.T).reshape(len(z), *latent)

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        """outer(inner(x)) = (A_o h_i)(x) + (A_o c_i + c_o) for an affine outer; else only c_o can be taken out."""
        middle = self.inner.to(like)(like[:1]).detach()
        outer, offset = self.outer.centred(middle)
        if not self.outer.affine:
            return (self if offset is None else outer.after(self.inner)), offset
        inner, moved = self.inner.centred(like)
        if moved is not None:
            wide = moved.to(device=like.device, dtype=torch.float64).expand(middle.shape)
            image = outer.to(wide)(wide)[0]
            offset = image if offset is None else image + offset.to(image)
        return outer.after(inner), offset

    def rescaled(self, scale: Tensor) -> Decoder | None:
        outer = self.outer.rescaled(scale) if self.linear else None
        return None if outer is None else outer.after(self.inner)

    def to(self, like: Tensor) -> Decoder:
        inner = self.inner.to(like)
        some = like if len(like) else like.new_zeros((1, *like.shape[1:]))
        other = Composed(self.outer.to(inner(some).detach()), inner)
        other._latent = tuple(like.shape[1:])
        return other


def scatter(v: Tensor, index: Tensor, event: Event) -> Tensor:
    """Put the columns of v (n, rows) at their positions in events of zeros."""
    full = torch.zeros((len(v), torch.Size(event).numel()), dtype=v.dtype, device=v.device)
    return full.index_copy(1, index, v).reshape(len(v), *event)
