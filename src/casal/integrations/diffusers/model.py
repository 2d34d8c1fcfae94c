"""A network of diffusers and its scheduler as a target."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from casal.checks import Init
from casal.devices import entry
from casal.errors import CasalWarning, SettingError, ShapeError
from casal.integrations.diffusers.scheduler import Readout, estimate_of, is_flow, read
from casal.targets import (
    Target,
    along,
    below_least_level,
    gaussian_start,
    guidance_note,
    noise_level,
    unconditional_rows,
)

NETWORKS = ("unet", "transformer")
"""Where a pipeline keeps its network."""

FINEST_FLOW = 1e-3
"""Noise at which a velocity may be asked; it is trained on all times."""


class Network:
    """Calls a network of diffusers: ``model(x, timestep, **keywords)``, with classifier-free guidance.

        output = o + w (c - o),      c with the condition, o with the unconditional keywords, in one call

    Args:
        model: ``UNet2DModel``, ``UNet2DConditionModel``, a transformer, or any function of the same kind.
        condition: Keyword tensors of all chains, one row, or one row per chain; "a.b" stands for key b of the mapping
        a. unconditional: The same without the condition, for guidance.
        guidance: w; None for no guidance.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        condition: Mapping[str, Tensor],
        unconditional: Mapping[str, Tensor],
        guidance: float | None,
    ) -> None:
        self.model, self.condition, self.unconditional, self.guidance = model, condition, unconditional, guidance
        call = model.forward if isinstance(model, nn.Module) else model
        parameters = inspect.signature(call).parameters
        self.named = "timestep" in parameters
        self.plain = {"return_dict": False} if "return_dict" in parameters else {}
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.dtype = None if parameter is None else parameter.dtype

    def __call__(self, x: Tensor, t: Tensor, **condition: Tensor) -> Tensor:
        """The output at x (n, *event) and t, a number or one per chain, in the dtype of x."""
        n, given = len(x), condition or self.condition
        keywords = {name: self._rows(name, value, x) for name, value in given.items()}
        shown, times = x.to(self.dtype or x.dtype), t.to(x.device).expand(n)
        if self.guidance is None:
            return self._run(shown, times, keywords).to(x.dtype)
        free = {name: self._rows(name, self.unconditional.get(name, value), x) for name, value in keywords.items()}
        both = {name: torch.cat([free[name], value]) for name, value in keywords.items()}
        out, guided = self._run(torch.cat([shown, shown]), torch.cat([times, times]), both).to(x.dtype).chunk(2)
        return out + self.guidance * (guided - out)

    def _rows(self, name: str, value: Tensor, x: Tensor) -> Tensor:
        """A keyword tensor for the chains of a call."""
        if len(value) not in (1, len(x)):
            raise ShapeError(f"{name} has {len(value)} rows for {len(x)} chains; give one row, or one per chain")
        value = value.expand(len(x), *value.shape[1:]).to(x.device)
        return value.to(self.dtype or x.dtype) if value.is_floating_point() else value

    def _run(self, x: Tensor, t: Tensor, keywords: Mapping[str, Tensor]) -> Tensor:
        nested: dict[str, Any] = {}
        for name, value in keywords.items():
            outer, _, inner = name.partition(".")
            if inner:
                nested.setdefault(outer, {})[inner] = value
            else:
                nested[outer] = value
        out = self.model(x, timestep=t, **nested, **self.plain) if self.named else self.model(x, t, **nested)
        out = out if isinstance(out, Tensor) else out[0]
        if out.shape[1:2] == (2 * x.shape[1],):  # a network that also predicts a variance, such as DiT
            out = out[:, : x.shape[1]]
        if out.shape != x.shape:
            raise ShapeError(f"the network returned {tuple(out.shape)} for {tuple(x.shape)}; they must agree")
        return out


class Question(NamedTuple):
    """How the network is asked for the mean of x0 given y = x0 + level noise.

    Attributes:
        alpha: x = alpha y is what the network knows.
        time: Its second argument.
        scale: Factor of x in its first argument.
        skip: Factor of x in the estimate.
        gain: Factor of its output in the estimate.
    """

    alpha: Tensor
    time: Tensor
    scale: Tensor
    skip: Tensor
    gain: Tensor


