"""Random fields of four equations, the values that are known of each, and exact draws of the rest given these.

    heat             u_t = nu u_yy + f on a circle; the initial values are known, and the mass is conserved
    burgers          u_t + (u^2 / 2)_y = nu u_yy on a circle; some initial values are known, and the mass is conserved
    reaction         u_t = (nu u_y)_y + r u (1 - u) on a circle; the initial values are known, and either 0 <= u <= 1
                     or the balance of mass, m' - m = (r dt / 2) sum [u (1 - u) + u' (1 - u')], which is curved
    navier-stokes    vorticity on a torus at four times; some initial values are known, and the circulation is conserved

What is random besides the initial values (diffusivity, forcing) does not depend on them. So the distribution of a field
given its known values is sampled exactly: draw the initial values given those that are known, which is a Gaussian
conditioned on a few numbers, draw the rest anew, and solve. Fields are in units in which a typical value is one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

import casal
from casal_lab.physics import navier_stokes

F64 = torch.float64


class Fields(ABC):
    """Random fields (n, *event) with known values.

    Attributes:
        name: As in the tables.
        event: Shape of a field.
    """

    name: ClassVar[str]
    event: ClassVar[tuple[int, ...]]

    @abstractmethod
    def initial(self, n: int, generator: torch.Generator, like: Tensor | None = None) -> Tensor:
        """Initial values of n fields; with the values that are known of one field (*event) where it is given."""

    @abstractmethod
    def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
        """The fields (n, *event) of initial values, all else drawn."""

    @property
    @abstractmethod
    def sets(self) -> Mapping[str, Callable[[Tensor], casal.Constraint]]:
        """What is known, in words, to the set of each field (n, *event): all that have its values and obey the law."""

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n fields, float64."""
        return self.solve(self.initial(n, generator), generator)

    def given(self, field: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """n exact draws that share what is known of one field (*event)."""
        return self.solve(self.initial(n, generator, field), generator)


def waves(points: int, most: int) -> tuple[Tensor, Tensor]:
    """Waves 1, cos y, sin y, cos 2 y ... up to number ``most`` on a circle (points, 2 most + 1), and their numbers."""
    y = torch.arange(points, dtype=F64) * (2 * math.pi / points)
    columns, number = [torch.ones_like(y)], [0]
    for k in range(1, most + 1):
        columns += [torch.cos(k * y), torch.sin(k * y)]
        number += [k, k]
    return torch.stack(columns, 1), torch.tensor(number, dtype=F64)


def conditioned(factor: Tensor, n: int, generator: torch.Generator, rows: Tensor, value: Tensor | None) -> Tensor:
    """F w (n, k) with w standard normal; given F[rows] w = value where that is not None."""
    w = torch.randn(n, factor.shape[1], generator=generator, dtype=F64)
    if value is not None:
        part = factor[rows]
        w = w + (value.to(F64) - w @ part.T) @ torch.linalg.pinv(part, rtol=1e-12).T
    return w @ factor.T


class Heat(Fields):
    """One diffusivity for the whole field, log-uniform, and a smooth forcing without mass."""

    name = "heat"
    event = (1, 16, 32)
    most = 5

    def initial(self, n: int, generator: torch.Generator, like: Tensor | None = None) -> Tensor:
        shapes, number = waves(self.event[2], self.most)
        known = None if like is None else like[0, 0]
        return conditioned(0.6 * shapes * (1 + number) ** -0.5, n, generator, torch.arange(self.event[2]), known)

    def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
        n, (_, times, points) = len(start), self.event
        shapes, number = waves(points, self.most)
        t = torch.arange(times, dtype=F64) / times
        rate = 0.1 * 10.0 ** torch.rand(n, 1, 1, generator=generator, dtype=F64)  # nu, 0.1 to 1
        amount = start @ torch.linalg.pinv(shapes).T
        push = torch.randn(n, 3, len(number), generator=generator, dtype=F64) * 0.5 / (1 + number) * (number > 0)
        order = torch.arange(1, 4, dtype=F64)[:, None]
        force = torch.einsum("nmk,mt->ntk", push / order, torch.sin((order - 0.5) * math.pi * t))
        return ((torch.exp(-rate * number**2 * t[:, None]) * amount[:, None] + force) @ shapes.T)[:, None]

    @property
    def sets(self) -> Mapping[str, Callable[[Tensor], casal.Constraint]]:
        _, times, points = self.event
        rows = torch.zeros(points + times - 1, times, points, dtype=F64)
        rows[torch.arange(points), 0, torch.arange(points)] = 1.0
        rows[torch.arange(points, len(rows)), torch.arange(1, times)] = points**-0.5
        return {"32 initial values, 15 masses": partial(_affine, rows.flatten(1))}


class Burgers(Fields):
    """Viscosity log-uniform; the initial values are smooth, and 5 of 16 are known."""

    name = "burgers"
    event = (1, 16, 16)
    seen = (0, 3, 6, 9, 12)
    most, inner, horizon = 4, 4, 1.5

    def initial(self, n: int, generator: torch.Generator, like: Tensor | None = None) -> Tensor:
        shapes, number = waves(self.event[2], self.most)
        seen = torch.tensor(self.seen)
        return conditioned(0.8 / (1 + number) * shapes, n, generator, seen, None if like is None else like[0, 0, seen])

    def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
        n, (_, times, points) = len(start), self.event
        fine = points * self.inner
        viscosity = 0.05 * 6.0 ** torch.rand(n, 1, generator=generator, dtype=F64)  # 0.05 to 0.3
        k = torch.fft.rfftfreq(fine, 1.0 / fine, dtype=F64)
        kept = 3 * k < fine
        steps = 8
        dt = self.horizon / (times - 1) / steps
        decay = torch.exp(-dt * viscosity * k**2)
        now = torch.zeros(n, fine // 2 + 1, dtype=torch.complex128)
        now[:, : points // 2] = torch.fft.rfft(start, norm="forward")[:, : points // 2]

        def slope(spectrum: Tensor) -> Tensor:
            square = torch.fft.irfft(spectrum, n=fine, norm="forward").square()
            return -0.5j * k * kept * torch.fft.rfft(square, norm="forward")

        frames = [start]
        for _ in range(times - 1):
            for _ in range(steps):  # Heun's rule, the viscosity integrated exactly
                first = slope(now)
                now = decay * now + 0.5 * dt * (decay * first + slope(decay * (now + dt * first)))
            frames.append(torch.fft.irfft(now, n=fine, norm="forward")[:, :: self.inner])
        u = torch.stack(frames, 1)
        return (u - u.mean(2, keepdim=True) + start.mean(1)[:, None, None])[:, None]

    @property
    def sets(self) -> Mapping[str, Callable[[Tensor], casal.Constraint]]:
        _, times, points = self.event
        rows = torch.zeros(len(self.seen) + times - 1, times, points, dtype=F64)
        rows[torch.arange(len(self.seen)), 0, torch.tensor(self.seen)] = 1.0
        later = torch.arange(len(self.seen), len(rows))
        rows[later, torch.arange(1, times)] = points**-0.5
        rows[later, 0] = -(points**-0.5)
        return {"5 initial values, 15 masses": partial(_affine, rows.flatten(1))}


class Reaction(Fields):
    """Growth r = 3 for all; the diffusivity is smooth and random in space. Solved by the trapezoidal rule.

    The rule is that of the balance of mass, so every field obeys it to rounding. z = (u - 1/2) / SCALE.
    """

    name = "reaction"
    event = (1, 16, 16)
    growth, step, scale = 3.0, 0.1, 0.3

    def initial(self, n: int, generator: torch.Generator, like: Tensor | None = None) -> Tensor:
        if like is not None:
            return like[0, 0].to(F64).expand(n, -1)
        shapes, number = waves(self.event[2], 4)
        smooth = torch.randn(n, len(number), generator=generator, dtype=F64) * 1.4 * (1 + number) ** -0.5
        return (torch.special.expit(smooth @ shapes.T - 2.0) - 0.5) / self.scale

    def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
        n, (_, times, points) = len(start), self.event
        shapes, number = waves(points, 3)
        log_rate = torch.randn(n, len(number), generator=generator, dtype=F64) / (1 + number)
        rate = 0.1 * torch.exp(log_rate @ shapes.T).clamp(0.1, 10.0)  # nu between cells; above, the rule overshoots
        h = 2 * math.pi / points
        left, eye = rate.roll(1, 1), torch.eye(points, dtype=F64)
        spread = (rate[:, :, None] * eye.roll(1, 1) + left[:, :, None] * eye.roll(-1, 1)) / h**2
        spread = spread - torch.diag_embed(rate + left) / h**2
        factor = torch.linalg.lu_factor(eye - 0.5 * self.step * spread)

        def grown(u: Tensor) -> Tensor:
            return self.growth * u * (1 - u)

        u = 0.5 + self.scale * start
        frames = [u]
        for _ in range(times - 1):
            known = u + 0.5 * self.step * ((spread @ u[:, :, None])[:, :, 0] + grown(u))
            after = u
            for _ in range(30):  # contracts by r dt / 2 = 0.15 a sweep
                after = torch.linalg.lu_solve(*factor, (known + 0.5 * self.step * grown(after))[:, :, None])[:, :, 0]
            frames.append(u := after)
        return ((torch.stack(frames, 1) - 0.5) / self.scale)[:, None]

    def balance(self, z: Tensor) -> Tensor:
        """What fields z (n, *event) miss of the balance of mass over three steps each, (n, 5)."""
        u = 0.5 + self.scale * z[:, 0]
        gain = 0.5 * self.growth * self.step * (u * (1 - u)).sum(2)
        mass = u.sum(2)
        missed = mass[:, 1:] - mass[:, :-1] - gain[:, 1:] - gain[:, :-1]
        return missed.unflatten(1, (-1, 3)).sum(2) / self.scale

    @property
    def sets(self) -> Mapping[str, Callable[[Tensor], casal.Constraint]]:
        _, times, points = self.event
        rows, edge = torch.eye(times * points, dtype=F64)[:points], 0.5 / self.scale
        return {
            "16 initial values, 5 curved balances of mass": lambda y: _affine(rows, y) & casal.Implicit(self.balance),
            "16 initial values, 256 bounds": lambda y: _affine(rows, y) & casal.Box(-edge, edge),
        }


class NavierStokes(Fields):
    """Deterministic; 24 of the 256 initial values are known."""

    name = "navier-stokes"
    event = (4, 16, 16)
    points, speed = 16, 8.0

    def __init__(self) -> None:
        order = torch.randperm(self.points**2, generator=torch.Generator().manual_seed(5))
        self.seen = order[:24].sort().values

    def initial(self, n: int, generator: torch.Generator, like: Tensor | None = None) -> Tensor:
        frequency = torch.fft.fftfreq(self.points, 1.0 / self.points, dtype=F64)
        square = frequency[:, None] ** 2 + frequency[None] ** 2
        root = torch.where((square > 0) & (square <= 18), (1 + square) ** -0.75, 0.0)
        noise = torch.eye(self.points**2, dtype=F64).reshape(-1, self.points, self.points)
        factor = torch.fft.ifft2(root * torch.fft.fft2(noise)).real.flatten(1).T
        factor = factor / factor.square().sum(1).mean().sqrt()
        known = None if like is None else like[0].flatten()[self.seen]
        return conditioned(factor, n, generator, self.seen, known).reshape(n, self.points, self.points)

    def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
        frames, w = [start], self.speed * start
        for _ in range(self.event[0] - 1):
            w = navier_stokes.advance(w, 0.1, viscosity=1e-3, step=0.01)
            frames.append(w / self.speed)
        return torch.stack(frames, 1)

    @property
    def sets(self) -> Mapping[str, Callable[[Tensor], casal.Constraint]]:
        frames, each = self.event[0], self.points**2
        rows = torch.zeros(len(self.seen) + frames, frames, each, dtype=F64)
        rows[torch.arange(len(self.seen)), 0, self.seen] = 1.0
        rows[torch.arange(len(self.seen), len(rows)), torch.arange(frames)] = each**-0.5
        return {"24 initial values, 4 circulations": partial(_affine, rows.flatten(1))}


def _affine(rows: Tensor, fields: Tensor) -> casal.Constraint:
    """A z = A y for the fields y."""
    return casal.Affine(rows, casal.PerChain(fields.to(F64).flatten(1) @ rows.T))


FIELDS: dict[str, Fields] = {one.name: one for one in (Heat(), Burgers(), Reaction(), NavierStokes())}
"""By name."""
