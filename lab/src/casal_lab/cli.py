"""The command line, which ``casal_lab.__main__`` starts: list, run, reproduce, report, gallery, bench, benchmark."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getdoc
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape

from casal import __version__
from casal.constraints import SETS
from casal.methods import METHODS
from casal.targets import TARGETS
from casal_lab import benchmark
from casal_lab.benchmark import page as bench_page
from casal_lab.experiment import Experiment, Tell
from casal_lab.experiments import EXPERIMENTS
from casal_lab.report.cache import names, write_outcome
from casal_lab.report.gallery import write_gallery
from casal_lab.report.page import write_page
from casal_lab.report.reproduce import Ran, reproduce
from casal_lab.report.tables import show

app = typer.Typer(
    help="Strictly constrained generative sampling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

YEAR = 525_600
"""Minutes of a year: the longest time that is not a slip of the pen."""

Modules = Annotated[
    list[str] | None,
    typer.Option("--module", help="Import this module first, so that its experiments join; may be repeated."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer chains and seeds.")]


def experiments(modules: Iterable[str] = ()) -> Mapping[str, Experiment]:
    """Every experiment there is, by name.

    The library's own; then those that ``modules`` put into the registry when they are imported; then those of
    installed packages, which name an ``Experiment`` under the entry point group ``casal.experiments``.
    """
    if modules and "" not in sys.path:
        sys.path.insert(0, "")  # as python -m does: modules of the working directory are found
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise typer.BadParameter(f"there is no module {module!r} here or among the installed ones") from error
    known = dict(EXPERIMENTS)
    for point in entry_points(group="casal.experiments"):
        try:
            found: Experiment = point.load()
            known.setdefault(found.name, found)
        except Exception as error:  # a broken package must not take the other experiments away
            console.print(f"{point.value} is left out: {type(error).__name__}: {error}", markup=False, style="yellow")
    return known


def _check(what: str, wanted: Iterable[str], known: Iterable[str]) -> None:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise typer.BadParameter(f"no {what} {', '.join(map(repr, unknown))}; there are: {', '.join(known)}")


def _check_folder(out: Path) -> None:
    """Make the folder of a run before the run, or say why there can be none."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        at = next((part for part in (out, *out.parents) if part.exists()), out)
        reason = f"{at} is a file" if at.is_file() else error.strerror or str(error)
        raise typer.BadParameter(f"--out must be a folder, and {out} cannot be one: {reason}") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"--out must be a folder that can be written to, and {out} is not")


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"casal {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Strictly constrained generative sampling."""
    # Small tensors on several threads are far slower than on one.
    torch.set_num_threads(1)


def _first_line(thing: object) -> str:
    return (getdoc(thing) or "").partition("\n")[0]


