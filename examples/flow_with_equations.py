"""A flow-matching model of curves, under linear equations.

The curves are random sums of waves on 32 points. A small network learns their velocity field. Then every sample must
pass through three given points and have mean zero, exactly.

    python examples/flow_with_equations.py [--quick] [--out curves.png]
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch import nn

import casal

POINTS = 32
PLACES, VALUES = [4, 14, 25], [1.0, -0.8, 0.6]


def curves(n, generator):
    """Three waves of falling size and random phase."""
    t = torch.linspace(0, 1, POINTS)
    size, phase = torch.randn(n, 3, 1, generator=generator), 6.3 * torch.rand(n, 3, 1, generator=generator)
    wave = torch.arange(1, 4)[:, None]
    return (size / wave * torch.sin(6.3 * wave * t + phase)).sum(1)


class Velocity(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        layers = [nn.Linear(POINTS + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, POINTS)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x, t):  # t = 0 is noise, t = 1 is data
        return self.layers(torch.cat([x, t.expand(len(x))[:, None]], dim=1))


def train(steps):
    generator, net = torch.Generator().manual_seed(0), Velocity()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        data = curves(512, generator)
        noise, t = torch.randn(data.shape, generator=generator), torch.rand(512, 1, generator=generator)
        loss = (net(t * data + (1 - t) * noise, t[:, 0]) - (data - noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.requires_grad_(False).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="flow_with_equations.png")
    args = parser.parse_args()

    target = casal.flow(train(100 if args.quick else 3000), steps=50, shape=(POINTS,))
    rows = torch.cat([torch.eye(POINTS)[PLACES], torch.ones(1, POINTS) / POINTS])
    through = casal.Affine(rows, torch.tensor([*VALUES, 0.0]))
    n = 64 if args.quick else 256
    after = casal.sample(target, through, casal.FinalProjection(), n=n, seed=0)
    result = casal.sample(target, through, casal.SplitGibbs(0.1), n=n, seed=0)
    print(result)

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, shown, name in zip(axes, (after, result), ("one projection at the end", "SplitGibbs"), strict=True):
        axis.plot(shown.samples[:40].T, color="tab:blue", alpha=0.25, lw=1)
        axis.plot(PLACES, VALUES, "o", color="tab:red")
        axis.set(title=f"{name}: violation at most {float(shown.certificate.violation.max()):.0e}", xlabel="point")
    figure.savefig(args.out, dpi=120)
    print(f"picture: {args.out}")


if __name__ == "__main__":
    main()
