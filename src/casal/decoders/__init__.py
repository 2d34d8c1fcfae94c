"""Decoders A: from the space where the model lives to the space where the constraint lives (A x = z)."""

from collections.abc import Mapping

from casal.decoders.base import Decoder, Identity
from casal.decoders.gram import Gram
from casal.decoders.linear import Linear
from casal.decoders.nonlinear import Nonlinear
from casal.decoders.rows import Rows
from casal.decoders.transforms import DCT, DST, Fourier, Transform

DECODERS: Mapping[str, type[Decoder]] = {
    "Identity": Identity,
    "Linear": Linear,
    "Fourier": Fourier,
    "DCT": DCT,
    "DST": DST,
    "Rows": Rows,
    "Nonlinear": Nonlinear,
}
"""Every public decoder by name."""

__all__ = [
    "DCT",
    "DECODERS",
    "DST",
    "Decoder",
    "Fourier",
    "Gram",
    "Identity",
    "Linear",
    "Nonlinear",
    "Rows",
    "Transform",
]
