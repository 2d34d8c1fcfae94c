"""How good an assimilation is: accuracy, conservation, calibration, spectrum; trajectory by trajectory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from casal_lab.burgers.conserved import errors, nearest_field
from casal_lab.burgers.cycle import CYCLES, WINDOW
from casal_lab.burgers.setup import BASIS, FIELD_MODES, MODES, POINTS, SOLVER, Truth

SPECTRUM = 2 * FIELD_MODES + 1
"""Modes 0 .. 40 are looked at, twice as many as the data have."""

HIGH = slice(MODES - MODES // 3, MODES)
"""The highest third of the modes of the latent: 7, 8, 9."""


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

    @cached_property
    def violation(self) -> Tensor:
        """sqrt(mass error^2 + energy error^2), both relative, of a member on average, (5, n)."""
        return _violation(self.members, self.truth).mean(1)

    @cached_property
    def violation_of_mean(self) -> Tensor:
        """The same of the mean of the members, (5, n)."""
        return _violation(self.mean, self.truth)

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
        """Power of modes 0 .. 40 of a member in the last window, (n, 41)."""
        return power(self.members[-1]).mean(0)

    @cached_property
    def high(self) -> Tensor:
        """Power in the highest third of the latent's modes over the truth's: its log10, trajectory by trajectory.

        (n, 2): power of a member and of the truth, in all windows together. ``log_ratio`` makes a number of them.
        """
        return torch.stack([power(u)[..., HIGH].sum(-1).mean((0, 1)) for u in (self.members, self._exact)], dim=1)

    @property
    def _exact(self) -> Tensor:
        return analysed(self.truth)[:, None]

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Numbers of all trajectories together.

        Relative errors of mass and energy of a member on average, and of the energy of the mean; the largest violation
        of any member and of any re-projected mean; the largest |z - F F^T z| / |z|; spread / skill, which is
        sqrt((1 + 1/m) mean variance) / root mean square error of the mean, 1 for a calibrated ensemble; the mean over
        modes 1 .. 9 of |log10 (power / true power)| in the last window; log10 of the power in modes 7 to 9 over the
        truth's, with its standard error; and the share of the energy beyond mode 20, where no truth has any.
        """
        truth, m = self.truth, self.members.shape[1]
        mass, energy = errors(self.members, truth.mass, truth.energy)
        off = self.members - (self.members @ BASIS) @ BASIS.T
        skill = float((self.mean - analysed(truth)).square().mean())
        ratio = self.spectrum.mean(0) / power(analysed(truth)[-1]).mean(0)
        beyond = 1.0 - SOLVER.cut(self.members).square().sum(-1) / self.members.square().sum(-1)
        high, error = log_ratio(self.high[:, 0], self.high[:, 1])
        return {
            "member_mass": float(mass.mean((0, 1)).mean()),
            "member_energy": float(energy.mean((0, 1)).mean()),
            "mean_energy": float(errors(self.mean, truth.mass, truth.energy)[1].mean(0).mean()),
            "worst": float(torch.maximum(mass, energy).max()),
            "worst_projected": float(torch.maximum(*errors(self.projected, truth.mass, truth.energy)).max()),
            "out_of_range": float((_length(off) / _length(self.members)).max()),
            "spread_skill": math.sqrt(float(self.members.var(1).mean()) * (1 + 1 / m) / skill) if m > 1 else None,
            "spectrum": float(ratio[1:MODES].log10().abs().mean()),
            "high": high,
            "high_se": error,
            "beyond": max(0.0, float(beyond.mean())),
        }


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1)


def average(values: Tensor) -> tuple[float, float]:
    """Mean over trajectories (n,) and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _relative(u: Tensor, exact: Tensor) -> Tensor:
    return _length(u - exact) / _length(exact)


def _violation(fields: Tensor, truth: Truth) -> Tensor:
    return torch.hypot(*errors(fields, truth.mass, truth.energy))


def power(fields: Tensor) -> Tensor:
    """|rfft|^2 / N of fields (..., points), modes 0 .. 40."""
    return torch.fft.rfft(fields)[..., :SPECTRUM].abs().square() / POINTS


def log_ratio(one: Tensor, other: Tensor) -> tuple[float, float]:
    """log10 of (mean of one / mean of other), both (n,) and paired, and its standard error (delta method)."""
    share = one / one.mean() - other / other.mean()
    return float((one.mean() / other.mean()).log10()), float(share.std() / math.sqrt(len(one)) / math.log(10))
