"""The pipeline: feasible with every scheduler, saved with its constraint, honest about what it returns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import CasalWarning, SettingError
from casal.methods import METHODS

diffusers = pytest.importorskip("diffusers")

from casal.integrations.diffusers import ConstrainedPipeline  # noqa: E402
from casal.integrations.diffusers.pipeline import method_from_spec, method_spec  # noqa: E402

from .models import NINE, one_of_nine, start, their_loop, unet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ROWS = torch.stack([torch.ones(64), torch.linspace(-1.0, 1.0, 64)])
PLANE = casal.Affine(ROWS, torch.tensor([3.0, 1.0]))
SETS = {
    "Affine": PLANE,
    "MassEnergy": casal.MassEnergy(mass=4.0, energy=40.0),
    "Box and equation": casal.Box(-0.8, 0.9) & casal.Affine(torch.ones(1, 64), 5.0),
}


def pipeline(scheduler: Any, constraint: Any = PLANE, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    made = ConstrainedPipeline(unet(dtype), scheduler, constraint, **more)
    made.set_progress_bar_config(disable=True)
    return made


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NINE)
def test_every_scheduler_ends_in_every_set(name: str, dtype: torch.dtype) -> None:
    limit = 1e-6 if dtype == torch.float32 else 1e-12
    for constraint in SETS.values():
        out = pipeline(one_of_nine(name), constraint, dtype)(2, seeded(), 3)
        assert out.images.dtype == dtype and out.images.shape == (2, 1, 8, 8)
        assert float(constraint.violation(out.images.double()).max()) <= limit
        assert float(out.certificate.violation.max()) <= limit and bool(out.certificate.feasible.all())
        assert float(out.result.certificate.violation.max()) <= 1e-12


def test_without_a_constraint_it_is_the_loop_of_diffusers() -> None:
    """One generator draws the same start; a set that holds everything changes nothing."""
    scheduler = one_of_nine("UniPC")
    theirs = their_loop(lambda x, t: unet()(x, t).sample, scheduler, 4, start(scheduler, 2, 4))
    out = pipeline(scheduler, casal.Box(-1e6, 1e6), method=casal.FinalProjection())(2, seeded(3), 4)
    assert float((out.images - theirs).abs().max()) <= 1e-5


def test_saved_and_loaded_elsewhere_it_is_the_same(tmp_path: Path) -> None:
    method = casal.CASAL(casal.inverse_variance(2.0), couple="denoised")
    pipe = pipeline(one_of_nine("Euler ancestral"), SETS["MassEnergy"], method=method)
    pipe.save_pretrained(tmp_path)
    images = pipe(2, seeded(), 3).images
    about = json.loads((tmp_path / "model_index.json").read_text())
    assert about["constraint"]["set"] == "MassEnergy"
    assert about["method"]["rho"] == {"schedule": "inverse_variance", "arguments": [2.0]}
    script = f"""
import torch
torch.set_num_threads(1)
from casal.integrations.diffusers import ConstrainedPipeline
pipe = ConstrainedPipeline.from_pretrained({str(tmp_path)!r})
pipe.set_progress_bar_config(disable=True)
out = pipe(2, torch.Generator().manual_seed(1), 3)
torch.save((out.images, out.certificate.violation), {str(tmp_path / "out.pt")!r})
print(repr(pipe.constraint), repr(pipe.method))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{pipe.constraint!r} {method!r}"
    again, violation = torch.load(tmp_path / "out.pt")
    assert torch.equal(again, images)
    assert float(violation.max()) <= 1e-6


def test_from_pipe_takes_network_and_scheduler() -> None:
    other = diffusers.DDPMPipeline(unet(torch.float64), diffusers.DDPMScheduler())
    pipe = ConstrainedPipeline.from_pipe(other, constraint=PLANE)
    assert pipe.unet is other.unet and pipe.dtype == torch.float64
    again = ConstrainedPipeline.from_pipe(pipe)
    again.set_progress_bar_config(disable=True)
    assert float(again(2, seeded(), 2).certificate.violation.max()) <= 1e-12


def test_callbacks_see_every_step_and_may_change_it() -> None:
    scheduler, seen = one_of_nine("DDIM"), list[tuple[int, int]]()

    def look(pipe: Any, step: int, t: Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append((step, int(t)))
        return tensors

    pipe = pipeline(scheduler)
    plain = pipe(2, seeded(), 4).images
    assert torch.equal(pipe(2, seeded(), 4, callback_on_step_end=look).images, plain)
    assert seen == [(0, 750), (1, 500), (2, 250), (3, 0)]
    moved = pipe(2, seeded(), 4, callback_on_step_end=lambda p, k, t, kept: {"latents": kept["latents"] + 0.1})
    assert not torch.equal(moved.images, plain)
    assert float(moved.certificate.violation.max()) <= 1e-6


def test_what_is_returned_is_what_is_certified() -> None:
    pipe = pipeline(one_of_nine("DDIM"))
    tensor = pipe(2, seeded(), 2)
    array = pipe(2, seeded(), 2, output_type="np")
    assert array.images.shape == (2, 8, 8, 1)
    assert torch.equal(torch.from_numpy(array.images).movedim(-1, 1), tensor.images)
    images, result = pipe(2, seeded(), 2, return_dict=False)
    assert torch.equal(images, tensor.images) and torch.equal(result.samples, tensor.result.samples)
    with pytest.warns(CasalWarning, match="do not satisfy the constraint"):
        pictures = pipe(2, seeded(), 2, output_type="pil")
    assert pictures.certificate is None and pictures.images[0].size == (8, 8)
    with pytest.raises(SettingError, match="output_type must be one of"):
        pipe(2, seeded(), 2, output_type="jpeg")


def test_one_generator_a_sample() -> None:
    pipe = pipeline(one_of_nine("DDIM"))
    both = pipe(2, [seeded(1), seeded(2)], 2).images
    torch.testing.assert_close(both[1:], pipe(1, [seeded(2)], 2).images, rtol=1e-5, atol=1e-5)
    with pytest.raises(SettingError, match="3 generators for 2 samples"):
        pipe(2, [seeded(k) for k in range(3)], 2)
    noise = torch.randn(2, 1, 8, 8, generator=seeded(1))
    assert torch.equal(pipe(2, seeded(1), 2).images, pipe(2, seeded(5), 2, latents=noise).images)


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    own = casal.FromProjection(lambda z: z.clamp(min=0.0), lambda z: (-z).clamp(min=0.0).flatten(1).amax(1))
    with pytest.raises(SettingError, match="cannot be saved"):
        pipeline(one_of_nine("DDIM"), own).save_pretrained(tmp_path)
    with pytest.raises(SettingError, match="cannot be saved"):
        pipeline(one_of_nine("DDIM"), method=casal.CASAL(lambda table: 1.0 / table.b)).save_pretrained(tmp_path)
    with pytest.raises(SettingError, match="has no constraint"):
        pipeline(one_of_nine("DDIM"), None)(1)


@pytest.mark.parametrize("name", METHODS)
def test_methods_come_back_from_plain_data(name: str) -> None:
    method = METHODS[name].example
    spec = json.loads(json.dumps(method_spec(method)))
    assert method_from_spec(spec) == method
