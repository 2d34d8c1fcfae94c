"""From a call to a result: ``prepare.py``, then ``loop.py``, then ``result.py``; ``call.py`` calls them."""

from casal.sampling.call import sample
from casal.sampling.certificate import Certificate, certify
from casal.sampling.export import Summary
from casal.sampling.loop import StepView
from casal.sampling.progress import progress_bar
from casal.sampling.result import Cost, SampleResult, load
from casal.sampling.run import Run
from casal.sampling.self_check import calibrate
from casal.sampling.trace import Snapshots

__all__ = [
    "Certificate",
    "Cost",
    "Run",
    "SampleResult",
    "Snapshots",
    "StepView",
    "Summary",
    "calibrate",
    "certify",
    "load",
    "progress_bar",
    "sample",
]
