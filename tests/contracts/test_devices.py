"""Ready for a GPU without having one: every method, set, decoder and model family on a device that is not there.

``tests/pretend_device.py`` says what is checked: no mix of devices, noise from the device's own generator, and no
number that is read inside of a row, but by the functions of ``casal/devices.py``. The numbers are real, so that they
can be compared with those of the host.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import casal
from casal import CASAL, Unconstrained
from casal.constraints.solvers.quick_steps import STEPS
from casal.decoders import Gram
from casal.devices import CHECK_EVERY, DEVICE_NUMBERS, amend, check_due, write
from casal.methods import METHODS, Problem, TableRow
from casal.sampling.prepare import LARGEST_BATCH, batch_size

from ..pretend_device import THERE, PretendDevice, There, here, pretend_device, there
from .sets import SETS, SetCase
from .test_families import BEHIND, FAMILIES
from .test_methods import CASES, MethodCase, cases, problem_of

N = 24

LOOKING = {
    "split-gibbs": "draws from von Mises-Fisher distributions by rejection",
    "split-gibbs-given-levels": "the same",
    "hmc": "chains that meet different numbers of walls, or take different numbers of Newton steps",
}
"""Methods whose steps look at numbers, and what for. All others read none."""

LOOKS: dict[str, int] = {
    "ellipsoid-axes": 1,
    "ellipsoid-matrix": 1,
    "psd-cone": 3,
    "monotone": 1,
    "obstacles-discs": 2,
    "obstacles-boxes": 3,
    "obstacles-segments": 2,
    "box-hyperplane": 3,
    "mass-energy-box": 3,
    "mass-energy-box-field": 3,
    "through-network": 9,
    "dynamics-one-step": 10,
    "implicit-sphere": 2,
}
"""Looks of a projection in the loop, at most, of sets that take any."""

ITERATIVE = {
    "polytope-square",  # the search for the active set
    "box-hyperplane",  # the same
    "mass-energy-box-own-bounds",  # halves an interval by projections that look themselves
}
"""Sets whose projections look in every iteration."""

SEARCHED = "implicit-sphere"
"""A set whose ``project`` asks in every step which chains are so close that what is left may be rounding."""

ENDS = 2
"""Looks of ``project`` itself: whether its points are finite before, and after."""


def unmarked(device: PretendDevice, inside: str | None = None) -> dict[str, int]:
    """Reads outside of ``casal/devices.py`` and of the functions that it marks."""
    return {
        line.place: count
        for line, count in device.reads.items()
        if (inside is None or any(name.endswith(":" + inside) for name in line.around))
        and not any(name.startswith("devices.py:") for name in line.around)
    }


# ------------------------------------------------------------------ methods


@cases()
def test_a_run_on_a_device_reads_no_number_inside_a_row(case: MethodCase) -> None:
    target, constraint = problem_of("affine" if "bounds" in case.on else "sphere", case.on)
    with pretend_device() as device:
        result = casal.sample(target, constraint, case.method, N, run=casal.Run(device=THERE))
        samples = here(result.samples)
    assert isinstance(result.samples, There)
    assert all(isinstance(part, There) for part in result.state if part.ndim)
    assert not unmarked(device, "step_once")
    looks = device.places(device.reads, "step_once").total()
    assert (looks > 0) == (case.id in LOOKING), looks
    if case.id in LOOKING:  # off the host a ``key`` is another number
        assert not case.strict or float(constraint.violation(samples).max()) <= 1e-12
    else:
        assert torch.equal(samples, casal.sample(target, constraint, case.method, N).samples)


def test_every_method_that_looks_is_a_case() -> None:
    assert set(LOOKING) <= {case.id for case in CASES}


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.runs_on != "diffusion"])
def test_the_path_from_the_user_to_the_result_takes_a_device(name: str) -> None:
    """``expect``, ``summary`` and the certificates of a result on a device."""
    entry = METHODS[name]
    target, constraint = problem_of("affine", "density")
    with pretend_device():
        result = casal.sample(target, constraint, entry.example, N, run=casal.Run(device=THERE, record_every=5))
        value = result.expect(lambda z: z.flatten(1).sum(1)).value
        assert result.certificate.violation.shape == (N,) and result.fidelity.verdict
        assert float(value) == pytest.approx(float((here(result.weights) * here(result.samples).sum(1)).sum()))


# ------------------------------------------------------------------ sets


def on_device(case: SetCase) -> casal.Constraint:
    """The set; a user's function must take its own constants to the points."""
    if case.id != "implicit-sphere":
        return case.constraint
    return casal.Implicit(lambda z: (z.square().sum(1) - 4.0)[:, None])


