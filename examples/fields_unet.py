"""Nonnegative fields of given mass, from a diffusers UNet.

A small UNet2DModel learns fields of random blobs with diffusers' own scheduler. The samples must be nonnegative and
have total mass 20, exactly. The model works in standardised units; the constraint is stated in those of the fields.

    python examples/fields_unet.py [--quick] [--out fields.png]
"""

import argparse

import matplotlib.pyplot as plt
import torch
from diffusers import DDPMScheduler, UNet2DModel

import casal

SIZE, MASS = 16, 20.0


def blobs(n, generator):
    """Fields (n, 1, 16, 16) of three blobs each, nonnegative."""
    grid = torch.linspace(0, 1, SIZE)
    place, height = torch.rand(n, 3, 2, 1, generator=generator), torch.rand(n, 3, 1, 1, generator=generator)
    near = torch.exp(-((grid - place) ** 2) / 0.02)  # (n, 3, 2, SIZE)
    return (height * near[:, :, 0, :, None] * near[:, :, 1, None, :]).sum(1, keepdim=True)


def train(data, scheduler, updates):
    torch.manual_seed(0)
    net = UNet2DModel(SIZE, 1, 1, block_out_channels=(16, 32), down_block_types=("DownBlock2D",) * 2,
                      up_block_types=("UpBlock2D",) * 2, norm_num_groups=8, layers_per_block=1)  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        x = data[torch.randint(len(data), (64,))]
        noise, t = torch.randn_like(x), torch.randint(scheduler.config.num_train_timesteps, (64,))
        loss = (net(scheduler.add_noise(x, noise, t), t).sample - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.requires_grad_(False).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="fields_unet.png")
    args = parser.parse_args()

    data = blobs(4000, torch.Generator().manual_seed(0))
    units = casal.Standardise(data.mean(), data.std())
    scheduler = DDPMScheduler(clip_sample=False)
    net = train((data - data.mean()) / data.std(), scheduler, 5 if args.quick else 1500)

    target = casal.from_diffusers(net, scheduler, steps=10 if args.quick else 100)
    constraint = casal.Box(0.0, None) & casal.Affine(torch.ones(1, SIZE**2), [MASS])
    n = 8 if args.quick else 64
    free = casal.sample(target, constraint, casal.Unconstrained(), n=n, decoder=units, seed=0)
    method = casal.CASAL(rho=casal.constant_gain(1.0))
    result = casal.sample(target, constraint, method, n=n, decoder=units, seed=0)
    print(result)

    figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
    for row, shown, name in zip(axes, (free, result), ("unconstrained", "CASAL"), strict=True):
        fields = shown.samples[:6, 0].double()
        for axis, field in zip(row, fields, strict=True):
            axis.imshow(field.numpy(), vmin=-0.3, vmax=1.0, cmap="viridis")
            axis.set(title=f"mass {float(field.sum()):.2f}\nmin {float(field.min()):.2g}", xticks=[], yticks=[])
        row[0].set_ylabel(name)
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
