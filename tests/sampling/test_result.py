"""What a result says of its distribution: the verdict of real runs, expectations with their errors, and print."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import ShapeError

CENTRE = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
SPHERE = casal.Sphere(1.0)


@dataclasses.dataclass(frozen=True)
class Boasting(casal.FinalProjection):
    """Promises what one final projection cannot keep."""

    promises_distribution: ClassVar[bool] = True


def target(steps: int = 100, spread: float = 1.0) -> casal.Target:
    """N(CENTRE, I)."""

    def start(n: int, generator: torch.Generator) -> Tensor:
        return CENTRE + spread * torch.randn((n, 3), generator=generator, dtype=torch.float64)

    return casal.langevin(lambda x: x - CENTRE.to(x), steps=steps, step_size=0.2, init=start)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_run_is_trusted(seed: int) -> None:
    result = casal.sample(target(), SPHERE, "auto", 1000, seed=seed)
    assert result.fidelity.verdict == "trusted"
    shown = dict(result.lines())
    assert shown["constraint"] == str(result.certificate)
    assert f"distribution {shown['distribution']}" == str(result.fidelity)


BROKEN: dict[str, tuple[casal.Constraint, casal.Method, str]] = {
    "final projection": (SPHERE, Boasting(), "Stein"),
    "atoms": (casal.Box(torch.zeros(3), torch.ones(3)), Boasting(), "on the edge"),
    "a ladder stopped early": (SPHERE, casal.WeightedCASAL(1.0, correct=False), "Stein"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_suspect(name: str) -> None:
    constraint, method, word = BROKEN[name]
    fidelity = casal.sample(target(), constraint, method, 1000).fidelity
    assert fidelity.verdict == "suspect" and any(word in reason for reason in fidelity.reasons)


def test_methods_without_a_promise_cost_nothing_more() -> None:
    result = casal.sample(target(), SPHERE, casal.FinalProjection(), 200)
    assert result.fidelity.verdict == "not promised" and result.cost.check_projections == 0.0
    assert "distribution  not promised: final projection" in str(result)


def test_one_argument_switches_evaluations_off() -> None:
    """What is left with check=False was spent before the run, on a look at the step size."""
    off, on = (casal.sample(target(), SPHERE, "auto", 500, check=check) for check in (False, True))
    assert off.cost.check_projections == 0.0 and on.cost.check_projections > 0.0
    assert 0.0 < on.cost.check_evaluations - off.cost.check_evaluations <= 0.08 * on.cost.score_evaluations
    assert "stein_p" not in off.fidelity.figures and off.fidelity.figures["effective_ancestors"] > 50
    assert torch.equal(off.samples, on.samples) and "stein_p" in on.fidelity.figures


def test_fidelity_is_saved_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    result = casal.sample(target(), casal.L1Ball(1.0), "auto", 300)
    result.save(tmp_path / "saved.zarr")
    loaded = casal.load(tmp_path / "saved.zarr")
    assert loaded.fidelity.plain() == result.fidelity.plain() and loaded.cost == result.cost


def test_expectations_have_the_shape_of_the_function() -> None:
    result = casal.sample(target(), SPHERE, "auto", 300)
    one, many = result.expect(lambda z: z[:, 0]), result.expect(lambda z: z)
    assert one.value.shape == () and many.value.shape == (3,)
    torch.testing.assert_close(one.value, result.samples[:, 0].mean())
    torch.testing.assert_close(many.standard_error[0], one.standard_error)
    with pytest.raises(ShapeError, match=r"\(300,\) or \(300, k\)"):
        result.expect(lambda z: z.sum())


def test_chains_that_never_meet_are_their_own_ancestors() -> None:
    result = casal.sample(target(20), SPHERE, casal.CASAL(10.0), 200)
    error = result.expect(lambda z: z[:, 0]).standard_error
    student = 1.9720  # with 199 degrees of freedom
    torch.testing.assert_close(error, result.samples[:, 0].std() / math.sqrt(200) * student / 1.96, rtol=1e-4, atol=0.0)


def test_intervals_of_runs_cover() -> None:
    """E z on the sphere is von Mises-Fisher's: (coth k - 1/k) along CENTRE, k = |CENTRE|."""
    k = float(torch.linalg.vector_norm(CENTRE))
    exact, hits, runs = (1.0 / math.tanh(k) - 1.0 / k) * CENTRE / k, [], 60
    for seed in range(runs):
        estimate = casal.sample(target(40), SPHERE, casal.WeightedCASAL(30.0), 250, seed=seed, check=False).expect(
            lambda z: z
        )
        hits.append((estimate.value - exact).abs() < 1.97 * estimate.standard_error)
    assert 0.90 <= float(torch.stack(hits).double().mean()) <= 0.99


def test_print_and_notebooks_show_a_few_lines() -> None:
    result = casal.sample(target(40), SPHERE, casal.WeightedCASAL(30.0), 250)
    lines = str(result).splitlines()
    assert " ".join(line.split()[0] for line in lines) == (
        "method samples constraint distribution model ancestors seconds"
    )
    assert all(line[13] == " " and line[14] != " " for line in lines) and repr(result) == str(result)
    shown, projections = dict(result.lines()), round(result.cost.projections)
    assert shown["method"] == "WeightedCASAL" and shown["samples"] == "250 of shape (3,)"
    assert shown["model calls"] == (
        f"40 per chain, {result.cost.check_evaluations:.3g} for checks; {projections} projections per chain"
    )
    dearer = dataclasses.replace(result.cost, score_evaluations=304.4, check_evaluations=0.0)
    assert "304 per chain (40 requested);" in dict(dataclasses.replace(result, cost=dearer).lines())["model calls"]
    assert result.cost.seconds > 0
    named = dataclasses.replace(result, provenance={"method": "<script>"})
    html = named._repr_html_()
    assert "&lt;script&gt;" in html and "<script" not in html and "http" not in html
    assert "requested" not in str(named)


