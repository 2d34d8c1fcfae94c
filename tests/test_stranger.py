"""A set, a method and an experiment added from outside the package, as a stranger would, and run end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

STRANGER = Path(__file__).parent / "stranger"

SCRIPT = """
import json, torch, casal
from annulus import Annulus
from relaxed import Relaxed
from casal.constraints import SETS
from casal.methods import METHODS
assert SETS["Annulus"] is Annulus and METHODS["relaxed"].example == Relaxed()
ring = Annulus(1.0, 2.0)
again = casal.constraint_from_spec(json.dumps(ring.spec()))
z = torch.tensor([[0.1, 0.0], [0.0, 1.5], [3.0, 4.0]], dtype=torch.float64)
assert torch.equal(again.project(z), ring.project(z))
start = lambda n, g: torch.randn(n, 2, generator=g, dtype=torch.float64)
target = casal.langevin(lambda x: x, steps=120, step_size=0.05, init=start)
tries = [Relaxed(), casal.CASAL(10.0), casal.Penalty(0.1), casal.WeightedCASAL(50.0), casal.FinalProjection(Relaxed())]
for method in tries:
    for constraint in (ring, ring & casal.HalfSpace([1.0, 0.0], 0.5), ring.shifted([0.5, 0.0])):
        result = casal.sample(target, constraint, method, 40, run=casal.Run(record_every=10))
        feasible = bool(result.certificate.feasible.all())
        assert feasible or not method.strict, (method, constraint)
stored = casal.sample(target, ring, Relaxed(), 40, run=casal.Run(batch=10, store="run.zarr"))
assert torch.equal(casal.load("run.zarr").samples, stored.samples)
again = casal.sample(target, ring, Relaxed(), 40, run=casal.Run(batch=10, store="run.zarr"))
assert torch.equal(again.samples, stored.samples)
print("sampled")
"""


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(STRANGER), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_set_and_a_method_work_with_everything_there_is(tmp_path: Path) -> None:
    assert run(tmp_path, "-W", "error", "-c", SCRIPT).strip() == "sampled"


def test_an_experiment_runs_from_the_command_line(tmp_path: Path) -> None:
    listed = run(tmp_path, "-m", "casal_lab", "list", "--module", "ring")
    assert "How far out do chains stay on a ring?" in listed and "--method relaxed" in listed
    run(tmp_path, "-m", "casal_lab", "run", "ring", "--module", "ring", "--quick", "--out", "ring")
    rows = json.loads((tmp_path / "ring" / "results.json").read_text())["tables"][0]["rows"]
    assert [row["method"] for row in rows] == ["relaxed", "projected"]
    assert all(1.0 <= row["radius"] <= 2.0 for row in rows)
    assert (tmp_path / "ring" / "ring.png").stat().st_size > 1000
    run(tmp_path, "-m", "casal_lab", "reproduce", "--only", "ring", "--module", "ring", "--quick", "--out", "page")
    assert "How far out do chains stay on a ring?" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
