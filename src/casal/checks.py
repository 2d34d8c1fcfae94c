"""What is refused before the first step: each mistake with the number, and what to change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from casal.constraints import Constraint
from casal.decoders import Decoder, Identity
from casal.errors import DivergedError, DtypeError, ProjectionError, SettingError, ShapeError
from casal.methods import Method, Problem
from casal.targets import Target

PROBE = 2
"""Chains on which the score and the projection are tried."""


def check_call(constraint: Constraint, method: Method[Any, Any] | str, tol: float, dtype: torch.dtype | None) -> None:
    """What ``casal.sample`` was handed, before anything is looked at more closely."""
    if not isinstance(constraint, Constraint):
        raise SettingError(f"constraint must be a casal set such as casal.Sphere(1.0), got {constraint!r}")
    if not isinstance(method, Method) and method != "auto":
        raise SettingError(f"method must be a casal method such as casal.CASAL(rho=10), or 'auto', got {method!r}")
    if not tol >= 0:
        raise SettingError(f"tol must be >= 0, got {tol}")
    if dtype is not None and not dtype.is_floating_point:
        raise DtypeError(f"chains are floating-point numbers, got dtype={dtype}")


def starting_points(target: Target, n: int, first: int, total: int, generator: torch.Generator) -> Tensor:
    """The starting points of chains first .. first + n of a run of ``total`` chains."""
    if isinstance(target.init, Tensor):
        x = target.init[first : first + n]
    else:
        x = target.init(n, generator)
        if not isinstance(x, Tensor) or x.ndim < 1 or len(x) != n:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError(f"init({n}, generator) returned {got}; it must return a tensor ({n}, *event)")
    _check_points(x, first, len(target.table))
    return x


def check_init(target: Target, n: int) -> None:
    """Starting points that are there already are looked at as a whole."""
    init = target.init
    if not isinstance(init, Tensor):
        if not callable(init):
            raise SettingError(f"init must be a tensor (n, *event) or a callable (n, generator), got {_kind(init)}")
        return
    if init.ndim >= 1 and len(init) != n:
        raise ShapeError(f"init has {len(init)} rows for n = {n} chains; give one row a chain")
    _check_points(init, 0, len(target.table))


def _check_points(x: Tensor, first: int, steps: int) -> None:
    if x.ndim < 2:
        raise ShapeError(f"starting points have shape {tuple(x.shape)}; dim 0 is the chain, give (n, *event)")
    if not x.is_floating_point():
        raise DtypeError(f"starting points are {x.dtype}; give a floating-point tensor")
    bad = torch.nonzero(~torch.isfinite(x).flatten(1).all(1)).flatten()
    if len(bad):
        raise DivergedError(
            f"{len(bad)} starting points are not finite, first chain {first + int(bad[0])}",
            step=0,
            steps=steps,
            chains=(first + bad).tolist(),
        )


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def check_decoder(decoder: Decoder | None) -> Decoder:
    """A decoder, the identity if none is given."""
    if decoder is None:
        return Identity()
    if not isinstance(decoder, Decoder):
        raise SettingError(f"decoder must be a casal decoder such as casal.Linear(A), got {type(decoder).__name__}")
    return decoder


def check_problem(problem: Problem, x: Tensor, tol: float) -> None:
    """Try the score, the decoder and the projection on the first few starting points."""
    probe = x[:PROBE]
    _check_preconditioner(problem, probe)
    _check_score(problem.target, probe)
    decoded = problem.decode(probe)
    problem.constraint.validate(tuple(decoded.shape[1:]))
    _check_projection(problem.constraint, decoded.to(torch.float64), tol)


def _check_preconditioner(problem: Problem, x: Tensor) -> None:
    diagonal = problem.table.preconditioner
    if diagonal is None:
        return
    try:
        fits = torch.broadcast_shapes(diagonal.shape, x.shape[1:]) == x.shape[1:]
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(f"preconditioner {tuple(diagonal.shape)} does not broadcast to events {tuple(x.shape[1:])}")


def _check_score(target: Target, x: Tensor) -> None:
    score = target.score(x, target.table.t[0].to(x.device))
    if not isinstance(score, Tensor) or score.shape != x.shape:
        got = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
        raise ShapeError(f"the gradient of {target.name} has shape {got} at points of shape {tuple(x.shape)}")
    if score.dtype != x.dtype or score.device != x.device:
        raise DtypeError(
            f"the gradient of {target.name} is {score.dtype} on {score.device}, the chains are {x.dtype} on "
            f"{x.device}; pass dtype= and device= to casal.sample, or cast inside the gradient"
        )
    if not bool(torch.isfinite(score).all()):
        lost = torch.nonzero(~torch.isfinite(score).flatten(1).all(1)).flatten().tolist()
        raise DivergedError(
            f"the gradient of {target.name} is not finite at {len(lost)} of the {len(x)} starting points tried",
            step=0,
            steps=len(target.table),
            chains=lost,
        )


def _check_projection(constraint: Constraint, z: Tensor, tol: float) -> None:
    onto = constraint.project(z)
    if onto.shape != z.shape:
        raise ShapeError(f"{constraint!r}.project returned {tuple(onto.shape)} for {tuple(z.shape)}")
    worst = float(constraint.violation(onto).max())
    if constraint.exact and not worst <= tol:
        raise ProjectionError(
            f"{constraint!r}.project leaves the set: violation {worst:.3g} > tol = {tol:g} at the starting points; "
            "mend the projection, declare it exact=False, or raise tol"
        )
