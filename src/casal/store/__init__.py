"""Runs on disk: written batch by batch, continued after a crash, read by xarray. It handles only arrays and records."""

from casal.store.files import named_errors, refuse_file_name, write_whole
from casal.store.run_store import CHECKPOINT, FORMAT, RunStore, digest, make_tree, open_tree, stored_batch

__all__ = [
    "CHECKPOINT",
    "FORMAT",
    "RunStore",
    "digest",
    "make_tree",
    "named_errors",
    "open_tree",
    "refuse_file_name",
    "stored_batch",
    "write_whole",
]