def test_what_was_chosen_is_said_and_counts_have_their_number() -> None:
    chosen = casal.sample(target(40), SPHERE, n=250)
    assert dict(chosen.lines())["method"] == 'WeightedCASAL (chosen by "auto")'
    once = dict(casal.sample(target(40), SPHERE, casal.FinalProjection(), n=8).lines())
    assert once["method"] == "final projection"
    assert once["model calls"] == "40 per chain; 1 projection per chain"


def test_a_gap_is_shown_where_there_is_one() -> None:
    result = small(SPHERE)
    behind = dataclasses.replace(result, latents=result.samples, gap=torch.linspace(0.0, 0.5, len(result.samples)))
    assert dict(behind.lines())["gap"] == "samples are up to 0.5 away from their decoded latents"
    assert "gap" not in dict(result.lines())


# ------------------------------------------------------------------------------------------- loaded certificates


def small(constraint: casal.Constraint, **options: Any) -> casal.SampleResult:
    return casal.sample(target(10), constraint, casal.Projected(), 8, run=casal.Run(batch=3, **options))


def test_a_loaded_certificate_is_computed_again(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    result = small(SPHERE, store=tmp_path / "run.zarr")
    loaded = casal.load(tmp_path / "run.zarr")
    assert torch.equal(loaded.certificate.violation, result.certificate.violation) and loaded.certificate.note == ""
    assert str(loaded.certificate) == str(result.certificate) and repr(loaded.constraint) == repr(SPHERE)
    dataclasses.replace(result, constraint=casal.Sphere(2.0)).save(tmp_path / "other.zarr")
    changed = casal.load(tmp_path / "other.zarr").certificate
    assert not bool(changed.feasible.any()) and bool(result.certificate.feasible.all())
    assert "the stored violations of 8 samples differ" in changed.note and str(changed).endswith(changed.note)


def test_a_chain_that_was_lost_is_no_difference(tmp_path: Path) -> None:
    """Infinite before and after."""
    pytest.importorskip("zarr")
    result = small(SPHERE)
    samples = result.samples.clone()
    samples[2] = math.nan
    for name, value in (("lost", math.inf), ("hidden", 0.0)):
        violation = result.certificate.violation.clone()
        violation[2] = value
        certificate = dataclasses.replace(result.certificate, violation=violation)
        changed = dataclasses.replace(result, samples=samples, certificate=certificate, constraint=SPHERE)
        changed.save(tmp_path / f"{name}.zarr")
    assert casal.load(tmp_path / "lost.zarr").certificate.note == ""
    found = casal.load(tmp_path / "hidden.zarr").certificate
    assert "stored violations of 1 samples differ" in found.note and float(found.violation[2]) == math.inf


def test_a_set_for_each_chain_is_taken_for_the_chains_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    radii = casal.PerChain([1.0 + 0.5 * k for k in range(8)])
    whole = small(casal.Sphere(radii), store=tmp_path / "run.zarr")
    (tmp_path / "run.zarr" / "provenance" / "batches" / "batch-000001.json").unlink()
    part = casal.load(tmp_path / "run.zarr")
    there = torch.tensor([0, 1, 2, 6, 7])
    assert torch.equal(part.samples, whole.samples[there]) and part.certificate.note == ""
    assert torch.equal(part.certificate.violation, whole.certificate.violation[there])
    assert part.constraint is not None and part.constraint.chains == 5
    part.save(tmp_path / "part.zarr")
    again = casal.load(tmp_path / "part.zarr")
    assert again.certificate.note == "" and torch.equal(again.samples, part.samples)


def test_a_saved_result_keeps_its_set_as_data(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    small(SPHERE, store=tmp_path / "run.zarr")
    loaded = casal.load(tmp_path / "run.zarr")
    loaded.save(tmp_path / "saved.zarr")
    again = casal.load(tmp_path / "saved.zarr")
    assert again.certificate.note == "" and repr(again.constraint) == repr(SPHERE)
    dataclasses.replace(loaded, constraint=None).save(tmp_path / "unknown.zarr")
    assert "not computed again" in casal.load(tmp_path / "unknown.zarr").certificate.note


def test_a_set_of_functions_is_said_not_to_be_computed_again(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    circle = casal.Implicit(lambda z: (z.square().sum(1) - 1.0)[:, None])
    result = small(circle, store=tmp_path / "run.zarr")
    loaded = casal.load(tmp_path / "run.zarr")
    assert torch.equal(loaded.certificate.violation, result.certificate.violation) and loaded.constraint is None
    assert "as stored, not computed again: Implicit(lambda)" in loaded.certificate.note
    assert loaded.certificate.note in str(loaded)
    dataclasses.replace(result, constraint=circle).save(tmp_path / "saved.zarr")
    assert "Implicit(lambda)" in casal.load(tmp_path / "saved.zarr").certificate.note


def test_a_set_that_this_process_does_not_know_is_said_not_to_be_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")

    class Mine(casal.Sphere):
        """A set of the user's."""

    with monkeypatch.context() as patch:
        patch.setitem(casal.constraints.SETS, "Mine", Mine)
        small(Mine(1.0), store=tmp_path / "run.zarr")
        assert casal.load(tmp_path / "run.zarr").certificate.note == ""
    note = casal.load(tmp_path / "run.zarr").certificate.note
    assert "the set in the store could not be used (SettingError: no set named" in note
