"""Steps in the coordinates of the range of a decoder, where the projection never leaves that range.

With A = B S, B^T B = I, the decoded points A x have coordinates S x, as long as they are, and there are as many of
them as latents instead of as many as decoded points. If P(B c) = B P'(c) for all c, with P' the projection onto
C' = {c : B c in C}, a chain with (S, C') takes the same steps as one with (A, C): z = B z', lam = B lam'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from casal.constraints import Subspace, geometry
from casal.decoders import Decoder
from casal.methods import Method, Problem


class Coordinates(NamedTuple):
    """Where the steps of a run are taken.

    Attributes:
        problem: With S for the decoder and C' for the set.
        basis: B in float64; None if the problem is the given one.
        parts: Fields of the state that are coordinates.
    """

    problem: Problem
    basis: Decoder | None = None
    parts: tuple[str, ...] = ()

    def lift(self, state: Any) -> Any:
        """The state in decoded space, in float64 where it was in coordinates."""
        if self.basis is None:
            return state
        wide = {name: self.basis(getattr(state, name).to(torch.float64)) for name in self.parts}
        return state._replace(**wide)


def coordinates(problem: Problem, method: Method[Any], decoder: Decoder) -> Coordinates:
    """The coordinates for the steps of a method, or the problem as it is where there are none.

    Args:
        problem: Of the run.
        method: Of the run.
        decoder: A in all its digits; that of the problem has the dtype of the run.
    """
    factors, parts = decoder.factors(), method.decoded_parts()
    if factors is None or parts is None or not problem.constraint.fast:
        return Coordinates(problem)
    basis, scale = factors
    few = torch.zeros((1, *problem.latent), dtype=torch.float64, device=problem.like.device)
    inside = geometry.within(problem.constraint, Subspace(decoder.event(few), basis, basis.vjp(few)))
    if inside is None:
        return Coordinates(problem)
    inside.validate(problem.latent)
    smaller = replace(problem, decoder=scale.to(problem.like), constraint=inside)
    return Coordinates(smaller, basis, parts)
