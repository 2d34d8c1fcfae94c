"""Sets that change along a run: which one holds when, and that the last one is what counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError, StoreError

INIT = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET = casal.langevin(lambda x: x, steps=10, step_size=0.1, init=INIT)
WIDE, NARROW = casal.Sphere(3.0), casal.Sphere(1.0)
CHANGING = casal.Scheduled([(0.0, WIDE), (0.3, NARROW)])


def run(constraint: Any, method: Any = None, **options: Any) -> casal.SampleResult:
    return casal.sample(TARGET, constraint, method or casal.Projected(), 6, **options)


def test_each_set_holds_in_its_share_of_the_run() -> None:
    norms: list[Tensor] = []
    result = run(CHANGING, callback=lambda view: norms.append(view.state.x.norm(dim=1)))
    for k, found in enumerate(norms):  # step k of 10, the fourth is at 0.3
        torch.testing.assert_close(found, torch.full_like(found, 3.0 if k < 3 else 1.0), rtol=1e-12, atol=0)
    assert bool(result.certificate.feasible.all()) and repr(result.constraint) == repr(NARROW)
    assert "Scheduled" in result.provenance["schedule"] and result.provenance["constraint"] == repr(NARROW)


@pytest.mark.parametrize("method", [casal.Projected(), casal.CASAL(10.0), casal.CASAL(10.0, dual="mean")])
def test_one_set_all_along_is_that_set(method: Any) -> None:
    alone, changing = run(NARROW, method), run(casal.Scheduled([(0.0, NARROW), (0.5, NARROW)]), method)
    assert torch.equal(alone.samples, changing.samples) and alone.cost.projections == changing.cost.projections
    assert not torch.equal(alone.samples, run(CHANGING, method).samples)


def test_sets_of_single_chains_follow_their_chains() -> None:
    radii = torch.linspace(2.0, 3.0, 6, dtype=torch.float64)
    sets = casal.Scheduled([(0.0, casal.Sphere(casal.PerChain(radii))), (0.9, NARROW)])
    norms = torch.zeros(6, dtype=torch.float64)

    def look(view: casal.StepView) -> None:
        if view.step == 9:
            norms[view.chains] = view.state.x.norm(dim=1)

    run(sets, callback=look, tile=2, threads=2)
    torch.testing.assert_close(norms, radii, rtol=1e-12, atol=0)
    with pytest.raises(ShapeError, match="6 chains, but n = 5"):
        casal.sample(casal.langevin(lambda x: x, steps=3, step_size=0.1, init=INIT[:5]), sets, casal.Projected(), 5)


def test_a_linear_decoder_sees_the_sets() -> None:
    decoder = casal.Linear(torch.linalg.qr(torch.cat([INIT, INIT])[:5].exp()).Q)
    norms: list[float] = []
    result = run(CHANGING, decoder=decoder, callback=lambda view: norms.append(float(view.state.x.norm(dim=1).mean())))
    assert norms[0] == pytest.approx(3.0) and norms[-1] == pytest.approx(1.0)
    assert bool(result.certificate.feasible.all())


def test_draws_begin_with_the_last_set() -> None:
    late = run(casal.Scheduled([(0.0, WIDE), (0.6, NARROW)]), snapshots=1).snapshots
    assert late is not None and late.first_draw == 6


@pytest.mark.parametrize(
    "method",
    ["auto", casal.WeightedCASAL(10.0), casal.FinalProjection(), casal.Penalty(1.0), casal.Projected(latent="exact")],
)
def test_methods_that_would_not_see_the_sets_refuse(method: Any) -> None:
    with pytest.raises(SettingError, match=r"takes one set, not a schedule: give the last one, Sphere\(radius=1\)"):
        run(CHANGING, method)


def test_what_cannot_work_is_refused_before_the_run() -> None:
    for stages, says in (
        ([], "pairs"),
        ([(0.0, 3.0)], "got the set 3.0"),
        ([WIDE, NARROW], "list of pairs"),
        ({0.0: WIDE, 0.5: NARROW}, "list of pairs"),
        ([(0.1, WIDE)], "begin at 0"),
        ([(0.0, WIDE), (0.0, NARROW)], "rise"),
        ([(0.0, WIDE), (1.0, NARROW)], r"\[0, 1\)"),
    ):
        with pytest.raises(SettingError, match=says):
            casal.Scheduled(stages)
    with pytest.raises(ShapeError, match="written for 7 coordinates"):
        run(casal.Scheduled([(0.0, casal.HalfSpace(torch.ones(7), 1.0)), (0.5, NARROW)]))
    with pytest.raises(SettingError, match="compile"):
        run(CHANGING, compile=True)


def test_a_store_knows_all_sets(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    store = tmp_path / "run.zarr"
    result = run(CHANGING, store=store)
    assert torch.equal(run(CHANGING, store=store).samples, result.samples)
    assert bool(casal.load(store).certificate.feasible.all())
    with pytest.raises(StoreError, match="schedule"):
        run(casal.Scheduled([(0.0, casal.Sphere(2.5)), (0.3, NARROW)]), store=store)
