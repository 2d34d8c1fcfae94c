"""A latent model under a constraint on its pixels.

An autoencoder with 4 latent numbers learns images of a blob; the latents follow N(0, I). The total brightness of every
image is prescribed. ``constraint.through(decoder)`` states the constraint on the latents, so every sample is an image
of the decoder (gap 0). With ``decoder=`` the sample is the nearest feasible image, which the decoder may not produce.

    python examples/latent_pixels.py [--quick] [--out latent.png]
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import nn

import casal

SIZE, LATENT, BRIGHTNESS = 12, 4, 22.0


def blobs(n, generator):
    grid = torch.linspace(-1, 1, SIZE)
    u = torch.rand(n, 4, 1, 1, generator=generator)
    square = (grid[:, None] - u[:, 0] + 0.5) ** 2 + (grid - u[:, 1] + 0.5) ** 2
    return ((0.5 + u[:, 2]) * torch.exp(-square / (0.08 + 0.25 * u[:, 3])))[:, None]


def train(updates):
    """An encoder whose latents are pressed to N(0, I), and the decoder."""
    torch.manual_seed(0)
    generator, wide = torch.Generator().manual_seed(0), nn.Linear(64, SIZE**2)
    decoder = nn.Sequential(nn.Linear(LATENT, 64), nn.Tanh(), wide, nn.Unflatten(1, (1, SIZE, SIZE)))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 64), nn.Tanh(), nn.Linear(64, 2 * LATENT))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(updates):
        images = blobs(256, generator)
        mean, log_std = encoder(images).chunk(2, 1)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        kl = (mean.square() + (2 * log_std).exp() - 2 * log_std - 1).sum(1).mean() / 2
        loss = (decoder(latent) - images).square().sum((1, 2, 3)).mean() / 0.1 + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return decoder.double().requires_grad_(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="latent_pixels.png")
    args = parser.parse_args()

    n, decoder = 32 if args.quick else 256, casal.Nonlinear(train(20 if args.quick else 1500))
    prior = casal.edm(lambda x, s: x / (1 + s**2), casal.karras_sigmas(20, 0.02, 20.0), shape=(LATENT,), churn=1.0,
                      dtype=torch.float64)  # fmt: skip
    bright = casal.Affine(torch.ones(1, SIZE**2), [BRIGHTNESS])
    outside = casal.sample(prior, bright, casal.FinalProjection(), n=n, decoder=decoder, seed=0)
    result = casal.sample(prior, bright.through(decoder), "auto", n=n, seed=0)
    images = decoder(result.samples)
    print(outside, result, sep="\n\n")

    figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
    rows = ("one projection", outside.samples), ("through(decoder)", images)
    for row, (name, shown) in zip(axes, rows, strict=True):
        for axis, image in zip(row, shown[:, 0], strict=False):
            axis.imshow(image.numpy(), vmin=0, vmax=1.2)
            axis.set(title=f"sum {float(image.sum()):.6f}", xticks=[], yticks=[])
        row[0].set_ylabel(name)
    figure.suptitle(f"mean gap to the decoder's images: {float(outside.gap.mean()):.2g}, and 0 through(decoder)")
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
