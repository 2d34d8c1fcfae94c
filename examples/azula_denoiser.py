"""An azula denoiser under a constraint, and azula's own samplers on our target.

The denoiser is exact, for two Gaussian modes in 8 dimensions. Samples must lie on a sphere. azula's Heun sampler with
projected estimates stays feasible; "auto" also gives the modes their weights.

    python examples/azula_denoiser.py [--quick] [--out azula.png]
"""

import argparse

import matplotlib.pyplot as plt
import torch
from azula.denoise import Denoiser, DiracPosterior
from azula.noise import VESchedule
from azula.sample import HeunSampler

import casal
from casal.integrations.azula import as_azula

SIZE, RADIUS = 8, 2.0
MEANS = torch.zeros(2, SIZE, dtype=torch.float64)
MEANS[:, 0] = torch.tensor([1.6, -2.2])
PRIOR, SPREAD = torch.tensor([0.5, 0.5], dtype=torch.float64), 0.5


class TwoModes(Denoiser):
    """E[x0 | x_t] of a mixture of two Gaussians."""

    def __init__(self):
        super().__init__()
        self.schedule = VESchedule(0.01, 20.0)

    def forward(self, x_t, t, **kwargs):
        alpha, sigma = self.schedule(t)
        alpha, sigma = (torch.as_tensor(v).reshape(-1, *[1] * (x_t.ndim - 1)).double() for v in (alpha, sigma))
        x = x_t.double()
        variance = alpha**2 * SPREAD**2 + sigma**2
        off = x[..., None, :] - alpha[..., None] * MEANS
        share = torch.softmax(PRIOR.log() - off.square().sum(-1) / (2 * variance), -1)
        clean = MEANS + alpha[..., None] * SPREAD**2 / variance[..., None] * off
        return DiracPosterior(mean=(share[..., None] * clean).sum(-2).to(x_t))


def exact_share(points=4000):
    """Share of the first mode on the sphere: the density of the first coordinate there, by quadrature."""
    u = torch.linspace(-1, 1, points, dtype=torch.float64)
    area = (1 - u**2).clamp_min(0) ** ((SIZE - 3) / 2)
    weight = [p * (torch.exp(RADIUS * u * m[0] / SPREAD**2 - m[0] ** 2 / (2 * SPREAD**2)) * area).sum()
              for p, m in zip(PRIOR, MEANS, strict=True)]  # fmt: skip
    return float(weight[0] / sum(weight))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="azula_denoiser.png")
    args = parser.parse_args()

    n, steps = (100, 16) if args.quick else (2000, 64)
    denoiser, sphere = TwoModes(), casal.Sphere(RADIUS)
    target = casal.from_azula(denoiser, steps=steps, shape=(SIZE,), eta=1.0, dtype=torch.float64)
    wrapped = as_azula(target, sphere)
    torch.manual_seed(0)
    sampler = HeunSampler(wrapped, steps=steps // 2, silent=True)
    projected = wrapped.finish(sampler(sampler.init((n, SIZE)).double()))
    result = casal.sample(target, sphere, "auto", n=n, seed=0)
    print(result)

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.0), sharey=True, layout="constrained")
    for axis, z, name in zip(axes, (projected, result.samples), ("Heun of azula, projected", "auto"), strict=True):
        first = float((z[:, 0] > 0).double().mean())
        axis.hist(z[:, 0], bins=40, range=(-RADIUS, RADIUS), density=True)
        axis.set(title=f"{name}\n{first:.3f} in the right mode (exact {exact_share():.3f})", xlabel="first coordinate")
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}; violation at most {float(sphere.violation(projected).max()):.0e}, azula's sampler")


if __name__ == "__main__":
    main()
