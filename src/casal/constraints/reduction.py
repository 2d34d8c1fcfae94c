"""A set with flat sides, reduced once to the walls of a body with an interior.

    {x : low <= G x <= high}  =  {origin + N y : C y <= c},      c > 0: y = 0 is an interior point

1. Implied equations. A wall that no point of the set leaves is an equation: z >= 0 and z <= 0 written as two walls, or
   a flux that the others force to its bound. One linear programme maximises the sum of slacks, each capped. Walls that
   got some are put aside, and the programme is repeated for the others until none of them gets any.
2. Null space. Rows of the equations that depend on others are left out, and N is the rest of a QR of E^T.
3. Interior point: the centre of the largest ball inside the walls, its radius capped for unbounded sets. From there a
   few Newton steps lead to the analytic centre where the set is bounded.
4. Walls. Of two parallel ones the tighter stays. Walls outside the ellipsoid that surely holds a bounded set, around
   its analytic centre, are dropped. A wall that is hit by a ray from the interior point is needed. For
   each of the others a linear programme asks whether the rest implies it.

The programmes are solved by HiGHS, which SciPy brings, to 1e-10: at its default of 1e-7 a set of width 1e-7 would pass
for a plane. SciPy is an optional dependency (``pip install casal[flat]``). Without it, and for sets that differ from
chain to chain, a point of the relative interior is the mean of projections of random points onto the set, walls without
slack there are equations, and walls that the others imply stay: they cost time and change nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from casal.checks import Event
from casal.errors import CasalError, InfeasibleSet, SettingError

SLACK, LP_TOLERANCE, ROUGH_SLACK = 1e-9, 1e-10, 1e-7
"""Slack, in units of the walls' levels, below which a wall is an equation; tolerance of the programmes; and the same
slack where a point of the interior comes from projections."""

RANK = 1e-9
"""Length of what is left of a unit row of the equations, below which it depends on the rows before it."""

LARGEST_RADIUS = 1.0
"""Radius, in units of the walls' levels, at which the ball in an unbounded set ends."""

BLOCK = 64
"""Rows that are made orthogonal to all before them at once."""

ZERO = 1e-10
"""Size of a coordinate with one value below which that is zero: a row of such coordinates alone has no other unit."""

CENTRED = 60
"""Newton steps for the analytic centre, at most."""

RAYS, MOST_PROGRAMMES = 4000, 400
"""Rays that look for needed walls; and walls beyond which the rest is not looked at one by one."""

TRIALS = 64
"""Projected points whose mean is an interior point."""

MOST_NUMBERS = 1 << 24
"""Numbers of the matrix of walls beyond which a set is not written out."""


class Equations(NamedTuple):
    """{x : F x = f}, F of full rank, with what leads back to it.

    Attributes:
        rows: F (k, d), the coordinates that have one value left out: their columns are zero.
        level: f (1 or n, k).
        back: F^+ (d, k).
    """

    rows: Tensor
    level: Tensor
    back: Tensor

    def settled(self, x: Tensor) -> Tensor:
        """Points next to it, moved onto it: x - F^+ (F x - f).

        Points are sums of large terms, whose rounding may be large beside a row of small ones. A step of refinement
        leaves in each row what its own terms round to.
        """
        return x - (x @ self.rows.T - self.level) @ self.back.T


