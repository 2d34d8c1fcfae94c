"""How good an assimilation is: accuracy, conservation, calibration, spectrum; trajectory by trajectory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from casal.lab.burgers.conserved import errors, nearest_field
from casal.lab.burgers.cycle import CYCLES, WINDOW
from casal.lab.burgers.setup import BASIS, MODES, Truth

SPECTRUM = 2 * MODES
"""Modes 0 .. 19 are looked at, twice as many as the latent has."""


def analysed(truth: Truth) -> Tensor:
    """The true fields at the first time of each window, (5, n, points)."""
    return truth.fields[: WINDOW * CYCLES : WINDOW]


@dataclass(frozen=True, eq=False)
class Scores:
    """Figures of members (5 windows, m, n, points); each of shape (n,), the mean over the windows."""

    members: Tensor  # the fields
    truth: Truth  # what they should be
    amplitude: float = 1.0  # the unit of CRPS and spread

    @cached_property
    def mean(self) -> Tensor:
        """The analysis, (5, n, points)."""
        return self.members.mean(1)

    @cached_property
    def projected(self) -> Tensor:
        """The analysis brought to its mass and energy."""
        return nearest_field(self.mean, self.truth.mass, self.truth.energy)

    @cached_property
    def curve(self) -> Tensor:
        """|mean - u| / |u|, (5, n)."""
        return _relative(self.mean, analysed(self.truth))

    @property
    def l2(self) -> Tensor:
        """Relative error of the mean of the members."""
        return self.curve.mean(0)

    @cached_property
    def l2_projected(self) -> Tensor:
        """Relative error of the re-projected mean."""
        return _relative(self.projected, analysed(self.truth)).mean(0)

    @cached_property
    def l2_member(self) -> Tensor:
        """Relative error of one member, on average."""
        return _relative(self.members, analysed(self.truth)[:, None]).mean((0, 1))

    @cached_property
    def mean_errors(self) -> tuple[Tensor, Tensor]:
        """Relative mass and energy errors of the mean."""
        mass, energy = errors(self.mean, self.truth.mass, self.truth.energy)
        return mass.mean(0), energy.mean(0)

    @cached_property
    def member_errors(self) -> tuple[Tensor, Tensor]:
        """Those of the members, on average."""
        mass, energy = errors(self.members, self.truth.mass, self.truth.energy)
        return mass.mean((0, 1)), energy.mean((0, 1))

    @cached_property
    def worst(self) -> float:
        """Largest violation of any member."""
        return float(torch.maximum(*errors(self.members, self.truth.mass, self.truth.energy)).max())

    @cached_property
    def worst_projected(self) -> float:
        """Largest violation of any re-projected mean."""
        return float(torch.maximum(*errors(self.projected, self.truth.mass, self.truth.energy)).max())

    @cached_property
    def out_of_range(self) -> float:
        """Largest |z - F F^T z| / |z| of any member."""
        rest = self.members - (self.members @ BASIS) @ BASIS.T
        length = torch.linalg.vector_norm(self.members, dim=-1)
        return float((torch.linalg.vector_norm(rest, dim=-1) / length).max())

    @cached_property
    def crps(self) -> Tensor:
        """E|X - u| - E|X - X'| / 2 per point, in units of the amplitude; the fair estimate from m members."""
        m = self.members.shape[1]
        apart = (self.members - analysed(self.truth)[:, None]).abs().mean((1, 3))
        if m > 1:
            order = self.members.sort(dim=1).values
            rank = 2.0 * torch.arange(m, dtype=torch.float64) - (m - 1)
            # sum over pairs |x_i - x_j| = sum over ranks (2 i - m + 1) x_(i)
            apart = apart - torch.einsum("wmnp,m->wn", order, rank) / (m * (m - 1) * order.shape[-1])
        return apart.mean(0) / self.amplitude

    @cached_property
    def spread_skill(self) -> float | None:
        """sqrt((1 + 1/m) mean variance) / root mean square error of the mean: 1 for a calibrated ensemble."""
        m = self.members.shape[1]
        if m == 1:
            return None
        variance = float(self.members.var(1).mean()) * (1 + 1 / m)
        return math.sqrt(variance / float((self.mean - analysed(self.truth)).square().mean()))

    @cached_property
    def spectrum(self) -> Tensor:
        """Mean power of modes 0 .. 19 of the members in the last window."""
        return power(self.members[-1])

    def spectrum_error(self) -> float:
        """Mean over the modes 1 .. 9 of |log10 (power / true power)| in the last window."""
        ratio = self.spectrum / power(analysed(self.truth)[-1])
        return float(ratio[1:MODES].log10().abs().mean())


def average(values: Tensor) -> tuple[float, float]:
    """Mean over trajectories (n,) and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _relative(u: Tensor, exact: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u - exact, dim=-1) / torch.linalg.vector_norm(exact, dim=-1)


def power(fields: Tensor) -> Tensor:
    """Mean of |rfft|^2 / N over all fields, modes 0 .. 19."""
    spectrum = torch.fft.rfft(fields)[..., :SPECTRUM].abs().square() / fields.shape[-1]
    return spectrum.reshape(-1, SPECTRUM).mean(0)