def _registry(what: str, modules: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """Name, what it is, and one more line, of every row of a registry."""
    if what == "experiments":
        for experiment in experiments(modules).values():
            yield experiment.name, experiment.question, f"methods: {', '.join(experiment.methods)}"
        return
    experiments(modules)  # whose modules may bring methods and sets too
    if what == "methods":
        for name, row in METHODS.items():
            promises = ["strict"] * row.example.strict + ["distribution"] * row.example.promises_distribution
            yield name, _first_line(row.example), f"{row.example!r}; {', '.join(promises) or 'promises nothing'}"
    for name, thing in {"sets": SETS, "models": TARGETS}.get(what, {}).items():
        yield name, _first_line(thing), ""


@app.command("list")
def list_registry(
    what: Annotated[str, typer.Argument(help="experiments, methods, sets or models.")] = "experiments",
    module: Modules = None,
) -> None:
    """What can be run, with the question each experiment answers; or every method, set or model family."""
    _check("list of", [what], ("experiments", "methods", "sets", "models"))
    for name, text, more in _registry(what, module or ()):
        console.print(f"[bold]{escape(name)}[/]  {escape(text)}")
        if more:
            console.print(f"    {escape(more)}", style="dim")


@app.command()
def run(
    problem: Annotated[str, typer.Argument(help="Name of an experiment, as in 'casal list'.")],
    method: Annotated[list[str] | None, typer.Option(help="Run only this method; may be repeated.")] = None,
    quick: Quick = False,
    scene: Annotated[str | None, typer.Option(help="Run all methods in one scene of the experiment.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Draws the test cases, or with --scene the scene and the samples.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and pictures.")] = None,
    module: Modules = None,
) -> None:
    """Run an experiment: print its table, write Markdown, JSON and pictures."""
    known = experiments(module or ())
    _check("experiment", [problem], known)
    experiment = known[problem]
    _check(f"method of {problem}", method or (), experiment.methods)
    if seed and scene is None and experiment.run_seed is None:
        raise typer.BadParameter(f"--seed {seed} is for --scene; {problem} alone runs over its own seeds")
    _check(f"scene of {problem}", [] if scene is None else [scene], experiment.scenes or ("none",))
    folder = out or Path("out") / problem
    _check_folder(folder)
    console.print(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question)}")
    with console.status("starting") as status:
        tell: Tell = lambda line: status.update(escape(f"running {line}"))  # noqa: E731
        if seed and scene is None and experiment.run_seed is not None:
            outcome = experiment.run_seed(seed, quick, method or None, tell)
        elif scene is None or experiment.run_scene is None:
            outcome = experiment.run(quick, method or None, tell)
        else:
            outcome = experiment.run_scene(scene, seed, quick, method or None, tell)
    show(console, outcome)
    for path in write_outcome(folder, experiment, outcome):
        console.print(f"picture: {path}", markup=False)
    console.print(f"tables:  {folder / 'results.md'}   ({outcome.seconds:.1f} s)", markup=False)


@app.command("reproduce")
def reproduce_all(
    quick: Quick = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be repeated.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; what is left out is named.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for outcomes and page.")] = Path("out/reproduce"),
    module: Modules = None,
) -> None:
    """Run every experiment that is not on disk yet, and write one page of them all."""
    known = experiments(module or ())
    _check("experiment", only or (), known)
    if minutes is not None and not 0 < minutes <= YEAR:
        raise typer.BadParameter(
            f"--minutes must be a number > 0 and at most {YEAR}, got {minutes:g}; leave it out for no limit"
        )
    _check_folder(out)
    ran, interrupted = Ran(), False
    try:
        with console.status("starting") as status:
            reproduce(
                known,
                out,
                quick=quick,
                only=only or (),
                minutes=minutes,
                say=lambda line: console.print(line, markup=False),
                tell=lambda line: status.update(escape(line)),
                ran=ran,
            )
    except KeyboardInterrupt:
        interrupted = True
        console.print("stopped; the experiments that ended are kept")
    page = write_page(known, out, ran.missing)
    if interrupted or ran.late:
        again = ["casal", "reproduce", *(["--quick"] if quick else []), *_repeated("--only", only)]
        again += ["--out", str(out), *_repeated("--module", module)]
        console.print(f"to run the rest: {shlex.join(again)}", soft_wrap=True, markup=False)
    console.print(f"page: {page.resolve()}", soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(130)
    if ran.failed:
        raise typer.Exit(1)


def _repeated(option: str, values: Sequence[str] | None) -> list[str]:
    return [part for value in values or () for part in (option, value)]


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of 'casal reproduce'.")], module: Modules = None
) -> None:
    """Write the page again from the outcomes on disk; nothing is run."""
    if not names(folder):
        raise typer.BadParameter(f"{folder} holds no outcomes; 'casal reproduce --out {folder}' makes them")
    console.print(f"page: {write_page(experiments(module or ()), folder).resolve()}", soft_wrap=True, markup=False)


