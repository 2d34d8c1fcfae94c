"""Whether samples lie where the model is another than its free samples show.

Chains that begin as free samples of the model (``Matheron``) weigh the modes that these show. A mode that is rare in
the model and likely on the set may have no free sample: chains come into it on the way, in shares that say nothing.
Inside a Gaussian mode the denoiser is affine, D(y) = D(c) + J (y - c). So at noisy samples y = x + s w

    r = |D(y) - D(c) - J (y - c)| / s^2,      c a noisy free sample,      J (y - c) by one difference of the network

is rounding where x is of the mode of c. Elsewhere it is a difference of scores, at all low levels s. Between two modes
the denoiser is between their affine models. A sample with a larger r than free samples have, for all modes that are
known and between any two, is of another mode. If all samples are of one mode, the set has decided, and it does not
matter that no free sample is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations_with_replacement, pairwise

import torch
from torch import Tensor

from casal.diagnostics.check import FEWEST_TESTED, Check, Evidence, NotAvailable, evenly
from casal.methods.affine_modes import Ask, affine, normal
from casal.methods.matheron import SYMMETRIC, denoised_rows, spread

LEVELS = (1 / 4, 1 / 16, 1 / 64)
"""Noise levels, in units of the largest standard deviation of the free samples. A sample is of another mode if two that
follow each other say so: at high levels other modes bend the model, at low ones a difference is rounding."""

FREE = 16
"""Free samples of a mode that it is compared with, at most."""

BENT, ROUNDING = 0.5, 10.0
"""r of a sample of another mode: in units of the spread of the free samples over its square, and over their median."""

CENTRES = 4
"""Free samples of a mode whose affine models are tried: some lie between modes."""

OTHERS = 3
"""Modes without a free sample that are told apart, at most: the last has the rest."""

SHARE = 0.5
"""Of the evaluations that are left, at most."""


def representative(ask: Ask, y: Tensor, clean: Tensor, of: Tensor, s: float) -> tuple[Tensor, Tensor]:
    """The one of a few points of a mode whose affine model is right at most of them, and D of it."""
    tried = [(y[c : c + 1], clean[c : c + 1]) for c in of[:: max(1, len(of) // CENTRES)][:CENTRES].tolist()]
    if len(tried) == 1:
        return tried[0]
    off = [torch.linalg.vector_norm(clean[of] - affine(ask, *one, s, y[of]), dim=1).median() for one in tried]
    return tried[int(torch.stack(off).argmin())]


def bend(clean: Tensor, models: list[Tensor], s: float) -> Tensor:
    """r of points with D(y) (n, d): distance to the nearest affine model, or to the segment between two, over s^2."""
    found = torch.full_like(clean[:, 0], torch.inf)
    for one, two in combinations_with_replacement(models, 2):
        way = two - one
        t = ((clean - one) * way).sum(1) / way.square().sum(1).clamp_min(torch.finfo(way.dtype).tiny)
        found = torch.minimum(found, torch.linalg.vector_norm(clean - one - t.clamp(0.0, 1.0)[:, None] * way, dim=1))
    return found / s**2


def other_modes(ask: Ask, free: Tensor, home: Tensor, samples: Tensor, top: float, stream: torch.Generator) -> Tensor:
    """The mode of samples (n, d), (n,): 0 for those that free samples are of, 1, 2, ... for others.

    Args:
        ask: The denoiser.
        free: Free samples, (k, d).
        home: Their modes, (k,).
        samples: The samples.
        top: Largest standard deviation of free samples.
        stream: Noise.
    """
    k, points, unit = len(free), torch.cat([free, samples]), float((free - free.mean(0)).square().sum(1).mean().sqrt())
    seen = list[tuple[float, Tensor, Tensor, list[Tensor]]]()
    for s in (share * top for share in LEVELS):
        y = points + s * normal(points.shape, points, stream)
        seen.append((s, y, ask(y, s), []))

    def others(of: Tensor) -> Tensor:
        """Which points are of no mode that is known, with that of some points."""
        over = list[Tensor]()
        for s, y, clean, models in seen:
            models.append(affine(ask, *representative(ask, y, clean, of, s), s, y))
            r = bend(clean, models, s)
            over.append(r > max(BENT * unit / top**2, ROUNDING * float(r[:k].median())))
        return torch.stack([one & two for one, two in pairwise(over)]).any(0)

    kind = torch.zeros(len(points), dtype=torch.long, device=free.device)
    left = kind > 0
    for one in home.unique():
        left = others(torch.nonzero(home == one).flatten())
    left[:k] = False
    for number in range(1, OTHERS + 1):
        if not bool(left.any()):
            break
        first = torch.nonzero(left).flatten()[:1]
        far = left & others(first) if number < OTHERS else left & False
        far[first] = False
        kind[left & ~far] = number
        left = far
    return kind[k:]


def unseen_modes(evidence: Evidence) -> Iterator[Check]:
    """Samples in modes without a free sample; for exact networks and chains of one condition."""
    problem, state, known = evidence.problem, evidence.run.state, evidence.last
    if not known.get("asymmetry", 1.0) <= SYMMETRIC or problem.target.condition:
        return
    kinds, free = state.home.unique().tolist(), state.free.flatten(1).to(torch.float64)
    some = torch.cat([torch.nonzero(state.home == kind).flatten()[:FREE] for kind in kinds])
    price, n = len(LEVELS) * (1 + len(kinds)), len(free)
    count = int(min(n, (SHARE * evidence.left - len(LEVELS) * CENTRES * len(some)) / price - len(some)))
    if count < FEWEST_TESTED:
        raise NotAvailable("too few evaluations are left")
    stream = torch.Generator(free.device).manual_seed(4254)
    points = state.x.flatten(1).to(torch.float64)[evenly(n, count).to(free.device)]
    top, ask = spread(problem, state.free, 0.0, stream), partial(denoised_rows, problem)
    kind = other_modes(ask, free[some], state.home[some], points, top, stream)
    share, several = float((kind > 0).to(torch.float64).mean()), len(kind.unique()) > 1
    yield Check(
        share if several else 0.0,
        0.0,
        f"{100 * share:.2g} % of the samples lie in modes of the model that were not found among its {n} free samples "
        f"({len(kinds)} {'were' if len(kinds) > 1 else 'was'}): their weights on the set are not known",
        f"more free samples may show them, {evidence.more_chains(8.0)}",
        figures={"unseen_modes": share},
    )
