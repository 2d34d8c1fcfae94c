"""Fields obey their laws, and exact draws given known values are those of the joint distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal_lab.networks.fields import F64, FIELDS, Fields, Heat, Reaction, conditioned, waves


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", FIELDS)
def test_fields_and_draws_given_their_values_lie_in_their_sets(name: str) -> None:
    fields = FIELDS[name]
    y = fields.draw(6, stream())
    assert y.shape == (6, *fields.event) and 0.3 < float(y.std()) < 2.0
    given = fields.given(y[2], 5, stream(1))
    for family in fields.sets.values():
        assert float(family(y).violation(y).max()) < 1e-12
        assert float(family(y[2:3].expand(5, *fields.event)).violation(given).max()) < 1e-12
        assert float(family(y[:5]).violation(given)[0]) > 1e-3  # the values of another field
    assert float((given - given[:1]).abs().max()) > 0.05  # what is not known differs


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["heat", "burgers", "navier-stokes"])
def test_a_draw_given_the_values_of_a_draw_is_a_draw(name: str) -> None:
    """y and z given the values of y have one distribution: means and variances of random projections agree."""
    fields, n = FIELDS[name], 300
    start = fields.initial(n, stream(3))
    shape = fields.event
    first = torch.zeros(n, *shape, dtype=F64)
    first[:, 0] = start if len(shape) == 3 and start.ndim == 3 else first[:, 0]
    if start.ndim == 2:
        first[:, 0, 0] = start
    again = torch.cat([fields.initial(1, stream(1000 + k), first[k]) for k in range(n)])
    along = torch.randn(start[0].numel(), 6, generator=stream(4), dtype=F64)
    one, other = start.flatten(1) @ along, again.flatten(1) @ along
    error = one.square().std(0) * math.sqrt(2 / n)
    assert bool(((one.square().mean(0) - other.square().mean(0)).abs() < 4.5 * error).all())
    assert float((start - again).flatten(1).abs().amin(0).min()) < 1e-9  # the known values are the same


def test_conditioned_gaussians_are_kriging() -> None:
    """Mean and covariance of F w given F[rows] w = v, in closed form from many draws' exact linear map."""
    factor = torch.randn(5, 4, generator=stream(), dtype=F64)
    rows, value = torch.tensor([0, 3]), torch.tensor([0.4, -1.0], dtype=F64)
    x = conditioned(factor, 4000, stream(1), rows, value)
    torch.testing.assert_close(x[:, rows], value.expand(4000, 2))
    C = factor @ factor.T
    gain = C[:, rows] @ torch.linalg.inv(C[rows][:, rows])
    mean, cov = gain @ value, C - gain @ C[rows]
    error = cov.diagonal().clamp_min(0).sqrt() / math.sqrt(4000)
    assert bool(((x.mean(0) - mean).abs() <= 4.5 * error + 1e-10).all())
    spread = (x - x.mean(0)).T @ (x - x.mean(0)) / 3999
    assert float((spread - cov).abs().max()) < 0.12 * float(cov.diagonal().max())


def test_heat_decays_as_the_equation_says() -> None:
    """Without forcing a wave decays by exp(-nu k^2 t): the ratio of two waves of one field gives the same nu."""

    class Still(Heat):
        def solve(self, start: Tensor, generator: torch.Generator) -> Tensor:
            u = super().solve(start, stream(8))
            rest = super().solve(torch.zeros_like(start), stream(8))
            return u - rest

    shapes, _ = waves(32, 5)
    start = (shapes[:, 1] + shapes[:, 3])[None]  # cos y + cos 2 y
    found = Still().solve(start, stream(8))[0, 0] @ torch.linalg.pinv(shapes).T
    rate = -found[8, 1].log() / 0.5
    torch.testing.assert_close(found[8, 3].log(), -4 * rate * 0.5)
    assert 0.1 <= float(rate) <= 1.0


def test_the_balance_of_mass_is_the_trapezoidal_rule() -> None:
    fields = Reaction()
    z = fields.draw(3, stream(2))
    u = 0.5 + fields.scale * z[:, 0]
    mass, growth = u.sum(2), (3.0 * u * (1 - u)).sum(2)
    for k in range(15):
        torch.testing.assert_close(mass[:, k + 1] - mass[:, k], 0.05 * (growth[:, k] + growth[:, k + 1]))
    assert fields.balance(z).shape == (3, 5) and float(fields.balance(z + 0.1).abs().min()) > 1e-3


def test_known_values_are_an_abstract_part() -> None:
    with pytest.raises(TypeError):
        Fields()  # type: ignore[abstract]
    assert all(isinstance(f(FIELDS["heat"].draw(2, stream())), casal.Constraint) for f in FIELDS["heat"].sets.values())
