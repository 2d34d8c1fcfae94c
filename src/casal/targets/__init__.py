"""Model families: one function each, returning a score and a table."""

from casal.targets.base import Table, Target
from casal.targets.langevin import energy, langevin

__all__ = ["Table", "Target", "energy", "langevin"]
