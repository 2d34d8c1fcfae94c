"""Where the density of samples is known: at the samples themselves, or, behind a decoder, in another space.

A decoder A takes latents x ~ p to samples z = A x in a set C. Checks that need the score look at a view:

- A is the identity: z, C and grad log p as they are.
- A multiplies each coordinate by a factor (``casal.Standardise``): z in C, and grad log q(z) = A^-T grad log p(A^-1 z).
- C has an interior, any decoder: the latents x, in {x : A x in C}. Their density is p; nothing is asked of A.
- A is linear and onto: z in C. With x distributed as p given A x = z, and A A^+ = I,

      grad log q(z) = E[A^+^T grad log p(x) | z]        (q is the density of A x),

  so A^+^T grad log p(x) may stand for the score of q wherever a mean over samples is taken.
- A is linear and one to one, A = Q R with orthonormal columns Q: u = R x in {u : Q u in C}, which has the surface
  measure of C within the range of A, and grad log q(u) = R^-T grad log p(x).

A set without an interior behind a nonlinear decoder has no view: its surface measure is not that of the latents.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from casal.constraints import Constraint, Polytope, Through, geometry
from casal.diagnostics.check import Evidence, NotAvailable
from casal.diagnostics.edges import ON_THE_SET, Map, Shape, edge_factor, shape_near
from casal.methods import Problem, lift, onto
from casal.methods.flat_flows import rounded
from casal.methods.inside_chains import reduction

SAME = 1e-6
"""Distance of a decoded latent to its sample, in units of the spread of the samples, up to which they are the same."""

MOVED = 0.01
"""Share of samples that may be farther from their decoded latents, where the latents stand for the samples."""

LARGEST_MATRIX = 1 << 22
"""Numbers of a decoder's matrix that is written out."""


@dataclass(frozen=True, eq=False)
class View:
    """Points whose density is known up to a constant, or in the mean.

    Attributes:
        points: (n, *shape), float64.
        shape: Of the set near them.
        inside: Which points are in the set, (n, *shape) -> (n,) bool.
        latent: From points to those of the model, for its score and potential.
        pull: From a score of the model to that of the points, (n, *latent) -> (n, *shape).
        pointwise: Whether the score of each point is known, and not only its mean.
        same: Whether ``points`` are the samples.
    """

    points: Tensor
    shape: Shape
    inside: Map
    latent: Map
    pull: Map
    pointwise: bool = True
    same: bool = True


def view_of(evidence: Evidence, index: Tensor) -> View:
    """That of some of the samples of a run.

    Raises:
        NotAvailable: There is none.
        SettingError: The edge of the set is not known.
    """
    some, latents, y = evidence.lineage.some(index).weights, evidence.latents, getattr(evidence.run.state, "y", None)
    if y is not None and latents is not None:
        inner = inner_view(evidence.problem, y[evidence.index[index]], evidence.run.state.anchor, some)
        if inner is not None:
            return inner
    known = None if latents is None else latents[index]
    return view(evidence.problem, evidence.constraint.take(index), evidence.z[index], some, known)


def view(problem: Problem, constraint: Constraint, z: Tensor, weights: Tensor, latents: Tensor | None) -> View:
    """The view of some samples.

    Args:
        problem: Model and decoder.
        constraint: The set of these samples.
        z: The samples, (n, *event) float64.
        weights: (n,), sum one.
        latents: Where the model was when the samples were taken, (n, *latent), if that is known.

    Raises:
        NotAvailable: There is none.
        SettingError: The edge of the set is not known.
    """

    def inside(y: Tensor) -> Tensor:
        return constraint.violation(y) <= ON_THE_SET

    shape = shape_near(constraint, z, weights)
    if problem.identity:
        return View(z, shape, inside, _same, _same)
    if (factors := problem.decoder.diagonal) is not None:
        decoder = problem.decoder
        return View(z, shape, inside, lambda y: decoder.pinv(y, problem.latent), lambda v: v / factors.to(v))
    if latents is None or tuple(latents.shape[1:]) != problem.latent:
        raise NotAvailable("the method keeps no latents, and behind a decoder the score is known only at latents")
    offset = problem.decode(latents).to(torch.float64) - z
    if shape.project is None:
        return _of_latents(problem, View(z, shape, inside, _same, _same), latents, offset)
    if not problem.decoder.linear:
        raise NotAvailable("the density is not known for a set without an interior behind a nonlinear decoder")
    size, latent = z[0].numel(), torch.Size(problem.latent).numel()
    if onto(problem) and (size < latent or size * latent > LARGEST_MATRIX):
        x = (latents - lift(problem, offset.to(latents.dtype))).to(torch.float64)
        pull = _inverse_transposed(problem, tuple(z.shape[1:]))
        return View(z, shape, inside, lambda y: x, pull, pointwise=False)
    return _of_range(problem, constraint, z, shape.factor)


