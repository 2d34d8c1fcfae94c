"""Networks that start as the best affine answer and learn only what a Gaussian cannot know.

``WienerMLP`` predicts the noise of a DDPM, ``WienerUNet`` denoises fields.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from casal.checks import whole_number
from casal.errors import CasalWarning, ShapeError
from casal_lab.nets.events import Standardise, all_digits, arguments, over_events, signal_and_noise
from casal_lab.nets.gaussian import Gaussian
from casal_lab.nets.mlp import MLP
from casal_lab.nets.unet import UNet

Denoiser = TypeVar("Denoiser", bound="WienerUNet")


class WienerUNet(nn.Module):
    """D(y, sigma) = W(y, sigma) + V diag(sigma sqrt(lam / (lam + sigma^2))) V^T F(features, sigma).

    W is the Wiener filter of the data (mean m, covariance V diag(lam) V^T), F a small UNet fed with

        V diag(lam + sigma^2)^(-1/2) V^T (y - m),    W(y, sigma),    y / sqrt(1 + sigma^2).

    The factor of F is the standard deviation of x given y under the Gaussian model, direction by direction, so F is
    of order one at every noise level, and directions in which the data do not vary stay at the mean. F starts at
    zero: the untrained denoiser is W. Data should be of unit size (``Standardise``), fields in several channels each.

    A point may also be a vector of coefficients with an orthonormal map ``lift`` to the pixels of a grid (cosine or
    Fourier coefficients, say): then F works on the grid, and V, lam, m on the coefficients.

    ``wiener`` is W, ``standardise`` holds statistics of the raw data, for the caller to use. A subclass that knows the
    physics adds ``extra_channels`` to the input of F, which ``extra`` computes.

    Args:
        event: Shape of one point.
        rank: Of the covariance; see ``fit``, which finds it.
        grid: (channels, height, width) that F works on; from ``event`` if None.
        lifted: Whether there is a map from points to the grid.
        **settings: Of F (``UNet``): ``widths``, ``padding``, ``positions`` (4 is a good number), ``sigmas``, ``seed``.
    """

    extra_channels: ClassVar[int] = 0
    lift: Tensor | None

    def __init__(
        self,
        event: int | Sequence[int],
        *,
        rank: int | None = None,
        grid: Sequence[int] | None = None,
        lifted: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.wiener = Gaussian(event, rank)
        self.event = self.wiener.event
        self.grid = tuple(int(size) for size in (self.event if grid is None else grid))
        if len(self.grid) == 2:
            self.grid = (1, *self.grid)
        if len(self.grid) != 3:
            raise ShapeError(
                f"a field needs (height, width) or (channels, height, width), got {self.grid}; "
                "give grid= and lift= for points that are vectors"
            )
        size, pixels = len(self.wiener.mean), torch.Size(self.grid).numel()
        if size > pixels or (size != pixels and not lifted):
            raise ShapeError(
                f"points {self.event} have {size} numbers and the grid {self.grid} has {pixels}; "
                "they must agree, or lift= must map the points to a grid with at least as many pixels"
            )
        self.register_buffer("lift", torch.eye(pixels, size) if lifted else None)
        channels, *sizes = self.grid
        self.unet = UNet(3 * channels + self.extra_channels, channels, sizes, **settings)
        self.standardise = Standardise(self.event)

    @classmethod
    def fit(
        cls: type[Denoiser],
        data: Tensor,
        *,
        grid: Sequence[int] | None = None,
        lift: Tensor | None = None,
        **settings: Any,
    ) -> Denoiser:
        """A denoiser for ``data`` (n, *event) of unit size: its Wiener filter is computed, F is yet to be trained.

        Points that are vectors need ``grid``, and ``lift`` (pixels, d) with orthonormal columns, from points to pixels.
        """
        gaussian = Gaussian.fit(data)
        size = float(data.double().square().mean().sqrt())
        if not 0.2 < size < 5.0:
            warnings.warn(
                f"the data are of size {size:.3g} (root mean square), the network expects about 1; "
                "divide by it first (Standardise)",
                CasalWarning,
                stacklevel=2,
            )
        net = cls(gaussian.event, rank=gaussian.rank, grid=grid, lifted=lift is not None, **settings)
        net.wiener.load_state_dict(gaussian.state_dict())
        if lift is not None and net.lift is not None:
            if lift.shape != net.lift.shape:
                raise ShapeError(f"lift has shape {tuple(lift.shape)}, expected {tuple(net.lift.shape)}")
            gram = lift.double().T @ lift.double()
            error = float((gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max())
            if error > 1e-4:
                raise ShapeError(f"the columns of lift are not orthonormal: |lift^T lift - I| reaches {error:.2g}")
            net.lift.copy_(lift)
        return net.to(data.device)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a denoiser of this shape."""
        inner = arguments(self.unet, "widths", "padding", "positions", "sigmas", "seed")
        return {**self.wiener.config, "grid": list(self.grid), "lifted": self.lift is not None, **inner}

    def extra(self, wiener: Tensor) -> Tensor:
        """More input for F, (n, extra_channels, height, width), from W on the grid: velocities of a vorticity, say."""
        raise NotImplementedError("a subclass with extra_channels > 0 defines extra(wiener)")

    def forward(self, y: Tensor, sigma: Tensor | float) -> Tensor:
        """D(y, sigma) for y (n, *event), sigma a number or (n,)."""
        filter = self.wiener
        with all_digits(y):  # the filter needs all its digits
            centred = filter.centred(y)
            level = over_events(sigma, centred, "sigma")
            square, lam = level.square().unsqueeze(1), filter.variances
            wiener = filter(y.to(centred.dtype), level).flatten(1)
            whitened = ((centred @ filter.basis) / (lam + square).sqrt()) @ filter.basis.T
            scaled = (centred + filter.mean) / (1 + square).sqrt()
            vectors = (whitened, wiener, scaled)
            pixels = vectors if self.lift is None else [vector @ self.lift.T for vector in vectors]
            fields = [pixel.view(-1, *self.grid) for pixel in pixels]
            if self.extra_channels:
                fields.append(self.extra(fields[1]))
        learned = self.unet(torch.cat(fields, dim=1), level)
        with all_digits(y):
            spread, says = (square * lam / (lam + square)).sqrt(), learned.to(centred.dtype).flatten(1)
            says = says if self.lift is None else says @ self.lift
            residual = (spread * (says @ filter.basis)) @ filter.basis.T
            return (wiener + residual).view(y.shape).to(y.dtype)


