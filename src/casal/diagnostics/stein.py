"""Stein's identity on a set: functions whose mean is zero if, and in practice only if, samples follow p on the set.

For a smooth field w on a surface M without an edge, and z distributed as p (density with respect to the surface
measure), E[div_M w + s . w] = 0 with s = grad log p. If M has an edge, where inequalities end it, a factor g that
vanishes there is added:

    E[g (div_M w + s . w) + grad_M g . w] = 0.

Everything about M is read off its projection P by differences. With T = dP(z), which projects vectors onto the tangent
space at z, and H = sum_j d^2P(z)[t_j, t_j] over an orthonormal basis t_j of it (the mean curvature vector), constant
fields w_j, projected onto M, and the same times a linear function u_l of slope c_l give

    F_j  = g (H . w_j + s . T w_j) + dg(T w_j),        M_jl = F_j u_l + g (T w_j) . c_l.

Along an axis the noise of the score may hide the error of a slow direction between the axes. So fields and functions
are those of whitened coordinates, fitted to one half of the samples and used on the other, in turn. With D the
standard deviations, V L V' the correlation of that half and m its mean,

    u = L^(-1/2) V' D^-1 (z - m),      w_j = D V L^(1/2) e_j,      c_l = D^-1 V L^(-1/2) e_l:

w_j is one standard deviation long, whatever the units. E F . v is about the error of a mean in standard deviations,
E v'M v about the relative error of a variance. Two kinds of directions v are tested:

- the widest and the narrowest axis, and the field z - m (all directions at once), on all samples;
- where the half that the coordinates were fitted to disagrees most, on the other half alone: the mean of F, and the
  extreme eigenvectors of M. Both halves together would count the same deviation twice.

The score of a diffusion model is known with noise only. Where it is given at several noise levels, each field takes
the finest two that agree along it, since a network may be wrong at small noise, and noise blurs narrow directions
first; a field along which no two agree is left out. The score is evaluated once at each sample and level; the rest are
projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from casal.constraints import geometry
from casal.diagnostics.behind import view_of
from casal.diagnostics.check import (
    FOUND,
    LARGEST_BIAS,
    LARGEST_DETECTABLE,
    NOT_CHECKED,
    REJECT,
    SMALL_BIAS,
    Check,
    Evidence,
    NotAvailable,
    zero_test,
)
from casal.diagnostics.edges import has_hidden_edge, parts_of, slopes
from casal.diagnostics.model_score import Slope, along, gradient, refuse_wrong_network, scores_at
from casal.diagnostics.modes import modes_of
from casal.errors import CasalError
from casal.methods import HMC
from casal.methods.population import Lineage, student_quantile

Map = Callable[[Tensor], Tensor]
"""(n, d) -> (n, d) for a projection, (n, d) -> (n,) for a factor."""

EXACT_DIMENSION = 16
"""Coordinates up to which all directions are taken; above, the sums over them are estimated without bias."""

PROBES = 8
"""Random directions a sample for these estimates."""

WIDE, NARROW = 8, 4
"""Fields above EXACT_DIMENSION: those along the widest and the narrowest axes of the samples."""

FLAT = 1e-7
"""Eigenvalues of the correlation below this share of the largest belong to directions that equations fix."""

STEP = 3e-3
"""Step of a difference, in standard deviations of the samples along it."""


class SteinTerms(NamedTuple):
    """What Stein's identity says of some samples.

    Attributes:
        values: One column for each function tested, (n, m): mean zero for right samples.
        scale: From the mean of a column to the error of the mean of its function in standard deviations, (m,).
        lineage: Weights and ancestors of these samples.
        levels: Numbers of the noise levels that the score was read off.
    """

    values: Tensor
    scale: Tensor
    lineage: Lineage
    levels: frozenset[int]


class Tangents(NamedTuple):
    """The surface at each sample.

    Attributes:
        bend: H, (n, d).
        push: (v, h) -> T v by a difference of length h v, (n, d) -> (n, d).
        dimension: tr(T^T T), (n,); estimated above EXACT_DIMENSION.
    """

    bend: Tensor
    push: Callable[[Tensor, float], Tensor]
    dimension: Tensor


class Whitened(NamedTuple):
    """Coordinates in which samples have variance one, along the widest axis first.

    Attributes:
        mean: m, (d,).
        fields: w_j, (r, d).
        slopes: c_l, (r, d).
    """

    mean: Tensor
    fields: Tensor
    slopes: Tensor


def projections_needed(size: int) -> int:
    """Projections of a sample that ``stein_terms`` takes on a surface in so many coordinates."""
    if size <= EXACT_DIMENSION:
        return 4 * size + 1
    return 4 * PROBES + 1 + 4 * (WIDE + NARROW + 1)


def stein_terms(
    z: Tensor,
    score: Sequence[Tensor],
    lineage: Lineage,
    project: Map | None = None,
    factor: Map | None = None,
    centres: Tensor | None = None,
) -> list[SteinTerms]:
    """The columns that Stein's identity makes zero on average: of all samples, and of each half.

    The first two columns of all samples are about means, along the widest and the narrowest axis. No columns if the set
    is a point, or if the score is known along no direction.

    Args:
        z: Samples (n, d), float64.
        score: grad log p at the samples, (n, d): one, or those of noise levels that double, the finest first.
        lineage: Their weights and ancestors: halves are made of whole families.
        project: Onto the surface; None for a set with an interior.
        factor: g; None for a surface without an edge.
        centres: Of the mode of each sample, (n, d): z - centre then takes the place of z in the functions, which are
            told from each other within modes, in standard deviations of a mode. The factor must vanish between modes.
    """
    place = z if centres is None else z - centres
    spread = deviations(place, lineage.weights)
    if not bool(torch.isfinite(spread).all()):
        return []  # numbers whose squares overflow
    at = tangents(z, spread, project)
    halves = [torch.nonzero(lineage.halves == k).flatten() for k in (0, 1)]
    edge = None if factor is None else (factor(z), slopes(factor, z))
    flows = [
        _Flow(z, place, score, at, edge, whitened(place[half], lineage.some(half).weights, spread)) for half in halves
    ]
    if not all(len(flow.white.fields) for flow in flows):
        return []
    every, found = list[SteinTerms](), list[SteinTerms]()
    for fitted, here in ((0, 1), (1, 0)):
        family, other = lineage.some(halves[here]), lineage.some(halves[fitted])
        every.append(_along_axes(flows[fitted], halves[here], family, flows[0].white))
        found.append(_along_errors(flows[fitted], halves[here], family, halves[fitted], other))
    values = z.new_empty(len(z), every[0].values.shape[1])
    for half, part in zip(halves[::-1], every, strict=True):
        values[half] = part.values
    return [SteinTerms(values, (every[0].scale + every[1].scale) / 2, lineage, flows[0].levels), *found]


def deviations(z: Tensor, weights: Tensor) -> Tensor:
    """Standard deviation of each coordinate (d,); where it is zero, the mean of the others."""
    spread = (weights @ (z - weights @ z).square()).sqrt()
    moves = spread > 1e-12 * z.abs().amax(0)
    return torch.where(moves, spread, float(spread[moves].mean()) if bool(moves.any()) else 1.0)


def whitened(z: Tensor, weights: Tensor, spread: Tensor) -> Whitened:
    """Whitened coordinates of samples (n, d) with weights (n,), by the eigenvectors of their correlation.

    Of many, the WIDE widest and the NARROW narrowest. In more coordinates than samples by the samples' own products.
    """
    mean = weights @ z
    scaled = weights.sqrt()[:, None] * (z - mean) / spread
    _, size, rows = torch.linalg.svd(scaled, full_matrices=False)
    kept = torch.nonzero(size.square() > FLAT * size[0].square().clamp_min(FLAT)).flatten()
    if z.shape[1] > EXACT_DIMENSION and len(kept) > WIDE + NARROW:
        kept = torch.cat([kept[:WIDE], kept[-NARROW:]])
    root, rows = size[kept, None], rows[kept]
    return Whitened(mean, rows * root * spread, rows / (root * spread))


class _Flow:
    """F, M and u of samples, in the whitened coordinates of one half of them.

    Args:
        z: All samples.
        place: They, or their places within their modes.
        score: s at them, of one level or several.
        at: The surface there.
        edge: g and its gradient; None for one.
        white: The coordinates.
    """

    def __init__(
        self,
        z: Tensor,
        place: Tensor,
        score: Sequence[Tensor],
        at: Tangents,
        edge: tuple[Tensor, Tensor] | None,
        white: Whitened,
    ) -> None:
        self._z, self._place, self._score, self._at, self._edge = z, place, score, at, edge
        self.levels = frozenset[int]()
        self._g = z.new_ones(len(z)) if edge is None else edge[0]
        first, turned, known = list[Tensor](), list[Tensor](), torch.zeros(len(white.fields), dtype=torch.bool)
        for k, w in enumerate(white.fields):
            tangent = at.push(w.expand_as(z), STEP)
            slope = along(score, tangent)
            flow = None if slope is None else self._flow(w, tangent, slope)
            if flow is not None:
                known[k] = True
                first.append(flow)
                turned.append(self._g[:, None] * (tangent @ white.slopes.T))
        known = known.to(z.device)
        self.white = white = Whitened(white.mean, white.fields[known], white.slopes[known])
        self.u = (place - white.mean) @ white.slopes.T
        if first:
            self.first = torch.stack(first, 1)
            self.turned = torch.stack(turned, 1)[:, :, known]  # g (T w_j) . c_l

    def _flow(self, w: Tensor, tangent: Tensor, slope: Slope) -> Tensor | None:
        """g (H . w + s . T w) + dg(T w) of a field w, constant or along z; None where it is no number."""
        self.levels |= {slope.level}
        flow = self._g * ((self._at.bend * w).sum(1) + slope.values)
        if self._edge is not None:
            flow = flow + (self._edge[1] * tangent).sum(1)
        return flow if bool(torch.isfinite(flow).all()) else None

    def second(self, some: Tensor) -> Tensor:
        """M of some samples, (n, r, r)."""
        return self.first[some][:, :, None] * self.u[some][:, None] + self.turned[some]

    def radial(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the field z - m gives, (n,); zero if it is not known.

        Also g times the root of the dimension, (n,), and what the noise may take from s . (z - m): small errors along
        many narrow directions add up.
        """
        away = self._place - self.white.mean
        tangent, size = self._at.push(away, STEP / math.sqrt(self._z.shape[1])), self._at.dimension
        root, slope = self._g * size.clamp_min(0.0).sqrt(), along(self._score, tangent)
        flow = None if slope is None else self._flow(away, tangent, slope)
        if slope is None or flow is None:
            return torch.zeros_like(root), root, torch.zeros_like(root)
        return flow + self._g * size, root, slope.doubt * self._g * slope.values.abs()


