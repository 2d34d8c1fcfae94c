"""A run as an xarray ``DataTree``: read from disk, or made of arrays in memory, with the same groups and names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from casal.errors import StoreError, missing_extra
from casal.store.files import named_errors
from casal.store.run_store import dimension_names, packed


def open_tree(path: str | Path) -> Any:
    """The store as an xarray ``DataTree``, read from the disk as it is used; ArviZ takes it too.

    It reads what is there and checks nothing; ``casal.load`` compares all checksums.

    Raises:
        StoreError: The folder is no store, or its hierarchy is damaged.
    """
    xarray = xarray_module("casal.store.open_tree")
    with named_errors(Path(path)):
        return xarray.open_datatree(path, engine="zarr", consolidated=False)


def make_tree(arrays: Mapping[str, Tensor], attributes: Mapping[str, Mapping[str, Any]]) -> Any:
    """A ``DataTree`` in memory.

    Args:
        arrays: Tensors by their place, such as "posterior/samples"; chains first, as in a store.
        attributes: Of groups, by name.
    """
    xarray = xarray_module("an xarray tree")
    groups: dict[str, dict[str, Any]] = {name: {} for name in attributes}
    for place, part in arrays.items():
        group, _, name = place.partition("/")
        groups.setdefault(group, {})[name] = (dimension_names(group, part.ndim), packed(part))
    return xarray.DataTree.from_dict(
        {f"/{name}": xarray.Dataset(found, attrs=dict(attributes.get(name, {}))) for name, found in groups.items()}
    )


def xarray_module(what: str) -> Any:
    """xarray, or a StoreError that says how to get it."""
    try:
        import xarray
    except ImportError as error:
        raise StoreError(missing_extra(what, "store", "xarray")) from error
    return xarray
