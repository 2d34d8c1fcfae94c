"""16 x 16 images of blobs from a trained denoiser, with mass and energy fixed: 256 dimensions, a set of 254.

The reference is the model's own: of many unconditional samples, those whose mass and energy are near the wanted ones,
moved onto the set. (The slopes of mass and energy span the same area everywhere on the set, so conditioning on their
values and restricting to the surface is one law.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from casal import MassEnergy, SplitGibbs, Target, Twisted, Unconstrained, edm, karras_sigmas, sample
from casal.diagnostics import energy_distance
from casal.lab.artifacts import network, points
from casal.lab.conditional.common import HEALTH, PLAIN, dots, figures
from casal.lab.experiment import AnyMethod, Claim, Outcome, ResultTable, Tell, runs, verdict
from casal.lab.nets import WienerUNet, random_flips, split, train_denoiser

SIZE = 16
MASS, ENERGY = 40.0, 200.0
SHELL = (12.0, 30.0)
"""Half-widths of the shell in mass and energy; both have a standard deviation of about 60."""

RANGE = (0.01, 9.0)
"""Noise levels of the sampler."""

REFERENCE_SEED = 123
SHOWN = 5


class Scale(NamedTuple):
    """Training, reference samples, width of the shell in units of SHELL, steps, many and few chains, seeds, rungs."""

    iterations: int
    reference: int
    shell: float
    steps: int
    chains: int
    few: int
    seeds: int
    levels: int
    inner_steps: int


FULL = Scale(600, 8000, 1.0, 30, 384, 192, 5, 20, 6)
QUICK = Scale(10, 240, 4.0, 10, 32, 16, 2, 3, 2)


def blobs(n: int, seed: int) -> Tensor:
    """n images of one to three blobs of either sign, in random places, of root mean square about one."""
    u = torch.rand(n, 3, 4, generator=torch.Generator().manual_seed(seed))
    pixel = (torch.arange(SIZE) + 0.5) / SIZE
    square = (pixel[:, None] - u[..., 0, None, None]).square() + (pixel - u[..., 1, None, None]).square()
    sign = (u[..., 2] < torch.tensor([1.0, 0.6, 0.3])) * torch.where(u[..., 3] < 0.5, -1.0, 1.0)
    return (sign[..., None, None] * torch.exp(-square / 0.02)).sum(1) / 0.30


def trained(iterations: int) -> nn.Module:
    """The denoiser, from the cache or trained now."""

    def train() -> nn.Module:
        data, held_out = split(blobs(20_000, 0), 0.05)
        net = WienerUNet.fit(data, positions=4, widths=(16, 24, 32))
        options: dict[str, Any] = {"batch_size": 48, "levels": 6, "augment": random_flips(-1, -2), "progress": False}
        train_denoiser(net, data, held_out=held_out, iterations=iterations, **options)
        return net

    return network(f"blobs_unet_{iterations}", train)


def model(net: nn.Module, steps: int) -> Target:
    """The sampler: ancestral steps between noise levels."""
    return edm(net, karras_sigmas(steps, *RANGE), shape=(SIZE, SIZE), churn=1.0)


def reference(net: nn.Module, scale: Scale, constraint: MassEnergy) -> Tensor:
    """Shell rejection of the model's own samples, moved onto the set."""

    def draw() -> Tensor:
        steps = scale.steps if scale is QUICK else 50
        free = sample(model(net, steps), constraint, Unconstrained(), scale.reference, seed=REFERENCE_SEED)
        return free.samples

    free = points(f"blobs_unet_{scale.iterations}_{scale.reference}", draw)
    mass, energy = mass_and_energy(free)
    near = ((mass - MASS).abs() < scale.shell * SHELL[0]) & ((energy - ENERGY).abs() < scale.shell * SHELL[1])
    return constraint.project(free[near])


def mass_and_energy(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each image."""
    flat = images.flatten(1)
    return flat.sum(1), flat.square().sum(1)


def _methods(scale: Scale, few: bool) -> dict[str, AnyMethod]:
    def split_gibbs(sigma: float, moves: str) -> SplitGibbs:
        return SplitGibbs(sigma, levels=scale.levels, inner_steps=scale.inner_steps, moves=moves)

    plain, usual = PLAIN["final projection"], split_gibbs(1.0, "metropolis")
    both: dict[str, AnyMethod] = {"final projection": plain, "SplitGibbs, metropolis": usual}
    if few:
        return {**both, "SplitGibbs, metropolis, sigma 0.3": split_gibbs(0.3, "metropolis")}
    return {
        **both,
        "projected": PLAIN["projected"],
        "SplitGibbs, gibbs, sigma 0.05": split_gibbs(0.05, "gibbs"),
        "Twisted": Twisted(1.0, moves=scale.levels, inner_steps=scale.inner_steps, twist=0.01),
    }


def run(quick: bool, tell: Tell) -> Outcome:
    """Energy distance to the reference, for many and for few chains."""
    scale = QUICK if quick else FULL
    constraint = MassEnergy(MASS, ENERGY)
    tell("images: network")
    net = trained(scale.iterations)
    tell("images: reference")
    exact = reference(net, scale, constraint)
    tables, claims, marks, shown = [], [], [], {"reference": exact[:SHOWN].numpy()}
    for n in (scale.chains, scale.few):
        rows, floors = [], []
        for label, method in _methods(scale, few=n == scale.few).items():
            tell(f"images: {label}, {n} chains")
            results = runs(model(net, scale.steps), constraint, method, n, range(scale.seeds))
            found = [energy_distance(r.samples, exact, repeats=20) for r in results]
            floors += [d.floor for d in found]
            rows.append(figures(label, results, energy=[d.value for d in found]))
            if n == scale.chains:
                shown[label] = results[0].samples[:: n // SHOWN][:SHOWN].numpy()
        floor = sum(floors) / len(floors)
        marks += dots(f"16 x 16 images, n = {n}", rows, "energy", floor)
        table = ResultTable.of(
            f"16 x 16 images, mass {MASS:g} and energy {ENERGY:g}: {n} chains, {scale.seeds} seeds",
            ("method | energy: energy distance, .3f", HEALTH),
            [*rows, {"method": "exact draws", "energy": floor}],
            note=f"To {len(exact)} samples of the model itself that fell near the set. The floor is that of {n} "
            f"against {len(exact)} exact draws. sigma = 1 where nothing else is said; the gibbs moves return samples "
            "with noise of size sigma on them, which must be small.",
        )
        tables.append(table)
        plain, ours = (row["energy"] for row in rows[:2])  # one final projection, SplitGibbs
        text = f"Images, {n} chains: SplitGibbs is not farther from the reference than one final projection"
        claims.append(Claim(text, f"at most {plain:.3f}", f"{ours:.3f}", verdict(ours <= plain)))
    return Outcome("images", tables, claims, {"dots": marks, "images": shown})
