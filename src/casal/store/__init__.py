"""Runs on disk: written tile by tile, continued after a crash, read by xarray. It handles only arrays and records."""

from casal.store.files import named_errors, write_whole
from casal.store.run_store import FORMAT, RunStore, stored_tile
from casal.store.tree import make_tree, open_tree

__all__ = ["FORMAT", "RunStore", "make_tree", "named_errors", "open_tree", "stored_tile", "write_whole"]
