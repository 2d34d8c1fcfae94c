"""The descent lemmas of the paper's proof (D.8, D.9) as inequalities between numbers: points, steps, slack.

Each function returns the slack, left side minus right side: a lemma holds where no slack is negative. A lemma is tried
on many points, drawn once from a fixed seed, and where it fails on a point that can be checked by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from casal_lab.experiment import FAILS, HOLDS, PARTLY, Array, Claim, ResultTable, reached
from casal_lab.propositions.setup import Check

POINTS, QUICK_POINTS = 200_000, 20_000
SEED = 0
ROUNDING = -1e-6
"""A slack above this counts as zero: the terms are of order up to 1e9, and some inequalities are equalities."""


def square(*parts: Array) -> Array:
    """|(a, b, ...)|^2 over the last dimension of every part."""
    return np.asarray(sum(np.square(part).sum(-1) for part in parts))


def norm(*parts: Array) -> Array:
    """|(a, b, ...)|."""
    return np.sqrt(square(*parts))


class Points(NamedTuple):
    """A batch of what the lemmas are about: f(x) = 1/2 sum_i c_i x_i^2, C = [-1, 1]^d, A = I."""

    x: Array
    z: Array  # in C
    mu: Array
    y: Array
    w: Array  # in C
    nu: Array
    curvature: Array  # (N, d), between alpha and beta
    rho: Array  # (N,)
    tau: Array  # (N,), with 4 tau (beta + 4 rho) <= 1

    @property
    def alpha(self) -> Array:
        """The smallest curvature of f."""
        return np.asarray(self.curvature.min(-1))

    @property
    def beta(self) -> Array:
        """The largest curvature of f."""
        return np.asarray(self.curvature.max(-1))

    @property
    def diameter(self) -> float:
        """D_C of the box."""
        return 2.0 * float(np.sqrt(self.x.shape[-1]))

    def potential(self, x: Array) -> Array:
        """f."""
        return np.asarray(0.5 * (self.curvature * np.square(x)).sum(-1))


def drawn(count: int, size: int) -> Points:
    """Points of all scales, drawn from the fixed seed."""
    rng = np.random.default_rng(SEED)

    def scale(low: float, high: float, *shape: int) -> Array:
        return np.exp(rng.uniform(low, high, shape))

    x, mu, y, nu = (rng.normal(size=(count, size)) * scale(-3.0, 1.5, count, 1) for _ in range(4))
    z, w = (rng.uniform(-1.0, 1.0, (count, size)) for _ in range(2))
    curvature, rho = scale(-4.0, 2.0, count, size), scale(-3.0, 4.0, count)
    tau = scale(-7.0, 0.0, count) / (4 * (curvature.max(-1) + 4 * rho))
    return Points(x, z, mu, y, w, nu, curvature, rho, tau)


def point(x: float, z: float, mu: float, y: float, w: float, curvature: float, rho: float, tau: float) -> Points:
    """One point on the line, with nu = 0."""
    at = np.array([x, z, mu, y, w, 0.0, curvature], dtype=np.float64)[:, None, None]
    return Points(at[0], at[1], at[2], at[3], at[4], at[5], at[6], np.array([rho]), np.array([tau]))


def gradient_slack(at: Points) -> Array:
    """Lemma 3: x+ = x - tau grad f(x), with (1 - beta tau) |x+ - x|^2 / (2 tau) + alpha/2 |x - y|^2 on the right."""
    after = at.x - at.tau[:, None] * at.curvature * at.x
    left = (square(at.x - at.y) - square(after - at.y)) / (2 * at.tau)
    moved = (1 - at.beta * at.tau) / (2 * at.tau) * square(after - at.x)
    return np.asarray(
        left - at.potential(after) + at.potential(at.y) - moved - at.alpha / 2 * square(at.x - at.y),
    )


def projection_slack(z: Array, w: Array) -> Array:
    """Lemma 4: |z - w|^2 - |P(z) - w|^2 >= |P(z) - z|^2 on the box."""
    nearest = np.clip(z, -1.0, 1.0)
    return square(z - w) - square(nearest - w) - square(nearest - z)


def alternated_slack(A: Array, transposed: Array, tau: Array, points: tuple[Array, ...]) -> Array:
    """Lemma 5 for matrices A (N, k, d) and the matrix of the x-step, printed as A where A^T is meant."""
    x, hat_x, y, z, hat_z, mu, w = points

    def apply(matrix: Array, vector: Array) -> Array:
        return np.einsum("nij,nj->ni", matrix, vector)

    def coupling(x: Array, z: Array) -> Array:
        return 0.5 * square(apply(A, x) - z + mu)

    after_x = x - tau[:, None] * apply(transposed, apply(A, x) + mu - z)
    after_z = z - tau[:, None] * (z - apply(A, hat_x) - mu)
    size = np.linalg.norm(A, 2, axis=(-2, -1))
    left = (square(x - y, z - w) - square(after_x - y, after_z - w)) / (2 * tau)
    right = coupling(hat_x, hat_z) - coupling(y, w)
    right -= norm(x - after_x, z - after_z) * norm(after_x - hat_x, after_z - hat_z) / tau
    right -= size * norm(x - hat_x) * norm(w - hat_z)
    right += square(after_x - x, after_z - z) / (2 * tau) - (size**2 + 1) / 2 * square(hat_x - x, hat_z - z)
    return np.asarray(left - right)


class Step(NamedTuple):
    """x' and z' before, x+ and z+ after the proximal and the projection step of lemmas 6 and 7."""

    x_mid: Array
    z_mid: Array
    x: Array
    z: Array


def step(at: Points) -> Step:
    """x+ = prox_{tau f}(x - tau rho (x + mu - z)), z+ = P(z - tau rho (z - x+ - mu))."""
    k = (at.tau * at.rho)[:, None]
    x_mid = at.x - k * (at.x + at.mu - at.z)
    x = x_mid / (1 + at.tau[:, None] * at.curvature)
    z_mid = at.z - k * (at.z - x - at.mu)
    return Step(x_mid, z_mid, x, np.clip(z_mid, -1.0, 1.0))


def proximal_slack(at: Points, *, factor: Array, convex_in_z: bool) -> Array:
    """Lemma 6 with a factor of |(x - x', z - z')| |(x' - x+, z' - z+)|; alpha/2 |z+ - w|^2 on the right or not.

    Printed: factor 1 / (rho tau), and the term in z. Right: 1 / tau, and no term in z, since f does not depend on z.
    """
    to = step(at)
    left = (square(at.x - at.y, at.z - at.w) - square(to.x - at.y, to.z - at.w)) / (2 * at.tau)
    right = at.potential(to.x) - at.potential(at.y)
    right = right + at.rho / 2 * (square(to.x + at.mu - to.z) - square(at.y + at.mu - at.w))
    right += square(to.x_mid - at.x, to.z_mid - at.z) / (2 * at.tau)
    right += (1 - at.beta * at.tau) / (2 * at.tau) * square(to.x - to.x_mid, to.z - to.z_mid)
    right += at.alpha / 2 * (square(to.x - at.y) + convex_in_z * square(to.z - at.w))
    right -= factor * norm(at.x - to.x_mid, at.z - to.z_mid) * norm(to.x_mid - to.x, to.z_mid - to.z)
    right -= at.rho * norm(at.x - to.x) * at.diameter
    right -= at.rho * square(to.x - at.x, to.z - at.z)
    return np.asarray(left - right)


def dual_slack(at: Points, *, printed: bool, dual: Array) -> Array:
    """Lemma 7 with the dual step lambda+ = lambda + dual (x+ - z+), printed or with the constants of its proof.

    Printed: alpha/2 |(x+ - y, z+ - w)|^2 - 4 tau D^2 - 2 M tau^2 - rho tau/2 |x+ - z+|^2.
    Right:   alpha/2 |x+ - y|^2 - 2 tau rho^2 (D^2 + M^2) - tau/2 |x+ - z+|^2, M = |(x - z + mu, z - x+ - mu)|.
    """
    to = step(at)
    gap, lam = to.x - to.z, at.rho[:, None] * at.mu
    after = lam + dual[:, None] * gap
    left = square(at.x - at.y, at.z - at.w) - square(to.x - at.y, to.z - at.w)
    left = (left + square(lam - at.nu) - square(after - at.nu)) / (2 * at.tau)
    right = at.potential(to.x) - at.potential(at.y) + at.rho / 2 * (square(gap) - square(at.y - at.w))
    right = right + (at.nu * gap).sum(-1) - (lam * (at.y - at.w)).sum(-1) + at.alpha / 2 * square(to.x - at.y)
    bound = norm(at.x - at.z + at.mu, at.z - to.x - at.mu)
    if printed:
        right += at.alpha / 2 * square(to.z - at.w)
        right -= 4 * at.tau * at.diameter**2 + 2 * bound * at.tau**2 + at.rho * at.tau / 2 * square(gap)
    else:
        right -= 2 * at.tau * at.rho**2 * (at.diameter**2 + bound**2) + at.tau / 2 * square(gap)
    return np.asarray(left - right)


def _row(form: str, *slacks: Array) -> dict[str, Any]:
    """Smallest slack and share of points with a negative one."""
    every = np.concatenate(slacks)
    return {"form": form, "least": float(every.min()), "broken": float((every < ROUNDING).mean()), "n": len(every)}


def _table(title: str, rows: list[dict[str, Any]]) -> ResultTable:
    header = "form | least: smallest slack, .3g | broken: share of points that break it, .2% | n: points, d"
    return ResultTable.of(title, header, rows)


def _count(quick: bool) -> int:
    return QUICK_POINTS if quick else POINTS


def descent(quick: bool) -> Check:
    """Lemmas 3 and 4: the standard inequalities of a gradient step and of a projection."""
    batches = [drawn(_count(quick), size) for size in (1, 2)]
    rows = [
        _row("lemma 3, as printed", *(gradient_slack(at) for at in batches)),
        _row("lemma 4, as printed: w anywhere", *(projection_slack(at.x, at.y) for at in batches)),
        _row("lemma 4, w in C", *(projection_slack(at.x, at.w) for at in batches)),
    ]
    gradient, anywhere, inside = (row["broken"] for row in rows)
    one = float(projection_slack(np.array([2.0]), np.array([2.0])))
    return Check(
        "Descent of a gradient step of a smooth convex function, and of a projection onto a convex set.",
        f"The gradient step: holds at all {rows[0]['n']} points. The projection: 'for all w' must be 'for all w in C'. "
        f"Counterexample: C = [-1, 1], z = w = 2 has 0 - 1 on the left and 1 on the right (slack {one:g}). With w in C "
        "it holds, and the proof uses no other w.",
        HOLDS if anywhere == 0 else PARTLY if gradient == inside == 0 else FAILS,
        [_table("Lemmas 3 and 4: slack of the inequalities", rows)],
        source="lemmas 3 and 4 (without labels)",
        number="lemmas 3, 4",
        flips="z = w = 2 with C = [-1, 1] satisfying the projection inequality",
    )


def alternated(quick: bool) -> Check:
    """Lemma 5: with A = I as printed, with a matrix only after A becomes A^T in the x-step."""
    rng = np.random.default_rng(SEED)
    count = _count(quick)

    def batch(size: int, decoded: int, A: Array, transposed: Array) -> Array:
        sizes = (size, size, size, decoded, decoded, decoded, decoded)
        points = tuple(rng.normal(size=(count, n)) * np.exp(rng.uniform(-3, 1, (count, 1))) for n in sizes)
        return alternated_slack(A, transposed, np.exp(rng.uniform(-5.0, 1.0, count)), points)

    identity = np.broadcast_to(np.eye(2), (count, 2, 2))
    tall, flat = rng.normal(size=(count, 3, 2)), rng.normal(size=(count, 2, 2))
    rows = [
        _row("A = I, as printed", batch(2, 2, identity, identity)),
        _row("A a matrix, as printed: A in the x-step", batch(2, 2, flat, flat)),
        _row("A a matrix, A^T in the x-step", batch(2, 3, tall, tall.swapaxes(1, 2))),
    ]
    plain, printed, right = (row["broken"] for row in rows)
    A, nought = np.array([[[0.0, 1.0], [0.0, 0.0]]]), np.zeros((1, 2))
    x = np.array([[0.0, -1.0]])
    one = float(alternated_slack(A, A, np.array([0.5]), (x, x, nought, nought, nought, nought, nought))[0])
    return Check(
        "One alternated gradient step on 1/2 |A x - z + mu|^2 lowers the distance to any (y, w) by at least the gap of "
        "the function, minus errors of the step.",
        f"With A = I, the setting of Algorithm 1, it holds as printed at all {rows[0]['n']} points. With a matrix the "
        "x-step lacks a transpose, without which it does not even fit in size: x+ = x - tau A^T (A x + mu - z). "
        "Counterexample for a square A = [[0, 1], [0, 0]] and tau = 1/2: x = x_hat = (0, -1), everything else 0, slack "
        f"{one:g}. With A^T it holds (3 x 2 matrices). The sign of A(x - x_hat) in the proof is wrong, without effect.",
        HOLDS if printed == 0 else PARTLY if plain == right == 0 else FAILS,
        [_table("Lemma 5: slack of the inequality", rows)],
        source="lemma 5 (`lemma:alternated_decrement`)",
        number="lemma 5",
        flips="no slack below zero with A as printed, for a matrix that is not symmetric",
    )


def proximal(quick: bool) -> Check:
    """Lemma 6: printed and corrected."""
    batches = [drawn(_count(quick), size) for size in (1, 2)]
    forms: dict[str, tuple[Callable[[Points], Array], bool]] = {
        "as printed": (lambda at: 1 / (at.rho * at.tau), True),
        "factor 1/tau, term in z kept": (lambda at: 1 / at.tau, True),
        "factor 1/(rho tau), no term in z": (lambda at: 1 / (at.rho * at.tau), False),
        "factor 1/tau, no term in z": (lambda at: 1 / at.tau, False),
    }
    rows = [
        _row(form, *(proximal_slack(at, factor=factor(at), convex_in_z=term) for at in batches))
        for form, (factor, term) in forms.items()
    ]
    rest, pulled = point(0, 0, 0, 0, 1, 2, 1, 1 / 24), point(0, 1, 4, 0, 1, 1, 25, 1 / 404)
    first = float(proximal_slack(rest, factor=1 / rest.tau, convex_in_z=True)[0])
    second = float(proximal_slack(pulled, factor=1 / (pulled.rho * pulled.tau), convex_in_z=False)[0])
    holds = rows[-1]["broken"] == 0
    return Check(
        "A proximal x-step and a projected z-step lower the distance to any (y, w), w in C, by at least the gap of "
        "f + rho/2 |x - z + mu|^2, minus errors of the step.",
        "False as printed, twice, with C = [-1, 1] and f = alpha x^2/2. (1) alpha/2 |z+ - w|^2 stands on the right, "
        "but f is convex in x only: at rest, x = y = z = mu = 0, w = 1, alpha = 2, rho = 1, the left side is 0 and the "
        f"right one 1/2 (slack {first:g}). (2) The product of norms has the factor 1/(rho tau), in the next proof "
        "rho/tau; it is 1/tau: x = y = 0, z = w = 1, mu = 4, alpha = 1, rho = 25, tau = 1/404 has slack "
        f"{second:.2f}. With 1/tau and without the term in z it holds at all {rows[-1]['n']} points. The x-step is a "
        "proximal step; Algorithm 1 takes a gradient step.",
        HOLDS if rows[0]["broken"] == 0 else FAILS,
        [_table("Lemma 6: slack of the inequality", rows)],
        source="lemma 6 (`lemma:alternated_proximal_decrement`)",
        number="lemma 6",
        flips="a non-negative slack at both counterexamples, which are a few numbers each",
        more=[
            Claim(
                "lemma 6 with the factor 1/tau and alpha/2 |x+ - y|^2",
                "no negative slack",
                f"smallest slack {rows[-1]['least']:.1e} at {rows[-1]['n']} points in one and two dimensions",
                reached(holds),
                flips="one point with a negative slack",
            )
        ],
    )


def dual(quick: bool) -> Check:
    """Lemma 7: printed and corrected, with both dual steps."""
    batches = [drawn(_count(quick), size) for size in (1, 2)]
    forms: dict[str, tuple[bool, Callable[[Points], Array]]] = {
        "as printed, mu+ = mu + tau (x+ - z+)": (True, lambda at: at.rho * at.tau),
        "constants as printed, lambda+ = lambda + tau (x+ - z+)": (True, lambda at: at.tau),
        "constants of the proof, lambda+ = lambda + tau (x+ - z+)": (False, lambda at: at.tau),
    }
    rows = [
        _row(form, *(dual_slack(at, printed=printed, dual=rate(at)) for at in batches))
        for form, (printed, rate) in forms.items()
    ]
    rest = point(0, 0, 0, 0, 1, 4, 1, 1 / 32)
    one = float(dual_slack(rest, printed=True, dual=rest.tau)[0])
    return Check(
        "If 4 tau (beta + 2 rho (|A|^2 + 1)) <= 1, the same with the dual step: the distance to any (y, w, nu) falls "
        "by at least the gap of the Lagrangian, minus 4 tau |A|^2 D_C^2 + 2 M tau^2 + rho tau/2 |A x+ - z+|^2.",
        "False as printed: at rest, C = [-1, 1], f = 2 x^2, rho = 1, tau = 1/32, x = y = z = lambda = nu = 0, w = 1, "
        f"the left side is 0 and the right one 1 (slack {one:g}). Four slips: the convexity in z of lemma 6; the dual "
        "step, which must move lambda, not mu, by tau (as Algorithm 1 does); rho^2 is lost from the term in D_C^2, and "
        "2 rho^2 M^2 tau of the proof is printed as 2 M tau^2; the last term has a rho too many. With the constants of "
        f"the proof it holds at all {rows[-1]['n']} points. The condition on the step size is right.",
        HOLDS if rows[0]["broken"] == 0 else FAILS,
        [_table("Lemma 7: slack of the inequality", rows)],
        source="lemma 7 (`lemma:primal_dual-euclidean-decrement`)",
        number="lemma 7",
        flips="a non-negative slack at the counterexample, which is five numbers",
        more=[
            Claim(
                "lemma 7 with lambda+ = lambda + tau (x+ - z+), alpha/2 |x+ - y|^2 and the errors "
                "2 tau rho^2 (D_C^2 + M^2) + tau/2 |x+ - z+|^2",
                "no negative slack",
                f"smallest slack {rows[-1]['least']:.1e} at {rows[-1]['n']} points in one and two dimensions",
                reached(rows[-1]["broken"] == 0),
                flips="one point with a negative slack",
            )
        ],
    )
