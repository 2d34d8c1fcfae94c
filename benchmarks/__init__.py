"""Timed ratios. Never imported by tests."""
