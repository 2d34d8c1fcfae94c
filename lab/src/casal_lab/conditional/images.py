"""16 x 16 images of blobs from a trained denoiser, with mass and energy fixed: 256 dimensions, a set of 254.

The reference is the model's own: of many unconditional samples, those whose mass and energy are near the wanted ones,
moved onto the set. (The slopes of mass and energy span the same area everywhere on the set, so conditioning on their
values and restricting to the surface is one distribution.) ``Problem.evaluate`` runs any method on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from casal import MassEnergy, Matheron, SampleResult, SplitGibbs, Target, edm, karras_sigmas
from casal_lab.artifacts import network, points
from casal_lab.conditional.common import HEALTH, PLAIN, at_most, dots, figures
from casal_lab.distances import Distance, energy_distance
from casal_lab.experiment import AnyMethod, Outcome, ResultTable, Tell
from casal_lab.nets import WienerUNet, random_flips, split, train_denoiser
from casal_lab.study import runs
from casal_lab.twisted import Twisted

SIZE = 16
MASS, ENERGY = 100.0, 200.0
"""1.6 and 0.7 standard deviations above their means. Nearer to them, at 40 and 200, one projection of the model's
samples is as close to the reference as exact draws are, and the case says nothing."""

SHELL = (12.5, 14.0)
"""Half-widths of the shell in mass and energy: 0.2 of the standard deviations, which are 63 and 70. The density of the
data hardly changes over it."""

RANGE = (0.01, 40.0)
"""Noise levels of training and of the sampler. The standard deviation of the data along their first principal direction
is 4.3: with less noise than several times that, the start is not a Gaussian."""

REFERENCE_STEPS = 60
"""Of second order: the mean energy of the samples is 147.5 ± 1.7 with 60 steps and 146.9 ± 1.7 with 120. Ancestral
steps of first order give 121, 133, 139 and 144 with 30, 60, 120 and 240."""

REFERENCE_SEED = 123
BLOCK = 10_000
"""Samples in one file of the cache, so that an interrupted run goes on where it stopped."""

BATCH = 250
SHOWN = 5


BETTER, NEAR = 0.15, 0.02
"""Our targets for "auto" in energy distance: by how much to beat one projection, and how near to stay to SplitGibbs at
sigma = 1."""


class Scale(NamedTuple):
    """Training, unconditional samples for the reference, shell in units of SHELL, steps, chains, seeds, rungs."""

    iterations: int
    reference: int
    shell: float
    steps: int
    chains: int
    few: int
    seeds: int
    levels: int
    inner_steps: int


FULL = Scale(6000, 60_000, 1.0, 60, 384, 192, 8, 20, 6)
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
        net = WienerUNet.fit(data, positions=4, widths=(16, 24, 32), sigmas=RANGE)
        options: dict[str, Any] = {"batch_size": 48, "levels": 6, "augment": random_flips(-1, -2), "progress": False}
        train_denoiser(net, data, RANGE, held_out=held_out, iterations=iterations, **options)
        return net

    return network(_name(iterations), train)


def _name(iterations: int) -> str:
    return f"blobs_unet_{iterations}_{RANGE[1]:g}"


def model(net: nn.Module, steps: int) -> Target:
    """The sampler: ancestral steps between noise levels."""
    return edm(net, karras_sigmas(steps, *RANGE), shape=(SIZE, SIZE), churn=1.0)


@torch.no_grad()
def draws(net: nn.Module, n: int, steps: int, seed: int) -> Tensor:
    """n samples of the model itself, (n, SIZE, SIZE), by ancestral steps of second order from s to s':

        x' = k x + (1 - k) (D + (D - D_before) h / (2 h_before)) + s' sqrt(1 - k) w,   k = (s' / s)^2,   h = log(s / s')

    and x' = D at the last level. The denoiser does the same in steps of first order only with many more of them.

    Reference: Lu et al. 2022, DPM-Solver++ (SDE-DPM-Solver++ 2M).
    """
    generator, levels = torch.Generator().manual_seed(seed), karras_sigmas(steps, *RANGE).tolist()
    found = []
    for size in torch.arange(n).split(BATCH):
        x = levels[0] * torch.randn((len(size), SIZE, SIZE), generator=generator)
        before, h_before = None, math.inf
        for here, there in itertools.pairwise(levels):
            clean = net(x, torch.tensor(here))
            k, h = (there / here) ** 2, math.log(here / there)
            ahead = clean if before is None else clean + (clean - before) * (h / (2 * h_before))
            noise = torch.randn(x.shape, generator=generator)
            x, before, h_before = k * x + (1 - k) * ahead + there * math.sqrt(1 - k) * noise, clean, h
        found.append(net(x, torch.tensor(levels[-1])))
    return torch.cat(found)


def reference(net: nn.Module, scale: Scale, constraint: MassEnergy) -> Tensor:
    """Shell rejection of the model's own samples, moved onto the set."""
    steps = scale.steps if scale is QUICK else REFERENCE_STEPS
    near = []
    for block, first in enumerate(range(0, scale.reference, BLOCK)):
        n = min(BLOCK, scale.reference - first)
        name = f"{_name(scale.iterations)}_{steps}_{n}_{block}"
        free = points(name, partial(draws, net, n, steps, REFERENCE_SEED + block))
        mass, energy = mass_and_energy(free)
        off = torch.stack([mass - constraint.mass, energy - constraint.energy], 1).abs()
        near.append(free[(off < scale.shell * torch.tensor(SHELL)).all(1)])
    return constraint.project(torch.cat(near))


