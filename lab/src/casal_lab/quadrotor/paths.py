"""From a scene and a method to flights: sample a start, repair it with a feasibility solver, fly it, look at it.

    start (y, u)  ->  a point near it of dynamics & obstacles  ->  its inputs, clipped to u_max  ->  their rollout

A flight is a success if that rollout is nowhere deeper than 1 cm in an obstacle. Nothing else is believed: a solver
that stopped early may report a path that no input leads to.

First the methods that are compared.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from casal import (
    CASAL,
    DPS,
    Budget,
    Constraint,
    FinalProjection,
    Intersection,
    Linear,
    LinearDynamics,
    Penalty,
    Projected,
    SplitGibbs,
    Unconstrained,
    sample,
)
from casal.errors import SettingError
from casal_lab.artifacts import points
from casal_lab.experiment import AnyMethod
from casal_lab.physics.quadrotor import clipped, distinct, flown
from casal_lab.quadrotor.setup import ALLOWED, Prior, Scene, Training, prior
from casal_lab.study import runs
from casal_lab.twisted import Twisted

STEPS, RHO = 1000, 100.0
"""Of the paper."""


class Recipe(NamedTuple):
    """A method and how it meets the scene.

    Attributes:
        method: None for a start without a model.
        steps: Of the diffusion.
        rows: Whether the constraint is coupled to the numbers that obstacles see, or to the whole flight.
        unit_norm: Whether the decoded numbers are rescaled such that the decoder has norm one.
        noise: Standard deviation of a start without a model.
        batch: Chains that are sampled together, where the chains meet; None for all.
    """

    method: AnyMethod | None
    steps: int = STEPS
    rows: bool = True
    unit_norm: bool = False
    noise: float = 0.0
    batch: int | None = None


BATCH = 400
"""Chains of a population."""

METHODS: dict[str, Recipe] = {
    "zero": Recipe(None),
    "noise": Recipe(None, noise=1.0),
    "unconstrained": Recipe(Unconstrained()),
    "penalty": Recipe(Penalty(300.0, burn_in=0.5, of="distance", repeats=10)),
    "projected": Recipe(Projected(repeats=20, burn_in=0.5), rows=False),
    "DPS": Recipe(FinalProjection(DPS(31.6))),
    "Algorithm 1": Recipe(CASAL.algorithm1(RHO), rows=False, unit_norm=True),
    "Algorithm 2": Recipe(CASAL.algorithm2(RHO), rows=False, unit_norm=True),
    "released code": Recipe(CASAL.released(RHO, 0.01), unit_norm=True),
    "CASAL": Recipe(CASAL(30.0, z_step="damped")),
    "SplitGibbs": Recipe(SplitGibbs(0.03, levels=30), steps=250, batch=BATCH),
    "Twisted": Recipe(Twisted(1000.0, twist=0.1, moves=26, ess=0.5), steps=125, batch=BATCH),
}
"""By name. The settings of the methods in GRIDS are those used where nothing is tuned; a full run takes the best of
GRIDS on the validation scene. CASAL is our variant: implicit coupling, dual step 1."""

STRENGTHS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, RHO)
"""rho of the printed algorithms; in units in which the decoder has norm one, explicit coupling is stable up to 100."""

SEEN = {False: "whole flight", True: "rows that are seen"}
"""What a method is coupled to."""

GRIDS: dict[str, dict[str, Recipe]] = {
    "penalty": {
        f"weight {weight:g}, {repeats} gradient steps{f', off for {off:.0%}' if off else ''}": Recipe(
            Penalty(weight, burn_in=off, of="distance", repeats=repeats)
        )
        for weight, repeats, off in product((10.0, 30.0, 100.0, 300.0), (1, 3, 10), (0.0, 0.5))
    },
    "projected": {
        f"{repeats} projections{f', off for {off:.0%}' if off else ''}": Recipe(
            Projected(repeats=repeats, burn_in=off), rows=False
        )
        for repeats, off in product((1, 2, 3, 5, 10, 20), (0.0, 0.5, 0.8, 0.95))
    },
    **{
        label: {
            f"rho {rho:g}, {SEEN[rows]}": Recipe(printed(rho), rows=rows, unit_norm=True)
            for rho, rows in product(STRENGTHS, SEEN)
        }
        for label, printed in (("Algorithm 1", CASAL.algorithm1), ("Algorithm 2", CASAL.algorithm2))
    },
    "released code": {
        f"rho {rho:g}, eta {eta:g}, {SEEN[rows]}": Recipe(CASAL.released(rho, eta), rows=rows, unit_norm=True)
        for rho, eta, rows in product((10.0, 30.0, 70.0, RHO), (0.01, 0.1, 1.0), SEEN)
    },
    "CASAL": {
        f"rho {rho:g}, dual step {dual:g}, {z_step} z": Recipe(CASAL(rho, dual_step=dual, z_step=z_step))
        for rho, dual, z_step in product((3.0, 10.0, 30.0, 100.0, 300.0, 1000.0), (0.3, 1.0), ("damped", "full"))
    },
    "DPS": {f"weight {10 ** (k / 4):.3g}": Recipe(FinalProjection(DPS(10 ** (k / 4)))) for k in range(-6, 15)},
}
"""What methods are tuned over, with a name for each setting that begins with its strength; all but DPS (21) have 24.
The dual step of the printed algorithms is the printed one."""

DUAL_STEPS: dict[str, float | str] = {"tau/rho": "tau/rho", "tau": "tau", "0.1": 0.1, "0.3": 0.3, "1": "admm"}

ABLATION: dict[str, Recipe] = {
    **{
        f"dual {name}, {z_step} z, implicit": Recipe(CASAL(RHO, dual_step=step, z_step=z_step))
        for z_step in ("damped", "full")
        for name, step in DUAL_STEPS.items()
    },
    **{
        f"dual {name}, {z_step} z, explicit": Recipe(
            CASAL(RHO, dual_step=DUAL_STEPS[name], z_step=z_step, coupling="explicit", step_size="paper"),
            unit_norm=True,
        )
        for z_step in ("damped", "full")
        for name in ("tau", "1")
    },
    "dual tau, damped z, explicit, whole flight (Algorithm 2)": METHODS["Algorithm 2"],
    "dual 1, damped z, implicit, whole flight": Recipe(CASAL(RHO, z_step="damped"), rows=False),
}
"""Variants of CASAL. Explicit coupling is only stable in units in which the decoder has norm one."""


def named(name: str) -> tuple[str, Recipe]:
    """A method of METHODS; capitals and spaces do not matter."""
    plain = {key.lower().replace(" ", ""): key for key in METHODS}
    key = plain.get(name.lower().replace(" ", ""))
    if key is None:
        raise SettingError(f"there is no method {name!r}; there are: {', '.join(METHODS)}")
    return key, METHODS[key]


# ------------------------------------------------------------------ paths

ITERATIONS = 100
TOLERANCE = 1e-3
"""Depth in units of a wall's height at which the solver stops: less than ALLOWED for every wall."""

