"""Solvers behind projections and draws that know no set: polyhedra, splittings, Newton steps, truncated Gaussians."""
