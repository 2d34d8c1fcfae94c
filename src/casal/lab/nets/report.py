"""What a training run says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LevelLosses:
    """Held-out losses of a network and of the Gaussian model of its training data, on the same points and noise.

    Attributes:
        name: What a level is: "t", the step of a DDPM, or "sigma", the size of the noise.
        levels: (L,) float64.
        network: (L,) mean squared error per number: of the noise (DDPM) or of the clean point (denoiser).
        gaussian: (L,) the same for the Gaussian.
        ratio_error: (L,) standard error of ``ratio``.
    """

    name: str
    levels: Tensor
    network: Tensor
    gaussian: Tensor
    ratio_error: Tensor

    @property
    def ratio(self) -> Tensor:
        """(L,) network / Gaussian: 1 or more is a network that learned nothing at this level.

        Where noise is all there is (the last steps of a DDPM) the Gaussian is nearly exact and both errors
        are nearly zero; a ratio above 1 is common there and says little.
        """
        return self.network / self.gaussian

    @property
    def best(self) -> float:
        """The smallest ratio."""
        return float(self.ratio.min())

    @property
    def learned(self) -> bool:
        """Whether the network beats the Gaussian at some level by more than four standard errors."""
        return bool((self.ratio + 4 * self.ratio_error < 1).any())

    def __str__(self) -> str:
        rows = zip(self.levels, self.network, self.gaussian, self.ratio, self.ratio_error, strict=True)
        verdict = (
            f"the network beats the Gaussian: best ratio {self.best:.3f}"
            if self.learned
            else f"the network does not beat the Gaussian (best ratio {self.best:.3f}): it knows nothing more than "
            "mean and covariance; train longer, with another network, or with more data"
        )
        return "\n".join(
            [
                f"{self.name:>10} {'network':>10} {'Gaussian':>10} {'ratio':>7}",
                *(f"{t:>10.4g} {a:>10.4g} {b:>10.4g} {r:>7.3f} +- {e:.3f}" for t, a, b, r, e in rows),
                verdict,
            ]
        )


@dataclass(frozen=True)
class TrainingReport:
    """The outcome of ``train_ddpm`` or ``train_denoiser``.

    Attributes:
        held_out: Losses per noise level of the averaged network, beside the Gaussian's.
        history: (iterations,) float64, the training loss of every batch.
        iterations: How many updates the network has seen.
        resumed_from: Iteration at which this call took over; 0 for an unbroken run.
        seconds: Spent on training, over all calls.
    """

    held_out: LevelLosses
    history: Tensor
    iterations: int
    resumed_from: int
    seconds: float

    @property
    def levels(self) -> Tensor:
        """(L,) noise levels of the comparison."""
        return self.held_out.levels

    @property
    def network(self) -> Tensor:
        """(L,) held-out loss of the network."""
        return self.held_out.network

    @property
    def gaussian(self) -> Tensor:
        """(L,) held-out loss of the Gaussian."""
        return self.held_out.gaussian

    @property
    def ratio(self) -> Tensor:
        """(L,) network / Gaussian."""
        return self.held_out.ratio

    @property
    def best(self) -> float:
        """The smallest ratio."""
        return self.held_out.best

    @property
    def learned(self) -> bool:
        """Whether the network beats the Gaussian at some level."""
        return self.held_out.learned

    def __str__(self) -> str:
        last = self.history[-max(1, len(self.history) // 10) :].mean()
        head = f"{self.iterations} iterations in {self.seconds:.1f} s, training loss {last:.4g} over the last tenth"
        return f"{head}\nheld-out loss per noise level\n{self.held_out}"