def _along_axes(flow: _Flow, here: Tensor, family: Lineage, reference: Whitened) -> SteinTerms:
    """F and M along the widest and the narrowest axis, and the field z - m, of some samples.

    Signs are such that axes of both halves point the same way.
    """
    white = flow.white
    ends = [0, -1]
    same = _sign((white.fields[ends] * reference.slopes[ends]).sum(1))
    axes = torch.eye(len(white.fields), dtype=same.dtype, device=same.device)[ends] * same[:, None]
    first, second, scale = _columns(flow, here, family.weights, axes)
    radial, root, doubt = (values[here] for values in flow.radial())
    allowed = float(family.weights @ doubt)
    radial = radial - (family.weights @ radial).clamp(-allowed, allowed)
    last = 1.0 / (math.sqrt(2.0) * (family.weights @ root)).clamp_min(torch.finfo(root.dtype).tiny)
    values, scale = torch.cat([first, second, radial[:, None]], 1), torch.cat([scale, last[None]])
    return SteinTerms(values, scale, family, flow.levels)


def _along_errors(flow: _Flow, here: Tensor, family: Lineage, fitted: Tensor, other: Lineage) -> SteinTerms:
    """F and M of some samples where those that the coordinates were fitted to disagree most."""
    mean = other.weights @ flow.first[fitted]
    steepest = mean / torch.linalg.vector_norm(mean).clamp_min(torch.finfo(mean.dtype).tiny)
    square = torch.tensordot(other.weights, flow.second(fitted), dims=1)
    extreme = torch.linalg.eigh((square + square.T) / 2)[1].T[[0, -1]]
    first, second, scale = _columns(flow, here, family.weights, torch.cat([steepest[None], extreme]))
    told = torch.arange(first.shape[1] + second.shape[1], device=mean.device) != first.shape[1]  # not M along E F
    return SteinTerms(torch.cat([first, second], 1)[:, told], scale[told], family, flow.levels)


