"""Mistakes are named before the first step, with the number; runs that diverge say where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import casal
from casal import CASAL, Decoupled, FinalProjection, Penalty, PrimalDual, Projected, Unconstrained, WeightedCASAL
from casal.errors import (
    CasalError,
    CasalWarning,
    DivergedError,
    DtypeError,
    InfeasibleSet,
    ProjectionError,
    SettingError,
    ShapeError,
)
from casal.methods import Method
from casal.sampling.tiles import cut

NAN, INF = math.nan, math.inf
START = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(8, 3)


class Gradient:
    """The gradient of |x|^2 / 2, counting its calls; ``spoil`` may damage what it returns."""

    def __init__(self, spoil: Callable[[Tensor], Any] = lambda g: g) -> None:
        self.calls, self.spoil = 0, spoil

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        return self.spoil(x.clone())


def run(gradient: Callable[[Tensor], Any], **changes: Any) -> casal.SampleResult:
    """A run that works, up to ``changes``."""
    target = {"steps": 10, "step_size": 0.05, "init": START, "preconditioner": None}
    target |= {key: changes.pop(key) for key in list(changes) if key in target}
    call: dict[str, Any] = {"constraint": casal.Sphere(1.0), "method": Unconstrained(), "n": 8} | changes
    return casal.sample(casal.langevin(gradient, **target), **call)


def test_the_unchanged_run_works() -> None:
    gradient = Gradient()
    result = run(gradient, method=CASAL(10.0))
    assert bool(result.certificate.feasible.all())
    assert gradient.calls == 11


class Bad(NamedTuple):
    """One mistake: the error it must give, what the message must say, and the change that makes it."""

    id: str
    error: type[CasalError]
    says: str
    changes: dict[str, Any]


def leaves(z: Tensor) -> Tensor:
    return z + 0.25


def own(project: Callable[[Tensor], Tensor], **flags: Any) -> casal.FromProjection:
    return casal.FromProjection(project, lambda z: z.abs().amax(1), **flags)


def points(value: float) -> Tensor:
    """Starting points, one of which (chain 5) holds ``value``."""
    spoiled = START.clone()
    spoiled[5, 1] = value
    return spoiled


EXPLICIT = CASAL(10.0, coupling="explicit")  # tau rho = 0.5
TWICE = casal.Linear(3.0 * torch.eye(3, dtype=torch.float64))
ANISOTROPIC = torch.tensor([1.0, 4.0, 0.5])

CALLS: list[Bad] = [
    # the plain numbers of a call
    Bad("n-zero", SettingError, "got 0", {"n": 0}),
    Bad("n-negative", SettingError, "got -3", {"n": -3}),
    Bad("n-fraction", SettingError, r"got 2\.5", {"n": 2.5}),
    Bad("n-nan", SettingError, "got nan", {"n": NAN}),
    Bad("n-inf", SettingError, "got inf", {"n": INF}),
    Bad("n-none", SettingError, "got None", {"n": None}),
    Bad("n-word", SettingError, "got many", {"n": "many"}),
    Bad("tol-negative", SettingError, "got -1", {"tol": -1.0}),
    Bad("tol-nan", SettingError, "got nan", {"tol": NAN}),
    Bad("record-negative", SettingError, "got -1", {"record_every": -1}),
    Bad("record-fraction", SettingError, r"got 0\.5", {"record_every": 0.5}),
    Bad("seed-negative", SettingError, "got -1", {"seed": -1}),
    Bad("seed-fraction", SettingError, r"got 1\.5", {"seed": 1.5}),
    Bad("seed-nan", SettingError, "got nan", {"seed": NAN}),
    Bad("tile-zero", SettingError, "got 0", {"tile": 0}),
    Bad("tile-fraction", SettingError, r"got 2\.5", {"tile": 2.5}),
    Bad("dtype-integer", CasalError, "int64", {"dtype": torch.int64}),
    Bad("method-name", SettingError, "got 'casal'", {"method": "casal"}),
    Bad("method-class", SettingError, "CASAL", {"method": CASAL}),
    Bad("constraint-word", SettingError, "sphere", {"constraint": "sphere"}),
    Bad("decoder-matrix", SettingError, "got Tensor", {"decoder": torch.eye(3)}),
    Bad("decoder-columns", ShapeError, "takes 4 latent numbers.*have 3", {"decoder": casal.Linear(torch.eye(4))}),
    # starting points
    Bad("init-short", ShapeError, "7 rows for n = 8", {"init": START[:7]}),
    Bad("init-long", ShapeError, "8 rows for n = 5", {"n": 5}),
    Bad("init-one-dimension", ShapeError, r"\(8,\)", {"init": START[:, 0]}),
    Bad("init-number", ShapeError, r"\(\)", {"init": torch.tensor(1.0)}),
    Bad("init-integers", DtypeError, "int64", {"init": torch.ones(8, 3, dtype=torch.int64)}),
    Bad("init-list", CasalError, "list", {"init": START.tolist()}),
    Bad("init-array", CasalError, "ndarray", {"init": START.numpy()}),
    Bad("init-none", CasalError, "None", {"init": None}),
    Bad("init-nan", DivergedError, "1 starting points.*first chain 5", {"init": points(NAN)}),
    Bad("init-inf", DivergedError, "1 starting points.*first chain 5", {"init": points(INF)}),
    Bad("init-nan-in-a-later-tile", DivergedError, "first chain 5", {"init": points(NAN), "tile": 2}),
    Bad("init-callable-length", ShapeError, r"\(3, 3\).*, \*event\)", {"init": lambda n, generator: START[:3]}),
    Bad("init-callable-array", ShapeError, "ndarray", {"init": lambda n, generator: np.zeros((n, 3))}),
    Bad("init-callable-number", ShapeError, "float", {"init": lambda n, generator: 1.0}),
    # events that the set cannot hold
    Bad("affine-columns", ShapeError, "4 coordinates.*have 3", {"constraint": casal.Affine(torch.ones(1, 4), 1.0)}),
    Bad("half-space-columns", ShapeError, "2 coordinates.*have 3", {"constraint": casal.HalfSpace([1.0, 1.0], 0.0)}),
    Bad("box-shape", ShapeError, r"\(4,\) do not broadcast.*\(3,\)", {"constraint": casal.Box(torch.zeros(4), 1.0)}),
    Bad("box-larger", ShapeError, r"\(2, 3\) do not.*\(3,\)", {"constraint": casal.Box(torch.zeros(2, 3), 1.0)}),
    Bad("sphere-center", ShapeError, r"\(2,\).*\(3,\)", {"constraint": casal.Sphere(1.0, torch.zeros(2))}),
    Bad("ball-center", ShapeError, r"\(4,\).*\(3,\)", {"constraint": casal.Ball(1.0, torch.zeros(4))}),
    Bad("too-little-energy", InfeasibleSet, r"2\.9 is below.* = 3 ", {"constraint": casal.MassEnergy(3.0, 2.9)}),
    Bad(
        "too-little-energy-decoded",
        InfeasibleSet,
        r"1 is below .* = 4\.5 .*N = 2",
        {"constraint": casal.MassEnergy(3.0, 1.0), "decoder": casal.Linear(torch.ones(2, 3, dtype=torch.float64))},
    ),
    # projections that are none
    Bad("projection-shape", ShapeError, r"\(2, 2\).*\(2, 3\)", {"constraint": own(lambda z: z[:, :2])}),
    Bad(
        "projection-leaves", ProjectionError, r"violation 1\.25 > tol", {"constraint": own(leaves), "init": START.abs()}
    ),
    Bad("projection-nan", ProjectionError, "non-finite", {"constraint": own(lambda z: z / 0.0)}),
    Bad("violation-shape", ShapeError, r"\(2, 3\) for 2", {"constraint": casal.FromProjection(leaves, leaves)}),
    # couplings
    Bad(
        "rho-schedule-negative",
        SettingError,
        "rho.* is -0.111111 at step 5",
        {"method": CASAL(casal.linear(1.0, -1.0))},
    ),
    Bad("rho-schedule-zero", SettingError, "rho.* is 0 at step 0", {"method": CASAL(casal.linear(0.0, 1.0))}),
    Bad("rho-schedule-length", SettingError, r"\(3,\) for 10", {"method": CASAL(lambda table: torch.ones(3))}),
    Bad("rho-infinite", SettingError, "rho.* inf", {"method": CASAL(INF)}),
    Bad("rho-decoupled", SettingError, "rho.* is 0 ", {"method": Decoupled(0.0)}),
    Bad("rho-decoupled-schedule", SettingError, "rho.* is -2 ", {"method": Decoupled(casal.constant(-2.0))}),
    Bad("rho-ladder-zero", SettingError, "rho.* is 0 ", {"method": WeightedCASAL(casal.linear(0.0, 9.0))}),
    Bad("rho-ladder-descends", SettingError, "descend", {"method": WeightedCASAL(casal.linear(9.0, 1.0))}),
    Bad("weight-negative", SettingError, "weight.* is -0.5", {"method": Penalty(-0.5)}),
    Bad(
        "weight-schedule", SettingError, "weight.* is -0.111111 at step 5", {"method": Penalty(casal.linear(1.0, -1.0))}
    ),
    Bad("explicit", SettingError, r"= 2\.5 > 1.*divide rho by 2\.5", {"method": CASAL(50.0, coupling="explicit")}),
    Bad("explicit-algorithm1", SettingError, r"= 1\.5 > 1", {"method": CASAL.algorithm1(30.0)}),
    Bad("explicit-algorithm2", SettingError, r"= 1\.5 > 1", {"method": CASAL.algorithm2(30.0)}),
    Bad("explicit-released", SettingError, r"= 1\.5 > 1", {"method": CASAL.released(30.0, 0.1)}),
    Bad("explicit-final", SettingError, r"= 1\.5 > 1", {"method": FinalProjection(CASAL.released(30.0, 0.1))}),
    Bad(
        "explicit-schedule",
        SettingError,
        r"= 2 > 1 at step 9",
        {"method": CASAL(casal.linear(4.0, 40.0), coupling="explicit")},
    ),
    Bad("explicit-decoder", SettingError, r"= 4\.5 > 1.*\|A\|\^2 = 9", {"method": EXPLICIT, "decoder": TWICE}),
    Bad("explicit-preconditioner", SettingError, "= 2 > 1", {"method": EXPLICIT, "preconditioner": ANISOTROPIC}),
    Bad(
        "explicit-decoder-and-preconditioner",
        SettingError,
        "= 18 > 1",
        {"method": EXPLICIT, "decoder": TWICE, "preconditioner": ANISOTROPIC},
    ),
    # preconditioners and burn-in
    Bad("preconditioner-long", ShapeError, r"\(4,\).*\(3,\)", {"preconditioner": torch.ones(4)}),
    Bad("preconditioner-matrix", ShapeError, r"\(3, 3\).*\(3,\)", {"preconditioner": torch.eye(3) + 1}),
    Bad("burn-in-all", SettingError, "burn_in = 10 .*10 steps", {"method": CASAL(1.0, burn_in=10)}),
    Bad("burn-in-more", SettingError, "burn_in = 11 .*10 steps", {"method": Projected(burn_in=11)}),
    Bad("burn-in-rounds-to-all", SettingError, r"burn_in = 0\.99 .*10 steps", {"method": Penalty(1.0, burn_in=0.99)}),
    Bad("burn-in-negative", SettingError, "burn_in = -1", {"method": CASAL(1.0, burn_in=-1)}),
    Bad("burn-in-fraction", SettingError, r"burn_in = 2\.5", {"method": CASAL(1.0, burn_in=2.5)}),
    Bad("burn-in-nan", SettingError, "burn_in = nan", {"method": CASAL(1.0, burn_in=NAN)}),
    Bad("burn-in-ladder", SettingError, "10 steps leave none.*8 of burn-in", {"method": WeightedCASAL(9.0, burn_in=8)}),
    # sets without a residual
    *(
        Bad(f"no-residual-{method.name}", SettingError, "FromProjection has no smooth residual.*CASAL", changes)
        for method in (Penalty(1.0), PrimalDual(0.1), PrimalDual(0.1, average="time"), Decoupled(1.0))
        for changes in ({"constraint": own(torch.zeros_like), "method": method},)
    ),
    Bad(
        "no-residual-inner",
        SettingError,
        "no smooth residual",
        {"constraint": own(torch.zeros_like), "method": FinalProjection(Penalty(1.0))},
    ),
]


@pytest.mark.parametrize("bad", CALLS, ids=lambda bad: bad.id)
def test_a_bad_call_is_refused_before_the_first_step(bad: Bad) -> None:
    gradient = Gradient()
    with pytest.raises(bad.error, match=f"(?s){bad.says}"):
        run(gradient, **bad.changes)
    assert gradient.calls <= 2  # a few chains, and all of them where a few fail


GRADIENTS: list[tuple[str, type[CasalError], str, Callable[[Tensor], Any]]] = [
    ("nan", DivergedError, r"not finite .*\d", lambda g: g * NAN),
    ("inf", DivergedError, r"not finite .*\d", lambda g: g + INF),
    ("one-nan", DivergedError, r"not finite .*\d", lambda g: torch.where(g == g[1, 2], NAN, g)),
    ("flat", ShapeError, r"\(12,\) at points of shape \(4, 3\)", torch.flatten),
    ("summed", ShapeError, r"\(4,\) at points of shape \(4, 3\)", lambda g: g.sum(1)),
    ("transposed", ShapeError, r"\(3, 4\) at points of shape \(4, 3\)", lambda g: g.T),
    ("array", ShapeError, "ndarray", lambda g: g.numpy()),
    ("number", ShapeError, "float", lambda g: 1.0),
    ("float32", DtypeError, "float32.*float64", lambda g: g.to(torch.float32)),
]


@pytest.mark.parametrize(("error", "says", "spoil"), [row[1:] for row in GRADIENTS], ids=[row[0] for row in GRADIENTS])
@pytest.mark.parametrize("method", [Unconstrained(), CASAL(10.0), WeightedCASAL(9.0)], ids=lambda method: method.name)
def test_a_bad_gradient_is_refused_at_once(
    error: type[CasalError], says: str, spoil: Callable[[Tensor], Any], method: Method[Any]
) -> None:
    gradient = Gradient(spoil)
    with pytest.raises(error, match=says) as refused:
        run(gradient, method=method)
    assert gradient.calls <= 2  # a few chains, and all of them where a few fail
    if isinstance(refused.value, DivergedError):
        assert (refused.value.step, refused.value.steps) == (0, 10)


def test_a_float64_gradient_of_float32_chains_is_refused() -> None:
    gradient = Gradient(lambda g: g.to(torch.float64))
    with pytest.raises(DtypeError, match=r"float64.*float32.*dtype="):
        run(gradient, dtype=torch.float32)
    assert gradient.calls == 1


# ------------------------------------------------------------------ functions that edit what they are given


def edits(x: Tensor) -> Tensor:
    return x.mul_(0.5)


def edits_unseen(x: Tensor) -> Tensor:
    """Behind torch's back."""
    x.detach().numpy()[:] *= 0.5
    return x.clone()


