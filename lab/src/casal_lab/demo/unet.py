"""A UNet of diffusers whose fields must be nonnegative and have a given mass."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

import casal
from casal_lab.benchmark.answer import Reference
from casal_lab.demo.problem import Problem
from casal_lab.demo.small_unet import SIZE, fields, trained
from casal_lab.drawing import label

MASS = 90.0


def sample(method: Any, n: int, seed: int) -> casal.SampleResult:
    """Draw n samples by a method, such as "auto"."""
    unet, scheduler, units = trained()
    model = casal.from_diffusers(unet, scheduler, steps=25)
    mass = casal.Affine(torch.ones(1, SIZE**2), [MASS])
    goal = casal.Box(0.0, None) & mass
    return casal.sample(model, goal, method, n=n, decoder=units, seed=seed)


# ------------------------------------------------------------------ reference, quantities, picture

DRAWS, WIDTH = 600_000, 0.3


def exact() -> Reference:
    """Draws of the distribution that the network was trained on, those within 0.3 of the mass."""
    z = torch.cat([fields(DRAWS // 4, seed) for seed in range(1, 5)]).double()
    return Reference.draws(z[(z.sum((1, 2, 3)) - MASS).abs() < WIDTH])


def quantities(z: Tensor) -> Tensor:
    """Mean of the eight smallest pixels, largest pixel, standard deviation, products of pixels one and two apart."""
    z = z.double()[:, 0]
    ordered = z.flatten(1).sort(dim=1).values
    off = z - z.mean((1, 2), keepdim=True)
    products = [(off * off.roll(shift, 2)).mean((1, 2)) for shift in (0, 1, 2)]
    return torch.stack([ordered[:, :8].mean(1), ordered[:, -1], *products], dim=1)


def draw(axis: Axes, z: Tensor, exact: Reference, colour: str) -> None:
    """Six fields side by side."""
    some = z[:: max(1, len(z) // 6)][:6, 0]
    sheet = torch.full((2 * SIZE + 1, 3 * SIZE + 2), torch.nan, dtype=z.dtype)
    for k, field in enumerate(some):
        top, left = (k // 3) * (SIZE + 1), (k % 3) * (SIZE + 1)
        sheet[top : top + SIZE, left : left + SIZE] = field
    axis.imshow(sheet.numpy(), vmin=0.0, vmax=3.5, cmap="viridis")
    label(axis, xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


PROBLEM = Problem(
    title="Nonnegative fields of given mass from a diffusers UNet",
    about="A small UNet, trained here in seconds on positive fields of 8 x 8 pixels. Every field must be nonnegative "
    "with total mass 90; the network alone gives about 71.",
    n=128,
    sample=sample,
    exact=exact,
    source="Compared with draws of the training distribution with that mass, so the error of the network counts, too",
    quantities=quantities,
    told="five means: smallest and largest pixels, variance, products of neighbours one and two apart",
    draw=draw,
    picture="Six fields; the colour scale is the same in all panels",
)
