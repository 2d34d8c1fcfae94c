"""Implicit sets with sparse Jacobians, or with products alone, against the dense ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import casal
from casal import Affine, Implicit, Intersection, JacobianProducts, PerChain, SparseJacobian
from casal.constraints import Budget, geometry
from casal.constraints.solvers import banded
from casal.errors import SettingError, ShapeError

from .darcy import Darcy, smooth_fields
from .implicit_cases import CENTER, PLACES, sphere


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def beside(flow: Darcy, chains: int, size: float = 0.1, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Solutions, and points beside them: s and u in units of their own."""
    z = flow.solution(smooth_fields(chains, flow.side))
    units = torch.tensor([1.0, 0.02], dtype=torch.float64).reshape(1, 2, 1, 1)
    return z, z + size * units * normal(*z.shape, seed=seed)


def products(flow: Darcy) -> JacobianProducts:
    """J v and J^T w of the flow."""
    rows, columns = flow.indices

    def forward(z: Tensor, v: Tensor) -> Tensor:
        terms = flow.derivatives(z) * v.flatten(1)[:, columns]
        return terms.new_zeros(len(z), flow.side**2).index_add_(1, rows, terms)

    def back(z: Tensor, w: Tensor) -> Tensor:
        terms = flow.derivatives(z) * w[:, rows]
        return terms.new_zeros(len(z), z[0].numel()).index_add_(1, columns, terms).reshape(z.shape)

    return JacobianProducts(forward, back)