def edits_nothing_yet(x: Tensor) -> Tensor:
    return x.clamp_(-50.0, 50.0) * 1.0


@pytest.mark.parametrize("edit", [edits, edits_unseen, edits_nothing_yet])
def test_functions_that_edit_their_argument_are_refused(edit: Callable[[Tensor], Tensor]) -> None:
    init, settings = START.clone(), {"steps": 5, "step_size": 0.1, "init": START}

    def energy(x: Tensor) -> Tensor:
        return edit(x).square().sum(1)

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        return edit(x) / (1 + sigma**2)

    prior = casal.edm(denoiser, [4.0, 1.0], shape=3, dtype=torch.float64)
    targets: dict[str, casal.Target] = {
        "the gradient of langevin": casal.langevin(edit, **settings),
        "the potential of langevin": casal.langevin(lambda x: x, potential=energy, **settings),
        "the potential of energy": casal.energy(energy, **settings),
        "the gradient of edm": prior,
        "the gradient of edm given 1 observations": casal.posterior(prior, [[1.0, 0.0, 0.0]], [0.0], 0.1),
    }
    for name, target in targets.items():
        with pytest.raises(SettingError, match=f"{name} edits its argument in place; return a new tensor"):
            casal.sample(target, casal.Sphere(1.0), CASAL(10.0), 8)
    gradient = Gradient()
    with pytest.raises(SettingError, match="the decoder edits its argument in place; return a new tensor"):
        run(gradient, decoder=casal.Nonlinear(edit, norm=1.0), method=CASAL(1.0, coupling="explicit"))
    with pytest.raises(SettingError, match=r"the projection of .*FromProjection.* edits its argument in place"):
        run(gradient, constraint=casal.FromProjection(edits_unseen, lambda z: z.abs().amax(1)))
    assert torch.equal(START, init), "the starting points are the user's"


