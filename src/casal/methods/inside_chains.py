"""Chains inside a set: what a row is, what the chains carry, what they share, and the coordinates y in which they move.

Flat sets are reduced to walls around an interior point (``constraints/reduction.py``), and y are coordinates of what is
left. On curved sets y are the points z themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from casal.constraints import Reduction, reduced
from casal.errors import SettingError
from casal.methods.coupling import decoded_event
from casal.methods.flat_flows import fold
from casal.methods.population import Groups, groups_of
from casal.methods.problem import Problem
from casal.methods.scales import times, transposed

LENGTH = 1.5
"""Length of a trajectory in spreads of the widest direction."""

FIRST_PRICE = 4.0
"""Evaluations of a slice move before they are counted."""

INWARD, INSIDE = 0.95, 1.0 - 1e-13
"""Starting points outside are moved to this share of the way from the interior point to the first wall; and points that
rounding has put onto a wall to that one."""

ON_START = 1e-9
"""Violation up to which a starting point is on a curved set; the first drift brings it nearer."""

LARGEST_DECODER = 1024
"""Rows of a decoder that is inverted, at most."""


class Reference(Protocol):
    """A density on the coordinates y that is not that of the starting points."""

    def log_density(self, y: Tensor) -> Tensor: ...

    def score(self, y: Tensor) -> Tensor: ...


class Uniform(NamedTuple):
    """A constant density."""

    def log_density(self, y: Tensor) -> Tensor:
        """Zero, (n,)."""
        return torch.zeros_like(y[:, 0])

    def score(self, y: Tensor) -> Tensor:
        """Zero, (n, r)."""
        return torch.zeros_like(y)


class Row(NamedTuple):
    """Some trajectories.

    Attributes:
        kind: "flow", "orbit" (N(0, I) in the coordinates u), "leapfrog", "slice", or "rest".
        t: The second argument of the score.
        lengths: Leapfrogs of each trajectory, or slice moves; only their number counts for flows.
        eps: Size of a leapfrog.
        share: b.
        fine: Whether log p' - log p is found by the second rule.
        centre: y = centre + L u, (r,).
        scale: L (``scales.py``).
        blind: Whether leapfrogs go without a force.
        reference: The density q of q^(1-b) p^b in the coordinates y; None for that of the starting points.
        decades: Each chain takes eps 10^(-u), u uniform up to this: modes of other widths than most get their steps.
        every: One of so many trajectories does, the last.
        stride: Rows of the state from one chain to the next.
        draw: Number of the first draw that is made, from the one before it; 0 where the chains move on.
        draws: How many are made.
    """

    kind: str
    t: Tensor
    lengths: tuple[int, ...] = ()
    eps: float = 1.0
    share: float = 1.0
    fine: bool = False
    centre: Tensor = torch.zeros(0)
    scale: Tensor = torch.zeros(0)
    blind: bool = False
    reference: Reference | None = None
    decades: float = 0.0
    every: int = 1
    stride: int = 1
    draw: int = 0
    draws: int = 1


class HMCState(NamedTuple):
    """Chains in the set, and draws of them. n rows, r coordinates of the set.

    Where chains give several draws, those of a chain follow each other, and its first row is where the chain is.

    Attributes:
        x: The samples in latent space, (n, *latent).
        z: The samples, (n, *event) float64.
        y: Their coordinates, (n, r) float64.
        score: Gradient of log p in these coordinates, (n, r).
        log_p: log p, where there is a potential, (n,).
        accepted: Mean probability with which the trajectories of the last row were accepted, (n,).
        refused: Share of them that met too many walls, or could not be taken back, (n,).
        gap: What the second rule adds to log p' - log p, the largest of the last row, (n,); evaluations of slices.
        anchor: y at the end of the warm-up, (n, r); before that, where the chain began.
        before: y at the beginning of the last round, (n, r); before that, in the middle of the warm-up.
        log_weight: Logarithms of the weights, (n,).
        ancestor: Starting chain, or draw of the second pass, each chain descends from, (n,).
        part: Cluster in which each chain was at the end of the second pass, (n,); 0 without one.
        draw: Which draw of its chain a row holds, (n,): 0 for the first, -1 for one that is not made yet.
    """

    x: Tensor
    z: Tensor
    y: Tensor
    score: Tensor
    log_p: Tensor
    accepted: Tensor
    refused: Tensor
    gap: Tensor
    anchor: Tensor
    before: Tensor
    log_weight: Tensor
    ancestor: Tensor
    part: Tensor
    draw: Tensor

    def rows(self, index: Tensor | slice) -> HMCState:
        """Some of the rows."""
        return HMCState(*(part[index] for part in self))

    def placed(self, before: HMCState, found: Sequence[HMCState], stride: int, draw: int = 0) -> HMCState:
        """With what chains have become, which stand ``stride`` rows apart, or with draws of them.

        Args:
            before: The rows of the chains as they were. What has not changed of the chains is not copied.
            found: The chains, for all their rows; or draws of them.
            stride: Rows of a chain.
            draw: Number of the first draw; 0 for the chains themselves.
        """
        parts = list[Tensor]()
        for whole, old, *new in zip(self, before, *found, strict=True):
            if not draw:
                parts.append(whole if new[0] is old else _spread(new[0], stride, len(whole)))
                continue
            parts.append(whole.clone())
            for number, one in enumerate(new, draw):
                rows = parts[-1][number::stride]
                rows.copy_(one[: len(rows)])
        return HMCState(*parts)

    def begun(self, stride: int) -> HMCState:
        """With rows of chains, ``stride`` apart, and of draws that are not made."""
        numbers = torch.arange(len(self.draw), device=self.draw.device)
        return self._replace(draw=-(numbers % stride > 0).to(self.draw))


def _spread(values: Tensor, stride: int, n: int) -> Tensor:
    """Of chains, in n rows. Those in between hold copies of single numbers; of more there are none, which is quick."""
    if stride == 1:
        return values
    if values.ndim == 1:
        return values.repeat_interleave(stride)[:n]
    wide = values.new_zeros((n, *values.shape[1:]))
    wide[::stride] = values
    return wide


class Control(NamedTuple):
    """What all chains share.

    Attributes:
        rows: Rows of the whole run.
        n: Samples, the rows of the state.
        draws: Of each chain, unless the modes are weighed: rows of the state that belong together.
        stride: Rows of the state from one chain to the next.
        row: Rows taken.
        phase: "look", "draw", "temper", "warm", "weigh", "main", "gather" or "end".
        left: Rows left of the phase.
        law: "constant", "gaussian", "smooth", or "infinite" at a wall.
        one_mode: Whether it is constant or Gaussian on a flat set, even if its orbits meet too many walls.
        limit: Evaluations of a chain at which the phase ends.
        spent: Evaluations of a chain so far; flows, where its moves are flows.
        eps: Size of a leapfrog.
        length: Length of a trajectory.
        share: b.
        fine: 1 where the second rule for log p' - log p is taken, 0 where it is not, -1 before it was tried.
        narrow: Whether parts of the set are too narrow for eps, as some trajectories of the warm-up lost nearly all.
        price: Evaluations of a slice move.
        centre: Of the coordinates u.
        scale: L.
        ending: Whether this round is the last.
        crossed: Whether the chains have forgotten their start under q. If not, the set has components, or they are
            slow.
        reference: The mixture of the second pass; before it "uniform", if the tempered start begins from a constant
            density on the set.
        weighed: Whether the second pass has ended.
        began: What was spent when the rounds began.
        gap: The same from one draw of a chain to the next.
    """

    rows: int
    n: int
    draws: int
    stride: int
    row: int = 0
    phase: str = "look"
    left: int = 0
    law: str = "smooth"
    one_mode: bool = False
    limit: float = 0.0
    spent: float = 0.0
    eps: float = 0.5
    length: float = LENGTH
    share: float = 1.0
    fine: int = -1
    narrow: bool = False
    price: float = FIRST_PRICE
    centre: Any = ()
    scale: Any = ()
    ending: bool = False
    crossed: bool = True
    reference: Any = ()
    weighed: bool = False
    began: float = 0.0
    gap: float = math.inf

    @property
    def flows(self) -> bool:
        """Whether the density is constant or Gaussian on a flat set."""
        return self.law in ("constant", "gaussian")


Done: TypeAlias = tuple[HMCState, Control, Mapping[str, float]]


class Space(NamedTuple):
    """Coordinates y of a set: those of the reduction of a flat one, else the points z themselves.

    Attributes:
        flat: The reduction, of latents; None for a curved set.
        event: Shape of a decoded point.
        latent: Shape of a latent.
        inverse: A^-1 (k, k) on a curved set behind a square decoder, or its diagonal (k,); None for z = x.
        bounds: Low and high (1 or n, r), where a flat set has nothing else.
    """

    flat: Reduction | None
    event: tuple[int, ...]
    latent: tuple[int, ...]
    inverse: Tensor | None
    bounds: tuple[Tensor, Tensor] | None

    def take(self, some: slice | Tensor) -> Space:
        """Of some chains."""
        if self.flat is None or len(self.flat.room) == 1:
            return self
        sides = None if self.bounds is None else (self.bounds[0][some], self.bounds[1][some])
        return self._replace(flat=self.flat.take(some), bounds=sides)

    def inside_walls(self, y: Tensor) -> Tensor:
        """Points that rounding has put onto a wall of a flat set, moved off it."""
        assert self.flat is not None
        return self.flat.drawn_in(y, INSIDE)

    def inside(self, x: Tensor) -> Tensor:
        """Latents as points inside a flat set: laid back into bounds, else moved towards the interior point."""
        assert self.flat is not None
        y = self.flat.inward(x.flatten(1).to(torch.float64))
        if self.bounds is not None:
            y = fold(y, *self.bounds)[0]
        return self.flat.drawn_in(y, INWARD if self.bounds is None else INSIDE)

    def latents(self, y: Tensor, like: Tensor) -> Tensor:
        """x, in the dtype of the run."""
        x = self.flat.outward(y) if self.flat is not None else y if self.inverse is None else times(self.inverse, y)
        return x.reshape(-1, *self.latent).to(like.dtype)

    def pull(self, score: Tensor) -> Tensor:
        """The gradient in y, from that in x; zero where it is not a number."""
        g = torch.nan_to_num(score.flatten(1).to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return (
            self.flat.pull(g) if self.flat is not None else g if self.inverse is None else transposed(self.inverse, g)
        )

    def decoded(self, problem: Problem, y: Tensor) -> Tensor:
        """z, (n, *event) float64."""
        if self.flat is None:
            return y.reshape(-1, *self.event)
        if problem.identity:
            return self.flat.outward(y).reshape(-1, *self.event)
        return problem.decode(self.latents(y, problem.like)).to(torch.float64)


def reduction(problem: Problem) -> Reduction | None:
    """The set of latents {x : A x in C}, reduced; None if C or the decoder is of another kind. Made once.

    Raises:
        InfeasibleSet: It is empty.
    """
    constraint, decoder, device = problem.constraint, problem.decoder, problem.like.device
    if constraint.in_pieces or not decoder.linear:
        return None
    if problem.identity:
        found = constraint.reduction(problem.latent)
    else:
        matrix = decoder.matrix(problem.latent, problem.like).cpu()
        event = decoder.event(torch.zeros((1, *problem.latent), dtype=problem.like.dtype, device=device))
        made = ("reduction", event, problem.latent, id(decoder))
        found = constraint._once(made, lambda: reduced(constraint, event, matrix))
    return None if found is None else found.to(device)


def space_of(problem: Problem) -> Space:
    """The coordinates of a set, made once.

    Raises:
        SettingError: The set is neither flat nor given by smooth functions, or the decoder does not allow for it.
    """
    name = "identity" if problem.identity else id(problem.decoder)
    return problem.constraint._once(("space", problem.latent, problem.like.device, name), lambda: _space(problem))


def _space(problem: Problem) -> Space:
    constraint, event = problem.constraint, decoded_event(problem)
    found = reduction(problem)
    if found is not None:
        return Space(found, event, problem.latent, None, found.bounds() if found.aligned else None)
    way_out = "use WeightedCASAL"
    if constraint.in_pieces or not (constraint.smooth or constraint.solid):
        raise SettingError(
            f"HMC needs a set with flat sides, smooth functions or an interior, not {constraint!r}; {way_out}"
        )
    return Space(None, event, problem.latent, None if problem.identity else _inverse(problem, way_out), None)


def units_of(problem: Problem) -> Tensor | None:
    """The factors (k,) of a decoder that multiplies each coordinate by its own; None for other decoders."""
    if problem.identity or not problem.decoder.linear or problem.decoder.diagonal is None:
        return None
    one = torch.ones((1, *problem.latent), dtype=torch.float64, device=problem.like.device)
    return problem.decoder(one).flatten()


def _inverse(problem: Problem, way_out: str) -> Tensor:
    """A^-1 of a square decoder (k, k), or its diagonal (k,)."""
    unit = units_of(problem)
    if unit is not None:
        return 1.0 / unit
    rows, columns = math.prod(decoded_event(problem)), math.prod(problem.latent)
    if not problem.decoder.linear or rows != columns or rows > LARGEST_DECODER:
        raise SettingError(
            f"HMC on a curved set takes a linear and square decoder of at most {LARGEST_DECODER} rows, not "
            f"{problem.decoder!r} ({rows} x {columns}); {way_out}"
        )
    matrix = problem.decoder.matrix(problem.latent, problem.like)
    if float(torch.linalg.cond(matrix)) > 1e6:
        raise SettingError(f"HMC on a curved set takes a decoder that can be inverted; {way_out}")
    return torch.linalg.inv(matrix)


def may_exchange(problem: Problem, n: int) -> Groups | None:
    """Chains that may take each other's place; None where there are too few of one set and condition."""
    try:
        return groups_of(problem, n)
    except SettingError:
        return None


