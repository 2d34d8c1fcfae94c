"""An interrupted run, continued, ends in the same bits as an unbroken one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from casal.errors import StoreError
from casal_lab.nets import MLP, TrainingReport, WienerUNet, load, random_flips, save, train_ddpm, train_denoiser

BETAS = torch.linspace(1e-3, 0.2, 50)
ITERATIONS = 40


def data() -> Tensor:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    return x + x.sign()


def fresh(seed: int = 0) -> MLP:
    return MLP(3, width=16, depth=2, horizon=50.0, seed=seed)


def train(net: nn.Module, path: Path | None = None, **changes: Any) -> TrainingReport:
    base: dict[str, Any] = {"iterations": ITERATIONS, "batch_size": 32, "checkpoint_every": 7, "weight_decay": 0.01}
    return train_ddpm(net, data(), BETAS, checkpoint=path, **{**base, **changes})


def stop_at(*iterations: int) -> Any:
    def callback(iteration: int, loss: float) -> None:
        if iteration in iterations:
            raise KeyboardInterrupt

    return callback


def assert_same(net: nn.Module, report: TrainingReport, other: nn.Module, its: TrainingReport) -> None:
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(report.history, its.history)
    assert torch.equal(report.network, its.network)
    assert torch.equal(report.gaussian, its.gaussian)


@pytest.fixture
def unbroken() -> tuple[MLP, TrainingReport]:
    net = fresh()
    return net, train(net)


@pytest.mark.parametrize("stops", [(1,), (7,), (23,), (40,), (3, 4, 30)])
def test_an_interrupted_run_continues_to_the_same_bits(
    stops: tuple[int, ...], tmp_path: Path, unbroken: tuple[MLP, TrainingReport]
) -> None:
    path = tmp_path / "run.safetensors"
    for stop in stops:
        with pytest.raises(KeyboardInterrupt, match=rf"iteration {stop} of 40; the run is in .*{path.name}.*same call"):
            train(fresh(), path, callback=stop_at(stop))
    net = fresh()
    report = train(net, path)
    assert report.resumed_from == stops[-1]
    assert_same(net, report, *unbroken)


def test_keeping_a_run_does_not_change_it(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    net = fresh()
    assert_same(net, train(net, tmp_path / "run"), *unbroken)


def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    train(fresh(), tmp_path / "run")
    net = fresh()
    report = train(net, tmp_path / "run", callback=stop_at(*range(100)))
    assert report.resumed_from == ITERATIONS
    assert_same(net, report, *unbroken)


def test_a_killed_process_is_continued(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    """SIGKILL at iteration 25: nothing can be said or saved then, and the file holds iteration 21."""
    script = f"""
        import os, signal, sys
        import torch
        torch.set_num_threads(1)
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_resume
        def kill(iteration, loss):
            if iteration == 25:
                os.kill(os.getpid(), signal.SIGKILL)
        test_resume.train(test_resume.fresh(), test_resume.Path({str(tmp_path / "run")!r}), callback=kill)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    net = fresh()
    report = train(net, tmp_path / "run")
    assert report.resumed_from == 21
    assert_same(net, report, *unbroken)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Signals as in a program of one's own."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_the_middle_of_an_iteration_waits_for_its_end(
    tmp_path: Path, unbroken: tuple[MLP, TrainingReport]
) -> None:
    def press(module: nn.Module, *given: Any) -> None:
        if module.training:
            press.calls = getattr(press, "calls", 0) + 1  # type: ignore[attr-defined]
            if press.calls == 12:  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGINT)

    net = fresh()
    net.register_forward_pre_hook(press)
    with pytest.raises(KeyboardInterrupt, match="stopped after iteration 12 of 40; the run is in"):
        train(net, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    net = fresh()
    report = train(net, tmp_path / "run")
    assert report.resumed_from == 12
    assert_same(net, report, *unbroken)


@pytest.mark.usefixtures("ctrl_c")
def test_the_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    def press(module: nn.Module, *given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("went on")

    net = fresh()
    net.register_forward_pre_hook(press)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(net, tmp_path / "run")
    assert "stopped after" not in str(caught.value)


def test_without_a_file_the_message_says_so() -> None:
    with pytest.raises(KeyboardInterrupt, match="iteration 5 of 40; nothing was kept: pass checkpoint="):
        train(fresh(), callback=stop_at(5))


def test_a_run_begun_in_a_thread_can_be_continued(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    def first() -> None:
        with pytest.raises(KeyboardInterrupt, match="iteration 9"):
            train(fresh(), tmp_path / "run", callback=stop_at(9))

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    net = fresh()
    report = train(net, tmp_path / "run")
    assert report.resumed_from == 9
    assert_same(net, report, *unbroken)


class Dropping(nn.Module):
    """A network with randomness of its own."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 32), nn.Dropout(0.3), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 3))
        for p in self.parameters():
            nn.init.normal_(p, std=0.3, generator=generator)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.layers(x)


def test_dropout_and_running_statistics_continue_too(tmp_path: Path) -> None:
    whole = Dropping()
    report = train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(Dropping(), tmp_path / "run", callback=stop_at(13))
    torch.rand(100)  # whatever happened in between
    net = Dropping()
    assert_same(net, train(net, tmp_path / "run"), whole, report)


def test_a_denoiser_with_flips_and_bfloat16_continues_too(tmp_path: Path) -> None:
    x = torch.randn(400, 8, 8, generator=torch.Generator().manual_seed(0))
    x = (x + x.roll(1, -1) + x.roll(1, -2)).sign()

    def run(path: Path | None, callback: Any = None) -> tuple[WienerUNet, TrainingReport]:
        net = WienerUNet.fit(x[:300], widths=(8, 8), positions=2)
        report = train_denoiser(
            net,
            x[:300],
            held_out=x[300:],
            iterations=12,
            batch_size=16,
            augment=random_flips(-1, -2),
            autocast=True,
            checkpoint=path,
            callback=callback,
        )
        return net, report

    whole = run(None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", stop_at(5))
    again = run(tmp_path / "run")
    assert again[1].resumed_from == 5
    assert_same(*again, *whole)


def test_the_number_of_threads_outside_does_not_matter(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        net = fresh()
        report = train(net)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert_same(net, report, *unbroken)


def test_the_file_of_a_run_can_be_loaded_as_a_network(tmp_path: Path, unbroken: tuple[MLP, TrainingReport]) -> None:
    path, x = tmp_path / "run", torch.ones(4, 3)
    interrupted = fresh()
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, path, callback=stop_at(20))
    assert torch.equal(load(path)(x, 5), interrupted(x, 5))  # the average so far, also in the network at hand
    train(fresh(), path)
    assert torch.equal(load(path)(x, 5), unbroken[0](x, 5))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning_rate": 2e-3}, r"learning_rate 0.001 \(now 0.002\)"),
        ({"iterations": 50}, r"iterations 40 \(now 50\)"),
        ({"seed": 1}, r"seed 0 \(now 1\)"),
        ({"held_out": 0.2}, "data '"),
        ({"threads": 2}, r"threads 1 \(now 2\)"),
        ({"augment": random_flips(-1)}, r"augment None \(now 'random_flips"),
    ],
)
def test_another_run_is_not_continued(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(fresh(), tmp_path / "run", callback=stop_at(3))
    with pytest.raises(StoreError, match=f"another run: .*{says}.*delete the file"):
        train(fresh(), tmp_path / "run", **changes)


def test_another_network_or_file_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(fresh(), path, callback=stop_at(3))
    with pytest.raises(StoreError, match="another run: network"):
        train(MLP(3, width=16, depth=2, horizon=60.0), path)
    with pytest.raises(StoreError, match="another run"):
        train(MLP(3), path)
    save(fresh(), path)
    with pytest.raises(StoreError, match="holds a network, not a training run"):
        train(fresh(), path)
    path.write_text("something else")
    with pytest.raises(StoreError, match="not a safetensors file"):
        train(fresh(), path)
    assert path.read_text() == "something else"


def test_a_place_that_cannot_be_written_to_is_known_before_the_first_iteration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        train(fresh(), tmp_path / "file" / "run", callback=stop_at(1))
