"""A diffusers pipeline whose samples satisfy a constraint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any
from warnings import warn

import torch
from diffusers import DiffusionPipeline, ModelMixin, SchedulerMixin
from diffusers.utils.outputs import BaseOutput
from torch import Tensor

from casal.constraints import Constraint, constraint_from_spec
from casal.errors import CasalError, CasalWarning, SettingError
from casal.integrations.diffusers.model import build
from casal.methods import CASAL, METHODS, Each, Method, Problem, Together
from casal.sampling import Certificate, Run, SampleResult, certify, sample
from casal.schedules import NamedSchedule, inverse_variance, schedule_from_spec
from casal.targets import Target

OUTPUTS = ("pt", "np", "pil")

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-6, torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""Violation up to which a returned image counts as feasible, by its dtype: rounding leaves about as much."""

Callback = Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]
"""``callback(pipeline, step, timestep, {"latents": x})`` after every step; latents that it returns replace x."""


@dataclass
class ConstrainedPipelineOutput(BaseOutput):
    """What a ``ConstrainedPipeline`` returns.

    Attributes:
        images: The samples, as ``output_type`` says.
        result: Everything about the run: samples in float64, certificates, trace, cost.
        certificate: The violation of the images as they are returned, in their dtype; None for 8-bit images, which
            are rounded and are not certified.
    """

    images: Any
    result: SampleResult
    certificate: Certificate | None = None


_Pipeline: Any = DiffusionPipeline


