"""``casal demo``: six small problems, each by the model alone, one projection and "auto", on one page."""

MODULES = (
    "casal_lab.demo.sphere",
    "casal_lab.demo.unet",
    "casal_lab.demo.burgers",
    "casal_lab.demo.vehicle",
    "casal_lab.demo.torus",
    "casal_lab.demo.portfolio",
)
"""Each defines a ``PROBLEM``; in the order of the page and of the processes, so the longest is among the first."""