class Late(Gradient):
    """Damages what it returns from a call on."""

    def __init__(self, first: int, spoil: Callable[[Tensor], Any]) -> None:
        super().__init__(spoil)
        self.first = first

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        return x.clone() if self.calls < self.first else self.spoil(x)


@pytest.mark.parametrize("method", [Unconstrained(), CASAL(10.0), WeightedCASAL(9.0)], ids=lambda method: method.name)
def test_a_gradient_that_goes_wrong_later_is_named(method: Method[Any]) -> None:
    wrong = {
        r"langevin has shape \(8, 1\) at points of shape \(8, 3\)": lambda x: x.sum(1, keepdim=True),
        r"langevin has shape \(3,\) at points of shape \(8, 3\)": lambda x: x.mean(0),
        r"langevin is torch\.float32 on cpu, the chains are torch\.float64": lambda x: x.float(),
        "langevin edits its argument in place": edits,
    }
    for says, spoil in wrong.items():
        with pytest.raises(CasalError, match=says):
            run(Late(6, spoil), method=method)


def test_a_gradient_that_is_wrong_for_the_last_tile_only_is_named() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\) at points of shape \(2, 3\)"):
        run(lambda x: x.mean(0) if len(x) == 2 else x, method=CASAL(10.0), tile=3)