class Reduction(NamedTuple):
    """{origin + N y : C y <= c}.

    Attributes:
        origin: An interior point, (1 or n, d) float64.
        basis: N (d, r) with orthonormal columns; None for the identity.
        walls: C (m, r), unit rows.
        room: c (1 or n, m) > 0.
        fixed: Coordinates that have one value.
        aligned: Whether N is the identity and every wall bounds one coordinate.
        equations: Those that hold on it.
    """

    origin: Tensor
    basis: Tensor | None
    walls: Tensor
    room: Tensor
    fixed: int
    aligned: bool
    equations: Equations

    @property
    def dimension(self) -> int:
        """r."""
        return self.walls.shape[1]

    def told(self) -> str:
        """What it found, in words."""
        size = self.origin.shape[1]
        fixed = f"; {self.fixed} coordinates fixed by the others" if self.fixed else ""
        return f"dimension {self.dimension} of {size}{fixed}; {len(self.walls)} walls"

    def to(self, device: torch.device) -> Reduction:
        """On a device."""
        return self._replace(
            origin=self.origin.to(device), basis=None if self.basis is None else self.basis.to(device),
            walls=self.walls.to(device), room=self.room.to(device),
            equations=Equations(*(part.to(device) for part in self.equations)),
        )  # fmt: skip

    def take(self, some: slice | Tensor) -> Reduction:
        """Of some chains."""
        if len(self.room) == 1:
            return self
        equations = self.equations._replace(level=self.equations.level[some])
        return self._replace(origin=self.origin[some], room=self.room[some], equations=equations)

    def outward(self, y: Tensor) -> Tensor:
        """origin + N y."""
        return self.origin + (y if self.basis is None else y @ self.basis.T)

    def inward(self, x: Tensor) -> Tensor:
        """N^T (x - origin)."""
        away = x - self.origin
        return away if self.basis is None else away @ self.basis

    def pull(self, gradient: Tensor) -> Tensor:
        """N^T g."""
        return gradient if self.basis is None else gradient @ self.basis

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Low and high (1 or n, r) of y, where all walls are bounds."""
        place, upper = self.walls.abs().argmax(1), self.walls.sum(1) > 0
        high = self.room.new_full((len(self.room), self.dimension), torch.inf)
        low = -high
        high[:, place[upper]], low[:, place[~upper]] = self.room[:, upper], -self.room[:, ~upper]
        return low, high

    def drawn_in(self, y: Tensor, share: float) -> Tensor:
        """Points outside, moved towards the interior point: to a share of the way from there to the first wall."""
        if not len(self.walls):
            return y
        reach = ((y @ self.walls.T) / self.room).amax(1, keepdim=True)
        return torch.where(reach > share, y * (share / reach), y)


class FlatSided(Protocol):
    """A set that may have flat sides: what is asked of it here."""

    def linear(self, event: Event) -> Any:
        """Its rows and bounds; None if it has others."""

    def project(self, z: Tensor) -> Tensor:
        """Nearest points."""


def reduced(constraint: FlatSided, event: Event, matrix: Tensor | None = None) -> Reduction | None:
    """The set C of points of a shape, or {x : A x in C}, reduced; None if C is of another kind.

    Args:
        constraint: C.
        event: Shape of a point of C.
        matrix: A (k, d) float64 on the host; None for the identity.

    Raises:
        InfeasibleSet: It is empty.
    """
    rows, size = constraint.linear(event), math.prod(event)
    if rows is None or (len(rows.matrix) + size) * size > MOST_NUMBERS:
        return None
    G = rows.matrix if isinstance(rows.matrix, Tensor) else rows.matrix.to_dense()
    bounded = (torch.isfinite(rows.below) | torch.isfinite(rows.above)).any(0)
    G = torch.cat([G, torch.eye(size, dtype=torch.float64)[bounded]])
    n = max(len(rows.low), len(rows.below))
    low, high = (
        torch.cat([side.expand(n, -1), ends[:, bounded].expand(n, -1)], 1)
        for side, ends in ((rows.low, rows.below), (rows.high, rows.above))
    )
    if matrix is not None:
        G = G @ matrix
    length = torch.linalg.vector_norm(G, dim=1)
    some = length > 1e-12 * float(length.max()) if len(length) else length > 0
    G, low, high = G[some] / length[some, None], low[:, some] / length[some], high[:, some] / length[some]
    equal = (low == high).all(0)
    if bool(((low == high) & ~equal).any()):
        return None  # equations of some chains alone
    above, below = (torch.isfinite(side).any(0) & ~equal for side in (high, low))
    walls = torch.cat([G[above], -G[below]])
    level = torch.cat([high[:, above], -low[:, below]], 1)
    return _reduced(constraint, event if matrix is None else None, G[equal], low[:, equal], walls, level)


def _reduced(
    constraint: FlatSided, event: Event | None, E: Tensor, e: Tensor, W: Tensor, w: Tensor
) -> Reduction | None:
    """From equations E x = e and walls W x <= w, rows of length one; e and w are (1 or n, ...).

    ``event`` is the shape of x; None behind a matrix, where x cannot be projected.
    """
    d, common = E.shape[1], len(w) == 1 and len(e) == 1
    lp = _highs() if common else None
    if lp is not None and len(W):
        inner, implied = _implied(lp, E, e[0], W, w[0])
    elif len(W):
        inner, implied = _by_projections(constraint, event, W, w)
        if bool((implied != implied[:1]).any()):
            return None
        implied = implied[0]
    else:
        inner, implied = torch.zeros((len(e), d), dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
    E, e = torch.cat([E, W[implied]]), torch.cat([e.expand(len(w), -1), w[:, implied]], 1)
    W, w, basis, equations = W[~implied], w[:, ~implied], None, Equations(E[:0], w[:, :0], E[:0].T)
    if len(E):
        basis, inner, equations = _null_space(E, e, inner)
        missed = float((inner @ E.T - e).abs().max())
        if missed > 1e-7 * (1.0 + float(e.abs().max())):
            raise InfeasibleSet(f"the equations of {constraint!r} contradict each other by {missed:.3g}")
    free, fixed = d if basis is None else basis.shape[1], 0
    if free == 0:
        return None
    if basis is not None:
        fixed = int((basis == 0).all(1).sum())
    C = W if basis is None else W @ basis
    length = torch.linalg.vector_norm(C, dim=1)
    if lp is not None and len(C):
        inner = equations.settled(_largest_ball(lp, E, e[0], W, w[0], length, inner[0])[None])
    some = length > 1e-10
    C, c = C[some] / length[some, None], (w - inner @ W.T)[:, some] / length[some]
    C, c = _without_doubles(C, c)
    aligned = basis is None and bool(((C != 0).sum(1) == 1).all())
    if lp is not None and len(C):
        C, c, centre = _near(C, c[0])
        inner, c = inner + (centre.y if basis is None else basis @ centre.y), (c - C @ centre.y)[None]
        inner = equations.settled(inner)
        if not aligned:
            kept = _needed(lp, C, c[0], centre.scale)
            C, c = C[kept], c[:, kept]
    if bool((c <= 0).any()):
        return None
    return Reduction(inner, basis, C, c, fixed, aligned, equations)


def _null_space(E: Tensor, e: Tensor, near: Tensor) -> tuple[Tensor, Tensor, Equations]:
    """An orthonormal basis N (d, r) of {v : E v = 0}, the points of E x = e (n, d) next to given ones, and the rows.

    Coordinates that a row fixes, alone or with others that are fixed, are taken out. The rest gets a QR of the rows
    that do not depend on those before them: it changes little where E changes little, as singular vectors do not. Rows
    that contradict the ones they depend on are not looked at.
    """
    near, free = near.clone(), torch.ones(E.shape[1], dtype=torch.bool)
    while bool((alone := ((left := (E != 0) & free).sum(1) == 1)).any()):
        place = left[alone].to(torch.int8).argmax(1)
        value = (e[:, alone] - near @ (E[alone] * ~free).T) / E[alone, place]
        near[:, place] = torch.where(value.abs() < ZERO, 0.0, value)
        free[place] = False
    level, F = e - near[:, ~free] @ E[:, ~free].T, E[:, free]
    kept = _independent(F)
    F, rank = F[kept], len(kept)
    rows, back = E.new_zeros((rank, E.shape[1])), E.new_zeros((E.shape[1], rank))
    across, inverse = F.new_zeros((F.shape[1], F.shape[1] - rank)), F.new_zeros((F.shape[1], rank))
    label, begun = _parts(F), 0
    for part in label.unique():  # coordinates that share no equation, and no unit, stay apart
        own, alone = torch.nonzero(label == part).flatten(), torch.nonzero((F[:, label == part] != 0).any(1)).flatten()
        Q, R = torch.linalg.qr(F[alone][:, own].T, mode="complete")
        some, ended = len(alone), begun + len(own) - len(alone)
        inverse[own[:, None], alone] = torch.linalg.solve_triangular(R[:some], Q[:, :some].T, upper=True).T
        across[own, begun:ended], begun = torch.where(Q[:, some:].abs() < 1e-14, 0.0, Q[:, some:]), ended
    rows[:, free], back[free] = F, inverse
    equations = Equations(rows, level[:, kept], back)
    basis, near = E.new_zeros((E.shape[1], F.shape[1] - rank)), equations.settled(equations.settled(near))
    basis[free] = across
    fixed = free & (basis.abs().amax(1) < 1e-12) if rank < F.shape[1] else free & False
    if bool(fixed.any()):  # by several rows together: no rounding of others may reach them
        return _null_space(torch.cat([E, torch.eye(len(free)).to(E)[fixed]]), torch.cat([e, near[:, fixed]], 1), near)
    return basis, near, equations


def _parts(F: Tensor) -> Tensor:
    """A number for each coordinate (d,), the same for those that rows of F link, and for those that are in no row."""
    linked, d, before = F != 0, F.shape[1], torch.empty(0)
    label = torch.where(linked.any(0), torch.arange(d), d)
    while len(F) and not torch.equal(label, before):
        before, least = label, torch.where(linked, label, d).amin(1, keepdim=True)
        label = torch.minimum(label, torch.where(linked, least, d).amin(0))
        label = torch.where(label < d, label[label.clamp_max(d - 1)], d)  # the number of that coordinate may be lower
    return label


def _independent(rows: Tensor) -> Tensor:
    """Rows that do not depend on those before them, by Gram-Schmidt in blocks."""
    length = torch.linalg.vector_norm(rows, dim=1)
    found, kept = rows.new_zeros((min(rows.shape), rows.shape[1])), list[int]()
    for first in range(0, len(rows), BLOCK):
        block, start = rows[first : first + BLOCK], len(kept)
        for _ in range(2):
            block = block - (block @ found[:start].T) @ found[:start]
        for i, row in enumerate(block):
            own = found[start : len(kept)]
            rest = row - (row @ own.T) @ own
            rest = rest - (rest @ own.T) @ own
            size = float(torch.linalg.vector_norm(rest))
            if size > RANK * float(length[first + i]) and len(kept) < len(found):
                found[len(kept)] = rest / size
                kept.append(first + i)
    return torch.tensor(kept, dtype=torch.long)


def _without_doubles(C: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Of parallel walls the tightest, where one is for every chain."""
    if not len(C):
        return C, c
    _, group = torch.unique((C * 1e10).round(), dim=0, return_inverse=True)
    if len(c) > 1:
        least = torch.full((len(c), int(group.max()) + 1), torch.inf, dtype=c.dtype)
        least = least.scatter_reduce(1, group.expand_as(c), c, "amin")
        first = torch.full((int(group.max()) + 1,), len(C)).scatter_reduce(0, group, torch.arange(len(C)), "amin")
        return C[first], least
    order = torch.argsort(c[0], stable=True)
    first = torch.full((int(group.max()) + 1,), len(C)).scatter_reduce(0, group[order], torch.arange(len(C)), "amin")
    kept = order[first].sort().values
    return C[kept], c[:, kept]