BETWEEN = 1_000_003
"""Between the seeds of two batches."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Flights of a method in a scene."""

    scene: Scene
    method: str
    inputs: Tensor  # (n, S), or (n, S, 2) of the planar vehicle: within u_max, physical units
    positions: Tensor  # (n, S), or (n, S, 2): the rollout of the inputs, metres
    starts: Tensor  # the same of the sampled start, before repair
    depth: Tensor  # (n,), deepest point in an obstacle, metres; at most zero if clear
    success: Tensor  # (n,) bool, depth <= 1 cm
    free: Tensor  # (n,) bool, the same of the rollout of the start's own inputs, without repair
    classes: Tensor  # (n,), the way past the obstacles
    iterations: Tensor  # (n,), of the solver
    evaluations: float  # of the network, for one chain
    seconds: float  # of the processor, for sampling
    solver_seconds: float  # and for the repair

    def __len__(self) -> int:
        return len(self.success)

    def __repr__(self) -> str:
        return (
            f"Paths({self.scene.name}: {self.method}, {int(self.success.sum())} of {len(self)} succeed, "
            f"{self.evaluations:g} evaluations)"
        )

    def distinct(self, of: int = 100) -> int:
        """How many of the first ``of`` flights are successes, no two nearer than 5 cm (rms)."""
        return distinct(self.positions[:of][self.success[:of]])


