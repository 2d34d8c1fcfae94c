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
    def spectrum(self) -> Tensor:
        """Mean power of modes 0 .. 19 of the members in the last window."""
        return power(self.members[-1])

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Numbers of all trajectories together.

        Relative errors of mass and energy of a member on average, and of the energy of the mean; the largest violation
        of any member and of any re-projected mean; the largest |z - F F^T z| / |z|; spread / skill, which is
        sqrt((1 + 1/m) mean variance) / root mean square error of the mean, 1 for a calibrated ensemble; and the mean
        over modes 1 .. 9 of |log10 (power / true power)| in the last window.
        """
        truth, m = self.truth, self.members.shape[1]
        mass, energy = errors(self.members, truth.mass, truth.energy)
        off = self.members - (self.members @ BASIS) @ BASIS.T
        skill = float((self.mean - analysed(truth)).square().mean())
        ratio = self.spectrum / power(analysed(truth)[-1])
        return {
            "member_mass": float(mass.mean((0, 1)).mean()),
            "member_energy": float(energy.mean((0, 1)).mean()),
            "mean_energy": float(errors(self.mean, truth.mass, truth.energy)[1].mean(0).mean()),
            "worst": float(torch.maximum(mass, energy).max()),
            "worst_projected": float(torch.maximum(*errors(self.projected, truth.mass, truth.energy)).max()),
            "out_of_range": float((_length(off) / _length(self.members)).max()),
            "spread_skill": math.sqrt(float(self.members.var(1).mean()) * (1 + 1 / m) / skill) if m > 1 else None,
            "spectrum": float(ratio[1:MODES].log10().abs().mean()),
        }


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1)


def average(values: Tensor) -> tuple[float, float]:
    """Mean over trajectories (n,) and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _relative(u: Tensor, exact: Tensor) -> Tensor:
    return _length(u - exact) / _length(exact)


def power(fields: Tensor) -> Tensor:
    """Mean of |rfft|^2 / N over all fields, modes 0 .. 19."""
    spectrum = torch.fft.rfft(fields)[..., :SPECTRUM].abs().square() / fields.shape[-1]
    return spectrum.reshape(-1, SPECTRUM).mean(0)
