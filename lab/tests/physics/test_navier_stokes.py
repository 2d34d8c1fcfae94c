"""Navier-Stokes: closed solutions, orders, what it conserves, and how near the data are to a refined solution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from casal.errors import DivergedError, SettingError, ShapeError
from casal_lab.physics import navier_stokes as flow

F64 = torch.float64


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def grid(points: int) -> tuple[Tensor, Tensor]:
    line = torch.arange(points, dtype=F64) / points
    x, y = torch.meshgrid(line, line, indexing="ij")
    return x, y


def smooth(n: int, points: int, modes: int = 4) -> Tensor:
    """Random fields of the waves |k_i| <= modes, the same on every grid but for rounding."""
    x, y = grid(points)
    size = torch.randn((n, 2 * modes + 1, 2 * modes + 1, 2), generator=seed(0), dtype=F64)
    w = torch.zeros((n, points, points), dtype=F64)
    for k in range(-modes, modes + 1):
        for m in range(-modes, modes + 1):
            angle = 2 * math.pi * (k * x + m * y)
            one = size[:, k, m, :, None, None] / (1 + k * k + m * m)
            w += one[:, 0] * torch.cos(angle) + one[:, 1] * torch.sin(angle)
    return w


def refined(w: Tensor, points: int) -> Tensor:
    """The same waves on a finer grid; the highest of an even grid is left out."""
    old = w.shape[-1]
    spectrum, half = torch.fft.fft2(w, norm="forward"), old // 2
    fine = torch.zeros((len(w), points, points), dtype=torch.complex128)
    places = torch.arange(-half + 1, half)
    fine[:, places[:, None] % points, places % points] = spectrum[:, places[:, None] % old, places % old]
    return torch.fft.ifft2(fine, norm="forward").real


def test_taylor_green_decays() -> None:
    """cos(2 pi x) cos(2 pi y) does not advect itself: it decays like exp(-8 pi^2 nu t), at any step."""
    x, y = grid(16)
    w = (torch.cos(2 * math.pi * x) * torch.cos(2 * math.pi * y))[None]
    found = flow.advance(w, 1.0, viscosity=0.01, step=0.25)
    torch.testing.assert_close(found, math.exp(-0.08 * math.pi**2) * w, rtol=0, atol=1e-14)


def test_a_forced_shear_flow() -> None:
    """A shear flow w(y) is steady but for decay and forcing: w_k' = -nu q^2 w_k + f_k, second order in dt."""
    _, y = grid(16)
    q, nu = 4 * math.pi, 0.02
    forcing = 0.3 * torch.sin(q * y)
    start, time = torch.cos(q * y)[None], 0.5
    decay = math.exp(-nu * q * q * time)
    exact = decay * start + (1 - decay) / (nu * q * q) * forcing
    errors = [
        float((flow.advance(start, time, forcing, viscosity=nu, step=step) - exact).abs().max())
        for step in (0.05, 0.025)
    ]
    assert errors[1] < 1e-3 and 3.9 < errors[0] / errors[1] < 4.1


def test_velocity_and_advection_are_those_of_the_equation() -> None:
    """psi = sin(2 pi x) + cos(2 pi (x + 2 y)): derivatives by hand."""
    x, y = grid(32)
    t = 2 * math.pi
    one, two = t * x, t * (x + 2 * y)
    w = t**2 * (torch.sin(one) + 5 * torch.cos(two))
    u, v = -2 * t * torch.sin(two), -(t * torch.cos(one) - t * torch.sin(two))
    wx, wy = t**3 * (torch.cos(one) - 5 * torch.sin(two)), t**3 * -10 * torch.sin(two)
    found = flow.velocity(w[None])
    torch.testing.assert_close(found[0][0], u, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1][0], v, rtol=0, atol=1e-12)
    torch.testing.assert_close(flow.advection(w[None])[0], u * wx + v * wy, rtol=0, atol=1e-9)
    torch.testing.assert_close(flow.energy(w[None])[0], (u**2 + v**2).sum())


def test_second_order_in_time() -> None:
    start, forcing = smooth(2, 32), flow.diagonal_forcing(32)
    exact = flow.advance(start, 0.5, forcing, step=0.5 / 512)
    errors = [float((flow.advance(start, 0.5, forcing, step=0.5 / n) - exact).abs().max()) for n in (16, 32, 64)]
    assert 3.6 < errors[0] / errors[1] < 4.4 and 3.6 < errors[1] / errors[2] < 4.4


def test_circulation_stays() -> None:
    """With forcing and viscosity, whose means are zero, and whatever the circulation is."""
    start = flow.random_starts(3, seed(1), 32) + torch.tensor([0.0, 1.0, -3.0])[:, None, None]
    end = flow.advance(start, 1.0, flow.diagonal_forcing(32))
    size = start.abs().sum((1, 2))
    assert float(((flow.circulation(end) - flow.circulation(start)).abs() / size).max()) < 1e-14
    assert float((end - start).abs().max()) > 0.3


