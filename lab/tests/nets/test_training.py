"""The training loop: rates, batches, determinism, a report in which a dead network shows, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from casal.errors import DivergedError, DtypeError, SettingError, ShapeError
from casal_lab.nets import MLP, Gaussian, random_flips, split, train_ddpm, train_denoiser
from casal_lab.nets.training import Settings, batches

from .mixture import draw

BETAS = torch.linspace(1e-3, 0.2, 50)


def settings(**changes: Any) -> Settings:
    base = dict(
        iterations=100,
        batch_size=8,
        learning_rate=2.0,
        weight_decay=0.0,
        warm_up=0.1,
        ema=None,
        autocast=False,
        seed=0,
    )
    return Settings(**{**base, **changes})


def small(seed: int = 0) -> MLP:
    return MLP(2, width=16, depth=2, horizon=50.0, seed=seed)


def train(net: MLP, data: Tensor | None = None, **changes: Any) -> Any:
    base: dict[str, Any] = {"iterations": 30, "batch_size": 32, "seed": 1}
    return train_ddpm(net, draw(400, 0) if data is None else data, BETAS, **{**base, **changes})


def test_the_learning_rate_rises_and_then_follows_a_cosine() -> None:
    s = settings()
    rates = [s.rate(i) for i in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[4] == pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi * 0.04)) / 2)
    assert rates[50] == pytest.approx(1.0)
    assert max(rates) == rates[9]
    assert 0 < rates[99] < 1e-3 * max(rates)
    assert settings(warm_up=0.0).rate(0) == 2.0


def test_the_average_forgets_the_start_quickly_or_at_a_fixed_rate() -> None:
    assert [settings().average_rate(i) for i in (0, 10, 990, 9990, 10**6)] == pytest.approx([1, 0.5, 1e-2, 1e-3, 1e-3])
    assert settings(ema=0.999).average_rate(0) == pytest.approx(1e-3)
    assert settings(ema=0.0).average_rate(500) == 1.0


def test_every_epoch_shows_every_point_once_and_a_run_can_start_anywhere() -> None:
    data = torch.arange(10.0)
    s = settings(iterations=15, batch_size=4)
    shown = torch.stack(list(batches(data, s, 0)))
    assert shown.shape == (15, 4)
    epochs = shown.reshape(6, 10)
    assert torch.equal(epochs.sort(dim=1).values, data.expand(6, 10))
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 6
    for start in (1, 7, 14):
        assert torch.equal(torch.stack(list(batches(data, s, start))), shown[start:])
    assert next(batches(data, settings(batch_size=25), 3)).shape == (25,)


def test_a_seed_fixes_the_run_and_the_global_generator_stays_put() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, again, other = small(), small(), small()
    a, b, c = train(first), train(again), train(other, seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.history, b.history) and not torch.equal(a.history, c.history)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True))
    assert torch.equal(a.network, b.network)
    assert not first.training


def test_one_iteration_is_one_step_of_adam_on_the_loss_of_ho_et_al() -> None:
    """The first update of Adam is the learning rate times the sign of the gradient, whatever its size."""
    net, before = small(), small()
    report = train(net, iterations=1, warm_up=0.0, ema=0.0, learning_rate=1e-3)
    assert float(report.history[0]) == pytest.approx(1.0, abs=0.5)  # the network says 0, so the loss is |w|^2 a number
    moved = net.output.bias - before.output.bias
    torch.testing.assert_close(moved.abs(), torch.full((2,), 1e-3), atol=1e-6, rtol=0)
    assert torch.equal(net.hidden[0].weight, before.hidden[0].weight)  # behind a zero layer there is no gradient


def test_the_network_holds_the_average_in_the_end() -> None:
    """With a decay of 0.999 three steps of 1e-2 move it by less than 1e-2 (1 - 0.999) 3 (1 + 2 + 3) / 3."""
    net, before = small(), small()
    train(net, iterations=3, warm_up=0.0, ema=0.999, learning_rate=1e-2)
    moved = (net.output.bias - before.output.bias).detach().abs()
    assert bool((moved > 0).all()) and float(moved.max()) < 6e-5


def test_a_dead_network_shows_and_a_living_one_does() -> None:
    data = draw(4000, 0)
    dead = train_ddpm(MLP(2, horizon=50.0), data, BETAS, iterations=20, learning_rate=0.0)
    assert float(dead.ratio.min()) > 0.99 and not dead.learned
    assert "does not beat the Gaussian" in str(dead)
    alive = train_ddpm(MLP(2, horizon=50.0), data, BETAS, iterations=600, learning_rate=5e-3)
    assert alive.best < 0.85 and alive.learned
    assert "beats the Gaussian: best ratio 0." in str(alive)
    assert torch.equal(alive.gaussian, dead.gaussian) and torch.equal(alive.levels, dead.levels)
    assert alive.iterations == len(alive.history) == 600 and alive.resumed_from == 0
    torch.testing.assert_close(alive.ratio, alive.network / alive.gaussian)


def test_a_denoiser_of_gaussian_data_has_loss_one_at_every_level() -> None:
    """The loss is in units of the Gaussian's error: the Gaussian denoiser itself, shifted by a parameter that is 0."""

    class Shifted(torch.nn.Module):
        def __init__(self, model: Gaussian) -> None:
            super().__init__()
            self.model, self.shift = model, torch.nn.Parameter(torch.zeros(3))

        def forward(self, y: Tensor, sigma: Tensor) -> Tensor:
            return self.model(y, sigma) + self.shift

    generator = torch.Generator().manual_seed(0)
    train_on, test = split(torch.randn(20_000, 3, generator=generator) * torch.tensor([2.0, 1.0, 0.1]))
    net = Shifted(Gaussian.fit(train_on))
    report = train_denoiser(net, train_on, held_out=test, iterations=200, batch_size=256, learning_rate=0.0)
    # |error|^2 / mse of a point varies by at most sqrt(2): 200 x 256 of them
    assert float(report.history.mean()) == pytest.approx(1.0, abs=4 * (2 / 51200) ** 0.5)
    torch.testing.assert_close(report.ratio, torch.ones(8, dtype=torch.float64))
    assert report.name == "sigma"


