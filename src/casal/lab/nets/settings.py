"""How to train: the numbers of a run, checked, and the two rates along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from casal.checks import whole_number
from casal.errors import SettingError


@dataclass(frozen=True)
class Settings:
    """How to train.

        rate(i) = learning_rate * min(1, (i + 1) / (warm_up n)) * (1 + cos(pi i / n)) / 2,      i = 0 .. n - 1
        average <- average + r (weights - average),   r = max(1e-3, 10 / (i + 10)), or 1 - ema

    Attributes:
        iterations: n.
        batch_size: Points of a batch.
        learning_rate: The largest.
        weight_decay: Decoupled, as in AdamW; 0 is Adam.
        warm_up: Share of the iterations in which the rate grows.
        ema: A fixed decay such as 0.999, 0 for no average; None for the rate above, which does not lag in short runs.
        autocast: Run the network in bfloat16 where torch thinks it safe.
        seed: Of everything random.
        threads: Of torch, because they decide how sums round.
    """

    iterations: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warm_up: float
    ema: float | None
    autocast: bool
    seed: int
    threads: int = 1

    def __post_init__(self) -> None:
        whole_number(self.iterations, "iterations", 1)
        whole_number(self.batch_size, "batch_size", 1)
        whole_number(self.seed, "seed", 0)
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        if not 0 <= self.warm_up <= 1:
            raise SettingError(f"warm_up is a share of the iterations, between 0 and 1, got {self.warm_up}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise SettingError(f"ema must be None or a decay with 0 <= ema < 1, such as 0.999, got {self.ema}")

    def rate(self, i: int) -> float:
        """Learning rate of iteration i."""
        rise = min(1.0, (i + 1) / max(1.0, self.warm_up * self.iterations))
        return self.learning_rate * rise * (1 + math.cos(math.pi * i / self.iterations)) / 2

    def average_rate(self, i: int) -> float:
        """How far the average moves towards the weights after iteration i."""
        return max(1e-3, 10 / (i + 10)) if self.ema is None else 1 - self.ema
