"""Random trials of the library against independent checks: ``python -m fuzz --minutes 20``."""
