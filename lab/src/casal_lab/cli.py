"""The command line, which ``casal_lab.__main__`` starts: demo, list, run, reproduce, report, gallery, bench, benchmark.

Each command imports what it needs when it is called, so that no command waits for the libraries of the others.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from importlib.metadata import entry_points
from importlib.metadata import version as metadata_version
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

if TYPE_CHECKING:
    from casal_lab.experiment import Experiment, Outcome, Tell


class _Commands(TyperGroup):
    """The commands; Ctrl-C ends each with the exit code for it and without a traceback, whatever it was doing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            console.print("stopped")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    help="Strictly constrained generative sampling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

WIDE = 10_000
"""Columns of an output that is no terminal: lines are as long as they need."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""

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
    from casal_lab.experiments import EXPERIMENTS

    known = dict(EXPERIMENTS)
    for point in entry_points(group="casal.experiments"):
        try:
            found: Experiment = point.load()
            known.setdefault(found.name, found)
        except Exception as error:  # a broken package must not take the other experiments away
            console.print(
                f"{point.value} cannot be loaded: {type(error).__name__}: {error}", markup=False, style="yellow"
            )
    return known


def _check(what: str, wanted: Iterable[str], known: Iterable[str]) -> None:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        there = ", ".join(repr(name) if "," in name else name for name in known)
        raise typer.BadParameter(f"no {what} {', '.join(map(repr, unknown))}; there are: {there}")


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
        console.print(", ".join(f"{name} {metadata_version(name)}" for name in ("casal", "torch")))
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Strictly constrained generative sampling."""
    import torch

    torch.set_num_threads(1)  # small tensors on several threads are far slower than on one
    if not console.is_terminal:
        console.width = WIDE


def _first_line(thing: object) -> str:
    return (getdoc(thing) or "").partition("\n")[0]


def _registry(what: str, modules: Iterable[str]) -> Iterable[tuple[str, str, Sequence[str]]]:
    """Name, what it is, and more lines, of every row of a registry."""
    found = experiments(modules)  # whose modules may bring methods and sets too
    if what == "experiments":
        for experiment in found.values():
            yield experiment.name, experiment.question, [f"--method {shlex.quote(name)}" for name in experiment.methods]
        return
    from casal.constraints import SETS
    from casal.methods import METHODS
    from casal.targets import TARGETS

    if what == "methods":
        for name, row in METHODS.items():
            promises = ["strict"] * row.example.strict + ["distribution"] * row.example.promises_distribution
            yield name, _first_line(row.example), [f"{row.example!r}; {', '.join(promises) or 'promises nothing'}"]
    for name, thing in {"sets": SETS, "models": TARGETS}.get(what, {}).items():
        yield name, _first_line(thing), []


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("out/demo"),
) -> None:
    """Sample six small problems by the model alone, one projection and casal, and write one page: two minutes."""
    from casal_lab import demo as problems
    from casal_lab.demo import page, processes
    from casal_lab.demo.cards import Card, blank
    from casal_lab.report.stopping import Stopped, stops

    _check_folder(out)
    modules = problems.MODULES
    doing, done, screen, interrupted = dict[str, str](), dict[str, Card](), None, False

    def tell(name: str, line: str) -> None:
        doing[name] = line
        status.update(escape("sampling " + "; ".join(f"{name}: {line}" for name, line in doing.items())))

    try:
        with console.status("sampling the first screen") as status, stops():
            screen = page.first_screen()
            with closing(processes.cards(modules, tell)) as found:
                for card in found:
                    done[card.name] = card
                    doing.pop(card.name, None)
                    console.print(f"[{len(done)}/{len(modules)}] {card}", markup=False, soft_wrap=True)
    except (KeyboardInterrupt, Stopped):
        interrupted = True
    if screen is None:
        raise KeyboardInterrupt
    order = [done[name] for name in (blank(module).name for module in modules) if name in done]
    stopped = f"Stopped by Ctrl-C after {len(order)} of {len(modules)} problems." if interrupted else ""
    if stopped:
        console.print(stopped)
    path = page.write_page(screen, order, out, stopped)
    console.print(f"page: {path.resolve()}", soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if any(card.failure for card in order):
        raise typer.Exit(1)


@app.command("list")
def list_registry(
    what: Annotated[str, typer.Argument(help="experiments, methods, sets or models.")] = "experiments",
    module: Modules = None,
) -> None:
    """What can be run, with the question of each experiment and its methods; or every method, set or model family."""
    _check("list of", [what], ("experiments", "methods", "sets", "models"))
    for name, text, more in _registry(what, module or ()):
        console.print(f"[bold]{escape(name)}[/]  {escape(text)}")
        for line in more:
            console.print(f"    {escape(line)}", style="dim")


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
    from casal_lab.report.cache import write
    from casal_lab.report.stopping import perform
    from casal_lab.report.tables import show

    known = experiments(module or ())
    _check("experiment", [problem], known)
    experiment = known[problem]
    _check(f"method of {problem}", method or (), experiment.methods)
    if seed and scene is None and experiment.run_seed is None:
        raise typer.BadParameter(f"--seed {seed} is for --scene; {problem} alone runs over its own seeds")
    _check(f"scene of {problem}", [] if scene is None else [scene], experiment.scenes or ("none",))
    folder = out or Path("out") / problem
    _check_folder(folder)
    chosen = [*_repeated("--method", method), *(["--scene", scene] if scene is not None else [])]
    chosen += ["--seed", str(seed)] if seed else []
    console.print(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question)}")

    def start(tell: Tell) -> Outcome:
        if scene is not None and experiment.run_scene is not None:
            return experiment.run_scene(scene, seed, quick, method or None, tell)
        if seed and experiment.run_seed is not None:
            return experiment.run_seed(seed, quick, method or None, tell)
        return experiment.run(quick, method or None, tell)

    with console.status("starting") as status:
        outcome = perform(experiment, start, lambda line: status.update(escape(f"running {line}")))
    show(console, outcome)
    if outcome.partial is None:
        record = write(folder, experiment, quick, outcome, chosen)
        for name in record.stamp.pictures:
            console.print(f"picture: {folder / name}", markup=False)
        console.print(f"tables:  {folder / 'results.md'}   ({outcome.seconds:.1f} s)", markup=False)
        return
    _keep_partial(folder, experiment, quick, outcome, chosen)
    again = ["casal", "run", problem, *(["--quick"] if quick else []), *chosen]
    again += ["--out", str(folder), *_repeated("--module", module)]
    console.print(f"to run it again, from the start: {shlex.join(again)}", soft_wrap=True, markup=False)
    raise typer.Exit(INTERRUPTED)


