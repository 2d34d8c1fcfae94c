"""The command line: ``casal list``, ``casal run``, ``casal reproduce``, ``casal report``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
except ImportError:  # the core needs torch and numpy only
    sys.exit("the command line needs the report extra: pip install 'casal[report]'")

import torch

from casal import __version__
from casal.lab.experiments import EXPERIMENTS

app = typer.Typer(
    help="Strictly constrained generative sampling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


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


@app.command("list")
def list_experiments() -> None:
    """What can be run, and the question each experiment answers."""
    for experiment in EXPERIMENTS.values():
        console.print(f"[bold]{experiment.name}[/]  {experiment.question}")
        console.print(f"    methods: {', '.join(experiment.methods)}", style="dim")


@app.command()
def run(
    problem: Annotated[str, typer.Argument(help="Name of an experiment, as in 'casal list'.")],
    method: Annotated[list[str] | None, typer.Option(help="Run only this method; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and seeds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and pictures.")] = None,
) -> None:
    """Run an experiment: print its table, write Markdown, JSON and pictures."""
    from casal.lab.report.tables import outcome_json, outcome_markdown, show

    experiment = EXPERIMENTS.get(problem)
    if experiment is None:
        raise typer.BadParameter(f"no experiment {problem!r}; there are: {', '.join(EXPERIMENTS)}")
    unknown = set(method or ()) - set(experiment.methods)
    if unknown:
        raise typer.BadParameter(
            f"no method {sorted(unknown)} in {problem}; there are: {', '.join(experiment.methods)}"
        )
    console.print(f"[bold]{experiment.name}[/]: {experiment.question}")
    with console.status("starting") as status:
        outcome = experiment.run(quick, method or None, lambda line: status.update(f"running {line}"))
    show(console, outcome)
    folder = out or Path("out") / problem
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(outcome_markdown(outcome, experiment.question), encoding="utf-8")
    (folder / "results.json").write_text(outcome_json(outcome), encoding="utf-8")
    for path in experiment.draw(outcome, folder):
        console.print(f"picture: {path}")
    console.print(f"tables:  {folder / 'results.md'}   ({outcome.seconds:.1f} s)")


@app.command("reproduce")
def reproduce_all(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and seeds.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this experiment; may be repeated.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; what is left out is named.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for outcomes and page.")] = Path("out/reproduce"),
) -> None:
    """Run every experiment that is not on disk yet, and write one page of them all."""
    from casal.lab.report.html import write_page
    from casal.lab.report.page_run import Ran, reproduce

    unknown = set(only or ()) - set(EXPERIMENTS)
    if unknown:
        raise typer.BadParameter(f"no experiment {sorted(unknown)}; there are: {', '.join(EXPERIMENTS)}")
    ran, interrupted = Ran(), False
    try:
        with console.status("starting") as status:
            reproduce(
                EXPERIMENTS,
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
    page = write_page(EXPERIMENTS, out, ran.missing)
    chosen = [part for name in only or () for part in ("--only", name)]
    again = " ".join(["casal reproduce", *(["--quick"] if quick else []), *chosen, "--out", str(out)])
    if interrupted or ran.late:
        console.print(f"to run the rest: {again}", soft_wrap=True)
    console.print(f"page: {page.resolve()}", soft_wrap=True)
    if interrupted:
        raise typer.Exit(130)
    if ran.failed:
        raise typer.Exit(1)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of 'casal reproduce'.")]) -> None:
    """Write the page again from the outcomes on disk; nothing is run."""
    from casal.lab.report.cache import names
    from casal.lab.report.html import write_page

    if not list(names(folder)):
        raise typer.BadParameter(f"{folder} holds no outcomes; 'casal reproduce --out {folder}' makes them")
    console.print(f"page: {write_page(EXPERIMENTS, folder).resolve()}", soft_wrap=True)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains and rounds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.md and bench.json.")] = Path("out/bench"),
    only: Annotated[
        list[str] | None, typer.Option(help="One group: field, burgers, projections, memory; may be repeated.")
    ] = None,
) -> None:
    """Time the samplers: ratios, threads, memory, the paper's runtime table."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "__main__.py").exists():
        raise typer.BadParameter(
            "the benchmarks are not part of the installed package; clone the repository, 'pip install -e .' in it, and "
            "run 'casal bench' again, or 'python -m benchmarks' there"
        )
    sys.path.insert(0, str(root))
    folder = import_module("benchmarks.__main__").main(quick, out, only)
    console.print(f"tables:  {folder / 'bench.md'}")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