# ---------------------------------------------------------------------------------------------------- programmes


def _highs() -> Any:
    """SciPy's linear programmes; None where SciPy is not installed."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        return None
    return linprog


def _solved(lp: Any, cost: Tensor, **given: Any) -> Any:
    options = {"primal_feasibility_tolerance": LP_TOLERANCE, "dual_feasibility_tolerance": LP_TOLERANCE}
    found = lp(cost.numpy(), method="highs", options=options, **given)
    if found.status == 2:
        size = max(float(abs(given[name]).max()) for name in ("b_ub", "b_eq") if len(given.get(name, ())))
        raise InfeasibleSet(f"the flat sides of the set have no common point (levels up to {size:.3g})")
    if found.x is None:
        raise SettingError(f"the linear programme of the set was not solved: {found.message}")
    return found


def implied_equations(E: Tensor, e: Tensor, W: Tensor, w: Tensor) -> Tensor | None:
    """Which walls W x <= w no point with E x = e leaves, (m,) bool; None without SciPy, or where a programme fails."""
    lp = _highs()
    if lp is None or not len(W):
        return None
    rows, walls = (torch.linalg.vector_norm(part, dim=1).clamp_min(1e-300) for part in (E, W))
    try:
        return _implied(lp, E / rows[:, None], e / rows, W / walls[:, None], w / walls)[1]
    except CasalError:
        return None


def _implied(lp: Any, E: Tensor, e: Tensor, W: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A point (1, d) with slack at all walls that can have some, and the walls that cannot."""
    from scipy.sparse import csr_matrix, hstack

    m, d = W.shape
    rows, equations = csr_matrix(W.numpy()), csr_matrix(E.numpy())
    cap, open_, points = torch.maximum(torch.ones_like(w), 1e-3 * w.abs()), torch.ones(m, dtype=torch.bool), []
    while bool(open_.any()):
        index = torch.nonzero(open_).flatten()
        k = len(index)
        slacks = csr_matrix((torch.ones(k).numpy(), (index.numpy(), range(k))), shape=(m, k))
        given = {"A_ub": hstack([rows, slacks]), "b_ub": w.numpy()}
        if len(E):
            given |= {"A_eq": hstack([equations, csr_matrix((len(E), k))]), "b_eq": e.numpy()}
        cost = torch.cat([torch.zeros(d), -torch.ones(k)]).to(torch.float64)
        sides = [(None, None)] * d + [(0.0, float(top)) for top in cap[index]]
        found = torch.as_tensor(_solved(lp, cost, bounds=sides, **given).x)
        points.append(found[:d])
        got = found[d:] > SLACK
        if not bool(got.any()):
            break
        open_[index[got]] = False
    return torch.stack(points).mean(0, keepdim=True), open_