def _keep_partial(folder: Path, experiment: Experiment, quick: bool, outcome: Outcome, chosen: Sequence[str]) -> None:
    """Write the finished rows of a run that was stopped, unless there are none or there is more in the folder."""
    from casal_lab.report.cache import keeps, write

    kept = keeps(folder, experiment, outcome)
    if not outcome.rows:
        console.print("no row was finished; nothing is written")
    elif kept is not None:
        console.print(f"not written: {folder} has the outcome of {kept.stamp.made}, which has more", markup=False)
    else:
        write(folder, experiment, quick, outcome, chosen)
        console.print(f"tables:  {folder / 'results.md'}   ({outcome.rows} finished rows)", markup=False)
    done = {str(row.get("method")) for table in outcome.tables for row in table.rows}
    left = [label for label in experiment.methods if label not in done]
    if outcome.rows and len(left) < len(experiment.methods):
        console.print("methods without a row:", *(f"  --method {shlex.quote(label)}" for label in left), sep="\n")


@app.command("reproduce")
def reproduce_all(
    quick: Quick = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be repeated.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit; the page names what was not run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for outcomes and page.")] = Path("out/reproduce"),
    module: Modules = None,
) -> None:
    """Run every experiment that is not on disk yet, and write one page of them all."""
    from casal_lab.report.cache import names
    from casal_lab.report.page import write_page
    from casal_lab.report.reproduce import Ran, reproduce

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
        console.print("stopped; experiments and rows that were finished are kept")
    page = write_page(known, out, ran.missing, ran.more)
    if ran.more:
        console.print(ran.more, markup=False)
    if interrupted or ran.late:
        again = ["casal", "reproduce", *(["--quick"] if quick else []), *_repeated("--only", only)]
        again += ["--out", str(out), *_repeated("--module", module)]
        console.print(f"to run the rest: {shlex.join(again)}", soft_wrap=True, markup=False)
    console.print(f"page: {page.resolve()}", soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if ran.failed or not names(out):
        raise typer.Exit(1)


def _repeated(option: str, values: Sequence[str] | None) -> list[str]:
    return [part for value in values or () for part in (option, value)]


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of 'casal reproduce' or 'casal run'.")], module: Modules = None
) -> None:
    """Write the page again from the outcomes on disk; nothing is run."""
    from casal_lab.report.cache import names
    from casal_lab.report.page import write_page

    if not names(folder):
        raise typer.BadParameter(
            f"{folder} holds no outcomes; 'casal reproduce --out {folder}' or 'casal run NAME --out {folder}' make some"
        )
    console.print(f"page: {write_page(experiments(module or ()), folder).resolve()}", soft_wrap=True, markup=False)


@app.command()
def gallery(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("out/gallery.html"),
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be repeated.")] = None,
    module: Modules = None,
) -> None:
    """Write a page of chains in motion under several methods, with the exact distribution behind."""
    from casal_lab.report.gallery import write_gallery

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
    n: Annotated[
        int | None, typer.Option(min=2, help="Samples of a run; fewer on problems that say so.", show_default="256")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each sampler on each problem.", show_default="3")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=4, help="Evaluations of the model for each sample.", show_default="2000")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Six problems, six samplers, 100 samples, two seeds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for results.json, results.md and the page.")] = Path(
        "out/benchmark"
    ),
    module: Modules = None,
) -> None:
    """Compare samplers on constrained distributions whose exact answers are known."""
    from dataclasses import replace

    from casal_lab import benchmark
    from casal_lab.benchmark.page import write_page
    from casal_lab.report.stopping import Stopped, stops
    from casal_lab.report.tables import show

    n, seeds, budget = n or benchmark.SAMPLES, seeds or benchmark.SEEDS, budget or benchmark.BUDGET
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
    interrupted = False
    try:
        with console.status("starting") as status, stops():
            on_screen: Tell = lambda line: status.update(escape(f"running {line}"))  # noqa: E731
            in_file: Tell = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731
            tell = on_screen if console.is_terminal else in_file
            results = benchmark.run(chosen, wanted, n=n, seeds=seeds, budget=budget, out=out, tell=tell)
    except (KeyboardInterrupt, Stopped):
        interrupted = True
        console.print("stopped; the same command goes on from here")
        if not (out / "results.json").exists():
            raise typer.Exit(INTERRUPTED) from None
        results = benchmark.Results.from_json((out / "results.json").read_text(encoding="utf-8"))
    outcome = results.outcome()
    if console.is_terminal and console.width < results.width:
        show(console, replace(outcome, tables=outcome.tables[:1]))
        console.print(f"every problem: {(out / 'results.md').resolve()}", soft_wrap=True, markup=False)
    else:
        print(results)
    console.print(f"page: {write_page(results, out).resolve()}", soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
