"""Constrained samples of trained networks of fields, beside published methods."""