class WienerMLP(nn.Module):
    """eps(x, t) = eps_G(x, t) + V diag(r) F(diag(alpha^2 lam + sigma^2)^(-1/2) V^T (x - alpha m), t),

        eps_G = sigma (alpha^2 C + sigma^2 I)^-1 (x - alpha m),   C = V diag(lam) V^T,
        r = sqrt(g (1 - g)) max(g),   g = alpha^2 lam / (alpha^2 lam + sigma^2)

    for x = alpha_t x0 + sigma_t w, the noise levels of a DDPM. eps_G is E[w | x] if the data are N(m, C). F, the
    paper's ``MLP``, starts at zero: the untrained network is eps_G, and the factor r keeps it from doing worse where
    there is nothing to add. Under the Gaussian sqrt(g) is the standard deviation of w given x, direction by direction,
    and sqrt(1 - g) that of x0 in units of the data: with little noise eps = -sigma score, and a correction of a
    bounded score shrinks with sigma. With much noise the first thing a Gaussian misses are third cumulants, which
    enter with sqrt(g_i g_j g_k): at most sqrt(g) max(g). A plain network must learn eps = x there, and misses it by
    far more than the Gaussian does.

    ``wiener`` holds m, V and lam, ``standardise`` statistics of the raw data, for the caller to use.

    Args:
        event: Shape of one point; treated as one vector.
        rank: Of the covariance; see ``fit``, which finds it.
        steps: T, the number of noise levels; ``fit`` takes it from betas.
        **settings: Of F (``MLP``): ``width``, ``depth``, ``features``, ``seed``.

    Reference: the same idea for denoisers of fields is ``WienerUNet``.

    >>> net = WienerMLP.fit(torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]), torch.tensor([0.5]))
    >>> net(torch.tensor([[2.0]]), 0).detach()
    tensor([[1.4142]])
    """

    alpha: Tensor
    sigma: Tensor

    def __init__(
        self, event: int | Sequence[int], *, rank: int | None = None, steps: int = 1000, **settings: Any
    ) -> None:
        super().__init__()
        self.wiener = Gaussian(event, rank)
        self.event = self.wiener.event
        self.steps = whole_number(steps, "steps", 1)
        self.mlp = MLP(self.wiener.rank, horizon=float(self.steps), **settings)
        alpha, sigma = signal_and_noise(torch.linspace(0.1 / self.steps, 20 / (20 + self.steps), self.steps))
        self.register_buffer("alpha", alpha.float())
        self.register_buffer("sigma", sigma.float())
        self.standardise = Standardise(self.event)

    @classmethod
    def fit(cls, data: Tensor, betas: Tensor, **settings: Any) -> WienerMLP:
        """A network for ``data`` (n, *event) and these noise levels: eps_G is computed, F is yet to be trained."""
        gaussian = Gaussian.fit(data)
        alpha, sigma = signal_and_noise(betas)
        net = cls(gaussian.event, rank=gaussian.rank, steps=len(alpha), **settings)
        net.wiener.load_state_dict(gaussian.state_dict())
        net.alpha.copy_(alpha)
        net.sigma.copy_(sigma)
        return net.to(data.device)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments that make a network of this shape."""
        inner = arguments(self.mlp, "width", "depth", "features", "seed")
        return {**self.wiener.config, "steps": self.steps, **inner}

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        """eps(x, t) for x (n, *event) and t a number or (n,), one of 0 .. T - 1."""
        gaussian, level = self.wiener, over_events(t, x)
        index = level.round().long()
        with all_digits(x):
            alpha, sigma = self.alpha[index].unsqueeze(1), self.sigma[index].unsqueeze(1)
            centred = gaussian.centred(x) + (1 - alpha) * gaussian.mean
            along = centred @ gaussian.basis
            power = alpha.square() * gaussian.variances
            total = power + sigma.square()
            said = along * (sigma / total)
        learned = self.mlp(along / total.sqrt(), level).to(said.dtype)
        with all_digits(x):
            size = (power * sigma.square()).sqrt() / total * (power / total).amax(1, keepdim=True)
            said = said + size * learned
            out = said @ gaussian.basis.T
            if gaussian.rank < len(gaussian.mean):
                out = out + (centred - along @ gaussian.basis.T) / sigma
            return out.view(x.shape).to(x.dtype)