def mass_and_energy(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each image."""
    flat = images.flatten(1)
    return flat.sum(1), flat.square().sum(1)


def _methods(scale: Scale, few: bool) -> dict[str, AnyMethod | Literal["auto"]]:
    def split_gibbs(sigma: float, moves: str) -> SplitGibbs:
        return SplitGibbs(sigma, levels=scale.levels, inner_steps=scale.inner_steps, moves=moves)

    plain, usual = PLAIN["final projection"], split_gibbs(1.0, "metropolis")
    both: dict[str, AnyMethod | Literal["auto"]] = {"final projection": plain, "SplitGibbs, metropolis": usual}
    if few:
        return {
            **both,
            **({} if scale is QUICK else {"auto": "auto"}),
            "Matheron": Matheron(5 if scale is QUICK else 48, modes=False),
            "SplitGibbs, metropolis, sigma 0.3": split_gibbs(0.3, "metropolis"),
        }
    return {
        **both,
        "projected": PLAIN["projected"],
        "SplitGibbs, gibbs, sigma 0.05": split_gibbs(0.05, "gibbs"),
        "Twisted": Twisted(1.0, moves=scale.levels, inner_steps=scale.inner_steps, twist=0.01),
    }


class Evaluation(NamedTuple):
    """Runs of one method, one for each seed, and the energy distance of each to the reference."""

    results: list[SampleResult]
    distances: list[Distance]

    @property
    def values(self) -> list[float]:
        """The energy distances."""
        return [found.value for found in self.distances]

    @property
    def floor(self) -> float:
        """The energy distance of as many exact draws."""
        return sum(found.floor for found in self.distances) / len(self.distances)


class Problem(NamedTuple):
    """The model, the set, and the model's own samples on it."""

    target: Target
    constraint: MassEnergy
    exact: Tensor

    def evaluate(self, method: AnyMethod | Literal["auto"], n: int, seeds: Iterable[int]) -> Evaluation:
        """Run a method with n chains for each seed, and compare its weighted samples with the reference."""
        results = runs(self.target, self.constraint, method, n, seeds)
        return Evaluation(
            results, [energy_distance(r.samples, self.exact, weights=r.weights, repeats=20) for r in results]
        )


def problem(scale: Scale, tell: Tell, mass: float = MASS, energy: float = ENERGY) -> Problem:
    """The network and the reference, from the cache or made now; all sets share the unconditional samples."""
    constraint = MassEnergy(mass, energy)
    tell("images: network")
    net = trained(scale.iterations)
    tell("images: reference")
    return Problem(model(net, scale.steps), constraint, reference(net, scale, constraint))


def run(quick: bool, tell: Tell) -> Outcome:
    """Energy distance to the reference, for many and for few chains."""
    scale = QUICK if quick else FULL
    case = problem(scale, tell)
    exact = case.exact
    tables, claims, marks, shown = [], [], [], {"reference": exact[:SHOWN].numpy()}
    for n in (scale.chains, scale.few):
        rows, floors = [], []
        for label, method in _methods(scale, few=n == scale.few).items():
            tell(f"images: {label}, {n} chains")
            found = case.evaluate(method, n, range(scale.seeds))
            floors.append(found.floor)
            rows.append(figures(label, found.results, energy=found.values))
            if n == scale.chains:
                shown[label] = found.results[0].samples[:: n // SHOWN][:SHOWN].numpy()
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
        plain, ladder = (row["energy"] for row in rows[:2])  # one final projection, SplitGibbs
        text = f"Images, {n} chains: SplitGibbs is not farther from the reference than one final projection"
        claims.append(at_most(text, ladder, round(plain, 3)))
        for row in rows:
            if row["method"] == "auto":
                text = f"Images, {n} chains: energy distance of auto"
                claims += [
                    at_most(f"{text}, {BETTER:g} below one final projection", row["energy"], plain - BETTER, ".3f"),
                    at_most(f"{text}, about that of SplitGibbs", row["energy"], ladder + NEAR, ".3f"),
                ]
    return Outcome("images", tables, claims, {"dots": marks, "images": shown})
