"""Peak memory of a large run, in a process of its own, and what importing costs.

``python -m benchmarks.memory 1000000 200 CASAL`` prints the peak in megabytes.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Table, in_new_process, interleaved


def peak(n: int, steps: int, method: str) -> float:
    """Megabytes, by the operating system's count."""
    return float(in_new_process("benchmarks.memory", n, steps, method))


def table(quick: bool) -> Table:
    n, steps = (100_000, 20) if quick else (1_000_000, 200)
    rows = [{"method": name, "peak, MB": peak(n, steps, name)} for name in ("unconstrained", "CASAL", "WeightedCASAL")]
    return Table(f"Peak memory, {n} chains x 50, {steps} steps, float32", rows)


def imports(quick: bool) -> Table:
    """Seconds of a fresh interpreter."""

    def script(line: str) -> None:
        subprocess.run([sys.executable, "-c", line], check=True)

    cases = {line: (lambda line=line: script(line)) for line in ("import torch", "import torch, casal")}
    seconds = interleaved(cases, 2 if quick else 5)
    rows = [{"script": name, "min, s": low, "median, s": mid} for name, (low, mid) in seconds.items()]
    extra = seconds["import torch, casal"][0] - seconds["import torch"][0]
    return Table("Import", rows, f"casal adds {extra:.2f} s to torch.")


def main() -> None:
    import resource

    import torch

    import casal
    from benchmarks.field import METHODS, SPHERE, target

    torch.set_num_threads(2)
    n, steps, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    result = casal.sample(target(steps), SPHERE, METHODS[name], n)
    assert len(result.samples) == n
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
