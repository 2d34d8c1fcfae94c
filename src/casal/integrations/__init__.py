"""Bridges to other libraries, imported on use."""
