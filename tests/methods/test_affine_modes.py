"""Modes from the network's affine models: their means, covariances and weights against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import casal
from casal.methods import affine_modes

D, M, N = 24, 8, 64
F64 = torch.float64


class Mixture:
    """Two Gaussians whose widths differ from direction to direction, .05 to 3, and their exact denoiser."""

    def __init__(self, seed: int = 0) -> None:
        stream = torch.Generator().manual_seed(seed)
        turn = torch.linalg.qr(torch.randn(D, D, generator=stream, dtype=F64))[0]
        self.means = [torch.randn(D, generator=stream, dtype=F64) * 2 for _ in range(2)]
        width = torch.logspace(0.5, -1.3, D, dtype=F64)
        self.covs = [(turn * w**2) @ turn.T for w in (width, width**1.4)]
        self.shares = torch.tensor([0.6, 0.4], dtype=F64)

    def denoise(self, x: Tensor, s: float | Tensor) -> Tensor:
        eye = torch.eye(D, dtype=F64) * float(s) ** 2
        logs, clean = list[Tensor](), list[Tensor]()
        for mean, cov, share in zip(self.means, self.covs, self.shares, strict=True):
            gap, inverse = x - mean, torch.linalg.inv(cov + eye)
            logs.append(share.log() - 0.5 * ((gap @ inverse) * gap).sum(1) + 0.5 * torch.linalg.slogdet(inverse)[1])
            clean.append(mean + gap @ inverse @ cov)
        shares = torch.softmax(torch.stack(logs, 1), 1)
        return shares[:, :1] * clean[0] + shares[:, 1:] * clean[1]

    def draw(self, n: int, stream: torch.Generator) -> Tensor:
        kind = torch.multinomial(self.shares, n, replacement=True, generator=stream)
        noise = torch.randn(n, D, generator=stream, dtype=F64)
        roots = [torch.linalg.cholesky(cov) for cov in self.covs]
        return torch.stack([self.means[k] + roots[k] @ w for k, w in zip(kind.tolist(), noise, strict=True)])

    def log_evidence(self, A: Tensor, b: Tensor) -> Tensor:
        """log N(b; A mu, A C A^T) of both, (n, 2), without the constant."""
        found = []
        for mean, cov in zip(self.means, self.covs, strict=True):
            gram, gap = A @ cov @ A.T, b - mean @ A.T
            found.append(-0.5 * ((gap @ torch.linalg.inv(gram)) * gap).sum(1) - 0.5 * torch.linalg.slogdet(gram)[1])
        return torch.stack(found, 1)


BED = Mixture()
A = torch.linalg.qr(torch.randn(D, M, generator=torch.Generator().manual_seed(4), dtype=F64))[0].T.contiguous()


def pool(n: int = N) -> Tensor:
    return BED.draw(n, torch.Generator().manual_seed(1))


def levels(free: Tensor) -> list[float]:
    top = float(torch.linalg.svdvals(free - free.mean(0))[0]) / math.sqrt(len(free) - 1)
    return [top * 0.5**k for k in range(1, affine_modes.LEVELS + 1)]


def test_clusters_are_the_modes_and_their_evidence_is_that_of_the_gaussians() -> None:
    free = pool()
    found, seen = affine_modes.find(BED.denoise, free, levels(free), torch.Generator().manual_seed(2))
    assert found is not None and found.kinds == 2
    modes = [affine_modes.gaussian_mode(BED.denoise, found, seen, k, free, A) for k in range(2)]
    first, second = modes
    assert first is not None and second is not None
    order = sorted((first, second), key=lambda mode: float((mode.mean - BED.means[0]).norm()))
    for mode, mean, cov in zip(order, BED.means, BED.covs, strict=True):
        torch.testing.assert_close(mode.mean, mean, atol=0.02, rtol=0)
        assert float((mode.across - A @ cov).norm() / (A @ cov).norm()) < 0.04
    b = pool(40) @ A.T
    logs = torch.stack([affine_modes.evidence(mode, A, b) for mode in order], 1)
    exact = BED.log_evidence(A, b)
    assert float(((logs[:, 0] - logs[:, 1]) - (exact[:, 0] - exact[:, 1])).abs().max()) < 0.2


def test_a_draw_of_the_affine_model_has_its_covariance() -> None:
    """Lanczos steps with as many directions as there are dimensions are exact: one draw is C^(1/2) w."""
    cov, s = BED.covs[0], 0.5
    eye = torch.eye(D, dtype=F64)

    def ask(x: Tensor, s: float) -> Tensor:
        return x @ torch.linalg.solve(cov + s**2 * eye, cov)

    zero = torch.zeros(D, dtype=F64)
    noise = torch.randn(5, D, generator=torch.Generator().manual_seed(3), dtype=F64)
    values, vectors = torch.linalg.eigh(cov)
    drawn = affine_modes.AffineModel(ask, zero, zero, s).draw(zero, noise)
    exact = noise @ (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    assert float((drawn - exact).norm() / exact.norm()) < 0.02


def test_one_gaussian_is_one_mode_and_a_curved_model_is_none() -> None:
    free, cov = pool(), BED.covs[0]
    eye = torch.eye(D, dtype=F64)
    stream = torch.Generator().manual_seed(2)
    one, _ = affine_modes.find(lambda x, s: x @ torch.linalg.solve(cov + s**2 * eye, cov), free, levels(free), stream)
    assert one is not None and one.kinds == 1
    none, _ = affine_modes.find(lambda x, s: x / (1 + s**2) + 0.3 * torch.sin(3 * x), free, levels(free), stream)
    assert none is None


def test_modes_that_overlap_are_not_one_gaussian_at_small_noise() -> None:
    """D(x) is nearly x there, for every model: affine models agree if they do in units of s^2 times the score."""
    bed = Mixture()
    bed.means = [torch.zeros(D, dtype=F64), torch.zeros(D, dtype=F64)]
    bed.means[0][:2], bed.means[1][:2] = 0.45, -0.45
    bed.covs = [torch.diag(torch.linspace(0.3, 0.6, D, dtype=F64).square())] * 2
    free = bed.draw(256, torch.Generator().manual_seed(4))
    found, _seen = affine_modes.find(bed.denoise, free, levels(free), torch.Generator().manual_seed(0))
    assert found is None or found.kinds > 1
    bed.means[1] = bed.means[0]
    free = bed.draw(256, torch.Generator().manual_seed(4))
    found, _seen = affine_modes.find(bed.denoise, free, levels(free), torch.Generator().manual_seed(0))
    assert found is not None and found.kinds == 1


@pytest.mark.statistical
def test_chains_have_the_weights_of_their_modes() -> None:
    """Each chain has the values of a draw of its own: then x is a draw of the model again, and so is its mode."""
    stream = torch.Generator().manual_seed(7)
    n = 200
    b = BED.draw(n, stream) @ A.T
    exact = torch.softmax(BED.log_evidence(A, b) + BED.shares.log(), 1)
    target = casal.edm(BED.denoise, casal.karras_sigmas(25, 0.02, 40.0), shape=D, time="scalar", dtype=F64)

    def off(method: casal.Matheron) -> float:
        """Mean difference between the mode of a chain and its probability, in standard errors, where it is open."""
        z = casal.sample(target, casal.Affine(A, casal.PerChain(b)), method, n, seed=3, check=False).samples
        logs = BED.log_evidence(torch.eye(D, dtype=F64), z)
        first = (logs[:, 0] + BED.shares[0].log() > logs[:, 1] + BED.shares[1].log()).to(F64)
        return float((first - exact[:, 0]).sum() / (exact[:, 0] * exact[:, 1]).sum().sqrt())

    assert abs(off(casal.Matheron(20))) < 3.5
    assert abs(off(casal.Matheron(20, modes=False))) > 6.0  # decided at high noise
