"""Decoders A: maps from the space of the model to the space of the constraint, A x = z."""

from collections.abc import Mapping

from casal.decoders.base import Composed, Decoder, Gram, Identity
from casal.decoders.linear import Diagonal, Linear, Rows, Standardise
from casal.decoders.nonlinear import Nonlinear
from casal.decoders.transforms import DCT, DST, Fourier, Transform

DECODERS: Mapping[str, type[Decoder]] = {
    "Identity": Identity,
    "Linear": Linear,
    "Fourier": Fourier,
    "DCT": DCT,
    "DST": DST,
    "Rows": Rows,
    "Nonlinear": Nonlinear,
    "Standardise": Standardise,
}
"""Every public decoder by name."""

__all__ = [
    "DCT",
    "DECODERS",
    "DST",
    "Composed",
    "Decoder",
    "Diagonal",
    "Fourier",
    "Gram",
    "Identity",
    "Linear",
    "Nonlinear",
    "Rows",
    "Standardise",
    "Transform",
]
