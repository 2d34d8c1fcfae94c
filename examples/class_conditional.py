"""A class-conditional model with guidance, one constraint for each class.

A UNet2DModel of diffusers learns two classes of fields: one blob, or one ridge. 32 chains of each class are drawn in
one call. Each class has a total mass of its own, which every sample has exactly.

    python examples/class_conditional.py [--quick] [--out classes.png]
"""

import argparse

import matplotlib.pyplot as plt
import torch
from diffusers import DDPMScheduler, UNet2DModel

import casal

SIZE, NONE = 16, 2  # class 2 stands for "no class": what guidance leads away from
MEAN, STD = 0.1, 0.25  # of the fields, about: the network works in standardised units
MASSES = torch.tensor([9.0, 45.0], dtype=torch.float64)


def fields(label, generator):
    """Class 0: a blob in a random place; class 1: a ridge at a random angle."""
    grid = torch.linspace(-1, 1, SIZE)
    y, x = grid[:, None], grid[None, :]
    u = torch.rand(len(label), 3, 1, 1, generator=generator)
    dx, dy, angle = x - u[:, 0] + 0.5, y - u[:, 1] + 0.5, 3.14 * u[:, 2]
    across = dx * torch.cos(angle) + dy * torch.sin(angle)
    square = torch.where(label[:, None, None] == 0, dx**2 + dy**2, across**2)
    return torch.exp(-square / 0.05)[:, None]


def train(scheduler, updates):
    torch.manual_seed(0)
    net = UNet2DModel(SIZE, 1, 1, block_out_channels=(16, 32), layers_per_block=1, down_block_types=["DownBlock2D"] * 2,
                      up_block_types=["UpBlock2D"] * 2, norm_num_groups=8, num_class_embeds=3)  # fmt: skip
    optimizer, generator = torch.optim.Adam(net.parameters(), lr=2e-3), torch.Generator().manual_seed(0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        label, t = torch.randint(2, (64,)), torch.randint(scheduler.config.num_train_timesteps, (64,))
        x = (fields(label, generator) - MEAN) / STD
        noise, seen = torch.randn_like(x), torch.where(torch.rand(64) < 0.15, NONE, label)
        loss = (net(scheduler.add_noise(x, noise, t), t, class_labels=seen).sample - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.requires_grad_(False).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="class_conditional.png")
    args = parser.parse_args()

    each, steps, updates = (4, 8, 3) if args.quick else (32, 100, 2000)
    label, scheduler = torch.arange(2).repeat_interleave(each), DDPMScheduler(clip_sample=False)
    target = casal.from_diffusers(train(scheduler, updates), scheduler, steps=steps, guidance=2.0,
                                  condition={"class_labels": label}, unconditional={"class_labels": NONE})  # fmt: skip
    units = casal.Standardise(MEAN, STD)
    constraint = casal.Affine(torch.ones(1, SIZE**2), casal.PerChain(MASSES[label][:, None]))
    method = casal.CASAL(rho=casal.constant_gain(1.0))
    result = casal.sample(target, constraint, method, n=2 * each, decoder=units, seed=0)
    print(result)

    figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
    for row, samples, mass in zip(axes, result.samples[:, 0].reshape(2, each, SIZE, SIZE), MASSES, strict=True):
        for axis, field in zip(row, samples, strict=False):
            axis.imshow(field.numpy(), vmin=-0.2, vmax=1.0)
            axis.set(title=f"mass {float(field.sum()):.4f}", xticks=[], yticks=[])
        row[0].set_ylabel(f"asked: {float(mass):g}")
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
