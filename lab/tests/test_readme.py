"""The README and the home page: every block runs and prints what it shows, and every figure has an owner."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import casal
from casal.errors import CasalWarning
from casal_lab.report import tutorials

ROOT = Path(__file__).parents[2]
MOST_WORDS = 800
"""Of the README, code included: four minutes."""


@cache
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(readme().split()) <= MOST_WORDS


def test_every_block_prints_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    told, found = tutorials.blocks(readme()), tutorials.run(readme(), tmp_path, "readme")
    for block, printed in zip(told, found, strict=True):
        assert tutorials.agrees(block.printed or "", printed), f"line {block.line}:\n{printed}"


def test_the_exact_means_are_ratios_of_bessel_functions() -> None:
    # On a circle of radius R the density is von Mises-Fisher: E z1 = R (m1 / |m|) I1(R |m|) / I0(R |m|).
    mean, radius = torch.tensor([1.0, 0.5], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    strength = radius * mean.norm()
    small, large = radius * mean[0] / mean.norm() * torch.special.i1(strength) / torch.special.i0(strength)
    assert f"The exact mean is {large:.3f}." in readme() and f"Exact: {small:.3f} and {large:.3f}." in readme()


@pytest.mark.slow
@pytest.mark.parametrize("fields", ["", "casal.Affine(torch.ones(1, 256), [20.0])"], ids=["as it is", "mass alone"])
def test_your_own_network_costs_what_is_said(fields: str) -> None:
    diffusers = pytest.importorskip("diffusers")
    (block,) = re.findall(r"```py\n(.*?)```", readme(), re.DOTALL)
    block = re.sub("fields = .*", f"fields = {fields}", block) if fields else block
    told = re.search(r"(\d+) to (\d+) model calls per chain, where\s+the bare run takes (\d+)", readme())
    assert told is not None
    fewest, most, bare = map(int, told.groups())
    known: dict[str, Any] = {"casal": casal, "torch": torch, "unet": small_unet()}
    known["scheduler"] = diffusers.DDPMScheduler(clip_sample=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)  # few chains
        exec(block, known)
    result = known["result"]
    assert bool(result.certificate.feasible.all())
    assert f"steps={bare}" in block
    assert fewest <= result.cost.score_evaluations <= most


def small_unet() -> Any:
    import diffusers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
        small = {"block_out_channels": (4, 4), "layers_per_block": 1, "norm_num_groups": 2, "add_attention": False}
        return diffusers.UNet2DModel(sample_size=16, in_channels=1, out_channels=1, **kinds, **small).eval()


def test_the_table_is_that_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    names = next(row for row in rows if row[:2] == ["sampler", "problems"])
    columns = [names.index(name) for name in ("error / floor (geometric mean)", "within 2 floors")]
    columns.append(names.index("evaluations a sample (geometric mean)"))
    found = {row[0]: [row[k] for k in columns] for row in rows if len(row) == len(names)}
    ours = {
        'casal, `"auto"`': "auto",
        "CASAL without weights": "CASAL",
        "projection at every step": "projected",
        "Algorithm 2, as printed": "Algorithm 2",
        "one final projection": "final projection",
    }
    told = re.findall(r"^\| (.+?) \| ([\d.]+) \| (\d+%) \| (\d+) \|$", readme(), re.MULTILINE)
    assert {name: values for name, *values in told} == {name: found[row] for name, row in ours.items()}


def test_the_commands_and_extras_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"^make {target}\b", readme(), re.MULTILINE)
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extras,) = re.findall(r'pip install "\.\[(.*?)\]"', readme())
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_the_home_page_shows_the_same() -> None:
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (block,) = tutorials.blocks(home)
    assert (block.code, block.printed) == tutorials.blocks(readme())[0][:2]
    promise = re.search(r"\*\*Draw samples.*?\*\*.*?checks both\.", readme(), re.DOTALL)
    assert promise is not None and promise[0] in home