def repair(
    scene: Scene,
    starts: Tensor,
    *,
    solver: str = "admm",
    iterations: int = ITERATIONS,
    u_max: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Events (n, S, channels) near the starts that obey the dynamics, and the iterations that each took.

    Args:
        scene: The obstacles.
        starts: Events in the vehicle's units.
        solver: "admm" as in the paper, "alternating", or "dykstra", which has no guarantee among obstacles.
        iterations: Of the solver, at most.
        u_max: Bound of the inputs, if it is not the vehicle's own.
    """
    found = Intersection(limited(scene, u_max), scene.obstacles, way=solver).solve(
        starts.to(torch.float64), budget=Budget(TOLERANCE, iterations)
    )
    return found.point, found.iterations


def limited(scene: Scene, u_max: float | None) -> LinearDynamics:
    """The scene's vehicle with this bound of its inputs."""
    return scene.vehicle.dynamics if u_max is None else scene.vehicle.with_limit(u_max)


def solve(
    scene: Scene,
    method: str | AnyMethod | Recipe = "casal",
    n: int = 400,
    seed: int = 0,
    *,
    model: Prior | None = None,
    solver: str = "admm",
    iterations: int = ITERATIONS,
    u_max: float | None = None,
    **options: Any,
) -> Paths:
    """Sample n starts with a method, repair them, and fly them.

    Args:
        scene: From ``casal_lab.quadrotor.scene``.
        method: A name of ``casal_lab.quadrotor.METHODS``, a method of casal (on 1000 steps, coupled to the numbers
            that obstacles see), or a ``Recipe``.
        n: Flights.
        seed: Of all that is random here.
        model: The diffusion model; the paper's network of training seed 0 if left out.
        solver: See ``repair``.
        iterations: Of the solver.
        u_max: Bound of the inputs in the solver and in flight, if it is not the vehicle's own.
        **options: For ``casal.sample``.

    >>> from casal_lab.quadrotor import scene, solve
    >>> paths = solve(scene("hard", r=0.8), "zero", n=3)
    >>> paths.positions.shape, int(paths.success.sum())
    (torch.Size([3, 200]), 0)
    """
    name, recipe = _recipe(method)
    began = time.process_time()
    starts, evaluations = start(scene, recipe, n, seed, model, **options)
    middle = time.process_time()
    events, taken = repair(scene, starts, solver=solver, iterations=iterations, u_max=u_max)
    done = time.process_time()
    dynamics = limited(scene, u_max)
    outputs = flown(dynamics, events)
    depth = scene.depth(outputs)
    inputs = clipped(dynamics, events)
    places = 2 if scene.discs else 1
    return Paths(
        scene,
        name,
        inputs.squeeze(2) if inputs.shape[2] == 1 else inputs,
        _positions(outputs, places),
        _positions(dynamics.physical(starts)[0], places),
        depth,
        depth <= ALLOWED,
        scene.depth(flown(dynamics, starts)) <= ALLOWED,
        scene.classes(outputs),
        taken,
        evaluations,
        middle - began,
        done - middle,
    )


def _positions(outputs: Tensor, places: int) -> Tensor:
    return outputs[..., 0] if places == 1 else outputs[..., :places]


def _recipe(method: str | AnyMethod | Recipe) -> tuple[str, Recipe]:
    if isinstance(method, str):
        return named(method)
    recipe = method if isinstance(method, Recipe) else Recipe(method)
    return repr(recipe.method), recipe


def shuffled(n: int, seed: int) -> Tensor:
    """The order in which ``start`` returns the chains of a batch."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def free_draws(model: Prior, place: Scene, n: int, seed: int = 0) -> Tensor:
    """Paths (m, S) in metres of those of n draws of the model that are clear of the walls: the exact distribution."""

    def draw() -> Tensor:
        parts = []
        for k in range(math.ceil(n / 20_000)):
            size = min(20_000, n - 20_000 * k)
            parts.append(sample(model.diffusion(250), place.seen, Unconstrained(), size, seed=seed + k).samples)
        return torch.cat(parts)

    x = points(f"{model.name}_draws_{n}_{seed}", draw)
    paths = torch.cat([model.vehicle.dynamics.physical(model.vehicle.decode(part))[0] for part in x.split(20_000)])
    return paths[place.depth(paths) <= 0.0][..., 0]


def start(
    scene: Scene, recipe: Recipe, n: int, seed: int, model: Prior | None = None, **options: Any
) -> tuple[Tensor, float]:
    """Events (n, S, channels) to start the solver from, and the evaluations of the network for each.

    Strict methods have samples in which the numbers that obstacles see are clear of them; the rest of the flight is
    decoded from the latent.
    """
    machine = scene.vehicle
    if recipe.method is None:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((n, *machine.event), generator=generator, dtype=torch.float64)
        return recipe.noise * noise, 0.0
    model = prior(machine.name, Training(), 0) if model is None else model
    if model.vehicle is not machine:
        raise SettingError(f"the scene is for the {machine.name} vehicle, the model for the {model.vehicle.name} one")
    matrix = machine.decoder[scene.rows] if recipe.rows else machine.decoder
    constraint: Constraint = scene.seen if recipe.rows else scene.obstacles
    shape: tuple[int, ...] = scene.seen_event if recipe.rows else machine.event
    unit = float(torch.linalg.matrix_norm(matrix, ord=2)) if recipe.unit_norm else 1.0
    if recipe.unit_norm:
        matrix, constraint = matrix / unit, constraint.scaled(1.0 / unit)
    decoder, target = Linear(matrix.float(), shape=shape), model.diffusion(recipe.steps)
    parts, evaluations = [], 0.0
    for k, size in enumerate(batches_of(n, recipe.batch)):
        (result,) = runs(target, constraint, recipe.method, size, [BETWEEN * k + seed], decoder=decoder, **options)
        events = machine.decode(result.state.x).reshape(size, -1)
        if recipe.method.strict:
            seen = scene.rows if recipe.rows else slice(None)
            events[:, seen] = (result.samples * unit).reshape(size, -1).to(events)
        # Copies of a chain lie side by side; in a random order any part of a batch is like the whole.
        parts.append(events[shuffled(size, seed)].reshape(size, *machine.event))
        evaluations += size / n * result.cost.score_evaluations
    return torch.cat(parts), evaluations


def batches_of(n: int, largest: int | None) -> list[int]:
    """Sizes of about equal batches."""
    count = 1 if largest is None else -(-n // largest)
    return [n // count + (k < n % count) for k in range(count)]
