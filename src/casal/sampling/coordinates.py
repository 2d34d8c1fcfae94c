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
from casal.methods import Context, Method


class Coordinates(NamedTuple):
    """Where the steps of a run are taken.

    Attributes:
        context: With S for the decoder and C' for the set.
        basis: B in float64; None if the context is the given one.
        parts: Fields of the state that are coordinates.
    """

    context: Context
    basis: Decoder | None = None
    parts: tuple[str, ...] = ()

    def lift(self, state: Any) -> Any:
        """The state in decoded space, in float64 where it was in coordinates."""
        if self.basis is None:
            return state
        wide = {name: self.basis(getattr(state, name).to(torch.float64)) for name in self.parts}
        return state._replace(**wide)


def coordinates(context: Context, method: Method[Any], decoder: Decoder) -> Coordinates:
    """The coordinates for the steps of a method, or the context as it is where there are none.

    Args:
        context: Of the run.
        method: Of the run.
        decoder: A in all its digits; that of the context has the dtype of the run.
    """
    factors, parts = decoder.factors(), method.decoded_parts()
    if factors is None or parts is None or not context.constraint.fast:
        return Coordinates(context)
    basis, scale = factors
    few = torch.zeros((1, *context.latent), dtype=torch.float64, device=context.like.device)
    inside = geometry.within(context.constraint, Subspace(decoder.event(few), basis, basis.vjp(few)))
    if inside is None:
        return Coordinates(context)
    inside.validate(context.latent)
    smaller = replace(context, decoder=scale.to(context.like), constraint=inside)
    return Coordinates(smaller, basis, parts)
