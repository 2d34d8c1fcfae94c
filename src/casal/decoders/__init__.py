"""Decoders A: maps from the space of the model to the space of the constraint, A x = z."""

from collections.abc import Mapping

from casal.decoders.base import Composed, Decoder, Identity
from casal.decoders.gram import Gram
from casal.decoders.linear import Linear
from casal.decoders.nonlinear import Nonlinear
from casal.decoders.rows import Rows
from casal.decoders.transforms import DCT, DST, Fourier, Transform
from casal.decoders.units import Standardise

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
    "Fourier",
    "Gram",
    "Identity",
    "Linear",
    "Nonlinear",
    "Rows",
    "Standardise",
    "Transform",
]
