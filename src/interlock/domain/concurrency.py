"""Concurrency slots of an agent: which jobs have one, and when it is freed.

The first due jobs of a limited agent (by due time, then arrival) have a slot, and a claim leases only those. Under a
strict agent, a job that stops running keeps its slot until it is terminal or the agent is no longer strict. It then
waits for a slot again, even if the agent has become strict again.
"""

from __future__ import annotations


def keeps_slot(origin: str, *, strict: bool, has_slot: bool) -> bool:
    """Return whether a non-terminal job that leaves status `origin` keeps the slot it had while running or waiting."""
    return strict if origin == "running" else has_slot


def frees_slot(origin: str, *, ended: bool, strict: bool, has_slot: bool) -> bool:
    """Return whether a job that leaves status `origin` frees a slot."""
    return ended or not strict if origin == "running" else ended and has_slot
