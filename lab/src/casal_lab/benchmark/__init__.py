"""A public benchmark of constrained distributions with exact answers, for any sampler.

    from casal_lab import benchmark

    def mine(problem, n, budget):                      # -> points (n, d) in the set
        x = problem.start(n) if problem.kind == "density" else problem.target(60).draw(n, problem.generator)
        return problem.project(x)

    print(benchmark.run([mine, "auto", "exact draws"], ["three modes on a circle"], n=500, seeds=2))

``PROBLEMS`` are the problems by name, ``problem(name)`` makes one: a model (a density, an exact denoiser or a trained
network), a set, and the exact distribution on it. ``SAMPLERS`` are the samplers that come with the benchmark. ``score``
compares points with the exact distribution: error over floor, which is 1 on average for exact draws, and the largest
violation. From the command line: ``casal benchmark``.

>>> from casal_lab import benchmark
>>> len(benchmark.PROBLEMS) >= 30, set(benchmark.QUICK) <= set(benchmark.PROBLEMS), benchmark.BUDGET > 0
(True, True, True)
>>> all(isinstance(sampler, benchmark.Sampler) for sampler in benchmark.SAMPLERS.values())
True
>>> len(benchmark.QUICK_SAMPLERS) > 0
True
>>> benchmark.SAMPLES, benchmark.SEEDS        # of a full run
(256, 3)
>>> circle = benchmark.problem("three modes on a circle")
>>> isinstance(circle, benchmark.Problem), isinstance(circle.answer, benchmark.Answer | benchmark.Reference)
(True, True)
>>> results = benchmark.run(["exact draws"], ["three modes on a circle"], n=50, seeds=2)
>>> entry = results.of("three modes on a circle", "exact draws")
>>> isinstance(results, benchmark.Results), isinstance(entry, benchmark.Entry)
(True, True)
>>> isinstance(entry.scores[0], benchmark.Score)
True
"""

from casal_lab.benchmark.answer import Answer, Reference
from casal_lab.benchmark.catalogue import PROBLEMS, problem
from casal_lab.benchmark.comparison import (
    BUDGET,
    QUICK,
    QUICK_SAMPLERS,
    SAMPLES,
    SEEDS,
    Entry,
    Results,
    Score,
    run,
    score,
)
from casal_lab.benchmark.interface import Problem
from casal_lab.benchmark.samplers import SAMPLERS, Sampler

__all__ = [
    "BUDGET",
    "PROBLEMS",
    "QUICK",
    "QUICK_SAMPLERS",
    "SAMPLERS",
    "SAMPLES",
    "SEEDS",
    "Answer",
    "Entry",
    "Problem",
    "Reference",
    "Results",
    "Sampler",
    "Score",
    "problem",
    "run",
    "score",
]