class Model:
    """Score and denoiser of a network, with the estimate clipped if the model is used that way."""

    def __init__(self, network: Network, rows: Readout, scheduler: Any, clip: float | None) -> None:
        self.network, self.rows, self.scheduler, self.clip = network, rows, scheduler, clip
        self.alpha, self.sigma = cast(Tensor, rows.table.alpha), cast(Tensor, rows.table.sigma)
        self.ask, self.finest, self.least = _question(scheduler, rows.times.dtype)

    def estimate(self, x: Tensor, ask: Question, condition: Mapping[str, Tensor]) -> Tensor:
        """D = skip x + gain output, clipped."""
        out = self.network(along(ask.scale, x) * x, ask.time, **condition)
        clean = along(ask.skip, x) * x + along(ask.gain, x) * out
        return clean if self.clip is None else clean.clamp(-self.clip, self.clip)

    def score(self, x: Tensor, t: Tensor, **condition: Tensor) -> Tensor:
        """(alpha D - x) / sigma^2 in the row number t."""
        rows, row = self.rows, t.round().long().cpu()
        one = torch.ones((), dtype=torch.float64)
        ask = Question(one, *(entry(v, row) for v in (rows.times, rows.scale, rows.skip, rows.gain)))
        alpha, sigma = (along(entry(v, row), x) for v in (self.alpha, self.sigma))
        return (alpha * self.estimate(x, ask, condition) - x) / sigma.square()

    def denoise(self, y: Tensor, sigma: Tensor, **condition: Tensor) -> Tensor:
        """E[x0 | x0 + sigma noise = y]."""
        level = noise_level(sigma, y)
        if self.ask is None:
            raise SettingError(f"{type(self.scheduler).__name__} has no noise levels for its steps")
        ask = self.ask(level.cpu())
        clean = self.estimate(along(ask.alpha, y) * y, ask, condition)
        return clean if self.least is None else below_least_level(level, self.least, y, clean)


def _question(
    scheduler: Any, time: torch.dtype
) -> tuple[Callable[[Tensor], Question] | None, float | None, float | None]:
    """How to ask at any noise level, the finest level, and the least that the network knows."""
    if hasattr(scheduler, "precondition_outputs"):

        def preconditioned(level: Tensor) -> Question:
            one = torch.ones_like(level)
            scale = scheduler.precondition_inputs(one, level)
            return Question(
                one, scheduler.precondition_noise(level).to(time), scale, *estimate_of(scheduler, one, level)
            )

        return preconditioned, float(scheduler.config.sigma_min), None
    if is_flow(scheduler):
        count = scheduler.config.num_train_timesteps

        def straight(level: Tensor) -> Question:
            alpha, sigma = 1 / (1 + level), level / (1 + level)
            one = torch.ones_like(level)
            return Question(alpha, (count * sigma).to(time), one, *estimate_of(scheduler, alpha, sigma))

        return straight, FINEST_FLOW, None
    if not hasattr(scheduler, "alphas_cumprod"):
        return None, None, None
    abar = scheduler.alphas_cumprod.detach().cpu().to(torch.float64)
    known = ((1 - abar) / abar).sqrt()
    borders = (known[1:] * known[:-1]).sqrt()

    def nearest(level: Tensor) -> Question:
        """At the nearest of the trained levels (in its logarithm)."""
        index = torch.bucketize(level, borders)
        alpha, sigma = abar[index].sqrt(), (1 - abar[index]).sqrt()
        one = torch.ones_like(level)
        return Question(alpha, index.to(time), one, *estimate_of(scheduler, alpha, sigma))

    return nearest, float(known[0]), float(known[0])


