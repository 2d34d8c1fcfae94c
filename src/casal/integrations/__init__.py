"""Bridges to other libraries. Each is imported on use: ``import casal`` loads none of them."""
