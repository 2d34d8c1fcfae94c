"""Every block of code in the documentation runs, or names only what exists; every public name has an example.

A block marked ``python`` runs as it is written. A block marked ``py`` needs something that is not here (a cluster, a
checkpoint): it is parsed, and its calls of casal must exist with these arguments. The blocks of the pages in
``ELSEWHERE`` run in other tests, which also check what they return.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import casal
import casal.store
from casal.errors import CasalWarning
from casal_lab import benchmark

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"README.md", "index.md", "start.md", "models.md", "sets.md", "benchmark.md"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def example() -> dict[str, Any]:
    """The names that a page takes as given: a model, a constraint, a method and a number of chains."""
    return {
        "casal": casal,
        "torch": torch,
        "target": casal.langevin(lambda x: x - 1.0, steps=60, step_size=0.1, init=torch.zeros(400, 2)),
        "constraint": casal.Ball(1.5),
        "method": casal.CASAL(rho=10.0),
        "n": 400,
    }


def run(code: str, known: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CasalWarning)  # few chains
        exec(code, known)


# ---------------------------------------------------------------------------------------------- blocks that run


def test_no_page_is_forgotten() -> None:
    here = {"is_it_right.md", "runs.md", "quadrotor.md", "reproduce.md"}
    pages = {page.name for page in PAGES if page.parent.name != "tutorials" and blocks(page, "python")}
    assert pages == here | ELSEWHERE


def test_the_example_of_is_it_right(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(ROOT / "docs" / "is_it_right.md", "python")
    known = example()
    run(block.replace("1000", "400"), known)
    assert known["result"].fidelity.verdict in {"trusted", "suspect", "too few"}
    assert "distribution" in capsys.readouterr().out
    assert known["error"] > 0


@pytest.mark.slow
def test_the_examples_of_large_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("matplotlib", "xarray", "zarr", "arviz"):
        pytest.importorskip(extra)
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    known = example()
    code = "\n".join(blocks(ROOT / "docs" / "runs.md", "python"))
    code = code.replace("1_000_000", "400").replace(", 1000,", ", 400,").replace("result.to_arviz()", "None")
    code = code.replace('result.save("run.zarr")', 'result.save("first.zarr")')  # the page shows two runs of one name
    run(code, known)
    assert {path.name for path in tmp_path.iterdir()} == {"result.png", "first.zarr", "run.zarr", "other.zarr"}
    assert torch.equal(casal.load("run.zarr").samples, casal.load("other.zarr").samples)


@pytest.mark.slow
def test_the_example_of_the_quadrotor() -> None:
    (block,) = blocks(ROOT / "docs" / "quadrotor.md", "python")
    known: dict[str, Any] = {}
    run(block.replace("n=400", "n=8").replace('"twisted"', '"zero"'), known)
    assert known["paths"].positions.shape[0] == 8


def test_the_example_of_an_own_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    from casal_lab import experiments

    monkeypatch.setattr(experiments, "EXPERIMENTS", dict(experiments.EXPERIMENTS))
    (block,) = blocks(ROOT / "docs" / "reproduce.md", "python")
    run(block, {"run": lambda quick, methods, tell: None, "draw": lambda outcome, folder: []})
    assert "mine" in experiments.EXPERIMENTS


def test_the_example_of_a_diffusers_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    diffusers = pytest.importorskip("diffusers")
    pipeline = diffusers.DDPMPipeline(small_unet(8), diffusers.DDPMScheduler())
    monkeypatch.setattr(diffusers.DDPMPipeline, "from_pretrained", lambda name: pipeline)
    (block,) = (block for block in blocks(ROOT / "docs" / "models.md", "py") if "diffusers" in block)
    known: dict[str, Any] = {}
    run(block.replace("steps=30", "steps=5"), known)
    assert bool(known["result"].certificate.feasible.all())


def small_unet(size: int) -> Any:
    import diffusers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
        small = {"block_out_channels": (4, 4), "layers_per_block": 1, "norm_num_groups": 2, "add_attention": False}
        return diffusers.UNet2DModel(sample_size=size, in_channels=1, out_channels=1, **kinds, **small).eval()


# ---------------------------------------------------------------------------------------------- blocks that are read


def found(node: ast.expr) -> Any:
    """What ``casal.a.b`` stands for, or None if the expression is something else."""
    if isinstance(node, ast.Name):
        return casal if node.id == "casal" else None
    if isinstance(node, ast.Attribute) and (owner := found(node.value)) is not None:
        return getattr(owner, node.attr)  # raises if the page names what does not exist
    return None


def misnamed(code: str) -> list[str]:
    """Keywords of calls of casal that these functions do not take."""
    wrong = []
    for node in ast.walk(ast.parse(code)):
        called = found(node.func) if isinstance(node, ast.Call) else None
        if called is not None and not (inspect.isclass(called) and issubclass(called, Exception)):
            takes = inspect.signature(called).parameters
            kinds = {parameter.kind for parameter in takes.values()}
            open_ended = inspect.Parameter.VAR_KEYWORD in kinds and called is not casal.sample  # which takes old names
            wrong += [key.arg for key in node.keywords if key.arg and key.arg not in takes and not open_ended]
    return wrong


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "py(?:thon)?")], ids=lambda page: page.name)
def test_code_calls_what_exists(page: Path) -> None:
    for code in blocks(page, "py(?:thon)?"):
        assert misnamed(code) == []


def test_a_call_that_does_not_exist_is_found() -> None:
    assert misnamed("casal.sample(target, constraint, method, n, worker=4)") == ["worker"]
    with pytest.raises(AttributeError):
        misnamed("casal.NoSuchSet(1.0)")


def test_the_stages_of_the_design_page_are_those_of_the_code() -> None:
    from casal.methods import Each, Together

    (block,) = blocks(ROOT / "docs" / "design.md", "py")
    told = re.findall(r"^    (\w+):", block, re.MULTILINE)
    assert told == [*Each._fields, *Together._fields]


# ---------------------------------------------------------------------------------------------- an example of each name


def doctests(folder: Path) -> str:
    """The code and the output of all doctests below a folder."""
    parser, text = doctest.DocTestParser(), []
    for code in (path.read_text(encoding="utf-8") for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(code)) if ">>> " in code else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (told := ast.get_docstring(node)):
                text += [f"{example.source}\n{example.want}" for example in parser.get_examples(told)]
    return "\n".join(text)


def public() -> list[str]:
    """The names of the package, of the reference page, of the benchmark, and the errors."""
    modules = {"diagnostics", "errors", "__version__"}
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: casal\.[\w.]*?(\w+)$", page, re.MULTILINE) + re.findall(
        r"^ +- (\w+)$", page, re.MULTILINE
    )
    errors = [
        name for name, kind in vars(casal.errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)
    ]
    names = {*casal.__all__, *casal.BRIDGES, *listed, *errors, "CasalWarning", *benchmark.__all__}
    return sorted(names - modules)


def test_every_public_name_has_an_example_that_runs() -> None:
    code = "\n".join(
        [
            doctests(ROOT / "src" / "casal"),
            doctests(ROOT / "lab" / "src" / "casal_lab"),
            *(block for page in PAGES for block in blocks(page, "python")),
            *(path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")),
        ]
    )
    without = [name for name in public() if not re.search(rf"\.{name}\b|\b{name}[.(:]|import .*\b{name}\b", code)]
    assert without == [], f"{len(without)} public names have no example: {', '.join(without)}"
