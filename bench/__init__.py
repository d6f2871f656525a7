"""Measures Interlock beside the bare limit of each engine: `python -m bench --help`."""