def test_a_network_that_goes_wrong_at_small_noise_is_named() -> None:
    def score(x: Tensor, sigma: Tensor) -> Tensor:
        wide = -x / (1 + sigma**2)
        return wide if float(sigma) > 1 else wide.to(torch.float64)

    target = casal.annealed(score, [4.0, 2.0, 0.5], steps_per_level=2, step_size=0.1, init=START.float(), time="scalar")
    with pytest.raises(DtypeError, match=r"float64.*the chains are torch\.float32 on cpu \(t = 0\.5\)"):
        casal.sample(target, casal.Sphere(1.0), CASAL(10.0), 8)


# ------------------------------------------------------------------ functions that hold one row of data a chain

OWN = torch.linspace(-2.0, 2.0, 24, dtype=torch.float64).reshape(8, 3).flip(1)


def by_row(x: Tensor) -> Tensor:
    return x - OWN


def first_rows(x: Tensor) -> Tensor:
    return x - OWN[: len(x)]


def all_rows(x: Tensor) -> Tensor:
    """One row is like another, but there must be eight of them."""
    return torch.einsum("ij,jk->ik", torch.eye(8, dtype=torch.float64), x)


@pytest.mark.parametrize("gradient", [by_row, first_rows])
def test_one_row_of_data_a_chain_works_in_one_tile(gradient: Callable[[Tensor], Tensor]) -> None:
    """The mean of chain k over many seeds is that of a Gaussian around row k of the data."""
    runs = [run(gradient, constraint=casal.Box(-1e9, 1e9), seed=seed) for seed in range(200)]
    assert {result.provenance["tile"] for result in runs} == {8}
    mean = torch.stack([result.samples for result in runs]).mean(0)
    exact = OWN + (START - OWN) * 0.95**10
    error = math.sqrt((1 - 0.95**20) / (1 - 0.95**2) * 0.1 / 200)
    assert float((mean - exact).abs().max()) < 5 * error
    assert float((mean.flip(0) - exact).abs().max()) > 20 * error  # it can tell the rows apart


@pytest.mark.parametrize("method", [CASAL(10.0), Projected(), FinalProjection(), Penalty(0.1)], ids=lambda m: m.name)
@pytest.mark.parametrize("gradient", [by_row, first_rows, all_rows])
def test_chains_that_must_stay_together_stay_together(method: Method[Any], gradient: Callable[..., Tensor]) -> None:
    result = run(gradient, method=method)
    assert result.provenance["tile"] == 8
    with pytest.raises(SettingError, match=r"tile = 4 splits the chains, but .*; leave out tile="):
        run(gradient, method=method, tile=4)
    assert torch.equal(run(gradient, method=method, tile=8).samples, result.samples)