def _columns(flow: _Flow, here: Tensor, weights: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F . v and v'M v of some samples for directions v (k, r), (n, k) each, and the scales of both, (2 k,).

    The error of E f is about |E L f| sd(f) / E[g |grad f|^2], the rate at which the dynamics of L forgets f.
    """
    first, height = flow.first[here] @ v.T, flow.u[here] @ v.T
    slope = torch.einsum("kj,njl,kl->nk", v, flow.turned[here], v)
    f, second = torch.cat([height, height.square() / 2], 1), first * height + slope
    spread = (weights @ (f - weights @ f).square()).sqrt()
    energy = weights @ torch.cat([slope, height.square() * slope], 1)
    return first, second, spread / energy.abs().clamp_min(torch.finfo(f.dtype).tiny)


def _sign(v: Tensor) -> Tensor:
    return 1.0 - 2.0 * (v < 0.0).to(v.dtype)


def tangents(z: Tensor, spread: Tensor, project: Map | None) -> Tangents:
    """The tangent projector and the mean curvature vector at points z of a surface, from its projection.

    T w comes first, for any w, and second differences go along T w alone: along a tangent every projection that is
    right to first order is right to second order, so one that is only nearly the nearest point will do.

    Args:
        z: (n, d).
        spread: Of each coordinate, (d,): no difference moves a coordinate by more than STEP of it.
        project: None for a set with an interior.
    """
    size = z.shape[1]
    if project is None:
        return Tangents(torch.zeros_like(z), lambda v, h: v, z.new_full((len(z),), float(size)))
    nearest = project(z)

    def push(v: Tensor, h: float | Tensor) -> Tensor:
        return (project(z + h * v) - project(z - h * v)) / (2.0 * h)

    def step(v: Tensor, least: float | Tensor) -> Tensor:
        return STEP / (v.abs() / spread).amax(1, keepdim=True).clamp_min(least)

    def second(v: Tensor, h: Tensor) -> Tensor:
        return (project(z + h * v) + project(z - h * v) - 2.0 * nearest) / h.square()

    bend, dimension = torch.zeros_like(z), z.new_zeros(len(z))
    if size <= EXACT_DIMENSION:
        columns = z.new_empty(len(z), size, size)
        for k, axis in enumerate(torch.eye(size, dtype=z.dtype, device=z.device)):
            columns[:, k] = push(axis.expand_as(z), STEP * spread[k])
            bend += second(columns[:, k], step(columns[:, k], 1.0 / spread[k]))
        return Tangents(bend, lambda v, h: torch.einsum("nj,njk->nk", v, columns), columns.square().sum((1, 2)))
    stream = torch.Generator(z.device).manual_seed(4243)
    for _ in range(PROBES):
        sign = torch.randint(2, z.shape, generator=stream, device=z.device, dtype=torch.int8)
        v = (2.0 * sign.to(z) - 1.0) / math.sqrt(size)
        tangent = push(v, step(v, 0.0))
        bend += second(tangent, step(tangent, 1.0 / float(spread.max()))) * (size / PROBES)
        dimension += tangent.square().sum(1) * (size / PROBES)
    return Tangents(bend, push, dimension)


def by_score(evidence: Evidence) -> Iterator[Check]:
    """Whether Stein's identity holds, and whether the score is the gradient of the potential.

    Where it is not, and moves that use the potential alone leave the samples as they are (``second_kind`` of ``HMC``),
    these follow the potential: that is worth a note, and Stein's identity says nothing.
    """
    told, agreement = list[Check](), Check()
    try:
        told.extend(stein(evidence))
    except (NotAvailable, CasalError) as reason:
        told.append(Check(missing=(f"the samples were not compared with the score: {reason}",)))
    with suppress(NotAvailable, CasalError):
        agreement = gradient(evidence)
    if agreement.objection and evidence.last.get("second_detectable", math.inf) <= LARGEST_DETECTABLE:
        said = agreement.says.partition(":")[0]
        sentence = f"{said}; the samples follow the potential, by moves that use it alone"
        told = [Check(figures=check.figures) for check in told]
        agreement = Check(figures=agreement.figures, notes=(sentence,))
    yield from (*told, agreement)


def stein(evidence: Evidence) -> Iterator[Check]:
    """Whether Stein's identity holds for the samples, by t-tests over ancestors, and within separate modes."""
    problem, z, event = evidence.problem, evidence.z, tuple(evidence.z.shape[1:])
    if evidence.constraint.convex and geometry.codimension(evidence.constraint, event) == evidence.flat.shape[1]:
        yield Check(detectable=0.0)  # one point, where nothing can be wrong
        return
    yield Check(figures=dict.fromkeys(("stein_t", "stein_p", "stein_bias"), NOT_CHECKED))
    if bool((evidence.flat == evidence.flat[:1]).all()):
        raise NotAvailable("the samples are all equal")
    if has_hidden_edge(evidence.constraint, z, evidence.mean):
        raise NotAvailable("the set has an edge but gives no inequalities; write it with inequalities (casal.Implicit)")
    parts = parts_of(evidence.constraint, event)
    thin = parts is None or parts.surface is not None
    index = evidence.affordable(1.0 if problem.table.static else 2.0, projections_needed(z[0].numel()) if thin else 0)
    lineage, seen = evidence.lineage.some(index), view_of(evidence, index)
    points, nearest, factor = seen.points, seen.shape.project, seen.shape.factor
    found_at = scores_at(problem.take(evidence.index[index]), seen.latent(points), evidence.left)
    score = [seen.pull(one).flatten(1) for one in found_at]
    known = torch.stack([torch.isfinite(one).all(1) for one in score]).all(0)
    if not bool(known.all()):
        share = 1.0 - float(lineage.weights @ known.to(torch.float64))
        moves = ", or casal.HMC(), which moves inside it" if HMC().fits(problem) else ""
        yield Check(
            share,
            0.0,
            f"the score is not a finite number at {100 * share:.2g} % of the samples: the density ends inside the set, "
            "or a projection put them where it has no value",
            f"use a set on which the density is defined{moves}",
            figures={"not_finite": share},
        )
        return

    def project(y: Tensor) -> Tensor:
        assert nearest is not None
        problem.usage.add_projections(len(y))
        return nearest(y.reshape(points.shape)).flatten(1)

    edge = None if factor is None else lambda y: factor(y.reshape(points.shape))
    terms = partial(stein_terms, points.flatten(1), score, lineage, None if nearest is None else project)
    tests = terms(edge)
    if not tests:
        raise NotAvailable(_not_known(problem.table.static))
    modes = modes_of(evidence)
    apart = list[SteinTerms]()
    if modes.number > 1 and seen.same:
        modes = modes._replace(label=modes.label[index])
        walls = modes.walls
        both = walls if edge is None else lambda y: torch.minimum(edge(y), walls(y))
        apart = terms(both, modes.centres[modes.label])
    every, tests = len(tests), [*tests, *apart]
    found = [zero_test(test.lineage, test.values) for test in tests]
    count = sum(test.values.shape[1] for test in tests)
    p, t = torch.cat([one.p for one in found]) * count, torch.cat([one.t for one in found])
    bias = torch.cat([one.mean.abs() * test.scale for one, test in zip(found, tests, strict=True)])
    told = (p < REJECT) & (bias > SMALL_BIAS)
    worst = int(torch.where(told, p, torch.inf).argmin()) if bool(told.any()) else int(p.argmin())
    figures = {
        "stein_t": float(t[worst]),
        "stein_p": min(1.0, float(p[worst])),
        "stein_bias": float(bias[worst].clamp_max(LARGEST_BIAS)),
    }
    needed = student_quantile(REJECT / count, lineage.effective - 1.0) + FOUND
    least, within = (
        needed * float((found[k].error * tests[k].scale)[:2].min()) if k < len(tests) else math.inf  # along two axes
        for k in (0, every)
    )
    if bool(told.any()):
        refuse_wrong_network(problem, tests[0].levels, evidence.left)
    model = (
        "" if problem.table.static else ", or check the model's score at small noise (casal.diagnostics.calibration)"
    )
    ladder = evidence.rho is not None and not evidence.last.get("corrected", 0.0) > 0.0
    yield Check(
        figures["stein_bias"] if bool(told.any()) else 0.0,
        SMALL_BIAS,
        f"the samples do not follow the score (Stein's identity fails by {figures['stein_t']:.1f} standard errors, "
        f"p = {figures['stein_p']:.1g}; a mean may be off by {figures['stein_bias']:.2g} standard deviations)",
        f"{evidence.more_steps()}{f'; or {evidence.closer()}' if ladder else ''}{model}",
        detectable=least,
        within=within,
        figures=figures,
    )


def _not_known(static: bool) -> str:
    """Why no direction could be tested."""
    if static:
        return "the samples do not vary"
    return (
        "the model's scores at neighbouring noise levels differ by more than 20 % along every direction, so its score "
        "without noise is not known; casal.calibrate(target, family, method, n=64) checks the method on this model, "
        "at the price of three such runs"
    )
