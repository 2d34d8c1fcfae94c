"""Level moves: a model whose score is wrong at small noise keeps the distribution of its own samples."""

from __future__ import annotations

import torch
from torch import Tensor

import casal
from casal.methods import Problem
from casal.methods.moves import LevelMoves

SPREAD, LEVEL = 0.4, 0.3


def velocity(wrong: float) -> object:
    """Exact velocity of 0.7 N(-1, s^2) + 0.3 N(1, s^2) in the plane; ``wrong`` adds a wave near the data."""
    means, weight = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64), torch.tensor([0.7, 0.3])

    def exact(x: Tensor, t: Tensor) -> Tensor:
        t = t.to(x)
        variance = (t * SPREAD) ** 2 + (1 - t) ** 2
        logits = torch.log(weight).to(x) - (x[:, None] - t * means).square().sum(2) / (2 * variance)
        each = means + (t * SPREAD**2 / variance) * (x[:, None] - t * means)
        clean = (torch.softmax(logits, 1)[..., None] * each).sum(1)
        noise = (x - t * clean) / (1 - t)
        # An error of the predicted noise of fixed size: near the data it is a large error of the score.
        return clean - noise + wrong * torch.sin(7.0 * x.flip(1)) * (t > 0.8)

    return exact


def flow(wrong: float) -> casal.Target:
    return casal.flow(velocity(wrong), steps=60, shape=2, noise=0.0, dtype=torch.float64)  # type: ignore[arg-type]


LINE = casal.Affine([[1.0, 0.0]], [0.2])


def test_the_table_is_cut_at_the_level() -> None:
    target = flow(0.0)
    moves = LevelMoves(Problem(target, LINE, casal.Identity(), torch.zeros(0, 2, dtype=torch.float64)), LEVEL)
    assert moves.above + moves.below == len(target.table)
    assert abs(moves.s - LEVEL) < 0.05
    assert moves.evaluations == moves.below + 2


def test_level_moves_follow_the_exact_model() -> None:
    method = casal.SplitGibbs(0.05, moves="level", level=LEVEL, levels=15)
    result = casal.sample(flow(0.0), LINE, method, 2000, seed=1, check=False)
    odds = 7 / 3 * torch.exp(torch.tensor((0.8**2 - 1.2**2) / (2 * SPREAD**2)))
    right = float(odds / (1 + odds))
    value, error = result.expect(lambda z: (z[:, 1] < 0).double())
    assert abs(float(value) - right) < 4 * float(error)


def test_a_wrong_score_at_small_noise_does_not_draw_chains_away() -> None:
    """The reference is the model's own samples near the set; moves by the denoiser at small noise miss it by far."""
    wrong = flow(0.8)
    free = casal.sample(wrong, LINE, casal.Unconstrained(), 50_000, seed=2).samples
    near = free[(free[:, 0] - 0.2).abs() < 0.05]

    def second(z: Tensor) -> Tensor:
        return (z[:, 1] - 0.5).square()

    right = float(second(near).mean())
    level = casal.SplitGibbs(0.05, moves="level", level=LEVEL, levels=15)
    found = casal.sample(wrong, LINE, level, 1000, seed=3, check=False)
    assert abs(float(second(found.samples).mean()) - right) < 0.15 * right
    gibbs = casal.sample(wrong, LINE, casal.SplitGibbs(0.02, moves="gibbs"), 1000, seed=3, check=False)
    assert float(second(gibbs.samples).mean()) > 2.0 * right, "the test has no power"


def test_auto_finds_such_a_network_and_says_so() -> None:
    result = casal.sample(flow(0.4), LINE, "auto", 400, seed=0)
    assert "SplitGibbs, moves at noise " in result.provenance["choice"]
    assert any("slope" in reason for reason in result.fidelity.reasons)
    exact = casal.sample(flow(0.0), LINE, "auto", 400, seed=0)
    assert "adaptive levels of rho" in exact.provenance["choice"]