@pytest.mark.parametrize("gradient", [by_row, first_rows, all_rows])
def test_what_tries_other_numbers_of_chains_is_refused_with_a_way_out(gradient: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(SettingError, match=r"method='auto' tries other numbers of chains, but .*; name a method"):
        run(gradient, method="auto")
    with pytest.raises(SettingError, match=r"a pilot run tries other numbers of chains, but .*; give numbers"):
        run(gradient, method=CASAL(10.0), step_size="auto")


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")  # eight chains
def test_resampling_moves_chains_from_row_to_row() -> None:
    for gradient in (by_row, first_rows):
        with pytest.raises(SettingError, match=r"WeightedCASAL moves chains from row to row, but the gradient"):
            run(gradient, method=WeightedCASAL(9.0))
    result = run(all_rows, method=WeightedCASAL(9.0))
    assert bool(result.certificate.feasible.all())
    assert any("all chains at once" in reason for reason in result.fidelity.reasons)


def test_decoders_and_sets_may_need_all_chains_too(tmp_path: Any) -> None:
    explicit = CASAL(0.5, coupling="explicit")
    stretched = casal.Nonlinear(lambda x: x * (2.0 + OWN.tanh()), norm=3.0)
    cut = casal.Nonlinear(lambda x: x * (2.0 + OWN.tanh()[: len(x)]), norm=3.0)
    onto = OWN / torch.linalg.vector_norm(OWN, dim=1, keepdim=True)
    point = casal.FromProjection(lambda z: onto + 0.0 * z, lambda z: (z - onto).abs().amax(1))
    first = run(Gradient(), decoder=stretched, method=explicit)
    assert torch.equal(run(Gradient(), decoder=cut, method=explicit).samples, first.samples)
    assert torch.equal(run(Gradient(), constraint=point, method=Projected()).samples, onto)
    for changes in ({"decoder": stretched}, {"decoder": cut}, {"constraint": point}):
        with pytest.raises(SettingError, match="splits the chains"):
            run(Gradient(), method=explicit, tile=3, **changes)
    stored = [run(by_row, method=explicit, store=tmp_path / "store").samples for _ in range(2)]
    assert torch.equal(*stored)


def test_a_random_gradient_does_not_depend_on_the_row() -> None:
    stream = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=stream, dtype=x.dtype)

    assert run(noisy, method=CASAL(10.0), tile=3, threads=1).provenance["tile"] == 3


def test_lost_starting_points_are_counted() -> None:
    with pytest.raises(DivergedError) as lost:
        run(Gradient(), init=torch.where(START > 0.8, NAN, START))
    assert lost.value.chains == (7,) and (lost.value.step, lost.value.steps) == (0, 10)


