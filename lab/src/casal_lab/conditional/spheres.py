"""Mixtures with exact scores on spheres: mode weights, and the shape inside the modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casal import SampleResult, Sphere
from casal_lab.conditional import common
from casal_lab.conditional.common import HEALTH
from casal_lab.experiment import Array, Claim, Outcome, ResultTable, Tell
from casal_lab.problems.families import FAMILIES
from casal_lab.problems.gaussian_mixture import GaussianMixture, RestrictedMixture
from casal_lab.problems.three_modes import MIXTURE
from casal_lab.study import PEERS

DIRECTIONS = 24
REFERENCE = 40_000
FEWEST = 10
"""A mode with fewer samples has no shape of its own."""


_MEANS = torch.randn(4, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
_MEANS *= (torch.tensor([1.5, 2.2, 2.8, 3.4], dtype=torch.float64) / _MEANS.norm(dim=1))[:, None]
SIXTEEN = GaussianMixture(torch.tensor([0.4, 0.3, 0.2, 0.1]), _MEANS, torch.tensor([0.3, 0.35, 0.3, 0.4]))
"""Four modes in random directions, at four distances from the origin."""


@dataclass(frozen=True, eq=False)
class SphereCase:
    """A mixture on a sphere, its exact distribution, and the total variation that is asked for."""

    name: str
    mixture: GaussianMixture
    radius: float
    wanted: float

    @property
    def constraint(self) -> Sphere:
        """|z| = radius."""
        return Sphere(self.radius)

    @cached_property
    def exact(self) -> RestrictedMixture:
        """The exact distribution."""
        return self.mixture.restricted(self.constraint)

    def total_variation(self, z: Tensor) -> float:
        """Of the mode weights, softly counted."""
        return self.mixture.total_variation(z, self.exact.weights)

    def inside(self, z: Tensor) -> float:
        """Sliced W1 within modes: sum over k of W_k times that of the samples nearest to mode k to exact ones there.

        A mode with hardly any samples counts with the distance of all samples.
        """
        z = z.to(torch.float64)
        owner, along, total = self.mixture.responsibilities(z).argmax(1).numpy(), z.numpy() @ self._directions, 0.0
        for k, weight in enumerate(self.exact.weights.tolist()):
            mine = along[owner == k]
            mine = np.sort(mine if len(mine) >= FEWEST else along, axis=0)
            total += weight * float(np.abs(mine - _quantiles(self._modes[k], len(mine))).mean())
        return total

    def loss(self, result: SampleResult) -> float:
        """What methods are tuned for."""
        return self.total_variation(result.samples) + self.inside(result.samples)

    def floor(self, n: int, repeats: int) -> Mapping[str, float]:
        """Both distances of n exact draws, on average."""
        return self.exact.floor(n, repeats, tv=self.total_variation, inside=self.inside)

    @cached_property
    def _directions(self) -> Array:
        raw = np.random.default_rng(0).standard_normal((self.mixture.dimension, DIRECTIONS))
        unit: Array = raw / np.linalg.norm(raw, axis=0)
        return unit

    @cached_property
    def _modes(self) -> list[Array]:
        """Exact draws nearest to each mode along every direction, sorted."""
        exact = self.exact.draw(REFERENCE, torch.Generator().manual_seed(12345))
        owner, along = self.mixture.responsibilities(exact).argmax(1).numpy(), exact.numpy() @ self._directions
        parts = [along[owner == k] for k in range(len(self.exact.weights))]
        return [np.sort(part if len(part) > 1 else along, axis=0) for part in parts]


def _quantiles(ordered: Array, n: int) -> Array:
    """The n mid-quantiles of each sorted column."""
    at = (np.arange(n) + 0.5) / n * (len(ordered) - 1)
    low = at.astype(np.intp)
    return ordered[low] + (at - low)[:, None] * (ordered[np.minimum(low + 1, len(ordered) - 1)] - ordered[low])


CASES = (
    SphereCase("2-D mixture, circle R = 2", MIXTURE, 2.0, 0.03),
    SphereCase("2-D mixture, circle R = 1.2", MIXTURE, 1.2, 0.10),
    SphereCase("16-D mixture, sphere R = 2.6", SIXTEEN, 2.6, 0.10),
)

TUNED = ("Algorithm 2", "CASAL", "DPS, tuned + projection", *PEERS)
"""Methods whose setting is chosen on validation chains against the exact distribution, which flatters them."""


def run(quick: bool, tell: Tell) -> Outcome:
    """Every method on three spheres."""
    scale = common.QUICK if quick else common.FULL
    tables, claims, marks, data = [], [], [], {}
    for case in CASES:
        target = FAMILIES["ddpm"](case.mixture, scale.evaluations)
        methods = {**common.PLAIN, **common.weighted(quick)}
        found = common.compare(case.name, target, case.constraint, methods, TUNED, case.loss, scale, tell)
        rows = []
        for label, (setting, results) in found.items():
            z = [r.samples for r in results]
            distances = {"tv": list(map(case.total_variation, z)), "inside": list(map(case.inside, z))}
            rows.append({**common.figures(label, results, **distances), "setting": setting})
            data[case.name, label] = z[0].numpy()
        floor = case.floor(scale.n, 5 if quick else 20)
        tables.append(
            ResultTable.of(
                f"{case.name}: {scale.n} chains, {scale.seeds} seeds",
                ("method | tv: TV of mode weights, .3f | inside: W1 within modes, .4f", HEALTH, "setting"),
                [*rows, {"method": "exact draws", **floor}],
                note="Settings of tuned methods: the best by TV + W1 on validation chains, against the exact "
                "distribution.",
            )
        )
        claims += _claims(case, rows, floor)
        marks += common.dots(case.name, rows, "tv", floor["tv"])
    return Outcome("mixtures", tables, claims, {"dots": marks, "points": data})


def _claims(case: SphereCase, rows: Sequence[Mapping[str, Any]], floor: Mapping[str, float]) -> list[Claim]:
    out = []
    for row in rows:
        if row["method"].startswith(("SplitGibbs", "Twisted")):
            text = f"{case.name}: {row['method']}"
            out.append(common.at_most(f"{text}, TV of mode weights", row["tv"], case.wanted))
            text, limit = f"{text}, W1 within modes (twice the floor)", round(2 * floor["inside"], 4)
            out.append(common.at_most(text, row["inside"], limit, ".4f"))
    return out
