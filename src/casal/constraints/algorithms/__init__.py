"""Algorithms that project onto sets they know only through rows, or through other projections."""
