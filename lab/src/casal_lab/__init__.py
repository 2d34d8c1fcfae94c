"""The laboratory: experiments, networks, solvers and reports. Nothing in the library imports it.

``casal_lab.experiments`` holds the registry ``EXPERIMENTS``, ``casal_lab.experiment`` says what an experiment is. Each
experiment is a folder: set-up, runs, claims and figures. None imports another; what two of them need is in ``problems``
(exact distributions), ``study`` (runs, tuning), ``artifacts`` (trained networks on disk), ``drawing``, ``nets`` or
``physics``.
"""
