"""Exact distributions that several experiments share."""
