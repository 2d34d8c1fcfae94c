"""Networks of diffusers as targets: conditions, guidance, the denoiser at any noise level, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import casal
from casal.errors import SettingError, ShapeError

diffusers = pytest.importorskip("diffusers")

from .models import denoised, start, their_loop, unet  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 4
BOX = casal.Box(-1e9, 1e9)


def cross() -> Any:
    """A UNet that looks at hidden states."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return diffusers.UNet2DConditionModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(4, 8),
            layers_per_block=1,
            norm_num_groups=2,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=6,
            attention_head_dim=2,
        ).eval()


def test_guidance_is_that_of_diffusers() -> None:
    model, scheduler = cross(), diffusers.DPMSolverMultistepScheduler(prediction_type="v_prediction")
    x = start(scheduler, 2, STEPS)
    text, empty = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(1, 3, 6)

    def guided(x: Tensor, t: Tensor) -> Tensor:
        hidden = torch.cat([empty.expand(len(x), -1, -1), text.expand(len(x), -1, -1)])
        free, told = model(torch.cat([x, x]), t, hidden).sample.chunk(2)
        return free + 3.0 * (told - free)

    theirs = their_loop(guided, scheduler, STEPS, x)
    keys = {"condition": {"encoder_hidden_states": text}, "unconditional": {"encoder_hidden_states": empty}}
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x, guidance=3.0, **keys)
    ours = casal.sample(target, BOX, casal.Unconstrained(), 2).samples
    assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))


def test_class_labels_of_their_own_for_each_chain() -> None:
    model = unet(num_class_embeds=4)
    scheduler = diffusers.DDIMScheduler(clip_sample=False, prediction_type="v_prediction")
    x, labels = start(scheduler, 12, STEPS), torch.arange(12) % 4
    theirs = their_loop(lambda x, t: model(x, t, class_labels=labels).sample, scheduler, STEPS, x)
    target = casal.from_diffusers(model, scheduler, steps=STEPS, init=x, condition={"class_labels": labels})
    ours = casal.sample(target, BOX, casal.Unconstrained(), 12).samples
    assert float((ours - theirs).abs().max()) <= 1e-5 * max(1.0, float(theirs.abs().max()))


def test_a_transformer_that_also_predicts_a_variance() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = diffusers.DiTTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=4,
            in_channels=2,
            out_channels=4,
            num_layers=1,
            sample_size=4,
            patch_size=2,
            num_embeds_ada_norm=10,
            norm_num_groups=2,
        ).eval()
    target = casal.from_diffusers(
        model, diffusers.DDIMScheduler(clip_sample=False), steps=2, condition={"class_labels": torch.tensor([2])}
    )
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        score = target.score(x, torch.tensor(0.0))
        noise = model(x, torch.full((3,), 500), class_labels=torch.full((3,), 2)).sample[:, :2]
    assert target.table.sigma is not None
    torch.testing.assert_close(score, -noise / target.table.sigma[0].float(), rtol=1e-4, atol=1e-5)
    assert target.init(2, torch.Generator()).shape == (2, 2, 4, 4)  # type: ignore[operator]


