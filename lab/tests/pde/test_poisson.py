"""The Poisson set-up: symmetries, the mass row, sets that hold on the truth."""

from __future__ import annotations

import pytest
import torch

from casal_lab.pde.poisson import MODES, SEEN, decoder, mass_row, prior, symmetries, tasks
from casal_lab.pde.prior import Prior, Training
from casal_lab.physics.poisson import POINTS, mass, random_solutions

F64 = torch.float64


@pytest.fixture(scope="module")
def known() -> Prior:
    return prior(Training(600, 200, 1))


def test_symmetries_of_latents_are_those_of_fields() -> None:
    u = random_solutions(1, torch.Generator().manual_seed(0), blobs=True)
    A = decoder(None)
    x = A.pinv(u, (MODES**2,))
    many = symmetries(x.expand(64, -1), torch.Generator().manual_seed(1))
    fields = [u, u.flip(1), u.flip(2), u.flip(1, 2)]
    exact = torch.cat([A.pinv(v, (MODES**2,)) for field in fields for v in (field, field.transpose(1, 2))])
    distance = torch.cdist(many, exact).min(1)
    assert float(distance.values.max()) < 1e-10
    assert len(distance.indices.unique()) == 8  # all of them occur


def test_the_mass_row_gives_the_mass(known: Prior) -> None:
    u = random_solutions(3, torch.Generator().manual_seed(2), blobs=True)
    row = mass_row(known)
    assert torch.allclose((known.encode(u) @ row.T)[:, 0], mass(u) / POINTS, atol=1e-10)


def test_as_printed_only_the_mass_is_strict_and_what_is_seen_is_drawn_from_the_seed(known: Prior) -> None:
    (task,) = tasks(known, 3)
    cases = task.cases(2, 3)
    assert task.guided and len(task.index) == SEEN
    assert torch.equal(cases.values, cases.fields.flatten(1)[:, task.index])
    constraint = task.constraint(cases)
    assert float(constraint.violation(cases.fields).max()) < 1e-14
    other = cases.fields.roll(1, 1)  # the same mass, other values
    assert float(constraint.violation(other).max()) < 1e-14
    assert float(constraint.violation(1.01 * cases.fields).min()) > 1e-5
    assert not torch.equal(tasks(known, 4)[0].index, task.index)
