"""The Darcy set-up: latents, symmetries, and a set that holds on the truth and after a projection."""

from __future__ import annotations

import pytest
import torch

from casal import Budget
from casal_lab.pde.darcy import (
    CELLS,
    COSINES,
    SEEN,
    SINES,
    coefficient,
    decoder,
    draw,
    prior,
    solution,
    symmetries,
    task,
    to_event,
)
from casal_lab.pde.prior import Prior, Training
from casal_lab.physics.darcy import random_pairs, residual

SIZE = COSINES**2 + SINES**2
F64 = torch.float64


@pytest.fixture(scope="module")
def known() -> Prior:
    return prior(Training(900, 200, 1))


def test_events_hold_both_fields() -> None:
    a, u = random_pairs(2, torch.Generator().manual_seed(0))
    z = to_event(a, u)
    assert torch.allclose(coefficient(z), a, rtol=1e-14) and torch.allclose(solution(z), u, rtol=1e-13)
    assert float(z.square().mean((0, 2, 3)).sqrt().max()) < 3.0  # both of unit size


def test_latents_survive_decoding_and_the_decoder_is_orthonormal_but_for_a_scale_a_field(known: Prior) -> None:
    x = known.latents[:3]
    assert torch.allclose(known.encode(known.decode(x)), x, atol=1e-12)
    A = known.decoder.matrix((SIZE,), torch.empty(0, dtype=F64))
    gram = A.T @ A
    scale = known.decoder.scale
    assert scale is not None and len(scale.unique()) == 2
    assert torch.allclose(gram, torch.diag(scale.square()), atol=1e-12)
    v = torch.randn((3, 2, CELLS, CELLS), generator=torch.Generator().manual_seed(1), dtype=F64)
    assert torch.allclose(known.decoder.vjp(x)(v), v.flatten(1) @ A, atol=1e-11)
    sizes = known.latents.split([COSINES**2, SINES**2], 1)
    assert all(float(block.square().mean()) == pytest.approx(1.0) for block in sizes)


def test_symmetries_of_latents_are_those_of_fields() -> None:
    z = draw(1, torch.Generator().manual_seed(0))
    A = decoder(None)
    many = symmetries(A.pinv(z, (SIZE,)).expand(64, -1), torch.Generator().manual_seed(1))
    fields = [z, z.flip(2), z.flip(3), z.flip(2, 3)]
    exact = torch.cat([A.pinv(v, (SIZE,)) for field in fields for v in (field, field.transpose(2, 3))])
    distance = torch.cdist(many, exact, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert float(distance.values.max()) < 1e-10
    assert len(distance.indices.unique()) == 8  # all of them occur


def test_the_truth_is_in_the_set_to_rounding(known: Prior) -> None:
    here = task(known, 3)
    assert len(here.index) == 2 * SEEN and len(here.index.unique()) == 2 * SEEN
    cases = here.cases(2, 3)
    assert float(here.constraint(cases).violation(cases.fields).max()) < 1e-12
    assert not torch.equal(task(known, 4).index, here.index)


def test_projections_end_in_the_set_from_anywhere(known: Prior) -> None:
    here = task(known, 0)
    cases = here.cases(2, 0).repeated(2)
    x = torch.randn((4, SIZE), generator=torch.Generator().manual_seed(2), dtype=F64)
    x[1] = cases.latents[1]
    x[3] = 20.0 * x[3]
    found = here.constraint(cases).solve(known.decode(x))
    assert found.converged.all()
    a, u = coefficient(found.point), solution(found.point)
    assert float(residual(a, u).abs().max()) < 1e-10
    assert torch.allclose(found.point.flatten(1)[:, here.index], cases.values, atol=1e-13)


def test_a_projection_close_by_is_nearly_the_nearest(known: Prior) -> None:
    here = task(known, 0)
    cases = here.cases(1, 0)
    z = known.decode(cases.latents)
    mine = here.constraint(cases)
    nearest = (mine.members[0] & mine.members[1]).project(z)  # type: ignore[attr-defined]
    assert float((mine.project(z) - z).norm() / (nearest - z).norm()) < 1.01


def test_a_step_of_a_loop_gets_nearer_to_the_set(known: Prior) -> None:
    here = task(known, 0)
    cases = here.cases(1, 0)
    mine, z = here.constraint(cases), known.decode(cases.latents)
    one = mine.solve(z, budget=Budget(1e-6, 1), warm=mine.project(z))
    assert one.iterations.tolist() == [1]
    assert float(mine.violation(one.point)) < 0.1 * float(mine.violation(z))