def test_nested_keywords_reach_their_mapping() -> None:
    seen: dict[str, Any] = {}

    def model(x: Tensor, timestep: Tensor, added_cond_kwargs: Any = None, return_dict: bool = True) -> tuple[Tensor]:
        seen.update(added_cond_kwargs)
        return (0.0 * x,)

    target = casal.from_diffusers(
        model,
        diffusers.DDIMScheduler(clip_sample=False),
        steps=2,
        shape=(1, 4, 4),
        condition={"added_cond_kwargs.time_ids": torch.ones(1, 6)},
    )
    target.score(torch.zeros(3, 1, 4, 4), torch.tensor(0.0))
    assert seen["time_ids"].shape == (3, 6)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_denoiser_at_trained_levels(prediction: str) -> None:
    """With an exact network of Gaussian data the denoiser is known; also below the least level."""
    scheduler = diffusers.EulerDiscreteScheduler(prediction_type=prediction)
    abar = scheduler.alphas_cumprod.double()

    def model(x: Tensor, t: Tensor) -> Tensor:
        at = abar[t.round().long()].reshape(-1, 1, 1, 1)
        alpha, sigma = at.sqrt().to(x), (1 - at).sqrt().to(x)
        clean = denoised(x, alpha, sigma)
        noise = (x - alpha * clean) / sigma
        return {"epsilon": noise, "sample": clean, "v_prediction": alpha * noise - sigma * clean}[prediction]

    target = casal.from_diffusers(model, scheduler, steps=3, shape=(1, 2, 2), dtype=torch.float64)
    levels = ((1 - abar) / abar).sqrt()
    y = torch.randn(4, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert target.denoise is not None and target.finest == pytest.approx(float(levels[0]))
    for index in (0, 300, 999):
        sigma = levels[index]
        torch.testing.assert_close(target.denoise(y, sigma), denoised(y, 1.0, sigma), rtol=1e-9, atol=1e-9)
    each = levels[[0, 10, 300, 999]]
    torch.testing.assert_close(target.denoise(y, each), denoised(y, 1.0, each.reshape(-1, 1, 1, 1)), rtol=1e-9, atol=0)
    torch.testing.assert_close(target.denoise(y, torch.tensor(0.0)), y)


def test_the_denoiser_of_a_flow_and_of_edm() -> None:
    y = torch.randn(4, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        sigma = (t.to(x) / 1000).reshape(-1, 1, 1, 1)
        return (x - denoised(x, 1 - sigma, sigma)) / sigma

    flow = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    edm = diffusers.EDMEulerScheduler(sigma_data=0.5)

    def preconditioned(x: Tensor, t: Tensor) -> Tensor:
        sigma = torch.exp(4 * t.to(x)).reshape(-1, 1, 1, 1)
        x = x * torch.sqrt(sigma**2 + 0.25)
        skip, out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / torch.sqrt(sigma**2 + 0.25)
        return (denoised(x, 1.0, sigma) - skip * x) / out

    for model, scheduler in ((velocity, flow), (preconditioned, edm)):
        target = casal.from_diffusers(model, scheduler, steps=3, shape=(1, 2, 2), dtype=torch.float64)
        assert target.denoise is not None
        for sigma in (0.01, 1.0, 30.0):
            found = target.denoise(y, torch.tensor(sigma, dtype=torch.float64))
            torch.testing.assert_close(found, denoised(y, 1.0, sigma), rtol=1e-5, atol=1e-5)


def test_a_pipeline_gives_network_and_scheduler() -> None:
    pipe = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler(clip_sample=False))
    target = casal.from_diffusers(pipe, steps=3)
    assert target.name == "UNet2DModel with DDPMScheduler"
    assert len(target.table) == 3


def test_a_model_of_latents_says_so() -> None:
    parts = {"unet": unet(), "scheduler": diffusers.DDIMScheduler(clip_sample=False), "vae": torch.nn.Linear(1, 1)}
    assert casal.from_diffusers(SimpleNamespace(components=parts), steps=2).name.endswith(
        "in the latent space of Linear"
    )


def test_the_network_keeps_its_dtype() -> None:
    """A float32 network under float64 chains."""
    target = casal.from_diffusers(unet(), diffusers.DDIMScheduler(clip_sample=False), steps=2, dtype=torch.float64)
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wide, narrow = target.score(x, torch.tensor(0.0)), target.score(x.float(), torch.tensor(0.0))
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    scheduler = diffusers.DDIMScheduler(clip_sample=False)
    with pytest.raises(SettingError, match="dropout is active in 1 places"):
        casal.from_diffusers(torch.nn.Sequential(torch.nn.Dropout(0.1)), scheduler, steps=2, shape=2)
    with pytest.raises(SettingError, match="guidance needs condition= and unconditional="):
        casal.from_diffusers(unet(), scheduler, steps=2, guidance=2.0)
    with pytest.raises(SettingError, match="pass shape="):
        casal.from_diffusers(lambda x, t: x, scheduler, steps=2)
    with pytest.raises(SettingError, match="does not take"):
        casal.from_diffusers(unet(), scheduler, steps=2, churn=1.0)
    three = casal.from_diffusers(unet(), scheduler, steps=2, condition={"class_labels": torch.arange(3)})
    with pytest.raises(ShapeError, match="class_labels has 3 rows for 2 chains"):
        three.score(torch.zeros(2, 1, 8, 8), torch.tensor(0.0))


def test_the_package_opens_its_bridges_on_use() -> None:
    assert callable(casal.from_diffusers)
    with pytest.raises(AttributeError, match="no attribute 'from_nowhere'"):
        _ = casal.from_nowhere