def test_epochs_are_passes_over_the_training_points() -> None:
    assert train(small(), iterations=None, epochs=2).iterations == math.ceil(2 * 360 / 32)
    assert train(small(), iterations=None, epochs=2, held_out=draw(50, 1)).iterations == 2 * 400 // 32


def test_the_split_is_a_partition() -> None:
    data = torch.arange(50.0).unsqueeze(1)
    one, two = split(data, 0.2, seed=3)
    assert (len(one), len(two)) == (40, 10)
    assert torch.equal(torch.cat([one, two]).flatten().sort().values, data.flatten())
    assert not torch.equal(split(data, 0.2, seed=4)[1], two)


def test_flips_mirror_each_point_by_itself() -> None:
    x = torch.arange(24.0).view(1, 4, 6).expand(400, 4, 6)
    out = random_flips(-1, -2)(x, torch.Generator().manual_seed(0))
    kinds = [x[0], x[0].flip(-1), x[0].flip(-2), x[0].flip(-1, -2)]
    counts = [sum(torch.equal(row, kind) for row in out) for kind in kinds]
    assert sum(counts) == 400 and all(60 < count < 140 for count in counts)


def test_augmented_batches_reach_the_network() -> None:
    data = draw(400, 0)
    plain = train(small(), data)
    away = train(small(), data, augment=lambda x, generator: x + 100.0)
    assert not torch.equal(plain.history, away.history)


def test_bfloat16_where_asked() -> None:
    report = train(small(), autocast=True)
    assert bool(torch.isfinite(report.history).all())
    assert not torch.equal(report.history, train(small()).history)


def test_a_run_that_diverges_says_where_and_what_to_do() -> None:
    data = draw(400, 0)

    def spoil(x: Tensor, generator: torch.Generator) -> Tensor:
        spoil.calls = getattr(spoil, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * float("inf") if spoil.calls == 7 else x  # type: ignore[attr-defined]

    with pytest.raises(DivergedError, match=r"nan at iteration 7 of 30; use a smaller learning_rate") as caught:
        train(small(), data, augment=spoil)
    assert (caught.value.step, caught.value.steps) == (7, 30)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"iterations": None}, SettingError, "either epochs or iterations"),
        ({"epochs": 3}, SettingError, "either epochs or iterations"),
        ({"iterations": None, "epochs": -1}, SettingError, "epochs must be"),
        ({"iterations": 0}, SettingError, "iterations must be a whole number >= 1"),
        ({"batch_size": 0}, SettingError, "batch_size"),
        ({"learning_rate": -1.0}, SettingError, "learning_rate"),
        ({"learning_rate": float("nan")}, SettingError, "learning_rate"),
        ({"warm_up": 2.0}, SettingError, "warm_up"),
        ({"ema": 1.0}, SettingError, "ema"),
        ({"seed": -1}, SettingError, "seed"),
        ({"held_out": 0.0}, SettingError, "holds out 0"),
        ({"held_out": 1.0}, SettingError, "holds out 0"),
        ({"held_out": torch.zeros(5, 3)}, ShapeError, "different events"),
        ({"data": torch.zeros(5)}, ShapeError, r"\(n, \*event\)"),
        ({"data": torch.ones(9, 2, dtype=torch.int64)}, DtypeError, "int64"),
        ({"data": torch.full((9, 2), float("nan"))}, SettingError, "9 of 9 points of data are not finite"),
        ({"checkpoint_every": 0}, SettingError, "checkpoint_every"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        train(small(), **changes)
    with pytest.raises(SettingError, match="no parameters"):
        train_ddpm(torch.nn.Identity(), draw(50, 0), BETAS, iterations=1)
