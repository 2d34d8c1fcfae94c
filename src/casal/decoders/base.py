"""The base class of decoders, the identity, two decoders one after the other, and the factorised Gram matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from casal.checks import Event
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
        diagonal: The positive factors of a map z = diagonal x + c, coordinate by coordinate; None for other maps.
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
    diagonal: Tensor | None = None
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

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        """h and c with g(x) = h(x) + c; h is linear if g is affine.

        Args:
            like: Latent points (n, *latent), n > 0, in the dtype and on the device of the run.

        Returns:
            h, and c in float64, broadcastable to a decoded event; None for zero.
        """
        return self, None

    def event(self, x: Tensor) -> Event:
        """Shape of the decoded events of x."""
        return tuple(self(x[:1]).shape[1:]) if self.shape is None else self.shape

    def pinv(self, z: Tensor, latent: Event) -> Tensor:
        """Least-squares latent of z, as latent projected diffusion needs it."""
        raise SettingError(
            f"{type(self).__name__} has no pseudo-inverse; state the set in the latent, constraint.through(decoder), "
            "or use a method that needs none, such as FinalProjection or CASAL(rho, coupling='explicit')"
        )

    def matrix(self, latent: Event, like: Tensor, rows: Tensor | None = None) -> Tensor:
        """A (k, d) as a dense float64 matrix, or some of its rows, read off from the images of unit vectors.

        For rows these are as many unit vectors as the shorter side has, and never is all of A in memory.
        """
        size = torch.Size(latent).numel()
        origin = torch.zeros((1, *latent), dtype=like.dtype, device=like.device)
        event = self.event(origin)
        units = torch.eye(size if rows is None else min(size, len(rows)), dtype=like.dtype, device=like.device)
        parts = units.split(max(1, CHUNK // torch.Size(event).numel()))
        if rows is not None and len(rows) < size:
            pulls = [self.vjp(origin.expand(len(part), *latent))(scatter(part, rows, event)) for part in parts]
            return torch.cat([pull.reshape(len(pull), size) for pull in pulls]).to(torch.float64)
        images = [self(part.reshape(len(part), *latent)).reshape(len(part), -1) for part in parts]
        some = images if rows is None else [image.index_select(1, rows) for image in images]
        return torch.cat(some).T.to(torch.float64)

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

    def _scaled(self, diagonal: Tensor) -> Decoder | None:
        """diag(diagonal) A as a decoder that is as cheap as A, where there is one; else None.

        Args:
            diagonal: Positive float64 numbers, broadcastable to a decoded event.
        """
        return None

    def _dense_rows(self, index: Tensor) -> Tensor | None:
        """Some rows of A as a matrix, where a product with it is cheaper than decoding everything; else None."""
        return None

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

    linear = identity = True
    diagonal = torch.ones(())

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

    def gram(self, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
        return diagonal_gram(None, latent, preconditioner, like)


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

    def vjp(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """J_inner(x)^T J_outer(inner(x))^T; a linear one needs the shape of x alone, which may have no rows."""
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
        if not self.linear:
            return affine_pinv(self, z, latent)
        if self._inverse is None:
            self._inverse = torch.linalg.pinv(self.matrix(latent, z), rtol=1e-12).to(z)
        return (z.reshape(len(z), -1) @ self._inverse.T).reshape(len(z), *latent)

    def centred(self, like: Tensor) -> tuple[Decoder, Tensor | None]:
        """outer(inner(x)) = (A_o h_i)(x) + (A_o c_i + c_o) for an affine outer; else only c_o can be taken out."""
        middle = self.inner.to(like)(like[:1]).detach()
        outer, offset = self.outer.centred(middle)
        if not outer.linear:
            return (self if offset is None else outer @ self.inner), offset
        inner, moved = self.inner.centred(like)
        if moved is not None:
            wide = moved.to(device=like.device, dtype=torch.float64).expand(middle.shape)
            image = outer.to(wide)(wide)[0]
            offset = image if offset is None else image + offset.to(image)
        return _product(outer, inner), offset

    def _scaled(self, diagonal: Tensor) -> Decoder | None:
        outer = self.outer._scaled(diagonal) if self.linear else None
        return None if outer is None else _product(outer, self.inner)

    def to(self, like: Tensor) -> Decoder:
        inner = self.inner.to(like)
        some = like if len(like) else like.new_zeros((1, *like.shape[1:]))
        other = Composed(self.outer.to(inner(some).detach()), inner)
        other._latent = tuple(like.shape[1:])
        return other


def _product(outer: Decoder, inner: Decoder) -> Decoder:
    """outer @ inner of two decoders without offsets, of the kind of ``inner`` where ``outer`` only scales."""
    if outer.diagonal is None or outer.identity or inner.identity or not inner.linear:
        return outer @ inner
    return inner._scaled(outer.diagonal) or outer @ inner


def affine_pinv(decoder: Decoder, z: Tensor, latent: Event) -> Tensor:
    """A^+ (z - c) of a decoder A x + c; SettingError if it is not of that kind."""
    linear, offset = decoder.centred(z.new_zeros((1, *latent)))
    if not linear.linear:
        return Decoder.pinv(decoder, z, latent)
    return linear.pinv(z if offset is None else z - offset.to(z), latent)


def scatter(v: Tensor, index: Tensor, event: Event) -> Tensor:
    """Put the columns of v (n, rows) at their positions in events of zeros."""
    full = torch.zeros((len(v), torch.Size(event).numel()), dtype=v.dtype, device=v.device)
    return full.index_copy(1, index, v).reshape(len(v), *event)


@dataclass(frozen=True)
class Gram:
    """Eigen-decomposition of D^(1/2) A^T A D^(1/2) = U diag(e) U^T, with U left out where it is the identity.

    Attributes:
        root: D^(1/2), a number or of the shape of a latent event.
        eigenvalues: e; flat (d,) if there is a basis, else a number or of the shape of a latent event.
        basis: U (d, d) or None.
        unit: Whether D is one, so that nothing need be scaled.
    """

    root: Tensor
    eigenvalues: Tensor
    basis: Tensor | None
    unit: bool = field(default=False, kw_only=True)

    def solve(self, v: Tensor, strength: Tensor) -> Tensor:
        """(I + strength D A^T A)^-1 v."""
        factor = 1.0 / (1.0 + strength * self.eigenvalues)
        if self.basis is None:
            return factor * v
        turned = (v / self.root).reshape(len(v), -1) @ self.basis
        return self.root * ((turned * factor) @ self.basis.T).reshape(v.shape)

    def whiten(self, v: Tensor) -> Tensor:
        """U^T D^(1/2) v: a gradient in the coordinates in which D and A^T A are diagonal; flat if there is a U."""
        scaled = v if self.unit else self.root * v
        return scaled if self.basis is None else scaled.reshape(len(v), -1) @ self.basis

    def unwhiten(self, y: Tensor) -> Tensor:
        """D^(1/2) U y: a displacement back in the coordinates of x (flat if there is a U and D is a number)."""
        if self.basis is None:
            return y if self.unit else self.root * y
        return self.root.reshape(-1) * (y @ self.basis.T)


@dataclass(frozen=True)
class ThinGram(Gram):
    """The same for a matrix of few rows r: U = [B, R], of which only B (d, r) is stored, so that a solve costs O(d r).

    The other columns of U are those of a reflection: with Q = I - 2 H H^T, H (d, r), whose first r columns span the
    range of B, R holds the last d - r columns of Q, all with the eigenvalue 0.

    Attributes:
        root: D^(1/2), a number or of the shape of a latent event.
        eigenvalues: e (d,): r numbers, then zeros.
        basis: B (d, r), the eigenvectors of the first r eigenvalues.
        reflector: H (d, r).
    """

    basis: Tensor
    reflector: Tensor

    def solve(self, v: Tensor, strength: Tensor) -> Tensor:
        """v + D^(1/2) B diag(1/(1 + strength e) - 1) B^T D^(-1/2) v (Woodbury)."""
        rank = self.basis.shape[1]
        change = 1.0 / (1.0 + strength * self.eigenvalues[:rank]) - 1.0
        turned = (v / self.root).reshape(len(v), -1) @ self.basis
        return v + self.root * ((turned * change) @ self.basis.T).reshape(v.shape)

    def whiten(self, v: Tensor) -> Tensor:
        rank, scaled = self.basis.shape[1], (self.root * v).reshape(len(v), -1)
        rest = scaled[:, rank:] - 2.0 * (scaled @ self.reflector) @ self.reflector[rank:].T
        return torch.cat([scaled @ self.basis, rest], dim=1)

    def unwhiten(self, y: Tensor) -> Tensor:
        rank = self.basis.shape[1]
        rest = y[:, rank:]
        mirrored = torch.nn.functional.pad(rest, (rank, 0)) - 2.0 * (rest @ self.reflector[rank:]) @ self.reflector.T
        return self.root.reshape(-1) * (y[:, :rank] @ self.basis.T + mirrored)


def gram_of(matrix: Tensor, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
    """Factorise D^(1/2) A^T A D^(1/2) for a dense A (k, d), in float64 inside.

    Without a basis if A^T A is diagonal to rounding, thin if 3 k <= d, where it is cheaper, else by ``eigh``.
    """
    one = torch.ones((), dtype=like.dtype, device=like.device)
    root = one if preconditioner is None else preconditioner.expand(latent).sqrt()
    wide = matrix.to(torch.float64) * root.expand(latent).reshape(-1).to(torch.float64)
    rows, columns = wide.shape
    if 3 * rows <= columns:
        return _thin(wide, root, like)
    square = wide.T @ wide
    diagonal = square.diagonal()
    rounding = max(rows, columns) * torch.finfo(torch.float64).eps * diagonal.max()
    if bool(((square - torch.diag(diagonal)).abs() <= rounding).all()):
        return Gram(root=root, eigenvalues=diagonal.reshape(latent).to(like), basis=None)
    values, basis = torch.linalg.eigh(square)
    return Gram(root=root, eigenvalues=values.clamp_min(0.0).to(like), basis=basis.to(like))


def _thin(wide: Tensor, root: Tensor, like: Tensor) -> ThinGram:
    """From the singular values of D^(1/2) A^T = B diag(s) V^T, e = s^2.

    If B_1 = L c R^T is the upper square of B, then B G with G = -R L^T has the symmetric upper square -L c L^T, and
    W = E - B G (E: the first r columns of I) has W^T W = 2 L (1 + c) L^T, far from singular. The reflection that
    takes E to B G is I - 2 H H^T with H = W L (2 (1 + c))^(-1/2).
    """
    basis, singular, _ = torch.linalg.svd(wide.T, full_matrices=False)
    rank = basis.shape[1]
    left, cosines, right = torch.linalg.svd(basis[:rank])
    turned = basis @ -(left @ right).T
    turned[:rank].diagonal().sub_(1.0)
    reflector = -(turned @ left) / (2.0 * (1.0 + cosines)).sqrt()
    values = torch.nn.functional.pad(singular.square(), (0, len(basis) - rank))
    return ThinGram(root=root, eigenvalues=values.to(like), basis=basis.to(like), reflector=reflector.to(like))


def diagonal_gram(squares: Tensor | None, latent: Event, preconditioner: Tensor | None, like: Tensor) -> Gram:
    """That of a decoder whose A^T A is diagonal, ``squares``; None for the identity."""
    diagonal = torch.ones((), dtype=like.dtype, device=like.device) if preconditioner is None else preconditioner
    values = diagonal if squares is None else diagonal * squares
    expanded = values if values.ndim == 0 else values.expand(latent)
    return Gram(diagonal.sqrt(), expanded, None, unit=preconditioner is None)
