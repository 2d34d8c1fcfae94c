"""Laws on sets by means that share nothing with the samplers: rejection, kriging, constrained Hamiltonian dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mici.integrators import ConstrainedLeapfrogIntegrator
from mici.samplers import DynamicMultinomialHMC
from mici.systems import DenseConstrainedEuclideanMetricSystem
from torch import Tensor

import casal
from casal.constraints import geometry

LARGEST_BATCHES = 2000


def shell_rejection(
    draw: Callable[[int, torch.Generator], Tensor],
    constraint: casal.Constraint,
    width: float,
    n: int,
    generator: torch.Generator,
    *,
    log_density: Callable[[Tensor], Tensor] | None = None,
    batch: int = 100_000,
) -> Tensor:
    """Feet z = P(x) of draws x ~ p with |x - z| <= width, thinned by 1 / J(x, z): p on C (surface measure).

    Without the density the error is O(width^2); with it the thinning is by p(z) / (p(x) J(x, z)), which is exact for
    every width at which feet are unique. The bound of the thinning is the largest weight seen. For low dimension: a
    share ~ width^codimension of the draws is of use.
    """
    feet: list[Tensor] = []
    log_weight: list[Tensor] = []
    for _ in range(LARGEST_BATCHES):
        x = draw(batch, generator).to(torch.float64)
        z = constraint.project(x)
        inside = (x - z).flatten(1).norm(dim=1) <= width
        x, z = x[inside], z[inside]
        tube = geometry.log_volume_factor(constraint, x, z)
        weight = torch.zeros(len(x), dtype=torch.float64) if tube is None else -tube
        feet.append(z)
        log_weight.append(weight if log_density is None else weight + log_density(z) - log_density(x))
        every = torch.cat(log_weight)
        accepted = float(torch.exp(every - every.max()).sum()) if len(every) else 0.0
        if accepted > 1.2 * n + 50:
            break
    else:
        raise RuntimeError(f"{accepted:.0f} of {n} draws after {LARGEST_BATCHES} batches; take a larger width")
    u = torch.rand(len(every), generator=generator, dtype=torch.float64)
    return torch.cat(feet)[u.log() <= every - every.max()][:n]


def gaussian_on_affine(mean: Any, covariance: Any, A: Any, b: Any) -> tuple[Tensor, Tensor]:
    """N(m, S) given A x = b: mean m + K (b - A m), covariance S - K A S, with K = S A^T (A S A^T)^+ (kriging)."""
    m, S, A, b = (torch.as_tensor(value, dtype=torch.float64) for value in (mean, covariance, A, b))
    A = torch.atleast_2d(A)
    gain = S @ A.T @ torch.linalg.pinv(A @ S @ A.T, hermitian=True)
    return m + gain @ (b.reshape(-1) - A @ m), S - gain @ A @ S


def constrained_hmc(
    potential: Callable[[Tensor], Tensor],
    constraint: casal.Constraint,
    starts: Tensor,
    draws: int,
    *,
    step_size: float = 0.2,
    warm_up: int = 50,
    seed: int = 0,
) -> Tensor:
    """exp(-potential) on {residual = 0} (surface measure), by mici's constrained NUTS: (chains, draws, d).

    The residuals must be smooth, with independent gradients on the set. Exact up to convergence of the chains; it does
    not cross between modes that the set keeps far apart.

    Args:
        potential: f = -log p of (n, d) -> (n,), differentiable by torch.
        constraint: A set of equations.
        starts: One point a chain (chains, d); projected.
        draws: Draws a chain after the warm-up.
        step_size: Of the leapfrog steps.
        warm_up: Draws thrown away.
        seed: Of the momenta.
    """
    if not constraint.smooth or constraint.inequalities(starts[:1]).shape[1]:
        raise ValueError(f"{constraint!r} is not a set of equations")

    def on_arrays(function: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda q: function(torch.from_numpy(np.array(q))).numpy()

    def gradient(q: Tensor) -> Tensor:
        with torch.enable_grad():
            x = q[None].requires_grad_()
            (slope,) = torch.autograd.grad(potential(x).sum(), x)
        return slope[0]

    def jacobian(q: Tensor) -> Tensor:
        with torch.enable_grad():
            x = q[None].requires_grad_()
            values = geometry.residual(constraint, x)[0]
            return torch.cat([torch.autograd.grad(value, x, retain_graph=True)[0] for value in values])

    system = DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=lambda q: float(potential(torch.from_numpy(np.array(q))[None])[0]),
        grad_neg_log_dens=on_arrays(gradient),
        constr=on_arrays(lambda q: geometry.residual(constraint, q[None])[0]),
        jacob_constr=on_arrays(jacobian),
        dens_wrt_hausdorff=True,
    )
    sampler = DynamicMultinomialHMC(
        system, ConstrainedLeapfrogIntegrator(system, step_size), np.random.default_rng(seed), max_tree_depth=6
    )
    found = sampler.sample_chains(
        warm_up,
        draws,
        list(constraint.project(starts.to(torch.float64)).numpy()),
        adapters={},
        trace_funcs=[lambda state: {"q": state.pos}],
        display_progress=False,
    )
    return torch.from_numpy(np.stack(found.traces["q"]))
