"""Mistakes are named before the first step, with the number and the way out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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

NAN, INF = math.nan, math.inf
HOW = ("batch", "threads", "dtype", "record_every")
START = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(8, 3)


class Gradient:
    """The gradient of |x|^2 / 2, counting its calls; ``spoil`` may damage what it returns."""

    def __init__(self, spoil: Callable[[Tensor], Any] = lambda g: g) -> None:
        self.calls, self.spoil = 0, spoil

    def __call__(self, x: Tensor) -> Any:
        self.calls += 1
        return self.spoil(x.clone())


def run(gradient: Callable[[Tensor], Any], **changes: Any) -> casal.SampleResult:
    """A run that works, up to ``changes`` of the target, of the call or of how it is carried out."""
    target = {"steps": 10, "step_size": 0.05, "init": START, "preconditioner": None}
    target |= {key: changes.pop(key) for key in list(changes) if key in target}
    how = casal.Run(**{key: changes.pop(key) for key in HOW if key in changes})
    call: dict[str, Any] = {"constraint": casal.Sphere(1.0), "method": Unconstrained(), "n": 8, "run": how} | changes
    return casal.sample(casal.langevin(gradient, **target), **call)


def test_the_unchanged_run_works() -> None:
    gradient = Gradient()
    result = run(gradient, method=CASAL(10.0))
    assert bool(result.certificate.feasible.all())
    assert gradient.calls == 12


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
    Bad("n-word", SettingError, "got 'many'", {"n": "many"}),
    Bad("tol-negative", SettingError, "got -1", {"tol": -1.0}),
    Bad("tol-nan", SettingError, "got nan", {"tol": NAN}),
    Bad("record-negative", SettingError, "got -1", {"record_every": -1}),
    Bad("record-fraction", SettingError, r"got 0\.5", {"record_every": 0.5}),
    Bad("seed-negative", SettingError, "got -1", {"seed": -1}),
    Bad("seed-fraction", SettingError, r"got 1\.5", {"seed": 1.5}),
    Bad("seed-nan", SettingError, "got nan", {"seed": NAN}),
    Bad("batch-zero", SettingError, "got 0", {"batch": 0}),
    Bad("batch-fraction", SettingError, r"got 2\.5", {"batch": 2.5}),
    Bad("dtype-integer", CasalError, "int64", {"dtype": torch.int64}),
    Bad("method-name", SettingError, "CASAL needs settings: method=casal.CASAL\\(rho=", {"method": "casal"}),
    Bad("method-class", SettingError, "CASAL", {"method": CASAL}),
    Bad("constraint-word", SettingError, "sphere", {"constraint": "sphere"}),
    Bad("decoder-matrix", SettingError, "got Tensor", {"decoder": torch.eye(3)}),
    Bad("decoder-columns", ShapeError, "takes 4 latent numbers.*have 3", {"decoder": casal.Linear(torch.eye(4))}),
    # starting points
    Bad("init-long", ShapeError, "8 rows for n = 5", {"n": 5}),
    Bad("init-number", ShapeError, r"\(\)", {"init": torch.tensor(1.0)}),
    Bad("init-integers", DtypeError, "int64", {"init": torch.ones(8, 3, dtype=torch.int64)}),
    Bad("init-none", CasalError, r"any number of coordinates.*init=torch.zeros\(d\)", {"init": None}),
    Bad("init-nan", DivergedError, "1 starting points.*first chain 5", {"init": points(NAN)}),
    Bad("init-inf", DivergedError, "1 starting points.*first chain 5", {"init": points(INF)}),
    Bad("init-nan-in-a-later-batch", DivergedError, "first chain 5", {"init": points(NAN), "batch": 2}),
    Bad("init-callable-length", ShapeError, r"\(3, 3\).*, \*event\)", {"init": lambda n, generator: START[:3]}),
    Bad("init-callable-number", ShapeError, r"returned \(\)", {"init": lambda n, generator: 1.0}),
    Bad("init-callable-none", ShapeError, "NoneType", {"init": lambda n, generator: None}),
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
    Bad("rho-ladder-descends", SettingError, "must not decrease", {"method": WeightedCASAL(casal.linear(9.0, 1.0))}),
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
    Bad(
        "preconditioner-matrix",
        ShapeError,
        r"\(3, 2\).*\(3,\).*no matrix of all 3",
        {"preconditioner": torch.ones(3, 2)},
    ),
    Bad("burn-in-all", SettingError, "burn_in = 10 .*10 steps", {"method": CASAL(1.0, burn_in=10)}),
    Bad("burn-in-more", SettingError, "burn_in = 11 .*10 steps", {"method": Projected(burn_in=11)}),
    Bad("burn-in-rounds-to-all", SettingError, r"burn_in = 0\.99 .*10 steps", {"method": Penalty(1.0, burn_in=0.99)}),
    Bad("burn-in-negative", SettingError, "burn_in = -1", {"method": CASAL(1.0, burn_in=-1)}),
    Bad("burn-in-fraction", SettingError, r"burn_in = 2\.5", {"method": CASAL(1.0, burn_in=2.5)}),
    Bad("burn-in-nan", SettingError, "burn_in = nan", {"method": CASAL(1.0, burn_in=NAN)}),
    Bad("burn-in-ladder", SettingError, "10 steps leave none after 8", {"method": WeightedCASAL(9.0, burn_in=8)}),
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
    ("nothing", ShapeError, "returned NoneType", lambda g: None),
    ("tuple", ShapeError, r"returned tuple.*out\[0\]", lambda g: (g,)),
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


def test_a_gradient_that_is_wrong_for_the_last_batch_only_is_named() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\) at points of shape \(2, 3\)"):
        run(lambda x: x.mean(0) if len(x) == 2 else x, method=CASAL(10.0), batch=3)


def test_a_network_that_goes_wrong_at_small_noise_is_named() -> None:
    def score(x: Tensor, sigma: Tensor) -> Tensor:
        wide = -x / (1 + sigma**2)
        return wide if float(sigma) > 1 else wide.to(torch.float64)

    target = casal.annealed(score, [4.0, 2.0, 0.5], steps_per_level=2, step_size=0.1, init=START.float(), time="scalar")
    with pytest.raises(DtypeError, match=r"float64.*the chains are torch\.float32 on cpu \(t = 0\.5\)"):
        casal.sample(target, casal.Sphere(1.0), CASAL(10.0), 8)


# ------------------------------------------------------------------ functions that need all chains at once

OWN = torch.linspace(-2.0, 2.0, 24, dtype=torch.float64).reshape(8, 3).flip(1)
ONTO = OWN / torch.linalg.vector_norm(OWN, dim=1, keepdim=True)


def by_row(x: Tensor) -> Tensor:
    """One row of data for each chain."""
    return x - OWN


def first_rows(x: Tensor) -> Tensor:
    return x - OWN[: len(x)]


def all_rows(x: Tensor) -> Tensor:
    """One row is like another, but there must be eight of them."""
    return torch.einsum("ij,jk->ik", torch.eye(8, dtype=torch.float64), x)


def network_by_row(x: Tensor, sigma: Tensor) -> Tensor:
    return (x + OWN) / (1 + sigma**2)


NEED_ALL: dict[str, dict[str, Any]] = {
    "gradient": {"gradient": by_row},
    "gradient, first rows": {"gradient": first_rows},
    "gradient, number of rows": {"gradient": all_rows},
    "decoder": {"decoder": casal.Nonlinear(lambda x: x * (2.0 + OWN.tanh()), norm=3.0)},
    "decoder, first rows": {"decoder": casal.Nonlinear(lambda x: x * (2.0 + OWN.tanh()[: len(x)]), norm=3.0)},
    "set": {"constraint": casal.FromProjection(lambda z: ONTO + 0.0 * z, lambda z: (z - ONTO).abs().amax(1))},
}


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("method", [CASAL(0.5, coupling="explicit"), WeightedCASAL(9.0), "auto"], ids=str)
@pytest.mark.parametrize("name", NEED_ALL)
def test_functions_that_need_all_chains_are_refused_with_the_way_out(name: str, method: Any, batch: int | None) -> None:
    changes = dict(NEED_ALL[name])
    with pytest.raises((ShapeError, SettingError), match=r"any number of rows.*condition=.*casal\.PerChain"):
        run(changes.pop("gradient", Gradient()), method=method, batch=batch, **changes)


def test_networks_that_need_all_chains_are_refused_and_their_data_go_as_a_condition() -> None:
    sigmas = casal.karras_sigmas(10, 0.05, 5.0)
    with pytest.raises(SettingError, match=r"fail on 2 of them .*condition= .*casal\.PerChain"):
        casal.sample(casal.edm(network_by_row, sigmas, shape=3, dtype=torch.float64), casal.Ball(9.0), CASAL(1.0), 8)
    right = casal.edm(
        lambda x, sigma, row: (x + row) / (1 + sigma**2),
        sigmas,
        shape=3,
        dtype=torch.float64,
        condition={"row": OWN},
    )
    samples = casal.sample(right, casal.Ball(1e9), Unconstrained(), 8, run=casal.Run(batch=3)).samples
    swapped = (OWN.flip(0) - samples).abs().mean()
    assert float((OWN - samples).abs().mean()) < 0.8 * float(swapped)


def test_a_random_gradient_does_not_depend_on_the_row() -> None:
    stream = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=stream, dtype=x.dtype)

    assert run(noisy, method=CASAL(10.0), batch=3, threads=1).provenance["batch"] == 3


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
        (InfeasibleSet, r"\|a\| = 0", lambda: casal.HalfSpace([0.0, 0.0], -1.0)),
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
        (ShapeError, "A has 2 rows, b 3 values", lambda: casal.Affine(torch.eye(2), torch.ones(3))),
        (InfeasibleSet, "mass 1, energy -1", lambda: casal.MassEnergy(1.0, -1.0)),
        (InfeasibleSet, "mass nan", lambda: casal.MassEnergy(NAN, 1.0)),
        (InfeasibleSet, "mass 1, energy inf", lambda: casal.MassEnergy(1.0, INF)),
        (InfeasibleSet, "energy at 1, not 2", lambda: casal.MassEnergy(1.0, 2.0).validate((1,))),
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


@pytest.mark.parametrize("option", ["n", "seed", "record_every", "steps", "batch"])
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