class ConstrainedPipeline(_Pipeline):  # type: ignore[misc]
    """Samples a diffusers model under a constraint.

    The constraint acts inside the loop by a method of casal, and the samples are projected at the end. Nothing is
    clamped, rescaled or rounded after that unless ``output_type="pil"`` asks for it, with a warning.

    ``save_pretrained`` writes constraint and method into ``model_index.json`` as plain data, and ``from_pretrained``
    brings them back.

    Args:
        unet: The network: a UNet or a transformer of diffusers.
        scheduler: Any scheduler that ``casal.from_diffusers`` takes.
        constraint: A casal set, or its ``spec()``.
        method: A casal method, its ``method_spec``, or "auto"; ``CASAL(inverse_variance(1.0), couple="denoised")`` if
            left out.

    >>> import casal
    >>> import diffusers
    >>> from casal.integrations.diffusers import ConstrainedPipeline, ConstrainedPipelineOutput
    >>> blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (4,)}
    >>> unet = diffusers.UNet2DModel(
    ...     8, 1, 1, **blocks, norm_num_groups=2, layers_per_block=1, add_attention=False
    ... )
    >>> pipeline = ConstrainedPipeline(unet, diffusers.DDIMScheduler(clip_sample=False), casal.Sphere(4.0))
    >>> pipeline.set_progress_bar_config(disable=True)
    >>> output = pipeline(batch_size=2, num_inference_steps=3)
    >>> isinstance(output, ConstrainedPipelineOutput), bool(output.certificate.feasible.all())
    (True, True)
    """

    model_cpu_offload_seq = "unet"

    def __init__(
        self,
        unet: ModelMixin,
        scheduler: SchedulerMixin,
        constraint: Any = None,
        method: Any = None,
    ) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        self.constraint = constraint_from_spec(constraint) if isinstance(constraint, Mapping | str) else constraint
        if method is None:
            method = CASAL(inverse_variance(1.0), couple="denoised")
        self.method = method_from_spec(method) if isinstance(method, Mapping) else method
        self._unwritten: CasalError | None = None
        try:
            about = {
                "constraint": None if self.constraint is None else self.constraint.spec(),
                "method": method_spec(self.method),
            }
        except CasalError as error:
            self._unwritten, about = error, {"constraint": None, "method": None}
        self.register_to_config(**about)

    def save_pretrained(self, *arguments: Any, **keywords: Any) -> None:
        """Save network, scheduler, constraint and method; refused if the constraint is not plain data."""
        if self._unwritten is not None:
            raise SettingError(f"constraint or method cannot be saved: {self._unwritten}") from self._unwritten
        super().save_pretrained(*arguments, **keywords)

    @classmethod
    def from_pipe(cls, pipeline: Any, **keywords: Any) -> Any:
        """A constrained pipeline on the network and scheduler of another one, in the dtype of that one."""
        found = [pipeline.components[name] for name in ("unet", "transformer") if pipeline.components.get(name)]
        if found:
            keywords.setdefault("unet", found[0])
        keywords.setdefault("torch_dtype", pipeline.dtype)
        return super().from_pipe(pipeline, **keywords)

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        num_inference_steps: int = 50,
        output_type: str = "pt",
        return_dict: bool = True,
        *,
        latents: Tensor | None = None,
        class_labels: Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        condition: Mapping[str, Tensor] | None = None,
        unconditional: Mapping[str, Tensor] | None = None,
        guidance_scale: float | None = None,
        callback_on_step_end: Callback | None = None,
        clip: bool | float | None = None,
        tol: float = 1e-8,
        **options: Any,
    ) -> ConstrainedPipelineOutput | tuple[Any, SampleResult]:
        """Draw samples that satisfy the constraint.

        Args:
            batch_size: How many.
            generator: Randomness: one generator, or one for each sample, which then draws its starting noise. Steps
                with noise take theirs from a seed drawn from the (first) generator.
            num_inference_steps: Steps of the scheduler.
            output_type: "pt": a tensor (n, c, h, w) in the dtype of the network. "np": an array (n, h, w, c) of the
                same numbers. "pil": 8-bit images of (x + 1) / 2 cut to [0, 1], which no longer satisfy the constraint.
            return_dict: Whether to return a ``ConstrainedPipelineOutput``, or (images, result).
            latents: Starting noise (n, c, h, w), standard normal; the pipeline multiplies it by ``init_noise_sigma``.
            class_labels: Labels (n,) for the network, or one for all.
            prompt_embeds: ``encoder_hidden_states`` (n, tokens, width) for the network, or one row for all.
            negative_prompt_embeds: The same without the condition, one row, for guidance.
            condition: More keyword tensors for the network.
            unconditional: The same without the condition.
            guidance_scale: Classifier-free guidance; needs the unconditional tensors.
            callback_on_step_end: Called after every step with (pipeline, step, timestep, {"latents": x}).
            clip: See ``casal.from_diffusers``.
            tol: Violation up to which a sample of ``result`` counts as feasible.
            **options: More arguments of ``scheduler.step``, such as eta.
        """
        if not isinstance(self.constraint, Constraint):
            raise SettingError(f"the pipeline has no constraint (got {self.constraint!r}); give constraint=")
        if output_type not in OUTPUTS:
            raise SettingError(f"output_type must be one of {', '.join(OUTPUTS)}, got {output_type!r}")
        given = {"class_labels": class_labels, "encoder_hidden_states": prompt_embeds, **(condition or {})}
        free = {"encoder_hidden_states": negative_prompt_embeds, **(unconditional or {})}
        target, rows = build(
            self.unet,
            self.scheduler,
            steps=num_inference_steps,
            condition={name: value for name, value in given.items() if value is not None},
            unconditional={name: value for name, value in free.items() if value is not None},
            guidance=guidance_scale,
            clip=clip,
            options=options,
        )
        streams = _streams(generator, batch_size, self.device)
        x = _start(target, batch_size, streams) if latents is None else rows.start * latents
        seed = int(torch.randint(1 << 62, (), generator=streams[0], device=streams[0].device))
        method = self.method
        bar: AbstractContextManager[Any] = self.progress_bar(total=len(rows.table))
        with bar as shown:
            if isinstance(method, Method):
                method = watched(method, self._after_steps(shown, rows.times, callback_on_step_end))
            elif callback_on_step_end is not None:
                raise SettingError("callback_on_step_end needs a named method, not 'auto'")
            result = sample(
                replace(target, init=x),
                self.constraint,
                method,
                batch_size,
                seed=seed,
                tol=tol,
                run=Run(batch=batch_size),
            )
        points = result.samples.to(x.dtype)
        images: Any = points
        certificate: Certificate | None = certify(self.constraint, points.to(torch.float64), TOLERANCES[x.dtype])
        if output_type == "np":
            images = points.movedim(1, -1).cpu().numpy()
        elif output_type == "pil":
            warn(
                "8-bit images are clipped to [0, 1] and rounded after the projection, so they do not satisfy the "
                "constraint. The samples in result do; use output_type='pt' or 'np' for them",
                CasalWarning,
                stacklevel=2,
            )
            images = self.numpy_to_pil((points / 2 + 0.5).clamp(0, 1).movedim(1, -1).float().cpu().numpy())
            certificate = None
        self.maybe_free_model_hooks()
        return ConstrainedPipelineOutput(images, result, certificate) if return_dict else (images, result)

    def _after_steps(self, bar: Any, times: Tensor, callback: Callback | None) -> Callable[[int, int, Any, Any], Any]:
        """What happens after every step: the bar moves, and the callback may look at the state or change it."""

        def after(step: int, steps: int, row: Any, state: Any) -> Any:
            bar.total = steps
            bar.update()
            if callback is None:
                return state
            t = times[int(row.t)] if hasattr(row, "t") else None
            new = callback(self, step, t, {"latents": state.x}).get("latents", state.x)
            return state if new is state.x else state._replace(x=new)

        return after


