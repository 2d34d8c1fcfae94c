"""The laboratory: experiments, networks, solvers and reports. Nothing in the library imports it."""
