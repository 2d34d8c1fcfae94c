"""The command line: ``casal list``, ``casal run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ImportError:  # the core needs torch and numpy only
    sys.exit("the command line needs the report extra: pip install 'casal[report]'")

import torch

from casal import __version__
from casal.problems import REGISTRY

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
    for experiment in REGISTRY.values():
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
    from casal.report.figures import draw
    from casal.report.tables import outcome_json, outcome_markdown, show

    experiment = REGISTRY.get(problem)
    if experiment is None:
        raise typer.BadParameter(f"no experiment {problem!r}; there are: {', '.join(REGISTRY)}")
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
    for path in draw(outcome, folder):
        console.print(f"picture: {path}")
    console.print(f"tables:  {folder / 'results.md'}   ({outcome.seconds:.1f} s)")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
