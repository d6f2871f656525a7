"""Interlock's worker beside others, each in an environment of its own: `python -m bench.peers --help`."""