def inner_view(problem: Problem, y: Tensor, before: Tensor, weights: Tensor) -> View | None:
    """The view of chains that move in the free coordinates of a flat set with equations (``constraints/reduction.py``).

    In coordinates in which they spread evenly, or each of them does where the chains are too few for more; None for
    other sets.

    Args:
        problem: Model, set and decoder.
        y: Free coordinates of the samples, (n, r).
        before: Those of the same chains at an earlier time, which say how they spread independently of the samples.
        weights: (n,), sum one.
    """
    flat = None if problem.constraint.chains is not None or not problem.decoder.linear else reduction(problem)
    if flat is None or flat.basis is None or y.shape[1] != flat.dimension:
        return None
    centre = before.mean(0)
    root, failed = torch.linalg.cholesky_ex((before - centre).T @ (before - centre) / len(before))
    if int(failed) or len(y) <= 2 * flat.dimension:
        root = torch.diag(before.std(0).clamp_min(1e-300))
    u = torch.linalg.solve_triangular(root, (y - centre).T, upper=False).T
    walls = rounded(flat.walls, flat.room, centre, root)
    factor = edge_factor(Polytope(walls.normals, walls.levels[0]), u, weights) if len(flat.walls) else None

    def latent(u: Tensor) -> Tensor:
        return flat.outward(centre + u @ root.T).reshape(-1, *problem.latent)

    def inside(u: Tensor) -> Tensor:
        return (u @ walls.normals.T <= walls.levels).all(1)

    return View(u, Shape(None, factor, _same), inside, latent, lambda g: flat.pull(g.flatten(1)) @ root, same=False)


def _of_latents(problem: Problem, samples: View, x: Tensor, offset: Tensor) -> View:
    z, factor = samples.points, samples.shape.factor
    spread = (z - z.mean(0)).square().flatten(1).sum(1).mean().sqrt()
    moved = (torch.linalg.vector_norm(offset.flatten(1), dim=1) > SAME * spread).to(torch.float64).mean()
    if float(moved) > MOVED:
        raise NotAvailable(f"{100 * float(moved):.2g} % of the latents do not decode to a point of the set")

    def decode(y: Tensor) -> Tensor:
        return problem.decode(y.to(problem.like.dtype)).to(torch.float64)

    shape = Shape(None, None if factor is None else lambda y: factor(decode(y)), _same)
    return View(x.to(torch.float64), shape, lambda y: samples.inside(decode(y)), _same, _same, same=False)


def _of_range(problem: Problem, constraint: Constraint, z: Tensor, factor: Map | None) -> View:
    """Coordinates of the range of a linear decoder that is one to one."""
    A = _matrix(problem)
    if A.shape[0] < A.shape[1] or int(torch.linalg.matrix_rank(A)) < A.shape[1]:
        raise NotAvailable("the decoder's matrix does not have full rank")
    Q, R = torch.linalg.qr(A)
    event = tuple(z.shape[1:])
    surface = geometry.parts(Through(constraint, Q, shape=event), (Q.shape[1],)).surface
    if surface is None:
        raise NotAvailable("within the range of the decoder the set has another dimension")
    u = surface.project(z.flatten(1) @ Q)

    def decode(y: Tensor) -> Tensor:
        return (y @ Q.T).reshape(len(y), *event)

    def latent(y: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(R, y.T, upper=True).T.reshape(len(y), *problem.latent)

    def pull(score: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(R.T, score.flatten(1).T, upper=False).T

    within = None if factor is None else lambda y: factor(decode(y))
    shape = Shape(lambda y: surface.project(y, warm=u), within, surface.project)
    return View(u, shape, lambda y: constraint.violation(decode(y)) <= ON_THE_SET, latent, pull, same=False)


def _inverse_transposed(problem: Problem, event: tuple[int, ...]) -> Map:
    """A^+^T: A / c where A A^T = c I, else by the matrix."""
    decoder, like = problem.decoder, problem.like
    drawn = torch.randn((4, *event), generator=torch.Generator().manual_seed(4248), dtype=torch.float64)
    w = drawn.to(like.device, like.dtype)
    origin = like.new_zeros((4, *problem.latent))
    back, square = problem.decode(decoder.vjp(origin)(w)), decoder.norm() ** 2
    if float((back - square * w).abs().max()) <= 1e-4 * square * float(w.abs().max()):
        return lambda s: problem.decode(s.to(like.dtype)).to(torch.float64) / square
    inverse = torch.linalg.pinv(_matrix(problem))
    return lambda s: (s.flatten(1) @ inverse).reshape(len(s), *event)


def _matrix(problem: Problem) -> Tensor:
    rows = problem.decode(problem.like.new_zeros((1, *problem.latent))).numel()
    if rows * torch.Size(problem.latent).numel() > LARGEST_MATRIX:
        raise NotAvailable(f"the decoder's matrix has more than {LARGEST_MATRIX} numbers")
    return problem.decoder.matrix(problem.latent, problem.like)


def _same(y: Tensor) -> Tensor:
    return y