def labels_of(problem: Problem, n: int) -> Tensor | None:
    """Groups of chains with one distribution, where they are large enough to be compared within."""
    labels = problem.groups()
    return None if labels is None or 2 * len(labels.unique()) > n else labels


def features(y: Tensor) -> Tensor:
    """Coordinates and squared distances from the mean: what chains may remember."""
    away = y - y.mean(0)
    return torch.cat([y, away.square()], 1)


def plain(values: Tensor) -> Any:
    """As nested tuples of numbers, to the bit."""
    return tuple(plain(part) for part in values) if values.ndim > 1 else tuple(values.tolist())


def onto(problem: Problem, z: Tensor) -> Tensor:
    """Points on a curved set, (n, k); chains whose projection fails begin where others do."""
    problem.usage.add_projections(len(z))
    wide = z.to(torch.float64)
    y = problem.constraint.project(wide, quick=True).flatten(1)
    good = problem.constraint.violation(y.reshape(wide.shape)) <= ON_START
    if not bool(good.all()):
        far = torch.nonzero(~good).flatten()
        found = problem.take(far).constraint.solve(wide[far]).point
        good[far] = problem.take(far).constraint.violation(found) <= ON_START
        y[far] = found.flatten(1)
    if not bool(good.any()):
        raise SettingError("no starting point could be projected onto the set; start nearer to it")
    if problem.constraint.chains is None and not bool(good.all()):
        own, others = torch.nonzero(~good).flatten(), torch.nonzero(good).flatten()
        y[own] = y[others[own % len(others)]]
    return y