@pytest.mark.parametrize(
    ("error", "says", "build"),
    [
        (InfeasibleSet, "got -1", lambda: casal.Sphere(-1.0)),
        (InfeasibleSet, "got nan", lambda: casal.Ball(NAN)),
        (InfeasibleSet, "got inf", lambda: casal.Sphere(INF)),
        (InfeasibleSet, "nan", lambda: casal.Sphere(1.0, torch.tensor([0.0, NAN]))),
        (InfeasibleSet, "inf", lambda: casal.Ball(1.0, torch.tensor([INF, 0.0]))),
        (InfeasibleSet, r"1 of 3 bounds, first at \(1,\): low = 2, high = 1", lambda: casal.Box([0.0, 2.0, 0.0], 1.0)),
        (InfeasibleSet, "low = 2, high = 1", lambda: casal.Box(2.0, 1.0)),
        (InfeasibleSet, "low = nan", lambda: casal.Box(NAN, 1.0)),
        (InfeasibleSet, "low = inf", lambda: casal.Box(INF, INF)),
        (InfeasibleSet, r"\|a\| = 0", lambda: casal.HalfSpace([0.0, 0.0], 1.0)),
        (InfeasibleSet, r"\|a\| = nan", lambda: casal.HalfSpace([NAN, 0.0], 1.0)),
        (InfeasibleSet, "b = nan", lambda: casal.HalfSpace([1.0, 0.0], NAN)),
        (InfeasibleSet, "b = -inf", lambda: casal.HalfSpace([1.0, 0.0], -INF)),
        (InfeasibleSet, "rank 1 of 2 rows.*residual 0.5", lambda: casal.Affine([[1.0, 0.0], [1.0, 0.0]], [0.0, 1.0])),
        (InfeasibleSet, "rank 1 of 2 rows", lambda: casal.Affine([[1e9, 0.0], [1e-9, 0.0]], [1e9, 2e-9])),
        (InfeasibleSet, "rank 2 of 3", lambda: casal.Affine([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [1e10, 0.0, 1.0])),
        (
            InfeasibleSet,
            r"row 1 of A is zero but b\[1\] = 3",
            lambda: casal.Affine([[1.0, 0.0], [0.0, 0.0]], [0.0, 3.0]),
        ),
        (InfeasibleSet, "non-finite", lambda: casal.Affine([[NAN, 0.0]], 1.0)),
        (InfeasibleSet, "non-finite", lambda: casal.Affine([[1.0, 0.0]], INF)),
        (ShapeError, "2 rows but b has 3", lambda: casal.Affine(torch.eye(2), torch.ones(3))),
        (InfeasibleSet, "got 1.0 and -1.0", lambda: casal.MassEnergy(1.0, -1.0)),
        (InfeasibleSet, "got nan", lambda: casal.MassEnergy(NAN, 1.0)),
        (InfeasibleSet, "got 1.0 and inf", lambda: casal.MassEnergy(1.0, INF)),
        (InfeasibleSet, "energy 1, not 2", lambda: casal.MassEnergy(1.0, 2.0).validate((1,))),
        (SettingError, "rho.*got 0", lambda: CASAL(0.0)),
        (SettingError, "rho.*got -1", lambda: CASAL(-1.0)),
        (SettingError, "rho.*got nan", lambda: CASAL(NAN)),
        (SettingError, "rho.*got 0", lambda: CASAL.algorithm1(0.0)),
        (SettingError, "rho.*got -2", lambda: CASAL.released(-2.0, 0.1)),
        (SettingError, "rho.*got 0", lambda: WeightedCASAL(0.0)),
        (SettingError, "rho.*got -1", lambda: WeightedCASAL(-1.0)),
        (SettingError, "rho.*got inf", lambda: WeightedCASAL(INF)),
        (SettingError, "got 0", lambda: WeightedCASAL(1.0, ess=0.0)),
        (SettingError, r"got 1\.1", lambda: WeightedCASAL(1.0, ess=1.1)),
        (SettingError, "positive ends, got 0", lambda: casal.geometric(0.0, 1.0)),
        (SettingError, "dual_step.*got -1", lambda: CASAL(1.0, dual_step=-1.0)),
        (SettingError, "dual_step.*got 'fast'", lambda: CASAL(1.0, dual_step="fast")),
        (SettingError, "'whole'", lambda: CASAL(1.0, z_step="whole")),
        (SettingError, "'both'", lambda: CASAL(1.0, coupling="both")),
        (SettingError, "'each'", lambda: CASAL(1.0, dual="each")),
        (SettingError, "'half'", lambda: CASAL(1.0, step_size="half")),
        (SettingError, "'x'", lambda: CASAL(1.0, hold="x")),
        (SettingError, "dual_step.*got 0", lambda: PrimalDual(0.0)),
        (SettingError, "average.*got 'all'", lambda: PrimalDual(0.1, average="all")),
        (SettingError, "weight > 0", lambda: Decoupled(1.0, weight=0.0)),
        (ShapeError, r"\(3,\)", lambda: casal.Linear(torch.ones(3))),
        (ShapeError, r"2 rows.*\(3,\)", lambda: casal.Linear(torch.ones(2, 3), shape=(3,))),
    ],
)
def test_bad_settings_are_refused_at_once(error: type[CasalError], says: str, build: Callable[[], Any]) -> None:
    with pytest.raises(error, match=says):
        build()


@pytest.mark.parametrize("seed", range(20))
def test_equations_that_have_a_solution_are_not_refused(seed: int) -> None:
    """Independent rows always have one, whatever b: with zeros, and with numbers of very different size."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    for b in ([1.0, 0.0, -2.0], [0.0, 0.0, 1e10], [1e-12, 1.0, 1e12], [0.0, 0.0, 0.0]):
        right = torch.tensor(b, dtype=torch.float64)
        dependent = torch.cat([A, A[:1] - 2 * A[1:2]]), torch.cat([right, right[:1] - 2 * right[1:2]])
        for equations in (casal.Affine(A, right), casal.Affine(*dependent)):
            foot = equations.project(torch.ones(1, 6, dtype=torch.float64))
            assert torch.allclose((A @ foot[0]), right, rtol=1e-12, atol=1e-13 * max(1.0, float(right.abs().max())))


@pytest.mark.parametrize(
    ("error", "says", "changes"),
    [
        (SettingError, r"-0\.1", {"step_size": -0.1}),
        (SettingError, "value is 0", {"step_size": 0.0}),
        (SettingError, "nan", {"step_size": NAN}),
        (SettingError, "-1", {"step_size": torch.tensor([1.0] * 9 + [-1.0])}),
        (ShapeError, r"\(3,\)", {"step_size": torch.ones(3)}),
        (SettingError, "got 0", {"steps": 0}),
        (SettingError, "got -5", {"steps": -5}),
        (SettingError, r"got 2\.5", {"steps": 2.5}),
        (SettingError, "got nan", {"steps": NAN}),
        (SettingError, "smallest is 0", {"preconditioner": torch.tensor([1.0, 0.0, 2.0])}),
        (SettingError, "smallest is -2", {"preconditioner": -2.0}),
        (SettingError, "nan", {"preconditioner": NAN}),
        (SettingError, "inf", {"preconditioner": INF}),
    ],
)
@pytest.mark.parametrize("family", [casal.langevin, casal.energy], ids=["langevin", "energy"])
def test_bad_tables_are_refused_by_the_target(
    family: Callable[..., casal.Target], error: type[CasalError], says: str, changes: dict[str, Any]
) -> None:
    gradient = Gradient()
    with pytest.raises(error, match=says):
        family(gradient, **({"steps": 10, "step_size": 0.05, "init": START} | changes))
    assert gradient.calls == 0


@pytest.mark.parametrize("option", ["n", "seed", "record_every", "steps", "tile"])
def test_a_whole_number_with_a_point_counts_or_is_refused(option: str) -> None:
    """n = 8.0 is eight chains, or a SettingError; never an error from somewhere inside."""
    expected = run(Gradient(), **{option: 8})
    try:
        result = run(Gradient(), **{option: 8.0})
    except SettingError as refused:
        assert "8.0" in str(refused)
    else:
        assert torch.equal(result.samples, expected.samples)
        assert result.trace["step"].tolist() == expected.trace["step"].tolist()


def test_what_is_just_within_the_limits_runs() -> None:
    for changes in (
        {"method": CASAL(20.0, coupling="explicit")},
        {"method": CASAL(20.0 / 9.0, coupling="explicit"), "decoder": TWICE},
        {"method": CASAL(5.0, coupling="explicit"), "preconditioner": ANISOTROPIC},
        {"method": CASAL(1e9)},
        {"method": CASAL(1e9), "preconditioner": ANISOTROPIC, "decoder": TWICE},
        {"method": CASAL(1.0, burn_in=9)},
        {"constraint": casal.MassEnergy(3.0, 3.0), "method": Projected()},
    ):
        assert bool(run(Gradient(), **changes).certificate.feasible.all())


def test_an_approximate_projection_may_leave_the_set_but_is_flagged() -> None:
    with pytest.warns(CasalWarning, match=r"8 of 8 samples are not feasible: .* is 0\.\d+, tol = 1e-08"):
        result = run(Gradient(), constraint=own(lambda z: z / 2, exact=False), method=Projected())
    assert not bool(result.certificate.feasible.any())
    assert torch.equal(result.certificate.violation, result.samples.abs().amax(1))


# ------------------------------------------------------------------ runs that diverge


def quartic(x: Tensor) -> Tensor:
    return x**3


TAU = 0.3


def first_lost(seed: int, start: Tensor, tile: int, steps: int) -> tuple[int, list[int]]:
    """Step and chains of the first loss, by the plain recursion under the same noise, tile after tile."""
    for part in cut(len(start), tile, seed, torch.device("cpu")):
        x = start[part.start : part.stop]
        for step in range(1, steps + 1):
            noise = torch.randn((len(part), 3), generator=part.generator).double()
            x = x - TAU * quartic(x) + math.sqrt(2 * TAU) * noise
            lost = torch.nonzero(~torch.isfinite(x).all(1)).flatten()
            if len(lost):
                return step, (part.start + lost).tolist()
    raise AssertionError("this run does not diverge: choose another seed")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", [Unconstrained(), FinalProjection()], ids=lambda method: method.name)
@pytest.mark.parametrize("tile", [8, 3])
@pytest.mark.parametrize("record_every", [0, 1])
def test_divergence_names_the_true_step(seed: int, method: Method[Any], tile: int, record_every: int) -> None:
    target = casal.langevin(quartic, steps=400, step_size=TAU, init=START)
    step, chains = first_lost(seed, START, tile, 400)
    with pytest.raises(DivergedError, match=rf"at step {step} of 400 .*tau = {TAU}") as lost:
        casal.sample(target, casal.Sphere(1.0), method, 8, seed=seed, tile=tile, record_every=record_every)
    assert (lost.value.step, lost.value.steps) == (step, 400)
    assert list(lost.value.chains) == chains
    assert f"{len(chains)} of" in str(lost.value) and "step_size" in str(lost.value)


def test_the_divergence_seeds_reach_across_several_looks() -> None:
    """The loop looks every 16 steps; the seeds above must not all diverge within the first look."""
    steps = {first_lost(seed, START, 8, 400)[0] for seed in range(6)}
    assert min(steps) <= 16 < max(steps) and any(step % 16 for step in steps)


def test_an_immediate_overflow_is_step_one() -> None:
    target = casal.langevin(quartic, steps=50, step_size=1e10, init=1e100 * (START + 2))
    with pytest.raises(DivergedError, match=r"8 of 8 chains diverged at step 1 of 50 \(tau = 1e\+10\)") as lost:
        casal.sample(target, casal.Sphere(1.0), Unconstrained(), 8)
    assert lost.value.step == 1 and lost.value.chains == tuple(range(8))


def test_a_chain_lost_in_a_later_tile_keeps_its_number() -> None:
    start = START.clone()
    start[5] = 1e200
    target = casal.langevin(quartic, steps=30, step_size=0.01, init=start)
    with pytest.raises(DivergedError, match=r"1 of 3 chains diverged at step 1 of 30 \(tau = 0\.01\)") as lost:
        casal.sample(target, casal.Sphere(1.0), Unconstrained(), 8, tile=3)
    assert lost.value.step == 1 and lost.value.chains == (5,)


class Wall:
    """The gradient of |x|^2 / 2, not a number beyond x_0 = 1.2; remembers the first call that met the wall."""

    def __init__(self) -> None:
        self.calls, self.met, self.chains = 0, 0, []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        beyond = x[:, 0] > 1.2
        if bool(beyond.any()) and not self.met:
            self.met, self.chains = self.calls, torch.nonzero(beyond).flatten().tolist()
        return torch.where(beyond[:, None], NAN, x)


@pytest.mark.parametrize("record_every", [0, 1])
@pytest.mark.parametrize(
    "method",
    [
        Unconstrained(),
        FinalProjection(),
        Projected(),
        Projected(burn_in=59),
        Penalty(0.1),
        PrimalDual(0.1),
        PrimalDual(0.1, average="time"),
        Decoupled(1.0),
        CASAL(5.0),
        CASAL(5.0, burn_in=59),
        CASAL(5.0, z_step="damped"),
        CASAL(5.0, coupling="explicit"),
        CASAL(5.0, dual="mean"),
        CASAL.algorithm1(5.0),
        CASAL.algorithm2(5.0),
        CASAL.released(5.0, 0.1),
        WeightedCASAL(5.0, burn_in=0.5),
        WeightedCASAL(casal.geometric(0.1, 5.0), burn_in=0.5),
    ],
    ids=lambda method: method.name,
)
def test_every_method_says_where_a_gradient_broke_down(method: Method[Any], record_every: int) -> None:
    wall = Wall()
    start = torch.full((32, 2), 0.1, dtype=torch.float64)
    target = casal.langevin(wall, steps=60, step_size=0.1, init=start)
    with pytest.raises(DivergedError, match=r"tau = 0\.1") as lost:
        casal.sample(target, casal.Affine([[1.0, 1.0]], 0.2), method, 32, record_every=record_every)
    assert wall.met > 1
    assert lost.value.step == wall.met - 1  # the first call is the probe
    assert list(lost.value.chains) == wall.chains
    assert f"step {wall.met - 1} of {lost.value.steps}" in str(lost.value)


def test_a_gradient_that_breaks_down_in_the_last_correction_is_not_hidden() -> None:
    """WeightedCASAL asks for two scores after its last step; one chain without a number must not spoil the weights."""
    calls = 0

    def breaks_late(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.where(torch.arange(len(x))[:, None] == 3, NAN, x) if calls > 19 else x

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(32, 2, generator=generator, dtype=torch.float64)
    target = casal.langevin(breaks_late, steps=20, step_size=0.1, init=start)
    with pytest.raises(DivergedError, match="1 of 32") as lost:
        casal.sample(target, casal.Sphere(1.0), WeightedCASAL(5.0), 32)
    assert lost.value.chains == (3,)


def test_divergence_names_the_strength_of_the_coupling() -> None:
    target = casal.langevin(lambda x: -1e3 * x, steps=200, step_size=1.0, init=START)
    with pytest.raises(DivergedError, match=r"tau = 1, rho = 0\.5, tau rho = 0\.5"):
        casal.sample(target, casal.Ball(1.0), CASAL(0.5, coupling="explicit"), 8)


def von_mises(step: float | str) -> casal.Target:
    """exp(5 x0): not integrable off a sphere."""

    def start(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn((n, 3), generator=generator, dtype=torch.float64)

    pull = torch.tensor([5.0, 0.0, 0.0], dtype=torch.float64)
    return casal.langevin(lambda x: -pull.expand_as(x), steps=200, step_size=step, init=start)


@pytest.mark.parametrize("step", [0.0005, 5.0, "auto"])
def test_auto_corrects_a_step_that_is_far_off_and_says_so(step: float | str) -> None:
    result = casal.sample(von_mises(step), casal.Sphere(1.0), "auto", 2000, seed=0)
    value, error = result.expect(lambda z: z[:, 0])
    assert abs(float(value) - (1 / np.tanh(5.0) - 0.2)) < 4 * float(error)
    said = [reason for reason in result.fidelity.reasons if "step_size was" in reason]
    assert len(said) == (0 if step == "auto" else 1)
    assert any("finite integral" in reason for reason in result.fidelity.reasons)
    assert "evaluations" in result.provenance["choice"]


@pytest.mark.filterwarnings("ignore::casal.errors.CasalWarning")  # few ancestors, besides
@pytest.mark.parametrize(("step", "word"), [(0.0005, "too small"), (5.0, "too large")])
def test_a_named_method_keeps_a_wrong_step_and_is_suspect(step: float, word: str) -> None:
    result = casal.sample(von_mises(step), casal.Sphere(1.0), casal.WeightedCASAL(400.0), 4000, seed=0)
    assert result.fidelity.verdict == "suspect"
    assert any(word in reason for reason in result.fidelity.reasons)


def test_the_result_says_that_the_start_decides_on_the_modes() -> None:
    target = casal.langevin(lambda x: x, steps=50, step_size=0.1, init=von_mises(0.1).init)
    result = casal.sample(target, casal.Sphere(1.0), "auto", 200)
    assert any("weights of separate modes are those of the starting points" in r for r in result.fidelity.reasons)
    known = casal.energy(
        lambda x: x.square().sum(1) / 2, steps=50, step_size=0.1, init=casal.GaussianStart(3, dtype=torch.float64)
    )
    result = casal.sample(known, casal.Sphere(1.0), "auto", 200)
    assert not any("separate modes" in reason for reason in result.fidelity.reasons)


def test_pieces_of_different_dimension_are_refused_by_methods_that_promise() -> None:
    union = casal.Ball(0.0) | casal.Sphere(1.0)
    target = casal.langevin(lambda x: x, steps=5, step_size=0.1, init=von_mises(0.1).init)
    with pytest.raises(SettingError, match="different dimension"):
        casal.sample(target, union, "auto", 100)
    assert bool(casal.sample(target, union, casal.Projected(), 100).certificate.feasible.all())
