"""Solvers of the experiments. They know nothing of sampling."""