@pytest.fixture(params=["LAPACK", "blocks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to factorise: that of SciPy, and that of torch alone."""
    if request.param == "blocks":
        monkeypatch.setattr(banded.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("way")
def test_a_sparse_jacobian_gives_the_answers_of_the_dense_one() -> None:
    flow = Darcy(5)
    sparse, dense = flow.sparse(), flow.dense()
    _, y = beside(flow, 4, size=0.3)
    found, expected = sparse.solve(y), dense.solve(y)
    assert bool(found.converged.all()) and bool(expected.converged.all())
    torch.testing.assert_close(found.point, expected.point, rtol=0, atol=1e-12)
    torch.testing.assert_close(sparse.violation(y), dense.violation(y), rtol=1e-13, atol=0)
    assert float(sparse.violation(found.point).max()) <= 1e-15
    torch.testing.assert_close(
        geometry.log_volume_factor(sparse, y, found.point),
        geometry.log_volume_factor(dense, y, found.point),
        rtol=0,
        atol=1e-6,
    )
    landed = geometry.nearest_on_surface(sparse, y)
    assert bool(landed.inside.all()) and geometry.codimension(sparse, (2, 5, 5)) == 25
    torch.testing.assert_close(landed.point, found.point, rtol=0, atol=0)
    assert geometry.parts(sparse, (2, 5, 5)).surface is sparse


@pytest.mark.usefixtures("way")
def test_darcy_flow_on_a_grid() -> None:
    """y - z is a combination of gradients to 1e-10, by a least-squares solution that knows nothing of bands."""
    flow = Darcy(16)
    sparse = flow.sparse()
    z, y = beside(flow, 3)
    found = sparse.solve(y)
    assert bool(found.converged.all()) and int(found.iterations.max()) <= 6
    assert float(flow.residual(found.point).abs().max()) <= 1e-12 / flow.side**2
    assert float(sparse.violation(found.point).max()) <= 1e-15
    rows = torch.zeros(3, 256, 512, dtype=torch.float64)
    rows[:, flow.indices[0], flow.indices[1]] = flow.derivatives(found.point)
    offset = (y - found.point).flatten(1)[:, :, None]
    weights = torch.linalg.lstsq(rows.mT, offset).solution
    assert float((rows.mT @ weights - offset).abs().max()) <= 1e-10 * float(offset.abs().max())
    assert bool(((y - found.point).flatten(1).norm(dim=1) <= (y - z).flatten(1).norm(dim=1)).all())


@pytest.mark.usefixtures("way")
def test_one_warm_iteration_is_the_gauss_newton_step() -> None:
    flow = Darcy(6)
    sparse, (z, y) = flow.sparse(), beside(flow, 3)
    found = sparse.solve(y, budget=Budget(1e-12, 1), warm=z)
    rows = torch.zeros(3, 36, 72, dtype=torch.float64)
    rows[:, flow.indices[0], flow.indices[1]] = flow.derivatives(z)
    away = (rows @ (y - z).flatten(1)[:, :, None]).squeeze(2) + flow.residual(z)
    step = rows.mT @ torch.linalg.solve(rows @ rows.mT, away)[:, :, None]
    torch.testing.assert_close(found.point.flatten(1), y.flatten(1) - step.squeeze(2), rtol=0, atol=1e-12)
    assert found.iterations.tolist() == [1, 1, 1] and not bool(found.converged.any())
    left = [float(sparse.violation(sparse.project(y, budget=Budget(1e-12, k), warm=z)).max()) for k in (1, 2, 3)]
    assert left[1] < 1e-3 * left[0] and left[2] < 1e-3 * left[1]


def test_a_warm_step_that_goes_astray_is_searched_for_instead() -> None:
    flow = Darcy(6)
    sparse, (z, y) = flow.sparse(), beside(flow, 2)
    y[0, 0] += 30.0
    found = sparse.solve(y, budget=Budget(1e-12, 1), warm=z)
    assert bool(torch.isfinite(found.point).all())
    alone = sparse.solve(y[1:], budget=Budget(1e-12, 1), warm=z[1:])
    torch.testing.assert_close(found.point[1], alone.point[0], rtol=0, atol=1e-13)


@pytest.mark.usefixtures("way")
def test_chains_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Darcy(6)
    sparse, (_, y) = flow.sparse(), beside(flow, 5)
    whole = sparse.project(y)
    for chain in (0, 3):
        torch.testing.assert_close(sparse.project(y[chain : chain + 1])[0], whole[chain], rtol=0, atol=1e-14)
    monkeypatch.setattr("casal.constraints.implicit.FACTORS", 10_000)  # a few chains at a time
    torch.testing.assert_close(sparse.project(y), whole, rtol=0, atol=1e-14)
    lost = y.clone()
    lost[1, 0] = 2e3  # 2^s is not finite
    found = sparse.solve(lost, budget=Budget(1e-12, 20))
    assert not bool(found.converged[1]) and bool(found.converged[[0, 2, 3, 4]].all())
    torch.testing.assert_close(found.point[2], whole[2], rtol=0, atol=1e-14)


def test_products_alone_give_the_same_point() -> None:
    flow = Darcy(4)
    scale = 1.0 / flow.side**2
    given = Implicit(flow.residual, jacobian=products(flow), scale=scale)
    dense = Implicit(flow.residual, scale=scale)
    _, y = beside(flow, 3)
    found = given.solve(y)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.point, dense.project(y), rtol=0, atol=1e-9)
    assert float(given.violation(found.point).max()) <= 1e-12
    warm = given.solve(y, budget=Budget(1e-12, 2), warm=found.point + 1e-4 * normal(*y.shape, seed=2))
    assert float(warm.residual.max()) <= 1e-5
    assert geometry.log_volume_factor(given, y, found.point) is None


def test_a_round_set_with_a_sparse_jacobian() -> None:
    """One row that meets all coordinates: far points, and points at the centre, as for the dense set."""
    sparse = Implicit(sphere, jacobian=SparseJacobian(PLACES, lambda z: 2.0 * (z - CENTER)[:, [2, 0, 1]]))
    y = torch.cat([3.0 * normal(20, 3), 1e4 * normal(4, 3), CENTER[None]])
    found = sparse.solve(y)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.point[:24], Implicit(sphere).project(y[:24]), rtol=0, atol=1e-9)


def test_with_observations_the_jacobian_stays_sparse() -> None:
    flow = Darcy(8)
    z = flow.solution(smooth_fields(2, 8))
    seen = torch.zeros(4, 128, dtype=torch.float64)
    seen[torch.arange(4), torch.tensor([5, 40, 90, 111])] = 1.0
    level = z.flatten(1) @ seen.T
    y = z + 0.1 * torch.tensor([1.0, 0.02]).reshape(1, 2, 1, 1) * normal(*z.shape, seed=3)
    for own in (seen, seen.to_sparse()):
        both = flow.sparse() & Affine(own, level[0])
        assert isinstance(both, Intersection) and both._newton is not None
        assert isinstance(both._newton.jacobian, SparseJacobian)
        found = both.solve(y[:1])
        expected = (flow.dense() & Affine(seen, level[0])).project(y[:1])
        assert bool(found.converged.all()) and float(both.violation(found.point).max()) <= 1e-14
        torch.testing.assert_close(found.point, expected, rtol=0, atol=1e-10)
        both._newton.violation(y)  # compares the derivatives with differences
        step = both.solve(y[:1], budget=Budget(1e-12, 1), warm=z[:1])
        assert step.iterations.tolist() == [1] and float(step.residual.max()) <= 1e-2
    each = flow.sparse() & Affine(seen, PerChain(level))
    assert float(each.violation(each.project(y)).max()) <= 1e-14
    total = Affine(torch.ones(1, 128), float(z[0].sum()))
    assert float((flow.sparse() & total).violation((flow.sparse() & total).project(y[:1])).max()) <= 1e-12


def test_observations_that_hardly_depend_on_the_coefficient_are_met_to_rounding() -> None:
    """Rows of u at a point nearly are combinations of the flow's: eigenvalues of U U^T go down to 1e-10."""
    flow = Darcy(16)
    z, y = beside(flow, 4)
    generator = torch.Generator().manual_seed(7)
    places = torch.cat([256 * k + torch.randperm(256, generator=generator)[:25] for k in range(2)])
    seen = torch.eye(512, dtype=torch.float64)[places]
    for chain in range(4):
        both = flow.sparse() & Affine(seen.to_sparse(), seen @ z[chain].flatten())
        found = both.solve(y[chain : chain + 1])
        assert bool(found.converged) and int(found.iterations) <= 8
        assert float(both.violation(found.point)) <= 1e-14


def test_it_runs_in_a_loop() -> None:
    flow = Darcy(4)
    z = flow.solution(smooth_fields(2, 4))
    target = casal.langevin(lambda x: x - z[0], steps=20, step_size=1e-3, init=z[0].expand(4, 2, 4, 4))
    result = casal.sample(
        target, flow.sparse(), casal.CASAL(rho=20.0), n=4, seed=0, run=casal.Run(budget=Budget(1e-6, 1))
    )
    assert float(result.certificate.violation.max()) <= 1e-14


def test_mistakes_are_refused_with_the_way_out() -> None:
    flow = Darcy(4)
    z = flow.solution(smooth_fields(1, 4))
    jacobian = SparseJacobian(flow.indices, flow.derivatives)
    with pytest.raises(SettingError, match=r"equations only.*&|equations only"):
        Implicit(flow.residual, lambda z: z.flatten(1)[:, :1], jacobian=jacobian)
    with pytest.raises(SettingError, match="scale="):
        Implicit(flow.residual, jacobian=products(flow))
    with pytest.raises(ShapeError, match=r"\(2, k\)"):
        SparseJacobian(flow.indices[0], flow.derivatives)
    with pytest.raises(SettingError, match="must be a function"):
        SparseJacobian(flow.indices, 3.0)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="two functions"):
        JacobianProducts(flow.derivatives, None)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="up to row 15 and coordinate 31, the function has 16 rows and 18"):
        Implicit(lambda z: z[:, :16], jacobian=jacobian).project(torch.zeros(1, 18))
    with pytest.raises(ShapeError, match="values of the sparse jacobian"):
        Implicit(flow.residual, jacobian=SparseJacobian(flow.indices, lambda z: z.flatten(1))).project(z)
    with pytest.raises(ShapeError, match="forward of JacobianProducts"):
        Implicit(flow.residual, jacobian=JacobianProducts(lambda z, v: z, lambda z, w: z), scale=1.0).project(1.1 * z)
    with pytest.raises(SettingError, match="more than once"):
        twice = torch.cat([flow.indices, flow.indices[:, :1]], dim=1)
        more = SparseJacobian(twice, lambda z: torch.cat([flow.derivatives(z), z.flatten(1)[:, :1]], dim=1))
        Implicit(flow.residual, jacobian=more).project(z)
    with pytest.raises(SettingError, match="gives component 0 a slope of"):
        Implicit(flow.residual, jacobian=SparseJacobian(flow.indices, lambda z: 2 * flow.derivatives(z))).violation(z)
    size = 400  # one row is as long as all others together
    rows = torch.cat([torch.arange(size), torch.zeros(size - 1, dtype=torch.long)])
    places = torch.stack([rows, torch.cat([torch.arange(size), torch.arange(1, size)])])
    with pytest.raises(SettingError, match="row 0 of the sparse jacobian has 400 entries"):
        total = Implicit(lambda z: z - 1, jacobian=SparseJacobian(places, lambda z: z.new_ones(len(z), 2 * size - 1)))
        total.project(torch.zeros(1, size))