def from_diffusers(
    model: Any,
    scheduler: Any = None,
    *,
    steps: int | None,
    shape: int | Sequence[int] | None = None,
    init: Init | None = None,
    condition: Mapping[str, Any] | None = None,
    unconditional: Mapping[str, Any] | None = None,
    guidance: float | None = None,
    clip: bool | float | None = None,
    schedule: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Target:
    """A model of diffusers as a target: its network, and the steps of its scheduler as rows.

        x' = a x + b score(x) + m_1 D_1 + ... + m_p D_p + s w,      D = (x + sigma^2 score) / alpha

    The rows are read off ``scheduler.step``. Unconstrained sampling through ``casal.sample`` is what the loop of
    diffusers computes, for schedulers whose steps are linear and look back at most three estimates: DDPM, DDIM, Euler,
    Euler ancestral, Heun, DPM-Solver++ (2M, 3M, SDE, singlestep), UniPC, EDM (Euler, DPM-Solver++), flow matching
    (Euler, Heun, any shift), LCM, TCD. Others are refused. Methods that move chains between the rows (SplitGibbs)
    take steps of first order between the same noise levels.

    A pipeline with an autoencoder is a model of latents: the target lives in the latent space, and a set in pixel space
    needs the decoder of the pipeline (``casal.sample(..., decoder=...)``).

    Args:
        model: ``UNet2DModel``, ``UNet2DConditionModel``, a transformer, any function (x, t) -> output, or a
            ``DiffusionPipeline``, whose network and scheduler are taken.
        scheduler: A scheduler of diffusers; that of the pipeline if left out. It is copied.
        steps: ``num_inference_steps``; None if ``schedule`` says which.
        shape: Shape of one sample; from the config of the network (in_channels, sample_size) if left out.
        init: Starting points; None draws them as diffusers does, standard normal times ``init_noise_sigma``. A tensor
            (n, *shape) or a callable (n, generator) is taken as it is, so it has to have that size.
        condition: Keyword tensors for the network, such as ``encoder_hidden_states`` or ``class_labels``: one row for
            all chains, or one row per chain. "added_cond_kwargs.time_ids" is the key time_ids of that mapping.
        unconditional: What stands for no condition, for guidance: keywords to a value of one row, such as the number of
            a null class. Keywords that are left out keep the value that the chain has.
        guidance: Scale w of classifier-free guidance. One evaluation of the model is then two of the network.
        clip: Whether the denoised estimate is clipped, before the constraint acts on it: None as the scheduler says
            (``clip_sample``, which is True by default in DDPM and DDIM), False, True, or the largest absolute value.
            DDIM is clipped as diffusers does with ``use_clipped_model_output=True``, with a warning if that was not
            said. Dynamic thresholding is refused unless clip is given. Where clip is None, ``casal.sample`` warns if
            decoder or set show that the data were not scaled to that range.
        schedule: More arguments of ``set_timesteps``, such as ``mu``, ``sigmas`` or ``timesteps``.
        dtype: Dtype of the starting points; that of the network if left out (float32 if it is a half). The network is
            called in its own dtype.
        **options: More arguments of ``scheduler.step``, such as ``eta=1.0`` for DDIM.

    Raises:
        SettingError: A scheduler that rows cannot repeat, an active dropout, or settings that do not fit.
    """
    return build(
        model,
        scheduler,
        steps=steps,
        shape=shape,
        init=init,
        condition=condition,
        unconditional=unconditional,
        guidance=guidance,
        clip=clip,
        schedule=schedule,
        dtype=dtype,
        options=options,
    )[0]


def build(
    model: Any,
    scheduler: Any,
    *,
    steps: int | None,
    options: Mapping[str, Any],
    shape: int | Sequence[int] | None = None,
    init: Init | None = None,
    condition: Mapping[str, Any] | None = None,
    unconditional: Mapping[str, Any] | None = None,
    guidance: float | None = None,
    clip: bool | float | None = None,
    schedule: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Target, Readout]:
    """The target of ``from_diffusers``, and what was read off the scheduler."""
    model, scheduler, space = _parts(model, scheduler)
    rows_given = {name: torch.as_tensor(value) for name, value in (condition or {}).items()}
    none: Mapping[str, Tensor] = {}
    if guidance is not None:
        if not rows_given or not unconditional:
            raise SettingError("guidance needs condition= and unconditional= (the value for no condition)")
        none = unconditional_rows(rows_given, unconditional, type(model).__name__)
    network = Network(model, rows_given, none, guidance)
    _refuse_dropout(model)
    if scheduler.config.get("variance_type") in ("learned", "learned_range"):
        raise SettingError(
            f"variance_type={scheduler.config.variance_type!r}: the noise of a step would depend on the network; set "
            "variance_type='fixed_small'"
        )
    bound, options = _clipping(scheduler, clip, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of diffusers' own calls of numpy
        rows = read(scheduler, steps, schedule or {}, options)
    own = Model(network, rows, scheduler, bound)
    kind = dtype or network.dtype or torch.float32
    kind = torch.float32 if dtype is None and kind in (torch.float16, torch.bfloat16) else kind
    if init is None:
        init = gaussian_start(_shape(model) if shape is None else shape, rows.start, kind)
    one_a_chain = any(len(value) > 1 for value in rows_given.values())  # one row alone is for all chains
    target = Target(
        own.score,
        rows.table,
        init,
        denoise=None if own.ask is None else own.denoise,
        finest=own.finest,
        name=f"{type(model).__name__} with {type(scheduler).__name__}{space}",
        condition=rows_given if one_a_chain else {},
        notes=() if guidance is None or guidance == 1 else (guidance_note(guidance),),
        clip=bound if clip is None else None,
    )
    return target, rows


def _parts(model: Any, scheduler: Any) -> tuple[Any, Any, str]:
    """The network, the scheduler, and a word on the space if the model is one of latents."""
    components = getattr(model, "components", None)
    space = ""
    if isinstance(components, Mapping):
        scheduler = components.get("scheduler") if scheduler is None else scheduler
        found = [components[name] for name in NETWORKS if components.get(name) is not None]
        if not found:
            raise SettingError(f"{type(model).__name__} has no {' or '.join(NETWORKS)}; give the network itself")
        if components.get("vae") is not None:
            space = f", in the latent space of {type(components['vae']).__name__}"
        model = found[0]
    if isinstance(model, str | PathLike):
        raise SettingError(
            f"model must be a network or a pipeline of diffusers, got the name {str(model)!r}: load it first, such as "
            "diffusers.DDPMPipeline.from_pretrained(name)"
        )
    if scheduler is None or not hasattr(scheduler, "set_timesteps") or not hasattr(scheduler, "step"):
        raise SettingError(
            f"give a scheduler of diffusers, got {type(scheduler).__name__}: from_diffusers(unet, scheduler, steps=50) "
            "or from_diffusers(pipeline, steps=50)"
        )
    if not callable(model):
        raise SettingError(f"model must be a network of diffusers or a function (x, t), got {type(model).__name__}")
    return model, scheduler, space


def _shape(model: Any) -> tuple[int, ...]:
    """Shape of one sample, from the config of the network."""
    config = getattr(model, "config", {})
    channels, size = config.get("in_channels"), config.get("sample_size")
    if channels is None or size is None:
        raise SettingError(f"{type(model).__name__} does not define the shape of a sample; pass shape=(channels, h, w)")
    return (channels, *((size, size) if isinstance(size, int) else size))


def _refuse_dropout(model: Any) -> None:
    """A network in training mode would be another one at every call."""
    if not isinstance(model, nn.Module):
        return
    kinds = (nn.Dropout, nn.Dropout2d)
    active = [name for name, part in model.named_modules() if isinstance(part, kinds) and part.training and part.p > 0]
    if active:
        raise SettingError(f"dropout is active in {len(active)} places, first {active[0]}; call model.eval()")


def _clipping(
    scheduler: Any, clip: bool | float | None, given: Mapping[str, Any]
) -> tuple[float | None, Mapping[str, Any]]:
    """The bound on the estimate, and the options of ``step``, with a word where diffusers clips in another way."""
    config = scheduler.config
    if clip is None and config.get("thresholding"):
        raise SettingError("dynamic thresholding is not supported; pass clip=False, or clip=1.0 for a fixed bound")
    both, options = "use_clipped_model_output", dict(given)
    said = options.pop(both, None)
    if clip is None:
        clip = bool(config.get("clip_sample"))
        if clip and said is None and both in inspect.signature(scheduler.step).parameters:
            warnings.warn(
                f"{type(scheduler).__name__} clips the estimate (clip_sample=True) and keeps the noise of the "
                f"unclipped one; here both follow the clipped one. Say {both}=True if that is meant, or clip=False",
                CasalWarning,
                stacklevel=5,
            )
    if clip is False:
        return None, options
    bound = float(config.get("clip_sample_range") or 1.0) if clip is True else float(clip)
    if not bound > 0:
        raise SettingError(f"clip must be > 0, got {clip}")
    return bound, options