def _streams(
    generator: torch.Generator | Sequence[torch.Generator] | None, n: int, device: torch.device
) -> list[torch.Generator]:
    """One generator for all samples, or one for each."""
    if generator is None:  # as diffusers does: torch.manual_seed makes it repeatable
        return [torch.Generator(device).manual_seed(int(torch.randint(1 << 62, ())))]
    streams = [generator] if isinstance(generator, torch.Generator) else list(generator)
    if len(streams) not in (1, n):
        raise SettingError(f"{len(streams)} generators for {n} samples; give one, or one per sample")
    return streams


def _start(target: Target, n: int, streams: Sequence[torch.Generator]) -> Tensor:
    """Starting points, as diffusers draws them."""
    if isinstance(target.init, Tensor):
        return target.init
    if len(streams) == 1:
        return target.init(n, streams[0])
    return torch.cat([target.init(1, stream) for stream in streams])


def watched(method: Method[Any], after: Callable[[int, int, Any, Any], Any]) -> Method[Any]:
    """The same method with ``after(step, steps, row, state) -> state`` called after each of its steps, in one batch."""
    taken = total = 0

    def control(problem: Problem, n: int) -> Any:
        nonlocal total
        first = method.control(problem, n)
        total = method.steps(problem, first)
        return first

    def following(problem: Problem, control: Any, stage: int) -> Each | Together | None:
        found = method.next(problem, control, stage)
        if not isinstance(found, Each):
            return found

        def step(problem: Problem, state: Any, row: Any, noise: Tensor) -> Any:
            nonlocal taken
            taken += 1
            return after(taken - 1, total, row, found.step(problem, state, row, noise))

        return found._replace(step=step)

    other = copy(method)
    object.__setattr__(other, "control", control)
    object.__setattr__(other, "next", following)
    return other


# ------------------------------------------------------------------------------------------- methods as plain data

KINDS = {type(entry.example).__name__: type(entry.example) for entry in METHODS.values()}
"""Every method class by name."""


def method_spec(method: Method[Any] | str) -> Any:
    """A method as plain JSON data; "auto" stays as it is.

    >>> method_spec(CASAL(inverse_variance(2.0)))["rho"]
    {'schedule': 'inverse_variance', 'arguments': [2.0]}
    """
    if isinstance(method, str):
        return method
    if type(method).__name__ not in KINDS:
        raise SettingError(f"{type(method).__name__} is not a method of casal; only those have a spec")
    values = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    return {"method": type(method).__name__, **{name: _plain(name, value) for name, value in values.items()}}


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Method):
        return method_spec(value)
    if isinstance(value, NamedSchedule):
        return value.spec()
    if isinstance(value, tuple | list):
        return [_plain(name, item) for item in value]
    raise SettingError(f"{name} = {value!r} is not plain data; use a number or a schedule of casal")


def method_from_spec(spec: Mapping[str, Any] | str) -> Method[Any] | str:
    """Build a method from ``method_spec``."""
    if isinstance(spec, str):
        return spec
    kind = KINDS.get(str(spec.get("method")))
    if kind is None:
        raise SettingError(f"no method named {spec.get('method')!r}; there are {sorted(KINDS)}")
    return kind(**{name: _made(value) for name, value in spec.items() if name != "method"})


def _made(value: Any) -> Any:
    if isinstance(value, Mapping):
        return schedule_from_spec(value) if "schedule" in value else method_from_spec(value)
    return tuple(_made(item) for item in value) if isinstance(value, list) else value
