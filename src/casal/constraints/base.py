"""What a set must be able to do: project a point, and say from its own definition how far off a point is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from casal.constraints.subspace import Subspace
from casal.errors import ProjectionError, SettingError
from casal.typing import Event

if TYPE_CHECKING:
    from casal.constraints.algebra import Scaled, Shifted, Union
    from casal.constraints.intersection import Intersection
    from casal.constraints.through import Through


class Budget(NamedTuple):
    """How hard an iterative projection tries.

    Attributes:
        tolerance: Stop once the violation (in the unit of the set) is below this.
        iterations: Stop after this many iterations in any case.
    """

    tolerance: float = 1e-12
    iterations: int = 1000


def tightening(first: float = 1e-2, last: float = 1e-10, iterations: int = 1000) -> Callable[[float], Budget]:
    """Budgets for ``casal.sample``: a loose tolerance early, where exactness is wasted, a tight one at the end.

    >>> round(tightening(1e-2, 1e-10)(0.5).tolerance, 12)
    1e-06
    """
    return lambda progress: Budget(first * (last / first) ** progress, iterations)


class Projection(NamedTuple):
    """A projection and how it went, chain by chain.

    Attributes:
        point: (n, *event), the best point found.
        converged: (n,) bool; always true for closed forms.
        iterations: (n,) int; zero for closed forms.
        residual: (n,) what was left when it stopped, in the unit of the tolerance; zero for closed forms.
    """

    point: Tensor
    converged: Tensor
    iterations: Tensor
    residual: Tensor


class Constraint(ABC):
    """A set C in decoded space. Dim 0 of every argument is the chain, the other dims are the event.

    A subclass writes ``_violation`` and either ``_project`` (closed form) or ``_solve`` (iterative); all receive
    finite float64 tensors. Two independent formulas on purpose: the certificate of a sample never goes through
    the projection that made it.

    Attributes:
        exact: The projection is the nearest point in closed form (up to rounding).
        convex: The set is convex, so the projection is unique and nonexpansive.
        solid: The set has an interior (a ball, a box), so a point can be strictly inside.
        one_sided: ``residual(z) <= 0`` describes the set, instead of ``residual(z) = 0``; one flag for all residuals,
            or one for each.
        samples_near: ``sample_near`` and ``log_normaliser`` are available, in closed form.
        fast: ``project_fast`` has a closed form of its own.
    """

    exact: bool = True
    convex: bool = False
    solid: bool = False
    one_sided: bool | tuple[bool, ...] = False
    samples_near: bool = False
    fast: bool = False

    _named: dict[str, type[Constraint]] = {}  # noqa: RUF012 (filled by subclasses, for constraint_from_spec)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Constraint._named.setdefault(cls.__name__, cls)

    @property
    def chains(self) -> int | None:
        """How many chains the parameters are for; None if they are common to all."""
        return None

    def take(self, index: slice | Tensor) -> Constraint:
        """The set of some chains."""
        return self

    def groups(self) -> Tensor | None:
        """Labels (chains,), equal where the parameters of two chains are equal; None if they are common to all."""
        return None

    def project(self, z: Tensor, *, budget: Budget | None = None, warm: Tensor | None = None) -> Tensor:
        """Nearest point of C, computed in float64 and returned in the dtype of ``z``.

        Args:
            z: Points (n, *event).
            budget: How hard an iterative projection tries; closed forms do not need it.
            warm: A point near the answer, such as the projection of the step before; closed forms do not need it.

        Raises:
            ProjectionError: A coordinate of ``z`` is not finite.
        """
        return self.solve(z, budget=budget, warm=warm).point

    def project_fast(self, z: Tensor) -> Tensor:
        """P(z) in the dtype of ``z``, in few passes: what a loop may take between two strict projections.

        No check and no float64 inside: a point that is not finite, or whose squares are not, comes out not finite.
        As exact as the dtype allows elsewhere. The same as ``project`` for sets that are not ``fast``.
        """
        return self.project(z)

    def within(self, space: Subspace) -> Constraint | None:
        """{c : B c in C} in the coordinates of a subspace, if P(B c) is in the subspace for every c; else None."""
        return None

    def solve(self, z: Tensor, *, budget: Budget | None = None, warm: Tensor | None = None) -> Projection:
        """As ``project``, with a convergence flag, the iterations and the residual of every chain."""
        wide = self._checked(z, "project")
        found = self._solve(wide, budget or Budget(), None if warm is None else warm.to(wide))
        if not bool(torch.isfinite(found.point).all()):
            raise ProjectionError(
                f"{type(self).__name__}.project overflowed: the points are as large as {float(wide.abs().max()):g}"
            )
        return found._replace(point=found.point.to(z.dtype))

    def violation(self, z: Tensor) -> Tensor:
        """How far each point is from satisfying the definition of C: (n,) float64, zero on C.

        The unit and the scale are in the docstring of the set. A point that is not finite gets infinity.
        """
        wide = z.to(torch.float64)
        finite = torch.isfinite(wide).flatten(1).all(1)
        self.validate(tuple(z.shape[1:]))
        value = self._violation(torch.where(over_events(finite, wide), wide, torch.zeros_like(wide)))
        return torch.where(finite, value, torch.full_like(value, torch.inf))

    def residual(self, z: Tensor) -> Tensor:
        """Smooth functions (n, m) that vanish (or are <= 0, where ``one_sided``) exactly on C."""
        raise SettingError(
            f"{type(self).__name__} has no smooth residual, so Penalty, PrimalDual and Decoupled cannot use it; "
            "Projected, CASAL and WeightedCASAL need only its projection"
        )

    def residual_pull(self, z: Tensor, weights: Tensor) -> Tensor | None:
        """J(z)^T weights, J the derivative of ``residual`` (n, m, *event), where it is written out; else None."""
        return None

    def positive_part(self, values: Tensor) -> Tensor:
        """Values (n, m) of residuals or multipliers, cut off at zero where the residual is one-sided."""
        if isinstance(self.one_sided, bool):
            return values.clamp_min(0.0) if self.one_sided else values
        return torch.where(torch.tensor(self.one_sided, device=values.device), values.clamp_min(0.0), values)

    def validate(self, event: Event) -> None:
        """Raise ShapeError or InfeasibleSet if events of this shape cannot lie in C."""
        return

    def log_tube_factor(self, x: Tensor, z: Tensor) -> Tensor | None:
        """Logarithm of the volume factor J of the map (foot z, normal offset x - z) -> x, or None if unknown.

        A thin shell of points x around C covers the surface element at z with weight J(x, z): one for a flat
        set, (|x| / R)^(d-1) for a sphere. WeightedCASAL divides by it.
        """
        return None

    def sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor | None:
        """z ~ N(y, sigma^2 I) restricted to C (surface measure): one exact draw a point (n, *event), in float64.

        This is z given x in split Gibbs sampling, with sigma^2 = 1 / rho. None if C has no closed form for it.
        """
        if not self.samples_near:
            return None
        return self._sample_near(self._checked(y, "sample_near"), positive(sigma, "sigma"), generator)

    def log_normaliser(self, y: Tensor, sigma: float) -> Tensor | None:
        """log of the integral of N(z; y, sigma^2 I) over C (surface measure): (n,) float64, or None as above.

        All constants are there, (2 pi sigma^2)^(-d/2) included; only a ``scaled`` set leaves out one of its own, which
        depends neither on y nor on sigma.
        """
        if not self.samples_near:
            return None
        return self._log_normaliser(self._checked(y, "log_normaliser"), positive(sigma, "sigma"))

    def explain(self) -> str:
        """One line: which set, and how its projection is computed."""
        return f"{self!r}: {'closed form' if self.exact else 'iterative'}{', convex' if self.convex else ''}"

    def spec(self) -> dict[str, Any]:
        """The set as plain JSON data; ``casal.constraint_from_spec`` reads it back."""
        from casal.constraints.spec import encode

        return {"set": type(self).__name__, **{name: encode(value) for name, value in self._arguments().items()}}

    def __and__(self, other: Constraint) -> Intersection:
        """Points in both sets."""
        from casal.constraints.intersection import Intersection

        return Intersection(self, other)

    def __or__(self, other: Constraint) -> Union:
        """Points in either set."""
        from casal.constraints.algebra import Union

        return Union(self, other)

    def through(self, A: Any) -> Through:
        """{x : A x in C}."""
        from casal.constraints.through import Through

        return Through(self, A)

    def shifted(self, by: Any) -> Shifted:
        """{z + by : z in C}."""
        from casal.constraints.algebra import Shifted

        return Shifted(self, by)

    def scaled(self, by: float) -> Scaled:
        """{by z : z in C}, by > 0."""
        from casal.constraints.algebra import Scaled

        return Scaled(self, by)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        zeros = torch.zeros(len(z), dtype=z.dtype, device=z.device)
        return Projection(self._project(z), zeros == 0, zeros.long(), zeros)

    def _project(self, z: Tensor) -> Tensor:
        return self._solve(z, Budget(), None).point

    def _sample_near(self, y: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def _log_normaliser(self, y: Tensor, sigma: float) -> Tensor:
        raise NotImplementedError

    def _checked(self, z: Tensor, action: str) -> Tensor:
        """z in float64, of a shape that fits, or ProjectionError."""
        wide = z.to(torch.float64)
        if not bool(torch.isfinite(wide).all()):
            lost = torch.nonzero(~torch.isfinite(wide).flatten(1).all(1)).flatten().tolist()
            raise ProjectionError(
                f"{type(self).__name__}.{action} got non-finite coordinates in {len(lost)} of {len(z)} points; "
                "check the score and the step size that produced them",
                chains=lost,
            )
        self.validate(tuple(z.shape[1:]))
        return wide

    @abstractmethod
    def _violation(self, z: Tensor) -> Tensor: ...

    def _arguments(self) -> dict[str, Any]:
        """Arguments of the constructor, for ``spec``."""
        raise SettingError(
            f"{type(self).__name__} holds functions, which cannot be written as data; rebuild it in code"
        )


def flat(z: Tensor) -> Tensor:
    """(n, *event) -> (n, d)."""
    return z.flatten(1)


def norm(v: Tensor) -> Tensor:
    """Euclidean norm of the rows of (n, d), safe from overflow and underflow of the squares."""
    peak = v.abs().amax(1, keepdim=True) if v.shape[1] else v.new_zeros(len(v), 1)
    scale = torch.where(peak > 0, peak, torch.ones_like(peak))
    return (scale * torch.linalg.vector_norm(v / scale, dim=1, keepdim=True)).squeeze(1)


def shell_factor(offset: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """R / |v| for rows v of (n, d), and |v|, both (n, 1); |v| is taken to be at least ``shortest``.

    A row of zeros gets R / shortest, so that v + shortest e comes out as R e for any direction e. Where |v|^2 overflows
    the factor is not a number: a chain that far out is lost, and must not come back as the centre.
    """
    length = torch.linalg.vector_norm(offset, dim=1, keepdim=True).clamp_min(shortest(offset.dtype))
    factor = length.pow(-2).mul_(length * radius)
    if torch.compiler.is_compiling():  # kept as it is: else every 16 numbers of a row would work it out anew
        factor = factor.as_strided(factor.shape, (1, 1))
    return factor, length


def leaned(shell: Tensor, factor: Tensor, coordinate: int, share: float = 1.0) -> Tensor:
    """``shell`` (n, d), which is changed, plus ``share`` ``shortest`` ``factor`` in one coordinate.

    A compiled step leaves it out: it costs a twentieth of the step, and a chain that sits at the centre to the last bit
    is moved by the next noise, or by the strict projection at the end.
    """
    if not torch.compiler.is_compiling():
        shell[:, coordinate : coordinate + 1].add_(factor, alpha=share * shortest(shell.dtype))
    return shell


def shortest(dtype: torch.dtype) -> float:
    """The length below which squares lose digits."""
    return 10.0 * float(torch.finfo(dtype).tiny ** 0.5)


def unit(v: Tensor, fallback: Tensor) -> Tensor:
    """Rows of (n, d) scaled to length one; a zero row becomes ``fallback`` (d,)."""
    peak = v.abs().amax(1, keepdim=True)
    scaled = v / torch.where(peak > 0, peak, torch.ones_like(peak))
    scaled = torch.where(peak > 0, scaled, fallback.expand_as(v))
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)


def relative(excess: Tensor, scale: Tensor) -> Tensor:
    """``excess / scale`` with 0/0 = 0: a violation in units of the numbers it was computed from."""
    return torch.where(excess > 0, excess / scale.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(excess))


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard Gaussian numbers of the shape, dtype and device of a tensor."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def positive(value: float, name: str) -> float:
    """``value`` as a float, or SettingError if it is not finite and > 0."""
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise SettingError(f"{name} must be finite and > 0, got {value}")
    return number


def over_events(values: Tensor, z: Tensor) -> Tensor:
    """(n,) shaped to broadcast over the events of z."""
    return values.reshape(-1, *([1] * (z.ndim - 1)))
