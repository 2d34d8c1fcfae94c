"""Schedulers as rows: our loop is the loop of diffusers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError

diffusers = pytest.importorskip("diffusers")

from .models import one_of_nine, our_loop, prepared, start, their_loop, unet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 6
V = {"prediction_type": "v_prediction"}
ZERO_SNR = {**V, "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}

DETERMINISTIC: dict[str, tuple[str, dict[str, Any], int]] = {
    # class, settings, estimates that a row looks back at
    "DDIM": ("DDIMScheduler", {"clip_sample": False}, 0),
    "DDIM, zero SNR": ("DDIMScheduler", {"clip_sample": False, **ZERO_SNR}, 0),
    "Euler": ("EulerDiscreteScheduler", {}, 0),
    "Euler, Karras, v": ("EulerDiscreteScheduler", {"use_karras_sigmas": True, **V}, 0),
    "Euler, zero SNR": ("EulerDiscreteScheduler", ZERO_SNR, 0),
    "Heun": ("HeunDiscreteScheduler", {}, 1),
    "DPM-Solver++ 2M, Karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True, **V}, 1),
    "DPM-Solver++ 3M, x0": ("DPMSolverMultistepScheduler", {"solver_order": 3, "prediction_type": "sample"}, 2),
    "DPM-Solver++, zero SNR": ("DPMSolverMultistepScheduler", ZERO_SNR, 1),
    "UniPC": ("UniPCMultistepScheduler", {}, 2),
    "UniPC, flow": (
        "UniPCMultistepScheduler",
        {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 2.0},
        2,
    ),
    "EDM": ("EDMEulerScheduler", {}, 0),
    "EDM, DPM-Solver++": ("EDMDPMSolverMultistepScheduler", {}, 1),
    "flow, shift": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, 0),
}

IN_FLOAT64 = ("DDIM", "Heun", "UniPC")
"""Those that compute in the dtype of the sample throughout; the others go through float32."""


def made(name: str) -> Any:
    kind, settings, _ = DETERMINISTIC[name]
    return getattr(diffusers, kind)(**settings)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_loop_is_that_of_diffusers(name: str) -> None:
    model, scheduler = unet(), made(name)
    x = start(scheduler, 2, STEPS)
    theirs = their_loop(lambda x, t: model(x, t).sample, scheduler, STEPS, x)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x)
    memory = target.table.memory
    assert (0 if memory is None else memory.shape[1]) == DETERMINISTIC[name][2]
    ours = casal.sample(target, casal.Box(-1e9, 1e9), casal.Unconstrained(), 2).samples
    assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_the_loop_is_that_of_diffusers_in_float64(name: str) -> None:
    model, scheduler = unet(torch.float64), made(name)
    x = start(scheduler, 2, STEPS, torch.float64)
    theirs = their_loop(lambda x, t: model(x, t).sample, scheduler, STEPS, x)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x)
    ours = casal.sample(target, casal.Box(-1e9, 1e9), casal.Unconstrained(), 2).samples
    assert float((ours - theirs).abs().max()) <= 1e-12 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("kind", "settings", "options"),
    [
        ("DDPMScheduler", {"clip_sample": False}, {}),
        ("DDPMScheduler", {"clip_sample": False, "variance_type": "fixed_large"}, {}),
        ("DDIMScheduler", {"clip_sample": False}, {"eta": 0.7}),
        ("EulerAncestralDiscreteScheduler", V, {}),
        ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}, {}),
        ("EDMDPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}, {}),
        ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}, {}),
        ("LCMScheduler", {"clip_sample": False}, {}),
    ],
)
def test_with_the_same_noise_the_loop_is_that_of_diffusers(
    kind: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    model, scheduler = unet(), getattr(diffusers, kind)(**settings)
    x = start(scheduler, 2, STEPS)
    stream = torch.Generator().manual_seed(5)
    theirs = their_loop(lambda x, t: model(x, t).sample, scheduler, STEPS, x, generator=stream, **options)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x, **options)
    assert bool(target.table.s.any())
    again = torch.Generator().manual_seed(5)
    ours = our_loop(target, x, lambda: torch.randn(x.shape, generator=again))
    assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))


def test_starting_noise_is_that_of_diffusers() -> None:
    for name in ("DDPM", "Euler", "EDM"):
        scheduler = one_of_nine(name)
        target = casal.from_diffusers(unet(), scheduler, steps=4)
        assert callable(target.init)
        found = target.init(2, torch.Generator().manual_seed(3))
        torch.testing.assert_close(found, start(scheduler, 2, 4))


def test_clipped_estimates_are_those_of_diffusers() -> None:
    model, scheduler = unet(), diffusers.DDPMScheduler()
    assert scheduler.config.clip_sample
    x = start(scheduler, 2, STEPS)
    stream, again = (torch.Generator().manual_seed(5) for _ in range(2))
    theirs = their_loop(lambda x, t: model(x, t).sample, scheduler, STEPS, x, generator=stream)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x)
    ours = our_loop(target, x, lambda: torch.randn(x.shape, generator=again))
    assert float((ours - theirs).abs().max()) <= 1e-5
    assert float(theirs.abs().max()) <= 1.0 + 1e-6
    free = casal.from_diffusers(model, scheduler, steps=STEPS, init=x, clip=False)
    assert float(our_loop(free, x, lambda: torch.randn(x.shape, generator=again)).abs().max()) > 2.0


def test_ddim_clips_with_a_word() -> None:
    model, scheduler = unet(), diffusers.DDIMScheduler()
    x = start(scheduler, 2, STEPS)
    with pytest.warns(casal.errors.CasalWarning, match="use_clipped_model_output=True"):
        casal.from_diffusers(model, scheduler, steps=STEPS, init=x)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x, use_clipped_model_output=True)
    theirs = their_loop(lambda x, t: model(x, t).sample, scheduler, STEPS, x, use_clipped_model_output=True)
    ours = casal.sample(target, casal.Box(-1e9, 1e9), casal.Unconstrained(), 2).samples
    assert float((ours - theirs).abs().max()) <= 1e-5


class Squared:
    """A scheduler whose steps are not linear in the output."""

    def __init__(self) -> None:
        self.inner = diffusers.DDIMScheduler(clip_sample=False)
        self.config, self.alphas_cumprod = self.inner.config, self.inner.alphas_cumprod

    def set_timesteps(self, steps: int | None = None, **more: Any) -> None:
        self.inner.set_timesteps(**more)
        self.timesteps = self.inner.timesteps

    def step(self, output: Tensor, t: Tensor, x: Tensor, return_dict: bool = True) -> Any:
        (moved, _) = self.inner.step(output, t, x, return_dict=False)
        return (moved + 0.01 * (moved - x).square(),)


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        (lambda: diffusers.LMSDiscreteScheduler(), "cannot be read"),
        (lambda: diffusers.IPNDMScheduler(), "noise levels of IPNDMScheduler are not known"),
        (lambda: diffusers.DDPMScheduler(clip_sample=False, thresholding=True), "thresholding is not supported"),
        (lambda: diffusers.DDPMScheduler(clip_sample=False, variance_type="learned"), "variance_type='learned'"),
        (
            lambda: diffusers.DDIMScheduler(
                clip_sample=False, rescale_betas_zero_snr=True, timestep_spacing="trailing"
            ),
            "zero terminal SNR",
        ),
        (Squared, "cannot be read|not linear"),
        (lambda: None, "give a scheduler of diffusers"),
    ],
)
def test_what_rows_cannot_repeat_is_refused(scheduler: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        casal.from_diffusers(unet(), scheduler(), steps=STEPS)


def test_a_name_is_not_a_model() -> None:
    with pytest.raises(SettingError, match=r"got the name 'my/model': load it first"):
        casal.from_diffusers("my/model", steps=STEPS)


def test_the_scheduler_is_not_changed() -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler()
    before = scheduler.timesteps.clone()
    casal.from_diffusers(unet(), scheduler, steps=STEPS)
    assert torch.equal(scheduler.timesteps, before)
    assert not torch.equal(prepared(scheduler, STEPS).timesteps, before)
