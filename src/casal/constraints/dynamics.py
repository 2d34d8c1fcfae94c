"""Trajectories of a linear system under bounded inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from casal.checks import Event, whole_number
from casal.constraints.base import Budget, Constraint, Excess, Geometry, Parts, Projection, Rows, Way, register
from casal.constraints.flat import Affine, Box
from casal.constraints.parameters import real, shown
from casal.constraints.solvers.flat_sets import UNDERFLOW, FlatSet
from casal.constraints.solvers.splitting import Quadratic, on_box
from casal.constraints.vectors import EPSILON, LARGEST, flat, norm
from casal.devices import chosen, seen
from casal.errors import InfeasibleSet, ProjectionError, SettingError, ShapeError

STILL = 8 * EPSILON
"""Residual of a rollout that rounding alone can leave."""

WELL_CONDITIONED = 100.0
"""Condition number of G^T G + I up to which accelerated gradients alone reach rounding, and quickly."""

GUESSING = 100
"""How many of them guess the active set beyond that."""


@register
class LinearDynamics(Constraint):
    """Trajectories of a linear system with bounded inputs.

    C = {(y, u) : y_s = Ad y_{s-1} + Bd u_s, |u_s| <= u_max, s = 1 ... S}, from a given y_0.

    Ad and Bd are the exact zero-order hold of y' = A y + B u: the input u_s is held from (s-1) dt to s dt, and y_s is
    the state at s dt, at its end. So row s of an event holds an input and the state it leads to, y_0 itself is not in
    the event, and y = c + G u with G block lower triangular (Toeplitz) and c the free response.

    An event has the shape (S, o + q): first o state channels (``outputs``), then q inputs, in *standardised units*,

        z = (y / scale_y, u / scale_u),

    while A, B, dt, u_max and y_0 are physical. Norms, distances and the coupling rho are those of z, so

        P(z) = argmin |(c + G u - y) / scale_y|^2 + |(u - u_0) / scale_u|^2   over |u| <= u_max.

    All of it is factorised once, at construction. A projection takes accelerated projected gradients, one product with
    G^T G + I each, to rounding (about 80 for the quadrotor); where that matrix has a condition number above 100 they
    only guess which inputs are saturated, and Newton's method on the multipliers (``solvers.flat_sets``) finishes.
    What is returned is always the rollout of a clipped input, hence in C even if the budget ran out. The residual is
    the distance from optimality (length of a projected gradient step relative to that of z - c, or the residual of the
    active set): if it is above the tolerance, the point is flagged, because it is in C but not the nearest one.

    The violation is found by rolling out the inputs of z step by step. It is the largest, over the steps, of
    |y - rollout| relative to |y| and the terms of the rollout up to that step, output by output, and of
    max(0, |u| - u_max) / (|u| + u_max), input by input, all in standardised units.

    Args:
        A: (p, p).
        B: (p, q).
        steps: S.
        dt: Time between samples.
        u_max: Bound of |u|, a number or one for each input; infinity is allowed.
        y0: (p,), zero if left out.
        scale_y: Unit of each output, a number or (o,); one if left out.
        scale_u: Unit of each input, a number or (q,); one if left out.
        outputs: Which state channels are in the event; all if left out.

    >>> quadrotor = LinearDynamics.double_integrator(9.81, steps=3, dt=1.0, u_max=0.5)
    >>> quadrotor.rollout(torch.tensor([[[0.5], [0.0], [-0.5]]]))[0, :, 0]
    tensor([2.4525, 7.3575, 9.8100], dtype=torch.float64)
    """

    exact = False
    convex = True

    def __init__(
        self,
        A: Any,
        B: Any,
        steps: int,
        dt: float,
        u_max: Any,
        y0: Any = None,
        scale_y: Any = None,
        scale_u: Any = None,
        outputs: Sequence[int] | None = None,
    ) -> None:
        self.A, self.B = (real(part).clone() for part in (A, B))
        if self.A.ndim != 2 or self.A.shape[0] != self.A.shape[1] or self.B.ndim != 2 or len(self.B) != len(self.A):
            raise ShapeError(f"A must be (p, p) and B (p, q), got {tuple(self.A.shape)} and {tuple(self.B.shape)}")
        p, q = self.B.shape
        self.steps, self.dt = whole_number(steps, "steps", 1), float(dt)
        if self.steps > 10**6:
            raise SettingError(f"LinearDynamics takes at most 1e6 steps, got {shown(steps)}")
        if q < 1 or not 0.0 < self.dt < float("inf"):
            raise SettingError(f"LinearDynamics needs an input and 0 < dt < infinity, got {q} inputs and dt = {dt}")
        self.outputs = list(range(p)) if outputs is None else [whole_number(index, "an output", 0) for index in outputs]
        if not self.outputs or len(set(self.outputs)) < len(self.outputs) or not set(self.outputs) <= set(range(p)):
            raise SettingError(f"outputs must be distinct state channels among 0 ... {p - 1}, got {outputs}")
        self.u_max = _channels("u_max", u_max, q)
        if not bool((self.u_max >= 0).all()):
            raise InfeasibleSet(f"|u| <= u_max needs u_max >= 0, got {self.u_max.tolist()}")
        self.y0 = torch.zeros(p, dtype=torch.float64) if y0 is None else _channels("y0", y0, p)
        self.scale_y = _channels("scale_y", 1.0 if scale_y is None else scale_y, len(self.outputs))
        self.scale_u = _channels("scale_u", 1.0 if scale_u is None else scale_u, q)
        for name, scale in (("scale_y", self.scale_y), ("scale_u", self.scale_u)):
            if not bool(((scale > 0) & (scale < torch.inf)).all()):
                raise SettingError(f"{name} must be positive and finite, got {scale.tolist()}")
        if not all(bool(torch.isfinite(part).all()) for part in (self.A, self.B, self.y0)):
            raise SettingError("A, B and y0 must be finite")
        self._prepare()

    @classmethod
    def double_integrator(
        cls,
        gain: float,
        *,
        steps: int,
        dt: float,
        u_max: float,
        y0: Any = None,
        scale_y: Any = None,
        scale_u: Any = None,
        outputs: Sequence[int] = (0,),
    ) -> LinearDynamics:
        """y'' = gain u, with the position y (and the velocity, ``outputs=(0, 1)``) in the event.

        With gain = 9.81 this is the planar quadrotor under small tilt u. The other arguments are those of the class.
        """
        return cls([[0.0, 1.0], [0.0, 0.0]], [[0.0], [gain]], steps, dt, u_max, y0, scale_y, scale_u, outputs)

    def __repr__(self) -> str:
        p, q = self.B.shape
        return f"LinearDynamics({p} states, {q} inputs, steps={self.steps}, dt={self.dt:g}, outputs={self.outputs})"

    @property
    def way(self) -> Way:
        return Way.GRADIENTS if self._quadratic.condition <= WELL_CONDITIONED else Way.QUADRATIC_PROGRAMME

    def _explained(self) -> str:
        return f"{self!r}: {self.way.value} (condition number {self._quadratic.condition:.3g}), convex"

    def validate(self, event: Event) -> None:
        expected = (self.steps, len(self.outputs) + self.B.shape[1])
        if event != expected:
            raise ShapeError(
                f"events must be {expected}: {self.steps} samples of {len(self.outputs)} outputs and "
                f"{self.B.shape[1]} inputs; got {event}"
            )

    def rollout(self, u: Tensor) -> Tensor:
        """States (n, S, p) after each of the inputs (n, S, q), step by step, float64, all in physical units."""
        expected = (self.steps, self.B.shape[1])
        if u.ndim != 3 or tuple(u.shape[1:]) != expected:
            raise ShapeError(f"inputs must be (n, {expected[0]}, {expected[1]}), got {tuple(u.shape)}")
        return self._roll(u.to(torch.float64), self.y0.to(u.device).expand(len(u), -1))

    def trajectory(self, u: Tensor) -> Tensor:
        """The event (n, S, o + q), in standardised units, that the physical inputs (n, S, q) lead to."""
        y = self.rollout(u)[..., self.outputs]
        return torch.cat([y / self.scale_y.to(y), u.to(y) / self.scale_u.to(y)], dim=2)

    def physical(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (n, S, o) and inputs (n, S, q) of events, in physical units."""
        y, u = self._split(z)
        return y * self.scale_y.to(z), u * self.scale_u.to(z)

    def equations(self, z: Tensor) -> Tensor:
        """y - c - G u, in standardised units."""
        y, u = (flat(part) for part in self._split(z))
        return y - self._free.to(z) - u @ self._response.to(z).T

    def inequalities(self, z: Tensor) -> Tensor:
        """u - u_max and -u - u_max, in standardised units."""
        u = flat(self._split(z)[1])[:, self._bounded.to(z.device)]
        return torch.cat([u - self._limit.to(z), -u - self._limit.to(z)], dim=1)

    def _geometry(self, event: Event) -> Geometry:
        """The rollout, with the inputs that u_max = 0 switches off (all: a point); the bounds on the others."""
        (_, q), o, count = self.B.shape, len(self.outputs), len(self._response)
        place = torch.arange(self.steps * (o + q)).reshape(self.steps, o + q)
        outputs, inputs = place[:, :o].reshape(-1), place[:, o:].reshape(-1)
        off = self._bound == 0
        if bool(off.all()):
            only = self._event(torch.zeros(1, len(off), dtype=torch.float64))[0]
            return Geometry(Parts(Box(only, only), None))
        rows = torch.zeros(count + int(off.sum()), place.numel(), dtype=torch.float64)
        rows[:count, outputs] = torch.eye(count, dtype=torch.float64)
        rows[:count, inputs] = -self._response
        rows[count + torch.arange(int(off.sum())), inputs[off]] = 1.0
        level = torch.cat([self._free, self._free.new_zeros(int(off.sum()))])
        high = torch.full((place.numel(),), torch.inf, dtype=torch.float64)
        high[inputs] = torch.where(off, torch.inf, self._bound)
        solid = Box(-high.reshape(event), high.reshape(event)) if bool(torch.isfinite(high).any()) else None
        return Geometry(Parts(Affine(rows, level), solid))

    def _prepare(self) -> None:
        (p, q), o = self.B.shape, len(self.outputs)
        joint = torch.zeros(p + q, p + q, dtype=torch.float64)
        joint[:p, :p], joint[:p, p:] = self.A, self.B
        joint = torch.linalg.matrix_exp(self.dt * joint)
        self._Ad, self._Bd = joint[:p, :p].contiguous(), joint[:p, p:].contiguous()
        blocks, state, free, y = [], self._Bd, [], self.y0
        for _ in range(self.steps):
            y = self._Ad @ y
            blocks.append(state[self.outputs])
            free.append(y[self.outputs])
            state = self._Ad @ state
        impulse = torch.stack(blocks) / self.scale_y[:, None] * self.scale_u
        lag = torch.arange(self.steps)[:, None] - torch.arange(self.steps)
        response = impulse[lag.clamp_min(0)] * (lag >= 0)[:, :, None, None]
        self._response = response.permute(0, 2, 1, 3).reshape(self.steps * o, self.steps * q)
        self._free = (torch.stack(free) / self.scale_y).reshape(-1)
        if not bool(torch.isfinite(self._response).all()) or not bool(torch.isfinite(self._free).all()):
            raise SettingError(
                f"the response over {self.steps} steps of {self.dt:g} is not finite: the system is unstable "
                f"(spectral radius {float(torch.linalg.eigvals(self._Ad).abs().max()):.3g} per step); use fewer steps"
            )
        # Trajectories are c + (G; I) u = c + Q w with w = R u, and |Q w| = |w|.
        basis, triangle = torch.linalg.qr(torch.cat([self._response, torch.eye(self.steps * q, dtype=torch.float64)]))
        self._basis = basis
        self._inputs = torch.linalg.solve_triangular(
            triangle, torch.eye(self.steps * q, dtype=torch.float64), upper=True
        )
        bound = (self.u_max / self.scale_u).repeat(self.steps)
        self._bounded = torch.nonzero(bound < torch.inf).flatten()
        self._limit = bound[self._bounded]
        lengths = norm(self._inputs[self._bounded])
        level = self._limit / lengths
        self._set = FlatSet(Rows.of(self._inputs[self._bounded] / lengths[:, None], -level, level), tidy=False)
        self._quadratic = Quadratic.of(triangle.T @ triangle)
        self._bound = bound
        across = torch.randn(len(self._response), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        across = across / torch.linalg.vector_norm(across, dim=0)
        self._probe = torch.cat([across, -self._response.T @ across])
        self._equation_count = len(self._response)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z[..., : len(self.outputs)], z[..., len(self.outputs) :]

    def _roll(self, u: Tensor, start: Tensor) -> Tensor:
        transition, y, states = self._Ad.to(u).T.contiguous(), start, []
        for drive in (u @ self._Bd.to(u).T).unbind(1):
            y = torch.addmm(drive, y, transition)
            states.append(y)
        return torch.stack(states, dim=1)

    def _solve(self, z: Tensor, budget: Budget, warm: Tensor | None) -> Projection:
        y, u = (flat(part) for part in self._split(z))
        target = torch.cat([y - self._free.to(z), u], dim=1)
        size = norm(target)
        if seen((size > LARGEST).any()):
            raise ProjectionError(
                f"trajectories of length {float(size.max()):.3g} overflow in a projection; rescale them",
                chains=torch.nonzero(size > LARGEST).flatten().tolist(),
            )
        start = flat(u if warm is None else self._split(warm)[1])
        u, found = self._inputs_nearest(target, size, start, budget)
        point = self._event(u)
        near = chosen(self._nearly_inside(target, size))
        if len(near):
            inside = near[chosen(self._violation(z[near]) <= STILL)]  # these stay where they are
            point[inside], found.converged[inside] = z[inside], True
            found.iterations[inside], found.residual[inside] = 0, 0.0
        return found._replace(point=point)

    def _nearly_inside(self, target: Tensor, size: Tensor) -> Tensor:
        """Which (n,) may be rollouts, y - c - G u = 0: two random combinations of its rows tell nearly all others."""
        off = target @ self._probe.to(target)
        return off.abs().amax(1) <= 2e-12 * math.sqrt(self._quadratic.most) * size

    def _inputs_nearest(self, target: Tensor, size: Tensor, start: Tensor, budget: Budget) -> tuple[Tensor, Projection]:
        """Accelerated gradients where they are fast and accurate; the active set where they do not get there."""
        bound, quadratic = self._bound.to(target), self._quadratic.to(target)
        aim = max(1e-3 * budget.tolerance, STILL)
        well = quadratic.condition <= WELL_CONDITIONED
        enough = math.ceil(60 * math.sqrt(quadratic.condition)) if well else GUESSING
        first = Budget(aim if well else 0.0, min(budget.iterations, enough))
        extra = math.ceil(3 * math.sqrt(quadratic.condition)) if well and aim == STILL else 0
        y, u = target.split([len(self._response), len(bound)], dim=1)
        f = torch.addmm(u, y, self._response.to(y))
        found = on_box(f, quadratic, bound, first, size=size, start=start, extra=extra)
        u = found.point
        left = chosen(~found.converged & (found.iterations < budget.iterations))
        if len(left):
            basis, saturated = self._basis.to(target), u[left].clamp(-bound, bound)
            w, guess = target[left] @ basis, torch.cat([saturated @ self._response.to(u).T, saturated], dim=1) @ basis
            rest = Budget(budget.tolerance, budget.iterations - first.iterations)
            exact = self._set.nearest(w, rest, warm=guess)
            u[left] = exact.point @ self._inputs.to(w).T
            found.iterations[left] += exact.iterations
            found.residual[left] = exact.residual
        return u, found._replace(converged=found.residual <= budget.tolerance)

    def _event(self, u: Tensor) -> Tensor:
        """Clip the inputs and roll them out: a member of C in any case."""
        bound = self._bound.to(u)
        u = u.clamp(-bound, bound).reshape(len(u), self.steps, self.B.shape[1])
        z = self._roll_out(u)
        tiny = (u.abs() < UNDERFLOW) & (u != 0)
        if seen(tiny.any()):  # where rounding is absolute, the outputs may not match the inputs
            spoilt = self._violation(z) > STILL
            z = self._roll_out(u.masked_fill(tiny & spoilt[:, None, None], 0.0))
        return z

    def _roll_out(self, u: Tensor) -> Tensor:
        y = self._roll(u * self.scale_u.to(u), self.y0.to(u).expand(len(u), -1))
        return torch.cat([y[..., self.outputs] / self.scale_y.to(u), u], dim=2)

    def _excess(self, z: Tensor, lost: Tensor | None) -> Excess:
        """Step by step, first all outputs, then all inputs; see the class."""
        top = flat(z).abs().amax(1).clamp_min(UNDERFLOW)
        top = torch.ldexp(torch.ones_like(top), torch.frexp(top).exponent - 1)  # a power of two does not round
        y, u = self._split(z / top[:, None, None])
        start, drive = self.y0.to(z) / top[:, None], u * self.scale_u.to(z)
        states = self._roll(drive, start)
        before = torch.cat([start[:, None], states[:, :-1]], dim=1)
        terms = before.abs() @ self._Ad.to(z).abs().T + drive.abs() @ self._Bd.to(z).abs().T
        rolled, terms = (part[..., self.outputs] / self.scale_y.to(z) for part in (states, terms))
        # What a channel came from in any step is in all of its later steps, with its rounding.
        size, input_size = y.abs() + terms.cummax(1).values, u.abs()
        limit = (self.u_max / self.scale_u).to(z) / top[:, None, None]
        if lost is not None:
            more, extra = self._split(lost / top[:, None, None])
            size, input_size = size + more.cummax(1).values, input_size + extra
        bound = torch.where(torch.isinf(limit), 0.0, limit)
        amount = torch.cat([flat((y - rolled).abs()), flat((u.abs() - limit).clamp_min(0.0))], dim=1)
        return Excess(amount, torch.cat([flat(size), flat(input_size + bound)], dim=1), scale=top[:, None])

    def component_name(self, event: Event, row: int) -> str:
        outputs, inputs = len(self.outputs), self.B.shape[1]
        if row < self.steps * outputs:
            return f"rollout of output {self.outputs[row % outputs]} at step {row // outputs}"
        step, channel = divmod(row - self.steps * outputs, inputs)
        return f"|u[{channel}]| <= {float(self.u_max[channel]):g} at step {step}"


def _channels(name: str, values: Any, count: int) -> Tensor:
    """One number for every channel."""
    numbers = real(values).reshape(-1)
    if len(numbers) not in (1, count) or bool(torch.isnan(numbers).any()):
        raise ShapeError(f"{name} needs one number or {count} of them, got {numbers.tolist()}")
    return numbers.expand(count).clone()
