"""``python -m benchmarks`` prints every table."""

from __future__ import annotations

import torch

from benchmarks import field, projections

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(field.table())
    print(projections.table())
