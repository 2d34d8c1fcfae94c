"""Whole results on disk, and results read back."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casal.certificate import Certificate
from casal.errors import StoreError
from casal.methods import Usage
from casal.result import Cost, SampleResult
from casal.store.arrays import zarr_module
from casal.store.files import named_errors
from casal.store.run_store import FORMAT, RunStore
from casal.tiles import Tile
from casal.trace import Trace


def save(result: SampleResult, path: str | Path) -> None:
    """Write a result to a new store, in the layout of ``casal.sample(..., store=path)``.

    Args:
        result: What ``casal.sample`` returned.
        path: A folder that does not exist yet.

    Raises:
        StoreError: The folder exists, or cannot be written.
    """
    place = Path(path)
    with named_errors(place):
        taken = place.exists()
    if taken:
        raise StoreError(f"{place} exists; nothing was changed, choose another path")
    n, provenance = len(result.samples), dict(result.provenance)
    tile = Tile(0, 0, n, torch.Generator(), state=result.state, steps=int(result.steps.max()))
    tile.usage = Usage(round(result.cost.score_evaluations * n), round(result.cost.projections * n))
    store = RunStore(place, {**provenance, "saved": True, "tol": result.certificate.tolerance, "n": n}, [tile])
    store.write(tile, result.samples, result.certificate.violation)
    about = {**provenance, "partial": result.partial, "series": _plain(result.trace)}
    store.finish(replace(result, provenance=about, partial=False), Trace(), Usage())


def load(path: str | Path) -> SampleResult:
    """Read a result back: a finished run, or the tiles that are there of one that was stopped (``partial``).

    The samples are checked against their checksums; the certificate is the stored one, of the same samples.

    Raises:
        StoreError: There is no store, it is damaged, or it was written by another version of the format.
    """
    place = Path(path)
    if not (place / "zarr.json").exists():
        raise StoreError(f"there is no store at {place}")
    with named_errors(place):
        root = zarr_module().open_group(place, mode="r")
        if "provenance" not in root or "identity" not in root["provenance"].attrs:
            raise StoreError(f"{place} is a zarr store, but not of a casal run")
        about = dict(root["provenance"].attrs)
    identity: dict[str, Any] = dict(about["identity"])
    if identity.get("format") != FORMAT:
        raise StoreError(f"{place} has format {identity.get('format')}; this version of casal reads format {FORMAT}")
    size = int(root["provenance/tiles"].shape[0])
    store = RunStore(place, {k: v for k, v in identity.items() if k != "format"}, _outline(identity, size), mode="r")
    done = store.done()
    if not done:
        raise StoreError(f"no tile of {place} is finished yet; repeat the call that began it to go on")
    pieces = [store.read(index) for index in done]
    samples = torch.cat([arrays["posterior/samples"][:, 0] for _, arrays in pieces])
    violation = torch.cat([arrays["sample_stats/violation"][:, 0] for _, arrays in pieces])
    run, (trace, _) = dict(about.get("run", {})), store.exchanges()
    for record, _ in pieces:
        trace.absorb(Trace.from_plain(record["trace"]))
    partial = bool(run.pop("partial", len(done) < size))
    series = {name: torch.tensor(v, dtype=torch.float64) for name, v in dict(run.pop("series", {})).items()}
    used = [sum(record["usage"][k] for record, _ in pieces) / len(samples) for k in (0, 1)]
    return SampleResult(
        samples=samples,
        certificate=Certificate(violation, float(identity["tol"])),
        trace=series or trace.collected(),
        cost=Cost(*about.get("cost", [*used, 0.0])),
        state=_state(pieces),
        provenance=run or identity,
        steps=torch.cat([arrays["sample_stats/steps"][:, 0] for _, arrays in pieces]),
        partial=partial,
    )


def open_tree(path: str | Path) -> Any:
    """The store as an xarray ``DataTree``, read from the disk as it is used; ArviZ takes it too."""
    try:
        import xarray
    except ImportError as error:
        raise StoreError("this needs the store extra: pip install 'casal[store]'") from error
    return xarray.open_datatree(path, engine="zarr", consolidated=False)


def _plain(trace: Any) -> dict[str, list[float]]:
    return {name: series.tolist() for name, series in trace.items()}


def _outline(identity: dict[str, Any], size: int) -> list[Tile]:
    """Tiles as the store has them, for reading only."""
    n = int(identity["n"])
    chunk = n if size == 1 else int(identity["tile"])
    return [Tile(k, k * chunk, min((k + 1) * chunk, n), torch.Generator()) for k in range(size)]


def _state(pieces: list[tuple[dict[str, Any], dict[str, Tensor]]]) -> Any:
    fields = pieces[0][0]["fields"]
    kind = namedtuple("State", fields)  # type: ignore[misc]
    common = pieces[0][0]["common"]
    parts = [
        torch.tensor(common[name][1], dtype=getattr(torch, common[name][0].removeprefix("torch.")))
        if name in common
        else torch.cat([arrays[f"state/{name}"] for _, arrays in pieces])
        for name in fields
    ]
    return kind(*parts)
