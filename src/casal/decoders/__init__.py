"""Decoders A: from the space where the model lives to the space where the constraint lives (A x = z)."""

from casal.decoders.base import Decoder, Identity
from casal.decoders.gram import Gram
from casal.decoders.linear import Linear
from casal.decoders.nonlinear import Nonlinear
from casal.decoders.rows import Rows
from casal.decoders.series import DCT, DST, Fourier
from casal.decoders.transforms import Transform

__all__ = ["DCT", "DST", "Decoder", "Fourier", "Gram", "Identity", "Linear", "Nonlinear", "Rows", "Transform"]