@app.command()
def gallery(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("out/gallery.html"),
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be repeated.")] = None,
    module: Modules = None,
) -> None:
    """Write a page of chains in motion under several methods, with the exact distribution behind."""
    moving = {name: found for name, found in experiments(module or ()).items() if found.moving is not None}
    _check("experiment in the gallery", only or (), moving)
    _check_folder(out.parent)
    wanted = {name: found for name, found in moving.items() if not only or name in only}
    with console.status("starting") as status:
        page = write_gallery(wanted, out, lambda line: status.update(escape(f"running {line}")))
    console.print(f"page: {page.resolve()}", soft_wrap=True, markup=False)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and rounds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.md and bench.json.")] = Path("out/bench"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="One group: field, compiled, weighted, burgers, projections, memory ...; may be repeated."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Samplers of others beside ours: error per second, with a picture.")
    ] = False,
) -> None:
    """Time the samplers: ratios, threads, memory, the paper's runtime table."""
    root = Path(__file__).parents[3]  # of a clone: lab/src/casal_lab/cli.py
    if not (root / "benchmarks" / "__main__.py").exists():
        raise typer.BadParameter(
            "the benchmarks are not part of the installed package; clone the repository, pip install -e . -e lab "
            "there and run 'casal bench' again, or 'python -m benchmarks'"
        )
    sys.path.insert(0, str(root))
    benchmarks = import_module("benchmarks.__main__")
    groups = [*(only or []), *(["compare"] if compare else [])]
    _check("group", groups, benchmarks.GROUPS)
    _check_folder(out)
    folder = benchmarks.main(quick, out, groups or None)
    console.print(f"tables:  {folder / 'bench.md'}", markup=False)


@app.command("benchmark")
def bench_distributions(
    only: Annotated[list[str] | None, typer.Option(help="Problems whose names contain this; may be repeated.")] = None,
    sampler: Annotated[
        str | None, typer.Option(help="Samplers, with commas between; all that come with the benchmark if left out.")
    ] = None,
    n: Annotated[int, typer.Option(min=2, help="Samples of a run; fewer on problems that say so.")] = (
        benchmark.SAMPLES
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each sampler on each problem.")] = benchmark.SEEDS,
    budget: Annotated[int, typer.Option(min=4, help="Evaluations of the model for each sample.")] = benchmark.BUDGET,
    quick: Annotated[bool, typer.Option("--quick", help="Six problems, six samplers, 100 samples, two seeds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results.json, results.md and the page.")] = Path(
        "out/benchmark"
    ),
    module: Modules = None,
) -> None:
    """Compare samplers on constrained distributions whose exact answers are known."""
    experiments(module or ())  # whose modules may bring problems and samplers too
    wanted = [name for name in benchmark.PROBLEMS if not only or any(part in name for part in only)]
    if not wanted:
        raise typer.BadParameter(f"no problem has {', '.join(map(repr, only or ()))} in its name")
    chosen = list(benchmark.SAMPLERS) if sampler is None else [part.strip() for part in sampler.split(",")]
    if quick:
        wanted = wanted if only else list(benchmark.QUICK)
        chosen = chosen if sampler else list(benchmark.QUICK_SAMPLERS)
        n, seeds = min(n, 100), min(seeds, 2)
    _check("sampler", chosen, benchmark.SAMPLERS)
    _check_folder(out)
    try:
        with console.status("starting") as status:
            on_screen: Tell = lambda line: status.update(escape(f"running {line}"))  # noqa: E731
            in_file: Tell = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731
            tell = on_screen if console.is_terminal else in_file
            results = benchmark.run(chosen, wanted, n=n, seeds=seeds, budget=budget, out=out, tell=tell)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        if not (out / "results.json").exists():
            raise typer.Exit(130) from None
        results = benchmark.Results.from_json((out / "results.json").read_text(encoding="utf-8"))
    outcome = results.outcome()
    if console.is_terminal and console.width < results.width:
        show(console, replace(outcome, tables=outcome.tables[:1]))
        console.print(f"every problem: {(out / 'results.md').resolve()}", soft_wrap=True, markup=False)
    else:
        print(results)
    console.print(f"page: {bench_page.write_page(results, out).resolve()}", soft_wrap=True, markup=False)
