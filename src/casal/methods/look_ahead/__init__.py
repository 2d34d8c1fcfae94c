"""Twisted sequential Monte Carlo with a second-order look ahead, for many dimensions."""

from casal.methods.look_ahead.method import LookAhead

__all__ = ["LookAhead"]
