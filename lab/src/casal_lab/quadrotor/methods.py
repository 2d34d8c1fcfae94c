"""The methods of the comparison, each with one setting for all scenes, and what the baselines are tuned over."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from casal import CASAL, DPS, FinalProjection, Penalty, Projected, SplitGibbs, Twisted, Unconstrained
from casal.errors import SettingError
from casal_lab.experiment import AnyMethod

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
    "CASAL, rho 100": Recipe(CASAL(RHO, z_step="damped")),
    "CASAL": Recipe(CASAL(30.0, z_step="damped")),
    "SplitGibbs": Recipe(SplitGibbs(0.03, levels=30), steps=250, batch=BATCH),
    "Twisted": Recipe(Twisted(1000.0, twist=0.1, moves=26, ess=0.5), steps=125, batch=BATCH),
}
"""By name. The settings of penalty, projected and DPS are the best of GRIDS on the validation scene. CASAL has dual
step 1; its rho = 30 is the best of 10, 30, 100 (the paper's, in units it does not give) and 300 there."""

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
    "DPS": {f"weight {10 ** (k / 4):.3g}": Recipe(FinalProjection(DPS(10 ** (k / 4)))) for k in range(-6, 15)},
}
"""What the baselines are tuned over, with a name for each setting."""

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