@pytest.mark.parametrize("case", SETS, ids=lambda case: case.id)
def test_a_set_stays_on_the_device(case: SetCase) -> None:
    constraint = on_device(case)
    n = 2 if case.id in ITERATIVE else 8
    z = 3.0 * torch.randn(n, *case.event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = [constraint.project(z), constraint.project(z, quick=True), constraint.violation(z)]
    exact = case.id not in ITERATIVE
    quick = functools.partial(constraint.project, quick=True)
    calls = (("project", constraint.project, ENDS), ("quick", quick, 0), ("violation", constraint.violation, 1))
    for what, call, most in calls:
        with pretend_device() as device:
            points = there(z)
            call(points)  # the first call may prepare something
            device.reads.clear()
            out = call(points)
        assert isinstance(out, There)
        torch.testing.assert_close(here(out), wanted.pop(0), rtol=1e-12, atol=1e-13)
        assert not unmarked(device), what
        if what == "violation":
            assert device.reads.total() <= most + (case.id in ("psd-cone", SEARCHED)) + 20 * (not exact)
        elif (exact or (what == "quick" and case.id in LOOKS)) and (what, case.id) != ("project", SEARCHED):
            assert device.reads.total() <= most + LOOKS.get(case.id, 0), what


HUNDRED = casal.Budget(1e-12, 100)
OTHERS = 12
"""Looks of a projection beside those at its convergence, at most: which chains start, go where, and are lost."""


def several(count: int) -> casal.PerChain:
    return casal.PerChain(torch.linspace(1.7, 2.2, count, dtype=torch.float64))


def boxed(way: str, *more: casal.Constraint) -> casal.Constraint:
    """A sphere in a box whose faces cut it, by a given search."""
    return casal.Intersection(casal.Sphere(2.0), casal.Box(-0.5, 1.6), *more, way=way)


def behind() -> casal.Constraint:
    A = torch.randn(3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return casal.Ball(1.0).through(torch.eye(3, 4, dtype=torch.float64) + 0.2 * A)


def two_rows(z: Tensor) -> Tensor:
    return torch.stack([z.pow(4).sum(1) - 6.0, z.sum(1) - 1.0], 1)


MANY: dict[str, tuple[casal.Constraint, tuple[int, ...], float]] = {
    "dykstra": (casal.Ball(2.0) & casal.Box(0.5, 3.0), (4,), 3.0),
    "dykstra-from-afar": (casal.Ball(2.0) & casal.Box(0.5, 3.0), (4,), 1e4),
    "dykstra-own-sets": (casal.Ball(several(N)) & casal.Box(0.5, 3.0), (4,), 3.0),
    "dykstra-anywhere": (boxed("dykstra"), (4,), 3.0),
    "alternating": (boxed("alternating"), (4,), 3.0),
    "admm": (boxed("admm"), (4,), 3.0),
    "admm-of-three": (boxed("admm", casal.Ball(1.9, torch.tensor([0.5, 0.0, 0.0, 0.0]))), (4,), 3.0),
    "behind-matrix": (behind(), (4,), 3.0),
    "dynamics": (casal.LinearDynamics.double_integrator(9.81, steps=8, dt=0.1, u_max=0.5), (8, 2), 2.0),
    "behind-network": (
        casal.Implicit(two_rows, scale=torch.ones(2)).through(casal.decoders.Nonlinear(lambda x: x + 0.2 * x.sin())),
        (4,),
        3.0,
    ),
}
"""Sets that take many iterations from points (N, *event) of this size."""


@pytest.mark.parametrize("name", MANY)
def test_iterations_look_every_few_and_leave_a_chain_as_it_is_once_it_is_done(name: str) -> None:
    constraint, event, size = MANY[name]
    z = size * torch.randn(N, *event, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = constraint.solve(z, budget=HUNDRED)
    with pretend_device() as device:
        points = there(z)
        constraint.solve(points, budget=casal.Budget(1e-12, 1))  # the first call may prepare something
        device.reads.clear()
        found = constraint.solve(points, budget=HUNDRED)
    most = int(wanted.iterations.max())
    assert len(wanted.iterations.unique()) > 2
    assert not unmarked(device)
    each = 3 if name == "dykstra-own-sets" else 1  # whose numbers are brought to the host, for two lists of sets
    assert device.reads.total() <= OTHERS + each * (most // CHECK_EVERY), (device.reads.total(), most)
    assert torch.equal(here(found.converged), wanted.converged)
    assert torch.equal(here(found.iterations), wanted.iterations)
    torch.testing.assert_close(here(found.point), wanted.point, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(here(found.residual), wanted.residual, rtol=1e-2, atol=1e-15)


@pytest.mark.parametrize("keeps", [False, True])
def test_quick_steps_look_every_few(keeps: bool) -> None:
    """Few rows, differentiated in every step, or many, whose factor is kept; some chains are lost."""

    def curved(z: Tensor) -> Tensor:
        rows = z.reshape(len(z), 6, 2).pow(4).sum(2) - 1.0
        return rows if keeps else rows[:, :1] + 0.3 * rows[:, 1:2]

    constraint = casal.Implicit(curved)
    z = 2.0 * torch.randn(8 * N, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = constraint.quick(z)
    with pretend_device() as device:
        found = constraint.quick(there(z))
    assert wanted is not None and found is not None
    assert 0 < int(wanted.done.sum()) < len(z)
    assert device.reads.total() <= 1 + STEPS // CHECK_EVERY
    assert torch.equal(here(found.done), wanted.done)
    torch.testing.assert_close(here(found.point), wanted.point, rtol=1e-10, atol=1e-11)


def test_every_set_that_looks_is_a_case() -> None:
    assert LOOKS.keys() | ITERATIVE <= {case.id for case in SETS}


def test_parameters_of_a_set_are_copied_to_a_device_once() -> None:
    constraint = casal.Box(torch.zeros(3), torch.ones(3)) & casal.Affine(torch.ones(1, 3), 1.5)
    with pretend_device() as device:
        z = there(torch.randn(5, 3, dtype=torch.float64))
        for _ in range(3):
            constraint.project(z, quick=True)
            device.uploads.clear()
        constraint.project(z, quick=True)
        assert not device.uploads


# ------------------------------------------------------------------ decoders and families


@pytest.mark.parametrize("name", BEHIND)
def test_a_decoder_stays_on_the_device(name: str) -> None:
    behind = BEHIND[name]
    x = torch.randn(5, behind.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def everything(decoder: casal.Decoder, gram: Gram | None, x: Tensor) -> list[Tensor]:
        z = decoder(x)
        out = [z, decoder.vjp(x)(torch.ones_like(z))]
        return out if gram is None else [*out, gram.solve(x, torch.full((), 0.7, dtype=x.dtype, device=x.device))]

    def prepared(x: Tensor) -> tuple[casal.Decoder, Gram | None]:
        decoder = behind.decoder.to(x)
        return decoder, decoder.gram(tuple(x.shape[1:]), None, x[:0]) if decoder.linear else None

    wanted = everything(*prepared(x), x)
    with pretend_device() as device:
        points = there(x)
        decoder, gram = prepared(points)
        everything(decoder, gram, points)
        device.reads.clear()
        device.uploads.clear()
        found = everything(decoder, gram, points)
        assert not device.reads
    for one, other in zip(found, wanted, strict=True):
        assert isinstance(one, There)
        torch.testing.assert_close(here(one), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decoder", ["Identity", "Linear"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_stays_on_the_device(name: str, decoder: str) -> None:
    behind, constraint = BEHIND[decoder], casal.Sphere(1.5)
    target = FAMILIES[name](behind.size)
    with pretend_device() as device:
        found = here(
            casal.sample(
                target, constraint, CASAL(10.0), 4, decoder=behind.decoder, run=casal.Run(device=THERE)
            ).samples
        )
    assert not device.places(device.reads, "step_once")
    wanted = casal.sample(target, constraint, CASAL(10.0), 4, decoder=behind.decoder).samples
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


# ------------------------------------------------------------------ a second opinion: torch's own fake tensors

FAKE = FakeTensorMode(allow_non_fake_inputs=True)
UNINDEXED = [case for case in SETS if case.id.split("-")[0] in ("box", "affine") and case.constraint.fast]


@pytest.mark.parametrize(
    "case", [case for case in UNINDEXED if case.id not in (*LOOKS, "affine-sparse")], ids=lambda case: case.id
)
def test_fast_projections_pass_torch_s_fake_cuda(case: SetCase) -> None:
    """Tensors without numbers: nothing can be read at all. Without CUDA torch cannot slice them, so these sets only."""
    with FAKE:
        z = torch.empty(8, *case.event, dtype=torch.float64, device="cuda")
        assert case.constraint.project(z, quick=True).device.type == "cuda"


@pytest.mark.parametrize(
    "method", [Unconstrained(), CASAL(10.0), CASAL.released(10.0, 0.1)], ids=["plain", "casal", "released"]
)
def test_steps_pass_torch_s_fake_cuda(method: casal.Method[Any]) -> None:
    target = casal.langevin(lambda x: x, steps=3, step_size=0.1, init=torch.zeros(8, 4, dtype=torch.float64))
    on_host = Problem(target, casal.Box(-1.0, 1.0), casal.Identity(), torch.empty(0, 4, dtype=torch.float64))
    (stage,) = method.stages(on_host, 8)
    state = method.start(on_host, torch.zeros(8, 4, dtype=torch.float64), torch.Generator())

    def fake(parts: Any) -> Any:
        made = (p if p is None else torch.empty(p.shape, dtype=p.dtype, device="cuda") for p in parts)
        return type(parts)(*made)

    with FAKE:
        x = torch.empty(8, 4, dtype=torch.float64, device="cuda")
        problem = on_host.replace(like=torch.empty(0, 4, dtype=torch.float64, device="cuda"))
        after = stage.step(problem, fake(state), fake(stage.rows[0]), torch.empty_like(x))
        assert all(part.device.type == "cuda" for part in after)


# ------------------------------------------------------------------ what the device notices, and small parts


class Reads(Unconstrained):
    """A method that reads a number in every row."""

    def stages(self, problem: Problem, n: int) -> Any:
        return [stage._replace(step=self.reads) for stage in super().stages(problem, n)]

    def reads(self, problem: Problem, state: Any, row: TableRow, noise: Tensor) -> Any:
        return state._replace(x=state.x + float(row.s) * noise)


def test_a_number_that_is_read_is_noticed() -> None:
    target, constraint = problem_of("sphere")
    with pretend_device() as device:
        casal.sample(target, constraint, Reads(), N, run=casal.Run(device=THERE))
    assert sum(unmarked(device, "step_once").values()) == len(target.table)


def test_a_mix_of_devices_is_noticed() -> None:
    with pretend_device() as device:
        x = torch.ones(3, device=THERE)
        assert here(x + torch.tensor(1.0)).tolist() == [2.0] * 3  # a number of the host may take part
        for operation, more in ((torch.add, [torch.ones(3)]), (torch.lerp, [x, torch.tensor(0.5)])):
            with pytest.raises(RuntimeError, match="mixes devices"):
                operation(x, *more)
        for stream, where in ((torch.Generator(), THERE), (torch.Generator(THERE), "cpu")):
            with pytest.raises(RuntimeError, match="generator of another device"):
                torch.randn(3, generator=stream, device=where)
        device.reads.clear()
        assert bool(x.sum() > 2) and len(x[x > 0]) == 3 and x.tolist() == [1.0] * 3
        assert device.reads.total() == 3


def test_a_sparse_jacobian_is_factorised_in_host_memory() -> None:
    """Nothing is mixed; every read is marked, since LAPACK wants its numbers on the host."""
    size = 12
    row = torch.arange(size - 1)
    indices = torch.stack([row.repeat_interleave(2), torch.stack([row, row + 1], 1).flatten()])

    def values(z: Tensor) -> Tensor:
        return torch.stack([-z[:, :-1], torch.ones_like(z[:, 1:])], 2).flatten(1)

    chain = casal.Implicit(
        lambda z: z[:, 1:] - 0.5 * z[:, :-1] ** 2 - 0.1, jacobian=casal.SparseJacobian(indices, values)
    )
    z = 0.5 * torch.randn(4, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls = (chain.project, functools.partial(chain.project, quick=True), chain.violation)
    wanted = [call(z) for call in calls]
    with pretend_device() as device:
        found = [here(call(there(z))) for call in calls]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)
    assert not unmarked(device)


def test_a_row_of_a_mask_is_amended_on_every_device() -> None:
    x, mask = torch.arange(4.0), torch.tensor([True, False, True, False])
    wanted = torch.tensor([0.0, 1.0, -2.0, 3.0])
    assert torch.equal(amend(x.clone(), mask, torch.neg, x), wanted)
    with pretend_device() as device:
        assert torch.equal(here(amend(there(x), there(mask), torch.neg, there(x))), wanted)
    assert not device.reads


def test_rows_of_a_mask_are_written_on_every_device() -> None:
    chains, mask = torch.tensor([3, 0, 1]), torch.tensor([True, False, True])
    for values, wanted in ((torch.tensor([7.0, 8.0, 9.0]), [0.0, 9.0, 2.0, 7.0]), (5, [0.0, 5.0, 2.0, 5.0])):
        out = torch.arange(4.0)
        write(chains, mask, (out, values))
        assert out.tolist() == wanted
        with pretend_device() as device:
            away = there(torch.arange(4.0))
            write(there(chains), there(mask), (away, there(values) if isinstance(values, Tensor) else values))
        assert here(away).tolist() == wanted and not device.reads


def test_looks_are_every_few_iterations_off_the_host() -> None:
    x = torch.zeros(1)
    assert all(check_due(k, x) for k in range(20))
    with pretend_device():
        away = there(x)
        assert [k for k in range(20) if check_due(k, away)] == [CHECK_EVERY - 1, 2 * CHECK_EVERY - 1]


def test_batches_are_larger_off_the_host() -> None:
    target = casal.langevin(lambda x: x, steps=1, step_size=0.1, init=torch.zeros(1, 1))

    def size(numbers: int, place: str) -> int:
        like = torch.zeros((0, numbers), device=place)
        return batch_size(1 << 30, Problem(target, casal.Sphere(1.0), casal.Identity(), like), (numbers,))

    assert size(50, "cpu") == 2048 and size(1, "cpu") == LARGEST_BATCH
    assert size(50, "meta") == 1 << 18 and size(1, "meta") == DEVICE_NUMBERS


def test_the_names_of_the_marked_places_are_those_of_the_package() -> None:
    assert sys.modules["casal.devices"].__file__.endswith("devices.py")  # type: ignore[union-attr]
