"""A posterior on a torus, from a log density.

A point on a torus in space was measured three times, with noise. The samples follow the posterior on the surface. The
picture compares the two angles with the exact distribution, found by quadrature.

    python examples/torus_posterior.py [--quick] [--out torus.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import torch

import casal

LARGE, SMALL = 2.0, 0.7  # radii of the torus
SEEN = torch.tensor([[1.5, 1.2, 0.3], [-0.9, 1.6, 0.5], [0.4, 2.3, -0.2]], dtype=torch.float64)
NOISE = 1.1


def misfit(x):  # -log density of the posterior, up to a constant
    return (x[:, None] - SEEN).square().sum((1, 2)) / (2 * NOISE**2)


def torus(x):  # zero on the surface
    ring = x[:, :2].norm(dim=1) - LARGE
    return (ring.square() + x[:, 2].square() - SMALL**2)[:, None]


def exact_angles(points=400):
    """Densities of both angles. The area of a patch is proportional to the distance from the axis."""
    angles = (np.arange(points) + 0.5) * 2 * np.pi / points - np.pi
    around, tube = np.meshgrid(angles, angles, indexing="ij")
    ring = LARGE + SMALL * np.cos(tube)
    x = np.stack([ring * np.cos(around), ring * np.sin(around), SMALL * np.sin(tube)], -1).reshape(-1, 3)
    weight = np.exp(-misfit(torch.from_numpy(x)).numpy()).reshape(points, points) * ring
    weight /= weight.sum() * (angles[1] - angles[0])
    return angles, weight.sum(1), weight.sum(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="torus_posterior.png")
    args = parser.parse_args()

    n, steps = (200, 100) if args.quick else (4000, 600)
    start = casal.GaussianStart(3, std=2.0, dtype=torch.float64)
    target = casal.energy(misfit, steps=steps, step_size="auto", init=start)
    result = casal.sample(target, casal.Implicit(torus), "auto", n=n, seed=0)
    print(result)

    z = result.samples.numpy()
    found = np.arctan2(z[:, 1], z[:, 0]), np.arctan2(z[:, 2], np.hypot(z[:, 0], z[:, 1]) - LARGE)
    angles, *exact = exact_angles()
    figure = plt.figure(figsize=(9, 3.2), layout="constrained")
    space = figure.add_subplot(1, 3, 1, projection="3d")
    space.scatter(*z.T, s=2, alpha=0.4)
    space.scatter(*SEEN.T.numpy(), marker="x", s=60, color="tab:red", label="measured")
    space.set(title=f"{n} samples", aspect="equal")
    space.legend(loc="upper left")
    for k, name in enumerate(("angle around the axis", "angle in the tube")):
        axis = figure.add_subplot(1, 3, k + 2)
        axis.hist(found[k], bins=40, range=(-np.pi, np.pi), density=True, alpha=0.5, label="samples")
        axis.plot(angles, exact[k], color="black", label="exact")
        axis.set(title=name, yticks=[])
        axis.legend(loc="upper right")
    figure.suptitle(f"On the torus to {float(result.certificate.violation.max()):.0e}; {result.fidelity.verdict}")
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