def test_energy_and_enstrophy_stay_without_forcing_and_viscosity() -> None:
    """In continuous time exactly, the slope being orthogonal to w and psi; in time steps with the error of Heun."""
    w = flow.random_starts(3, seed(2), 32) * 2
    spectrum = torch.fft.rfft2(w)
    slope = flow.advection(w)
    square = -flow.symbols(32).laplacian.clone()
    square[0, 0] = 1.0
    psi = torch.fft.irfft2(spectrum / square, s=(32, 32))
    size = (w.square().sum((1, 2)) * slope.square().sum((1, 2))).sqrt()
    assert float(((w * slope).sum((1, 2)).abs() / size).max()) < 1e-14
    assert float(((psi * slope).sum((1, 2)).abs() / size).max()) < 1e-14
    start, drifts = smooth(2, 32), []
    for step in (0.02, 0.01):
        end = flow.advance(start, 0.4, viscosity=0.0, step=step)
        drifts.append([float((f(end) / f(start) - 1).abs().max()) for f in (flow.energy, flow.enstrophy)])
        assert float((end - start).abs().max()) > 0.3
    for coarse, fine in zip(*drifts, strict=True):
        assert fine < 1e-4 and coarse / fine > 3.5


def test_viscosity_takes_what_it_should() -> None:
    """d/dt sum w^2 = -2 nu sum |grad w|^2, d/dt sum u^2 + v^2 = -2 nu sum w^2, over a short time."""
    w, nu, dt = smooth(2, 32), 0.05, 1e-4
    w = w - w.mean((1, 2), keepdim=True)
    end, back = (flow.advance(w, time, viscosity=nu, step=1e-5) for time in (2 * dt, dt))
    spectrum = torch.fft.fft2(back, norm="ortho")
    k = torch.fft.fftfreq(32, 1 / 32, dtype=F64) * 2 * math.pi
    gradient = ((k[:, None] ** 2 + k[None, :] ** 2) * spectrum.abs().square()).sum((1, 2))
    for measure, loss in ((flow.enstrophy, gradient), (flow.energy, flow.enstrophy(back))):
        rate = (measure(end) - measure(w)) / (2 * dt)
        torch.testing.assert_close(rate, -2 * nu * loss, rtol=1e-4, atol=0)


def test_a_rotated_flow_is_the_flow_rotated() -> None:
    """A turn by a right angle, a shift, and a mirror with the sign of w: only the forcing knows directions."""
    w = smooth(2, 32)
    end = flow.advance(w, 0.3)
    torch.testing.assert_close(flow.advance(w.rot90(1, (1, 2)), 0.3), end.rot90(1, (1, 2)), rtol=0, atol=1e-12)
    torch.testing.assert_close(flow.advance(w.roll((3, 5), (1, 2)), 0.3), end.roll((3, 5), (1, 2)), rtol=0, atol=1e-12)
    torch.testing.assert_close(flow.advance(-w.flip(1), 0.3), -end.flip(1), rtol=0, atol=1e-12)
    assert float((flow.advance(w.flip(1), 0.3) - end.flip(1)).abs().max()) > 0.01


def test_resolved_flows_do_not_see_the_grid() -> None:
    coarse, fine = (flow.advance(smooth(2, points, 2), 0.5, flow.diagonal_forcing(points)) for points in (48, 96))
    torch.testing.assert_close(coarse, fine[:, ::2, ::2], rtol=0, atol=1e-6)


def test_the_data_are_near_a_refined_solution() -> None:
    """64 points and dt = 0.025 against 128 and 0.00625, from the same waves: below 0.5 % of the field."""
    pairs = flow.random_pairs(4, seed(3))
    fine = flow.advance(refined(pairs[:, 0], 128), 1.0, flow.diagonal_forcing(128), step=0.00625)[:, ::2, ::2]
    gap = (pairs[:, 1] - fine).square().sum((1, 2)) / fine.square().sum((1, 2))
    assert float(gap.sqrt().max()) < 5e-3
    assert float((pairs[:, 1] - pairs[:, 0]).square().mean()) > 0.1 * float(pairs.square().mean())


@pytest.mark.statistical
def test_starts_have_the_published_spectrum() -> None:
    """E w^2 = 16 * 2 * 7^3 sum (4 pi^2 |k|^2 + 49)^-2.5 over the waves of the grid."""
    w = flow.random_starts(600, seed(4), 32)
    k = torch.arange(-16, 16, dtype=F64)
    lam = 32 * 343 * (4 * math.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + 49) ** -2.5
    lam[16, 16] = 0.0
    error = math.sqrt(2 * float(lam.square().sum()) / 600)  # of the mean of independent modes
    assert abs(float(w.square().mean()) - float(lam.sum())) < 4 * error < 0.1 * float(lam.sum())


def test_forcing_and_repetition() -> None:
    x, y = grid(12)
    expected = 0.1 * (torch.sin(2 * math.pi * (x + y)) + torch.cos(2 * math.pi * (x + y)))
    torch.testing.assert_close(flow.diagonal_forcing(12), expected)
    one, two = (flow.random_pairs(2, seed(5), 16) for _ in range(2))
    assert torch.equal(one, two) and one.shape == (2, 2, 16, 16)


def test_fields_do_not_see_each_other() -> None:
    w = flow.random_starts(flow.BATCH + 3, seed(6), 16)
    together = flow.advance(w, 0.1)
    torch.testing.assert_close(together[-2:], flow.advance(w[-2:], 0.1), rtol=0, atol=1e-14)
    assert torch.equal(flow.advance(w, 0.0), w)


def test_bad_input_is_named() -> None:
    with pytest.raises(SettingError, match="time and viscosity"):
        flow.advance(torch.zeros(1, 8, 8), -1.0)
    with pytest.raises(ShapeError, match=r"\(1, 8, 8\) and a forcing \(6, 6\)"):
        flow.advance(torch.zeros(1, 8, 8), 1.0, torch.zeros(6, 6))
    with pytest.raises(DivergedError, match="smaller step than 1"):
        flow.advance(1e4 * smooth(1, 16), 40.0, step=1.0, viscosity=0.0)
