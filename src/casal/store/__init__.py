"""Results on disk: written tile by tile, continued after a crash, read by xarray."""

from casal.store.result_store import load, open_tree, save
from casal.store.run_store import RunStore

__all__ = ["RunStore", "load", "open_tree", "save"]