def _by_projections(constraint: FlatSided, event: Event | None, W: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The same for every chain (n, d), (n, m), by the mean of projections of random points.

    The points are those of all chains: equal sets get equal coordinates, and chains on them can be copied.
    """
    n, generator = len(w), torch.Generator().manual_seed(0)
    total = torch.zeros((n, W.shape[1]), dtype=torch.float64)
    if event is None:
        raise SettingError("a set behind a decoder is reduced by linear programmes; pip install casal[flat]")
    for k in range(TRIALS):
        size = 10.0 ** (k % 4 - 1)
        start = size * torch.randn((1, *event), generator=generator, dtype=torch.float64)
        total += constraint.project(start.expand(n, *event)).flatten(1) / TRIALS
    slack = w - total @ W.T
    implied = slack <= ROUGH_SLACK * (1.0 + torch.where(torch.isfinite(w), w.abs(), 0.0))
    return total, implied


def _largest_ball(lp: Any, E: Tensor, e: Tensor, W: Tensor, w: Tensor, length: Tensor, inner: Tensor) -> Tensor:
    """The centre (d,) of the largest ball of the set; ``length`` is that of the walls' normals along the set.

    In the coordinates of the user, in which the matrices are sparse.
    """
    from scipy.sparse import csr_matrix, hstack

    d, unit = W.shape[1], float((w - W @ inner).abs().median().clamp_min(1e-300))
    cost = torch.zeros(d + 1, dtype=torch.float64)
    cost[-1] = -1.0
    given = {"A_ub": hstack([csr_matrix(W.numpy()), csr_matrix(length[:, None].numpy())]), "b_ub": w.numpy()}
    if len(E):
        given |= {"A_eq": hstack([csr_matrix(E.numpy()), csr_matrix((len(E), 1))]), "b_eq": e.numpy()}
    sides = [(None, None)] * d + [(0.0, LARGEST_RADIUS * max(unit, 1.0))]
    centre = torch.as_tensor(_solved(lp, cost, bounds=sides, **given).x[:-1])
    return centre if float((w - W @ centre)[length > 1e-10].min()) > 0.0 else inner


class Centre(NamedTuple):
    """The least of -sum log(c - C y) + ridge |y|^2 / 2, and L (r, r), L L^T the inverse of its second derivative."""

    y: Tensor
    scale: Tensor


def analytic_centre(C: Tensor, c: Tensor, y: Tensor, ridge: float = 0.0) -> Centre | None:
    """By Newton steps from an interior point y, each as long as suits; None where the set is unbounded.

    The second derivative is B^T B, B = (C / s, sqrt(ridge) I), and is used through a QR of B: it may have a condition
    number beyond one over the rounding error.
    """
    eye = torch.eye(len(y), dtype=C.dtype, device=C.device)
    lengths = torch.logspace(-3, 0, 16, dtype=C.dtype, device=C.device)
    for _ in range(CENTRED):
        s = c - C @ y
        R = torch.linalg.qr(torch.cat([C / s[:, None], math.sqrt(ridge) * eye]), mode="r").R
        size = R.diagonal().abs()
        if len(R) < len(y) or not float(size.min()) > RANK**1.5 * float(size.max()):
            return None
        g = C.T @ (1.0 / s) + ridge * y
        half = torch.linalg.solve_triangular(R.T, g[:, None], upper=False)
        step = torch.linalg.solve_triangular(R, half, upper=True)
        if float(half.square().sum()) < 1e-9:
            return Centre(y, torch.linalg.solve_triangular(R, eye, upper=True))
        speed = -C @ step
        most = 0.99 / float((speed[:, 0] / s).max().clamp_min(1e-300))
        tried = torch.cat([lengths * most, lengths[-1:].clamp_max(most)])
        cost = -torch.log(s[:, None] - speed * tried).sum(0)
        cost += 0.5 * ridge * (y[:, None] - step * tried).square().sum(0)
        y = y - step[:, 0] * tried[cost.argmin()]
    return None


def _near(C: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Centre]:
    """The walls that are near enough to matter, and their analytic centre; all walls of an unbounded set, and zero.

    The set lies in the ellipsoid |v|^2 <= m (m - 1) around its centre, where |v|^2 = v^T H v with the second derivative
    H of the barrier (Nesterov and Nemirovskii 1994). Walls beyond it are implied by the others.
    """
    here = Centre(torch.zeros_like(C[0]), torch.eye(C.shape[1], dtype=C.dtype))
    while (found := analytic_centre(C, c, here.y)) is not None:
        here, near = found, (c - C @ found.y) < len(C) * torch.linalg.vector_norm(C @ found.scale, dim=1)
        if bool(near.all()):
            break
        C, c = C[near], c[near]
    return C, c, here


def _needed(lp: Any, C: Tensor, c: Tensor, scale: Tensor) -> Tensor:
    """Whether the set would be larger without a wall, (m,) bool; rays from zero are as long as ``scale`` says."""
    m, r = C.shape
    generator = torch.Generator().manual_seed(0)
    rays = torch.randn((RAYS, r), generator=generator, dtype=torch.float64) @ scale.T
    speed = rays @ C.T
    first = torch.where(speed > 0, c / speed.clamp_min(1e-300), torch.inf).argmin(1)
    needed = torch.zeros(m, dtype=torch.bool)
    needed[first] = True
    others = torch.nonzero(~needed).flatten().tolist()
    if len(others) > MOST_PROGRAMMES:
        return torch.ones(m, dtype=torch.bool)
    alive = torch.ones(m, dtype=torch.bool)
    for i in others:
        alive[i] = False
        given = torch.cat([C[alive], C[i : i + 1]]).numpy()
        level = torch.cat([c[alive], c[i : i + 1] + 1.0]).numpy()
        most = -_solved(lp, -C[i], A_ub=given, b_ub=level, bounds=(None, None)).fun
        alive[i] = most > float(c[i]) + 1e-10 * (1.0 + abs(float(c[i])))
    return alive
