"""A public benchmark of constrained distributions with exact answers, for any sampler.

    import casal_lab.benchmark as laws

    def mine(problem, n, budget):                      # -> points (n, d) in the set
        x = problem.start(n) if problem.kind == "density" else problem.target(60).draw(n, problem.generator)
        return problem.project(x)

    print(laws.run([mine, "auto", "exact draws"], ["three modes on a circle"], n=500, seeds=2))

``PROBLEMS`` are the problems by name, ``problem(name)`` makes one: a model (a density, an exact denoiser or a trained
network), a set, and the exact distribution on it. ``SAMPLERS`` are the samplers that come with the benchmark. ``score``
compares points with the exact distribution: error over floor, which is 1 on average for exact draws, and the largest
violation. From the command line: ``casal benchmark``.

>>> import casal_lab.benchmark as laws
>>> len(laws.PROBLEMS) >= 30, set(laws.QUICK) <= set(laws.PROBLEMS), laws.BUDGET > 0
(True, True, True)
>>> all(isinstance(sampler, laws.Sampler) for sampler in laws.SAMPLERS.values()), len(laws.QUICK_SAMPLERS) > 0
(True, True)
>>> laws.SAMPLES, laws.SEEDS        # of a full run
(256, 3)
>>> circle = laws.problem("three modes on a circle")
>>> isinstance(circle, laws.Problem), isinstance(circle.answer, laws.Answer | laws.Reference)
(True, True)
>>> results = laws.run(["exact draws"], ["three modes on a circle"], n=50, seeds=2)
>>> entry = results.of("three modes on a circle", "exact draws")
>>> isinstance(results, laws.Results), isinstance(entry, laws.Entry), isinstance(entry.scores[0], laws.Score)
(True, True, True)
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
