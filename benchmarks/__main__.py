"""``python -m benchmarks [--quick] [--out DIR]`` times everything and writes ``bench.md`` and ``bench.json``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks import (
    burgers,
    compare,
    compiled,
    conditions,
    diffusers_steps,
    dimensions,
    feasibility,
    field,
    implicit,
    inside,
    ladders,
    memory,
    projections,
    sparse,
    weighted,
)
from benchmarks.timing import Table, machine

GROUPS = {
    "field": field.tables,
    "weighted": weighted.tables,
    "compiled": compiled.tables,
    "compare": compare.tables,
    "burgers": burgers.tables,
    "projections": projections.tables,
    "feasibility": feasibility.tables,
    "sparse": sparse.tables,
    "conditions": conditions.tables,
    "diffusers": diffusers_steps.tables,
    "ladders": ladders.tables,
    "implicit": implicit.tables,
    "inside": inside.tables,
    "dimensions": dimensions.tables,
    "memory": lambda quick: iter([memory.table(quick), memory.imports(quick)]),
}


def tables(quick: bool, only: list[str] | None = None) -> Iterator[Table]:
    for name, group in GROUPS.items():
        if not only or name in only:
            yield from group(quick)


def main(quick: bool = False, out: Path = Path("out/bench"), only: list[str] | None = None) -> Path:
    """Print every table as it is ready; the folder they were written to."""
    torch.set_num_threads(1)
    host, done = machine(), []
    head = "; ".join(f"{name} {value}" for name, value in host.items())
    print(head, "\n", flush=True)
    for table in tables(quick, only):
        print(table.markdown(), flush=True)
        done.append(table)
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"Measured on: {head}.", "", *(table.markdown() for table in done)])
    (out / "bench.md").write_text(text, encoding="utf-8")
    data = {"machine": host, "quick": quick, "tables": [table.data() for table in done]}
    (out / "bench.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    compare.draw(done, out)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer chains and rounds")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for bench.md and bench.json")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="one group; may be repeated")
    parser.add_argument("--compare", action="store_true", help="the group compare: samplers of others beside ours")
    arguments = parser.parse_args()
    groups = [*(arguments.only or []), *(["compare"] if arguments.compare else [])]
    print(main(arguments.quick, arguments.out, groups or None))
