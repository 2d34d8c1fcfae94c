"""From a call to a result: ``call.py`` plans (``plan.py``), runs (``loop.py``) and collects (``collect.py``)."""

from casal.sampling.call import sample
from casal.sampling.certificate import Certificate, certify
from casal.sampling.freed_memory import give_back
from casal.sampling.on_the_way import StepView
from casal.sampling.progress import progress_bar
from casal.sampling.result import Cost, SampleResult, load
from casal.sampling.snapshots import Snapshots
from casal.sampling.summary import Summary
from casal.sampling.tiles import generator

__all__ = [
    "Certificate",
    "Cost",
    "SampleResult",
    "Snapshots",
    "StepView",
    "Summary",
    "certify",
    "generator",
    "give_back",
    "load",
    "progress_bar",
    "sample",
]
